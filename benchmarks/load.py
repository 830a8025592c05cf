"""Reading a trace or a folder of ranks: llmprof, the floor under a trace, json.loads, and HTA."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from _process import PEERS_PYTHON, Measured, alternate, run
from _table import ratio, seconds, size, table

_LABELS = {
    "llmprof": "llmprof: conformed frames",
    "alone": "llmprof: in one process",
    "floor": "floor: gunzip + typed decode",
    "json": "gunzip + json.loads",
    "hta": "HTA: TraceAnalysis",
}


def measure(path: Path, rounds: int) -> dict[str, Measured]:
    """Seconds and peak memory of each, by name."""
    names = ("llmprof",) if path.is_dir() else ("llmprof", "floor", "json")
    contenders = {name: partial(run, f"load_{name}", path) for name in names}
    contenders["alone"] = partial(run, "load_llmprof", path, 1)
    if PEERS_PYTHON.exists():
        contenders["hta"] = partial(run, "load_hta", path, python=PEERS_PYTHON)
    return alternate(contenders, rounds)


def report(results: dict[str, Measured]) -> str:
    """Table of ratios to llmprof."""
    own = results["llmprof"]
    rows = []
    for name, found in results.items():
        if "failed" in found:
            rows.append([_LABELS[name], found["failed"][:60], *[""] * 7])
            continue
        rows.append(
            [
                _LABELS[name],
                seconds(found["first_seconds"]),
                seconds(found["seconds"]),
                ratio(found["seconds"] / own["seconds"]),
                seconds(found["cpu_seconds"]),
                ratio(found["cpu_seconds"] / own["cpu_seconds"]),
                size(found["peak_bytes"]),
                ratio(found["peak_bytes"] / own["peak_bytes"]),
                f"{found['rows']:,}",
            ]
        )
    head = [
        "load",
        "first time",
        "time",
        "to llmprof",
        "CPU time",
        "to llmprof",
        "peak memory",
        "to llmprof",
        "rows",
    ]
    return table(head, rows)
