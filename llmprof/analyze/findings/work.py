"""Rules about device work: compute by stage, copies, short kernels, split-K, uneven ranks, and NPU cores."""

from __future__ import annotations

import polars as pl

from llmprof import names
from llmprof.analyze.findings.host import advice_for
from llmprof.analyze.findings.scope import Measure, Scope, amount, middle, most, total, worst
from llmprof.analyze.intervals import union_length
from llmprof.analyze.steps.summary import LANE
from llmprof.text import counted, shorten
from llmprof.units import format_bytes, format_ns, format_share

SHORT_KERNEL_NS = 5_000
"""Launching a kernel shorter than this takes the host about as long (a few us) as running it takes the device."""

LITTLE_BYTES = 1 << 20
"""The rate of copies is stated from this number of bytes on; below it, their start-up time dominates."""

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

_COPY_ADVICE = (
    (
        "(?i)pageable",
        "Use pinned memory (pin_memory=True) and non_blocking=True: copies from pageable memory go through a buffer "
        "and cannot run beside compute.",
    ),
    (
        "(?i)HtoD|HostToDevice|host.to.device",
        "Keep what is copied again and again (offloaded weights, KV blocks, constants) on the device, or fetch it on a "
        "stream of its own while the step before computes.",
    ),
    (
        "(?i)DtoH|DeviceToHost|device.to.host",
        "Copy results on a stream of their own while the next step computes, and copy less: token ids instead of "
        "logits.",
    ),
    (
        "(?i)PtoP|peer",
        "Send between devices while others compute, or place what is exchanged on the device that uses it.",
    ),
)
_DEVICE_COPY_ADVICE = (
    "Look for the operators that copy (contiguous, to, cat, index_copy): change of layout or type that a neighbouring "
    "operation could do while it reads."
)
_COPY_ADVICE_OF_ANY_PROGRAM = (
    (
        "(?i)pageable",
        "Use pinned memory and asynchronous copies: copies from pageable memory go through a buffer and cannot run "
        "beside compute.",
    ),
    (
        "(?i)HtoD|HostToDevice|host.to.device",
        "Keep what is copied again and again on the device, or fetch it on a stream of its own while other work runs.",
    ),
    (
        "(?i)DtoH|DeviceToHost|device.to.host",
        "Copy results on a stream of their own while other work runs, and copy less of them.",
    ),
    _COPY_ADVICE[3],
    ("", "Look for changes of layout or type that a neighbouring operation could do while it reads."),
)
"""The same if nothing recorded shows PyTorch; an empty pattern is for the rest."""


def copies(scope: Scope) -> Measure | None:
    """Copies without concurrent compute or communication."""
    rows = scope.times.filter(pl.col("kind") == "copy")
    if not rows.height:
        return None
    name, share = most(rows, "part", "ns")
    events = scope.events.filter(pl.col("category").is_in(["copy", "fill"]))
    of_name = events.filter(pl.col("name") == name)
    shown = of_name if of_name.height else events.filter(pl.col("source") == "kernel")
    rank, window = worst(shown if shown.height else events)
    size, memory = _moved(scope, name) if of_name.height and "copies" in scope.trace.table_names else ("", "")
    what = f"{name}{memory}"
    table = (*_COPY_ADVICE, ("", _DEVICE_COPY_ADVICE)) if scope.of_torch else _COPY_ADVICE_OF_ANY_PROGRAM
    advice = advice_for(what, table)
    words = {
        "name": what,
        "by_name": format_share(share),
        "count": amount(shown.height / scope.parts),
        "size": size,
    }
    where = "category IN ('copy', 'fill')"
    # copies without a separate category cannot be told from other work
    change = "remove:copy" if bool((scope.events["category"] == "copy").any()) else None
    return Measure(
        scope.time("copy"), words, where=where, rank=rank, window_ns=window, suggestion=advice, change=change
    )


def _moved(scope: Scope, name: str) -> tuple[str, str]:
    """Text on the bytes, rate and kinds of memory of copies with one name."""
    moved = scope.begun(scope.trace.copies.filter(pl.col("name") == name))
    size, memory = "", ""
    many = total(moved, "bytes")
    if many >= LITTLE_BYTES * scope.parts:
        rate = many / max(1.0, total(moved, "dur_ns"))
        size = f", {format_bytes(many / scope.parts)} {scope.part} at {rate:,.1f} GB/s"
    between = moved.with_columns(_both=pl.format("{} to {} memory", "src_kind", "dst_kind"))
    kinds, _ = most(between, "_both")
    if kinds is not None and not pl.Series([name]).str.contains("(?i)pinned|pageable")[0]:
        memory = f" ({kinds})"
    return size, memory


def heaviest_stage(scope: Scope) -> Measure | None:
    """The stage with the most compute time."""
    compute = scope.times.filter(pl.col("kind") == "compute")
    stages = compute.group_by("part").agg(pl.col("ns").sum()).sort("ns", "part", descending=[True, False])
    if not stages.height:
        return None
    whole = total(stages, "ns")
    stage, ns = stages.row(0)
    more = stages.slice(1, 3).filter(pl.col("ns") >= LEAST_SHARE * whole)
    following = [f"{part} {format_share(n / whole)}" for part, n in more.iter_rows()]
    label = pl.when(pl.col("stage").is_null() | (pl.col("stage") == "other")).then("category").otherwise("stage")
    copying = ["copy", "fill", "collective"]
    rows = scope.events.filter((label.fill_null("other") == stage) & ~pl.col("category").is_in(copying))
    name, share = most(rows, "name")
    rank, window = worst(rows)
    words = {
        "stage": f"kernels of no known kind, most of it {shorten(name, 60)}" if stage == "other" and name else stage,
        "group": "stage" if bool((rows["stage"] == stage).any()) and stage != "other" else "kind",
        "of_compute": format_share(ns / whole),
        "next": f"; then {', '.join(following)}" if following else "",
        "compute": format_share(whole / scope.span_ns),
        "kernel": f"{shorten(name or 'a kernel without a name', 100)} ({format_share(share)} of it)",
        "kernels": counted(round(rows.height / scope.parts), "operator" if scope.on_host else "kernel"),
    }
    column = "stage" if bool((rows["stage"] == stage).any()) else "category"
    weights = bool((rows["category"] == "linear").any()) or stage in ("experts", "lm_head")
    advice = None if weights and _has_layers(scope) else _BOUND_OF_REST
    return Measure(float(ns), words, where=f"{column} = '{stage}'", rank=rank, window_ns=window, suggestion=advice)


_BOUND_OF_REST = (
    "Compare it with its bound (what it reads and writes over the memory bandwidth, or its FLOPs over the peak) before "
    "optimising it."
)


def _has_layers(scope: Scope) -> bool:
    """Whether layers of a transformer were found in the scope."""
    return bool(scope.events["layer"].is_not_null().any())


def short_kernels(scope: Scope) -> Measure | None:
    """Kernels that are shorter than their own launch."""
    kernels = scope.events.filter(pl.col("source") == "kernel")
    if kernels.height < LEAST_KERNELS:
        return None
    short = kernels.filter((pl.col("dur_ns") < SHORT_KERNEL_NS) & ~pl.col("category").is_in(NOT_TO_FUSE))
    share = short.height / kernels.height
    rank, window = worst(short)
    words = {
        "count": f"{short.height / scope.parts:,.0f}",
        "of": f"{kernels.height / scope.parts:,.0f}",
        "many": format_share(share),
        "limit": format_ns(SHORT_KERNEL_NS),
        "median": format_ns(middle(kernels, "dur_ns")),
    }
    kept = ", ".join(f"'{category}'" for category in NOT_TO_FUSE)
    where = f"dur_ns < {SHORT_KERNEL_NS} AND source = 'kernel' AND category NOT IN ({kept})"
    measure = Measure(total(short, "dur_ns"), words, where=where, rank=rank, window_ns=window)
    return measure if share >= MANY_KERNELS else None


def split_k(scope: Scope) -> Measure | None:
    """The second kernel of GEMMs that split their inner dimension."""
    linear = scope.events.filter(pl.col("category") == "linear")
    reduce = linear.filter(pl.col("name").str.contains(f"(?i){names.SPLIT_K}"))
    if not reduce.height:
        return None
    rank, window = worst(reduce)
    words = {
        "of_gemms": format_share(total(reduce, "dur_ns") / total(linear, "dur_ns")),
        "count": f"{reduce.height / scope.parts:,.0f}",
    }
    where = "category = 'linear' AND name LIKE '%splitK%'"
    parallel = scope.windows["rank"].n_unique() > 1 and _has_layers(scope)
    alone = None if parallel else "A larger batch needs no split; or tune the algorithm choice."
    alike = int(linear["name"].str.contains("(?i)splitk").sum()) == reduce.height
    change = "remove:splitk" if alike and bool(reduce["name"].str.contains("(?i)splitk").all()) else None
    return Measure(
        total(reduce, "dur_ns"), words, where=where, rank=rank, window_ns=window, suggestion=alone, change=change
    )


def uneven_compute(scope: Scope) -> Measure | None:
    """Ranks that compute longer than others on the same batches (with data parallelism the batches differ)."""
    if not _same_batches(scope):
        return None
    windows = scope.windows.with_row_index("window").select("window", "rank")
    compute = scope.times.filter(pl.col("kind") == "compute").group_by("window").agg(pl.col("ns").sum())
    each = windows.join(compute, on="window", how="left").with_columns(pl.col("ns").fill_null(0))
    by_rank = each.group_by("rank").agg(pl.col("ns").mean()).sort("ns", "rank")
    if by_rank.height < 2 or not by_rank["ns"][0]:
        return None
    least, most_ = by_rank.row(0, named=True), by_rank.row(-1, named=True)
    ratio = most_["ns"] / least["ns"]
    words = {"most": most_["rank"], "least": least["rank"], "ratio": f"{ratio:.2f}"}
    # the others wait for the slowest; the gain assumes that all are as fast as the mean
    gain = (most_["ns"] - float(by_rank["ns"].mean())) * scope.parts  # type: ignore[arg-type]
    measure = Measure(
        (most_["ns"] - least["ns"]) * scope.parts, words, gain_ns=gain, rank=most_["rank"], change="balance"
    )
    return measure if ratio >= UNEVEN_RATIO else None


_BATCH = ("context_requests", "context_tokens", "generation_requests", "generation_tokens")


def _same_batches(scope: Scope) -> bool:
    """Whether the steps of the scope have the same batches on all ranks, as far as batches are known."""
    if scope.steps is None:
        return True
    keys = scope.windows.select("rank", "step").unique()
    batch = pl.concat_str(*_BATCH, separator="/", ignore_nulls=True)
    batches = scope.steps.join(keys, on=["rank", "step"]).group_by("rank").agg(batch.unique().sort().str.join(" "))
    return batches.to_series(1).n_unique() <= 1


def unnamed(scope: Scope) -> Measure | None:
    """Device time without a stage."""
    named = pl.col("stage").is_not_null() & (pl.col("stage") != "other")
    moved = pl.col("category").is_in(["collective", "copy", "fill"])
    missing = scope.events.filter(~named & ~moved)
    if not missing.height:
        return None
    name, share = most(missing, "name")
    rank, window = worst(missing)
    words = {
        "count": counted(missing.height, "event"),
        "of_events": format_share(total(missing, "dur_ns") / max(1.0, total(scope.events, "dur_ns"))),
        "name": f"{shorten(name or 'an event without a name', 100)} ({format_share(share)})",
    }
    return Measure(
        min(float(union_length(missing, LANE)["busy_ns"].sum()), scope.span_ns),
        words,
        gain_ns=0.0,
        where="stage IS NULL OR stage = 'other'",
        rank=rank,
        window_ns=window,
        suggestion=None
        if _has_layers(scope)
        else "Stages are parts of a transformer's layers, and no layers were found.",
    )


CORE_FACTS = ("ascend_core", "ascend_op_type", "ascend_aic_mac_ratio", "ascend_aic_mac_time_ns", "ascend_aiv_vec_ratio",
          "ascend_aiv_vec_time_ns")  # fmt: skip
_UNITS = {"cube": ("ascend_aic_mac_time_ns", "ascend_aic_mac_ratio"),
          "vector": ("ascend_aiv_vec_time_ns", "ascend_aiv_vec_ratio")}  # fmt: skip

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
    return _spoken(scope, rows, f"name IN ({_quoted(rows)})") if rows.height else None


def format_changes(scope: Scope) -> Measure | None:
    """Time of kernels that only change the format of a tensor."""
    rows = _kernels(scope)
    if rows is None:
        return None
    rows = rows.filter(pl.col("name").str.contains(FORMAT_CHANGES))
    return _spoken(scope, rows, "name LIKE '%TransData%'") if rows.height else None


def core_units(scope: Scope) -> Measure | None:
    """Time of kernels whose cube and vector units were measured, and the busy shares of these units."""
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
    rows = rows.with_columns(**{u: value * pl.col("dur_ns") / pl.col("whole_ns") for u, value in busy.items()})
    rows = rows.filter(pl.any_horizontal(pl.col(list(busy)).is_not_null()))
    length = total(rows, "dur_ns")
    if not length:
        return None
    rank, window = worst(rows)
    shares = [f"the {unit} units {format_share(min(1.0, total(rows, unit) / length))}" for unit in busy]
    words = {"units": " and ".join(shares), "count": f"{rows.height / scope.parts:,.0f}"}
    return Measure(min(length, scope.span_ns), words, gain_ns=0.0, rank=rank, window_ns=window)


def _kernels(scope: Scope) -> pl.DataFrame | None:
    """Kernels of the scope, cut to it, with the profiler's core metrics; ``whole_ns``: their whole length."""
    if not scope.trace.has("kernels"):
        return None
    kernels = scope.trace.kernels
    facts = [column for column in CORE_FACTS if column in kernels.columns]
    if not facts:
        return None
    kept = kernels.select("rank", "device", "start_ns", "dur_ns", "name", *facts, whole_ns="dur_ns")
    return scope.cut(kept.filter(pl.col("whole_ns") > 0))


def _spoken(scope: Scope, rows: pl.DataFrame, where: str) -> Measure:
    name, share = most(rows, "name")
    rank, window = worst(rows)
    number = rows.height / scope.parts
    words = {
        "count": amount(number),
        "name": f"{name[:100]}{'…' if len(name) > 100 else ''} ({format_share(share)} of it)",
    }
    return Measure(total(rows, "dur_ns"), words, where=where, rank=rank, window_ns=window)


def _quoted(rows: pl.DataFrame) -> str:
    names = rows["name"].unique().sort().head(20)
    return ", ".join("'" + name.replace("'", "''") + "'" for name in names)
