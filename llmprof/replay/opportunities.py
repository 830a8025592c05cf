"""What a step would gain if its operators came nearer to their bounds, and what of the step that
leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.operators import COLLECTIVE
from llmprof.errors import LlmprofError, listed
from llmprof.label.intervals import clip_intervals, union_length
from llmprof.label.steps.steps import steps_of as labels_of
from llmprof.replay.graph import Graph, graph
from llmprof.replay.part import ReplayedPart, replayed_part
from llmprof.replay.plan import ReplayPlan, periods_below, recorded_periods
from llmprof.replay.targets import (
    KEY,
    TARGET,
    TargetOperators,
    To,
    add_keys,
    operators_below_target,
    saved_of,
)
from llmprof.replay.what_if import lasting_gains, typical_periods
from llmprof.theory.hardware import Device
from llmprof.theory.shapes import Shape, shape
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

MAX_ALONE: Final = 20
"""So many operators are replayed alone, those with the largest gaps; the rest are replayed
together.
"""

PARTS: Final = (
    "step",
    "opportunity",
    "others",
    "at target",
    "no bound",
    "idle",
    "beside other work",
)

_SCHEMA: Final = {
    "phase": pl.String(),
    "rank": pl.Int32(),
    "steps": pl.UInt32(),
    "recorded_steps": pl.UInt32(),
    "part": pl.Enum(PARTS),
    "operator": pl.String(),
    "stage": pl.String(),
    "kind": pl.String(),
    "shapes": pl.String(),
    "kernel": pl.String(),
    "count": pl.Float64(),
    "total_ns": pl.Float64(),
    "share": pl.Float64(),
    "bound_ns": pl.Float64(),
    "bound_by": pl.String(),
    "bound_share": pl.Float64(),
    "target_share": pl.Float64(),
    "gap_ns": pl.Float64(),
    "gain_ns": pl.Float64(),
    "gain_share": pl.Float64(),
    "reason": pl.String(),
}


@Analysis(
    question="What would a step gain if its operators came nearer to their bounds?",
    help="what a step gains if each operator ran at 80 % of its bound",
    view="opportunities",
    recorded="kernels, and operators or a model",
    cached=False,
)
def opportunities(
    trace: Trace,
    *,
    to: To = TARGET,
    baseline: Trace | None = None,
    rank: int | None = None,
    device: str | Path | Device | None = None,
    model: str | Path | Mapping[str, Any] | Shape | None = None,
) -> pl.DataFrame:
    """What a step would gain from each operator at a target share of its bound, and what of the
    step remains.

    Bounds are those of :func:`operators`. The gap of an operator is what its kernels take beyond
    the target; the gain is what the step takes less in a replay of the recording (:func:`what_if`)
    with these kernels shorter, on all ranks. It is smaller than the gap where something else sets
    the pace, such as the host. All of a step is accounted for: the times of all rows of a phase but
    ``step`` add up to that of ``step``. Of a large recording some steps are replayed: blocks of
    successive ones from its beginning to its end, with steps of each phase.

    A step is the time from the end of the step before it on the devices of its rank to its own end;
    the first step of a rank is left out, unless it is the only one. Without steps the recording
    counts as one.

    Parameters
    ----------
    trace : Trace
        A trace with kernels, and with operators or a model; shapes need ``record_shapes=True``.
    to : float or "best"
        Share of the bound that each operator is brought to; "best" takes the highest share, at most
        1, that an operator of its kind reaches with the same ``bound_by`` and ``fits_cache``, in
        this trace or the baseline.
    baseline : Trace, optional
        Another recording of such operators, for ``to="best"``.
    rank : int, optional
        The rank whose steps are meant; the one that works longest besides collectives if not given,
        for which the others wait.
    device : str, path or Device, optional
        Peaks, as :func:`operators` takes them.
    model : str, path, mapping or Shape, optional
        What ran, as :func:`operators` takes it: also for recordings without operators, such as
        those of nsys.

    Returns
    -------
    polars.DataFrame
        The phase with most time first. Values are means of a step:

        - ``phase, rank, steps`` (number of them), ``recorded_steps`` (how many the recording has of
          this rank and phase);
        - ``part``: ``step`` (all of it; ``gain_ns`` with all operators at the target at once),
          ``opportunity`` (an operator of one stage, or, where no stage is known, of the same
          shapes; by its gain), ``others`` (smaller opportunities together), ``at target``
          (operators that reach it), ``no bound`` (by ``reason``), ``idle`` (nothing runs on the
          devices of the rank), ``beside other work`` (negative: what ran at the same time counts
          twice above);
        - ``operator, stage, kind, shapes, kernel, bound_by`` (those with most time), ``count``
          (calls);
        - ``total_ns`` (of kernels and copies), ``share`` (of the step), ``bound_ns, bound_share,
          target_share`` (what it is brought to), ``gap_ns``, ``gain_ns`` (at most the gap),
          ``gain_share`` (of the step);
        - ``reason`` (there is no bound; of ``step`` where no operator has one: gap and gain are
          unknown then).

    Raises
    ------
    NotCapturedError
        The trace holds no kernels, or no operators, and no model is known.
    LlmprofError
        There is no such rank; ``to`` is no share; ``device`` is unknown; or the model does not fit.

    Examples
    --------
    >>> found = analyze.opportunities(trace)
    >>> bool((found["gain_ns"] <= found["gap_ns"]).all())
    True
    """
    if to != "best" and not 0 < to <= 1:
        raise LlmprofError(f"the target is {to}", expected='a share above 0, at most 1, or "best"')
    if rank is not None and rank not in trace.ranks:
        raise LlmprofError(
            f"there is no rank {rank} in the trace", expected=f"one of {listed(trace.ranks)}"
        )
    named = None if model is None else shape(model)
    usual = baseline is None and device is None
    return (_usual if usual else _found)(trace, to, rank, baseline, device=device, model=named)


def _found(
    trace: Trace,
    to: To,
    rank: int | None,
    baseline: Trace | None,
    *,
    device: str | Path | Device | None,
    model: Shape | None,
) -> pl.DataFrame:
    part = replayed_part(trace, () if rank is None else (rank,))
    found = operators_below_target(part.trace, to, baseline, device, model)
    built = graph(part.trace)
    steps = _steps(part.trace)
    work = _step_events(built, steps, found)
    if rank is None and work.height:
        own = pl.col("dur_ns").filter(pl.col("category").ne_missing("collective")).sum()
        rank = int(work.group_by("rank").agg(own=own).sort(-pl.col("own"), "rank")["rank"][0])
    work = work.clear() if rank is None else work.filter(rank=rank)
    if work.is_empty():  # nothing that lasts
        return pl.DataFrame(schema=_SCHEMA)
    steps = steps.filter(rank=rank)
    keys = _keys(work)
    gains = _gains(part.trace, found, keys, steps)
    return _table(_phases(part, steps), work, keys, gains, to)


_usual = per_trace(_found)


def _steps(trace: Trace) -> pl.DataFrame:
    """``rank, step, phase, start_ns, dur_ns`` of the steps that a replay times; no two of a rank
    overlap.
    """
    rows = typical_periods(trace, recorded_periods(trace)).filter(pl.col("period_ns") > 0)
    rows = rows.select(
        "rank", "step", "phase", start_ns=pl.col("end_ns") - pl.col("period_ns"), dur_ns="period_ns"
    )
    reach = END.cum_max().shift(1).over("rank")
    return rows.filter((pl.col("start_ns") >= reach).fill_null(True))


def _phases(part: ReplayedPart, steps: pl.DataFrame) -> pl.DataFrame:
    """``phase, rank, steps, recorded_steps, step_ns`` from the steps of a rank: their number, that
    of all, and their mean.
    """
    worked = labels_of(part.trace).drop_nulls("start_ns") if part.steps is None else part.steps
    labels = worked.join(steps, on="rank", how="semi")
    every = labels.group_by("phase").agg(recorded_steps=pl.len())
    own = steps.group_by("phase").agg(pl.first("rank"), steps=pl.len(), step_ns=pl.mean("dur_ns"))
    own = own.join(every, on="phase", how="left", nulls_equal=True)
    return own.with_columns(recorded_steps=pl.max_horizontal("steps", "recorded_steps"))


def _step_events(built: Graph, steps: pl.DataFrame, found: TargetOperators) -> pl.DataFrame:
    """Device events cut to the steps, with the operator that each belongs to and the key of its
    opportunity.
    """
    place = found.events[["event", "row", "call"]]
    work = built.events.filter(where="device").select(
        "rank", "start_ns", "dur_ns", "category", "event", node="row"
    )
    work = clip_intervals(work.join(place, on="event", how="inner"), steps, ["rank"])
    return add_keys(work.hstack(steps[work["window"]][["phase"]]), found)


def _keys(work: pl.DataFrame) -> pl.DataFrame:
    """Opportunities with the number ``key`` of their replay: one each, and the last for all
    smaller ones.
    """
    gap = (pl.col("dur_ns") * pl.col("saved")).sum()
    keys = work.group_by(KEY).agg(gap_ns=gap).filter(pl.col("gap_ns") > 0)
    keys = keys.sort("gap_ns", *KEY, descending=[True, *(False for _ in KEY)])
    return keys.with_columns(key=pl.int_range(pl.len()).clip(upper_bound=MAX_ALONE)).drop("gap_ns")


def _gains(
    trace: Trace, found: TargetOperators, keys: pl.DataFrame, steps: pl.DataFrame
) -> pl.DataFrame:
    """``phase, key, gain_ns``: what a step gains by the replay with each key's kernels at the
    target; -1 is all.
    """
    built = graph(trace)
    of_event = (
        saved_of(built.events, found)
        .join(keys, on=KEY, how="inner", nulls_equal=True)
        .filter(pl.col("saved") > 0)
    )
    key, saved = np.full(built.events.height, -1), np.zeros(built.events.height)
    key[of_event["node"]], saved[of_event["node"]] = of_event["key"], of_event["saved"]
    made = ReplayPlan(built, "middle")
    made.set_duration(saved > 0, made.own_duration() * (1 - saved))
    numbers = [-1, *range(int(key.max(initial=-1)) + 1)]
    recorded, frames = recorded_periods(trace), []
    shorter = periods_below(trace, made, key)
    for number, rows in zip(numbers, shorter, strict=True):
        gain = recorded.with_columns(gain_ns=lasting_gains(recorded, rows))
        kept = gain.join(steps, on=["rank", "step"], how="semi")
        frames.append(
            kept.group_by("phase").agg(pl.mean("gain_ns"), key=pl.lit(number, dtype=pl.Int64))
        )
    return pl.concat(frames)


def _table(
    of_phase: pl.DataFrame, work: pl.DataFrame, keys: pl.DataFrame, gains: pl.DataFrame, to: To
) -> pl.DataFrame:
    """The frame of :func:`opportunities` from the phases of a rank, its work in their steps, and
    the gains.
    """
    work = work.join(keys, on=KEY, how="left", nulls_equal=True, maintain_order="left")
    time, known = pl.col("dur_ns"), pl.col("_known")
    part = (
        pl.when(~known)
        .then(pl.lit("no bound"))
        .when(pl.col("key").is_null())
        .then(pl.lit("at target"))
        .when(pl.col("key") == MAX_ALONE)
        .then(pl.lit("others"))
        .otherwise(pl.lit("opportunity"))
    )
    work = work.with_columns(part=part)
    named = ("operator", "kind", "shapes", "kernel", "bound_by")
    by_row = work.group_by("phase", "part", "key", "row").agg(
        pl.n_unique("call"),
        pl.col(*named, "_stage", "reason").first(),
        total_ns=time.sum(),
        bound_ns=(time * pl.col("bound_share")).sum(),
        gap_ns=(time * pl.col("saved")).sum(),
    )
    alone = pl.col("part").is_in(["opportunity", "no bound"]).all()
    first = {**{name: name for name in named}, "stage": "_stage"}
    rows = (
        by_row.sort("total_ns", "row", descending=[True, False])
        .group_by(
            "phase",
            "part",
            "key",
            reason=pl.when(pl.col("part") == "no bound").then("reason"),
            maintain_order=True,
        )
        .agg(
            pl.sum("total_ns", "bound_ns", "gap_ns"),
            count=pl.sum("call"),
            **{name: pl.when(alone).then(pl.col(of).first()) for name, of in first.items()},
        )
    )
    busy = union_length(work[["window", "phase", "start_ns", "dur_ns"]], ["window", "phase"])
    sums = (
        of_phase.select("phase", whole=pl.col("step_ns") * pl.col("steps"))
        .join(
            busy.group_by("phase").agg(busy=pl.sum("busy_ns")),
            on="phase",
            how="left",
            nulls_equal=True,
        )
        .join(
            rows.group_by("phase").agg(pl.sum("total_ns", "gap_ns")),
            on="phase",
            how="left",
            nulls_equal=True,
        )
        .fill_null(0)
    )
    rest = [
        sums.select(
            "phase",
            total_ns="whole",
            gap_ns="gap_ns",
            part=pl.lit("step"),
            key=pl.lit(-1, dtype=pl.Int64),
        ),
        sums.select("phase", total_ns=pl.col("whole") - pl.col("busy"), part=pl.lit("idle")),
        sums.select(
            "phase", total_ns=pl.col("busy") - pl.col("total_ns"), part=pl.lit("beside other work")
        ),
    ]
    rows = pl.concat([rows, *rest], how="diagonal_relaxed").filter(pl.col("total_ns") != 0)
    rows = rows.join(of_phase, on="phase", nulls_equal=True)
    rows = rows.join(gains, on=["phase", "key"], how="left", nulls_equal=True)
    has_bound = pl.col("part").is_in(["opportunity", "others", "at target"])
    target = (
        pl.col("bound_ns") / (pl.col("total_ns") - pl.col("gap_ns")) if to == "best" else pl.lit(to)
    )
    is_step = pl.col("part") == "step"
    unknown = is_step & ~has_bound.any().over("phase")
    own = pl.col("reason").filter(pl.col("reason") != COLLECTIVE)  # a collective never has one
    whys = (
        own.sort_by(pl.col("total_ns").filter(pl.col("reason") != COLLECTIVE), descending=True)
        .first()
        .over("phase")
    )
    rows = rows.with_columns(reason=pl.when(unknown).then(whys).otherwise("reason"))
    return (
        rows.with_columns(
            pl.when(has_bound).then("bound_ns"),
            pl.when(has_bound | (is_step & ~unknown)).then("gap_ns"),
            pl.when(~unknown).then("gain_ns"),
        )
        .with_columns(pl.col("count", "total_ns", "bound_ns", "gap_ns") / pl.col("steps"))
        # in the replay a rank can also gain what others, for which it waits, have beyond the target
        .with_columns(gain_ns=pl.min_horizontal("gain_ns", "gap_ns"))
        .with_columns(
            share=pl.col("total_ns") / pl.col("step_ns"),
            gain_share=pl.col("gain_ns") / pl.col("step_ns"),
            bound_share=pl.col("bound_ns") / pl.col("total_ns"),
            target_share=pl.when(pl.col("gap_ns") > 0, has_bound).then(target),
            part=pl.col("part").cast(pl.Enum(PARTS)),
            _phase=pl.col("step_ns") * pl.col("steps"),
        )
        .sort(
            "_phase",
            "phase",
            "part",
            "gain_ns",
            "gap_ns",
            "total_ns",
            "operator",
            "shapes",
            descending=[True, False, False, True, True, True, False, False],
            nulls_last=True,
        )
        .select(*_SCHEMA)
        .cast(_SCHEMA)  # type: ignore[arg-type]
    )
