"""Events whose time cannot be true beside the other events of their file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from llmprof import names
from llmprof.trace.schema import END

DAY_NS: Final = 86_400_000_000_000
"""No recording lasts longer: events farther than this from most others have a wrong clock."""

MAX_EARLY_NS: Final = 10_000_000
"""An event that begins this long before its own launch, where most others do not, has a wrong
clock; clocks of host and device that are aligned badly differ by less, or for all events.
"""

MIN_GIANT_NS: Final = 100_000_000
MAX_TIMES_MEDIAN: Final = 10_000
MIN_RUNS: Final = 8
"""A kernel that does not wait for others cannot take this many times the median of its name."""


ROUNDING_NS: Final = 1_000
"""Ends of calls that end together differ by up to this, since files hold them in us."""


def implausible(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.Series]:
    """For each table with some: which of its rows cannot be true."""
    found: dict[str, pl.Series] = {}
    for name, wrong in _suspects(tables):
        if wrong is not None and (wrong := wrong.fill_null(False)).any():
            found[name] = found[name] | wrong if name in found else wrong
    return found


def _suspects(tables: Mapping[str, pl.DataFrame]) -> Iterator[tuple[str, pl.Series | None]]:
    """What each rule holds against the rows of a table."""
    middle = _middle_ns(tables)
    for name, frame in tables.items():
        if middle is not None and "start_ns" in frame.columns:
            yield name, (frame["start_ns"].cast(pl.Float64) - middle).abs() > DAY_NS
        if name in ("kernels", "copies"):
            yield name, _before_launch(frame, tables.get("runtime"))
    if "kernels" in tables:
        yield "kernels", _giants(tables["kernels"])
    if "ops" in tables:
        yield "ops", _never_closed(tables["ops"])


def _middle_ns(tables: Mapping[str, pl.DataFrame]) -> float | None:
    """Middle of all starts, if some are more than a day from others."""
    starts = [t["start_ns"] for t in tables.values() if "start_ns" in t.columns and t.height]
    if not starts:
        return None
    both = pl.concat(starts).cast(pl.Float64)
    least, most, middle = both.min(), both.max(), both.median()
    assert isinstance(least, float)  # noqa: S101 - for the type checker: there are starts
    assert isinstance(most, float)  # noqa: S101
    assert isinstance(middle, float)  # noqa: S101
    return middle if most - least > DAY_NS else None


def _before_launch(frame: pl.DataFrame, calls: pl.DataFrame | None) -> pl.Series | None:
    """Events long before the call that launched them."""
    key = "correlation"
    if calls is None or key not in calls.columns or key not in frame.columns:
        return None
    launch = calls.drop_nulls(key).group_by(key).agg(launch_ns=pl.min("start_ns"))
    early = (
        frame.select(key, "start_ns")
        .join(launch, on=key, how="left", maintain_order="left")
        .select(early=pl.col("start_ns") < pl.col("launch_ns") - MAX_EARLY_NS)
        .to_series()
    )
    # where most are early the clocks of host and device differ
    return None if 2 * int(early.sum()) > frame.height else early


def _giants(frame: pl.DataFrame) -> pl.Series | None:
    """Kernels far longer than all others of their name."""
    if not (frame["dur_ns"] >= MIN_GIANT_NS).any():
        return None
    dur, runs = pl.col("dur_ns"), pl.len().over("name")
    wrong = frame.select(
        (dur >= MIN_GIANT_NS)
        & (dur > MAX_TIMES_MEDIAN * dur.median().over("name"))
        & (runs >= MIN_RUNS)
    ).to_series()
    # collectives spin until the last rank arrives
    suspects = frame["name"].filter(wrong).unique()
    plain = suspects.filter(names.categories(suspects) != "collective")
    return wrong & frame["name"].is_in(plain.implode())


def _never_closed(ops: pl.DataFrame) -> pl.Series | None:
    """Calls of C from Python that end with the recording, though the function that they began in
    had ended before: their end was not recorded.
    """
    if not {"kind", "thread"} <= set(ops.columns):
        return None
    rows = ops.with_row_index("_row").filter(kind="python")
    rows = rows.with_columns(_end=END, _last=END.max().over("thread"))
    open_ = pl.col("_end") >= pl.col("_last") - ROUNDING_NS
    if rows.filter(open_).height < 2:
        return None
    rows = rows.sort("start_ns", "_end", descending=[False, True])
    in_c = pl.col("name").str.starts_with("<")
    closed = pl.when(~open_ & ~in_c).then("_end").cum_max().forward_fill().over("thread")
    wrong = rows.filter(open_ & in_c & (closed > pl.col("start_ns")))["_row"]
    return pl.select(pl.int_range(ops.height).is_in(wrong.implode())).to_series()
