"""Reading a trace of about 1 GB of JSON, made by repeating a real one: in one process, and in
blocks by several; and the timeline of a dataset of 23 such ranks.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

from _process import WORK, Measured, alternate, run
from _repeat import repeated_dataset, repeated_file
from _table import ratio, seconds, size, table

from llmprof import read

RANKS = 23
"""As many of 1 GB make 50 million rows."""


def measure(source: Path, json_bytes: int, rounds: int) -> Measured:
    """Seconds, CPU time, peak memory and rows of reading it, by the number of processes."""
    WORK.mkdir(exist_ok=True)
    target, dataset = WORK / "big.pt.trace.json.gz", WORK / "big-dataset"
    shutil.rmtree(dataset, ignore_errors=True)
    try:
        written = repeated_file(source, target, json_bytes)
        contenders = {
            str(count): partial(run, "big", target, count) for count in (1, os.cpu_count() or 1)
        }
        found = alternate(contenders, rounds)
        rows = repeated_dataset(read(target, cache=False), dataset, RANKS)
        parts = {part: partial(run, "shown", dataset, part) for part in ("tables", "timeline")}
        return {
            "by_workers": found,
            "json_bytes": written,
            "gzip_bytes": target.stat().st_size,
            "dataset_rows": rows,
            "shown": alternate(parts, max(2, rounds)),
        }
    finally:
        target.unlink(missing_ok=True)
        shutil.rmtree(dataset, ignore_errors=True)


def report(found: Measured) -> str:
    """One row for each number of processes, and one for each part of showing the dataset."""
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
    head = ["big", "JSON", "gzip", "time", "CPU time", "per GB", "peak memory", "frames", "rows"]
    return f"{table(head, rows)}\n\n{_shown(found['shown'], found['dataset_rows'])}"


def _shown(parts: Measured, rows: int) -> str:
    least = parts["tables"].get("cpu_seconds")
    shown = [
        [part, str(one["failed"])[:60], "", "", ""]
        if "failed" in one
        else [
            part,
            seconds(one["seconds"]),
            seconds(one["cpu_seconds"]),
            ratio(one["cpu_seconds"] / least) if least else "?",
            size(one["peak_bytes"]),
        ]
        for part, one in parts.items()
    ]
    head = [f"dataset of {rows:,} rows", "time", "CPU time", "to the tables", "peak memory"]
    return table(head, shown)
