"""A rank computes longer than others on the same batches: its device is slower, its experts have
more to do, or neither is clear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.host import MOSTLY
from llmprof.findings.ranks import (
    UNEVEN_RATIO,
    cause_of_kinds,
    kinds_against_others,
)
from llmprof.findings.scope import Scope, sum_of

_WHAT: Final = {
    "slow_device": ": all its kernels are slower by about the same factor",
    "uneven_experts": ": only its experts take longer",
    "uneven_compute": "",
}


class UnevenRanks(Figures, frozen=True):
    """Mean compute times of a step."""

    cause: str
    slowest: int
    fastest: int
    ratio: float
    kinds: list[tuple[str, float]]
    """Categories with most extra time, and how many times as long as on the others they take."""
    same_work: bool = False
    """Whether all ranks run the same, with the same shapes."""

    def title(self, of: Context) -> str:
        return (
            f"Rank {self.slowest} computes {of.amount} longer than rank"
            f" {self.fastest}{_WHAT[self.cause]}."
        )

    def detail(self, of: Context) -> str:
        text = f"It computes {self.ratio:.2f} times as long as rank {self.fastest}."
        kinds = ", ".join(
            f"{kind.replace('_', ' ')} {times:.2f} times" for kind, times in self.kinds
        )
        return f"{text} Against the mean of the others: {kinds}." if kinds else text

    def advice(self, of: Context) -> str:
        device = of.words["device"]
        if self.cause == "slow_device":
            return (
                "The same kernels are slower there: look for a lower clock (power or temperature"
                f" limit) and for other processes on that {device}. Compare it with another one."
            )
        if self.cause == "uneven_experts":
            return (
                "It likely has more tokens for its experts: count the tokens of each expert, and"
                " place or replicate experts by their load."
            )
        if self.same_work:
            return (
                "All ranks run the same, with the same shapes: look for other processes on that"
                f" {device} or its host, and for lower clocks."
            )
        uneven = (
            "uneven sharding, experts or stages"
            if of.of_torch
            else "an uneven division of the work"
        )
        return (
            f"Look for {uneven}, and for a slower or throttled {device}: which of them is not clear"
            " from the times."
        )


def _same_work(scope: Scope) -> bool:
    """Whether all ranks run the same as often a step, with the same shapes, where these are
    known.
    """
    parts = {rank: parts for rank, (_, parts) in scope.ranks.items()}
    rows = scope.events.group_by("rank", "name", "shapes").agg(number=pl.len())
    often = pl.col("number") / pl.col("rank").replace_strict(parts)
    alike = rows.group_by("name", "shapes").agg(
        same=(pl.len() == len(parts)) & (often.max() == often.min())
    )
    return bool(alike["same"].all()) and bool(alike["shapes"].count())


def _measure_of(cause: str) -> Callable[[Scope], Measurement | None]:
    def measure(scope: Scope) -> Measurement | None:
        by_rank = scope.compute_by_rank
        if by_rank is None:
            return None
        fastest, slowest = by_rank.row(0, named=True), by_rank.row(-1, named=True)
        rank = slowest["rank"]
        ratio, parts = slowest["ns"] / fastest["ns"], scope.of([rank]).parts
        if ratio < UNEVEN_RATIO:
            return None
        every = kinds_against_others(scope, rank)
        if cause_of_kinds(every) != cause:
            return None
        kinds = every.filter(pl.col("others") > 0).head(3)
        times = kinds.select("category", pl.col("own") / pl.col("others")).rows()
        figures = UnevenRanks(cause, rank, fastest["rank"], ratio, times, _same_work(scope))
        # the others wait for the slowest, until it is as fast as the next one, or as the mean where
        # its work can be shared. A replay without waiting knows not how much of it the hosts of
        # the others would give back
        times_ns = by_rank["ns"].to_list()
        least_ns = times_ns[-2] if cause == "slow_device" else sum(times_ns) / len(times_ns)
        gain = (slowest["ns"] - least_ns) * parts
        ns = (slowest["ns"] - fastest["ns"]) * parts
        # more kernels may be more work, or what the recording of another rank lacks
        slower = every.filter("as_often").select(pl.col("own") - pl.col("others")).sum().item()
        unsure = slower < MOSTLY * (sum_of(every, "own") - sum_of(every, "others"))
        return Measurement(ns, figures, gain_ns=gain, rank=rank, own=[rank], unsure=unsure)

    return measure


UNEVEN_RANKS: Final = tuple(
    Cause(cause, _measure_of(cause), "overlap", min_share=0.02) for cause in _WHAT
)
