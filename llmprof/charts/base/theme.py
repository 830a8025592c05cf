"""Look of the charts: fonts, sizes, titles and units."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import altair as alt

from llmprof.units import NS_PER_MS, NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    import polars as pl

IDLE = "#E4E7EB"
LANE = "#E5E8EC"
MISSING = "#D3D7DD"
REST = "#C3CAD3"
PAPER = "#FEFEFE"
"""Background of a chart, and the lines between its bars; pure white is kept for text on dark
colours.
"""

INK = "#1F2933"
MUTED = "#52606D"
BLACK, WHITE = "#000000", "#FFFFFF"
"""Text on coloured marks; it does not change in the dark theme."""

RULE = "#CBD2D9"
COMPUTE = "#0072B2"
BAND = "#AACCE4"
"""Spread around a line of compute."""
HIDDEN = "#86BCE0"
COMMUNICATION = "#D55E00"
WAIT = "#F6CFB2"
UNMATCHED = "#A9735A"
DURATION = "#7B8794"
COPY = "#9F7FD0"
FASTER, SLOWER, SAME = "#5B7C99", "#B2182B", "#C3CAD3"

STAGES: dict[str, str] = {
    "prepare_inputs": "#C9B79C",
    "embedding": "#8B6F47",
    "norm": "#D9B300",
    "qkv_proj": "#7CC0EA",
    "rope": "#79CDB5",
    "kv_cache_write": "#B7E4D4",
    "attention": "#009E73",
    "o_proj": "#3D96D0",
    "in_proj": "#9CCB6B",
    "conv": "#C9DF8A",
    "scan": "#4F8A10",
    "gate_norm": "#E3C94F",
    "out_proj": "#7AAE3D",
    "all_reduce": COMMUNICATION,
    "gate_up_proj": "#1368AA",
    "activation": "#F2E27A",
    "down_proj": "#0B3C73",
    "residual": "#F7EFB8",
    "router": "#F2C4D8",
    "expert_dispatch": "#DE8DB3",
    "experts": "#8C2A5E",
    "combine": "#C4608F",
    "shared_experts": "#5E1F45",
    "indexer": "#00664B",
    "top_k": "#4FB79A",
    "final_norm": "#A88B00",
    "lm_head": "#A3B8DE",
    "sampling": "#5E4526",
    "draft": "#8C7B6B",
    "encoder": "#6E5A9E",
    "kv_transfer": "#B9C2CC",
    "lora": "#9C8FD0",
    "all_gather": "#EB8A3E",
    "reduce_scatter": "#B24E00",
    "all_to_all": "#F5AC78",
    "send_recv": "#F8C4A4",
    "broadcast": "#F08A5D",
    "copy": COPY,
    "other": "#8A94A0",
}

CATEGORIES: dict[str, str] = {
    "attention": STAGES["attention"],
    "scan": STAGES["scan"],
    "gemm": "#1368AA",
    "conv": "#5B7DB1",
    "norm": STAGES["norm"],
    "rope": STAGES["rope"],
    "kv_cache_write": STAGES["kv_cache_write"],
    "activation": STAGES["activation"],
    "moe_routing": STAGES["router"],
    "moe_experts": STAGES["experts"],
    "embedding": STAGES["embedding"],
    "sampling": STAGES["sampling"],
    "quantize": "#56B4E9",
    "collective": COMMUNICATION,
    "elementwise": "#B9A88F",
    "copy": COPY,
    "fill": "#D3C4EE",
    "other": STAGES["other"],
}

PHASES: dict[str, str] = {
    "prefill": "#4B3F8F",
    "mixed": "#8F86C9",
    "decode": "#2F7F86",
    "empty": "#D3D7DD",
    "other": "#9AA5B1",
}

STEPS = "steps"
"""Name of a row or panel of steps without a phase: their parts can be called other, too."""

CAUSES: dict[str, str] = {
    "host_bound": "#CC6677",
    "sync": "#332288",
    "launch": "#AA4499",
    "queued": "#DDCC77",
    "unknown": "#B8BFC7",
}

PATH: dict[str, str] = {
    "compute": COMPUTE,
    "transfer": COMMUNICATION,
    "communication": UNMATCHED,
    "copy": COPY,
    "device gap": "#A9CBE3",
    "stream wait": "#56B4E9",
    "launch": CAUSES["launch"],
    "host call": "#E3A5AE",
    "host": CAUSES["host_bound"],
    "synchronise": CAUSES["sync"],
    "scheduler": "#DDCC77",
    "device held": "#8C6D9E",
    "unexplained": CAUSES["unknown"],
}
"""Parts of a critical path: the device first, then the host."""

_SPARE = ("#4E79A7", "#B07AA1", "#76B7B2", "#9C755F", "#EDC948", "#59A14F")
_TABLES = {"stage": STAGES, "category": CATEGORIES, "phase": PHASES, "cause": CAUSES, "path": PATH}


def colours(kind: str, present: Iterable[str]) -> dict[str, str]:
    """Colours of the names that are present, in their listing order."""
    table, names = _TABLES[kind], set(present)
    listed = {name: colour for name, colour in table.items() if name in names}
    new = {name: _SPARE[i % len(_SPARE)] for i, name in enumerate(sorted(names - set(table)))}
    return listed | new


def in_order(names: Iterable[Any], table: Iterable[str]) -> list[Any]:
    """Names in the order of a table; those that it lacks come last, None first of them."""
    places = {name: i for i, name in enumerate(table)}
    return sorted(set(names), key=lambda name: (places.get(name, len(places)), name or ""))


def ink_on(colour: str) -> str:
    """Black or white text, whichever has the higher contrast on the colour; the contrast is at
    least 4.58 : 1.
    """
    return BLACK if contrast(colour, BLACK) > contrast(colour, WHITE) else WHITE


def contrast(one: str, other: str) -> float:
    """Contrast of two colours (1 to 21), by the relative luminance of WCAG 2."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


WIDTH, NARROW = 900, 326
"""Width of a chart (px), labels included: on a desk, and on a telephone of 360 px in the frame
of a report.
"""

_PADDING = {WIDTH: 18, NARROW: 4}
"""White around a chart (px), by its width."""

_wide: ContextVar[int] = ContextVar("width of charts", default=WIDTH)


def inner() -> int:
    """Width of a chart between its paddings (px), labels included."""
    return _wide.get() - 2 * _PADDING[_wide.get()]


def is_narrow() -> bool:
    """Whether charts are laid out for a telephone now."""
    return _wide.get() == NARROW


@contextmanager
def narrow() -> Iterator[None]:
    """Lay charts out for a telephone: panels below each other, names above their bars, fewer ticks,
    the same text.

    Examples
    --------
    >>> with charts.narrow():
    ...     chart = charts.overlap(analyze.overlap(trace, by=("rank",)))
    """
    token = _wide.set(NARROW)
    try:
        yield
    finally:
        _wide.reset(token)


def panel_rows(panels: Sequence[Any], across: int, *, spacing: float) -> list[Any]:
    """Panels side by side, ``across`` of them in a row; all below each other on a telephone
    where ``across`` is 1.
    """
    lines = [panels[i : i + across] for i in range(0, len(panels), across)]
    from llmprof.charts.base import compose

    return [
        compose.hconcat(*line, spacing=spacing, bounds="flush") if len(line) > 1 else line[0]
        for line in lines
    ]


FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
LABEL_PX = 12
TEXT_PX = 12
NUMBER = ",~f"

_FIGURE = re.compile(r"(\d) (%|[num]?s\b)")
"""A number and its unit, between which no line may break."""

ChartT = TypeVar(
    "ChartT",
    "alt.Chart",
    "alt.LayerChart",
    "alt.ConcatChart",
    "alt.HConcatChart",
    "alt.VConcatChart",
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of an axis: its symbol, and how many ns it has."""

    symbol: str
    ns: int


def time_unit(largest_ns: float | None) -> Unit:
    """Largest unit in which a duration is at least 1; chosen once for a chart."""
    for unit in (Unit("s", NS_PER_S), Unit("ms", NS_PER_MS), Unit("us", NS_PER_US)):
        if abs(largest_ns or 0) >= unit.ns:
            return unit
    return Unit("ns", 1)


def text_px(text: str, size: int = LABEL_PX) -> float:
    """Width of a text (px); an estimate that is rather too large than too small."""
    wide = sum(0.88 if c in "MW@%mw" else 0.31 if c in "ijltfr.,:;|' I()[]" else 0.57 for c in text)
    return wide * size


def _balanced(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` characters and of about the same length, so that the last line
    is no single word.
    """
    whole = _FIGURE.sub("\\1\u00a0\\2", text)
    lines = textwrap.wrap(whole, width)
    narrowest = len(text) // max(1, len(lines)) + 12
    closer = textwrap.wrap(whole, min(width, narrowest))
    return [
        line.replace("\u00a0", " ") for line in (closer if len(closer) == len(lines) else lines)
    ]


def panel_heading(text: str, size: int = 13) -> alt.TitleParams:
    """Title of one panel of a chart."""
    lines = _balanced(text, 44) if is_narrow() else [text]
    return alt.TitleParams(
        text=lines if len(lines) > 1 else text,
        fontSize=size,
        fontWeight="bold",
        color=INK,
        anchor="start",
        offset=8,
    )


def layered(*marks: alt.Chart | alt.LayerChart) -> alt.LayerChart:
    """Marks on top of each other."""
    from llmprof.charts.base import compose

    return compose.overlay(*marks)


def heading_mark(text: str) -> alt.Chart:
    """Title of a panel beside another one, as a mark, so that both titles have the same height."""
    mark = alt.Chart({"values": ({},)}).mark_text(
        align="left", baseline="bottom", fontSize=13, fontWeight="bold", color=INK
    )
    titled: alt.Chart = mark.encode(x=alt.XValue(0), y=alt.YValue(-10), text=alt.TextValue(text))
    return titled


def percent(figure: float) -> str:
    """Percentage without decimals; with one decimal if rounding would give 0 % or 100 %."""
    if 99.5 <= figure < 100:
        return f"{min(figure, 99.9):.1f} %"
    return "< 1 %" if 0 < figure < 0.5 else f"{figure:.0f} %"


def range_text(lowest: str, highest: str) -> str:
    """Two figures as a range; one figure if both have the same text."""
    return highest if lowest == highest else f"{lowest} to {highest}"


def titled_axis(title: str | None, **options: Any) -> alt.Axis:
    """Axis of numbers."""
    return alt.Axis(title=title, format=NUMBER, **options)


def exact_scale(low: float, high: float, **options: Any) -> alt.Scale:
    """Scale that goes exactly from one value to another."""
    return alt.Scale(domain=[low, high], nice=False, **options)


def shades(table: Mapping[str, str]) -> alt.Scale:
    """Scale of the colours in a table."""
    return alt.Scale(domain=list(table), range=list(table.values()))


def percents(figures: pl.Series) -> str:
    """Range of percentages."""
    low, high = (
        float(one) if isinstance(one, int | float) else 0.0
        for one in (figures.min(), figures.max())
    )
    return range_text(percent(low), percent(high))


def row_axis(rows: Iterable[str]) -> alt.Y:
    """Channel of horizontal bars in the order of their names: bold, and without a line."""
    # The order is the domain of the scale: Vega-Lite turns `sort` into an expression, and names are
    # not code.
    axis = alt.Axis(title=None, ticks=False, domain=False, labelFontWeight="bold", labelPadding=8)
    return alt.Y("row:N", sort=None, scale=alt.Scale(domain=list(rows)), axis=axis)


def colour_encoding(field: str, table: Mapping[str, str], *, opaque: bool = False) -> alt.Color:
    """Colour channel of a table of colours, with a legend above the chart in the order of the
    table.

    ``opaque`` keeps the legend's symbols opaque where the first mark of the chart is not.
    """
    scale = shades(table)
    columns = -(-len(table) // -(-len(table) // 8)) if table else 1
    if is_narrow():
        widest = max((text_px(name, TEXT_PX) for name in table), default=0) + 32
        columns = max(1, min(columns, int((inner() - 90) / widest)))  # it begins above the bars
    key = alt.Legend(
        title=None, orient="top", direction="horizontal", symbolType="square", columns=columns
    )
    if opaque:
        key.symbolOpacity = 1
    return alt.Color(f"{field}:N", scale=scale, sort=None, legend=key)


def finish_chart(
    chart: ChartT, title: str, subtitle: str | Sequence[str] = "", *, at_edge: bool = False
) -> ChartT:
    """Give a chart its title and the common look; the title begins above the plot, or at the
    edge of the chart.
    """
    notes = [subtitle] if isinstance(subtitle, str) else list(subtitle)
    small = is_narrow()
    heads = _balanced(title, 36 if small else 86)
    lines = [line for note in notes for line in _balanced(note, 52 if small else 128)]
    params = alt.TitleParams(text=heads if len(heads) > 1 else title, subtitle=lines)
    if small or at_edge:
        params["frame"] = "bounds"
    padding = _PADDING[_wide.get()]
    from llmprof.charts.base import compose

    done: ChartT = (
        compose.ours(chart)
        .properties(title=params, background=PAPER, padding=padding)
        .configure(**_config())
    )
    return done


def _config() -> dict[str, Any]:
    axis = {
        "labelFontSize": TEXT_PX,
        "titleFontSize": TEXT_PX,
        "titleFontWeight": "normal",
        "labelColor": INK,
        "titleColor": MUTED,
        "gridColor": "#EDF0F3",
        "domainColor": RULE,
        "tickColor": RULE,
        "titlePadding": 8,
        "labelLimit": 120 if is_narrow() else 260,
    }
    return {
        "font": FONT,
        "axis": axis,
        "view": {"stroke": None},
        "title": {
            "fontSize": 15 if is_narrow() else 17,
            "subtitleFontSize": 12 if is_narrow() else 13,
            "color": INK,
            "subtitleColor": MUTED,
            "anchor": "start",
            "frame": "group",
            "offset": 14,
            "subtitlePadding": 6,
            "lineHeight": 19 if is_narrow() else 21,
            "subtitleLineHeight": 16 if is_narrow() else 17,
        },
        "legend": {
            "labelFontSize": TEXT_PX,
            "titleFontSize": TEXT_PX,
            "titleFontWeight": "normal",
            "titleColor": MUTED,
            "labelColor": INK,
            "labelLimit": 220,
            "symbolSize": 130,
            "symbolStrokeWidth": 0,
            "rowPadding": 4,
            "columnPadding": 14,
        },
        "header": {"labelFontSize": 13, "titleFontSize": 13, "labelColor": INK},
        "text": {"font": FONT, "fontSize": LABEL_PX, "color": INK},
    }
