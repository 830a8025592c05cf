"""Dataset files: partitions of Parquet for the trace of many ranks, and a manifest.

A partition is a folder with one Parquet file for each table, sorted by time, and :data:`PART_FILE`, which says what it
is of: the head and the coverage of the file that was read, numbers of rows, and the time that it spans. The manifest,
:data:`MANIFEST`, holds the same of all partitions with what is known of the run, so that a dataset is opened by reading
one file. Delta Lake and Apache Iceberg do it alike: data files that nobody changes, small files that say what counts,
and names that appear when all is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof import schema
from llmprof.errors import OutputError, ReadError
from llmprof.storage.places import Place

MANIFEST: Final = "llmprof-dataset.json"
"""File by which a folder is recognised as a dataset."""

PART_FILE: Final = "part.json"
"""File of a partition that says what it is of; written last."""

VERSION: Final = 1
"""Raised when a dataset that this version writes could not be read by the one before."""

ROW_GROUP: Final = 1 << 16
"""Rows of a row group: what is read at once where only some of the times are wanted."""

AGAIN: Final = "convert the files again: llmprof convert PATH -o FOLDER"


class Stored(msgspec.Struct, frozen=True):
    """A table of a partition: its rows, the bytes of its file, and its columns."""

    rows: int
    bytes: int
    columns: tuple[str, ...]


class Partition(msgspec.Struct, frozen=True):
    """What one partition holds."""

    folder: str
    """Its name in the dataset: the key of what it was made of."""
    rank: int
    """Rank that its rows carry."""
    source: str
    """Path or URL of the file that it was made of."""
    stamp: str
    """Size and time of that file, and the options of its reading: by them it is known again without being read."""
    span_ns: tuple[int, int] | None
    """First start and last end of its events, on the clock of its file (ns)."""
    index: int = 0
    """Which of the partitions of its file it is …"""
    of: int = 1
    """… and of how many."""
    tables: dict[str, Stored] = {}
    collectives: int = 0
    """Rows that the table of collectives had when it was made."""
    head: dict[str, Any] = {}
    """What the file states."""
    coverage: dict[str, Any] = {}
    """Counts of the events and bytes that the reading kept and lost."""
    processes: tuple[int, ...] = ()
    """Processes of the host that it is of."""
    launches: bool = False
    """Whether it has calls that launch kernels."""
    version: int = VERSION
    schema: int = schema.VERSION


class Failed(msgspec.Struct, frozen=True):
    """A file that gave no partition, and why."""

    source: str
    why: str


class Manifest(msgspec.Struct, frozen=True):
    """What a dataset holds."""

    reader: str
    """Name of the format that was read."""
    origin_ns: int
    """Time on the clock of the files from which the times of the trace count (ns)."""
    tables: tuple[str, ...]
    """Tables that were recorded, with rows or without."""
    meta: dict[str, Any]
    coverage: dict[str, Any]
    partitions: tuple[Partition, ...]
    """In the order of their ranks."""
    failed: tuple[Failed, ...] = ()
    format: str = "llmprof.dataset"
    version: int = VERSION
    schema: int = schema.VERSION
    llmprof: str = ""
    """Version that wrote it."""


def write_partition(place: Place, partition: Partition, frames: Mapping[str, pl.DataFrame]) -> Partition:
    """Write a partition: it appears whole or not at all.

    Parameters
    ----------
    place : Place
        The dataset.
    partition : Partition
        What it is of; ``tables`` and ``span_ns`` are filled in here.
    frames : mapping of str to polars.DataFrame
        Its tables, conformed.

    Returns
    -------
    Partition
        With the rows and bytes of each table.

    Raises
    ------
    OutputError
        It cannot be written, for want of space among others; nothing of it stays.
    """
    with place.folder(partition.folder, last=PART_FILE) as work:
        stored = {}
        for name, frame in frames.items():
            file = work / f"{name}.parquet"
            try:
                frame.write_parquet(file, compression="zstd", statistics=True, row_group_size=ROW_GROUP)
            except pl.exceptions.PolarsError as error:  # of a full disk, too
                raise OutputError(
                    f"cannot write {name}.parquet of {partition.source}: {error}",
                    hint="free space where the dataset is, and convert again: what is done stays",
                ) from error
            stored[name] = Stored(frame.height, file.stat().st_size, tuple(frame.columns))
        partition = msgspec.structs.replace(partition, tables=stored)
        (work / PART_FILE).write_bytes(encode(partition))
    return partition


def read_partition(place: Place, folder: str) -> Partition | None:
    """What a partition holds; None where there is none, it is damaged, or another version wrote it."""
    content = place.read(f"{folder}/{PART_FILE}")
    if content is None:
        return None
    try:
        partition = msgspec.json.decode(content, type=Partition)
    except msgspec.DecodeError:
        return None
    if (partition.version, partition.schema) != (VERSION, schema.VERSION) or partition.folder != folder:
        return None
    return None if damage(place, partition) else partition


def damage(place: Place, partition: Partition) -> str:
    """What is missing of a partition, or of another size than it was written with; empty if nothing is."""
    sizes = place.sizes(partition.folder)
    if not sizes:
        return "its folder is missing"
    for name, stored in partition.tables.items():
        size = sizes.get(f"{name}.parquet")
        if size != stored.bytes:
            return f"{name}.parquet " + ("is missing" if size is None else f"has {size:,} of {stored.bytes:,} bytes")
    return ""


def write_manifest(place: Place, manifest: Manifest) -> None:
    """Write the manifest, whole or not at all.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    place.write(MANIFEST, encode(manifest))


def read_manifest(place: Place) -> Manifest:
    """The manifest of a dataset.

    Raises
    ------
    ReadError
        There is none, another version wrote it, or it is damaged.
    """
    content = place.read(MANIFEST)
    if content is None:
        raise ReadError(
            f"{place.root} is no dataset: it has no {MANIFEST}",
            expected="a folder that llmprof convert has finished",
            hint="run llmprof convert on it again: it goes on where it was interrupted",
        )
    try:
        head = msgspec.json.decode(content)
        version = (head["version"], head["schema"])
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ReadError(f"{place.at(MANIFEST)} is damaged: {error}", hint=AGAIN) from error
    if version != (VERSION, schema.VERSION):
        raise ReadError(
            f"{place.root} is a dataset of version {version[0]} with schema {version[1]}, written by llmprof "
            f"{head.get('llmprof') or 'of an unknown version'}",
            expected=f"version {VERSION} with schema {schema.VERSION}",
            hint=AGAIN,
        )
    try:
        return msgspec.convert(head, Manifest)
    except msgspec.ValidationError as error:
        raise ReadError(f"{place.at(MANIFEST)} is damaged: {error}", hint=AGAIN) from error


def encode(value: Any) -> bytes:
    """JSON, with null for numbers that are not finite and text for what JSON does not know."""
    return msgspec.json.format(msgspec.json.encode(_plain(msgspec.to_builtins(value, enc_hook=str))), indent=1)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def is_dataset(path: Path) -> bool:
    """Whether a path is a folder with a dataset."""
    return (path / MANIFEST).is_file()
