"""Joins the files of one run into one trace: assigns ranks, checks that the files belong together, aligns clocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from llmprof import schema
from llmprof.errors import MixedRunsError, listed
from llmprof.readers.common.reader import MOST_RANKS, Part, Wanted

FRONT_END = -1
"""Rank of a process that drives the run and has no device."""


def assign(parts: Sequence[Part]) -> tuple[list[int], list[str]]:
    """A rank for each part; among parts with ranks, one without rank and device work is a front end."""
    stated = [part.rank for part in parts]
    if len(parts) == 1:
        return [stated[0] if stated[0] is not None else 0], []
    replicas = _replicas(parts)
    if replicas is not None:
        return replicas
    some_device = any(part.on_device for part in parts)
    complete = {rank for rank in stated if rank is not None} == set(range(world_size_of(parts) or -1))
    ranks: list[int] = []
    warnings: list[str] = []
    for part, rank in zip(parts, stated, strict=True):
        twin = rank is not None and stated.count(rank) > 1 and not part.says_rank
        if not part.on_device and (rank is None or twin) and (some_device or complete):
            ranks.append(FRONT_END)
            continue
        if rank is None:
            rank = next(n for n in range(len(parts) * 2) if n not in stated and n not in ranks)
            warnings.append(f"{part.path.name} does not state its rank; it is read as rank {rank}")
        if rank in ranks:
            other = parts[ranks.index(rank)].path
            raise MixedRunsError(
                f"{_told_apart(other, part.path)} both have rank {rank}",
                expected="one file per rank",
                hint="pass the files of one profiling window of one run",
                rank=rank,
                files=[str(other), str(part.path)],
            )
        ranks.append(rank)
    return ranks, warnings


def _told_apart(a: Path, b: Path) -> str:
    """The names of two files, with the names of their folders as far as they are alike."""
    depth = next((n for n, (x, y) in enumerate(zip(a.parts[::-1], b.parts[::-1], strict=False), start=1) if x != y), 1)
    return " and ".join("/".join(path.parts[-depth:]) for path in (a, b))


def _replicas(parts: Sequence[Part]) -> tuple[list[int], list[str]] | None:
    """Ranks of several engines that ran at the same time and each count their ranks from 0; None for other files.

    With data parallelism of a dense model, vLLM starts one engine for each replica, and their files have the same
    ranks. Such files come from different processes that were recorded at the same time. This is not so for copies of a
    file, or for files of two profiling windows.
    """
    by_rank: dict[int, list[Part]] = {}
    some_device = any(part.on_device for part in parts)
    for part in parts:
        if part.rank is not None and (part.on_device or part.says_rank or not some_device):
            by_rank.setdefault(part.rank, []).append(part)
        elif part.on_device:
            return None
    counts = {len(same) for same in by_rank.values()}
    if len(counts) != 1 or counts == {1} or set(by_rank) != set(range(len(by_rank))):
        return None
    for same in by_rank.values():
        processes = [part.processes() for part in same]
        spans = [part.span_ns() for part in same]
        if any(not p for p in processes) or any(a & b for i, a in enumerate(processes) for b in processes[:i]):
            return None
        if any(span is None or not part.head.get("absolute") for part, span in zip(same, spans, strict=True)):
            return None
        if max(span[0] for span in spans if span) >= min(span[1] for span in spans if span):
            return None
        same.sort(key=lambda part: (min(part.processes()), part.path.name))
    world, count = len(by_rank), counts.pop()
    place = {id(part): rank + world * i for rank, same in by_rank.items() for i, part in enumerate(same)}
    names = "rank 0" if world == 1 else f"each of {world} ranks"
    return [place.get(id(part), FRONT_END) for part in parts], [
        f"{names} is in {count} recordings of processes that ran at the same time: they are read as {count} replicas "
        f"(data parallel), as ranks 0 to {world * count - 1}"
    ]


def check_one_run(parts: Sequence[Part], ranks: Sequence[int]) -> None:
    """Raise unless the workers' files state the same number of ranks and overlap in time."""
    workers = [p for p, r in zip(parts, ranks, strict=True) if r != FRONT_END]
    sizes = {size: p.path.name for p in workers if (size := world_size_of([p])) is not None}
    if len(sizes) > 1:
        raise MixedRunsError(
            f"the files belong to runs with different world sizes: {listed(sizes)}",
            expected="the ranks of one run",
            hint="read each run separately and compare them with llmprof.analyze.diff",
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
                hint="these look like different runs or profiling windows: read each file separately"
                if len(clocks) == 1
                else "only some of the files state the origin of their times (baseTimeNanoseconds)",
                files=[last[1], name],
            )
        last = (end, name) if last is None else max(last, (end, name))


def world_size_of(parts: Sequence[Part]) -> int | None:
    """Number of ranks that the files state; None if no file does."""
    return max(
        (w for p in parts if isinstance(w := p.head.get("world_size"), int) and 0 < w <= MOST_RANKS), default=None
    )


_EPOCH_NS = 946_684_800_000_000_000
"""2000-01-01 in ns since the epoch; earlier absolute times count from the boot of the host, not from the epoch."""


class Combined(NamedTuple):
    """Tables, metadata and coverage of a :class:`~llmprof.trace.Trace`."""

    tables: dict[str, pl.DataFrame]
    meta: dict[str, Any]
    coverage: dict[str, Any]


def combine(parts: Sequence[Part], fmt: str, wanted: Wanted | None = None) -> Combined:
    """Join the parts of a run to one trace."""
    ranks, warnings = assign(parts)
    check_one_run(parts, ranks)
    wanted = Wanted() if wanted is None else wanted
    meta, coverage = describe(parts, ranks, warnings, fmt, with_calls="runtime" in wanted)
    tables = _merge(parts, ranks, wanted, origin_of(parts))
    return Combined(tables, meta, coverage | wanted.covered(tables))


def origin_of(parts: Sequence[Part]) -> int:
    """Absolute time of the earliest event (ns): the start of the trace."""
    return min((span[0] for part in parts if (span := part.span_ns()) is not None), default=0)


def describe(
    parts: Sequence[Part], ranks: Sequence[int], warnings: Sequence[str], fmt: str, *, with_calls: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and coverage of the trace of some parts; only the numbers of rows of their tables are used."""
    stated_world = world_size_of(parts)
    workers = [part for part, rank in zip(parts, ranks, strict=True) if rank != FRONT_END]
    replicas = len(workers) // max(1, len({part.rank for part in workers}))
    world = stated_world * replicas if stated_world else max(ranks, default=FRONT_END) + 1
    missing = sorted(set(range(world)) - set(ranks))
    warnings = list(warnings)
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        warnings.append(f"{len(missing)} of {world} ranks are missing ({shown}): waits for them cannot be seen")
    for part in parts:
        warnings += [loss for loss in part.losses() if loss not in warnings]
    if not {name for part in parts for name in part.rows} & {"kernels", "copies"}:
        warnings += _no_device(parts, launches=with_calls and any(part.launches() for part in parts))
    origin = origin_of(parts)
    meta = {
        "format": fmt,
        "start_epoch_ns": origin if origin > _EPOCH_NS else None,
        "clock": "epoch" if origin > _EPOCH_NS else "since boot or unknown",
        "device": ", ".join(sorted({name for part in parts for name in part.head.get("devices", [])})) or None,
        "world_size": world,
        "world_size_from": "file" if stated_world else "ranks",
        "missing_ranks": missing,
        "versions": {k: v for part in parts for k, v in part.head.get("versions", {}).items()},
        "options": {k: v for part in parts for k, v in part.head.get("options", {}).items()},
        "ranks": [
            {
                "rank": rank,
                "file": part.path.name,
                "backend": part.head.get("backend"),
                "groups": part.head.get("groups", {}),
                "devices": sorted(set(part.head.get("devices", []))),
                "kernels": part.rows.get("kernels", 0),
                **({"rank_in_replica": part.rank} if replicas > 1 else {}),
                **({"group_descriptions": described} if (described := part.head.get("group_descriptions")) else {}),
                **{key: part.head[key] for key in ("rank_from", "node", "timer") if part.head.get(key) is not None},
            }
            for part, rank in zip(parts, ranks, strict=True)
        ],
    }
    coverage: dict[str, Any] = {
        "files": [{"rank": rank, **part.coverage} for part, rank in zip(parts, ranks, strict=True)],
        "warnings": warnings,
    }
    for key in COUNTED:
        coverage[key] = sum(part.coverage.get(key, 0) for part in parts)
    return meta, coverage


COUNTED: Final = ("events", "kept", "matched", "bytes", "lost_bytes", "lost_pieces")
"""Counts of the coverage that are summed over the files."""


def _merge(parts: Sequence[Part], ranks: Sequence[int], wanted: Wanted, origin: int) -> dict[str, pl.DataFrame]:
    """Tables over all ranks with times from the start of the trace on."""
    recorded = tables_recorded(parts)
    tables = {}
    for name in schema.TABLES:
        if name not in wanted:
            for part in parts:
                part.tables.pop(name, None)
            continue
        frames = [
            wanted.narrowed(frame, name).with_columns(
                *(pl.col(time) - origin for time in ("start_ns", "time_ns") if time in frame.columns), rank=pl.lit(rank)
            )
            for part, rank in zip(parts, ranks, strict=True)
            if (frame := part.tables.pop(name, None)) is not None
        ]
        if frames:
            tables[name] = frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed")
    # tables that the profiler recorded although there are no rows
    for name in recorded - set(tables):
        if name in wanted:
            tables[name] = schema.empty(name)
    return tables


def tables_recorded(parts: Sequence[Part]) -> set[str]:
    """Tables that were recorded: those that the files state (``recorded``), else those usually recorded together."""
    device = any(name in part.rows for part in parts for name in ("kernels", "copies"))
    host = any(name in part.rows for part in parts for name in ("ops", "runtime"))
    names = set().union(*(part.head["recorded"] for part in parts if "recorded" in part.head))
    if any("recorded" not in part.head for part in parts):
        names |= {*(("kernels", "copies", "collectives") if device else ()), *(("markers",) if host else ())}
    return names


def _no_device(parts: Sequence[Part], *, launches: bool) -> list[str]:
    """A warning if there was a device of which nothing was recorded."""
    if launches:
        return [
            "there are kernel launches but no kernels: the device was not recorded "
            "(another profiler used CUPTI, or the recording ended before the device finished)"
        ]
    if any(part.head.get("device_count") or part.head.get("backend") == "nccl" for part in parts):
        return [
            "the run had a device but the recording has no device events: "
            "the device (ProfilerActivity.CUDA, or NPU) was not among the profiler's activities"
        ]
    return []
