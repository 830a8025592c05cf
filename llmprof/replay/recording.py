"""Events of a recording in the order of their chains (streams, threads of the host), on one
clock.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from msgspec import Struct
from numpy.typing import NDArray

from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.edge import events_of_steps
from llmprof.analyze.idle.host import call_kinds
from llmprof.label.groups import distinct_keys, first_of_runs, group_values, groups_of, last_before
from llmprof.label.nesting import outermost
from llmprof.replay.schedule import NEVER, NodeNumbers
from llmprof.trace import Trace

RowMask = NDArray[np.bool_]


class Recording(Struct, frozen=True):
    """Events in the order of their chains, and the data for edges."""

    rows: pl.DataFrame
    """One row for each event, as :attr:`llmprof.replay.graph.Graph.events` describes
    them.
    """
    chains: NodeNumbers
    """First row of each chain, and the number of rows."""
    time: NodeNumbers
    """Start (even) and end (odd) of each row, in ns."""
    before: NodeNumbers
    """End of the event before in the chain, in ns; :data:`~.schedule.NEVER` for the first."""
    on_device: RowMask
    """Whether each row is work of a device."""
    call: NodeNumbers
    """Row of the host's call that launched each row; -1 where none is known."""
    own: NodeNumbers
    """Time of a host call without waiting, in ns; 0 for work of a device."""
    names: pl.Series
    """Name of each row as a number (Categorical), which takes less time to tell apart than text."""

    @property
    def work(self) -> pl.LazyFrame:
        """The rows that are work of a device; what is not asked for is not copied."""
        return self.rows.lazy().filter(pl.lit(pl.Series(self.on_device)))

    @property
    def start(self) -> NodeNumbers:
        """Start of each row."""
        return self.time[0::2]

    @property
    def end(self) -> NodeNumbers:
        """End of each row."""
        return self.time[1::2]


MAX_OWN_NS = 10_000
"""Longest time (ns) of a synchronising call with nothing to wait for."""


def recording(trace: Trace) -> Recording:
    """Put the events of a trace in the order of their chains."""
    rows = _events(trace)
    chains = np.append(first_of_runs(rows, ["chain"]), rows.height).astype(np.int64)
    time = np.empty(2 * rows.height, dtype=np.int64)
    time[0::2] = rows["start_ns"].to_numpy()
    time[1::2] = time[0::2] + rows["dur_ns"].to_numpy()
    before = np.full(rows.height, NEVER)
    before[1:] = time[1:-1:2]
    before[chains[:-1]] = NEVER
    on_device = (rows["where"] == "device").to_numpy()
    names = rows["name"].cast(pl.Categorical)
    call, own = _launching_rows(rows, on_device), _own_time(rows, names, ~on_device)
    return Recording(rows, chains, time, before, on_device, call, own, names)


def _events(trace: Trace) -> pl.DataFrame:
    """Work of the devices and calls of the host, sorted by chain and time, on one clock."""
    device = events_of_steps(trace).with_columns(
        where=pl.lit("device"),
        thread=pl.lit(None, pl.Int64),
        launches=pl.lit(None, pl.Boolean),
    )
    columns = [
        "rank",
        "where",
        "thread",
        "device",
        "stream",
        "start_ns",
        "dur_ns",
        "name",
        "source",
        "category",
        "step",
        "phase",
        "layer",
        "stage",
        "event",
        "launch_start_ns",
        "launch_thread",
        "launches",
    ]
    waits = {c: t for c, t in WAITS.items() if c not in columns}
    parts = [device.select(*columns, *(pl.lit(None, t).alias(c) for c, t in waits.items()))]
    if trace.has("runtime"):
        calls = trace.runtime.filter(pl.col("api").is_in(["runtime", "driver"]))
        calls = outermost(
            add_recorded_waits(calls).sort("rank", "thread", "start_ns"), ["rank", "thread"]
        )
        threads = distinct_keys(device, ["rank", "launch_thread"]).rename(
            {"launch_thread": "thread"}
        )
        [launches] = group_values(calls, threads.with_columns(launches=True), ["rank", "thread"])
        # the chain of a thread that only waits for results (such as vLLM's for its output) consists
        # of these calls
        waits_only = call_kinds(calls["name"])["synchronises"]
        calls = calls.with_columns(launches.fill_null(False)).filter(launches | waits_only)
        parts.append(calls.with_columns(where=pl.lit("host"), source=pl.lit("call")))
    rows = pl.concat(parts, how="diagonal_relaxed")
    [shift] = group_values(rows, clock_offsets(trace), ["rank"])
    begins, keys, number = groups_of(rows, CHAIN)
    lengths = np.diff(begins, append=rows.height)
    chain = np.repeat(np.arange(keys.height) if number is None else number, lengths).astype(
        np.int64
    )
    # what comes before all launched work of its stream was launched before the recording
    first = pl.col("start_ns").filter(pl.col("launch_start_ns").is_not_null()).min().over("chain")
    unseen = pl.when(pl.col("start_ns") < first).then(int(NEVER)).otherwise("start_ns")
    return (
        rows.with_columns(
            shift.fill_null(0), recorded_ns="start_ns", chain=pl.Series(chain, dtype=pl.Int64)
        )
        .with_columns(pl.col("start_ns", "launch_start_ns", "awaited_ns") - pl.col("shift_ns"))[
            _order(rows, chain)
        ]
        .with_columns(issued=pl.coalesce("launch_start_ns", unseen))
        .with_row_index("row")
    )


CHAIN: Final = ("rank", "where", "thread", "device", "stream")
"""Rows that are equal in these are one chain."""


def _order(rows: pl.DataFrame, chain: NodeNumbers) -> NodeNumbers:
    """Order of rows by chain, start and duration; rows that are in the order of their times are
    only divided.
    """
    start, dur = rows["start_ns"].to_numpy(), rows["dur_ns"].to_numpy()
    # numpy sorts small numbers in a time that is linear in their count
    order = np.argsort(
        chain.astype(np.uint16) if chain.max(initial=0) < 2**16 else chain, kind="stable"
    )
    start, dur, chain = start[order], dur[order], chain[order]
    same, later = chain[1:] == chain[:-1], start[1:] - start[:-1]
    if (same & ((later < 0) | ((later == 0) & (dur[1:] < dur[:-1])))).any():
        order = order[np.lexsort((dur, start, chain))]
    return order


WAITS: Final = {
    "waiting_stream": pl.Int64(),
    "awaited_stream": pl.Int64(),
    "awaited_ns": pl.Int64(),
    "wait_recorded": pl.Boolean(),
}
"""Columns of calls that wait, or make a stream wait: the waiting stream (null: the host), the
awaited stream (null: all), the time at which the event was recorded (null: unknown, or no event),
and whether the recording states this.
"""


def add_recorded_waits(calls: pl.DataFrame) -> pl.DataFrame:
    """Calls of the host (``rank, thread, start_ns, dur_ns, name``) with the columns of
    :data:`WAITS`.
    """
    made = {
        name: pl.coalesce(*written)
        if (written := [c for c in calls.columns if c.endswith(f"_{name}")])
        else None
        for name in ("waiting_stream", "awaited_stream", "awaited_call")
    }
    calls = calls.select(
        "rank",
        "thread",
        "start_ns",
        "dur_ns",
        "name",
        "correlation",
        **{c: pl.lit(None, pl.Int64) if e is None else e for c, e in made.items()},
    )
    known = pl.lit(None, pl.Int64).alias("awaited_ns")
    if calls["awaited_call"].null_count() < calls.height:
        awaited = calls.select("rank", correlation="awaited_call").drop_nulls().unique()
        recorded = (
            calls.select("rank", "correlation", awaited_ns="start_ns")
            .join(awaited, on=["rank", "correlation"], how="semi", maintain_order="left")
            .unique(["rank", "correlation"], keep="first", maintain_order=True)
            .rename({"correlation": "awaited_call"})
        )
        calls = calls.join(recorded, on=["rank", "awaited_call"], how="left", maintain_order="left")
        known = pl.col("awaited_ns")
    return calls.select(
        "rank",
        "thread",
        "start_ns",
        "dur_ns",
        "name",
        "waiting_stream",
        "awaited_stream",
        known,
        wait_recorded=pl.any_horizontal(pl.col("waiting_stream", "awaited_stream").is_not_null()),
    )


def clock_offsets(trace: Trace) -> pl.DataFrame:
    """Correction of each rank's clock, where it is not 0."""
    return (
        collectives(trace)
        .filter(pl.col("clock_offset_ns").is_not_null() & (pl.col("clock_offset_ns") != 0))
        .group_by("rank")
        .agg(shift_ns=pl.median("clock_offset_ns").cast(pl.Int64))
    )


def _launching_rows(rows: pl.DataFrame, on_device: RowMask) -> NodeNumbers:
    """Row of the host's call that launched each event; -1 where none is known."""
    launched = np.flatnonzero(on_device & rows["launch_start_ns"].is_not_null().to_numpy())
    calls = np.flatnonzero(~on_device)
    out = np.full(rows.height, -1, dtype=np.int64)
    if not len(launched) or not len(calls):
        return out
    marks = rows.select("rank", "start_ns", launch_thread="thread")[calls]
    points = rows.select("rank", "launch_thread", start_ns="launch_start_ns")[launched]
    last = last_before(points, marks, ["rank", "launch_thread"], at="start_ns")
    known = last.is_not_null().to_numpy()
    launched, call = launched[known], calls[last.drop_nulls().to_numpy()]
    end = rows["start_ns"].to_numpy() + rows["dur_ns"].to_numpy()
    inside = rows["launch_start_ns"].to_numpy()[launched] <= end[call]
    out[launched[inside]] = call[inside]
    return out


def _own_time(rows: pl.DataFrame, names: pl.Series, on_host: RowMask) -> NodeNumbers:
    """Time of each host call without waiting: that of the fastest tenth of the calls of its
    name, at most 10 us.
    """
    out = np.zeros(rows.height, dtype=np.int64)
    calls = pl.DataFrame([names.to_physical(), rows["dur_ns"]]).filter(on_host)
    quick = pl.col("dur_ns").quantile(0.1).over("name").fill_null(0)
    out[on_host] = calls.select(quick.clip(0, MAX_OWN_NS).cast(pl.Int64)).to_series().to_numpy()
    return out
