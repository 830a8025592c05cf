"""A synthetic run of many ranks on LocalCluster: written, converted, opened and analysed, checked against its truth.

``python benchmarks/many_ranks.py --workers 2 --ranks 256 --repeat 2`` for one number of workers with all ranks;
``--workers 1 2 4 8 16 --ranks-a-worker 12`` for several, each with so many ranks a worker: the efficiency is the ranks
a second and worker against those of one worker. ``--join 1024`` joins the calls of so many ranks on this process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
import warnings
from pathlib import Path

import polars as pl

import llmprof
from llmprof.analyze.collectives.collectives import matched
from llmprof.dataset import convert, large_run, read_truth, several
from llmprof.dataset.cluster import local
from llmprof.errors import TraceWarning

ANALYSES = ("layers", "overlap", "collectives", "findings")


def peak_bytes() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def wrong(frame: pl.DataFrame, truth) -> int:
    """How many rows of collectives say something else than what was drawn: clock, wait, or who came last."""
    size = truth.tensor_parallel
    first = [rank // size * size for rank in range(truth.ranks)]
    clock = [truth.clock_ahead_ns[rank] - truth.clock_ahead_ns[first[rank]] for rank in range(truth.ranks)]
    late = [max(truth.late_ns[first[rank] : first[rank] + size]) for rank in range(truth.ranks)]
    wait = [late[rank] - truth.late_ns[rank] for rank in range(truth.ranks)]
    last = [truth.late_rank(rank // size) for rank in range(truth.ranks)]
    known = pl.DataFrame({"rank": range(truth.ranks), "clock": clock, "wait": wait, "last": last},
                         schema={"rank": pl.Int32, "clock": pl.Int64, "wait": pl.Int64, "last": pl.Int32})  # fmt: skip
    rows = frame.join(known, on="rank", how="left")
    right = (
        (pl.col("clock_offset_ns") == pl.col("clock"))
        & (pl.col("wait_ns") == pl.col("wait"))
        & (pl.col("last").is_null() | (pl.col("last") == pl.col("last_rank")))
    )
    return rows.filter(~right.fill_null(value=False)).height + abs(frame.height - truth.ranks * truth.calls)


def measure(run: Path, count: int, ranks: int, folder: Path) -> dict[str, object]:
    """Seconds of each part with ``count`` workers on the first ranks of a run, and the memory of the largest worker."""
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
        begin = time.perf_counter()
        trace = convert(paths, target, client=client)
        seconds["convert"] = time.perf_counter() - begin
        begin = time.perf_counter()
        trace = llmprof.open(target)
        seconds["open"] = time.perf_counter() - begin
        begin = time.perf_counter()
        frames = several(ANALYSES, trace, client=client)
        seconds["analyse"] = time.perf_counter() - begin
        peak = max(client.run(peak_bytes).values())
    part = type(truth)(**{**vars(truth), "ranks": ranks})
    found = {
        "workers": count,
        "ranks": ranks,
        "events": trace.coverage["events"],
        **{f"{name}_s": round(value, 2) for name, value in seconds.items()},
        "worker_peak_mb": round(peak / 1e6),
        "client_peak_mb": round(peak_bytes() / 1e6),
        "files_mb": round(sum(path.stat().st_size for path in paths) / 1e6),
        "dataset_mb": round(sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) / 1e6),
        "wrong_rows": wrong(frames["collectives"], part),
        "rows": {name: frame.height for name, frame in frames.items()},
        "first_finding": frames["findings"]["title"][0],
    }
    shutil.rmtree(target)
    return found


def _warm() -> None:
    """Import what the work needs."""


def join(ranks: int, calls: int) -> dict[str, object]:
    """Seconds of the join of the calls of many ranks: groups of 8, clocks apart, one rank of each late."""
    rank, call = pl.int_range(ranks, eager=True), pl.int_range(calls, eager=True)
    frame = pl.DataFrame({"rank": rank.cast(pl.Int32)}).join(pl.DataFrame({"at": call}), how="cross")
    late = pl.when(pl.col("rank") % 8 == 3).then(0).otherwise(120_000)
    clock = (pl.col("rank") // 4) * 1_700_003
    world, members = pl.lit(8, dtype=pl.Int32), pl.col("rank") // 8
    null = {name: pl.lit(None, dtype=dtype) for name, dtype in
            {"step": pl.Int32, "phase": pl.String, "layer": pl.Int32, "in_elements": pl.Int64, "op_id": pl.Int64,
             "op_bytes": pl.Int64, "op_dtype": pl.String, "op_calls": pl.Boolean}.items()}  # fmt: skip
    frame = frame.with_columns(
        start_ns=pl.col("at") * 1_000_000 + 400_000 + (pl.col("at") * 7919) % 300_000 - late + clock,
        dur_ns=20_000 + late, kind=pl.lit("all_reduce"), algorithm=pl.lit("ring_ll"),
        group=pl.format("tp{}", members), group_ranks=members.cast(pl.String), world=world, bytes=pl.lit(458_752),
        bytes_source=pl.lit("metadata"), dtype=pl.lit("bf16"), name=pl.lit("ncclDevKernel_AllReduce"), **null,
    ).drop("at")  # fmt: skip
    begin = time.perf_counter()
    out = matched(frame, {"world_size": ranks, "world_size_from": "file"}, list(range(ranks)))
    seconds = time.perf_counter() - begin
    waited = out.filter(pl.col("wait_ns") == 120_000).height
    return {"join_ranks": ranks, "join_calls": calls, "join_s": round(seconds, 2), "waited_rows": waited,
            "expected_rows": ranks * calls * 7 // 8, "peak_mb": round(peak_bytes() / 1e6)}  # fmt: skip


def main() -> None:
    """Measure, and print one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=[2])
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--ranks-a-worker", type=int)
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
        with local(min(most, os.cpu_count() or 1)) as client:
            large_run(Path(work) / "run", ranks, repeat=args.repeat, seed=args.seed, client=client)
        say({"generated_ranks": ranks, "generate_s": round(time.perf_counter() - begin, 2)})
        base = None
        for count in args.workers:
            some = args.ranks_a_worker * count if args.ranks_a_worker else ranks
            found = measure(Path(work) / "run", count, some, Path(work))
            pace = some / count / (found["convert_s"] + found["analyse_s"])
            base = base or pace
            say({**found, "ranks_a_second": round(pace * count, 3), "efficiency": round(pace / base, 3)})


if __name__ == "__main__":
    main()
