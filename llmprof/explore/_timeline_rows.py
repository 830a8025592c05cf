"""Rows of the timeline that stand in the trace: streams, host threads and counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import polars as pl

from llmprof import kernel_names, names
from llmprof.analyze.activity import activity
from llmprof.analyze.idle import is_synchronising
from llmprof.explore._lanes import Codes, Ints, Lane, Numbers, levels
from llmprof.explore._timeline_keys import Keys, Names
from llmprof.trace import Trace

SLACK_NS = 200
"""Kernels of one stream that overlap by less than this are drawn on one line: profilers round."""

RARE = 0.01
"""So are all of a stream where fewer than this share of them overlap."""


@dataclass
class Row:
    """One row of the timeline.

    ``kind`` says which frame the ids of its spans count (stream: ``activity``; ops, runtime, markers: the trace's
    tables; steps, layers, collectives, idle: the analyses); ``lanes`` are its levels.
    """

    kind: str
    rank: int
    label: str
    lanes: list[Lane] = field(default_factory=list)
    thread: int | None = None
    stream: tuple[int | None, int | None] | None = None
    note: str = ""
    samples: tuple[Ints, np.ndarray] | None = None
    unit: str = ""

    @property
    def count(self) -> int:
        """Spans or samples of the row."""
        return sum(map(len, self.lanes)) + (len(self.samples[0]) if self.samples else 0)


def device_events(trace: Trace) -> pl.DataFrame:
    """Kernels and copies in the order of :func:`~llmprof.analyze.activity.activity`, without what takes time to find.

    Returns
    -------
    polars.DataFrame
        ``event, rank, device, stream, start_ns, dur_ns, name, category``; operators where there is no device.
    """
    columns = ["rank", "device", "stream", "start_ns", "dur_ns", "name"]
    tables = []
    if "kernels" in trace.tables:
        kernels = trace.kernels.select(columns)
        kinds = kernels["name"].unique()
        of_name = pl.DataFrame([kinds, names.categories(kinds).alias("category")])
        tables.append(kernels.join(of_name, on="name", how="left", maintain_order="left"))
    if "copies" in trace.tables:
        of_copy = pl.when(pl.col("kind") == "memset").then(pl.lit("fill")).otherwise(pl.lit("copy"))
        tables.append(trace.copies.select(*columns, category=of_copy))
    if not tables:
        return activity(trace).select("event", *columns, "category") if trace.has("ops") else _NOTHING
    return pl.concat(tables).sort("rank", "start_ns", "stream", maintain_order=True).with_row_index("event")


_COUNTED = pl.Schema(
    {"rank": pl.Int32, "device": pl.Int32, "time_ns": pl.Int64, "name": pl.String, "value": pl.Float64,
            "unit": pl.String})  # fmt: skip
_NOTHING = pl.DataFrame(
    schema={"event": pl.UInt32, "rank": pl.Int32, "device": pl.Int32, "stream": pl.Int64, "start_ns": pl.Int64,
            "dur_ns": pl.Int64, "name": pl.String, "category": pl.String}
)  # fmt: skip


def stream_rows(events: pl.DataFrame, keys: Keys, texts: Names) -> Iterator[Row]:
    """A row for each stream of each device, the busiest first."""
    if not events.height:
        return
    on_host = events["device"].null_count() == events.height
    made = events.select(
        "rank",
        "device",
        "stream",
        "start_ns",
        "dur_ns",
        id=pl.col("event"),
        name=texts.numbers(events["name"], None if on_host else kernel_names.function),
        code=keys.codes("category", events["category"]),
    )
    for (rank, device, stream), part in made.partition_by("rank", "device", "stream", as_dict=True).items():
        label = f"thread {stream}" if on_host else "no stream" if stream is None else f"stream {stream}"
        lanes = spans(part, slack=SLACK_NS, by="category")
        yield Row("stream", rank, label, lanes, stream=(device, stream))


def host_rows(trace: Trace, keys: Keys, texts: Names) -> Iterator[Row]:
    """Rows for the markers, operators and runtime calls of each thread."""
    for table in ("markers", "ops", "runtime"):
        if not trace.has(table):
            continue
        frame = trace.table(table).with_row_index("id")
        if table == "markers":
            frame = frame.filter(~pl.col("on_device") & (pl.col("domain") != "overhead"))
        number = texts.numbers(frame["name"])
        present = number.unique()
        kinds = pl.Series([texts.full[n] for n in present], dtype=pl.String)
        colours = np.zeros(len(texts.full), np.uint8)
        colours[present.to_numpy()] = _host_colours(table, kinds, keys).to_numpy()
        made = frame.select("rank", "thread", "start_ns", "dur_ns", "id", name=number)
        made = made.with_columns(code=pl.Series(colours[number.to_numpy()]))
        for (rank, thread), part in made.partition_by("rank", "thread", as_dict=True).items():
            label = {"ops": "operators", "runtime": "runtime calls"}.get(table, "markers")
            yield Row(table, rank, label, spans(part.sort("start_ns", -pl.col("dur_ns"))), thread=thread)


def counter_rows(trace: Trace) -> Iterator[Row]:
    """A row for each counter of each device, and for the memory that its allocator has given out."""
    parts = [pl.DataFrame(schema=_COUNTED)]
    if trace.has("counters"):
        parts.append(trace.counters.select(_COUNTED.names()))
    if trace.has("memory"):
        allocated = trace.memory.filter("on_device").drop_nulls("allocated_bytes")
        parts.append(
            allocated.select(
                "rank", "device", "time_ns", name=pl.lit("allocated"), value="allocated_bytes", unit=pl.lit("B")
            ).cast(_COUNTED)
        )
    groups = pl.concat(parts).sort("time_ns", maintain_order=True)
    for part in groups.partition_by("rank", "device", "name", maintain_order=True):
        rank, device, name, unit = part.select("rank", "device", "name", "unit").row(0)
        alone = device is None or groups.filter(rank=rank)["device"].drop_nulls().n_unique() == 1
        label = name if alone else f"{name} · {device}"
        samples = part["time_ns"].to_numpy(), part["value"].to_numpy()
        yield Row("counter", rank, label, samples=samples, unit=unit or "")


def spans(part: pl.DataFrame, *, slack: int = 0, by: str = "own") -> list[Lane]:
    """Lanes of a row, one a level: ``start_ns, dur_ns, code, name, id``, sorted by start."""
    start = part["start_ns"].to_numpy()
    end = start + np.maximum(part["dur_ns"].to_numpy(), 0)
    code: Codes = part["code"].to_numpy()
    name: Numbers = part["name"].to_numpy()
    number: Numbers = part["id"].to_numpy()
    depth = levels(start, end, slack=slack)
    if np.count_nonzero(depth) <= (RARE * len(depth) if slack else 0):
        return [Lane(start, end, {by: code}, name, number)]
    order = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[order], np.arange(int(depth.max()) + 2))
    chosen = [order[a:b] for a, b in pairwise(bounds)]
    return [Lane(start[i], end[i], {by: code[i]}, name[i], number[i]) for i in chosen if len(i)]


def _host_colours(table: str, kinds: pl.Series, keys: Keys) -> pl.Series:
    """Colour of each name on the host: its category if it has one, synchronisation apart, else one of a few greys."""
    frame = pl.DataFrame({"name": kinds})
    grey = (frame["name"].hash(0) % keys.greys).cast(pl.Int64)
    if table == "ops":
        found = names.categories(kinds)
        of = [f"host {g}" if c == "other" else c for g, c in zip(grey, found, strict=True)]
    elif table == "runtime":
        waits = frame.select(is_synchronising(pl.col("name"))).to_series()
        of = ["waits for the device" if w else f"host {g}" for w, g in zip(waits, grey, strict=True)]
    else:
        of = ["marker"] * kinds.len()
    return keys.codes("category", pl.Series(of, dtype=pl.String))
