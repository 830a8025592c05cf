"""Which kernel of the timeline a profiled launch is."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.activity import activity
from llmprof.metrics.data import Metrics
from llmprof.names import functions
from llmprof.trace import Trace

_LEVELS: Final = (
    ("name, grid and block", 1.0, ("comparable", "grid", "block")),
    ("function, grid and block", 0.9, ("function", "grid", "block")),
    ("name", 0.4, ("comparable",)),
    ("function", 0.2, ("function",)),
)
"""What agrees, how sure that makes of the kind of a kernel, and its columns; the first level that fits counts."""

_UNKNOWN_GRID: Final = 0.7
_REPEATED, _BY_ORDER = 0.9, 0.7
_LEAST_SEQUENCE: Final = 3
_FIRST: Final = 0x10000
"""First code point for a kind of kernel: sequences of kinds are compared as text, which is fast."""

_SCHEMA: Final = {
    "kernel_id": pl.Int32,
    "event": pl.UInt32,
    "agrees": pl.String,
    "match": pl.String,
    "confidence": pl.Float64,
    "candidates": pl.Int64,
}


def ncu_join(trace: Trace, metrics: Metrics) -> pl.DataFrame:
    """Match profiled launches with the kernels of a timeline, by name, grid, block and order.

    Names are compared without what profilers write differently (:mod:`llmprof.names.functions`). Launches of a run are
    taken in order and looked up as sequences: among the timeline's kernels of the kinds that were profiled, the
    longest stretches in which kind follows kind as in the profile. So a filter on names, or skipped collectives, do
    no harm. Kernels of a model repeat from layer to layer and step to step; where a stretch fits several places, the
    first one after the launch before is given and ``candidates`` says how many there are.

    ``confidence`` is the product of two:

    - what agrees: 1 for name, grid and block; 0.9 for the function's name without template arguments, grid and block;
      0.7 for the name where one side does not know the grid; 0.4 for the name with another grid; 0.2 for the
      function with another grid;
    - the place: 1 for a stretch of at least 3 launches (or the whole profile) with one place, 0.9 with several, 0.7
      for shorter ones, which follow from the order alone.

    Parameters
    ----------
    trace : Trace
        A timeline with kernels, of the same program.
    metrics : Metrics
        Hardware metrics of some of its launches.

    Returns
    -------
    polars.DataFrame
        One row a profiled launch: ``kernel_id, kernel_name, grid, block``, of the timeline's kernel ``event`` (row of
        :func:`~llmprof.analyze.activity.activity`)``, rank, name, start_ns, dur_ns``, the profiled time
        ``profiled_ns`` and its ``ratio`` to the timeline's, then ``agrees, match`` (sequence or order)``, confidence,
        candidates``. The timeline's columns, ``agrees`` and ``match`` are null and the confidence 0 where nothing
        fits.

    Raises
    ------
    NotCapturedError
        The trace has no kernels.
    """
    timeline = _timeline(trace)
    launches = metrics.kernels
    launches = launches.with_columns(
        comparable=functions.comparable(launches["kernel_name"]),
        function=functions.function(launches["kernel_name"]),
    )
    found: list[pl.DataFrame] = [pl.DataFrame(schema=_SCHEMA)]
    groups = launches.select("kernel_id", "run", "process", "device").fill_null(-1)
    for _, group in groups.group_by("run", "process", "device", maintain_order=True):
        part = launches.filter(pl.col("kernel_id").is_in(group["kernel_id"].implode()))
        best = max((_of_rank(part, kernels) for kernels in timeline.partition_by("rank")), key=_score, default=None)
        if best is not None:
            found.append(best)
    matched = launches.join(pl.concat(found), on="kernel_id", how="left", maintain_order="left")
    of_kernel = timeline.select("event", "rank", "name", "start_ns", "dur_ns")
    return matched.join(of_kernel, on="event", how="left", maintain_order="left").select(
        "kernel_id",
        "kernel_name",
        "grid",
        "block",
        "event",
        "rank",
        "name",
        "start_ns",
        "dur_ns",
        profiled_ns="duration_ns",
        ratio=pl.when(pl.col("dur_ns") > 0).then(pl.col("duration_ns") / pl.col("dur_ns")),
        agrees="agrees",
        match="match",
        confidence=pl.col("confidence").fill_null(0.0),
        candidates=pl.col("candidates").fill_null(0),
    )


def _timeline(trace: Trace) -> pl.DataFrame:
    """Kernels in the order of their start, with what is compared."""
    kernels = trace.kernels.with_columns(
        comparable=functions.comparable(trace.kernels["name"]),
        function=functions.function(trace.kernels["name"]),
        grid=_size("grid"),
        block=_size("block"),
    ).sort("rank", "start_ns", "stream", maintain_order=True)
    events = activity(trace).filter(pl.col("source") == "kernel")
    return kernels.hstack(events.select("event"))


def _size(side: str) -> pl.Expr:
    return pl.concat_str(
        pl.lit("("), pl.concat_str([pl.col(f"{side}_{axis}") for axis in "xyz"], separator=", "), pl.lit(")")
    )


def _score(found: pl.DataFrame) -> float:
    return float(found["confidence"].sum())


def _of_rank(launches: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Matches of the launches of one process among the kernels of one rank."""
    ours, theirs = _kinds(launches, kernels)
    ids, events = ours["kernel_id"].to_list(), theirs["event"].to_list()
    wanted, there = _text(ours["kind"]), _text(theirs["kind"])
    rows: list[tuple[int, int, str, float, int]] = []
    at, last = 0, 0
    while at < len(wanted):
        length = max(1, _longest(wanted, at, there))
        stretch = wanted[at : at + length]
        place = there.find(stretch, last)
        place = there.find(stretch) if place < 0 else place
        places = _count(there, stretch)
        in_sequence = length >= _LEAST_SEQUENCE or (length == len(wanted) and places == 1)
        sure = (1.0 if places == 1 else _REPEATED) if in_sequence else _BY_ORDER
        match = "sequence" if in_sequence else "order"
        rows += [(ids[at + i], events[place + i], match, sure, places) for i in range(length)]
        at, last = at + length, place + length
    schema = {name: _SCHEMA[name] for name in ("kernel_id", "event", "match", "confidence", "candidates")}
    found = pl.DataFrame(rows, schema=schema, orient="row")
    found = found.join(ours.select("kernel_id", "agrees", "sure", no_grid=pl.col("grid").is_null()), on="kernel_id")
    found = found.join(theirs.select("event", no_grid_there=pl.col("grid").is_null()), on="event", how="left")
    unknown = (pl.col("agrees") == "name") & (pl.col("no_grid") | pl.col("no_grid_there"))
    sure_of_kind = pl.when(unknown).then(_UNKNOWN_GRID).otherwise("sure")
    return found.with_columns(confidence=pl.col("confidence") * sure_of_kind).select(list(_SCHEMA))


def _kinds(launches: pl.DataFrame, kernels: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Launches and kernels that have a counterpart, with the number of their kind, both in order.

    A launch has the kind of the first level on which the timeline has it; a kernel that of the first level on which
    some launch has it.
    """
    ours, theirs = [], []
    rest, others, number = launches.with_row_index("_at"), kernels.with_row_index("_at"), 0
    for agrees, sure, columns in _LEVELS:
        known = rest.drop_nulls(columns).join(others, on=columns, how="semi")
        kinds = known.select(columns).unique(maintain_order=True).with_row_index("kind", offset=number)
        number += kinds.height
        level = {"agrees": pl.lit(agrees), "sure": pl.lit(sure)}
        ours.append(rest.join(kinds, on=columns, how="inner").with_columns(**level))
        theirs.append(others.join(kinds, on=columns, how="inner"))
        rest = rest.join(kinds, on=columns, how="anti")
        others = others.join(kinds, on=columns, how="anti")
    return pl.concat(ours).sort("_at"), pl.concat(theirs).sort("_at")


def _text(kinds: pl.Series) -> str:
    return "".join(chr(_FIRST + kind) for kind in kinds)


def _longest(wanted: str, at: int, there: str) -> int:
    """Length of the longest stretch from a place that occurs anywhere, found by halving: what begins it occurs too."""
    least, most = 0, len(wanted) - at
    while least < most:
        middle = (least + most + 1) // 2
        if wanted[at : at + middle] in there:
            least = middle
        else:
            most = middle - 1
    return least


def _count(there: str, stretch: str) -> int:
    """Places of a stretch, overlapping ones too."""
    count, place = 0, there.find(stretch)
    while place >= 0:
        count += 1
        place = there.find(stretch, place + 1)
    return count
