"""Writer of Perfetto's own format (protobuf), which its viewer and trace processor read fastest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import LlmprofError, needs
from llmprof.readers.perfetto import own_packets
from llmprof.trace import Trace
from llmprof.trace.schema import END
from llmprof.trace.storage.parquet import pack_trace

_SEQUENCE: Final = 1
_INCREMENTAL_CLEARED: Final = 1
_SPANS: Final = (
    ("kernels", "stream", "device"),
    ("copies", "stream", "device"),
    ("tasks", "stream", "device"),
    ("runtime", "thread", "host"),
    ("ops", "thread", "host"),
    ("markers", "thread", "host"),
)
_CATEGORIES: Final = {
    "kernels": "kernel",
    "copies": "memory_copy",
    "tasks": "task",
    "runtime": "runtime_api",
    "ops": "cpu_op",
    "markers": "mark",
}
"""Category of the slices of each table, by which the reader of Perfetto's files recognises
kernels and copies.
"""

_OWN_ORDER: Final = ("findings", "steps", "layers", "waits", "idle")


def write(trace: Trace, added: pl.DataFrame, file: Path) -> int:
    """Write a trace together with added tracks."""
    with needs(
        "perfetto", "Perfetto's format needs", "export", LlmprofError, ", or write Chrome JSON"
    ):
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    rows = _lanes(_slices(trace, added))
    base = int(trace.meta.get("start_epoch_ns") or 0)
    with file.open("wb") as out:
        for packet_of_tables in own_packets(pack_trace(trace.tables, trace.meta, trace.coverage)):
            out.write(packet_of_tables)
        builder = StreamingTraceProtoBuilder(out)
        uuids = itertools.count(1)
        ranks: dict[int, int] = {}
        first = True
        for (rank, place, group, row, lane), part in rows.partition_by(
            "rank", "place", "group", "row", "lane", as_dict=True, maintain_order=True
        ).items():
            if rank not in ranks:
                ranks[rank] = next(uuids)
                packet = builder.create_packet()
                packet.track_descriptor.uuid = ranks[rank]
                packet.track_descriptor.process.pid = rank + 1
                packet.track_descriptor.process.process_name = f"rank {rank}"
                builder.write_packet(packet)
            track = next(uuids)
            packet = builder.create_packet()
            packet.track_descriptor.uuid = track
            packet.track_descriptor.parent_uuid = ranks[rank]
            packet.track_descriptor.name = f"{group}: {row}" + (f" ({lane + 1})" if lane else "")
            packet.track_descriptor.sibling_order_rank = place
            builder.write_packet(packet)
            for time, is_end, name, category, detail in _begins_and_ends(part):
                packet = builder.create_packet()
                packet.timestamp = base + time
                packet.trusted_packet_sequence_id = _SEQUENCE
                if first:
                    packet.sequence_flags, first = _INCREMENTAL_CLEARED, False
                event = packet.track_event
                event.track_uuid = track
                event.type = TrackEvent.TYPE_SLICE_END if is_end else TrackEvent.TYPE_SLICE_BEGIN
                if not is_end:
                    event.name = name
                    event.categories.append(category)
                    if detail:
                        note = event.debug_annotations.add()
                        note.name, note.string_value = "detail", detail
                builder.write_packet(packet)
    return rows.height


def _slices(trace: Trace, added: pl.DataFrame) -> pl.DataFrame:
    parts = [
        added.select(
            "rank",
            "start_ns",
            "dur_ns",
            "name",
            "detail",
            group=pl.lit("llmprof"),
            row="track",
            category=pl.lit("llmprof"),
            place=pl.col("track").replace_strict(
                {track: n for n, track in enumerate(_OWN_ORDER)},
                default=len(_OWN_ORDER),
                return_dtype=pl.Int32,
            ),
        )
    ]
    for table, row, group in _SPANS:
        if not trace.has(table):
            continue
        frame = trace.table(table)
        on_device = pl.col("on_device") if table == "markers" else pl.lit(value=group == "device")
        number = (
            pl.coalesce(pl.when(on_device).then("stream"), row)
            if table == "markers"
            else pl.col(row)
        )
        row_kind = pl.when(on_device).then(pl.lit("stream")).otherwise(pl.lit("thread"))
        parts.append(
            frame.select(
                "rank",
                "start_ns",
                "dur_ns",
                "name",
                detail=pl.col("domain") if table == "markers" else pl.lit(None, pl.String),
                group=pl.when(on_device).then(pl.lit("device")).otherwise(pl.lit("host")),
                category=pl.lit(_CATEGORIES[table]),
                row=pl.concat_str(
                    pl.lit("marks, ") if table == "markers" else pl.lit(""),
                    row_kind,
                    pl.lit(" "),
                    number.cast(pl.String).fill_null("?"),
                ),
                place=pl.lit(10 if group == "device" else 20, dtype=pl.Int32),
            )
        )
    return pl.concat(parts, how="diagonal_relaxed").filter(pl.col("rank") >= 0)


def _lanes(rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``lane``: 0, or higher if a slice overlaps an earlier slice of its row without being
    nested in it.
    """
    key = ["rank", "place", "group", "row"]
    rows = rows.sort(
        *key, "start_ns", "dur_ns", descending=[False] * 5 + [True], maintain_order=True
    )
    done, remaining, lane = [], rows, 0
    while remaining.height:
        # the enclosing slice is the open one that began last; it ends with this one or later
        crosses = _crossing(remaining.with_columns(_end=END), key)
        done.append(remaining.filter(~crosses).with_columns(lane=pl.lit(lane, dtype=pl.Int32)))
        remaining, lane = remaining.filter(crosses), lane + 1
    placed = pl.concat(done) if done else rows.with_columns(lane=pl.lit(0, dtype=pl.Int32))
    return placed.sort(*key, "lane", "start_ns", maintain_order=True)


def _crossing(rows: pl.DataFrame, key: list[str]) -> pl.Series:
    """Whether each slice overlaps an earlier one without being nested in it."""
    crosses = []
    stack: list[int] = []
    last: Any = None
    for *track, start, end in rows.select(*key, "start_ns", "_end").iter_rows():
        if track != last:
            stack, last = [], track
        while stack and stack[-1] <= start:
            stack.pop()
        crosses.append(bool(stack) and end > stack[-1])
        if not crosses[-1]:
            stack.append(end)
    return pl.Series(crosses, dtype=pl.Boolean)


def _begins_and_ends(part: pl.DataFrame) -> Iterator[tuple[int, bool, str, str, str | None]]:
    """Begins and ends of nested slices in the order of time."""
    stack: list[int] = []
    for start, dur, name, category, detail in part.select(
        "start_ns", "dur_ns", "name", "category", "detail"
    ).iter_rows():
        while stack and stack[-1] <= start:
            yield stack.pop(), True, "", "", None
        yield start, False, name, category, detail
        stack.append(start + dur)
    while stack:
        yield stack.pop(), True, "", "", None
