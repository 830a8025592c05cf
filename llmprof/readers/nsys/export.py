"""An export of Nsight Systems: what it says of itself, and its tables with texts and times."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import polars as pl

from llmprof.errors import NotCapturedError, OutputError, ReadError
from llmprof.readers.common.part import Wanted
from llmprof.storage import sqlite

REPORT_SUFFIX = ".nsys-rep"


class Tables(Protocol):
    """Tables of an export: their columns, and frames of the columns that one wants."""

    columns: dict[str, list[str]]

    def read(self, table: str, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
        """Columns of a table that exist, in the types wanted; empty text is null."""
        ...


class SqliteTables:
    """Tables of an SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite.connect(path) as connection:
            self.columns = sqlite.tables(connection)

    def read(self, table: str, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
        """Columns of a table that exist, in the types wanted; empty text is null."""
        return sqlite.read(self.path, table, types)


class ParquetTables:
    """Tables of a folder that ``nsys export --type parquetdir`` wrote."""

    def __init__(self, folder: Path) -> None:
        self.files = {path.stem: path for path in sorted(folder.glob("*.parquet"))}
        try:
            self.columns = {name: list(pl.read_parquet_schema(path)) for name, path in self.files.items()}
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ReadError(
                f"{folder.name} has a damaged Parquet file: {error}", hint="export the report again"
            ) from error

    def read(self, table: str, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
        """Columns of a table that exist, in the types wanted; empty text is null."""
        present = {name: dtype for name, dtype in types.items() if name in self.columns[table]}
        try:
            frame = pl.scan_parquet(self.files[table]).select(list(present)).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ReadError(f"{table}.parquet is damaged: {error}", hint="export the report again") from error
        return frame.select(
            pl.when(pl.col(name).cast(pl.String) != "").then(pl.col(name).cast(pl.String)).alias(name)
            if dtype == pl.String()
            else pl.col(name).cast(dtype, strict=False)
            for name, dtype in present.items()
        )


def open_tables(path: Path) -> Tables:
    """Tables of an export.

    Parameters
    ----------
    path : pathlib.Path
        An SQLite file or a Parquet folder.

    Returns
    -------
    Tables
        The tables.

    Raises
    ------
    ReadError
        The file cannot be read.
    """
    return ParquetTables(path) if path.is_dir() else SqliteTables(path)


def is_parquetdir(path: Path) -> bool:
    """Whether a folder is an export of nsys as Parquet files."""
    return path.is_dir() and any((path / f"{name}.parquet").exists() for name in ("StringIds", "NVTX_EVENTS"))


def is_nsys_sqlite(path: Path) -> bool:
    """Whether an SQLite database has tables of nsys."""
    with sqlite.connect(path) as connection:
        names = sqlite.tables(connection)
    return "StringIds" in names or "NVTX_EVENTS" in names or any(name.startswith("CUPTI_ACTIVITY") for name in names)


def export(report: Path, folder: Path) -> Path:
    """Export a report to SQLite with the ``nsys`` on PATH.

    Parameters
    ----------
    report : pathlib.Path
        A ``.nsys-rep`` file.
    folder : pathlib.Path
        Where to write.

    Returns
    -------
    pathlib.Path
        The SQLite file.

    Raises
    ------
    NotCapturedError
        There is no ``nsys`` on PATH.
    ReadError
        It could not export the report.
    OutputError
        The folder cannot be written.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise NotCapturedError(
            f"{report.name} is in the profiler's own format, and there is no nsys on PATH to export it",
            hint="install Nsight Systems (package nsight-systems-cli of NVIDIA, or with the CUDA toolkit), "
            f"or export it where nsys is: nsys export --type sqlite {report.name}",
        )
    target = folder / f"{report.stem}.sqlite"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
    command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(target), str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (no shell)
    if done.returncode or not target.exists():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ReadError(
            f"nsys could not export {report.name} (status {done.returncode}): {said[-1] if said else 'no message'}",
            hint="a report needs an nsys at least as new as the one that wrote it",
        )
    return target


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
    """The columns that the frame has of those in ``names``, under their new names."""
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
