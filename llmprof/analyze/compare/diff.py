"""Comparison of two runs by parts of a step or by kernels, and the verdict whether one is slower
than allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import polars as pl

from llmprof.analyze.compare.places import ALIGNED, kernel_places
from llmprof.analyze.compare.story import (
    diff_context,
    part_words,
    phases_apart,
    run_names,
    waterfall_rows,
)
from llmprof.analyze.compare.times import KEYS, check_sides, diff_events, diff_times
from llmprof.analyze.ncu.hardware import speed_of_light
from llmprof.errors import AnalysisError, checked, listed
from llmprof.label.completeness import refuse_lost
from llmprof.names.matching import first_true
from llmprof.text import step_of
from llmprof.trace import Trace
from llmprof.trace.metrics.data import Metrics
from llmprof.units import format_ns, format_share

_MEASURES = ("memory_bytes", "flops", "compute_share", "memory_share", "bound_by", "stall")
"""Columns of ``speed_of_light`` that are compared besides the duration."""


def diff_reports(a: Metrics, b: Metrics, *, tolerance: float) -> pl.DataFrame:
    """Compare two profiles of kernels.

    If a report does not name its device, only durations are compared.
    """
    check_sides((), None, tolerance)
    left, right = _launches(a, "a"), _launches(b, "b")
    exact = left.join(right, on=["kernel_name", "grid", "block", "same"], how="inner").with_columns(
        evidence=pl.lit("name, grid and block")
    )
    rest = [
        side.join(exact, on=f"{name}_kernel_id", how="anti").with_columns(
            nth=pl.int_range(pl.len()).over("kernel_name")
        )
        for side, name in ((left, "a"), (right, "b"))
    ]
    others = (
        rest[0]
        .join(
            rest[1].drop("grid", "block", "same"),
            on=["kernel_name", "nth"],
            how="full",
            coalesce=True,
        )
        .with_columns(
            evidence=pl.when(
                pl.col("a_kernel_id").is_not_null(), pl.col("b_kernel_id").is_not_null()
            ).then(pl.lit("name"))
        )
    )
    both = pl.concat([exact, others.drop("nth")], how="diagonal_relaxed")
    before, after = pl.col("a_ns"), pl.col("b_ns")
    cases = {
        "only_a": pl.col("b_kernel_id").is_null(),
        "only_b": pl.col("a_kernel_id").is_null(),
        "slower": after > before * (1 + tolerance),
        "faster": after < before * (1 - tolerance),
    }
    status = first_true(cases, "same")
    measures = [f"{side}_{name}" for name in _MEASURES for side in ("a", "b")]
    place = pl.coalesce("a_kernel_id", "b_kernel_id")
    return (
        both.with_columns(
            delta_ns=after - before,
            ratio=pl.when(before > 0).then(after / before),
            status=status,
            _place=place,
        )
        .sort("_place", "kernel_name")
        .with_columns(occurrence=pl.int_range(pl.len()).over("kernel_name"))
        .sort(
            pl.col("delta_ns").abs(),
            "_place",
            "kernel_name",
            descending=[True, False, False],
            nulls_last=True,
        )
        .select(
            "kernel_name",
            "occurrence",
            "a_kernel_id",
            "b_kernel_id",
            "a_ns",
            "b_ns",
            "delta_ns",
            "ratio",
            *measures,
            "evidence",
            "status",
        )
    )


def _launches(metrics: Metrics, side: str) -> pl.DataFrame:
    """Launches of a profile with the compared columns, and the number of each launch among those
    of its kind.
    """
    try:
        rows = speed_of_light(metrics).select("kernel_id", *_MEASURES, ns="dur_ns")
    except AnalysisError:  # if the report does not name its device, only durations are compared
        kinds = {
            name: pl.String if name in ("bound_by", "stall") else pl.Float64 for name in _MEASURES
        }
        missing = {name: pl.lit(None, kind) for name, kind in kinds.items()}
        rows = metrics.kernels.select("kernel_id", ns="dur_ns", **missing)
    launches = metrics.kernels.select(
        "kernel_id", pl.col("kernel_name").fill_null(""), "grid", "block"
    )
    joined = launches.join(rows, on="kernel_id", how="left", maintain_order="left")
    joined = joined.with_columns(same=pl.int_range(pl.len()).over("kernel_name", "grid", "block"))
    return joined.rename({name: f"{side}_{name}" for name in ("kernel_id", "ns", *_MEASURES)})


def diff(
    a: Trace | Sequence[Trace] | Metrics,
    b: Trace | Sequence[Trace] | Metrics,
    *,
    tolerance: float = 0.05,
    by: str | Sequence[str] = KEYS,
    ranks: Sequence[int] | None = None,
    names: tuple[str, str] | None = None,
    part: Literal["all", "times", "events", "kernels", "waterfall", "context"] = "all",
    phase: str | None = None,
) -> pl.DataFrame:
    """Compare the step time of two runs, its parts, and the kernels.

    A step lasts from its first event on the device to the next step's first one. Its time and parts
    are means over the ranks and the steps of the phase, of decode the steady ones. Events are
    aligned by their labels: the union of a label's events in a step (0 without any), the median
    over the steps of a phase on each rank, then the mean over ranks and repeats; events outside
    steps are left out. Without steps whole recordings are compared. Launches of two profiles of
    Nsight Compute match if they are the n-th with the same name, grid and block; if a grid or block
    changed, the n-th of the name.

    Parameters
    ----------
    a, b : Trace, sequence of Trace, or Metrics
        The runs; ``a`` is the reference. Several traces are repeats of one run and give the
        interval.
    tolerance : float
        Change relative to ``a`` up to which the status is ``same`` (0.05: 5 %).
    by : str or sequence of str
        Labels of :attr:`llmprof.Trace.events` by which events are aligned below the phase.
    ranks : sequence of int, optional
        Ranks whose steps and events count, on both sides; all if not given. Waiting is found with
        all ranks either way.
    names : (str, str), optional
        Names of the runs; by default those of the folders or files that were read.
    part : {"all", "times", "events", "kernels", "waterfall", "context"}
        All of it; the time of a step and its parts; the events of the device; what stands in the
        place of each kernel in the other run; the bars from one step time to the other; or what
        the runs share and what limits the comparison.
    phase : str, optional
        Phase of the waterfall; the one with the most time if not given.

    Returns
    -------
    polars.DataFrame
        All: ``level`` (plain: a step without the profiler, mean of the repeats, if both runs have
        it; step or recording, part, kernels), ``phase``,
        ``kind, part`` (compute by stage, waiting, transfer, copies, idle time by cause;
        null for kernels), the other columns of ``by`` (null above the kernels), ``a_ns, b_ns,
        delta_ns`` (ns a step and rank), ``ratio``, ``low_ns, high_ns, beyond_noise`` (95 % interval
        of the change, over the repeats where both sides have two or more, else over the steps of
        one run, which knows nothing of differences from run to run; null for kernels and for one
        step), ``a_count, b_count`` (events a step and rank; null above the kernels), ``a_steps,
        b_steps``, ``status`` (faster, slower, same: within the tolerance or the noise, only_a,
        only_b; of whole recordings less_time and more_time) and ``a_run, b_run`` (names of the
        runs). Rows of level ``part`` add up to the ``step`` of their phase; kernels overlap and
        need not. ``times`` and ``events`` are its rows above the kernels, and those of the kernels
        with their labels first.

        Waterfall: ``group`` (compute, waiting, transfer, communication, copies, idle, unexplained:
        what no part explains, and ``total`` for the first and the last row), ``label``, ``part``
        (stage or cause; null where several are gathered), ``a_ns, b_ns, delta_ns``, ``from_ns,
        to_ns`` (begin and end of the bar; each begins where the one before ends) and
        ``beyond_noise``. What did not change has no row. Copies are merged, and changes of compute
        below 1 % of the longer step but for the three largest.

        Kernels: those above 1 % of a step of their ``run``, once if both runs have it: ``phase,
        stage, category, name``, ``ns, count, share`` (of the step), ``verdict`` (in the other run
        faster, slower, same, fused, absent, or unknown without a stage), ``by`` (what it is
        compared by: name, stage and category, stage; of fused also the name of the other kernel),
        ``here_ns, there_ns`` and ``there`` (names): what is compared.

        Context: ``what`` (engine, model, layers, ranks, device, precision, profiler, steady,
        phases, decode batch, prefill tokens, mixed tokens, context lengths), ``a, b`` (text),
        ``same`` (null where one is unknown) and ``words``: what a difference means, else null.

        Profiles of Nsight Compute: ``kernel_name, occurrence`` (from 0), ``a_kernel_id,
        b_kernel_id`` (null where the other profile alone has the launch), ``a_ns, b_ns, delta_ns,
        ratio`` (duration), and with ``a_`` and ``b_`` in front ``memory_bytes, flops,
        compute_share, memory_share, bound_by, stall`` of :func:`.ncu.speed_of_light`,
        ``evidence`` (what agrees: name, or name, grid and
        block), ``status``. The largest change first.

    Raises
    ------
    NotCapturedError
        A trace holds no device activity and no operators.
    IncompleteError
        A trace lacks much of what was launched on the device.
    AnalysisError
        The tolerance is negative, ``by`` names an unknown column, no trace has one of the ranks, a
        trace is compared with a profile of kernels, or the runs share no such phase. All of it and
        kernels: two engines differ in model, layers, ranks, device, precision, or in the work of
        each shared phase, or their steps are not steady. Phases with other work are left out.

    Examples
    --------
    >>> import llmprof
    >>> from llmprof.analyze import diff
    >>> eager, graphs = llmprof.sample("torch_tp1_eager"), llmprof.sample("torch_tp1_cudagraph")
    >>> step = diff(eager, graphs).filter(level="step", phase="decode").row(0, named=True)
    >>> print(f"{step['a_ns'] / 1e6:.1f} -> {step['b_ns'] / 1e6:.2f} ms")
    34.7 -> 4.33 ms
    """
    if isinstance(a, Metrics) or isinstance(b, Metrics):
        if isinstance(a, Metrics) and isinstance(b, Metrics):
            return diff_reports(a, b, tolerance=tolerance)
        found = "a trace cannot be compared with a profile of single kernels"
        raise AnalysisError(found, expected="two traces or two Metrics")
    sides = [[side] if isinstance(side, Trace) else list(side) for side in (a, b)]
    if not all(sides):
        raise AnalysisError(
            "one of the two runs has no trace", expected="one trace or more on both sides"
        )
    for side, name in zip(sides, names or ("the first run", "the second run"), strict=True):
        for trace in side:
            refuse_lost(trace, name)
    if part == "events":
        return diff_events(*sides, tolerance=tolerance, by=by, ranks=ranks)
    first, second = names or run_names(*(side[0] for side in sides))
    if part == "context":
        return diff_context(*(side[0] for side in sides), names=(first, second))
    apart: list[str] = []
    if part in ("all", "kernels"):
        apart = phases_apart(diff_context(*(side[0] for side in sides), names=(first, second)))
    times = diff_times(*sides, tolerance=tolerance, ranks=ranks)
    times = times.filter(~pl.col("phase").is_in(apart).fill_null(False))
    if part == "times":
        return times
    if part == "waterfall":
        return waterfall_rows(
            times.with_columns(a_run=pl.lit(first), b_run=pl.lit(second)), phase=phase
        )
    keys = ALIGNED if part == "kernels" else by
    events = diff_events(*sides, tolerance=tolerance, by=keys, ranks=ranks)
    events = events.filter(~pl.col("phase").is_in(apart).fill_null(False))
    if part == "kernels":
        steps = times.filter(pl.col("level").is_in(["step", "recording"]))
        return kernel_places(events, steps, tolerance=tolerance, runs=(first, second))
    labels = [c for c in events.columns[: events.columns.index("a_ns")] if c != "phase"]
    both = pl.concat([times, events.with_columns(level=pl.lit("kernels"))], how="diagonal_relaxed")
    return both.select(
        "level",
        "phase",
        "kind",
        "part",
        *labels,
        "a_ns",
        "b_ns",
        "delta_ns",
        "ratio",
        "low_ns",
        "high_ns",
        "beyond_noise",
        "a_count",
        "b_count",
        "a_steps",
        "b_steps",
        "status",
        a_run=pl.lit(first),
        b_run=pl.lit(second),
    )


VERDICTS = (
    "slower",
    "within noise",
    "too few steps",
    "as fast",
    "faster",
    "only in a",
    "only in b",
    "longer",
    "as long",
    "shorter",
)
"""Verdicts of :func:`gate`; the last three are those of whole recordings."""

FAILING = ("slower", "longer")
OF_STEPS = (
    "Means over the ranks and the steps, of decode the steady ones, each until the next one begins"
)
"""Verdicts that fail a gate."""

_MOST_PARTS = 8
_OF_WHOLE = {"slower": "longer", "as fast": "as long", "faster": "shorter"}
_ROUNDING = 1e-9


@checked
def gate(frame: pl.DataFrame, *, over: float = 0.03) -> pl.DataFrame:
    """Judge each phase of a comparison."""
    needed = {
        "level",
        "phase",
        "a_ns",
        "b_ns",
        "low_ns",
        "high_ns",
        "beyond_noise",
        "a_steps",
        "b_steps",
    }
    if missing := sorted(needed - set(frame.columns)):
        raise AnalysisError(
            f"the frame has no columns {listed(missing)}",
            expected="the frame of llmprof.analyze.diff",
        )
    change = pl.col("b_ns") / pl.col("a_ns") - 1
    in_a, in_b = (pl.col(f"{side}_steps").fill_null(0) > 0 for side in "ab")
    whole = pl.col("level") == "recording"
    noisy = (pl.col("beyond_noise") == pl.lit(False)).fill_null(False)
    beyond = pl.col("change").abs() > over + _ROUNDING
    cases = {
        "only in a": ~whole & ~in_b,
        "only in b": ~whole & ~in_a,
        "as fast": ~beyond | pl.col("change").is_null(),
        "too few steps": ~whole & pl.col("beyond_noise").is_null(),
        "within noise": noisy,
        "slower": pl.col("change") > 0,
    }
    verdict = first_true(cases, "faster")
    verdict = pl.when(whole).then(verdict.replace(_OF_WHOLE)).otherwise(verdict)
    return (
        frame.filter(pl.col("level").is_in(["plain", "step", "recording"]))
        .with_columns(change=pl.when(pl.col("a_ns") > 0).then(change))
        .select(
            pl.when(pl.col("level") == "plain")
            .then(pl.format("{}, without the profiler", "phase"))
            .otherwise("phase")
            .alias("phase"),
            "a_ns",
            "b_ns",
            "change",
            low=pl.col("low_ns") / pl.col("a_ns"),
            high=pl.col("high_ns") / pl.col("a_ns"),
            verdict=verdict,
        )
    )


@checked
def markdown(
    frame: pl.DataFrame,
    *,
    names: tuple[str, str] = ("a", "b"),
    over: float = 0.03,
    apart: Sequence[str] = (),
) -> str:
    """A comparison as Markdown, for the comment of a pull request."""
    judged = gate(frame, over=over)
    failing = judged.filter(pl.col("verdict").is_in(FAILING))
    first, second = (_cell(name) for name in names)
    whole = judged["verdict"].is_in(list(_OF_WHOLE.values())).any()
    word = "longer" if whole else "slower"
    if failing.height:
        worst = failing.sort("change", descending=True).row(0, named=True)
        what = "the recording" if whole else f"a {step_of(worst['phase'])}"
        title = (
            f"**{word.title()}**: {what} takes {worst['change']:+.1%}, more than the {over:.1%}"
            " allowed."
        )
    else:
        title = f"**Not {word}** by more than the {over:.1%} allowed."
    if whole:
        title += (
            " No steps were compared: how long a recording lasts says nothing of speed unless both"
            " did the same work."
        )
    unlike = ["", *(f"- Not alike: {_cell(words)}" for words in apart)] if apart else []

    def _ns(ns: float | None) -> str:
        return "" if ns is None else format_ns(ns)

    lines = [
        title,
        *unlike,
        *([] if whole else ["", f"{OF_STEPS}:"]),
        "",
        f"| phase | {first} | {second} | change | 95 % interval | verdict |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for row in judged.iter_rows(named=True):
        held = (
            ""
            if row["low"] is None or row["high"] is None
            else f"{row['low']:+.1%} to {row['high']:+.1%}"
        )
        change = "" if row["change"] is None else f"{row['change']:+.1%}"
        verdict = (
            row["verdict"]
            .replace("only in a", f"only in {first}")
            .replace("only in b", f"only in {second}")
        )
        lines.append(
            f"| {_cell(row['phase'] or 'whole recording')} | {_ns(row['a_ns'])} |"
            f" {_ns(row['b_ns'])} | {change} | {held} | {verdict} |"
        )
    parts = frame.filter((pl.col("level") == "part") & (pl.col("delta_ns").abs() > 0))
    parts = parts.sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True).head(
        _MOST_PARTS
    )
    if parts.height:
        lines += [
            "",
            (
                f"| phase | part | {first} | {second} | difference | of"
                f" {'the whole' if whole else 'the step'} |"
            ),
            "|---|---|--:|--:|--:|--:|",
        ]
        times = dict(judged[["phase", "a_ns"]].iter_rows())
        for row in parts.iter_rows(named=True):
            step_ns = times.get(row["phase"])
            sign = "+" if row["delta_ns"] > 0 else "-"
            share = format_share(row["delta_ns"] / step_ns) if step_ns else ""
            share = f"+{share}" if share[:1].isdigit() else share
            label = part_words(row["kind"], row["part"])[1]
            phase = _cell(row["phase"] or "whole recording")
            lines.append(
                f"| {phase} | {_cell(label)} | {_ns(row['a_ns'])} | {_ns(row['b_ns'])} | "
                f"{sign}{format_ns(abs(row['delta_ns']))} | {share} |"
            )
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text that breaks no table and starts no markup."""
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>|#!~" else c for c in " ".join(text.split()))
