"""The second kernel of GEMMs that split their inner dimension."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof import names
from llmprof.findings.cause import Cause, Context, Figures, Measurement
from llmprof.findings.scope import Scope, sum_of
from llmprof.units import format_share


class SplitK(Figures, frozen=True):
    """Counts are of one step or rank."""

    reductions: float
    of_gemms_share: float
    parallel: bool
    """Whether tensor parallelism makes the GEMMs narrow."""

    def title(self, of: Context) -> str:
        return (
            f"Split-K reductions take {of.amount}{of.where}: {self.reductions:,.0f} extra kernels."
        )

    def detail(self, of: Context) -> str:
        return (
            f"{of.words['gemm']} splits the inner dimension of a GEMM too small to fill the"
            f" {of.words['device']}, and adds a kernel for the sum. These sums take"
            f" {format_share(self.of_gemms_share)} of the time of the GEMMs."
        )

    def advice(self, of: Context) -> str:
        wider = "smaller tensor parallelism makes GEMMs wider; " if self.parallel else ""
        return f"A larger batch needs no split; {wider}or tune the algorithm choice."


def _measure(scope: Scope) -> Measurement | None:
    linear = scope.events.filter(category="gemm")
    reduce = linear.filter(pl.col("name").str.contains(f"(?i){names.SPLIT_K}"))
    if not reduce.height:
        return None
    figures = SplitK(
        reduce.height / scope.parts,
        sum_of(reduce, "dur_ns") / sum_of(linear, "dur_ns"),
        parallel=scope.windows["rank"].n_unique() > 1 and scope.has_layers,
    )
    where = "category = 'gemm' AND name LIKE '%splitK%'"
    # the change finds kernels by this part of their names: it must be in these, and in no others
    alike = int(linear["name"].str.contains("(?i)splitk").sum()) == reduce.height
    named = alike and bool(reduce["name"].str.contains("(?i)splitk").all())
    return Measurement.of(reduce, figures, where=where, change="remove:splitk" if named else None)


SPLIT_K: Final = Cause("split_k", _measure, "events", min_share=0.001)
