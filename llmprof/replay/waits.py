"""Waits between streams (recorded, inferred from calls, or from times alone), and of the host
while code is loaded.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import polars as pl

from llmprof.label.groups import first_of_runs
from llmprof.names.matching import contains
from llmprof.replay.recording import Recording, add_recorded_waits, clock_offsets
from llmprof.replay.schedule import NEVER, NodeNumbers
from llmprof.trace import Trace
from llmprof.trace.schema import END

MAX_AFTER_NS: Final = 5_000
"""If a recorded wait between streams had an effect, it ends at most this long (ns) after the
awaited work.
"""

MAX_WAIT_NS: Final = 10_000
"""Work that begins within this after the end of work on another stream may have waited for it: in
llmprof's captures a copy behind an event of another stream begins 2.8 to 7.2 us after the work
before that event.
"""

MAX_AFTER_COLLECTIVE_NS: Final = 20_000
"""The same after a collective: 17.5 us on AMD GPUs."""

USUAL_GAP_NS: Final = 1_000
"""Gap between kernels of a stream (ns) if a recording has no back-to-back kernels."""

IMMEDIATE_NS: Final = 1_000_000
"""If a thread records an event within this time (ns) after a launch, the event is assumed to
follow that launch.
"""

MAX_CANDIDATES: Final = 16
"""Number of events that are examined, those that ended last before such work."""

RECORDS: Final = r"(?i)EventRecord"
WAITS: Final = r"(?i)StreamWaitEvent"
"""Names of the calls that mark a place in a stream, and that let another stream wait for it."""


class NodePairs(NamedTuple):
    """Pairs of nodes, of which one waits for the other, and the least time between them in ns."""

    source: NodeNumbers
    target: NodeNumbers
    delay: NodeNumbers


def _pairs(recorded: Recording, source: pl.Series, target: pl.Series, most_ns: int) -> NodePairs:
    """Pairs from the end of some rows to the start of others; the least time is limited if a
    start came long after.
    """
    first, second = (
        2 * source.to_numpy().astype(np.int64) + 1,
        2 * target.to_numpy().astype(np.int64),
    )
    gap = recorded.time[second] - recorded.time[first]
    return NodePairs(first, second, np.where(gap <= most_ns, gap, np.minimum(gap, USUAL_GAP_NS)))


def _nothing() -> NodePairs:
    return NodePairs(*np.empty((3, 0), dtype=np.int64))


def recorded_waits(trace: Trace, recorded: Recording) -> NodePairs:
    """Pairs from the last work before an event record to the first work after a stream's wait
    for this event.
    """
    # If the time of the record is unknown, the last work on the awaited stream that ended in time
    # is taken.
    waits = trace.runtime if trace.has("runtime") else pl.DataFrame()
    if not any(column.endswith("_awaited_stream") for column in waits.columns):
        return _nothing()
    shift = pl.col("shift_ns").fill_null(0)
    waits = (
        add_recorded_waits(waits)
        .filter(pl.col("waiting_stream").is_not_null() & pl.col("awaited_stream").is_not_null())
        .join(clock_offsets(trace), on="rank", how="left")
        .select(
            "rank",
            "waiting_stream",
            "awaited_stream",
            at=pl.col("start_ns") - shift,
            told="awaited_ns",
        )
        .with_columns(noted=pl.coalesce("told", "at"))
    )
    if not waits.height:
        return _nothing()
    work = (
        recorded.work.drop_nulls("stream")
        .select(
            "rank",
            "stream",
            "issued",
            row=pl.col("row").cast(pl.Int64),
            start="start_ns",
            end=END,
        )
        .sort("rank", "stream", "start")
        .with_columns(pl.col("issued", "end").cum_max().over("rank", "stream"))
        .collect()
    )
    first = (
        work.unique(["rank", "stream", "issued"], keep="first")
        .sort("issued")
        .rename({"stream": "waiting_stream"})
    )
    pairs = (
        waits.sort("at")
        .join_asof(
            first,
            left_on="at",
            right_on="issued",
            by=["rank", "waiting_stream"],
            strategy="forward",
            check_sortedness=False,
        )
        .drop_nulls("row")
    )
    done = work.select(
        "rank", "issued", "end", awaited_stream="stream", by_issue="row", by_end="row"
    )
    for left, right, kept in (("noted", "issued", "by_issue"), ("start", "end", "by_end")):
        last = (
            done.select("rank", "awaited_stream", right, kept)
            .sort(right, kept)
            .rename({right: "_at"})
        )
        pairs = pairs.sort(left).join_asof(
            last,
            left_on=left,
            right_on="_at",
            by=["rank", "awaited_stream"],
            check_sortedness=False,
        )
    pairs = pairs.with_columns(other=pl.min_horizontal("by_issue", "by_end")).filter(
        pl.col("by_issue").is_not_null()
        & pl.col("by_end").is_not_null()
        & (pl.col("told").is_null() | (pl.col("by_issue") <= pl.col("by_end")))
        & (pl.col("other") != pl.col("row"))
    )
    return _pairs(recorded, pairs["other"], pairs["row"], MAX_AFTER_NS)


def waits_of_calls(trace: Trace, recorded: Recording) -> NodePairs:
    """The same if the calls are recorded without their streams."""
    # If a thread launches work on one stream, records an event at once, makes a stream wait for it
    # and continues with work on another stream, the second stream is assumed to wait for the first,
    # unless its work began too early.
    if not trace.has("runtime"):
        return _nothing()
    calls = trace.runtime.filter(contains(trace.runtime["name"], f"{RECORDS}|{WAITS}"))
    if calls.is_empty():
        return _nothing()
    streams_known = pl.any_horizontal(pl.col("waiting_stream", "awaited_stream").is_not_null())
    calls = (
        add_recorded_waits(calls)
        .filter(~streams_known)
        .join(clock_offsets(trace), on="rank", how="left")
        .select("rank", "thread", "name", at=pl.col("start_ns") - pl.col("shift_ns").fill_null(0))
    )
    waits = calls.filter(pl.col("name").str.contains(WAITS)).drop("name").sort("at")
    records = (
        calls.filter(pl.col("name").str.contains(RECORDS))
        .select("rank", "thread", "at", noted="at")
        .sort("at")
    )
    work = (
        recorded.work.drop_nulls("launch_start_ns")
        .select(
            "rank",
            "chain",
            "device",
            at="launch_start_ns",
            thread="launch_thread",
            row=pl.col("row").cast(pl.Int64),
            start="start_ns",
            end=END,
        )
        .sort("rank", "thread", "at", "start")
        .collect()
    )
    if waits.is_empty() or records.is_empty() or work.is_empty():
        return _nothing()
    by = ["rank", "thread"]
    first = first_of_runs(work, [*by, "at"])
    last = np.append(first[1:], work.height) - 1
    pairs = waits.join_asof(records, on="at", by=by, check_sortedness=False).filter(
        pl.col("noted").is_not_null()
    )
    pairs = (
        pairs.join_asof(
            work[first],
            on="at",
            by=by,
            strategy="forward",
            check_sortedness=False,
        )
        .drop_nulls("row")
        .sort("noted")
        .join_asof(
            work.select(*by, "at", "chain", "device", "row", "end")[last],
            left_on="noted",
            right_on="at",
            by=by,
            suffix="_other",
            tolerance=IMMEDIATE_NS,
            check_sortedness=False,
        )
    )
    pairs = pairs.filter(
        (pl.col("chain") != pl.col("chain_other"))
        & pl.col("device").eq_missing(pl.col("device_other"))
        & (pl.col("end_other") <= pl.col("start"))
    ).unique("row")
    return _pairs(recorded, pairs["row_other"], pairs["row"], MAX_WAIT_NS)


def awaited_last(recorded: Recording, rest: NodeNumbers) -> NodePairs:
    """Pairs from the end of work to unexplained work on another stream of the rank that begins
    right after it.
    """
    # The awaited work must have been launched before: a stream can only wait for work that another
    # stream already had.
    late = np.flatnonzero(recorded.on_device & (rest[0::2] > 0))
    begin = recorded.rows.select("rank", "row", "chain", "issued", time="start_ns")[late].sort(
        "time"
    )
    is_collective = (pl.col("category") == "collective").fill_null(False)
    ends = (
        recorded.work.select(
            "rank",
            "chain",
            "row",
            "issued",
            time=END,
            collective=is_collective,
        )
        .sort("rank", "time")
        .with_row_index("place")
        .collect()
    )
    matched = begin.join_asof(
        ends[["rank", "time", "place"]],
        on="time",
        by="rank",
        tolerance=MAX_AFTER_COLLECTIVE_NS,
        check_sortedness=False,
    ).drop_nulls("place")
    rank, chain, before, end, row = (
        ends[c].to_numpy() for c in ("rank", "chain", "issued", "time", "row")
    )
    collective = ends["collective"].to_numpy()
    place = matched["place"].to_numpy().astype(np.int64)
    own_rank, own_chain, own_issue, time = (
        matched[c].to_numpy() for c in ("rank", "chain", "issued", "time")
    )
    awaited = np.full(len(place), -1, dtype=np.int64)
    looking = np.ones(len(place), dtype=bool)
    for back in range(MAX_CANDIDATES):
        other = np.maximum(place - back, 0)
        after = time - end[other]
        looking &= (place >= back) & (rank[other] == own_rank) & (after <= MAX_AFTER_COLLECTIVE_NS)
        fits = looking & (chain[other] != own_chain) & (before[other] <= own_issue)
        fits &= collective[other] | (after <= MAX_WAIT_NS)
        awaited[fits] = row[other[fits]]
        looking &= ~fits
    found = awaited >= 0
    return _pairs(
        recorded,
        pl.Series(awaited[found]),
        matched["row"].filter(pl.Series(found)),
        MAX_AFTER_COLLECTIVE_NS,
    )


LOADS_CODE: Final = r"(?i)^(?:cuda|hip|cu|mu|musa)(?:kernel|func|library|module)"
"""Names of calls that may load the code of a kernel (CUDA C++ Programming Guide, "Lazy Loading":
loading a kernel may require that the context is synchronised). Kineto records none of them, Nsight
Systems those of the driver.
"""

MIN_WAIT_NS: Final = 500_000
"""Least time (ns) by which such a call, or the host's time before a first launch, is longer than
without a wait.
"""

MAX_LAG_NS: Final = 300_000
"""Longest time (ns) from the end of the awaited work to the return of the call.

In llmprof's captures of vLLM on 4 H200 it is 0.05 to 0.15 ms after waits of 1 to 45 ms.
"""


def loading_calls(recorded: Recording) -> NodePairs:
    """Pairs from the end of the work that a recorded call waited for to the end of this call."""
    loads = contains(recorded.names, LOADS_CODE).fill_null(False)
    row = np.flatnonzero((recorded.rows["launches"].fill_null(False) & loads).to_numpy())
    row = row[recorded.end[row] - recorded.start[row] >= recorded.own[row] + MIN_WAIT_NS]
    awaited = _awaited_work(recorded, row, recorded.start[row], recorded.end[row])
    row, awaited = row[awaited >= 0], awaited[awaited >= 0]
    source, target = 2 * awaited + 1, 2 * row + 1
    return NodePairs(source, target, recorded.time[target] - recorded.time[source])


def first_launches(recorded: Recording) -> tuple[NodePairs, NodeNumbers]:
    """The same where the call is not recorded: pairs to the start of the first launch of a
    kernel on a rank.
    """
    # The host's time before this launch must be longer than on another rank, and the device must
    # have become idle shortly before its end.
    launched = np.flatnonzero(recorded.call >= 0)
    call = recorded.call[launched]
    first = (
        pl.DataFrame(
            {
                "row": launched,
                "call": call,
                "start": recorded.start[call],
                "begin": recorded.before[call],
            }
        )
        .hstack(
            [series[launched] for series in (recorded.rows["rank"], recorded.names.to_physical())]
        )
        .group_by("rank", "name")
        .agg(pl.all().get(pl.col("start").arg_min()))
        .sort("start", "row")
        .filter(pl.col("begin") != int(NEVER))
        .with_columns(took=pl.col("start") - pl.col("begin"))
        .with_columns(least=pl.min("took").over("name"))
        .filter(pl.col("took") >= pl.col("least") + MIN_WAIT_NS)
        .unique("call", keep="first", maintain_order=True)
    )
    row = first["call"].to_numpy().astype(np.int64)
    awaited = _awaited_work(recorded, row, first["begin"].to_numpy(), first["start"].to_numpy())
    known = awaited >= 0
    source, target = 2 * awaited[known] + 1, 2 * row[known]
    delay = recorded.time[target] - recorded.time[source]
    return NodePairs(source, target, delay), first["least"].to_numpy()[known].astype(np.int64)


def _awaited_work(
    recorded: Recording, row: NodeNumbers, begin: NodeNumbers, end: NodeNumbers
) -> NodeNumbers:
    """The work before ``begin`` that ended last on each row's rank; -1 if it did not end just
    before ``end``.
    """
    if not len(row):
        return row
    work = recorded.work.select(
        "rank",
        "issued",
        work=pl.col("row").cast(pl.Int64),
        ended=END,
    ).collect()
    last = work.sort("issued").with_columns(pl.col("ended").cum_max().over("rank"))
    waits = pl.DataFrame(
        {
            "rank": recorded.rows["rank"][row],
            "place": np.arange(len(row)),
            "begin": begin,
            "end": end,
        }
    ).sort("begin")
    found = (
        waits.join_asof(
            last.drop("work"),
            left_on="begin",
            right_on="issued",
            by="rank",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .filter(
            (pl.col("ended") >= pl.col("begin") + MIN_WAIT_NS)
            & pl.col("ended").is_between(pl.col("end") - MAX_LAG_NS, pl.col("end"))
        )
        .join(work.drop("issued").unique(["rank", "ended"], keep="first"), on=["rank", "ended"])
    )
    out = np.full(len(row), -1, dtype=np.int64)
    out[found["place"].to_numpy()] = found["work"].to_numpy()
    return out
