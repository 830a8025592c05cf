"""What the explorer of collectives shows and hands back, by hand and on a recording."""

import polars as pl
import pytest

from llmprof import explore
from llmprof.analyze import collectives
from llmprof.errors import LlmprofError, NotCapturedError
from llmprof.explore.collectives import explorer
from llmprof.explore.collectives.explorer import (
    banded,
    call_by_rank,
    calls_in_window,
    collective_choices,
    collective_view,
    neighbouring_calls,
    over_time,
    rank_histogram,
)
from llmprof.trace import Trace, schema
from tests.analyze.test_collectives import calls
from tests.explore.asking import ask

# two calls; rank 1 comes 10 us and 50 us after rank 0, and both leave together
ROWS = [(0, 0, 104_000), (1, 10_000, 104_000), (0, 200_000, 254_000), (1, 250_000, 254_000)]
COLUMNS = {"bytes": 8_000, "bytes_source": "metadata", "dtype": "BFloat16", "world": 2}


def two_ranks():
    return calls(ROWS, meta={"device": "NVIDIA H200", "world_size": 2}, **COLUMNS)


def test_a_picked_call_has_its_ranks_aligned():
    found = call_by_rank(two_ranks(), 1)
    assert found.select("rank", "aligned_ns", "wait_ns", "transfer_ns", "last_rank").rows() == [
        (0, 0, 50_000, 4_000, 1),
        (1, 50_000, 0, 4_000, 1),
    ]
    shown = explore.collectives(two_ranks())
    assert shown.selected.height == 4
    ask(shown, "pick", call=1)
    assert (shown.call, shown.window) == (1, [200_000, 254_000])
    assert shown.selected.select("rank", "late_ns").rows() == [(0, 0), (1, 50_000)]
    ask(shown, "pick", call=99)
    assert shown.call == 1
    rows = calls_in_window(two_ranks(), kind="all_reduce")
    assert [neighbouring_calls(rows, call) for call in (None, 0, 1, 99)] == [
        (0, 0),
        (None, 1),
        (0, None),
        (0, 0),
    ]
    assert neighbouring_calls(rows.clear(), None) == (None, None)


def test_bars_over_time(monkeypatch):
    found = over_time(calls_in_window(two_ranks(), kind="all_reduce"))
    assert found.select("first_ns", "kernels", "wait_ns", "transfer_ns", "call").rows() == [
        (0, 1, 94_000 - 84_000, 94_000, 0),
        (10_000, 1, 0, 94_000, 0),
        (200_000, 1, 50_000, 4_000, 1),
        (250_000, 1, 0, 4_000, 1),
    ]
    monkeypatch.setattr(explorer, "MAX_BARS", 2)
    found = over_time(calls_in_window(two_ranks(), kind="all_reduce"))
    assert found.select("first_ns", "last_ns", "kernels", "wait_ns", "call").rows() == [
        (0, 104_000, 2, 5_000, 0),
        (200_000, 254_000, 2, 25_000, 1),
    ]


def test_views_are_what_the_analyses_say(sample_trace):
    trace = sample_trace("torch_tp4_eager_nccl")
    rows = calls_in_window(trace, kind="all_reduce")
    found = collective_view(trace, rows)
    sizes, arrivals = (
        collectives(trace, by=by).filter(kind="all_reduce")
        for by in (("kind", "algorithm", "bytes"), ("kind", "rank"))
    )
    assert found["sizes"] == sizes.to_dicts()
    late = [name for name in arrivals.columns if name not in ("peak_gbps", "peak_share")]
    assert pl.DataFrame(found["arrivals"]).select(late).equals(arrivals.select(late))
    assert (found["count"], found["matched"], found["peak_gbps"]) == (2736, 2736, 450.0)
    assert len(found["calls"]) == explorer.MAX_LISTED
    one = collective_view(trace, rows, rank=3)
    assert (one["count"], one["arrivals"]) == (684, found["arrivals"])
    assert len(over_time(rows)) <= explorer.MAX_BARS


def test_kinds_phases_and_windows(sample_trace):
    trace = sample_trace("torch_tp4_eager_nccl")
    assert collective_choices(trace)["kinds"] == [("all_reduce", 2736), ("all_gather", 48)]
    decode = calls_in_window(trace, kind="all_gather", phase="decode")
    assert decode["phase"].unique().to_list() == ["decode"]
    first = decode["start_ns"].min()
    assert calls_in_window(trace, kind="all_gather", window=(first, first + 1)).height > 0
    shown = explore.collectives(trace)
    ask(shown, "choices")
    assert shown.kind == "all_reduce"
    gathers = explore.collectives(trace, kind="all_gather", phase="decode", rank=2)
    assert gathers.selected["rank"].unique().to_list() == [2]
    gathers.rank, gathers.only = None, {"rank": 3, "window": [0, decode["start_ns"].median()]}
    assert gathers.selected["rank"].unique().to_list() == [3]
    assert gathers.selected.height < decode.height
    assert gathers.picture().startswith(b"\x89PNG")
    shown = explore.collectives(two_ranks(), kind="gossip")
    ask(shown, "choices")
    assert shown.kind == "all_reduce"


def test_without_collectives_there_is_nothing_to_choose():
    shown = explore.collectives(Trace({"kernels": schema.empty("kernels")}))
    assert ask(shown, "choices")[0]["kinds"] == []
    assert shown.kind is None
    assert shown.selected.is_empty()
    assert "image/png" not in shown._repr_mimebundle_()[0]
    assert collectives(shown.trace).is_empty()
    with pytest.raises(NotCapturedError):
        ask(explore.collectives(Trace({})), "choices")


def test_many_ranks_share_rows_that_show_the_latest_of_them():
    rows = pl.DataFrame(
        {"kind": "all_reduce", "rank": range(1024)}, schema_overrides={"rank": pl.Int32}
    ).with_columns(aligned_ns=pl.when(pl.col("rank") == 99).then(900.0).otherwise(10.0))
    shared = banded(rows, "aligned_ns")
    assert shared.height == 32
    assert shared.select("label", "rank", "aligned_ns").row(3) == ("ranks 96 to 127", 99, 900.0)
    assert shared.row(0, named=True)["rank"] == 0
    few = rows.head(32)
    assert banded(few, "aligned_ns").equals(few)


def forty_ranks():
    """Three calls of forty ranks: odd ones come 10 us late, rank 39 500 us; in the second call rank
    4 300 us.

    All leave 504 us after the first rank has arrived.
    """
    rows = [
        (
            rank,
            n * 1_000_000
            + (500_000 if rank == 39 else 300_000 if (n, rank) == (1, 4) else rank % 2 * 10_000),
            n * 1_000_000 + 504_000,
        )
        for n in range(3)
        for rank in range(40)
    ]
    return calls(rows, meta={"device": "NVIDIA H200", "world_size": 40}, **COLUMNS | {"world": 40})


def by_bin(bins):
    return [(b["low_ns"], b["high_ns"], b["words"], b["last"]) for b in bins if b["ranks"]]


def test_a_histogram_of_ranks_by_hand():
    rows = calls_in_window(forty_ranks(), kind="all_reduce")
    # 500 us over 39 bins are 12.8 us: the next round width is 20 us
    late, unknown = rank_histogram(rows, "late")
    assert (len(late), unknown) == (26, 0)
    assert by_bin(late) == [(0, 20_000, "0 to 38", 0), (500_000, 520_000, "39", 3)]
    wait, _ = rank_histogram(rows, "wait")
    odd, even = [*range(1, 39, 2)], [*range(0, 40, 2)]
    assert [(b["low_ns"], b["ranks"]) for b in wait if b["ranks"]] == [
        (0, [39]),
        (480_000, odd),
        (500_000, even),
    ]
    transfer, _ = rank_histogram(rows, "transfer")
    assert [(b["low_ns"], b["high_ns"], len(b["ranks"])) for b in transfer] == [(4_000, 4_001, 40)]
    # in the second call rank 4 is late, which its median does not show
    one, _ = rank_histogram(rows.filter(pl.col("call") == 1), "late")
    assert by_bin(one)[1:] == [(300_000, 320_000, "4", 0), (500_000, 520_000, "39", 1)]
    # without rank 39: 10 us over 39 bins are 256 ns, and the next round width is 500 ns
    near, _ = rank_histogram(rows, "late", range(39))
    assert [(b["low_ns"], b["ranks"]) for b in near if b["ranks"]] == [(0, even), (10_000, odd)]
    assert rank_histogram(rows.with_columns(late_ns=pl.lit(None, dtype=pl.Int64)), "late") == (
        [],
        40,
    )


def test_picked_ranks_are_a_frame_and_open_in_a_timeline():
    shown = explore.collectives(forty_ranks(), kind="all_reduce")
    assert (
        ask(shown, "view", kind="all_reduce", phase=None, rank=None, window=None)[0]["arrivals"]
        == []
    )
    asked = {"kind": "all_reduce", "phase": None, "window": None, "ranks": None}
    answer, _ = ask(shown, "spread", measure="late", call=None, **asked)
    assert (
        answer["words"]
        == "39 of 40 ranks lie between 0 ns and 20.0 us; the highest is above 500 us: rank 39."
    )
    second, _ = ask(shown, "spread", measure="late", call=1, **asked)
    assert second["bins"][15]["ranks"] == [4]
    with pytest.raises(LlmprofError, match="no rank is picked"):
        shown.timeline()
    shown.picked = [4, 39]
    assert shown.selected.group_by("rank").len().sort("rank").rows() == [(4, 3), (39, 3)]
    shown.call = 1
    assert shown.selected.select("rank", "late_ns").rows() == [(4, 300_000), (39, 500_000)]
    assert shown.timeline().trace.ranks == [4, 39]
    rows = ask(shown, "call", call=1, kind="all_reduce", phase=None, ranks=[4, 39])[0]["rows"]
    assert [row["rank"] for row in rows] == [4, 39]
    shared = ask(shown, "call", call=1, kind="all_reduce", phase=None, ranks=[])[0]["rows"]
    assert (shared[0]["label"], shared[0]["rank"]) == ("ranks 0 to 1", 1)
