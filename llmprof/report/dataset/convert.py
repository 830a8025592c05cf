"""Conversion of the files of many ranks to a dataset, one rank at a time on each worker, and its
opening.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import polars as pl

from llmprof import __version__
from llmprof.errors import (
    LlmprofError,
    MixedRunsError,
    OutputError,
    ReadError,
    TraceWarning,
    listed,
)
from llmprof.readers import reading, registry
from llmprof.readers.common import reader as common
from llmprof.readers.common.reader import Reader
from llmprof.readers.saved import capture, facts_of_run
from llmprof.report.dataset.cluster import Lost, Workers, workers
from llmprof.text import Progress
from llmprof.trace import META_FILE, Trace, communication, schema
from llmprof.trace.storage import dataset as stored
from llmprof.trace.storage import deferred
from llmprof.trace.storage.dataset import Partition
from llmprof.trace.storage.files import PathLike
from llmprof.trace.storage.places import UNFINISHED, Place
from llmprof.trace.trace import open_saved

Clocks = Literal["shared", "unrelated"]

_BLOCK: Final = 1 << 20


class RankSource(NamedTuple):
    """A file or folder of one rank or several, and the options that its reading depends on."""

    path: str
    reader: str | None
    """Name of its format; None if only a worker can open it."""
    python_functions: bool
    clocks: Clocks

    @property
    def name(self) -> str:
        """Name of the file without its folder."""
        return self.path.rstrip("/").rpartition("/")[2]


def sources_of(
    paths: PathLike | Iterable[PathLike],
    chosen: str | None,
    *,
    python_functions: bool,
    clocks: Clocks,
) -> list[RankSource]:
    """The files of all paths, in the order in which :func:`llmprof.read` takes them."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ReadError("no files given", hint="pass a file, a folder, or a list of paths")
    reader = None if chosen is None else registry.reader_named(chosen)
    sources: list[RankSource] = []
    readers: dict[str, Reader] = {}
    for path in given:
        place = Place.of(path)
        if not place.is_local:
            sources += [RankSource(url, chosen, python_functions, clocks) for url in _remote(place)]
            continue
        for claimed_by, file in reading.files_of(capture(place.path), reader):
            readers[claimed_by.name] = claimed_by
            sources.append(
                RankSource(str(file.resolve()), claimed_by.name, python_functions, clocks)
            )
    if len(readers) > 1 or (
        any(claimed_by.alone for claimed_by in readers.values()) and len(sources) > 1
    ):
        raise MixedRunsError(
            f"the files are of different formats, or stand alone: {listed(sorted(readers))}",
            expected="the files that one profiler wrote for one run",
            hint="convert the files of each format separately",
            formats=sorted(readers),
        )
    return sources


def _remote(place: Place) -> list[str]:
    suffixes = {suffix for reader in registry.readers() for suffix in reader.suffixes}
    inside = [place.at(name) for name in place.names() if Path(name).suffix in suffixes]
    if inside and inside != [place.root]:
        return inside
    if place.read("") is None:
        raise ReadError(f"{place.root} does not exist, or holds no trace", hint="check the address")
    return [place.root]


def stamp(source: RankSource) -> str:
    """Size and time of a file, with the options that its reading depends on; it changes when the
    file changes.
    """
    options = f"{__version__}-{schema.VERSION}-{source.python_functions}-{source.clocks}"
    place = Place.of(source.path)
    if not place.is_local:
        store, path = place.store()
        try:
            return f"{store.ukey(path)}-{options}"
        except (OSError, NotImplementedError):
            return f"{store.size(path)}-{options}"
    try:
        stats = [(str(file.relative_to(place.path)), file.stat()) for file in _inside(place.path)]
    except OSError:
        return ""
    digest = hashlib.sha256(
        repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]).encode()
    )
    return f"{digest.hexdigest()[:16]}-{options}"


def _inside(path: Path) -> list[Path]:
    """A file, or all files of a folder."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _key_of(path: Path, options: str) -> str:
    """Key of the content of a file."""
    digest = hashlib.blake2b(options.encode(), digest_size=10)
    for file in _inside(path):
        digest.update(file.name.encode("utf-8", "surrogateescape"))
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


@contextmanager
def fetched(source: RankSource) -> Iterator[Path]:
    """Path of the file on this machine; a remote file is downloaded."""
    place = Place.of(source.path)
    if place.is_local:
        yield place.path
        return
    with tempfile.TemporaryDirectory(prefix="llmprof-") as folder:
        local = Path(folder) / source.name
        store, path = place.store()
        try:
            store.get_file(path, str(local))
        except OSError as error:
            raise ReadError(
                f"cannot read {source.path}: {error}", hint="check the address"
            ) from error
        yield local


_PARTITION: Final = "part-"


def convert(
    paths: PathLike | Iterable[PathLike],
    folder: PathLike,
    *,
    client: Any = None,
    format: str | None = None,  # noqa: A002
    python_functions: bool = False,
    clocks: Clocks = "shared",
    progress: Progress | None = None,
) -> Trace:
    """Convert the files of a run's ranks to a dataset, which opens at once and loads only the parts
    that you use.

    Each file becomes a partition: a Parquet file for each table, sorted by time, with the metadata
    and coverage of the file beside them. A worker holds one file at a time. A partition appears
    when it is completely written, and finished partitions stay. After an interrupt, a full disk or
    ``kill -9`` the same call continues; if nothing is left, it does nothing. A file that cannot be
    read is reported and left out; the next call tries it again.

    Parameters
    ----------
    paths : path or iterable of paths
        As for :func:`llmprof.read`: a folder with one file for each rank, or files. Also URLs that
        fsspec knows (``s3://…``), which workers copy to a temporary folder one at a time.
    folder : path
        Folder of the dataset: a new one, or one that an earlier call made from the same files. It
        may be a URL.
    client : dask.distributed.Client, str, None or False
        Workers: a Dask client, the address of a scheduler, or False for this process alone. By
        default one process for each core of this machine (a script that starts them needs ``if
        __name__ == "__main__":``). All workers must see the paths and the folder.
    format : str, optional
        Name of the format; by default detected from the content.
    python_functions : bool
        Keep Python functions as operators of kind ``python``.
    clocks : {"shared", "unrelated"}
        With ``"unrelated"`` the clocks of the ranks are independent, so the times of each rank
        count from its first event. With ``"shared"``, ranks that were not recorded at the same time
        are refused as two runs.
    progress : callable, optional
        Called with the current task, the number of finished files, and the number of all files.

    Returns
    -------
    Trace
        The dataset, opened.

    Raises
    ------
    ReadError
        A path is missing, or no file could be read.
    MixedRunsError
        The files belong to different runs, or one rank came twice.
    OutputError
        The folder cannot be written, the disk is full, or it holds something else.
    ClusterError
        Dask is not installed, or its scheduler or all of its workers are gone.

    Examples
    --------
    >>> many = llmprof.convert(sample_folder, "dataset", client=False)
    >>> many.ranks
    [0]
    """
    place = Place.of(folder)
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    sources = sources_of(given, format, python_functions=python_functions, clocks=clocks)
    _check_replaceable(place, sources)
    facts = facts_of_run(Path(given[0])) if len(given) == 1 else {}
    with place.alone():
        _convert(place, sources, client, clocks=clocks, progress=progress, facts=facts)
    return open(folder)


def _convert(
    place: Place,
    sources: Sequence[RankSource],
    client: Any,
    *,
    clocks: Clocks,
    progress: Progress | None,
    facts: dict[str, Any],
) -> None:
    """Convert what is not converted yet, by the only process that writes to the folder."""
    place.clean()
    converted: dict[str, list[Partition]] = {}
    for name in place.names():
        if (
            name.startswith(_PARTITION)
            and (partition := stored.read_partition(place, name)) is not None
        ):
            converted.setdefault(partition.source, []).append(partition)
    done: dict[str, list[Partition]] = {}
    for source in sources:
        partitions = sorted(converted.get(source.path, []), key=lambda partition: partition.index)
        if (
            partitions
            and len(partitions) == partitions[0].of
            and partitions[0].stamp == stamp(source)
        ):
            done[source.path] = partitions
    left = [source for source in sources if source.path not in done]
    failed: list[stored.Failed] = []
    with workers(client, len(left)) as team:
        for source, result in team.each(
            _made, left, place, what="converting files", progress=progress
        ):
            if isinstance(result, Lost | str):
                failed.append(stored.Failed(source.path, str(result)))
            else:
                done[source.path] = result
        if not done:
            which = (
                "the file cannot be read"
                if len(sources) == 1
                else f"none of {len(sources):,} files can be read"
            )
            raise ReadError(f"{which}: {failed[0].why}")
        made = [partition for source in sources for partition in done.get(source.path, ())]
        manifest = _manifest(made, failed, team, place, clocks)
    stored.write_manifest(place, msgspec.structs.replace(manifest, meta={**manifest.meta, **facts}))
    kept = {partition.folder for partition in manifest.partitions}
    for name in place.names():
        if name.startswith(_PARTITION) and name not in kept:
            place.remove(name)
    place.clean()  # of workers that were killed meanwhile


def open(folder: PathLike) -> Trace:  # noqa: A001
    """Open a dataset as a trace whose tables are loaded when they are used, or open a saved trace.

    ``trace.capture.scan("kernels")`` is a lazy frame. ``trace.select(rank=…, step=…, window=…,
    tables=…)`` is a part that every analysis works on. :func:`llmprof.map` runs an analysis rank by
    rank on workers, and ``trace.sql`` streams its result.

    Parameters
    ----------
    folder : path
        Folder from :func:`llmprof.convert` or :meth:`llmprof.Trace.save`. It may be a URL that
        fsspec knows.

    Returns
    -------
    Trace
        The trace.

    Raises
    ------
    ReadError
        The folder holds neither, another version wrote it, or none of its partitions can be used.

    Warns
    -----
    TraceWarning
        A partition is missing or damaged and left out, or a file could not be converted.

    Examples
    --------
    >>> many = llmprof.convert(sample_folder, "dataset", client=False)
    >>> kernels = llmprof.open("dataset").capture.scan("kernels")
    >>> kernels.select("name").unique().collect().height > 10
    True
    """
    place = Place.of(folder)
    if (
        place.is_local
        and not (place.path / stored.MANIFEST).exists()
        and (place.path / META_FILE).exists()
    ):
        return open_saved(place.path)
    tables, meta, coverage = deferred.load(place)
    for message in coverage.get("warnings", ()):
        warnings.warn(message, TraceWarning, stacklevel=2)
    return Trace(tables, {**meta, "name": place.name}, coverage)


def _check_replaceable(place: Place, sources: Sequence[RankSource]) -> None:
    """Raise unless the folder is new, or holds a dataset of the same files, finished or not."""
    if place.is_local and place.path.exists() and not place.path.is_dir():
        raise OutputError(f"{place.root} exists and is not a folder", hint="choose another folder")
    names = [name for name in place.names() if not name.startswith((_PARTITION, UNFINISHED))]
    if foreign := [name for name in names if name != stored.MANIFEST]:
        found = (
            f"{place.root} exists and holds other things than a dataset: {', '.join(foreign[:5])}"
        )
        raise OutputError(found, hint="choose another folder")
    if not names:
        return
    try:
        manifest = stored.read_manifest(place)
    except ReadError:  # of another version, or damaged: it is made again
        return
    files = {source.path for source in sources}
    others = [one.source for one in manifest.partitions if one.source not in files]
    if others:
        found = (
            f"{place.root} is the dataset of other files:"
            f" {', '.join(Path(one).name for one in others[:3])}"
        )
        hint = (
            "choose another folder: the runs of two datasets are compared with llmprof.analyze.diff"
        )
        raise OutputError(found, expected="a new folder, or all of its files", hint=hint)


def _made(source: RankSource, place: Place) -> list[Partition] | str:
    """Partitions of one file, or the reason why there are none. Runs on a worker."""
    seen = stamp(source)
    try:
        with fetched(source) as path, common.border(source.name):
            key = _key_of(path, seen.partition("-")[2])
            if (partitions := _again(place, key, source, seen)) is not None:
                return partitions
            parts, whole = _parts(path, source)
            made = []
            for index, part in enumerate(parts):
                folder = f"{_PARTITION}{key}-{index}"
                about = Partition(folder, 0, source.path, seen, None, index=index, of=len(parts))
                made.append(
                    _written(place, part, about, whole, own_clock=source.clocks == "unrelated")
                )
            return made
    except OutputError:
        raise
    except LlmprofError as error:
        return str(error)


def _again(place: Place, key: str, source: RankSource, seen: str) -> list[Partition] | None:
    """Partitions of a file that was converted before under another name or time; None if there
    are none.
    """
    first = stored.read_partition(place, f"{_PARTITION}{key}-0")
    if first is None:
        return None
    partitions = [
        stored.read_partition(place, f"{_PARTITION}{key}-{index}") for index in range(first.of)
    ]
    whole = [one for one in partitions if one is not None]
    if len(whole) < first.of:
        return None
    return [
        msgspec.structs.replace(partition, source=source.path, stamp=seen) for partition in whole
    ]


def _parts(path: Path, source: RankSource) -> tuple[list[common.FilePart], Trace | None]:
    """Parts of a file; a format whose files stand alone has a part for each rank, and a trace of
    all.
    """
    reader = registry.knows(path) if source.reader is None else registry.reader_named(source.reader)
    if reader is None:
        raise ReadError(f"{source.name} is {registry.say_what_it_is(path)}", expected="a trace")
    request = common.Request(python_functions=source.python_functions)
    if not reader.alone:
        parts = reading.read_parts(reader, path, request)
        for part in parts:
            part.head["format"] = reader.name
        return parts, None
    trace = reading.whole_of(reader, path, request)
    split = []
    for rank in trace.ranks:
        one = trace.select(rank=rank)
        tables = {name: frame.drop("rank") for name, frame in one.capture.recorded.items()}
        split.append(
            common.FilePart(
                path, tables, {"rank": rank, "format": trace.meta.get("format", reader.name)}, {}
            )
        )
    return split, trace


def _written(
    place: Place, part: common.FilePart, about: Partition, whole: Trace | None, *, own_clock: bool
) -> Partition:
    """Write a part as a partition."""
    rank = (
        common.FRONT_END
        if part.head.get("front_end")
        else part.rank
        if part.rank is not None
        else about.index
    )
    span = part.span_ns()
    begin = span[0] if span is not None and own_clock else 0
    processes, launches = part.processes(), part.launches()
    frames = {}
    for name in list(part.tables):
        frame = part.tables.pop(name)
        times = [pl.col(time) - begin for time in deferred.TIMES if begin and time in frame.columns]
        frames[name] = schema.conform(
            frame.with_columns(*times, rank=pl.lit(rank, dtype=pl.Int32)), name
        )
    calls = communication.make_collectives(
        frames, [rank] if "kernels" in frames and frames["kernels"].height else []
    )
    head = {key: value for key, value in part.head.items() if value is not None}
    coverage = dict(part.coverage)
    if whole is not None:
        head["whole_meta"], coverage["whole_coverage"] = whole.meta, whole.coverage
    partition = msgspec.structs.replace(
        about,
        rank=rank,
        span_ns=None if span is None else (span[0] - begin, span[1] - begin),
        collectives=0 if calls is None else calls.height,
        head=head,
        coverage=coverage,
        processes=tuple(sorted(processes)),
        launches=launches,
    )
    return stored.write_partition(place, partition, frames)


@dataclass(slots=True)
class _Summary(common.FilePart):
    """A part with the stored summary of its frames in place of the frames."""

    stored: Partition

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows by table."""
        return {name: table.rows for name, table in self.stored.tables.items()}

    @property
    def on_device(self) -> bool:
        """Whether the file has device work."""
        return any(self.rows.get(name, 0) for name in ("kernels", "copies"))

    def span_ns(self) -> tuple[int, int] | None:
        """First start and last end of the events in the file (ns on its clock)."""
        return self.stored.span_ns

    def processes(self) -> set[int]:
        """Host processes of its events."""
        return set(self.stored.processes)

    def launches(self) -> bool:
        """Whether it has calls that launch kernels."""
        return self.stored.launches


def _manifest(
    made: Sequence[Partition],
    failed: Sequence[stored.Failed],
    team: Workers[Any],
    place: Place,
    clocks: Clocks,
) -> stored.Manifest:
    """Make the manifest: number the ranks of the partitions, and merge the facts about the run."""
    left_out = [
        f"{Path(one.source).name} could not be converted and is left out: {one.why}"
        for one in failed
    ]
    formats = {str(one.head.get("format")) for one in made}
    if len(formats) > 1:
        found = f"the files are of different formats: {listed(sorted(formats))}"
        raise MixedRunsError(found, hint="convert the files of each format separately")
    first = made[0]
    if "whole_meta" in first.head:
        meta, coverage = dict(first.head["whole_meta"]), dict(first.coverage["whole_coverage"])
        ranks, origin, tables = (
            [one.rank for one in made],
            0,
            {name for one in made for name in one.tables},
        )
        made = [
            msgspec.structs.replace(one, head={"format": one.head.get("format")}, coverage={})
            for one in made
        ]
    else:
        parts: list[common.FilePart] = [
            _Summary(Path(Place.of(one.source).name), {}, dict(one.head), dict(one.coverage), one)
            for one in made
        ]
        reader = registry.reader_named(first.head["format"])
        if reader.settle is not None and len({one.source for one in made}) > 1:
            reader.settle(parts)
        ranks, notes = common.assign(parts)
        common.check_one_run(parts, ranks)
        meta, coverage = common.describe_run(parts, ranks, [*notes, *left_out], reader.name)
        origin, tables = (
            common.origin_of(parts),
            common.tables_recorded(parts) | {name for part in parts for name in part.rows},
        )
    if clocks == "unrelated":
        meta |= {"clock": "unrelated", "start_epoch_ns": None}
        note = (
            "the clocks of the ranks are unrelated: each rank's times count from its own first"
            " event"
        )
        coverage["warnings"] = [*coverage.get("warnings", ()), note]
    if failed:
        coverage["failed"] = [{"file": Path(one.source).name, "why": one.why} for one in failed]
    changed = [(one, rank) for one, rank in zip(made, ranks, strict=True) if one.rank != rank]
    renumbered = {
        one.folder: result
        for (one, _), result in team.each(_renumbered, changed, place, what="numbering")
    }
    kept = []
    for one in made:
        result = renumbered.get(one.folder, one)
        if isinstance(result, Lost):
            raise ReadError(
                f"{Path(one.source).name} could not be numbered: {result}", hint="convert again"
            )
        kept.append(result)
    return stored.Manifest(
        reader=str(first.head.get("format")),
        origin_ns=origin,
        tables=tuple(name for name in schema.TABLES if name in tables),
        meta=meta,
        coverage=coverage,
        partitions=tuple(sorted(kept, key=lambda one: (one.rank, one.folder))),
        failed=tuple(failed),
        llmprof=__version__,
    )


def _renumbered(numbered: tuple[Partition, int], place: Place) -> Partition:
    """A partition with its rank among the others. Runs on a worker."""
    partition, rank = numbered
    held = deferred.Deferred(place, (partition,), 0, tuple(partition.tables))
    number = pl.lit(rank, dtype=pl.Int32)
    frames = {name: held[name].with_columns(rank=number) for name in partition.tables}
    return stored.write_partition(place, msgspec.structs.replace(partition, rank=rank), frames)
