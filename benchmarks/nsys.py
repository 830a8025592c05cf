"""An export of Nsight Systems: llmprof against pandas.read_sql, and its kernel summary against nsys
stats.

``nsys`` comes from PATH, or from the environment variable LLMPROF_NSYS; without it only pandas is
measured against.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from functools import partial
from pathlib import Path

from _process import WORK, Measured, alternate, run
from _table import ratio, seconds, size, table

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"

_LABELS = {
    "read": "llmprof: conformed frames of all tables",
    "pandas": "pandas.read_sql: the same columns, names joined",
    "summary": "llmprof: kernels' names and durations summed up",
    "stats": "nsys stats -r cuda_gpu_kern_sum",
}
_PEER_OF = {"read": "read", "pandas": "read", "summary": "summary", "stats": "summary"}


def repeated(source: Path, kernels: int) -> Path:
    """Copy of an export whose kernels are repeated, shifted in time and with correlations of
    their own.
    """
    target = WORK / f"nsys_{kernels}.sqlite"
    if target.exists():
        return target
    WORK.mkdir(exist_ok=True)
    work = target.with_suffix(".part")
    shutil.copyfile(source, work)
    with sqlite3.connect(work) as c:
        c.execute("PRAGMA journal_mode = OFF")
        c.execute("PRAGMA synchronous = OFF")
        count, first, last = c.execute(
            f"SELECT count(*), min(start), max(end) FROM {KERNELS}"
        ).fetchone()
        columns = [row[1] for row in c.execute(f"PRAGMA table_info({KERNELS})")]
        shifted = {"start": "start + ?1", "end": "end + ?1", "correlationId": "correlationId + ?2"}
        picked = ", ".join(shifted.get(name, f'"{name}"') for name in columns)
        c.execute(f"CREATE TEMP TABLE once AS SELECT * FROM {KERNELS}")
        for i in range(1, -(-kernels // count)):
            c.execute(
                f"INSERT INTO {KERNELS} SELECT {picked} FROM once",
                (i * (last - first + 1_000_000), i * 1_000_000),
            )
    c.close()
    work.replace(target)
    return target


def measure(source: Path, kernels: int, rounds: int) -> dict[str, Measured]:
    """Seconds and peak memory of each, by name."""
    path = repeated(source, kernels)
    contenders = {
        name: partial(run, f"nsys_{name}", path) for name in ("read", "pandas", "summary")
    }
    nsys = os.environ.get("LLMPROF_NSYS") or shutil.which("nsys")
    if nsys:
        contenders["stats"] = partial(run, "nsys_stats", path, nsys)
    return alternate(contenders, rounds)


def report(results: dict[str, Measured]) -> str:
    """Table of ratios to llmprof's way to the same answer."""
    rows = []
    for name, found in results.items():
        if "failed" in found:
            rows.append([_LABELS[name], found["failed"][:60], *[""] * 4])
            continue
        own = results[_PEER_OF[name]]
        rows.append(
            [
                _LABELS[name],
                seconds(found["seconds"]),
                ratio(found["seconds"] / own["seconds"]),
                seconds(found["cpu_seconds"]),
                size(found["peak_bytes"]),
                f"{found['rows']:,}",
            ]
        )
    return table(["nsys export", "time", "to llmprof", "CPU time", "peak memory", "rows"], rows)
