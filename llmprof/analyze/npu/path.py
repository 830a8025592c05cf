"""From an operator of the host to its kernel: each layer that it passes, and where the host stood waiting."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.activity import outermost_ops
from llmprof.analyze.analysis import Analysis
from llmprof.analyze.idle.host import is_synchronising
from llmprof.analyze.layers.attribution import labelled
from llmprof.analyze.memo import per_trace
from llmprof.trace import Trace

_PATH: Final = ("operator", "enqueue", "dequeue", "call", "launch")


@per_trace
def launch_path(trace: Trace) -> pl.DataFrame:
    """The way of every kernel and collective call from its operator to the device.

    On an NPU an operator goes into the task queue of torch_npu, is taken out by another thread, becomes a call of
    AscendCL, which launches (Runtime or HCCL), and runs when its stream gets to it. On a GPU there is no queue.

    Parameters
    ----------
    trace : Trace
        A trace with kernels and host activity.

    Returns
    -------
    polars.DataFrame
        One row a kernel, in the order of the device: ``rank, step, event, stream, name, category``, ``operator`` (name,
        null where nothing links them), ``call`` (call of AscendCL), the starts on the host ``operator_start_ns,
        enqueue_start_ns, dequeue_start_ns, call_start_ns, launch_start_ns``, and on the device ``start_ns, dur_ns``;
        the delays ``to_queue_ns`` (operator to enqueue), ``in_queue_ns`` (enqueue to dequeue), ``to_launch_ns``
        (dequeue, or the operator where there is no queue, to launch), ``to_device_ns`` (launch to start) and
        ``delay_ns`` (operator to start). A layer that was not recorded is null.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels or no runtime calls.

    Examples
    --------
    >>> path = analyze.launch_path(trace)
    >>> path.columns[:6]
    ['rank', 'step', 'event', 'stream', 'name', 'category']
    """
    trace.table("kernels")
    calls = trace.table("runtime")
    events = labelled(trace, ["step"]).filter(pl.col("source") == "kernel")
    found = events.select(
        "rank", "step", "event", "stream", "name", "category", "start_ns", "dur_ns", "op_id", "launch_start_ns",
        "launch_thread",
    )  # fmt: skip
    ops = trace.ops if trace.has("ops") else None
    if ops is None:
        nothing = {"operator": pl.lit(None, dtype=pl.String), "operator_start_ns": pl.lit(None, dtype=pl.Int64)}
        found = found.with_columns(**nothing)
    else:
        known = ops.drop_nulls("op_id").unique(["rank", "op_id"], keep="first", maintain_order=True)
        known = known.select("rank", "op_id", operator="name", operator_start_ns="start_ns")
        found = found.join(known, on=["rank", "op_id"], how="left", maintain_order="left")
    level = pl.col("ascend_level") if "ascend_level" in calls.columns else pl.lit(None, dtype=pl.String)
    queue = pl.col("ascend_queue_id") if "ascend_queue_id" in calls.columns else pl.lit(None, dtype=pl.Int64)
    calls = calls.with_columns(_level=level, _queue=queue)
    taken = calls.filter((pl.col("_level") == "queue") & pl.col("name").str.starts_with("Dequeue"))
    put = calls.filter((pl.col("_level") == "queue") & pl.col("name").str.starts_with("Enqueue"))
    found = _within(found, taken, "dequeue", "_queue")
    found = _within(found, calls.filter(pl.col("_level") == "acl"), "call", "name").rename({"call_name": "call"})
    put = put.drop_nulls("_queue").unique(["rank", "_queue"], keep="first", maintain_order=True)
    put = put.select("rank", dequeue__queue="_queue", enqueue_start_ns="start_ns")
    found = found.join(put, on=["rank", "dequeue__queue"], how="left", maintain_order="left")
    at = {layer: pl.col(f"{layer}_start_ns") for layer in _PATH}
    return found.select(
        "rank", "step", "event", "stream", "name", "category", "operator", "call",
        *(f"{layer}_start_ns" for layer in _PATH), "start_ns", "dur_ns",
        to_queue_ns=at["enqueue"] - at["operator"],
        in_queue_ns=at["dequeue"] - at["enqueue"],
        to_launch_ns=at["launch"] - pl.coalesce(at["dequeue"], at["operator"]),
        to_device_ns=pl.col("start_ns") - at["launch"],
        delay_ns=pl.col("start_ns") - at["operator"],
    )  # fmt: skip


def _within(found: pl.DataFrame, spans: pl.DataFrame, prefix: str, column: str) -> pl.DataFrame:
    """Add start and a column of the span of the launching thread that holds each launch."""
    spans = spans.select(
        "rank",
        launch_thread="thread",
        _at="start_ns",
        _start="start_ns",
        _end=pl.col("start_ns") + pl.col("dur_ns"),
        _value=column,
    ).sort("_at")
    order = found.with_row_index("_row").sort("launch_start_ns", nulls_last=True)
    joined = order.join_asof(
        spans,
        left_on="launch_start_ns",
        right_on="_at",
        by=["rank", "launch_thread"],
        strategy="backward",
        check_sortedness=False,
    ).sort("_row")
    inside = pl.col("_end") >= pl.col("launch_start_ns")
    return joined.with_columns(
        pl.when(inside).then("_start").alias(f"{prefix}_start_ns"),
        pl.when(inside).then("_value").alias(f"{prefix}_{column}"),
    ).drop("_row", "_start", "_end", "_value", "_at", strict=False)


@per_trace
def host_synchronisation(trace: Trace) -> pl.DataFrame:
    """Calls in which the host waited for the device, with the operator that made each.

    ``aten::to``, ``aten::item`` and the like copy to the host and cannot return before all earlier work is done: until
    then nothing new is launched by that thread.

    Parameters
    ----------
    trace : Trace
        A trace with runtime calls.

    Returns
    -------
    polars.DataFrame
        One row a call, by rank and time: ``rank, thread, host_start_ns, host_dur_ns`` (ns), ``call``, and the
        ``operator`` of the thread that holds the call (the outermost one), null where there is none or operators were
        not recorded.

    Raises
    ------
    NotCapturedError
        The trace holds no runtime calls.

    Examples
    --------
    >>> calls = analyze.host_synchronisation(trace)
    >>> calls.columns
    ['rank', 'thread', 'host_start_ns', 'host_dur_ns', 'call', 'operator']
    """
    calls = trace.table("runtime")
    calls = calls.filter(is_synchronising(pl.col("name"))).select(
        "rank", "thread", host_start_ns="start_ns", host_dur_ns="dur_ns", call="name"
    )
    calls = calls.sort("rank", "host_start_ns", "thread", maintain_order=True)
    if not trace.has("ops"):
        return calls.with_columns(operator=pl.lit(None, dtype=pl.String))
    outer = outermost_ops(trace.ops).select(
        "rank", "thread", _at="start_ns", _end=pl.col("start_ns") + pl.col("dur_ns"), operator="name"
    )
    outer = outer.sort("_at")
    joined = (
        calls.with_row_index("_row")
        .sort("host_start_ns")
        .join_asof(
            outer,
            left_on="host_start_ns",
            right_on="_at",
            by=["rank", "thread"],
            strategy="backward",
            check_sortedness=False,
        )
    )
    inside = pl.col("_end") >= pl.col("host_start_ns")
    return (
        joined.sort("_row").with_columns(operator=pl.when(inside).then("operator")).select(*calls.columns, "operator")
    )


ANALYSES = (
    Analysis(
        function=launch_path,
        question="Where is the time between an operator and its kernel?",
        help="the way of every kernel from its operator to the device",
        view="launch-path",
    ),
    Analysis(
        function=host_synchronisation,
        question="Where does the host wait for the device?",
        help="calls in which the host waited for the device, with their operators",
        view="host-sync",
        largest_first="host_dur_ns",
    ),
)
