"""What the host does while a device is idle, and the kind of the call that it is in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from llmprof.findings.scope import Scope, most, total
from llmprof.label.steps import labels

LEAST_NAMED = 0.05
"""Least share of some gaps in a call or function for it to be named after code that was not
recorded.
"""

MOSTLY = 0.5
"""With at least this share of the time of some gaps, a call or a pause is most of it."""

SET_UP = {
    "loading": "(?i)ModuleLoad|LibraryLoad|ModuleGet",
    "compiling": (
        "(?i)nvrtc|hiprtc|CompileProgram|cuLink(?:Create|Add|Complete)|compile_fx|async_compile"
    ),
    "operators": "(?i)aclopCompile",
}
"""Calls that set something up once: the code of kernels is loaded, kernels or operators are
compiled.
"""

CALLS = {
    "copy": "(?i)memcpy",
    "memory": "(?i)alloc|free|hostregister",
    "code": "(?i)module|library",
    "graph": "(?i)graph",
}
"""Kinds of calls that hold a device."""

OF_A_DEVICE = r"^(?:(?:cuda|cu|hip|mu|musa|aclrt|aclmdl|aclnn|aclop|acl|rt|ge|hccl|nccl)_?[A-Z]|hsa_|__hip|\w+@)"  # noqa: E501
"""Names of calls of a device's runtime, driver and communication library."""

MPI = r"^P?MPI_[A-Z]"


def kind_of(name: str | None, patterns: Mapping[str, str]) -> str | None:
    """The first kind whose pattern a name matches."""
    return next(
        (kind for kind, pattern in patterns.items() if pl.Series([name]).str.contains(pattern)[0]),
        None,
    )


def in_another_call(scope: Scope, gaps: pl.DataFrame) -> dict[str, Any] | None:
    """One call or range that launches nothing (memory, code, files, MPI), if it takes at least
    half of some gaps.
    """
    known = gaps.filter(pl.col("doing").is_not_null())
    if not known.height:
        return None
    call, _ = most(known, "doing")
    inside = known.filter(pl.col("doing").eq_missing(call))
    share = total(inside, "dur_ns") / max(1.0, total(gaps, "dur_ns"))
    once_only = {kind: SET_UP[kind] for kind in ("loading", "compiling")}
    of_calls = {"memory": CALLS["memory"]} | once_only
    set_up = kind_of(
        call, of_calls if inside["doing_kind"][0] == "call" else {"compiling": SET_UP["compiling"]}
    )
    elsewhere = (pl.col("doing_kind") == "call") & ~pl.col("doing").str.contains(OF_A_DEVICE)
    elsewhere |= pl.col("doing").str.contains(MPI) & pl.col("doing_kind").is_in(["call", "range"])
    if share < MOSTLY or not (set_up or inside.select(elsewhere.any()).item()):
        return None
    once = float(inside["dur_ns"].max() or 0) >= MOSTLY * total(inside, "dur_ns")  # type: ignore[arg-type]
    return {"call": call, "share": share, "set_up": set_up, "once": once}


def doing(scope: Scope, gaps: pl.DataFrame) -> dict[str, Any]:
    """The call or function in which the launching thread spent most of some gaps, and the share
    that is not recorded.

    The range of a step, or one around it, holds all that the step does: a thread in it, and in
    nothing below it, is in code that was not recorded.
    """
    nothing: dict[str, Any] = dict.fromkeys(("name", "kind", "share", "unrecorded_share", "set_up"))
    whole = max(1.0, total(gaps, "dur_ns"))
    around = (pl.col("doing_kind") == "range") & pl.col("doing").is_in(scope.around_steps.implode())
    label = (pl.col("doing_kind") != "call") & pl.col("doing").str.contains(labels.ANY)
    below = gaps.filter(pl.col("doing").is_not_null() & ~around & ~label)
    if not below.height:
        return nothing
    numbered = pl.when(pl.col("doing_kind") == "range").then(
        pl.col("doing").str.replace_all(r"\d+", "#")
    )
    below = below.with_columns(_alike=pl.coalesce(numbered, "doing"))
    same = below.filter(pl.col("_alike").eq_missing(most(below, "_alike")[0]))
    name, _ = most(same, "doing")
    # what is not in a call while a launch is under way is its delay
    waiting = gaps.filter(
        (pl.col("cause") == "launch") & (pl.col("doing").is_null() | around | label)
    )
    inside, unknown = (
        total(same, "dur_ns") / whole,
        1 - (total(below, "dur_ns") + total(waiting, "dur_ns")) / whole,
    )
    found = nothing | {"unrecorded_share": unknown if unknown > inside else None}
    if unknown > inside and inside < LEAST_NAMED:
        return found
    short = name if len(name) <= 80 else name[:79] + "…"
    kind = "ranges" if same["doing"].n_unique() > 1 else same["doing_kind"][0]
    return found | {"name": short, "kind": kind, "share": inside, "set_up": kind_of(short, SET_UP)}
