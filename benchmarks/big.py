"""Reading a trace of about 1 GB of JSON, made by repeating a real one: in one process, and in
blocks by several.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from _process import WORK, Measured, alternate, run
from _repeat import repeated_file
from _table import seconds, size, table


def measure(source: Path, json_bytes: int, rounds: int) -> Measured:
    """Seconds, CPU time, peak memory and rows of reading it, by the number of processes."""
    WORK.mkdir(exist_ok=True)
    target = WORK / "big.pt.trace.json.gz"
    try:
        written = repeated_file(source, target, json_bytes)
        contenders = {
            str(count): partial(run, "big", target, count) for count in (1, os.cpu_count() or 1)
        }
        found = alternate(contenders, rounds)
        return {"by_workers": found, "json_bytes": written, "gzip_bytes": target.stat().st_size}
    finally:
        target.unlink(missing_ok=True)


def report(found: Measured) -> str:
    """One row for each number of processes."""
    rows = []
    for one in found["by_workers"].values():
        if "failed" in one:
            return f"big: {one['failed']}"
        rows.append(
            [
                f"llmprof, {one['processes']} process(es)",
                size(found["json_bytes"]),
                size(found["gzip_bytes"]),
                seconds(one["seconds"]),
                seconds(one["cpu_seconds"]),
                seconds(one["seconds"] / found["json_bytes"] * 1e9),
                size(one["peak_bytes"]),
                size(one["frame_bytes"]),
                f"{one['rows']:,}",
            ]
        )
    return table(
        ["big", "JSON", "gzip", "time", "CPU time", "per GB", "peak memory", "frames", "rows"], rows
    )
