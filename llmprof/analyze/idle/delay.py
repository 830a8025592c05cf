"""How long kernels wait between the call that launches them and their start."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.analysis import Analysis
from llmprof.analyze.layers.attribution import labelled
from llmprof.analyze.memo import per_trace
from llmprof.trace import Trace


@per_trace
def launch_delay(trace: Trace) -> pl.DataFrame:
    """Delay from the start of the host's launch call to the start of the kernel, per rank and step.

    A delay of a few us means that the device was waiting for the host; a long one that the host is ahead and work
    is queued. All kernels of a CUDA graph count from the start of the graph's one launch.

    Parameters
    ----------
    trace : Trace
        A trace with kernels and runtime calls.

    Returns
    -------
    polars.DataFrame
        ``rank, step`` (null for kernels outside steps), ``kernels``, ``launched`` (kernels whose launch is in the
        capture), ``share_launched`` (of the kernels), ``calls`` (distinct launch calls), ``host_call_ns`` (sum of
        their durations), and of the delays ``median_ns, p95_ns, max_ns, min_ns`` (ns). What depends on launches is
        null where no kernel of the step has one. A negative delay means that the clocks of host and device disagree.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels or no runtime calls.

    Examples
    --------
    >>> delays = analyze.launch_delay(trace)
    >>> delays.select("rank", "step", "median_ns", "p95_ns").height == delays.height
    True
    """
    trace.table("kernels")
    trace.table("runtime")
    return launch_delay_of(labelled(trace, ["step"]))


def launch_delay_of(events: pl.DataFrame) -> pl.DataFrame:
    """The analysis of :func:`launch_delay` on a frame of device events.

    Parameters
    ----------
    events : polars.DataFrame
        ``rank, step, start_ns, source, launch_start_ns, launch_end_ns, launch_thread``.

    Returns
    -------
    polars.DataFrame
        As :func:`launch_delay` returns it.
    """
    delay = pl.col("start_ns") - pl.col("launch_start_ns")
    launched = pl.col("launch_start_ns").count()
    call = pl.struct("launch_thread", "launch_start_ns", "launch_end_ns")
    distinct = pl.col("launch_start_ns").is_not_null() & call.is_first_distinct()
    call_ns = (pl.col("launch_end_ns") - pl.col("launch_start_ns")).filter(distinct)
    return (
        events.filter(pl.col("source") == "kernel")
        .group_by("rank", "step")
        .agg(
            kernels=pl.len(),
            launched=launched,
            share_launched=launched / pl.len(),
            calls=pl.when(launched > 0).then(call_ns.len()),
            host_call_ns=pl.when(launched > 0).then(call_ns.sum()),
            median_ns=delay.median(),
            p95_ns=delay.quantile(0.95, interpolation="linear"),
            max_ns=delay.max(),
            min_ns=delay.min(),
        )
        .sort("rank", "step", nulls_last=True)
    )


ANALYSIS = Analysis(
    function=launch_delay,
    question="How far is the host ahead of the device?",
    help="from the host's launch call to the start of the kernel",
    view="launch-delay",
    columns=(
        "rank", "step", "kernels", "calls", "share_launched", "host_call_ns", "median_ns", "p95_ns", "min_ns", "max_ns",
    ),
    reported=True,
    section="idle",
    figures=("llmprof.report.figures:LAUNCH_DELAY",),
)  # fmt: skip
