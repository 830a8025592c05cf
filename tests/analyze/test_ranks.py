"""Sixteen ranks on four nodes, by hand: which node is late, where each rank stands, and what
each step waits for.
"""

import polars as pl
import pytest

from llmprof.analyze import findings, ranks
from llmprof.analyze.ranks import latest_group
from llmprof.errors import ArgumentError
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, labels, launches

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEP = "execute_context_0(0)_generation_4(4)"
RANKS, STEPS, PERIOD = 16, 10, 10_000


def rank_of(rank, arrives):
    """Steps of 10 us: a product of matrices until the rank arrives at its all-reduce, which all
    leave at 5 us.
    """
    rows, marks = [], []
    for step, at in enumerate(arrives):
        begin = PERIOD * step
        rows += [
            (rank, rank % 4, 7, begin, at, GEMM),
            (rank, rank % 4, 7, begin + at, 5_000 - at, REDUCE),
        ]
        marks.append((STEP, begin - 100, 4_000))
    schema = {
        "rank": pl.Int32,
        "device": pl.Int32,
        "stream": pl.Int64,
        "start_ns": pl.Int64,
        "dur_ns": pl.Int64,
    }
    frame = pl.DataFrame(rows, schema={**schema, "name": pl.String}, orient="row").with_columns(
        correlation=pl.int_range(pl.len()) + 100 * rank, op_id=pl.lit(None, dtype=pl.Int64)
    )
    markers = labels(marks, rank=rank).with_columns(thread=pl.lit(1, dtype=pl.Int64))
    return {"kernels": frame, "runtime": launches(frame), "markers": markers}


def arrivals(rank):
    """Node 2 (ranks 8 to 11) comes at 4 us, a different one of its ranks last; in the last step
    rank 3 is last.
    """
    if 8 <= rank < 12:
        return [4_000 + (100 if step % 4 == rank % 4 else 0) for step in range(STEPS)]
    return [1_000 + rank] * (STEPS - 1) + [4_500 if rank == 3 else 1_000 + rank]


def run_of(**meta):
    parts = [rank_of(rank, arrivals(rank)) for rank in range(RANKS)]
    tables = {name: pl.concat([part[name] for part in parts]) for name in parts[0]}
    return Trace(tables, {"world_size": RANKS, "world_size_from": "file", **meta})


def on_hosts():
    files = [
        f"node{rank // 4}_{4000 + rank}.1694128201545000.pt.trace.json.gz" for rank in range(RANKS)
    ]
    return {"ranks": [{"rank": rank, "file": file} for rank, file in enumerate(files)]}


@pytest.fixture(scope="module")
def sixteen():
    return run_of(**on_hosts())


def test_nodes_come_from_the_names_of_the_files(sixteen):
    files = [f"worker{rank}_step_12.1694128201545.pt.trace.json" for rank in range(RANKS)]
    trace = run_of(ranks=[{"rank": rank, "file": file} for rank, file in enumerate(files)])
    assert ranks(trace, by="place")["node"].null_count() == RANKS
    groups = ranks(sixteen, by="place")
    assert groups["node"].to_list() == [f"node{rank // 4}" for rank in range(RANKS)]
    assert groups["evidence"].unique().to_list() == ["node: file name"]
    assert groups.select("dp", "pp", "tp", "ep").null_count().row(0) == (16, 16, 16, 16)
    trace = run_of()
    assert ranks(trace, by="place").select(pl.exclude("rank").null_count()).row(0) == (16,) * 6
    assert ranks(trace, by="group").height == 0


def test_places_by_file_name_of_vllm_and_sglang():
    vllm = [
        f"dp{r // 8}_pp{r // 4 % 2}_tp{r % 4}_dcp0_ep{r % 8}_rank{r}.17737.pt.trace.json"
        for r in range(RANKS)
    ]
    trace = run_of(ranks=[{"rank": r, "file": file} for r, file in enumerate(vllm)])
    groups = ranks(trace, by="place").select("dp", "pp", "tp", "ep").rows()
    assert groups[13] == (1, 1, 1, 5)
    sglang = [f"1773709679.45-TP-{r % 4}-DP-{r // 4}.trace.json.gz" for r in range(RANKS)]
    groups = ranks(
        run_of(ranks=[{"rank": r, "file": file} for r, file in enumerate(sglang)]), by="place"
    )
    assert groups.select("dp", "pp", "tp").row(13) == (3, None, 1)


def test_places_by_descriptions_of_process_groups():
    def told(rank):
        tensor, data = [rank // 4 * 4 + i for i in range(4)], [rank % 4 + 4 * i for i in range(4)]
        return {
            "rank": rank,
            "groups": {"1": tensor, "2": data},
            "group_descriptions": {"1": "TENSOR_MODEL_PARALLEL_GROUP", "2": "DATA_PARALLEL_GROUP"},
        }

    groups = ranks(run_of(ranks=[told(rank) for rank in range(RANKS)]), by="place")
    assert groups.select("dp", "pp", "tp", "evidence").row(13) == (
        3,
        None,
        1,
        "dp: process groups; tp: process groups",
    )


def test_sizes_fill_only_what_the_recording_leaves_open(sixteen):
    groups = ranks(sixteen, ranks_per_node=8, tp=4, pp=2, by="place")
    assert groups.select("node", "dp", "pp", "tp").row(13) == ("node3", 1, 1, 1)
    assert "node: file name" in groups["evidence"][0]
    assert ranks(run_of(parallel={"tp": 4, "pp": 1}), by="place")["evidence"][0] == (
        "dp: configuration of the run; pp: configuration of the run; tp: configuration of the run"
    )
    for wrong in ({"ranks_per_node": 0}, {"tp": -1}):
        with pytest.raises(ArgumentError, match="at least 1"):
            ranks(sixteen, **wrong, by="place")


def test_the_late_node_by_hand(sixteen):
    late = ranks(sixteen, by="group")
    assert late.select("kind", "group", "count", "last_count").rows() == [
        ("node", "node2", 10, 9),
        ("node", "node0", 10, 1),
        ("node", "node3", 10, 0),
        ("node", "node1", 10, 0),
    ]
    row = late.row(0, named=True)
    assert row["ranks"] == [8, 9, 10, 11]
    assert (row["last_share"], row["expected_share"]) == (0.9, 0.25)
    # rank 0 is first at 1,000; of the 40 arrivals of the node 10 are at 4,100 and 30 at 4,000
    assert row["late_median_ns"] == 3_000
    # the last comes at 4,100: rank r of the twelve others has waited 3,100 - r
    assert row["other_wait_ns"] == 9 * (12 * 3_100 - sum(set(range(16)) - {8, 9, 10, 11}))
    # nine calls: ranks 8, 9, 10, 11, 8, 9, 10, 11, 8; three of the four ranks come 3,000 after the
    # first, one 3,100
    assert (row["last_rank"], row["together_share"]) == (8, 3_000 / 3_100)
    # in the last call rank 3 comes 3,500 after rank 0, ranks 1 and 2 come 1 and 2
    assert late.row(1, named=True)["together_share"] == pytest.approx(1.5 / 3_500)


def test_only_a_group_that_is_late_as_a_whole_is_named(sixteen):
    late = ranks(sixteen, by="group")
    assert latest_group(late)["who"] == "ranks 8 to 11 (one node, node2)"
    alone = late.with_columns(together_share=pl.lit(0.1))
    few = late.with_columns(count=pl.lit(7, dtype=pl.Int64))
    chance = late.with_columns(expected_share=pl.lit(0.46))
    assert [latest_group(frame) for frame in (alone, few, chance, late.clear())] == [None] * 4


def test_the_finding_names_the_node(sixteen):
    row = findings(sixteen).filter(rule="arrival_skew").row(0, named=True)
    assert "ranks 8 to 11 (one node, node2)" in row["title"]
    assert all(told in row["detail"] for told in ("88.9 %", "3.00 us", "file name"))


def test_steps_of_ranks_by_hand(sixteen):
    rows = ranks(sixteen, by="step")
    assert rows.height == RANKS * STEPS
    first = rows.filter(rank=5, step=0).row(0, named=True)
    assert (first["start_ns"], first["end_ns"], first["dur_ns"]) == (0, 10_000, 10_000)
    assert first["wait_ns"] == 4_100 - 1_005
    assert (first["exposed_communication_ns"], first["idle_ns"]) == (5_000 - 1_005, 5_000)
    assert rows.filter(rank=3, step=9)["wait_ns"].item() == 0
    part = run_of(missing_ranks=[15])
    rest = Trace(
        {name: frame.filter(pl.col("rank") < 15) for name, frame in part.tables.items()}, part.meta
    )
    assert ranks(rest, by="step")["wait_ns"].null_count() == 15 * STEPS
