"""Arithmetic that hardware counters saw, by type of number.

Tensor cores: ``sm__ops_path_tensor_src_<type>….sum`` counts operations (a multiply-add is two), so nothing is
assumed of the shape of an instruction. A rate (``….sum.per_second``) is multiplied with the time where only that was
collected.

Other arithmetic: thread instructions whose predicate was on, per cycle, times cycles per second, as the roofline
charts of Nsight Compute do (sections SpeedOfLight_RooflineChart and SpeedOfLight_HierarchicalSingleRooflineChart):
add 1, multiply 1, fused multiply-add 2; twice that for half precision, where an instruction works on two numbers.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.metrics_data import Metrics

_TENSOR: Final = r"^sm__ops_path_tensor_(?:op_[a-z0-9]+_)?src_[a-z0-9_]+\.sum(?:\.per_second)?$"
_SCALAR: Final = {
    f"{letter}{op}": (dtype, weight * width)
    for letter, dtype, width in (("f", "fp32", 1), ("h", "fp16", 2), ("d", "fp64", 1))
    for op, weight in (("add", 1), ("mul", 1), ("fma", 2))
}
_SCALAR_NAME: Final = r"^smsp__sass_thread_inst_executed_op_([fhd](?:add|mul|fma))_pred_on\.sum(\.per_cycle_elapsed)?$"
_CYCLES: Final = "smsp__cycles_elapsed.avg.per_second"
_TENSOR_BUSY: Final = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_pipe_tensor.sum",
)


def counted(metrics: Metrics, durations: pl.DataFrame) -> pl.DataFrame:
    """Operations of each launch by type.

    Parameters
    ----------
    metrics : Metrics
        Hardware metrics.
    durations : polars.DataFrame
        ``kernel_id, duration_ns``.

    Returns
    -------
    polars.DataFrame
        ``kernel_id, flops, dtype, flops_source``: the sum over all types, and the type with the most; null where the
        tensor pipe worked or was not looked at and its operations were not counted, since the rest is no measure of
        the kernel then.
    """
    tensor, scalar = _tensor(metrics, durations), _scalar(metrics, durations)
    by_type = pl.concat([tensor.with_columns(unit=pl.lit("tensor")), scalar.with_columns(unit=pl.lit("scalar"))])
    ids = durations.select("kernel_id")
    busy = metrics.values(*_TENSOR_BUSY).rename({"value": "busy"})
    has_tensor = tensor.select("kernel_id").unique().with_columns(has_tensor=pl.lit(value=True))
    has_scalar = scalar.select("kernel_id").unique().with_columns(has_scalar=pl.lit(value=True))
    largest = by_type.sort("flops", descending=True).unique("kernel_id", keep="first").filter(pl.col("flops") > 0)
    out = (
        ids.join(by_type.group_by("kernel_id").agg(pl.col("flops").sum()), on="kernel_id", how="left")
        .join(largest.select("kernel_id", "dtype"), on="kernel_id", how="left")
        .join(has_tensor, on="kernel_id", how="left")
        .join(has_scalar, on="kernel_id", how="left")
        .join(busy, on="kernel_id", how="left")
        .sort("kernel_id")
    )
    tensor_known = pl.col("has_tensor").fill_null(value=False) | (pl.col("busy") == 0).fill_null(value=False)
    source = (
        pl.when(~tensor_known)
        .then(None)
        .when(pl.col("has_tensor") & pl.col("has_scalar"))
        .then(pl.lit("tensor operations and FP instructions"))
        .when("has_tensor")
        .then(pl.lit("tensor operations"))
        .when("has_scalar")
        .then(pl.lit("FP instructions"))
    )
    out = out.with_columns(flops_source=source)
    known = pl.col("flops_source").is_not_null()
    return out.select(
        "kernel_id",
        pl.when(known).then("flops").alias("flops"),
        pl.when(known).then("dtype").alias("dtype"),
        "flops_source",
    )


def _tensor(metrics: Metrics, durations: pl.DataFrame) -> pl.DataFrame:
    """``kernel_id, dtype, flops`` of the tensor cores; each operation counted once although several names count it."""
    frame = metrics.metrics.filter(pl.col("value").is_not_null() & pl.col("metric").str.contains(_TENSOR))
    frame = frame.join(durations, on="kernel_id").with_columns(
        rest=pl.col("metric").str.extract(r"src_([a-z0-9_]+)\.", 1),
        rate=pl.col("metric").str.ends_with(".per_second"),
        of_instruction=pl.col("metric").str.contains("_tensor_op_"),
    )
    frame = frame.with_columns(
        dtype=pl.col("rest").str.extract(r"^([a-z]+\d+)", 1),
        flops=pl.when("rate").then(pl.col("value") * pl.col("duration_ns") / 1e9).otherwise("value"),
    ).filter(pl.col("flops").is_not_null())
    # of the names for one type: the one for all of it, else its parts, else the parts by instruction; counts over rates
    level = pl.when(pl.col("rest") == pl.col("dtype")).then(0).otherwise(1) + 2 * pl.col("of_instruction").cast(
        pl.Int32
    )
    frame = frame.with_columns(level=level * 2 + pl.col("rate").cast(pl.Int32))
    best = pl.col("level") == pl.col("level").min().over("kernel_id", "dtype")
    return frame.filter(best).group_by("kernel_id", "dtype").agg(pl.col("flops").sum())


def _scalar(metrics: Metrics, durations: pl.DataFrame) -> pl.DataFrame:
    """``kernel_id, dtype, flops`` of FP instructions outside the tensor cores."""
    frame = metrics.metrics.filter(pl.col("value").is_not_null() & pl.col("metric").str.contains(_SCALAR_NAME))
    cycles = metrics.values(_CYCLES).rename({"value": "per_second"})
    frame = frame.join(durations, on="kernel_id").join(cycles, on="kernel_id", how="left")
    op = pl.col("metric").str.extract(_SCALAR_NAME, 1)
    per_cycle = pl.col("metric").str.ends_with(".per_cycle_elapsed")
    count = (
        pl.when(per_cycle).then(pl.col("value") * pl.col("per_second") * pl.col("duration_ns") / 1e9).otherwise("value")
    )
    frame = frame.select(
        "kernel_id",
        op=op,
        count=count,
        per_cycle=per_cycle,
        dtype=op.replace_strict({k: v[0] for k, v in _SCALAR.items()}, return_dtype=pl.String),
        weight=op.replace_strict({k: v[1] for k, v in _SCALAR.items()}, return_dtype=pl.Float64),
    ).filter(pl.col("count").is_not_null())
    frame = frame.sort("per_cycle").unique(["kernel_id", "op"], keep="first")
    return frame.group_by("kernel_id", "dtype").agg(flops=(pl.col("count") * pl.col("weight")).sum())
