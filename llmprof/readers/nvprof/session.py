"""Sessions of nvprof and the Visual Profiler: SQLite with CUPTI's records, names by number in ``StringTable``.

Calls are numbered (``cbid``) and not named; only the numbers whose names are sure are named here. Times are ns since
the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import Part
from llmprof.storage import sqlite

_KERNELS: Final = ("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", "CUPTI_ACTIVITY_KIND_KERNEL")
_COPIES: Final = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMCPY2")
_CALLS: Final = {"CUPTI_ACTIVITY_KIND_RUNTIME": "runtime", "CUPTI_ACTIVITY_KIND_DRIVER": "driver"}

_NAMED_CALLS: Final = {
    ("runtime", 13): "cudaLaunch",
    ("runtime", 164): "cudaDeviceReset",
    ("runtime", 211): "cudaLaunchKernel",
    ("driver", 307): "cuLaunchKernel",
}
"""Calls by their number in CUPTI's lists of callbacks, as far as they were checked."""

# CUPTI's CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind
_COPY_KINDS: Final = {
    1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD", 8: "DtoD", 9: "HtoH", 10: "PtoP",
}  # fmt: skip
_MEMORY_KINDS: Final = {1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed"}

_SHAPE: Final = {
    "gridX": "grid_x", "gridY": "grid_y", "gridZ": "grid_z", "blockX": "block_x", "blockY": "block_y",
    "blockZ": "block_z", "registersPerThread": "registers",
}  # fmt: skip


def is_session(path: Path) -> bool:
    """Whether an SQLite file is a session of nvprof: names are in its ``StringTable``, not in ``StringIds``."""
    with sqlite.connect(path) as connection:
        names = sqlite.tables(connection)
    return (
        "StringTable" in names
        and "StringIds" not in names
        and any(name.startswith("CUPTI_ACTIVITY_KIND_") for name in names)
    )


def read(path: Path) -> list[Part]:
    """Read one session.

    Returns
    -------
    list of Part
        One, with absolute times.

    Raises
    ------
    ReadError
        There is neither device work nor a call in it.
    """
    with sqlite.connect(path) as connection:
        there = sqlite.tables(connection)
    texts = sqlite.read(path, "StringTable", {"_id_": pl.Int64(), "value": pl.String()})
    session = _Session(path, there, dict(texts.iter_rows()))
    tables = {
        "kernels": session.kernels(),
        "copies": session.copies(),
        "runtime": session.calls(),
        "markers": session.markers(),
    }
    recorded = {name: frame for name, frame in tables.items() if frame is not None}
    rows = sum(frame.height for frame in recorded.values())
    if not rows:
        raise ReadError(
            f"{path.name} holds no kernel, copy or call",
            expected="a session of nvprof with CUDA activity",
            hint="record again with nsys profile -t cuda,nvtx",
        )
    coverage = {
        "file": path.name,
        "events": rows + session.lost,
        "kept": rows,
        "bytes": path.stat().st_size,
        "notes": session.notes(),
    }
    head = {"devices": session.devices(), "versions": {}, "options": {}}
    return [Part(path, recorded, head, coverage)]


class _Session:
    """A file with its tables."""

    def __init__(self, path: Path, there: dict[str, list[str]], texts: dict[int, str]) -> None:
        self.path, self.there, self.texts = path, there, texts
        self.lost = 0
        self.unnamed = 0

    def notes(self) -> list[str]:
        """What was lost or cannot be told, in words."""
        out = [f"{self.lost:,} record(s) without a whole time were left out"] if self.lost else []
        if self.unnamed:
            out.append(f"{self.unnamed:,} call(s) have numbers and no names in the file: they are called by them")
        return out

    def _rows(self, table: str, wanted: Mapping[str, pl.DataType]) -> pl.DataFrame | None:
        if table not in self.there:
            return None
        frame = sqlite.read(self.path, table, wanted)
        missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in wanted.items() if name not in frame.columns]
        return frame.with_columns(missing)

    def _timed(self, frame: pl.DataFrame) -> pl.DataFrame:
        whole = frame.filter((pl.col("start") > 0) & (pl.col("end") >= pl.col("start")))
        self.lost += frame.height - whole.height
        return whole.with_columns(start_ns="start", dur_ns=pl.col("end") - pl.col("start"))

    def _named(self, frame: pl.DataFrame, column: str, default: str) -> pl.Expr:
        return pl.col(column).replace_strict(self.texts, default=default, return_dtype=pl.String)

    def kernels(self) -> pl.DataFrame | None:
        """Kernels, serial ones too."""
        numbers = (
            "start", "end", "deviceId", "streamId", "correlationId", "name", "staticSharedMemory",
            "dynamicSharedMemory", *_SHAPE,
        )  # fmt: skip
        matching = [rows for t in _KERNELS if (rows := self._rows(t, dict.fromkeys(numbers, pl.Int64()))) is not None]
        if not matching:
            return None
        rows = self._timed(pl.concat(matching))
        return rows.select(
            "start_ns", "dur_ns", name=self._named(rows, "name", "unnamed kernel"), device="deviceId",
            stream="streamId", correlation="correlationId",
            shared_bytes=pl.sum_horizontal("staticSharedMemory", "dynamicSharedMemory"),
            **{new: pl.col(old) for old, new in _SHAPE.items()},
        )  # fmt: skip

    def copies(self) -> pl.DataFrame | None:
        """Copies, between devices too, and memory sets."""
        columns = {
            **dict.fromkeys(("start", "end", "deviceId", "streamId", "correlationId", "bytes"), pl.Int64()),
            **dict.fromkeys(("copyKind", "srcKind", "dstKind"), pl.Int64()),
        }
        parts = []
        for table in _COPIES:
            rows = self._rows(table, columns)
            if rows is not None:
                kind = pl.col("copyKind").replace_strict(_COPY_KINDS, default="unknown", return_dtype=pl.String)
                parts.append(self._timed(rows).with_columns(kind=kind))
        sets = self._rows(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            {**dict.fromkeys(("start", "end", "deviceId", "streamId", "correlationId", "bytes"), pl.Int64())},
        )
        if sets is not None:
            parts.append(self._timed(sets).with_columns(kind=pl.lit("memset")))
        if not parts:
            return None
        rows = pl.concat(parts, how="diagonal_relaxed")
        rows = rows if "srcKind" in rows.columns else rows.with_columns(srcKind=None, dstKind=None)
        ends = {
            new: pl.col(old).cast(pl.Int64).replace_strict(_MEMORY_KINDS, default=None, return_dtype=pl.String)
            for new, old in (("src_kind", "srcKind"), ("dst_kind", "dstKind"))
        }
        name = (
            pl.when(pl.col("kind") == "memset")
            .then(pl.lit("[CUDA memset]"))
            .otherwise(pl.format("[CUDA memcpy {}]", "kind"))
        )
        return rows.select(
            "start_ns", "dur_ns", "kind", "bytes", name=name, device="deviceId", stream="streamId",
            correlation="correlationId", **ends,
        )  # fmt: skip

    def calls(self) -> pl.DataFrame | None:
        """Calls of the runtime and the driver."""
        parts = []
        for table, api in _CALLS.items():
            columns = ("cbid", "start", "end", "processId", "threadId", "correlationId")
            rows = self._rows(table, dict.fromkeys(columns, pl.Int64()))
            if rows is None:
                continue
            known = {cbid: name for (of, cbid), name in _NAMED_CALLS.items() if of == api}
            named = pl.col("cbid").replace_strict(known, default=None, return_dtype=pl.String)
            rows = self._timed(rows).with_columns(named=named)
            self.unnamed += rows["named"].null_count()
            name = pl.coalesce("named", pl.format(f"{api} call {{}}", pl.col("cbid").fill_null(-1)))
            parts.append(
                rows.select(
                    "start_ns", "dur_ns", name=name, api=pl.lit(api), process="processId", thread="threadId",
                    correlation="correlationId",
                )
            )  # fmt: skip
        return pl.concat(parts) if parts else None

    def markers(self) -> pl.DataFrame | None:
        """NVTX ranges: a record where one begins and one where it ends, joined by their number."""
        columns = {**dict.fromkeys(("flags", "timestamp", "id", "name"), pl.Int64())}
        rows = self._rows("CUPTI_ACTIVITY_KIND_MARKER", columns)
        if rows is None:
            return None
        # CUpti_ActivityFlag: 1 a mark, 2 begin and 4 end of a range
        begins = rows.filter(pl.col("flags").cast(pl.Int64) & 2 != 0)
        ends = rows.filter(pl.col("flags").cast(pl.Int64) & 4 != 0).select("id", end="timestamp")
        marks = rows.filter(pl.col("flags").cast(pl.Int64) & 1 != 0).with_columns(end="timestamp")
        both = begins.join(ends.unique("id"), on="id", how="inner").select(*rows.columns, "end")
        self.lost += begins.height - both.height
        whole = self._timed(pl.concat([both, marks.select(both.columns)]).rename({"timestamp": "start"}))
        return whole.select(
            "start_ns", "dur_ns", name=self._named(whole, "name", "unnamed range"), domain=pl.lit("nvtx"),
            on_device=pl.lit(value=False),
        )  # fmt: skip

    def devices(self) -> list[str]:
        """Names of the devices."""
        rows = self._rows("CUPTI_ACTIVITY_KIND_DEVICE", {"name": pl.Int64()})
        return [] if rows is None else sorted({self.texts[n] for n in rows["name"].to_list() if n in self.texts})
