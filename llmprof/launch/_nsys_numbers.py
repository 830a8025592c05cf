"""Numbers of a timeline of nsys: time by kernel, category, call and rank."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from llmprof import analyze
from llmprof.errors import NotCapturedError
from llmprof.launch import _files
from llmprof.launch.folder import RunFolder
from llmprof.trace import Trace

_TOP: Final = 20


def write_numbers(trace: Trace, folder: RunFolder) -> dict[str, Any]:
    """Write ``nsys_summary.csv`` (time by kernel) and ``nsys_metrics.json``.

    Returns
    -------
    dict
        What is in ``nsys_metrics.json``: ``kernels, kernel_time_ns, span_ns, ranks, categories, top_kernels, api,
        copies``; lists of rows, times in ns.

    Raises
    ------
    OutputError
        A file cannot be written.
    """
    kernels = analyze.cuda_gpu_kern_sum(trace)
    _files.write(folder.nsys_summary, kernels.write_csv())
    events = analyze.activity(trace)
    ranks = events.group_by("rank").agg(
        kernels=(pl.col("source") == "kernel").sum(),
        kernel_time_ns=pl.col("dur_ns").filter(pl.col("source") == "kernel").sum(),
        copy_time_ns=pl.col("dur_ns").filter(pl.col("source") == "copy").sum(),
        span_ns=(pl.col("start_ns") + pl.col("dur_ns")).max() - pl.col("start_ns").min(),
    )
    categories = (
        events.group_by("category")
        .agg(events=pl.len(), total_ns=pl.col("dur_ns").sum())
        .with_columns(share=pl.col("total_ns") / pl.col("total_ns").sum())
        .sort("total_ns", descending=True)
    )
    first, last = trace.span_ns
    found = {
        "kernels": trace.kernels.height,
        "kernel_time_ns": int(trace.kernels["dur_ns"].sum()),
        "span_ns": last - first,
        "ranks": ranks.sort("rank").to_dicts(),
        "categories": categories.to_dicts(),
        "top_kernels": kernels.head(_TOP).to_dicts(),
        "api": _rows(analyze.cuda_api_sum, trace),
        "copies": _rows(analyze.cuda_gpu_mem_time_sum, trace),
    }
    _files.write_json(folder.nsys_metrics, found)
    return found


def _rows(of: Any, trace: Trace) -> list[dict[str, Any]] | None:
    try:
        rows: list[dict[str, Any]] = of(trace).head(_TOP).to_dicts()
    except NotCapturedError:
        return None
    return rows
