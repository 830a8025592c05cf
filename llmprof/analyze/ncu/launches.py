"""Launches of Nsight Compute: their match with kernels of a timeline, and the command that
profiles chosen launches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from llmprof.errors import AnalysisError, listed
from llmprof.names import kernels as names_kernels
from llmprof.trace import Trace
from llmprof.trace.metrics.data import Metrics
from llmprof.trace.platforms import NVIDIA, UNKNOWN

_LEVELS: Final = (
    ("name, grid and block", 1.0, ("comparable", "grid", "block")),
    ("function, grid and block", 0.9, ("function", "grid", "block")),
    ("name", 0.4, ("comparable",)),
    ("function", 0.2, ("function",)),
)
"""Levels of agreement, each with the confidence in the kind of a kernel and its columns; the
first that fits counts.
"""

_UNKNOWN_GRID: Final = 0.7
_REPEATED, _BY_ORDER = 0.9, 0.7
_LEAST_SEQUENCE: Final = 3
_FIRST: Final = 0x10000
"""First code point for a kind of kernel: sequences of kinds are compared as text, which is fast."""

_SCHEMA: Final = {
    "kernel_id": pl.Int32,
    "event": pl.UInt32,
    **dict.fromkeys(("evidence", "kind"), pl.String),
    "confidence": pl.Float64,
    "count": pl.Int64,
}


def join(trace: Trace, metrics: Metrics) -> pl.DataFrame:
    """Match profiled launches with the kernels of a timeline, by name, grid, block and order.

    Names are compared without the parts that profilers write differently
    (:mod:`llmprof.names.kernels`). Launches of a run are matched as sequences: the longest
    stretches of the timeline's kernels of the profiled kinds with the same order as in the profile,
    so a filter on names, or skipped collectives, do no harm. If a stretch fits several places, the
    first one after the previous launch is taken, and ``count`` says how many there are.

    ``confidence`` is the product of two:

    - what agrees: 1 for name, grid and block; 0.9 for the function's name without template
      arguments, grid and block; 0.7 for the name where one side does not know the grid; 0.4 for the
      name with another grid; 0.2 for the function with another grid;
    - the place: 1 for a stretch of at least 3 launches (or the whole profile) with one place, 0.9
      with several, 0.7 for shorter ones, which follow from the order alone.

    Parameters
    ----------
    trace : Trace
        A timeline with kernels, of the same program.
    metrics : Metrics
        Hardware metrics of some of its launches.

    Returns
    -------
    polars.DataFrame
        One row for each profiled launch: ``kernel_id, kernel_name, grid, block``, of the timeline's
        kernel ``event`` (row of :func:`~llmprof.label.activity.activity`)``, rank, name,
        start_ns, dur_ns``, the profiled time ``other_dur_ns`` and its ``ratio`` to the timeline's,
        then ``evidence, kind`` (of the match: sequence or order)``, confidence`` (0 if nothing
        fits)``, count``.

    Raises
    ------
    NotCapturedError
        The trace has no kernels.
    """
    timeline = _timeline(trace)
    launches = metrics.kernels
    launches = launches.with_columns(
        comparable=names_kernels.comparable(launches["kernel_name"]),
        function=names_kernels.function(launches["kernel_name"]),
    )
    matches: list[pl.DataFrame] = [pl.DataFrame(schema=_SCHEMA)]
    groups = launches[["kernel_id", "run", "process", "device"]].fill_null(-1)
    for _, group in groups.group_by("run", "process", "device", maintain_order=True):
        part = launches.filter(pl.col("kernel_id").is_in(group["kernel_id"].implode()))
        of_ranks = [_of_rank(part, kernels) for kernels in timeline.partition_by("rank")]
        matches += sorted(of_ranks, key=lambda one: -float(one["confidence"].sum()))[:1]
    matched = launches.join(pl.concat(matches), on="kernel_id", how="left", maintain_order="left")
    of_kernel = timeline[["event", "rank", "name", "start_ns", "dur_ns"]]
    matched = matched.rename({"dur_ns": "other_dur_ns"})
    return matched.join(of_kernel, on="event", how="left", maintain_order="left").select(
        *(
            "kernel_id",
            "kernel_name",
            "grid",
            "block",
            "event",
            "rank",
            "name",
            "start_ns",
            "dur_ns",
            "other_dur_ns",
        ),
        ratio=pl.when(pl.col("dur_ns") > 0).then(pl.col("other_dur_ns") / pl.col("dur_ns")),
        evidence="evidence",
        kind="kind",
        confidence=pl.col("confidence").fill_null(0.0),
        count=pl.col("count").fill_null(0),
    )


def _timeline(trace: Trace) -> pl.DataFrame:
    """Kernels in the order of their start, with the columns that are compared."""
    kernels = trace.kernels.with_columns(
        comparable=names_kernels.comparable(trace.kernels["name"]),
        function=names_kernels.function(trace.kernels["name"]),
        grid=_size("grid"),
        block=_size("block"),
    ).sort("rank", "start_ns", "stream", maintain_order=True)
    events = trace.events.filter(source="kernel")
    return kernels.hstack(events[["event"]])


def _size(side: str) -> pl.Expr:
    return pl.concat_str(
        pl.lit("("),
        pl.concat_str([pl.col(f"{side}_{axis}") for axis in "xyz"], separator=", "),
        pl.lit(")"),
    )


def _of_rank(launches: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Matches of the launches of one process among the kernels of one rank."""
    ours, theirs = _kinds(launches, kernels)
    ids, events = ours["kernel_id"].to_list(), theirs["event"].to_list()
    launch_kinds, event_kinds = (
        "".join(chr(_FIRST + kind) for kind in side["kind"]) for side in (ours, theirs)
    )
    rows: list[tuple[int, int, str, float, int]] = []
    launch, last = 0, 0
    while launch < len(launch_kinds):
        length = max(1, _longest(launch_kinds, launch, event_kinds))
        stretch = launch_kinds[launch : launch + length]
        place = event_kinds.find(stretch, last)
        place = event_kinds.find(stretch) if place < 0 else place
        places = _count(event_kinds, stretch)
        in_sequence = length >= _LEAST_SEQUENCE or (length == len(launch_kinds) and places == 1)
        sure = (1.0 if places == 1 else _REPEATED) if in_sequence else _BY_ORDER
        match = "sequence" if in_sequence else "order"
        rows += [(ids[launch + i], events[place + i], match, sure, places) for i in range(length)]
        launch, last = launch + length, place + length
    schema = {name: _SCHEMA[name] for name in ("kernel_id", "event", "kind", "confidence", "count")}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    frame = frame.join(
        ours.select("kernel_id", "evidence", "sure", no_grid=pl.col("grid").is_null()),
        on="kernel_id",
    )
    frame = frame.join(
        theirs.select("event", no_grid_there=pl.col("grid").is_null()), on="event", how="left"
    )
    unknown = (pl.col("evidence") == "name") & (pl.col("no_grid") | pl.col("no_grid_there"))
    sure_of_kind = pl.when(unknown).then(_UNKNOWN_GRID).otherwise("sure")
    return frame.with_columns(confidence=pl.col("confidence") * sure_of_kind).select(list(_SCHEMA))


def _kinds(launches: pl.DataFrame, kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Launches and kernels with a counterpart, with the number of their kind: the first level
    both have.
    """
    ours, theirs = [], []
    rest, others, number = launches.with_row_index("_at"), kernels.with_row_index("_at"), 0
    for agrees, sure, columns in _LEVELS:
        matching = rest.drop_nulls(columns).join(others, on=columns, how="semi")
        kinds = (
            matching.select(columns)
            .unique(maintain_order=True)
            .with_row_index("kind", offset=number)
        )
        number += kinds.height
        level = {"evidence": pl.lit(agrees), "sure": pl.lit(sure)}
        ours.append(rest.join(kinds, on=columns, how="inner").with_columns(**level))
        theirs.append(others.join(kinds, on=columns, how="inner"))
        rest = rest.join(kinds, on=columns, how="anti")
        others = others.join(kinds, on=columns, how="anti")
    return pl.concat(ours).sort("_at"), pl.concat(theirs).sort("_at")


def _longest(launch_kinds: str, first: int, event_kinds: str) -> int:
    """Length of the longest stretch from a place that occurs anywhere, by bisection, since its
    prefixes occur, too.
    """
    least, most = 0, len(launch_kinds) - first
    while least < most:
        middle = (least + most + 1) // 2
        if launch_kinds[first : first + middle] in event_kinds:
            least = middle
        else:
            most = middle - 1
    return least


def _count(event_kinds: str, stretch: str) -> int:
    """Places of a stretch, overlapping ones too."""
    count, place = 0, event_kinds.find(stretch)
    while place >= 0:
        count += 1
        place = event_kinds.find(stretch, place + 1)
    return count


def counted_launches(events: pl.DataFrame, *, recorded: bool) -> pl.DataFrame:
    """Kernels of a rank whose launches a profiler counts, in the order in which the host
    launched them.
    """
    if recorded:
        first = events["launch_start_ns"].min() or 0
        events = events.filter(
            pl.col("launch_start_ns").is_not_null() | (pl.col("start_ns") >= first)
        )
    return in_launch_order(events)


def in_launch_order(events: pl.DataFrame) -> pl.DataFrame:
    """Rows in the order in which the host launched them; by their own start if the launch is
    unknown.
    """
    return events.sort(
        pl.coalesce("launch_start_ns", "start_ns"), pl.col("start_ns"), pl.col("event")
    )


_SPECIAL: Final = re.compile(r"([.^$*+?()\[\]{}|\\/])")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")


def command(
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
    """Command that runs a program again and profiles only the launches that were chosen on its
    timeline.

    Only the functions of the chosen launches pass its filter, and collectives never do: replayed
    again and again, one would wait for other ranks for ever. Clocks are not locked
    (``--clock-control none``). ``--launch-skip`` counts launches that pass the filter, on the
    rank's device, in the order of the host within the profiled window, which must be the same in
    both runs: by default it starts where the program calls cudaProfilerStart (vLLM:
    ``profiler_config={"profiler": "cuda"}``). Kernels of CUDA graphs are profiled as nodes. Nothing
    is run, and there is no shell: every element is one argument.

    Parameters
    ----------
    trace : Trace
        Timeline of the run.
    program : sequence of str
        The program and its arguments, the same as in the run.
    kernel : str or int, optional
        Name of a kernel, or its function, or its row (``event``) in
        :func:`~llmprof.label.activity.activity`.
    layer, stage, step, phase : optional
        Where, as in :attr:`llmprof.Trace.events`. Without a step the first
        one that has such launches is taken.
    rank : int, optional
        Rank whose device is profiled; the first that has such launches if not given.
    launches : int, optional
        At most so many launches; 1 for a kernel by name, all of the layer and stage otherwise.
    output : str
        Report to write (``.ncu-rep`` is added).
    sections : str
        Set of sections: ``full``, ``detailed``, ``basic``.
    from_start : bool
        Count from the start of the program, for a trace of all of it.

    Returns
    -------
    list of str
        Arguments of the command.

    Raises
    ------
    AnalysisError
        Nothing was chosen, nothing fits, all that fits are collectives, the program is missing, or
        the kernels are not NVIDIA's.
    NotCapturedError
        The trace has no device activity.
    """
    if not program or program[0].startswith("-"):
        found = f"the program to run again is {listed(program)}"
        raise AnalysisError(found, expected="a program and its arguments, as in the run")
    if kernel is None and layer is None and stage is None:
        raise AnalysisError("no launches were chosen", expected="a kernel, or a layer, or a stage")
    if launches is not None and launches < 1:
        raise AnalysisError(f"launches is {launches}", expected="at least 1")
    if trace.capture.platform not in (NVIDIA, UNKNOWN):
        raise AnalysisError(
            f"ncu profiles kernels of NVIDIA, and these are of {trace.meta.get('device')}",
            hint="AMD: rocprof-compute profile; Ascend: msprof op",
        )
    events = trace.events.filter(source="kernel")
    events = events.with_columns(function=names_kernels.function(events["name"]))
    chosen = _chosen(
        events, kernel, {"layer": layer, "stage": stage, "step": step, "phase": phase, "rank": rank}
    )
    if launches is None and kernel is not None:
        launches = 1
    chosen = in_launch_order(chosen)[:launches]
    window = [] if from_start else ["--profile-from-start", "off"]
    ends = ["--set", sections, "--export", output, "--force-overwrite"]
    options = _options(events, chosen, launches_recorded=trace.has("runtime"))
    return ["ncu", "--target-processes", "all", *window, *options, *ends, *program]


def _chosen(
    events: pl.DataFrame, kernel: str | int | None, where: dict[str, int | str | None]
) -> pl.DataFrame:
    """Requested events of one rank and step, without collectives."""
    conditions = {"kernel": kernel, **where}
    wording = ", ".join(
        f"{name} {value!r}" for name, value in conditions.items() if value is not None
    )
    rows = events.filter(
        [pl.col(name) == value for name, value in where.items() if value is not None] or True
    )
    if isinstance(kernel, int):
        rows = rows.filter(event=kernel)
    elif kernel is not None:
        exact = rows.filter(name=kernel)
        rows = exact if exact.height else rows.filter(function=kernel)
    if not rows.height:
        found = f"no kernel of this trace has {wording}"
        raise AnalysisError(found, hint="trace.events lists kernels with their layers and stages")
    alone = rows.filter(pl.col("category") != "collective")
    if not alone.height:
        found = (
            f"all kernels with {wording} are collectives, which wait for ever when they are run"
            " again alone"
        )
        raise AnalysisError(
            found, hint="look at them on the timeline: llmprof.analyze.collectives(trace)"
        )
    first = alone.sort("rank", "step", "start_ns", nulls_last=True)
    same = [
        pl.col(c).eq_missing(pl.lit(first[c][0], dtype=first.schema[c])) for c in ("rank", "step")
    ]
    return alone.filter(same)


def _options(events: pl.DataFrame, chosen: pl.DataFrame, *, launches_recorded: bool) -> list[str]:
    """Which launches to profile, and how."""
    rank = chosen["rank"][0]
    functions = chosen["function"].unique().sort().to_list()
    of_rank = counted_launches(events.filter(rank=rank), recorded=launches_recorded)
    of_rank = of_rank.filter(pl.col("function").is_in(functions))
    if of_rank.filter(category="collective").height:
        found = (
            f"the functions {functions} are those of collectives too, which must not be profiled"
        )
        raise AnalysisError(found, hint="choose another kernel")
    places = of_rank.with_row_index("place").join(chosen[["event"]], on="event", how="semi")[
        "place"
    ]
    if not len(places):
        found = (
            "the chosen kernels were launched before the window began, so they cannot be counted"
        )
        raise AnalysisError(found, hint="choose a later step")
    skip, count = places[0], places[-1] - places[0] + 1
    # exactly these names; unprintable characters match any character
    names = "|".join(
        _UNPRINTABLE.sub(".", _SPECIAL.sub(r"\\\1", function)) for function in functions
    )
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
