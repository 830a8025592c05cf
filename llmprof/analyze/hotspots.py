"""What a profiler summed up itself: functions that the CPU's time goes into, and names with their total times."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from llmprof import names
from llmprof.analyze.analysis import Analysis, Section, per_trace
from llmprof.analyze.stacks import stacks
from llmprof.errors import AnalysisError
from llmprof.trace import Trace

_ON_DEVICE: Final = ("kernel", "copy")


@per_trace
def hotspots(trace: Trace, *, of: Literal["host", "samples"] = "samples") -> pl.DataFrame:
    """Functions by the time spent in them, themselves and with what they call.

    Parameters
    ----------
    trace : Trace
        A trace with samples of call stacks, or with Python functions or operators that have stacks.
    of : {"samples", "host"}
        What counts, as in :func:`~llmprof.analyze.stacks`.

    Returns
    -------
    polars.DataFrame
        One row a function of a rank, the largest first: ``rank, name``, ``self`` (in the function itself), ``total``
        (with what it calls; a function that calls itself counts once), ``unit`` (ns, or samples), ``self_share`` and
        ``total_share`` (of all that was recorded of the rank in that unit) and ``stacks`` (different call stacks).

    Raises
    ------
    NotCapturedError
        The trace has no stacks of that kind.
    AnalysisError
        ``of`` is neither.
    """
    if of not in ("host", "samples"):
        raise AnalysisError(f"of={of!r} is not known", expected="'samples' or 'host'")
    rows = stacks(trace, of=of).select("rank", "stack", "value", "unit").with_row_index("row")
    frames = rows.explode("stack").rename({"stack": "name"})
    whole = (
        frames.unique(["row", "name"])
        .group_by("rank", "name", "unit")
        .agg(total=pl.col("value").sum(), stacks=pl.len())
    )
    own = rows.group_by("rank", "unit", name=pl.col("stack").list.last()).agg(pl.col("value").sum().alias("self"))
    sums = rows.group_by("rank", "unit").agg(all=pl.col("value").sum())
    out = whole.join(own, on=["rank", "name", "unit"], how="left").join(sums, on=["rank", "unit"])
    out = out.with_columns(pl.col("self").fill_null(0))
    return out.select(
        "rank",
        "name",
        "self",
        "total",
        "unit",
        self_share=pl.col("self") / pl.col("all"),
        total_share=pl.col("total") / pl.col("all"),
        stacks=pl.col("stacks").cast(pl.Int64),
    ).sort("rank", "self", "total", "name", descending=[False, True, True, False])


@per_trace
def totals(trace: Trace) -> pl.DataFrame:
    """Times that the profiler added up itself, by name: all there is where it kept no single times.

    Parameters
    ----------
    trace : Trace
        What a profiler wrote as a summary (nvprof, ``rocprofv3 --stats``, ``trtexec --exportProfile``, Triton Proton).

    Returns
    -------
    polars.DataFrame
        ``rank, device, kind, name, scope, category`` (of kernels, by their names; null for what is no device work),
        ``count, total_ns, mean_ns, median_ns, min_ns, max_ns``, ``share`` (of the times of one kind of a rank) and
        ``flops_per_s, bytes_per_s`` (where the program stated its work), the longest of a kind first.

    Raises
    ------
    NotCapturedError
        The trace holds no summary.

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
    found = trace.totals
    category = names.categories(found["name"]) if found.height else pl.Series([], dtype=pl.String)
    seconds = pl.col("total_ns") / 1e9
    rate = pl.when(pl.col("total_ns") > 0)
    whole = pl.col("total_ns").sum().over("rank", "kind")
    on_device = pl.col("kind").is_in(_ON_DEVICE)
    out = found.with_columns(category=category.cast(pl.String)).with_columns(
        category=pl.when(pl.col("kind") == "copy").then(pl.lit("copy")).when(on_device).then("category"),
        mean_ns=pl.when(pl.col("count") > 0).then(pl.col("total_ns") / pl.col("count")),
        share=pl.when(whole > 0).then(pl.col("total_ns") / whole),
        flops_per_s=rate.then(pl.col("flops") / seconds),
        bytes_per_s=rate.then(pl.col("bytes") / seconds),
    )
    return out.select(
        "rank", "device", "kind", "name", "scope", "category", "count", "total_ns", "mean_ns", "median_ns", "min_ns",
        "max_ns", "share", "flops_per_s", "bytes_per_s",
    ).sort("rank", "kind", "total_ns", "name", descending=[False, False, True, False])  # fmt: skip


HOTSPOTS = Analysis(
    function=hotspots,
    question="Which functions does the CPU spend its time in?",
    help="functions of sampled call stacks, with the time in them and in what they call",
    view="hotspots",
    only_with="samples",
    columns=("rank", "self_share", "total_share", "self", "unit", "name"),
    reported=True,
    section=Section(
        "hotspots",
        "Which functions does the CPU spend its time in?",
        "A sampler looked at the call stack at fixed intervals. Self is the time in the function itself, total "
        "includes what it calls; waiting threads are seen only by samplers that record them.",
    ),
    figures=("llmprof.report.figures:FLAME",),
)
TOTALS = Analysis(
    function=totals,
    question="What did the profiler add up itself?",
    help="names with the count and sum of their times, of summaries without single times",
    view="totals",
    only_with="totals",
    columns=("kind", "share", "total_ns", "count", "mean_ns", "category", "name"),
    reported=True,
    section=Section(
        "totals",
        "What did the profiler add up itself?",
        "The file holds sums, not single times: there are no steps, no order and no overlap in it.",
    ),
    figures=("llmprof.report.figures:TOTALS",),
)
