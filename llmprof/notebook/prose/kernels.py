"""Sentences about kernels: the hottest kernel, its bound, and the hardware metrics of launches."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from llmprof import analyze, bundled, theory
from llmprof.analyze.activity import operators_stand_in
from llmprof.analyze.findings.scope import total
from llmprof.analyze.roofline import AT_ROOF, coverage_of
from llmprof.errors import LlmprofError
from llmprof.hardware import Device, device
from llmprof.metrics.data import Metrics
from llmprof.notebook.prose.words import number
from llmprof.text import counted, joined
from llmprof.trace import Trace
from llmprof.units import format_bytes, format_ns, format_share

_LONGEST: Final = 100
"""Longest kernel name that is not cut (characters)."""


def representative_steps(trace: Trace) -> pl.DataFrame:
    """Representative steps of a run: the steady decode steps, or else all steps with work on the device.

    Returns
    -------
    polars.DataFrame
        Rows of :func:`~llmprof.analyze.steps`; no rows if the trace has no steps.

    Examples
    --------
    >>> representative_steps(trace)["phase"].unique().to_list()
    ['decode']
    """
    steady = analyze.steady_state(trace)
    return steady if steady.height else analyze.steps(trace).drop_nulls("dur_ns")


def events_of_steps(trace: Trace) -> pl.DataFrame:
    """Events of the representative steps; all events if the trace has no steps.

    Returns
    -------
    polars.DataFrame
        Rows of :func:`~llmprof.analyze.attribute`, with ``part``: the stage, or the category if the stage is unknown.

    Examples
    --------
    >>> events_of_steps(trace)["part"].null_count()
    0
    """
    steps, events = representative_steps(trace), analyze.attribute(trace)
    if steps.height:
        events = events.join(steps.select("rank", "step"), on=["rank", "step"], how="semi", maintain_order="left")
    unknown = pl.col("stage").is_null() | (pl.col("stage") == "other")
    return events.with_columns(part=pl.when(unknown).then("category").otherwise("stage"))


def hottest_kernel(trace: Trace) -> dict[str, Any] | None:
    """The kernel with the most time in the stage with the most compute time; communication and copies do not count.

    Returns
    -------
    dict or None
        ``part`` (the stage, or the category), ``share`` (of the compute time), ``in_layers`` (whether layers were found
        in it), ``name``, ``launches``, ``total_ns`` and ``median_ns``; None if there is no compute.

    Examples
    --------
    >>> hottest_kernel(trace)["part"]
    'gate_up_proj'
    """
    events = events_of_steps(trace).filter(~pl.col("category").is_in(["collective", "copy", "fill"]))
    parts = events.group_by("part").agg(pl.col("dur_ns").sum()).sort("dur_ns", "part", descending=[True, False])
    if not total(parts, "dur_ns"):
        return None
    part, ns = parts.row(0)
    own = events.filter(pl.col("part") == part)
    names = own.group_by("name").agg(
        launches=pl.len(), total_ns=pl.col("dur_ns").sum(), median_ns=pl.col("dur_ns").median()
    )
    first = names.sort("total_ns", "name", descending=[True, False]).row(0, named=True)
    in_layers = bool(own["layer"].is_not_null().any())
    return {"part": part, "share": ns / total(parts, "dur_ns"), "in_layers": in_layers, **first}


def of_hottest_kernel(trace: Trace) -> list[str]:
    """The stage with the most compute time, and its longest kernel.

    Examples
    --------
    >>> of_hottest_kernel(trace)[0][:49]
    'The stage that computes longest is **gate_up_proj'
    """
    hot, steps = hottest_kernel(trace), representative_steps(trace)
    if hot is None:
        return ["Nothing that computes was recorded."]
    what = "operator" if operators_stand_in(trace) else "launch"
    where = f" in {counted(steps['step'].n_unique(), 'step')}" if steps.height else ""
    if (ranks := steps["rank"].n_unique()) > 1:
        where += f" on {ranks} ranks"
    name = hot["name"] if len(hot["name"]) <= _LONGEST else f"{hot['name'][: _LONGEST - 1]}…"
    kind = "stage" if hot["in_layers"] else "kind of work"
    return [
        f"The {kind} that computes longest is **{hot['part']}** ({format_share(hot['share'])} of the compute), and in "
        f"it `{name}` with {format_ns(hot['median_ns'])} (median of "
        f"{counted(hot['launches'], what)}{where})."
    ]


def feed_forward_bytes(model: str, ranks: int) -> int:
    """Bytes of the weights of a layer's gate and up projection on one of several tensor-parallel ranks, in 16 bits.

    Examples
    --------
    >>> feed_forward_bytes("Qwen2.5-7B", 2) == 3584 * 18944 * 2
    True
    """
    shape = theory.shape(model)
    return shape.hidden * 2 * shape.layers[0].feed_forward.inner // ranks * 2


def of_weights_bound(hot: dict[str, Any] | None, weights: int, gpu: Device) -> list[str]:
    """Comparison of a kernel's time with the time to read its weights once from memory.

    Parameters
    ----------
    hot : dict or None
        As :func:`hottest_kernel` gives it.
    weights : int
        Bytes that each launch has to read.
    gpu : Device
        What it runs on.

    Examples
    --------
    >>> from llmprof.hardware import device
    >>> of_weights_bound({"median_ns": 56_000.0}, 135_790_592, device("H200"))[0][:31]
    '130 MiB of weights at 4.8 TB/s '
    """
    if hot is None:
        return []
    if not gpu.memory_bytes_per_s:
        return []
    bound = weights / gpu.memory_bytes_per_s * 1e9
    reached = bound / hot["median_ns"]
    sentences = [
        f"{format_bytes(weights)} of weights at {gpu.memory_bytes_per_s / 1e12:.1f} TB/s "
        f"({gpu.sources['memory_bytes_per_s']}) take at least **{format_ns(bound)}**; the kernel takes "
        f"{format_ns(hot['median_ns'])}, so it reaches **{format_share(reached)}** of the bound."
    ]
    if reached >= AT_ROOF - 0.05:
        sentences.append(
            "There is little to win inside this kernel; what would help is reading the weights less often (a larger "
            "batch) or making them smaller (FP8 halves them)."
        )
    return sentences


def of_report(metrics: Metrics, *, sample: str = "") -> list[str]:
    """Contents of a report of Nsight Compute.

    Parameters
    ----------
    metrics : Metrics
        The report.
    sample : str, optional
        Name of the bundled report, if it is one.

    Examples
    --------
    >>> of_report(metrics)[0]
    'The report has 24 launches on NVIDIA H200, of 9 kernels, in layers 0 and 1.'
    """
    kernels = metrics.kernels
    names = kernels["device_name"].drop_nulls().unique().sort().to_list() if "device_name" in kernels.columns else []
    layers = analyze.name_layers(metrics)["layer"].drop_nulls().unique().sort().to_list()
    text = f"The report has {counted(kernels.height, 'launch')}"
    text += f" on {joined(names)}" if names else " on a device that it does not name"
    text += f", of {counted(kernels['kernel_name'].n_unique(), 'kernel')}"
    text += (
        f", in layer{'' if len(layers) == 1 else 's'} {joined(layers)}." if layers else "; no layers were found in it."
    )
    if not sample:
        return [text]
    head = bundled.describe(sample)
    return [f"The bundled report is of {head.model} in {head.engine}: {head.title}.", text]


def device_of(metrics: Metrics) -> str | None:
    """Name of the device of a report, if it names one and llmprof has its data sheet.

    Examples
    --------
    >>> device_of(metrics)
    'NVIDIA H200'
    """
    kernels = metrics.kernels
    for name in kernels["device_name"].drop_nulls().unique().sort() if "device_name" in kernels.columns else ():
        try:
            device(name)
        except LlmprofError:
            continue
        return str(name)
    return None


def of_bounds(speed: pl.DataFrame) -> list[str]:
    """Limits of the launches of a report: compute, memory or latency.

    Parameters
    ----------
    speed : polars.DataFrame
        As :func:`~llmprof.analyze.speed_of_light` gives it.

    Examples
    --------
    >>> of_bounds(analyze.speed_of_light(metrics))[0].startswith("Of the time of these launches, ")
    True
    """
    rows = speed.drop_nulls("bound").group_by("bound").agg(pl.len(), pl.col("duration_ns").sum())
    whole = total(rows, "duration_ns")
    if not whole:
        return ["The report does not say what bounds its launches."]
    words = {"compute": "is bound by compute", "memory": "is bound by memory", "latency": "waits below both roofs"}
    rows = rows.sort("duration_ns", "bound", descending=[True, False])
    parts = [
        f"{format_share(ns / whole)} {words.get(bound, f'is of {bound}')} ({counted(n, 'launch')})"
        for bound, n, ns in rows.iter_rows()
    ]
    return [f"Of the time of these launches, {joined(parts)}."]


_STALLS: Final = {
    "long_scoreboard": "waits for memory: in norms and copies that is the nature of the work; in GEMMs and attention "
    "it means that too few warps are there to hide it",
    "short_scoreboard": "waits for shared memory or a special function",
    "warpgroup_arrive": "waits for the tensor cores of its own warp group: the good kind, the pipe is full",
    "barrier": "waits for the other warps of its block, in a GEMM for what they load for the tensor cores",
    "math_pipe_throttle": "waits for a busy arithmetic pipe",
    "wait": "waits the fixed time of an instruction",
    "selected": "is issuing: nothing holds it up",
    "not_selected": "could issue, but another warp does",
    "no_instruction": "waits for instructions to be fetched",
    "lg_throttle": "waits since too many memory instructions are queued",
    "mio_throttle": "waits for the queue of shared memory and special functions",
    "membar": "waits for a memory barrier",
    "branch_resolving": "waits for a branch",
}


def of_stalls(speed: pl.DataFrame) -> list[str]:
    """The most frequent stalls of the launches, and their meaning.

    Parameters
    ----------
    speed : polars.DataFrame
        As :func:`~llmprof.analyze.speed_of_light` gives it.

    Examples
    --------
    >>> any("`long_scoreboard`" in text for text in of_stalls(analyze.speed_of_light(metrics)))
    True
    """
    rows = speed.drop_nulls("stall").group_by("stall").agg(pl.len(), pl.col("duration_ns").sum())
    rows = rows.sort("duration_ns", "stall", descending=[True, False])
    return [
        f"`{stall}` is the first reason in {counted(n, 'launch')}: a warp {_STALLS[stall]}."
        for stall, n, _ in rows.iter_rows()
        if stall in _STALLS
    ]


def of_reached_bound(rows: pl.DataFrame, phase: str = "decode") -> list[str]:
    """Share of the device time that the theory explains, and share of the bound that the steps of a phase reach.

    Parameters
    ----------
    rows : polars.DataFrame
        As :func:`~llmprof.analyze.roofline_join` gives it.
    phase : str
        Phase of the steps.

    Examples
    --------
    >>> of_reached_bound(analyze.roofline_join(trace, "Qwen2.5-1.5B"))[0][:33]
    'Theory knows what **98.8 %** of t'
    """
    cover = coverage_of(rows)
    below = int(cover["below_bound"])
    text = f"Theory knows what **{format_share(cover['explained_share'])}** of the device time does"
    text += (
        ", and no stage is faster than its bound."
        if not below
        else f"; {counted(below, 'row')} {'is' if below == 1 else 'are'} faster than the bound, so the model, its "
        "number format or the device is not what was given."
    )
    own = rows.filter(pl.col("phase") == phase)
    measured = total(own, "measured_ns")
    if not measured:
        return [text, f"There are no {phase} steps whose tokens are known."]
    return [
        text,
        f"The {phase} steps reach **{format_share(total(own, 'bound_ns') / measured)}** of what the device allows.",
    ]


def of_savings(rows: pl.DataFrame, phase: str = "decode") -> list[str]:
    """Reasons of the time above the bound in a phase, the largest first.

    Parameters
    ----------
    rows : polars.DataFrame
        As :func:`~llmprof.analyze.roofline_join` gives it.
    phase : str
        Phase of the steps.

    Examples
    --------
    >>> of_savings(analyze.roofline_join(trace, "Qwen2.5-1.5B"))[0][:35]
    'Most of the gap of a decode step is'
    """
    own = rows.filter(pl.col("phase") == phase)
    why = own.group_by("why").agg(pl.col("gap_us").sum()).filter(pl.col("gap_us") > 0)
    why = why.sort("gap_us", "why", descending=[True, False])
    if not why.height:
        return []
    first = why["why"][0]
    part = number(why["gap_us"][0]) / number(why["gap_us"].sum())
    return [f"Most of the gap of a {phase} step is {first} ({format_share(part)} of it)."]
