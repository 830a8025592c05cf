"""What the host does while a device is idle, and the kind of the call that it is in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from llmprof.findings.cause import Context
from llmprof.findings.scope import Scope, heaviest, max_of, sum_of
from llmprof.label.intervals import length_within, merge
from llmprof.label.steps import labels
from llmprof.text import joined
from llmprof.trace.schema import END
from llmprof.units import format_ns, format_share

MIN_NAMED: Final = 0.05
"""Least share of some gaps in a call or function for it to be named after code that was not
recorded.
"""

MOSTLY: Final = 0.5
"""With at least this share of the time of some gaps, a call or a pause is most of it."""

SET_UP: Final = {
    "loading": "(?i)ModuleLoad|LibraryLoad|ModuleGet",
    "compiling": (
        "(?i)nvrtc|hiprtc|CompileProgram|cuLink(?:Create|Add|Complete)|compile_fx|async_compile"
    ),
    "operators": r"(?i)aclopCompile$|\bopCompile\b",
}
"""Calls that set something up once: the code of kernels is loaded, kernels or operators are
compiled.
"""

CALLS: Final = {
    "copy": "(?i)memcpy",
    "memory": "(?i)alloc|free|hostregister",
    "code": "(?i)module|library",
    "graph": "(?i)graph",
}
"""Kinds of calls that hold a device."""

DEVICE_CALLS: Final = r"^(?:(?:cuda|cu|hip|mu|musa|aclrt|aclmdl|aclnn|aclop|acl|rt|ge|hccl|nccl)_?[A-Z]|hsa_|__hip|\w+@)"  # noqa: E501
"""Names of calls of a device's runtime, driver and communication library."""

MPI: Final = r"^P?MPI_[A-Z]"

_ADVICE: Final = {
    "copy": (
        "A blocking copy keeps the stream from going on: copy from and to pinned memory with"
        " non_blocking=True, on a stream of its own. Take .item(), .cpu() and .tolist() out of the"
        " step.",
        "A blocking copy keeps the stream from going on: copy asynchronously, from and to pinned"
        " memory, on a stream of its own.",
    ),
    "memory": (
        "Take the memory before the step: warm up with the largest batch, and keep blocks in the"
        " allocator's cache instead of giving them back.",
        "Take the memory once, before the work that repeats, and keep it.",
    ),
    "code": (
        "Load the code before the step: one warm-up run with the same shapes.",
        "Load the code before the work that repeats: run it once to warm up.",
    ),
    "graph": (
        "Build the graphs before the step, and replay them.",
        "Build the graphs before the work that repeats, and replay them.",
    ),
    "loading": (
        "The code of a kernel is loaded once, before its first run: warm up before the profiler"
        " starts.",
    ),
    "compiling": (
        "This compiles kernels, once for each shape: warm up with the same shapes before the"
        " profiler starts.",
    ),
}
"""What helps against a call of a kind: in a program of PyTorch, and in any other."""


def advice_on(kind: str, of: Context) -> str:
    """What helps against a kind of call (of :data:`CALLS` or :data:`SET_UP`)."""
    return _ADVICE[kind][0 if of.of_torch else -1]


class RangeAround(Struct, frozen=True):
    """A range of the host that recurs and holds most of some time, but launches little."""

    name: str
    each_ns: float
    count: int
    share: float
    """Share of the time that is in it."""
    children: list[str]
    """Names of ranges in it, the longest first."""

    def __str__(self) -> str:
        within = f" ({joined(self.children)} in it)" if self.children else ""
        return (
            f"{format_share(self.share)} is in {self.count:,} ranges {self.name}{within},"
            f" {format_ns(self.each_ns)} each"
        )


MAX_LAUNCHED: Final = 0.1
"""A range in which more than this share of the kernels is launched is one of the work itself."""

AS_MUCH: Final = 0.9
"""A range with at least this part of what the largest one holds holds about as much."""

_CHILDREN: Final = 3


class HostActivity(Struct, frozen=True):
    """The call or function in which the launching thread spent most of some gaps."""

    name: str | None = None
    kind: str | None = None
    """``call``, ``op``, ``python``, ``range``, or ``ranges`` for several that differ in numbers."""
    share: float | None = None
    unrecorded_share: float | None = None
    """Share of the gaps in code that was not recorded, where that is more."""
    set_up: str | None = None
    """What the call sets up (:data:`SET_UP`)."""
    around: RangeAround | None = None

    def __str__(self) -> str:
        return f"{self.innermost}{'' if self.around is None else f'. {self.around}'}"

    @property
    def innermost(self) -> str:
        """That call or function, with its share."""
        unrecorded = self.unrecorded_share
        blind = "code that was not recorded"
        if unrecorded is not None:
            blind += f" ({format_share(unrecorded)})"
        if self.name is None:
            return blind
        what = {"range": "the range ", "ranges": "ranges such as ", "python": "the function "}
        # nsys adds the version of the call
        name = re.sub(r"_v\d{4,}$", "", self.name)
        named = f"{what.get(self.kind or '', '')}{name} ({format_share(self.share)})"
        return named if unrecorded is None else f"{blind}, then {named}"


class OtherCall(Struct, frozen=True):
    """A call or range that launches nothing (memory, code, files) and takes most of some gaps."""

    call: str
    share: float
    set_up: str | None = None
    """The kind of what it sets up; None where it sets up nothing."""
    once: bool = False
    """Whether most of it is one pause."""


def first_match(name: str | None, patterns: Mapping[str, str]) -> str | None:
    """The first kind whose pattern a name matches."""
    return next(
        (kind for kind, pattern in patterns.items() if pl.Series([name]).str.contains(pattern)[0]),
        None,
    )


def other_call(gaps: pl.DataFrame) -> OtherCall | None:
    """One call or range that launches nothing, if it takes at least half of some gaps."""
    known = gaps.group_by("host_name", "host_kind", maintain_order=True).agg(
        pl.sum("dur_ns"), longest=pl.max("dur_ns")
    )
    known = known.drop_nulls("host_name")
    if not known.height:
        return None
    call, _ = heaviest(known, "host_name")
    inside = known.filter(pl.col("host_name").eq_missing(call))
    share = sum_of(inside, "dur_ns") / max(1.0, sum_of(gaps, "dur_ns"))
    once_only = {kind: SET_UP[kind] for kind in ("loading", "compiling")}
    of_calls = {"memory": CALLS["memory"]} | once_only
    is_call = inside["host_kind"][0] == "call"
    set_up = first_match(call, of_calls if is_call else {"compiling": SET_UP["compiling"]})
    elsewhere = (pl.col("host_kind") == "call") & ~pl.col("host_name").str.contains(DEVICE_CALLS)
    elsewhere |= pl.col("host_name").str.contains(MPI) & pl.col("host_kind").is_in(
        ["call", "range"]
    )
    if share < MOSTLY or not (set_up or inside.select(elsewhere.any()).item()):
        return None
    once = (max_of(inside, "longest") or 0) >= MOSTLY * sum_of(inside, "dur_ns")
    return OtherCall(call, share, set_up, once)


def range_around(
    scope: Scope, rows: pl.DataFrame, innermost: str | None = None
) -> RangeAround | None:
    """The range with most of the time of some rows (``rank, start_ns, dur_ns``), if it has half
    of it and is more than the innermost one.
    """
    if not rows.height or not scope.trace.has("markers"):
        return None
    name, end = pl.col("name"), END
    own = ~pl.col("on_device") & ~name.is_in(scope.step_ranges.implode())
    ranges = scope.trace.markers.filter(own & ~name.str.contains(labels.ANY))
    ranges = length_within(
        ranges[["rank", "name", "start_ns", "dur_ns"]], rows, ["rank"], name="ns"
    )
    # ranges that differ in their numbers count together
    alike = name.str.replace_all(r"\b\d+\b", "*")
    several = pl.when(name.n_unique().over("rank", alike) > 1).then(alike).otherwise(name)
    ranges = ranges.filter(pl.col("ns") > 0).with_columns(name=several)
    union = merge(ranges, ["rank", "name"])
    covered = length_within(union, rows, ["rank"], name="ns").group_by("name").agg(pl.sum("ns"))
    whole = sum_of(merge(rows, ["rank"]), "dur_ns")
    begun = scope.events.drop_nulls("launch_start_ns").select("rank", "launch_start_ns")
    # of several that hold about as much, the one that holds least beside it
    lengths = union.group_by("name").agg(pl.sum("dur_ns"))
    known = covered.filter(pl.col("ns") >= MOSTLY * whole).join(lengths, on="name")
    known = known.sort(pl.col("ns") < AS_MUCH * pl.max("ns"), "dur_ns", "name")
    for found, ns, _ in known.iter_rows():
        within = union.filter(name=found).sort("start_ns")
        launched = begun.sort("launch_start_ns").join_asof(
            within.with_columns(end=end),
            left_on="launch_start_ns",
            right_on="start_ns",
            by="rank",
            check_sortedness=False,
        )
        inside = launched.filter(pl.col("launch_start_ns") < pl.col("end")).height
        of_name = ranges.filter(name=found)
        if of_name.height < 2 or inside > MAX_LAUNCHED * begun.height:
            continue
        others = length_within(ranges.filter(name != found), within, ["rank"], name="inside")
        others = others.filter(pl.col("inside") == pl.col("dur_ns"))
        children = others.group_by("name").agg(pl.sum("dur_ns")).sort("dur_ns", descending=True)
        names = children["name"].head(_CHILDREN).to_list()
        if found == innermost and not names:
            return None
        each_ns = sum_of(of_name, "dur_ns") / of_name.height
        return RangeAround(found, each_ns, of_name.height, ns / whole, names)
    return None


def host_activity(scope: Scope, gaps: pl.DataFrame) -> HostActivity:
    """The call or function in which the launching thread spent most of some gaps, the range around
    it, and the share that is not recorded.
    """
    found = _innermost_activity(scope, gaps)
    return replace(found, around=range_around(scope, gaps, found.name))


def _innermost_activity(scope: Scope, gaps: pl.DataFrame) -> HostActivity:
    """The innermost call or function, and the share that is not recorded.

    The range of a step, or one around it, holds all that the step does: a thread in it, and in
    nothing below it, is in code that was not recorded.
    """
    whole = max(1.0, sum_of(gaps, "dur_ns"))
    gaps = gaps.group_by("host_name", "host_kind", "cause", maintain_order=True).agg(
        pl.sum("dur_ns")
    )
    around = (pl.col("host_kind") == "range") & pl.col("host_name").is_in(
        scope.step_ranges.implode()
    )
    label = (pl.col("host_kind") != "call") & pl.col("host_name").str.contains(labels.ANY)
    below = gaps.filter(pl.col("host_name").is_not_null() & ~around & ~label)
    if not below.height:
        return HostActivity()
    # ranges that differ in their numbers count together
    numbered = pl.when(pl.col("host_kind") == "range").then(
        pl.col("host_name").str.replace_all(r"\d+", "#")
    )
    below = below.with_columns(_alike=pl.coalesce(numbered, "host_name"))
    same = below.filter(pl.col("_alike").eq_missing(heaviest(below, "_alike")[0]))
    name, _ = heaviest(same, "host_name")
    # what is not in a call while a launch is under way is its delay
    waiting = gaps.filter(
        (pl.col("cause") == "launch") & (pl.col("host_name").is_null() | around | label)
    )
    inside = sum_of(same, "dur_ns") / whole
    unknown = 1 - (sum_of(below, "dur_ns") + sum_of(waiting, "dur_ns")) / whole
    unrecorded = unknown if unknown > inside else None
    if unrecorded is not None and inside < MIN_NAMED:
        return HostActivity(unrecorded_share=unrecorded)
    short = name if len(name) <= 80 else name[:79] + "…"
    kind = "ranges" if same["host_name"].n_unique() > 1 else same["host_kind"][0]
    return HostActivity(short, kind, inside, unrecorded, first_match(short, SET_UP))
