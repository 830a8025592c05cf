"""Transfer without compute at the same time; known waiting belongs to other causes."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.overlap import COMMUNICATION
from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.host import MOSTLY
from llmprof.findings.scope import Scope, sum_of
from llmprof.label.intervals import length_within, merge, union_length
from llmprof.text import counted
from llmprof.units import format_ns, format_share

BESIDE: Final = 0.1
"""Least part of exposed communication beside which copies run, for it to be told."""

EQUAL: Final = 4
"""Least number of equal calls that tells how long such a call needs."""


class ExposedCommunication(Figures, frozen=True):
    """Calls are of one step or rank."""

    hidden_share: float
    """Share of all communication beside which compute runs."""
    kinds: list[str]
    calls: float
    waits_known: bool
    has_layers: bool
    is_fused: bool = False
    """Whether kernels of communication do other work, too."""
    reason: str | None = None
    """Why the waiting in them is not known."""
    slower_ns: float = 0.0
    """Time of calls whose waiting is not known beyond the fastest of those as large or larger."""
    slower_share: float = 0.0
    """Its share of the time of all calls."""
    measured_wait_ns: float = 0.0
    """Waiting by the library's own record."""
    beside_copies_ns: float = 0.0
    """Time of it in which copies run."""

    def title(self, of: Context) -> str:
        what = "transfer" if self.waits_known else "communication"
        return f"Exposed {what}, with no compute at the same time, takes {of.amount}{of.where}."

    def detail(self, of: Context) -> str:
        kinds = "of no known kind"
        if self.kinds != ["other"]:
            kinds = f"most time in {', '.join(self.kinds)}"
        text = (
            f"{format_share(self.hidden_share)} of all communication is hidden behind compute."
            f" {counted(round(self.calls), 'call')} {of.per}, {kinds}."
        )
        if self.waits_known:
            return text
        if self.beside_copies_ns >= BESIDE * of.time_ns:
            text += f" Copies run beside {format_ns(self.beside_copies_ns)} of it."
        if self.measured_wait_ns:
            text += f" HCCL itself counts {format_ns(self.measured_wait_ns)} of them as waiting."
        else:
            why = f": {self.reason}" if self.reason else ""
            text += f" How much of it is waiting for other ranks is not known{why}."
        if self.slower_ns:
            text += (
                f" {format_ns(self.slower_ns)} {of.per} is more than the fastest call of at least"
                f" the same size takes ({format_share(self.slower_share)} of all calls)."
            )
        return text

    def advice(self, of: Context) -> str:
        text = ""
        if not self.waits_known:
            text = (
                "Record all ranks first, on one clock. Waiting for a late rank is not shortened by"
                " fewer or larger messages"
            )
            if self.slower_share > MOSTLY:
                return f"{text}, and calls slower than equal or larger ones mostly wait."
            text += "; transfer is. "
        if self.kinds[:1] == ["send-recv"]:
            text += "Between stages of a pipeline keep a batch in flight for each. "
        if self.kinds[:1] in (["send-recv"], ["all-to-all"]):
            return f"{text}An exchange of tokens or embeddings can run beside other compute."
        if not self.has_layers:
            return (
                f"{text}Fewer or fused collectives, larger messages, or compute at the same time."
            )
        fuse = "" if self.is_fused else f"{of.words['fuse_communication']}, "
        return (
            f"{text}Fewer collectives, {fuse}sequence parallelism, compute at the same time, or a"
            " smaller tensor-parallel size."
        )


def beyond_fastest(calls: pl.DataFrame) -> pl.DataFrame:
    """``ns`` that calls whose waiting is not known take beyond the fastest of at least their size.

    Where no size is known, those of the layers of a step are equal, and so is one before them.
    """
    lane = ("rank", "kind", "group")
    calls = calls.filter(pl.col("wait_ns").is_null())
    sized = calls.drop_nulls("bytes").sort("bytes", "dur_ns", descending=[True, False])
    alike = (*lane, "step", "name")
    in_layer = pl.col("layer").is_not_null()
    before = pl.col("start_ns") < pl.col("start_ns").filter(in_layer).min().over(alike)
    equal = calls.filter(pl.col("bytes").is_null(), in_layer | before)
    equal = equal.filter(in_layer.sum().over(alike) >= EQUAL)
    fastest = pl.col("dur_ns").filter(in_layer).min().over(alike)
    return pl.concat(
        [
            sized.select(ns=pl.col("dur_ns") - pl.col("dur_ns").cum_min().over(lane)),
            equal.select(ns=(pl.col("dur_ns") - fastest).clip(lower_bound=0)),
        ]
    )


def _beside_copies(scope: Scope) -> float:
    """Exposed communication in which copies run (ns)."""
    is_call = pl.col("category").is_in(COMMUNICATION)
    calls, others = (merge(scope.events.filter(which), ["rank"]) for which in (is_call, ~is_call))
    alone = sum_of(calls, "dur_ns") - sum_of(
        length_within(calls, others, ["rank"], name="ns"), "ns"
    )
    return max(0.0, scope.time("communication") - alone)


def _hccl_waits(scope: Scope) -> float:
    """Waiting in the calls by HCCL's own record (ns); 0 without one."""
    calls = scope.trace.collectives if scope.trace.has("collectives") else None
    if calls is None or "ascend_wait_ns" not in calls.columns:
        return 0.0
    return sum_of(scope.begun(calls), "ascend_wait_ns")


def _measure(scope: Scope) -> Measurement | None:
    transfer = scope.time("communication", "transfer", "wait or transfer")
    calls = scope.begun(collectives(scope.trace))
    if not transfer or not calls.height:
        return None
    waits_known = bool(calls["wait_ns"].is_not_null().any())
    why = calls["reason"].drop_nulls().mode().sort()
    kinds = (
        calls.with_columns(pl.col("kind").fill_null("other"))
        .group_by("kind")
        .agg(pl.sum("dur_ns"))
        .sort("dur_ns", "kind", descending=[True, False])
    )
    any_call = union_length(scope.events.filter(pl.col("category").is_in(COMMUNICATION)), ["rank"])
    rows = calls.with_columns(dur_ns=pl.coalesce("transfer_ns", "dur_ns"))
    slower = sum_of(beyond_fastest(calls), "ns")
    figures = ExposedCommunication(
        hidden_share=1 - scope.time("communication") / sum_of(any_call, "busy_ns"),
        kinds=[kind.replace("_", "-") for kind in kinds["kind"].head(2)],
        calls=calls.height / scope.parts,
        waits_known=waits_known,
        has_layers=scope.has_layers,
        is_fused=bool(calls["name"].str.contains("(?i)fus").any()),
        reason=None if waits_known or not why.len() else why[0],
        slower_ns=slower / scope.parts,
        slower_share=slower / max(1.0, sum_of(calls, "dur_ns")),
        beside_copies_ns=0.0 if waits_known else _beside_copies(scope) / scope.parts,
        measured_wait_ns=_hccl_waits(scope) / scope.parts,
    )
    by_rank = scope.rank_times("communication", "transfer", "wait or transfer")
    return Measurement.of(rows, figures, ns=transfer, by_rank=by_rank)


EXPOSED_COMMUNICATION: Final = Cause(
    "exposed_communication", _measure, "collectives", min_share=0.005
)
