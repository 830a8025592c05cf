"""A synthetic run of many ranks on LocalCluster: written, converted, opened and analysed, checked
against its truth.

``python benchmarks/many_ranks.py --workers 2 --ranks 256 --repeat 2`` for one number of workers
with all ranks; ``--workers 1 2 4 8 16 --ranks-a-worker 12`` for several, each with so many ranks a
worker: the efficiency is the ranks a second and worker against those of one worker. ``--join 1024``
joins the calls of so many ranks on this process. ``--parts 16 64`` analyses so many of the ranks
once more: what the client does alone, and what is sent to it.

Compared with the truth: every collective (clock, wait, who came last), every row of layers and of
overlap (the source rank moved and stretched as was drawn, analysed by itself), and the ranks and
groups that the findings name.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import large
import polars as pl
from large import large_run, read_truth

import llmprof
from llmprof import analyze
from llmprof.analyze.collectives.collectives import matched
from llmprof.errors import TraceWarning
from llmprof.report.dataset import convert, map_several, mapping
from llmprof.report.dataset.cluster import Workers, local

ANALYSES = ("layers", "overlap", "collectives", "findings")


def peak_bytes() -> int:
    """The most memory that this process ever had; the figure of getrusage begins with that of
    the parent process.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)[1]) * 1024


def wrong(frame: pl.DataFrame, truth) -> int:
    """How many rows of collectives say something else than what was drawn: clock, wait, or who
    came last.
    """
    size = truth.tensor_parallel
    first = [rank // size * size for rank in range(truth.ranks)]
    clock = [
        truth.clock_ahead_ns[rank] - truth.clock_ahead_ns[first[rank]]
        for rank in range(truth.ranks)
    ]
    late = [max(truth.late_ns[first[rank] : first[rank] + size]) for rank in range(truth.ranks)]
    wait = [late[rank] - truth.late_ns[rank] for rank in range(truth.ranks)]
    last = [truth.late_rank(rank // size) for rank in range(truth.ranks)]
    known = pl.DataFrame(
        {"rank": range(truth.ranks), "clock": clock, "wait": wait, "last": last},
        schema={"rank": pl.Int32, "clock": pl.Int64, "wait": pl.Int64, "last": pl.Int32},
    )
    rows = frame.join(known, on="rank", how="left")
    right = (
        (pl.col("clock_offset_ns") == pl.col("clock"))
        & (pl.col("wait_ns") == pl.col("wait"))
        & (pl.col("last").is_null() | (pl.col("last") == pl.col("last_rank")))
    )
    return rows.filter(~right.fill_null(value=False)).height + abs(
        frame.height - truth.ranks * truth.calls
    )


class Shares:
    """Time that this process waits for workers, and what they send to it, while a block runs."""

    def __init__(self) -> None:
        self.waiting_s = 0.0
        self.sent_bytes = 0
        self.begin = time.perf_counter()

    def __enter__(self) -> Shares:
        self._each = each = Workers.each

        def timed(workers, *args, **options):
            results = each(workers, *args, **options)
            while True:
                begin = time.perf_counter()
                try:
                    thing, result = next(results)
                except StopIteration:
                    return
                finally:
                    self.waiting_s += time.perf_counter() - begin
                if isinstance(result, mapping.RankResults):
                    self.sent_bytes += sum(
                        frame.estimated_size() for frame in result.frames.values()
                    )
                yield thing, result

        Workers.each = timed
        self.begin = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        Workers.each = self._each
        self.seconds = time.perf_counter() - self.begin

    def facts(self, name: str, ranks: int) -> dict[str, object]:
        """Seconds in all, seconds of this process alone, and bytes a rank that came to it."""
        return {
            f"{name}_s": round(self.seconds, 2),
            f"{name}_client_s": round(self.seconds - self.waiting_s, 2),
            f"{name}_bytes_a_rank": round(self.sent_bytes / ranks),
        }


def source_of(truth, folder: Path) -> Path:
    """The source rank as it was recorded, with its window as often as in the run."""
    alone = type(truth)(
        **{**vars(truth), "ranks": 1, "clock_ahead_ns": [0], "late_ns": [0], "slower": [1.0]}
    )
    folder.mkdir()
    large._write(0, truth=alone, folder=str(folder))
    return folder / "rank0.pt.trace.json.gz"


def expected(
    drawn: tuple[int, int, float], source: str, repeat: int, size: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Layers and overlap of a rank: drawn were how late it is and how late its group (ns), and how
    slow the links.

    Analysed from the source's frames, moved here: neither written to a file nor converted. Runs on
    a worker.
    """
    late, wait, slower = drawn
    base = large._base(repeat, size)
    warp = large._warp(base, late_ns=late, wait_ns=wait, slower=slower)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        trace = llmprof.read(source, cache=False, workers=1)
    first = trace.meta["start_epoch_ns"] - int(base.head["baseTimeNanoseconds"])
    tables = {}
    for name, frame in trace.capture.recorded.items():
        if "dur_ns" not in frame.columns:
            tables[name] = frame
            continue
        begin = frame["start_ns"].to_numpy() + first
        moved = warp(begin)
        lengths = warp(begin + frame["dur_ns"].to_numpy()) - moved
        tables[name] = frame.with_columns(
            start_ns=pl.Series(moved - first), dur_ns=pl.Series(lengths)
        )
    trace = llmprof.Trace(tables, trace.meta, trace.coverage)
    return analyze.layers(trace), analyze.overlap(trace)


def wrong_beside_source(
    frames: dict[str, pl.DataFrame], truth, folder: Path, client
) -> dict[str, int]:
    """Rows of layers and of overlap that are not those of the source as it was moved, and those
    that are missing.
    """
    size = truth.tensor_parallel
    drawn = {}
    for rank in range(truth.ranks):
        group = rank // size
        wait = max(truth.late_ns[group * size : (group + 1) * size])
        drawn[rank] = (truth.late_ns[rank], wait, truth.slower[group])
    source = str(source_of(truth, folder / "source"))
    earliest = min(truth.clock_ahead_ns)
    kept = {name: frames[name].partition_by("rank", as_dict=True) for name in ("layers", "overlap")}
    wrong = dict.fromkeys(kept, 0)
    team = Workers(client)
    for one, found in team.each(
        expected, sorted(set(drawn.values())), source, truth.repeat, size, what="truth"
    ):
        for rank in (rank for rank, of in drawn.items() if of == one):
            shift = truth.clock_ahead_ns[rank] - earliest
            for name, frame in zip(kept, found, strict=True):
                own = pl.lit(rank, dtype=pl.Int32)
                times = [
                    pl.col(c) + shift for c in ("start_ns", "host_start_ns") if c in frame.columns
                ]
                should = frame.with_columns(*times, rank=own)
                rows = kept[name].get((rank,), should.clear())
                if rows.height != should.height:
                    wrong[name] += max(rows.height, should.height)
                elif not rows.equals(should):
                    same = pl.all_horizontal(rows[c].eq_missing(should[c]) for c in should.columns)
                    wrong[name] += rows.height - int(pl.select(same.sum()).item())
    return wrong


def named(findings: pl.DataFrame, truth) -> dict[str, bool]:
    """Whether findings name what was drawn: a rank that comes late, and a rank of the group with
    the slowest links.
    """
    late = findings.filter(pl.col("rule") == "arrival_skew")["title"].to_list()
    said = [
        int(number) for title in late for number in re.findall(r"rank (\d+) arrives last", title)
    ]
    links = findings.filter(pl.col("rule") == "exposed_communication")["rank"].to_list()
    slowest = max(range(len(truth.slower)), key=truth.slower.__getitem__)
    return {
        "late_rank_named": bool(said) == any(truth.late_ns)
        and all(truth.late_ns[rank] > 0 for rank in said),
        "slow_link_named": bool(links)
        and all(rank // truth.tensor_parallel == slowest for rank in links),
    }


def measure(
    run: Path, count: int, ranks: int, folder: Path, parts: Sequence[int] = ()
) -> dict[str, object]:
    """Seconds of each part with ``count`` workers on the first ranks of a run, and the memory of
    the largest worker.
    """
    truth = read_truth(run)
    paths = [run / f"rank{rank}.pt.trace.json.gz" for rank in range(ranks)]
    target = folder / f"dataset{count}"
    seconds = {}
    begin = time.perf_counter()
    with local(count) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)  # of the ranks that are left out here
        client.wait_for_workers(count)
        client.run(_warm)
        seconds["start"] = time.perf_counter() - begin
        with Shares() as converting:
            trace = convert(paths, target, client=client)
        begin = time.perf_counter()
        trace = llmprof.open(target)
        seconds["open"] = time.perf_counter() - begin
        with Shares() as analysing:
            frames = map_several(ANALYSES, trace, client=client)
        peak, own_peak = max(client.run(peak_bytes).values()), peak_bytes()
        of_parts = {}
        for some in parts:
            with Shares() as shares:
                map_several(ANALYSES, trace.select(rank=range(some)), client=client)
            of_parts |= {
                f"{key}_of_{some}": value for key, value in shares.facts("analyse", some).items()
            }
        groups = -(-ranks // truth.tensor_parallel)
        cut = {
            "ranks": ranks,
            "slower": truth.slower[:groups],
            "clock_ahead_ns": truth.clock_ahead_ns[:ranks],
        }
        part = type(truth)(**{**vars(truth), **cut, "late_ns": truth.late_ns[:ranks]})
        beside = wrong_beside_source(frames, part, folder, client)
    shutil.rmtree(folder / "source")
    found = {
        "workers": count,
        "ranks": ranks,
        "events": trace.coverage["events"],
        **{f"{name}_s": round(value, 2) for name, value in seconds.items()},
        **converting.facts("convert", ranks),
        **analysing.facts("analyse", ranks),
        **of_parts,
        "worker_peak_mb": round(peak / 1e6),
        "client_peak_mb": round(own_peak / 1e6),
        "files_mb": round(sum(path.stat().st_size for path in paths) / 1e6),
        "dataset_mb": round(
            sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) / 1e6
        ),
        "wrong_rows": {"collectives": wrong(frames["collectives"], part), **beside},
        **named(frames["findings"], part),
        "rows": {name: frame.height for name, frame in frames.items()},
        "first_finding": frames["findings"]["title"][0],
    }
    shutil.rmtree(target)
    return found


def _warm() -> None:
    """Import what the work needs."""


def join(ranks: int, calls: int) -> dict[str, object]:
    """Seconds of the join of the calls of many ranks: groups of 8, clocks apart, one rank of
    each late.
    """
    rank, call = pl.int_range(ranks, eager=True), pl.int_range(calls, eager=True)
    frame = pl.DataFrame({"rank": rank.cast(pl.Int32)}).join(
        pl.DataFrame({"at": call}), how="cross"
    )
    late = pl.when(pl.col("rank") % 8 == 3).then(0).otherwise(120_000)
    clock = (pl.col("rank") // 4) * 1_700_003
    world, members = pl.lit(8, dtype=pl.Int32), pl.col("rank") // 8
    null = {
        name: pl.lit(None, dtype=dtype)
        for name, dtype in {
            "step": pl.Int32,
            "phase": pl.String,
            "layer": pl.Int32,
            "in_elements": pl.Int64,
            "op_id": pl.Int64,
            "op_bytes": pl.Int64,
            "op_dtype": pl.String,
            "op_calls": pl.Boolean,
        }.items()
    }
    frame = frame.with_columns(
        start_ns=pl.col("at") * 1_000_000
        + 400_000
        + (pl.col("at") * 7919) % 300_000
        - late
        + clock,
        dur_ns=20_000 + late,
        kind=pl.lit("all_reduce"),
        algorithm=pl.lit("ring_ll"),
        group=pl.format("tp{}", members),
        group_ranks=members.cast(pl.String),
        world=world,
        bytes=pl.lit(458_752),
        bytes_source=pl.lit("metadata"),
        dtype=pl.lit("bf16"),
        name=pl.lit("ncclDevKernel_AllReduce"),
        **null,
    ).drop("at")
    begin = time.perf_counter()
    out = matched(frame, {"world_size": ranks, "world_size_from": "file"}, list(range(ranks)))
    seconds = time.perf_counter() - begin
    waited = out.filter(pl.col("wait_ns") == 120_000).height
    return {
        "join_ranks": ranks,
        "join_calls": calls,
        "join_s": round(seconds, 2),
        "waited_rows": waited,
        "expected_rows": ranks * calls * 7 // 8,
        "peak_mb": round(peak_bytes() / 1e6),
    }


def main() -> None:
    """Measure, and print one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=[2])
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--ranks-a-worker", type=int)
    parser.add_argument(
        "--parts", type=int, nargs="*", default=[], help="analyse so many ranks once more"
    )
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--join", type=int, default=0)
    parser.add_argument("--calls", type=int, default=3000)
    args = parser.parse_args()
    lines: list[dict[str, object]] = []

    def say(found: dict[str, object]) -> None:
        lines.append(found)
        print(json.dumps(found), flush=True)
        if args.out is not None:
            args.out.write_text("".join(json.dumps(one) + "\n" for one in lines))

    pl.thread_pool_size()  # that of this process stays as it is; workers get one thread each
    os.environ["POLARS_MAX_THREADS"] = "1"
    if args.join:
        say(join(args.join, args.calls))
    if not args.workers:
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as work:
        most = max(args.workers)
        ranks = args.ranks_a_worker * most if args.ranks_a_worker else args.ranks
        begin = time.perf_counter()
        count = min(most, os.cpu_count() or 1)
        large_run(Path(work) / "run", ranks, repeat=args.repeat, seed=args.seed, processes=count)
        say({"generated_ranks": ranks, "generate_s": round(time.perf_counter() - begin, 2)})
        base = None
        for count in args.workers:
            some = args.ranks_a_worker * count if args.ranks_a_worker else ranks
            found = measure(Path(work) / "run", count, some, Path(work), args.parts)
            pace = some / count / (found["convert_s"] + found["analyse_s"])
            base = base or pace
            say(
                {
                    **found,
                    "ranks_a_second": round(pace * count, 3),
                    "efficiency": round(pace / base, 3),
                }
            )


if __name__ == "__main__":
    main()
