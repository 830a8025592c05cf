"""``nsys stats``: its reports beside ours, cell by cell.

``LLMPROF_NSYS`` names the program if it is not on the PATH. Counts and totals have to be equal, what nsys rounds has to
round to the same.
"""

import csv
import os
import shutil
import subprocess
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from llmprof import analyze
from llmprof.analyze.nsys.nvtx import LABEL
from llmprof.trace import Trace

NSYS = os.environ.get("LLMPROF_NSYS") or shutil.which("nsys")

needs_nsys = pytest.mark.skipif(NSYS is None, reason="there is no nsys on the PATH or in LLMPROF_NSYS")


class Report(NamedTuple):
    """Columns of nsys's report in order, each with ours and what one unit of theirs is in ours."""

    columns: dict[str, tuple[str, float]]
    key: tuple[str, ...]


def _spread(theirs: str, ours: str, unit: float = 1) -> dict[str, tuple[str, float]]:
    names = {"Avg": "mean", "Med": "median", "Min": "min", "Max": "max", "StdDev": "std"}
    return {theirs.format(a): (ours.format(b), unit) for a, b in names.items()}


def _sum(count: str, **names: str) -> Report:
    """Report of times: ``count`` is nsys's name of the count; their and our names of the columns of text."""
    text = {theirs: (ours, 0.0) for theirs, ours in names.items()}
    numbers = {"Time (%)": ("share", 0.01), "Total Time (ns)": ("total_ns", 1), count: ("count", 1)}
    return Report({**numbers, **_spread("{} (ns)", "{}_ns"), **text}, tuple(names.values()))


REPORTS = {
    "cuda_gpu_kern_sum": _sum("Instances", Name="name"),
    "cuda_api_sum": _sum("Num Calls", Name="name"),
    "cuda_gpu_mem_time_sum": _sum("Count", Operation="operation"),
    "cuda_gpu_mem_size_sum": Report(
        {"Total (MB)": ("total_bytes", 1e6), "Count": ("count", 1), **_spread("{} (MB)", "{}_bytes", 1e6)}
        | {"Operation": ("operation", 0)},
        ("operation",),
    ),
    "nvtx_sum": _sum("Instances", Style="style", Range="name"),
    "nvtx_pushpop_sum": _sum("Instances", Range="name"),
    "nvtx_startend_sum": _sum("Instances", Range="name"),
    "osrt_sum": _sum("Num Calls", Name="name"),
    "openacc_sum": _sum("Num Calls", Name="name"),
    "openmp_sum": _sum("Count", Name="name"),
    "nvtx_gpu_proj_sum": Report(
        {
            "Range": ("name", 0),
            "Style": ("style", 0),
            "Total Proj Time (ns)": ("total_projected_ns", 1),
            "Total Range Time (ns)": ("total_range_ns", 1),
            "Range Instances": ("count", 1),
            **_spread("Proj {} (ns)", "projected_{}_ns"),
            "Total GPU Ops": ("launches", 1),
            "Avg GPU Ops": ("mean_launches", 1),
            "Avg Range Lvl": ("mean_depth", 1),
            "Avg Num Child": ("mean_children", 1),
        },
        ("style", "name"),
    ),
    "cuda_kern_exec_sum": Report(
        {
            "PID": ("process", 1),
            "TID": ("thread", 1),
            "DevId": ("device", 1),
            "Count": ("count", 1),
            "QCount": ("queued_count", 1),
            **_spread("T{} (ns)", "total_{}_ns"),
            **_spread("A{} (ns)", "api_{}_ns"),
            **_spread("Q{} (ns)", "queue_{}_ns"),
            **_spread("K{} (ns)", "kernel_{}_ns"),
            "API Name": ("api_name", 0),
            "Kernel Name": ("name", 0),
        },
        ("process", "thread", "device", "api_name", "name"),
    ),
}


def report_of(trace: Trace, name: str) -> pl.DataFrame:
    function: Callable[[Trace], pl.DataFrame] = getattr(analyze.nsys, name)
    return function(trace)


def compare_stacks(ours: pl.DataFrame, theirs: list[dict[str, str]], start_ns: int) -> None:
    """Each range that was pushed, with its place in the stack."""
    columns = {
        "Start (ns)": "start_ns", "End (ns)": "end_ns", "Duration (ns)": "dur_ns", "DurChild (ns)": "child_ns",
        "DurNonChild (ns)": "own_ns", "PID": "process", "TID": "thread", "Lvl": "depth", "NumChild": "children",
    }  # fmt: skip
    absolute = ours.with_columns(pl.col("start_ns", "end_ns") + start_ns)
    mine = sorted(absolute.select(*columns.values(), "name").rows())
    assert mine == sorted((*(int(float(r[c])) for c in columns), r["Name"]) for r in theirs)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if any(row.values())]


def compare(ours: pl.DataFrame, theirs: list[dict[str, str]], report: Report) -> None:
    """Every row and every cell; nsys leaves cells without a value empty."""
    assert list(theirs[0]) == list(report.columns)
    position = [theirs_name for theirs_name, (name, _) in report.columns.items() if name in report.key]
    total = next(c for c in report.columns if c.startswith(("Total", "Count")))
    theirs = sorted(theirs, key=lambda r: ([r[c] for c in position], float(r[total])))
    text = [name for name, (_, unit) in report.columns.items() if not unit]
    mine = [{column: row[name] for column, (name, _) in report.columns.items()} for row in ours.iter_rows(named=True)]
    mine = sorted(mine, key=lambda r: ([str(r[c]) for c in position], r[total]))
    assert [[r[c] for c in text] for r in mine] == [[r[c] for c in text] for r in theirs]
    for a, b in zip(mine, theirs, strict=True):
        for column, (_, unit) in report.columns.items():
            if unit == 0:
                continue
            value, written = a[column], b[column]
            if value is None:  # nsys gives nothing a deviation of 0
                assert written == ("0.0" if column.endswith("StdDev (ns)") else ""), (column, a, b)
                continue
            if isinstance(value, int) and unit == 1:
                assert value == int(float(written)), (column, a, b)
                continue
            places = len(written.partition(".")[2])
            assert value / unit == pytest.approx(float(written), abs=0.5001 * 10**-places, rel=1e-12), (column, a, b)


def compare_projection(ours: pl.DataFrame, theirs: list[dict[str, str]], start_ns: int) -> None:
    """Each instance of a range, told apart by thread, host start and name."""
    columns = {
        "Projected Start (ns)": "start_ns", "Projected Duration (ns)": "dur_ns", "Orig Start (ns)": "host_start_ns",
        "Orig Duration (ns)": "host_dur_ns", "PID": "process", "TID": "thread", "NumGPUOps": "launches",
        "Lvl": "depth", "NumChild": "children",
    }  # fmt: skip
    absolute = ours.with_columns(pl.col("start_ns", "host_start_ns") + start_ns, name=LABEL)
    mine = sorted(absolute.select(*columns.values(), "name", "style").rows())
    want = sorted((*(int(r[c]) for c in columns), r["Name"], r["Style"]) for r in theirs if r["Style"])
    assert [(r[2], r[5], *r) for r in mine] == [(r[2], r[5], *r) for r in want]


def compare_all(
    path: Path, trace: Trace, start_ns: int, folder: Path, names: Collection[str] = tuple(REPORTS)
) -> list[str]:
    """Run ``nsys stats`` on a file of its own and compare reports; those that had an answer.

    Our times count from ``start_ns`` in nsys's.
    """
    asked = ",".join([*REPORTS, "nvtx_gpu_proj_trace", "nvtx_pushpop_trace"])
    command = [str(NSYS), "stats", "--force-export=false", "-q", "-r", asked, "--format", "csv", "-o", f"{folder}/s"]
    subprocess.run([*command, str(path)], check=True, capture_output=True, timeout=300)
    compared = []
    for name, report in REPORTS.items():
        if name not in names:
            continue
        theirs = read_csv(folder / f"s_{name}.csv")
        if theirs:
            compare(report_of(trace, name), theirs, report)
            compared.append(name)
    if theirs := read_csv(folder / "s_nvtx_gpu_proj_trace.csv"):
        compare_projection(analyze.nsys.nvtx_kernels(trace), theirs, start_ns)
    if theirs := read_csv(folder / "s_nvtx_pushpop_trace.csv"):
        compare_stacks(analyze.nsys.nvtx_pushpop_trace(trace), theirs, start_ns)
    return compared
