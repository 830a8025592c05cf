"""The command that profiles a few launches of a run again with Nsight Compute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from llmprof.analyze.layers.attribution import attribute
from llmprof.errors import AnalysisError
from llmprof.names import functions as names_functions
from llmprof.trace import Trace


def counted_launches(events: pl.DataFrame, *, recorded: bool) -> pl.DataFrame:
    """Kernels of one rank whose launches a profiler counts, in the order in which the host launched them.

    What ran before the first launch of the window was launched before the profiler counts.

    Parameters
    ----------
    events : polars.DataFrame
        Rows of :func:`~llmprof.analyze.attribute`: all kernels of one rank.
    recorded : bool
        Whether the trace has the calls that launched them; all kernels count where it has not.

    Returns
    -------
    polars.DataFrame
        The rows that count.
    """
    if recorded:
        first = events["launch_start_ns"].min() or 0
        events = events.filter(pl.col("launch_start_ns").is_not_null() | (pl.col("start_ns") >= first))
    return in_launch_order(events)


def in_launch_order(events: pl.DataFrame) -> pl.DataFrame:
    """Rows in the order in which the host launched them, by their own start where the launch is not known."""
    return events.sort(pl.coalesce("launch_start_ns", "start_ns"), pl.col("start_ns"), pl.col("event"))


_SPECIAL: Final = re.compile(r"([.^$*+?()\[\]{}|\\/])")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")


def ncu_command(
    trace: Trace,
    program: Sequence[str],
    *,
    kernel: str | int | None = None,
    layer: int | None = None,
    stage: str | None = None,
    step: int | None = None,
    phase: str | None = None,
    rank: int | None = None,
    launches: int | None = None,
    output: str = "profile",
    sections: str = "full",
    from_start: bool = False,
) -> list[str]:
    """Command that runs a program again and profiles only the launches that were chosen on its timeline.

    It is safe for a run on several GPUs and true to the timeline:

    - only the functions of the chosen launches pass the filter, and collectives never do: kernel replay runs a kernel
      many times, and one that waits for other ranks then waits for ever;
    - clocks are left alone (``--clock-control none``), since the default locks them to base;
    - ``--launch-skip`` counts launches that pass the filter, on the rank's device, in the order in which the host
      launched them within the profiled window. The window must be the same: by default profiling starts where the
      program calls cudaProfilerStart (vLLM: ``profiler_config={"profiler": "cuda"}``); ``from_start`` is for a trace
      of the whole program;
    - kernels of CUDA graphs are profiled as nodes.

    Nothing is run, and there is no shell: every element is one argument.

    Parameters
    ----------
    trace : Trace
        Timeline of the run.
    program : sequence of str
        The program and its arguments, the same as in the run.
    kernel : str or int, optional
        Name of a kernel, or its function, or its row (``event``) in :func:`~llmprof.analyze.activity.activity`.
    layer, stage, step, phase : optional
        Where, as in :func:`~llmprof.analyze.layers.attribution.attribute`. Without a step the first one that has such
        launches is taken.
    rank : int, optional
        Rank whose device is profiled; the first that has such launches if not given.
    launches : int, optional
        At most so many launches; 1 for a kernel by name, all of the layer and stage otherwise.
    output : str
        Report to write (``.ncu-rep`` is added).
    sections : str
        Set of sections: ``full``, ``detailed``, ``basic``.
    from_start : bool
        Count from the start of the program.

    Returns
    -------
    list of str
        Arguments, to be run as they are.

    Raises
    ------
    AnalysisError
        Nothing was chosen, nothing fits, all that fits are collectives, or the program is missing.
    NotCapturedError
        The trace has no device activity.
    """
    if not program or program[0].startswith("-"):
        raise AnalysisError(
            f"the program to run again is {list(program)!r}", expected="a program and its arguments, as in the run"
        )
    if kernel is None and layer is None and stage is None:
        raise AnalysisError("no launches were chosen", expected="a kernel, or a layer, or a stage")
    if launches is not None and launches < 1:
        raise AnalysisError(f"launches is {launches}", expected="at least 1")
    events = attribute(trace).filter(pl.col("source") == "kernel")
    events = events.with_columns(names_functions.function(events["name"]).alias("function"))
    chosen = _chosen(events, kernel, {"layer": layer, "stage": stage, "step": step, "phase": phase, "rank": rank})
    if launches is None and kernel is not None:
        launches = 1
    chosen = in_launch_order(chosen)[:launches]
    window = [] if from_start else ["--profile-from-start", "off"]
    ends = ["--set", sections, "--export", output, "--force-overwrite"]
    options = _options(events, chosen, launches_recorded=trace.has("runtime"))
    return ["ncu", "--target-processes", "all", *window, *options, *ends, *program]


def _chosen(events: pl.DataFrame, kernel: str | int | None, where: dict[str, int | str | None]) -> pl.DataFrame:
    """Events that were asked for, of one rank and step, without collectives."""
    asked = {"kernel": kernel, **where}
    said = ", ".join(f"{name} {value!r}" for name, value in asked.items() if value is not None)
    found = events.filter([pl.col(name) == value for name, value in where.items() if value is not None] or True)
    if isinstance(kernel, int):
        found = found.filter(pl.col("event") == kernel)
    elif kernel is not None:
        exact = found.filter(pl.col("name") == kernel)
        found = exact if exact.height else found.filter(pl.col("function") == kernel)
    if not found.height:
        raise AnalysisError(
            f"no kernel of this trace has {said}", hint="attribute(trace) lists kernels with their layers and stages"
        )
    alone = found.filter(pl.col("category") != "collective")
    if not alone.height:
        raise AnalysisError(
            f"all kernels with {said} are collectives, which wait for ever when they are run again alone",
            hint="look at them on the timeline: llmprof.analyze.collectives(trace)",
        )
    first = alone.sort("rank", "step", "start_ns", nulls_last=True)
    same = [pl.col(c).eq_missing(pl.lit(first[c][0], dtype=first.schema[c])) for c in ("rank", "step")]
    return alone.filter(same)


def _options(events: pl.DataFrame, chosen: pl.DataFrame, *, launches_recorded: bool) -> list[str]:
    """Which launches to profile, and how."""
    rank = chosen["rank"][0]
    functions = chosen["function"].unique().sort().to_list()
    of_rank = counted_launches(events.filter(pl.col("rank") == rank), recorded=launches_recorded)
    of_rank = of_rank.filter(pl.col("function").is_in(functions))
    if of_rank.filter(pl.col("category") == "collective").height:
        raise AnalysisError(
            f"the functions {functions} are those of collectives too, which must not be profiled",
            hint="choose another kernel",
        )
    places = of_rank.with_row_index("place").join(chosen.select("event"), on="event", how="semi")["place"]
    if not len(places):
        raise AnalysisError(
            "the chosen kernels were launched before the window began, so they cannot be counted",
            hint="choose a later step",
        )
    skip, count = places[0], places[-1] - places[0] + 1
    names = "|".join(_escaped(function) for function in functions)
    devices = [] if chosen["device"][0] is None else ["--devices", str(chosen["device"][0])]
    return [
        *("--replay-mode", "kernel"),
        *("--graph-profiling", "node"),
        *("--clock-control", "none"),
        *("--filter-mode", "per-gpu"),
        *devices,
        *("--kernel-name-base", "function"),
        *("--kernel-name", f"regex:^({names})$"),
        *("--launch-skip", str(skip)),
        *("--launch-count", str(count)),
    ]


def _escaped(name: str) -> str:
    """Name as a regular expression for exactly it; what cannot be printed matches any character."""
    return _UNPRINTABLE.sub(".", _SPECIAL.sub(r"\\\1", name))
