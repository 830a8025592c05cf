"""Hardware metrics of kernels from Nsight Compute: shares of the peaks, and stalls of warps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import polars as pl

from llmprof.errors import LlmprofError, NotCapturedError, checked
from llmprof.names.matching import first_true
from llmprof.theory import hardware
from llmprof.trace.metrics.data import Metrics

_TENSOR: Final = r"^sm__ops_path_tensor_(?:op_[a-z0-9]+_)?src_[a-z0-9_]+\.sum(?:\.per_second)?$"
_SCALAR: Final = {
    f"{letter}{op}": (dtype, weight * width)
    for letter, dtype, width in (("f", "fp32", 1), ("h", "fp16", 2), ("d", "fp64", 1))
    for op, weight in (("add", 1), ("mul", 1), ("fma", 2))
}
_SCALAR_NAME: Final = r"^smsp__sass_thread_inst_executed_op_([fhd](?:add|mul|fma))_pred_on\.sum(\.per_cycle_elapsed)?$"  # noqa: E501
_CYCLES: Final = "smsp__cycles_elapsed.avg.per_second"
_TENSOR_BUSY: Final = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_pipe_tensor.sum",
)


def operation_counts(metrics: Metrics, durations: pl.DataFrame) -> pl.DataFrame:
    """Operations of each launch by type."""
    tensor, scalar = _tensor(metrics, durations), _scalar(metrics, durations)
    by_type = pl.concat(
        [tensor.with_columns(unit=pl.lit("tensor")), scalar.with_columns(unit=pl.lit("scalar"))]
    )
    ids = durations[["kernel_id"]]
    has = [(pl.col("unit") == unit).any().alias(f"has_{unit}") for unit in ("tensor", "scalar")]
    busy = metrics.values(*_TENSOR_BUSY).rename({"value": "busy"})
    largest = (
        by_type.sort("flops", descending=True)
        .unique("kernel_id", keep="first")
        .filter(pl.col("flops") > 0)
    )
    out = (
        ids.join(
            by_type.group_by("kernel_id").agg(pl.sum("flops"), *has),
            on="kernel_id",
            how="left",
        )
        .join(largest[["kernel_id", "dtype"]], on="kernel_id", how="left")
        .join(busy, on="kernel_id", how="left")
        .sort("kernel_id")
    )
    tensor_known = pl.col("has_tensor").fill_null(False) | (pl.col("busy") == 0).fill_null(
        value=False
    )
    cases = {
        "tensor operations and FP instructions": pl.col("has_tensor") & pl.col("has_scalar"),
        "tensor operations": pl.col("has_tensor"),
        "FP instructions": pl.col("has_scalar"),
    }
    out = out.with_columns(source=pl.when(tensor_known).then(first_true(cases)))
    known = pl.col("source").is_not_null()
    return out.select(
        "kernel_id",
        pl.when(known).then("flops").alias("flops"),
        pl.when(known).then("dtype").alias("dtype"),
        "source",
    )


def _tensor(metrics: Metrics, durations: pl.DataFrame) -> pl.DataFrame:
    """``kernel_id, dtype, flops`` of the tensor cores; each operation counted once although
    several names count it.
    """
    frame = metrics.metrics.filter(
        pl.col("value").is_not_null() & pl.col("metric").str.contains(_TENSOR)
    )
    frame = frame.join(durations, on="kernel_id").with_columns(
        rest=pl.col("metric").str.extract(r"src_([a-z0-9_]+)\.", 1),
        rate=pl.col("metric").str.ends_with(".per_second"),
        of_instruction=pl.col("metric").str.contains("_tensor_op_"),
    )
    frame = frame.with_columns(
        dtype=pl.col("rest").str.extract(r"^([a-z]+\d+)", 1),
        flops=pl.when("rate").then(pl.col("value") * pl.col("dur_ns") / 1e9).otherwise("value"),
    ).drop_nulls("flops")
    # of the metrics for one type: the total, else its parts, else the parts by instruction; counts
    # before rates
    level = pl.when(pl.col("rest") == pl.col("dtype")).then(0).otherwise(1) + 2 * pl.col(
        "of_instruction"
    ).cast(pl.Int32)
    frame = frame.with_columns(level=level * 2 + pl.col("rate").cast(pl.Int32))
    best = pl.col("level") == pl.min("level").over("kernel_id", "dtype")
    return frame.filter(best).group_by("kernel_id", "dtype").agg(pl.sum("flops"))


def _scalar(metrics: Metrics, durations: pl.DataFrame) -> pl.DataFrame:
    """``kernel_id, dtype, flops`` of FP instructions outside the tensor cores."""
    frame = metrics.metrics.filter(
        pl.col("value").is_not_null() & pl.col("metric").str.contains(_SCALAR_NAME)
    )
    cycles = metrics.values(_CYCLES).rename({"value": "per_second"})
    frame = frame.join(durations, on="kernel_id").join(cycles, on="kernel_id", how="left")
    op = pl.col("metric").str.extract(_SCALAR_NAME, 1)
    per_cycle = pl.col("metric").str.ends_with(".per_cycle_elapsed")
    count = (
        pl.when(per_cycle)
        .then(pl.col("value") * pl.col("per_second") * pl.col("dur_ns") / 1e9)
        .otherwise("value")
    )
    frame = frame.select(
        "kernel_id",
        op=op,
        count=count,
        per_cycle=per_cycle,
        dtype=op.replace_strict({k: v[0] for k, v in _SCALAR.items()}, return_dtype=pl.String),
        weight=op.replace_strict({k: v[1] for k, v in _SCALAR.items()}, return_dtype=pl.Float64),
    ).drop_nulls("count")
    frame = frame.sort("per_cycle").unique(["kernel_id", "op"], keep="first")
    return frame.group_by("kernel_id", "dtype").agg(
        flops=(pl.col("count") * pl.col("weight")).sum()
    )


_RATIO: Final = (
    r"^smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)(?:_per_issue_active)?\.ratio$"
)
_SAMPLED: Final = r"^smsp__pcsamp_warps_issue_stalled_(\w+?)$"
_NO_STALL: Final = ("selected", "not_selected")
_SAME: Final = {"gmma": "warpgroup_arrive", "no_instruction": "no_instructions"}
"""One reason, two names: of the counters and of the sampler."""


def stalls(metrics: Metrics) -> pl.DataFrame:
    """Stall reasons of each launch.

    Parameters
    ----------
    metrics : Metrics
        Hardware metrics with the section WarpStateStats, or warp samples (SourceCounters).

    Returns
    -------
    polars.DataFrame
        ``kernel_id, reason, share``: share of the time between two instructions of a warp (with
        samples: of its samples) that the warp spent in this state, largest first. ``selected`` and
        ``not_selected``, in which a warp could run, count in the whole but are no rows.

    Examples
    --------
    >>> analyze.ncu.stalls(metrics).columns
    ['kernel_id', 'reason', 'share']
    """
    frame = metrics.metrics.drop_nulls("value")
    frame = frame.filter(~pl.col("metric").str.ends_with("_not_issued"))
    frames = [
        frame.filter(pl.col("metric").str.contains(pattern)).select(
            "kernel_id",
            "value",
            reason=pl.col("metric").str.extract(pattern, 1).replace(_SAME),
            order=pl.lit(order),
        )
        for order, pattern in enumerate((_RATIO, _SAMPLED))
    ]
    states = pl.concat(frames)
    states = states.filter(pl.col("order") == pl.min("order").over("kernel_id"))
    states = states.with_columns(share=pl.col("value") / pl.sum("value").over("kernel_id"))
    waiting = (
        ~pl.col("reason").is_in(_NO_STALL) & (pl.col("share") > 0) & pl.col("share").is_finite()
    )
    return states.filter(waiting).sort(
        "kernel_id", "share", "reason", descending=[False, True, False]
    )[["kernel_id", "reason", "share"]]


BUSY: Final = 0.6
"""Below this share of a peak, Nsight Compute's rule SOLBottleneck sees neither side as the
limit.
"""

_DURATION: Final = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_DRAM: Final = (
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
)
_ALL_MEMORY: Final = (
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory Throughput",
)
_L1: Final = ("l1tex__throughput.avg.pct_of_peak_sustained_active", "L1/TEX Cache Throughput")
_L2: Final = ("lts__throughput.avg.pct_of_peak_sustained_elapsed", "L2 Cache Throughput")
_SM: Final = ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput")
_WRITTEN: Final = ("l1tex__m_l1tex2xbar_write_bytes.sum",)


def no_durations() -> NotCapturedError:
    """The error for metrics that hold no duration."""
    return NotCapturedError(
        "the metrics have no duration of any launch",
        hint="record them with ncu --section SpeedOfLight or --set full",
    )


def speed_of_light(
    metrics: Metrics, *, device: str | hardware.Device | None = None
) -> pl.DataFrame:
    """Arithmetic, memory traffic, place on the roofline and limit of every launch.

    - ``flop_per_s``: flops / duration;
    - ``memory_bytes``: dram__bytes_read.sum + dram__bytes_write.sum (else dram__bytes.sum, else
      rate x duration);
    - ``traffic_bytes``: DRAM reads + the larger of DRAM writes and what the SMs wrote: the second
      part of a result that is still in L2 when the kernel ends reaches the DRAM later;
    - ``bytes_per_s``: memory_bytes / duration;
    - ``intensity``: flops / memory_bytes;
    - ``bound_flop_per_s``: min(peak of the type, intensity x peak bandwidth);
    - ``bound_share``: flop_per_s / bound_flop_per_s; without arithmetic bytes_per_s / peak
      bandwidth.

    The roofline is that of Williams, Waterman and Patterson (2009, Communications of the ACM
    52(4)), with the vendor's dense peaks (:mod:`llmprof.theory.hardware`). The hardware counts the
    operations, so padding of tiles counts as work.

    Nsight Compute empties the caches before each pass (``--cache-control all``) unless told
    otherwise, so inputs that were in L2 in the run are read from DRAM here. A GEMM of M x K by K x
    N has 2 M K N operations, and its ``traffic_bytes`` are both inputs and the result. Where these
    do not fit L2, later waves of tiles read a part of the inputs again: on an H200 1.6 times the
    inputs, from some 60 MB on.

    Parameters
    ----------
    metrics : Metrics
        Hardware metrics; ``--set full`` (or the sections SpeedOfLight,
        MemoryWorkloadAnalysis_Tables, ComputeWorkloadAnalysis, the roofline sections and
        WarpStateStats) gives all columns.
    device : str or Device, optional
        The device; the ones that the metrics name if not given.

    Returns
    -------
    polars.DataFrame
        ``kernel_id, kernel_name, dur_ns, flops, dtype`` (with the most operations)``,
        flop_per_s, read_bytes, written_bytes, memory_bytes, bytes_per_s, traffic_bytes,
        intensity, bound_flop_per_s, bound_share, compute_share, memory_share`` (of peak; the
        largest share of the DRAM, of L2 and of all memory units,
        ``gpu__compute_memory_throughput``)``, memory_level`` (dram, l2 or l1, the busiest)``,
        bound_by`` (the busier of compute and memory if it is at 60 % of its peak or more, else
        latency)``, stall, stall_share`` (the warp state, other than being ready, in which warps
        spent most time; see ``llmprof.trace.metrics.explain``)``, source``. Null where the metrics
        were not collected, or the device's peaks are not known. Where the SMs are at 60 % or more,
        a busy L1 makes no memory bound: the tensor cores of a GEMM read their operands from shared
        memory.

    Raises
    ------
    NotCapturedError
        The metrics have no durations.
    LlmprofError
        The device that was given is unknown.

    Examples
    --------
    >>> bounds = analyze.ncu.speed_of_light(metrics)
    >>> bounds.height == metrics.kernels.height
    True
    """
    durations = metrics.values(*_DURATION).rename({"value": "dur_ns"})
    if not durations.height and metrics.kernels.height:
        raise no_durations()
    given = None if device is None else hardware.device(device)
    frame = metrics.kernels[["kernel_id", "kernel_name", "device_name"]]
    in_percent = Metrics(metrics.metrics.filter(unit="%"))
    parts = {
        "sm_share": metrics.values(*_SM),
        "dram_share": metrics.values(*_DRAM, "DRAM Throughput"),
        "l2_share": metrics.values(*_L2),
        "l1_share": metrics.values(*_L1),
        "units_share": in_percent.values(*_ALL_MEMORY),
        "written": metrics.values(*_WRITTEN),
    }
    top = stalls(metrics).unique("kernel_id", keep="first", maintain_order=True)
    for part in (
        durations,
        operation_counts(metrics, durations),
        _dram(metrics, durations),
        *(values.rename({"value": name}) for name, values in parts.items()),
        top.rename({"reason": "stall", "share": "stall_share"}),
    ):
        frame = frame.join(part, on="kernel_id", how="left", maintain_order="left")
    frame = frame.with_columns(pl.col("^(sm|dram|l2|l1|units)_share$") / 100)
    each = frame.partition_by("device_name", maintain_order=True) if given is None else [frame]
    placed = [
        _placed(part, given or _named(part["device_name"][0])) for part in each if part.height
    ]
    return (
        pl.concat(placed or [_placed(frame, _named(None))])
        .sort("kernel_id")
        .select(
            *(
                "kernel_id",
                "kernel_name",
                "dur_ns",
                "flops",
                "dtype",
                "flop_per_s",
                "read_bytes",
            ),
            *(
                "written_bytes",
                "memory_bytes",
                "bytes_per_s",
                "traffic_bytes",
                "intensity",
            ),
            *(
                "bound_flop_per_s",
                "bound_share",
                "compute_share",
                "memory_share",
                "memory_level",
                "bound_by",
                "stall",
            ),
            *("stall_share", "source"),
        )
    )


def _named(name: str | None) -> hardware.Device:
    """The device of a name, without peaks if these are unknown; results that need no peaks are
    still computed.
    """
    try:
        return hardware.device(name or "")
    except LlmprofError:
        return hardware.Device(name or "unknown", "", {}, None, None, None, None)


def _dram(metrics: Metrics, durations: pl.DataFrame) -> pl.DataFrame:
    """``kernel_id, read_bytes, written_bytes, memory_bytes``."""
    frame = durations
    names = {
        "read_bytes": ("dram__bytes_read.sum",),
        "written_bytes": ("dram__bytes_write.sum",),
        "both": ("dram__bytes.sum",),
        "rate": ("dram__bytes.sum.per_second",),
    }
    for column, names_of in names.items():
        values = metrics.values(*names_of).rename({"value": column})
        frame = frame.join(values, on="kernel_id", how="left", maintain_order="left")
    label = metrics.metrics.filter(
        (pl.col("metric") == "Memory Throughput") & (pl.col("unit") == "B/s")
    )
    label = label.unique("kernel_id", keep="first").select("kernel_id", labelled="value")
    frame = frame.join(label, on="kernel_id", how="left", maintain_order="left")
    total = pl.coalesce(
        pl.col("read_bytes") + pl.col("written_bytes"),
        "both",
        pl.coalesce("rate", "labelled") * pl.col("dur_ns") / 1e9,
    )
    return frame.select("kernel_id", "read_bytes", "written_bytes", memory_bytes=total)


def _placed(frame: pl.DataFrame, peaks: hardware.Device) -> pl.DataFrame:
    """Rates, the roof over each launch, and its bound."""
    stated = {dtype: rate for dtype, rate in peaks.flop_per_s.items() if rate is not None}
    peak = pl.col("dtype").replace_strict(
        list(stated), list(stated.values()), default=None, return_dtype=pl.Float64
    )
    bandwidth = pl.lit(peaks.memory_bytes_per_s, dtype=pl.Float64)
    seconds = pl.col("dur_ns") / 1e9
    worked = pl.col("flops") > 0
    frame = frame.with_columns(
        flop_per_s=pl.col("flops") / seconds,
        bytes_per_s=pl.col("memory_bytes") / seconds,
        traffic_bytes=pl.col("read_bytes") + pl.max_horizontal("written_bytes", "written"),
        intensity=pl.when(pl.col("memory_bytes") > 0).then(
            pl.col("flops") / pl.col("memory_bytes")
        ),
        peak=peak,
    )
    memory_roof = pl.when(pl.col("memory_bytes") > 0).then(pl.col("intensity") * bandwidth)
    frame = frame.with_columns(
        bound_flop_per_s=pl.when(worked & pl.col("peak").is_not_null()).then(
            pl.min_horizontal("peak", memory_roof)
        )
    )
    share_of_memory = pl.col("bytes_per_s") / bandwidth
    dram_share = pl.coalesce("dram_share", share_of_memory)
    beyond_l1 = pl.max_horizontal(dram_share, "l2_share")
    in_l1 = (pl.col("units_share") > beyond_l1) & (pl.col("l1_share") > pl.col("l2_share"))
    frame = frame.with_columns(
        bound_share=pl.when(worked)
        .then(pl.col("flop_per_s") / pl.col("bound_flop_per_s"))
        .otherwise(share_of_memory),
        compute_share=pl.coalesce("sm_share", pl.col("flop_per_s") / pl.col("peak")),
        memory_share=pl.max_horizontal(beyond_l1, "units_share"),
        memory_level=first_true(
            {"l1": in_l1, "l2": pl.col("l2_share") > dram_share, "dram": dram_share.is_not_null()}
        ),
    )
    compute = pl.col("compute_share")
    memory = (
        pl.when((pl.col("memory_level") == "l1") & (compute >= BUSY))
        .then(beyond_l1)
        .otherwise("memory_share")
    )
    cases = {"latency": pl.max_horizontal(compute, memory) < BUSY, "compute": compute >= memory}
    known = compute.is_not_null() & memory.is_not_null()
    return frame.with_columns(bound_by=pl.when(known).then(first_true(cases, "memory")))


@checked
def hot_lines(source: pl.DataFrame, *, by: Literal["line", "instruction"] = "line") -> pl.DataFrame:
    """Lines or instructions of each kernel by samples of its warps, with the reason of most of the
    stalls there.

    Parameters
    ----------
    source : polars.DataFrame
        Result of :func:`llmprof.read_source`.
    by : {"line", "instruction"}
        Kind of row. Instructions whose line is unknown are one row with ``line`` null.

    Returns
    -------
    polars.DataFrame
        ``kernel_id, kernel_name, file, line`` and, per instruction, ``address, sass, ptx``;
        ``count, share`` (of all samples of the kernel), ``reason`` (of most of its samples in
        which the warp could not run; null where there is none) and ``instructions`` (executions by warps; null where not counted). In the order of kernels,
        most samples first.

    Raises
    ------
    NotCapturedError
        The report holds no samples.

    Examples
    --------
    >>> rows = {"kernel_id": [0, 0], "kernel_name": ["k", "k"], "file": ["a.cu", "a.cu"], "line": [7, 8]}
    >>> stalled = "smsp__pcsamp_warps_issue_stalled_"
    >>> source = pl.DataFrame({**rows, "metric": [f"{stalled}wait", f"{stalled}barrier"], "value": [1.0, 3.0]})
    >>> analyze.ncu.hot_lines(source).select("line", "share", "reason").rows()
    [(8, 0.75, 'barrier'), (7, 0.25, 'wait')]
    """  # noqa: E501
    place = ["file", "line"] if by == "line" else ["file", "line", "address", "sass", "ptx"]
    keys = ["kernel_id", "kernel_name", *place]
    stall_samples = source.filter(
        pl.col("metric").str.contains(_SAMPLED) & ~pl.col("metric").str.ends_with("_not_issued")
    ).with_columns(reason=pl.col("metric").str.extract(_SAMPLED, 1))
    if stall_samples.is_empty():
        found = "there are no samples of warps in this report"
        raise NotCapturedError(found, hint="record with ncu --section SourceCounters")
    sampled = stall_samples.group_by(keys).agg(count=pl.sum("value").cast(pl.Int64))
    samples = (
        source.select(keys)
        .unique(maintain_order=True)
        .join(sampled, on=keys, how="left", nulls_equal=True)
    )
    samples = samples.with_columns(pl.col("count").fill_null(0))
    waiting = (
        stall_samples.filter(~pl.col("reason").is_in(_NO_STALL))
        .group_by(*keys, "reason")
        .agg(pl.sum("value"))
    )
    most = (
        waiting.filter(pl.col("value") > 0)
        .sort("value", "reason", descending=[True, False])
        .unique(keys, keep="first", maintain_order=True)
        .select(*keys, "reason")
    )
    counted = source.filter(metric="inst_executed").group_by(keys)
    executed = counted.agg(instructions=pl.sum("value").cast(pl.Int64))
    whole = pl.sum("count").over("kernel_id")
    return (
        samples.join(most, on=keys, how="left", nulls_equal=True)
        .join(executed, on=keys, how="left", nulls_equal=True)
        .with_columns(share=pl.when(whole > 0).then(pl.col("count") / whole))
        .sort(
            "kernel_id",
            "count",
            *place,
            descending=[False, True, *[False] * len(place)],
            nulls_last=True,
        )
        .select(*keys, "count", "share", "reason", "instructions")
    )


class HardwareView(NamedTuple):
    """A view on the command line: the function that makes its frame from metrics or from a
    report's instructions.
    """

    help: str
    of_metrics: Callable[[Metrics], pl.DataFrame] | None = None
    of_source: Callable[[pl.DataFrame], pl.DataFrame] | None = None


VIEWS: Final = {
    "speed-of-light": HardwareView(
        "ncu: how near each kernel comes to the peaks, and what bounds it", speed_of_light
    ),
    "stalls": HardwareView("ncu: what the warps of each kernel wait for", stalls),
    "rules": HardwareView("ncu: what the profiler's own rules said", lambda metrics: metrics.rules),
    "launches": HardwareView(
        "ncu: the launches that were measured", lambda metrics: metrics.kernels
    ),
    "metrics": HardwareView("ncu: every metric of every launch", lambda metrics: metrics.metrics),
    "hot-lines": HardwareView(
        "ncu: lines of each kernel by samples of its warps", of_source=hot_lines
    ),
}
