"""Waits of an NPU: the path from an operator of the host to its kernel, streams waiting for each
other, links.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.errors import NotNegative
from llmprof.trace import Trace
from llmprof.trace.schema import END

SIGNAL_NS: Final = 5_000
"""Longest time from the record of an event to the end of the wait for it: on Ascend 910B about 1
us.
"""


@Analysis(
    question="Which stream waits for which?",
    help="waits of streams for events of other streams",
    view="event-waits",
    recorded="tasks of device queues",
)
def event_waits(trace: Trace, *, min_ns: NotNegative = 1_000) -> pl.DataFrame:
    """Waits of streams for events of other streams, and which stream each waited for.

    A wait ends when another stream records the event. The recording does not name the event, so the
    stream follows from the time: it is the stream of the last record that ended at most
    :data:`SIGNAL_NS` before the wait did. If no record fits, or records of several streams do, the
    stream is null.

    Parameters
    ----------
    trace : Trace
        A trace with tasks of device queues (Ascend).
    min_ns : int
        Shortest wait to report (ns): most waits have length 0.

    Returns
    -------
    polars.DataFrame
        One row for each wait, by rank and time: ``rank, device, stream, start_ns, dur_ns``,
        ``waited_stream`` (stream), ``step, next_event, next_name, next_category`` of the kernel or
        copy that the stream runs next, and ``waited_name, waited_category`` of the last event on
        the stream that was waited for.

    Raises
    ------
    NotCapturedError
        The trace holds no tasks of device queues.
    """
    tasks = trace.table("tasks")
    waits = tasks.filter((pl.col("kind") == "event_wait") & (pl.col("dur_ns") >= min_ns))
    waits = waits[["rank", "device", "stream", "start_ns", "dur_ns"]].with_row_index("wait")
    records = tasks.filter(kind="event_record").select("rank", _stream="stream", _record=END)
    ends = waits.with_columns(_end=END)
    signals = ends[["wait", "rank", "stream", "start_ns", "_end"]].join(
        records, on="rank", maintain_order="left"
    )
    fits = pl.col("_record").is_between(pl.col("_end") - SIGNAL_NS, pl.col("_end") + 1)
    signals = signals.filter(
        fits & (pl.col("_stream") != pl.col("stream")) & (pl.col("_record") >= pl.col("start_ns"))
    )
    signalled = signals.group_by("wait").agg(
        waited_stream=pl.when(pl.n_unique("_stream") == 1).then(pl.first("_stream"))
    )
    waits = waits.join(signalled, on="wait", how="left", maintain_order="left")
    events = trace.events
    following = events.select(
        "rank",
        "stream",
        "step",
        _end="start_ns",
        next_event="event",
        next_name="name",
        next_category="category",
    ).sort("_end")
    rows = waits.with_columns(_end=END).sort("_end")
    rows = rows.join_asof(
        following, on="_end", by=["rank", "stream"], strategy="forward", check_sortedness=False
    )
    before = events.select(
        "rank", waited_stream="stream", _end=END, waited_name="name", waited_category="category"
    )
    rows = rows.sort("_end").join_asof(
        before.sort("_end"), on="_end", by=["rank", "waited_stream"], check_sortedness=False
    )
    return rows.sort("rank", "start_ns", "stream")[
        [
            "rank",
            "device",
            "stream",
            "start_ns",
            "dur_ns",
            "waited_stream",
            "step",
            "next_event",
            "next_name",
            "next_category",
            "waited_name",
            "waited_category",
        ]
    ]


@Analysis(
    question="How fast is each link between ranks?",
    help="bytes and rates of each link, by the transfers of collectives",
    view="links",
    recorded="tasks of device queues",
)
def links(trace: Trace) -> pl.DataFrame:
    """Bytes and rate of each link between ranks, from the transfers of collective calls.

    Parameters
    ----------
    trace : Trace
        A trace with tasks of device queues (Ascend, profiler level 1 or higher).

    Returns
    -------
    polars.DataFrame
        One row for each link, slowest first: ``rank`` (which recorded it), ``src_rank, dst_rank,
        kind`` (HCCS, ROCE …), ``count`` (transfers), ``bytes``, ``busy_ns`` (sum of their
        durations), ``gbps`` (bytes by that time, in 1e9), ``typical_gbps`` (median over the
        links of that kind) and ``ratio`` (of the two). Bytes that stay on a device are left out.

    Raises
    ------
    NotCapturedError
        The trace holds no tasks of device queues.
    """
    moved = trace.table("tasks").filter(
        (pl.col("kind") == "transfer")
        & (pl.col("bytes") > 0)
        & pl.col("dst_rank").is_not_null()
        & (pl.col("src_rank") != pl.col("dst_rank"))
    )
    by_link = moved.group_by("rank", "src_rank", "dst_rank", kind="link").agg(
        count=pl.len(), bytes=pl.sum("bytes"), busy_ns=pl.sum("dur_ns")
    )
    rate = pl.when(pl.col("busy_ns") > 0).then(pl.col("bytes") / pl.col("busy_ns"))
    by_link = by_link.with_columns(gbps=rate)
    typical = pl.median("gbps").over("kind")
    return by_link.with_columns(typical_gbps=typical, ratio=pl.col("gbps") / typical).sort(
        "ratio", "rank", "src_rank", "dst_rank", nulls_last=True
    )


_PATH: Final = ("operator", "enqueue", "dequeue", "call", "launch")


@Analysis(
    question="Where is the time between an operator and its kernel?",
    help="the way of every kernel from its operator to the device",
    view="launch-path",
    recorded="kernels and runtime calls",
)
def launch_path(trace: Trace) -> pl.DataFrame:
    """Path of every kernel and collective call from its operator to the device.

    On an NPU an operator goes into the task queue of torch_npu. Another thread takes it out and
    calls AscendCL, which launches it (Runtime or HCCL); the stream runs it later. On a GPU there is
    no task queue.

    Parameters
    ----------
    trace : Trace
        A trace with kernels and runtime calls.

    Returns
    -------
    polars.DataFrame
        One row for each kernel, in the order of the device: ``rank, step, event, stream, name,
        category``, ``operator`` (name, null where nothing links them), ``call`` (call of AscendCL),
        ``launch_start_ns``, and on the device ``start_ns, dur_ns``; the delays
        ``to_queue_ns`` (operator to enqueue), ``queue_ns`` (enqueue to dequeue),
        ``to_launch_ns`` (dequeue, or the operator where there is no queue, to launch), and
        ``to_device_ns`` (launch to start). A layer that was
        not recorded is null.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels or runtime calls.

    Examples
    --------
    >>> frame = analyze.npu.launch_path(trace)
    """
    trace.table("kernels")
    calls = trace.table("runtime")
    events = trace.events.filter(source="kernel")
    rows = events[
        [
            "rank",
            "step",
            "event",
            "stream",
            "name",
            "category",
            "start_ns",
            "dur_ns",
            "op_id",
            "launch_start_ns",
            "launch_thread",
        ]
    ]
    ops = trace.ops if trace.has("ops") else None
    if ops is None:
        nothing = {
            "operator": pl.lit(None, pl.String),
            "operator_start_ns": pl.lit(None, pl.Int64),
        }
        rows = rows.with_columns(**nothing)
    else:
        operators = ops.drop_nulls("op_id").unique(
            ["rank", "op_id"], keep="first", maintain_order=True
        )
        operators = operators.select("rank", "op_id", operator="name", operator_start_ns="start_ns")
        rows = rows.join(operators, on=["rank", "op_id"], how="left", maintain_order="left")
    level = pl.col("ascend_level") if "ascend_level" in calls.columns else pl.lit(None, pl.String)
    queue = (
        pl.col("ascend_queue_id") if "ascend_queue_id" in calls.columns else pl.lit(None, pl.Int64)
    )
    calls = calls.with_columns(_level=level, _queue=queue)
    taken = calls.filter((pl.col("_level") == "queue") & pl.col("name").str.starts_with("Dequeue"))
    put = calls.filter((pl.col("_level") == "queue") & pl.col("name").str.starts_with("Enqueue"))
    rows = held_by(rows, taken, "dequeue", "_queue")
    rows = held_by(rows, calls.filter(_level="acl"), "call", "name").rename({"call_name": "call"})
    put = put.drop_nulls("_queue").unique(["rank", "_queue"], keep="first", maintain_order=True)
    put = put.select("rank", dequeue__queue="_queue", enqueue_start_ns="start_ns")
    rows = rows.join(put, on=["rank", "dequeue__queue"], how="left", maintain_order="left")
    start_of = {layer: pl.col(f"{layer}_start_ns") for layer in _PATH}
    return rows.select(
        "rank",
        "step",
        "event",
        "stream",
        "name",
        "category",
        "operator",
        "call",
        "launch_start_ns",
        "start_ns",
        "dur_ns",
        to_queue_ns=start_of["enqueue"] - start_of["operator"],
        queue_ns=start_of["dequeue"] - start_of["enqueue"],
        to_launch_ns=start_of["launch"] - pl.coalesce(start_of["dequeue"], start_of["operator"]),
        to_device_ns=pl.col("start_ns") - start_of["launch"],
    )


def held_by(launches: pl.DataFrame, spans: pl.DataFrame, prefix: str, column: str) -> pl.DataFrame:
    """Add start and a column of the span of the launching thread that holds each launch."""
    spans = spans.select("rank", launch_thread="thread", _start="start_ns", _end=END, _value=column)
    spans = spans.with_columns(launch_start_ns="_start").sort("launch_start_ns")
    order = launches.with_row_index("_row").sort("launch_start_ns", nulls_last=True)
    joined = order.join_asof(
        spans, on="launch_start_ns", by=["rank", "launch_thread"], check_sortedness=False
    )
    inside = pl.when(pl.col("_end") >= pl.col("launch_start_ns"))
    return (
        joined.sort("_row")
        .with_columns(
            inside.then("_start").alias(f"{prefix}_start_ns"),
            inside.then("_value").alias(f"{prefix}_{column}"),
        )
        .drop("_row", "_start", "_end", "_value")
    )
