"""Activity of the threads of the host (synchronising calls, innermost operators), its pauses,
delays of launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.operator_times import refuse_samples
from llmprof.label.activity import LAUNCHES_GRAPH
from llmprof.label.groups import row_numbers
from llmprof.label.intervals import (
    GroupLine,
    gaps,
    lay,
    length_within,
    merge,
    merge_line,
    place_on_line,
)
from llmprof.label.nesting import holds_any, innermost, pieces_within
from llmprof.names.matching import by_distinct, remembered
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

SYNCHRONISING = (
    # cudaStreamSynchronize, hipEventSynchronize, cuCtxSynchronize, aclrtSynchronizeDevice
    r"(?i)synchroni[sz]e"
    r"|^(?:cuda|hip|cu|mu|musa|(?:\w+@)?aclrt)memcpy"  # the Async forms are excluded below
    r"|^(?:cuda|hip)free(?:_v\d+)?$"  # waits for the device before it frees memory
)
"""Names of host calls that return only when work on the device is done (and the Async copies,
which do not).
"""

HOLDS_THE_DEVICE = (
    r"(?i)^(?:cuda|hip|cu|mu|musa|(?:\w+@)?aclrt)(?:"
    r"malloc|memalloc|hostalloc|memhostalloc|hostregister|memhostregister"
    r"|free|memfree"
    r"|graphinstantiate|graphexecdestroy|graphexecupdate|graphupload"
    r"|moduleload|libraryload|moduleunload|ctxcreate|ctxdestroy|devicereset|ipcopenmemhandle|ipcclosememhandle)"
)
"""Names of host calls during which a device may start nothing new: they allocate memory, load
code or build graphs.
"""

WAITS_FOR_EVENT = r"(?i)streamwaitevent"
"""Names of host calls that make a stream wait for an event of another one."""


def call_kinds(calls: pl.Series) -> pl.DataFrame:
    """Effect of host calls on the device, by their names."""
    return by_distinct(calls, _call_kinds).to_frame("kinds").unnest("kinds")


@remembered
def _call_kinds(distinct: tuple[str, ...]) -> pl.Series:
    """Effect of each call on the device."""
    name = pl.col("name")
    kinds = pl.struct(
        is_synchronising(name).alias("synchronises"),
        holds=holds_the_device(name),
        waits=name.str.contains(WAITS_FOR_EVENT),
        replays=name.str.contains(LAUNCHES_GRAPH),
    )
    return pl.DataFrame({"name": pl.Series(distinct, dtype=pl.String)}).select(kinds).to_series()


def is_synchronising(name: pl.Expr) -> pl.Expr:
    """Whether a host call of this name returns only when work on the device is done."""
    return name.str.contains(SYNCHRONISING) & ~name.str.contains("(?i)memcpy.*async")


def holds_the_device(name: pl.Expr) -> pl.Expr:
    """Whether work on the device may stop while a host call of this name runs: not for one that
    only waits.
    """
    waits_only = name.str.contains("(?i)synchroni[sz]e")
    return (is_synchronising(name) & ~waits_only) | (
        name.str.contains(HOLDS_THE_DEVICE) & ~name.str.contains("(?i)async")
    )


@per_trace
def host_spans(trace: Trace) -> pl.DataFrame:
    """All recorded activity of the host's threads."""
    columns = ("rank", "thread", "start_ns", "dur_ns", "name")
    parts = []
    if trace.has("runtime"):
        parts.append(trace.runtime.select(*columns, kind=pl.lit("call")))
    if trace.has("ops"):
        parts.append(trace.ops.select(*columns, "kind"))
    if trace.has("markers"):
        parts.append(
            trace.markers.filter(~pl.col("on_device")).select(*columns, kind=pl.lit("range"))
        )
    if not parts:
        return pl.DataFrame(schema=HOST_SPANS)
    spans = pl.concat(parts, how="vertical_relaxed", rechunk=True)
    return spans.with_columns(pl.col("thread").fill_null(-1))


HOST_SPANS = {
    "rank": pl.Int32(),
    **dict.fromkeys(("thread", "start_ns", "dur_ns"), pl.Int64()),
    **dict.fromkeys(("name", "kind"), pl.String()),
}


def innermost_within(
    windows: pl.DataFrame, spans: pl.DataFrame, by: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Pieces of windows with the innermost span at each moment:

    ``window, span, start_ns, dur_ns``, and the spans with the ``parent`` of each.
    """
    # `window`, `span` and `parent` are row numbers; spans that outlast their call are work
    # elsewhere and left out.
    spans = _meeting(spans, windows, by)
    pieces, parent = pieces_within(windows, spans, by)
    return pieces, spans.with_columns(parent)


def longest_spans(windows: pl.DataFrame, pieces: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Span in which the thread of each window spent most time, by the pieces of the windows; at
    each moment only the innermost span counts.
    """
    if not pieces.height:
        return windows.with_columns(
            host_name=pl.lit(None, pl.String),
            host_kind=pl.lit(None, pl.String),
            host_share=pl.lit(None, pl.Float64),
        )
    of_window, span, length = (pieces[column].to_numpy() for column in ("window", "span", "dur_ns"))
    code = pl.col("name", "kind").cast(pl.Categorical).to_physical().cast(pl.Int64)
    coded = spans.select(code).select(_key=pl.col("name") * 2**32 + pl.col("kind"))
    distinct = (
        spans[["name", "kind"]]
        .with_columns(coded["_key"])
        .filter(pl.col("_key").is_first_distinct())
    )
    activities = distinct.cast({"name": pl.String, "kind": pl.String}).sort("name", "kind")
    activities = activities.with_row_index("_activity")
    activity_of = coded.join(activities, on="_key", how="left", maintain_order="left")["_activity"]
    longest, activity, inside = _longest(of_window, activity_of.to_numpy()[span], length)
    share = np.full(windows.height, np.nan)
    chosen = np.full(windows.height, -1)
    share[longest], chosen[longest] = inside, activity
    whole = windows["dur_ns"].to_numpy()
    share = np.divide(share, whole, out=share, where=whole > 0)
    most = activities[row_numbers(chosen)]
    return windows.hstack(
        [
            most["name"].alias("host_name"),
            most["kind"].alias("host_kind"),
            pl.Series("host_share", share).set(pl.Series((chosen < 0) | (whole <= 0)), None),
        ]
    )


def _longest(
    window: np.ndarray, activity: np.ndarray, length: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each window with any time: its number, its longest activity (of equals the first) and
    that time.
    """
    if not len(window):
        return window, activity, length
    key = window.astype(np.int64) * (int(activity.max()) + 1) + activity
    order = np.argsort(key)
    key, length = key[order], length[order]
    begins = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    window, activity, length = (
        window[order[begins]],
        activity[order[begins]],
        np.add.reduceat(length, begins),
    )
    begins = np.flatnonzero(np.append(True, window[1:] != window[:-1]))
    most = np.repeat(np.maximum.reduceat(length, begins), np.diff(np.append(begins, len(window))))
    found = np.flatnonzero(length == most)
    first = found[np.append(True, window[found[1:]] != window[found[:-1]])]
    return window[first], activity[first], length[first]


def _meeting(spans: pl.DataFrame, windows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Spans that overlap a window of their group, without those that outlast their call: work
    elsewhere.
    """
    every = spans
    first, last = windows.select(pl.min("start_ns"), last=END.max()).fill_null(0).row(0)
    near = spans.select(meets=(pl.col("start_ns") < last) & (first < END)).to_series()
    if 2 * int(near.sum()) < spans.height:
        spans = spans.filter(near)
    meets = _meets(spans, lay(windows.select(*by, "start_ns", "dur_ns"), by), by)
    is_range = spans["kind"] == "range"
    if not (meets & is_range).any():
        return spans.filter(meets)
    ranges = spans.filter(meets & is_range).with_columns(_before=pl.col("start_ns") - 1)
    begins = ranges.select(*by, start_ns="_before", dur_ns=pl.lit(1, dtype=pl.Int64))
    holds = pl.Series(holds_any(every, ranges["_before"]))
    calls = every.filter(holds & (every["kind"] != "range"))
    calls = calls.filter(_meets(calls, lay(begins, by), by))
    ends = calls.select(END).to_series()
    within = innermost(ranges, calls, by, at="_before", name="_call")[
        ["_call", "start_ns", "dur_ns"]
    ]
    end, end_of_call = END, pl.lit(ends).gather(pl.col("_call"))
    outlasts = within.select(
        ((end_of_call > pl.col("start_ns")) & (end_of_call < end)).fill_null(False)
    )
    elsewhere = meets.arg_true().filter(is_range.filter(meets)).filter(outlasts.to_series())
    return spans.filter(meets.scatter(elsewhere, values=False))


def _meets(spans: pl.DataFrame, line: GroupLine, by: Sequence[str]) -> pl.Series:
    """Whether each span shares some time with an interval of its group on the line."""
    union = merge_line(line)
    if union.is_empty():
        return pl.repeat(value=False, n=spans.height, eager=True)
    low, high = pl.col("first_ns") + pl.col("_shift"), pl.col("last_ns") + pl.col("_shift")
    placed = place_on_line(spans, line.groups.with_columns(_low=low, _high=high), by)
    begins, ends = union["_start"].to_numpy(), union["_end"].to_numpy()
    after = np.searchsorted(
        ends, placed.start, side="right"
    )  # the first interval that ends after the start
    meets = (after < union.height) & (begins[np.minimum(after, union.height - 1)] < placed.end)
    return pl.Series(meets & placed.known)


@Analysis(
    question="How far is the host ahead of the device?",
    help="from the host's launch call to the start of the kernel",
    view="launch-delay",
    recorded="kernels and runtime calls",
)
def launch_delay(trace: Trace) -> pl.DataFrame:
    """Delay from the start of the host's launch call to the start of the kernel, per rank and step.

    A delay of a few us means that the device was waiting for the host. A long delay means that the
    host is ahead and work is queued. For all kernels of a CUDA graph the delay starts at the launch
    of the graph.

    Parameters
    ----------
    trace : Trace
        A trace with kernels and runtime calls.

    Returns
    -------
    polars.DataFrame
        ``rank, step`` (null for kernels outside steps), ``kernels``, ``launched`` (kernels whose
        launch is in the capture), ``launched_share`` (of the kernels), ``launches`` (distinct
        launch calls), ``host_dur_ns`` (sum of their durations), and of the delays ``median_ns,
        p95_ns, max_ns, min_ns`` (ns). Columns about launches are null if no kernel of the step has
        a launch. A negative delay means that the clocks of host and device disagree.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels or runtime calls.

    Examples
    --------
    >>> frame = analyze.launch_delay(trace)
    """
    trace.table("kernels")
    trace.table("runtime")
    return launch_delay_of(trace.events)


_DELAYS = (
    "rank",
    "step",
    "kernels",
    "launched",
    "launched_share",
    "launches",
    "host_dur_ns",
    "median_ns",
    "p95_ns",
    "max_ns",
    "min_ns",
)


def launch_delay_of(events: pl.DataFrame) -> pl.DataFrame:
    """The analysis of :func:`launch_delay` on a frame of device events."""
    delay = pl.col("start_ns") - pl.col("launch_start_ns")
    launched = pl.col("launch_start_ns").count()
    key = ["rank", "step", "launch_thread", "launch_start_ns", "launch_end_ns"]
    kernels = events.select(*key, "start_ns").filter(events["source"] == "kernel")
    # kernels of one launch mostly follow each other: only the first of such a run can be the first
    # of its call
    begins = pl.any_horizontal(pl.col(column).ne_missing(pl.col(column).shift(1)) for column in key)
    calls = (
        kernels.lazy().select(key).filter(begins & pl.col("launch_start_ns").is_not_null()).unique()
    )
    call_ns = pl.col("launch_end_ns") - pl.col("launch_start_ns")
    by_step = (
        calls.group_by("rank", "step").agg(launches=pl.len(), host_dur_ns=call_ns.sum()).collect()
    )
    return (
        kernels.group_by("rank", "step")
        .agg(
            kernels=pl.len(),
            launched=launched,
            launched_share=launched / pl.len(),
            median_ns=delay.median(),
            p95_ns=delay.quantile(0.95, interpolation="linear"),
            max_ns=delay.max(),
            min_ns=delay.min(),
        )
        .join(by_step, on=["rank", "step"], how="left", nulls_equal=True)
        .select(*_DELAYS)
        .sort("rank", "step", nulls_last=True)
    )


PAUSES = {
    "garbage_collection": (
        r"(?i)^python gc\b|\bgarbage.?collect|^gc[.:_ ]|\bgc\.collect\b|: gc_?collect|^gc$"
    ),
    "module_loading": (
        r"(?i)^(?:cu|cuda|hip|mu|musa)(?:module|library)(?:load|unload|getfunction|getkernel)"
        r"|^(?:\w+@)?aclrtbinaryload"
    ),
    "page_fault": r"(?i)page.?fault",
}
"""Names of host calls, operators, functions and ranges of each kind of pause."""


@Analysis(
    question="Did garbage collection, loading of code or page faults keep the device waiting?",
    help="recorded pauses of the host, and how long the device was idle meanwhile",
    view="pauses",
    recorded="device activity, and runtime calls, operators or markers",
)
def host_pauses(trace: Trace, *, by: Literal["kind", "event"] = "kind") -> pl.DataFrame:
    """Garbage collection, loading of device code and page faults on the host, and the idle time of
    the device in them.

    Only what the recording names is found, so no row is no proof. PyTorch names garbage collections
    with ``with_stack=True`` and ``_ExperimentalConfig(record_python_gc_info=True)`` together,
    Nsight Systems where the program sets ranges around them, and page faults of managed memory with
    ``--cuda-um-cpu-page-faults=true``. CUDA loads code when a kernel first runs: record the first
    steps to see it.

    Parameters
    ----------
    trace : Trace
        A trace with device activity, and runtime calls, operators or markers.
    by : {"kind", "event"}
        A row for each kind of pause of a rank, or for each pause.

    Returns
    -------
    polars.DataFrame
        ``rank, kind`` (garbage_collection, module_loading, page_fault), then per kind ``count``,
        ``host_ns`` (of which pauses inside each other count once, summed over threads),
        ``max_ns``, ``idle_ns`` (time in them in which no device of the rank ran anything,
        between its first and last event) and ``idle_share`` (of ``host_ns``); per event ``thread,
        start_ns, dur_ns, idle_ns, name``. Idle time in a pause is not yet caused by it: ``idle``
        names as ``host_name`` what the launching thread did in a gap. Times in ns.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.

    Examples
    --------
    >>> analyze.host_pauses(trace).columns[:3]
    ['rank', 'kind', 'count']
    """
    refuse_samples(trace, "when the device was idle")
    idle = gaps(trace.events, ["rank"])
    spans = host_spans(trace)
    named = [
        spans.filter(pl.col("name").str.contains(pattern)).with_columns(kind=pl.lit(k))
        for k, pattern in PAUSES.items()
    ]
    found = pl.concat(named)
    events = length_within(found, idle, ["rank"], name="idle_ns")
    if by == "event":
        events = events[["rank", "kind", "thread", "start_ns", "dur_ns", "idle_ns", "name"]]
        return events.sort("rank", "dur_ns", "start_ns", descending=[False, True, False])
    key = ["rank", "kind"]
    whole = (
        merge(found.filter(pl.col("dur_ns") > 0), [*key, "thread"])
        .group_by(key)
        .agg(host_ns=pl.sum("dur_ns"))
    )
    waited = (
        length_within(merge(found, key), idle, ["rank"], name="idle_ns")
        .group_by(key)
        .agg(pl.sum("idle_ns"))
    )
    return (
        found.group_by(key)
        .agg(count=pl.len(), max_ns=pl.max("dur_ns"))
        .join(whole, on=key, how="left")
        .join(waited, on=key, how="left")
        .with_columns(pl.col("host_ns", "idle_ns").fill_null(0))
        .select(
            *key,
            "count",
            "host_ns",
            "max_ns",
            "idle_ns",
            idle_share=pl.col("idle_ns") / pl.col("host_ns"),
        )
        .with_columns(pl.col("idle_share").fill_nan(None))
        .sort("rank", "host_ns", "kind", descending=[False, True, False])
    )
