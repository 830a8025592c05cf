"""Reader of Nsight Compute: CSV of the raw page (wide) and the details page (long), and ``.ncu-rep`` reports."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from llmprof.errors import ReadError, TraceWarning, UnknownFormatError
from llmprof.metrics_data import Metrics
from llmprof.readers import _ncu_files as files
from llmprof.readers import _ncu_report as report
from llmprof.readers._ncu_pages import Part, part_of
from llmprof.readers._ncu_records import Found, split
from llmprof.readers._ncu_runs import combine

_NO_KERNELS: Final = "No kernels were profiled"
_NO_PERMISSION: Final = "ERR_NVGPUCTRPERM"


def read_metrics(path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Metrics:
    """Hardware metrics of kernel launches from files of Nsight Compute.

    The content decides, not the name: CSV of the raw page (``ncu --csv --page raw``, a row a launch), CSV of the
    details page (``--page details``, a row a metric, with rules), both with whatever else was printed in between, as
    they are or compressed with gzip or xz; and ``.ncu-rep`` reports, through the package ``ncu-report`` or else the
    ``ncu`` on the path. Files of the same launches, such as two pages of one report, are put together; another run
    in the same file or in a further one gets launches of its own (``Metrics.kernels`` says the ``run``).

    Every number is in base units: bytes (``B``), nanoseconds (``ns``), ``Hz``, ``%``, ``1``, their quotients
    (``B/cycle``), and rates per second (``B/s``).

    Parameters
    ----------
    path : path or iterable of paths
        Files; or a folder, of which all CSV files of Nsight Compute are read, or its reports if there are none.

    Returns
    -------
    Metrics
        Frames ``metrics`` and ``rules`` (:data:`llmprof.schema.PROFILES`).

    Raises
    ------
    ReadError
        A file is missing or unreadable, is a report that nothing here can open, or holds no results.
    UnknownFormatError
        A file is not from Nsight Compute.

    Warns
    -----
    TraceWarning
        Rows were cut or broken, units are missing, or the profiler reported an error.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths:
        raise ReadError("no file was given", expected="at least one file of Nsight Compute")
    parts: list[Part] = []
    coverage: dict[str, Any] = {"files": 0, "rows": 0, "cut_rows": 0, "broken_rows": 0, "other_lines": 0, "said": []}
    for file in _files([Path(p) for p in paths]):
        coverage["files"] += 1
        parts += _read(file, coverage)
    return combine(parts, coverage)


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(p for p in path.iterdir() if p.is_file())
        kinds = {p: files.kind(files.head(p)) for p in inside}
        found = [p for p in inside if kinds[p] == "csv"] or [p for p in inside if kinds[p] == "report"]
        if not found:
            raise UnknownFormatError(
                f"{path} holds no file of Nsight Compute", expected="CSV of ncu --csv, or .ncu-rep", path=str(path)
            )
        yield from found


def _read(path: Path, coverage: dict[str, Any]) -> Iterator[Part]:
    data, whole = files.content(path)
    if not whole:
        _warn(f"{path.name}: the compressed file ends early; what can be had of it was read")
    if files.kind(data[: files.HEAD]) == "report":
        yield from report.read(path, data, lambda text, name: _pages(split(text), name, coverage))
        return
    if b"\0" in data[: files.HEAD] and not data.startswith(files.UTF16):
        raise UnknownFormatError(f"{path} is not a file of Nsight Compute", expected=files.EXPECTED, path=str(path))
    text = files.text(data)
    found = split(text)
    if not found.segments and files.is_text_page(text):
        raise UnknownFormatError(
            f"{path} is what ncu prints for people",
            expected=files.EXPECTED,
            hint="export it with ncu --import FILE.ncu-rep --csv --page raw --print-units base",
            path=str(path),
        )
    yield from _pages(found, path.name, coverage, path=path)


def _pages(found: Found, name: str, coverage: dict[str, Any], path: Path | None = None) -> list[Part]:
    """Parts of the pages of one text, with what was lost counted and said."""
    where = str(path or name)
    errors = [line for line in found.said if line.startswith("==ERROR==")]
    coverage["other_lines"] += found.other_lines
    coverage["said"] = [*coverage["said"], *found.said]
    if not found.segments:
        _refuse(found, errors, where)
    parts = [part for number, segment in enumerate(found.segments) for part in part_of(segment, f"{where}:{number}")]
    cut, broken = sum(p.cut_rows for p in parts), sum(p.broken_rows for p in parts)
    coverage["rows"] += sum(len(s.rows) for s in found.segments)
    coverage["cut_rows"] += cut
    coverage["broken_rows"] += broken
    if cut:
        _warn(f"{name}: {cut} row(s) are cut; their values up to the cut were kept where they are whole")
    if broken:
        _warn(f"{name}: {broken} row(s) could not be read and were left out")
    if any(p.no_units for p in parts):
        _warn(f"{name}: the row with units is missing, so the numbers are as written; record with --print-units base")
    if errors:
        _warn(f"{name}: the profiler reported {errors[-1]!r}")
    if not any(p.launches.height for p in parts):
        _warn(f"{name}: there is a heading but no result")
    return parts


def _refuse(found: Found, errors: list[str], where: str) -> None:
    said = "\n".join(found.said)
    if _NO_PERMISSION in said:
        raise ReadError(
            f"{where} holds no results: the profiler may not read the hardware counters ({_NO_PERMISSION})",
            hint="have an administrator set NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN",
            path=where,
        )
    if _NO_KERNELS in said:
        raise ReadError(
            f"{where} holds no results: no kernels were profiled",
            hint="check --kernel-name, --launch-skip and --target-processes all",
            path=where,
        )
    if errors:
        raise ReadError(f"{where} holds no results: {errors[-1]}", hint="run the profiler again", path=where)
    raise UnknownFormatError(f"{where} is not a file of Nsight Compute", expected=files.EXPECTED, path=where)


def _warn(message: str) -> None:
    warnings.warn(message, TraceWarning, stacklevel=3)
