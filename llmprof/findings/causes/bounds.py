"""Operators against what the device allows: slower than 80 % of their bound, or faster than it."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from llmprof.analyze.operators import BY_CACHE, OVER
from llmprof.findings.cause import Cause, Context, Figures, Measurement, readable_name
from llmprof.findings.scope import Scope, sum_of
from llmprof.replay.targets import ANY_STAGE, TARGET
from llmprof.text import counted, shorten, tenths
from llmprof.units import format_ns, format_share


def _of_tensors(shapes: str | None) -> str:
    """Shapes of the tensors among the arguments, shortened."""
    tensors = (shapes or "unknown").replace(", []", "").replace("[], ", "")
    return shorten(re.sub(r"(?<=\d), (?=\d)", ",", tensors), 80)


class BelowBound(Figures, frozen=True):
    """Times and calls are of one step or rank."""

    what: str
    """A stage, or an operator."""
    of_bound_share: float
    compute_ns: float
    calls: float
    bound_by: str
    """``memory``, or the type of the arithmetic."""
    following: list[tuple[str, float]]
    """Others that lose time, and the share of their bound that they reach."""
    operator: str | None = None
    """Where most of the loss is: its operator, shapes and kernel."""
    shapes: str | None = None
    kernel: str | None = None

    def title(self, of: Context) -> str:
        return (
            f"Compute of {self.what}{of.where} would take {of.amount} less at"
            f" {format_share(TARGET)} of its bound."
        )

    def detail(self, of: Context) -> str:
        text = (
            f"{self.what} takes {format_ns(self.compute_ns)} {of.per} in {_calls(self.calls)} and"
            f" reaches {format_share(self.of_bound_share)} of its bound. Most of the loss is in "
        )
        if self.operator is not None:
            text += f"{self.operator} with shapes {_of_tensors(self.shapes)}, run by "
        limit = (
            "Its bytes at the peak of the memory set the bound."
            if self.bound_by == "memory"
            else f"Its FLOPs at the peak of {self.bound_by} set the bound."
        )
        text += f"{readable_name(self.kernel)}. {limit}"
        others = ", ".join(f"{part} {format_share(share)}" for part, share in self.following)
        return f"{text} Next are {others}." if others else text

    def advice(self, of: Context) -> str:
        if self.bound_by == "memory":
            return (
                "Look at why it reads slowly: few blocks, a layout that is copied or strided, or"
                " bytes that a fused kernel would not move."
            )
        return (
            "Compare other kernels for these shapes: tiles that divide them, a tuned library or"
            " autotuning, and fewer, larger products."
        )


class AboveBound(Figures, frozen=True):
    """Calls are of one step or rank; the operator is the one with most time."""

    operator: str | None
    of_bound_share: float
    bound_by: str
    operators: int
    calls: float
    cached: bool
    """Whether the operands of all fit into the cache."""
    shapes: str | None = None
    kernel: str | None = None

    def title(self, of: Context) -> str:
        what = self.operator or readable_name(self.kernel)
        return f"Operators faster than their bound take {of.amount}{of.where}, led by {what}."

    def detail(self, of: Context) -> str:
        return (
            f"{counted(self.operators, 'operator')} of this kind, {_calls(self.calls)} {of.per}."
            f" The longest reaches {format_share(self.of_bound_share)} of its bound, with shapes"
            f" {_of_tensors(self.shapes)} against the peak of {self.bound_by}"
            f" ({readable_name(self.kernel)})."
        )

    def advice(self, of: Context) -> str:
        if self.cached:
            return (
                "Their operands fit into the cache of the device, and were there already: their"
                " bound by the device memory does not hold."
            )
        return (
            "Do not trust this bound: its formula counts too much, the data sheet's peak is too low"
            " for this device, or its clock was higher."
        )


def _calls(calls: float) -> str:
    return f"{tenths(calls)} call{'s' * (calls != 1)}"


def _measure_below(scope: Scope) -> Measurement | None:
    # what a launch bounds is left to other causes
    rows = scope.bounds.filter(pl.col("bound_by") != "launch")
    rows = rows.with_columns(gap_ns=(pl.col("time_ns") - pl.col("bound_ns") / TARGET).clip(0))
    short = pl.col("operator").str.split("::").list.last()
    known = pl.col("stage").is_not_null() & ~pl.col("stage").is_in(ANY_STAGE)
    rows = rows.with_columns(what=pl.when(known).then("stage").otherwise(short), known=known)
    sums = rows.group_by("what", "known").agg(pl.sum("time_ns", "bound_ns", "gap_ns"))
    sums = sums.filter(pl.col("gap_ns") > 0).sort("gap_ns", "what", descending=[True, False])
    if not sums.height:
        return None
    what, is_stage, time_ns, bound_ns, gap_ns = sums.row(0)
    own = rows.filter(what=what, known=is_stage).sort(
        "gap_ns", "operator", "shapes", descending=[True, False, False]
    )
    worst = own.row(0, named=True)
    following = sums.slice(1, 3).filter(pl.col("gap_ns") >= 0.1 * gap_ns)
    figures = BelowBound(
        what,
        bound_ns / time_ns,
        time_ns / scope.parts,
        sum_of(own, "count") / scope.parts,
        worst["bound_by"],
        following.select("what", pl.col("bound_ns") / pl.col("time_ns")).rows(),
        worst["operator"],
        worst["shapes"],
        worst["kernel"],
    )
    where = f"stage = '{what}'" if is_stage else f"operator = '{worst['operator']}'"
    change = f"to-bound:{TARGET:g}:{what}"
    return Measurement.of(
        own, figures, ns=gap_ns, where=where, change=change, about=worst["kernel"]
    )


def _measure_above(scope: Scope) -> Measurement | None:
    rows = scope.bounds.filter(pl.col("bound_ns") > OVER * pl.col("time_ns"))
    if not rows.height:
        return None
    by_time = rows.sort("time_ns", "operator", "shapes", descending=[True, False, False])
    longest = by_time.row(0, named=True)
    figures = AboveBound(
        longest["operator"],
        longest["bound_ns"] / longest["time_ns"],
        longest["bound_by"],
        rows[["operator", "shapes"]].n_unique(),
        sum_of(rows, "count") / scope.parts,
        bool(rows.select(BY_CACHE.fill_null(False).all()).item()),
        longest["shapes"],
        longest["kernel"],
    )
    return Measurement.of(
        rows,
        figures,
        ns=sum_of(rows, "time_ns"),
        gain_ns=0.0,
        where=f"bound_share > {OVER}",
        about=longest["kernel"],
    )


BELOW_BOUND: Final = Cause("below_bound", _measure_below, "opportunities")
ABOVE_BOUND: Final = Cause("above_bound", _measure_above, "operators", info=True, last=True)
