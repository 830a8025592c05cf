"""Rules about device work: stages, copies, short kernels, split-K, uneven ranks, bounds, and
busy units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from llmprof import names
from llmprof.analyze.counters import averages
from llmprof.analyze.operators import BY_CACHE, OVER
from llmprof.analyze.overlap import COMMUNICATION, COPY
from llmprof.analyze.step_times import LANE
from llmprof.findings.host import kind_of
from llmprof.findings.scope import Measure, Scope, middle, most, total
from llmprof.label.intervals import union_length
from llmprof.replay.targets import OF_ANYTHING, TARGET

SHORT_KERNEL_NS = 5_000
"""Launching a kernel shorter than this takes the host about as long (a few us) as running it
takes the device.
"""

LITTLE_BYTES = 1 << 20
"""The rate of copies is stated from this number of bytes on; below it, their start-up time
dominates.
"""

NOT_TO_FUSE = ("linear", "attention", "moe_experts", "collective")
"""Categories whose short kernels cannot be fused into a neighbour."""

LEAST_KERNELS = 10
"""With fewer kernels than this no statement on short kernels is made."""

LEAST_SHARE = 0.001
"""Least share of all compute for a stage to be named in addition to the heaviest one."""

MANY_KERNELS = 0.3
"""Least share of short kernels for a finding."""

UNEVEN_RATIO = 1.1
"""Least ratio of the compute times of two ranks that counts as uneven."""

COPIES = {
    "pageable": "(?i)pageable",
    "to device": "(?i)HtoD|HostToDevice|host.to.device",
    "to host": "(?i)DtoH|DeviceToHost|device.to.host",
    "peer": "(?i)PtoP|peer",
}
"""Kinds of copies, by their names and memories."""


def copies(scope: Scope) -> Measure | None:
    """Copies without concurrent compute or communication."""
    rows = scope.times.filter(pl.col("kind") == "copy")
    if not rows.height:
        return None
    name, share = most(rows, "part", "ns")
    events = scope.events.filter(pl.col("category").is_in(["copy", "fill"]))
    of_name = events.filter(pl.col("name").eq_missing(name))
    shown = of_name if of_name.height else events.filter(pl.col("source") == "kernel")
    copied = (
        scope.trace.copies.filter(pl.col("name").eq_missing(name))
        if "copies" in scope.trace.table_names
        else None
    )
    moved = scope.begun(copied) if of_name.height and copied is not None else None
    what = f"{name}{_memories(name, moved)}"
    many = 0.0 if moved is None else total(moved, "bytes")
    figures = {
        "name": what,
        "kind": kind_of(what, COPIES),
        "by_name_share": share,
        "count": shown.height / scope.parts,
        "moved_bytes": many / scope.parts if many >= LITTLE_BYTES * scope.parts else None,
        "gbps": None if moved is None else many / max(1.0, total(moved, "dur_ns")),
        "unit": scope.part,
    }
    where = "category IN ('copy', 'fill')"
    # copies without a separate category cannot be told from other work
    change = "remove:copy" if bool((scope.events["category"] == "copy").any()) else None
    by_rank = scope.by_rank("copy").rename({"ns": "dur_ns"})
    shown = shown if shown.height else events
    return Measure.of(
        shown, figures, ns=scope.time("copy"), where=where, change=change, by_rank=by_rank
    )


def _memories(name: str, moved: pl.DataFrame | None) -> str:
    """The kinds of memory between which most bytes of copies with one name go, if the name does
    not say them.
    """
    if moved is None or pl.Series([name]).str.contains("(?i)pinned|pageable")[0]:
        return ""
    kinds, _ = most(
        moved.with_columns(_both=pl.format("{} to {} memory", "src_kind", "dst_kind")), "_both"
    )
    return "" if kinds is None else f" ({kinds})"


def heaviest_stage(scope: Scope) -> Measure | None:
    """The stage with the most compute time."""
    compute = scope.times.filter(pl.col("kind") == "compute")
    stages = (
        compute.group_by("part")
        .agg(pl.col("ns").sum())
        .sort("ns", "part", descending=[True, False])
    )
    if not stages.height:
        return None
    whole = total(stages, "ns")
    stage, ns = stages.row(0)
    more = stages.slice(1, 3).filter(pl.col("ns") >= LEAST_SHARE * whole)
    label = (
        pl.when(pl.col("stage").is_null() | (pl.col("stage") == "other"))
        .then("category")
        .otherwise("stage")
    )
    copying = ["copy", "fill", "collective"]
    rows = scope.events.filter(
        (label.fill_null("other") == stage) & ~pl.col("category").is_in(copying)
    )
    name, share = most(rows, "name")
    in_stage = bool((rows["stage"] == stage).any())
    weights = bool((rows["category"] == "linear").any()) or stage in ("experts", "lm_head")
    figures = {
        "stage": stage,
        "is_stage": in_stage and stage != "other",
        "of_compute_share": ns / whole,
        "following": [(part, n / whole) for part, n in more.iter_rows()],
        "compute_share": whole / scope.span_ns,
        "name": name,
        "by_name_share": share,
        "kernels": rows.height / scope.parts,
        "of_weights": weights and scope.has_layers,
    }
    where = f"{'stage' if in_stage else 'category'} = '{stage}'"
    return Measure.of(rows, figures, ns=float(ns), where=where)


def short_kernels(scope: Scope) -> Measure | None:
    """Kernels that are shorter than their own launch."""
    kernels = scope.events.filter(pl.col("source") == "kernel")
    if kernels.height < LEAST_KERNELS:
        return None
    short = kernels.filter(
        (pl.col("dur_ns") < SHORT_KERNEL_NS) & ~pl.col("category").is_in(NOT_TO_FUSE)
    )
    share = short.height / kernels.height
    figures = {
        "count": short.height / scope.parts,
        "kernels": kernels.height / scope.parts,
        "of_kernels_share": share,
        "limit_ns": SHORT_KERNEL_NS,
        "median_ns": middle(kernels, "dur_ns"),
    }
    kept = ", ".join(f"'{category}'" for category in NOT_TO_FUSE)
    where = f"dur_ns < {SHORT_KERNEL_NS} AND source = 'kernel' AND category NOT IN ({kept})"
    return Measure.of(short, figures, where=where) if share >= MANY_KERNELS else None


def split_k(scope: Scope) -> Measure | None:
    """The second kernel of GEMMs that split their inner dimension."""
    linear = scope.events.filter(pl.col("category") == "linear")
    reduce = linear.filter(pl.col("name").str.contains(f"(?i){names.SPLIT_K}"))
    if not reduce.height:
        return None
    figures = {
        "of_gemms_share": total(reduce, "dur_ns") / total(linear, "dur_ns"),
        "count": reduce.height / scope.parts,
        "parallel": scope.windows["rank"].n_unique() > 1 and scope.has_layers,
    }
    where = "category = 'linear' AND name LIKE '%splitK%'"
    alike = int(linear["name"].str.contains("(?i)splitk").sum()) == reduce.height
    change = (
        "remove:splitk" if alike and bool(reduce["name"].str.contains("(?i)splitk").all()) else None
    )
    return Measure.of(reduce, figures, where=where, change=change)


def drafting(scope: Scope) -> Measure | None:
    """Passes of a draft model or of prediction heads in speculative decoding."""
    drafts = scope.events.filter(pl.col("stage") == "draft")
    if not drafts.height:
        return None
    ns, whole = total(drafts, "dur_ns"), total(scope.events, "dur_ns")
    figures: dict[str, object] = {"even_tokens": whole / max(1.0, whole - ns), "draft_tokens": None}
    if scope.steps is not None:
        decodes = scope.steps.join(
            scope.windows.select("rank", "step").unique(), on=["rank", "step"], how="semi"
        )
        requests = total(decodes, "generation_requests")
        verified = total(decodes, "generation_tokens") - requests
        figures["draft_tokens"] = verified / requests if requests and verified > 0 else None
    # without drafts a step would be shorter by them, but give fewer tokens
    return Measure.of(drafts, figures, gain_ns=0.0, where="stage = 'draft'")


SAME_FACTOR = 0.5
"""Kinds of work are slower by the same factor if each loses at least this, and at most 1 / this,
of what all do.
"""

NEARLY_ALL = 0.8
"""Least share of the extra time, or of kernels that can be compared, for a statement about which
kernels differ.
"""


def uneven(rule: str) -> Callable[[Scope], Measure | None]:
    """A rule about ranks that compute longer than others on the same batches, if the kernels
    that differ are its.
    """

    def measured(scope: Scope) -> Measure | None:
        by_rank = _compute_of_ranks(scope)
        if by_rank is None:
            return None
        least, most_ = by_rank.row(0, named=True), by_rank.row(-1, named=True)
        ratio, parts = most_["ns"] / least["ns"], scope.of([most_["rank"]]).parts
        if ratio < UNEVEN_RATIO:
            return None
        every = _kinds_against_others(scope, most_["rank"])
        if _rule_of(every) != rule:
            return None
        kinds = every.filter(pl.col("others") > 0).head(3)
        figures = {
            "most": most_["rank"],
            "least": least["rank"],
            "ratio": ratio,
            "kinds": kinds.select("category", pl.col("own") / pl.col("others")).rows(),
        }
        # the others wait for the slowest; the gain assumes that all are as fast as the mean
        gain = (most_["ns"] - float(by_rank["ns"].mean())) * parts  # type: ignore[arg-type]
        ns = (most_["ns"] - least["ns"]) * parts
        return Measure(
            ns, figures, gain_ns=gain, rank=most_["rank"], change="balance", own=[most_["rank"]]
        )

    return measured


def _compute_of_ranks(scope: Scope) -> pl.DataFrame | None:
    """Mean compute time of a step of each rank, least first; None where ranks cannot be
    compared.
    """
    if not _same_batches(scope):
        return None
    parts = scope.windows.group_by("rank").agg(parts=pl.len())
    each = parts.join(scope.by_rank("compute"), on="rank", how="left")
    by_rank = each.select("rank", ns=pl.col("ns").fill_null(0) / pl.col("parts")).sort("ns", "rank")
    return by_rank if by_rank.height > 1 and by_rank["ns"][0] else None


def uneven_rule(scope: Scope) -> str:
    """Which rule tells why the rank that computes most does: all its kernels are slower, or only
    its experts are.
    """
    by_rank = _compute_of_ranks(scope)
    return (
        "uneven_compute"
        if by_rank is None
        else _rule_of(_kinds_against_others(scope, by_rank["rank"][-1]))
    )


def _rule_of(kinds: pl.DataFrame) -> str:
    """The same from the rank's kinds of work against those of the others."""
    experts, rest = (
        kinds.filter((pl.col("category") == "moe_experts") == is_expert)
        for is_expert in (True, False)
    )
    more = total(kinds, "own") - total(kinds, "others")
    even = total(rest, "own") <= (1 + UNEVEN_RATIO) / 2 * total(rest, "others")
    if (
        rest.height
        and even
        and total(experts, "own") - total(experts, "others") >= NEARLY_ALL * more
    ):
        return "uneven_experts"
    alike = kinds.filter(
        (pl.col("others") >= (1 - NEARLY_ALL) / 4 * pl.col("others").sum()) & pl.col("as_often")
    )
    of_all = total(alike, "own") / max(1.0, total(alike, "others")) - 1
    each = alike.select(pl.col("own") / pl.col("others") - 1).to_series()
    known = alike.height > 1 and total(alike, "others") >= NEARLY_ALL * total(kinds, "others")
    return (
        "slow_device"
        if known
        and of_all > 0
        and each.is_between(SAME_FACTOR * of_all, of_all / SAME_FACTOR).all()
        else "uneven_compute"
    )


def _kinds_against_others(scope: Scope, rank: int) -> pl.DataFrame:
    """Compute time a step of a rank (``own``) and the mean of the others, by category, most
    extra time first.
    """
    # `as_often`: the rank runs as many of these kernels a step as the others.
    moved = pl.col("category").is_in(["collective", "copy", "fill"])
    parts = scope.windows.group_by("rank").agg(parts=pl.len())
    each = (
        scope.events.filter(~moved)
        .group_by("rank", pl.col("category").fill_null("other"))
        .agg(pl.col("dur_ns").sum(), count=pl.len())
    )
    lanes = (
        each.select("category")
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


_BATCH = ("context_requests", "context_tokens", "generation_requests", "generation_tokens")


def _same_batches(scope: Scope) -> bool:
    """Whether the steps of the scope have the same batches on all ranks, as far as batches are
    known.
    """
    if scope.steps is None:
        return True
    keys = scope.windows.select("rank", "step").unique()
    batch = pl.concat_str(*_BATCH, separator="/", ignore_nulls=True)
    batches = (
        scope.steps.join(keys, on=["rank", "step"])
        .group_by("rank")
        .agg(batch.unique().sort().str.join(" "))
    )
    return batches.to_series(1).n_unique() <= 1


def unnamed(scope: Scope) -> Measure | None:
    """Device time without a stage."""
    named = pl.col("stage").is_not_null() & (pl.col("stage") != "other")
    moved = pl.col("category").is_in(["collective", "copy", "fill"])
    missing = scope.events.filter(~named & ~moved)
    if not missing.height:
        return None
    name, share = most(missing, "name")
    figures = {
        "count": missing.height,
        "of_events_share": total(missing, "dur_ns") / max(1.0, total(scope.events, "dur_ns")),
        "name": name,
        "by_name_share": share,
        "has_layers": scope.has_layers,
    }
    busy = min(float(union_length(missing, LANE)["busy_ns"].sum()), scope.span_ns)
    return Measure.of(
        missing, figures, ns=busy, gain_ns=0.0, where="stage IS NULL OR stage = 'other'"
    )


CORE_FACTS = (
    "ascend_core",
    "ascend_op_type",
    "ascend_aic_mac_ratio",
    "ascend_aic_mac_time_ns",
    "ascend_aiv_vec_ratio",
    "ascend_aiv_vec_time_ns",
)
_UNITS = {
    "cube": ("ascend_aic_mac_time_ns", "ascend_aic_mac_ratio"),
    "vector": ("ascend_aiv_vec_time_ns", "ascend_aiv_vec_ratio"),
}

AI_CPU = r"(?i)^ai_?cpu"
"""Core types of kernels that run on a general-purpose processor of the device."""

FORMAT_CHANGES = r"(?i)(?:^|_)TransData"
"""Kernels that change the format of a tensor, such as ND to NZ."""


def ai_cpu(scope: Scope) -> Measure | None:
    """Time of operators that run on the AI CPUs of the device and not on its AI cores."""
    rows = _kernels(scope)
    if rows is None or "ascend_core" not in rows.columns:
        return None
    rows = rows.filter(pl.col("ascend_core").str.contains(AI_CPU))
    listed = ", ".join(
        "'" + name.replace("'", "''") + "'" for name in rows["name"].unique().sort().head(20)
    )
    return _by_name(scope, rows, f"name IN ({listed})") if rows.height else None


def format_changes(scope: Scope) -> Measure | None:
    """Time of kernels that only change the format of a tensor."""
    rows = _kernels(scope)
    if rows is None:
        return None
    rows = rows.filter(pl.col("name").str.contains(FORMAT_CHANGES))
    return _by_name(scope, rows, "name LIKE '%TransData%'") if rows.height else None


def core_units(scope: Scope) -> Measure | None:
    """Time of kernels whose cube and vector units were measured, and the busy shares of these
    units.
    """
    rows = _kernels(scope)
    if rows is None:
        return None
    busy = {
        unit: pl.coalesce(
            *(pl.col(time) for time in (time,) if time in rows.columns),
            *(pl.col(ratio) * pl.col("whole_ns") for ratio in (ratio,) if ratio in rows.columns),
        )
        for unit, (time, ratio) in _UNITS.items()
        if time in rows.columns or ratio in rows.columns
    }
    if not busy:
        return None
    # a kernel that is cut at the edge of a step counts with the part inside the step
    rows = rows.with_columns(
        **{u: value * pl.col("dur_ns") / pl.col("whole_ns") for u, value in busy.items()}
    )
    rows = rows.filter(pl.any_horizontal(pl.col(list(busy)).is_not_null()))
    length = total(rows, "dur_ns")
    if not length:
        return None
    shares = {unit: min(1.0, total(rows, unit) / length) for unit in busy}
    figures = {"units": shares, "count": rows.height / scope.parts}
    return Measure.of(rows, figures, ns=min(length, scope.span_ns), gain_ns=0.0)


def _kernels(scope: Scope) -> pl.DataFrame | None:
    """Kernels of the scope, cut to it, with the profiler's core metrics; ``whole_ns``: their
    whole length.
    """
    if not scope.trace.has("kernels"):
        return None
    kernels = scope.trace.kernels
    facts = [column for column in CORE_FACTS if column in kernels.columns]
    if not facts:
        return None
    kept = kernels.select("rank", "device", "start_ns", "dur_ns", "name", *facts, whole_ns="dur_ns")
    return scope.cut(kept.filter(pl.col("whole_ns") > 0))


def _by_name(scope: Scope, rows: pl.DataFrame, where: str) -> Measure:
    name, share = most(rows, "name")
    figures = {"count": rows.height / scope.parts, "name": name, "by_name_share": share}
    return Measure.of(rows, figures, where=where)


def below_bound(scope: Scope) -> Measure | None:
    """Time beyond 80 % of the bound of the stage (or else the operator) with most of it; not
    what a launch bounds.
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
    own = rows.filter(what=what, known=is_stage).sort(
        "gap_ns", "operator", "shapes", descending=[True, False, False]
    )
    most = own.row(0, named=True)
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
        "following": sums.slice(1, 3)
        .filter(pl.col("gap_ns") >= 0.1 * gap_ns)
        .select("what", reached)
        .rows(),
    }
    where = f"stage = '{what}'" if is_stage else f"operator = '{most['operator']}'"
    change = f"to-bound:{TARGET:g}:{what}"
    return Measure.of(own, figures, ns=gap_ns, where=where, change=change)


def above_bound(scope: Scope) -> Measure | None:
    """Operators faster than their bound: a fact about the formula, the stated peak, the cache or
    the clock.
    """
    rows = scope.bounds.filter(pl.col("bound_ns") > OVER * pl.col("time_ns"))
    if not rows.height:
        return None
    most = rows.sort("time_ns", "operator", "shapes", descending=[True, False, False]).row(
        0, named=True
    )
    figures = {
        "operator": most["operator"],
        "shapes": most["shapes"],
        "name": most["kernel"],
        "bound_by": most["bound_by"],
        "of_bound_share": most["bound_ns"] / most["time_ns"],
        "cached": bool(rows.select(BY_CACHE.fill_null(value=False).all()).item()),
        "operators": rows.select("operator", "shapes").n_unique(),
        "count": rows["count"].sum() / scope.parts,
    }
    return Measure.of(
        rows, figures, ns=total(rows, "time_ns"), gain_ns=0.0, where=f"bound_share > {OVER}"
    )


SAMPLED_UNITS: Final = {
    "multiprocessors": r"^SMs? Active|^gpu\.sm_active$",
    "tensor cores": r"^Tensor Active|^gpu\.tensor_active$",
    "device memory": r"^DRAM (?:Active|Read Bandwidth|Write Bandwidth)|^gpu\.dram_active$",
}
"""Counters in % of each unit; those of reading and writing add up."""

LEAST_SAMPLES: Final = 30
LEAST_OWN: Final = 0.5
"""With fewer samples, or samples mostly of other work, a mean says too little."""


def sampled_units(scope: Scope) -> Measure | None:
    """How busy the units of the device are in the stage with the most compute time."""
    if not scope.trace.has("counters"):
        return None
    name, label = pl.col("name"), pl.col("stage").fill_null("other")
    known = pl.any_horizontal(name.str.contains(pattern) for pattern in SAMPLED_UNITS.values())
    samples = scope.trace.counters.filter(known & (pl.col("unit") == "%"))
    work = scope.events.filter(~pl.col("category").is_in([*COMMUNICATION, *COPY])).with_columns(
        stage=label
    )
    times = (
        work.group_by("stage")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "stage", descending=[True, False])
    )
    if samples.is_empty() or times.is_empty() or times["stage"][0] == "other":
        return None
    rows = work.filter(pl.col("stage") == times["stage"][0])
    means = averages(rows, samples, ["stage"])
    means = means.filter((pl.col("samples") >= LEAST_SAMPLES) & (pl.col("own_share") >= LEAST_OWN))
    share = (pl.col("mean") * pl.col("known_ns")).sum() / pl.col("known_ns").sum() / 100
    of_counter = means.group_by("counter").agg(
        share, pl.col("samples").sum(), pl.col("own_share").min()
    )
    busy = {
        unit: min(1.0, total(of, "mean"))
        for unit, pattern in SAMPLED_UNITS.items()
        if (of := of_counter.filter(pl.col("counter").str.contains(pattern))).height
    }
    if not busy:
        return None
    figures = {
        "stage": times["stage"][0],
        "units": busy,
        "samples": of_counter["samples"].max(),
        "own_share": of_counter["own_share"].min(),
    }
    length = min(total(rows, "dur_ns"), scope.span_ns)
    return Measure.of(rows, figures, ns=length, gain_ns=0.0, where="counter IS NOT NULL")
