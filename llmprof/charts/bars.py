"""Bars of a mean step of each rank as HTML, for the first screen of a report, a notebook and the
explorers.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
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


def step_bars(parts: pl.DataFrame | None, lead: Mapping[str, Any]) -> str:
    """A bar for a mean step of each rank (``rank, part, ns``), and one for the step with the
    remedy of a finding.
    """
    if parts is None or not parts.height:
        return ""
    totals = parts.group_by("rank").agg(
        ns=pl.col("ns").sum(), wait=pl.col("ns").filter(pl.col("part") == "wait").sum()
    )
    ranks = totals.sort("wait", "rank")["rank"].to_list()
    shown = sorted(
        ranks if len(ranks) <= MOST_RANKS else ranks[: MOST_RANKS // 2] + ranks[-MOST_RANKS // 2 :]
    )
    longest = max(1.0, float(totals.filter(pl.col("rank").is_in(shown))["ns"].max()))  # type: ignore[arg-type]
    lines, used = [], []
    for rank in shown:
        own = parts.filter(pl.col("rank") == rank)
        pieces = []
        for part, ns in own.select("part", "ns").iter_rows():
            used.append(part)
            pieces.append(_piece(part, ns, longest, f"{STEP_PARTS[part]}: {format_ns(ns)}"))
        lines.append(
            _line(f"rank {rank}" if rank >= 0 else "no rank", pieces, float(own["ns"].sum()))
        )
    mean = float(totals["ns"].mean())  # type: ignore[arg-type]
    # a gain without the profiler is none of these steps, which are under it
    saved = 0.0 if lead.get("predicted_plain") else lead.get("predicted_ns") or 0.0
    if 0 < saved < mean:
        after = mean - saved
        lines.append(
            _line(
                "predicted",
                [_piece("after", after, longest, f"with the remedy: {format_ns(after)}")],
                after,
            )
        )
    keys = "".join(
        f'<span><i class="{_CLASS.get(part, part)}"></i>{escape(words)}</span>'
        for part, words in STEP_PARTS.items()
        if part in used
    )
    if len(ranks) > len(shown):
        keys += f"<span>{len(shown)} of {len(ranks):,} ranks: those that wait least and most</span>"
    return f'<div class="llmprof-bars">{"".join(lines)}<div class="keys">{keys}</div></div>'


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
