"""Every rule on a trace that it must speak about, with its figure by hand, and on one that it
must not.
"""

import random
import re
from pathlib import Path

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest

import llmprof
import llmprof.analyze
from llmprof.analyze import catalog, findings, idle, what_if
from llmprof.analyze.step_times import step_windows
from llmprof.findings.cause import few_longest
from llmprof.findings.causes import CAUSES
from llmprof.findings.causes.exposed_communication import beyond_fastest
from llmprof.findings.causes.host_bound import LONG_PAUSE_NS
from llmprof.findings.causes.short_kernels import SHORT_KERNEL_NS
from llmprof.findings.frame import SCHEMA
from llmprof.findings.host import range_around
from llmprof.findings.reasons import REASONS
from llmprof.findings.scope import scope_of, scopes_of
from llmprof.replay.what_if import change_of
from llmprof.trace import Trace, schema
from tests.analyze.builders import (
    ATTENTION,
    DENSE,
    EMBEDDING,
    GEMM,
    MM_BOUND_NS,
    NCCL_ALL_REDUCE,
    NORM,
    SAMPLE,
    SILU,
    SPLIT_K,
    end,
    kernels,
    labels,
    launches,
    ops,
    products_of_h200,
)

DECODE = "execute_context_0(0)_generation_4(4)"
LONG, SHORT = 50_000, 1_000


def decode(
    names,
    *,
    steps=6,
    dur=LONG,
    pause=0,
    lead=100_000,
    rank=0,
    label=DECODE,
    **tables,
):
    """Equal decode steps right one after another; the launches are ``lead`` before each kernel
    starts, labels too.
    """
    runs, marks, start = [], [], 1_000_000
    for n in range(steps):
        runs.append(
            kernels(
                names,
                start=start,
                dur=dur,
                pause=pause,
                rank=rank,
                first=1 + 1000 * n + 100_000 * rank,
            )
        )
        marks.append((label, start - lead - 1, 1000))
        start = end(runs[-1])
    run = pl.concat(runs)
    return {
        "kernels": run,
        "runtime": launches(run, lead=lead),
        "markers": labels(marks, rank=rank),
        **tables,
    }


def together(*parts, **meta):
    return Trace(
        {name: pl.concat([p[name] for p in parts], how="diagonal") for name in parts[0]}, meta
    )


def the(trace, rule):
    """The finding of a rule, which must be there."""
    (row,) = findings(trace).filter(rule=rule).to_dicts()
    return row


def silent(trace, rule):
    """Whether a rule says nothing of a trace."""
    return findings(trace).filter(rule=rule).is_empty()


def measured(trace, name):
    """What a cause measures in the scope of a trace."""
    (cause,) = [cause for cause in CAUSES if cause.name == name]
    found = cause.measure(scope_of(trace))
    assert found is not None
    return found


QUIET = decode([EMBEDDING, *DENSE])
"""Steps that nothing is wrong with: long kernels, one after another, launched in time."""


def test_a_run_without_faults_has_only_information():
    """So every other rule is silent about it."""
    found = findings(together(QUIET))
    assert found["rule"].to_list() == ["heaviest_stage"]
    assert found.select("severity", "scope", "order").row(0) == ("info", "steady decode steps", 1)


def ranks_with_all_reduces(late, transfer=4_000, name=NCCL_ALL_REDUCE):
    """8 times in a step, 100 us of GEMM and the rank's delay, then an all-reduce that all leave
    at once.
    """
    parts = []
    for rank, delay in late.items():
        wait = max(late.values()) - delay
        part = []
        for _ in range(8):
            part += [(GEMM, 100_000 + delay), (name, wait + transfer)]
        parts.append(decode(part, rank=rank))
    return together(*parts, world_size=len(late))


def test_arrival_skew():
    # of each 500 + 4 us ranks 0 and 1 wait 400 us for rank 2
    found = the(ranks_with_all_reduces({0: 0, 1: 0, 2: 400_000}), "arrival_skew")
    assert found["figure"] == pytest.approx(
        8 * 400_000
    )  # a step of ranks 0 and 1, and not the mean of all three
    assert found["share"] == pytest.approx(400 / 504)
    assert found["severity"] == "high"
    assert found["evidence"] == "collectives"
    assert silent(ranks_with_all_reduces({0: 0, 1: 0, 2: 0}), "arrival_skew")
    trace = ranks_with_all_reduces({0: 0, 1: 0, 2: 400_000})
    some = Trace(trace.select(rank=[0, 1]).tables, {"world_size": 3, "missing_ranks": [2]})
    assert silent(some, "arrival_skew")
    exposed = the(some, "exposed_communication")
    assert exposed["share"] == pytest.approx(404 / 504)
    trace = ranks_with_all_reduces({0: 0, 1: 400_000})
    ahead = {
        name: frame.with_columns(
            start_ns=pl.col("start_ns") + 7_000_000 * pl.col("rank").cast(pl.Int64)
        )
        for name, frame in trace.tables.items()
    }
    found = the(Trace(ahead, trace.meta), "arrival_skew")
    assert found["share"] == pytest.approx(400 / 504, rel=1e-3)


def test_calls_of_one_size_that_take_unlike_times():
    """Of one rank waiting is not known; all-reduces of layers move equal tensors."""
    run = [
        kernel
        for wait in (4_000, 4_000, 304_000, 404_000)
        for kernel in (*DENSE[:-1], (NCCL_ALL_REDUCE, wait), DENSE[-1], (NCCL_ALL_REDUCE, wait))
    ]
    found = measured(together(decode(run), world_size=2), "exposed_communication").figures
    assert found.slower_ns == 2 * (300_000 + 400_000)
    assert found.slower_share == pytest.approx(1_400 / 1_432)
    even = [(GEMM, LONG), (NCCL_ALL_REDUCE, 4_000)] * 8
    found = measured(together(decode(even), world_size=2), "exposed_communication").figures
    assert found.slower_ns == 0


def test_small_calls_that_take_longer_than_large_ones():
    calls = pl.DataFrame(
        {
            "rank": [0] * 5,
            "kind": ["all_reduce"] * 4 + ["all_gather"],
            "group": ["a"] * 5,
            "step": [0, 0, 1, 1, 0],
            "name": ["n"] * 5,
            "layer": [None] * 5,
            "bytes": [100, 10, 90, 10, 10],
            "start_ns": [0, 100, 0, 100, 500],
            "dur_ns": [20, 80, 30, 15, 900],
            "wait_ns": pl.Series([None] * 5, dtype=pl.Int64),
        }
    )
    # the fastest of at least 10 bytes takes 15; nothing compares the gather
    assert beyond_fastest(calls)["ns"].sum() == 0 + (30 - 20) + (80 - 15) + 0
    assert not beyond_fastest(calls.with_columns(wait_ns=1)).height


def test_calls_of_unknown_size_are_as_large_as_those_of_the_layers_after_them():
    calls = pl.DataFrame(
        {
            "rank": [0] * 6,
            "kind": ["all_reduce"] * 6,
            "group": ["a"] * 6,
            "step": [0] * 6,
            "name": ["n"] * 6,
            "layer": [None, 0, 0, 1, 1, None],
            "bytes": pl.Series([None] * 6, dtype=pl.Int64),
            "start_ns": [0, 10, 20, 30, 40, 50],
            "dur_ns": [70, 6, 5, 8, 5, 900],
            "wait_ns": pl.Series([None] * 6, dtype=pl.Int64),
        }
    )
    # the fastest takes 5; the call after the layers may be of another size
    assert beyond_fastest(calls)["ns"].sum() == (70 - 5) + (6 - 5) + 0 + (8 - 5) + 0


def test_a_sample_of_calls_shows_no_cause_for_sure():
    run = decode([GEMM] * 11, pause=400_000, lead=5_000)
    assert the(together(run), "host_bound")["severity"] == "high"
    apart = pl.col("correlation") * 40
    sampled = {name: run[name].with_columns(apart) for name in ("kernels", "runtime")}
    assert silent(together(run | sampled), "host_bound")
    first = findings(together(run | sampled)).row(0, named=True)
    calls = run["runtime"]["correlation"]
    span = 40 * (calls.max() - calls.min()) + 1
    assert (first["rule"], first["figure"]) == ("incomplete", span - calls.len())


def test_far_less_than_the_largest_loss_is_not_said():
    run = decode([GEMM, GEMM], pause=9_000_000, lead=5_000)
    assert not silent(together(run), "host_bound")
    assert silent(together(run), "heaviest_stage")  # 2 of 18 ms


def test_pipeline_wait():
    send = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    # 1,000 us of work in each half of the step; the second stage waits for the first 996 of its
    # 1,000 + 4 us
    first = decode([(GEMM, 1_000_000), (send, 4_000), (EMBEDDING, 996_000)], rank=0)
    second = decode([(send, 1_004_000), (GEMM, 996_000)], rank=1)
    found = the(together(first, second, world_size=2), "pipeline_wait")
    assert found["figure"] == pytest.approx(
        1_000_000
    )  # of the second stage; the first one waits for nothing
    assert found["share"] == pytest.approx(1000 / 2000)
    assert silent(together(first, second, world_size=2), "arrival_skew")
    # without a pipeline a broadcast is a collective like others
    broadcast = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    spread = ranks_with_all_reduces({0: 0, 1: 400_000}, name=broadcast)
    assert silent(spread, "pipeline_wait")
    assert not silent(spread, "arrival_skew")


@pytest.mark.parametrize(("open_us", "waited_us"), [(1_990, 990), (2_500, 219.6)])
def test_a_stage_does_not_wait_where_the_next_batch_begins_beside_the_open_call(open_us, waited_us):
    # a step is 1,000 us of work, then 1,000 us without; the last stage's broadcast ends in them, or
    # in the work of the next batch
    broadcast = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    send = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    parts = []
    for rank, start_us in ((0, 1_000), (1, open_us - 10)):
        run = decode([(GEMM, 1_000_000), (send, 1_000)], pause=999_000, rank=rank)
        firsts = run["kernels"].filter(name=GEMM)
        calls = firsts.with_columns(
            pl.col("start_ns") + start_us * 1_000,
            name=pl.lit(broadcast),
            dur_ns=pl.lit((open_us - start_us) * 1_000, pl.Int64),
            stream=pl.lit(20, pl.Int64),
            correlation=pl.col("correlation") + 50_000,
        )
        run["kernels"] = pl.concat([run["kernels"], calls]).sort("start_ns")
        run["runtime"] = pl.concat([run["runtime"], launches(calls)]).sort("start_ns")
        parts.append(run)
    pipeline = together(*parts, world_size=2)
    # of the five open calls only the last one has no batch beside it: a fifth of 4 x 999 us + 1,490
    # us of time without work, a step
    assert the(pipeline, "pipeline_wait")["figure"] == pytest.approx(waited_us * 1_000, rel=0.02)


def test_host_bound():
    # each kernel of 50 us is launched 10 us before it starts, and 150 us after the one before it
    # has ended
    late = decode([GEMM] * 11, pause=150_000, lead=10_000)
    found = the(together(late), "host_bound")
    assert found["figure"] == found["gain_ns"] == 10 * 150_000
    assert found["share"] == pytest.approx(10 * 150 / (11 * 50 + 10 * 150))
    assert found["severity"] == "high"
    # the same gaps, but the launches came in time: something on the device held the kernels up
    assert silent(together(decode([GEMM] * 11, pause=150_000, lead=300_000)), "host_bound")


def test_host_bound_names_the_ranks():
    late = decode([GEMM] * 11, pause=150_000, lead=10_000, rank=2)
    good = [decode([GEMM] * 11, rank=rank) for rank in (0, 1)]
    found = the(together(*good, late), "host_bound")
    # its own figure, not the mean of three ranks
    assert (found["rank"], found["figure"]) == (2, 10 * 150_000)
    assert found["share"] == pytest.approx(1500 / 2050)
    assert "rank 2" in found["denominator"]
    fewer = [decode([GEMM] * 5, pause=5_000, lead=3_000, rank=rank) for rank in (0, 1)]
    measure = measured(together(*fewer, late), "host_bound")
    assert (measure.figures.kernels, measure.figures.calls) == (
        11,
        11,
    )  # those of rank 2, as its time is
    assert measure.figures.launching_share == pytest.approx(10 / 150)
    half = [decode([GEMM] * 11, pause=130_000, lead=10_000, rank=rank) for rank in (0, 1)]
    found = the(
        together(*half, late), "host_bound"
    )  # 1,300 of 1,850 us on two, 1,500 of 2,050 on the last
    assert found["share"] == pytest.approx((2 * 1300 + 1500) / (2 * 1850 + 2050))


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        ("pread", "host_bound"),
        ("cudaEventQuery", "host_bound"),
        ("cudaFree", "allocation"),
        ("hipMalloc", "allocation"),
        ("hipMemAddressReserve", "allocation"),
        ("AscendCL@aclrtMallocHost", "allocation"),
        ("Runtime@DevFree", "allocation"),
        ("AscendCL@aclrtCreateEventExWithFlag", "device_set_up"),
        ("AscendCL@aclrtBinaryLoadFromFile", "loading"),
        ("cudaMemcpy", "host_bound"),
        ("nvrtcCompileProgram", "compilation"),
        ("cuLinkAddData", "compilation"),
        ("cuModuleLoadData", "loading"),
    ],
)
def test_what_the_host_is_in_has_a_finding_of_its_own(call, rule):
    tables = decode([GEMM] * 4, steps=1, pause=150_000, lead=10_000)
    # each call begins when the device is idle already, and takes 110 of the 140 us before the
    # launch
    calls = launches(tables["kernels"].head(3), lead=-60_000, dur=110_000, name=call)
    trace = together(tables | {"runtime": pl.concat([tables["runtime"], calls])})
    found = the(trace, rule)
    # the calls for a reason of their own; the 10 us before and the 30 after each are the host's
    # lateness
    assert found["figure"] == 3 * (150_000 if rule == "host_bound" else 110_000)
    if rule == "host_bound":
        other = measured(trace, rule).figures.other
        assert (other and other.call) == ("pread" if call == "pread" else None)
    else:
        assert the(trace, "host_bound")["figure"] == 3 * 40_000
        assert findings(trace)["rule"][0] == rule


def test_allocation():
    """Freed memory delays a launch, and makes the host wait for the device before it: one cause,
    one finding.
    """
    tables = decode([GEMM] * 4, steps=1, pause=150_000, lead=10_000)
    late = launches(tables["kernels"].head(2), lead=-60_000, dur=110_000)
    waits = launches(
        tables["kernels"].slice(2, 1), lead=-40_000, dur=140_000
    )  # from before its kernel's end
    calls = pl.concat([late, waits]).with_columns(name=pl.lit("hipFree"))
    trace = together(tables | {"runtime": pl.concat([tables["runtime"], calls])})
    found = the(trace, "allocation")
    assert found["figure"] == 2 * 110_000 + 130_000  # the last one begins 10 us before the pause
    assert the(trace, "host_bound")["figure"] == 2 * 40_000 + 20_000
    assert found["change"] == "without-call:^hipFree$"
    assert silent(trace, "synchronisation")


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data_loading"),
        ("transformers/image_transforms.py(10): resize", "input_preparation"),
        ("triton/compiler/compiler.py(226): compile", "compilation"),
    ],
)
def test_what_the_host_does_between_launches(name, rule):
    tables = decode([GEMM] * 4, steps=1, pause=150_000, lead=10_000)
    inside = [
        (name, start + 60_000, 110_000, n)
        for n, start in enumerate(tables["kernels"]["start_ns"][:3])
    ]
    trace = together(tables | {"ops": ops(inside)})
    found = the(trace, rule)
    assert found["figure"] == 3 * 110_000
    assert found["change"] is None


def test_pauses_count_by_what_the_host_was_in_at_each_moment():
    """Of a pause of 150 us the launching thread is in nothing for 40, in mallocs for 50 and 15, in
    an operator for 35.

    In its last 10 us it launches. What fills most of a pause is not what the whole of it was spent
    in.
    """
    tables = decode([GEMM] * 4, steps=1, pause=150_000, lead=10_000)
    ends = tables["kernels"].head(3)["start_ns"] + LONG
    calls = [
        launches(tables["kernels"].head(3), lead=-LONG - at, dur=dur, name="cudaMalloc")
        for at, dur in ((40_000, 50_000), (100_000, 15_000))
    ]
    operators = ops([("aten::mm", begin + 90_000, 50_000, n) for n, begin in enumerate(ends)])
    trace = together(tables | {"runtime": pl.concat([tables["runtime"], *calls]), "ops": operators})
    found = the(trace, "allocation")
    assert found["figure"] == 3 * 65_000
    assert found["figure"] <= trace.runtime.filter(name="cudaMalloc")["dur_ns"].sum()
    late = measured(trace, "host_bound")
    assert late is not None
    assert late.ns == 3 * 85_000
    host = late.figures.host
    assert (host.name, host.share) == ("aten::mm", pytest.approx(35 / 85))
    assert host.unrecorded_share == pytest.approx(40 / 85)
    assert late.figures.launching_share == pytest.approx(10 / 85)


def test_a_call_that_holds_the_device_counts_for_its_own_time():
    """Kernels launched in time wait 150 us; another thread is in a copy for 90 of them."""
    tables = decode([GEMM] * 4, steps=1, pause=150_000, lead=400_000)
    calls = launches(tables["kernels"].slice(1), lead=100_000, dur=90_000)
    calls = calls.with_columns(
        name=pl.lit("hipMemcpyWithStream"),
        thread=pl.lit(2, dtype=pl.Int64),
        correlation=pl.lit(None, dtype=pl.Int64),
    )
    trace = together(tables | {"runtime": pl.concat([tables["runtime"], calls])})
    assert the(trace, "device_held")["figure"] == 3 * 90_000
    assert the(trace, "unexplained_idle")["figure"] == 3 * 60_000


def test_loading():
    """Two first launches of 2 ms each on an idle device, and one of a kernel that ran before."""
    names = ["a", "b", "a", "c", "a"]
    run = kernels(names, start=3_000_000, dur=LONG, pause=2_000_000)
    calls = launches(run, lead=1_990_000, dur=1_980_000)
    found = the(Trace({"kernels": run, "runtime": calls}), "loading")
    assert found["figure"] == pytest.approx(2 * 1_990_000, rel=0.01)


def test_loading_inside_of_an_operator():
    """3 ms in an operator before the first kernel of a name, where it takes 20 us otherwise; as
    long a time before a kernel that ran already is none.
    """
    names = ["a", "a", "a", "b", "a", "a", "a"]
    pauses = [20_000, 20_000, 20_000, 3_000_000, 20_000, 20_000, 3_000_000]
    starts = np.cumsum([pause + LONG for pause in pauses]).tolist()
    run = pl.concat(
        [
            kernels([name], start=start, dur=LONG, first=n + 1)
            for n, (name, start) in enumerate(zip(names, starts, strict=True))
        ]
    )
    calls = launches(run, lead=6_000, dur=5_000)
    mm = ops(
        [
            ("aten::mm", start - pause + 2_000, pause - 3_000, n)
            for n, (start, pause) in enumerate(zip(starts, pauses, strict=True))
        ]
    )
    found = the(Trace({"kernels": run, "runtime": calls, "ops": mm}), "loading")
    assert found["figure"] == pytest.approx(3_000_000, rel=0.01)


def test_nothing_is_sure_of_an_idle_device_whose_launches_are_unknown():
    run = kernels([GEMM] * 4, start=1_000_000, dur=LONG, pause=10 * LONG)
    calls = launches(run, lead=5 * LONG)
    unlinked = run.with_columns(correlation=pl.lit(None, dtype=run["correlation"].dtype))
    sure = findings(Trace({"kernels": run, "runtime": calls}))
    unsure = findings(Trace({"kernels": unlinked, "runtime": calls}))
    assert (sure["rule"][0], sure["severity"][0]) == ("host_bound", "high")
    assert set(unsure.filter(pl.col("share") > 0.5)["severity"]) == {"low"}


@pytest.mark.parametrize(
    ("kernel", "rule"),
    [
        ("fused_moe_kernel", "compilation"),
        ("Cijk_Ailk_Bljk_SB_MT128x64x16", "loading"),
        ("nvjet_tst_64x8", "loading"),
        ("void cutlass::Kernel<x>(P)", "loading"),
    ],
)
def test_time_that_ends_in_loading_new_code(kernel, rule):
    """4 ms of which nothing was recorded but the 100 us at its end in which code is loaded."""
    first, late = kernels([GEMM], start=1_000_000), kernels([kernel], start=5_010_000, first=2)
    load = launches(late, lead=110_000, dur=100_000, name="cuModuleLoadData", correlation=None)
    calls = pl.concat([launches(first), load, launches(late, lead=5_000)])
    run = Trace({"kernels": pl.concat([first, late]), "runtime": calls})
    found = the(run, rule)
    assert found["figure"] == pytest.approx(3_900_000 + (rule == "loading") * 100_000, rel=0.02)
    assert found["about"] == "cuModuleLoadData"
    assert found["change"] is None  # without the call the time before it would stay


def ranges(rows):
    """Ranges of the thread that launches."""
    return labels(rows).with_columns(thread=pl.lit(1, dtype=pl.Int64))


@pytest.mark.parametrize(("inside", "name"), [(100, "sample"), (60, "sample"), (0, None)])
def test_the_range_around_a_step_is_not_what_the_host_does(inside, name):
    """Of the 150 us before each kernel 140 are before its launch, and as many of them in a
    range.
    """
    tables = decode([GEMM] * 4, steps=3, pause=150_000, lead=10_000)
    starts = tables["kernels"]["start_ns"].to_list()
    steps = [(DECODE, starts[n] - 10_001, 640_000) for n in (0, 4, 8)]
    samples = [
        ("sample", start + 55_000, inside * 1000) for n, start in enumerate(starts) if n % 4 < 3
    ]
    around = [("generate", 0, 10_000_000)]
    short = [(label, start, 1000) for label, start, _ in steps]
    for marks in (steps + samples, around + short + samples):
        measure = measured(together(tables | {"markers": ranges(marks)}), "host_bound")
        host = measure.figures.host
        assert host.name == (name if inside else None)
        assert host.share == (pytest.approx(inside / 150) if inside else None)


OF_PROGRAMS = {
    "unknown": (["jacobi_kernel"], {}, False),
    "kernels of torch": (["void at::native::vectorized_elementwise_kernel<4>"], {}, True),
    "a compiled kernel of torch": (["triton_poi_fused_add_3"], {}, True),
    "a kernel written in Triton, as JAX may": (["triton_softmax"], {}, False),
    "operators of torch": (["jacobi_kernel"], {"ops": ops([("aten::mm", 0, 10, 1)])}, True),
    "operators of another framework": (
        ["jacobi_kernel"],
        {"ops": ops([("MatMul_kernel_time", 0, 10, 1)])},
        False,
    ),
    "ranges of torch": (
        ["jacobi_kernel"],
        {"markers": labels([("aten::add, seq = 3", 0, 10)])},
        True,
    ),
    "ranges of another program": (
        ["jacobi_kernel"],
        {"markers": labels([("std::sort", 0, 10)])},
        False,
    ),
}


@pytest.mark.parametrize("program", OF_PROGRAMS)
def test_advice_fits_the_recorded_program(program):
    names, tables, torch = OF_PROGRAMS[program]
    run = kernels(names * 20, start=1_000_000, dur=4_000, pause=36_000)
    calls = launches(run, lead=10_000)
    waits = launches(run.head(10), lead=-500, dur=20_000, name="cudaStreamSynchronize")
    trace = together(
        {"kernels": run, "runtime": pl.concat([calls, waits])} | tables, device="NVIDIA H200"
    )
    advice = dict(findings(trace).select("rule", "suggestion").iter_rows())
    assert {"host_bound", "synchronisation", "short_kernels"} <= set(advice)
    words = " ".join(advice.values())
    # what is in force already is not advised
    assert ("torch.compile" in words) is (torch and "compiled" not in program)
    assert (".item()" in advice["synchronisation"]) is torch
    if not torch:
        assert "torch" not in words
        assert "norm and rope" not in words


@pytest.mark.parametrize(("alone", "change"), [(101, "no-host-delay"), (20, "scale:host:0.5")])
def test_a_part_without_graphs_is_told_to_launch_less(alone, change):
    """The host is 50 us late before each kernel that it launches by itself; then one graph
    replays many more.
    """
    eager = kernels([GEMM] * alone, start=1_000_000, pause=50_000)
    replayed = kernels([GEMM] * 300, start=end(eager) + 60_000, first=1000).with_columns(
        correlation=pl.lit(1000, dtype=pl.Int64)
    )
    graph = launches(replayed.head(1), name="cudaGraphLaunch")
    trace = Trace(
        {"kernels": pl.concat([eager, replayed]), "runtime": pl.concat([launches(eager), graph])}
    )
    found = measured(trace, "host_bound")
    assert found is not None
    assert (found.ns, found.change) == ((alone - 1) * 50_000 + 60_000, change)


@pytest.mark.parametrize("pause", [400_000, 2_000_000])
def test_long_pauses_are_not_told_to_launch_less(pause):
    """In four pauses the host writes a file for all but 110 us; a fifth one is of 50 us."""
    run = kernels([GEMM] * 5, start=3_000_000, dur=LONG, pause=pause)
    files = ranges(
        [
            (f"IO {n}", start - pause + 50_000, pause - 110_000)
            for n, start in enumerate(run["start_ns"][1:])
        ]
    )
    run = pl.concat([run, kernels([GEMM], start=end(run) + 50_000, dur=LONG, first=99)])
    trace = Trace({"kernels": run, "runtime": launches(run, lead=10_000), "markers": files})
    measure = measured(trace, "host_bound")
    is_long = pause > LONG_PAUSE_NS
    long_share = 4 * pause / (4 * pause + 50_000) if is_long else 0
    assert measure.figures.long_share == pytest.approx(long_share)
    assert (measure.change is None) is is_long
    found = the(trace, "host_bound")
    assert ("graphs" not in found["suggestion"]) is is_long
    assert measure.figures.host.name == "IO 0"


def held(pause=150_000, name="hipMemcpyWithStream"):
    """Kernels that were launched in time; in the pauses before them another thread is in a call."""
    tables = decode([GEMM] * 11, pause=pause, lead=400_000)
    first = pl.col("start_ns") == pl.col("start_ns").min()
    calls = launches(
        tables["kernels"].filter(~first),
        lead=pause,
        dur=pause,
        name=name,
        thread=2,
        correlation=None,
    )
    tables["runtime"] = pl.concat([tables["runtime"], calls])
    return tables


def test_device_held():
    found = the(together(held()), "device_held")
    assert found["figure"] == 10 * 150_000
    assert found["where"] == "cause = 'queued' AND waited_kind = 'call'"
    assert silent(together(held()), "host_bound")
    assert silent(
        together(held(name="cudaStreamSynchronize")), "device_held"
    )  # waits, and holds nothing


@pytest.mark.parametrize("every", [3, 4])
def test_unsteady_kernels(every):
    """Of 12 steps of ten kernels of 100 us, each third or fourth has one of 500 us."""
    at, tables = 1_000_000, []
    for step in range(12):
        slow = 500_000 if step % every == every - 1 else 100_000
        run = kernels([(GEMM, 100_000)] * 9 + [(NORM, slow)], start=at, first=100 * step + 1)
        label = labels([(DECODE, at - 20_000, 15_000)])
        calls = launches(run).with_columns(start_ns=at - 18_000 + pl.int_range(pl.len()) * 1_000)
        tables.append((run, calls, label))
        at += 900_000 + slow
    run, calls, label = (
        pl.concat(column, how="vertical_relaxed") for column in zip(*tables, strict=True)
    )
    found = the(Trace({"kernels": run, "runtime": calls, "markers": label}), "unsteady_kernels")
    slow_steps = 12 // every
    excess, whole = slow_steps * 400_000, 12 * 1_000_000 + slow_steps * 400_000
    assert found["share"] == pytest.approx(excess / whole, rel=0.02)
    assert found["about"] == NORM


def test_work_from_before():
    """The second event of a recording waits 3 ms for what its stream did before it began."""
    first = kernels([GEMM], start=100_000, stream=9)
    rest = kernels([GEMM] * 8, start=3_200_000, first=100)
    calls = pl.concat([launches(first), launches(rest.head(1), lead=3_050_000), launches(rest[1:])])
    run = Trace({"kernels": pl.concat([first, rest]), "runtime": calls})
    idle = llmprof.analyze.idle(run).filter(waited_kind="before")
    assert idle["dur_ns"].sum() > 2_900_000
    assert the(run, "work_from_before")["severity"] == "info"
    assert silent(run, "unexplained_idle")
    # a step in which it ends is the same without it for all who tell of it
    step = labels([(DECODE, 10_000, 10**9)])
    run = Trace({"kernels": pl.concat([first, rest]), "runtime": calls, "markers": step})
    lasts = int(rest["start_ns"][-1] + rest["dur_ns"][-1] - rest["start_ns"][0])
    said = llmprof.analyze.what_if(run, f"scale:{GEMM}:1")["recorded_ns"].to_list()
    said += llmprof.analyze.steps(run)["dur_ns"].to_list() + step_windows(run)["dur_ns"].to_list()
    of_step = pl.col("step").is_not_null()
    said += llmprof.analyze.overlap(run).filter(of_step)["total_ns"].to_list()
    assert said == [lasts] * 4
    # a stream that is first used later waits some us for its first event
    own, other = kernels([GEMM] * 8, dur=LONG), kernels([GEMM], start=8 * LONG + 9_000, stream=9)
    calls = pl.concat([launches(own, lead=20_000), launches(other, lead=10_000)])
    later = Trace({"kernels": pl.concat([own, other]), "runtime": calls})
    assert "before" not in llmprof.analyze.idle(later)["waited_kind"]


def test_unexplained_idle():
    found = the(together(decode([GEMM] * 11, pause=150_000, lead=400_000)), "unexplained_idle")
    assert found["figure"] == 10 * 150_000
    blind = decode([GEMM] * 11, pause=150_000)
    blind["runtime"] = blind["runtime"].with_columns(correlation=pl.lit(None, dtype=pl.Int64))
    by_time = {
        **blind,
        "markers": labels(
            [(DECODE, 1_000_000 + n * 2_050_000, 9) for n in range(6)], on_device=True
        ),
    }
    assert the(together(by_time), "unexplained_idle")["figure"] > 0


def test_between_queued_events():
    found = the(together(decode([GEMM] * 11, pause=2_000, lead=400_000)), "between_queued_events")
    assert found["figure"] == 10 * 2_000


def test_left_out():
    """Four kernels of 50 us, 1 ms apart; two of them waited 1 us by the profiler's record, one
    for all of the pause.
    """
    run = kernels(["a", "b", "c", "d"], dur=LONG, pause=1_000_000)
    chosen = run.with_columns(ascend_wait_ns=pl.Series([None, 1_000, 1_000_000, 1_000]))
    trace = Trace({"kernels": chosen})
    found = the(trace, "left_out")
    assert (found["figure"], found["severity"]) == (2 * 999_000, "info")
    assert the(trace, "unexplained_idle")["figure"] == 1_000_000 + 2 * 1_000
    assert silent(Trace({"kernels": run}), "left_out")


def test_idle_at_the_ends():
    # 100 us of host before the five kernels of 50 us, and 50 after them
    run = kernels(["acme"] * 5, start=100_000, dur=LONG)
    calls = pl.concat(
        [launches(run, lead=100_000), launches(run.tail(1), lead=-90_000, dur=10_000)]
    )
    found = the(Trace({"kernels": run, "runtime": calls}), "idle_at_the_ends")
    assert found["figure"] == 150_000
    assert found["share"] == pytest.approx(150 / 400)


def test_between_operators():
    # three operators of 20 us with 30 us between them, on a host without a device
    host = Trace({"ops": ops([("aten::mm", n * 50_000, 20_000, n) for n in range(3)])})
    found = the(host, "between_operators")
    assert found["figure"] == 60_000
    assert found["share"] == pytest.approx(60 / 120)
    texts = findings(host).select("title", "detail", "suggestion")
    assert not any("device" in text for row in texts.rows() for text in row)
    # torch can record its Python functions; another runtime's profile cannot
    assert "with_stack=True" in found["suggestion"]
    other = the(
        Trace({"ops": ops([("fc1_kernel_time", n * 50_000, 20_000, n) for n in range(3)])}),
        "between_operators",
    )
    assert "Python" not in f"{other['detail']} {other['suggestion']}"
    # A session is loaded for 10 us and initialised for 80; then come three operators of 20 us with
    # 30 between them.
    run = ops([("fc1_kernel_time", 100_000 + n * 50_000, 20_000, n) for n in range(3)])
    start = labels([("model_loading", 0, 10_000), ("session_initialization", 10_000, 80_000)])
    trace = Trace({"ops": run, "markers": start})
    assert the(trace, "between_operators")["figure"] == 2 * 30_000
    fact = the(trace, "idle_at_the_ends")
    assert (fact["figure"], fact["severity"]) == (100_000, "info")
    measure = measured(trace, "idle_at_the_ends")
    assert measure.figures.started_in == "session_initialization"
    assert measure.figures.started_in_share == pytest.approx(0.8)


def test_copies():
    # of each 150 us a copy of 100 us runs alone; another runs beside the GEMM
    tables = decode([(GEMM, 50_000)] * 4, pause=100_000, lead=10_000)
    alone = tables["kernels"].select(
        "rank",
        "device",
        "stream",
        pl.col("start_ns") + 50_000,
        dur_ns=pl.lit(100_000, dtype=pl.Int64),
        name=pl.lit("Memcpy HtoD (Pinned -> Device)"),
        kind=pl.lit("HtoD"),
        bytes=pl.lit(2_000_000, dtype=pl.Int64),
        src_kind=pl.lit("pinned"),
        dst_kind=pl.lit("device"),
    )
    beside = alone.with_columns(
        start_ns=pl.col("start_ns") - 50_000, dur_ns=pl.lit(40_000, dtype=pl.Int64)
    )
    between = alone.filter((pl.col("start_ns") - 1_000_000) % 500_000 < 400_000)
    tables["copies"] = pl.concat(
        [between, beside.with_columns(stream=pl.lit(9, dtype=pl.Int64))]
    ).sort("start_ns")
    found = the(together(tables), "copies")
    assert found["figure"] == 3 * 100_000
    assert found["share"] == pytest.approx(300 / 500)


def test_synchronisation():
    tables = decode([GEMM] * 11, pause=50_000, lead=10_000)
    # in every gap the host first waits for the kernel before it, and launches then
    waits = launches(tables["kernels"], lead=45_000, dur=30_000)
    before = pl.col("start_ns") > pl.col("start_ns").min().over(
        (pl.col("start_ns") - 955_000) // 1_050_000
    )
    waits = waits.filter(before).with_columns(
        name=pl.lit("cudaStreamSynchronize"), correlation=pl.lit(None, dtype=pl.Int64)
    )
    waits = waits.with_columns(start_ns=pl.col("start_ns") - 10_000)
    tables["runtime"] = pl.concat([tables["runtime"], waits])
    found = the(together(tables), "synchronisation")
    # of each gap of 50 us the launch itself is 10, and 30 of the rest are as long as the host
    # waited
    assert found["figure"] == 10 * 30_000
    assert silent(together(decode([GEMM] * 11, pause=50_000, lead=10_000)), "synchronisation")


def test_exposed_communication():
    # 100 us of compute and 25 us of transfer in turn, nobody waits
    found = the(ranks_with_all_reduces({0: 0, 1: 0}, transfer=25_000), "exposed_communication")
    assert found["figure"] == 8 * 25_000
    assert found["share"] == pytest.approx(25 / 125)
    # the same communication beside a GEMM on another stream
    trace = ranks_with_all_reduces({0: 0, 1: 0}, transfer=25_000)
    beside = trace.kernels.filter(pl.col("name") == NCCL_ALL_REDUCE).with_columns(
        name=pl.lit(GEMM), stream=pl.lit(8, dtype=pl.Int64), correlation=pl.col("correlation") + 500
    )
    hidden = Trace({**trace.tables, "kernels": pl.concat([trace.kernels, beside])}, trace.meta)
    runtime = pl.concat([trace.runtime, launches(beside, lead=100_000)], how="diagonal_relaxed")
    hidden = Trace({**hidden.tables, "runtime": runtime}, trace.meta)
    assert silent(hidden, "exposed_communication")
    # each 25 us of transfer twice at the same time, with 5 us of a GEMM beside them
    trace = ranks_with_all_reduces({0: 0, 1: 0}, transfer=25_000)
    calls, more = trace.kernels.filter(pl.col("name") == NCCL_ALL_REDUCE), [trace.kernels]
    for stream, change in (
        (8, {}),
        (9, {"name": pl.lit(GEMM), "dur_ns": pl.lit(5_000, dtype=pl.Int64)}),
    ):
        more.append(calls.with_columns(pl.lit(stream, dtype=pl.Int64).alias("stream"), **change))
    found = measured(
        Trace({**trace.tables, "kernels": pl.concat(more)}, trace.meta), "exposed_communication"
    )
    assert found.figures.hidden_share == pytest.approx(5 / 25)


def test_nccl_for_small_messages():
    trace = ranks_with_all_reduces({0: 0, 1: 0}, transfer=10_000)
    calls = trace.kernels.filter(pl.col("name") == NCCL_ALL_REDUCE).select(
        "rank",
        "stream",
        "start_ns",
        "dur_ns",
        "name",
        "correlation",
        kind=pl.lit("all_reduce"),
        algorithm=pl.lit("ring_ll"),
        on_device=pl.lit(value=True),
        bytes=pl.lit(28_672),
        bytes_source=pl.lit("metadata"),
    )
    found = the(
        Trace({**trace.tables, "collectives": calls}, trace.meta), "nccl_for_small_messages"
    )
    assert found["figure"] == 8 * 10_000
    assert found["share"] == pytest.approx(10 / 110)
    # 28,672 B in 10 us, once around a ring of two
    large = calls.with_columns(bytes=pl.lit(64 << 20))
    assert silent(
        Trace({**trace.tables, "collectives": large}, trace.meta), "nccl_for_small_messages"
    )
    assert silent(trace, "nccl_for_small_messages")  # sizes are not known
    profiler = trace.markers.with_columns(name=pl.lit("ProfilerStep#1"))
    training = Trace({**trace.tables, "collectives": calls, "markers": profiler}, trace.meta)
    assert silent(training, "nccl_for_small_messages")


def test_short_kernels():
    # fourteen of sixteen kernels take 1 us
    found = the(together(decode([(NORM, SHORT)] * 14 + [(GEMM, LONG)] * 2)), "short_kernels")
    assert found["figure"] == 14 * SHORT
    assert found["share"] == pytest.approx(14 / 114)
    assert found["severity"] == "low"  # a third of it could be gained
    assert silent(together(decode([(NORM, SHORT)] * 7 + [(GEMM, LONG)] * 4)), "short_kernels")
    assert silent(together(decode([(NORM, SHORT)] * 3 + [(GEMM, LONG)] * 8)), "short_kernels")
    assert silent(
        together(decode([(GEMM, SHORT)] * 11)), "short_kernels"
    )  # no neighbour could take these over
    assert silent(together(decode([(NORM, SHORT_KERNEL_NS)] * 11)), "short_kernels")
    assert silent(
        together(decode([(NORM, SHORT)], steps=1)), "short_kernels"
    )  # one kernel is no pattern


def test_split_k():
    found = the(
        together(decode([(GEMM, LONG), (SPLIT_K, 10_000)] * 4 + [(EMBEDDING, 100_000)])), "split_k"
    )
    assert found["figure"] == 4 * 10_000
    assert found["share"] == pytest.approx(40 / 340)


def test_a_run_that_generates_nothing_is_told_nothing_of_decode():
    # an embedding model: every step reads whole texts, keeps no keys and samples nothing
    layer = [NORM, GEMM, ATTENTION, GEMM, NORM, GEMM, SILU, GEMM]
    run = decode(
        [EMBEDDING, *layer * 6, NORM], pause=LONG, label="execute_context_4(512)_generation_0(0)"
    )
    found = findings(together(run))
    assert found.height
    said = [str(value) for row in found.select(cs.string()).iter_rows() for value in row]
    assert not [text for text in said if "decode" in text.lower()]


def test_drafting():
    head = [EMBEDDING, *DENSE * 4, NORM, GEMM, SAMPLE]
    drafted = [
        *head,
        EMBEDDING,
        *DENSE,
        NORM,
        GEMM,
        SAMPLE,
    ]  # 44 kernels of the model, then 14 of a draft model
    found = the(
        together(decode(drafted, label="execute_context_0(0)_generation_4(12)")), "drafting"
    )
    assert found["figure"] == 14 * LONG
    assert found["share"] == pytest.approx(14 / 58)
    assert found["gain_ns"] == 0  # without drafts a step would give fewer tokens
    assert silent(together(decode(head)), "drafting")


def test_uneven_compute():
    two = together(decode([GEMM] * 10, rank=0), decode([GEMM] * 14, rank=1))
    found = the(two, "uneven_compute")
    assert found["figure"] == 200_000
    assert found["gain_ns"] == 100_000  # if both computed as long as they do on average
    assert found["share"] == pytest.approx((700 - 500) / 700)  # of the time of rank 1
    assert silent(
        together(decode([GEMM] * 10, rank=0), decode([GEMM] * 10, rank=1)), "uneven_compute"
    )
    # more steps on one rank are not more compute in a step
    longer = together(decode([GEMM] * 10, rank=0), decode([GEMM] * 10, rank=1, steps=12))
    assert silent(longer, "uneven_compute")
    # With data parallelism a rank with more requests computes longer, and nothing is wrong with it.
    two = together(decode([(GEMM, 100)] * 10, rank=0), decode([(GEMM, 200)] * 10, rank=1))
    assert not silent(two, "uneven_compute")
    other = pl.when(pl.col("rank") == 1).then(
        pl.col("name").str.replace(r"generation_.*", "generation_9(9)")
    )
    markers = two.markers.with_columns(name=pl.coalesce(other, "name"))
    assert silent(Trace({**two.tables, "markers": markers}, two.meta), "uneven_compute")


def compute_of_two(**times):
    """Ranks of six GEMMs, two experts and two norms; those of rank 0 take 50 us each, those of
    rank 1 ``times``.
    """
    names = {"gemm": [GEMM] * 6, "experts": ["fused_moe_kernel"] * 2, "norm": [NORM] * 2}
    ran = [
        [(name, length.get(kind, LONG)) for kind, of_kind in names.items() for name in of_kind]
        for length in ({}, times)
    ]
    return together(decode(ran[0], rank=0), decode(ran[1], rank=1))


def test_slow_device():
    # a lower clock: GEMMs 1.40 times as long, experts 1.40, norms, which wait for the memory, 1.24
    slow = compute_of_two(gemm=70_000, experts=70_000, norm=62_000)
    found = the(slow, "slow_device")
    assert (found["rank"], found["figure"], found["share"]) == (
        1,
        184_000,
        pytest.approx(184 / 684),
    )
    assert silent(slow, "uneven_experts")
    assert silent(slow, "uneven_compute")


def test_uneven_experts():
    uneven = compute_of_two(experts=150_000)
    found = the(uneven, "uneven_experts")
    assert (found["rank"], found["figure"], found["gain_ns"]) == (1, 200_000, 100_000)
    assert silent(uneven, "slow_device")
    # GEMMs that take longer and nothing else are no lower clock and no experts
    assert not silent(compute_of_two(gemm=80_000), "uneven_compute")


def test_heaviest_stage():
    layer = [(name, 200_000 if n == 7 else LONG) for n, name in enumerate(DENSE)]  # gate_up_proj
    found = the(together(decode([EMBEDDING, *layer, *layer, GEMM])), "heaviest_stage")
    # 400 us of 1,400: embedding 50, two layers of 650, lm_head 50
    assert found["figure"] == 400_000
    assert found["severity"] == "info"
    assert found["where"] == "stage = 'gate_up_proj'"
    assert not silent(together(decode(["acme"] * 5)), "heaviest_stage")
    name = f"void acme<{', '.join(['float'] * 30)}>(int)"
    cut = the(together(decode([name] * 5)), "heaviest_stage")
    assert (cut["about"], name in cut["title"]) == (
        name,
        False,
    )  # the sentence has a short form of it


def test_the_heaviest_stage_beside_products_below_their_bound():
    """It stands where a fifth of it is more than what these lose: 453 us."""
    run = products_of_h200(400_000, 400_000)
    for length, told in ((1_000_000, False), (3_000_000, True)):
        last = pl.col("name") == "nobody"
        attention = run.kernels.with_columns(
            name=pl.when(last).then(pl.lit(ATTENTION)).otherwise("name"),
            dur_ns=pl.when(last).then(length).otherwise("dur_ns").cast(pl.Int64),
        )
        beside = Trace({**run.tables, "kernels": attention}, run.meta)
        assert silent(beside, "heaviest_stage") != told
        assert not silent(beside, "below_bound")


def test_below_bound():
    found = findings(products_of_h200(400_000, 400_000))
    assert not {"heaviest_stage", "above_bound"} & set(found["rule"])
    loss = found.row(by_predicate=pl.col("rule") == "below_bound", named=True)
    gap = 800_000 - 2 * MM_BOUND_NS / 0.8
    assert loss["figure"] == pytest.approx(gap)
    assert loss["share"] == pytest.approx(gap / 801_000)
    assert loss["predicted_ns"] == pytest.approx(gap, abs=2)
    assert (loss["change"], loss["where"], loss["rank"]) == (
        "to-bound:0.8:mm",
        "operator = 'aten::mm'",
        0,
    )
    shown = llmprof.analyze.opportunities(products_of_h200(400_000, 400_000)).filter(
        pl.sql_expr(loss["where"])
    )
    assert shown["gap_ns"].to_list() == [pytest.approx(gap)]
    # at 90 % of the bound nothing is lost, and the heaviest kind of work stays a fact
    near = findings(products_of_h200(*[int(MM_BOUND_NS / 0.9)] * 2))
    assert set(near["rule"]) & {"heaviest_stage", "below_bound", "above_bound"} == {
        "heaviest_stage"
    }


def test_above_bound():
    trace = products_of_h200(int(MM_BOUND_NS / 1.2), int(MM_BOUND_NS / 1.2))
    found = findings(trace).row(by_predicate=pl.col("rule") == "above_bound", named=True)
    assert (found["severity"], found["gain_ns"], found["change"]) == ("info", 0, None)
    assert found["figure"] == 2 * int(MM_BOUND_NS / 1.2)
    shown = llmprof.analyze.operators(trace).filter(pl.sql_expr(found["where"]))
    assert shown["bound_share"].to_list() == [pytest.approx(1.2, rel=1e-4)]
    assert "above_bound" not in findings(products_of_h200(int(MM_BOUND_NS / 1.04)))["rule"]


def test_unnamed_time():
    run = decode([EMBEDDING, *DENSE, "acme", "acme"])
    found = the(together(run), "unnamed_time")
    assert found["share"] == pytest.approx(2 / (len(DENSE) + 3))
    assert found["gain_ns"] == 0
    assert measured(together(run), "unnamed_time").figures.events == 2 * 5
    # at the same time on another stream it takes no more of the device's time
    own = run["kernels"].filter(pl.col("name") == "acme")
    other = own.with_columns(pl.lit(8, own["stream"].dtype).alias("stream"))
    twice = together(run | {"kernels": pl.concat([run["kernels"], other])})
    assert the(twice, "unnamed_time")["figure"] == found["figure"]
    assert silent(together(decode(["acme"] * 5)), "unnamed_time")  # stages are parts of layers


def npu(names, **facts):
    """Steps of an NPU; facts are of the kernels of one step."""
    tables = decode(names)
    repeat = tables["kernels"].height // len(names)
    tables["kernels"] = tables["kernels"].with_columns(
        pl.Series(n, v * repeat) for n, v in facts.items()
    )
    return together(tables, device="Ascend910B4")


MATMUL, CAST = "aclnnMatmul_MatMulCommon_MatMulV2", "aclnnCast_CastAiCpu_Cast"


def test_ai_cpu_operators():
    kernels_ = [(MATMUL, 90_000), (CAST, 10_000)]
    found = the(npu(kernels_, ascend_core=["AI_CORE", "AI_CPU"]), "ai_cpu_operators")
    assert (found["figure"], found["share"]) == (10_000, pytest.approx(0.1))
    assert found["where"] == "name IN ('aclnnCast_CastAiCpu_Cast')"
    assert silent(npu(kernels_, ascend_core=["AI_CORE", "AI_VECTOR_CORE"]), "ai_cpu_operators")
    # without the cores, the name says it
    assert the(npu(kernels_), "ai_cpu_operators")["figure"] == 10_000


def sampled(period, **counters):
    """Steps of equal GEMMs of a layer, with samples of one value each."""
    run = decode([EMBEDDING, *DENSE])
    span = end(run["kernels"])
    times = list(range(1_000_000, span, period))
    rows = [
        (0, 0, time, name if "__" in name else name.replace("_", " "), value, "%")
        for name, value in counters.items()
        for time in times
    ]
    columns = ["rank", "device", "time_ns", "name", "value", "unit"]
    return together(run | {"counters": pl.DataFrame(rows, schema=columns, orient="row")})


def test_sampled_units():
    busy = {"Tensor_Active": 12.0, "DRAM_Read_Bandwidth": 80.0, "DRAM_Write_Bandwidth": 11.0}
    found = the(sampled(1000, **busy), "sampled_units")
    assert measured(sampled(1000, **busy), "sampled_units").figures.units == pytest.approx(
        {"tensor cores": 0.12, "device memory": 0.91}
    )
    assert found["gain_ns"] == 0
    cupti = {
        "sm__cycles_active.avg.pct_of_peak_sustained_elapsed": 50.0,
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 75.0,
    }
    assert measured(sampled(1000, **cupti), "sampled_units").figures.units == pytest.approx(
        {"multiprocessors": 0.5, "device memory": 0.75}
    )
    assert silent(sampled(100 * LONG, **busy), "sampled_units")  # too few, and mostly of other work
    assert silent(sampled(1000, PCIe_RX_Throughput=7.0), "sampled_units")


def test_format_changes():
    kernels_ = [
        (MATMUL, 90_000),
        ("trans_TransData_1", 6_000),
        ("aclnnMm_TransData_TransData", 4_000),
    ]
    cores = ["AI_CORE", "AI_VECTOR_CORE", "AI_VECTOR_CORE"]
    found = the(npu(kernels_, ascend_core=cores), "format_changes")
    assert (found["figure"], found["share"]) == (10_000, pytest.approx(0.1))
    assert silent(npu([(MATMUL, 90_000)], ascend_core=["AI_CORE"]), "format_changes")


def test_ai_core_units():
    # of 60 + 40 us the cube units work 30, the vector units 0.25 x 40
    kernels_ = [(MATMUL, 60_000), ("aclnnAdd_AddAiCore_Add", 40_000)]
    metrics = {"ascend_aic_mac_time_ns": [30_000.0, None], "ascend_aiv_vec_ratio": [None, 0.25]}
    found = the(npu(kernels_, **metrics), "ai_core_units")
    assert (found["figure"], found["gain_ns"], found["severity"]) == (100_000, 0.0, "info")
    assert silent(npu(kernels_, ascend_core=["AI_CORE", "AI_VECTOR_CORE"]), "ai_core_units")


def test_every_rule_is_tested_and_names_an_analysis():
    here = {name.removeprefix("test_") for name in globals() if name.startswith("test_")} | set(
        REASONS
    )
    for cause in CAUSES:
        assert cause.name in here, cause.name
        assert catalog.analysis(cause.evidence)
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)


def test_the_most_important_come_first():
    rng = random.Random(0)
    names = [(GEMM, rng.choice([SHORT, LONG])) for _ in range(30)]
    parts = [
        decode(
            [*names, (NCCL_ALL_REDUCE, 300_000 if rank else 4_000), SPLIT_K],
            pause=2_000,
            lead=1_000,
            rank=rank,
        )
        for rank in (0, 1)
    ]
    found = findings(together(*parts, world_size=2))
    assert found.height >= 4
    assert found["order"].to_list() == list(range(1, found.height + 1))
    heaviest = found["rule"] == "heaviest_stage"
    facts = (found["severity"] == "info") & ~heaviest
    assert facts.is_sorted()  # facts are no losses, and come last
    about_the_run = found.filter(pl.col("rule") != "unnamed_time")
    losses = found.filter(~facts & ~heaviest & found["follows_from"].is_null())
    assert losses["share"].is_sorted(descending=True)
    assert found["rule"].to_list()[: about_the_run.height] == about_the_run["rule"].to_list()
    severities = {"high": 0.2, "medium": 0.05, "low": 0.0, "info": 0.0}
    for severity, share in found.select("severity", "share").iter_rows():
        assert share >= severities[severity]


def test_a_loss_of_replayed_kernels_names_no_operator():
    run = llmprof.read(Path(__file__).parents[2] / "sample_traces" / "run_torch_tp1")
    found = findings(run).row(by_predicate=pl.col("rule") == "below_bound", named=True)
    assert found["about"].startswith("nvjet")
    assert measured(run, "below_bound").figures.operator is None


def test_every_finding_says_where_to_look(sample_trace):
    for name in ("torch_tp4_eager_nccl", "torch_pp2_eager", "torch_tp1_cudagraph"):
        trace = sample_trace(name)
        for row in findings(trace).iter_rows(named=True):
            shown = getattr(llmprof.analyze, row["evidence"])(trace).filter(
                pl.sql_expr(row["where"])
            )
            shown = shown.filter(pl.col("rank") == row["rank"])
            assert shown.height > 0, row["rule"]
            assert row["start_ns"] < row["end_ns"]
            in_it = pl.col("start_ns").is_between(row["start_ns"], row["end_ns"])
            assert shown.filter(in_it).height > 0 if "start_ns" in shown.columns else True, row[
                "rule"
            ]


def test_the_parts_do_not_overlap(sample_trace):
    apart = [
        "arrival_skew",
        "pipeline_wait",
        "host_bound",
        "device_held",
        "synchronisation",
        "exposed_communication",
    ]
    apart += ["copies", "unexplained_idle", "between_queued_events", "heaviest_stage"]
    for name in (
        "torch_tp4_eager_nccl",
        "torch_pp2_eager",
        "torch_tp1_cudagraph",
        "torch_tp4_cudagraph",
    ):
        found = findings(sample_trace(name)).filter(pl.col("rule").is_in(apart))
        # of one time: a rank that is named alone has its own
        found = found.filter(~pl.col("denominator").str.contains(" of rank"))
        assert all(found.group_by("scope").agg(pl.col("share").sum())["share"] <= 1.0)


def test_no_finding_without_its_figure():
    for trace in (
        together(QUIET),
        ranks_with_all_reduces({0: 0, 1: 400_000}),
        together(decode(["acme"] * 5)),
    ):
        found = findings(trace)
        assert found["figure"].is_finite().all()
        assert found["share"].is_between(0, 1).all()
        assert not found["title"].str.contains("None|nan|unknown").any()
        always = found.drop(
            "rank",
            "start_ns",
            "end_ns",
            "change",
            "prediction",
            "follows_from",
            "about",
            cs.starts_with("predicted_"),
        )
        assert always.null_count().sum_horizontal().item() == 0


def test_the_scope_says_what_the_shares_are_of():
    prefill = together(decode([EMBEDDING, *DENSE], label="execute_context_4(256)_generation_0(0)"))
    assert findings(prefill)["scope"].unique().to_list() == ["steps"]
    nothing = Trace({"kernels": kernels(["acme"] * 5)})
    assert findings(nothing)["scope"].unique().to_list() == ["whole recording"]
    # one rank without steady steps: all ranks are looked at alike
    mixed = together(QUIET, decode([EMBEDDING, *DENSE], label="ProfilerStep#1", rank=1))
    assert findings(mixed)["scope"].unique().to_list() == ["steps"]
    # One label, and all kernels were launched outside of it.
    run = kernels(["acme"] * 5, start=500_000, dur=LONG)
    trace = Trace(
        {
            "kernels": run,
            "runtime": launches(run, lead=9),
            "markers": labels([("ProfilerStep#1", 9_000_000, 1_000)]),
        }
    )
    found = findings(trace)
    assert found["scope"].unique().to_list() == ["whole recording"]


def test_shares_without_steps_are_of_the_time_in_which_the_device_was_in_use():
    """The host loads for 10 ms; then six kernels of 50 us run with five pauses of 30 us."""
    run = kernels([GEMM] * 6, start=10_000_000, dur=50_000, pause=30_000)
    calls = launches(run, lead=5_000)
    loads = calls.head(1).with_columns(
        start_ns=0 * pl.col("start_ns"), name=pl.lit("cuInit"), correlation=None
    )
    calls = pl.concat([calls, loads], how="vertical_relaxed")
    trace = Trace({"kernels": run, "runtime": calls})
    late, ends = the(trace, "host_bound"), the(trace, "idle_at_the_ends")
    assert (late["figure"], late["share"]) == (150_000, pytest.approx(150 / 450))
    assert late["recorded_share"] == pytest.approx(150 / 10_450)
    assert (ends["figure"], ends["share"]) == (10_000_000, pytest.approx(10_000 / 10_450))
    assert ends["denominator"] != late["denominator"]


def test_phases_of_some_length_have_findings_of_their_own():
    """Of 12.4 ms decode takes 8.8 without a pause; a prefill and a mixed step take 1.8 each, 1.5
    of them idle.
    """
    prefill, mixed = (
        "execute_context_1(64)_generation_0(0)",
        "execute_context_1(64)_generation_4(4)",
    )
    steps = [
        (prefill, 6, 300_000, 10_000),
        (mixed, 6, 300_000, 10_000),
        *[(DECODE, 22, 0, 100_000)] * 8,
    ]
    runs, calls, marks, start = [], [], [], 1_000_000
    for n, (label, count, pause, lead) in enumerate(steps):
        runs.append(kernels([GEMM] * count, start=start, dur=LONG, pause=pause, first=1 + 1000 * n))
        calls.append(launches(runs[-1], lead=lead))
        marks.append((label, start - lead - 1, 1000))
        start = end(runs[-1])
    trace = Trace(
        {"kernels": pl.concat(runs), "runtime": pl.concat(calls), "markers": labels(marks)}
    )
    found = findings(trace).filter(rule="host_bound")
    assert set(found["scope"]) == {"prefill steps", "mixed steps"}
    assert found["figure"].to_list() == [5 * 300_000] * 2
    assert found["recorded_share"].to_list() == pytest.approx([1.5 / 12.4] * 2, rel=0.01)
    # of the compute, 71 % of the time, a fifth counts: more than half of 12 %
    assert findings(trace)["rule"].to_list()[:3] == ["heaviest_stage", "host_bound", "host_bound"]


def test_steps_that_pause_long_have_findings_of_their_own():
    """Ten decode steps of 1 ms, of which two are followed by a pause of 8 ms."""
    runs, calls, marks, start = [], [], [], 1_000_000
    for n in range(10):
        runs.append(kernels([GEMM] * 10, start=start, dur=100_000, pause=0, first=1 + 1000 * n))
        calls.append(launches(runs[-1], lead=10_000))
        marks.append((DECODE, start - 10_001, 1000))
        start = end(runs[-1]) + (8_000_000 if n in (3, 6) else 5_000)
    trace = Trace(
        {"kernels": pl.concat(runs), "runtime": pl.concat(calls), "markers": labels(marks)}
    )
    found = findings(trace).filter(rule="host_bound")
    assert found["scope"].to_list() == ["slow decode steps"]
    assert found["figure"].to_list() == pytest.approx([8_000_000])
    assert found["share"].to_list() == pytest.approx([8 / 9])
    usual = findings(trace).filter(rule="heaviest_stage", scope="steady decode steps")
    assert usual["share"].to_list() == pytest.approx([1.0], abs=0.01)


@pytest.mark.parametrize(
    ("more", "words"), [(1.4, "usual decode steps"), (1.1, "steady decode steps")]
)
def test_few_lucky_steps_do_not_stand_for_decode(more, words):
    """Eight steps of 1 ms with four requests, the first of which is not steady, then four with five
    requests that take longer: all twelve are the scope if their mean is more than 10 % away.
    """
    runs, calls, marks, start = [], [], [], 1_000_000
    for n in range(12):
        batch, dur = (4, 100_000) if n < 8 else (5, round(100_000 * more))
        runs.append(kernels([GEMM] * 10, start=start, dur=dur, pause=0, first=1 + 1000 * n))
        calls.append(launches(runs[-1], lead=10_000))
        label = f"execute_context_0(0)_generation_{batch}({batch})"
        marks.append((label, start - 10_001, 1000))
        start = end(runs[-1])
    tables = {"kernels": pl.concat(runs), "runtime": pl.concat(calls), "markers": labels(marks)}
    [scope] = scopes_of(Trace(tables))
    assert (scope.words, scope.phase_ns) == (words, 8_000_000 + 4_000_000 * more)
    mean_ns = scope.phase_ns / 12 if "usual" in words else 1_000_000
    assert scope.span_ns / scope.parts == pytest.approx(mean_ns)


def test_a_mean_of_unequal_steps_says_which_they_are():
    runs, calls, marks, start = [], [], [], 1_000_000
    for n, dur in enumerate((100_000, 900_000)):
        runs.append(kernels([GEMM] * 10, start=start, dur=dur, pause=20_000, first=1 + 1000 * n))
        calls.append(launches(runs[-1], lead=5_000))
        marks.append(("execute_context_1(64)_generation_0(0)", start - 6_000, 1000))
        start = end(runs[-1])
    trace = Trace(
        {"kernels": pl.concat(runs), "runtime": pl.concat(calls), "markers": labels(marks)}
    )
    told = findings(trace)["denominator"][0]
    assert all(words in told for words in ("1.18 ms", "9.18 ms"))


def test_schema_without_rows():
    some = findings(together(QUIET))
    assert some.schema == SCHEMA
    for none in (Trace({"kernels": kernels([])}), Trace({"kernels": kernels([(GEMM, 0)])})):
        assert findings(none).is_empty()
        assert findings(none).schema == some.schema
    capture = together(
        decode([EMBEDDING, *DENSE], label="capture_8_FULL", pause=150_000, lead=10_000)
    )
    assert findings(capture).is_empty()


FIRST = {
    "chrome/megatron_tp8": ("host_bound", 0.1),
    "chrome/tracelens/inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz": (
        "heaviest_stage",
        0.2,
    ),
    "nsys/nsysai_h100_2gpu_1s.v1.sqlite": ("copies", 0.95),
    "chrome/hta/nccl_parser_config__nccl_data.json.gz": ("host_bound", 0.75),
    "nsys/gpubootcamp_mpi_report4.sqlite": ("heaviest_stage", 0.74),
    "chrome/hta/critical_path__cuda_event_sync_multi_stream__event_sync_trace.json.gz": (
        "host_bound",
        0.93,
    ),
    "chrome/hta/critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz": (
        "allocation",
        0.19,
    ),
    "chrome/hta/mtia_inference_trace__mtia_inference_rank_0.json.gz": ("heaviest_stage", 0.9),
    "rocm/rpd_matmul_result.rpd": ("loading", 0.8),
}
"""First finding on other people's recordings, each read beside the timeline, and the least share
that it must have.
"""


@pytest.mark.slow
@pytest.mark.parametrize("file", FIRST)
@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_first_lines_on_recordings_of_others(file, shared):
    found = findings(llmprof.read(shared / "real" / file)).row(0, named=True)
    rule, least = FIRST[file]
    assert found["rule"] == rule
    assert found["share"] >= least


def test_a_finding_carries_what_the_replay_predicts(sample_trace):
    found = findings(sample_trace("torch_tp1_eager"))
    late = found.row(0, named=True)
    assert (late["rule"], late["change"]) == ("host_bound", "no-host-delay:decode")
    assert late["predicted_low_ns"] <= late["predicted_ns"] <= late["predicted_high_ns"]
    # the same as what_if says of the decode steps, which takes the median and not the mean
    told = what_if(sample_trace("torch_tp1_eager"), change_of(late["change"])).filter(
        phase="decode"
    )
    assert late["predicted_ns"] == pytest.approx(told["gain_ns"].item(), rel=0.02)
    # four requests in decode make four tokens a step: (1 / 4.8 ms - 1 / 34.7 ms) x 4
    recorded = late["figure"] / late["share"]
    tokens = 4 * 1e9 * (1 / (recorded - late["predicted_ns"]) - 1 / recorded)
    assert late["predicted_tokens_per_s"] == pytest.approx(tokens, rel=0.02)
    others = found.filter(pl.col("change").is_null() & (pl.col("severity") != "info"))
    assert others["prediction"].str.starts_with("No prediction").all()
    assert others["predicted_ns"].null_count() == others.height
    gains = found.filter(pl.col("severity") != "info").select(
        pl.coalesce(pl.col("predicted_low_ns").clip(0), "figure")
    )
    assert gains.to_series().is_sorted(descending=True)
    whole = decode([*DENSE], pause=150_000)
    alone = Trace({"kernels": whole["kernels"], "markers": whole["markers"]})
    assert findings(alone)["predicted_ns"].null_count() == findings(alone).height


def test_no_gain_exceeds_the_time_of_its_finding():
    """Two copies of 50 us are all there is; whether kernels ran in the 200 us between them is
    not known.
    """
    copies = pl.DataFrame({"start_ns": [0, 250_000]}).with_columns(
        rank=0, device=0, dur_ns=LONG, name=pl.lit("copy")
    )
    copies = schema.conform(copies.with_columns(kind=pl.lit("DtoD")), "copies")
    found = findings(Trace({"copies": copies}))
    assert found["rule"].to_list()[:2] == ["copies", "left_out"]
    assert found["figure"].to_list()[:2] == [100_000, 200_000]
    copy = found.row(0, named=True)
    assert copy["change"] == "remove:copy"
    assert copy["predicted_ns"] == copy["predicted_high_ns"] == 100_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        "real/rocm/rocprofv3_docs_memory_copy_trace.csv",
        "strangers/chrome/gold_nsys_example.json",
        "strangers/chrome/hist__mi300__ddp_resnet18_no_pool.json.gz",
        "real/nsys/pipit_saxpy_mpi.sqlite",
        "real/chrome/tracelens/mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        "strangers/chrome/amd_hpctraining__merged_all_events.json.gz",
    ],
)
@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_gains_are_within_findings_and_steps(file, shared):
    found = findings(llmprof.read(shared / file))
    follows = found.filter(pl.col("follows_from").is_not_null()).group_by(
        "scope", rule="follows_from"
    )
    rows = found.join(follows.agg(more=pl.col("figure").sum()), on=["scope", "rule"], how="left")
    rows = rows.filter(pl.col("predicted_ns").is_not_null())
    assert rows.height
    limit = (pl.col("figure") + pl.col("more").fill_null(0)) * (1 + 1e-9)
    assert rows.filter(pl.col("predicted_high_ns") > limit).is_empty()
    step = pl.col("figure") / pl.col("share") * (1 + 1e-9)
    assert rows.filter(pl.col("predicted_high_ns") > step).is_empty()


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        "real/rocm/rpd_matmul_result.rpd",
        "real/nsys/fuser_report2.sqlite",
        "real/nsys/gpubootcamp_mpi_report4.sqlite",
        "real/chrome/hta/critical_path__cuda_event_sync_multi_stream__event_sync_trace.json.gz",
        "real/chrome/hta/critical_path__end_to_end__simple_add__input__trace.json.gz",
        "strangers/chrome/hist__mi300__ddp_resnet18_no_pool.json.gz",
        "strangers/chrome/perf_model__normalization__normalization_layer_test.json.gz",
    ],
)
@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_no_finding_about_calls_exceeds_their_time(shared, file):
    trace = llmprof.read(shared / file)
    took = trace.runtime.group_by("rank", who="name").agg(took=pl.col("dur_ns").sum())
    for scope in scopes_of(trace):
        named = scope.pauses.filter(
            pl.col("reason").is_not_null() & (pl.col("host_kind") == "call")
        )
        told = named.group_by("rank", "device", "who").agg(pl.col("dur_ns").sum())
        assert told.height
        assert (
            told.join(took, on=["rank", "who"]).filter(pl.col("dur_ns") > pl.col("took")).is_empty()
        )
        assert scope.pauses["dur_ns"].sum() == scope.cut(idle(trace))["dur_ns"].sum()


def test_an_instance_for_prompts_and_one_that_decodes_have_findings_of_their_own():
    frames, marks = [], []
    for rank, batch in enumerate(("context_2(64)_generation_0(0)", "context_0(0)_generation_2(2)")):
        for n in range(4 + rank):
            at = 1_000_000 * n
            dur = LONG if rank else 4 * LONG
            frames.append(kernels([GEMM, NORM], rank=rank, start=at, dur=dur, first=9 * n + 1))
            marks.append(labels([(f"execute_{batch}", at - 50, 10)], rank=rank))
    run = pl.concat(frames)
    trace = Trace({"kernels": run, "runtime": launches(run), "markers": pl.concat(marks)})
    found = {scope.words: set(scope.windows["rank"]) for scope in scopes_of(trace)}
    assert found == {"prefill steps": {0}, "steady decode steps": {1}}


@pytest.mark.parametrize("blocking", [False, True])
def test_a_range_around_others_is_named_with_them(blocking):
    """Twelve decode steps of 1 ms, each launched in a range ``forward``; after three of them the
    host is 50 ms in ``cache_miss``: 20 in ``h2d_w1``, 29 in ``h2d_w2``, where copies may run.
    """
    runs, calls, marks, copied, start = [], [], [], [], 1_000_000
    for n in range(12):
        runs.append(kernels([GEMM] * 10, start=start, dur=100_000, pause=0, first=1 + 1000 * n))
        calls.append(launches(runs[-1], lead=10_000))
        marks += [(DECODE, start - 10_001, 900_000), ("forward", start - 10_001, 900_000)]
        start = end(runs[-1]) + 1_000
        if n % 4 == 1:
            marks.append(("cache_miss", start, 50_000_000))
            for name, begin, dur in (
                ("h2d_w1", 500_000, 20_000_000),
                ("h2d_w2", 20_500_000, 29_000_000),
            ):
                marks.append((name, start + begin, dur))
                copied.append((0, 0, 7, start + begin + 1_000, dur - 2_000))
            start += 50_012_000
    tables = {"kernels": pl.concat(runs), "runtime": pl.concat(calls), "markers": labels(marks)}
    columns = ["rank", "device", "stream", "start_ns", "dur_ns"]
    copies = pl.DataFrame(copied, schema=columns, orient="row").with_columns(
        name=pl.lit("Memcpy HtoD (Pageable -> Device)"), kind=pl.lit("HtoD")
    )
    trace = Trace(tables | ({"copies": copies} if blocking else {}))
    found = the(trace, "copies" if blocking else "host_bound")
    assert found["scope"] == "slow decode steps"
    for name in ("cache_miss", "h2d_w1", "h2d_w2"):
        assert name in found["detail"]
    scope = next(one for one in scopes_of(trace) if one.words == "slow decode steps")
    rows = scope.events.filter(category="copy") if blocking else scope.pauses
    around = range_around(scope, rows)
    assert (around.name, around.count, around.each_ns) == ("cache_miss", 3, 50_000_000)
    assert around.children == ["h2d_w2", "h2d_w1"]
    assert around.share == pytest.approx(1.0 if blocking else 50 / 50.012, abs=0.001)
    steady = next(one for one in scopes_of(trace) if one.words == "steady decode steps")
    assert range_around(steady, steady.events) is None  # forward is the work itself


@pytest.mark.parametrize(
    ("then", "waiting"),
    [(4, False), (5, True), (None, True)],
    ids=["new ones", "others", "unknown"],
)
def test_a_pause_between_requests_is_no_slow_step(then, waiting):
    """Two batches of four requests: a prefill of 1 ms and six decode steps of 1 ms each; between
    them no request runs for 20 ms, in 15 of which a text is tokenised, unless more than the four
    new ones decode after it.
    """
    prefill = "execute_context_4(64)_generation_0(0)"
    names = [
        prefill,
        *[DECODE] * 6,
        prefill,
        *[f"execute_context_0(0)_generation_{then}({then})"] * 6,
    ]
    names = [DECODE if "None" in name else name for name in names]
    runs, calls, marks, start = [], [], [], 1_000_000
    for n, name in enumerate(names):
        if n == 7:
            paused, start = start, start + 20_000_000
        runs.append(kernels([GEMM] * 10, start=start, dur=100_000, pause=0, first=1 + 1000 * n))
        calls.append(launches(runs[-1], lead=10_000))
        marks.append((name, start - 10_001, 1000))
        start = end(runs[-1]) + 1_000
    host = ops([("tokenizer.encode", paused + 1_000_000, 15_000_000, 0)])
    tables = {"kernels": pl.concat(runs), "runtime": pl.concat(calls), "markers": labels(marks)}
    if then is None:
        tables["markers"] = tables["markers"].filter(~pl.col("name").str.contains("context_4"))
    trace = Trace(tables | {"ops": host})
    words = [scope.words for scope in scopes_of(trace)]
    assert ("request pauses" in words) == (not waiting)
    assert ("slow decode steps" in words) == waiting
    found = findings(trace).filter(scope="request pauses")
    if not waiting:
        [pause] = [scope for scope in scopes_of(trace) if scope.words == "request pauses"]
        assert pause.windows["dur_ns"].to_list() == [20_001_000]
        assert found.filter(pl.col("severity") != "info")["rule"].to_list() == ["input_preparation"]
        assert found["figure"][0] == pytest.approx(15_000_000)


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        ([10] * 100, []),
        ([900] * 3 + [1] * 97, ["3", "100", "96.5"]),
        ([900] * 8 + [1] * 12, []),  # more than a tenth of them
        ([900, 1, 1], ["3", "99.8"]),
        ([900], []),
    ],
)
def test_the_few_that_hold_nearly_all(lengths, told):
    text = few_longest(pl.Series(lengths))
    assert re.findall(r"\d[\d.]*", text) == told


@pytest.mark.parametrize(("pauses", "severity"), [([20_000_000], "low"), ([7_000_000] * 3, "high")])
def test_one_pause_of_a_recording_is_no_property_of_the_run(pauses, severity):
    at, runs = 1_000_000, []
    for n, pause in enumerate([0, *pauses, 100_000]):
        runs.append(kernels(["acme"] * 5, start=at + pause, dur=LONG, first=1 + 10 * n))
        at = end(runs[-1])
    run = pl.concat(runs)
    trace = Trace({"kernels": run, "runtime": launches(run, lead=10_000)})
    assert the(trace, "host_bound")["severity"] == severity
    assert measured(trace, "host_bound").figures.once is (severity == "low")


def test_pauses_that_nothing_explains_lie_in_a_range_of_the_host():
    """Calls that no kernel names; between steps of 500 us the host is 300 us in a numbered range."""
    run = decode([GEMM] * 10)
    later = (pl.col("start_ns") - 1_000_000) // 500_000 * 300_000
    run = {name: run[name].with_columns(pl.col("start_ns") + later) for name in run}
    run["kernels"] = run["kernels"].with_columns(correlation=pl.lit(None, pl.Int64))
    files = [(f"IO {n}", 1_500_000 + 800_000 * n, 290_000) for n in range(5)]
    marks = labels([(DECODE, 1_000_000 + 800_000 * n, 9) for n in range(6)], on_device=True)
    run["markers"] = pl.concat([marks, ranges(files)], how="diagonal")
    figures = measured(together(run), "unexplained_idle").figures
    assert (figures.around.count, figures.calls_known) == (4, True)  # of steady steps
    assert figures.around.each_ns == 290_000
    assert figures.between_share == 1


def test_the_steps_that_a_mean_is_of():
    """The first of 15 steps is a hundred times as long as others, of which one is five times."""
    runs, marks, at = [], [], 1_000_000
    for n, times in enumerate([100, *[1] * 10, 5, 1, 1, 1]):
        runs.append(kernels([(GEMM, times * LONG)] * 10, start=at, first=1 + 100 * n))
        marks.append((f"ProfilerStep#{n}", at - 11_000, 10 * times * LONG))
        at = end(runs[-1])
    run = pl.concat(runs)
    tables = {"kernels": run, "runtime": launches(run, lead=10_000), "markers": labels(marks)}
    text = scope_of(Trace(tables)).of_steps
    assert re.findall(r"\d[\d.]*", text)[:2] == ["14", "15"]
    assert "2.50 ms" in text
    assert not scope_of(together(QUIET)).of_steps


def test_ranks_that_run_the_same_are_unevenly_fast():
    """Without a device: the same operators of the same shapes, or of others, on both ranks."""
    for shapes, same in (("[[8, 8]]", True), ("[[8, 9]]", False), (None, False)):
        sides = []
        for rank, length in ((0, 50_000), (1, 90_000)):
            rows = [
                ("aten::mm", 1_000 + n * 100_000, length, n + 1, shapes if rank else "[[8, 8]]")
                for n in range(10)
            ]
            sides.append({"ops": ops(rows, rank=rank)})
        figures = measured(together(*sides), "uneven_compute").figures
        assert figures.same_work is same


def test_a_cause_of_lateness_is_told_with_its_part():
    """Rank 1 waits 400 us a step for rank 0, which computes 250 us more and is held for 150."""
    slow = decode([*[(GEMM, 45_000)] * 10, (GEMM, 150_000), (NCCL_ALL_REDUCE, 4_000)], rank=0)
    held = slow["kernels"]["dur_ns"] == 150_000
    for name in ("kernels", "runtime"):
        slow[name] = slow[name].filter(~held)
    fast = decode([*[(GEMM, 20_000)] * 10, (NCCL_ALL_REDUCE, 404_000)], rank=1)
    both = together(slow, fast, world_size=2)
    found = measured(both, "arrival_skew")
    assert found.figures.late == [0]
    assert (found.follows_from, found.figures.explained_share) == (
        "uneven_compute",
        pytest.approx(250 / 400),
    )


def test_a_device_that_is_hardly_used_is_idle_first():
    run = kernels(["acme"], start=100_000_000, dur=LONG)
    early = launches(run, lead=99_000_000, correlation=None)
    trace = Trace({"kernels": run, "runtime": pl.concat([early, launches(run)])})
    assert findings(trace)["rule"].to_list()[0] == "idle_at_the_ends"


def test_what_other_ranks_wrote_over_is_not_counted_as_launched():
    coverage = {"files": [{"rank": 0, "overwritten": 7}]}
    trace = Trace(QUIET, coverage=coverage)
    found = findings(trace).row(0, named=True)
    assert (found["rule"], found["figure"]) == ("incomplete", 7)


def test_copies_that_came_back_without_kernels():
    """Device activity was on: it is no advice to turn it on."""
    run = kernels([GEMM] * 20, start=1_000, dur=LONG)
    copied = run.head(1).with_columns(name=pl.lit("Memcpy HtoD"), kind=pl.lit("HtoD"))
    tables = {"copies": copied, "runtime": launches(run)}
    advice = [findings(Trace(tables))["suggestion"][0]]
    tables["copies"] = copied.clear()
    advice.append(findings(Trace(tables | {"kernels": run.head(1)}))["suggestion"][0])
    assert advice[0] != advice[1]


def test_communication_beside_copies_is_told():
    """All-reduces of 100 us with a copy beside 60 of them, on another stream."""
    run = [(GEMM, LONG), (NCCL_ALL_REDUCE, 100_000)] * 4
    tables = decode(run)
    beside = tables["kernels"].filter(pl.col("name") == NCCL_ALL_REDUCE)
    copied = beside.with_columns(
        stream=pl.lit(9, pl.Int64),
        dur_ns=pl.lit(60_000, pl.Int64),
        name=pl.lit("Memcpy DtoD"),
        kind=pl.lit("DtoD"),
    )
    found = measured(together(tables | {"copies": copied}, world_size=2), "exposed_communication")
    assert found.figures.beside_copies_ns == 4 * 60_000


def test_waiting_by_the_library_and_groups_of_one_size():
    tables = decode([(GEMM, LONG), (NCCL_ALL_REDUCE, 100_000)] * 4)
    trace = together(tables)
    about = {"ranks": [{"rank": 0, "groups": {"a": [0, 1, 2], "b": [0, 3, 6]}}], "world_size": 9}
    grouped = Trace(trace.tables, about)
    assert set(llmprof.analyze.collectives(grouped)["world"]) == {3}
    calls = grouped.collectives.with_columns(
        recorded_as=pl.lit("allReduce"),
        evidence=pl.lit(None, pl.String),
        ascend_wait_ns=pl.lit(70_000, pl.Int64),
    )
    measure = measured(
        Trace(grouped.tables | {"collectives": calls}, about), "exposed_communication"
    )
    assert measure.figures.measured_wait_ns == 4 * 70_000


def test_a_host_that_is_late_between_steps_only():
    """Ten kernels of a step are launched ahead of each other; each step comes 200 us late."""
    runs, calls, marks, at = [], [], [], 1_000_000
    for n in range(6):
        runs.append(kernels([GEMM] * 10, start=at, dur=LONG, first=1 + 100 * n))
        begun = pl.int_range(pl.len(), dtype=pl.Int64) * 1_000 + at - 10_000
        calls.append(launches(runs[-1]).with_columns(start_ns=begun))
        marks.append((DECODE, at - 12_000, 1_000))
        at = end(runs[-1]) + 200_000
    tables = {"kernels": pl.concat(runs), "runtime": pl.concat(calls), "markers": labels(marks)}
    figures = measured(Trace(tables), "host_bound").figures
    assert figures.is_between_steps
    assert (figures.between_share, figures.between_ns) == (1, 200_000)
    # one that is late before every kernel is not
    assert not measured(
        together(decode([GEMM] * 10, pause=150_000, lead=10_000)), "host_bound"
    ).figures.is_between_steps


def test_one_replay_a_step_is_known():
    runs, calls, marks, at = [], [], [], 1_000_000
    for n in range(6):
        run = kernels([GEMM] * 10, start=at, dur=LONG).with_columns(
            correlation=pl.lit(1 + n, pl.Int64)
        )
        runs.append(run)
        calls.append(launches(run.head(1), lead=300_000, dur=290_000, name="cudaGraphLaunch"))
        marks.append((DECODE, at - 310_000, 1_000))
        at = end(run) + 320_000
    tables = {"kernels": pl.concat(runs), "runtime": pl.concat(calls), "markers": labels(marks)}
    figures = measured(Trace(tables), "host_bound").figures
    assert (figures.in_graphs, figures.replays) == (True, 1)
    assert figures.launching_share > 0.5
