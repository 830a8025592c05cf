"""Keys and values on their way between instances, while the device computes nothing."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from llmprof.analyze.step_times import recorded_windows, step_windows
from llmprof.analyze.transfer import apart, instances, transfer
from llmprof.findings.cause import Context, Figures
from llmprof.findings.rows import UNPREDICTED, severity_of
from llmprof.findings.scope import sum_of
from llmprof.label.completeness import has_lost
from llmprof.text import ranks_in_words
from llmprof.trace import Trace
from llmprof.units import format_bytes, format_ns, format_share

KV_TRANSFER: Final = "kv_transfer"

MIN_SHARE: Final = 0.01

FACTOR: Final = 4
"""How many times as large blocks are that the remedy proposes: 64 tokens in place of vLLM's 16."""


class KvTransfer(Figures, frozen=True):
    """Sums over all bursts."""

    copies: int
    copy_bytes: float
    moved_bytes: float
    bursts: int
    total_ns: float
    gbps: float
    hidden_share: float
    peak_share: float | None = None
    factor: float = FACTOR
    predicted_ns: float | None = None
    """Time of all bursts with larger blocks."""
    busiest: str | None = None
    """Kind of the instances that are busiest."""
    ratio: float | None = None
    """As many of them for one of the others would be equally busy."""

    def title(self, of: Context) -> str:
        return (
            f"Transfer of keys and values takes {of.amount}{of.where}: copies of"
            f" {format_bytes(self.copy_bytes)} at {self.gbps:.1f} GB/s."
        )

    def detail(self, of: Context) -> str:
        text = (
            f"{format_bytes(self.moved_bytes)} in {self.copies:,} copies and {self.bursts:,} bursts"
            f" of {format_ns(self.total_ns)} in all; {of.words['device']}s compute beside"
            f" {format_share(self.hidden_share)} of it."
        )
        if self.peak_share is not None:
            text += f" The rate is {format_share(self.peak_share)} of the link's peak."
        if self.predicted_ns is not None:
            text += (
                f" With blocks {self.factor:.0f} times as large the bursts would take"
                f" {format_ns(self.predicted_ns)}."
            )
        if self.busiest is not None and self.ratio is not None:
            text += (
                f" Instances that {self.busiest} are the limit: {self.ratio:.1f} of them for one of"
                " the others would be equally busy."
            )
        return text

    def advice(self, of: Context) -> str:
        return (
            "Fewer and larger copies: larger blocks on both instances (vLLM: --block-size), or a"
            " layout in which the heads or layers of a block lie together."
        )


def kv_transfer_finding(trace: Trace) -> dict[str, Any] | None:
    """A row of :func:`llmprof.analyze.findings` where copies between instances stand alone."""
    if not trace.has("copies") or trace.capture.on_host:
        return None
    bursts = transfer(trace)
    if not bursts.height or has_lost(trace):
        return None
    exposed = bursts.with_columns(dur_ns=pl.col("dur_ns") * (1 - pl.col("hidden_share")))
    ranks = sorted(set(bursts["rank"]))
    served = pl.concat(
        frame.select("rank", "start_ns", end=pl.col("start_ns") + pl.col(span))
        for frame, span in ((step_windows(trace), "span_ns"), (bursts, "dur_ns"))
    ).filter(pl.col("rank").is_in(ranks))
    of_rank = served.group_by("rank").agg(ns=pl.max("end") - pl.min("start_ns"))
    exposed_ns, own_ns = float(exposed["dur_ns"].sum()), int(of_rank["ns"].sum())
    share = exposed_ns / max(1, own_ns)
    if share < MIN_SHARE:
        return None
    total_ns, moved = int(bursts["dur_ns"].sum()), int(bursts["bytes"].sum())
    blocks = transfer(trace, by="block").filter(ratio=FACTOR)
    low_ns, ns, high_ns = (
        exposed_ns * max(0.0, 1 - sum_of(blocks, name) / total_ns)
        for name in ("predicted_high_ns", "predicted_ns", "predicted_low_ns")
    )
    windows, sides = recorded_windows(trace), instances(trace)
    busiest = sides.sort("busy_share", descending=True).row(0, named=True) if apart(sides) else {}
    peak = bursts["peak_gbps"][0]
    worst = exposed.sort("dur_ns", descending=True).row(0, named=True)
    figures = KvTransfer(
        copies=int(bursts["count"].sum()),
        copy_bytes=float(transfer(trace, by="size").row(0, named=True)["bytes"]),
        moved_bytes=moved,
        bursts=bursts.height,
        total_ns=total_ns,
        gbps=moved / total_ns,
        hidden_share=1 - exposed_ns / total_ns,
        peak_share=peak and moved / total_ns / peak,
        predicted_ns=blocks["predicted_ns"][0] if blocks.height else None,
        busiest=busiest.get("kind"),
        ratio=busiest.get("ratio"),
    )
    each = len(ranks)
    on = ranks if each < windows["rank"].n_unique() else None
    of = Context(
        exposed_ns / each,
        share,
        "per rank" if each > 1 else "in the recording",
        trace.capture.platform.words,
        ranks=each,
        on=on,
    )
    known = bool(blocks.height)
    return {
        "rule": KV_TRANSFER,
        # whether requests waited for it is not known without them
        "severity": min(severity_of(share), "medium", key=["low", "medium", "high"].index),
        "title": figures.title(of),
        "figure": exposed_ns / each,
        "unit": "ns a rank",
        "share": share,
        "recorded_share": exposed_ns / max(1, int(windows["dur_ns"].sum())),
        "gain_ns": exposed_ns / each,
        "predicted_ns": ns / each if known else None,
        "predicted_low_ns": low_ns / each if known else None,
        "predicted_high_ns": high_ns / each if known else None,
        "predicted_plain": False if known else None,
        "prediction": (
            f"With blocks {FACTOR} times as large, by the cost of copies and bytes,"
            f" it would take {format_ns((exposed_ns - ns) / each)}: saves"
            f" {format_ns(low_ns / each)} to {format_ns(high_ns / each)}."
            if known
            else "No prediction: the rate of the link is not known."
        ),
        "scope": "transfer of keys and values",
        "denominator": (
            f"the time from the first to the last step or copy of {ranks_in_words(ranks)},"
            f" {format_ns(own_ns / each)}"
        ),
        "evidence": "transfer",
        "where": "true",
        "rank": worst["rank"],
        "start_ns": worst["start_ns"],
        "end_ns": worst["start_ns"] + int(worst["dur_ns"]),
        "detail": figures.detail(of),
        "suggestion": figures.advice(of),
        "ranked": True,
        "weight": low_ns if known else UNPREDICTED * exposed_ns,
    }
