"""Part of an engine script: the points that one start of an engine measures, with their repeats and prompts."""

from __future__ import annotations

import contextlib
import copy
import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llmprof.launch.engines._job import Record
from llmprof.launch.engines._machine import Refused, failure

_OF_THE_POINT = (Refused, ValueError)
"""Errors of a request, after which the engine still works; any other error may have broken it."""


def each_point(job: Mapping[str, Any], record: Record, work: Callable[[Mapping[str, Any]], None]) -> None:
    """Do the work of a job, or of each of its points in order.

    The values of a point override those of the job, and its folder is inside that of the job. Its ``worker.json`` is
    written when it ends, so its measurements are kept whatever happens to the engine later. If a point is refused, its
    error is written and the next point begins.

    Parameters
    ----------
    job : mapping
        With ``points``, a list of ``{folder, job}``, where there are several.
    record : Record
        Of the whole job.
    work : callable
        Takes the values of one point.
    """
    points = job.get("points")
    if not points:
        work(job)
        return
    shared = record.document
    for k, point in enumerate(points):
        record.document = copy.deepcopy(shared)
        record.document["engine_start"] = {"point": k, "points": len(points)}
        record.out = record.home / point["folder"]
        record.out.mkdir(parents=True, exist_ok=True)
        record.events = record.out / "events.jsonl"
        record.place = f"point {k + 1} of {len(points)}"
        try:
            work({**job, **point["job"]})
            record.event("done")
        except BaseException as error:
            record.document["error"] = failure(error, "")
            record.event("error", record.document["error"]["message"])
            if not isinstance(error, _OF_THE_POINT):
                raise
        finally:
            record.write()
            shared["notes"] = list(dict.fromkeys([*shared["notes"], *record.document["notes"]]))
            record.document, record.out = shared, record.home
            record.events = record.home / "events.jsonl"


def take_traces(record: Record) -> None:
    """Move the traces in the folder of the job to the folder of the point that was profiled."""
    here = record.home / "traces"
    if record.out == record.home or not here.is_dir():
        return
    there = record.out / "traces"
    there.mkdir(exist_ok=True)
    for path in sorted(here.iterdir()):
        with contextlib.suppress(FileNotFoundError):
            shutil.move(path, there / path.name)


def drop_traces(record: Record) -> None:
    """Remove the traces of a window that does not count."""
    for path in (record.home / "traces").glob("*"):
        path.unlink(missing_ok=True)


# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z95 = 1.959964
_LEAST = 3


def t95(freedom: int) -> float:
    """Factor of a two-sided 95 % interval for a number of degrees of freedom (Student's t).

    Above 30 it is the Cornish-Fisher expansion of the quantile, right to the third decimal.
    """
    if freedom < 1:
        raise ValueError("a confidence interval needs two values")
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = _Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of two or more values, as a share of that mean."""
    n, mean = len(values), sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return t95(n - 1) * deviation / math.sqrt(n) / mean if mean else math.inf


def turns(job: Mapping[str, Any], record: Record, phase: str, least: int) -> Iterator[int]:
    """Numbers of the repeats of a phase.

    Without ``until`` there are ``least`` of them. With it the repeats without profiler go on until the 95 % interval
    of the batch's mean time is no wider than that share of it to each side, three times at least and ``most_repeats``
    times at most.
    """
    until = job["until"] if phase == "plain" else None
    for i in range(max(least, job["most_repeats"]) if until else least):
        if until and i >= max(least, _LEAST):
            stages = record.document["stages"]
            if half_width([stage["dur_ns"] for stage in stages if stage["name"] == phase]) <= until:
                return
        yield i
    if until and half_width([s["dur_ns"] for s in record.document["stages"] if s["name"] == phase]) > until:
        record.note(
            f"after {job['most_repeats']} repeats the mean is not known to {until:.1%} yet: the machine is noisy"
        )


def token_ids(wanted: Mapping[str, Any]) -> list[list[int]]:
    """Prompts of synthetic requests; each one differs from the others, and all are the same for the same seed.

    Parameters
    ----------
    wanted : mapping
        ``lengths`` (tokens of each prompt), ``shared`` (how many of them, from the first on, it shares), ``groups``
        (the number of different beginnings), ``first`` and ``last`` (range of the tokens) and ``seed``.
    """
    chance = random.Random(wanted["seed"])  # noqa: S311 (no secret)
    first, last = wanted["first"], wanted["last"]
    longest = max(wanted["shared"], default=0)
    beginnings = [[chance.randrange(first, last) for _ in range(longest)] for _ in range(wanted["groups"])]
    return [
        beginnings[k % len(beginnings)][:shared] + [chance.randrange(first, last) for _ in range(length - shared)]
        for k, (length, shared) in enumerate(zip(wanted["lengths"], wanted["shared"]))  # noqa: B905
    ]
