"""What of a big trace is drawn: a step that represents the run, and as many ranks and steps as a page can hold."""

from __future__ import annotations

import polars as pl

from llmprof import analyze
from llmprof.trace import Trace

MAX_CELLS = 12_000
"""Cells of the heat map; the page draws each as a shape of its own."""

MAX_POINTS = 4_000
"""Steps times ranks of the chart of launch delays."""

MAX_BARS = 3_000
"""Events of a timeline that are drawn one by one."""


def extent(events: pl.DataFrame) -> tuple[int, int]:
    """First start and last end of events (ns); there must be one."""
    low, high = events.select(pl.col("start_ns").min(), end=(pl.col("start_ns") + pl.col("dur_ns")).max()).row(0)
    return int(low), int(high)


def representative_step(trace: Trace) -> tuple[int, str] | None:
    """Step whose device span is the median of the steady decode steps, else of all that ran something.

    Returns
    -------
    (int, str) or None
        Number of the step and the words for what it represents; None where no step ran on the device.
    """
    steady = analyze.steady_state(trace)
    ran = analyze.steps(trace).filter(pl.col("device_dur_ns").is_not_null() & (pl.col("phase") != "empty"))
    rows, words = (steady, "a steady decode step") if steady.height else (ran, "the step of median length")
    if not rows.height:
        return None
    spans = rows.group_by("step").agg(pl.col("device_dur_ns").max()).sort("device_dur_ns", "step")
    return int(spans["step"][(spans.height - 1) // 2]), words


def step_window(trace: Trace, step: int) -> pl.DataFrame:
    """Events of the representative step on the ranks whose clocks agree on when it was."""
    events = analyze.attribute(trace).filter(pl.col("step") == step)
    end = pl.col("start_ns") + pl.col("dur_ns")
    spans = events.group_by("rank").agg(first=pl.col("start_ns").min(), last=end.max()).sort("rank")
    longest = int(spans.select((pl.col("last") - pl.col("first")).max()).item() or 0)
    near = (pl.col("first") - pl.col("first").first()).abs() <= max(1, longest)
    return events.filter(pl.col("rank").is_in(spans.filter(near)["rank"].implode()))


def middle_layer(events: pl.DataFrame) -> tuple[int, int, int] | None:
    """The layer in the middle of a step, and when it ran.

    The window holds the layer on the first rank that has one, and on the ranks that run it at the same time: of a
    pipeline each stage counts its layers from 0, at its own time.

    Returns
    -------
    (int, int, int) or None
        Number of the layer, first start and last end (ns); None where no event has a layer.
    """
    inside = events.drop_nulls("layer")
    if not inside.height:
        return None
    first = inside.filter(pl.col("rank") == inside["rank"].min())
    layers = first["layer"].unique().sort()
    layer = int(layers[layers.len() // 2])
    low, high = extent(first.filter(pl.col("layer") == layer))
    end = pl.col("start_ns") + pl.col("dur_ns")
    spans = inside.filter(pl.col("layer") == layer).group_by("rank").agg(low=pl.col("start_ns").min(), high=end.max())
    beside = spans.filter((pl.col("low") < high) & (pl.col("high") > low))
    return layer, *beside.select(pl.col("low").min(), pl.col("high").max()).row(0)


def fewer_ranks(frame: pl.DataFrame, cells: int, limit: int, file: str) -> tuple[pl.DataFrame, str]:
    """Rows of as many ranks as fit, evenly spread, and the words for what was left out.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows with a ``rank``.
    cells : int
        Shapes that one rank takes.
    limit : int
        Shapes that may be drawn.
    file : str
        File that has all ranks.
    """
    ranks = frame["rank"].unique().sort()
    most = max(1, limit // max(1, cells))
    if ranks.len() <= most:
        return frame, ""
    spread = sorted({i * ranks.len() // most for i in range(most)})
    kept = ranks.gather(spread)
    shown = ", ".join(map(str, kept.to_list()))
    note = f"Drawn: {kept.len()} of {ranks.len()} ranks ({shown}); {file} has all."
    return frame.filter(pl.col("rank").is_in(kept.implode())), note


def fewer_steps(frame: pl.DataFrame, limit: int, file: str) -> tuple[pl.DataFrame, str]:
    """Rows of every n-th step so that at most ``limit`` rows are left, and the words for it."""
    if frame.height <= limit:
        return frame, ""
    every = -(-frame.height // limit)
    kept = frame.filter(pl.col("step") % every == 0)
    return kept, f"Drawn: one step in {every}, {kept.height:,} of {frame.height:,} rows; {file} has all."
