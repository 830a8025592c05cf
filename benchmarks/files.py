"""Every recording at hand: CPU time of reading it, for a million events, and of the floor under it.

The floor of a Chrome trace is gunzip and one typed decode of the fields that llmprof reads; that of
an SQLite export is fetching every row of the tables that llmprof reads. A file of few events costs
about 20 ms however few they are, so files below ``least`` events are repeated in time up to it
first, if they are Chrome traces, and left out otherwise.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from _process import ROOT, WORK, Measured, alternate, run
from _repeat import repeated_file
from _table import ratio, seconds, table

SHARED = ROOT.parent / "shared"
LEAST = 100_000
"""Events below which a file says more of what a call costs than of what an event costs."""


def recordings() -> Iterator[Path]:
    """Chrome traces and exports of Nsight Systems beside the checkout, and the bundled ones."""
    for folder in (
        SHARED / "real" / "chrome",
        SHARED / "real" / "nsys",
        SHARED / "captures",
        ROOT / "sample_traces",
    ):
        paths = [*folder.rglob("*.json"), *folder.rglob("*.json.gz"), *folder.rglob("*.sqlite")]
        yield from sorted(path for path in paths if path.name not in ("sample.json", "run.json"))


def merged(sources: list[Path]) -> Iterator[Path]:
    """The ranks of a sample as two tools merge them into one file, written again by Python's
    ``json``.
    """
    traces = [json.loads(gzip.decompress(path.read_bytes())) for path in sources]
    base_us = traces[0].get("baseTimeNanoseconds", 0) / 1000
    by_label: list[dict[str, Any]] = []
    by_argument: list[dict[str, Any]] = []
    for rank, trace in enumerate(traces):
        for event in trace["traceEvents"]:
            label = {"pid": f"[TP{rank:02d}] {event['pid']}"} if "pid" in event else {}
            absolute = {"ts": round(event["ts"] + base_us, 3)} if "ts" in event else {}
            by_label.append({**event, **label, **absolute})
            moved = (
                {"pid": event["pid"] + rank * 10**8} if isinstance(event.get("pid"), int) else {}
            )
            arguments = {**event.get("args", {}), "rank": rank, "pid_raw": event.get("pid")}
            by_argument.append({**event, **moved, "args": arguments})
    WORK.mkdir(exist_ok=True)
    for name, events in (("merged_by_label", by_label), ("merged_by_argument", by_argument)):
        path = WORK / f"{name}.json"
        path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
        yield path


def measure(rounds: int) -> dict[str, Measured]:
    """CPU seconds and events of each file, by its name."""
    results: dict[str, Measured] = {}
    ranks = sorted((ROOT / "sample_traces" / "torch_tp4_eager_nccl").glob("*.json.gz"))
    for path in [*merged(ranks), *recordings()]:
        first = run("file_read", path)
        if "failed" in first or first["rows"] == 0:
            continue
        taken, times = path, 1
        if first["rows"] < LEAST:
            if path.suffix == ".sqlite":
                continue
            taken = WORK / f"repeated_{path.name.removesuffix('.gz')}.gz"
            WORK.mkdir(exist_ok=True)
            times = -(-LEAST // first["rows"])
            try:
                repeated_file(path, taken, times * first["bytes"])
            except (KeyError, TypeError, ValueError):
                continue
        floor = "file_rows" if path.suffix == ".sqlite" else "load_floor"
        again = {} if taken == path and rounds == 1 else {"read": partial(run, "file_read", taken)}
        found = {"read": first} | alternate({**again, "floor": partial(run, floor, taken)}, rounds)
        name = f"{path.parent.name}/{path.name}"
        results[name] = {
            **found["read"],
            "floor": found["floor"].get("cpu_seconds"),
            "times": times,
        }
    return results


def report(results: dict[str, Measured]) -> str:
    """Table of seconds for a million events, the slowest first."""
    rows = []
    for name, found in sorted(
        results.items(), key=lambda item: -item[1]["cpu_seconds"] / item[1]["rows"]
    ):
        million = 1e6 / found["rows"]
        floor = found["floor"]
        rows.append(
            [
                name if len(name) < 72 else f"{name[:40]}…{name[-28:]}",
                f"{found['rows']:,}" + (f" ({found['times']} times)" if found["times"] > 1 else ""),
                seconds(found["cpu_seconds"] * million),
                seconds(floor * million) if floor else "",
                ratio(found["cpu_seconds"] / floor) if floor else "",
            ]
        )
    return table(["file", "events", "CPU time for a million", "floor", "to the floor"], rows)
