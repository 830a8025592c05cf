"""Pauses of the host that a recording names: garbage collection, loading of device code, page faults."""

from __future__ import annotations

from typing import Literal

import polars as pl

from llmprof.analyze.activity import activity
from llmprof.analyze.catalog import Analysis
from llmprof.analyze.idle.host import host_spans
from llmprof.analyze.intervals import gaps, length_within, merge
from llmprof.analyze.operator_times import refuse_samples
from llmprof.trace import Trace

KINDS = {
    "garbage_collection": r"(?i)^python gc\b|\bgarbage.?collect|^gc[.:_ ]|\bgc\.collect\b|: gc_?collect|^gc$",
    "module_loading": r"(?i)^(?:cu|cuda|hip|mu|musa)(?:module|library)(?:load|unload|getfunction|getkernel)"
    r"|^(?:\w+@)?aclrtbinaryload",
    "page_fault": r"(?i)page.?fault",
}
"""Names of host calls, operators, functions and ranges of each kind of pause."""


@Analysis(
    question="Did garbage collection, loading of code or page faults keep the device waiting?",
    help="recorded pauses of the host, and how long the device was idle meanwhile",
    view="pauses",
    grouped_by="per",
    apart=("per",),
)
def host_pauses(trace: Trace, *, per: Literal["kind", "event"] = "kind") -> pl.DataFrame:
    """Garbage collection, loading of device code and page faults on the host, and the idle time of the device in them.

    Only what the recording names is found, so no row is no proof. PyTorch names garbage collections with
    ``with_stack=True`` and ``_ExperimentalConfig(record_python_gc_info=True)`` together, Nsight Systems where the
    program sets ranges around them, and page faults of managed memory with ``--cuda-um-cpu-page-faults=true``. CUDA
    loads code when a kernel first runs: record the first steps to see it.

    Parameters
    ----------
    trace : Trace
        A trace with device activity, and runtime calls, operators or markers.
    per : {"kind", "event"}
        A row for each kind of pause of a rank, or for each pause.

    Returns
    -------
    polars.DataFrame
        ``rank, kind`` (garbage_collection, module_loading, page_fault), then per kind ``count``, ``host_ns`` (of which
        pauses inside each other count once, summed over threads), ``longest_ns``, ``idle_ns`` (time in them in which no
        device of the rank ran anything, between its first and last event) and ``idle_share`` (of ``host_ns``); per
        event ``thread, start_ns, dur_ns, idle_ns, name``. Idle time in a pause is not yet caused by it: ``idle`` names
        as ``doing`` what the launching thread did in a gap. Times in ns.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.

    Examples
    --------
    >>> analyze.host_pauses(trace).columns[:3]
    ['rank', 'kind', 'count']
    """
    refuse_samples(trace, "when the device was idle")
    idle = gaps(activity(trace), ["rank"])
    spans = host_spans(trace)
    named = [
        spans.filter(pl.col("name").str.contains(pattern)).with_columns(kind=pl.lit(k)) for k, pattern in KINDS.items()
    ]
    found = pl.concat(named)
    events = length_within(found, idle, ["rank"], name="idle_ns")
    if per == "event":
        events = events.select("rank", "kind", "thread", "start_ns", "dur_ns", "idle_ns", "name")
        return events.sort("rank", "dur_ns", "start_ns", descending=[False, True, False])
    key = ["rank", "kind"]
    whole = (
        merge(found.filter(pl.col("dur_ns") > 0), [*key, "thread"]).group_by(key).agg(host_ns=pl.col("dur_ns").sum())
    )
    waited = length_within(merge(found, key), idle, ["rank"], name="idle_ns").group_by(key).agg(pl.col("idle_ns").sum())
    return (
        found.group_by(key)
        .agg(count=pl.len(), longest_ns=pl.col("dur_ns").max())
        .join(whole, on=key, how="left")
        .join(waited, on=key, how="left")
        .with_columns(pl.col("host_ns", "idle_ns").fill_null(0))
        .select(*key, "count", "host_ns", "longest_ns", "idle_ns", idle_share=pl.col("idle_ns") / pl.col("host_ns"))
        .with_columns(pl.col("idle_share").fill_nan(None))
        .sort("rank", "host_ns", "kind", descending=[False, True, False])
    )
