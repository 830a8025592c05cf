"""What stands in the place of each kernel of a run in the other one, of another engine or not."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from llmprof.names import patterns
from llmprof.names.matching import VAGUE, contains

ALIGNED: Final = ("stage", "category", "name")
"""Labels below the phase by which kernels are told apart."""

LEAST: Final = 0.01
"""Share of a step of its run from which on a kernel is told of."""

PLACES: Final = {
    **dict.fromkeys(("phase", "stage", "category", "name", "run"), pl.String),
    **dict.fromkeys(("ns", "count", "share"), pl.Float64),
    **dict.fromkeys(("verdict", "by"), pl.String),
    **dict.fromkeys(("here_ns", "there_ns"), pl.Float64),
    "there": pl.String,
}

_OF_STAGE: Final = {"residual": [r"fused_add|add_?(?:rms|layer)?_?norm|norm_?add"]}
"""What the names of kernels say that do the work of a stage without a category of its own."""

_Kernel = dict[str, Any]


def kernel_places(
    events: pl.DataFrame, steps: pl.DataFrame, *, tolerance: float, runs: tuple[str, str]
) -> pl.DataFrame:
    """Place of each kernel above 1 % of a step in the other run, the largest first."""
    times = {phase: (a, b) for phase, a, b in steps[["phase", "a_ns", "b_ns"]].iter_rows()}
    rows = []
    for (phase,), frame in events.group_by("phase", maintain_order=True):
        spans = times.get(phase, (None, None))
        if not all(spans):
            continue  # only one run has the phase
        kernels = frame.to_dicts()
        told = set()
        for side, other, span, run in zip("ab", "ba", spans, runs, strict=True):
            for kernel in kernels:
                label = tuple(kernel[name] for name in ALIGNED)
                share = kernel[f"{side}_ns"] / span
                if not kernel[f"{side}_count"] or share < LEAST or label in told:
                    continue
                told.add(label)
                verdict, by, mine, theirs = _place(kernel, kernels, side, other)
                here, there = (
                    sum(each[f"{key}_ns"] for each in part)
                    for part, key in ((mine, side), (theirs, other))
                )
                if not verdict:
                    near = abs(there - here) <= tolerance * here
                    verdict = "same" if near else "faster" if there < here else "slower"
                names = ", ".join(dict.fromkeys(each["name"] for each in theirs)) or None
                size = (kernel[f"{side}_ns"], kernel[f"{side}_count"], share)
                found = (verdict, by, here, there if theirs else None, names)
                rows.append((phase, *label, run, *size, *found))
    frame = pl.DataFrame(rows, schema=PLACES, orient="row")
    return frame.sort("phase", "share", descending=[False, True], maintain_order=True)


def _place(
    kernel: _Kernel, kernels: list[_Kernel], side: str, other: str
) -> tuple[str, str | None, list[_Kernel], list[_Kernel]]:
    """The verdict (empty if times decide), what it was found by, and what is compared."""
    stage, category = kernel["stage"], kernel["category"]
    if kernel[f"{side}_count"] == kernel[f"{other}_count"]:
        return "", "name", [kernel], [kernel]
    mine, theirs = (_kin(kernel, kernels, key) for key in (side, other))
    if theirs:
        gone = all(each["category"] != category for each in theirs)
        many, few = (
            sum(each[f"{key}_count"] for each in part)
            for part, key in ((mine, side), (theirs, other))
        )
        if gone and few < many:
            return "fused", "stage", mine, theirs
        by = "stage"
        if {each["category"] for each in mine} == {each["category"] for each in theirs}:
            by = "stage and category"
            mine, theirs = (
                [each for each in part if each["category"] == category] for part in (mine, theirs)
            )
        ours = mine + _joined(theirs, kernels, side, other)
        return "", by, ours, theirs + _joined(mine, kernels, other, side)
    if hosts := _hosts(kernel, kernels, side, other):
        return "fused", "name", mine, hosts
    if kernel[f"{other}_count"]:
        return "", "name", [kernel], [kernel]
    return ("absent" if stage or category not in VAGUE else "unknown"), None, [kernel], []


def _kin(kernel: _Kernel, kernels: list[_Kernel], side: str) -> list[_Kernel]:
    """Kernels of a run with the meaning of one: its stage, or without any its category."""
    label = "stage" if kernel["stage"] else "category"
    if kernel[label] in VAGUE:
        return []
    return [
        each
        for each in kernels
        if each[f"{side}_count"]
        and each["stage"] == kernel["stage"]
        and each[label] == kernel[label]
    ]


def _hosts(kernel: _Kernel, kernels: list[_Kernel], side: str, other: str) -> list[_Kernel]:
    """Kernels of the other run alone whose names say that they do the work of one of this run,
    where no kernel there does it alone.
    """
    if _kin(kernel, kernels, other):
        return []
    known = [pattern for kind, pattern in patterns() if kind == kernel["category"] not in VAGUE]
    does = "|".join(_OF_STAGE.get(kernel["stage"], known))
    new = [each for each in kernels if each[f"{other}_count"] and not each[f"{side}_count"]]
    if not does or not new:
        return []
    found = contains(pl.Series([each["name"] for each in new]), f"(?i){does}")
    return [each for each, holds in zip(new, found, strict=True) if holds]


def _joined(hosts: list[_Kernel], kernels: list[_Kernel], side: str, other: str) -> list[_Kernel]:
    """Kernels of a run whose work those of the other run do, too."""
    own = [each for each in kernels if each[f"{side}_count"]]
    return [each for each in own if any(h in hosts for h in _hosts(each, kernels, side, other))]
