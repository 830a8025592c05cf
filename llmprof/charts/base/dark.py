"""Dark theme of charts: a pure function from the specification of a light chart to that of a
dark one.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import altair as alt

from llmprof.charts.base import theme as palette
from llmprof.charts.base.theme import (
    BAND,
    BLACK,
    IDLE,
    INK,
    LANE,
    MISSING,
    MUTED,
    PAPER,
    REST,
    RULE,
    WHITE,
)
from llmprof.errors import checked

Theme = Literal["light", "dark", "any"]

GROUND: Final = "#1C2229"
"""Background of dark charts: that of the cards in a dark report."""

NEUTRAL: Final[Mapping[str, str]] = {
    PAPER: GROUND,
    INK: "#E6EAEE",
    MUTED: "#A6B1BD",
    RULE: "#4A5663",
    "#EDF0F3": "#2B333D",
    "#F4F6F8": "#242B34",
    IDLE: "#8994A1",
    LANE: "#333C47",
    MISSING: "#DDE2E8",
    REST: "#B4BEC9",
    "#C6CDD6": "#8994A1",
    "#DFE4EA": "#A5AFBB",
    BAND: "#33526B",
}
"""Dark colours of background, text, lines and neutral marks, by the light ones."""

_GREY: Final = "#6B7580"
ON_ANY: Final = {
    PAPER: "transparent",
    INK: _GREY,
    MUTED: _GREY,
    RULE: f"{_GREY}66",
    LANE: f"{_GREY}2C",
    "#EDF0F3": f"{_GREY}22",
    "#F4F6F8": f"{_GREY}14",
}
"""Colours of a picture whose page is light or dark: seen through, or read on white and black."""

LEAST: Final = 0.36
"""Least lightness (0 to 1, of the weighted channels) that is visible on the dark background."""

_COLOUR = re.compile(r'"(#[0-9A-Fa-f]{6})"')


def lightened(colour: str) -> str:
    """The colour, mixed with white if it would hardly be visible on a dark background."""
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    light = (0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]) / 255
    share = max(0.0, LEAST - light)
    return "#" + "".join(f"{int(c + (255 - c) * share + 0.5):02X}" for c in channels)


def in_the_dark(colour: str) -> str:
    """Colour in a dark chart of a colour in a light one; black and white stay, as text on
    coloured marks.
    """
    colour = colour.upper()
    return colour if colour in (BLACK, WHITE) else NEUTRAL.get(colour) or lightened(colour)


def dark_colours(specs: Iterable[str]) -> dict[str, str]:
    """Dark colours of the colours in specifications (JSON) that change in the dark theme."""
    present = sorted({colour for spec in specs for colour in _COLOUR.findall(spec)})
    return {colour: dark for colour in present if (dark := in_the_dark(colour)) != colour.upper()}


@checked
def themed(chart: alt.TopLevelMixin | Mapping[str, Any], theme: Theme) -> dict[str, Any]:
    """Vega-Lite specification of a chart in a theme; the chart itself does not change.

    Parameters
    ----------
    chart : altair chart or mapping
        A chart of :mod:`llmprof.charts`, or its specification.
    theme : str
        ``light`` (no change), ``dark``, or ``any`` for a page that may be either.

    Examples
    --------
    >>> from llmprof import analyze, charts
    >>> charts.themed(charts.overlap(analyze.overlap(trace, by=("rank",))), "dark")["background"]
    '#1C2229'
    """
    spec = dict(chart) if isinstance(chart, Mapping) else chart.to_dict(validate=False)
    if theme == "light":
        return spec
    table = ON_ANY if theme == "any" else dark_colours([json.dumps(spec)])
    dark: dict[str, Any] = _replaced(spec, table)
    return dark


def on_any(svg: str) -> str:
    """An SVG image for a page that may be light or dark."""
    return _COLOUR.sub(lambda found: f'"{ON_ANY.get(found[1], found[1])}"', svg)


def _replaced(value: Any, table: Mapping[str, str]) -> Any:
    """A JSON value in which whole strings are replaced."""
    if isinstance(value, str):
        return table.get(value, value)
    if isinstance(value, Mapping):
        return {name: _replaced(item, table) for name, item in value.items()}
    return [_replaced(item, table) for item in value] if isinstance(value, list) else value


_OTHERS: Final = (
    "#332288",
    "#8B6F47",
    "#B2182B",
    "#4E79A7",
    "#9C755F",
    "#59A14F",
    "#999933",
    "#661100",
    "#882255",
)
"""Colours of single charts that are in no table of the theme."""


def notebook_style() -> str:
    """Style sheet with which charts of this package in a notebook follow its theme, also when it
    is switched.
    """
    named = [value for value in vars(palette).values() if isinstance(value, str | Mapping)]
    texts = [
        text for value in named for text in ([value] if isinstance(value, str) else value.values())
    ]
    colours = {
        text.upper() for text in [*texts, *NEUTRAL, *_OTHERS] if _COLOUR.fullmatch(f'"{text}"')
    }
    rgb = ", ".join(str(int(PAPER[i : i + 2], 16)) for i in (1, 3, 5))
    dark_page = (
        ':is(body[data-jp-theme-light="false"], body.vscode-dark, body.vscode-high-contrast)'
    )
    ours = f'{dark_page} .vega-embed svg.marks:is([style*="{rgb}"], [style*="{PAPER}" i])'
    rules = [
        f'[{kind}="{colour}" i]{{{kind}:{dark}}}'
        for colour in sorted(colours)
        if (dark := in_the_dark(colour)) != colour
        for kind in ("fill", "stroke")
    ]
    return f"{_MENU}{ours}{{background-color:{GROUND} !important;{''.join(rules)}}}"


_MENU: Final = """.vega-embed{position:relative;display:inline-block;padding-right:38px}
.vega-embed summary{position:absolute;top:0;right:0;padding:6px;list-style:none;opacity:.3}
.vega-embed summary svg{width:14px;height:14px}
.vega-embed .vega-actions{position:absolute;top:30px;right:0;z-index:9;background:#fff}
.vega-embed .vega-actions a{display:block;padding:4px 16px;color:#333;font:13px sans-serif}
"""
"""How the menu of a chart looks: Vega-Embed has one style sheet, its own or that of the chart."""


_MIME: Final = "application/vnd.vegalite.v5+json"
"""What JupyterLab and VS Code draw by themselves, without a script from elsewhere."""

_SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v5.json"


def _mime_bundle(spec: dict[str, Any], **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A chart for a notebook: to be drawn there as SVG, and as a picture for where that cannot
    be done.
    """
    import vl_convert as vlc

    from llmprof.charts.base.save import vega_lite_version

    drawn = vlc.vegalite_to_png(json.dumps(spec), vl_version=vega_lite_version())
    picture = base64.b64encode(drawn).decode("ascii")
    return {_MIME: {**_with_texts(spec), "$schema": _SCHEMA}, "image/png": picture}, {
        # a notebook that is not trusted shows no style sheet but this
        _MIME: {"embed_options": {"renderer": "svg", "defaultStyle": notebook_style()}}
    }


def _with_texts(spec: dict[str, Any]) -> dict[str, Any]:
    """A specification whose tables are CSV, a tenth of the lines that a notebook makes of rows."""
    tables = {name: _csv(rows) for name, rows in spec.get("datasets", {}).items()}
    texts = {name: table for name, table in tables.items() if table is not None}

    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [placed(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get("name") in texts and value.keys() == {"name"}:
            return value | {"format": {"type": "csv", "parse": texts[value["name"]][1]}}
        return {key: placed(item) for key, item in value.items()}

    shown: dict[str, Any] = placed({key: item for key, item in spec.items() if key != "datasets"})
    data = {name: texts.get(name, (rows,))[0] for name, rows in spec.get("datasets", {}).items()}
    return shown | ({"datasets": data} if data else {})


def _csv(rows: Any) -> tuple[str, dict[str, str]] | None:
    """A table as CSV and the types of its columns; None if a value would not be the same again."""
    if not rows or not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
        return None
    types = {name: _csv_type([row[name] for row in rows]) for name in rows[0]}
    if not all(types.values()):
        return None
    text = io.StringIO()
    writer = csv.DictWriter(text, list(types), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _nine_digits(value) for name, value in row.items()} for row in rows)
    return text.getvalue(), {name: str(kind) for name, kind in types.items()}


def _nine_digits(value: Any) -> Any:
    """A number as precise as a nanosecond of a second."""
    return f"{value:.9g}" if isinstance(value, float) else value


def _csv_type(values: list[Any]) -> str | None:
    """How Vega-Lite reads a column of texts; None if it cannot."""
    kinds = {type(value) for value in values}
    if kinds <= {int, float, type(None)}:
        return "number"
    return "string" if kinds == {str} and all(values) else None


def follow_theme() -> None:
    """Let the charts of a notebook follow its theme from here on: light or dark, also when it is
    switched.

    The notebook then draws charts itself, without a network, as SVG that a style sheet colours
    anew: what was zoomed stays so. Saved with the notebook are a picture of each chart and its
    specification. This enables a renderer of Altair; ``altair.renderers.enable("default")`` goes
    back. Outside of a notebook nothing happens.

    Examples
    --------
    >>> charts.follow_theme()
    """
    if "IPython" not in sys.modules:
        return
    from IPython.core.getipython import get_ipython

    if get_ipython() is None:
        return
    alt.renderers.register("llmprof", _mime_bundle)
    alt.renderers.enable("llmprof")
