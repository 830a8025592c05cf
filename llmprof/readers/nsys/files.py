"""Files of Nsight Systems: reports, and exports as SQLite, Parquet and Arrow, each with its tables."""

from __future__ import annotations

import io
import re
import shutil
import struct
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import NotCapturedError, OutputError, ReadError
from llmprof.storage import sqlite
from llmprof.storage.files import regular

REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
"""Suffixes of reports of nsys; the second one is that of versions before 2021.4."""

FOLDER_ENDINGS: Final = {"_pqtdir": "parquet", "_arwdir": "arrow"}
"""Kind of the files in a folder that nsys exported, by the end of the folder's name."""

ARROW_SUFFIX: Final = ".arrows"
"""Suffix of an export with all tables as Arrow streams, one after another."""

_PLACES: Final = ("opt/nvidia/nsight-systems*/*/bin/nsys", "opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
                  "usr/local/cuda*/bin/nsys", "opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Systems/bin/nsys")  # fmt: skip
"""Patterns of the places where NVIDIA's installers put nsys."""


class SqliteTables:
    """Tables of an SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite.connect(path) as connection:
            self.columns = sqlite.tables(connection)

    def read(self, table: str, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
        """Existing columns of a table, cast to the given types; empty text becomes null."""
        return sqlite.read(self.path, table, types)


class FolderTables:
    """Tables of a folder that ``nsys export --type parquetdir`` or ``--type arrowdir`` wrote."""

    def __init__(self, folder: Path) -> None:
        kinds = tuple(f".{kind}" for kind in FOLDER_ENDINGS.values())
        files = sorted(p for p in folder.iterdir() if p.suffix in kinds)
        self._sources: dict[str, Path | bytes] = {p.stem: regular(p) for p in files}
        self.columns = _columns(self._sources)

    def read(self, table: str, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
        """Existing columns of a table, cast to the given types; empty text becomes null."""
        own = {name: spelled for name in types if (spelled := self.columns[table].spelled(name))}
        present = {name: types[name] for name in own}
        source, columns = self._sources[self.columns.spelled(table) or table], list(own.values())
        with _damage(table):
            if isinstance(source, Path) and source.suffix == ".parquet":
                frame = pl.scan_parquet(source).select(columns).collect()
            else:
                frame = pl.read_ipc_stream(_stream(source), columns=columns)
        frame = frame.rename(dict(zip(own.values(), own, strict=True)))
        return frame.select(
            pl.when(pl.col(name).cast(pl.String) != "").then(pl.col(name).cast(pl.String)).alias(name)
            if dtype == pl.String()
            else pl.col(name).cast(dtype, strict=False)
            for name, dtype in present.items()
        )


class ArrowTables(FolderTables):
    """Tables of a file that ``nsys export --type arrow`` wrote: one Arrow stream after another."""

    def __init__(self, path: Path) -> None:
        self._sources = dict(_streams(regular(path).read_bytes()))
        self.columns = _columns(self._sources)


def _columns(sources: Mapping[str, Path | bytes]) -> sqlite.Tables:
    columns = {}
    for table, source in sources.items():
        with _damage(table):
            if isinstance(source, Path) and source.suffix == ".parquet":
                columns[table] = list(pl.read_parquet_schema(source))
            else:
                columns[table] = pl.read_ipc_stream(_stream(source), n_rows=0).columns
    return sqlite.Tables(columns)


def _stream(source: Path | bytes) -> Path | io.BytesIO:
    return source if isinstance(source, Path) else io.BytesIO(source)


@contextmanager
def _damage(table: str) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise ReadError(f"the table {table} is damaged: {error}", hint="export the report again") from error


_MOST_SCHEMA_BYTES: Final = 1 << 16
_CONTINUES: Final = b"\xff\xff\xff\xff"
_TABLE_NAMES: Final = (
    re.compile(rb"table_name\0+(.)\0\0\0([A-Za-z]\w*)\0", re.DOTALL),
    re.compile(rb"(.)\0\0\0([A-Za-z]\w*)\0+\n\0\0\0table_name", re.DOTALL),
)
"""Patterns of the name of a table after its length; nsys writes the name after or before its key."""


def _streams(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each Arrow stream; the name of the table is in the metadata of the stream's schema.

    A stream is a list of messages up to one of length 0. A message is a mark, the length of a flatbuffer, the
    flatbuffer, and a body whose length is in the flatbuffer:
    https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format.
    """
    position = begin = 0
    while position + 8 <= len(data) and data[position : position + 4] == _CONTINUES:
        size = struct.unpack_from("<i", data, position + 4)[0]
        message, position = position + 8, position + 8 + max(size, 0)
        if size > 0:
            position += _body_length(data, message, size)
            continue
        head = data[begin : min(begin + _MOST_SCHEMA_BYTES, position)]
        matching = [
            match for pattern in _TABLE_NAMES if (match := pattern.search(head)) and match[1][0] == len(match[2])
        ]
        if matching:
            yield matching[0][2].decode(), data[begin:position]
        begin = position


def _body_length(data: bytes, offset: int, size: int) -> int:
    """Field ``bodyLength`` (the fourth) of the flatbuffer ``Message``."""
    try:
        table = offset + struct.unpack_from("<I", data, offset)[0]
        fields = table - struct.unpack_from("<i", data, table)[0]
        place = (
            struct.unpack_from("<H", data, fields + 4 + 2 * 3)[0]
            if struct.unpack_from("<H", data, fields)[0] > 10
            else 0
        )
        return max(0, int(struct.unpack_from("<q", data, table + place)[0])) if place else 0
    except struct.error as error:
        raise ReadError(
            f"the Arrow file is damaged at byte {offset:,}",
            expected=f"a message of {size:,} bytes",
            hint="export it again",
        ) from error


def open_tables(path: Path) -> SqliteTables | FolderTables:
    """Tables of an export."""
    if path.is_dir():
        return FolderTables(path)
    return ArrowTables(path) if path.suffix == ARROW_SUFFIX else SqliteTables(path)


def is_parquetdir(path: Path) -> bool:
    """Whether a folder is an export of nsys as Parquet files."""
    return path.is_dir() and any((path / f"{name}.parquet").exists() for name in ("StringIds", "NVTX_EVENTS"))


def is_folder_export(path: Path) -> bool:
    """Whether a folder is an export of nsys as Parquet or Arrow files."""
    names = [f"{table}.{kind}" for table in ("StringIds", "NVTX_EVENTS") for kind in FOLDER_ENDINGS.values()]
    return path.is_dir() and any((path / name).exists() for name in names)


def is_arrow_export(start: bytes) -> bool:
    """Whether a file begins as an export of nsys in Arrow streams."""
    return start.startswith(_CONTINUES) and b"table_name" in start


def is_nvprof(tables: Collection[str]) -> bool:
    """Whether the tables of a database are those of nvprof (``.nvvp``), the predecessor of nsys."""
    return "StringTable" in tables and "CUPTI_ACTIVITY_KIND_DRIVER" in tables and "StringIds" not in tables


_CUPTI: Final = re.compile(r"CUPTI_ACTIVITY\w*", re.IGNORECASE)


def is_nsys_sqlite(path: Path) -> bool:
    """Whether an SQLite database has tables of nsys."""
    with sqlite.connect(path) as connection:
        names = sqlite.tables(connection)
    known = "StringIds" in names or "NVTX_EVENTS" in names
    return known or bool(names.matching(_CUPTI) or names.refused)


def find_nsys() -> str | None:
    """The ``nsys`` on PATH, else the newest one in the usual places of NVIDIA's installers; None if there is none."""
    on_path = shutil.which("nsys")
    if on_path is not None:
        return on_path
    usual = [str(path) for place in _PLACES for path in Path("/").glob(place) if shutil.which(path)]
    return max(usual, key=lambda path: [int(n) for n in re.findall(r"\d+", path)], default=None)


def export(report: Path, folder: Path) -> Path:
    """Export a report to SQLite with the ``nsys`` that :func:`find_nsys` finds."""
    nsys = find_nsys()
    if nsys is None:
        raise NotCapturedError(
            f"{report.name} is a report that only nsys can open, and there is no nsys on PATH "
            "or in the folders of its installers",
            hint="install Nsight Systems (package nsight-systems-cli of NVIDIA, or with the CUDA toolkit), "
            f"or export the report on a machine with nsys: nsys export --type sqlite {report.name}",
        )
    target = folder / f"{report.stem}.sqlite"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
    command = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(target), str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (no shell)
    if done.returncode or not target.exists():
        message = (done.stderr or done.stdout).strip().splitlines()
        raise ReadError(
            f"nsys could not export {report.name} (status {done.returncode}): "
            f"{message[-1] if message else 'no message'}",
            hint="a report needs an nsys at least as new as the one that wrote it",
        )
    return target
