"""What keeps the device busy: kernels and copies in one frame, each with its launch and its category."""

from __future__ import annotations

import polars as pl

from llmprof import names
from llmprof.analyze.memo import per_trace
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace

COLUMNS = ["rank", "device", "stream", "start_ns", "dur_ns", "name", "source", "correlation", "op_id"]

_LAUNCHES = r"(?i)launch|memcpy|memset|graph|module|cooperative|hcom|aclnn|aclop"


@per_trace
def activity(trace: Trace) -> pl.DataFrame:
    """Kernels and copies of all ranks in the order of their start.

    A trace of a run on CPU has no device; there the outermost operators of each thread stand in, with source ``op``.

    Parameters
    ----------
    trace : Trace
        Any trace with kernels, copies or operators. Tables that were recorded but are empty give an empty frame.

    Returns
    -------
    polars.DataFrame
        ``event`` (row number), ``rank, device, stream, start_ns, dur_ns, name``, ``source`` (kernel, copy or op),
        ``category``, ``correlation, op_id``, and of the host call that launched it ``launch_start_ns,
        launch_end_ns, launch_thread``, null where the launch is not in the window or was not recorded.

    Raises
    ------
    NotCapturedError
        No kernels, copies or operators were recorded, or host calls without the device.
    """
    recorded = [_of(trace, table) for table in ("kernels", "copies") if table in trace.tables]
    if recorded:
        events = pl.concat(recorded).sort("rank", "start_ns", "stream", maintain_order=True)
        events = _with_launches(events, trace)
    elif trace.has("runtime"):
        raise NotCapturedError(
            "this capture holds host calls but no device activity",
            hint="record with ProfilerActivity.CUDA on, and no other profiler attached to the process",
            table="kernels",
        )
    elif "ops" in trace.tables:
        events = _ops_as_activity(trace.ops)
    else:
        raise NotCapturedError(
            "this capture holds no kernels, copies or operators",
            hint="record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] and check that the window "
            "covers some steps",
            table="kernels",
        )
    return events.with_row_index("event").select(
        "event", *COLUMNS[:7], "category", *COLUMNS[7:], "launch_start_ns", "launch_end_ns", "launch_thread"
    )


def _of(trace: Trace, table: str) -> pl.DataFrame:
    """Rows of one of the two tables; a copy's category follows from its kind, a kernel's from its name."""
    frame = trace.table(table)
    if table == "kernels":
        frame = frame.with_columns(names.categories(frame["name"]), source=pl.lit("kernel"))
    else:
        is_fill = pl.col("kind") == "memset"
        category = pl.when(is_fill).then(pl.lit("fill")).otherwise(pl.lit("copy"))
        frame = frame.with_columns(category.alias("category"), source=pl.lit("copy"))
    return frame.select(*COLUMNS, "category")


def _with_launches(events: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add the launching call: of the calls with the correlation, one that launches, else the first."""
    nothing = {
        "launch_start_ns": pl.lit(None, dtype=pl.Int64),
        "launch_end_ns": pl.lit(None, dtype=pl.Int64),
        "launch_thread": pl.lit(None, dtype=pl.Int64),
    }
    if not trace.has("runtime"):
        return events.with_columns(**nothing)
    calls = (
        trace.runtime.filter(pl.col("correlation").is_not_null())
        .with_columns(_launches=pl.col("name").str.contains(_LAUNCHES))
        .sort("_launches", "start_ns", descending=[True, False], maintain_order=True)
        .unique(["rank", "correlation"], keep="first", maintain_order=True)
        .select(
            "rank",
            "correlation",
            launch_start_ns="start_ns",
            launch_end_ns=pl.col("start_ns") + pl.col("dur_ns"),
            launch_thread="thread",
        )
    )
    return events.join(calls, on=["rank", "correlation"], how="left", maintain_order="left")


def outermost_ops(ops: pl.DataFrame) -> pl.DataFrame:
    """Operators that are not inside another one of their thread.

    Parameters
    ----------
    ops : polars.DataFrame
        Rows of the table of operators.

    Returns
    -------
    polars.DataFrame
        The outermost ones, by rank, thread and start.
    """
    ops = ops.filter(pl.col("kind") == "op").sort(
        "rank", "thread", "start_ns", "dur_ns", descending=[False, False, False, True], maintain_order=True
    )
    end = pl.col("start_ns") + pl.col("dur_ns")
    before = end.cum_max().shift(1).over("rank", "thread")
    return ops.filter(before.is_null() | (pl.col("start_ns") >= before))


def _ops_as_activity(ops: pl.DataFrame) -> pl.DataFrame:
    ops = outermost_ops(ops)
    return (
        ops.with_columns(names.categories(ops["name"]))
        .select(
            "rank",
            pl.lit(None, dtype=pl.Int32).alias("device"),
            pl.col("thread").alias("stream"),
            "start_ns",
            "dur_ns",
            "name",
            pl.lit("op").alias("source"),
            "category",
            pl.lit(None, dtype=pl.Int64).alias("correlation"),
            "op_id",
            pl.col("start_ns").alias("launch_start_ns"),
            (pl.col("start_ns") + pl.col("dur_ns")).alias("launch_end_ns"),
            pl.col("thread").alias("launch_thread"),
        )
        .sort("rank", "start_ns", maintain_order=True)
    )


@per_trace
def kernel_categories(trace: Trace) -> pl.DataFrame:
    """Category of each distinct kernel, with its count and time.

    The category comes from the kernel's name by an ordered table of patterns (``llmprof.names.KERNEL_PATTERNS``);
    ``llmprof.names.register(category, pattern)`` puts one's own in front. On a trace without a device the outermost
    operators stand in for kernels.

    Parameters
    ----------
    trace : Trace
        Any trace with kernels or operators.

    Returns
    -------
    polars.DataFrame
        ``name, category, count, total_ns, share``; the share is of the summed time of all rows, which counts
        overlapping kernels twice, and null if that is 0. Longest first.

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor operators.
    """
    events = activity(trace).filter(pl.col("source") != "copy")
    return (
        events.group_by("name", "category")
        .agg(count=pl.len(), total_ns=pl.col("dur_ns").sum())
        .with_columns(share=pl.when(pl.col("total_ns").sum() > 0).then(pl.col("total_ns") / pl.col("total_ns").sum()))
        .sort("total_ns", "name", descending=[True, False])
    )
