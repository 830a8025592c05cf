"""Gaps of devices and streams with their causes: each gap is split at the call that launched the
event that ends it.

Before this call began, the host was late. During the call and the usual launch delay, the launch
was under way. After that the event was in the queue and something held the device. A gap can have
all three parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.groups import sums_of_groups
from llmprof.analyze.idle.host import (
    HOST_SPANS,
    call_kinds,
    host_spans,
    innermost_within,
    longest_spans,
)
from llmprof.analyze.operator_times import refuse_samples
from llmprof.errors import Columns, NotNegative
from llmprof.label.groups import first_of_runs, group_values, last_before, row_numbers
from llmprof.label.intervals import gaps, gaps_between, length_within
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END, compact

LONG_LAUNCH = 3
"""On an idle device, a delay of up to this multiple of the usual one counts as launch and not as
waiting.
"""

LAUNCH_NS = 50_000
"""Longest usual delay: from a launching call to its event an idle device takes 5 to 15 us."""

DISPATCH_NS = 20_000
"""A device takes a few us from one event of a stream to the next.

This explains waits up to this length (ns) only.
"""

HELD_SHARE = 0.5
"""A call of the host is named as holding the device if it runs for at least this share of the
wait.
"""


@Analysis(
    question="When is the device idle, and why?",
    help="parts of the gaps in which the device does nothing, and their causes",
    view="idle",
    recorded="device activity or operators",
)
def idle(trace: Trace, *, by: Columns = (), min_ns: NotNegative = 0) -> pl.DataFrame:
    """Idle time of each rank's device, in parts, each with its cause, or sums of these.

    The device is idle between its first and last event while none of its streams runs anything.
    Each gap is split at the call that launched the event that ends it.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity. Causes need the host's runtime calls.
    by : str or sequence of str
        Columns of the parts to sum them by, such as ``"cause"`` or ``("rank", "step")``.
    min_ns : int
        Shortest gap to report (ns); a part of it may be shorter.

    Returns
    -------
    polars.DataFrame
        One row for each part of a gap, by rank, device and time; the parts of a gap add up to it
        (times in ns):

        - ``rank, device``; ``gap``: its number; ``step`` of the event that ends the gap,
          ``in_step``: whether that step had already begun on the device (null without a step);
        - ``start_ns, dur_ns`` of the part, ``gap_ns`` of the whole gap;
        - ``cause``: ``host_bound`` (the launching call had not begun: the host was late), ``sync``
          (the same, but a synchronising call of the launching thread was waiting when the gap
          began; as long as that call), ``launch`` (the launching call was running, or the usual
          delay between its start and that of the event), ``queued`` (the event was launched and
          something held it) or ``unknown`` (no launch in the capture);
        - ``host_name, host_kind, host_share``: what the launching thread
          spent most of the part in, by the innermost call, operator, Python function or range at
          each moment; null where nothing of it was recorded;
        - ``waited_name, waited_kind``: in ``queued`` parts, what the event waited for: ``call`` (of
          the host, that holds the device), ``graph`` (an earlier node), ``event`` (of another
          stream), ``copy`` or ``stream`` (the few us after the copy or other event before it on its
          stream), ``before`` (the first event of its stream: work from before the recording);
          null if nothing recorded explains the wait;
        - ``after_name, after_stream``: the event that ended when the gap began; ``next_event,
          next_name, next_stream``: the one that ends the gap; ``launch_start_ns``: start of its
          launch;
        - ``call``: the synchronising call, null for other causes.

        With ``by``: its columns, ``count`` (parts), ``total_ns, share`` (of all that is idle),
        ``mean_ns, median_ns, min_ns, max_ns``.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> frame = analyze.idle(trace)
    """
    parts = idle_in_pieces(trace)[0].drop("thread")
    parts = parts.filter(pl.col("gap_ns") >= min_ns) if min_ns else parts
    return sums_of_groups(parts, by) if by else parts


@per_trace
def gap_parts(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Parts of the gaps (``_cause`` is a number, ``_next`` and ``_after`` are rows of the events),
    calls of the host with their effect on the device, and those of them that synchronise.
    """
    refuse_samples(trace, "when the device was idle")
    return _gap_parts(trace.events, host_spans(trace))


@per_trace
def idle_in_pieces(
    trace: Trace, rows: pl.Series | None = None
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """:func:`idle` with the ``thread`` of the launching call, its pieces by the span that this
    thread was in (``part, span, start_ns, dur_ns``; row numbers), and the spans; of all or some
    rows of :func:`gap_parts`.
    """
    parts, *calls = gap_parts(trace)
    parts = parts if rows is None else parts[rows]
    return _in_pieces(parts, trace.events, host_spans(trace), calls, _waits(trace))


def held_parts(trace: Trace, among: pl.Expr) -> pl.DataFrame:
    """Those of some :func:`gap_parts` whose event is in the queue, and what it waited for."""
    parts, calls, _ = gap_parts(trace)
    queued = parts.filter(among, pl.col("_cause") == CAUSES.index("queued"))
    return queued.hstack(_held(queued, trace.events, calls, _waits(trace)))


def _waits(trace: Trace) -> pl.DataFrame | None:
    """Recorded waits of streams for events; None where a device's queue was not recorded."""
    return trace.tasks.filter(kind="event_wait") if trace.has("tasks") else None


def idle_of(
    events: pl.DataFrame, spans: pl.DataFrame | None = None, *, waits: pl.DataFrame | None = None
) -> pl.DataFrame:
    """The analysis of :func:`idle` on a frame of device events."""
    spans = (
        pl.DataFrame(schema=HOST_SPANS)
        if spans is None
        else spans.with_columns(pl.col("thread").fill_null(-1))
    )
    parts, *calls = _gap_parts(events, spans)
    return _in_pieces(parts, events, spans, calls, waits)[0]


def _gap_parts(
    events: pl.DataFrame, spans: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Those of :func:`gap_parts`."""
    calls = spans.filter(kind="call")
    calls = calls.select("rank", "start_ns", "dur_ns", "name", _thread="thread").hstack(
        call_kinds(calls["name"])
    )
    rows, syncs = _with_sync(_gaps_with_launches(events), calls)
    return _parts(rows, calls), calls, syncs


def _in_pieces(
    parts: pl.DataFrame,
    events: pl.DataFrame,
    spans: pl.DataFrame,
    host: Sequence[pl.DataFrame],
    waits: pl.DataFrame | None,
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Parts of gaps with their causes, the parts in pieces, and the spans of these."""
    calls, syncs = host
    cause = parts["_cause"].to_numpy()
    of_known = np.flatnonzero(cause != CAUSES.index("unknown"))
    windows = parts[["rank", "start_ns", "dur_ns", "_thread"]][of_known]
    windows = windows.rename({"_thread": "thread"})
    pieces, around = innermost_within(windows, spans, ["rank", "thread"])
    around = around.select(pl.col("name", "kind").cast(pl.Categorical), "parent")
    done = longest_spans(windows, pieces, around)
    done = done[["host_name", "host_kind", "host_share"]][_numbers(of_known, parts.height)]
    queued = np.flatnonzero(cause == CAUSES.index("queued"))
    held = _held(parts[queued], events, calls, waits)[_numbers(queued, parts.height)]
    synced = pl.Series(cause == CAUSES.index("sync"))
    before = events[["name", "stream"]][parts["_after"]]
    following = events[["event", "name", "stream"]][parts["_next"]]
    of_part = pl.Series("part", of_known.astype(np.uint32))[pieces["window"]]
    whole = parts[["rank", "device", "gap", "step", "in_step", "start_ns", "dur_ns", "gap_ns"]]
    whole = whole.hstack(
        [
            causes_of(parts),
            *done.get_columns(),
            *held.get_columns(),
            before["name"].alias("after_name"),
            before["stream"].alias("after_stream"),
            following["event"].alias("next_event"),
            following["name"].alias("next_name"),
            following["stream"].alias("next_stream"),
            parts["launch_start_ns"],
            parts["_thread"].alias("thread"),
            syncs["name"][parts["_sync"].set(~synced, None)].alias("call"),
        ]
    )
    return (
        compact(whole),
        pieces.drop("window").insert_column(0, of_part),
        around,
    )


def _numbers(rows: np.ndarray, height: int) -> pl.Series:
    """For each row of a frame its number among some of them; null for the others."""
    numbers = np.full(height, -1)
    numbers[rows] = np.arange(len(rows))
    return row_numbers(numbers)


CAUSES = ("unknown", "sync", "host_bound", "launch", "queued")


def causes_of(parts: pl.DataFrame) -> pl.Series:
    """The ``cause`` of each of some :func:`gap_parts`, in words."""
    return pl.Series("cause", CAUSES)[parts["_cause"]]


def _gaps_with_launches(events: pl.DataFrame) -> pl.DataFrame:
    """Gaps with the launch of the event that ends each; ``_next`` and ``_after`` are rows of
    ``events``.
    """
    rows, ends = gaps_between(events, ["rank", "device"])
    after = _ended_before(rows, ends, events)
    following = events[["step", "launch_start_ns", "launch_end_ns", "launch_thread", "source"]][
        rows["next"]
    ]
    launched = pl.when(
        pl.col("source") != "op"
    )  # an operator in place of device work has no launch
    following = following.select(
        "step",
        launch_start_ns=launched.then("launch_start_ns"),
        _launch_end=launched.then("launch_end_ns"),
        _thread=launched.then("launch_thread").fill_null(-1),
    )
    rows = rows.hstack(following).with_row_index("gap").hstack([after])
    runs = first_of_runs(events, ["rank", "step"])
    first = (
        np.minimum.reduceat(events["start_ns"].to_numpy(), runs)
        if len(runs)
        else np.empty(0, dtype=np.int64)
    )
    steps = events[["rank", "step"]][runs].hstack([pl.Series("begun", first)]).drop_nulls("step")
    (begins,) = group_values(
        rows, steps.group_by("rank", "step").agg(pl.min("begun")), ["rank", "step"]
    )
    return rows.select(
        "gap",
        "rank",
        "device",
        "step",
        "start_ns",
        "launch_start_ns",
        "_launch_end",
        "_thread",
        "_after",
        in_step=begins <= pl.col("start_ns"),
        gap_ns="dur_ns",
        _end=END,
        _next="next",
    )


def _ended_before(rows: pl.DataFrame, ends: pl.DataFrame, events: pl.DataFrame) -> pl.Series:
    """Row of the event that ended when each gap began."""
    if ends.height == rows.height:
        return ends["row"].alias("_after")
    # if several end at once, the one on the stream of the next event
    gap, row = ends["gap"].to_numpy(), ends["row"]
    own = (
        (events["stream"][row] == events["stream"][rows["next"]][ends["gap"]])
        .fill_null(False)
        .to_numpy()
    )
    order = np.lexsort((events["event"][row].to_numpy(), ~own, gap))
    first: pl.Series = row[order[first_of_runs(ends[["gap"]][order], ["gap"])]]
    return first.alias("_after")


def _with_sync(rows: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add the last synchronising call of the launching thread before the gap, as a row number of
    the second frame.
    """
    # runtime calls contain driver calls: keep the outermost of nested calls, so that the last to
    # begin is the last to end
    syncs = calls.filter("synchronises").with_columns(_call_end=END)
    syncs = syncs.sort(
        "rank", "_thread", "start_ns", "_call_end", descending=[False, False, False, True]
    )
    reach = pl.col("_call_end").cum_max().shift(1).over("rank", "_thread")
    syncs = syncs.filter(reach.is_null() | (pl.col("_call_end") > reach))
    at = last_before(rows, syncs, ["rank", "_thread"], at="start_ns")
    call = syncs[["start_ns", "_call_end"]][at]
    return (
        rows.hstack([at.alias("_sync"), call["start_ns"].alias("_call_start"), call["_call_end"]]),
        syncs,
    )


def _parts(rows: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Gaps in parts: before the launching call, the launch itself, and after it; ``_cause`` is a
    number.
    """
    begin, known = _filled(rows["launch_start_ns"])
    start, end = rows["start_ns"].to_numpy(), rows["_end"].to_numpy()
    launches = known & (begin >= start)
    seen = np.flatnonzero(launches & (begin <= end))
    usual = (
        rows[["rank"]][seen]
        .hstack([pl.Series("usual", (end - begin)[seen])])
        .group_by("rank")
        .agg(pl.median("usual").clip(0, LAUNCH_NS).cast(pl.Int64))
    )
    delay, _ = _filled(group_values(rows, usual, ["rank"])[0])
    # a call that waits for its own work (cudaMemcpy) does not launch for its whole duration
    waits = calls.filter("synchronises").select("rank", "_thread", launch_start_ns="start_ns")
    at = last_before(rows, waits, ["rank", "_thread"], at="launch_start_ns")
    waited_since, waits_at_all = _filled(waits["launch_start_ns"][at])
    launch_end, ended = _filled(rows["_launch_end"])
    at_work = ended & ~(waits_at_all & known & (waited_since == begin))
    late = np.where(known, np.clip(begin, start, end), start)
    until = np.where(at_work, np.maximum(begin + delay, launch_end), begin + delay)
    until = np.where(launches & (end - begin <= LONG_LAUNCH * delay), end, until)
    until = np.where(known, np.clip(until, late, end), start)
    # without the call the host would have been ahead by the time that it waited
    (call_start, _), (call_end, called) = _filled(rows["_call_start"]), _filled(rows["_call_end"])
    waited = known & called & (call_end >= start) & (call_end <= begin)
    synced = np.where(waited, np.clip(start + call_end - call_start, start, late), start)
    edges = (
        (start, np.where(known, start, end)),  # the launch is unknown: the whole gap is one part
        (start, synced),
        (synced, late),
        (late, until),
        (until, end),
    )
    kept = [
        np.flatnonzero((last > first) & (known | (i == 0))) for i, (first, last) in enumerate(edges)
    ]
    number = np.concatenate([row * len(CAUSES) + i for i, row in enumerate(kept)])
    order = np.argsort(number, kind="stable")  # by gap, then in the order of the parts
    first = np.concatenate([first[row] for row, (first, _) in zip(kept, edges, strict=True)])[order]
    last = np.concatenate([last[row] for row, (_, last) in zip(kept, edges, strict=True)])[order]
    gap, cause = np.divmod(number[order], len(CAUSES))
    of_gap = rows.drop("start_ns", "_launch_end", "_end", "_call_start", "_call_end")[
        gap.astype(np.uint32)
    ]
    columns = {"_cause": cause.astype(np.uint8), "start_ns": first, "dur_ns": last - first}
    return of_gap.hstack([pl.Series(name, values) for name, values in columns.items()])


def _filled(column: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """Values with 0 in place of null, and which of them are known."""
    if not column.null_count():
        return column.to_numpy(), np.ones(column.len(), dtype=np.bool_)
    return column.fill_null(0).to_numpy(), column.is_not_null().to_numpy()


_HOLDS = ("call", "graph", "event", "copy", "stream", "before")
"""What holds a queued event, from the strongest evidence to the weakest."""


def _held(
    queued: pl.DataFrame,
    events: pl.DataFrame,
    calls: pl.DataFrame,
    waits: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """``waited_name, waited_kind``: what queued events waited for."""
    start, length = queued["start_ns"], queued["dur_ns"]
    queued = queued[["rank", "start_ns", "dur_ns", "launch_start_ns", "_thread"]].hstack(
        [
            events["stream"][queued["_next"]].alias("stream"),
            (start + length).alias("_end"),
            queued["_after"],
            queued["_next"],
        ]
    )
    holding = calls.filter("holds")
    call, in_call = _longest_call(queued, holding)
    # a blocking copy whose own work came later waited for the event, not the other way round
    key = ["rank", "launch_start_ns", "launch_end_ns"]
    begun, end = pl.col("start_ns"), END
    launched = holding.select("rank", launch_start_ns=begun, launch_end_ns=end)
    launched = launched[call]
    own = events.join(launched.unique(), on=key, how="semi").group_by(key)
    (own_start,) = group_values(launched, own.agg(own=pl.max("start_ns")), key)
    later = (own_start > queued["_end"]).fill_null(False)
    waits_itself = (later & holding["synchronises"][call].fill_null(False)).to_numpy()
    had_to_wait = (
        _told_to_wait(queued, events, calls) if waits is None else _seen_to_wait(queued, waits)
    )
    before = events[["stream", "source", "name", "launch_start_ns", "launch_thread"]][
        queued["_after"]
    ]
    begin, known = _filled(queued["launch_start_ns"])
    begun_before, known_before = _filled(before["launch_start_ns"])
    thread_before = before["launch_thread"].fill_null(-1).to_numpy()
    same_launch = (
        known
        & known_before
        & (begin == begun_before)
        & (queued["_thread"].to_numpy() == thread_before)
    )
    (stream, on_stream), (stream_before, on_stream_before) = (
        _filled(queued["stream"]),
        _filled(before["stream"]),
    )
    same_stream = on_stream & on_stream_before & (stream == stream_before)
    lengths = length.to_numpy()
    behind = same_stream & (lengths <= DISPATCH_NS)
    copies = (before["source"] == "copy").to_numpy()
    evidence = (
        (in_call >= np.maximum(HELD_SHARE * lengths, 1)) & ~waits_itself,
        same_launch,
        had_to_wait,
        behind & copies,
        behind,
        (lengths > DISPATCH_NS) & _firsts_of_streams(events)[queued["_next"].to_numpy()],
    )
    kind = np.select(evidence, range(len(_HOLDS)), default=len(_HOLDS))
    by_call = pl.Series(kind == _HOLDS.index("call"))
    by = holding["name"][call].zip_with(by_call, before["name"])
    unknown = pl.Series(kind >= _HOLDS.index("before"))
    row = pl.int_range(queued.height, dtype=pl.UInt32, eager=True).set(unknown, None)
    return pl.DataFrame(
        [by[row].alias("waited_name"), pl.Series("waited_kind", [*_HOLDS, None])[kind]]
    )


def _firsts_of_streams(events: pl.DataFrame) -> np.ndarray:
    """Whether each event is the first of its stream."""
    first = pl.col("start_ns") == pl.min("start_ns").over("rank", "device", "stream")
    return events.select(first).to_series().to_numpy()


def _longest_call(queued: pl.DataFrame, holding: pl.DataFrame) -> tuple[pl.Series, np.ndarray]:
    """Row of the host call that holds the device for most of each part, and the length of this
    time (ns), 0 if none.
    """
    # few calls hold the device, and they are long: the last to begin before the part, and the
    # longest within it
    begins = holding["start_ns"]
    ends = begins + holding["dur_ns"]
    start, end = queued["start_ns"].to_numpy(), queued["_end"].to_numpy()
    rows, lengths = [], []
    for at in ("start_ns", "_end"):
        row = last_before(
            queued, holding[["rank", "start_ns"]].rename({"start_ns": at}), ["rank"], at=at
        )
        (begin, known), (until, _) = _filled(begins[row]), _filled(ends[row])
        lengths.append(np.where(known, np.minimum(end, until) - np.maximum(start, begin), 0))
        rows.append(row)
    first = (lengths[0] > 0) & (lengths[0] >= lengths[1])
    return rows[0].zip_with(pl.Series(first), rows[1]), np.maximum(np.where(first, *lengths), 0)


def _told_to_wait(queued: pl.DataFrame, events: pl.DataFrame, calls: pl.DataFrame) -> np.ndarray:
    """Whether the stream of each part got an event wait since its last launch."""
    told = np.zeros(queued.height, dtype=np.bool_)
    waits = calls.filter("waits").select("rank", "_thread", launch_start_ns="start_ns")
    at = "launch_start_ns"
    if not waits.height:
        return told
    last_wait, known = _filled(waits[at][last_before(queued, waits, ["rank", "_thread"], at=at)])
    asked = np.flatnonzero(known)
    if not len(asked):
        return told
    # the events of one launch follow each other on a stream: their launch counts once
    lane = ["rank", "stream"]
    launches = events[[*lane, at]]
    launches = launches[first_of_runs(launches, [*lane, at])].filter(pl.col(at).is_not_null())
    earlier = queued[[*lane, at]][asked].with_columns(pl.col(at) - 1)
    last, launched = _filled(launches[at][last_before(earlier, launches, lane, at=at)])
    told[asked] = launched & (last_wait[asked] >= last)
    return told


def _seen_to_wait(queued: pl.DataFrame, waits: pl.DataFrame) -> np.ndarray:
    """The same from recorded device queues: the stream was in a wait for most of the part."""
    recorded = waits.select("rank", "stream", _end="start_ns", _until=END)
    at = last_before(queued, recorded, ["rank", "stream"], at="_end")
    (begin, known), (until, _) = _filled(recorded["_end"][at]), _filled(recorded["_until"][at])
    start, end = queued["start_ns"].to_numpy(), queued["_end"].to_numpy()
    shared = np.minimum(end, until) - np.maximum(start, begin)
    return np.asarray(known & (shared >= HELD_SHARE * queued["dur_ns"].to_numpy()))


@Analysis(
    question="When does one stream wait while others work?",
    help="gaps of single streams, and how much others worked meanwhile",
    view="stream-gaps",
    recorded="device activity or operators",
)
def stream_gaps(trace: Trace, *, min_ns: NotNegative = 0) -> pl.DataFrame:
    """Gaps of each stream, and the time in each gap in which other streams of the device were busy.

    Parameters
    ----------
    trace : Trace
        A trace with device activity or operators.
    min_ns : int
        Shortest gap to report (ns).

    Returns
    -------
    polars.DataFrame
        ``rank, device, stream``, ``step`` (of the event that ends the gap), ``start_ns, dur_ns,
        next_event, next_name``, ``busy_ns`` (part of the gap during which another stream
        of the device was busy) and ``busy_share`` (of ``dur_ns``). One row for each gap,
        by stream and time. Events of an unknown stream (PyTorch shows kernels of annotated CUDA
        graphs on lanes that are not streams) have no gaps, but they keep the device busy.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.

    Examples
    --------
    >>> frame = analyze.stream_gaps(trace)
    """
    refuse_samples(trace, "when a stream was idle")
    return stream_gaps_of(trace.events, min_ns=min_ns)


def stream_gaps_of(events: pl.DataFrame, *, min_ns: int = 0) -> pl.DataFrame:
    """The analysis of :func:`stream_gaps` on a frame of device events."""
    following = {"step": pl.col("step"), "next_event": pl.col("event"), "next_name": pl.col("name")}
    on_streams = events.drop_nulls("stream")
    rows = gaps(on_streams, ["rank", "device", "stream"], **following).filter(
        pl.col("dur_ns") >= min_ns
    )
    rows = length_within(rows, events, ["rank", "device"], name="busy_ns")
    return rows.select(
        *(
            "rank",
            "device",
            "stream",
            "step",
            "start_ns",
            "dur_ns",
            "next_event",
            "next_name",
            "busy_ns",
        ),
        busy_share=pl.col("busy_ns") / pl.col("dur_ns"),
    )
