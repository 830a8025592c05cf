"""Parts of a trace by its labels: some steps, phases, layers, stages or streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from llmprof.errors import AnalysisError, Window, listed, several
from llmprof.label.activity import EVENT_KEY
from llmprof.label.steps.steps import (
    CUTS,
    MANY_RANKS,
    device_events_with_steps,
    rows_within,
    steps_of,
)
from llmprof.trace import Trace
from llmprof.trace.schema import END
from llmprof.trace.storage.deferred import time_of


class PartLabels(NamedTuple):
    """Labels of a part that stay those of the whole trace."""

    events: pl.DataFrame
    """Rows of ``trace.events``."""
    steps: pl.DataFrame
    """The steps of these events."""


def narrow_labels(
    labels: PartLabels | None, ranks: Sequence[int] | None, window: Window | None
) -> PartLabels | None:
    """Labels of the events of some ranks that begin in a window."""
    if labels is None:
        return None
    of_ranks = True if ranks is None else pl.col("rank").is_in(ranks)
    in_window = True if window is None else pl.col("start_ns").is_between(*window, closed="left")
    return _labels(labels.events.filter(of_ranks, in_window), labels.steps)


def _labels(events: pl.DataFrame, every: pl.DataFrame) -> PartLabels:
    """Labels of some events, which are numbered anew."""
    numbered = events.with_columns(event=pl.int_range(pl.len(), dtype=pl.UInt32))
    return PartLabels(numbered, every.join(events, on=["rank", "step"], how="semi"))


def selection(events: pl.DataFrame, labels: Mapping[str, Any]) -> pl.DataFrame:
    """Events that have the given value, or one of several, in each of some columns; a label of
    None chooses nothing.
    """
    for column, given in labels.items():
        if (values := several(given)) is None:
            continue
        if missing := [value for value in values if value not in events[column]]:
            recorded = events[column].drop_nulls().unique().sort().to_list()
            found = f"no event has the {column} {listed(missing)}"
            raise AnalysisError(found, expected=f"some of {listed(recorded)}")
        events = events.filter(pl.col(column).is_in(values))
    return events


def select_labels(trace: Trace, labels: Mapping[str, Any]) -> Trace:
    """Part of a trace whose events have one of the given values in each of some columns."""
    events = selection(trace.events, labels)
    group = ["rank", "step", "layer"]
    device = events.group_by(group).agg(from_ns=pl.min("start_ns"), until_ns=END.max())
    launches = events.drop_nulls("launch_start_ns")
    host = launches.group_by(group).agg(
        from_ns=pl.min("launch_start_ns"), until_ns=pl.max("launch_end_ns")
    )
    tables = {}
    for name, frame in trace.capture.recorded.items():
        if (time := time_of(name)) is None:
            continue  # sums over the whole recording do not hold for a part of it
        if name in ("kernels", "copies"):
            tables[name] = frame.join(
                events, on=EVENT_KEY, how="semi", nulls_equal=True, maintain_order="left"
            )
        else:
            on_device = name in ("tasks", "counters", "collectives")
            tables[name] = rows_within(frame, device if on_device else host, time)
    part = Trace(tables, trace.meta, trace.coverage)
    part._labels = _labels(events, steps_of(trace))
    return part


def _numbers(
    rows: pl.DataFrame, numbers: Iterable[int] | None, phases: Iterable[str] | None
) -> list[int]:
    """Numbers of the steps that are asked for by number, phase or both."""
    for column, given in (("step", numbers), ("phase", phases)):
        if given is None:
            continue
        if missing := sorted(set[Any](given) - set(rows[column])):
            recorded = rows[column].unique().sort().to_list()
            between = f"some from {recorded[0]} to {recorded[-1]}" if recorded else "some steps"
            raise AnalysisError(
                f"the trace has no {column} {listed(missing)}",
                expected=between if column == "step" else f"some of {listed(recorded)}",
            )
        rows = rows.filter(pl.col(column).is_in(list(given)))
    return rows["step"].unique().sort().to_list()


def select_steps(
    part: Trace,
    whole: Trace,
    steps_kept: Iterable[int] | None,
    phases: Iterable[str] | None,
    *,
    stored: bool = False,
) -> Trace:
    """Part of a trace in some steps, for :meth:`llmprof.Trace.select`; rows of the host by the
    labels of each rank.
    """
    # If the tables are stored in a dataset, only the time around the steps is loaded.
    each = (
        [whole]
        if len(whole.ranks) < MANY_RANKS
        else [whole.select(rank=rank) for rank in whole.ranks]
    )
    rows = pl.concat([steps_of(trace) for trace in each])
    numbers = _numbers(rows, steps_kept, phases)
    if part._labels is not None:
        return select_labels(part, {"step": numbers})
    step = pl.col("step").is_in(numbers)
    key = ["rank", "stream", "start_ns", "name"]
    events = pl.concat(
        [device_events_with_steps(trace).filter(step).select(key) for trace in each]
    ).unique()
    host_end = pl.coalesce(
        pl.col("host_start_ns").shift(-1).over("rank"),
        pl.col("host_start_ns") + pl.col("host_dur_ns"),
    )
    spans = rows.with_columns(device_end=END, host_end=host_end).filter(step)
    device = spans.select("rank", from_ns="start_ns", until_ns="device_end").drop_nulls()
    host = spans.select(
        "rank",
        from_ns=pl.coalesce("host_start_ns", "start_ns"),
        until_ns=pl.coalesce("host_end", "device_end"),
    ).drop_nulls()
    both = pl.concat([device, host])
    window: tuple[Any, Any] = (both["from_ns"].min() or 0, both["until_ns"].max() or 0)
    part = part.select(window=window) if stored else part
    tables = {}
    for name, frame in part.capture.recorded.items():
        if (time := time_of(name)) is None:
            continue  # sums over the whole recording do not hold for a part of it
        if name in ("kernels", "copies"):
            near = rows_within(frame, device, time)
            chosen = near.join(events, on=key, how="semi", nulls_equal=True, maintain_order="left")
            tables[name] = chosen.filter(pl.col(time).is_between(*window, closed="left"))
        elif "on_device" in frame.columns:
            projected, shown = frame.filter("on_device"), frame.filter(~pl.col("on_device"))
            tables[name] = pl.concat(
                [rows_within(projected, device, time), rows_within(shown, host, time)]
            )
        else:
            tables[name] = rows_within(
                frame, device if name in ("tasks", "counters") else host, time
            )
    every = rows["step"].unique().sort()
    follows = every.shift(1).is_in(numbers).fill_null(True)
    first = rows.filter(step, pl.col("step").is_in(every.filter(~follows).implode()))
    cuts = first.select("rank", pl.coalesce("host_start_ns", "start_ns")).drop_nulls().rows()
    return Trace(
        tables,
        part.meta | {CUTS: sorted({*map(tuple, part.meta.get(CUTS, [])), *cuts})},
        part.coverage,
    )
