import json
import re

import pytest

from llmprof import charts
from llmprof.charts.base.save import vega_bundle
from llmprof.errors import OutputError
from tests.charts import frames, specs


def test_png_has_two_pixels_for_each_of_the_chart(tmp_path):
    chart = charts.overlap(frames.overlapped())
    path = charts.save(chart, tmp_path / "deep" / "er" / "overlap.png")
    assert path == tmp_path / "deep" / "er" / "overlap.png"
    width, height = specs.size(charts.to_png_bytes(chart, scale=1))
    assert specs.size(path.read_bytes()) == (2 * width, 2 * height)


def test_svg_is_text_and_loads_nothing(tmp_path):
    text = charts.save(charts.diff(frames.compared()), str(tmp_path / "diff.SVG")).read_text(
        encoding="utf-8"
    )
    assert text.startswith("<svg")
    assert "only in b" in text
    assert not re.search(r'(href|src)="(?!#)', text)
    chart = charts.launch_delay(frames.delayed())
    path = charts.save(chart, tmp_path / "delay.json")
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(chart.to_dict()))


def test_html_needs_no_network(tmp_path):
    chart = charts.idle(frames.idled())
    page = charts.save(chart, tmp_path / "idle.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link)[^>]*\b(src|href)=", page, re.IGNORECASE)
    ours = page.replace(vega_bundle(), "")
    assert not re.search(r"(src|href)=|@import|url\(|//cdn", ours, re.IGNORECASE)
    assert ours.count("https://") == 1  # the name of the schema, which nothing loads
    assert "default-src 'none'" in page
    assert "<title>idle</title>" in page
    assert "vegaEmbed" in page
    assert len(page) > 500_000


@pytest.mark.parametrize("name", ["chart.pdf", "chart", "chart.png.txt"])
def test_an_unknown_suffix_is_an_error(tmp_path, name):
    with pytest.raises(OutputError, match=r"expected one of \.png, \.svg, \.html, \.json"):
        charts.save(charts.overlap(frames.overlapped()), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(OutputError, match=r"cannot write .*choose a folder that can be written"):
        charts.save(charts.overlap(frames.overlapped()), tmp_path / "file" / "chart.json")
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        charts.save(charts.overlap(frames.overlapped()), tmp_path / "taken.json")
