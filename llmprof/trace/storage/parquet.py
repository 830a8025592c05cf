"""Saved traces: a folder with one Parquet file per table and a file of metadata, written whole
or not at all.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict

import msgspec
import polars as pl
from isal import isal_zlib

from llmprof.errors import OutputError, ReadError, SchemaError, listed
from llmprof.trace import schema
from llmprof.trace.storage.files import as_the_user_would, checksum, regular
from llmprof.trace.storage.typed import read

META_FILE = "llmprof.json"
"""File with the metadata of a saved trace, by which a folder is recognised as one."""

_AGAIN = "read the profiler's own file again"


def write(
    tables: Mapping[str, pl.DataFrame],
    meta: Mapping[str, Any],
    coverage: Mapping[str, Any],
    folder: Path,
) -> None:
    """Write tables and metadata; a folder with a saved trace and nothing else is replaced."""
    place = folder.resolve()
    try:
        _check_replaceable(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    except OSError as error:
        raise OutputError(f"cannot write to {folder.parent}: {error.strerror or error}") from error
    try:
        for name, frame in tables.items():
            frame.write_parquet(work / f"{name}.parquet", compression="zstd")
        rows = {name: frame.height for name, frame in tables.items()}
        checksums = {name: checksum(work / f"{name}.parquet") for name in tables}
        head = {
            "schema": schema.VERSION,
            "tables": rows,
            "checksums": checksums,
            "meta": meta,
            "coverage": coverage,
        }
        write_head(work, head)
        as_the_user_would(work)
        _put(work, place)
    except (OSError, pl.exceptions.PolarsError) as error:  # error of Polars when the disk is full
        message = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot write the trace to {folder}: {message}") from error
    except TypeError as error:
        raise OutputError(
            f"meta or coverage of the trace cannot be saved: {error}", expected="JSON types"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def load(folder: Path) -> tuple[dict[str, pl.DataFrame], dict[str, Any], dict[str, Any]]:
    """Tables, metadata and coverage that :func:`write` wrote."""
    if not (folder / META_FILE).exists():
        raise ReadError(f"{folder} holds no saved trace", expected=f"a folder with {META_FILE}")
    head = read(folder / META_FILE, dict[str, Any], hint=_AGAIN)
    version = head.get("schema")
    if version != schema.VERSION:
        raise ReadError(
            f"{folder} was saved with schema {version}",
            expected=f"schema {schema.VERSION}",
            hint=_AGAIN,
        )
    if head.pop("checksum", None) != _checksum_of_head(head):
        raise ReadError(f"{folder} is damaged: {META_FILE} is not as it was written", hint=_AGAIN)
    try:
        rows, meta, coverage = head["tables"], head["meta"], head["coverage"]
        check_head(folder, meta, coverage)
        for name in rows:
            if checksum(folder / f"{name}.parquet") != head["checksums"][name]:
                raise ReadError(
                    f"{folder} is damaged: {name}.parquet is not as it was written", hint=_AGAIN
                )
        columns = coverage.get("asked") or {}
        tables = {
            name: schema.conform(
                pl.read_parquet(folder / f"{name}.parquet"), name, columns.get(name)
            )
            for name in rows
        }
        present = {path.stem for path in folder.glob("*.parquet")} & set(schema.TABLES)
    except (
        pl.exceptions.PolarsError,
        OSError,
        KeyError,
        TypeError,
        AttributeError,
        SchemaError,
    ) as error:
        raise ReadError(f"{folder} is damaged: {error}", hint=_AGAIN) from error
    if (counted := {name: frame.height for name, frame in tables.items()}) != rows:
        raise ReadError(
            f"{folder} is damaged: it has {listed(counted)} rows", expected=f"{rows}", hint=_AGAIN
        )
    if unnamed := ", ".join(f"{name}.parquet" for name in sorted(present - set(rows))):
        found = f"{folder} is damaged: {META_FILE} does not name {unnamed}"
        raise ReadError(found, expected="the folder as Trace.save wrote it", hint=_AGAIN)
    return tables, meta, coverage


def write_head(folder: Path, head: Mapping[str, Any]) -> None:
    """Write the metadata of a saved trace with a checksum of its values."""
    plain = json.loads(json.dumps(head))
    plain["checksum"] = _checksum_of_head(plain)
    (folder / META_FILE).write_text(json.dumps(plain, indent=1), encoding="utf-8")


def _checksum_of_head(head: Mapping[str, Any]) -> int:
    return isal_zlib.crc32(json.dumps(head).encode())


def pack_trace(
    tables: Mapping[str, pl.DataFrame], meta: Mapping[str, Any], coverage: Mapping[str, Any]
) -> bytes:
    """Zip archive of a saved trace, which can be embedded in another file."""
    buffer = io.BytesIO()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "trace")
        write(tables, meta, coverage, folder)
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            for path in sorted(folder.iterdir()):
                archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes())
    return buffer.getvalue()


def unpack_trace(data: bytes) -> tuple[dict[str, pl.DataFrame], dict[str, Any], dict[str, Any]]:
    """Tables, metadata and coverage from an archive that :func:`pack_trace` made."""
    allowed = {META_FILE, *(f"{name}.parquet" for name in schema.TABLES)}
    with tempfile.TemporaryDirectory() as place:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for member in archive.infolist():
                    if member.filename not in allowed or member.compress_type != zipfile.ZIP_STORED:
                        raise ReadError(
                            "the archive is not a saved trace",
                            expected=f"{META_FILE} and Parquet files",
                        )
                    Path(place, member.filename).write_bytes(archive.read(member))
        except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
            raise ReadError(
                f"the archive of the saved trace is damaged: {error}", hint=_AGAIN
            ) from error
        return load(Path(place))


_SEAL: Final = b"LPcs"
"""Before the checksum of a sealed file, which lies between the rows and the footer: no reader
looks there.
"""
_TAIL: Final = 8
"""Bytes of the length of the footer and the mark after it."""


def sealed(rows: pl.DataFrame, metadata: dict[str, str] | None = None) -> bytes:
    """A frame as Parquet with a checksum:

    Polars takes a flipped bit for a value, or aborts the process on it.
    """
    made = io.BytesIO()
    rows.write_parquet(made, compression="zstd", metadata=metadata)
    data = made.getvalue()
    at = _footer(data)
    return data[:at] + _SEAL + isal_zlib.crc32(data).to_bytes(4, "little") + data[at:]


def unsealed(path: Path) -> bytes:
    """The Parquet of a sealed file, if it is as it was written; a file without a seal as it is."""
    try:
        data = regular(path).read_bytes()
    except OSError as error:
        raise ReadError(
            f"{path} cannot be read: {error.strerror or error}", path=str(path)
        ) from error
    at = max(_footer(data) - len(_SEAL) - 4, 0)
    seal, plain = data[at : at + 8], data[:at] + data[at + 8 :]
    if not seal.startswith(_SEAL):
        return data
    if seal[4:] != isal_zlib.crc32(plain).to_bytes(4, "little"):
        raise ReadError(f"{path} is damaged: it is not as it was written", path=str(path))
    return plain


def read_frame(path: Path) -> pl.DataFrame:
    """Rows of a file with or without a seal."""
    data = unsealed(path)
    try:
        return pl.read_parquet(data)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ReadError(f"{path} is damaged: {str(error).strip()[:200]}", path=str(path)) from error


def _footer(data: bytes) -> int:
    return len(data) - _TAIL - int.from_bytes(data[-_TAIL:-4], "little")


class _RankMeta(TypedDict):
    rank: int
    devices: NotRequired[list[str | int] | None]
    groups: NotRequired[dict[str, list[int]] | None]


class _Meta(TypedDict, total=False):
    device: str | None
    format: str | None
    clock: str | None
    world_size: int | None
    start_epoch_ns: int | float | None
    missing_ranks: list[int]
    versions: dict[str, str | int | float | None] | None
    ranks: list[_RankMeta]


class _FileCounts(TypedDict, total=False):
    rank: int | None
    events: int | None
    kept: int | None
    bytes: int | None
    lost_bytes: int
    lost_pieces: int
    truncated: str | None
    skipped: dict[str, int] | None
    notes: list[str]


class _Coverage(TypedDict, total=False):
    files: list[_FileCounts] | None
    warnings: list[str] | None
    asked: dict[str, list[str] | None] | None
    events: int | None
    kept: int
    bytes: int | None
    lost_bytes: int
    lost_pieces: int


class _Head(TypedDict):
    """Types of the metadata and the coverage that are relied on; there may be more."""

    meta: _Meta
    coverage: _Coverage


def check_head(source: str | Path, meta: object, coverage: object) -> None:
    """Raise unless the metadata and the coverage of a file have the types that are relied on."""
    try:
        msgspec.convert({"meta": meta, "coverage": coverage}, _Head)
    except ValueError as error:
        raise ReadError(f"{source} is damaged: {error}", hint=_AGAIN) from error


def _check_replaceable(folder: Path) -> None:
    """Raise unless the path is free, an empty folder, or holds a saved trace and nothing else."""
    if not folder.exists():
        return
    hint = "choose another folder or remove this one"
    if not folder.is_dir():
        raise OutputError(f"{folder} exists and is not a folder", hint=hint)
    names = {path.name for path in folder.iterdir()}
    if names and META_FILE not in names:
        raise OutputError(f"{folder} exists and is not a saved trace", hint=hint)
    if foreign := sorted(names - {META_FILE, *(f"{name}.parquet" for name in schema.TABLES)}):
        raise OutputError(
            f"{folder} holds a saved trace and other files: {', '.join(foreign[:5])}", hint=hint
        )


def _put(work: Path, place: Path) -> None:
    """Move a folder to its place; the old folder is removed only after that, and restored if the
    move fails.
    """
    try:
        work.replace(place)
    except OSError:
        if not place.exists():
            raise
    else:
        return
    old = work.with_name(f"{work.name}-old")
    place.replace(old)
    try:
        work.replace(place)
    except OSError:
        old.replace(place)
        raise
    shutil.rmtree(old, ignore_errors=True)
