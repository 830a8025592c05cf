"""Work of the cores of a device: cube and vector time, operators by shape and format, memory by
component.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.errors import Columns, NotCapturedError, refuse_unknown
from llmprof.label.activity import EVENT_KEY, add_recorded
from llmprof.trace import Trace

_COUNTERS: Final = {
    "cube_ns": ("aic_mac_time_ns", "aic_mac_ratio"),
    "vector_ns": ("aiv_vec_time_ns", "aiv_vec_ratio"),
}
_FORMS: Final = {
    "shapes": "input_shapes",
    "dtypes": "input_dtypes",
    "formats": "input_formats",
    "output_shapes": "output_shapes",
    "output_formats": "output_formats",
}
_HINT: Final = (
    "record with aic_metrics=AiCMetrics.PipeUtilization in torch_npu's _ExperimentalConfig"
)


@Analysis(
    question="How busy are the cube and vector units of an NPU?",
    help="time of AI cores by category of kernel",
    view="core-time",
    recorded="metrics of AI cores",
)
def core_time(trace: Trace, *, by: Columns = ("category",)) -> pl.DataFrame:
    """Time of the AI cores of an NPU: busy time of the cube and vector units in kernels.

    Parameters
    ----------
    trace : Trace
        A trace of an NPU recorded with metrics of the AI cores (PipeUtilization).
    by : sequence of str
        Columns of :attr:`llmprof.Trace.events`, or ``kind`` and ``core`` (type of operator and
        of core).

    Returns
    -------
    polars.DataFrame
        ``<by...>, count, total_ns`` (sum of durations), and as shares of it ``cube_share,
        vector_share`` (arithmetic of the cube and vector cores) and ``known_share`` (kernels with
        these metrics). Largest time first. Collective calls are left out.

    Raises
    ------
    NotCapturedError
        The trace has no kernels, or none of them has metrics of its cores.
    AnalysisError
        ``by`` names an unknown column.
    """
    kernels = trace.table("kernels")
    if not {"ascend_aic_mac_ratio", "ascend_aiv_vec_ratio"} & set(kernels.columns):
        raise NotCapturedError(
            "the kernels have no metrics of AI cores", hint=_HINT, table="kernels"
        )
    # of a cube core's own time, which msprof gives beside the task's
    values = {}
    for name, (time, ratio) in _COUNTERS.items():
        if f"ascend_{time}" in kernels.columns:
            values[name] = pl.col(f"ascend_{time}")
        elif f"ascend_{ratio}" in kernels.columns:
            values[name] = pl.col(f"ascend_{ratio}") * pl.col("dur_ns")
        else:
            values[name] = pl.lit(None, pl.Float64)
    facts = kernels.select(
        *EVENT_KEY,
        **values,
        kind=_or_null(kernels, "ascend_op_type"),
        core=_or_null(kernels, "ascend_core"),
    )
    events = trace.events.filter(
        (pl.col("source") == "kernel") & (pl.col("category") != "collective")
    )
    events = add_recorded(events, facts)
    refuse_unknown(by, events.columns, "by")
    measured = pl.col("cube_ns").is_not_null() | pl.col("vector_ns").is_not_null()
    total = pl.col("total_ns")
    return (
        events.group_by(list(by))
        .agg(
            count=pl.len(),
            total_ns=pl.sum("dur_ns"),
            **{name: pl.col(name).sum() for name in _COUNTERS},
            _measured=pl.col("dur_ns").filter(measured).sum(),
        )
        .with_columns(
            cube_share=pl.col("cube_ns") / total,
            vector_share=pl.col("vector_ns") / total,
            known_share=pl.col("_measured") / total,
        )
        .drop("_measured", *_COUNTERS)
        .sort("total_ns", *by, descending=[True, *[False] * len(by)], nulls_last=True)
    )


def _or_null(frame: pl.DataFrame, column: str) -> pl.Expr:
    return pl.col(column) if column in frame.columns else pl.lit(None, pl.String)


@Analysis(
    question="Which operators run with which shapes on an NPU?",
    help="time of kernels by type of operator, shapes and formats",
    view="operator-shapes",
    recorded="kernels",
)
def operator_shapes(trace: Trace, *, shapes: bool = True) -> pl.DataFrame:
    """Time of kernels by type of operator, and by the shapes and formats of inputs and outputs.

    Parameters
    ----------
    trace : Trace
        A trace of an NPU; other kernels have no type and are grouped by name.
    shapes : bool
        Divide the types by shapes, element types and formats.

    Returns
    -------
    polars.DataFrame
        ``kind, core``, with ``shapes`` also ``shapes, dtypes, formats`` of the inputs and
        ``output_shapes, output_formats`` as the profiler wrote them (inputs apart by ``;``), then
        ``count, total_ns, mean_ns, min_ns, max_ns`` and ``share`` (of the time of all kernels,
        collective calls among them). Largest first.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels.

    Examples
    --------
    >>> frame = analyze.npu.operator_shapes(trace)
    """
    kernels = trace.table("kernels")
    keys = ["kind", "core"]
    of_call = pl.col("name").str.extract(
        r"^(hcom_[A-Za-z]+_)"
    )  # a collective call without its group and number
    types = pl.coalesce(_or_null(kernels, "ascend_op_type"), of_call, "name")
    columns = {"kind": types, "core": _or_null(kernels, "ascend_core")}
    if shapes:
        for column, form in _FORMS.items():
            columns[column] = _or_null(kernels, f"ascend_{form}")
            keys.append(column)
    return (
        kernels.select("dur_ns", **columns)
        .group_by(keys)
        .agg(
            count=pl.len(),
            total_ns=pl.sum("dur_ns"),
            mean_ns=pl.mean("dur_ns"),
            min_ns=pl.min("dur_ns"),
            max_ns=pl.max("dur_ns"),
        )
        .with_columns(share=pl.col("total_ns") / pl.sum("total_ns"))
        .sort("total_ns", *keys, descending=[True, *[False] * len(keys)], nulls_last=True)
    )


@Analysis(
    question="Which allocator holds the memory?",
    help="peak of allocated and reserved memory of each component",
    view="memory-components",
    recorded="memory events",
)
def memory_by_component(trace: Trace) -> pl.DataFrame:
    """Peak of allocated and reserved memory of each component (allocator) of each rank.

    Parameters
    ----------
    trace : Trace
        A trace with memory events.

    Returns
    -------
    polars.DataFrame
        ``rank, holder`` (PTA: torch_npu's allocator; GE: graph engine; APP: all of the process;
        operators: allocations with their operator; null where the profiler names none), ``count,
        peak_allocated_bytes, peak_reserved_bytes, peak_time_ns`` (when the first of these two was
        reached, or the second where the first is unknown).

    Raises
    ------
    NotCapturedError
        The trace holds no memory events.
    """
    memory = trace.table("memory").filter("on_device")
    memory = memory.with_columns(holder=_or_null(memory, "ascend_component"))
    most = pl.coalesce("allocated_bytes", "reserved_bytes")
    return (
        memory.with_columns(_most=most)
        .group_by("rank", "holder")
        .agg(
            count=pl.len(),
            peak_allocated_bytes=pl.max("allocated_bytes"),
            peak_reserved_bytes=pl.max("reserved_bytes"),
            peak_time_ns=pl.col("time_ns")
            .sort_by("_most", descending=True, nulls_last=True)
            .first(),
        )
        .sort("rank", "holder", nulls_last=True)
    )
