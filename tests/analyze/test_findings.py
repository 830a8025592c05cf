"""Every rule on a trace that it must speak about, with its figure by hand, and on one that it must not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import llmprof.analyze
from llmprof.analyze import findings
from llmprof.analyze.findings.findings import SCHEMA
from llmprof.analyze.findings.rules import RULES, SHORT_KERNEL_NS
from llmprof.trace import Trace
from tests.analyze.builders import DENSE, EMBEDDING, GEMM, NCCL_ALL_REDUCE, SPLIT_K, kernels, labels, launches

DECODE = "execute_context_0(0)_generation_4(4)"
LONG, SHORT = 50_000, 1_000
STEP_NS = 10_000_000


def decode(
    names: list[str | tuple[str, int]],
    *,
    steps: int = 6,
    dur: int = LONG,
    pause: int = 0,
    lead: int = 100_000,
    rank: int = 0,
    label: str = DECODE,
    **tables: pl.DataFrame,
) -> dict[str, pl.DataFrame]:
    """Equal decode steps one after another; the launches are ``lead`` before each kernel starts, labels before them."""
    runs, marks = [], []
    for n in range(steps):
        start = n * STEP_NS + 1_000_000
        runs.append(kernels(names, start=start, dur=dur, pause=pause, rank=rank, first=1 + 1000 * n + 100_000 * rank))
        marks.append((label, start - 500_000, 1000))
    run = pl.concat(runs)
    return {"kernels": run, "runtime": launches(run, lead=lead), "markers": labels(marks, rank=rank), **tables}


def together(*parts: dict[str, pl.DataFrame], **meta: Any) -> Trace:
    return Trace({name: pl.concat([p[name] for p in parts], how="diagonal") for name in parts[0]}, meta)


def the(trace: Trace, rule: str) -> dict[str, Any] | None:
    rows = findings(trace).filter(pl.col("rule") == rule).to_dicts()
    assert len(rows) <= 1
    return rows[0] if rows else None


QUIET = decode([EMBEDDING, *DENSE])
"""Steps that nothing is wrong with: long kernels, one after another, launched in time."""


def test_a_run_without_faults_has_only_information() -> None:
    found = findings(together(QUIET))
    assert found["rule"].to_list() == ["heaviest_stage"]
    assert found.select("severity", "scope", "order").row(0) == ("info", "steady decode steps", 1)


# --- waiting for the last rank ---


def ranks_with_all_reduces(late: dict[int, int], transfer: int = 4_000, name: str = NCCL_ALL_REDUCE) -> Trace:
    """8 times in a step, 100 us of GEMM and the rank's delay, then an all-reduce that all leave at once."""
    parts = []
    for rank, delay in late.items():
        wait = max(late.values()) - delay
        part: list[str | tuple[str, int]] = []
        for _ in range(8):
            part += [(GEMM, 100_000 + delay), (name, wait + transfer)]
        parts.append(decode(part, rank=rank))
    return together(*parts, world_size=len(late))


def test_arrival_skew() -> None:
    # of each 500 + 4 us ranks 0 and 1 wait 400 us for rank 2
    found = the(ranks_with_all_reduces({0: 0, 1: 0, 2: 400_000}), "arrival_skew")
    assert found is not None
    assert found["figure"] == pytest.approx(400 / 404)  # of the all-reduce time of the ranks that come first
    assert found["share_of_time"] == pytest.approx(2 * 400 / (3 * 504))
    assert found["severity"] == "high"
    assert found["title"] == (
        "Waiting for the last rank takes 52.9 % of the time: rank 2 arrives last in 100.0 % of the all-reduces, the "
        "other ranks spend 99.0 % of theirs waiting, and the transfer itself takes 4.00 us where their kernels suggest "
        "404 us."
    )
    assert found["detail"].startswith("40 calls;")  # 8 in each of the five steady steps
    assert "their clocks agree" in found["detail"]
    assert found["evidence"] == "collectives"
    assert the(ranks_with_all_reduces({0: 0, 1: 0, 2: 0}), "arrival_skew") is None
    assert the(together(QUIET), "arrival_skew") is None


def test_arrival_skew_is_not_known_with_a_rank_missing() -> None:
    trace = ranks_with_all_reduces({0: 0, 1: 0, 2: 400_000})
    some = Trace(trace.select(ranks=[0, 1]).tables, {"world_size": 3, "missing_ranks": [2]})
    assert the(some, "arrival_skew") is None
    exposed = the(some, "exposed_communication")
    assert exposed is not None
    assert exposed["figure"] == pytest.approx(404 / 504)
    assert "an unknown share" in exposed["detail"]


def test_clocks_that_differ_are_said_to() -> None:
    trace = ranks_with_all_reduces({0: 0, 1: 400_000})
    ahead = {
        name: frame.with_columns(start_ns=pl.col("start_ns") + 7_000_000 * pl.col("rank").cast(pl.Int64))
        for name, frame in trace.tables.items()
    }
    found = the(Trace(ahead, trace.meta), "arrival_skew")
    assert found is not None
    assert found["figure"] == pytest.approx(400 / 404, rel=1e-3)
    assert "correction of their clocks by up to 7.00 ms" in found["detail"]


def test_pipeline_wait() -> None:
    send = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    # 1,000 us of work in each half of the step; the second stage waits for the first 996 of its 1,000 + 4 us
    first = decode([(GEMM, 1_000_000), (send, 4_000)], rank=0)
    second = decode([(send, 1_004_000), (GEMM, 996_000)], rank=1)
    found = the(together(first, second, world_size=2), "pipeline_wait")
    assert found is not None
    assert found["figure"] == pytest.approx(1000 / 1004)
    assert found["share_of_time"] == pytest.approx(1000 / (1004 + 2000))
    assert the(together(first, second, world_size=2), "arrival_skew") is None
    # without a pipeline a broadcast is a collective like others
    broadcast = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    spread = ranks_with_all_reduces({0: 0, 1: 400_000}, name=broadcast)
    assert the(spread, "pipeline_wait") is None
    assert the(spread, "arrival_skew") is not None


# --- the host ---


def test_host_bound() -> None:
    # each kernel of 50 us is launched 10 us before it starts, and 150 us after the one before it has ended
    late = decode([GEMM] * 11, pause=150_000, lead=10_000)
    found = the(together(late), "host_bound")
    assert found is not None
    assert found["figure"] == pytest.approx(10 * 150 / (11 * 50 + 10 * 150))
    assert found["severity"] == "high"
    assert found["title"].startswith("The host does not keep up: on the only rank the device idles for 73.2 % of the")
    assert "a step has 11 launch calls for 11 kernels" in found["detail"]
    # the same gaps, but the launches came in time: something on the device held the kernels up
    assert the(together(decode([GEMM] * 11, pause=150_000, lead=300_000)), "host_bound") is None
    assert the(together(QUIET), "host_bound") is None


def test_host_bound_names_the_ranks() -> None:
    late = decode([GEMM] * 11, pause=150_000, lead=10_000, rank=2)
    good = [decode([GEMM] * 11, rank=rank) for rank in (0, 1)]
    found = the(together(*good, late), "host_bound")
    assert found is not None
    assert "on rank 2 the device" in found["title"]
    assert found["share_of_time"] == pytest.approx(1500 / (2050 + 2 * 550))
    half = [decode([GEMM] * 11, pause=100_000, lead=10_000, rank=rank) for rank in (0, 1)]
    found = the(together(*half, late), "host_bound")
    assert found is not None
    assert "on every rank the device" in found["title"]


def test_synchronisation() -> None:
    tables = decode([GEMM] * 11, pause=50_000, lead=10_000)
    # in every gap the host first waits for the kernel before it, and launches then
    waits = launches(tables["kernels"], lead=45_000, dur=30_000)
    before = pl.col("start_ns") > pl.col("start_ns").min().over(pl.col("start_ns") // STEP_NS)
    waits = waits.filter(before).with_columns(
        name=pl.lit("cudaStreamSynchronize"), correlation=pl.lit(None, dtype=pl.Int64)
    )
    waits = waits.with_columns(start_ns=pl.col("start_ns") - 10_000)
    tables["runtime"] = pl.concat([tables["runtime"], waits])
    found = the(together(tables), "synchronisation")
    assert found is not None
    # of each gap of 50 us the launch itself is 10
    assert found["figure"] == pytest.approx(10 * 40 / (11 * 50 + 10 * 50))
    assert "mostly cudaStreamSynchronize" in found["title"]
    assert "10.0 such gaps in a step" in found["detail"]
    assert the(together(decode([GEMM] * 11, pause=50_000, lead=10_000)), "synchronisation") is None


# --- communication ---


def test_exposed_communication() -> None:
    # 100 us of compute and 25 us of transfer in turn, nobody waits
    found = the(ranks_with_all_reduces({0: 0, 1: 0}, transfer=25_000), "exposed_communication")
    assert found is not None
    assert found["figure"] == pytest.approx(25 / 125)
    assert found["share_of_time"] == pytest.approx(25 / 125)
    assert "0.0 % of all communication is hidden" in found["title"]
    assert "takes 200 us of a step" in found["detail"]
    # the same communication beside a GEMM on another stream
    trace = ranks_with_all_reduces({0: 0, 1: 0}, transfer=25_000)
    beside = trace.kernels.filter(pl.col("name") == NCCL_ALL_REDUCE).with_columns(
        name=pl.lit(GEMM), stream=pl.lit(8, dtype=pl.Int64), correlation=pl.col("correlation") + 500
    )
    hidden = Trace({**trace.tables, "kernels": pl.concat([trace.kernels, beside])}, trace.meta)
    runtime = pl.concat([trace.runtime, launches(beside, lead=100_000)], how="diagonal_relaxed")
    hidden = Trace({**hidden.tables, "runtime": runtime}, trace.meta)
    assert the(hidden, "exposed_communication") is None
    assert the(together(QUIET), "exposed_communication") is None


def test_nccl_for_small_messages() -> None:
    trace = ranks_with_all_reduces({0: 0, 1: 0}, transfer=10_000)
    calls = trace.kernels.filter(pl.col("name") == NCCL_ALL_REDUCE).select(
        "rank", "stream", "start_ns", "dur_ns", "name", "correlation", kind=pl.lit("all_reduce"),
        algorithm=pl.lit("ring_ll"), on_device=pl.lit(value=True), bytes=pl.lit(28_672),
        bytes_source=pl.lit("metadata"),
    )  # fmt: skip
    found = the(Trace({**trace.tables, "collectives": calls}, trace.meta), "nccl_for_small_messages")
    assert found is not None
    assert found["figure"] == 10_000
    assert found["share_of_time"] == pytest.approx(10 / 110)
    # 28,672 B in 10 us, once around a ring of two
    assert found["title"] == (
        "All-reduces of 28.0 KiB go through NCCL (ring_ll): their transfer takes 10.0 us, at 2.9 GB/s on the bus."
    )
    assert "8 a step" in found["detail"]
    large = calls.with_columns(bytes=pl.lit(64 << 20))
    assert the(Trace({**trace.tables, "collectives": large}, trace.meta), "nccl_for_small_messages") is None
    assert the(trace, "nccl_for_small_messages") is None  # sizes are not known
    profiler = trace.markers.with_columns(name=pl.lit("ProfilerStep#1"))
    training = Trace({**trace.tables, "collectives": calls, "markers": profiler}, trace.meta)
    assert the(training, "nccl_for_small_messages") is None


# --- kernels ---


def test_short_kernels() -> None:
    # seven of eleven kernels take 1 us
    found = the(together(decode([(GEMM, SHORT)] * 7 + [(GEMM, LONG)] * 4)), "short_kernels")
    assert found is not None
    assert found["figure"] == pytest.approx(7 / 11)
    assert found["share_of_time"] == pytest.approx(7 / 207)
    assert found["severity"] == "low"
    assert found["title"] == (
        "63.6 % of the kernels (7 of 11 in a step) run shorter than 5.00 us; the median is 1.00 us."
    )
    assert the(together(decode([(GEMM, SHORT)] * 3 + [(GEMM, LONG)] * 8)), "short_kernels") is None
    assert the(together(decode([(GEMM, SHORT_KERNEL_NS)] * 11)), "short_kernels") is None


def test_split_k() -> None:
    found = the(together(decode([(GEMM, LONG), (SPLIT_K, 10_000)] * 4 + [(EMBEDDING, 100_000)])), "split_k")
    assert found is not None
    assert found["figure"] == pytest.approx(10 / 60)
    assert found["share_of_time"] == pytest.approx(40 / 340)
    assert "4 extra kernels and 40.0 us in a step" in found["title"]
    assert the(together(QUIET), "split_k") is None


def test_uneven_compute() -> None:
    two = together(decode([GEMM] * 10, rank=0), decode([GEMM] * 14, rank=1))
    found = the(two, "uneven_compute")
    assert found is not None
    assert found["figure"] == pytest.approx(1.4)
    assert found["share_of_time"] == pytest.approx((700 - 500) / 600)
    assert found["title"] == "Rank 1 computes 1.40 times as long as rank 0."
    assert the(together(decode([GEMM] * 10, rank=0), decode([GEMM] * 10, rank=1)), "uneven_compute") is None
    # more steps on one rank are not more compute in a step
    longer = together(decode([GEMM] * 10, rank=0), decode([GEMM] * 10, rank=1, steps=12))
    assert the(longer, "uneven_compute") is None


def test_heaviest_stage() -> None:
    layer = [(name, 200_000 if n == 7 else LONG) for n, name in enumerate(DENSE)]  # gate_up_proj
    found = the(together(decode([EMBEDDING, *layer, *layer, GEMM])), "heaviest_stage")
    assert found is not None
    # 400 us of 1,400: embedding 50, two layers of 650, lm_head 50
    assert found["figure"] == pytest.approx(400 / 1400)
    assert found["title"].startswith("Of the compute, gate_up_proj takes 28.6 %; then norm 14.3 %")
    assert found["severity"] == "info"
    assert the(together(decode(["acme"] * 5)), "heaviest_stage") is None


def test_unnamed_time() -> None:
    found = the(together(decode(["acme"] * 5)), "unnamed_time")
    assert found is not None
    assert found["figure"] == pytest.approx(1.0)
    assert "(25 events)" in found["title"]
    assert the(together(QUIET), "unnamed_time") is None


# --- the frame ---


def test_every_rule_is_tested_and_names_an_analysis() -> None:
    here = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    for rule in RULES:
        assert rule.name in here, rule.name
        assert rule.evidence in llmprof.analyze.__all__
        assert rule.unit
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_most_important_come_first() -> None:
    rng = random.Random(0)
    names = [(GEMM, rng.choice([SHORT, LONG])) for _ in range(30)]
    parts = [
        decode([*names, (NCCL_ALL_REDUCE, 300_000 if rank else 4_000), SPLIT_K], pause=2_000, lead=1_000, rank=rank)
        for rank in (0, 1)
    ]
    found = findings(together(*parts, world_size=2))
    assert found.height >= 4
    assert found["order"].to_list() == list(range(1, found.height + 1))
    ranks = {"high": 0, "medium": 1, "low": 2, "info": 3}
    keys = [(ranks[s], -share) for s, share in found.select("severity", "share_of_time").iter_rows()]
    assert keys == sorted(keys)
    for severity, share in found.select("severity", "share_of_time").iter_rows():
        least = {"high": 0.2, "medium": 0.05, "low": 0.0, "info": 0.0}[severity]
        assert share >= least


def test_no_finding_without_its_figure() -> None:
    for trace in (together(QUIET), ranks_with_all_reduces({0: 0, 1: 400_000}), together(decode(["acme"] * 5))):
        found = findings(trace)
        assert found["figure"].is_finite().all()
        assert found["share_of_time"].is_between(0, 1).all()
        assert not found["title"].str.contains("None|nan|unknown").any()
        assert found.null_count().sum_horizontal().item() == 0


def test_the_scope_says_what_the_shares_are_of() -> None:
    assert findings(together(QUIET))["scope"].unique().to_list() == ["steady decode steps"]
    prefill = together(decode([EMBEDDING, *DENSE], label="execute_context_4(256)_generation_0(0)"))
    assert findings(prefill)["scope"].unique().to_list() == ["all steps"]
    nothing = Trace({"kernels": kernels(["acme"] * 5)})
    assert findings(nothing)["scope"].unique().to_list() == ["whole recording"]
    # one rank without steady steps: all ranks are looked at alike
    mixed = together(QUIET, decode([EMBEDDING, *DENSE], label="ProfilerStep#1", rank=1))
    assert findings(mixed)["scope"].unique().to_list() == ["all steps"]


def test_captures_of_graphs_are_no_run() -> None:
    capture = together(decode([EMBEDDING, *DENSE], label="capture_8_FULL", pause=150_000, lead=10_000))
    assert findings(capture).is_empty()


def test_schema_without_rows() -> None:
    some = findings(together(QUIET))
    assert some.schema == SCHEMA
    for none in (Trace({"kernels": kernels([])}), Trace({"kernels": kernels([(GEMM, 0)])})):
        assert findings(none).is_empty()
        assert findings(none).schema == some.schema


def test_first_lines_on_the_recordings(sample_trace: Callable[[str], Trace]) -> None:
    custom = findings(sample_trace("torch_tp4_eager_custom_allreduce"))
    first = custom.row(0, named=True)
    assert first["rule"] == "arrival_skew"
    assert first["figure"] >= 0.98
    assert "rank 3 arrives last in 100.0 % of the all-reduces" in first["title"]
    assert "transfer itself takes 4.34 us where their kernels suggest 1.11 ms" in first["title"]
    second = custom.row(1, named=True)
    assert second["rule"] == "host_bound"
    assert "on rank 3 the device idles" in second["title"]
    nccl = findings(sample_trace("torch_tp4_eager_nccl"))
    assert nccl["rule"][:2].to_list() == ["arrival_skew", "host_bound"]
    assert "nccl_for_small_messages" in nccl["rule"].to_list()
    assert "nccl_for_small_messages" not in custom["rule"].to_list()
    one = findings(sample_trace("torch_tp1_eager"))
    assert one["rule"][0] == "host_bound"
    assert "arrival_skew" not in one["rule"].to_list()
    assert findings(sample_trace("torch_pp2_eager"))["rule"][0] == "pipeline_wait"
