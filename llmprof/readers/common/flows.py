"""Flows: the events of a Chrome trace that say which host call launched which device event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from llmprof.readers.common.reader import Frames

_LEVELS: Final = 8
"""Levels of nested host calls in which a flow can begin."""


def unlinked(frame: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Which device events have no correlation that a host call shares."""
    return ~frame["correlation"].is_in(calls["correlation"].drop_nulls().implode()).fill_null(
        value=False
    )


def linked_by_flows(
    frames: Frames, flows: pl.DataFrame, place: Sequence[str], lane: Sequence[str]
) -> Frames:
    """Runtime calls and tables of device events, where an unlinked event that starts at the end of
    a flow has the correlation of the innermost call in which the flow begins. ``flows`` have
    ``name, id, is_source, start_ns``, the ``place`` of calls and the ``lane`` of device events.
    """
    key, at = ["name", "id"], [*lane, "start_ns"]
    flows, calls = flows.drop_nulls([*key, "start_ns"]), frames["runtime"].with_row_index("_call")
    sources = flows.filter("is_source").select(*key, *place, "start_ns").unique()
    sources = sources.unique(key, keep="none")  # a number that is used again means nothing
    begun = _innermost(sources, calls, place)
    # a call without a number gets one that nothing else has
    most = pl.concat([frame["correlation"] for frame in frames.values()]).fill_null(0).max()
    number = pl.when(pl.col("_call").is_in(begun["_call"].implode())).then(
        pl.col("_call").cast(pl.Int64) + most + 1
    )
    calls = calls.with_columns(correlation=pl.coalesce("correlation", number))
    begun = begun.join(calls.select("_call", _found="correlation"), on="_call")
    links = flows.filter(~pl.col("is_source")).join(begun, on=key).select(*at, "_found").unique()
    links = links.unique(at, keep="none")  # only one call can have launched an event
    out = {"runtime": calls.drop("_call")}
    for name, frame in frames.items():
        if name not in out:
            frame = frame.join(links, on=at, how="left", maintain_order="left", nulls_equal=True)
            found = pl.when(unlinked(frame, frames["runtime"])).then("_found")
            frame = frame.with_columns(correlation=pl.coalesce(found, "correlation"))
            out[name] = frame.drop("_found")
    return out


def _innermost(points: pl.DataFrame, calls: pl.DataFrame, place: Sequence[str]) -> pl.DataFrame:
    """The points that lie in a call, with ``_call``, the number of the innermost one."""
    start, end = pl.col("start_ns"), pl.col("_end")
    spans = calls.select(*place, start, "_call", _end=start + pl.col("dur_ns"))
    # a call without length is before the one that begins with it: some files round to us
    spans = spans.sort("start_ns", start < end, "_end", descending=[False, False, True])
    points = points.sort("start_ns")
    found = []
    # the call that began last, else the last of those that hold another one, and so on
    for _ in range(_LEVELS):
        near = points.join_asof(spans, on="start_ns", by=place, check_sortedness=False)
        inside = (start <= end).fill_null(False)
        found.append(near.filter(inside).drop("start_ns", "_end", *place))
        points = near.filter(~inside).select(points.columns)
        spans = spans.filter(start.shift(-1).over(place) < end)
    return pl.concat(found)
