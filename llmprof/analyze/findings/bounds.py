"""Rules about operators and their bounds: the largest gap, and shares that no device can reach."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.findings.scope import Measure, Scope, total, worst
from llmprof.analyze.operators import OVER
from llmprof.analyze.replay.targets import OF_ANYTHING, TARGET


def below_bound(scope: Scope) -> Measure | None:
    """Time beyond 80 % of the bound, of the stage (or else the operator) with most of it.

    What is shorter than a launch is left out: :func:`short_kernels` tells of it.
    """
    rows = scope.bounds.filter(pl.col("bound_by") != "launch")
    rows = rows.with_columns(gap_ns=(pl.col("time_ns") - pl.col("bound_ns") / TARGET).clip(0))
    short = pl.col("operator").str.split("::").list.last()
    known = pl.col("stage").is_not_null() & ~pl.col("stage").is_in(OF_ANYTHING)
    rows = rows.with_columns(what=pl.when(known).then("stage").otherwise(short), known=known)
    sums = rows.group_by("what", "known").agg(pl.col("time_ns", "bound_ns", "gap_ns").sum())
    sums = sums.filter(pl.col("gap_ns") > 0).sort("gap_ns", "what", descending=[True, False])
    if not sums.height:
        return None
    what, is_stage, time_ns, bound_ns, gap_ns = sums.row(0)
    own = rows.filter(what=what, known=is_stage).sort("gap_ns", "operator", "shapes", descending=[True, False, False])
    most = own.row(0, named=True)
    rank, window = worst(own)
    reached = pl.col("bound_ns") / pl.col("time_ns")
    figures = {
        "what": what,
        "operator": most["operator"],
        "shapes": most["shapes"],
        "name": most["kernel"],
        "bound_by": most["bound_by"],
        "target_share": TARGET,
        "of_bound_share": bound_ns / time_ns,
        "compute_ns": time_ns / scope.parts,
        "count": own["count"].sum() / scope.parts,
        "following": sums.slice(1, 3).filter(pl.col("gap_ns") >= 0.1 * gap_ns).select("what", reached).rows(),
    }
    where = f"stage = '{what}'" if is_stage else f"operator = '{most['operator']}'"
    change = f"to-bound:{TARGET:g}:{what}"
    return Measure(gap_ns, figures, where=where, rank=rank, window_ns=window, change=change)


def above_bound(scope: Scope) -> Measure | None:
    """Operators faster than their bound: a fact about the formula, the stated peak, the cache or the clock."""
    rows = scope.bounds.filter(pl.col("bound_ns") > OVER * pl.col("time_ns"))
    if not rows.height:
        return None
    rank, window = worst(rows)
    most = rows.sort("time_ns", "operator", "shapes", descending=[True, False, False]).row(0, named=True)
    figures = {
        "operator": most["operator"],
        "shapes": most["shapes"],
        "name": most["kernel"],
        "bound_by": most["bound_by"],
        "of_bound_share": most["bound_ns"] / most["time_ns"],
        "cached": bool(rows["fits_cache"].fill_null(value=False).all()),
        "operators": rows.select("operator", "shapes").n_unique(),
        "count": rows["count"].sum() / scope.parts,
    }
    where = f"share_of_bound > {OVER}"
    return Measure(total(rows, "time_ns"), figures, gain_ns=0.0, where=where, rank=rank, window_ns=window)
