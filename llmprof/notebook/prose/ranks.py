"""Sentences about several ranks and several recordings: waiting between ranks, and differences between recordings."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from llmprof import analyze
from llmprof.analyze.findings.scope import scope_of, total
from llmprof.analyze.steps.summary import time_parts
from llmprof.errors import LlmprofError
from llmprof.notebook.prose.timeline import LATER_NS, SOON_NS
from llmprof.notebook.prose.words import kind_in_words, number
from llmprof.text import counted, joined, ranks_in_words
from llmprof.trace import Trace
from llmprof.units import format_bytes, format_ns, format_share

_HALF: Final = 0.5

_AHEAD: Final = 10
"""Least ratio of launch delays between other ranks and the late rank at which the late rank's host is called late."""

MOSTLY: Final = 0.8
"""Shares above this are called nearly all."""

LITTLE: Final = 0.2
"""Shares up to this are called little."""

TOGETHER_NS: Final = 10_000
"""If ranks leave a call within this time, their clocks agree."""


def matched_calls(trace: Trace, kind: str | None = None) -> pl.DataFrame:
    """Collective calls with known waiting.

    Parameters
    ----------
    trace : Trace
        Any trace.
    kind : str, optional
        Kind of collective; by default the kind with the most time in calls of several ranks.

    Returns
    -------
    polars.DataFrame
        Rows of :func:`~llmprof.analyze.collectives`; no rows if no call could be matched over several ranks.

    Examples
    --------
    >>> matched_calls(ranks)["kind"].unique().to_list()
    ['all_reduce']
    >>> matched_calls(trace).height
    0
    """
    calls = analyze.collectives(trace)
    matched = calls.filter(pl.col("wait_ns").is_not_null() & (pl.col("ranks_seen") > 1))
    if kind is None and matched.height:
        sums = matched.group_by("kind").agg(pl.col("dur_ns").sum()).sort("dur_ns", "kind", descending=[True, False])
        kind = sums["kind"][0]
    return matched.filter(pl.col("kind") == kind) if kind else matched.clear()


def late_rank(calls: pl.DataFrame) -> dict[str, Any] | None:
    """The rank that comes last to matched calls, and the waiting of the others.

    Parameters
    ----------
    calls : polars.DataFrame
        Rows of :func:`matched_calls`.

    Returns
    -------
    dict or None
        ``late_rank``, ``late_share`` (of the calls), ``others_waiting`` (share of the duration of the other ranks'
        calls), ``median_duration_ns`` (of the others), ``median_transfer_ns``, ``end_spread_ns`` (largest), and
        ``calls_a_rank``; None without calls.

    Examples
    --------
    >>> late_rank(matched_calls(ranks))["late_rank"]
    3
    """
    if not calls.height:
        return None
    once = calls.unique("call", keep="first", maintain_order=True)
    late, times = once["last_rank"].value_counts().sort("count", "last_rank", descending=[True, False]).row(0)
    others = calls.filter(pl.col("rank") != late)
    return {
        "late_rank": late,
        "late_share": times / once.height,
        "others_waiting": total(others, "wait_ns") / max(1.0, total(others, "dur_ns")),
        "median_duration_ns": number(others["dur_ns"].median()),
        "median_transfer_ns": number(calls["transfer_ns"].median()),
        "end_spread_ns": number(calls["end_spread_ns"].max()),
        "calls_a_rank": calls.filter(pl.col("rank") == late).height,
    }


def of_communication(trace: Trace) -> list[str]:
    """Waiting in the collectives of a trace, the rank that the others wait for, and the time of the transfer itself.

    Examples
    --------
    >>> of_communication(ranks)[0][:48]
    'Rank **3** arrives last in 96.2 % of the all-red'
    >>> of_communication(trace)
    ['The trace has no communication between ranks.']
    """
    try:
        calls = analyze.collectives(trace)
    except LlmprofError:
        return ["Communication was not recorded."]
    if not calls.height:
        return ["The trace has no communication between ranks."]
    matched = matched_calls(trace)
    v = late_rank(matched)
    if v is None:
        kinds = [kind_in_words(kind) for kind in calls["kind"].unique().sort()]
        why = calls["unmatched"].drop_nulls().mode().sort()
        many = f"{counted(calls.height, 'call')} of {joined(kinds)} take {format_ns(total(calls, 'dur_ns'))} in all"
        return [
            f"{many}; how much of it is waiting cannot be told{f': {why[0]}' if why.len() else ''}.",
            "So nothing can be said of the link between the ranks either.",
        ]
    kind = kind_in_words(matched["kind"][0])
    several = v["late_share"] < 0.6
    sentences = [
        f"Rank **{v['late_rank']}** arrives last in {format_share(v['late_share'])} of the {kind}s"
        + (
            f", so lateness is spread over {ranks_in_words(matched['last_rank'].drop_nulls().unique().to_list())}."
            if several
            else "."
        )
    ]
    sentences.append(
        f"The others spend **{format_share(v['others_waiting'])}** of their {kind} time waiting. The transfer itself "
        f"takes **{format_ns(v['median_transfer_ns'])}** (median), where their durations suggest "
        f"{format_ns(v['median_duration_ns'])}."
    )
    offset = number(matched["clock_offset_ns"].abs().max())
    if offset > 0:
        sentences.append(f"The clocks of the ranks were corrected by up to {format_ns(offset)}.")
    elif v["end_spread_ns"] <= TOGETHER_NS:
        sentences.append(
            f"All ranks leave a call within {format_ns(v['end_spread_ns'])} of each other, so the clocks agree."
        )
    else:
        sentences.append(f"The ranks leave a call up to {format_ns(v['end_spread_ns'])} apart.")
    return sentences


def of_the_cause(trace: Trace) -> list[str]:
    """Whether waiting or transfer takes the time, why the late rank is late, and what the trace of one rank would show.

    Examples
    --------
    >>> of_the_cause(trace)
    []
    """
    try:
        matched = matched_calls(trace)
    except LlmprofError:
        return []
    v = late_rank(matched)
    if v is None:
        return []
    late, kind = v["late_rank"], kind_in_words(matched["kind"][0])
    if v["others_waiting"] >= MOSTLY:
        sentences = [f"So the link between the ranks is not what takes the time of the {kind}s: waiting is."]
    elif v["others_waiting"] <= LITTLE:
        sentences = [f"So the {kind}s are mostly transfer: there the link, the message size and the algorithm count."]
    else:
        sentences = [f"So both count: the {kind}s are partly waiting and partly transfer."]
    if v["late_share"] >= MOSTLY and v["others_waiting"] >= MOSTLY:
        sentences += _why_late(trace, late)
    shares = _communication(trace)
    others = shares.filter(pl.col("rank") != late)
    if others.height and v["others_waiting"] >= MOSTLY and others["share"][0] >= _HALF:
        first = others.row(0, named=True)
        sentences.append(
            f"A trace of rank {first['rank']} alone would show {format_share(first['share'])} of the time in "
            "communication, and send you to look at the link."
        )
    kernels = matched["name"].drop_nulls().unique().sort()
    if trace.has("kernels") and kernels.len() and not kernels.str.contains(r"(?i)[nr]ccl|hcom|hccl").any():
        short = kernels[0].removeprefix("void ").split("<")[0].split("(")[0]
        sentences.append(
            f"The kernels are called `{short}`: a tool that knows communication by the name of the library takes them "
            "for compute, and reports a busy device."
        )
    return sentences


def _communication(trace: Trace) -> pl.DataFrame:
    rows = analyze.overlap(trace, by=("rank",)).filter(pl.col("total_ns") > 0)
    return rows.select("rank", share=pl.col("communication_ns") / pl.col("total_ns"))


def _why_late(trace: Trace, late: int) -> list[str]:
    """Comparison of the late rank's host with the other hosts, if launches were recorded."""
    try:
        delays = scope_of(trace).within(analyze.launch_delay(trace)).group_by("rank").agg(pl.col("median_ns").median())
    except LlmprofError:
        return []
    delays = delays.drop_nulls()
    mine, others = delays.filter(pl.col("rank") == late), delays.filter(pl.col("rank") != late)
    if not mine.height or not others.height or mine["median_ns"][0] >= SOON_NS:
        return []
    if number(others["median_ns"].min()) < _AHEAD * mine["median_ns"][0]:
        return []
    text = (
        f"Rank {late} is late because its *host* is: there a kernel starts {format_ns(mine['median_ns'][0])} after its "
        "launch (median), so the device has nothing queued"
    )
    if number(others["median_ns"].min()) >= LATER_NS:
        text += "; the hosts of the others are far ahead, since their devices spend the time inside the calls"
    return [f"{text}."]


def of_two_transfers(this: Trace, other: Trace, names: tuple[str, str]) -> list[str]:
    """Transfer times of the most frequent message in two recordings, and whether the difference matters.

    Parameters
    ----------
    this, other : Trace
        Recordings of the same model and load.
    names : (str, str)
        Name of the communication in each.

    Examples
    --------
    >>> of_two_transfers(ranks, ranks, ("one", "the other"))[0][:29]
    'The transfer of an all-reduce'
    """
    sides = [matched_calls(trace, "all_reduce") for trace in (this, other)]
    if not all(side.height for side in sides):
        return []
    size = sides[0]["bytes"].drop_nulls().mode().sort()
    if not size.len():
        return []
    times = [number(side.filter(pl.col("bytes") == size[0])["transfer_ns"].median()) for side in sides]
    if not min(times) > 0:
        return []
    longer, shorter = (1, 0) if times[1] >= times[0] else (0, 1)
    sentences = [
        f"The transfer of an all-reduce of {format_bytes(size[0])} takes {format_ns(times[0])} through {names[0]} and "
        f"{format_ns(times[1])} through {names[1]} (medians): {times[longer] / times[shorter]:.1f} times as long."
    ]
    waits = [late_rank(side) for side in sides]
    if all(w is not None and w["others_waiting"] >= MOSTLY for w in waits):
        shares = joined([format_share(w["others_waiting"]) for w in waits if w])
        sentences.append(
            f"For the run as a whole it hardly matters: of the time in the calls {shares} is waiting. First things "
            "first."
        )
    return sentences


def decode_step(name: str, trace: Trace) -> dict[str, Any] | None:
    """Figures of a decode step of a run.

    Returns
    -------
    dict or None
        ``decode step of`` (the name), ``steps``, ``step_ms``, ``kernels``, ``launch_calls``, ``compute_ms``,
        ``communication_ms`` (medians over the steady decode steps) and ``idle_share``; None if the trace has no steady
        state or no launches.

    Examples
    --------
    >>> decode_step("this one", trace)["kernels"] > 300
    True
    """
    steady = analyze.steady_state(trace)
    if not steady.height or not trace.has("runtime") or not trace.has("kernels"):
        return None
    key = steady.select("rank", "step")
    launches = analyze.launch_delay(trace).join(key, on=["rank", "step"], how="semi")
    spans = analyze.overlap(trace, by=("rank", "step")).join(key, on=["rank", "step"], how="semi")
    return {
        "decode step of": name,
        "steps": steady.height,
        "step_ms": number(steady["dur_ns"].median()) / 1e6,
        "kernels": number(launches["kernels"].median()),
        "launch_calls": number(launches["calls"].median()),
        "compute_ms": number(spans["compute_ns"].median()) / 1e6,
        "communication_ms": number(spans["communication_ns"].median()) / 1e6,
        "idle_share": total(spans, "idle_ns") / max(1.0, total(spans, "total_ns")),
    }


def of_decode_steps(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[str]:
    """Differences between the decode steps of two recordings.

    Parameters
    ----------
    before, after : dict or None
        As :func:`decode_step` gives them.

    Examples
    --------
    >>> one = decode_step("a", trace)
    >>> of_decode_steps(one, one | {"step_ms": 2 * one["step_ms"]})[0][:30]
    'As many kernels, and as many l'
    """
    if before is None or after is None:
        return []
    same = before["kernels"] == after["kernels"]
    kernel_counts = "As many kernels" if same else f"{before['kernels']:,.0f} kernels become {after['kernels']:,.0f}"
    calls = (
        "as many launch calls"
        if before["launch_calls"] == after["launch_calls"]
        else f"{after['launch_calls']:,.0f} launch calls where there were {before['launch_calls']:,.0f}"
    )
    faster = before["step_ms"] / after["step_ms"]
    pace = f"{faster:.1f} times as fast" if faster >= 1 else f"{1 / faster:.1f} times slower"
    step, idle = after["step_ms"], [format_share(side["idle_share"]) for side in (after, before)]
    out = [
        f"{kernel_counts}, and {calls}: a decode step takes {format_ns(step * 1e6)} instead of "
        f"{format_ns(before['step_ms'] * 1e6)} ({pace}), and the device is idle in {idle[0]} of it instead of "
        f"{idle[1]}."
    ]
    if after["communication_ms"]:
        compute, communication = (format_share(after[f"{what}_ms"] / step) for what in ("compute", "communication"))
        out.append(
            f"What is visible now was hidden before: compute takes {compute} of the step, and communication "
            f"{communication}."
        )
    return out


def of_a_pipeline(trace: Trace) -> list[str]:
    """Layers and waiting of the ranks of a pipeline; empty if the run has no pipeline.

    Examples
    --------
    >>> of_a_pipeline(trace)
    []
    """
    calls = analyze.collectives(trace)
    if not calls.filter(pl.col("kind") == "send_recv").height or len(trace.ranks) < 2:
        return []
    layers = analyze.layers(trace, per="layer").group_by("rank", "step").agg(n=pl.col("layer").n_unique())
    each = layers.group_by("rank").agg(pl.col("n").max()).sort("rank")
    kinds = [kind_in_words(kind) for kind in calls["kind"].unique().sort()]
    numbers = each["n"].unique()
    sentences = []
    if numbers.len() == 1:
        sentences.append(f"Each of the {each.height} ranks has {numbers[0]} layers; between them go {joined(kinds)}.")
    elif each.height:
        shares = ", ".join(f"rank {rank} {n}" for rank, n in each.iter_rows())
        sentences.append(f"The ranks share the layers ({shares}); between them go {joined(kinds)}.")
    scope = scope_of(trace)
    parts = time_parts(trace, scope.windows)
    waits = total(parts.filter(pl.col("kind").is_in(["communication", "idle"])), "ns") / max(1.0, total(parts, "ns"))
    longest = calls.group_by("kind").agg(pl.col("dur_ns").sum()).sort("dur_ns", descending=True)["kind"][0]
    sentences.append(
        f"{format_share(waits)} of the time of the ranks is communication or idle, most of the communication in "
        f"{kind_in_words(longest)}: with one batch in flight, one rank always waits for the other."
    )
    return sentences


def of_exposed(trace: Trace) -> list[str]:
    """Share of the device time that is exposed communication.

    Examples
    --------
    >>> of_exposed(trace)
    []
    """
    rows = analyze.overlap(trace, by=("rank",))
    both, whole = total(rows, "communication_ns"), total(rows, "total_ns")
    if not both or not whole:
        return []
    exposed, hidden = (total(rows, f"{what}_communication_ns") for what in ("exposed", "hidden"))
    sentences = [f"**{format_share(exposed / whole)}** of the time of the ranks is communication that nothing hides."]
    if hidden <= 0.01 * both:
        return [*sentences, "All of the communication is exposed: nothing computes while it runs."]
    return [*sentences, f"{format_share(hidden / both)} of the communication is hidden behind compute."]
