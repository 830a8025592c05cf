"""An export of Nsight Systems: what it says of itself, and its tables with texts and times."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers._nsys_files import open_tables
from llmprof.readers._wanted import Wanted

NEWEST_SCHEMA = (3, 25)
"""Newest schema that was tried; a newer one is read with a warning."""

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75
# 70 and 71 come from nvtxt files that were merged in
STYLES = {PUSH_POP: "PushPop", START_END: "StartEnd", MARK: "Mark", 70: "PushPop", 71: "StartEnd"}
RANGES = tuple(STYLES)

KERNEL_COLUMNS = {
    "streamId": "stream", "correlationId": "correlation", "graphNodeId": "graph_node", "gridX": "grid_x",
    "gridY": "grid_y", "gridZ": "grid_z", "blockX": "block_x", "blockY": "block_y", "blockZ": "block_z",
    "registersPerThread": "registers",
}  # fmt: skip
_TYPES = dict.fromkeys(("deviceId", *(c for c in KERNEL_COLUMNS if c[:4] in ("grid", "bloc", "regi"))), pl.Int32())
"""What the schema keeps in four bytes, read as that."""
TIMES = {"start_ns": "start_ns", "dur_ns": "dur_ns", "time_ns": "time_ns"}


class Export:
    """One file: which tables it has, and its frames with a column ``pid`` (nsys's global process id)."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self.path = path
        self.wanted = wanted
        self._tables = open_tables(path)
        self.columns = self._tables.columns
        if not {"StringIds", KERNEL, RUNTIME, "NVTX_EVENTS"} & set(self.columns):
            raise ReadError(
                f"{path.name} is no export of Nsight Systems: its tables are {sorted(self.columns)[:6]}",
                expected="StringIds and CUPTI_ACTIVITY_KIND_* or NVTX_EVENTS",
                hint="export the report with nsys export --type sqlite",
            )
        self.meta = self._pairs("META_DATA_EXPORT") | self._pairs("EXPORT_META_DATA")
        self.start_ns = self._start()
        self._strings: pl.DataFrame | None = None
        schema = tuple(int(n) for n in re.findall(r"\d+", str(self.meta.get("EXPORT_SCHEMA_VERSION", "")))[:2])
        self.notes: list[str] = []
        if schema > NEWEST_SCHEMA:
            self.notes.append(
                f"its schema {_dotted(schema)} is newer than {_dotted(NEWEST_SCHEMA)}, the newest that was tried: "
                "what is known is read; compare the counts with nsys stats"
            )
        if KERNEL not in self.columns and GRAPH in self.columns:
            self.notes.append(
                "CUDA graphs were recorded as wholes, their kernels are not in it; record with --cuda-graph-trace=node"
            )

    def _pairs(self, table: str) -> dict[str, str]:
        found = self._read(table, text=("name", "value"))
        return {} if found is None or found.width < 2 else dict(found.drop_nulls().iter_rows())

    def _start(self) -> int:
        found = self._read("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
        return 0 if found is None or not found.height else int(found.item(0, 0) or 0)

    def _read(self, table: str, *wanted: str, text: tuple[str, ...] = ()) -> pl.DataFrame | None:
        """Columns of a table; None if it is absent or lacks the first of them."""
        if (wanted or text)[0] not in self.columns.get(table, []):
            return None
        types = {name: _TYPES.get(name, pl.Int64()) for name in wanted} | dict.fromkeys(text, pl.String())
        return self._tables.read(table, types)

    @property
    def strings(self) -> pl.DataFrame:
        """Texts by id."""
        if self._strings is None:
            found = self._read("StringIds", "id", text=("value",))
            self._strings = pl.DataFrame(schema={"id": pl.Int64, "value": pl.String}) if found is None else found
        return self._strings

    def _texts(self, frame: pl.DataFrame, *ids: str, cut: str = "") -> pl.DataFrame:
        """Add ``name``: the text of the first of the id columns that has one, without what matches ``cut``; or null."""
        value = pl.col("value").str.replace(cut, "") if cut else pl.col("value")
        for column in (c for c in ids if c in frame.columns):
            more = "name" in frame.columns
            texts = self.strings.select(pl.col("id").alias(column), value.alias("_other" if more else "name"))
            frame = frame.join(texts, on=column, how="left", maintain_order="left")
            if more:
                frame = frame.with_columns(name=pl.coalesce("name", "_other")).drop("_other")
            if not frame["name"].null_count():
                return frame
        return frame if "name" in frame.columns else frame.with_columns(name=pl.lit(None, dtype=pl.String))

    def _named(self, frame: pl.DataFrame, *ids: str, default: str, cut: str = "") -> pl.DataFrame:
        """Add ``name`` as :meth:`_texts` does, with a default."""
        frame = self._texts(frame, *ids, cut=cut)
        return frame.with_columns(pl.col("name").fill_null(default)) if frame["name"].null_count() else frame

    def _times(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(
            start_ns=pl.col("start") + self.start_ns, dur_ns=(pl.col("end") - pl.col("start")).clip(0)
        ).drop("start", "end")


def rename(frame: pl.DataFrame, names: dict[str, str]) -> pl.DataFrame:
    return frame.select(pl.col(old).alias(new) for old, new in names.items() if old in frame.columns)


def with_columns_of(frame: pl.DataFrame, columns: tuple[str, ...]) -> pl.DataFrame:
    """The frame with missing columns as nulls."""
    return frame.with_columns(pl.lit(None, dtype=pl.Int64).alias(c) for c in columns if c not in frame.columns)


def threads(frame: pl.DataFrame) -> pl.DataFrame:
    """Parts of nsys's global thread id: host 16, process 24 and thread 24 bits."""
    tid = pl.col("globalTid")
    return frame.with_columns(
        pid=(tid // (1 << 24)) * (1 << 24), process=(tid // (1 << 24)) % (1 << 24), thread=tid % (1 << 24)
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
