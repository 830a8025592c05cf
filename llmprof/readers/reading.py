"""``llmprof.read``: files, folders and ranks in, one trace out."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

from llmprof.errors import MixedRunsError, ReadError, TraceWarning, UnknownFormatError
from llmprof.progress import Progress
from llmprof.readers import cache as trace_cache
from llmprof.readers.chrome import reader as chrome
from llmprof.readers.common.combine import combine
from llmprof.readers.common.part import Tables, Wanted
from llmprof.readers.detect import detect, is_saved, refuse_empty, say_what_it_is
from llmprof.readers.monitors import dstat, gpu, sysstat
from llmprof.readers.nsys import reader as nsys
from llmprof.readers.nsys.export import REPORT_SUFFIX, export
from llmprof.trace import Trace

CACHE_AFTER_S = 1.0
"""With ``cache=None``, a trace whose parsing took longer than this is kept in the cache."""

MONITORS = {
    "dmon": gpu.read_dmon,
    "query-gpu": gpu.read_query_gpu,
    "gpustat": gpu.read_gpustat,
    "dstat": dstat.read_dstat,
    "sar": sysstat.read_sar,
    "sadf": sysstat.read_sadf,
}
"""Readers of what monitors printed: one file, counters only."""

FORMATS = ("chrome", "nsys", "llmprof", *MONITORS)
"""Names of formats that :func:`read` takes."""

_SUFFIXES = (".json", ".gz", ".trace", ".txt", "", ".sqlite", REPORT_SUFFIX)
_VERSIONS = {"chrome": chrome.VERSION, "nsys": nsys.VERSION}

PathLike = str | os.PathLike[str]


def read(
    path_or_paths: PathLike | Iterable[PathLike],
    *,
    format: str | None = None,  # noqa: A002
    tables: Tables | None = None,
    python_functions: bool = False,
    cache: bool | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read what a profiler wrote as one trace.

    Parameters
    ----------
    path_or_paths : path or iterable of paths
        A file (Chrome trace JSON, an SQLite export of Nsight Systems, its ``.nsys-rep``), a folder with one file a
        rank or with Parquet tables of nsys, several of them, or a folder that :meth:`Trace.save` wrote. Or one file
        of a monitor: ``nvidia-smi dmon``, ``nvidia-smi --query-gpu --format=csv``, ``gpustat --json``, ``dstat`` (or
        dool), ``sar`` or ``sadf -d``; its trace has the table ``counters`` only, named as llmprof's own monitors
        name them, and :func:`llmprof.launch.monitors.counters` puts them on the clock of another trace.
    format : str, optional
        One of :data:`FORMATS`; found from the content if not given.
    tables : iterable of str, or mapping of str to iterable of str, optional
        Names of the tables to keep, by default all; as a mapping with the columns to keep of each (None for all),
        beside those that are never null: ``{"kernels": ("stream",), "copies": None}``. Ranks and times are those of
        the whole trace. An export of Nsight Systems is read that much faster, other formats take less memory.
    python_functions : bool
        Keep Python functions (torch's ``with_stack=True``) as operators of kind ``python``.
    cache : bool, optional
        True keeps the parsed trace in the user's cache folder and takes it from there when the files did not
        change since; False never; by default only traces that took longer than a second to parse.
    progress : callable, optional
        Called with the name of a file, the bytes of it that were read, and its size.

    Returns
    -------
    Trace
        All ranks on one clock; times in ns from the earliest event.

    Raises
    ------
    ReadError
        A file is missing, empty or unreadable.
    UnknownFormatError
        No reader knows the content.
    MixedRunsError
        One rank came twice, or the files belong to different runs.
    LlmprofError
        ``tables`` names nothing, or a table or column that the schema does not have.
    """
    wanted = Wanted.of(tables)
    given = [path_or_paths] if isinstance(path_or_paths, str | os.PathLike) else list(path_or_paths)
    paths = [Path(p) for p in given]
    if not paths:
        raise ReadError("no path was given", expected="a file, a folder or several of them")
    if format is not None and format not in FORMATS:
        raise UnknownFormatError(f"there is no format {format!r}", expected=f"one of {list(FORMATS)}")
    if len(paths) == 1 and (format == "llmprof" or (format is None and is_saved(paths[0]))):
        return wanted.part_of(Trace.open(paths[0]))
    files = [found for path in paths for found in _files(path, format)]
    kinds = sorted({kind for kind, _ in files})
    if kinds[0] in MONITORS and len(files) == 1:
        return _warned(wanted.part_of(MONITORS[kinds[0]](files[0][1])))
    if len(kinds) > 1 or kinds[0] in MONITORS:
        raise MixedRunsError(
            f"the files are of different formats: {kinds}"
            if len(kinds) > 1
            else f"there are {len(files)} files of {kinds[0]}",
            expected="what one profiler wrote of one run",
            hint="read each by itself",
            formats=kinds,
        )
    options = f"{kinds[0]} {_VERSIONS[kinds[0]]} python={python_functions}"
    whole = trace_cache.entry([file for _, file in files], options)
    entry = (
        trace_cache.entry([file for _, file in files], f"{options} {wanted.listed()}")
        if wanted.asked is not None
        else whole
    )
    trace = None if cache is False else trace_cache.load(entry) or trace_cache.load(whole)
    one_file = kinds == ["nsys"] and len(files) == 1 and not files[0][1].is_dir()
    database = _exported(files[0][1], progress) if one_file else None
    if trace is not None:
        trace = wanted.part_of(trace, database=database)
    else:
        begin = time.perf_counter()
        parts = []
        for kind, file in files:
            if kind == "chrome":
                parts += chrome.read(file, python_functions=python_functions, progress=progress)
            else:
                parts += nsys.read(_exported(file, progress), wanted)
        trace = Trace(*combine(parts, kinds[0], wanted), database=database)
        if cache or (cache is None and time.perf_counter() - begin > CACHE_AFTER_S):
            trace_cache.store(trace, entry)
    return _warned(trace)


def _warned(trace: Trace) -> Trace:
    """The trace, after warning of what was lost or is missing."""
    for message in trace.coverage.get("warnings", ()):
        warnings.warn(message, TraceWarning, stacklevel=3)
    return trace


def _files(path: Path, format: str | None) -> list[tuple[str, Path]]:  # noqa: A002
    """Traces at a path with their formats, in the order of their names."""
    if not path.exists():
        raise ReadError(f"{path} does not exist", hint="check the path")
    if not path.is_dir():
        refuse_empty(path)
        kind = format or detect(path)
        if kind is None:
            raise UnknownFormatError(
                f"{path.name} is {say_what_it_is(path)}",
                expected="Chrome trace JSON (PyTorch profiler, Ascend trace_view.json), plain or gzip, "
                "an export of Nsight Systems, or what a monitor printed",
                hint="pass the file that the profiler wrote, or name its format with format=",
            )
        return [(kind, path)]
    if detect(path) == "nsys":
        return [("nsys", path)]
    candidates = sorted(p for p in path.iterdir() if p.is_file() and p.suffix in _SUFFIXES)
    found = [(kind, p) for p in candidates if (kind := detect(p)) is not None and format in (None, kind)]
    found = [(kind, p) for kind, p in found if kind not in MONITORS]  # they lie beside the traces of a run
    exported = {p.stem for kind, p in found if p.suffix == ".sqlite"}
    found = [(kind, p) for kind, p in found if not (p.suffix == REPORT_SUFFIX and p.stem in exported)]
    if not found:
        raise ReadError(
            f"{path} holds no trace among its {len(candidates)} candidate file(s)",
            expected="one Chrome trace JSON a rank, exports of Nsight Systems, or a folder that Trace.save wrote",
            hint="pass the folder that holds the profiler's files",
        )
    return found


def _exported(file: Path, progress: Progress | None) -> Path:
    """The SQLite export of a report, made once and kept in the cache; other files as they are."""
    if file.suffix != REPORT_SUFFIX:
        return file
    where = trace_cache.entry([file], "nsys export")
    target = where.with_name(f"{where.name}.export")
    made = target / f"{file.stem}.sqlite"
    if not made.exists():
        size = file.stat().st_size
        if progress is not None:
            progress(f"{file.name} (nsys export)", 0, size)
        export(file, target)
        if progress is not None:
            progress(f"{file.name} (nsys export)", size, size)
    return made
