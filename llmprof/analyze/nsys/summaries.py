"""Summaries of kernels, copies and calls under the names of ``nsys stats`` and its recipes, from
any trace.

Columns have the order and meaning of nsys's, with three differences: shares are fractions and not
percentages, means are not rounded, and sizes are in bytes. Options such as ``by=("rank",)`` group
by columns of the table first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.errors import AnalysisError, Columns, NotCapturedError, refuse_unknown
from llmprof.label.intervals import length_within, time_bins
from llmprof.trace import Trace
from llmprof.trace.schema import END


def statistics(value: pl.Expr, unit: str, prefix: str = "") -> list[pl.Expr]:
    """Mean, median, smallest, largest and sample standard deviation, as aggregations."""
    several = pl.when(value.count() == 1).then(0.0).otherwise(value.std())
    measures = {
        "mean": value.mean(),
        "median": value.median(),
        "min": value.min(),
        "max": value.max(),
        "std": several,
    }
    return [measure.alias(f"{prefix}{name}_{unit}") for name, measure in measures.items()]


def summarise(
    rows: pl.DataFrame, names: Sequence[str], value: str, unit: str, by: Sequence[str]
) -> pl.DataFrame:
    """Rows grouped by name."""
    refuse_unknown(by, rows.columns, "by")
    by = [column for column in by if column not in names]
    total, quantity = f"total_{unit}", pl.col(value)
    groups = (
        rows.select(
            *by, value, pl.col(names).cast(pl.Categorical)
        )  # groups by number, several times as fast
        .group_by(*by, *names)
        .agg(quantity.sum().alias(total), pl.len().alias("count"), *statistics(quantity, unit))
        .with_columns(pl.col(names).cast(pl.String))
    )
    whole = pl.col(total).sum().over(by) if by else pl.col(total).sum()
    order = [*by, total, "count", *names]
    descending = [column == total for column in order]
    return groups.sort(order, descending=descending, nulls_last=True).select(
        *by,
        pl.when(whole > 0).then(pl.col(total) / whole).alias("share"),
        total,
        "count",
        *(f"{name}_{unit}" for name in _STATISTICS),
        *names,
    )


_OPERATIONS = {
    "HtoD": "[CUDA memcpy Host-to-Device]",
    "DtoH": "[CUDA memcpy Device-to-Host]",
    "DtoD": "[CUDA memcpy Device-to-Device]",
    "HtoH": "[CUDA memcpy Host-to-Host]",
    "PtoP": "[CUDA memcpy Peer-to-Peer]",
    "memset": "[CUDA memset]",
}


_CALLS = {
    "runtime": ("calls of CUDA", "nsys profile -t cuda"),
    "os": ("calls of the operating system", "nsys profile -t osrt"),
    "openacc": ("events of OpenACC", "nsys profile -t openacc"),
    "openmp": ("events of OpenMP", "nsys profile -t openmp"),
    "mpi": ("calls of MPI", "nsys profile -t mpi"),
}
"""Description of the calls of each library, and the command that records them."""


def _calls_of(trace: Trace, libraries: Sequence[str]) -> pl.DataFrame:
    """Runtime calls of some libraries."""
    runtime = trace.runtime
    calls = runtime.filter(pl.col("api").is_in(libraries))
    traced = str(trace.meta.get("options", {}).get("trace", "")).split(",")
    word = {"runtime": "cuda", "os": "osrt"}.get(libraries[0], libraries[0])
    if calls.is_empty() and word not in traced and (runtime.height or libraries[0] != "runtime"):
        what, how = _CALLS[libraries[0]]
        raise NotCapturedError(
            f"this capture holds no {what}", hint=f"record with {how}", table="runtime"
        )
    return calls


_STATISTICS: Final = ("mean", "median", "min", "max", "std")


def sums_by_name(
    rows: pl.DataFrame,
    by: Columns,
    *,
    keys: Sequence[str] = ("name",),
    value: str = "dur_ns",
    apart: str = "",
) -> pl.DataFrame:
    """One of the sums of nsys: rows with another value of ``apart`` stay apart; sizes have no
    share.
    """
    unit = value.removeprefix("dur_")
    silent = [apart] if apart in rows.columns else []
    sums = summarise(
        rows.with_columns(pl.col(silent).cast(pl.String)), [*silent, *keys], value, unit, by
    )
    return sums.drop(silent if unit == "ns" else [*silent, "share"])


def _operations(trace: Trace) -> pl.DataFrame:
    """Copies with nsys's name of their kind; names of other profilers also have the kinds
    of memory.
    """
    named = pl.col("name").str.starts_with("[CUDA mem")
    kind = pl.col("kind").replace_strict(
        _OPERATIONS, default="[CUDA memcpy Unknown]", return_dtype=pl.String
    )
    return trace.copies.with_columns(kind=pl.when(named).then("name").otherwise(kind))


@Analysis(
    question="Which kernels take the time?",
    help="nsys: time of kernels by name",
    view="cuda_gpu_kern_sum",
    recorded="kernels",
)
def cuda_gpu_kern_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of kernels by name: a CUDA graph traced as a whole is one kernel, ``[CUDA graph N]``,
    which nsys leaves out.

    Parameters
    ----------
    trace : Trace
        A trace with kernels.
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
    >>> analyze.nsys.cuda_gpu_kern_sum(trace).columns
    ['share', 'total_ns', 'count', 'mean_ns', 'median_ns', 'min_ns', 'max_ns', 'std_ns', 'name']
    """
    return sums_by_name(trace.kernels, by)


@Analysis(
    question="Which calls of CUDA take the host's time?",
    help="nsys: time of CUDA calls by name",
    view="cuda_api_sum",
    recorded="runtime calls",
)
def cuda_api_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of CUDA calls by name: calls within calls count in full, and calls that a wrapper
    library reported again have a row of their own.

    Parameters
    ----------
    trace : Trace
        A trace with runtime calls.
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
    >>> analyze.nsys.cuda_api_sum(trace).columns
    ['share', 'total_ns', 'count', 'mean_ns', 'median_ns', 'min_ns', 'max_ns', 'std_ns', 'name']
    """
    return sums_by_name(_calls_of(trace, ("runtime", "driver")), by, apart="nsys_event_class")


@Analysis(
    question="How long do copies take?",
    help="nsys: time of copies and memory sets by kind",
    view="cuda_gpu_mem_time_sum",
    recorded="copies",
)
def cuda_gpu_mem_time_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of copies and memory sets by kind.

    Parameters
    ----------
    trace : Trace
        A trace with copies.
    by : str or sequence of str
        Columns of the summed rows to group by first, such as ``("rank",)``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share, total_ns, count, mean_ns, median_ns, min_ns, max_ns, std_ns,
        kind``; the largest total first.

    Raises
    ------
    NotCapturedError
        The trace holds no such rows.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> analyze.nsys.cuda_gpu_mem_time_sum(trace).columns
    ['share', 'total_ns', 'count', 'mean_ns', 'median_ns', 'min_ns', 'max_ns', 'std_ns',
    'kind']
    """
    return sums_by_name(_operations(trace), by, keys=("kind",))


@Analysis(
    question="How much is copied?",
    help="nsys: bytes of copies and memory sets by kind",
    view="cuda_gpu_mem_size_sum",
    recorded="copies",
)
def cuda_gpu_mem_size_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Bytes of copies and memory sets by kind.

    Parameters
    ----------
    trace : Trace
        A trace with copies.
    by : str or sequence of str
        Columns of the summed rows to group by first, such as ``("rank",)``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, total_bytes, count, mean_bytes, median_bytes, min_bytes, max_bytes,
        std_bytes, kind``; the largest total first.

    Raises
    ------
    NotCapturedError
        The trace holds no such rows.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> analyze.nsys.cuda_gpu_mem_size_sum(trace).columns
    ['total_bytes', 'count', 'mean_bytes', 'median_bytes', 'min_bytes', 'max_bytes',
    'std_bytes', 'kind']
    """
    return sums_by_name(_operations(trace), by, keys=("kind",), value="bytes")


@Analysis(
    question="What does the host wait for in the operating system?",
    help="nsys: time of calls of the OS by name",
    view="osrt_sum",
    recorded="calls of the operating system",
)
def osrt_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of calls of the OS by name: threads wait side by side, so a share is none of wall time.

    Parameters
    ----------
    trace : Trace
        A trace with calls of the operating system (``nsys profile -t osrt``).
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
    >>> row = {"rank": 0, "start_ns": 0, "dur_ns": 7, "name": ["call"], "api": "os"}
    >>> analyze.nsys.osrt_sum(llmprof.Trace({"runtime": pl.DataFrame(row)})).columns
    ['share', 'total_ns', 'count', 'mean_ns', 'median_ns', 'min_ns', 'max_ns', 'std_ns', 'name']
    """
    return sums_by_name(_calls_of(trace, ("os",)), by)


@Analysis(
    question="Which events of OpenACC take the time?",
    help="nsys: time of OpenACC events by name and line",
    view="openacc_sum",
    recorded="events of OpenACC",
)
def openacc_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of OpenACC events by name and line.

    Parameters
    ----------
    trace : Trace
        A trace with events of OpenACC (``nsys profile -t openacc``).
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
    >>> row = {"rank": 0, "start_ns": 0, "dur_ns": 7, "name": ["call"], "api": "openacc"}
    >>> analyze.nsys.openacc_sum(llmprof.Trace({"runtime": pl.DataFrame(row)})).columns
    ['share', 'total_ns', 'count', 'mean_ns', 'median_ns', 'min_ns', 'max_ns', 'std_ns', 'name']
    """
    return sums_by_name(_calls_of(trace, ("openacc",)), by)


@Analysis(
    question="Which events of OpenMP take the time?",
    help="nsys: time of OpenMP events by name",
    view="openmp_sum",
    recorded="events of OpenMP",
)
def openmp_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of OpenMP events by name.

    Parameters
    ----------
    trace : Trace
        A trace with events of OpenMP (``nsys profile -t openmp``).
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
    >>> row = {"rank": 0, "start_ns": 0, "dur_ns": 7, "name": ["call"], "api": "openmp"}
    >>> analyze.nsys.openmp_sum(llmprof.Trace({"runtime": pl.DataFrame(row)})).columns
    ['share', 'total_ns', 'count', 'mean_ns', 'median_ns', 'min_ns', 'max_ns', 'std_ns', 'name']
    """
    return sums_by_name(_calls_of(trace, ("openmp",)), by)


@Analysis(
    question="Which calls of MPI take the time?",
    help="nsys: time of MPI calls by name",
    view="mpi_event_sum",
    recorded="calls of MPI",
)
def mpi_event_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of MPI calls by name.

    Parameters
    ----------
    trace : Trace
        A trace with calls of MPI (``nsys profile -t mpi``).
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
    >>> row = {"rank": 0, "start_ns": 0, "dur_ns": 7, "name": ["call"], "api": "mpi"}
    >>> analyze.nsys.mpi_event_sum(llmprof.Trace({"runtime": pl.DataFrame(row)})).columns
    ['share', 'total_ns', 'count', 'mean_ns', 'median_ns', 'min_ns', 'max_ns', 'std_ns', 'name']
    """
    return sums_by_name(_calls_of(trace, ("mpi",)), by)


@Analysis(
    question="How long do launches wait?",
    help="nsys: launch, queue and run time of kernels",
    view="cuda_kern_exec_sum",
    recorded="kernels and runtime calls",
)
def cuda_kern_exec_sum(trace: Trace) -> pl.DataFrame:
    """Launch, wait and run time of kernels by thread, device, launching call and name.

    Parameters
    ----------
    trace : Trace
        A trace with kernels and runtime calls.

    Returns
    -------
    polars.DataFrame
        ``rank, process, thread, device, count, queue_count`` (kernels that began after their
        launch call had returned), then mean, median, min, max and std (ns) of each of: ``total_*``
        (from the start of the call to its end or the kernel's, whichever is later), ``call_*`` (the
        call), ``queue_*`` (from the call's end to the kernel's start, of the queued ones),
        ``kernel_*``; then ``call, name``. The longest mean total first. Kernels whose launch is
        not in the capture are left out; one whose launch was recorded twice counts twice, as in
        nsys.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels or runtime calls.

    Examples
    --------
    >>> frame = analyze.nsys.cuda_kern_exec_sum(trace)
    """
    calls = trace.runtime.drop_nulls("correlation").select(
        "rank",
        "correlation",
        "process",
        "thread",
        call="name",
        _begin="start_ns",
        _api="dur_ns",
    )
    returned = pl.col("_begin") + pl.col("_api")
    wait = pl.col("start_ns") - returned
    launched = trace.kernels[["rank", "device", "correlation", "start_ns", "dur_ns", "name"]].join(
        calls, on=["rank", "correlation"]
    )
    keys, texts = ["rank", "process", "thread", "device"], pl.col("call", "name")
    return (
        launched.with_columns(
            texts.cast(pl.Categorical),
            _total=pl.max_horizontal(returned, END) - pl.col("_begin"),
            _queue=pl.when(wait >= 0).then(wait),
        )
        .group_by(*keys, "call", "name")
        .agg(
            pl.len().alias("count"),
            pl.col("_queue").count().alias("queue_count"),
            *statistics(pl.col("_total"), "ns", "total_"),
            *statistics(pl.col("_api"), "ns", "call_"),
            *statistics(pl.col("_queue"), "ns", "queue_"),
            *statistics(pl.col("dur_ns"), "ns", "kernel_"),
        )
        .with_columns(texts.cast(pl.String))
        .sort(
            "total_mean_ns",
            *keys,
            "name",
            "call",
            descending=[True, *[False] * 6],
            nulls_last=True,
        )
        .select(*keys, pl.exclude(*keys, "call", "name"), "call", "name")
    )


@Analysis(
    question="Do the ranks keep pace?",
    help="nsys: runs of the heaviest kernel, side by side",
    view="cuda_gpu_kern_pace",
    recorded="kernels",
)
def cuda_gpu_kern_pace(trace: Trace, *, name: str | None = None) -> pl.DataFrame:
    """Runs of one kernel, numbered on each rank, with the pause before each and the lag behind the
    first rank.

    The n-th run on one rank is compared with the n-th run on the others. This is the same work if
    all ranks run the kernel equally often; check the largest ``occurrence`` of each rank.

    Parameters
    ----------
    trace : Trace
        A trace with kernels.
    name : str, optional
        The full name of a kernel. By default the kernel with the longest total time among those
        that run on all ranks with kernels.

    Returns
    -------
    polars.DataFrame
        ``occurrence`` (from 0, by start), ``rank, start_ns, dur_ns, gap_ns`` (from the end of the
        run before on this rank to the start of this one; negative where they overlap, null for the
        first), ``pace_ns`` (from start to start), ``late_ns`` (behind the first rank to start this
        one), ``name``. In the order of occurrence and rank.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels.
    AnalysisError
        No kernel has the name, or none runs on all ranks.

    Examples
    --------
    >>> frame = analyze.nsys.cuda_gpu_kern_pace(trace)
    """
    kernels = trace.kernels
    chosen = _heaviest(kernels) if name is None else name
    runs = kernels.filter(name=chosen)[["rank", "start_ns", "dur_ns", "name"]]
    if runs.is_empty():
        found = f"no kernel has the name {chosen!r}"
        expected = "a whole name as in cuda_gpu_kern_sum"
        raise AnalysisError(
            found, expected=expected, hint="look it up with trace.kernels['name'].unique()"
        )
    start, end = pl.col("start_ns"), END
    return (
        runs.sort("rank", "start_ns", maintain_order=True)
        .with_columns(
            occurrence=pl.int_range(pl.len(), dtype=pl.UInt32).over("rank"),
            gap_ns=(start - end.shift(1)).over("rank"),
            pace_ns=(start - start.shift(1)).over("rank"),
        )
        .with_columns(late_ns=start - start.min().over("occurrence"))
        .sort("occurrence", "rank")[
            ["occurrence", "rank", "start_ns", "dur_ns", "gap_ns", "pace_ns", "late_ns", "name"]
        ]
    )


def _heaviest(kernels: pl.DataFrame) -> str:
    by_name = kernels.group_by("name").agg(ranks=pl.n_unique("rank"), total=pl.sum("dur_ns"))
    everywhere = by_name.filter(pl.col("ranks") == kernels["rank"].n_unique()).sort(
        "total", "name", descending=[True, False]
    )
    if everywhere.is_empty():
        raise AnalysisError("no kernel runs on all ranks", hint="give the name of one: name='…'")
    return str(everywhere["name"][0])


@Analysis(
    question="When is the device busy?",
    help="nsys: busy share of the device by bin of time",
    view="gpu_time_util_map",
    recorded="device activity or operators",
)
def gpu_time_util_map(
    trace: Trace, *, bins: int = 30, bin_ns: int | None = None, kernels_only: bool = True
) -> pl.DataFrame:
    """Share of the time in which a device runs something, per rank, device and bin of time.

    Kernels that run at the same time count once. The bins are the same for all devices and reach
    from the first start to the last end of any of them; the last one is cut at that end.

    Parameters
    ----------
    trace : Trace
        A trace with device activity or operators.
    bins : int
        Number of bins.
    bin_ns : int, optional
        Width of a bin (ns), in place of ``bins``.
    kernels_only : bool
        Whether copies are left out, as nsys's recipe of this name does.

    Returns
    -------
    polars.DataFrame
        ``rank, device, start_ns, dur_ns, busy_ns, share`` (of the bin), in that order; times in
        ns.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.
    AnalysisError
        There is no bin, or there are more than a million.

    Examples
    --------
    >>> frame = analyze.nsys.gpu_time_util_map(trace)
    """
    events = trace.events.filter(pl.col("source") != ("copy" if kernels_only else ""))
    grid = time_bins(events, ["rank", "device"], bins=bins, bin_ns=bin_ns).drop("bin")
    return length_within(grid, events, ["rank", "device"]).with_columns(
        share=pl.col("busy_ns") / pl.col("dur_ns")
    )
