"""The ranges that the program set on the host, whatever profiler wrote them down."""

from __future__ import annotations

import polars as pl

from llmprof.trace import Trace

OVERHEAD = "overhead"
"""Domain of the profiler's own pauses."""

_NO_DOMAIN = ("nvtx", "unnamed domain", "user_annotation", "annotation", "")

LABEL = pl.when(pl.col("domain").is_in(_NO_DOMAIN)).then("name").otherwise(pl.format("{}:{}", "domain", "name"))
"""Name of a range as nsys prints it: with the domain before it, unless that is the default one."""


def host_ranges(trace: Trace) -> pl.DataFrame:
    """Ranges of the host: no marks, no overhead, no projections onto the device.

    Parameters
    ----------
    trace : Trace
        A trace with markers.

    Returns
    -------
    polars.DataFrame
        Rows of the markers with ``range`` (their row number among all markers), ``style`` (PushPop or StartEnd;
        PushPop where the profiler does not tell) and ``end_thread`` (set where a range ended on another thread than
        the one that began it).

    Raises
    ------
    NotCapturedError
        The trace holds no markers.
    """
    markers = trace.markers.with_row_index("range")
    for column, dtype in (("nsys_style", pl.String), ("nsys_end_thread", pl.Int64)):
        if column not in markers.columns:
            markers = markers.with_columns(pl.lit(None, dtype=dtype).alias(column))
    style = pl.col("nsys_style").fill_null("PushPop")
    return (
        markers.with_columns(style=style, end_thread="nsys_end_thread")
        .filter(~pl.col("on_device") & (pl.col("domain") != OVERHEAD) & (pl.col("style") != "Mark"))
        .drop("nsys_style", "nsys_end_thread")
    )
