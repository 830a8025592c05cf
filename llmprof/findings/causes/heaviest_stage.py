"""The stage with the most compute time."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from llmprof.findings.cause import (
    AI_CPU_NAME,
    NAME_THEM,
    POTENTIAL,
    Cause,
    Context,
    Figures,
    Measurement,
    readable_name,
)
from llmprof.findings.host import MOSTLY
from llmprof.findings.scope import Scope, heaviest_name, sum_of
from llmprof.text import counted
from llmprof.units import format_share

GUESS: Final = 0.5
"""Up to this confidence, a stage is a guess."""

MIN_SHARE: Final = 0.001
"""Least share of all compute for a stage to be named in addition to the heaviest one."""


class HeaviestStage(Figures, frozen=True):
    """Kernels are of one step or rank."""

    stage: str
    """A stage, or a category of kernels."""
    is_stage: bool
    of_compute_share: float
    following: list[tuple[str, float]]
    compute_share: float
    """Share of the time that all compute takes."""
    kernels: float
    by_name_share: float
    of_weights: bool
    """Whether it reads weights."""
    name: str | None = None
    """The kernel with most of it."""
    guessed: bool = False
    """Whether its place alone says what most of it is, in layers that lack other stages."""

    def title(self, of: Context) -> str:
        named = f"what is likely {self.stage}" if self.guessed else self.stage
        what = named if self.is_stage else f"{self.stage} {of.words['event']}s"
        most = ", the most of any kind,"
        if self.stage == "other" and self.name:
            what = f"{of.words['event']}s of no known kind"
            most = f", led by {readable_name(self.name)},"
        return f"Compute of {what}{of.where}{most} takes {of.amount}."

    def detail(self, of: Context) -> str:
        text = (
            f"That is {format_share(self.of_compute_share)} of all compute, which is"
            f" {format_share(self.compute_share)} of the time."
        )
        following = ", ".join(f"{part} {format_share(share)}" for part, share in self.following)
        if following:
            text += f" Then come {following}."
        kind = "stage" if self.is_stage else "kind"
        return (
            f"{text} {counted(round(self.kernels), of.words['event'])} of this {kind} {of.per},"
            f" most of it {readable_name(self.name)} ({format_share(self.by_name_share)})."
        )

    def advice(self, of: Context) -> str:
        if self.stage == "other":
            return NAME_THEM
        if re.search(AI_CPU_NAME, self.name or ""):
            return (
                "Move what runs on the AI CPUs to the AI cores first: types that these compute"
                " (int32 for int64, float32 or bfloat16 for float64)."
            )
        if self.of_weights:
            return (
                "Compare this stage with its bound (bytes of its weights over the memory bandwidth)"
                " before optimising it."
            )
        return (
            "Compare it with its bound (what it reads and writes over the memory bandwidth, or its"
            " FLOPs over the peak) before optimising it."
        )


def _measure(scope: Scope) -> Measurement | None:
    compute = scope.times.filter(kind="compute")
    stages = compute.group_by("part").agg(pl.sum("ns")).sort("ns", "part", descending=[True, False])
    if not stages.height:
        return None
    whole = sum_of(stages, "ns")
    stage, ns = stages.row(0)
    more = stages.slice(1, 3).filter(pl.col("ns") >= MIN_SHARE * whole)
    label = (
        pl.when(pl.col("stage").is_null() | (pl.col("stage") == "other"))
        .then("category")
        .otherwise("stage")
    )
    copying = ["copy", "fill", "collective"]
    rows = scope.events.filter(
        (label.fill_null("other") == stage) & ~pl.col("category").is_in(copying)
    )
    if rows.height == 1 and ns == whole:  # one kernel is all of itself
        return None
    name, share = heaviest_name(rows)
    in_stage = bool((rows["stage"] == stage).any())
    weights = bool((rows["category"] == "gemm").any()) or stage in ("experts", "lm_head")
    guesses = rows.filter(pl.col("evidence") == "position", pl.col("confidence") <= GUESS)
    figures = HeaviestStage(
        stage,
        is_stage=in_stage and stage != "other",
        of_compute_share=ns / whole,
        following=[(part, n / whole) for part, n in more.iter_rows()],
        compute_share=whole / scope.span_ns,
        kernels=rows.height / scope.parts,
        by_name_share=share,
        of_weights=weights and scope.has_layers and scope.decodes,
        name=name,
        guessed=sum_of(guesses, "dur_ns") > MOSTLY * sum_of(rows, "dur_ns"),
    )
    where = f"{'stage' if in_stage else 'category'} = '{stage}'"
    return Measurement.of(rows, figures, ns=float(ns), where=where, about=name)


HEAVIEST_STAGE: Final = Cause(
    "heaviest_stage",
    _measure,
    "events",
    info=True,
    potential=POTENTIAL,
    unless="below_bound",
)
