"""Sentences about the timeline: coverage, findings, steps, layers, the host's lead and idle time."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Final

import polars as pl

from llmprof import analyze, names
from llmprof.analyze.findings.facts import on_host
from llmprof.analyze.findings.scope import scope_of, total
from llmprof.errors import LlmprofError
from llmprof.notebook.prose.words import (
    counted,
    events_called,
    joined,
    kind_in_words,
    listed,
    number,
    ranks_in_words,
)
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

SOON_NS: Final = 20_000
"""A kernel that starts so soon after its launch call (median of a step) may have found the device waiting for it."""

LATER_NS: Final = 1_000_000
"""A kernel that starts so much later was queued behind other work."""

HALF, LITTLE = 0.5, 0.1
"""Shares of the time of a device that count as much, and as little."""

_MEASURES: Final = {
    "step": "lies in a step",
    "stage": "has a named stage",
    "category": "has a known category",
    "launch": "has its launch call in the recording",
    "operator": "has its operator in the recording",
}


def of_coverage(trace: Trace) -> list[str]:
    """How much of the time is explained, on the rank where it is least.

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
        if not (measure == "launch" and on_host(trace))
    ]
    said = [f"Of the {least['of'][0]}, {where}{joined(parts)}."]
    lacking = least.filter(pl.col("share") == 0)["measure"].to_list()
    if "step" in lacking:
        said.append("Nothing of it lies in a step, so what follows is about the recording as a whole.")
    if "stage" in lacking:
        said.append("No layers were found in it.")
    return said


def of_findings(findings: pl.DataFrame) -> list[str]:
    """Findings as a numbered list, and what their shares are of.

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
    """How many steps of which phase there are, and what tells them.

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
    said = [f"{who} has {counted(of_rank.height, 'step')}{what}."]
    sources = set(steps["source"].drop_nulls())
    if sources == {"inferred"}:
        said.append("Nothing labels them: they are inferred from kernels that repeat.")
    elif "profiler_step" in sources:
        said.append("The labels are those of the profiler's schedule, so they do not tell prefill from decode.")
    elif engine := {"vllm": "vLLM", "sglang": "SGLang"}.get(next(iter(sorted(sources - {"inferred", "capture"})), "")):
        said.append(f"{engine} labels them.")
    return said


def of_watched_rank(trace: Trace, rank: int) -> list[str]:
    """Which rank a notebook looks at, and how it differs from the others.

    Examples
    --------
    >>> of_watched_rank(trace, 0)  # one rank alone
    []
    """
    rows = analyze.overlap(trace, by=("rank",))
    mine, others = rows.filter(pl.col("rank") == rank), rows.filter(pl.col("rank") != rank)
    if not mine.height or not others.height:
        return []
    said = f"Below we look at **rank {rank}**"
    if not rows["communication_ns"].sum():
        return [f"{said}; {counted(rows.height, 'rank')} are in the trace."]
    spends = format_ns(mine["communication_ns"][0])
    least, most = number(others["communication_ns"].min()), number(others["communication_ns"].max())
    other = format_ns(least) if least == most else f"{format_ns(least)} to {format_ns(most)}"
    return [
        f"{said}: {spends} of its time is communication, on {ranks_in_words(others['rank'].to_list())} it is {other}."
    ]


def of_steady_state(trace: Trace, rank: int, *, shown: int | None = None) -> list[str]:
    """Which steps represent the run, and which of them is looked at.

    Parameters
    ----------
    trace : Trace
        Any trace.
    rank : int
        The rank that is looked at.
    shown : int, optional
        The step that is looked at.

    Examples
    --------
    >>> of_steady_state(trace, 0)[0]  # doctest: +ELLIPSIS
    '... decode steps of rank 0 represent the run (same batch, no warm-up, no outlier); their median takes ... ms.'
    """
    mine = analyze.steady_state(trace).filter(pl.col("rank") == rank)
    look = [] if shown is None else [f"Below we look at step {shown}."]
    if mine.height:
        who = f"{counted(mine.height, 'decode step')} of rank {rank} represent{'s' if mine.height == 1 else ''} the run"
        where = "" if on_host(trace) else " on the device"
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
    """How full the timeline of a rank is in a step, and what the other ranks do meanwhile.

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
    what = "no operator runs" if on_host(trace) else "the device runs nothing"
    said = [f"In {format_share(idle)} of step {step} of rank {rank} {what}"]
    events = analyze.attribute(trace).filter((pl.col("rank") == rank) & (pl.col("step") == step))
    gaps = analyze.idle(trace).filter((pl.col("rank") == rank) & (pl.col("step") == step) & pl.col("in_step"))
    pause = number(gaps.unique(["device", "gap"], keep="first")["gap_ns"].median())
    length = number(events["dur_ns"].median())
    if gaps.height:
        said[0] += (
            f"; its {events_called(trace)} take {format_ns(length)}, the pauses between them {format_ns(pause)} "
            f"(medians){': the pauses are longer than what they part' if pause > length else ''}"
        )
    said[0] += "."
    shares = others.select(pl.col("communication_ns") / pl.col("total_ns")).to_series()
    least, most = number(shares.min()), number(shares.max())
    own = row["communication_ns"] / row["total_ns"]
    if others.height and least > own + 0.2:
        span = format_share(least) if least == most else f"{format_share(least)} to {format_share(most)}"
        said.append(
            f"The same step of {ranks_in_words(others['rank'].to_list())} is filled with long bars: communication "
            f"takes {span} of it there, and {format_share(own)} on rank {rank}."
        )
    return said


def of_layers_found(trace: Trace, rank: int, step: int | None) -> list[str]:
    """How many layers a step of a rank has, by its attention.

    Examples
    --------
    >>> of_layers_found(trace, 0, 5)
    ['Step 5 of rank 0 has 350 kernels and copies and attention in **28 layers**.']
    """
    events = analyze.attribute(trace).filter((pl.col("rank") == rank) & pl.col("step").eq_missing(_step(step)))
    where = f"Step {step} of rank {rank}" if step is not None else f"Rank {rank}"
    has = f"{where} has {events.height:,} {events_called(trace)}"
    attention = events.filter((pl.col("stage") == "attention") & (pl.col("category") == "attention"))
    layers = attention["layer"].drop_nulls().n_unique()
    if layers:
        return [f"{has} and attention in **{counted(layers, 'layer')}**."]
    if attention.height or (events["category"] == "attention").any():
        many = (events["category"] == "attention").sum()
        return [f"{has}, of them {many:,} of attention, but no layers were found."]
    return [f"{has}, and none of them is known as attention, so there are no layers to be found by it."]


_STAGES: Final = {
    "norm": "brings the hidden states to one scale",
    "qkv_proj": "query, key and value in one projection, split afterwards",
    "rope": "turns q and k by their position",
    "kv_cache_write": "puts k and v of the new tokens into the cache",
    "attention": "new queries against all keys and values",
    "o_proj": "from the heads back to the hidden size",
    "all_reduce": "adds up the partial sums of the ranks",
    "gate_up_proj": "gate and up projection of the feed-forward part",
    "activation": "bends what the projection before it gives, and multiplies it with the gate where there is one",
    "down_proj": "back to the hidden size",
    "residual": "adds what came in",
    "router": "chooses the experts of each token",
    "expert_dispatch": "brings tokens to the ranks of their experts",
    "experts": "the feed-forward parts of the chosen experts",
    "combine": "brings the results back and adds them up",
}


def stages_of_layer(trace: Trace, rank: int, step: int | None, layer: int) -> pl.DataFrame:
    """Stages of a layer in order, what each is for, and the matrix that its GEMM multiplies with.

    Parameters
    ----------
    trace : Trace
        Any trace.
    rank, layer : int
        Which layer of which rank.
    step : int or None
        In which step.

    Returns
    -------
    polars.DataFrame
        ``stage``, ``kernels`` (events), ``us`` (their sum, in us), ``weight`` (the shape of the second matrix of the
        operator, as recorded; null where shapes were not) and ``meaning``; no rows where the layer was not found.

    Examples
    --------
    >>> stages_of_layer(trace, 0, 5, 3).columns
    ['stage', 'kernels', 'us', 'weight', 'meaning']
    """
    rows = _layer(trace, rank, step).filter(pl.col("layer") == layer).sort("start_ns")
    rows = _with_operators(trace, rows)
    matrices = pl.col("shapes").str.extract_all(r"\[\d+, ?\d+\]").list.last().str.strip_chars("[]")
    weight = pl.when(pl.col("category") == "linear").then(matrices.str.replace(", ?", " x "))
    run = (pl.col("stage") != pl.col("stage").shift(1)).fill_null(value=True).cum_sum()
    return (
        rows.with_columns(weight=weight, run=run)
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("stage").first(),
            kernels=pl.len(),
            us=pl.col("dur_ns").sum() / 1e3,
            weight=pl.col("weight").drop_nulls().first(),
        )
        .with_columns(meaning=pl.col("stage").replace_strict(_STAGES, default="", return_dtype=pl.String))
        .drop("run")
    )


def _layer(trace: Trace, rank: int, step: int | None) -> pl.DataFrame:
    return analyze.attribute(trace).filter(
        (pl.col("rank") == rank) & pl.col("step").eq_missing(_step(step)) & pl.col("layer").is_not_null()
    )


def _step(step: int | None) -> pl.Expr:
    return pl.lit(step, dtype=pl.Int32)


def _with_operators(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    if not trace.has("ops"):
        return rows.with_columns(operator=pl.lit(None, pl.String), shapes=pl.lit(None, pl.String))
    ops = trace.ops.select("rank", "op_id", operator="name", shapes="shapes").unique(["rank", "op_id"], keep="first")
    return rows.join(ops, on=["rank", "op_id"], how="left", maintain_order="left")


def of_layer(trace: Trace, rank: int, step: int | None, layer: int) -> list[str]:
    """What a layer is made of, and where in it the ranks communicate.

    Examples
    --------
    >>> of_layer(trace, 0, 5, 3)[0][:20]
    'Layer 3 has 15 kerne'
    """
    events = _layer(trace, rank, step)
    mine = events.filter(pl.col("layer") == layer)
    if not mine.height:
        found = events["layer"].unique().sort()
        if not found.len():
            return ["No layers were found, so there is none to take apart."]
        return [
            f"There is no layer {layer} in step {step} of rank {rank}: it has the layers {found[0]} to {found[-1]}."
        ]
    said = [f"Layer {layer} has {mine.height} {events_called(trace)} on rank {rank}."]
    step_events = analyze.attribute(trace).filter((pl.col("rank") == rank) & pl.col("step").eq_missing(_step(step)))
    calls = step_events.filter(pl.col("category") == "collective").sort("start_ns")
    calls = calls.with_columns(kind=names.collective_kinds(calls["name"]))
    inside = calls.filter(pl.col("layer") == layer)
    if not inside.height:
        return said
    before = mine.filter(pl.col("category").is_in(["linear", "moe_experts"])).sort("start_ns")
    after = inside.join_asof(before.select("start_ns", follows="stage"), on="start_ns", strategy="backward")
    of_kind = calls.filter(pl.col("kind") == inside["kind"].mode().sort()[0])
    kind = kind_in_words(of_kind["kind"][0])
    follows = [f"`{stage}`" for stage in dict.fromkeys(after["follows"].to_list()) if stage]
    place = f", after {joined(follows)}" if follows else ""
    outside = of_kind.filter(pl.col("layer").is_null()).height
    many = counted(inside.filter(kind=of_kind["kind"][0]).height, kind)
    said.append(f"There {'is' if many.startswith('1 ') else 'are'} {many} among them{place}.")
    all_layers = f"The {events['layer'].n_unique()} layers of the step have {counted(of_kind.height - outside, kind)}"
    if outside:
        all_layers += f", and {outside} {'is' if outside == 1 else 'are'} outside of them: **{of_kind.height} a step**"
    return [*said, f"{all_layers}."]


def of_small_kernels(trace: Trace, rank: int, step: int | None, layer: int) -> list[str]:
    """Things to notice in a layer: split-K reductions, fills and copies, and how short the kernels are.

    Examples
    --------
    >>> all(isinstance(text, str) for text in of_small_kernels(trace, 0, 5, 3))
    True
    """
    mine = _layer(trace, rank, step).filter(pl.col("layer") == layer)
    if not mine.height or on_host(trace):
        return []
    said = []
    reductions = mine.filter(pl.col("name").str.contains(f"(?i){names.SPLIT_K}"))
    if reductions.height:
        stages = joined([f"`{stage}`" for stage in reductions["stage"].unique(maintain_order=True)])
        said.append(
            f"{counted(reductions.height, 'kernel')} only add{'s' if reductions.height == 1 else ''} up parts (split-K "
            f"in {stages}): the GEMM before has too few tiles to fill the {trace.platform.device}, so its library "
            "splits the inner dimension."
        )
    moved = mine.filter(pl.col("category").is_in(["copy", "fill"]))
    if moved.height:
        stages = joined([f"`{stage}`" for stage in moved["stage"].unique(maintain_order=True)])
        said.append(f"{counted(moved.height, 'event')} only copy or fill memory, in {stages}.")
    alone = mine.filter(~pl.col("replayed").fill_null(value=False))
    call = number(alone.select(pl.col("launch_end_ns") - pl.col("launch_start_ns")).to_series().median())
    if isfinite(call):
        said.append(
            f"Half of its kernels and copies run for {format_ns(number(mine['dur_ns'].median()))} or less; a launch "
            f"call takes the host {format_ns(call)} (median)."
        )
    return said


def of_layer_times(trace: Trace, rank: int) -> list[str]:
    """How long a layer runs, lasts, and keeps the host.

    Examples
    --------
    >>> of_layer_times(trace, 0)[0][:31]
    'The kernels of a layer run for '
    """
    rows = analyze.layers(trace, per="layer").filter(pl.col("rank") == rank)
    steady = analyze.steady_state(trace)
    if steady.height:
        rows = rows.join(steady.select("rank", "step"), on=["rank", "step"], how="semi")
    if not rows.height:
        return ["No layers were found, so there are no times of layers."]
    busy, device, host = (number(rows[column].median()) for column in ("busy_ns", "dur_ns", "host_dur_ns"))
    what = "operators" if on_host(trace) else "kernels"
    text = (
        f"The {what} of a layer run for {format_ns(busy)}; from the start of the first to the end of the last it takes "
        f"{format_ns(device)}"
    )
    if not isfinite(host) or on_host(trace):
        return [f"{text} (medians of rank {rank})."]
    text += f", and the host needs {format_ns(host)} to issue it (medians of rank {rank})"
    ratio = max(device, host) / busy if busy else 0.0
    return [f"{text}: up to {ratio:.1f} times as long." if ratio >= 1.5 else f"{text}."]


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
    said = []
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
        said.append(f"{text}: {verdict}." if verdict else f"{text}.")
    return said


def _span(values: pl.Series, written: Callable[[float], str]) -> str:
    """The smallest and the largest of some values; one where they read the same."""
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
    """How long the device is idle, by cause.

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
    what = "no operator runs" if on_host(trace) else "the device runs nothing"
    share = format_share(total(rows, "idle_ns") / whole)
    said = [f"Between the first and the last event of a rank, {what} in {share} of the time."]
    if idle and not on_host(trace):
        causes = gaps.group_by("cause").agg(pl.col("dur_ns").sum()).sort("dur_ns", "cause", descending=[True, False])
        parts = [
            f"{format_share(ns / idle)} {cause} ({_CAUSES[cause]})"
            for cause, ns in causes.iter_rows()
            if ns >= 0.01 * idle
        ]
        said.append(f"Of the idle time, {joined(parts)}.")
    return said
