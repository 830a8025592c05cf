"""Gaps of devices and streams with their causes: each is split at the call that launched what ends it.

Before that call began the host was late; while it ran and for as long as a launch usually takes, the launch itself was
under way; from then on the event was queued and something held the device. One gap can have all three.
"""

from __future__ import annotations

import polars as pl

from llmprof.analyze.catalog import Analysis, Section, per_trace
from llmprof.analyze.idle.host import HOST_SPANS, doing, holds_the_device, host_spans, is_synchronising, waits_for_event
from llmprof.analyze.intervals import gaps, length_within
from llmprof.analyze.layers.attribution import labelled
from llmprof.analyze.operator_times import refuse_samples
from llmprof.arguments import NotNegative
from llmprof.trace import Trace

LONG_LAUNCH = 3
"""Where the device was idle already, a launch of up to so many times the usual delay is a launch and no wait."""

LAUNCH_NS = 50_000
"""Longest usual delay: from a launching call to its event an idle device takes 5 to 15 us."""

DISPATCH_NS = 20_000
"""A device takes a few us from one event of a stream to the next. That alone explains no longer wait than this."""

HELD_SHARE = 0.5
"""A call of the host is named as what held the device if it runs for at least this share of the wait."""


@per_trace
def idle(trace: Trace, *, min_ns: NotNegative = 0) -> pl.DataFrame:
    """Time in which no stream of a rank's device runs anything, in parts, each with its cause.

    A gap on one stream is not an idle device: see :func:`stream_gaps`. The time before a device's first event and
    after its last is no gap. A gap is split at the call that launched the event which ends it.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity. Causes need the host's runtime calls.
    min_ns : int
        Shortest gap to report (ns); a part of it may be shorter.

    Returns
    -------
    polars.DataFrame
        One row a part of a gap, by rank, device and time; the parts of a gap add up to it:

        - ``rank, device``; ``gap``: number of the gap, the same for its parts; ``step``: step of the event that ends
          the gap; ``in_step``: whether that step had already begun on the device (else the gap lies between steps;
          null without a step);
        - ``start_ns, dur_ns``: the part (ns); ``gap_ns``: the whole gap (ns);
        - ``cause``: ``host_bound`` (the launching call had not begun: the host was late), ``sync`` (so it was, and a
          synchronising call of the launching thread was waiting when the gap began: as long as the call took, by which
          the host could have been ahead; what is longer is ``host_bound``), ``launch`` (the launching call
          was running, or the usual delay from its start to that of the event), ``queued`` (the event was launched
          and something held it) or ``unknown`` (no launch in the capture);
        - ``doing, doing_kind, doing_share``: what the launching thread spent most of the part in, by the innermost
          call, operator, Python function or range at each moment; null where nothing of it was recorded;
        - ``held_by, held_kind``: of ``queued`` parts what the event waited for: ``call`` (a call of the host that
          holds the device ran meanwhile), ``graph`` (an earlier node of the same graph), ``event`` (its stream had to
          wait for another one), ``copy`` or ``stream`` (the device went from the copy or other event before it on its
          stream to this one, which takes a few us), null where nothing that was recorded explains the wait;
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
    return idle_of(labelled(trace, ["step"]), host_spans(trace), waits=waits)


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
        What the host did: ``rank, thread, start_ns, dur_ns, name, kind`` (call, op, python or range).
    waits : polars.DataFrame, optional
        Waits of streams for events, where the device's queues were recorded (Ascend): ``rank, stream, start_ns,
        dur_ns``.
    min_ns : int
        Shortest gap to report (ns).

    Returns
    -------
    polars.DataFrame
        As :func:`idle` returns it.
    """
    spans = pl.DataFrame(schema=HOST_SPANS) if spans is None else spans.with_columns(pl.col("thread").fill_null(-1))
    # an operator that stands in for device work was launched by nobody
    launched = pl.when(pl.col("source") != "op")
    rows = gaps(
        events,
        ["rank", "device"],
        step=pl.col("step"),
        next_event=pl.col("event"),
        next_name=pl.col("name"),
        next_stream=pl.col("stream"),
        launch_start_ns=launched.then("launch_start_ns"),
        _launch_end=launched.then("launch_end_ns"),
        _thread=launched.then("launch_thread").fill_null(-1),
    ).with_row_index("gap")
    begun = events.group_by("rank", "step").agg(_begun=pl.col("start_ns").min())
    rows = rows.join(begun, on=["rank", "step"], how="left", maintain_order="left")  # null steps match nothing
    rows = rows.with_columns(
        gap_ns="dur_ns", in_step=pl.col("_begun") <= pl.col("start_ns"), _end=pl.col("start_ns") + pl.col("dur_ns")
    )
    rows = _with_previous(rows.filter(pl.col("dur_ns") >= min_ns), events)
    calls = spans.filter(pl.col("kind") == "call")
    parts = _parts(_with_sync(rows, calls), calls)
    parts = _held(parts, events, calls, waits)
    done = doing(parts.select("rank", "start_ns", "dur_ns", thread="_thread"), spans)
    nothing = pl.col("cause") == "unknown"
    return parts.with_columns(
        pl.when(~nothing).then(done[c]).alias(c) for c in ("doing", "doing_kind", "doing_share")
    ).select(
        "rank", "device", "gap", "step", "in_step", "start_ns", "dur_ns", "gap_ns", "cause", "doing", "doing_kind",
        "doing_share", "held_by", "held_kind", "after_name", "after_stream", "next_event", "next_name", "next_stream",
        "launch_start_ns", "sync_name",
    )  # fmt: skip


def _with_previous(found: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Add the event of the device that ended when the gap began."""
    ended = events.filter(pl.col("dur_ns") > 0).select(
        "rank",
        "device",
        (pl.col("start_ns") + pl.col("dur_ns")).alias("start_ns"),
        _after="event",
        after_name="name",
        after_stream="stream",
        _after_source="source",
        _after_launch="launch_start_ns",
        _after_thread=pl.col("launch_thread").fill_null(-1),
    )
    both = found.join(ended, on=["rank", "device", "start_ns"], how="left", nulls_equal=True, maintain_order="left")
    if both.height == found.height:
        return both
    # of several that end at once, the one on the stream of the event that comes next
    own = (pl.col("after_stream") == pl.col("next_stream")).fill_null(value=False)
    several = pl.col("gap").is_duplicated()
    chosen = both.filter(several).sort("gap", ~own, "_after").unique("gap", keep="first", maintain_order=True)
    return pl.concat([both.filter(~several), chosen]).sort("gap")


def _with_sync(found: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add the last synchronising call of the launching thread that began before the gap did."""
    syncs = calls.filter(is_synchronising(pl.col("name"))).select(
        "rank",
        pl.col("thread").alias("_thread"),
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


def _parts(found: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Gaps in parts: before the launching call, the launch itself, and after it."""
    begin, start, end = pl.col("launch_start_ns"), pl.col("start_ns"), pl.col("_end")
    usual = (
        found.filter((begin >= start) & (begin <= end))
        .group_by("rank")
        .agg(_usual=(end - begin).median().clip(0, LAUNCH_NS).cast(pl.Int64))
    )
    found = found.join(usual, on="rank", how="left", maintain_order="left").with_columns(pl.col("_usual").fill_null(0))
    # a call that waits for what it launches (cudaMemcpy) is not at work on the launch for as long as it runs
    waits = calls.filter(is_synchronising(pl.col("name"))).select(
        "rank", _thread="thread", launch_start_ns="start_ns", _waits=pl.lit(value=True)
    )
    found = found.join(waits.unique(), on=["rank", "_thread", "launch_start_ns"], how="left", maintain_order="left")
    late = begin.clip(start, end)
    at_work = pl.when(pl.col("_waits").is_null()).then("_launch_end")
    until = pl.max_horizontal(begin + pl.col("_usual"), at_work)
    until = (
        pl.when((begin >= start) & (end - begin <= LONG_LAUNCH * pl.col("_usual")))
        .then(end)
        .otherwise(until)
        .clip(late, end)
    )
    waited = (pl.col("_call_end") >= start) & (pl.col("_call_end") <= begin)
    # without the call the host would have been ahead by as long as it waited, and no longer
    ahead = pl.when(waited).then((start + pl.col("_call_end") - pl.col("_call_start")).clip(start, late))
    synced = ahead.fill_null(start)
    known = begin.is_not_null()
    bounds = {
        "unknown": (start, end, ~known),
        "sync": (start, synced, known),
        "host_bound": (synced, late, known),
        "launch": (late, until, known),
        "queued": (until, end, known),
    }
    cut = [
        found.select(
            pl.exclude("start_ns", "dur_ns"),
            _order=pl.col("gap").cast(pl.Int64) * len(bounds) + n,
            cause=pl.lit(cause),
            start_ns=first,
            dur_ns=last - first,
            _wanted=wanted,
        ).filter(pl.col("_wanted") & (pl.col("dur_ns") > 0))
        for n, (cause, (first, last, wanted)) in enumerate(bounds.items())
    ]
    parts = pl.concat(cut).sort("_order")
    return parts.with_columns(pl.when(pl.col("cause") == "sync").then("sync_name").alias("sync_name"))


def _held(
    parts: pl.DataFrame, events: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Add what a queued event waited for, from the strongest evidence to the weakest."""
    parts = parts.with_row_index("_part")
    queued = parts.filter(pl.col("cause") == "queued")
    holding = calls.filter(holds_the_device(pl.col("name"))).select(
        "rank", _from=pl.col("start_ns"), _to=pl.col("start_ns") + pl.col("dur_ns"), _call="name"
    )
    parts = parts.join(_longest_call(queued, holding), on="_part", how="left", maintain_order="left")
    told = _told_to_wait(queued, events, calls) if waits is None else _seen_to_wait(queued, waits)
    parts = parts.join(told, on="_part", how="left", maintain_order="left")
    same_launch = (pl.col("_after_launch") == pl.col("launch_start_ns")) & (
        pl.col("_after_thread") == pl.col("_thread")
    )
    same_stream = pl.col("after_stream") == pl.col("next_stream")
    by_call = pl.col("_in_call") >= HELD_SHARE * pl.col("dur_ns")
    behind = pl.when(pl.col("_after_source") == "copy").then(pl.lit("copy")).otherwise(pl.lit("stream"))
    kind = (
        pl.when(pl.col("cause") != "queued")
        .then(None)
        .when(by_call)
        .then(pl.lit("call"))
        .when(same_launch)
        .then(pl.lit("graph"))
        .when(pl.col("_event").is_not_null())
        .then(pl.lit("event"))
        .when(same_stream & (pl.col("dur_ns") <= DISPATCH_NS))
        .then(behind)
    )
    by = pl.when(kind == "call").then("_call").when(kind.is_not_null()).then("after_name")
    return parts.with_columns(held_by=by, held_kind=kind)


def _longest_call(queued: pl.DataFrame, holding: pl.DataFrame) -> pl.DataFrame:
    """Call of the host that holds the device for most of each part: ``_part, _call, _in_call`` (ns)."""
    rows = queued.select("_part", "rank", "start_ns", "dur_ns", _end=pl.col("start_ns") + pl.col("dur_ns"))
    # few calls hold the device, and they are long: the last to begin before the part, and the longest within it
    before = rows.sort("start_ns").join_asof(
        holding.sort("_from"), left_on="start_ns", right_on="_from", by="rank", check_sortedness=False
    )
    within = rows.sort("_end").join_asof(
        holding.sort("_from"), left_on="_end", right_on="_from", by="rank", check_sortedness=False
    )
    both = pl.concat([before, within], how="diagonal_relaxed")
    inside = pl.min_horizontal("_end", "_to") - pl.max_horizontal("start_ns", "_from")
    return (
        both.with_columns(_in_call=inside)
        .filter(pl.col("_from").is_not_null() & (pl.col("_in_call") > 0))
        .sort("_part", "_in_call", descending=[False, True])
        .unique("_part", keep="first", maintain_order=True)
        .select("_part", "_call", "_in_call")
    )


def _told_to_wait(queued: pl.DataFrame, events: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Parts whose stream was told to wait for an event since its last launch: ``_part, _event`` (when)."""
    waits = calls.filter(waits_for_event(pl.col("name"))).select("rank", _thread="thread", _event="start_ns")
    rows = queued.select("_part", "rank", "_thread", "launch_start_ns", stream="next_stream")
    none = pl.DataFrame(schema={"_part": pl.UInt32, "_event": pl.Int64})
    if not waits.height or not rows.height:
        return none
    earlier = events.filter(pl.col("launch_start_ns").is_not_null()).select(
        "rank", "stream", launch_start_ns="launch_start_ns", _last="launch_start_ns"
    )
    rows = rows.sort("launch_start_ns").join_asof(
        earlier.sort("launch_start_ns"),
        on="launch_start_ns",
        by=["rank", "stream"],
        allow_exact_matches=False,
        check_sortedness=False,
    )
    rows = rows.join_asof(
        waits.sort("_event"),
        left_on="launch_start_ns",
        right_on="_event",
        by=["rank", "_thread"],
        check_sortedness=False,
    )
    return rows.filter(pl.col("_event") >= pl.col("_last")).select("_part", "_event")


def _seen_to_wait(queued: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """The same where the queues of the device were recorded: the stream stood in a wait for most of the part."""
    order = queued.select("_part", "rank", "start_ns", "dur_ns", stream="next_stream")
    order = order.with_columns(_to=pl.col("start_ns") + pl.col("dur_ns"))
    recorded = waits.select(
        "rank", "stream", _event="start_ns", _at="start_ns", _until=pl.col("start_ns") + pl.col("dur_ns")
    )
    rows = order.sort("_to").join_asof(
        recorded.sort("_at"),
        left_on="_to",
        right_on="_at",
        by=["rank", "stream"],
        strategy="backward",
        check_sortedness=False,
    )
    shared = pl.min_horizontal("_to", "_until") - pl.max_horizontal("start_ns", "_event")
    return rows.filter(shared >= HELD_SHARE * pl.col("dur_ns")).select("_part", "_event")


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
        ``share_busy_elsewhere`` (of ``dur_ns``). One row a gap, by stream and time. Events whose stream is not known
        (PyTorch shows kernels of annotated CUDA graphs on lanes that are no streams) make no gaps of their own, but
        they keep the device busy.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.

    Examples
    --------
    >>> analyze.stream_gaps(trace).columns[:4]
    ['rank', 'device', 'stream', 'step']
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
