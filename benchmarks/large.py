"""Synthetic large runs: files of many ranks, made from one recorded rank, with their true
values.
"""

from __future__ import annotations

import json
import os
import random
import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import polars as pl
from isal import igzip

from llmprof.analyze.collectives.collectives import recorded_calls
from llmprof.errors import OutputError, ReadError, TraceWarning
from llmprof.readers import bundled
from llmprof.readers.reading import read
from llmprof.trace.storage import files, typed

TRUTH: Final = "truth.json"
"""File beside the ranks with the random values of the run."""

SAMPLE: Final = "torch_tp4_eager_nccl"
BASE_RANK: Final = 3
"""Rank of the sample that comes last to its collectives: on it they are transfer, with almost no
waiting.
"""

_TIMES: Final = re.compile(rb'"ts": ?(\d+(?:\.\d+)?)(?:, ?"dur": ?(\d+(?:\.\d+)?))?')
_IDS: Final = re.compile(rb'("(?:correlation|External id|Ev Idx)": ?|"ph": ?"[sf]", ?"id": ?)(\d+)')
_CALLS: Final = re.compile(
    rb'"cat": ?"kernel", ?"name": ?"ncclDevKernel_(\w+?)_[^}]*?"ts": ?(\d+(?:\.\d+)?), ?"dur": ?(\d+(?:\.\d+)?)'
    rb'[^}]*?"args": ?\{'
)
_NAMED: Final = {
    b"AllReduce": "allreduce",
    b"AllGather": "_allgather_base",
    b"ReduceScatter": "_reduce_scatter_base",
}
_GROUP, _MEMBERS = "@GROUP@", "@MEMBERS@"


Times: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Truth:
    """Random values of a synthetic run."""

    ranks: int
    tensor_parallel: int
    ranks_per_node: int
    seed: int
    repeat: int
    calls: int
    """Collective calls of each rank."""
    events: int
    """Events of each rank's file."""
    clock_ahead_ns: list[int] = field(default_factory=list)
    """By rank: lead of its clock; ranks of one node share a clock."""
    late_ns: list[int] = field(default_factory=list)
    """By rank: delay after the other ranks of its group at each collective call."""
    slower: list[float] = field(default_factory=list)
    """By group: factor between the duration of its collective calls and the recorded one."""
    synthetic: bool = True

    def late_rank(self, group: int) -> int | None:
        """The late rank of a group; None if there is none."""
        first = group * self.tensor_parallel
        own = range(first, first + self.tensor_parallel)
        return next((rank for rank in own if self.late_ns[rank]), None)


class _Base(NamedTuple):
    """The recorded rank: its text in pieces, each of which ends before a time."""

    head: dict[str, Any]
    pieces: pl.Series
    tail: str
    starts: Times
    """The time behind each piece (ns) …"""
    lengths: Times
    """… and the length of what begins there; -1 where none is written."""
    calls: Times
    """Starts of the collective calls, in order …"""
    call_lengths: Times
    """… and their lengths."""


def large_run(
    folder: str | os.PathLike[str],
    ranks: int,
    *,
    tensor_parallel: int = 4,
    ranks_per_node: int = 8,
    late_share: float = 0.25,
    repeat: int = 1,
    seed: int = 0,
    processes: int = 1,
) -> Truth:
    """Write the files of a synthetic run of many ranks into a new folder, as PyTorch's profiler
    writes them.

    Every rank is a copy of rank 3 of the sample ``torch_tp4_eager_nccl``, repeated ``repeat``
    times. It has the clock of its node (up to 5 ms off), a place in a tensor-parallel group, and
    the link speed of this group. In ``late_share`` of the groups one rank comes 50 to 500 us late
    to every collective call, and the others wait for it. So the result that an analysis should find
    is known; it is written beside the files. The device's name says that the run is synthetic.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise OutputError(
            f"{target} exists and is not an empty folder", hint="choose another folder"
        )
    base = _base(repeat, tensor_parallel)
    draw = random.Random(seed)
    groups = -(-ranks // tensor_parallel)
    ahead = [draw.randrange(-5_000_000, 5_000_001) for _ in range(-(-ranks // ranks_per_node))]
    late = [0] * ranks
    for group in range(groups):
        members = range(group * tensor_parallel, min(ranks, (group + 1) * tensor_parallel))
        if len(members) > 1 and draw.random() < late_share:
            late[draw.choice(members)] = draw.randrange(50_000, 500_001)
    truth = Truth(
        ranks=ranks,
        tensor_parallel=tensor_parallel,
        ranks_per_node=ranks_per_node,
        seed=seed,
        repeat=repeat,
        calls=len(base.calls),
        events=len(base.starts),
        clock_ahead_ns=[ahead[rank // ranks_per_node] for rank in range(ranks)],
        late_ns=late,
        slower=[round(draw.uniform(1.0, 1.5), 3) for _ in range(groups)],
    )
    target.mkdir(parents=True, exist_ok=True)
    files.write_json(target / TRUTH, asdict(truth))
    write = partial(_write, truth=truth, folder=str(target))
    if processes == 1:
        list(map(write, range(ranks)))
    else:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            list(pool.map(write, range(ranks)))
    return truth


def read_truth(folder: str | os.PathLike[str]) -> Truth:
    """Random values of a run that :func:`large_run` wrote."""
    stored = typed.found(Path(folder) / TRUTH, Any)
    if not isinstance(stored, dict) or not stored.get("synthetic"):
        raise ReadError(f"{folder} is not a synthetic run", expected=f"a folder with {TRUTH}")
    return Truth(**stored)


@lru_cache(maxsize=1)
def _base(repeat: int, group_size: int) -> _Base:
    """The recorded rank in pieces, made once in each process."""
    file = next(
        path for path in bundled.sample_files(SAMPLE) if path.name.startswith(f"rank{BASE_RANK}.")
    )
    text = igzip.decompress(file.read_bytes())
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)  # of the ranks that are not read
        recorded = recorded_calls(read(file, cache=False))
    sizes = recorded.sort("start_ns")["op_bytes"].fill_null(0).to_list()
    body, calls, call_lengths = _with_groups(text[begin:end], sizes, group_size)
    pieces: list[str] = []
    before = ""
    for number in range(repeat):
        own, starts, lengths, rest = _pieces(_with_other_ids(body, number))
        pieces += [before + own[0], *own[1:]]
        before = f"{rest},"
    window = int(max(calls + call_lengths) - min(calls)) + _PAUSE_NS
    shifts = range(0, repeat * window, window)
    return _Base(
        head=json.loads(text[:begin] + b"]}"),
        pieces=pl.Series(pieces, dtype=pl.String),
        tail=rest + text[end:].decode(),
        starts=np.concatenate([starts + shift for shift in shifts]),
        lengths=np.tile(lengths, repeat),
        calls=np.concatenate([calls + shift for shift in shifts]),
        call_lengths=np.tile(call_lengths, repeat),
    )


_PAUSE_NS: Final = 30_000_000
"""Time between the last call of a window and the first call of the next one, for other events
there.
"""


def _with_groups(body: bytes, sizes: Sequence[int], group_size: int) -> tuple[bytes, Times, Times]:
    """The text with a process group in each collective kernel, and the starts and durations of
    these kernels.
    """
    matches = sorted(_CALLS.finditer(body), key=lambda match: _ns(match[2]))
    about = {}
    for match, size in zip(matches, sizes, strict=True):
        inside = size // 2  # elements of bf16
        elements = inside * (group_size if match[1] == b"AllGather" else 1)
        about[match.start()] = (
            f'"Collective name": "{_NAMED.get(match[1], "other")}", "In msg nelems": {inside}, '
            f'"Out msg nelems": {elements}, "Group size": {group_size}, "dtype": "BFloat16", '
            f'"Process Group Name": "{_GROUP}", "Process Group Description": "tp", '
            f'"Process Group Ranks": "{_MEMBERS}", '
        ).encode()
    text = _CALLS.sub(lambda match: match[0] + about[match.start()], body)
    times = np.array([(_ns(match[2]), _ns(match[3])) for match in matches], dtype=np.int64)
    return text, times[:, 0], times[:, 1]


def _with_other_ids(body: bytes, number: int) -> bytes:
    """The text with other call numbers, so that it can be repeated."""
    if not number:
        return body
    shift = number * 10_000_000
    return _IDS.sub(lambda match: match[1] + str(int(match[2]) + shift).encode(), body)


def _pieces(body: bytes) -> tuple[list[str], Times, Times, str]:
    pieces, starts, lengths, last = [], [], [], 0
    for match in _TIMES.finditer(body):
        pieces.append(body[last : match.start(1)].decode())
        starts.append(_ns(match[1]))
        lengths.append(_ns(match[2]) if match[2] is not None else -1)
        last = match.end()
    return (
        pieces,
        np.array(starts, dtype=np.int64),
        np.array(lengths, dtype=np.int64),
        body[last:].decode(),
    )


def _ns(text: bytes) -> int:
    whole, _, part = text.partition(b".")
    return int(whole) * 1000 + int((part + b"000")[:3])


def _us(times: Times) -> pl.Expr:
    """Times as text in us, with three decimals."""
    ns = pl.lit(pl.Series(times))
    return pl.concat_str(
        (ns // 1000).cast(pl.String), pl.lit("."), (ns % 1000).cast(pl.String).str.zfill(3)
    )


def _write(rank: int, truth: Truth, folder: str) -> None:
    """Write the file of one rank. Runs on a worker."""
    base = _base(truth.repeat, truth.tensor_parallel)
    group = rank // truth.tensor_parallel
    members = [group * truth.tensor_parallel + i for i in range(truth.tensor_parallel)]
    members = [member for member in members if member < truth.ranks]
    wait_ns = max(truth.late_ns[member] for member in members)
    warp = _warp(base, late_ns=truth.late_ns[rank], wait_ns=wait_ns, slower=truth.slower[group])
    starts = warp(base.starts)
    lengths = np.where(base.lengths < 0, -1, warp(base.starts + base.lengths) - starts)
    written = lengths >= 0
    text = pl.select(
        pl.concat_str(
            pl.lit(base.pieces),
            _us(starts + truth.clock_ahead_ns[rank]),
            pl.when(pl.lit(pl.Series(written)))
            .then(pl.concat_str(pl.lit(', "dur": '), _us(np.maximum(lengths, 0))))
            .otherwise(pl.lit("")),
        ).str.join("")
    ).item()
    text = text.replace(_GROUP, f"tp{group}").replace(_MEMBERS, json.dumps(members))
    head = dict(base.head)
    head["deviceProperties"] = [
        {**device, "name": f"{device['name']} (synthetic run)"}
        for device in head["deviceProperties"]
    ]
    head["distributedInfo"] = {
        "backend": "nccl",
        "rank": rank,
        "world_size": truth.ranks,
        "pg_count": 1,
        "pg_config": [
            {"pg_name": f"tp{group}", "pg_desc": "tp", "pg_size": len(members), "ranks": members}
        ],
    }
    whole = json.dumps(head).removesuffix("]}") + text + base.tail
    files.write(Path(folder) / f"rank{rank}.pt.trace.json.gz", igzip.compress(whole.encode(), 1))


def _warp(base: _Base, *, late_ns: int, wait_ns: int, slower: float) -> Callable[[Times], Times]:
    """Times of the recorded rank moved to another: late before each call, or with a slower link."""
    inside = base.calls + base.call_lengths // 2
    longer = np.round(base.call_lengths * (slower - 1)).astype(np.int64)
    waits = np.full_like(base.calls, wait_ns)
    points = np.concatenate([inside, base.calls - 1 if late_ns else inside])
    added = np.concatenate([longer, waits])
    order = np.argsort(points, kind="stable")
    sums = np.concatenate([[0], np.cumsum(added[order])])
    points = points[order]

    def moved(times: Times) -> Times:
        return np.asarray(times + sums[np.searchsorted(points, times, side="left")], dtype=np.int64)

    return moved
