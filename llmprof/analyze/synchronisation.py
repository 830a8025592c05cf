"""Calls of the host that wait for the device."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.idle.host import is_synchronising
from llmprof.analyze.npu.waits import held_by
from llmprof.label.nesting import outermost_ops
from llmprof.trace import Trace


@Analysis(
    question="Where does the host wait for the device?",
    help="calls in which the host waited for the device, with their operators",
    view="host-sync",
    recorded="runtime calls",
)
def host_synchronisation(trace: Trace) -> pl.DataFrame:
    """Calls in which the host waited for the device, with the operator that made each.

    ``aten::to``, ``aten::item`` and similar operators copy to the host and return only when all
    earlier work is done. Until then this thread launches nothing.

    Parameters
    ----------
    trace : Trace
        A trace with runtime calls.

    Returns
    -------
    polars.DataFrame
        One row for each call, by rank and time: ``rank, thread, host_start_ns, host_dur_ns`` (ns),
        ``call``, and the ``operator`` of the thread that holds the call (the outermost one), null
        where there is none or operators were not recorded.

    Raises
    ------
    NotCapturedError
        The trace holds no runtime calls.

    Examples
    --------
    >>> frame = analyze.host_synchronisation(trace)
    """
    calls = trace.table("runtime")
    calls = calls.filter(is_synchronising(pl.col("name"))).select(
        "rank", "thread", host_start_ns="start_ns", host_dur_ns="dur_ns", call="name"
    )
    calls = calls.sort("rank", "host_start_ns", "thread", maintain_order=True)
    if not trace.has("ops"):
        return calls.with_columns(operator=pl.lit(None, pl.String))
    launches = calls.with_columns(launch_start_ns="host_start_ns", launch_thread="thread")
    held = held_by(launches, outermost_ops(trace.ops), "operator", "name")
    return held.select(*calls.columns, operator="operator_name")
