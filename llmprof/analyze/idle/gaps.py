"""Gaps of devices and streams with their causes: each gap is split at the call that launched the event that ends it.

Before this call began, the host was late. During the call and the usual launch delay, the launch was under way. After
that the event was in the queue and something held the device. A gap can have all three parts.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from llmprof.analyze.catalog import Analysis, Section, per_trace
from llmprof.analyze.idle.host import HOST_SPANS, call_kinds, doing, host_spans
from llmprof.analyze.intervals import gaps, gaps_between, last_before, length_within, of_groups
from llmprof.analyze.operator_times import refuse_samples
from llmprof.analyze.steps.steps import device_events_with_steps
from llmprof.arguments import NotNegative
from llmprof.trace import Trace

LONG_LAUNCH = 3
"""On an idle device, a delay of up to this multiple of the usual one counts as launch and not as waiting."""

LAUNCH_NS = 50_000
"""Longest usual delay: from a launching call to its event an idle device takes 5 to 15 us."""

DISPATCH_NS = 20_000
"""A device takes a few us from one event of a stream to the next. This explains waits up to this length (ns) only."""

HELD_SHARE = 0.5
"""A call of the host is named as holding the device if it runs for at least this share of the wait."""


@per_trace
def idle(trace: Trace, *, min_ns: NotNegative = 0) -> pl.DataFrame:
    """Idle time of each rank's device, in parts, each with its cause.

    The device is idle if none of its streams runs anything; for gaps of one stream see :func:`stream_gaps`. The time
    before a device's first event and after its last does not count. Each gap is split at the call that launched the
    event that ends it.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity. Causes need the host's runtime calls.
    min_ns : int
        Shortest gap to report (ns); a part of it may be shorter.

    Returns
    -------
    polars.DataFrame
        One row for each part of a gap, by rank, device and time; the parts of a gap add up to it:

        - ``rank, device``; ``gap``: number of the gap, the same for its parts; ``step``: step of the event that ends
          the gap; ``in_step``: whether that step had already begun on the device (else the gap lies between steps;
          null without a step);
        - ``start_ns, dur_ns``: the part (ns); ``gap_ns``: the whole gap (ns);
        - ``cause``: ``host_bound`` (the launching call had not begun: the host was late), ``sync`` (the same, but a
          synchronising call of the launching thread was waiting when the gap began; this part is as long as that call,
          by which the host could have been ahead, and the rest is ``host_bound``), ``launch`` (the launching call was
          running, or the usual delay between its start and that of the event), ``queued`` (the event was launched and
          something held it) or ``unknown`` (no launch in the capture);
        - ``doing, doing_kind, doing_share``: what the launching thread spent most of the part in, by the innermost
          call, operator, Python function or range at each moment; null where nothing of it was recorded;
        - ``held_by, held_kind``: in ``queued`` parts, what the event waited for: ``call`` (a call of the host that
          holds the device), ``graph`` (an earlier node of the same graph), ``event`` (its stream had to wait for
          another one), ``copy`` or ``stream`` (the device needs a few us after the copy or other event before it on its
          stream); null if nothing recorded explains the wait;
        - ``after_name, after_stream``: the event that ended when the gap began; ``next_event, next_name,
          next_stream``: the one that ends the gap; ``launch_start_ns``: start of its launch (ns);
        - ``sync_name``: the synchronising call, null for other causes.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.

    Examples
    --------
    >>> gaps = analyze.idle(trace)
    >>> idle_ns = gaps.group_by("cause").agg(pl.col("dur_ns").sum())
    """
    return _of_trace(trace).filter(pl.col("gap_ns") >= min_ns)


@per_trace
def _of_trace(trace: Trace) -> pl.DataFrame:
    refuse_samples(trace, "when the device was idle")
    waits = trace.tasks.filter(pl.col("kind") == "event_wait") if trace.has("tasks") else None
    return idle_of(device_events_with_steps(trace), host_spans(trace), waits=waits)


def idle_of(
    events: pl.DataFrame, spans: pl.DataFrame | None = None, *, waits: pl.DataFrame | None = None, min_ns: int = 0
) -> pl.DataFrame:
    """The analysis of :func:`idle` on a frame of device events.

    Parameters
    ----------
    events : polars.DataFrame
        ``event, rank, device, stream, step, start_ns, dur_ns, name, source, launch_start_ns, launch_end_ns,
        launch_thread``.
    spans : polars.DataFrame, optional
        Activity of the host: ``rank, thread, start_ns, dur_ns, name, kind`` (call, op, python or range).
    waits : polars.DataFrame, optional
        Waits of streams for events, if the device's queues were recorded (Ascend): ``rank, stream, start_ns, dur_ns``.
    min_ns : int
        Shortest gap to report (ns).

    Returns
    -------
    polars.DataFrame
        As :func:`idle` returns it.
    """
    spans = pl.DataFrame(schema=HOST_SPANS) if spans is None else spans.with_columns(pl.col("thread").fill_null(-1))
    rows = _gaps_with_launches(events, min_ns)
    calls = spans.filter(pl.col("kind") == "call")
    calls = calls.select("rank", "start_ns", "dur_ns", "name", _thread="thread").hstack(call_kinds(calls["name"]))
    rows, syncs = _with_sync(rows, calls)
    parts = _parts(rows, calls)
    explained = parts["_cause"] != CAUSES.index("unknown")
    done = doing(parts.filter(explained).select("rank", "start_ns", "dur_ns", thread="_thread"), spans)
    held = _held(parts, events, calls, waits)
    of_part = explained.cum_sum() - 1
    row = of_part.set(~explained, None)
    sync_row = parts["_sync"].set(parts["_cause"] != CAUSES.index("sync"), None)
    after, following = parts["_after"], parts["_next"]
    return parts.select(
        "rank", "device", "gap", "step", "in_step", "start_ns", "dur_ns", "gap_ns",
        pl.Series(CAUSES).gather(parts["_cause"]).alias("cause"),
        *(done[column].gather(row) for column in ("doing", "doing_kind", "doing_share")),
        *held,
        events["name"].gather(after).alias("after_name"),
        events["stream"].gather(after).alias("after_stream"),
        events["event"].gather(following).alias("next_event"),
        events["name"].gather(following).alias("next_name"),
        events["stream"].gather(following).alias("next_stream"),
        "launch_start_ns",
        syncs["name"].gather(sync_row).alias("sync_name"),
    )  # fmt: skip


CAUSES = ("unknown", "sync", "host_bound", "launch", "queued")
"""Causes of the parts of a gap, in the order in which the parts follow each other."""


def _gaps_with_launches(events: pl.DataFrame, min_ns: int) -> pl.DataFrame:
    """Gaps with the launch of the event that ends each; ``_next`` and ``_after`` are rows of ``events``."""
    rows, ends = gaps_between(events, ["rank", "device"])
    after = _ended_before(rows, ends, events)
    # an operator in place of device work has no launch
    launched = pl.when(pl.col("source") != "op")
    following = events.select(
        "step",
        launch_start_ns=launched.then("launch_start_ns"),
        _launch_end=launched.then("launch_end_ns"),
        _thread=launched.then("launch_thread").fill_null(-1),
    )[rows["next"]]
    rows = rows.hstack(following).with_row_index("gap").with_columns(after)
    begun = events.filter(pl.col("step").is_not_null()).group_by("rank", "step").agg(_begun=pl.col("start_ns").min())
    (begins,) = of_groups(rows, begun, ["rank", "step"])
    return rows.select(
        "gap", "rank", "device", "step", "start_ns", "launch_start_ns", "_launch_end", "_thread", "_after",
        in_step=begins <= pl.col("start_ns"), gap_ns="dur_ns", _end=pl.col("start_ns") + pl.col("dur_ns"), _next="next",
    ).filter(pl.col("gap_ns") >= min_ns)  # fmt: skip


def _ended_before(rows: pl.DataFrame, ends: pl.DataFrame, events: pl.DataFrame) -> pl.Series:
    """Row of the event that ended when each gap began."""
    if ends.height == rows.height:
        return ends["row"].alias("_after")
    # if several end at once, the one on the stream of the next event
    stream, event = events["stream"], events["event"]
    alike = (ends["gap"] == ends["gap"].shift(1)).fill_null(value=False)
    several = alike | alike.shift(-1, fill_value=False)
    some = ends.filter(several)
    own = stream.gather(some["row"]) == stream.gather(rows["next"].gather(some["gap"]))
    some = some.with_columns(event.gather(some["row"]).alias("event"), own.fill_null(value=False).alias("own"))
    some = some.sort("gap", ~pl.col("own"), "event").unique("gap", keep="first", maintain_order=True)
    return pl.concat([ends.filter(~several), some.select(ends.columns)]).sort("gap")["row"].alias("_after")


def _with_sync(rows: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add the last synchronising call of the launching thread before the gap, as a row number of the second frame."""
    # runtime calls contain driver calls: keep the outermost of nested calls, so that the last to begin is the last to
    # end
    syncs = calls.filter("synchronises").with_columns(_call_end=pl.col("start_ns") + pl.col("dur_ns"))
    syncs = syncs.sort("rank", "_thread", "start_ns", "_call_end", descending=[False, False, False, True])
    reach = pl.col("_call_end").cum_max().shift(1).over("rank", "_thread")
    syncs = syncs.filter(reach.is_null() | (pl.col("_call_end") > reach))
    row = last_before(rows, syncs, ["rank", "_thread"], at="start_ns")
    return rows.with_columns(
        row.alias("_sync"),
        syncs["start_ns"].gather(row).alias("_call_start"),
        syncs["_call_end"].gather(row).alias("_call_end"),
    ), syncs


def _parts(rows: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Gaps in parts: before the launching call, the launch itself, and after it; ``_cause`` is a number."""
    begin, start, end = pl.col("launch_start_ns"), pl.col("start_ns"), pl.col("_end")
    usual = (
        rows.filter((begin >= start) & (begin <= end))
        .group_by("rank")
        .agg(_usual=(end - begin).median().clip(0, LAUNCH_NS).cast(pl.Int64))
    )
    (delay,) = of_groups(rows, usual, ["rank"])
    delay = delay.fill_null(0)
    # a call that waits for its own work (cudaMemcpy) does not launch for its whole duration
    waits = calls.filter("synchronises").select("rank", "_thread", launch_start_ns="start_ns")
    wait_row = last_before(rows, waits, ["rank", "_thread"], at="launch_start_ns")
    waiting = (waits["launch_start_ns"].gather(wait_row) == rows["launch_start_ns"]).fill_null(value=False)
    late = begin.clip(start, end)
    at_work = pl.when(~waiting).then("_launch_end")
    until = pl.max_horizontal(begin + delay, at_work)
    until = pl.when((begin >= start) & (end - begin <= LONG_LAUNCH * delay)).then(end).otherwise(until).clip(late, end)
    waited = (pl.col("_call_end") >= start) & (pl.col("_call_end") <= begin)
    # without the call the host would have been ahead by the time that it waited
    ahead = pl.when(waited).then((start + pl.col("_call_end") - pl.col("_call_start")).clip(start, late))
    synced, known = ahead.fill_null(start), begin.is_not_null()
    bounds = rows.select(
        start.alias("begin"), synced.alias("synced"), late.fill_null(start).alias("late"),
        until.fill_null(start).alias("until"), end.alias("end"), known.alias("known"),
    )  # fmt: skip
    begins, sync_ends, lates, launched, ends, of_known = (column.to_numpy() for column in bounds)
    edges = (
        (begins, np.where(of_known, begins, ends)),  # the launch is unknown: the whole gap is one part
        (begins, sync_ends),
        (sync_ends, lates),
        (lates, launched),
        (launched, ends),
    )
    kept = [np.flatnonzero((last > first) & (of_known | (i == 0))) for i, (first, last) in enumerate(edges)]
    number = np.concatenate([row * len(CAUSES) + i for i, row in enumerate(kept)])
    order = np.argsort(number, kind="stable")  # by gap, then in the order of the parts
    first = np.concatenate([first[row] for row, (first, _) in zip(kept, edges, strict=True)])[order]
    last = np.concatenate([last[row] for row, (_, last) in zip(kept, edges, strict=True)])[order]
    gap, cause = np.divmod(number[order], len(CAUSES))
    of_gap = rows.drop("start_ns", "_launch_end", "_call_start", "_call_end", "_end")[gap]
    return of_gap.with_columns(_cause=cause.astype(np.uint8), start_ns=first, dur_ns=last - first)


def _held(
    parts: pl.DataFrame, events: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame | None = None
) -> list[pl.Series]:
    """``held_by, held_kind``: what queued events waited for, from the strongest evidence to the weakest."""
    queued = parts.filter(pl.col("_cause") == CAUSES.index("queued"))
    end = pl.col("start_ns") + pl.col("dur_ns")
    queued = queued.select(
        "rank", "start_ns", "dur_ns", "launch_start_ns", "_thread", "_after",
        events["stream"].gather(queued["_next"]).alias("stream"), _end=end,
    )  # fmt: skip
    call, in_call = _longest_call(queued, calls.filter("holds"))
    had_to_wait = _told_to_wait(queued, events, calls) if waits is None else _seen_to_wait(queued, waits)
    before = events.select("stream", "source", "name", "launch_start_ns", pl.col("launch_thread").fill_null(-1))
    before = before[queued["_after"]]
    same_launch = pl.col("launch_start_ns").eq(before["launch_start_ns"])
    same_launch &= pl.col("_thread").eq(before["launch_thread"])
    on_stream = pl.col("stream").eq(before["stream"])
    by_call = in_call >= HELD_SHARE * pl.col("dur_ns")
    behind = pl.when(before["source"] == "copy").then(pl.lit("copy")).otherwise(pl.lit("stream"))
    kind = (
        pl.when(by_call)
        .then(pl.lit("call"))
        .when(same_launch)
        .then(pl.lit("graph"))
        .when(had_to_wait)
        .then(pl.lit("event"))
        .when(on_stream & (pl.col("dur_ns") <= DISPATCH_NS))
        .then(behind)
    )
    by = pl.when(kind == "call").then(call).when(kind.is_not_null()).then(before["name"])
    held = queued.select(held_by=by, held_kind=kind)
    is_queued = parts["_cause"] == CAUSES.index("queued")
    row = (is_queued.cum_sum().cast(pl.Int64) - 1).set(~is_queued, None)
    return [held[column].gather(row) for column in held.columns]


def _longest_call(queued: pl.DataFrame, holding: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Name of the host call that holds the device for most of each part, and the length of this time (ns)."""
    # few calls hold the device, and they are long: the last to begin before the part, and the longest within it
    end = holding.select(pl.col("start_ns") + pl.col("dur_ns")).to_series()
    names, lengths = [], []
    for time in ("start_ns", "_end"):
        call = last_before(queued, holding.rename({"start_ns": time}), ["rank"], at=time)
        begin, until = holding["start_ns"].gather(call), end.gather(call)
        within = pl.min_horizontal(pl.col("_end"), until) - pl.max_horizontal(pl.col("start_ns"), begin)
        lengths.append(queued.select(pl.when(call.is_not_null()).then(within).alias("length")).to_series())
        names.append(holding["name"].gather(call))
    both = pl.DataFrame({"name": names[1], "before": names[0], "length": lengths[1], "length_before": lengths[0]})
    first = (pl.col("length_before") > 0) & (pl.col("length_before") >= pl.col("length"))
    longest = both.select(
        pl.when(first).then("before").otherwise("name").alias("call"),
        pl.when(first).then("length_before").when(pl.col("length") > 0).then("length").alias("in_call"),
    )
    return longest["call"], longest["in_call"]


def _told_to_wait(queued: pl.DataFrame, events: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Whether the stream of each part got an event wait since its last launch."""
    waits = calls.filter("waits").select("rank", "_thread", launch_start_ns="start_ns")
    at = "launch_start_ns"
    nothing = pl.repeat(value=False, n=queued.height, eager=True)
    last_wait = waits[at].gather(last_before(queued, waits, ["rank", "_thread"], at=at))
    after_wait = queued.filter(last_wait.is_not_null())
    if not after_wait.height:
        return nothing
    # the events of one launch follow each other on a stream: their launch counts once
    lane = ["rank", "stream"]
    launches = events.select(*lane, at).filter(
        pl.col(at).is_not_null() & pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift(1)) for c in (*lane, at))
    )
    earlier = after_wait.select(*lane, pl.col(at) - 1)
    last = launches[at].gather(last_before(earlier, launches, lane, at=at))
    since = (last_wait.drop_nulls() >= last).fill_null(value=False)
    return nothing.scatter(last_wait.is_not_null().arg_true().filter(since), values=True)


def _seen_to_wait(queued: pl.DataFrame, waits: pl.DataFrame) -> pl.Series:
    """The same from recorded device queues: the stream was in a wait for most of the part."""
    recorded = waits.select("rank", "stream", "start_ns", _end="start_ns", _until=pl.col("start_ns") + pl.col("dur_ns"))
    row = last_before(queued, recorded, ["rank", "stream"], at="_end")
    begin, until = recorded["start_ns"].gather(row), recorded["_until"].gather(row)
    shared = pl.min_horizontal("_end", until) - pl.max_horizontal("start_ns", begin)
    waited = pl.lit(begin).is_not_null() & (shared >= HELD_SHARE * pl.col("dur_ns"))
    return queued.select(waited.fill_null(value=False)).to_series()


ANALYSIS = Analysis(
    function=idle,
    question="When is the device idle, and why?",
    help="parts of the gaps in which the device does nothing, and their causes",
    view="idle",
    columns=("rank", "step", "start_ns", "dur_ns", "gap_ns", "cause", "doing", "held_by", "next_name"),
    largest_first="dur_ns",
    reported=True,
    section=Section(
        "idle",
        "When is the device idle, and why?",
        "A gap counts only when no stream of the device runs anything; a gap on one stream is not an idle device.",
    ),
    figures=("llmprof.report.figures:IDLE",),
)


@per_trace
def stream_gaps(trace: Trace, *, min_ns: NotNegative = 0) -> pl.DataFrame:
    """Gaps of each stream, and the time in each gap in which other streams of the device were busy.

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
        ``share_busy_elsewhere`` (of ``dur_ns``). One row for each gap, by stream and time. Events of an unknown stream
        (PyTorch shows kernels of annotated CUDA graphs on lanes that are not streams) have no gaps, but they keep the
        device busy.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.

    Examples
    --------
    >>> analyze.stream_gaps(trace).columns[:4]
    ['rank', 'device', 'stream', 'step']
    """
    return stream_gaps_of(device_events_with_steps(trace), min_ns=min_ns)


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
    on_streams = events.filter(pl.col("stream").is_not_null())
    rows = gaps(on_streams, ["rank", "device", "stream"], **following).filter(pl.col("dur_ns") >= min_ns)
    rows = length_within(rows, events, ["rank", "device"], name="busy_elsewhere_ns")
    return rows.select(
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


STREAMS_ANALYSIS = Analysis(
    function=stream_gaps,
    question="When does one stream wait while others work?",
    help="gaps of single streams, and how much others worked meanwhile",
    view="stream-gaps",
    columns=("rank", "stream", "step", "start_ns", "dur_ns", "share_busy_elsewhere", "next_name"),
    largest_first="dur_ns",
)
