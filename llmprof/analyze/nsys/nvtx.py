"""Device work by the range of the program that launched it: NVTX projection."""

from __future__ import annotations

from typing import Literal

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.nsys.summaries import statistics, sums_by_name
from llmprof.errors import Columns, NotCapturedError, refuse_unknown
from llmprof.label.intervals import union_length
from llmprof.label.nesting import inside, lookup_column
from llmprof.trace import Trace
from llmprof.trace.schema import END

OVERHEAD = "overhead"
"""Domain of the profiler's own pauses."""

_NO_DOMAIN = ("nvtx", "unnamed domain", "user_annotation", "annotation", "")

LABEL = (
    pl.when(pl.col("domain").is_in(_NO_DOMAIN))
    .then("name")
    .otherwise(pl.format("{}:{}", "domain", "name"))
)
"""Name of a range as nsys prints it: with the domain before it, unless it is the default domain."""


def host_ranges(trace: Trace) -> pl.DataFrame:
    """Ranges of the host, without marks, profiler overhead and projections onto the device."""
    markers = trace.markers.with_row_index("range")
    traced = trace.meta.get("options", {}).get("trace", "").split(",")
    if markers.height and (markers["domain"] == OVERHEAD).all() and "nvtx" not in traced:
        found = "this capture holds no NVTX ranges, only the profiler's own overhead"
        raise NotCapturedError(found, hint="record with nsys profile -t cuda,nvtx", table="markers")
    for name, dtype in (("nsys_style", pl.String), ("nsys_end_thread", pl.Int64)):
        if name not in markers.columns:
            markers = markers.with_columns(pl.lit(None, dtype).alias(name))
    style = pl.col("nsys_style").fill_null("PushPop")
    return (
        markers.with_columns(kind=style, end_thread="nsys_end_thread")
        .filter(~pl.col("on_device") & (pl.col("domain") != OVERHEAD) & (pl.col("kind") != "Mark"))
        .drop("nsys_style", "nsys_end_thread")
    )


_THREAD = ["rank", "process", "thread"]
_SPAN = ["start_ns", "dur_ns"]
_COLUMNS = [
    "range",
    "parent",
    *_THREAD,
    "name",
    "domain",
    "kind",
    "depth",
    *_SPAN,
    "host_start_ns",
    "host_dur_ns",
    "launches",
    "kernels",
    "own_kernels",
    "busy_ns",
]


@Analysis(
    question="What did each range launch?",
    help="nsys: instances of ranges with their device work",
    view="nvtx_kernels",
    recorded="markers, runtime calls and device activity",
)
def nvtx_kernels(trace: Trace, *, by: Literal["range", "event"] = "range") -> pl.DataFrame:
    """Device work of each range of the program.

    A kernel or copy belongs to all ranges around the API call that launched it, on the same thread
    (equal ends included); the shortest of them is its innermost range. A range is projected onto
    the device from the start of the first to the end of the last piece of work that it launched.
    Ranges that ended on another thread than they began on are left out, as in nsys's
    ``nvtx_gpu_proj``.

    Parameters
    ----------
    trace : Trace
        A trace with markers (NVTX ranges, ``record_function``, step labels), runtime calls and
        device activity.
    by : {"range", "event"}
        Kind of row: an instance of a range, or a kernel or copy.

    Returns
    -------
    polars.DataFrame
        By range, for those that launched something: ``range`` (row in the markers), ``parent`` (the
        shortest range that contains it, null for the outermost), ``rank, process, thread, name,
        domain, kind, depth`` (ranges that contain it), ``start_ns, dur_ns`` of its projection,
        ``host_start_ns, host_dur_ns, launches`` (distinct API calls: a CUDA graph is one),
        ``kernels, own_kernels`` (of which it is the innermost range) and ``busy_ns`` (the union of
        its device work), in the order of rank and start on the host. Times in ns.

        By event: the row ``event`` of :attr:`llmprof.Trace.events`, ``rank, start_ns, dur_ns,
        name, source``, and of its innermost range ``range, range_name, domain, depth``, null where
        it was launched outside of all.

    Raises
    ------
    NotCapturedError
        The trace holds no markers, runtime calls or device activity.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> frame = analyze.nsys.nvtx_kernels(trace)
    """
    # a range of a lower row contains one of a higher row, never the other way round
    ranges = host_ranges(trace).filter(pl.col("end_thread").is_null())
    ranges = _nested(ranges.sort("dur_ns", "range", descending=[True, False]).with_row_index("row"))
    calls, events = _launches(trace)
    nested = inside(calls, ranges, _THREAD)
    pairs = pl.DataFrame({"row": nested["outer"], "call": calls["call"].gather(nested["inner"])})
    if calls["call"].is_duplicated().any():
        pairs = pairs.unique(maintain_order=True)
    innermost = pairs.group_by("call").agg(pl.max("row"))
    if by == "event":
        names = ranges.select("row", "range", "domain", "depth", range_name="name")
        rows = events[["event", "call"]].join(innermost.join(names, on="row"), on="call")
        every = trace.events.select("event", "rank", *_SPAN, "name", "source")
        every = every.join(rows, on="event", how="left", maintain_order="left")
        return every.select(
            "event", "rank", *_SPAN, "name", "source", "range", "range_name", "domain", "depth"
        )
    on_host = ranges.rename({"start_ns": "host_start_ns", "dur_ns": "host_dur_ns"})
    whole = on_host.join(_projected(pairs, innermost, events), on="row")
    return whole.sort("rank", "host_start_ns", "depth", "range").select(*_COLUMNS)


def _launches(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """API calls that put work on the device, and that work, both with the number ``call`` of the
    call.
    """
    key = ["rank", "correlation"]
    calls = trace.runtime.select(*_THREAD, *_SPAN, "correlation")
    events = trace.events.select("event", *key, *_SPAN, "name", "source").filter(
        pl.col("correlation").is_not_null()
    )
    numbers = events.select(key).unique(maintain_order=True).with_row_index("call")
    return calls.join(numbers, on=key), events.join(numbers, on=key, maintain_order="left")


def _nested(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges with ``depth`` and ``parent``; of two equal ones the later is inside."""
    pairs = inside(ranges, ranges, _THREAD).filter(pl.col("outer") < pl.col("inner"))
    around = pairs.group_by("inner").agg(depth=pl.len().cast(pl.Int32), parent=pl.max("outer"))
    around = around.with_columns(parent=ranges["range"].gather(around["parent"]))
    return ranges.join(
        around, left_on="row", right_on="inner", how="left", maintain_order="left"
    ).with_columns(pl.col("depth").fill_null(0))


def _projected(pairs: pl.DataFrame, innermost: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Device work of each range; one row for each range that launched something."""
    of_call = events.group_by("call").agg(
        kernels=(pl.col("source") == "kernel").sum(),
        first=pl.min("start_ns"),
        last=END.max(),
    )
    work = of_call.sort("call")  # calls are numbered from 0 without gaps
    looked_up = {name: lookup_column(work, name, "call") for name in ("kernels", "first", "last")}
    first, last = pl.min("first"), pl.max("last")
    projected = (
        pairs.with_columns(**looked_up)
        .group_by("row", maintain_order=True)
        .agg(
            start_ns=first,
            dur_ns=last - first,
            launches=pl.len(),
            kernels=pl.sum("kernels"),
        )
    )
    own = (
        innermost.with_columns(own_kernels=looked_up["kernels"])
        .group_by("row")
        .agg(pl.sum("own_kernels"))
    )
    each = pairs.join(events.select("call", *_SPAN), on="call", maintain_order="left")
    return (
        projected.join(own, on="row", how="left")
        .join(union_length(each, ["row"]), on="row", how="left")
        .with_columns(pl.col("own_kernels").fill_null(0))
    )


def _labelled(trace: Trace, style: str = "") -> pl.DataFrame:
    ranges = host_ranges(trace).with_columns(name=LABEL)
    return ranges.filter(kind=style) if style else ranges


@Analysis(
    question="Which ranges of the program take the time?",
    help="nsys: time of NVTX ranges by name",
    view="nvtx_sum",
    recorded="markers",
)
def nvtx_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of NVTX ranges by name: on the host, without marks, the profiler's own overhead and
    projections onto the device; ranges within ranges count in full.

    Parameters
    ----------
    trace : Trace
        A trace with markers.
    by : str or sequence of str
        Columns of the summed rows to group by first, such as ``("rank",)``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share, total_ns, count, mean_ns, median_ns, min_ns, max_ns, std_ns, kind,
        name``; the largest total first.

    Raises
    ------
    NotCapturedError
        The trace holds no such rows.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> analyze.nsys.nvtx_sum(trace).columns
    ['share', 'total_ns', 'count', 'mean_ns', 'median_ns', 'min_ns', 'max_ns', 'std_ns',
    'kind', 'name']
    """
    return sums_by_name(_labelled(trace), by, keys=("kind", "name"))


@Analysis(
    question="Which pushed ranges take the time?",
    help="nsys: time of push/pop ranges by name",
    view="nvtx_pushpop_sum",
    recorded="markers",
)
def nvtx_pushpop_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of push/pop ranges by name: all ranges of a profiler that knows no styles.

    Parameters
    ----------
    trace : Trace
        A trace with markers.
    by : str or sequence of str
        Columns of the summed rows to group by first, such as ``("rank",)``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share, total_ns, count, mean_ns, median_ns, min_ns, max_ns, std_ns, name``;
        the largest total first.

    Raises
    ------
    NotCapturedError
        The trace holds no such rows.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> analyze.nsys.nvtx_pushpop_sum(trace).columns
    ['share', 'total_ns', 'count', 'mean_ns', 'median_ns', 'min_ns', 'max_ns', 'std_ns', 'name']
    """
    return sums_by_name(_labelled(trace, "PushPop"), by)


@Analysis(
    question="Which started ranges take the time?",
    help="nsys: time of start/end ranges by name",
    view="nvtx_startend_sum",
    recorded="markers",
)
def nvtx_startend_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of start/end ranges by name.

    Parameters
    ----------
    trace : Trace
        A trace with markers.
    by : str or sequence of str
        Columns of the summed rows to group by first, such as ``("rank",)``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share, total_ns, count, mean_ns, median_ns, min_ns, max_ns, std_ns, name``;
        the largest total first.

    Raises
    ------
    NotCapturedError
        The trace holds no such rows.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> analyze.nsys.nvtx_startend_sum(trace).columns
    ['share', 'total_ns', 'count', 'mean_ns', 'median_ns', 'min_ns', 'max_ns', 'std_ns', 'name']
    """
    return sums_by_name(_labelled(trace, "StartEnd"), by)


@Analysis(
    question="Which ranges keep the device busy?",
    help="nsys: NVTX ranges projected onto the device",
    view="nvtx_gpu_proj_sum",
    recorded="markers, runtime calls and device activity",
)
def nvtx_gpu_proj_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Ranges that launched something, projected onto the device as by :func:`nvtx_kernels`, by
    name.

    Parameters
    ----------
    trace : Trace
        A trace with markers, runtime calls and device activity.
    by : str or sequence of str
        Columns of :func:`~llmprof.analyze.nsys.nvtx_kernels` to group by first.

    Returns
    -------
    polars.DataFrame
        ``<by...>, name`` (``domain:name`` in a domain of its own), ``kind, total_ns,
        host_total_ns, count, mean_ns, median_ns, min_ns, max_ns, std_ns, launches`` (nsys: Total
        GPU Ops; a CUDA graph is one), ``mean_launches, mean_depth`` (0 is outermost); the longest
        projection first.

    Raises
    ------
    NotCapturedError
        The trace holds no markers, runtime calls or device activity.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> frame = analyze.nsys.nvtx_gpu_proj_sum(trace)
    """
    ranges = nvtx_kernels(trace).with_columns(name=LABEL)
    refuse_unknown(by, ranges.columns, "by")
    keys = [
        *(key for key in by if key not in ("name", "kind")),
        "name",
        "kind",
    ]
    projected, order = pl.col("dur_ns"), [*keys[:-2], "total_ns", "name", "kind"]
    return (
        ranges.group_by(keys)
        .agg(
            projected.sum().alias("total_ns"),
            pl.sum("host_dur_ns").alias("host_total_ns"),
            pl.len().alias("count"),
            *statistics(projected, "ns"),
            pl.sum("launches"),
            mean_launches=pl.mean("launches"),
            mean_depth=pl.mean("depth"),
        )
        .sort(
            order,
            descending=[key == "total_ns" for key in order],
        )
    )


@Analysis(
    question="How are the ranges nested?",
    help="nsys: each push/pop range with its place in the stack",
    view="nvtx_pushpop_trace",
    recorded="markers",
)
def nvtx_pushpop_trace(trace: Trace) -> pl.DataFrame:
    """Each range that was pushed and popped, with its place in the stack of its thread.

    Parameters
    ----------
    trace : Trace
        A trace with markers.

    Returns
    -------
    polars.DataFrame
        ``start_ns, end_ns, dur_ns, own_ns`` (without the ranges right below it), ``name, rank,
        process, thread, depth`` (ranges that contain it), ``range`` (row in the markers)
        and ``parent`` (the shortest range that contains it, null for the outermost), by start.

    Raises
    ------
    NotCapturedError
        The trace holds no markers.

    Examples
    --------
    >>> frame = analyze.nsys.nvtx_pushpop_trace(trace)
    """
    ranges = host_ranges(trace).filter(kind="PushPop").with_columns(name=LABEL)
    ranges = _nested(ranges.sort("dur_ns", "range", descending=[True, False]).with_row_index("row"))
    below = ranges.group_by(range="parent").agg(_inside=pl.sum("dur_ns"))
    return (
        ranges.join(below, on="range", how="left")
        .with_columns(
            end_ns=END,
            own_ns=pl.col("dur_ns") - pl.col("_inside").fill_null(0),
        )
        .sort("start_ns", "dur_ns", "range", descending=[False, True, False])
        .select(
            "start_ns",
            "end_ns",
            "dur_ns",
            "own_ns",
            "name",
            *_THREAD,
            "depth",
            "range",
            "parent",
        )
    )
