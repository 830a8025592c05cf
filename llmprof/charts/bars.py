"""Bars of a mean step of each rank as HTML, for the first screen of a report, a notebook and the
explorers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import Any, Final

import polars as pl

from llmprof.findings.facts import STEP_PARTS
from llmprof.units import format_ns

COLOURS: Final = {
    "compute": "#0072B2",
    "transfer": "#D55E00",
    "wait or transfer": "#A9735A",
    "wait": "#F6CFB2",
    "copy": "#9F7FD0",
    "late": "#CC6677",
    "idle": "#C3CAD3",
}
"""Colour of each part of a step: those of the charts, whose theme imports Altair. Styles stand in
the elements: a notebook that is not trusted shows no style sheet.
"""

_FULL: Final = 99.5
"""Percent of its room that the longest bar fills: parts that are rounded stay in one line."""

_HEIGHT: Final = 18
_SIDE: Final = 76
"""Pixels of a bar, and on each side of it."""

MOST_RANKS: Final = 8
"""Most ranks with a bar: those that wait least and those that wait most."""

_WITH_TEXT: Final = 0.2
"""Least share of the longest bar for a part to have its time written in it."""


def step_bars(
    parts: pl.DataFrame | None, lead: Mapping[str, Any], most_ranks: int = MOST_RANKS
) -> str:
    """A bar for a mean step of each rank (``rank, part, ns``), and one for the step with the
    remedy of a finding.
    """
    if parts is None or not parts.height:
        return ""
    drawn = _drawn(parts, lead, most_ranks)
    lines: list[str] = []
    used: list[str] = []
    for who, own in drawn.bars:
        used += own
        pieces = [
            _piece(part, ns, drawn.longest, f"{STEP_PARTS[part]}: {format_ns(ns)}")
            for part, ns in own.items()
        ]
        lines.append(_line(who, pieces, sum(own.values())))
    if after := drawn.after:
        piece = _piece("after", after, drawn.longest, f"with the remedy: {format_ns(after)}")
        lines.append(_line("predicted", [piece], after))
    key = "display:inline-block;margin-right:16px"
    keys = "".join(
        f'<span style="{key}"><b style="color:{COLOURS[part]}">■</b> {escape(words)}</span>'
        for part, words in STEP_PARTS.items()
        if part in used
    )
    if drawn.note:
        keys += f"<span>{drawn.note}</span>"
    style = "margin:6px 0;max-width:960px;font-size:12px;line-height:1.5"
    return f'<div class="llmprof-bars" style="{style}">{"".join(lines)}<div>{keys}</div></div>'


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The bars of a picture: names with the ns of their parts, and the step with a remedy."""

    bars: list[tuple[str, dict[str, float]]]
    longest: float
    after: float
    note: str


def _drawn(parts: pl.DataFrame, lead: Mapping[str, Any], most_ranks: int) -> _Drawn:
    """The ranks that wait least and most, and the mean step less the predicted gain."""
    totals = parts.group_by("rank").agg(
        ns=pl.sum("ns"), wait=pl.col("ns").filter(part="wait").sum()
    )
    ranks = totals.sort("wait", "rank")["rank"].to_list()
    ends = ranks[: most_ranks // 2] + ranks[-most_ranks // 2 :]
    shown = sorted(ranks if len(ranks) <= most_ranks else ends)
    bars = [
        (
            f"rank {rank}" if rank >= 0 else "no rank",
            dict(parts.filter(rank=rank).select("part", "ns").iter_rows()),
        )
        for rank in shown
    ]
    mean = float(totals["ns"].mean())  # type: ignore[arg-type]
    # a gain without the profiler is none of these steps, which are under it
    saved = 0.0 if lead.get("predicted_plain") else lead.get("predicted_ns") or 0.0
    note = f"{len(shown)} of {len(ranks):,} ranks: those that wait least and most"
    return _Drawn(
        bars,
        max(1.0, *(sum(own.values()) for _, own in bars)),
        mean - saved if 0 < saved < mean else 0.0,
        note if len(ranks) > len(shown) else "",
    )


_MARKS: Final = dict(zip(STEP_PARTS, "█▓#▒▚░·", strict=True))
"""A character for each part of a step, in a terminal."""


def step_lines(
    parts: pl.DataFrame | None, lead: Mapping[str, Any], width: int, most_ranks: int = 4
) -> list[str]:
    """The bars of :func:`step_bars` for a terminal, a line each, and what their marks mean."""
    if parts is None or not parts.height:
        return []
    drawn = _drawn(parts, lead, most_ranks)
    room = max(10, width - 22)

    def line(who: str, own: Mapping[str, float], marks: Mapping[str, str]) -> str:
        ends = [round(room * ns / drawn.longest) for ns in accumulate(own.values())]
        pieces = zip(own, [0, *ends], ends, strict=False)
        bar = "".join(marks[part] * (end - begin) for part, begin, end in pieces)
        return f"{who:9} {bar:{room}} {format_ns(sum(own.values())):>9}"

    used = {part for _, own in drawn.bars for part in own}
    keys = [f"{_MARKS[part]} {words}" for part, words in STEP_PARTS.items() if part in used]
    lines = [line(who, own, _MARKS) for who, own in drawn.bars]
    after = [line("predicted", {"after": drawn.after}, {"after": "="})] if drawn.after else []
    return [*lines, *after, "   ".join([*keys, *([drawn.note] if drawn.note else ())])]


def _piece(part: str, ns: float, longest: float, title: str) -> str:
    text = format_ns(ns) if ns >= _WITH_TEXT * longest else ""
    style = f"float:left;width:{_FULL * ns / longest:.2f}%;height:{_HEIGHT}px;overflow:hidden"
    style += f";line-height:{_HEIGHT}px;font-size:11px;text-align:center;box-sizing:border-box"
    colour = COLOURS.get(part)
    ink = "#fff" if part == "compute" else "#000"
    style += f";color:{ink};background-color:{colour}" if colour else ";border:1px dashed"
    name = part.replace(" ", "-")
    return f'<div class="{name}" style="{style}" title="{escape(title)}">{text}</div>'


def _line(who: str, pieces: list[str], ns: float) -> str:
    row, side = f"height:{_HEIGHT}px;margin:3px 0", f"width:{_SIDE - 8}px"
    room = f"margin:0 {_SIDE}px;height:{_HEIGHT}px"
    return (
        f'<div style="{row}"><div style="float:left;{side}">{who}</div>'
        f'<div class="sum" style="float:right;{side};text-align:right">{format_ns(ns)}</div>'
        f'<div class="bar" style="{room}">{"".join(pieces)}</div></div>'
    )
