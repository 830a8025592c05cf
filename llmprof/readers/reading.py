""":func:`llmprof.read`: reads files and folders of one run or of one rank as one trace."""

import os
import re
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import plugins
from llmprof.errors import (
    LlmprofError,
    MixedRunsError,
    ReadError,
    TraceWarning,
    UnknownFormatError,
    checked,
    listed,
)
from llmprof.readers import cache as trace_cache
from llmprof.readers import perf, registry
from llmprof.readers.common import helpers
from llmprof.readers.common.reader import (
    BY_CONTENT,
    FilePart,
    Probe,
    Reader,
    Request,
    TableFilter,
    TableSelection,
    border,
    combine,
    refuse_copies,
)
from llmprof.readers.registry import claims, knows, refuse_empty, say_what_it_is
from llmprof.readers.saved import (
    CPU_CLOCK,
    CPU_TABLE,
    CPU_TEXT,
    capture,
    has_timeline,
    is_run,
    with_facts_of_run,
)
from llmprof.text import Progress, counted, left_out
from llmprof.trace import Trace
from llmprof.trace.storage import files, typed
from llmprof.trace.storage.files import PathLike

CACHE_AFTER_S = 1.0
"""With ``cache=None``, a trace whose parsing took longer than this is kept in the cache."""

SAMPLE: Final = "sample:"
"""What the name of a bundled sample begins with in place of a path."""


@checked
def read(
    path_or_paths: PathLike | Iterable[PathLike],
    *,
    format: str | None = None,  # noqa: A002
    tables: TableSelection | None = None,
    python_functions: bool = True,
    cache: bool | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> Trace:
    """Read the files of a profiler as one trace.

    Parameters
    ----------
    path_or_paths : path or iterable of paths
        ``sample:NAME`` is a bundled sample.
        Files or folders of one run: Chrome trace JSON, an SQLite export of Nsight Systems or its
        ``.nsys-rep``, a folder with one file per rank or with Parquet tables of nsys, a folder that
        :meth:`Trace.save` wrote, or the folder of a run of llmprof. Files of Ascend's, ROCm's and
        NVIDIA's older profilers, of TensorRT, Triton Proton, Perfetto, Linux perf, VTune and
        PyTorch's memory allocator are recognised by their content, too. One file of a monitor can
        also be read: ``nvidia-smi dmon``, ``nvidia-smi --query-gpu --format=csv``, ``gpustat
        --json``, ``dstat`` (or dool), ``sar`` or ``sadf -d``. Its trace has only the table
        ``counters``, with the names of llmprof's own monitors, and
        :func:`llmprof.run.launch.monitors.counters` puts it on the clock of another trace.
    format : str, optional
        Name of the format (:func:`llmprof.readers.registry.formats` lists them); recognised by the
        content if not given.
    tables : iterable of str, or mapping of str to iterable of str, optional
        Names of the tables to keep; all if not given. A mapping also selects columns of each table
        (None for all), as in ``{"kernels": ("stream",), "copies": None}``; columns that are never
        null are always kept. Ranks and times are those of the whole trace. With fewer tables an
        export of Nsight Systems is read faster, and other formats take less memory.
    python_functions : bool
        Whether to keep Python functions (``with_stack=True`` of PyTorch) as operators of kind
        ``python``. Modules, stacks and flame graphs need them; without them the table of operators
        is smaller.
    cache : bool, optional
        True stores the parsed trace in the user's cache folder, and loads it from there as long as
        the files do not change. False does not use the cache. By default traces that took longer
        than a second to parse are stored.
    progress : callable, optional
        Called with the name of a file, the number of its bytes that were read, and its size in
        bytes.
    workers : int, optional
        Number of processes that read the ranks, or the blocks of one large file, of Chrome traces.
        By default it is the environment variable ``LLMPROF_WORKERS``, else one for each usable
        core, at most 8. With 1 this process reads alone. The trace does not depend on it.

    Returns
    -------
    Trace
        All ranks on one clock; times in ns from the earliest event.

    Raises
    ------
    ReadError
        A file is missing, empty or unreadable.
    UnknownFormatError
        No reader knows the content, or it is not a trace; files of Nsight Compute are for
        :func:`llmprof.read_metrics`.
    MixedRunsError
        Two files have the same rank, or the files belong to different runs.
    LlmprofError
        ``tables`` is empty, or names a table or column that the schema does not have.

    Examples
    --------
    >>> trace = llmprof.read(sample_folder)  # a folder with one file per rank
    >>> trace.ranks
    [0]
    """
    if isinstance(path_or_paths, str) and path_or_paths.startswith(SAMPLE):
        from llmprof.readers.bundled import sample

        return sample(path_or_paths.removeprefix(SAMPLE))
    wanted = TableFilter.of(tables)
    given = [path_or_paths] if isinstance(path_or_paths, str | os.PathLike) else list(path_or_paths)
    paths = [capture(Path(p)) for p in given]
    if not paths:
        raise ReadError("no files given", hint="pass a file, a folder, or a list of paths")
    for path in given:
        files.note_input(path)
    chosen = None if format is None else registry.reader_named(format)
    with border(", ".join(path.name or str(path) for path in paths[:3])):
        request = Request(wanted, python_functions, progress, helpers.process_count(workers))
        trace = _read(paths, chosen, request, cache=cache)
        if len(paths) == 1 and is_run(Path(given[0])):
            trace = with_facts_of_run(Path(given[0]), trace)
            if "samples" in wanted:
                trace = with_cpu_samples(Path(given[0]), trace)
    for message in trace.coverage.get("warnings", ()):
        warnings.warn(
            message, TraceWarning, stacklevel=3
        )  # the caller of read, above the check of its arguments
    return trace.called(_name_of([Path(p) for p in given]))


def with_cpu_samples(folder: Path, trace: Trace) -> Trace:
    """Join a timeline with the samples of perf, on the clock that the run saved, or with the
    sums of VTune.
    """
    try:
        if (folder / CPU_TEXT).is_file():
            rows, *_ = perf.read_samples(folder / CPU_TEXT)
            offset = (typed.found(folder / CPU_CLOCK, typed.ClockJson) or {}).get(
                "epoch_minus_monotonic_ns"
            )
            epoch = trace.meta.get("start_epoch_ns")
            moved = pl.lit(None, pl.Int64)
            if offset is not None and isinstance(epoch, int):
                moved = pl.col("time_ns") + (offset - epoch)
            rows = rows.with_columns(
                time_ns=moved, rank=pl.lit(trace.ranks[0] if trace.ranks else 0, dtype=pl.Int32)
            )
        elif (folder / CPU_TABLE).is_file():
            rows = _read([folder / CPU_TABLE], None, Request(), cache=False).samples
        else:
            return trace
        if not rows.height:
            raise ReadError("the sampler of the CPU printed no sample")
    except ReadError as error:
        warnings.warn(
            f"the trace has no samples of the CPU: {error.found}", TraceWarning, stacklevel=2
        )
        return trace
    return Trace({**trace.capture.recorded, "samples": rows}, trace.meta, trace.coverage)


_PLAIN_NAME: Final = re.compile(
    r"(report|trace|profile|timeline|rank|dp\d|kineto|prof)[\w-]*|[\d_-]*", re.IGNORECASE
)
"""Pattern of names of files and folders that do not identify the run."""


def _name_of(paths: Sequence[Path]) -> str | None:
    """Name of a run: that of its folder or file, or of a folder above it."""
    first = paths[0].absolute()
    parts = (
        first.parent if len(paths) > 1 else first,
        *(first.parents[:2] if len(paths) == 1 else first.parents[1:2]),
    )
    for part in parts:
        name = part.name if part.is_dir() else part.name.split(".")[0]
        if name and not _PLAIN_NAME.fullmatch(name):
            return name
    return None


def _read(
    paths: Sequence[Path], chosen: Reader | None, request: Request, *, cache: bool | None
) -> Trace:
    reader_files = [(reader, file) for path in paths for reader, file in files_of(path, chosen)]
    readers = {reader.name: reader for reader, _ in reader_files}
    reader = next(iter(readers.values()))
    if len(readers) > 1 or (reader.alone and len(reader_files) > 1):
        raise MixedRunsError(
            (
                f"the files have different formats: {listed(sorted(readers))}"
                if len(readers) > 1
                else (
                    f"there are {len(reader_files)} files of format {reader.name}, each of which"
                    " is a whole trace"
                )
            ),
            expected="the files that one profiler wrote for one run",
            hint="read each file separately",
            formats=sorted(readers),
        )
    wanted = request.wanted
    read_for = wanted.with_sources()
    if reader.deferred:
        many = whole_of(reader, reader_files[0][1], request)
        return wanted.part_of(many if wanted.asked is None else many.select(tables=wanted.asked))
    request = replace(request, wanted=read_for)
    options = reader.options(request)
    sources = [file for _, file in reader_files]
    whole = trace_cache.entry(sources, options)
    entry = (
        whole
        if wanted.asked is None
        else trace_cache.entry(sources, {**options, "asked": read_for.listed()})
    )
    trace = (
        None if cache is False else trace_cache.load_entry(entry) or trace_cache.load_entry(whole)
    )
    database = (
        reader.database(sources[0], request)
        if reader.database is not None and len(sources) == 1
        else None
    )
    if trace is None:
        begin = time.perf_counter()
        if reader.alone:
            trace, entry = whole_of(reader, sources[0], request), whole
        else:
            parts = _parts_of_all(reader, sources, request)
            refuse_copies(parts)
            if reader.settle is not None and len(sources) > 1:
                reader.settle(parts)
            trace = combine(parts, reader.name, read_for)
        if cache or (cache is None and time.perf_counter() - begin > CACHE_AFTER_S):
            trace_cache.store_entry(trace, entry, database)
    return wanted.part_of(trace, database=database)


def _call(reader: Reader, file: Path, request: Request) -> list[FilePart] | Trace:
    """Result of a reader for a file; any exception of a plug-in becomes an error that names the
    plug-in.
    """
    if reader.read is None:
        found = f"{file.name} is {reader.what}, which is not a trace"
        expected = "a file of a profiler that records timelines"
        raise UnknownFormatError(found, expected=expected, hint=f"read it with {reader.instead}")
    if not reader.package:
        with border(file.name):
            return reader.read(file, request)
    try:
        with plugins.foreign():
            return reader.read(file, request)
    except plugins.FailedError as error:
        found = f"the reader {reader.name!r} of {reader.package} failed on {file.name}: {error}"
        raise ReadError(found, hint="report this to its authors") from error


def whole_of(reader: Reader, file: Path, request: Request) -> Trace:
    """Trace of a file; its reader makes a whole trace of each file."""
    trace = _call(reader, file, request)
    if isinstance(trace, Trace):
        return trace
    raise _wrong(reader, "parts, although its files are whole traces", "a Trace")


def _parts_of_all(reader: Reader, sources: Sequence[Path], request: Request) -> list[FilePart]:
    """Parts of all files; several processes read them if there are many files."""
    workers = request.workers
    if reader.one_core and 1 < workers <= len(sources) and helpers.is_worth_it(sources):
        try:
            if (
                parts := _shared_parts(reader, sources, replace(request, workers=1), workers)
            ) is not None:
                return parts
        except (LlmprofError, MemoryError, *BY_CONTENT):
            pass  # read the files one by one, so that the error is that of the first broken file
        request = replace(request, workers=1)
    return [part for file in sources for part in read_parts(reader, file, request)]


def _shared_parts(
    reader: Reader, sources: Sequence[Path], request: Request, workers: int
) -> list[FilePart] | None:
    """Parts of all files in their order, read by several processes; None if one of them could
    not read a file.
    """
    description = {
        "reader": [reader.name, reader.version, reader.package],
        "paths": list(map(str, sources)),
        "asked": request.wanted.listed(),
        "python_functions": request.python_functions,
    }
    with helpers.shared(f"{__name__}:{read_next_files.__name__}", description, workers) as job:
        own = {
            i: read_parts(reader, file, request) for i, file in enumerate(sources) if job.take(i)
        }
        for unit, facts, frames in job.others(len(sources)):
            own[unit] = [
                FilePart(
                    sources[unit], {name: frames[f"{i}/{name}"] for name in names}, head, coverage
                )
                for i, (names, head, coverage) in enumerate(facts)
            ]
            if request.progress is not None:
                size = sources[unit].stat().st_size
                request.progress(sources[unit].name, size, size)
    return (
        [part for i in range(len(sources)) for part in own[i]] if len(own) == len(sources) else None
    )


def read_next_files(description: dict[str, Any], share: helpers.JobShare) -> None:
    """Work of a helper process: reads files that no other process has taken."""
    name, version, package = description["reader"]
    reader = registry.reader_named(name)
    if (reader.version, reader.package) != (version, package):
        raise ReadError(
            f"the reader {name!r} has another version than in the process that started this one"
        )
    asked = description["asked"]
    asked = asked and {table: columns and frozenset(columns) for table, columns in asked.items()}
    request = Request(TableFilter(asked), description["python_functions"])
    for unit, path in enumerate(map(Path, description["paths"])):
        if share.take(unit):
            parts = read_parts(reader, path, request)
            frames = {
                f"{i}/{table}": frame
                for i, part in enumerate(parts)
                for table, frame in part.tables.items()
            }
            share.give(
                unit, [[list(part.tables), part.head, part.coverage] for part in parts], frames
            )


def read_parts(reader: Reader, file: Path, request: Request) -> list[FilePart]:
    """Parts of a file, with absolute times."""
    parts = _call(reader, file, request)
    if isinstance(parts, list) and all(isinstance(part, FilePart) for part in parts):
        return parts
    raise _wrong(reader, f"a {type(parts).__name__}", "a list of FilePart")


def _wrong(reader: Reader, problem: str, expected: str) -> ReadError:
    return ReadError(
        f"the reader {reader.name!r} of {reader.package or 'llmprof'} returned {problem}",
        expected=expected,
    )


def hardware_metrics_only(path: Path) -> bool:
    """Whether a path has hardware metrics of Nsight Compute but no timeline."""
    with border(path.name or str(path)):
        if not path.exists() or (is_run(path) and has_timeline(path)):
            return False
        if not path.is_dir():
            return _is_profile(path)
        try:
            return not files_of(path, None, quiet=True)
        except ReadError:
            return any(_is_profile(file) for file in path.iterdir() if file.is_file())


def _is_profile(path: Path) -> bool:
    try:
        reader = knows(path)
    except ReadError:  # the caller raises this error when it reads the file
        return False
    return reader is not None and reader.instead == "llmprof.read_metrics"


def files_of(
    path: Path, chosen: Reader | None, *, quiet: bool = False
) -> list[tuple[Reader, Path]]:
    """Readers and files of the traces at a path, in the order of their names."""
    if not path.exists():
        raise ReadError(f"{path} does not exist", hint="check the path")
    if not path.is_dir():
        refuse_empty(files.regular(path))
        reader = chosen or knows(path)
        if reader is None:
            hint = "pass the file that the profiler wrote, or name its format with format="
            raise UnknownFormatError(
                f"{path.name} is {say_what_it_is(path)}", expected=_expected(), hint=hint
            )
        return [(reader, path)]
    reader = (
        chosen
        if chosen is not None and claims(chosen, Probe(path))
        else knows(path)
        if chosen is None
        else None
    )
    return [(reader, path)] if reader is not None else _inside(path, chosen, quiet=quiet)


def _inside(folder: Path, chosen: Reader | None, *, quiet: bool) -> list[tuple[Reader, Path]]:
    """Readers and files of the traces in a folder, without files that are whole traces by
    themselves.
    """
    suffixes = {suffix for reader in registry.readers() for suffix in reader.suffixes}
    candidates = sorted(p for p in folder.iterdir() if p.suffix in suffixes or p.is_dir())
    special = {path: kind for path in candidates if (kind := files.special(path))}
    candidates = [path for path in candidates if path not in special]
    if special and not quiet:
        some = listed(f"{path.name} is a {kind}" for path, kind in list(special.items())[:3])
        which = left_out(len(special), "entry", "other than files and folders")
        warnings.warn(f"{folder.name}: {which}: {some}", TraceWarning, stacklevel=2)
    readable = [(reader, path) for path in candidates if (reader := knows(path)) is not None]
    by_reader: dict[Reader, list[Path]] = {}
    for reader, path in readable:
        if not reader.alone and chosen in (None, reader):
            by_reader.setdefault(reader, []).append(path)
    others = [f"{path.name} is {_apart(one)}" for one, path in readable if one not in by_reader]
    if not by_reader:
        whole = [one for one in readable if one[0].read is not None and chosen in (None, one[0])]
        folders = [path for path in candidates if path.is_dir()]
        engines = (
            {path: found for path in folders if (found := _if_any(path, chosen))}
            if not readable
            else {}
        )
        if len(engines) > 1:
            return [one for found in engines.values() for one in found]
        metrics = any(one.instead == "llmprof.read_metrics" for one, _ in readable)
        if not metrics and 0 < len(whole) == len(
            {one for one, _ in whole}
        ):  # of several of one format, none is meant
            if whole[1:] and not quiet:
                rest = [f"{path.name} is {_apart(one)}" for one, path in whole[1:]]
                warnings.warn(
                    f"{folder.name}: left out: {'; '.join(rest)}", TraceWarning, stacklevel=2
                )
            return whole[:1]
        problem = (
            f"{folder} has no trace (llmprof looked at"
            f" {counted(sum(p.is_file() for p in candidates), 'file')})"
        )
        hint = next(iter(others), "pass the folder with the profiler's files")
        raise ReadError(problem, expected=_expected(), hint=hint)
    return [
        (reader, path)
        for reader, paths in by_reader.items()
        for path in (reader.choose or list)(paths)
    ]


def _if_any(folder: Path, chosen: Reader | None) -> list[tuple[Reader, Path]]:
    """Readers and files of the ranks in a folder of one engine; none if it has no trace, or
    whole ones.
    """
    suffixes = {suffix for reader in registry.readers() for suffix in reader.suffixes}
    known = [
        (reader, p)
        for p in sorted(folder.iterdir())
        if p.suffix in suffixes and (reader := knows(p)) is not None
    ]
    return [
        (reader, path) for reader, path in known if not reader.alone and chosen in (None, reader)
    ]


def _apart(reader: Reader) -> str:
    """What a file of a folder is that is not read with the others, and how it is read."""
    return (
        f"{reader.what}: read it {'with ' * bool(reader.instead)}{reader.instead or 'separately'}"
    )


def left_aside(folder: Path) -> list[str]:
    """Files of a folder that a reader knows but that are not read with the others, in words."""
    if not folder.is_dir() or is_run(folder) or knows(folder) is not None:
        return []
    used = {path for _, path in files_of(folder, None, quiet=True)}
    known = [
        (path, knows(path))
        for path in sorted(folder.iterdir())
        if path.is_file() and path not in used
    ]
    return [
        f"{path.name} is {_apart(reader)}"
        for path, reader in known
        if reader is not None and reader.alone
    ]


def _expected() -> str:
    """Words that list the names of the formats that can be read."""
    names = listed(reader.name for reader in registry.readers() if reader.read is not None)
    return f"a file or folder in one of the formats {names}"
