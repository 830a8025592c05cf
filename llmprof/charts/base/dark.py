"""Dark theme of charts: a pure function from the specification of a light chart to that of a dark one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import altair as alt

from llmprof.arguments import checked
from llmprof.charts.base.theme import BLACK, IDLE, INK, MISSING, MUTED, PAPER, REST, RULE, WHITE

Theme = Literal["light", "dark"]

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
    MISSING: "#DDE2E8",
    REST: "#B4BEC9",
    "#C6CDD6": "#8994A1",
    "#DFE4EA": "#A5AFBB",
}
"""Dark colours of background, text, lines and neutral marks, by the light ones."""

LEAST: Final = 0.36
"""Least lightness (0 to 1, of the weighted channels) that is visible on the dark background."""

_COLOUR = re.compile(r'"(#[0-9A-Fa-f]{6})"')


def lightened(colour: str) -> str:
    """The colour, mixed with white if it would hardly be visible on a dark background.

    Parameters
    ----------
    colour : str
        Hexadecimal, ``#rrggbb``.
    """
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    light = (0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]) / 255
    share = max(0.0, LEAST - light)
    return "#" + "".join(f"{int(c + (255 - c) * share + 0.5):02X}" for c in channels)


def in_the_dark(colour: str) -> str:
    """Colour in a dark chart of a colour in a light one; black and white are text on coloured marks and do not change.

    Parameters
    ----------
    colour : str
        Hexadecimal, ``#rrggbb``.
    """
    colour = colour.upper()
    if colour in (BLACK, WHITE):
        return colour
    return NEUTRAL.get(colour) or lightened(colour)


def dark_colours(specs: Iterable[str]) -> dict[str, str]:
    """Dark colours of the colours in specifications (JSON) that change in the dark theme.

    With this table a page can draw its charts in both themes from one specification.

    Parameters
    ----------
    specs : iterable of str
        Vega-Lite specifications as JSON.
    """
    present = sorted({colour for spec in specs for colour in _COLOUR.findall(spec)})
    return {colour: dark for colour in present if (dark := in_the_dark(colour)) != colour.upper()}


@checked
def themed(chart: alt.TopLevelMixin | Mapping[str, Any], theme: Theme) -> dict[str, Any]:
    """Specification of a chart in a theme.

    Parameters
    ----------
    chart : altair chart or mapping
        A chart of :mod:`llmprof.charts`, or its specification.
    theme : str
        ``light`` (no change) or ``dark``.

    Returns
    -------
    dict
        Vega-Lite specification; the chart itself does not change.

    Examples
    --------
    >>> from llmprof import analyze, charts
    >>> charts.themed(charts.overlap(analyze.overlap(trace, by=("rank",))), "dark")["background"]
    '#1C2229'
    """
    spec = dict(chart) if isinstance(chart, Mapping) else chart.to_dict()
    if theme == "light":
        return spec
    table = dark_colours([json.dumps(spec)])
    dark: dict[str, Any] = _replaced(spec, table)
    return dark


def _replaced(value: Any, table: Mapping[str, str]) -> Any:
    """A JSON value in which whole strings are replaced."""
    if isinstance(value, str):
        return table.get(value, value)
    if isinstance(value, Mapping):
        return {name: _replaced(one, table) for name, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, table) for one in value]
    return value
