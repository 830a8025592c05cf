"""Predictions of what_if against recordings in which somebody made the change: error of each pair,
and where it is.

usage: python benchmarks/what_if.py CAPTURES [NSYS [H100]]   (folders with the recordings that are
named below)

H100 holds ``q-eager`` and ``q-default``: Qwen2.5-7B with ``steps_plain.json``, the steps of one
more batch of the same process without a profiler, as ``[[begin, end, {request: tokens}, …], …]`` of
each rank. This pair is also predicted in time without the profiler.

For pairs of eager recordings and graphs a second prediction takes from the other recording what the
change does not make: how fast its host runs. That is the time of the operators that both have once
a step, outside of the layers, and not the time of a step.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

import llmprof
from llmprof.analyze import changes, steps, what_if
from llmprof.replay.graph import graph
from llmprof.replay.plan import LEVELS, ReplayPlan
from llmprof.replay.schedule import NodeNumbers
from llmprof.trace import Trace


def median_rank(count: int) -> int:
    """Number of sorted values below the lower end, and above the upper end, of their median's
    interval.
    """
    if count > 100:
        return int((count - 1.96 * count**0.5) / 2)
    below, drop = 0, 0
    while (below := below + math.comb(count, drop)) <= 0.025 * 2**count:
        drop += 1
    return max(0, drop - 1)


def decode(trace: Trace, *made: changes.ReplayChange) -> dict[str, float]:
    prediction = what_if(trace, *made)
    chosen = prediction.filter(pl.col("phase") == "decode")
    return (chosen if chosen.height else prediction.sort("steps")[-1:]).row(0, named=True)


def operators(trace: Trace) -> pl.DataFrame:
    """Median time of the operators that every decode step runs once to five times on each rank."""
    decoding = steps(trace).filter(
        pl.col("phase") == "decode", pl.col("host_start_ns").is_not_null()
    )
    each = decoding.select("rank", "step", start_ns="host_start_ns").sort("start_ns")
    inside = trace.ops.sort("start_ns").join_asof(
        each, on="start_ns", by="rank", check_sortedness=False
    )
    counted = (
        inside.filter(pl.col("step").is_not_null())
        .group_by("name")
        .agg(a_step=pl.len() / each.height, op_ns=pl.col("dur_ns").median())
    )
    return counted.filter(pl.col("a_step").is_between(0.9, 5.1))


def host_speed(trace: Trace, other: Trace) -> float:
    """How long the host of the other recording takes for the same operators, as a share."""
    same = (pl.col("a_step") - pl.col("a_step_right")).abs() < 0.1
    both = operators(trace).join(operators(other), on="name").filter(same)
    here, there = both.select(pl.col("op_ns", "op_ns_right") * pl.col("a_step")).sum().row(0)
    return float(there / here)


Values = Sequence[float]


def show(
    name: str, recorded: float, found: Values, truth: float, *, again: float | None = None
) -> None:
    predicted, low, high = (value / 1e6 for value in found)
    truth, covered = truth / 1e6, low <= truth / 1e6 <= high
    second = "" if again is None else f"{again / 1e6:.3f} ({again / 1e6 / truth - 1:+.1%})"
    print(
        f"| {name} | {recorded / 1e6:.3f} | {predicted:.3f} | {low:.3f}-{high:.3f} | {truth:.3f} | "
        f"{predicted / truth - 1:+.1%} | {'yes' if covered else 'no'} | {second} |"
    )


def vllm(captures: Path) -> None:
    def of(name: str) -> Trace:
        return llmprof.read(captures / name)

    custom, nccl = of("torch_tp4_eager_custom_allreduce"), of("torch_tp4_eager_nccl")
    pairs = [
        (
            "TP=1 eager -> graphs",
            of("torch_tp1_eager"),
            of("torch_tp1_cudagraph"),
            changes.no_host_delay(),
        ),
        ("TP=4 eager -> graphs", custom, of("torch_tp4_cudagraph"), changes.no_host_delay()),
        ("TP=4 NCCL -> custom all-reduce", nccl, custom, changes.transfer(like=custom)),
        ("TP=4 custom -> NCCL all-reduce", custom, nccl, changes.transfer(like=nccl)),
    ]
    for name, trace, truth, change in pairs:
        found = decode(trace, change)
        speed = host_speed(trace, truth)
        second = decode(trace, changes.scale("host", speed), change)["predicted_ns"]
        values = (found["predicted_ns"], found["low_ns"], found["high_ns"])
        words = f"{name} (host x {speed:.2f})"
        show(words, found["recorded_ns"], values, decode(truth)["recorded_ns"], again=second)


def tensor_parallel(captures: Path) -> None:
    """Graphs of Qwen2.5-7B with batch 4; at TP=1 steps of batch 1 and 8 without a profiler were
    measured.
    """
    traces = {
        2: llmprof.read(captures / "nsys_tp2_cudagraph"),
        4: llmprof.read(captures / "torch_tp4_cudagraph"),
    }
    rows = pl.DataFrame(
        json.loads((captures / "steps_h200" / "Qwen2.5-7B.json").read_text())["rows"]
    )
    steps_of = rows.filter(pl.col("batch").is_in([1, 8]), prompt=128)["decode_step_s"]
    truth = {n: decode(trace)["recorded_ns"] for n, trace in traces.items()} | {
        1: steps_of.median() * 1e9
    }
    for n, new in ((2, 4), (4, 2), (4, 1), (2, 1)):
        found = decode(traces[n], changes.tensor_parallel(new))
        values = (found["predicted_ns"], found["low_ns"], found["high_ns"])
        show(f"graphs, TP={n} -> TP={new}", found["recorded_ns"], values, truth[new])


def layers_of_two(trace: Trace, times: NodeNumbers) -> list[float]:
    """Times from one attention kernel to the second next, on all ranks: two layers of a model
    without steps.
    """
    events = graph(trace).events.filter(
        (pl.col("where") == "device") & (pl.col("category") == "attention")
    )
    out: list[float] = []
    for _, rows in events.sort("rank", "start_ns").group_by("rank", maintain_order=True):
        out += np.diff(times[2 * rows["row"].to_numpy()][::2]).tolist()
    return out


def mfu(folder: Path) -> None:
    before, after = (
        llmprof.read(folder / f"nsysai_mfu_2gpu_{when}.sqlite") for when in ("before", "after")
    )
    built = graph(before)
    real = graph(after)
    device = pl.col("where") == "device"
    other = real.events.filter(device).group_by("name").agg(new=pl.col("dur_ns").median())
    new = built.events.select("name").join(other, on="name", how="left", maintain_order="left")[
        "new"
    ]
    middle = built.events.select(own=pl.col("dur_ns").median().over("name"))["own"]
    predicted = {}
    for level in LEVELS:
        plan = ReplayPlan(built, level)
        own = pl.Series(plan.own_duration())
        plan.set_duration(
            plan.device, (own * (new / middle).fill_null(1.0).fill_nan(1.0)).to_numpy()
        )
        plan.host(plan.choose(*changes.OTHER_RUN))
        predicted[level] = sorted(layers_of_two(before, plan.times()))
    drop = median_rank(
        len(predicted["middle"]) // 2
    )  # the ranks wait for each other: a pair of layers counts once
    values = (
        float(np.median(predicted["middle"])),
        predicted["low"][2 * drop],
        predicted["high"][-1 - 2 * drop],
    )
    recorded, truth = (
        float(np.median(layers_of_two(t, g.time))) for t, g in ((before, built), (after, real))
    )
    show("nsys mfu, kernels as in the second", recorded, values, truth)


def h100(folder: Path) -> None:
    """Eager to graphs under the profiler, and without it; each from the end of a decode step to
    that of the next.
    """
    names = ("q-eager", "q-default")
    eager, graphs = (llmprof.read(folder / name) for name in names)
    plain = [without_profiler(folder / name / "steps_plain.json") for name in names]
    recorded = decode(eager)["recorded_ns"]
    tokens = {"without_profiler": {"plain_ns": plain[0], "profiled_ns": recorded}}
    trace = Trace(eager.capture.recorded, eager.meta | tokens, eager.coverage)
    found = decode(trace, changes.no_host_delay())
    truths = {"": decode(graphs)["recorded_ns"], "plain_": plain[1]}
    for of, truth in truths.items():
        before, *values = (
            found[f"{of}{name}_ns"] for name in ("recorded", "predicted", "low", "high")
        )
        show(
            f"TP=1 on an H100, eager -> graphs{', without the profiler' if of else ''}",
            before,
            values,
            truth,
        )


def without_profiler(file: Path) -> float:
    """Median time from the end of a decode step to that of the next."""
    [rank] = json.loads(file.read_text())
    ends = [end for _, end, tokens, *_ in rank if tokens and set(tokens.values()) == {1}]
    return float(np.median(np.diff(ends)))


def main() -> None:
    print(
        "| pair | recorded ms | predicted ms | interval ms | with the change ms | error | covered | with its host |"
    )
    print("|---|---|---|---|---|---|---|---|")
    vllm(Path(sys.argv[1]))
    tensor_parallel(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        mfu(Path(sys.argv[2]))
    if len(sys.argv) > 3:
        h100(Path(sys.argv[3]))


if __name__ == "__main__":
    main()
