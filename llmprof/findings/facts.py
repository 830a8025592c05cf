"""Facts about a run, as far as the trace states them: model, engine, device, batch and the time
of a step.
"""

from __future__ import annotations

from contextlib import suppress
from statistics import median
from typing import Final

import polars as pl

from llmprof.analyze.compare.story import engine_of, models_of
from llmprof.analyze.requests.requests import WAITING
from llmprof.analyze.step_times import (
    LONG,
    plain_steps,
    recorded_windows,
    step_windows,
    without_long_first,
)
from llmprof.analyze.transfer import KINDS, apart, instances
from llmprof.errors import LlmprofError
from llmprof.findings.card import RECORDED
from llmprof.findings.scope import Scope, heaviest, scope_of
from llmprof.label.completeness import has_lost
from llmprof.text import PART_WORDS, counted
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

SCHEMA: Final = {"what": pl.String, "value": pl.String, "source": pl.String}

_NAMED_BY: Final = {
    "nsys": "; record layers as NVTX ranges",
    **dict.fromkeys(("torch", None), "; record modules (with_modules=True) or layers"),
}
"""What would name the model, by the tool that wrote the recording."""


def run_facts(trace: Trace, *, recorded: bool = True) -> pl.DataFrame:
    """Model, engine, device, batch, heaviest stage and step time of a run (and where the recorded
    time went), each with its source.
    """
    # The source of what the trace does not state (a null `value`) is the option that would have
    # recorded it.
    rows = [("model", *_model(trace)), ("engine", *_engine(trace)), ("device", *_device(trace))]
    rows += [("batch", *_batch(trace)), ("compute", *_compute(trace))]
    rows += [("step time", *_step_time(trace))]
    rows += [("recorded time", *recorded_time(trace))] if recorded else []
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _model(trace: Trace) -> tuple[str | None, str]:
    layers = _layers(trace)
    if models := models_of(trace):
        return f"{', '.join(models)}{layers}", "names of its modules"
    return (
        f"name unknown{layers}" if layers else None,
        f"the trace names no model{_NAMED_BY.get(trace.capture.tool, '')}",
    )


def _layers(trace: Trace) -> str:
    try:
        layers = trace.events["layer"].drop_nulls()
    except LlmprofError:
        return ""
    return f", {layers.n_unique()} layers" if layers.len() else ""


def _engine(trace: Trace) -> tuple[str | None, str]:
    engine = None
    with suppress(LlmprofError):
        engine = engine_of(trace)
    if engine and len(trace.ranks) > 1:
        with suppress(LlmprofError):  # samples of steps say nothing of instances
            if apart(found := instances(trace)):
                of_kind = {kind: found.filter(kind=kind).height for kind in KINDS}
                counts = [counted(count, f"{kind} instance") for kind, count in of_kind.items()]
                engine = f"{engine} ({' and '.join(counts)})"
    return engine, "labels of its steps, or its kernels" if engine else "no label of a known engine"


def _device(trace: Trace) -> tuple[str | None, str]:
    device, ranks = trace.meta.get("device"), [rank for rank in trace.ranks if rank >= 0]
    count = f"{len(ranks)} x " if len(ranks) > 1 else ""
    if not device and trace.capture.on_host:
        return None, "nothing ran on a device; operators of the host stand in"
    if device:
        return f"{count}{device}", "the profiler"
    return (
        f"{len(ranks)} devices, name unknown" if len(ranks) > 1 else None
    ), "the recording does not name it"


def _batch(trace: Trace) -> tuple[str | None, str]:
    try:
        chosen = scope_of(trace).steps
    except LlmprofError:
        chosen = None
    if chosen is None:
        return None, "no steps were found"
    requests = chosen["decode_requests"].drop_nulls().mode().sort()
    tokens = chosen["prefill_tokens"].drop_nulls().max()
    parts = []
    if requests.len() and requests[0]:
        parts.append(f"{int(requests[0])} requests in decode")
    if isinstance(tokens, int) and tokens:
        parts.append(f"up to {tokens:,} tokens of prompts")
    return ", ".join(parts) or None, "labels of its steps" if parts else "no label says it"


def _compute(trace: Trace) -> tuple[str | None, str]:
    try:
        times = scope_of(trace).times.filter(kind="compute")
    except LlmprofError:
        return None, "nothing was recorded on a device"
    stage, share = heaviest(times, "part", "ns")
    if stage in (None, "other"):
        return None, "no kernel of a known kind"
    return f"{stage} is {format_share(share)} of compute", "names of kernels and their layers"


def _step_time(trace: Trace) -> tuple[str | None, str]:
    try:
        scope = scope_of(trace)
    except LlmprofError:
        return None, "nothing was recorded on a device"
    if not scope.span_ns:
        if has_lost(trace):
            return None, "no step was recorded whole"
        return None, "nothing but captures of graphs was recorded"
    mean = format_ns(scope.span_ns / scope.parts)
    if scope.steps is None:
        return None, f"no steps were found; {mean} were recorded"
    count = scope.windows["step"].n_unique()
    words = f"{count} {scope.words}" if count > 1 else f"1 {scope.words.removesuffix('s')}"
    words += f" on {counted(scope.windows['rank'].n_unique(), 'rank')}{scope.spread}"
    words = f"mean of {words}, from step to step" if count > 1 else f"{words}, to its end"
    if (plain := plain_steps(trace)) and set(scope.windows["phase"]) == {"decode"}:
        words += f"; without the profiler {format_ns(median(plain))}"
    return mean, words


def recorded_time(trace: Trace) -> tuple[str | None, str]:
    """Time of the devices by the phase of their steps, and what is outside of steps."""
    try:
        windows, recorded = step_windows(trace), recorded_windows(trace)
    except LlmprofError:
        return None, "nothing was recorded on a device"
    whole = int(recorded["dur_ns"].sum())
    if not whole:
        return None, "nothing but captures of graphs was recorded"
    usual = windows
    if (
        windows["phase"].n_unique() == 1 or "other" in windows["phase"]
    ):  # as in the scope of the findings
        usual = without_long_first(windows)
    lanes = usual.group_by("phase", "rank", "device").agg(pl.sum("dur_ns"), count=pl.len())
    phases = lanes.group_by("phase").agg(ns=pl.sum("dur_ns"), count=pl.max("count"))
    rows = phases.sort("ns", "phase", descending=[True, False]).rows()
    parts = [
        f"{'steps' if phase == 'other' else phase} {format_share(ns / whole)}"
        f" ({counted(count, 'step')})"
        for phase, ns, count in rows
    ]
    if first := windows["step"].n_unique() - usual["step"].n_unique():
        ns = int(windows["dur_ns"].sum()) - int(usual["dur_ns"].sum())
        why = (
            f"{format_ns(ns / recorded.height)}; each longer than {LONG} median steps, and no part"
            " of a mean"
        )
        parts.append(f"the first {counted(first, 'step')} {format_share(ns / whole)} ({why})")
    outside = whole - int(windows["dur_ns"].sum())
    parts += (
        [f"outside of steps {format_share(outside / whole)}"]
        if outside >= 0.001 * whole and parts
        else []
    )
    mean = format_ns(whole / recorded.height)
    of = f", mean of {recorded.height} devices" if recorded.height > 1 else ""
    return (
        f"{mean}, of which {', '.join(parts)}" if parts else mean,
        f"from the first to the last event{of}",
    )


STEP_PARTS: Final = {
    **dict(list(PART_WORDS.items())[:5]),
    "late": f"idle, {PART_WORDS['host_bound']}",
    "idle": "idle, other causes",
}
"""Parts of a step in a picture, in the order of its bars, in words."""


def mean_step_parts(scope: Scope) -> pl.DataFrame:
    """What a mean step of each rank is made of:

    ``rank, part, ns``, parts of :data:`STEP_PARTS`; they add up.
    """
    kind = pl.col("kind")
    idle, late = kind == "idle", pl.col("part").is_in(["host_bound", "launch"])
    part = (
        pl.when(idle & late)
        .then(pl.lit("late"))
        .when(kind == "communication")
        .then("part")
        .otherwise("kind")
    )
    ranks = scope.windows.with_row_index("window").select(
        "window", "rank", parts=pl.len().over("rank")
    )
    rows = scope.times.join(ranks, on="window").group_by(
        "rank", part=part.cast(pl.Enum(list(STEP_PARTS)))
    )
    return rows.agg(ns=pl.sum("ns") / pl.first("parts")).sort("rank", "part")


_REQUEST_PARTS: Final = {
    "waiting for their first step": WAITING,
    "prefill": ("prefill_ns", "prefill_other_ns"),
    "decode": ("decode_ns", "decode_prefill_ns"),
    "the rest (left out of steps, between steps, delivery)": (
        "left_out_ns",
        "between_ns",
        "delivery_ns",
    ),
}
"""Parts of the time of requests by phase, with the columns that they sum."""


def time_of_requests(requests: pl.DataFrame | None) -> str | None:
    """Time of requests, from arrival to the last token, by phase; None without requests."""
    if requests is None or not requests.height or not (whole := int(requests["e2e_ns"].sum())):
        return None
    sums = {
        name: int(requests.select(pl.sum_horizontal(of).sum()).item())
        for name, of in _REQUEST_PARTS.items()
    }
    parts = [f"{name} {format_share(ns / whole)}" for name, ns in sums.items() if ns > 0]
    return f"{format_ns(whole / requests.height)}, of which {', '.join(parts)}"


def where_the_time_went(trace: Trace, requests: pl.DataFrame | None = None) -> list[str]:
    """The recorded time by phase, and that of the requests, each as a sentence; what is not
    known is left out.
    """
    went, what = recorded_time(trace)
    of_requests = time_of_requests(requests)
    lines = (
        [f"{RECORDED}, {what}: {went}."] if went and ", of which " in went else []
    )  # else a fact says it
    if requests is not None and of_requests:
        count = counted(requests.height, "request")
        lines.append(
            f"Time of requests, from arrival to the last token, mean of {count}: {of_requests}."
        )
    return lines


def facts_in_words(facts: pl.DataFrame) -> list[tuple[str, str]]:
    """Names and values for a page; unknown values give the reason."""
    said: list[tuple[str, str]] = []
    for what, value, source in facts.iter_rows():
        known = f"{value} ({source})" if what == "step time" else value
        said.append((what[:1].upper() + what[1:], f"unknown: {source}" if value is None else known))
    return said
