"""Which calls belong together when clocks differ, ends scatter, or a recording begins late; and
what is said if not.
"""

import random

import polars as pl
import pytest

from llmprof.analyze import collectives
from tests.analyze.test_collectives import US, calls, random_group
from tests.building import table_of

MS = 1_000_000


def ring(ranks, seed, count=40, period=3 * MS, hop=12 * US):
    """Calls of 600 us whose last rank comes at random; each rank leaves up to a hop after its
    neighbour in the ring.
    """
    rng, rows = random.Random(seed), []
    for n in range(count):
        starts = {rank: n * period + rng.randrange(2 * MS) for rank in ranks}
        leave, first = max(starts.values()) + 600 * US, rng.randrange(len(ranks))
        for i in range(len(ranks)):
            rank = ranks[(first + i) % len(ranks)]
            away = min(i, len(ranks) - i)
            rows.append((rank, starts[rank], leave + away * hop + rng.randrange(2 * US)))
    return table_of("rank start end", rows).sort("rank", "start")


def test_ends_that_scatter_around_a_ring_belong_together():
    found = collectives(calls(ring(list(range(8)), 1).rows()))
    assert found["ranks"].unique().to_list() == [8]
    assert found["evidence"].unique().to_list() == ["ends"]
    assert found["confidence"].unique().to_list() == [1.0]
    assert found["reason"].null_count() == found.height
    # the last rank waits for nobody; its call is the transfer of 600 us and up to four hops
    last = found.filter(pl.col("last_rank") == pl.col("rank"))
    assert last["wait_ns"].to_list() == [0] * 40
    assert found["transfer_ns"].is_between(600 * US, 652 * US).all()
    assert found["clock_offset_ns"].unique().to_list() == [0]


def test_two_rings_in_step_stay_two():
    # the second ring does the same 300 us later, as a replica would that meets the first once a
    # step
    a = ring([0, 1, 2, 3], 2)
    rng = random.Random(5)
    lags = [200 * US + rng.randrange(400 * US) for _ in range(40)]
    b = ring([4, 5, 6, 7], 2).with_columns(n=pl.int_range(pl.len()).over("rank"))
    b = b.with_columns(pl.col("start", "end") + pl.lit(pl.Series(lags)).gather(pl.col("n"))).drop(
        "n"
    )
    found = collectives(calls([*a.rows(), *b.rows()], meta={"world_size": 8}))
    together = found.group_by("call").agg(pl.col("rank").sort())["rank"].unique().sort().to_list()
    assert together == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_clock_that_drifts():
    rows = [(0, s, e) for r, s, e in random_group([0, 1], 3, count=400) if r == 0]
    # 3 ms ahead, and 50 us more each second; the run takes 80 ms and comes again at 10 s
    late = [(0, s + 10_000 * MS, e + 10_000 * MS) for _, s, e in rows]
    rows += late
    other = [(1, int(s + 3 * MS + s * 5e-5), int(e + 3 * MS + e * 5e-5)) for _, s, e in rows]
    found = collectives(calls([*rows, *other]))
    assert found["ranks"].unique().to_list() == [2]
    assert found["end_spread_ns"].max() < 3 * US
    offsets = found.filter(pl.col("rank") == 1)["clock_offset_ns"]
    assert offsets[0] == pytest.approx(3 * MS, abs=2 * US)
    assert offsets[-1] == pytest.approx(3 * MS + 504 * US, abs=2 * US)


def test_a_recording_that_begins_late_with_another_clock():
    rows = random_group([0, 1], 4, count=60)
    by_rank = {rank: sorted(r for r in rows if r[0] == rank) for rank in (0, 1)}
    ahead = [(1, s + 9 * MS, e + 9 * MS) for _, s, e in by_rank[1][5:]]
    found = collectives(calls([*by_rank[0], *ahead]))
    both = found.filter(pl.col("ranks") == 2)
    assert both.filter(pl.col("rank") == 1)["call"].to_list() == list(range(5, 60))
    assert both["transfer_ns"].is_between(3 * US, 6 * US).all()
    alone = found.filter(pl.col("ranks") == 1)
    assert alone["reason"].unique().to_list() == [
        "the recording of another rank of the group lacks this call"
    ]


def test_a_group_that_the_recording_names_but_whose_calls_do_not_overlap():
    # order and group fit, yet rank 1 leaves each call long before rank 0 comes: the clocks are not
    # to be trusted
    rng = random.Random(6)
    rows = [(0, n * MS, n * MS + 50 * US) for n in range(20)]
    rows += [(1, n * MS + 300 * US + rng.randrange(400 * US), n * MS + 900 * US) for n in range(20)]
    rows = [(r, s, min(e, s + 30 * US) if r else e) for r, s, e in rows]
    found = collectives(calls(rows, group="tp", world=2))
    assert found["evidence"].unique().to_list() == ["group"]
    assert found["call"].null_count() == 0
    assert found["wait_ns"].null_count() == found.height
    assert found["reason"].str.starts_with("only 0 % of these calls overlap on all ranks").all()


def test_why_there_is_no_wait():
    def why(found):
        return found["reason"].unique().to_list()

    rows = random_group([0, 1], 7)
    assert why(collectives(calls(rows, group="tp", world=4))) == [
        "the trace has 2 of the 4 ranks of the group"
    ]
    one = [row for row in rows if row[0] == 0]
    assert why(collectives(calls(one, world=8))) == ["the trace has 1 of the 8 ranks of the group"]
    assert why(collectives(calls(one, meta={"world_size": 1}))) == [None]
    assert why(collectives(calls(one)))[0] is not None
