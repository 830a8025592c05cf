"""Queries of users, each in a process of its own with limits of memory, time and size.

A query can grow without bound however it is written, and Polars and SQLite end a process whose
memory is used up. Only this process ends then, and the caller gets an error.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

import polars as pl

from llmprof import errors
from llmprof.errors import AnalysisError, LlmprofError

MOST_BYTES: Final = 4 << 30
"""Memory that a query may take beside its tables (bytes of address space), on Linux."""

MOST_RESULT: Final = 2 << 30
"""Largest result (bytes of Arrow, each text counted in full), not on Windows."""

MOST_ROWS: Final = 100_000_000
"""Most rows of a result: rows without values take no bytes."""

MOST_S: Final = 120.0
"""Longest time of a query (s)."""

_AT_ONCE: Final = threading.BoundedSemaphore(2)
_REFUSED: Final = 3
"""Status of the process when what it wrote is an error of llmprof."""

_SOURCE: Final = re.compile(r"^[ \t]*(\w+ SCAN \[.*)", re.MULTILINE)


def sources(frame: pl.LazyFrame) -> Iterator[str]:
    """Lines of a plan that name files or other sources."""
    return (found[1] for found in _SOURCE.finditer(frame.explain(optimized=False)))


QueryTables = Mapping[str, pl.DataFrame | pl.LazyFrame]


def compute_bounded(
    compute: Callable[..., pl.DataFrame], query: Mapping[str, str], tables: QueryTables
) -> pl.DataFrame:
    """Result of a function of tables and a query, called in a process within the limits."""
    with (
        _AT_ONCE,
        tempfile.TemporaryFile() as asked,
        tempfile.TemporaryFile() as told,
        tempfile.TemporaryFile() as log,
    ):
        try:
            job = {"module": compute.__module__, "name": compute.__name__, "query": query}
            status = _run(_write(asked, job, tables), asked, told, log)
        except (OSError, pl.exceptions.PolarsError) as error:  # a full disk, no process to be had
            hint = (
                f"the folder {tempfile.gettempdir()} needs room for the tables: TMPDIR names"
                " another"
            )
            raise AnalysisError(
                f"the SQL query cannot be given to a process: {error}", hint=hint
            ) from error
        told.seek(0)
        if status == 0:
            return pl.read_ipc(told)
        if status == _REFUSED:
            said = json.load(told)
            raise getattr(errors, said.pop("error"))(said.pop("found"), **said)
        log.seek(max(0, log.seek(0, os.SEEK_END) - 1000))
        lines = log.read().decode("utf-8", "replace").splitlines()
    why = next(
        (line for line in reversed(lines) if line.strip() and not line.startswith("note:")), ""
    )
    if status < 0:
        why = ": ".join(filter(None, (signal.Signals(-status).name, why)))
    raise AnalysisError(
        f"the SQL query was ended ({why[:200] or status})",
        expected=(
            f"at most {MOST_BYTES >> 30} GiB of memory beside the tables, a result of"
            f" {MOST_RESULT >> 30} GiB and {MOST_S:g} s"
        ),
        hint=(
            "filter and aggregate before joining, or work on the frames of the trace, which have no"
            " limit"
        ),
    )


def _write(file: IO[bytes], job: dict[str, Any], tables: QueryTables) -> int:
    """Write the tables, rows or only their plan, and then the job; where that begins."""
    job |= {"tables": [], "most": [MOST_BYTES, MOST_RESULT, MOST_S]}
    for name, table in tables.items():
        begin = file.tell()
        is_plan = isinstance(table, pl.LazyFrame) and any(sources(table))
        if is_plan:
            file.write(table.lazy().serialize())
        else:
            table.lazy().collect().write_ipc(file, compression="uncompressed")
        job["tables"].append([name, is_plan, file.tell() - begin])
    begin = file.tell()
    file.write(json.dumps(job).encode())
    file.seek(0)
    return begin


def _run(begin: int, asked: IO[bytes], told: IO[bytes], log: IO[bytes]) -> int:
    """Status of the process of a job, which ends with this call."""
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    with subprocess.Popen(  # noqa: S603 (this interpreter, and a module of this package)
        [sys.executable, "-P", "-m", __name__, str(begin)],
        stdin=asked,
        stdout=told,
        stderr=log,
        env=os.environ | {"PYTHONPATH": paths, "RUST_BACKTRACE": "0"},
        start_new_session=True,  # an interrupt is for this process, which then ends it
    ) as process:
        try:
            return process.wait(MOST_S)
        except subprocess.TimeoutExpired:
            log.write(b"its time is up")
            return 1
        finally:
            process.kill()


def _limit(most_bytes: int, most_result: int) -> None:
    """Limit what this process may take from now on."""
    with suppress(
        ImportError
    ):  # Windows has no such limits, and macOS holds no process to that of memory
        import resource

        limits = {resource.RLIMIT_FSIZE: most_result, resource.RLIMIT_CORE: 0}
        if sys.platform == "linux":
            used = (
                int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
            )
            limits[resource.RLIMIT_AS] = used + most_bytes
            with suppress(OSError):  # the first that the system ends when memory is short
                Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
        for kind, most in limits.items():
            now, hard = resource.getrlimit(kind)
            resource.setrlimit(
                kind, (most if now == resource.RLIM_INFINITY else min(most, now), hard)
            )


def _main(begin: int) -> int:
    """Do the job on standard input."""
    asked, told = sys.stdin.buffer, sys.stdout.buffer
    asked.seek(begin)
    job = json.load(asked)
    most_bytes, most_result, most_s = job["most"]
    if hasattr(signal, "setitimer"):  # also when nobody waits any more
        signal.setitimer(signal.ITIMER_REAL, most_s)
    compute = getattr(import_module(job["module"]), job["name"])
    asked.seek(0)
    tables: dict[str, pl.DataFrame | pl.LazyFrame] = {}
    for table, is_plan, size in job["tables"]:
        data = io.BytesIO(asked.read(size))
        tables[table] = pl.LazyFrame.deserialize(data) if is_plan else pl.read_ipc(data)
    _limit(most_bytes, most_result)
    try:
        frame = compute(tables, **job["query"])
        if frame.height > MOST_ROWS:
            raise AnalysisError(
                f"the result has {frame.height:,} rows", expected=f"at most {MOST_ROWS:,}"
            )
        # texts in full, so that neither this file nor what the caller makes of it is more than was
        # counted
        frame.write_ipc(told, compression="uncompressed", compat_level=pl.CompatLevel.oldest())
    except LlmprofError as error:
        said = {
            "error": type(error).__name__,
            "found": error.found,
            "expected": error.expected,
            "hint": error.hint,
        }
        told.write(json.dumps(error.facts | said).encode())
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))
