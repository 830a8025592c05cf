"""When the device of a rank is idle and why; when one stream waits while others work."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.intervals.intervals import gaps, length_within
from llmprof.analyze.layers.attribution import labelled
from llmprof.analyze.memo import per_trace
from llmprof.trace import Trace

SYNCHRONISING = (
    r"(?i)synchroni[sz]e"  # cudaStreamSynchronize, hipEventSynchronize, cuCtxSynchronize, aclrtSynchronizeDevice
    r"|^(?:cuda|hip|cu|mu|musa|(?:\w+@)?aclrt)memcpy"  # the Async forms are taken out again below
    r"|^(?:cuda|hip)free(?:_v\d+)?$"  # waits for the device before it gives memory back
)
"""Names of host calls that return only when work on the device is done (and the Async copies, which do not)."""


@per_trace
def idle(trace: Trace, *, min_ns: int = 0) -> pl.DataFrame:
    """Gaps in which no stream of a rank's device runs anything, with their cause.

    A gap on one stream is not an idle device: see :func:`stream_gaps`. The time before a device's first event and
    after its last is no gap.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity. Causes need the host's runtime calls.
    min_ns : int
        Shortest gap to report (ns).

    Returns
    -------
    polars.DataFrame
        One row a gap, by rank, device and time:

        - ``rank, device``; ``step``: step of the event that ends the gap; ``in_step``: whether that step had
          already begun on the device (else the gap lies between steps; null without a step);
        - ``start_ns, dur_ns``: the gap (ns);
        - ``cause``: ``host_bound`` (the call that launched the next event began after the gap did), ``sync`` (so it
          was, and a synchronising call of the launching thread was waiting when the gap began), ``queued``
          (launched before the gap began: the event waited for something on the device) or ``unknown`` (no launch in
          the capture);
        - ``next_event, next_name``: the event that ends the gap; ``launch_start_ns``: start of its launch (ns);
        - ``sync_name``: the synchronising call, null for other causes.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.
    """
    calls = trace.runtime if trace.has("runtime") else None
    return idle_of(labelled(trace, ["step"]), calls, min_ns=min_ns)


def idle_of(events: pl.DataFrame, calls: pl.DataFrame | None = None, *, min_ns: int = 0) -> pl.DataFrame:
    """The analysis of :func:`idle` on a frame of device events.

    Parameters
    ----------
    events : polars.DataFrame
        ``event, rank, device, step, start_ns, dur_ns, name, source, launch_start_ns, launch_thread``.
    calls : polars.DataFrame, optional
        Runtime calls of the host: ``rank, thread, start_ns, dur_ns, name``.
    min_ns : int
        Shortest gap to report (ns).

    Returns
    -------
    polars.DataFrame
        As :func:`idle` returns it.
    """
    # an operator that stands in for device work was launched by nobody
    launched = pl.when(pl.col("source") != "op")
    found = gaps(
        events,
        ["rank", "device"],
        step=pl.col("step"),
        next_event=pl.col("event"),
        next_name=pl.col("name"),
        launch_start_ns=launched.then("launch_start_ns"),
        _thread=launched.then("launch_thread").fill_null(-1),
    ).filter(pl.col("dur_ns") >= min_ns)
    begun = events.group_by("rank", "step").agg(_begun=pl.col("start_ns").min())
    found = found.join(begun, on=["rank", "step"], how="left", maintain_order="left")  # null steps match nothing
    found = _with_sync(found, calls)
    late = pl.col("launch_start_ns") >= pl.col("start_ns")
    waited = (pl.col("_call_end") >= pl.col("start_ns")) & (pl.col("_call_end") <= pl.col("launch_start_ns"))
    cause = (
        pl.when(pl.col("launch_start_ns").is_null())
        .then(pl.lit("unknown"))
        .when(~late)
        .then(pl.lit("queued"))
        .when(waited)
        .then(pl.lit("sync"))
        .otherwise(pl.lit("host_bound"))
    )
    return found.select(
        "rank",
        "device",
        "step",
        (pl.col("_begun") <= pl.col("start_ns")).alias("in_step"),
        "start_ns",
        "dur_ns",
        cause.alias("cause"),
        "next_event",
        "next_name",
        "launch_start_ns",
        pl.when(cause == "sync").then("sync_name").alias("sync_name"),
    )


@per_trace
def stream_gaps(trace: Trace, *, min_ns: int = 0) -> pl.DataFrame:
    """Gaps of each single stream, and how much of each the other streams of the device worked.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity.
    min_ns : int
        Shortest gap to report (ns).

    Returns
    -------
    polars.DataFrame
        ``rank, device, stream``, ``step`` (of the event that ends the gap), ``start_ns, dur_ns, next_event,
        next_name``, ``busy_elsewhere_ns`` (part of the gap during which another stream of the device was busy) and
        ``share_busy_elsewhere`` (of ``dur_ns``). One row a gap, by stream and time.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.
    """
    return stream_gaps_of(labelled(trace, ["step"]), min_ns=min_ns)


def stream_gaps_of(events: pl.DataFrame, *, min_ns: int = 0) -> pl.DataFrame:
    """The analysis of :func:`stream_gaps` on a frame of device events.

    Parameters
    ----------
    events : polars.DataFrame
        ``event, rank, device, stream, step, start_ns, dur_ns, name``.
    min_ns : int
        Shortest gap to report (ns).

    Returns
    -------
    polars.DataFrame
        As :func:`stream_gaps` returns it.
    """
    following = {"step": pl.col("step"), "next_event": pl.col("event"), "next_name": pl.col("name")}
    found = gaps(events, ["rank", "device", "stream"], **following).filter(pl.col("dur_ns") >= min_ns)
    found = length_within(found, events, ["rank", "device"], name="busy_elsewhere_ns")
    return found.select(
        "rank",
        "device",
        "stream",
        "step",
        "start_ns",
        "dur_ns",
        "next_event",
        "next_name",
        "busy_elsewhere_ns",
        share_busy_elsewhere=pl.col("busy_elsewhere_ns") / pl.col("dur_ns"),
    )


def is_synchronising(name: pl.Expr) -> pl.Expr:
    """Whether a host call of this name returns only when work on the device is done."""
    return name.str.contains(SYNCHRONISING) & ~name.str.contains("(?i)memcpy.*async")


def _with_sync(found: pl.DataFrame, calls: pl.DataFrame | None) -> pl.DataFrame:
    """Add the last synchronising call of the launching thread that began before the gap did."""
    if calls is None:
        return found.with_columns(sync_name=pl.lit(None, dtype=pl.String), _call_end=pl.lit(None, dtype=pl.Int64))
    syncs = calls.filter(is_synchronising(pl.col("name"))).select(
        "rank",
        pl.col("thread").fill_null(-1).alias("_thread"),
        pl.col("start_ns").alias("_call_start"),
        (pl.col("start_ns") + pl.col("dur_ns")).alias("_call_end"),
        pl.col("name").alias("sync_name"),
    )
    # runtime calls hold driver calls: of nested ones the outermost, so that the last to begin is the last to end
    syncs = syncs.sort("rank", "_thread", "_call_start", "_call_end", descending=[False, False, False, True])
    reach = pl.col("_call_end").cum_max().shift(1).over("rank", "_thread")
    syncs = syncs.filter(reach.is_null() | (pl.col("_call_end") > reach)).sort("_call_start")
    order = found.with_row_index("_row").sort("start_ns")
    joined = order.join_asof(
        syncs,
        left_on="start_ns",
        right_on="_call_start",
        by=["rank", "_thread"],
        strategy="backward",
        check_sortedness=False,
    )
    return joined.sort("_row").drop("_row")


@per_trace
def launch_delay(trace: Trace) -> pl.DataFrame:
    """Delay from the start of the host's launch call to the start of the kernel, per rank and step.

    A delay of a few us means that the device was waiting for the host; a long one that the host is ahead and work
    is queued. All kernels of a CUDA graph count from the start of the graph's one launch.

    Parameters
    ----------
    trace : Trace
        A trace with kernels and runtime calls.

    Returns
    -------
    polars.DataFrame
        ``rank, step`` (null for kernels outside steps), ``kernels``, ``launched`` (kernels whose launch is in the
        capture), ``share_launched`` (of the kernels), ``calls`` (distinct launch calls), ``host_call_ns`` (sum of
        their durations), and of the delays ``median_ns, p95_ns, max_ns, min_ns`` (ns). What depends on launches is
        null where no kernel of the step has one. A negative delay means that the clocks of host and device disagree.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels or no runtime calls.
    """
    trace.table("kernels")
    trace.table("runtime")
    return launch_delay_of(labelled(trace, ["step"]))


def launch_delay_of(events: pl.DataFrame) -> pl.DataFrame:
    """The analysis of :func:`launch_delay` on a frame of device events.

    Parameters
    ----------
    events : polars.DataFrame
        ``rank, step, start_ns, source, launch_start_ns, launch_end_ns, launch_thread``.

    Returns
    -------
    polars.DataFrame
        As :func:`launch_delay` returns it.
    """
    delay = pl.col("start_ns") - pl.col("launch_start_ns")
    launched = pl.col("launch_start_ns").count()
    call = pl.struct("launch_thread", "launch_start_ns", "launch_end_ns")
    distinct = pl.col("launch_start_ns").is_not_null() & call.is_first_distinct()
    call_ns = (pl.col("launch_end_ns") - pl.col("launch_start_ns")).filter(distinct)
    return (
        events.filter(pl.col("source") == "kernel")
        .group_by("rank", "step")
        .agg(
            kernels=pl.len(),
            launched=launched,
            share_launched=launched / pl.len(),
            calls=pl.when(launched > 0).then(call_ns.len()),
            host_call_ns=pl.when(launched > 0).then(call_ns.sum()),
            median_ns=delay.median(),
            p95_ns=delay.quantile(0.95, interpolation="linear"),
            max_ns=delay.max(),
            min_ns=delay.min(),
        )
        .sort("rank", "step", nulls_last=True)
    )
