"""Events of a recording in the order of their chains (streams, threads of the host), on one clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.idle.host import call_kinds
from llmprof.analyze.layers.attribution import attribute
from llmprof.analyze.nesting import outermost
from llmprof.analyze.replay.schedule import NEVER, Ints
from llmprof.trace import Trace

Rows = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Recording:
    """Events in the order of their chains, and the data for edges."""

    rows: pl.DataFrame
    """One row for each event, as :attr:`llmprof.analyze.replay.graph.Graph.events` describes them."""
    chains: Ints
    """First row of each chain, and the number of rows."""
    time: Ints
    """Start (even) and end (odd) of each row, in ns."""
    before: Ints
    """End of the event before in the chain, in ns; :data:`~.schedule.NEVER` for the first."""
    on_device: Rows
    """Whether each row is work of a device."""
    call: Ints
    """Row of the host's call that launched each row; -1 where none is known."""
    own: Ints
    """Time of a host call without waiting, in ns."""

    @property
    def start(self) -> Ints:
        """Start of each row."""
        return self.time[0::2]

    @property
    def end(self) -> Ints:
        """End of each row."""
        return self.time[1::2]


MOST_OWN_NS = 10_000
"""Longest time (ns) of a synchronising call with nothing to wait for."""


def recording(trace: Trace) -> Recording:
    """Put the events of a trace in the order of their chains."""
    rows = _events(trace)
    chains = np.append(np.flatnonzero(np.diff(rows["chain"].to_numpy(), prepend=-1)), rows.height).astype(np.int64)
    time = np.empty(2 * rows.height, dtype=np.int64)
    time[0::2] = rows["start_ns"].to_numpy()
    time[1::2] = time[0::2] + rows["dur_ns"].to_numpy()
    before = np.full(rows.height, NEVER)
    before[1:] = time[1:-1:2]
    before[chains[:-1]] = NEVER
    return Recording(
        rows, chains, time, before, (rows["where"] == "device").to_numpy(), _launching_rows(rows), _own_time(rows)
    )


def _events(trace: Trace) -> pl.DataFrame:
    """Work of the devices and calls of the host, sorted by chain and time, on one clock."""
    device = attribute(trace).with_columns(
        where=pl.lit("device"), thread=pl.lit(None, dtype=pl.Int64), launches=pl.lit(None, dtype=pl.Boolean)
    )
    columns = [
        "rank", "where", "thread", "device", "stream", "start_ns", "dur_ns", "name", "source", "category",
        "step", "phase", "layer", "stage", "event", "launch_start_ns", "launch_thread", "launches",
    ]  # fmt: skip
    waits = {c: t for c, t in WAITS.items() if c not in columns}
    parts = [device.select(*columns, *(pl.lit(None, dtype=t).alias(c) for c, t in waits.items()))]
    if trace.has("runtime"):
        calls = trace.runtime.filter(pl.col("api").is_in(["runtime", "driver"]))
        calls = outermost(with_recorded_waits(calls).sort("rank", "thread", "start_ns"), ["rank", "thread"])
        threads = device.select("rank", thread="launch_thread").unique()
        launching = calls.join(threads, on=["rank", "thread"], how="semi", nulls_equal=True)
        # the chain of a thread that only waits for results (such as vLLM's for its output) consists of these calls
        waiting = calls.filter(call_kinds(calls["name"])["synchronises"]).join(
            threads, on=["rank", "thread"], how="anti", nulls_equal=True
        )
        calls = pl.concat([launching.with_columns(launches=True), waiting.with_columns(launches=False)])
        parts.append(calls.with_columns(where=pl.lit("host"), source=pl.lit("call")))
    shift = pl.col("shift_ns")
    rows = (
        pl.concat(parts, how="diagonal_relaxed")
        .join(clock_offsets(trace), on="rank", how="left")
        .with_columns(shift.fill_null(0), recorded_ns="start_ns")
        .with_columns(pl.col("start_ns", "launch_start_ns", "awaited_ns") - shift)
    )
    key = pl.struct("rank", "where", "thread", "device", "stream")
    return (
        rows.sort("rank", "where", "thread", "device", "stream", "start_ns", "dur_ns", nulls_last=True)
        .with_columns(chain=key.rle_id().cast(pl.Int64))
        .with_row_index("row")
    )


WAITS: Final = {
    "waiting_stream": pl.Int64(),
    "awaited_stream": pl.Int64(),
    "awaited_ns": pl.Int64(),
    "wait_recorded": pl.Boolean(),
}
"""Columns of calls that wait, or make a stream wait: the waiting stream (null: the host), the awaited stream (null:
all), the time at which the event was recorded (null: unknown, or no event), and whether the recording states this."""


def with_recorded_waits(calls: pl.DataFrame) -> pl.DataFrame:
    """Calls of the host (``rank, thread, start_ns, dur_ns, name``) with the columns of :data:`WAITS`."""
    made = {
        name: pl.coalesce(*written) if (written := [c for c in calls.columns if c.endswith(f"_{name}")]) else None
        for name in ("waiting_stream", "awaited_stream", "awaited_call")
    }
    calls = calls.select(
        "rank", "thread", "start_ns", "dur_ns", "name", "correlation",
        **{c: pl.lit(None, dtype=pl.Int64) if e is None else e for c, e in made.items()},
    )  # fmt: skip
    recorded = (
        calls.filter(pl.col("correlation").is_not_null())
        .unique(["rank", "correlation"], keep="first", maintain_order=True)
        .select("rank", awaited_call="correlation", awaited_ns="start_ns")
    )
    return calls.join(recorded, on=["rank", "awaited_call"], how="left", maintain_order="left").select(
        "rank", "thread", "start_ns", "dur_ns", "name", "waiting_stream", "awaited_stream", "awaited_ns",
        wait_recorded=pl.any_horizontal(pl.col("waiting_stream", "awaited_stream").is_not_null()),
    )  # fmt: skip


def clock_offsets(trace: Trace) -> pl.DataFrame:
    """Correction of each rank's clock, where it is not 0."""
    return (
        collectives(trace)
        .filter(pl.col("clock_offset_ns").is_not_null() & (pl.col("clock_offset_ns") != 0))
        .group_by("rank")
        .agg(shift_ns=pl.col("clock_offset_ns").median().cast(pl.Int64))
    )


def _launching_rows(rows: pl.DataFrame) -> Ints:
    """Row of the host's call that launched each event; -1 where none is known."""
    launches = rows.filter(pl.col("launch_start_ns").is_not_null()).select(
        "row", "rank", "launch_thread", "launch_start_ns"
    )
    calls = rows.filter(pl.col("where") == "host").select(
        "rank",
        launch_thread="thread",
        launch_start_ns="start_ns",
        call="row",
        call_end=pl.col("start_ns") + pl.col("dur_ns"),
    )
    out = np.full(rows.height, -1, dtype=np.int64)
    if not launches.height or not calls.height:
        return out
    matched = (
        launches.sort("launch_start_ns")
        .join_asof(
            calls.sort("launch_start_ns"), on="launch_start_ns", by=["rank", "launch_thread"], check_sortedness=False
        )
        .filter(pl.col("call").is_not_null() & (pl.col("launch_start_ns") <= pl.col("call_end")))
    )
    out[matched["row"].to_numpy()] = matched["call"].to_numpy()
    return out


def _own_time(rows: pl.DataFrame) -> Ints:
    """Time of each host call without waiting: that of the fastest tenth of the calls of its name, at most 10 us."""
    quick = pl.col("dur_ns").quantile(0.1).over("where", "name").fill_null(0)
    return rows.select(quick.clip(0, MOST_OWN_NS).cast(pl.Int64)).to_series().to_numpy()
