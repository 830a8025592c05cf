"""Where the tables of an Nsight Systems export lie: an SQLite file, or a folder with a Parquet file a table."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import polars as pl

from llmprof import sqlite
from llmprof.errors import NotCapturedError, OutputError, ReadError

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
    """Whether a file is an SQLite database with tables of nsys."""
    with path.open("rb") as file:
        if file.read(len(sqlite.MAGIC)) != sqlite.MAGIC:
            return False
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
