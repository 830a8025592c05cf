"""Reading a trace of about 1 GB of JSON, made by repeating a real one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from _process import WORK, Measured, alternate, run
from _repeat import repeated_file
from _table import seconds, size, table


def measure(source: Path, json_bytes: int, rounds: int) -> Measured:
    """Seconds, peak memory and rows of reading it."""
    WORK.mkdir(exist_ok=True)
    target = WORK / "big.pt.trace.json.gz"
    try:
        written = repeated_file(source, target, json_bytes)
        found = alternate({"big": partial(run, "big", target)}, rounds)["big"]
        return {**found, "json_bytes": written, "gzip_bytes": target.stat().st_size}
    finally:
        target.unlink(missing_ok=True)


def report(found: Measured) -> str:
    """One row of a table."""
    if "failed" in found:
        return f"big: {found['failed']}"
    return table(
        ["big", "JSON", "gzip", "time", "CPU time", "per GB", "peak memory", "frames", "rows"],
        [
            [
                "llmprof",
                size(found["json_bytes"]),
                size(found["gzip_bytes"]),
                seconds(found["seconds"]),
                seconds(found["cpu_seconds"]),
                seconds(found["seconds"] / found["json_bytes"] * 1e9),
                size(found["peak_bytes"]),
                size(found["frame_bytes"]),
                f"{found['rows']:,}",
            ]
        ],
    )
