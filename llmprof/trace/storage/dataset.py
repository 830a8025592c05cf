"""Dataset files: partitions of Parquet for the trace of many ranks, and a manifest.

A partition is a folder with one Parquet file for each table, sorted by time, and :data:`PART_FILE`.
This file describes the partition: the head and the coverage of the trace file that was read, the
numbers of rows, and the time span. The manifest, :data:`MANIFEST`, repeats these descriptions for
all partitions and adds what is known about the run, so that opening a dataset reads one file. Delta
Lake and Apache Iceberg are built in the same way: data files never change, small files list the
data files that are valid, and a file gets its name only when it is complete.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import OutputError, ReadError
from llmprof.trace import schema
from llmprof.trace.storage.files import checksum, finite
from llmprof.trace.storage.places import Place
from llmprof.trace.storage.typed import bounded_value

MANIFEST: Final = "llmprof-dataset.json"

PART_FILE: Final = "part.json"

VERSION: Final = 2
"""Version of the files; it is increased when an older llmprof could not read the datasets that
this one writes.
"""

ROW_GROUP: Final = 1 << 16
"""Rows of a Parquet row group, the smallest part that is read if only a window of time is
needed.
"""

AGAIN: Final = "convert the files again: llmprof convert PATH -o FOLDER"


class Stored(msgspec.Struct, frozen=True):
    """Description of a table of a partition: number of rows, size and CRC-32 of its file, and
    columns.
    """

    rows: int
    bytes: int
    checksum: int
    columns: tuple[str, ...]


_PYTHON: Final = (pl.col("kind") == "python").fill_null(False)
_MODULE: Final = pl.col("name").str.starts_with("nn.Module: ").fill_null(False)

HOST_ROWS: Final[dict[str, tuple[str, pl.Expr]]] = {
    "markers": ("markers", ~pl.col("on_device") & (pl.col("domain") != "overhead")),
    "modules": ("ops", _PYTHON & _MODULE),
    "python": ("ops", _PYTHON & ~_MODULE),
    "ops": ("ops", ~_PYTHON),
    "runtime": ("runtime", pl.lit(True)),
}
"""Rows of a timeline that a thread of the host has: their kind, the table that they are in, and
which of its rows.
"""

THREADS: Final = pl.Schema(
    {
        "kind": pl.String,
        "thread": pl.Int64,
        "count": pl.Int64,
        "first_ns": pl.Int64,
        "last_ns": pl.Int64,
    }
)


def thread_spans(tables: Mapping[str, pl.DataFrame | pl.LazyFrame]) -> pl.DataFrame:
    """For each rank and kind of row its threads, their number of spans, the first start and the
    last end (ns).
    """
    end = (pl.col("start_ns") + pl.col("dur_ns").clip(0)).max()
    found = [
        tables[table]
        .lazy()
        .filter(which)
        .group_by("rank", "thread")
        .agg(count=pl.len().cast(pl.Int64), first_ns=pl.min("start_ns"), last_ns=end)
        .select(
            "rank", *(pl.lit(kind).alias("kind") if name == "kind" else name for name in THREADS)
        )
        for kind, (table, which) in HOST_ROWS.items()
        if table in tables
    ]
    if not found:
        return pl.DataFrame(schema={"rank": pl.Int32, **THREADS})
    return pl.concat(pl.collect_all(found, engine="streaming"), how="vertical_relaxed")


class Partition(msgspec.Struct, frozen=True):
    """Description of one partition."""

    folder: str
    rank: int
    source: str
    """Path or URL of the file that it was converted from."""
    stamp: str
    """Size and modification time of that file, and the options of reading; an equal stamp means
    an unchanged file.
    """
    span_ns: tuple[int, int] | None
    """First start and last end of its events, on the clock of its file (ns)."""
    index: int = 0
    """Index of this partition among those of its file (a file may hold several ranks) …"""
    of: int = 1
    """… and their number."""
    tables: dict[str, Stored] = {}
    collectives: int = 0
    """Number of rows of the table of collectives, which is derived from other tables and not
    stored.
    """
    head: dict[str, Any] = {}
    coverage: dict[str, Any] = {}
    processes: tuple[int, ...] = ()
    launches: bool = False
    threads: tuple[tuple[str, int | None, int, int, int], ...] | None = None
    """Rows of :func:`thread_spans` without the rank, on the clock of the file; None in older
    datasets.
    """
    version: int = VERSION
    schema: int = schema.VERSION


class Failed(msgspec.Struct, frozen=True):
    """A file that could not be converted, and the reason."""

    source: str
    why: str


class Manifest(msgspec.Struct, frozen=True):
    """Description of a dataset."""

    reader: str
    origin_ns: int
    """Time on the clock of the files from which the times of the trace count (ns)."""
    tables: tuple[str, ...]
    meta: dict[str, Any]
    coverage: dict[str, Any]
    partitions: tuple[Partition, ...]
    failed: tuple[Failed, ...] = ()
    format: str = "llmprof.dataset"
    version: int = VERSION
    schema: int = schema.VERSION
    llmprof: str = ""


def fits(partition: Partition) -> bool:
    """Whether a partition keeps its threads, and they have as many spans as its tables."""
    if partition.threads is None or {row[0] for row in partition.threads} - HOST_ROWS.keys():
        return False
    counts = dict.fromkeys(("ops", "runtime", "markers"), 0)
    for kind, _, count, _, _ in partition.threads:
        counts[HOST_ROWS[kind][0]] += count
    rows = {name: partition.tables[name].rows if name in partition.tables else 0 for name in counts}
    return counts.pop("markers") <= rows.pop("markers") and counts == rows


def write_partition(
    place: Place, partition: Partition, frames: Mapping[str, pl.DataFrame]
) -> Partition:
    """Write a partition; its folder appears only when all files are written."""
    with place.folder(partition.folder, last=PART_FILE) as work:
        stored = {}
        for name, frame in frames.items():
            file = work / f"{name}.parquet"
            try:
                frame.write_parquet(
                    file, compression="zstd", statistics=True, row_group_size=ROW_GROUP
                )
            except pl.exceptions.PolarsError as error:  # Polars raises this for a full disk, too
                hint = (
                    "free space on the disk of the dataset, and convert again: finished partitions"
                    " are kept"
                )
                raise OutputError(
                    f"cannot write {name}.parquet of {partition.source}: {error}", hint=hint
                ) from error
            stored[name] = Stored(
                frame.height, file.stat().st_size, checksum(file), tuple(frame.columns)
            )
        host = thread_spans(frames).drop("rank").sort("kind", "thread").rows()
        partition = msgspec.structs.replace(partition, tables=stored, threads=tuple(host))
        (work / PART_FILE).write_bytes(sealed_record(partition))
    return partition


def read_partition(place: Place, folder: str) -> Partition | None:
    """Description of a partition; None if it is missing or damaged, or if another version wrote
    it.
    """
    content = place.read(f"{folder}/{PART_FILE}")
    if content is None:
        return None
    try:
        partition = msgspec.convert(_opened(content), Partition)
    except (ValueError, RecursionError):
        return None
    if (partition.version, partition.schema) != (
        VERSION,
        schema.VERSION,
    ) or partition.folder != folder:
        return None
    return None if damage(place, partition) else partition


def damage(place: Place, partition: Partition) -> str:
    """Reason why a partition cannot be used (a missing file, or one of a wrong size); empty if
    it is complete.
    """
    sizes = place.sizes(partition.folder)
    if not sizes:
        return "its folder is missing"
    for name, stored in partition.tables.items():
        size = sizes.get(f"{name}.parquet")
        if size != stored.bytes:
            return f"{name}.parquet " + (
                "is missing" if size is None else f"has {size:,} of {stored.bytes:,} bytes"
            )
    return ""


def write_manifest(place: Place, manifest: Manifest) -> None:
    """Write the manifest; a failure leaves the earlier one in place."""
    place.write(MANIFEST, sealed_record(manifest))


def read_manifest(place: Place) -> Manifest:
    """Read the manifest of a dataset."""
    content = place.read(MANIFEST)
    if content is None:
        found = f"{place.root} is not a dataset: it has no {MANIFEST}"
        hint = "run llmprof convert on it again: it continues where it was interrupted"
        raise ReadError(found, expected="a folder that llmprof convert has finished", hint=hint)
    try:
        head = _opened(content)
        version = (head["version"], head["schema"])
    except (KeyError, ValueError, RecursionError) as error:
        raise ReadError(f"{place.at(MANIFEST)} is damaged: {error}", hint=AGAIN) from error
    if version != (VERSION, schema.VERSION):
        raise ReadError(
            f"{place.root} is a dataset of version {version[0]} with schema {version[1]}, written"
            f" by llmprof {head.get('llmprof') or 'of an unknown version'}",
            expected=f"version {VERSION} with schema {schema.VERSION}",
            hint=AGAIN,
        )
    try:
        return msgspec.convert(head, Manifest)
    except ValueError as error:
        raise ReadError(f"{place.at(MANIFEST)} is damaged: {error}", hint=AGAIN) from error


def sealed_record(value: Any) -> bytes:
    """A record as JSON with a checksum: infinity and NaN become null, values of types that JSON
    lacks become text.
    """
    record = finite(msgspec.to_builtins(value, enc_hook=str))
    record["checksum"] = zlib.crc32(msgspec.json.encode(record))
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


def _opened(content: bytes) -> dict[str, Any]:
    """A record whose checksum is right; one of another version need not have one."""
    record = bounded_value(msgspec.json.decode(content), len(content))
    if not isinstance(record, dict):
        raise ValueError("it is no record")
    seal = record.pop("checksum", None)
    version = (record.get("version"), record.get("schema"))
    if version == (VERSION, schema.VERSION) and seal != zlib.crc32(msgspec.json.encode(record)):
        raise ValueError("it is not as it was written")
    return record
