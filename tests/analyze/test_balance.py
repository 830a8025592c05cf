"""Experts on several ranks and ranks with unequal work, by hand: who gets how many tokens, and
who waits for whom.
"""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.analyze import collectives, expert_exchange
from llmprof.names.modules import module_purpose
from llmprof.trace import Trace
from tests.analyze.builders import ATTENTION, GEMM, labels, launches, ops

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
STEP = "execute_context_0(0)_generation_4(4)"


def rank_of(rank, *, experts, arrives, received):
    """Two layers at 100 and 1100: attention, dispatch until +200, experts from +210, combine
    until +600.
    """
    rows, marks, calls = [], [(STEP, 50, 1700)], []
    for layer in (0, 1):
        at, name = 100 + 1000 * layer, f"layer::model.layers.{layer}"
        kernels = [
            (ATTENTION, at, 50, None),
            (SEND, at + arrives, 200 - arrives, 10 + layer),
            (GEMM, at + 210, experts, None),
            (SEND, at + 220 + experts, 380 - experts, 20 + layer),
        ]
        rows += [(rank, 0, 7, start, dur, kernel, op) for kernel, start, dur, op in kernels]
        marks += [
            (name, at - 10, 620),
            (f"{name}.self_attn", at - 8, 20),
            (f"{name}.mlp", at + 80, 525),
        ]
        marks += [(f"{name}.mlp.experts", at + 82, 520)]
        shapes = f"[[{received}, 8], [4, 8], [], []]", f"[[4, 8], [{received}, 8], [], []]"
        types = '["c10::BFloat16", "c10::BFloat16", "", ""]'
        calls += [("c10d::alltoall_base_", at + arrives - 8, 4, 10 + layer, shapes[0], types)]
        calls += [("c10d::alltoall_base_", at + 212 + experts, 4, 20 + layer, shapes[1], types)]
    schema = {
        "rank": pl.Int32,
        "device": pl.Int32,
        "stream": pl.Int64,
        "start_ns": pl.Int64,
        "dur_ns": pl.Int64,
    }
    frame = pl.DataFrame(
        rows, schema={**schema, "name": pl.String, "op_id": pl.Int64}, orient="row"
    )
    frame = frame.with_columns(correlation=pl.int_range(pl.len()) + 100 * rank)
    markers = labels(marks, rank=rank).with_columns(thread=pl.lit(1, dtype=pl.Int64))
    return {
        "kernels": frame,
        "runtime": launches(frame),
        "markers": markers,
        "ops": ops(calls, rank=rank),
    }


@pytest.fixture
def two_ranks():
    """Rank 1 comes 50 ns later to the dispatch, gets 2 rows and not 6, and its experts take 3
    times as long.
    """
    parts = [
        rank_of(0, experts=100, arrives=100, received=6),
        rank_of(1, experts=300, arrives=150, received=2),
    ]
    return Trace(
        {name: pl.concat([part[name] for part in parts]) for name in parts[0]}, {"world_size": 2}
    )


def test_exchange_of_tokens_by_hand(two_ranks):
    events = two_ranks.events.filter(rank=0)
    assert events["stage"].to_list() == ["attention", "expert_dispatch", "experts", "combine"] * 2
    assert events["layer"].to_list() == [0] * 4 + [1] * 4
    assert set(collectives(two_ranks)["kind"]) == {"all_to_all"}
    exchange = expert_exchange(two_ranks)
    assert exchange.select("rank", "step", "layer", "kind", "ranks").rows() == [
        (rank, 0, layer, "all_to_all", 2) for rank in (0, 1) for layer in (0, 1)
    ]
    assert exchange["call"].to_list() == [0, 2, 0, 2]
    first = exchange.filter(layer=0)
    assert first.select("sent_rows", "received_rows").rows() == [(4, 6), (4, 2)]
    assert first.select("dispatch_ns", "dispatch_wait_ns", "dispatch_bytes").rows() == [
        (100, 50, 96),
        (50, 0, 64),
    ]
    assert first.select("combine_ns", "combine_wait_ns", "combine_bytes").rows() == [
        (280, 200, 96),
        (80, 0, 64),
    ]
    assert first.select("experts_ns", "imbalance", "last_rank").rows() == [
        (100, 1.5, 1),
        (300, 1.5, 1),
    ]
    assert set(first["arrival_skew_ns"]) == {200}


@pytest.mark.parametrize("names", [("AllGather", "ReduceScatter"), ("Broadcast", "Reduce")])
def test_an_all_gather_brings_the_rows_of_all_ranks_to_each(two_ranks, names):
    """vLLM gathers the tokens of all ranks and scatters the sums, by broadcasts and reductions
    where ranks differ.

    Its operator takes the tokens of its own rank: 5 and 3 rows of 8 elements of 2 bytes, 128 bytes
    in all.
    """
    first, second = (f"ncclDevKernel_{name}_RING_LL()" for name in names)
    is_dispatch = pl.int_range(pl.len()).over("rank") % 4 == 1
    name = pl.when(is_dispatch).then(pl.lit(first)).otherwise(pl.lit(second))
    own = (
        pl.when(pl.col("rank") == 0)
        .then(pl.lit("[[5, 8], [5, 4]]"))
        .otherwise(pl.lit("[[3, 8], [3, 4]]"))
    )
    tables = dict(two_ranks.tables)
    tables["kernels"] = tables["kernels"].with_columns(
        name=pl.when(pl.col("name") == SEND).then(name).otherwise("name")
    )
    tables["ops"] = tables["ops"].with_columns(
        name=pl.lit("vllm::moe_forward"),
        shapes=own,
        dtypes=pl.lit('["c10::BFloat16", "c10::BFloat16"]'),
    )
    trace = Trace(tables, {"world_size": 2})
    assert dict(collectives(trace).group_by("kind").len().iter_rows()) == {
        "all_gather": 4,
        "reduce_scatter": 4,
    }
    exchange = expert_exchange(trace)
    assert set(exchange["kind"]) == {"all_gather and reduce_scatter"}
    columns = [
        "rank",
        "sent_rows",
        "received_rows",
        "dispatch_bytes",
        "combine_bytes",
        "dispatch_wait_ns",
    ]
    assert exchange.select(columns).unique().sort("rank").rows() == [
        (0, 5, 8, 128, 128, 50),
        (1, 3, 8, 128, 128, 0),
    ]


def test_padding_on_another_rank_counts_as_rows_that_it_brings(two_ranks):
    """Rank 1 has no label, so no step: its layers are none, and still rank 0 gets its rows."""
    label = (
        pl.when((pl.col("rank") == 1) & (pl.col("name") == STEP))
        .then(pl.lit("not a step"))
        .otherwise("name")
    )
    kernel = pl.col("name").str.replace("SendRecv", "AllGather_RING_LL")
    tables = dict(two_ranks.tables)
    tables["markers"] = tables["markers"].with_columns(name=label)
    tables["kernels"] = tables["kernels"].with_columns(name=kernel)
    tables["ops"] = tables["ops"].with_columns(
        name=pl.lit("vllm::moe_forward"), shapes=pl.lit("[[4, 8], [4, 4]]")
    )
    exchange = expert_exchange(Trace(tables, {"world_size": 2}))
    assert exchange.filter(rank=0).select("sent_rows", "received_rows").unique().rows() == [(4, 8)]
    assert exchange.select("rank", "step", "layer", "experts_ns", "last_rank").rows() == [
        *[(0, 0, layer, 100, 1) for layer in (0, 1)],
        *[(1, None, layer, 300, 1) for layer in (0, 1)],
    ]


def test_modules_of_mixtures_of_experts():
    assert module_purpose("Qwen3MoeAttention").block == "attention"
    assert module_purpose("Qwen3MoeSparseMoeBlock").block == "experts"
    assert module_purpose("MoERunner").role == "experts"


def test_balance_by_hand(two_ranks):
    """Compute 2 x (50 + 100) and 2 x (50 + 300); all lies within 1,600 ns."""
    balance = analyze.ranks(two_ranks)
    assert balance.select("rank", "group", "steps", "prefill_tokens", "decode_tokens").rows() == [
        (0, 0, 1, 0, 4),
        (1, 0, 1, 0, 4),
    ]
    assert balance["compute_ns"].to_list() == [300, 700]
    assert balance["communication_ns"].to_list() == [760, 260]
    assert balance["wait_ns"].to_list() == [500, 0]
    assert balance["idle_ns"].to_list() == [1600 - 1060, 1600 - 960]
    assert balance["busy_share"].to_list() == [300 / 1600, 700 / 1600]
    assert balance["imbalance"].to_list() == pytest.approx([0.6, 1.4])


def test_engines_that_share_no_collective_are_groups_of_their_own(two_ranks):
    kernels = two_ranks.kernels.filter(pl.col("name") != SEND)
    label = (
        pl.when((pl.col("rank") == 1) & (pl.col("name") == STEP))
        .then(pl.lit("not a step"))
        .otherwise("name")
    )
    markers = two_ranks.markers.with_columns(name=label)
    balance = analyze.ranks(Trace({**two_ranks.tables, "kernels": kernels, "markers": markers}))
    assert balance["group"].to_list() == [0, 1]
    assert balance["wait_ns"].to_list() == [0, 0]
    # rank 1 computes without a step: passes of padding
    assert balance["steps"].to_list() == [1, 0]
    assert balance["decode_tokens"].to_list() == [4, None]
