"""Whether summaries under nsys's names are those of nsys: each row and cell, against nsys's own
scripts.

``python benchmarks/nsys_reports.py NSYS FILE.sqlite …`` runs the report scripts of an installation
of Nsight Systems (the folder that has ``reports`` and ``python/lib``) on exports, and compares what
they print with ``analyze.nsys``. Its extension of SQLite is replaced by functions of Python, so no
device and no library of NVIDIA's is needed. The exit code is 1 if a cell differs by more than its
printed place.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import subprocess
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import llmprof
from llmprof import analyze
from llmprof.errors import NotCapturedError, TraceWarning

TEXTS = {
    "Name": "name",
    "Operation": "kind",
    "Style": "kind",
    "Range": "name",
    "Kernel Name": "name",
    "API Name": "call",
    "PID": "process",
    "TID": "thread",
    "DevId": "device",
}
NUMBERS = {
    "Total Time": "total_ns",
    "Avg": "mean",
    "Med": "median",
    "Min": "min",
    "Max": "max",
    "StdDev": "std",
    "Instances": "count",
    "Num Calls": "count",
    "Count": "count",
    "QCount": "queue_count",
    "Total": "total_bytes",
}
REPORTS = (
    "cuda_gpu_kern_sum",
    "cuda_api_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum",
    "cuda_kern_exec_sum",
    "nvtx_sum",
    "nvtx_pushpop_sum",
    "osrt_sum",
    "mpi_event_sum",
)
RUN = """
import runpy, sqlite3, statistics, sys
class Median:
    def __init__(self): self.values = []
    def step(self, value): self.values += [] if value is None else [value]
    def finalize(self): return float(statistics.median(self.values)) if self.values else None
class Deviation(Median):
    def finalize(self): return statistics.stdev(self.values) if len(self.values) > 1 else 0.0
opened = sqlite3.connect
def connect(*given, **named):
    made = opened(*given, **named)
    for name in ("median", "lower_quartile", "upper_quartile"):
        made.create_aggregate(name, 1, Median)
    made.create_aggregate("stdev", 1, Deviation)
    return made
sqlite3.connect = connect
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def theirs(nsys: Path, report: str, file: Path) -> list[dict[str, str]]:
    """Rows that nsys's script prints, without the hints of format in their heads."""
    paths = os.pathsep.join([str(nsys / "python" / "lib"), str(nsys / "reports")])
    command = [sys.executable, "-c", RUN, str(nsys / "reports" / f"{report}.py"), str(file)]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    rows = csv.DictReader(io.StringIO(done.stdout)) if not done.returncode else ()
    return [
        {head.partition(":")[0]: cell for head, cell in row.items()}
        for row in rows
        if any(row.values())
    ]


def compared(ours: Any, rows: list[dict[str, str]]) -> tuple[int, int]:
    """Cells that were compared, and those that differ; a row that only one side has differs in
    each cell.
    """
    texts = {
        head: column for head, column in TEXTS.items() if head in rows[0] and column in ours.columns
    }
    unit = "bytes" if "Total" in rows[0] else "ns"
    numbers = {
        head: next(c for c in (column, f"{column}_{unit}") if c in ours.columns)
        for head, column in NUMBERS.items()
        if head in rows[0]
    }
    groups: dict[tuple[str, ...], tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for row in rows:
        groups[tuple(row[head] for head in texts)][0].append(
            [(row[head] or "0") for head in numbers]
        )
    for row in ours.iter_rows(named=True):
        key = tuple("" if row[column] is None else str(row[column]) for column in texts.values())
        groups[key][1].append([row[column] or 0 for column in numbers.values()])
    cells = different = 0
    for said, found in groups.values():
        cells += len(numbers) * max(len(said), len(found))
        different += len(numbers) * abs(len(said) - len(found))
        said.sort(key=lambda row: [float(cell) for cell in row])
        for one, other in zip(said, sorted(found), strict=False):
            for printed, value in zip(one, other, strict=True):
                place = 0.51 * 10 ** -len(printed.partition(".")[2])
                different += abs(float(printed) - value) > max(place, 1e-9 * abs(value))
    return cells, different


def main() -> None:
    """Compare every report that nsys can make of each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nsys", type=Path, help="folder with reports and python/lib")
    parser.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args()
    total = wrong = 0
    warnings.simplefilter("ignore", TraceWarning)
    for file in args.files:
        trace = llmprof.read(file)
        for report in REPORTS:
            if not (rows := theirs(args.nsys, report, file)):
                continue
            try:
                cells, different = compared(getattr(analyze.nsys, report)(trace), rows)
            except NotCapturedError as error:
                cells, different = len(rows), len(rows)
                print(f"{file.name}: {report}: {error}")
            total, wrong = total + cells, wrong + different
            print(
                f"{file.parent.name}/{file.name}: {report}: {len(rows)} rows, {cells} cells, {different} differ"
            )
    print(f"{total} cells, {wrong} differ")
    sys.exit(bool(wrong or not total))


if __name__ == "__main__":
    main()
