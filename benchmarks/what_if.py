"""Predictions of what_if against recordings in which somebody made the change: error of each pair.

usage: python benchmarks/what_if.py CAPTURES   (a folder with the recordings that are named below)
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import polars as pl

import llmprof
from llmprof.analyze import changes, what_if
from llmprof.trace import Trace


def decode(trace: Trace, *made: changes.Change) -> dict[str, float]:
    found = what_if(trace, *made)
    chosen = found.filter(pl.col("phase") == "decode")
    return (chosen if chosen.height else found.sort("steps")[-1:]).row(0, named=True)


def main(captures: Path) -> None:
    def of(name: str) -> Trace:
        return llmprof.read(captures / name)

    custom, nccl = of("torch_tp4_eager_custom_allreduce"), of("torch_tp4_eager_nccl")
    pairs = [
        ("TP=1 eager -> graphs", of("torch_tp1_eager"), of("torch_tp1_cudagraph"), changes.no_host_delay()),
        ("TP=4 eager -> graphs", custom, of("torch_tp4_cudagraph"), changes.no_host_delay()),
        ("TP=4 NCCL -> custom all-reduce", nccl, custom, changes.transfer(like=custom)),
        ("TP=4 custom -> NCCL all-reduce", custom, nccl, changes.transfer(like=nccl)),
    ]
    print("| pair | recorded ms | predicted ms | interval ms | recorded with the change ms | error | seconds |")
    print("|---|---|---|---|---|---|---|")
    for name, trace, truth, change in pairs:
        began = time.perf_counter()
        row = decode(trace, change)
        took = time.perf_counter() - began
        real_ns = decode(truth)["recorded_ns"]
        low, high = row["low_ns"] / 1e6, row["high_ns"] / 1e6
        print(
            f"| {name} | {row['recorded_ns'] / 1e6:.3f} | {row['predicted_ns'] / 1e6:.3f} | {low:.3f}-{high:.3f} | "
            f"{real_ns / 1e6:.3f} | {row['predicted_ns'] / real_ns - 1:+.1%} | {took:.2f} |"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
