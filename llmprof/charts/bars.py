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

STYLE: Final = """
.llmprof-bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:5px 10px;align-items:center}
.llmprof-bars{margin:10px 0;font-size:13px;line-height:1.3;max-width:960px}
.llmprof-bars .bar{display:flex;height:24px;gap:1px;min-width:0}
.llmprof-bars i{display:block;font-style:normal;font-size:12px;line-height:24px;min-width:1px}
.llmprof-bars i{color:#fff;text-align:center;overflow:hidden;white-space:nowrap}
.llmprof-bars .sum{font-variant-numeric:tabular-nums;text-align:right}
.llmprof-bars .keys{grid-column:1/-1;display:flex;flex-wrap:wrap;gap:2px 16px}
.llmprof-bars .keys span{white-space:nowrap}
.llmprof-bars .keys i{display:inline-block;width:11px;height:11px;border-radius:2px}
.llmprof-bars .keys i{margin-right:5px;vertical-align:-1px}
.llmprof-bars .compute{background:#24699a}.llmprof-bars .transfer,.llmprof-bars .either{background:#6f529b}
.llmprof-bars .wait{background:repeating-linear-gradient(45deg,#8a5200 0 5px,#a05f00 5px 10px)}
.llmprof-bars .copy{background:#1f756c}.llmprof-bars .late{background:#b83a26}.llmprof-bars .idle{background:#66717d}
.llmprof-bars .after{border:2px dashed;box-sizing:border-box;line-height:20px;color:inherit}
"""  # noqa: E501

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
    keys = "".join(
        f'<span><i class="{_CLASS.get(part, part)}"></i>{escape(words)}</span>'
        for part, words in STEP_PARTS.items()
        if part in used
    )
    if drawn.note:
        keys += f"<span>{drawn.note}</span>"
    return f'<div class="llmprof-bars">{"".join(lines)}<div class="keys">{keys}</div></div>'


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
        ns=pl.col("ns").sum(), wait=pl.col("ns").filter(pl.col("part") == "wait").sum()
    )
    ranks = totals.sort("wait", "rank")["rank"].to_list()
    ends = ranks[: most_ranks // 2] + ranks[-most_ranks // 2 :]
    shown = sorted(ranks if len(ranks) <= most_ranks else ends)
    bars = [
        (
            f"rank {rank}" if rank >= 0 else "no rank",
            dict(parts.filter(pl.col("rank") == rank).select("part", "ns").iter_rows()),
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


_MARKS: Final = dict(zip(STEP_PARTS, "█▓▓▒▚░·", strict=True))
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


_CLASS: Final = {"wait or transfer": "either"}


def _piece(part: str, ns: float, longest: float, title: str) -> str:
    text = format_ns(ns) if ns >= _WITH_TEXT * longest else ""
    width = f"{100 * ns / longest:.2f}%"
    return (
        f'<i class="{_CLASS.get(part, part)}" style="width:{width}"'
        f' title="{escape(title)}">{text}</i>'
    )


def _line(who: str, pieces: list[str], ns: float) -> str:
    bar = f'<div class="bar">{"".join(pieces)}</div>'
    return f'<div class="who">{who}</div>{bar}<div class="sum">{format_ns(ns)}</div>'
