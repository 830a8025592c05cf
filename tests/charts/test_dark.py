"""Dark charts, the contrast of text on every colour, and legends in which no colour stands
twice.
"""

import base64
import json
import re

import pytest
import vl_convert as vlc

from llmprof import analyze, charts
from llmprof.charts import themed
from llmprof.charts.base.dark import (
    GROUND,
    NEUTRAL,
    _mime_bundle,
    dark_colours,
    in_the_dark,
    lightened,
    notebook_style,
)
from llmprof.charts.base.theme import (
    CATEGORIES,
    CAUSES,
    IDLE,
    INK,
    MISSING,
    MUTED,
    PAPER,
    PHASES,
    REST,
    STAGES,
    WHITE,
    contrast,
    ink_on,
)
from llmprof.errors import LlmprofError
from tests.charts.test_every_chart import CHARTS

PALETTES = {"stage": STAGES, "category": CATEGORIES, "phase": PHASES, "cause": CAUSES}
COLOURS = sorted({IDLE, MISSING, REST}.union(*(table.values() for table in PALETTES.values())))


def test_text_can_be_read_in_both_themes():
    for colour in COLOURS:
        ink = ink_on(colour)
        assert in_the_dark(ink) == ink
        assert contrast(colour, ink) >= 4.5, colour
        assert contrast(in_the_dark(colour), ink) >= 4.5, colour
    for text in (INK, MUTED):
        assert contrast(text, PAPER) >= 4.5
        assert contrast(in_the_dark(text), GROUND) >= 4.5


def test_the_style_of_a_notebook_is_of_charts_of_this_package_in_dark_pages_alone():
    *of_menu, rule = notebook_style().splitlines()
    assert all(one.startswith(".vega-embed") and "fill" not in one for one in of_menu)
    assert rule.startswith(":is(body[data-jp-theme-light=")
    assert "254, 254, 254" in rule.partition("{")[0]  # PAPER
    charts.follow_theme()  # nothing happens where there is no notebook


def test_a_chart_for_a_notebook_is_drawn_there_and_has_a_picture():
    make, frame = CHARTS["overlap"]
    spec = make(frame()).to_dict(validate=False)
    bundle, metadata = _mime_bundle(spec)
    mime = "application/vnd.vegalite.v5+json"
    drawn = bundle[mime]
    # most tables are texts, and drawn as the rows are
    assert sum(isinstance(table, str) for table in drawn["datasets"].values()) > 1
    pictures = [vlc.vegalite_to_svg(one, vl_version="5.20") for one in (spec, drawn)]
    numbers = re.compile(r"clip\d+|\d+\.\d+")
    places = [
        [one if "clip" not in one else "" for one in numbers.findall(svg)] for svg in pictures
    ]
    assert [one[:7] for one in places[0]] == [one[:7] for one in places[1]]
    assert len({numbers.sub("", picture) for picture in pictures}) == 1
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    # a notebook that is not trusted leaves out all other style sheets
    assert metadata[mime]["embed_options"]["defaultStyle"] == notebook_style()


def test_a_theme_is_a_pure_function_of_the_specification():
    spec = {
        "mark": {"color": INK},
        "data": [{"ink": WHITE, "fill": "#0b3c73", "name": f"a {INK}"}],
        "width": 3,
    }
    before = json.dumps(spec)
    dark = themed(spec, "dark")
    assert dark == {
        "mark": {"color": NEUTRAL[INK]},
        "data": [{"ink": WHITE, "fill": lightened("#0b3c73"), "name": f"a {INK}"}],
        "width": 3,
    }
    assert json.dumps(spec) == before
    assert themed(spec, "light") == spec
    assert dark_colours([before]) == {INK: NEUTRAL[INK], "#0b3c73": lightened("#0b3c73")}
    with pytest.raises(LlmprofError, match="theme"):
        themed(spec, "solarized")


def test_dark_images_and_files(sample_trace, tmp_path):
    chart = charts.overlap(analyze.overlap(sample_trace("torch_tp1_eager"), by=("rank",)))
    light, dark = charts.to_png_bytes(chart), charts.to_png_bytes(chart, theme="dark")
    assert light != dark
    assert charts.save(chart, tmp_path / "a.png", theme="dark").read_bytes() == dark
    assert GROUND in charts.save(chart, tmp_path / "a.svg", theme="dark").read_text()
    page = charts.to_html(chart)
    assert f'"{INK}": "{NEUTRAL[INK]}"' in page
    assert "prefers-color-scheme: dark" in page
