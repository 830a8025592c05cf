"""Summaries of calls of libraries on the host, under the names of ``nsys stats``: OS runtime, OpenACC, OpenMP, MPI.

Columns are those of the other summaries: shares are fractions, means are not rounded.
"""

from __future__ import annotations

import polars as pl

from llmprof.analyze.analysis import per_trace
from llmprof.analyze.nsys.summaries import calls_of, summarise
from llmprof.arguments import Columns
from llmprof.trace import Trace


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
