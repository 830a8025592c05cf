"""Step times of two runs, the parts of the change, and the events behind them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import polars as pl

from llmprof.analyze.edge import LANE
from llmprof.analyze.step_times import (
    mean_windows,
    plain_steps,
    recorded_windows,
    time_parts,
)
from llmprof.errors import AnalysisError, listed, refuse_unknown
from llmprof.label.intervals import union_length
from llmprof.label.steps.steps import steps_of
from llmprof.names.matching import first_true
from llmprof.trace import Trace

LEVELS = ("plain", "step", "part")
"""Levels of a comparison of times, in the order of its rows: the step without the profiler, the
recorded one, and its parts.
"""

RESAMPLES = 1000
"""Samples with replacement from which an interval is taken (a percentile bootstrap)."""

INTERVAL = (0.025, 0.975)
"""Quantiles of the resampled change that are its 95 % interval."""

SCHEMA = {
    **dict.fromkeys(("level", "phase", "kind", "part"), pl.String),
    **dict.fromkeys(("a_ns", "b_ns", "delta_ns", "ratio", "low_ns", "high_ns"), pl.Float64),
    "beyond_noise": pl.Boolean,
    **dict.fromkeys(("a_steps", "b_steps"), pl.Int64),
    "status": pl.String,
}


def diff_times(
    a: Sequence[Trace],
    b: Sequence[Trace],
    *,
    tolerance: float = 0.05,
    ranks: Sequence[int] | None = None,
) -> pl.DataFrame:
    """Compare the time of a step in two runs, and its parts, which add up to it exactly."""
    if not a or not b:
        raise AnalysisError(
            "one of the two runs has no trace", expected="one trace or more on both sides"
        )
    check_sides((a, b), ranks, tolerance)
    whole = not all(has_steps(trace) for trace in (*a, *b))
    sides = [_side(traces, whole=whole, ranks=ranks) for traces in (a, b)]
    phases = sorted(
        {phase for side in sides for phase in side}, key=lambda phase: (phase is None, phase or "")
    )
    plain = [[ns for trace in traces for ns in plain_steps(trace)] for traces in (a, b)]
    tables = [(pl.DataFrame({"plain": times}), len(times)) for times in plain]
    rows = _phase("decode", *tables, tolerance=tolerance) if all(plain) and not whole else []
    for phase in phases:
        rows += _phase(phase, *(side.get(phase) for side in sides), tolerance=tolerance)
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def has_steps(trace: Trace) -> bool:
    """Whether a trace has steps with work, other than captures of graphs."""
    rows = steps_of(trace).filter((pl.col("phase") != "empty") & (pl.col("source") != "capture"))
    return rows["start_ns"].count() > 0


_Side = dict[str | None, tuple[pl.DataFrame, int]]
"""Phase -> frame (one row per repeat, or per step of a single repeat; one column per part) and
number of steps.
"""


def _side(traces: Sequence[Trace], *, whole: bool, ranks: Sequence[int] | None) -> _Side:
    by_phase: dict[str | None, list[tuple[pl.DataFrame, int]]] = {}
    for trace in traces:
        for phase, units in _steps(trace, whole=whole, ranks=ranks).items():
            by_phase.setdefault(phase, []).append(units)
    typical: _Side = {}
    for phase, repeats in by_phase.items():
        frames = [frame.mean() for frame, _ in repeats] if len(repeats) > 1 else [repeats[0][0]]
        typical[phase] = (
            pl.concat(frames, how="diagonal").fill_null(0.0),
            sum(count for _, count in repeats),
        )
    return typical


def check_sides(
    sides: Sequence[Sequence[Trace]], ranks: Sequence[int] | None, tolerance: float
) -> None:
    """Refuse a negative tolerance, and ranks that no trace has."""
    if tolerance < 0:
        raise AnalysisError(
            f"the tolerance is {tolerance}", expected="a share of at least 0, such as 0.05"
        )
    recorded = sorted(
        {rank for side in sides for trace in side for rank in trace.ranks if rank >= 0}
    )
    if ranks is not None and (not ranks or set(ranks) - set(recorded)):
        raise AnalysisError(
            f"the ranks {listed(ranks)} are not in the traces",
            expected=f"some of {listed(recorded)}",
        )


def of_ranks(frame: pl.DataFrame, ranks: Sequence[int] | None) -> pl.DataFrame:
    """Rows of some ranks; all if none are named."""
    return frame if ranks is None else frame.filter(pl.col("rank").is_in(list(ranks)))


def _steps(
    trace: Trace, *, whole: bool, ranks: Sequence[int] | None
) -> dict[str | None, tuple[pl.DataFrame, int]]:
    """The steps of each phase, of decode the steady ones, one per row, with columns for the step
    and its parts.
    """
    windows = recorded_windows(trace) if whole else mean_windows(trace)
    windows = of_ranks(windows, ranks)
    parts = time_parts(trace, windows)
    place = pl.int_range(pl.len()).over(*LANE, "phase")
    windows = windows.with_row_index("window").with_columns(place=place)
    lanes = windows.group_by("phase", "place").agg(lanes=pl.len(), step=pl.mean("dur_ns"))
    long = parts.join(windows[["window", "phase", "place"]], on="window").join(
        lanes[["phase", "place", "lanes"]], on=["phase", "place"], nulls_equal=True
    )
    means = long.group_by("phase", "place", column=pl.format("{}|{}", "kind", "part")).agg(
        ns=pl.sum("ns") / pl.first("lanes")
    )
    by_phase: dict[str | None, tuple[pl.DataFrame, int]] = {}
    for (phase,), own in lanes.group_by("phase", maintain_order=True):
        wide = means.filter(pl.col("phase").eq_missing(pl.lit(phase, dtype=pl.String)))
        wide = wide.pivot("column", index="place", values="ns").with_columns(
            pl.exclude("place").fill_null(0.0)
        )
        table = own[["place", "step"]].join(wide, on="place").sort("place").drop("place")
        by_phase[None if phase is None else str(phase)] = (table, int(own["lanes"].sum()))
    return by_phase


def _phase(
    phase: str | None,
    a: tuple[pl.DataFrame, int] | None,
    b: tuple[pl.DataFrame, int] | None,
    *,
    tolerance: float,
) -> list[tuple[object, ...]]:
    """Rows of one phase."""
    columns = list(
        dict.fromkeys([c for side in (a, b) if side is not None for c in side[0].columns])
    )
    tables = [
        None
        if side is None
        else side[0]
        .with_columns(pl.lit(0.0).alias(c) for c in columns if c not in side[0].columns)
        .select(columns)
        for side in (a, b)
    ]
    means = [None if table is None else table.mean().row(0, named=True) for table in tables]
    low, high = _interval(tables[0], tables[1])
    counts = [side[1] if side else 0 for side in (a, b)]
    rows = []
    for column in columns:
        before, after = (None if mean is None else float(mean[column]) for mean in means)
        level = column if column in LEVELS else "part"
        kind, part = column.split("|", 1) if level == "part" else (None, None)
        if phase is None and level == "step":
            level = "recording"
        interval = (low.get(column), high.get(column))
        change = None if before is None or after is None else after - before
        beyond = (
            None
            if interval[0] is None or interval[1] is None
            else not interval[0] <= 0 <= interval[1]
        )
        ratio = after / before if before and after is not None else None
        status = _status(before, after, tolerance, beyond, whole=phase is None)
        rows.append(
            (
                level,
                phase,
                kind,
                part,
                before,
                after,
                change,
                ratio,
                *interval,
                beyond,
                *counts,
                status,
            )
        )

    def place(row: tuple[object, ...]) -> tuple[bool, float, str, str]:
        change = abs(row[6]) if isinstance(row[6], float) else 0.0
        return row[0] == "part", -change, str(row[2]), str(row[3])

    return sorted(rows, key=place)


MORE_OR_LESS = {"slower": "more_time", "faster": "less_time"}
"""Statuses of whole recordings: a sum over one is not faster or slower, as it may hold other
numbers of kernels.
"""


def _status(
    before: float | None, after: float | None, tolerance: float, beyond: bool | None, *, whole: bool
) -> str:
    if not after:
        return "only_a" if before else "same"
    if not before:
        return "only_b"
    if beyond is False or abs(after - before) <= tolerance * before:
        return "same"
    status = "slower" if after > before else "faster"
    return MORE_OR_LESS[status] if whole else status


def _interval(
    a: pl.DataFrame | None, b: pl.DataFrame | None
) -> tuple[dict[str, float], dict[str, float]]:
    """95 % interval of the change of each column, by resampling the rows of both sides."""
    if a is None or b is None or a.height < 2 or b.height < 2:
        return {}, {}
    draw = random.Random(0)  # noqa: S311
    before, after = (resampled_means(table, draw) for table in (a, b))
    change = after - before
    bounds = [change.select(pl.all().quantile(q, "linear")).row(0, named=True) for q in INTERVAL]
    return bounds[0], bounds[1]


def resampled_means(table: pl.DataFrame, draw: random.Random) -> pl.DataFrame:
    """Means of the columns of a table over samples of its rows with replacement."""
    chosen = pl.Series(draw.choices(range(table.height), k=RESAMPLES * table.height))
    sample = table.select(pl.all().gather(chosen))
    return sample.select(pl.all().reshape((RESAMPLES, table.height)).arr.mean())


KEYS = ("phase", "stage", "category")

RANKS_APART = 1 << 20
"""Distance between the rank numbers of one repeat and those of the next."""


def diff_events(
    a: Trace | Sequence[Trace],
    b: Trace | Sequence[Trace],
    *,
    tolerance: float = 0.05,
    by: str | Sequence[str] = KEYS,
    ranks: Sequence[int] | None = None,
) -> pl.DataFrame:
    """Device time per step and rank of two runs, aligned by phase and the labels ``by``."""
    labels = [by] if isinstance(by, str) else list(by)
    keys = ["phase", *(label for label in labels if label != "phase")]
    sides = [[side] if isinstance(side, Trace) else list(side) for side in (a, b)]
    check_sides(sides, ranks, tolerance)
    whole = not all(has_steps(trace) for side in sides for trace in side)
    before, after = (_events(side, keys, whole=whole, ranks=ranks) for side in sides)
    rows = diff_of(before, after, tolerance=tolerance, by=keys)
    return rows.with_columns(pl.col("status").replace(MORE_OR_LESS)) if whole else rows


def _events(
    repeats: Sequence[Trace], keys: list[str], *, whole: bool, ranks: Sequence[int] | None
) -> pl.DataFrame:
    """Labelled events of all repeats, with different rank numbers; a whole recording is one step
    without a phase.
    """
    parts = []
    for repeat, trace in enumerate(repeats):
        events = of_ranks(trace.events, ranks).with_columns(pl.col("rank") + RANKS_APART * repeat)
        if whole:
            events = events.with_columns(
                step=pl.lit(0, dtype=pl.Int32),
                **{"phase": pl.lit(None, pl.String)} if "phase" in keys else {},
            )
        parts.append(events)
    return pl.concat(parts, how="diagonal_relaxed")


_OF_STEPS = ("rank", "step", "start_ns", "dur_ns")
"""Columns that cannot align the events of two runs: these are means over ranks and steps."""


def diff_of(
    a: pl.DataFrame, b: pl.DataFrame, *, tolerance: float = 0.05, by: Sequence[str] = KEYS
) -> pl.DataFrame:
    """The analysis of :func:`diff_events` on two frames of device events."""
    keys = list(by)
    refuse_unknown(keys, [name for name in a.columns if name not in _OF_STEPS], "by")
    both = _per_step(a, "a", keys).join(
        _per_step(b, "b", keys), on=keys, how="full", coalesce=True, nulls_equal=True
    )
    for side, events in (("a", a), ("b", b)):
        counts = _events_steps(events).group_by("phase").agg(pl.len().alias(f"{side}_steps"))
        both = both.join(counts, on="phase", how="left", nulls_equal=True)
        none = pl.when(pl.col(f"{side}_steps") > 0).then(
            0.0
        )  # the phase ran, but had no such event
        both = both.with_columns(
            pl.col(f"{side}_ns").is_not_null().alias(f"_in_{side}"),
            pl.col(f"{side}_ns", f"{side}_count").fill_null(none),
            pl.col(f"{side}_steps").fill_null(0),
        )
    a_ns, b_ns = pl.col("a_ns"), pl.col("b_ns")
    cases = {
        "only_a": ~pl.col("_in_b"),
        "only_b": ~pl.col("_in_a"),
        "slower": b_ns > a_ns * (1 + tolerance),
        "faster": b_ns < a_ns * (1 - tolerance),
    }
    order = ["phase", pl.col("delta_ns").abs(), *keys[1:]]
    return (
        both.with_columns(
            delta_ns=b_ns - a_ns,
            ratio=pl.when(a_ns > 0).then(b_ns / a_ns),
            status=first_true(cases, "same"),
        )
        .sort(order, descending=[False, True, *(False for _ in keys[1:])], nulls_last=True)
        .select(
            *keys,
            "a_ns",
            "b_ns",
            "delta_ns",
            "ratio",
            "a_count",
            "b_count",
            "a_steps",
            "b_steps",
            "status",
        )
    )


def _events_steps(events: pl.DataFrame) -> pl.DataFrame:
    return events.drop_nulls("step")[["rank", "step", "phase"]].unique()


def _per_step(events: pl.DataFrame, side: str, keys: list[str]) -> pl.DataFrame:
    """Time and events per step: median over the steps of each rank, mean over the ranks."""
    within = events.drop_nulls("step").select("rank", "step", *keys, "start_ns", "dur_ns")
    texts = [key for key in keys if within.schema[key] == pl.String]
    within = within.with_columns(
        pl.col(texts).cast(pl.Categorical)
    )  # groups by number, five times as fast
    cell = ["rank", "step", *keys]
    counts = within.group_by(cell).agg(count=pl.len())
    cells = union_length(within, cell).join(counts, on=cell, nulls_equal=True)
    every = _events_steps(within).join(within.select(keys).unique(), on="phase", nulls_equal=True)
    padded = every.join(cells, on=cell, how="left", nulls_equal=True).with_columns(
        pl.col("busy_ns", "count").fill_null(0)
    )
    return (
        padded.group_by("rank", *keys)
        .agg(pl.median("busy_ns", "count"))
        .group_by(keys)
        .agg(
            pl.mean("busy_ns").alias(f"{side}_ns"),
            pl.mean("count").alias(f"{side}_count"),
        )
        .with_columns(pl.col(texts).cast(pl.String))
    )
