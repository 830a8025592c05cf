"""Sentences about the timeline: coverage, findings, steps, the host's lead and idle time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from llmprof import analyze
from llmprof.analyze.activity import operators_stand_in
from llmprof.analyze.findings.scope import scope_of, total
from llmprof.errors import LlmprofError
from llmprof.notebook.prose.words import events_called, listed, number
from llmprof.text import counted, joined, ranks_in_words
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

SOON_NS: Final = 20_000
"""If kernels start this soon after their launch call (median of a step), the device may have waited for them."""

LATER_NS: Final = 1_000_000
"""If kernels start this much later, they were queued behind other work."""

HALF, LITTLE = 0.5, 0.1
"""Shares of a device's time that are called much, and little."""

_MEASURES: Final = {
    "step": "lies in a step",
    "stage": "has a named stage",
    "category": "has a known category",
    "launch": "has its launch call in the recording",
    "operator": "has its operator in the recording",
}


def of_coverage(trace: Trace) -> list[str]:
    """Share of the time that is explained, on the rank where it is least.

    Examples
    --------
    >>> of_coverage(trace)[0].startswith("Of the summed time of kernels and copies")
    True
    """
    rows = analyze.coverage(trace).drop_nulls("share")
    if not rows.height:
        return ["Nothing that takes time was recorded, so there is nothing to cover."]
    least = rows.group_by("measure", maintain_order=True).agg(pl.col("share").min(), pl.col("of").first())
    where = "" if rows["rank"].n_unique() == 1 else "on the rank where it is least, "
    parts = [
        f"{format_share(share)} {_MEASURES[measure]}"
        for measure, share in least.select("measure", "share").iter_rows()
        if not (measure == "launch" and operators_stand_in(trace))
    ]
    sentences = [f"Of the {least['of'][0]}, {where}{joined(parts)}."]
    lacking = least.filter(pl.col("share") == 0)["measure"].to_list()
    if "step" in lacking:
        sentences.append("Nothing of it lies in a step, so what follows is about the recording as a whole.")
    if "stage" in lacking:
        sentences.append("No layers were found in it.")
    return sentences


def of_findings(findings: pl.DataFrame) -> list[str]:
    """Findings as a numbered list, and the denominator of their shares.

    Parameters
    ----------
    findings : polars.DataFrame
        As :func:`~llmprof.analyze.findings` gives it.

    Examples
    --------
    >>> of_findings(analyze.findings(trace))[0][:5]
    '1. **'
    """
    if not findings.height:
        return ["No rule found anything worth saying in this recording."]
    texts = [f"**{row['title']}** {row['detail']} *{row['suggestion']}*" for row in findings.iter_rows(named=True)]
    return [listed(texts, numbered=True), f"Shares are of {findings['denominator'][0]}."]


def of_steps(trace: Trace) -> list[str]:
    """Number of steps of each phase, and the source of the steps.

    Examples
    --------
    >>> of_steps(trace)[0]
    'The rank has 20 steps: 15 decode, 3 empty, 1 mixed and 1 prefill.'
    """
    steps = analyze.steps(trace)
    if not steps.height:
        return ["No steps were found: nothing labels them, and no pass of a model repeats."]
    ranks = steps["rank"].n_unique()
    of_rank = steps.filter(pl.col("rank") == steps["rank"][0])
    alike = steps.group_by("rank").agg(pl.col("phase").sort().str.join())["phase"].n_unique() == 1
    phases = of_rank["phase"].value_counts().sort("count", "phase", descending=[True, False])
    parts = [f"{n:,} {phase if phase != 'other' else 'of no known phase'}" for phase, n in phases.iter_rows()]
    who = "The rank" if ranks == 1 else "Each rank" if alike else f"Rank {steps['rank'][0]}"
    what = f": {joined(parts)}" if phases.height > 1 else f", {parts[0].partition(' ')[2]}"
    sentences = [f"{who} has {counted(of_rank.height, 'step')}{what}."]
    sources = set(steps["source"].drop_nulls())
    if sources == {"inferred"}:
        sentences.append("Nothing labels them: they are inferred from kernels that repeat.")
    elif "profiler_step" in sources:
        sentences.append("The labels are those of the profiler's schedule, so they do not tell prefill from decode.")
    elif engine := {"vllm": "vLLM", "sglang": "SGLang"}.get(next(iter(sorted(sources - {"inferred", "capture"})), "")):
        sentences.append(f"{engine} labels them.")
    return sentences


def of_watched_rank(trace: Trace, rank: int) -> list[str]:
    """The rank that a notebook shows, and how it differs from the others.

    Examples
    --------
    >>> of_watched_rank(trace, 0)  # one rank alone
    []
    """
    rows = analyze.overlap(trace, by=("rank",))
    mine, others = rows.filter(pl.col("rank") == rank), rows.filter(pl.col("rank") != rank)
    if not mine.height or not others.height:
        return []
    sentence = f"Below we look at **rank {rank}**"
    if not rows["communication_ns"].sum():
        return [f"{sentence}; {counted(rows.height, 'rank')} are in the trace."]
    spends = format_ns(mine["communication_ns"][0])
    least, most = number(others["communication_ns"].min()), number(others["communication_ns"].max())
    other = format_ns(least) if least == most else f"{format_ns(least)} to {format_ns(most)}"
    where = ranks_in_words(others["rank"].to_list())
    return [f"{sentence}: {spends} of its time is communication, on {where} it is {other}."]


def of_steady_state(trace: Trace, rank: int, *, shown: int | None = None) -> list[str]:
    """The steps that represent the run, and the step that is shown.

    Parameters
    ----------
    trace : Trace
        Any trace.
    rank : int
        The rank that is shown.
    shown : int, optional
        The step that is shown.

    Examples
    --------
    >>> of_steady_state(trace, 0)[0].partition("; ")[2]
    'their median takes 3.85 ms on the device.'
    """
    mine = analyze.steady_state(trace).filter(pl.col("rank") == rank)
    look = [] if shown is None else [f"Below we look at step {shown}."]
    if mine.height:
        who = f"{counted(mine.height, 'decode step')} of rank {rank} represent{'s' if mine.height == 1 else ''} the run"
        where = "" if operators_stand_in(trace) else " on the device"
        length = format_ns(number(mine["dur_ns"].median()))
        many = f"their median takes {length}{where}" if mine.height > 1 else f"it takes {length}{where}"
        return [f"{who} (same batch, no warm-up, no outlier); {many}.", *look]
    steps = analyze.steps(trace).filter((pl.col("rank") == rank) & pl.col("dur_ns").is_not_null())
    if not steps.height:
        return []
    if steps.height == 1:
        return [f"There is no steady state of decode steps: rank {rank} has one step with work on it.", *look]
    about = f"what follows is about all {steps.height:,} steps of rank {rank}"
    return [f"There is no steady state of decode steps; {about}.", *look]


def of_timeline(trace: Trace, rank: int, step: int | None) -> list[str]:
    """Idle time of a rank in a step, and what the other ranks do meanwhile.

    Examples
    --------
    >>> of_timeline(trace, 0, None)
    []
    """
    if step is None:
        return []
    parts = analyze.overlap(trace).filter((pl.col("step") == step) & (pl.col("total_ns") > 0))
    mine, others = parts.filter(pl.col("rank") == rank), parts.filter(pl.col("rank") != rank)
    if not mine.height:
        return []
    row = mine.row(0, named=True)
    idle = row["idle_ns"] / row["total_ns"]
    what = "no operator runs" if operators_stand_in(trace) else "the device runs nothing"
    sentences = [f"In {format_share(idle)} of step {step} of rank {rank} {what}"]
    events = analyze.attribute(trace).filter((pl.col("rank") == rank) & (pl.col("step") == step))
    gaps = analyze.idle(trace).filter((pl.col("rank") == rank) & (pl.col("step") == step) & pl.col("in_step"))
    pause = number(gaps.unique(["device", "gap"], keep="first")["gap_ns"].median())
    length = number(events["dur_ns"].median())
    if gaps.height:
        sentences[0] += (
            f"; its {events_called(trace)} take {format_ns(length)}, the pauses between them {format_ns(pause)} "
            f"(medians){': the pauses are longer than what they part' if pause > length else ''}"
        )
    sentences[0] += "."
    shares = others.select(pl.col("communication_ns") / pl.col("total_ns")).to_series()
    least, most = number(shares.min()), number(shares.max())
    own = row["communication_ns"] / row["total_ns"]
    if others.height and least > own + 0.2:
        span = format_share(least) if least == most else f"{format_share(least)} to {format_share(most)}"
        sentences.append(
            f"The same step of {ranks_in_words(others['rank'].to_list())} is filled with long bars: communication "
            f"takes {span} of it there, and {format_share(own)} on rank {rank}."
        )
    return sentences


def of_lead(trace: Trace) -> list[str]:
    """Whether the host or the device is ahead, rank by rank.

    Examples
    --------
    >>> isinstance(of_lead(trace), list)
    True
    """
    try:
        delays = scope_of(trace).within(analyze.launch_delay(trace))
    except LlmprofError:
        return ["How far the host is ahead cannot be told: launches were not recorded."]
    medians = (
        delays.group_by("rank")
        .agg(pl.col("median_ns").median(), calls=pl.col("calls").sum(), kernels=pl.col("launched").sum())
        .drop_nulls("median_ns")
        .sort("rank")
    )
    if not medians.height:
        return ["How far the host is ahead cannot be told: no launch of a kernel is in the recording."]
    replayed = medians.filter(pl.col("kernels") > 3 * pl.col("calls"))
    if replayed.height == medians.height:
        ratio = total(medians, "kernels") / max(1.0, total(medians, "calls"))
        return [
            f"One launch call starts {counted(ratio, 'kernel')} on average: they come from graphs, and the delay "
            "counts from the launch of the whole graph, so it says little here."
        ]
    medians = medians.join(_starved(trace), on="rank", how="left").with_columns(pl.col("starved").fill_null(0.0))
    waits = (pl.col("starved") >= HALF) | ((pl.col("median_ns") < SOON_NS) & (pl.col("starved") > LITTLE))
    ahead = (pl.col("median_ns") >= LATER_NS) & (pl.col("starved") <= LITTLE)
    sentences = []
    for rows, verdict in (
        (medians.filter(waits), "the device often has nothing queued, so the *host* sets the pace"),
        (medians.filter(~waits & ~ahead), ""),
        (medians.filter(~waits & ahead), "the host is far ahead, and work is queued"),
    ):
        if not rows.height:
            continue
        who = ranks_in_words(rows["rank"].to_list()) if medians.height > 1 else "the only rank"
        late = f"the device waits for a late host in {_span(rows['starved'], format_share)} of the time"
        text = (
            f"On {who} a kernel starts {_span(rows['median_ns'], format_ns)} after its launch call (median), and {late}"
        )
        sentences.append(f"{text}: {verdict}." if verdict else f"{text}.")
    return sentences


def _span(values: pl.Series, written: Callable[[float], str]) -> str:
    """Range of some values as text; one value if both ends have the same text."""
    low, high = written(number(values.min())), written(number(values.max()))
    return low if low == high else f"{low} to {high}"


def _starved(trace: Trace) -> pl.DataFrame:
    """Share of the time of each rank in which its device is idle because the host is late (``rank, starved``)."""
    scope = scope_of(trace)
    late = scope.idle.filter(pl.col("cause").is_in(["host_bound", "launch", "sync"]))
    whole = scope.windows.group_by("rank").agg(whole=pl.col("dur_ns").sum()).filter(pl.col("whole") > 0)
    sums = late.group_by("rank").agg(late=pl.col("dur_ns").sum())
    return whole.join(sums, on="rank", how="left").select("rank", starved=pl.col("late").fill_null(0) / pl.col("whole"))


_CAUSES: Final = {
    "host_bound": "the launching call had not begun",
    "sync": "a synchronising call had held up the host",
    "launch": "the launching call was at work",
    "queued": "the next event was launched and held up",
    "unknown": "the launch is not in the recording",
}


def of_idle(trace: Trace) -> list[str]:
    """Idle time of the device by cause.

    Examples
    --------
    >>> of_idle(trace)[0].startswith("Between the first and the last event")
    True
    """
    gaps = analyze.idle(trace)
    rows = analyze.overlap(trace, by=("rank",))
    whole = total(rows, "total_ns")
    if not whole:
        return []
    idle = total(gaps, "dur_ns")
    what = "no operator runs" if operators_stand_in(trace) else "the device runs nothing"
    share = format_share(total(rows, "idle_ns") / whole)
    sentences = [f"Between the first and the last event of a rank, {what} in {share} of the time."]
    if idle and not operators_stand_in(trace):
        causes = gaps.group_by("cause").agg(pl.col("dur_ns").sum()).sort("dur_ns", "cause", descending=[True, False])
        parts = [
            f"{format_share(ns / idle)} {cause} ({_CAUSES[cause]})"
            for cause, ns in causes.iter_rows()
            if ns >= 0.01 * idle
        ]
        sentences.append(f"Of the idle time, {joined(parts)}.")
    return sentences
