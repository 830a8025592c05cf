"""Summaries of kernels, copies and calls under the names of ``nsys stats``, from any trace.

Columns have the order and meaning of nsys's, with three differences: shares are fractions and not percentages, means
are not rounded, and sizes are in bytes. Options such as ``by=("rank",)`` group by columns of the table first.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze.catalog import per_trace
from llmprof.arguments import Columns, refuse_unknown
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace


def statistics(value: pl.Expr, unit: str, prefix: str = "") -> list[pl.Expr]:
    """Mean, median, smallest, largest and sample standard deviation, as aggregations."""
    several = pl.when(value.count() == 1).then(0.0).otherwise(value.std())
    measures = {"mean": value.mean(), "median": value.median(), "min": value.min(), "max": value.max(), "std": several}
    return [measure.alias(f"{prefix}{name}_{unit}") for name, measure in measures.items()]


def summarise(
    rows: pl.DataFrame, names: Sequence[str], *, value: str, unit: str, by: Sequence[str] = ()
) -> pl.DataFrame:
    """Rows grouped by name."""
    refuse_unknown(by, rows.columns, "by")
    by = [column for column in by if column not in names]
    total, quantity = f"total_{unit}", pl.col(value)
    groups = (
        rows.select(*by, value, pl.col(names).cast(pl.Categorical))  # groups by number, several times as fast
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
        *(f"{name}_{unit}" for name in ("mean", "median", "min", "max", "std")),
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


def calls_of(trace: Trace, *libraries: str) -> pl.DataFrame:
    """Runtime calls of some libraries."""
    runtime = trace.runtime
    calls = runtime.filter(pl.col("api").is_in(libraries))
    traced = str(trace.meta.get("options", {}).get("trace", "")).split(",")
    word = {"runtime": "cuda", "os": "osrt"}.get(libraries[0], libraries[0])
    if calls.is_empty() and word not in traced and (runtime.height or libraries[0] != "runtime"):
        what, how = _CALLS[libraries[0]]
        raise NotCapturedError(f"this capture holds no {what}", hint=f"record with {how}", table="runtime")
    return calls


@per_trace
def cuda_gpu_kern_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of each kernel by name.

    A CUDA graph that was traced as a whole counts as one kernel for each launch, ``[CUDA graph N]``; nsys leaves it
    out.

    Parameters
    ----------
    trace : Trace
        A trace with kernels.
    by : str or sequence of str
        Columns of the kernels to group by first.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the summed duration of all kernels), ``total_ns, count, mean_ns, median_ns, min_ns,
        max_ns, std_ns, name``; the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> analyze.nsys.cuda_gpu_kern_sum(trace).columns[:4]
    ['share', 'total_ns', 'count', 'mean_ns']
    """
    return summarise(trace.kernels, ["name"], value="dur_ns", unit="ns", by=by)


@per_trace
def cuda_api_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of each call of the CUDA runtime and driver API by name.

    Parameters
    ----------
    trace : Trace
        A trace with runtime calls.
    by : str or sequence of str
        Columns of the runtime calls to group by first.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the summed duration of all calls; calls within calls count in full), ``total_ns, count,
        mean_ns, median_ns, min_ns, max_ns, std_ns, name``; the longest first. A name has two rows where a wrapper
        library reported the calls a second time.

    Raises
    ------
    NotCapturedError
        The trace holds no runtime calls.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> analyze.nsys.cuda_api_sum(trace).columns[:4]
    ['share', 'total_ns', 'count', 'mean_ns']
    """
    calls = calls_of(trace, "runtime", "driver")
    source = [column for column in ("nsys_event_class",) if column in calls.columns]
    calls = calls.with_columns(pl.col(source).cast(pl.String))
    return summarise(calls, [*source, "name"], value="dur_ns", unit="ns", by=by).drop(source)


@per_trace
def cuda_gpu_mem_time_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of memory copies and memory sets on the device by kind.

    Parameters
    ----------
    trace : Trace
        A trace with copies.
    by : str or sequence of str
        Columns of the copies to group by first, such as ``("rank", "src_kind", "dst_kind")``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the summed duration), ``total_ns, count, mean_ns, median_ns, min_ns, max_ns, std_ns,
        operation``; the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no copies.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> analyze.nsys.cuda_gpu_mem_time_sum(trace).columns[:4]
    ['share', 'total_ns', 'count', 'mean_ns']
    """
    return summarise(_operations(trace), ["operation"], value="dur_ns", unit="ns", by=by)


@per_trace
def cuda_gpu_mem_size_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Bytes of memory copies and memory sets on the device by kind.

    Parameters
    ----------
    trace : Trace
        A trace with copies.
    by : str or sequence of str
        Columns of the copies to group by first, such as ``("rank", "src_kind", "dst_kind")``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, total_bytes, count, mean_bytes, median_bytes, min_bytes, max_bytes, std_bytes, operation``; the most
        bytes first.

    Raises
    ------
    NotCapturedError
        The trace holds no copies.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> analyze.nsys.cuda_gpu_mem_size_sum(trace).columns[:4]
    ['total_bytes', 'count', 'mean_bytes', 'median_bytes']
    """
    sums = summarise(_operations(trace), ["operation"], value="bytes", unit="bytes", by=by)
    return sums.drop("share")


def _operations(trace: Trace) -> pl.DataFrame:
    """Copies with nsys's name of their operation; names of other profilers also have the kinds of memory."""
    named = pl.col("name").str.starts_with("[CUDA mem")
    kind = pl.col("kind").replace_strict(_OPERATIONS, default="[CUDA memcpy Unknown]", return_dtype=pl.String)
    return trace.copies.with_columns(operation=pl.when(named).then("name").otherwise(kind))


@per_trace
def cuda_kern_exec_sum(trace: Trace) -> pl.DataFrame:
    """Launch, wait and run time of kernels by thread, device, launching call and name.

    Parameters
    ----------
    trace : Trace
        A trace with kernels and runtime calls.

    Returns
    -------
    polars.DataFrame
        ``rank, process, thread, device, count, queued_count`` (kernels that began after their launch call had
        returned), then mean, median, min, max and std (ns) of each of: ``total_*`` (from the start of the call to its
        end or the kernel's, whichever is later), ``api_*`` (the call), ``queue_*`` (from the call's end to the kernel's
        start, of the queued ones), ``kernel_*``; then ``api_name, name``. The longest mean total first. Kernels whose
        launch is not in the capture are left out; one whose launch was recorded twice counts twice, as in nsys.

    Raises
    ------
    NotCapturedError
        The trace lacks one of the tables.

    Examples
    --------
    >>> analyze.nsys.cuda_kern_exec_sum(trace).columns[:4]
    ['rank', 'process', 'thread', 'device']
    """
    calls = trace.runtime.filter(pl.col("correlation").is_not_null()).select(
        "rank", "correlation", "process", "thread", api_name="name", _begin="start_ns", _api="dur_ns"
    )
    returned = pl.col("_begin") + pl.col("_api")
    end = pl.col("start_ns") + pl.col("dur_ns")
    wait = pl.col("start_ns") - returned
    launched = trace.kernels.select("rank", "device", "correlation", "start_ns", "dur_ns", "name").join(
        calls, on=["rank", "correlation"]
    )
    keys, texts = ["rank", "process", "thread", "device"], pl.col("api_name", "name")
    return (
        launched.with_columns(
            texts.cast(pl.Categorical),
            _total=pl.max_horizontal(returned, end) - pl.col("_begin"),
            _queue=pl.when(wait >= 0).then(wait),
        )
        .group_by(*keys, "api_name", "name")
        .agg(
            pl.len().alias("count"),
            pl.col("_queue").count().alias("queued_count"),
            *statistics(pl.col("_total"), "ns", "total_"),
            *statistics(pl.col("_api"), "ns", "api_"),
            *statistics(pl.col("_queue"), "ns", "queue_"),
            *statistics(pl.col("dur_ns"), "ns", "kernel_"),
        )
        .with_columns(texts.cast(pl.String))
        .sort("total_mean_ns", *keys, "name", "api_name", descending=[True, *[False] * 6], nulls_last=True)
        .select(*keys, pl.exclude(*keys, "api_name", "name"), "api_name", "name")
    )


def _summary(trace: Trace, library: str, by: Columns) -> pl.DataFrame:
    return summarise(calls_of(trace, library), ["name"], value="dur_ns", unit="ns", by=by)


@per_trace
def osrt_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of each call of the operating system (``poll``, ``pthread_cond_wait``, ``read`` …) by name.

    Parameters
    ----------
    trace : Trace
        A trace with calls of the operating system (``nsys profile -t osrt``).
    by : str or sequence of str
        Columns of the runtime calls to group by first, such as ``("rank", "thread")``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the summed duration of all calls: threads wait side by side, so it is no share of wall
        time), ``total_ns, count, mean_ns, median_ns, min_ns, max_ns, std_ns, name``; the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no such calls.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> rows = {"rank": [0], "start_ns": [0], "dur_ns": [7], "name": ["poll"], "api": ["os"]}
    >>> analyze.nsys.osrt_sum(llmprof.Trace({"runtime": pl.DataFrame(rows)}))["total_ns"].to_list()
    [7]
    """
    return _summary(trace, "os", by)


@per_trace
def openacc_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of each kind of OpenACC event, by name and line of the program.

    Parameters
    ----------
    trace : Trace
        A trace with events of OpenACC (``nsys profile -t openacc``).
    by : str or sequence of str
        Columns of the runtime calls to group by first.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the summed duration), ``total_ns, count, mean_ns, median_ns, min_ns, max_ns, std_ns,
        name`` (``event@file:line`` where the file is known); the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no such events.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> rows = {"rank": [0], "start_ns": [0], "dur_ns": [7], "name": ["Enter Data@a.cpp:3"], "api": ["openacc"]}
    >>> analyze.nsys.openacc_sum(llmprof.Trace({"runtime": pl.DataFrame(rows)}))["name"].to_list()
    ['Enter Data@a.cpp:3']
    """
    return _summary(trace, "openacc", by)


@per_trace
def openmp_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of each kind of OpenMP event by name.

    Parameters
    ----------
    trace : Trace
        A trace with events of OpenMP (``nsys profile -t openmp``).
    by : str or sequence of str
        Columns of the runtime calls to group by first.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the summed duration), ``total_ns, count, mean_ns, median_ns, min_ns, max_ns, std_ns,
        name``; the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no such events.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> rows = {"rank": [0], "start_ns": [0], "dur_ns": [7], "name": ["Parallel"], "api": ["openmp"]}
    >>> analyze.nsys.openmp_sum(llmprof.Trace({"runtime": pl.DataFrame(rows)}))["count"].to_list()
    [1]
    """
    return _summary(trace, "openmp", by)


@per_trace
def mpi_event_sum(trace: Trace, *, by: Columns = ()) -> pl.DataFrame:
    """Time of each call of MPI by name.

    Parameters
    ----------
    trace : Trace
        A trace with calls of MPI (``nsys profile -t mpi``).
    by : str or sequence of str
        Columns of the runtime calls to group by first.

    Returns
    -------
    polars.DataFrame
        ``<by...>, share`` (of the summed duration), ``total_ns, count, mean_ns, median_ns, min_ns, max_ns, std_ns,
        name``; the longest first.

    Raises
    ------
    NotCapturedError
        The trace holds no such calls.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> rows = {"rank": [0], "start_ns": [0], "dur_ns": [7], "name": ["MPI_Barrier"], "api": ["mpi"]}
    >>> analyze.nsys.mpi_event_sum(llmprof.Trace({"runtime": pl.DataFrame(rows)}))["mean_ns"].to_list()
    [7.0]
    """
    return _summary(trace, "mpi", by)
