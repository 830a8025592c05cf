"""Prediction of step times under changes, by a replay of the recording's dependencies."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

import numpy as np
import polars as pl
from msgspec import Struct

from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.compare.times import INTERVAL, resampled_means
from llmprof.analyze.step_times import mean_windows, plain_steps
from llmprof.errors import AnalysisError, LlmprofError
from llmprof.replay import changes as makers
from llmprof.replay.changes import ReplayChange
from llmprof.replay.graph import COLLECTIVE, graph
from llmprof.replay.part import ReplayedPart, replayed_part
from llmprof.replay.plan import (
    LEVELS,
    GuessLevel,
    ReplayPlan,
    each_periods,
    recorded_periods,
    times_of,
)
from llmprof.text import counted
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace

_SCHEMA = {
    "phase": pl.String(),
    "steps": pl.UInt32(),
    **dict.fromkeys(("recorded_ns", "predicted_ns", "low_ns", "high_ns"), pl.Float64()),
    **dict.fromkeys(("gain_ns", "gain_low_ns", "gain_high_ns"), pl.Float64()),
    "moved": pl.UInt32(),
    **dict.fromkeys(
        [f"plain_{name}_ns" for name in ("recorded", "predicted", "low", "high")], pl.Float64()
    ),
    **dict.fromkeys(("change", "assumed"), pl.String()),
}

_STEPS = {"rank": pl.Int32(), "step": pl.Int32(), "phase": pl.String()}


def what_if(trace: Trace, *changes: ReplayChange | str) -> pl.DataFrame:
    """Predict the time of a step under changes, by a replay of the recording.

    In the replay, every event begins when everything that it waited for has ended: the host's
    program order, launches, streams, synchronisation, collectives
    (:mod:`llmprof.replay.graph`). Values that a change cannot know are taken three times:
    for a short step, for an expected step, and for a long step. Without a change the replay gives
    the recorded times. Of recordings with more than 3 million events only some groups of ranks that
    wait for no other rank are replayed, or steps from the middle, and ``assumed`` says how many.

    Parameters
    ----------
    trace : Trace
        A trace with device activity. Changes of the host need its calls; changes of waiting between
        ranks need all ranks.
    *changes : Change or str
        From :mod:`llmprof.replay.changes`, or as ``llmprof what-if`` takes them:
        ``"no-host-delay"``, ``"scale:attention:0.5"``. Applied in their order.

    Returns
    -------
    polars.DataFrame
        By ``phase`` (null if the recording has no steps and counts as a whole; without phases that
        a change predicts nothing for): ``steps`` (steps of all ranks, of decode the steady ones),
        ``recorded_ns, predicted_ns`` (mean time of a step, from its start on the devices to that of
        the next one; a gain that a later step loses again does not count), ``low_ns, high_ns``
        (between the lowest and the highest guess, with the 95 % interval of the mean over the
        steps, the noise of this recording), ``gain_ns`` (recorded minus predicted),
        ``gain_low_ns, gain_high_ns`` (by the guesses: both sides have the same noise),
        ``moved`` (steps that end no later, and gain less than the step before them, which ends
        earlier: what sets their own end stays), ``plain_recorded_ns, plain_predicted_ns,
        plain_low_ns, plain_high_ns`` (the same times without the profiler, of decode in a run that
        also measured this; null elsewhere), ``change`` and ``assumed`` (what the prediction cannot
        know, in words).

    Raises
    ------
    NotCapturedError
        The trace has no device activity.
    AnalysisError
        A change matches nothing, or there is none of this name.

    Notes
    -----
    Without the profiler the host is as many times as fast as lets a step of the replay take the
    measured time: the median from token to token while no prompt was read. All other time is scaled
    by what then remains. Where the devices set the pace, many speeds of the host do so, and the
    interval covers them; where none does, it covers all.

    Examples
    --------
    >>> found = analyze.what_if(trace, "scale:attention:0.5")
    >>> bool((found["gain_ns"] >= 0).all())
    True
    """
    made = tuple(change_of(change) if isinstance(change, str) else change for change in changes)
    part = replayed_part(trace)
    [rows] = periods_of(part.trace, [_plans(part.trace, made)])
    rows = typical_periods(part.trace, rows)
    without = _with_intervals(
        rows[["rank", "step"]].join(_plain_times(part.trace, made), on=["rank", "step"])
    )
    without = without.select(
        "phase", pl.col("recorded_ns", "predicted_ns", "low_ns", "high_ns").name.prefix("plain_")
    )
    moved = rows.group_by("phase").agg(pl.len().alias("steps"), pl.sum("moved"))
    return (
        _with_intervals(rows)
        .join(moved, on="phase", nulls_equal=True)
        .join(without, on="phase", how="left", nulls_equal=True)
        .with_columns(
            change=pl.lit("; ".join(change.words for change in made)),
            assumed=pl.lit("; ".join([change.unknown for change in made] + _not_replayed(part))),
        )
        .select(*_SCHEMA)
        .cast(_SCHEMA)  # type: ignore[arg-type]
        .sort("phase")
    )


MAX_NODES: Final = 4_000_000
"""Nodes of all plans that are scheduled at once: each takes some hundred bytes."""


def means_of(trace: Trace, changes: Sequence[ReplayChange]) -> list[pl.DataFrame]:
    """The mean steps of :func:`what_if` under each of several changes, of which some are
    scheduled at once.
    """
    if not changes:
        return []
    part = replayed_part(trace, ())
    at_once = max(1, MAX_NODES // (2 * len(LEVELS) * max(1, graph(part.trace).events.height)))
    out = []
    for first in range(0, len(changes), at_once):
        plans = [_plans(part.trace, (change,)) for change in changes[first : first + at_once]]
        out += [_means(typical_periods(part.trace, rows)) for rows in periods_of(part.trace, plans)]
    return out


def typical_periods(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of the steps that a mean step is of, where a phase has any."""
    key = ["rank", "step"]
    named = mean_windows(trace).select(key).unique().with_columns(mean=pl.lit(True))
    rows = rows.join(named, on=key, how="left", maintain_order="left")
    chosen = pl.col("mean").is_not_null()
    return rows.filter(chosen | ~chosen.any().over("phase")).drop("mean")


def _means(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean step of each phase as recorded and as predicted, and its gains."""
    levels = [f"{level}_ns" for level in LEVELS]
    recorded, middle = pl.col("recorded_ns"), pl.col("middle_ns")
    return (
        rows.group_by("phase")
        .agg(pl.col("recorded_ns", *levels).mean())
        .with_columns(
            predicted_ns=middle,
            gain_ns=recorded - middle,
            gain_low_ns=recorded - pl.max_horizontal(levels),
            gain_high_ns=recorded - pl.min_horizontal(levels),
        )
    )


def _with_intervals(rows: pl.DataFrame) -> pl.DataFrame:
    """The same with the intervals of the predicted times."""
    levels = [f"{level}_ns" for level in LEVELS]
    means = _means(rows).join(_noise(rows, levels), on="phase", nulls_equal=True)
    return means.with_columns(
        low_ns=pl.min_horizontal(*levels, "noise_low_ns"),
        high_ns=pl.max_horizontal(*levels, "noise_high_ns"),
    )


def _not_replayed(part: ReplayedPart) -> list[str]:
    """What of a recording is not in its replay: some of its steps, and waiting between ranks
    that do not match.
    """
    reasons = [part.words] if part.words else []
    if len(part.trace.ranks) > 1 and not (graph(part.trace).kind == COLLECTIVE).any():
        calls = collectives(part.trace)
        reason = calls.filter(pl.col("world").fill_null(2) > 1)["reason"].drop_nulls().mode().sort()
        if reason.len():
            reasons.append(
                f"what ranks wait for of each other, so each is replayed alone: {reason[0]}"
            )
    return reasons


def moved_in_words(row: Mapping[str, Any]) -> str:
    """Why a phase is predicted longer, if its steps end no later than recorded."""
    if row["gain_ns"] >= 0 or not row["moved"] or row["phase"] is None:
        return ""
    kind = "step" if row["phase"] == "other" else f"{row['phase']} step"
    verb, own, before = (
        ("is", "it ends", "it") if row["moved"] == 1 else ("are", "they end", "them")
    )
    return (
        f"{row['moved']} of {counted(row['steps'], kind)} {verb} longer only because the step"
        f" before {before} ends earlier; {own} no later than recorded."
    )


def _noise(rows: pl.DataFrame, levels: list[str]) -> pl.DataFrame:
    """Ends of the 95 % intervals of the mean step of each phase, over all guesses."""
    # Ranks wait for each other, so a step counts once.
    each = rows.group_by("phase", "step").agg(pl.col(levels).mean()).sort("step")
    ends = []
    for (phase,), times in each.group_by("phase", maintain_order=True):
        means = resampled_means(times.select(levels), random.Random(0))  # noqa: S311
        low, high = (means.select(pl.all().quantile(q, "linear")).row(0) for q in INTERVAL)
        ends.append((phase, min(low), max(high)))
    return pl.DataFrame(
        ends,
        schema={"phase": pl.String, "noise_low_ns": pl.Float64, "noise_high_ns": pl.Float64},
        orient="row",
    )


@per_trace
def _replayed(_: Trace) -> dict[str, pl.DataFrame | LlmprofError]:
    """What was replayed of a trace already, by change."""
    return {}


def replay_changes(
    trace: Trace, texts: tuple[str, ...], named: tuple[int, ...] | None = None
) -> dict[str, pl.DataFrame | LlmprofError]:
    """Time of every step of every rank, as recorded and under each of several changes; the trace
    keeps them.
    """
    # Columns that begin with `plain_` have the same without the profiler, null where that is
    # unknown.
    part = replayed_part(trace, named)
    known = _replayed(part.trace)
    plans: dict[str, list[ReplayPlan]] = {}
    for text in [text for text in texts if text not in known]:
        try:
            plans[text] = _plans(part.trace, (change_of(text),))
        except LlmprofError as error:
            known[text] = error
    for text, rows in zip(plans, periods_of(part.trace, list(plans.values())), strict=True):
        without = _plain_times(part.trace, (change_of(text),)).select(
            "rank",
            "step",
            pl.col("recorded_ns", *(f"{level}_ns" for level in LEVELS)).name.prefix("plain_"),
        )
        known[text] = rows.drop("moved", "block").join(
            without, on=["rank", "step"], how="left", maintain_order="left"
        )
    return {
        text: found if isinstance(found := known[text], LlmprofError) else part.numbered(found)
        for text in texts
    }


def _plans(trace: Trace, made: tuple[ReplayChange, ...]) -> list[ReplayPlan]:
    """The recording with changes: one plan, or three if a change guesses values."""
    plans: list[ReplayPlan] = []
    for level in LEVELS:
        if not plans or plans[0].guessed:  # without guesses all levels give the same times
            plan = ReplayPlan(graph(trace), level)
            for change in made:
                change.apply(plan, trace)
            plans.append(plan)
    return plans


def periods_of(trace: Trace, groups: list[list[ReplayPlan]]) -> list[pl.DataFrame]:
    """Times of the steps by the levels of each group of plans; all are scheduled at once."""
    if not groups:
        return []
    recorded = recorded_periods(trace)
    middle = LEVELS.index("middle")
    every = each_periods(trace, times_of([plan for plans in groups for plan in plans]))
    out, column = [], 0
    for plans in groups:
        each = every[column : column + len(plans)]
        column += len(plans)
        by_level = [each[min(n, len(each) - 1)] for n in range(len(LEVELS))]
        longer = by_level[middle]["period_ns"] > recorded["period_ns"]
        moved = longer & (by_level[middle]["end_ns"] <= recorded["end_ns"])
        out.append(
            recorded.with_columns(
                (recorded["period_ns"] - lasting_gains(recorded, one)).alias(f"{level}_ns")
                for level, one in zip(LEVELS, by_level, strict=True)
            )
            .with_columns(moved=moved)
            .filter(~pl.col("phase").is_in(sorted(plans[0].left_out)).fill_null(False))
            .rename({"period_ns": "recorded_ns"})
            .drop("end_ns")
        )
    return out


def _plain_times(trace: Trace, made: tuple[ReplayChange, ...]) -> pl.DataFrame:
    """Times of each step of decode without the profiler, by the levels of changes; no rows if
    unknown.
    """
    levels = [f"{level}_ns" for level in LEVELS]
    known = plain_host(trace)
    if known is None:
        return pl.DataFrame(schema=_STEPS | dict.fromkeys(("recorded_ns", *levels), pl.Float64()))
    plans = []
    for level in LEVELS:
        plan = ReplayPlan(graph(trace), level)
        plan.host(known.host[level])
        for change in made:
            change.apply(plan, trace)
        plans.append(plan)
    after = each_periods(trace, times_of(plans))
    middle = known.steps["middle"].with_columns(
        recorded_ns=pl.col("period_ns") * known.rest["middle"]
    )
    return middle.select(
        *_STEPS,
        "recorded_ns",
        *(
            (
                middle["recorded_ns"]
                - known.rest[level] * lasting_gains(known.steps[level], changed)
            ).alias(f"{level}_ns")
            for level, changed in zip(LEVELS, after, strict=True)
        ),
    ).filter(phase=PHASE)


def lasting_gains(recorded: pl.DataFrame, changed: pl.DataFrame) -> pl.Series:
    """Gain of each step: by how much more it and all later ones of its block end earlier than
    the step before it.
    """
    # What a later step loses again is no gain, so no step is longer only because the one before it
    # ends earlier. Where a change lets some step of a rank end later, its gains are the differences
    # of the times alone. A step gains at most its own time, also if it then ends before the one
    # before it, by work on other streams.
    earlier = recorded["end_ns"] - changed["end_ns"]
    before = earlier - (recorded["period_ns"] - changed["period_ns"])
    block = ["rank", "block"]
    shifts = recorded.select(
        *block, own=pl.col("period_ns").clip(lower_bound=0), earlier=earlier, before=before
    )
    lasting = pl.col("earlier").cum_min(reverse=True).over(block)
    never_later = pl.min_horizontal("earlier", "before").min().over(block) >= 0
    lasts = (lasting - pl.col("before")).clip(lower_bound=0)
    gain = pl.when(never_later).then(lasts).otherwise(pl.col("earlier") - pl.col("before"))
    return shifts.select(pl.min_horizontal(gain, "own")).to_series()


# Without the profiler.

PHASE: Final = "decode"
"""Phase whose time without the profiler a run measures: that of a further token of its requests."""

HOST: Final = np.linspace(0.2, 1.0, 9)
"""Speeds of the host that are replayed, as shares of its recorded time."""

EQUAL_SHARE: Final = 0.005
"""Speeds of the host whose step is by this share further from the measured time than the best
one are possible, too.
"""

REST: Final = 0.2
"""Most by which the step of the best replay may differ from the measured time: else the profiler
slows more than the host, and any speed of it is possible.
"""


class Plain(Struct, frozen=True):
    """How steps run without the profiler, by the level of the guess."""

    host: dict[GuessLevel, float]
    """Time of the host, as a share of what was recorded."""
    steps: dict[GuessLevel, pl.DataFrame]
    """Every step of a replay with this host."""
    rest: dict[GuessLevel, float]
    """Time of a step of decode, as a share of that replay's."""


@per_trace
def plain_host(trace: Trace) -> Plain | None:
    """How fast the host is without the profiler, so that a replay gives the measured time; None
    if unknown.
    """
    # If the devices set the pace, many speeds give the same time: the guesses are the lowest, the
    # middle and the highest.
    measured = plain_steps(trace)
    if not measured or _step(trace, recorded_periods(trace)) is None:
        return None
    wanted = median(measured)
    steps = [_step(trace, rows) or 0.0 for rows in _add_host(trace, HOST.tolist())]
    factors = np.linspace(HOST[0], HOST[-1], 161)
    misses = np.abs(np.interp(factors, HOST, steps) / wanted - 1)
    least = misses.min()
    possible = factors[misses <= (least + EQUAL_SHARE if least <= REST else np.inf)]
    host = dict(
        zip(LEVELS, map(float, (possible[0], np.median(possible), possible[-1])), strict=True)
    )
    replays = dict(zip(LEVELS, _add_host(trace, list(host.values())), strict=True))
    return Plain(
        host,
        replays,
        {level: wanted / (_step(trace, rows) or wanted) for level, rows in replays.items()},
    )


def _add_host(trace: Trace, factors: list[float]) -> list[pl.DataFrame]:
    """Steps of replays in which the host takes so many times as long."""
    plans = [ReplayPlan(graph(trace), "middle") for _ in factors]
    for plan, factor in zip(plans, factors, strict=True):
        plan.host(factor)
    return each_periods(trace, times_of(plans))


def _step(trace: Trace, steps: pl.DataFrame) -> float | None:
    """Mean time of a step of decode."""
    mean = typical_periods(trace, steps.filter(phase=PHASE))["period_ns"].mean()
    return mean if isinstance(mean, float) and mean > 0 else None


_MAKERS: Final[dict[str, tuple[Callable[..., ReplayChange], tuple[type, ...], dict[str, type]]]] = {
    "no-host-delay": (
        lambda *phases: makers.no_host_delay(phases=phases or None),
        (str, str, str),
        {},
    ),
    "scale": (makers.scale, (str, float), {}),
    "remove": (makers.remove, (str,), {}),
    "fuse": (makers.fuse, (str,), {}),
    "balance": (makers.balance, (), {}),
    "without-call": (makers.without_call, (str,), {}),
    "run-ahead": (makers.run_ahead, (), {}),
    "transfer": (makers.transfer, (), {"bandwidth": float, "latency": float}),
    "to-bound": (makers.to_bound, (float, str), {}),
    "at-bound": (makers.at_bound, (str, str), {"stage": str}),
    "overlap-with": (makers.overlap_with, (str, str), {}),
    "tensor-parallel": (makers.tensor_parallel, (int,), {"all_reduce_us": float}),
}
"""Changes by name: their function, and the types of their arguments, by position and by name."""


def change_of(text: str) -> ReplayChange:
    """A change from text, as on the command line."""
    name, *given = text.split(":")
    if name not in _MAKERS:
        raise AnalysisError(f"there is no change {name!r}", expected=f"one of {', '.join(_MAKERS)}")
    make, positional, named = _MAKERS[name]
    by_name = [
        part.split("=", 1) for part in given if part.partition("=")[0] in named and "=" in part
    ]
    by_position = [part for part in given if not (part.partition("=")[0] in named and "=" in part)]
    try:
        if len(by_position) > len(positional):
            raise ValueError
        values = [kind(part) for kind, part in zip(positional, by_position, strict=False)]
        return make(*values, **{key: named[key](value) for key, value in by_name})
    except (TypeError, ValueError) as error:
        takes = [kind.__name__ for kind in positional] + [
            f"{key}={kind.__name__}" for key, kind in named.items()
        ]
        found = f"{text!r} is not how the change {name!r} is written"
        raise AnalysisError(
            found, expected=f"{name}{''.join(f':{part}' for part in takes)}"
        ) from error
