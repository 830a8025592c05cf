"""Steps of the engine: one forward pass over one batch, on every rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import polars as pl

from llmprof.label.activity import activity, coded_operators, launched_events
from llmprof.label.groups import group_values, last_before
from llmprof.label.steps import labels as steps_labels
from llmprof.label.steps.labels import NO_STEPS, infer
from llmprof.label.steps.stored import UNLABELLED, add_batches, tokens_of
from llmprof.names.matching import contains, first_true
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

COLUMNS = [
    *(
        "rank",
        "step",
        "phase",
        "start_ns",
        "dur_ns",
        "host_start_ns",
        "host_dur_ns",
        "prefill_requests",
    ),
    *("prefill_tokens", "decode_requests", "decode_tokens", "source", "name"),
]


@per_trace
def steps_of(trace: Trace) -> pl.DataFrame:
    """Steps of every rank: see :func:`llmprof.analyze.steps`."""
    if trace._labels is not None:
        labelled: pl.DataFrame = trace._labels.steps
        return labelled
    bounds = _bounds(trace)
    spans = (
        launched_events(trace)[["rank", "start_ns", "dur_ns"]]
        .hstack(step_of_events(trace)[["step"]])
        .drop_nulls("step")
        .group_by("rank", "step")
        .agg(
            start_ns=pl.min("start_ns"),
            dur_ns=END.max() - pl.min("start_ns"),
        )
    )
    rows = (
        bounds.drop("start_ns")
        .join(spans, on=["rank", "step"], how="left")
        .select(COLUMNS)
        .sort("rank", "step")
    )
    if not rows["source"].is_in(UNLABELLED).any():
        return rows
    return add_batches(rows, tokens_of(step_of_events(trace), ["rank", "step"], trace))


UNTIL_NEXT: Final = pl.coalesce(
    pl.col("start_ns").shift(-1).over("rank", order_by="start_ns"),
    END,
)
"""End of a step: the start of the next one of its rank, of the last one its last event."""


@per_trace
def step_of_events(trace: Trace) -> pl.DataFrame:
    """Step of each event of :func:`~llmprof.label.activity.activity`."""
    if trace._labels is not None:
        labelled: pl.DataFrame = trace._labels.events
        return labelled.select("event", "rank", "step", step_by=pl.lit(None, pl.String))
    events = launched_events(trace)[["event", "rank", "stream", "start_ns", "launch_start_ns"]]
    bounds = _bounds(trace)
    until = pl.when(pl.col("source").is_in(["capture", "optimizer"])).then(
        pl.col("host_start_ns") + pl.col("host_dur_ns")
    )
    on_device = pl.col("start_ns").is_not_null()
    end = (pl.col("host_start_ns") + pl.col("host_dur_ns")).shift(1).over("rank")
    after_empty = (pl.col("phase").shift(1).over("rank") == "empty") & (
        end <= pl.col("host_start_ns")
    )
    by_launch = bounds.filter(~on_device).select(
        "rank",
        "step",
        launch_start_ns=pl.when(after_empty).then(end).otherwise("host_start_ns"),
        until=until,
    )
    by_time = bounds.filter(on_device)[["rank", "step", "start_ns"]]
    launched = _last_step_before(events, by_launch, "launch_start_ns")
    launched = _drop_padding(trace, events, bounds.filter(~on_device), launched)
    started = _last_step_before(events, by_time, "start_ns")
    # events of a stream do not overlap: an event without a launch follows the event before it
    found = {"time": "started", "launch": "launched", "device": "follows"}
    follows = pl.col("launched").forward_fill().over("rank", "stream")
    return (
        events.with_columns(launched=launched, started=started)
        .with_columns(follows=pl.when(pl.col("launch_start_ns").is_null()).then(follows))
        .select(
            "event",
            "rank",
            step=pl.coalesce(*found.values()),
            step_by=first_true({by: pl.col(step).is_not_null() for by, step in found.items()}),
        )
    )


def _last_step_before(events: pl.DataFrame, bounds: pl.DataFrame, at: str) -> pl.Series:
    """Step that begins last before each event, at the time of the column ``at``; null if it has
    ended by then.
    """
    if not bounds.height:
        return pl.Series("step", dtype=pl.Int32).extend_constant(None, events.height)
    row = last_before(events, bounds, ["rank"], at=at)
    if "until" in bounds.columns:
        over = (events[at] >= bounds["until"].gather(row)).fill_null(False)
        row = row.set(over, None)
    return bounds["step"].gather(row)


_MIN_PRODUCTS = 8
"""Least number of matrix products in a pass of a model: two layers have as many, a head alone
one or two.
"""


def _drop_padding(
    trace: Trace, events: pl.DataFrame, bounds: pl.DataFrame, launched: pl.Series
) -> pl.Series:
    """Remove the step from passes of padding, which a data-parallel rank without requests runs
    after an empty step.
    """
    end = pl.col("host_start_ns") + pl.col("host_dur_ns")
    gaps = bounds.sort("rank", "host_start_ns").select(
        "rank", "phase", launch_start_ns=end, next=pl.col("host_start_ns").shift(-1).over("rank")
    )
    gaps = gaps.filter((pl.col("phase") == "empty") & pl.col("launch_start_ns").is_not_null())
    if not gaps.height:
        return launched
    gap = last_before(events, gaps, ["rank"], at="launch_start_ns")
    inside = events["launch_start_ns"] < gaps["next"].fill_null((1 << 63) - 1).gather(gap)
    gap = gap.set(~inside.fill_null(False), None)
    some = gap.is_not_null()
    if some.sum() < _MIN_PRODUCTS:  # then their categories do not matter
        return launched
    products = gap.filter(some & activity(trace)["category"].is_in(["gemm", "moe_experts"]))
    padded = (
        products.value_counts(name="products")
        .filter(pl.col("products") >= _MIN_PRODUCTS)
        .to_series()
    )
    return launched.set(some & gap.is_in(padded.implode()), None) if padded.len() else launched


def device_events_with_steps(trace: Trace) -> pl.DataFrame:
    """:func:`~llmprof.label.activity.launched_events` with ``step``, null where no step is
    known.
    """
    return launched_events(trace).hstack(step_of_events(trace)[["step"]])


@per_trace
def events_with_steps(trace: Trace) -> pl.DataFrame:
    """Device activity with the step of each event and its phase."""
    events = activity(trace).hstack(step_of_events(trace)[["step"]])
    phases = steps_of(trace)[["rank", "step", "phase"]]
    (phase,) = group_values(events, phases, ["rank", "step"])  # a step is never null there
    return events.with_columns(phase)


@per_trace
def _bounds(trace: Trace) -> pl.DataFrame:
    """Labels of every rank as steps; inferred ones where a rank has no label."""
    launched = launched_events(trace).drop_nulls("launch_start_ns")["rank"].unique()
    labelled = _labelled_steps(_ranges(trace, steps_labels.any_label()), launched)
    silent = [
        rank
        for rank in launched_events(trace)["rank"].unique().sort()
        if rank not in labelled["rank"]
    ]
    frames = [labelled] if labelled.height or not silent else []
    trained = _optimizer_steps(trace, silent)
    frames += [trained] if trained.height else []
    inferred = [infer(trace, rank) for rank in silent if rank not in trained["rank"]]
    frames += inferred
    known = {rank for frame in (trained, *inferred) for rank in frame["rank"].unique()}
    frames += [_unknown_labels(trace, [rank for rank in silent if rank not in known])]
    return pl.concat(frames, how="diagonal_relaxed") if frames else labelled


def _ranges(trace: Trace, pattern: str, *, only_markers: bool = False) -> pl.DataFrame:
    """Ranges with such names; PyTorch wrote its own among the operators until 2021."""
    columns = ["rank", "start_ns", "dur_ns", "name"]
    found = []
    if trace.has("markers"):
        found.append(trace.markers.filter(pl.col("name").str.contains(pattern)))
    if trace.has("ops") and not only_markers:
        noted = contains(coded_operators(trace), r"^(?:ProfilerStep#|Optimizer\.step)")
        rows = trace.ops.select(columns).filter(noted).filter(pl.col("name").str.contains(pattern))
        found.append(rows.with_columns(on_device=pl.lit(False), stream=pl.lit(None, pl.Int64)))
    return pl.concat(found, how="diagonal_relaxed") if found else pl.DataFrame()


def _optimizer_steps(trace: Trace, ranks: list[int]) -> pl.DataFrame:
    """Steps of training, each from the end of the optimizer's step before it to the end of its
    own.
    """
    ends = _ranges(trace, steps_labels.OPTIMIZER_STEP) if ranks else NO_STEPS
    if not ends.height:
        return NO_STEPS
    ends = ends.filter(~pl.col("on_device") & pl.col("rank").is_in(ranks)).sort("rank", "start_ns")
    last = pl.last("name").over("rank")  # with several optimizers, the last of an iteration ends it
    ends = ends.filter(name=last).filter(pl.len().over("rank") > 1)
    if not ends.height:
        return NO_STEPS
    begun = (
        activity(trace)
        .group_by("rank")
        .agg(first=pl.min_horizontal(pl.min("launch_start_ns", "start_ns")))
    )
    start = pl.coalesce(END.shift(1).over("rank"), "first")
    return _without_phase(ends.join(begun, on="rank"), start, END - start, "optimizer")


def _without_phase(
    ranges: pl.DataFrame, start: pl.Expr, length: pl.Expr, source: str
) -> pl.DataFrame:
    """Steps of which nothing but their time on the host is known, one a range."""
    nothing = {name: pl.lit(None, dtype) for name, dtype in NO_STEPS.schema.items()}
    own = {
        "rank": pl.col("rank"),
        "step": pl.int_range(pl.len(), dtype=pl.Int32).over("rank"),
        "phase": pl.lit("other"),
        "host_start_ns": start,
        "host_dur_ns": length,
        "source": pl.lit(source),
        "name": pl.col("name"),
    }
    return ranges.select(**(nothing | own)).cast(NO_STEPS.schema)


def _unknown_labels(trace: Trace, ranks: list[int]) -> pl.DataFrame:
    """Steps without a phase, by the ranges that look like labels and take most time, of ranks of
    which nothing else tells them.
    """
    found = _ranges(trace, steps_labels.UNKNOWN, only_markers=True) if ranks else NO_STEPS
    if not found.height:
        return NO_STEPS
    form = ["rank", "form"]
    found = found.filter(~pl.col("on_device") & pl.col("rank").is_in(ranks)).with_columns(
        form=pl.col("name").str.replace_all(r"\d+", "N")
    )
    often = found.filter(pl.len().over(form) >= _FEWEST_LABELS)
    sums = often.group_by(form).agg(pl.sum("dur_ns"))
    sums = sums.sort("dur_ns", "form", descending=[True, False])
    most = sums.unique("rank", keep="first", maintain_order=True)
    found = found.join(most.select(form), on=form).sort("rank", "start_ns")
    return _without_phase(found, pl.col("start_ns"), pl.col("dur_ns"), steps_labels.UNKNOWN_LABEL)


_FEWEST_LABELS: Final = 3
"""As few ranges of one form may be labels of steps."""

_LEAST_OF_PROGRAM: Final = 0.05


def _labelled_steps(labels: pl.DataFrame, launched: pl.Series) -> pl.DataFrame:
    """Steps of the ranks with labels: those on the host for ranks whose work on a device has
    launching calls.
    """
    if not labels.height:
        return NO_STEPS
    host, device = labels.filter(~pl.col("on_device")), labels.filter("on_device")
    served = host.filter(pl.col("rank").is_in(launched.implode()))["rank"].unique()
    device = device.filter(~pl.col("rank").is_in(served.implode()))
    lane = [name for name in ("rank", "device", "stream") if name in device.columns]
    streams = (
        device.group_by(lane)
        .len()
        .sort("len", *lane[1:], descending=[True, *[False] * (len(lane) - 1)])
    )
    device = device.join(
        streams.unique("rank", keep="first", maintain_order=True),
        on=lane,
        how="semi",
        nulls_equal=True,
    )
    host = host.filter(~pl.col("rank").is_in(device["rank"].unique().implode()))
    labels = steps_labels.parse_labels(pl.concat([host, device]))
    order = pl.col("source").replace_strict(
        {s: n for n, s in enumerate(("own", *steps_labels.SOURCES))}, return_dtype=pl.Int8
    )
    is_capture = pl.col("source") == "capture"
    best = order.filter(~is_capture).min().over("rank")
    # a build of SGLang also writes labels in vLLM's form, which say more
    both = (pl.col("source") == "vllm") & (pl.col("source") == "sglang").any().over("rank")
    labels = labels.with_columns(
        _best=order == best, source=pl.when(both).then(pl.lit("sglang")).otherwise("source")
    )
    labels = labels.filter(is_capture | pl.col("_best")).sort(
        "rank", "start_ns", maintain_order=True
    )
    # a program of XLA is a step if it takes much of the time, unlike conversions around it
    spent = pl.sum("dur_ns")
    small = spent.over("rank", "name") < _LEAST_OF_PROGRAM * spent.over("rank")
    labels = labels.filter((pl.col("source") != "xla") | ~small)
    # of ranges around one pass, such as those of a worker and of its model, the outermost counts
    reach = END.cum_max().shift(1).over("rank")
    inner = (pl.col("source") == "execute_model") & (pl.col("start_ns") < reach).fill_null(
        value=False
    )
    return (
        labels.filter(~inner)
        .with_columns(
            step=pl.int_range(pl.len(), dtype=pl.Int32).over("rank"),
            start_ns=pl.when("on_device").then("start_ns"),
            host_start_ns=pl.when(~pl.col("on_device")).then("start_ns"),
            host_dur_ns=pl.when(~pl.col("on_device")).then("dur_ns"),
        )
        .select([c for c in COLUMNS if c != "dur_ns"])
    )


def host_labels(trace: Trace) -> pl.DataFrame | None:
    """Steps of every rank by labels on the host, and whether they ``worked`` on a device; None
    where there are others.

    Work on a device is looked at for empty steps only.
    """
    if not trace.has("kernels", "runtime", "markers"):
        return None
    labels = _labelled_steps(
        _ranges(trace, steps_labels.any_label(), only_markers=True), trace.runtime["rank"].unique()
    )
    if labels["host_start_ns"].null_count() or set(labels["rank"]) != set(trace.ranks):
        return None
    empty = labels.filter(phase="empty").select(
        "rank",
        "step",
        from_ns="host_start_ns",
        until_ns=pl.col("host_start_ns") + pl.col("host_dur_ns"),
    )
    launched = _launched_events(trace, rows_within(trace.runtime, empty, "start_ns"), empty)
    worked = empty.join(launched, on=["rank", "step"], how="semi")
    return labels.join(worked, on=["rank", "step"], how="left", maintain_order="left").with_columns(
        worked=(pl.col("phase") != "empty") | pl.col("until_ns").is_not_null()
    )


def _launched_events(trace: Trace, calls: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """``rank, step, start_ns, dur_ns`` of work that calls launched, in the last span (of a step)
    that begins before.
    """
    key = ["rank", "correlation"]
    step = spans["step"].gather(
        last_before(calls, spans.rename({"from_ns": "start_ns"}), ["rank"], at="start_ns")
    )
    numbered = calls.select(key).with_columns(step)
    work = [
        trace.table(name).select(*key, "start_ns", "dur_ns")
        for name in ("kernels", "copies")
        if trace.has(name)
    ]
    return pl.concat([frame.join(numbered, on=key) for frame in work]).drop("correlation")


def surround_steps(trace: Trace, labels: pl.DataFrame, numbers: Iterable[int]) -> Trace:
    """Part of a large trace in which some steps are whole: little more than their events and their
    launches.

    ``labels`` are those of :func:`host_labels`.
    """
    begin, far = pl.col("host_start_ns"), 1 << 62
    spans = (
        labels.sort("rank", "step")
        .select(
            "rank",
            "step",
            from_ns=begin.shift(1).over("rank").fill_null(-far),
            until_ns=begin.shift(-2).over("rank").fill_null(far),
        )
        .filter(pl.col("step").is_in([*numbers]))
    )
    key, calls, tables = (
        ["rank", "correlation"],
        trace.runtime.with_row_index("_row"),
        trace.capture.recorded,
    )
    near = rows_within(calls, spans, "start_ns")
    reach = (
        _launched_events(trace, near, spans)
        .group_by("rank", "step")
        .agg(from_ns=pl.min("start_ns"), until_ns=END.max())
    )
    work = [name for name in ("kernels", "copies") if name in tables]
    tables |= {name: rows_within(tables[name], reach, "start_ns") for name in work}
    kept = pl.concat([tables[name].select(key) for name in work])
    tables["runtime"] = (
        pl.concat([near, calls.join(kept, on=key, how="semi")])
        .unique("_row")
        .sort("_row")
        .drop("_row")
    )
    if "ops" in tables:
        tables["ops"] = rows_within(tables["ops"], spans, "start_ns")
    return Trace(tables, trace.meta, trace.coverage)


CUTS: Final = "cuts_ns"
"""Key of the metadata of a part of a trace: ranks and times (ns) before whose steps others were
left out.
"""

MANY_RANKS: Final = 16
"""With at least this number of ranks, one rank is processed at a time, so that its events fit
into memory.
"""


def rows_within(frame: pl.DataFrame, spans: pl.DataFrame, at: str) -> pl.DataFrame:
    """Rows of a table, which are in the order of rank and time, that begin in one of the spans
    of their rank.
    """
    ranks, times = frame["rank"].to_numpy(), frame[at].to_numpy()
    first, stop = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for (rank,), own in spans.group_by("rank"):
        here = ranks.dtype.type(rank)  # of another type, all of the ranks would be converted
        low, high = np.searchsorted(ranks, here), np.searchsorted(ranks, here, side="right")
        for found, bound in ((first, "from_ns"), (stop, "until_ns")):
            found.append(low + np.searchsorted(times[low:high], own[bound].to_numpy()))
    begin, end = np.concatenate(first), np.concatenate(stop)
    order = np.argsort(begin)
    begin, end = begin[order], np.maximum.accumulate(end[order])
    begin[1:] = np.maximum(begin[1:], end[:-1])  # spans may overlap
    count = np.maximum(end - begin, 0)
    rows = np.repeat(begin - np.append(0, count.cumsum()[:-1]), count) + np.arange(count.sum())
    return frame[pl.Series(rows.astype(np.uint32))]
