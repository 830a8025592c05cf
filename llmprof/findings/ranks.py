"""Ranks against each other: which of them computes longer on the same batches, and in what."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.findings.scope import HOST_LATE, Scope, sum_of
from llmprof.names.matching import first_true

UNEVEN_RATIO: Final = 1.1
"""Least ratio of the compute times of two ranks that counts as uneven."""

SAME_FACTOR: Final = 0.5
"""Kinds of work are slower by the same factor if each loses at least this, and at most 1 / this,
of what all do.
"""

NEARLY_ALL: Final = 0.8
"""Least share of the extra time, or of kernels that can be compared, for a statement about which
kernels differ.
"""

EXPLAINS: Final = 0.3
"""Least share of the others' waiting that late ranks spend more than they do, for that to be
named as a cause.
"""


def uneven_cause(scope: Scope) -> str:
    """Which rule tells why the rank that computes most does: all its kernels are slower, or only
    its experts are.
    """
    by_rank = scope.compute_by_rank
    return (
        "uneven_compute"
        if by_rank is None
        else cause_of_kinds(kinds_against_others(scope, by_rank["rank"][-1]))
    )


def cause_of_kinds(kinds: pl.DataFrame) -> str:
    """The same from the rank's kinds of work against those of the others."""
    experts, rest = (
        kinds.filter((pl.col("category") == "moe_experts") == is_expert)
        for is_expert in (True, False)
    )
    more = sum_of(kinds, "own") - sum_of(kinds, "others")
    even = sum_of(rest, "own") <= (1 + UNEVEN_RATIO) / 2 * sum_of(rest, "others")
    if (
        rest.height
        and even
        and sum_of(experts, "own") - sum_of(experts, "others") >= NEARLY_ALL * more
    ):
        return "uneven_experts"
    # small kinds count as one
    small = pl.col("others") < (1 - NEARLY_ALL) / 4 * pl.sum("others")
    kind = pl.when(small).then(None).otherwise("category")
    alike = kinds.filter("as_often").group_by(kind).agg(pl.sum("own", "others"))
    alike = alike.filter(pl.col("others") >= (1 - NEARLY_ALL) / 4 * sum_of(kinds, "others"))
    of_all = sum_of(alike, "own") / max(1.0, sum_of(alike, "others")) - 1
    each = alike.select(pl.col("own") / pl.col("others") - 1).to_series()
    known = alike.height > 1 and sum_of(alike, "others") >= NEARLY_ALL * sum_of(kinds, "others")
    return (
        "slow_device"
        if known
        and of_all > 0
        and each.is_between(SAME_FACTOR * of_all, of_all / SAME_FACTOR).all()
        else "uneven_compute"
    )


def kinds_against_others(scope: Scope, rank: int) -> pl.DataFrame:
    """Compute time a step of a rank (``own``) and the mean of the others, by category, most
    extra time first.
    """
    # `as_often`: the rank runs as many of these kernels a step as the others.
    moved = pl.col("category").is_in(["collective", "copy", "fill"])
    parts = scope.windows.group_by("rank").agg(parts=pl.len())
    each = (
        scope.events.filter(~moved)
        .group_by("rank", pl.col("category").fill_null("other"))
        .agg(pl.sum("dur_ns"), count=pl.len())
    )
    lanes = (
        each[["category"]]
        .unique()
        .join(parts, how="cross")
        .join(each, on=["rank", "category"], how="left")
    )
    means = (pl.col("dur_ns", "count").fill_null(0) / pl.col("parts")).name.keep()
    of_rank = pl.col("rank") == rank
    return (
        lanes.with_columns(means)
        .group_by("category")
        .agg(
            own=pl.col("dur_ns").filter(of_rank).mean(),
            others=pl.col("dur_ns").filter(~of_rank).mean(),
            as_often=(
                pl.col("count").filter(of_rank).mean() / pl.col("count").filter(~of_rank).mean()
            ).is_between(0.99, 1.01),
        )
        .sort(pl.col("own") - pl.col("others"), "category", descending=[True, False])
    )


def cause_of_lateness(scope: Scope, late: list[int], waited_ns: float) -> tuple[str | None, float]:
    """The rule about what the late ranks spend most time on beyond the others, None if it
    explains little, and the share of the others' waiting that this is.
    """
    of_work = pl.concat(
        scope.rank_times(kind).select("rank", ns="dur_ns", rule=pl.lit(rule))
        for kind, rule in (("compute", uneven_cause(scope)), ("copy", "copies"))
    )
    held = (pl.col("cause") == "queued") & (pl.col("waited_kind") == "call")
    cause = pl.col("cause")
    of_cause = first_true(
        {
            "host_bound": cause.is_in(HOST_LATE),
            "synchronisation": cause == "sync",
            "device_held": held,
        }
    )
    of_host = scope.pauses.select("rank", ns="dur_ns", rule=pl.coalesce("reason", of_cause))
    sums = pl.concat([of_work, of_host.cast({"ns": pl.Int64})], how="vertical_relaxed").filter(
        pl.col("rule").is_not_null()
    )
    steps_of = scope.windows.group_by("rank").agg(parts=pl.len())
    each = sums.group_by("rule", "rank").agg(pl.sum("ns"))
    each = (
        each[["rule"]]
        .unique()
        .join(steps_of, how="cross")
        .join(each, on=["rule", "rank"], how="left")
    )
    mean = pl.col("ns").fill_null(0) / pl.col("parts")
    own, other = (
        mean.filter(pl.col("rank").is_in(late) == is_late).mean() for is_late in (True, False)
    )
    more = (
        each.group_by("rule")
        .agg(ns=own - other)
        .drop_nulls()
        .sort("ns", "rule", descending=[True, False])
    )
    if not more.height or not waited_ns or more["ns"][0] < EXPLAINS * waited_ns:
        return None, 0.0
    return str(more["rule"][0]), more["ns"][0] / waited_ns
