"""Kernels as a profiler counts their launches."""

from __future__ import annotations

import polars as pl


def counted_launches(events: pl.DataFrame, *, recorded: bool) -> pl.DataFrame:
    """Kernels of one rank whose launches a profiler counts, in the order in which the host launched them.

    What ran before the first launch of the window was launched before the profiler counts.

    Parameters
    ----------
    events : polars.DataFrame
        Rows of :func:`~llmprof.analyze.attribute`: all kernels of one rank.
    recorded : bool
        Whether the trace has the calls that launched them; all kernels count where it has not.

    Returns
    -------
    polars.DataFrame
        The rows that count.
    """
    if recorded:
        first = events["launch_start_ns"].min() or 0
        events = events.filter(pl.col("launch_start_ns").is_not_null() | (pl.col("start_ns") >= first))
    return in_launch_order(events)


def in_launch_order(events: pl.DataFrame) -> pl.DataFrame:
    """Rows in the order in which the host launched them, by their own start where the launch is not known."""
    return events.sort(pl.coalesce("launch_start_ns", "start_ns"), pl.col("start_ns"), pl.col("event"))
