"""What the host does while a device is idle, in words, and advice by the call that it is in."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from llmprof.analyze.findings.scope import Scope, most, total
from llmprof.analyze.steps import labels
from llmprof.units import format_share

UNRECORDED = "code that was not recorded"

LEAST_NAMED = 0.05
"""Least share of some gaps in a call or function for it to be named after code that was not recorded."""

MOSTLY = 0.5
"""With at least this share of the time of some gaps, a call or a pause is most of it."""

LOADING = (
    "(?i)ModuleLoad|LibraryLoad|ModuleGet",
    " This call loads the code of kernels, once for each module: warm up before the profiler starts.",
)
COMPILING = (
    "(?i)nvrtc|hiprtc|CompileProgram|cuLink(?:Create|Add|Complete)|compile_fx|async_compile",
    " This compiles kernels, once for each shape: warm up with the same shapes before the profiler starts.",
)
DOING_OF_ANY_PROGRAM = (LOADING, COMPILING)
"""Advice by the call or range in which the launching thread spends most time, if nothing recorded shows PyTorch."""

DOING = (
    (
        "(?i)aclopCompile",
        " This call compiles operators while the step waits: torch.npu.set_compile_mode(jit_compile=False) takes "
        "compiled ones.",
    ),
    *DOING_OF_ANY_PROGRAM,
)
"""The same for a program of PyTorch."""

CALLS = (
    (
        "(?i)memcpy",
        "A blocking copy keeps the stream from going on: copy from and to pinned memory with non_blocking=True, on a "
        "stream of its own, and take .item(), .cpu() and .tolist() out of the step.",
    ),
    (
        "(?i)alloc|free|hostregister",
        "Take the memory before the step: warm up with the largest batch, and keep blocks in the allocator's cache "
        "instead of giving them back.",
    ),
    ("(?i)module|library", "Load the code before the step: one warm-up run with the same shapes."),
    ("(?i)graph", "Build the graphs before the step, and replay them."),
)
"""Advice by the call that holds a device."""

CALLS_OF_ANY_PROGRAM = (
    (
        "(?i)memcpy",
        "A blocking copy keeps the stream from going on: copy asynchronously, from and to pinned memory, on a stream "
        "of its own.",
    ),
    ("(?i)alloc|free|hostregister", "Take the memory once, before the work that repeats, and keep it."),
    ("(?i)module|library", "Load the code before the work that repeats: run it once to warm up."),
    ("(?i)graph", "Build the graphs before the work that repeats, and replay them."),
)
"""The same if nothing recorded shows PyTorch."""


OF_A_DEVICE = r"^(?:(?:cuda|cu|hip|mu|musa|aclrt|aclmdl|aclnn|aclop|acl|rt|ge|hccl|nccl)_?[A-Z]|hsa_|__hip|\w+@)"
"""Names of calls of a device's runtime, driver and communication library."""

MPI = r"^P?MPI_[A-Z]"
ELSEWHERE = (
    "Do it while the device works, on another thread or after the launches, or find out what it waits for (a file, "
    "another thread or process)."
)
"""Advice for calls that are none of a device's."""


def advice_for(name: str, table: Sequence[tuple[str, str]]) -> str:
    """Advice of the first pattern that a name matches; empty if none does."""
    return next((text for pattern, text in table if pl.Series([name]).str.contains(pattern)[0]), "")


def calls_advice(scope: Scope) -> Sequence[tuple[str, str]]:
    """Advice by the call that holds a device, for the recorded program."""
    return CALLS if scope.of_torch else CALLS_OF_ANY_PROGRAM


def doing_advice(scope: Scope, doing: str) -> str:
    """Advice by the call in which the launching thread spends most time, for the recorded program."""
    return advice_for(doing, DOING if scope.of_torch else DOING_OF_ANY_PROGRAM)


def in_another_call(scope: Scope, gaps: pl.DataFrame) -> str:
    """Advice if one call or range that launches nothing (memory, code, files, MPI) takes at least half of some gaps."""
    known = gaps.filter(pl.col("doing").is_not_null())
    if not known.height:
        return ""
    call, _ = most(known, "doing")
    inside = known.filter(pl.col("doing") == call)
    share = total(inside, "dur_ns") / max(1.0, total(gaps, "dur_ns"))
    of_calls = (calls_advice(scope)[1], LOADING) if inside["doing_kind"][0] == "call" else ()
    set_up = advice_for(call, (*of_calls, COMPILING)).strip()
    elsewhere = (pl.col("doing_kind") == "call") & ~pl.col("doing").str.contains(OF_A_DEVICE)
    elsewhere |= pl.col("doing").str.contains(MPI) & pl.col("doing_kind").is_in(["call", "range"])
    if share < MOSTLY or not (set_up or inside.select(elsewhere.any()).item()):
        return ""
    once = float(inside["dur_ns"].max() or 0) >= MOSTLY * total(inside, "dur_ns")  # type: ignore[arg-type]
    plain = call.replace("{", "{{").replace("}", "}}")
    words = f"Fewer launches do not shorten {plain} ({format_share(share)}). {set_up or ELSEWHERE}"
    return words + (" Most of it is one pause: if it comes only once, start the profiler after it." if once else "")


def doing_words(scope: Scope, gaps: pl.DataFrame) -> str:
    """Text for the call or function in which the launching thread spent most of some gaps.

    The range of a step, or one around it, holds all that the step does: a thread in it, and in nothing below it, is in
    code that was not recorded.
    """
    whole = max(1.0, total(gaps, "dur_ns"))
    around = (pl.col("doing_kind") == "range") & pl.col("doing").is_in(scope.around_steps.implode())
    label = (pl.col("doing_kind") != "call") & pl.col("doing").str.contains(labels.ANY)
    below = gaps.filter(pl.col("doing").is_not_null() & ~around & ~label)
    if not below.height:
        return UNRECORDED
    numbered = pl.when(pl.col("doing_kind") == "range").then(pl.col("doing").str.replace_all(r"\d+", "#"))
    below = below.with_columns(_alike=pl.coalesce(numbered, "doing"))
    same = below.filter(pl.col("_alike") == most(below, "_alike")[0])
    name, _ = most(same, "doing")
    inside, unknown = total(same, "dur_ns") / whole, 1 - total(below, "dur_ns") / whole
    short = name if len(name) <= 80 else name[:79] + "…"
    ranges = f"ranges such as {short}" if same["doing"].n_unique() > 1 else f"the range {short}"
    what = {"range": ranges, "python": f"the Python function {short}"}
    words = f"{what.get(same['doing_kind'][0], short)} ({format_share(inside)})"
    if unknown <= inside:
        return words
    return f"{UNRECORDED} ({format_share(unknown)})" + (f", then {words}" if inside >= LEAST_NAMED else "")
