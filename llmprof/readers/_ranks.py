"""Which rank each part of a run is, and whether the parts belong together."""

from __future__ import annotations

from collections.abc import Sequence

from llmprof.errors import MixedRunsError
from llmprof.readers._part import Part

FRONT_END = -1
"""Rank of a process that drives the run and has no device."""


def assign(parts: Sequence[Part]) -> tuple[list[int], list[str]]:
    """Rank of each part.

    A part without a device that says no rank of its own, beside others that have one, is a front end: the process
    that drives the workers.

    Parameters
    ----------
    parts : sequence of Part
        One a file.

    Returns
    -------
    tuple of (list of int, list of str)
        Ranks in the order of the parts, and warnings.

    Raises
    ------
    MixedRunsError
        A rank came twice.
    """
    known = [part.rank for part in parts]
    if len(parts) == 1:
        return [known[0] if known[0] is not None else 0], []
    some_device = any(part.on_device for part in parts)
    complete = {rank for rank in known if rank is not None} == set(range(said_world(parts) or -1))
    ranks: list[int] = []
    warnings: list[str] = []
    for part, rank in zip(parts, known, strict=True):
        twin = rank is not None and known.count(rank) > 1 and not part.says_rank
        if not part.on_device and (rank is None or twin) and (some_device or complete):
            ranks.append(FRONT_END)
            continue
        if rank is None:
            rank = next(n for n in range(len(parts) * 2) if n not in known and n not in ranks)
            warnings.append(f"{part.path.name} does not say its rank; it is taken as rank {rank}")
        if rank in ranks:
            other = parts[ranks.index(rank)].path
            raise MixedRunsError(
                f"rank {rank} comes twice, in {other.name} and {part.path.name}",
                expected="one file a rank",
                hint="pass the files of one profiling window of one run",
                rank=rank,
                files=[str(other), str(part.path)],
            )
        ranks.append(rank)
    return ranks, warnings


def check_one_run(parts: Sequence[Part], ranks: Sequence[int]) -> None:
    """Raise unless the workers' files say the same number of ranks and overlap in time.

    Raises
    ------
    MixedRunsError
        The files belong to different runs or profiling windows.
    """
    workers = [p for p, r in zip(parts, ranks, strict=True) if r != FRONT_END]
    sizes = {p.head["world_size"]: p.path.name for p in workers if isinstance(p.head.get("world_size"), int)}
    if len(sizes) > 1:
        raise MixedRunsError(
            f"the files are of runs with different world sizes: {sizes}",
            expected="the ranks of one run",
            hint="read each run by itself and compare them with llmprof.analyze.diff",
            world_sizes=sizes,
        )
    spans = sorted((span, p.path.name) for p in workers if (span := p.span_ns()) is not None)
    last: tuple[int, str] | None = None
    for (start, end), name in spans:
        if last is not None and start > last[0]:
            clocks = {p.head.get("absolute", True) for p in workers}
            raise MixedRunsError(
                f"{name} begins {(start - last[0]) / 1e9:.3f} s after {last[1]} ended",
                expected="ranks whose recordings overlap in time",
                hint="these look like different runs or profiling windows: read each by itself"
                if len(clocks) == 1
                else "some of the files say what their times count from (baseTimeNanoseconds) and some do not",
                files=[last[1], name],
            )
        last = (end, name) if last is None else max(last, (end, name))


def said_world(parts: Sequence[Part]) -> int | None:
    """Number of ranks as the files say it; None where none does."""
    return max((w for p in parts if isinstance(w := p.head.get("world_size"), int) and w > 0), default=None)
