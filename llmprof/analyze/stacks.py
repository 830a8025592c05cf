"""CPU time by call stack, by function and by name, from samplers and profilers."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from llmprof import names
from llmprof.analyze.catalog import Analysis
from llmprof.errors import NotCapturedError, ReadError
from llmprof.label.nesting import innermost_pieces, inside
from llmprof.names.mangled import demangled
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace

_THREAD: Final = ["rank", "thread"]
_SAMPLES: Final = """
SELECT e.globalTid % 16777216 AS thread, e.id AS sample, c.stackDepth AS depth, s.value AS frame
FROM COMPOSITE_EVENTS e JOIN SAMPLING_CALLCHAINS c ON c.id = e.id LEFT JOIN StringIds s ON s.id = c.symbol
"""  # noqa: E501


@per_trace
def stacks(trace: Trace, *, of: Literal["host", "device", "samples"] = "host") -> pl.DataFrame:
    """Call stacks and the time in each, for a flame graph.

    Stacks come from the strongest evidence: Python functions around the operators (torch's
    ``with_stack=True``; not if the trace was read with ``python_functions=False``), or else the
    stacks that torch_npu writes with each operator. Samples are those that Linux perf, VTune or
    Nsight Systems took of the CPU; mangled names of C++ are demangled where ``c++filt`` of binutils
    or LLVM is installed.

    Parameters
    ----------
    trace : Trace
        A trace with stacks.
    of : {"host", "device", "samples"}
        Measure: the host's time in the innermost frame itself, the time of the kernels that a frame
        launched (with the kernel as the last frame), or samples of the CPU.

    Returns
    -------
    polars.DataFrame
        One row for each stack and thread, most first: ``rank, thread, stack`` (list of frames,
        outermost first), ``value, unit`` (ns, or samples) and ``count`` (calls, kernels or samples;
        rows of the table where that holds sums).

    Raises
    ------
    NotCapturedError
        The trace has no stacks of that kind.
    """
    if of == "samples":
        sampled = _sampled(trace)
        written = demangled(sampled["stack"].explode())
        if written:
            sampled = sampled.with_columns(pl.col("stack").list.eval(pl.element().replace(written)))
        return _sorted(sampled)
    spans = trace.table("ops").with_row_index("span")
    if (spans["kind"] == "python").any():
        paths = _nested(spans)
    elif "ascend_stack" in spans.columns and spans["ascend_stack"].count():
        paths = _recorded(spans)
    else:
        hint = "record with with_stack=True, and read the trace without python_functions=False"
        raise NotCapturedError("this trace holds no call stacks", hint=hint, table="ops")
    if of == "device":
        return _sorted(_launched(trace, spans, paths))
    pieces = innermost_pieces(spans, _THREAD).group_by("span").agg(value=pl.sum("dur_ns"))
    timed = paths.join(pieces, on="span").join(spans.select("span", *_THREAD), on="span")
    return _sorted(timed.with_columns(unit=pl.lit("ns")))


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of equal stacks merged, the largest first."""
    return (
        rows.group_by(*_THREAD, "stack", "unit")
        .agg(pl.sum("value"), count=pl.len())
        .filter(pl.col("value") > 0)
        .with_columns(_text=pl.col("stack").list.join("\n"))
        .sort(
            "value",
            "rank",
            "thread",
            "_text",
            descending=[True, False, False, False],
            nulls_last=True,
        )
        .select(*_THREAD, "stack", pl.col("value").cast(pl.Int64), "unit", "count")
    )


def _nested(spans: pl.DataFrame) -> pl.DataFrame:
    """``span, stack``: names of the spans that hold each one, outermost first, and its own."""
    pairs = inside(spans, spans, _THREAD)
    around = spans.select(at="start_ns", length="dur_ns", name="name")[pairs["outer"]]
    own = spans.select(own_at="start_ns", own_length="dur_ns")[pairs["inner"]]
    outer = pairs[["inner", "outer"]].hstack(around).hstack(own)
    # of two that are the same interval, the one that comes first in the file holds the other
    same = (pl.col("at") == pl.col("own_at")) & (pl.col("length") == pl.col("own_length"))
    outer = outer.filter(~(same & (pl.col("outer") > pl.col("inner"))))
    outer = outer.sort("inner", "at", "length", "outer", descending=[False, False, True, False])
    return outer.group_by("inner", maintain_order=True).agg(stack="name").rename({"inner": "span"})


def _recorded(spans: pl.DataFrame) -> pl.DataFrame:
    """``span, stack``: the recorded stack of the outermost operator that has one, then the
    nested operators.
    """
    stacked = spans.drop_nulls("ascend_stack")
    pairs = inside(spans, stacked, _THREAD)
    outer = pairs.with_columns(
        length=stacked["dur_ns"].gather(pairs["outer"]),
        text=stacked["ascend_stack"].gather(pairs["outer"]),
    )
    outer = outer.sort("inner", "length", descending=[False, True]).unique(
        "inner", keep="first", maintain_order=True
    )
    rows = _nested(spans).join(outer.select(span="inner", text="text"), on="span")
    return rows.select(
        "span", stack=pl.concat_list(pl.col("text").str.split("\n").list.reverse(), "stack")
    )


def _launched(trace: Trace, spans: pl.DataFrame, paths: pl.DataFrame) -> pl.DataFrame:
    """Kernels with the stack of the operator that they came from."""
    events = trace.events.filter(pl.col("op_id").is_not_null() & (pl.col("source") != "op"))
    operators = spans.filter((pl.col("kind") == "op") & pl.col("op_id").is_not_null())
    operators = operators.unique(["rank", "op_id"], keep="first", maintain_order=True).join(
        paths, on="span"
    )
    rows = events.select("rank", "op_id", "name", value="dur_ns").join(
        operators[["rank", "op_id", "thread", "stack"]], on=["rank", "op_id"]
    )
    if not rows.height:
        found = "no kernel of this trace is linked to an operator with a stack"
        hint = "record host and device activity together, with with_stack=True"
        raise NotCapturedError(found, hint=hint, table="kernels")
    return rows.select(*_THREAD, "value", stack=pl.concat_list("stack", "name"), unit=pl.lit("ns"))


def _sampled(trace: Trace) -> pl.DataFrame:
    """Samples of the CPU: the table's, else those that Nsight Systems took."""
    if trace.has("samples"):
        frames = pl.col("stack").str.split("\n")
        return trace.samples.select(*_THREAD, "value", "unit", stack=frames)
    try:
        samples = trace.sql(_SAMPLES, on="file")
    except (NotCapturedError, ReadError) as error:
        hint = (
            "record with nsys profile --sample=process-tree --backtrace=dwarf, or with perf"
            " record -g"
        )
        raise NotCapturedError(
            "this trace holds no samples of the CPU", hint=hint, table="samples"
        ) from error
    named = samples.with_columns(pl.col("frame").fill_null("[unknown]")).sort(
        "sample", "depth", descending=[False, True]
    )
    whole = named.group_by("sample", "thread", maintain_order=True).agg(stack="frame")
    return whole.select(
        "thread",
        "stack",
        rank=pl.lit(trace.ranks[0] if trace.ranks else 0, dtype=pl.Int32),
        value=pl.lit(1, dtype=pl.Int64),
        unit=pl.lit("samples"),
    )


@Analysis(
    question="Which functions does the CPU spend its time in?",
    help="functions of sampled call stacks, with the time in them and in what they call",
    view="hotspots",
    recorded="call stacks",
)
def hotspots(trace: Trace, *, of: Literal["host", "samples"] = "samples") -> pl.DataFrame:
    """Functions by their own time, and by their time with all functions that they call.

    Parameters
    ----------
    trace : Trace
        A trace with samples of call stacks, or with Python functions or operators that have stacks.
    of : {"samples", "host"}
        What counts, as in :func:`~llmprof.analyze.stacks`.

    Returns
    -------
    polars.DataFrame
        One row for each function of a rank, the largest first: ``rank, name``, ``own_value`` (in
        the function itself), ``total_value`` (with what it calls; a function that calls itself
        counts once), ``unit`` (ns, or samples), ``own_share`` and ``total_share`` (of all that was
        recorded of the rank in that unit) and ``count`` (different call stacks).

    Raises
    ------
    NotCapturedError
        The trace has no stacks of that kind.
    """
    rows = stacks(trace, of=of)[["rank", "stack", "value", "unit"]].with_row_index("row")
    frames = rows.explode("stack").rename({"stack": "name"})
    whole = (
        frames.unique(["row", "name"])
        .group_by("rank", "name", "unit")
        .agg(total_value=pl.sum("value"), count=pl.len())
    )
    own = rows.group_by("rank", "unit", name=pl.col("stack").list.last()).agg(
        own_value=pl.sum("value")
    )
    sums = rows.group_by("rank", "unit").agg(all=pl.sum("value"))
    out = whole.join(own, on=["rank", "name", "unit"], how="left").join(sums, on=["rank", "unit"])
    out = out.with_columns(pl.col("own_value").fill_null(0))
    return out.select(
        "rank",
        "name",
        "own_value",
        "total_value",
        "unit",
        own_share=pl.col("own_value") / pl.col("all"),
        total_share=pl.col("total_value") / pl.col("all"),
        count=pl.col("count").cast(pl.Int64),
    ).sort("rank", "own_value", "total_value", "name", descending=[False, True, True, False])


@Analysis(
    question="What did the profiler add up itself?",
    help="names with the count and sum of their times, of summaries without single times",
    view="totals",
    recorded="summary of a profiler",
)
def totals(trace: Trace) -> pl.DataFrame:
    """Sums of times by name, from profilers that keep no single times.

    Parameters
    ----------
    trace : Trace
        A trace of a profiler's summary (nvprof, ``rocprofv3 --stats``, ``trtexec --exportProfile``,
        Triton Proton).

    Returns
    -------
    polars.DataFrame
        ``rank, device, kind, name, scope, category`` (of kernels, by their names; null for what is
        no device work), ``count, total_ns, mean_ns, median_ns, min_ns, max_ns``, ``share`` (of the
        times of one kind of a rank) and ``flop_per_s, bytes_per_s`` (where the program stated its
        work), the longest of a kind first.

    Raises
    ------
    NotCapturedError
        The trace holds no summary of a profiler.

    Examples
    --------
    >>> import os, tempfile, pathlib
    >>> import llmprof
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "summary.csv"
    >>> lines = ["Time(%),Time,Calls,Avg,Min,Max,Name", "100%,3ms,2,1.5ms,1ms,2ms,gemm"]
    >>> _ = path.write_text(os.linesep.join(lines))
    >>> llmprof.analyze.totals(llmprof.read(path)).select("name", "count", "total_ns").row(0)
    ('gemm', 2, 3000000)
    """
    sums = trace.totals
    category = names.categories(sums["name"]) if sums.height else pl.Series([], dtype=pl.String)
    seconds = pl.col("total_ns") / 1e9
    rate = pl.when(pl.col("total_ns") > 0)
    whole = pl.sum("total_ns").over("rank", "kind")
    on_device = pl.col("kind").is_in(["kernel", "copy"])
    out = sums.with_columns(category=category.cast(pl.String)).with_columns(
        category=pl.when(pl.col("kind") == "copy")
        .then(pl.lit("copy"))
        .when(on_device)
        .then("category"),
        mean_ns=pl.when(pl.col("count") > 0).then(pl.col("total_ns") / pl.col("count")),
        share=pl.when(whole > 0).then(pl.col("total_ns") / whole),
        flop_per_s=rate.then(pl.col("flops") / seconds),
        bytes_per_s=rate.then(pl.col("bytes") / seconds),
    )
    return out[
        [
            "rank",
            "device",
            "kind",
            "name",
            "scope",
            "category",
            "count",
            "total_ns",
            "mean_ns",
            "median_ns",
            "min_ns",
            "max_ns",
            "share",
            "flop_per_s",
            "bytes_per_s",
        ]
    ].sort("rank", "kind", "total_ns", "name", descending=[False, False, True, False])
