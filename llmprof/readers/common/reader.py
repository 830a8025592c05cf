"""Record type of a reader, the request that it gets, the part of a trace that it returns, and
its errors.
"""

from __future__ import annotations

import csv
import filecmp
import json
import lzma
import re
import sqlite3
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, combinations, pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import LlmprofError, MixedRunsError, ReadError, SchemaError, listed
from llmprof.readers.common.event_stream import Blocks
from llmprof.readers.common.plausible import implausible
from llmprof.text import Progress, are, counted, left_out
from llmprof.trace import Trace, communication, schema
from llmprof.trace.platforms import platform_of, tool_of
from llmprof.trace.storage import files
from llmprof.trace.storage.deferred import TIMES, span_of_frames

DEVICES: Final = "order of the devices"
"""Where the rank of a process is from, if nothing recorded states it."""

FRONT_END = -1
"""Rank of a process that drives the run and has no device."""


def assign(parts: Sequence[FilePart]) -> tuple[list[int], list[str]]:
    """A rank for each part; among parts with ranks, one without rank and device work is a front
    end.
    """
    stated = [part.rank for part in parts]
    if len(parts) == 1:
        return [stated[0] if stated[0] is not None else 0], []
    engines = _engines(parts)
    if engines is not None:
        return engines
    some_device = any(part.on_device for part in parts)
    complete = {rank for rank in stated if rank is not None} == set(
        range(_world_size_of(parts) or -1)
    )
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


def refuse_copies(parts: Sequence[FilePart]) -> None:
    """Raise if two files without a rank hold the same events: they are no two ranks."""
    alike: dict[Any, list[FilePart]] = {}
    for part in parts:
        if part.on_device and (part.rank is None or part.head.get("rank_from") == DEVICES):
            alike.setdefault((part.span_ns(), *sorted(part.rows.items())), []).append(part)
    for a, b in chain.from_iterable(combinations(same, 2) for same in alike.values()):
        # reports of several hosts may agree in their events, not in what they say of the host
        said = "rank_from" not in a.head or filecmp.cmp(a.path, b.path, shallow=False)
        if said and all(a.tables[name].equals(frame) for name, frame in b.tables.items()):
            raise MixedRunsError(
                f"{_told_apart(a.path, b.path)} hold the same events",
                expected="one file per rank",
                hint="pass only one of them",
                files=[str(a.path), str(b.path)],
            )


def join_windows(parts: Sequence[FilePart]) -> tuple[Sequence[FilePart], list[str]]:
    """Parts, those as one that recorded one process of a rank in windows one after the other.

    The time between windows is taken out: nothing is known of it.
    """
    by_rank: dict[int, list[FilePart]] = {}
    for part in parts:
        if part.rank is not None and part.span_ns() is not None and part.head.get("absolute"):
            by_rank.setdefault(part.rank, []).append(part)
    of_ranks = [sorted(same, key=FilePart.span_ns) for same in by_rank.values()]  # type: ignore[arg-type]
    if len({len(same) for same in of_ranks}) != 1 or len(of_ranks[0]) < 2:
        return parts, []
    spans = [[span for part in same if (span := part.span_ns())] for same in of_ranks]
    apart = all(after[0] > before[1] for same in spans for before, after in pairwise(same))
    if not apart or not all(map(_is_one_run, of_ranks)):
        return parts, []
    between = [
        max(0, min(after[0] for after in later) - max(before[1] for before in earlier))
        for earlier, later in pairwise(zip(*spans, strict=True))
    ]
    shifts = [0, *accumulate(between)]
    joined = [_as_one(same, shifts) for same in of_ranks]
    alone = [part for part in parts if not any(part in same for same in of_ranks)]
    said = (
        f"{counted(len(shifts), 'window')} of one run, one after the other: the"
        f" {sum(between) / 1e9:.3f} s between them were not recorded, and are left out"
    )
    return [*joined, *alone], [said]


def _is_one_run(windows: Sequence[FilePart]) -> bool:
    """Whether files with one rank are from one process, by their events or names."""
    processes = [part.processes() for part in windows]
    if any(processes):
        return bool(set.intersection(*processes))
    begun = {part.path.name[: match.start()] for part in windows if (match := part.rank_in_name())}
    return len(begun) == 1 and begun != {""}


_NUMBERS: Final = (("correlation", "torch_awaited_call"), ("op_id",))
"""Columns with identifiers, by what they identify."""


def _as_one(windows: Sequence[FilePart], shifts: Sequence[int]) -> FilePart:
    """Windows of one process as one part, in which each number stands for one thing; each begins
    earlier by its shift (ns).
    """
    for part, shift in zip(windows, shifts, strict=True):
        for name, frame in part.tables.items():
            times = pl.col([time for time in TIMES if time in frame.columns])
            part.tables[name] = frame.with_columns(times - shift)
    for columns in _NUMBERS:
        first = 0
        for part in windows:
            found = {
                table: [pl.col(column) for column in columns if column in frame.columns]
                for table, frame in part.tables.items()
            }
            held = [
                part.tables[table].select(c.max()).item() for table in found for c in found[table]
            ]
            for table, numbers in found.items():
                moved = [pl.when(c >= 0).then(c + first).otherwise(c) for c in numbers]
                part.tables[table] = part.tables[table].with_columns(moved)
            first += 1 + max((number for number in held if number is not None), default=0)
    tables = {
        name: pl.concat(
            [p.tables[name] for p in windows if name in p.tables], how="diagonal_relaxed"
        )
        for name in dict.fromkeys(chain.from_iterable(part.tables for part in windows))
    }
    coverage = {key: sum(part.coverage.get(key, 0) for part in windows) for key in COUNTED}
    coverage["notes"] = [loss for part in windows for loss in part.losses()]
    coverage["file"] = listed(part.path.name for part in windows)
    return FilePart(windows[0].path, tables, windows[0].head, coverage)


def _told_apart(a: Path, b: Path) -> str:
    """The names of two files, with the names of their folders as far as they are alike."""
    depth = next(
        (
            n
            for n, (x, y) in enumerate(zip(a.parts[::-1], b.parts[::-1], strict=False), start=1)
            if x != y
        ),
        1,
    )
    return " and ".join("/".join(path.parts[-depth:]) for path in (a, b))


def _engines(parts: Sequence[FilePart]) -> tuple[list[int], list[str]] | None:
    """Ranks of several engines that ran at the same time and each count their ranks from 0; None
    for other files.
    """
    # With data parallelism of a dense model, vLLM starts one engine for each replica, and their
    # files have the same ranks. If one engine reads prompts and another decodes, each has a folder.
    # Such files come from different processes that were recorded at the same time. This is not so
    # for copies of a file, or for two profiling windows.
    some_device = any(part.on_device for part in parts)
    ranked = [
        p for p in parts if p.rank is not None and (p.on_device or p.says_rank or not some_device)
    ]
    if len(ranked) < 2 or any(part.on_device and part.rank is None for part in parts):
        return None
    by_rank: dict[int, list[FilePart]] = {}
    by_place: dict[tuple[Path, frozenset[str]], list[FilePart]] = {}
    for part in sorted(ranked, key=lambda part: (min(part.processes(), default=0), part.path.name)):
        by_rank.setdefault(int(part.rank or 0), []).append(part)
    for part in ranked:
        words = frozenset(re.findall(r"[a-z]{2,}", part.path.name.lower()))
        by_place.setdefault((part.path.parent, words), []).append(part)
    counts = {len(same) for same in by_rank.values()}
    apart = len(by_place) > 1 and all(_complete(engine) for engine in by_place.values())
    if counts == {1} or not (
        apart or (len(counts) == 1 and set(by_rank) == set(range(len(by_rank))))
    ):
        return None
    for same in by_rank.values():
        seen = [
            (part.processes(), span)
            for part in same
            if (span := part.span_ns()) and part.head.get("absolute")
        ]
        if len(seen) < len(same) or any(not processes for processes, _ in seen):
            return None
        # on hosts of their own, processes of two engines may have the same number
        if any(
            a & b and (one == other or not apart) for (a, one), (b, other) in combinations(seen, 2)
        ):
            return None
    begun = max(span[0] for part in ranked if (span := part.span_ns()))
    if begun >= min(span[1] for part in ranked if (span := part.span_ns())):
        return None
    if apart and len({folder for folder, _ in by_place}) == len(by_place):
        engines = {folder.name: engine for (folder, _), engine in by_place.items()}
    elif apart:
        shared = frozenset.intersection(*(words for _, words in by_place))
        engines = {
            "-".join(sorted(words - shared)) or "unnamed": same
            for (_, words), same in by_place.items()
        }
    else:
        engines = {
            f"engine {i}": [same[i] for same in by_rank.values()] for i in range(counts.pop())
        }
    if len(engines) < 2:
        return None
    place, first = {}, 0
    for name, engine in engines.items():
        for part in engine:
            part.head["engine"] = {"name": name, "first": first}
            place[id(part)] = first + int(part.rank or 0)
        first += len(engine)
    ranks = [place.get(id(part), FRONT_END) for part in parts]
    shown = listed(f"{name} ({counted(len(engine), 'rank')})" for name, engine in engines.items())
    return ranks, [
        f"{shown} count their ranks from 0 and ran at the same time: they are read as engines"
        f" beside each other, as ranks 0 to {first - 1}"
    ]


def _complete(engine: Sequence[FilePart]) -> bool:
    """Whether the parts of a folder are all ranks of an engine."""
    return sorted(int(part.rank or 0) for part in engine) == list(range(len(engine)))


def _of_engine(frame: pl.DataFrame, engine: Mapping[str, Any] | None) -> pl.DataFrame:
    """Rows of an engine among others: its groups have names and ranks of their own."""
    if engine is None:
        return frame
    first = engine["first"]
    changed = [pl.col("peer") + first] * ("peer" in frame.columns)
    if "group" in frame.columns:
        changed.append(pl.col("group") + f" ({engine['name']})")
    if "group_ranks" in frame.columns:
        texts = frame["group_ranks"].drop_nulls().unique().to_list()
        # profilers write "..." into long lists, which are no JSON then
        moved = {
            text: re.sub(r"\d+", lambda rank: str(int(rank[0]) + first), text) for text in texts
        }
        changed.append(pl.col("group_ranks").replace(moved))
    return frame.with_columns(changed)


def check_one_run(parts: Sequence[FilePart], ranks: Sequence[int]) -> None:
    """Raise unless the workers' files state the same number of ranks and overlap in time."""
    workers = [p for p, r in zip(parts, ranks, strict=True) if r != FRONT_END]
    alone = [p for p in workers if "engine" not in p.head]
    sizes = {size: p.path.name for p in alone if (size := _world_size_of([p])) is not None}
    if len(sizes) > 1:
        found = f"the files belong to runs with different world sizes: {listed(sizes)}"
        hint = "read each run separately and compare them with llmprof.analyze.diff"
        raise MixedRunsError(found, expected="the ranks of one run", hint=hint, world_sizes=sizes)
    spans = sorted((span, p.path.name) for p in workers if (span := p.span_ns()) is not None)
    last: tuple[int, str] | None = None
    for (start, end), name in spans:
        # processes of one file may have run one after another
        if last is not None and start > last[0] and name != last[1]:
            clocks = {p.head.get("absolute", True) for p in workers}
            raise MixedRunsError(
                f"{name} begins {(start - last[0]) / 1e9:.3f} s after {last[1]} ended",
                expected="ranks whose recordings overlap in time",
                hint=(
                    "these look like different runs or profiling windows: read each file separately"
                    if len(clocks) == 1
                    else (
                        "only some of the files state the origin of their times"
                        " (baseTimeNanoseconds)"
                    )
                ),
                files=[last[1], name],
            )
        last = (end, name) if last is None else max(last, (end, name))


def _world_size_of(parts: Sequence[FilePart]) -> int | None:
    """Number of ranks that the files state; None if no file does."""
    sizes = [part.head.get("world_size") for part in parts]
    return max(
        (size for size in sizes if isinstance(size, int) and 0 < size <= MOST_RANKS), default=None
    )


_EPOCH_NS = 946_684_800_000_000_000
"""2000-01-01 in ns since the epoch; earlier absolute times count from the boot of the host, not
from the epoch.
"""


def combine(parts: Sequence[FilePart], fmt: str, wanted: TableFilter | None = None) -> Trace:
    """Join the parts of a run to one trace."""
    parts, notes = join_windows(parts)
    ranks, warnings = assign(parts)
    warnings += notes
    check_one_run(parts, ranks)
    wanted = TableFilter() if wanted is None else wanted
    meta, coverage = describe_run(parts, ranks, warnings, fmt, with_calls="runtime" in wanted)
    tables = _merge(parts, ranks, wanted, origin_of(parts))
    return Trace(tables, meta, coverage | wanted.covered(tables))


def origin_of(parts: Sequence[FilePart]) -> int:
    """Absolute time of the earliest event (ns): the start of the trace."""
    return min((span[0] for part in parts if (span := part.span_ns()) is not None), default=0)


def describe_run(
    parts: Sequence[FilePart],
    ranks: Sequence[int],
    warnings: Sequence[str],
    fmt: str,
    *,
    with_calls: bool = True,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and coverage of the trace of some parts; only the numbers of rows of their tables
    are used.
    """
    stated_world = _world_size_of(parts)
    workers = [part for part, rank in zip(parts, ranks, strict=True) if rank != FRONT_END]
    engines = any("engine" in part.head for part in workers)
    world = stated_world if stated_world and not engines else max(ranks, default=FRONT_END) + 1
    missing = sorted(set(range(world)) - set(ranks))
    warnings = list(warnings)
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        warnings.append(
            f"{len(missing)} of {counted(world, 'rank')} {are(len(missing))} missing ({shown}): "
            f"waits for {'it' if len(missing) == 1 else 'them'} cannot be seen"
        )
    for part in parts:
        warnings += [loss for loss in part.losses() if loss not in warnings]
    origin = origin_of(parts)
    meta = {
        "format": fmt,
        "start_epoch_ns": origin if origin > _EPOCH_NS else None,
        "clock": "epoch" if origin > _EPOCH_NS else "since boot or unknown",
        "device": (
            ", ".join(sorted({name for part in parts for name in part.head.get("devices", [])}))
            or None
        ),
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
                "groups": _groups(part, "groups"),
                "devices": sorted(set(part.head.get("devices", []))),
                "kernels": part.rows.get("kernels", 0),
                **(
                    {"engine": engine["name"], "rank_in_engine": part.rank}
                    if (engine := part.head.get("engine"))
                    else {}
                ),
                **(
                    {"group_descriptions": described}
                    if (described := _groups(part, "group_descriptions"))
                    else {}
                ),
                **{
                    key: part.head[key]
                    for key in ("rank_from", "node", "timer")
                    if part.head.get(key) is not None
                },
            }
            for part, rank in zip(parts, ranks, strict=True)
        ],
    }
    if not {name for part in parts for name in part.rows} & {"kernels", "copies"}:
        warnings += _no_device(
            parts, meta, launches=with_calls and any(part.launches() for part in parts)
        )
    file_facts = [{"rank": rank, **part.coverage} for part, rank in zip(parts, ranks, strict=True)]
    sums = {key: sum(part.coverage.get(key, 0) for part in parts) for key in COUNTED}
    if sums["impossible"]:
        where = listed(
            dict.fromkeys(part.path.name for part in parts if part.coverage.get("impossible"))
        )
        which = "whose time or length cannot be (no number, negative, before their own launch, …)"
        warnings.append(f"{where}: {left_out(sums['impossible'], 'event', which)}")
    return meta, {"files": file_facts, "warnings": warnings, **sums}


def _groups(part: FilePart, key: str) -> dict[str, Any]:
    """Process groups of a file (their ranks, or what they are for) by the names that they have
    in the trace.
    """
    found: dict[str, Any] = part.head.get(key, {})
    engine = part.head.get("engine")
    if engine is None:
        return found
    named = {f"{name} ({engine['name']})": about for name, about in found.items()}
    return {
        name: [r + engine["first"] for r in about] if isinstance(about, list) else about
        for name, about in named.items()
    }


COUNTED: Final = ("events", "kept", "matched", "impossible", "bytes", "lost_bytes", "lost_pieces")
"""Counts of the coverage that are summed over the files."""


def _merge(
    parts: Sequence[FilePart], ranks: Sequence[int], wanted: TableFilter, origin: int
) -> dict[str, pl.DataFrame]:
    """Tables over all ranks with times from the start of the trace on."""
    recorded = tables_recorded(parts)
    tables = {}
    for name in schema.TABLES:
        if name not in wanted:
            for part in parts:
                part.tables.pop(name, None)
            continue
        frames = [
            _of_engine(wanted.narrowed(frame, name), part.head.get("engine")).with_columns(
                *(pl.col(time) - origin for time in TIMES if time in frame.columns),
                rank=pl.lit(rank),
            )
            for part, rank in zip(parts, ranks, strict=True)
            if (frame := part.tables.pop(name, None)) is not None
        ]
        if frames:
            tables[name] = (
                frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed")
            )
    # tables that the profiler recorded although there are no rows
    for name in recorded - set(tables):
        if name in wanted:
            tables[name] = schema.empty(name)
    return tables


def tables_recorded(parts: Sequence[FilePart]) -> set[str]:
    """Tables that were recorded: those that the files state (``recorded``), else those usually
    recorded together.
    """
    device = any(name in part.rows for part in parts for name in ("kernels", "copies"))
    host = any(name in part.rows for part in parts for name in ("ops", "runtime"))
    names = set().union(*(part.head["recorded"] for part in parts if "recorded" in part.head))
    if any("recorded" not in part.head for part in parts):
        names |= {
            *(("kernels", "copies", "collectives") if device else ()),
            *(("markers",) if host else ()),
        }
    return names


def _no_device(parts: Sequence[FilePart], meta: Mapping[str, Any], *, launches: bool) -> list[str]:
    """A warning if there was a device of which nothing was recorded."""
    if launches:
        return [
            "there are kernel launches but no kernels: the device was not recorded "
            "(another profiler used CUPTI, or the recording ended before the device finished)"
        ]
    if any(part.head.get("device_count") or part.head.get("backend") == "nccl" for part in parts):
        return [
            "the run had a device but the recording has no device events: "
            f"record {platform_of(meta, {}).how_to_record('kernels', tool_of(meta, {}))}"
        ]
    return []


MOST_TEXT_BYTES: Final = 1 << 30
"""Largest size of a report, since reports are read as a whole."""

MOST_NS: Final = 2**61
"""Largest accepted time in ns; the sum of two fits into an int64."""

IMPOSSIBLE: Final = 2 * MOST_NS
"""Stands for a time or length that the file states but that cannot be: :class:`FilePart` leaves its
event out.
"""

_TIME: Final = (-MOST_NS, MOST_NS)
_LENGTH: Final = (0, 2**53)  # 104 days: no recording is longer, and a float64 holds all its ns
_BOUNDS: Final[dict[str, dict[str, tuple[float, float]]]] = {
    **{table: {"start_ns": _TIME, "time_ns": _TIME, "dur_ns": _LENGTH} for table in schema.TABLES},
    "counters": {"time_ns": _TIME, "value": (-sys.float_info.max, sys.float_info.max)},
    "samples": {"time_ns": _TIME, "value": (0, MOST_NS)},
    "totals": dict.fromkeys(("total_ns", "median_ns", "min_ns", "max_ns"), _LENGTH),
}
"""Least and largest possible value by table and column."""


def possible(frame: pl.DataFrame, table: str) -> pl.DataFrame:
    """The rows of a table whose times and lengths can be: finite, no length below zero, no null
    where one is needed.
    """
    optional = {column.name for column in schema.TABLES[table].columns if column.nullable}
    can_be = [
        pl.col(name).is_between(*bounds).fill_null(name in optional)
        for name, bounds in _BOUNDS[table].items()
        if name in frame.columns
    ]
    whole = frame.select(pl.all_horizontal(can_be)).to_series() if can_be and frame.height else None
    return frame if whole is None or whole.all() else frame.filter(whole)


def ns(value: float) -> int:
    """A number of ns as a whole one, :data:`IMPOSSIBLE` if it is infinite, too large or not a
    number.
    """
    return round(value) if abs(value) <= MOST_NS else IMPOSSIBLE


def bytes_of(path: Path, *, most: int = MOST_TEXT_BYTES) -> tuple[bytes, str]:
    """Content of a file, plain or gzip, and the reason why it ends early (empty if it is
    complete).
    """
    blocks, held, size = Blocks(path), [], 0
    for block in blocks:
        held.append(block)
        size += len(block)
        if size > most:
            found = f"{path.name} has more than {most >> 20} MiB"
            raise ReadError(
                found, expected="a report of a profiler", hint="export a part of the recording"
            )
    return b"".join(held), blocks.damage


def json_of(path: Path, expected: str) -> tuple[Any, str]:
    """JSON document of a file, plain or gzip, and the reason why the file ends early (empty if
    it is complete).
    """
    data, damage = bytes_of(path)
    try:
        return msgspec.json.decode(data), damage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if b"\\ud" not in data.lower():  # half a surrogate pair is no text
            with suppress(
                ValueError, RecursionError
            ):  # NaN and infinities, which are no JSON, but which Python writes
                return json.loads(data), damage
        found = f"{path.name} is not complete JSON: {error}"
        raise ReadError(found, expected=expected, hint="record or export it again") from error


def text_of(data: bytes) -> str:
    """Bytes as text: UTF-8, or UTF-16 if they begin with its mark; invalid bytes are replaced."""
    name = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    return data.decode(name, errors="replace").replace("\0", "")


def table_of(text: str, *, separator: str = ",") -> tuple[pl.DataFrame, int]:
    """Rows of CSV with a heading as text, and the number of rows with surplus (dropped) or
    missing (null) cells.
    """
    rows = csv.reader(text.splitlines(), delimiter=separator)
    try:
        heading = next(rows, [])
        body = [row for row in rows if row]
    except csv.Error as error:
        raise ReadError(
            f"the table cannot be read: {error}", expected="CSV with a heading"
        ) from error
    names = [name.strip() for name in heading]
    if not any(names):
        raise ReadError("the table has no heading", expected="CSV with a heading")
    width = len(names)
    ragged = sum(len(row) != width for row in body)
    unique = [
        name if names.index(name) == place else f"{name} ({place})"
        for place, name in enumerate(names)
    ]
    cells = (
        [row[place].strip() or None if place < len(row) else None for row in body]
        for place in range(width)
    )
    columns = dict(zip(unique, cells, strict=True))
    return pl.DataFrame(columns, schema=dict.fromkeys(unique, pl.String)), ragged


def trace_of(
    path: Path,
    name: str,
    tables: Mapping[str, pl.DataFrame],
    *,
    head: Mapping[str, Any] | None = None,
    events: int = 0,
    notes: list[str] | None = None,
    damage: str = "",
) -> Trace:
    """Make the trace of one file that is a whole trace."""
    kept = sum(frame.height for frame in tables.values())
    notes = [*(notes or []), *([f"the file ends early: {damage}"] if damage else [])]
    size = path.stat().st_size if path.is_file() else 0
    coverage = {
        "file": path.name,
        "events": max(events, kept),
        "kept": kept,
        "bytes": size,
        "notes": notes,
    }
    return combine([FilePart(path, dict(tables), dict(head or {}), coverage)], name)


_RANK_IN_NAME = (
    re.compile(r"(?<![a-z])rank[-_.]?(\d{1,5})(?!\d)", re.IGNORECASE),
    re.compile(
        r"(?<![a-z])worker[-_.]?(\d{1,4})(?!\d)", re.IGNORECASE
    ),  # longer ones are processes and times
    re.compile(r"(?<![a-z])TP-(\d{1,4})(?!\d)(?!.*(?:DP|PP|EP)-[1-9])"),  # SGLang
)

MOST_RANKS = 1 << 17
"""Largest accepted number of ranks; a larger number in a file is ignored, so that it cannot cost
memory.
"""


@dataclass(slots=True)
class FilePart:
    """Tables of one file, without the column ``rank`` and with absolute times in ns, and facts
    about the file.

    Readers leave in their tables what cannot be, as null or as a value out of bounds; it is left
    out here.
    """

    path: Path
    tables: dict[str, pl.DataFrame]
    head: dict[str, Any]
    """Facts that the file states:

    ``rank``, ``world_size``, ``backend``, ``devices``, ``device_count``, ``groups``, ``versions``
    and ``options``; unknown ones are missing.
    """
    coverage: dict[str, Any]
    """Counts of what was read and lost:

    ``events``, ``kept``, ``matched`` (told by two files, and counted once), ``impossible`` (left
    out for a time or length that cannot be), ``overwritten`` (of other ranks, which stand where
    some of its own were), ``skipped``, ``bytes``, ``lost_bytes``, ``lost_pieces``; and ``notes``,
    which become warnings.
    """

    def __post_init__(self) -> None:
        impossible = 0
        for name, frame in self.tables.items():
            self.tables[name] = possible(frame, name)
            if (
                name != "collectives" or "kernels" not in self.tables
            ):  # they are among the kernels, too
                impossible += frame.height - self.tables[name].height
        for name, wrong in implausible(self.tables).items():
            self.tables[name] = self.tables[name].filter(~wrong)
            impossible += int(wrong.sum())
        if impossible:
            self.coverage["impossible"] = self.coverage.get("impossible", 0) + impossible
            self.coverage["kept"] = max(0, self.coverage.get("kept", 0) - impossible)

    @property
    def says_rank(self) -> bool:
        """Whether the file itself states its rank."""
        rank = self.head.get("rank")
        return isinstance(rank, int) and 0 <= rank < MOST_RANKS

    @property
    def rank(self) -> int | None:
        """Rank that the file states, else the rank in its name, else None; a front end has no
        rank.
        """
        if self.head.get("front_end"):
            return None
        if self.says_rank:
            return int(self.head["rank"])
        match = self.rank_in_name()
        return int(match[1]) if match else None

    def rank_in_name(self) -> re.Match[str] | None:
        """The rank in the name of the file."""
        found = (pattern.search(self.path.name) for pattern in _RANK_IN_NAME)
        return next(filter(None, found), None)

    @property
    def on_device(self) -> bool:
        """Whether the file has kernels or copies."""
        return any(self.tables[t].height for t in ("kernels", "copies") if t in self.tables)

    def span_ns(self) -> tuple[int, int] | None:
        """First start and last end of the events in the file (absolute ns); None if it is empty."""
        return span_of_frames(self.tables)

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows by table."""
        return {name: frame.height for name, frame in self.tables.items()}

    def processes(self) -> set[int]:
        """Ids of the host processes that the events belong to."""
        tables = [
            self.tables[name] for name in ("ops", "runtime", "markers") if name in self.tables
        ]
        numbers = [
            frame["process"].drop_nulls().unique() for frame in tables if "process" in frame.columns
        ]
        return {number for column in numbers for number in column if number > 0}

    def launches(self) -> bool:
        """Whether the file has calls that launch kernels."""
        calls = self.tables.get("runtime")
        return calls is not None and bool(calls["name"].str.contains("(?i)launch").any())

    def losses(self) -> list[str]:
        """Sentences about content that was lost or changed while reading."""
        c, name, out = self.coverage, self.path.name, []
        out += [f"{name}: {note}" for note in c.get("notes", [])]
        if reason := c.get("truncated") or (
            "parts of it are not valid JSON" if c.get("lost_bytes") else ""
        ):
            out.append(
                f"{name}: {reason}; {c.get('lost_bytes', 0):,} of {c.get('bytes', 0):,} bytes"
                f" (about {counted(c.get('lost_pieces', 0), 'event')}) were lost, and"
                f" {counted(c.get('events', 0), 'event')}"
                f" {'was' if c.get('events') == 1 else 'were'} read"
            )
        if c.get("unread_bytes"):
            out.append(
                f"{name}: the last {c['unread_bytes']:,} bytes of the file could not be read"
            )
        if c.get("repaired"):
            out.append(f"{name}: NaN, control characters or invalid UTF-8 were replaced")
        if c.get("wrong_types"):
            out.append(f"{name}: {left_out(c['wrong_types'], 'field', 'of a wrong type')}")
        for key in ("rank", "world_size"):
            number = self.head.get(key)
            if isinstance(number, int) and number > MOST_RANKS:
                out.append(
                    f"{name} states the {key.replace('_', ' ')} {number:,}, which is too large: it"
                    " is ignored"
                )
        if lost := c.get("skipped", {}).get(NO_TIME):
            out.append(f"{name}: {left_out(lost, 'event', 'without a time or name')}")
        if "events" in c and not c["events"]:
            out.append(f"{name} has no event: was the profiler ever active?")
        elif "events" in c and not c.get("kept"):
            out.append(f"{name}: none of its {c['events']:,} events belongs to a table")
        return out


NO_TIME = "event without a time or name"
"""Reason for leaving out an event, as a key of ``coverage["skipped"]``."""


Frames = dict[str, pl.DataFrame]
TableSelection = str | Iterable[str] | Mapping[str, Iterable[str] | None]


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Tables and columns that the caller of :func:`llmprof.read` wants to keep."""

    asked: Mapping[str, frozenset[str] | None] | None = None
    """Columns by table, where None means all columns of a table; None instead of the mapping
    means all tables.
    """

    @classmethod
    def of(cls, tables: TableSelection | None) -> TableFilter:
        """Tables and columns in the argument ``tables`` of :func:`llmprof.read`."""
        if tables is None:
            return cls()
        if isinstance(tables, str):
            tables = (tables,)
        columns_by_table = tables if isinstance(tables, Mapping) else dict.fromkeys(tables)
        if not columns_by_table:
            raise LlmprofError("tables= is empty", expected=f"some of {listed(schema.TABLES)}")
        if unknown := [name for name in columns_by_table if name not in schema.TABLES]:
            raise LlmprofError(
                f"there is no table {listed(unknown)}", expected=f"some of {listed(schema.TABLES)}"
            )
        columns_asked = {
            name: None if columns is None else frozenset(columns)
            for name, columns in columns_by_table.items()
        }
        for name, columns in columns_asked.items():
            known = schema.TABLES[name].schema
            if unknown := sorted(
                c
                for c in columns or ()
                if c not in known and not c.startswith(schema.VENDOR_PREFIXES)
            ):
                raise LlmprofError(
                    f"table {name} has no column {listed(unknown)}",
                    expected=f"some of {listed(known)}",
                )
        return cls(columns_asked)

    def __contains__(self, table: str) -> bool:
        return self.asked is None or table in self.asked

    def has(self, table: str, column: str) -> bool:
        """Whether a column of a table is needed."""
        if self.asked is None:
            return True
        columns = self.asked.get(table, frozenset())
        return columns is None or column in columns

    def narrowed(self, frame: pl.DataFrame, table: str) -> pl.DataFrame:
        """The frame with the needed columns and those that are never null."""
        if self.asked is None or (columns := self.asked[table]) is None:
            return frame
        needed = {c.name for c in schema.TABLES[table].columns if not c.nullable}
        return frame.select(c for c in frame.columns if c in columns or c in needed)

    def with_sources(self) -> TableFilter:
        """The tables that have to be read: for collectives, also kernels and operators."""
        if self.asked is None or "collectives" not in self.asked:
            return self
        asked = dict(self.asked)
        for name, columns in communication.SOURCES.items():
            columns_of_table = asked.get(name, frozenset())
            asked[name] = None if columns_of_table is None else columns_of_table | columns
        return TableFilter(asked)

    def part_of(self, trace: Trace, *, database: Path | None = None) -> Trace:
        """The needed part of a trace that was read :meth:`with_sources`."""
        if self.asked is None:
            return (
                Trace(trace.capture.recorded, trace.meta, trace.coverage, database=database)
                if database
                else trace
            )
        tables = dict(trace.capture.recorded)
        if "collectives" in self and trace.capture.asked in (None, self.with_sources().listed()):
            collectives = communication.make_collectives(tables, trace.capture.device_ranks)
            tables |= {} if collectives is None else {"collectives": collectives}
        tables = {
            name: self.narrowed(frame, name) for name, frame in tables.items() if name in self
        }
        return Trace(tables, trace.meta, trace.coverage | self.covered(tables), database=database)

    def covered(self, tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
        """Entries of the coverage: the tables that were requested, and the rows that were kept."""
        if self.asked is None:
            return {}
        kept = sum(frame.height for name, frame in tables.items() if name != "collectives")
        return {"asked": self.listed(), "kept": kept}

    def listed(self) -> dict[str, list[str] | None] | None:
        """Needed tables and columns as lists, for the coverage and the key of the cache."""
        if self.asked is None:
            return None
        return {
            name: None if columns is None else sorted(columns)
            for name, columns in sorted(self.asked.items())
        }


START_BYTES: Final = 64 << 10
"""Number of bytes at the beginning of a file that a reader gets first."""

_MOST_BYTES: Final = 16 << 20


class Probe:
    """A file or folder that each reader inspects in turn; its beginning is read only once."""

    def __init__(self, path: Path) -> None:
        self.path = files.regular(path)
        self._blocks: Iterator[bytes] | None = None
        self._read = b""

    @cached_property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.path.is_dir()

    @cached_property
    def start(self) -> bytes:
        """First 64 KiB of a file, decompressed if it is gzip; empty for a folder."""
        return b"" if self.is_folder else self._first(START_BYTES)[:START_BYTES]

    def growing(self) -> Iterator[bytes]:
        """The beginning of a file, 64 KiB of it, then each time twice as much, up to its end or
        16 MiB.
        """
        size = START_BYTES
        while not self.is_folder:
            yield self._first(size)[:size]
            if size >= _MOST_BYTES or len(self._read) < size:
                return
            size *= 2

    def _first(self, size: int) -> bytes:
        if (
            self._blocks is None
        ):  # an empty file is not opened: the first read of one in /proc may never end
            self._blocks = iter(Blocks(self.path, START_BYTES) if self.path.stat().st_size else ())
        while len(self._read) < size and (block := next(self._blocks, b"")):
            self._read += block
        return self._read


@dataclass(frozen=True, slots=True)
class Request:
    """The options that the caller of :func:`llmprof.read` gave."""

    wanted: TableFilter = TableFilter()
    """Tables and columns to keep; a reader may also read others."""
    python_functions: bool = True
    """Whether to keep the Python functions of ``with_stack=True``."""
    progress: Progress | None = None
    """Called during reading with the name of a file, the bytes that were read, and its size."""
    workers: int = 1
    """Number of processes that may share the reading of one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reader of one format.

    A reader is a constant ``READER`` in the module that reads the format;
    :mod:`llmprof.readers.registry` has one line for it. Another package names its reader in the
    group ``llmprof.readers`` of its entry points.
    """

    name: str
    """Name of the format:

    ``meta["format"]`` of its traces, and ``format=`` of :func:`llmprof.read`.
    """
    version: int
    """Version of the reader, a part of the cache's key; raise it whenever the same file would
    give other frames.
    """
    what: str
    """Description of the format, which can follow "a file of":

    ``Chrome trace JSON (PyTorch profiler)``.
    """
    sniff: Callable[[Probe], bool]
    """Function that tells by the content whether a file or folder has this format.

    It sees every file, so it must be quick.
    """
    read: Callable[[Path, Request], list[FilePart] | Trace] | None = None
    """Function that reads a file or folder.

    It returns parts with absolute times, which are joined with those of the other files, or a whole
    trace if :attr:`alone` is set. None if such files are not traces; :attr:`instead` then names the
    function that reads them.
    """
    instead: str = ""
    """Function to call for a format that is not a trace."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of the files to look at in a folder; a folder in it is looked at whatever its
    name.
    """
    alone: bool = False
    """Whether one file is a whole trace: it is not put together with others, and not looked for
    in folders.
    """
    deferred: bool = False
    """Whether the tables of its traces are loaded on first access; such a trace is not kept in
    the cache.
    """
    choose: Callable[[list[Path]], list[Path]] | None = None
    """Which of the files of a folder to read, where some hold the same recording."""
    settle: Callable[[Sequence[FilePart]], None] | None = None
    """Looks at the parts of several files together, before they become a trace: gives them ranks
    that differ.
    """
    database: Callable[[Path, Request], Path | None] | None = None
    """SQLite file behind a file, for :meth:`llmprof.Trace.sql`."""
    one_core: bool = False
    """Whether it keeps one core busy, so that several files are read by several processes at the
    same time.
    """
    package: str = ""
    """Name and version of the package that a plug-in is in; set by the registry."""

    def options(self, request: Request) -> dict[str, Any]:
        """Facts that the content of a cached trace depends on, in addition to the file."""
        own = {"reader": self.name, "version": self.version, "package": self.package}
        return own | {"python_functions": request.python_functions}


BY_CONTENT: Final = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    sqlite3.Error,
    csv.Error,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions that unexpected content can raise in libraries and in our own code; that of a panic
is no Exception.
"""


@contextmanager
def border(what: str) -> Iterator[None]:
    """Turn exceptions that a file causes into a :class:`~llmprof.errors.ReadError` that names
    it.
    """
    try:
        yield
    except LlmprofError as error:
        if isinstance(error, ReadError | SchemaError):
            error.about(what)
        raise
    except MemoryError as error:
        found = f"there is not enough memory to read {what}"
        raise ReadError(
            found, hint="read fewer tables with tables=, or fewer ranks at a time"
        ) from error
    except OSError as error:
        hint = (
            "check that it exists, that you may read it, and that no process replaces it meanwhile"
        )
        raise ReadError(f"cannot read {what}: {error.strerror or error}", hint=hint) from error
    except BY_CONTENT as error:
        message = str(error).strip().splitlines()
        raise ReadError(
            f"{what} has content that its reader does not understand "
            f"({type(error).__name__}{f': {message[0][:200]}' if message else ''})",
            expected="the file that a profiler wrote",
            hint=(
                "record or export it again; if nothing changed the file, send us a copy that"
                " llmprof redact made"
            ),
        ) from error
