"""Collectives over ranks, by hand: who waits for whom, what the transfer takes, and which calls
belong together.
"""

import random

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import names
from llmprof.analyze import collectives
from llmprof.analyze.collectives.collectives import called_together, lateness
from llmprof.trace import Trace
from tests.analyze.builders import ALL_GATHER, ALL_REDUCE, NCCL_ALL_REDUCE, kernels, ops
from tests.samples import sample

US = 1_000


def test_one_file_that_says_no_size_of_the_run_is_not_taken_for_the_whole_run(shared):
    """A broadcast of 309 ms among 19 calls of one rank: nothing says that it was alone, so it
    may have waited.
    """
    folder = shared / "real/ascend/msprof_analyze"
    trace = llmprof.read(
        folder / "ut__advisor__advisor_backend__compute_advice__kernel_details.csv"
    )
    assert (trace.meta["world_size"], trace.meta["world_size_from"]) == (1, "ranks")
    found = collectives(trace)
    assert found.height == 19
    assert found["wait_ns"].null_count() == 19
    assert found["reason"].null_count() == 0


def calls(rows, name=NCCL_ALL_REDUCE, **columns):
    """Trace of collective kernels from ``(rank, start, end)``, with the same further columns on
    every row.
    """
    frame = pl.DataFrame(
        list(rows), schema={"rank": pl.Int32, "start_ns": pl.Int64, "end": pl.Int64}, orient="row"
    )
    frame = frame.select(
        "rank", "start_ns", dur_ns=pl.col("end") - pl.col("start_ns"), name=pl.lit(name)
    )
    frame = frame.with_columns(stream=pl.lit(7, dtype=pl.Int64), correlation=pl.int_range(pl.len()))
    kind = names.collective_kinds(frame["name"])
    meta = columns.pop("meta", {})
    table = frame.with_columns(
        kind, on_device=pl.lit(value=True), **{k: pl.lit(v) for k, v in columns.items()}
    )
    return Trace({"kernels": frame, "collectives": table}, meta)


def random_group(ranks, seed, count=20, period=200 * US):
    """Calls whose last rank comes at random; all leave 4 us later, within 1 us of each other."""
    rng, rows = random.Random(seed), []
    for n in range(count):
        starts = {rank: n * period + rng.randrange(150 * US) for rank in ranks}
        last = max(starts.values())
        rows += [
            (rank, start, last + 4 * US + rng.randrange(1000)) for rank, start in starts.items()
        ]
    return rows


def test_waiting_and_transfer_by_hand():
    # rank 3 comes 100 us after the first; all leave at 104.0 to 104.2 us
    trace = calls(
        [(0, 0, 104_000), (1, 10_000, 104_100), (2, 20_000, 104_200), (3, 100_000, 104_200)],
        bytes=28_672,
        bytes_source="metadata",
        dtype="BFloat16",
        world=4,
    )
    found = collectives(trace)
    assert found.select("rank", "call", "dur_ns", "wait_ns", "transfer_ns").rows() == [
        (0, 0, 104_000, 100_000, 4_000),
        (1, 0, 94_100, 90_000, 4_100),
        (2, 0, 84_200, 80_000, 4_200),
        (3, 0, 4_200, 0, 4_200),
    ]
    same = found.select(
        "arrival_skew_ns", "last_rank", "end_spread_ns", "ranks", "world", "clock_offset_ns"
    )
    assert same.unique().rows() == [(100_000, 3, 200, 4, 4, 0)]
    # 28,672 B in 4.2 us are 6.827 GB/s; an all-reduce of 4 moves 2 * 3 / 4 of it on the bus
    last = found.row(3, named=True)
    assert last["algorithm_gbps"] == pytest.approx(6.8267, rel=1e-4)
    assert last["bus_gbps"] == pytest.approx(10.24)
    assert found["source"].unique().to_list() == ["metadata"]


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2 * 3 / 4),
        ("ncclDevKernel_AllGather_RING_LL", 3 / 4),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 3 / 4),
        ("ncclDevKernel_Broadcast_RING_LL", 1.0),
    ],
)
def test_bus_bandwidth_as_in_nccl_tests(kind, factor):
    rows = [(rank, 0, 10_000) for rank in range(4)]
    found = collectives(calls(rows, kind, bytes=1_000_000, world=4))
    assert found["algorithm_gbps"].to_list() == [pytest.approx(100.0)] * 4
    assert found["bus_gbps"].to_list() == [pytest.approx(100.0 * factor)] * 4


def test_a_recording_that_is_cut_on_one_rank():
    rows = random_group([0, 1], seed=1)
    by_rank = {rank: sorted(r for r in rows if r[0] == rank) for rank in (0, 1)}
    found = collectives(
        calls([*by_rank[0], *by_rank[1][2:-1]])
    )  # rank 1 lacks two calls at first and one at last
    alone = found.filter(pl.col("ranks") == 1)
    assert alone["rank"].to_list() == [0, 0, 0]
    assert alone["call"].to_list() == [0, 1, 19]
    assert (
        alone.select(
            pl.col("wait_ns", "transfer_ns", "arrival_skew_ns", "last_rank").null_count()
        ).row(0)
        == (3,) * 4
    )
    both = found.filter(pl.col("ranks") == 2)
    assert both.filter(pl.col("rank") == 1)["call"].to_list() == list(range(2, 19))
    assert both["transfer_ns"].is_between(4 * US, 5 * US).all()


def test_two_groups_without_names():
    found = collectives(
        calls(
            [*random_group([0, 1], seed=3), *random_group([2, 3], seed=4)], meta={"world_size": 4}
        )
    )
    assert found["world"].unique().to_list() == [2]
    assert found["ranks"].unique().to_list() == [2]
    together = found.group_by("call").agg(pl.col("rank").sort())["rank"].to_list()
    assert sorted(together) == [[0, 1]] * 20 + [[2, 3]] * 20
    assert found["transfer_ns"].is_between(4 * US, 5 * US).all()
    rows = random_group([0, 1], seed=2)
    by_rank = {rank: sorted(r for r in rows if r[0] == rank) for rank in (0, 1)}
    found = collectives(calls([*by_rank[0][1:], *by_rank[1][:-1]]))
    assert found.filter(pl.col("ranks") == 2).height == 2 * 18
    assert found.filter(pl.col("ranks") == 2)["transfer_ns"].is_between(4 * US, 5 * US).all()
    assert found.filter(pl.col("wait_ns").is_null()).height == 2


def test_clocks_that_differ():
    ahead = 5_000_000
    rows = [
        (rank, start + ahead * rank, end + ahead * rank)
        for rank, start, end in random_group([0, 1], seed=7)
    ]
    found = collectives(calls(rows))
    offset = (
        found.group_by("rank")
        .agg(pl.col("clock_offset_ns").first())
        .sort("rank")["clock_offset_ns"]
    )
    assert offset[0] == 0
    assert offset[1] == pytest.approx(ahead, abs=1000)
    assert found["ranks"].unique().to_list() == [2]
    assert found["transfer_ns"].is_between(3 * US, 6 * US).all()
    assert found["end_spread_ns"].max() <= 2000
    # two ranks with three calls each, one second apart: as likely two groups as two clocks
    rows = [(0, n * 1000, n * 1000 + 500) for n in range(3)] + [
        (1, 10**9 + n * 1000, 10**9 + n * 1000 + 500) for n in range(3)
    ]
    found = collectives(calls(rows))
    assert found["world"].to_list() == [None] * 6
    assert found["wait_ns"].null_count() == 6


@pytest.mark.parametrize(
    ("name", "columns", "world"),
    [
        (
            NCCL_ALL_REDUCE,
            {},
            None,
        ),  # three of four ranks: the fourth may belong to the group or not
        (NCCL_ALL_REDUCE, {"world": 4}, 4),
        (ALL_REDUCE, {}, 4),  # the template argument says it
    ],
)
def test_with_a_rank_missing_no_wait_is_known(name, columns, world):
    meta = {"world_size": 4, "missing_ranks": [3]}
    found = collectives(
        calls(random_group([0, 1, 2], seed=8), name, bytes=1000, meta=meta, **columns)
    )
    assert found["world"].unique().to_list() == [world]
    assert found["ranks"].unique().to_list() == [3]
    for unknown in (
        "wait_ns",
        "transfer_ns",
        "arrival_skew_ns",
        "end_spread_ns",
        "last_rank",
        "bus_gbps",
    ):
        assert found[unknown].null_count() == found.height, unknown
    assert found["bytes"].null_count() == 0


def test_a_sender_that_is_done_before_the_receiver_begins_did_not_wait():
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    rows = [(0, 0, 6_000), (1, 50_000, 57_000)]  # sent into a buffer, fetched later
    rows += [(0, 200_000, 206_000), (1, 150_000, 207_000)]  # the receiver was there 50 us before
    found = collectives(calls(rows, name, group="pp", world=2))
    assert found.select("rank", "call", "wait_ns", "transfer_ns").rows() == [
        (0, 0, 0, 6_000),
        (0, 1, 0, 6_000),
        (1, 0, 0, 7_000),
        (1, 1, 50_000, 7_000),
    ]


SHAPES = [
    # operator's shapes and types, name of the kernel, world -> bytes
    ("[[4, 3584], []]", '["c10::BFloat16", ""]', ALL_REDUCE, 4 * 3584 * 2),
    (
        "[[], [4, 3584], [4, 3584], [], []]",
        '["", "c10::BFloat16", "c10::BFloat16", "", ""]',
        ALL_REDUCE,
        4 * 3584 * 2,
    ),
    (
        "[[4, 38016]]",
        '["c10::BFloat16"]',
        ALL_GATHER,
        4 * 38016 * 2 * 4,
    ),  # the output has the parts of 4 ranks
    (
        "[[8], [4, 2]]",
        '["long int", "float"]',
        NCCL_ALL_REDUCE,
        64,
    ),  # the larger in bytes, not in elements
    ("[[4, 3584]]", '["c10::ComplexFoo"]', NCCL_ALL_REDUCE, None),
    ("[[], []]", '["", ""]', NCCL_ALL_REDUCE, None),
    (None, None, NCCL_ALL_REDUCE, None),
    (
        "[[], [[32, 256], [92]], []]",
        '["Scalar", "TensorList", "Scalar"]',
        NCCL_ALL_REDUCE,
        None,
    ),  # vLLM's pipelines
    (
        "[[[4, 8], [2, 2]], []]",
        '["TensorList", ""]',
        NCCL_ALL_REDUCE,
        None,
    ),  # types inside of a list are not written
]


@pytest.mark.parametrize(("shapes", "types", "name", "expected"), SHAPES)
def test_sizes_from_the_operators_shapes(shapes, types, name, expected):
    trace = calls([(rank, 0, 1000) for rank in range(4)], name, op_id=5)
    operators = pl.concat(
        [ops([("vllm::all_reduce", 0, 10, 5, shapes, types)], rank=rank) for rank in range(4)]
    )
    found = collectives(Trace({**trace.tables, "ops": operators}))
    assert found["bytes"].unique().to_list() == [expected]
    assert found["source"].unique().to_list() == ["shapes" if expected else None]
    if expected:
        assert found["algorithm_gbps"][0] == pytest.approx(expected / 1000)
    else:
        assert found["algorithm_gbps"].null_count() == 4


def test_an_all_gather_of_an_unknown_group_has_no_size():
    trace = calls([(0, 0, 1000)], ALL_GATHER, op_id=5)
    operators = ops([("vllm::all_gather", 0, 10, 5, "[[4, 38016]]", '["c10::BFloat16"]')])
    assert collectives(Trace({**trace.tables, "ops": operators}))["bytes"].to_list() == [None]


@pytest.fixture
def own_table():
    before = list(names.KERNEL_PATTERNS)
    yield
    names.KERNEL_PATTERNS[:] = before


@pytest.mark.usefixtures("own_table")
def test_a_collective_that_the_user_names_is_one():
    run = pl.concat(
        [kernels([("acme_sum_over_ranks", 10)], rank=rank, start=rank) for rank in (0, 1)]
    )
    trace = Trace({"kernels": run, "collectives": calls([]).collectives}, {"world_size": 2})
    assert collectives(trace).is_empty()
    names.register("collective", "acme_sum")
    found = collectives(trace)
    assert found.select("rank", "kind", "wait_ns", "transfer_ns", "world").rows() == [
        (0, "other", 1, 9, 2),
        (1, "other", 0, 10, 2),
    ]


ROWS = [(0, 0, 104_000), (1, 10_000, 104_100), (0, 200_000, 254_000), (1, 250_000, 254_100)]
COLUMNS = {"bytes": 8_000, "bytes_source": "metadata", "dtype": "BFloat16", "world": 2}


def two_ranks(device="NVIDIA H200"):
    """Two calls: rank 1 comes 10 us and 50 us after rank 0; both leave together."""
    return calls(ROWS, meta={"device": device, "world_size": 2}, **COLUMNS)


def test_who_is_late():
    found = collectives(two_ranks(), by=("kind", "rank"))
    late = ("count", "last_count", "last_share", "late_median_ns", "late_p90_ns", "late_max_ns")
    assert found.select("kind", "rank", *late, "wait_ns", "transfer_ns").rows(named=True) == [
        {
            "kind": "all_reduce",
            "rank": 0,
            "count": 2,
            "last_count": 0,
            "last_share": 0.0,
            "late_median_ns": 0.0,
            "late_p90_ns": 0.0,
            "late_max_ns": 0,
            "wait_ns": 60_000,
            "transfer_ns": 98_000,
        },
        {
            "kind": "all_reduce",
            "rank": 1,
            "count": 2,
            "last_count": 2,
            "last_share": 1.0,
            "late_median_ns": 30_000.0,
            "late_p90_ns": 46_000.0,
            "late_max_ns": 50_000,
            "wait_ns": 0,
            "transfer_ns": 98_200,
        },
    ]
    alone = calls(ROWS[::2], **COLUMNS)
    assert lateness(collectives(alone))["late_ns"].to_list() == [None, None]
    assert collectives(alone, by="rank").select(late[:3]).row(0) == (2, 0, None)


def test_sizes_against_the_peak_of_the_link():
    found = collectives(two_ranks(), by=("kind", "algorithm", "bytes"))
    row = found.row(0, named=True)
    assert (row["kind"], row["bytes"], row["count"]) == ("all_reduce", 8_000, 4)
    # transfers of 94.0, 94.1, 4.0 and 4.1 us; on two ranks the bus bandwidth is the algorithm's
    assert row["transfer_median_ns"] == pytest.approx((94_000 + 4_100) / 2)
    assert row["bus_gbps"] == pytest.approx((8_000 / 94_000 + 8_000 / 4_100) / 2)
    assert row["peak_gbps"] == 450.0  # 900 GB/s of NVLink are both directions
    assert row["peak_share"] == pytest.approx(row["bus_gbps"] / 450)


@pytest.mark.parametrize("name", ["torch_tp4_eager_nccl", "torch_pp2_eager", "torch_ep2_dp2_eager"])
def test_calls_are_matched_without_labels_as_with_them(name):
    with_labels = collectives(sample(name)).select("rank", "call").sort("rank", "call")
    assert with_labels["call"].count()
    assert_frame_equal(
        called_together(sample(name)).sort("rank", "call").cast(with_labels.schema), with_labels
    )
