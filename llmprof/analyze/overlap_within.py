"""Overlap of compute, communication and copies in a window of time."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze._labelled import labelled
from llmprof.analyze.intervals import clip
from llmprof.analyze.overlap import overlap_of
from llmprof.errors import AnalysisError
from llmprof.trace import Trace


def overlap_within(trace: Trace, window_ns: tuple[int, int], *, ranks: Sequence[int] | None = None) -> pl.DataFrame:
    """Compute, communication, copies and idle time of each rank in a window; events count as far as they lie in it.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity; operators of the host stand in on a trace of a run on CPU.
    window_ns : (int, int)
        Start and end of the window, in ns from the start of the trace.
    ranks : sequence of int, optional
        Ranks to look at; all if not given.

    Returns
    -------
    polars.DataFrame
        The columns of :func:`~llmprof.analyze.overlap` by ``rank`` except ``other_ns``; ``total_ns`` is the length of
        the window, and what lies before the first event in it and after the last is idle. A rank that runs nothing
        in the window is idle all the time.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.
    AnalysisError
        The window is empty.
    """
    first, last = window_ns
    if last <= first:
        raise AnalysisError(f"the window [{first}, {last}) ns is empty", expected="an end after the start")
    events = labelled(trace, ["rank"])
    recorded = "copies" in trace.tables or (events["source"] == "op").any()
    if ranks is not None:
        events = events.filter(pl.col("rank").is_in(list(ranks)))
    found_ranks = events.select("rank").unique().sort("rank")
    window = found_ranks.with_columns(
        start_ns=pl.lit(first, dtype=pl.Int64), dur_ns=pl.lit(last - first, dtype=pl.Int64)
    )
    inside = clip(events.select("rank", "category", "start_ns", "dur_ns"), window, ["rank"])
    found = overlap_of(inside, ["rank"], copies_recorded=recorded).drop("total_ns", "idle_ns", "other_ns")
    found = found_ranks.join(found, on="rank", how="left", maintain_order="left")
    copies = [c for c in found.columns if "copy" in c]
    found = found.with_columns(pl.exclude("rank", *copies).fill_null(0))
    if recorded:
        found = found.with_columns(pl.col(copies).fill_null(0))
    exposed_copy = pl.col("exposed_copy_ns").fill_null(0)
    busy = pl.col("compute_ns") + pl.col("exposed_communication_ns") + exposed_copy
    total = pl.lit(last - first, dtype=pl.Int64)
    return found.select("rank", total.alias("total_ns"), pl.exclude("rank"), idle_ns=total - busy)
