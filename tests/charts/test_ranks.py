import numpy as np
import polars as pl
import pytest

from llmprof import analyze, charts
from llmprof.report import figures
from tests.analyze.test_ranks import RANKS, STEPS, on_hosts, run_of
from tests.charts import specs


@pytest.fixture(scope="module")
def sixteen():
    return run_of(**on_hosts())


def test_a_cell_is_a_step_of_a_rank(sixteen):
    rows = analyze.ranks(sixteen, by="step")
    chart = charts.ranks(rows, value="wait_ns", groups=analyze.ranks(sixteen, by="place"))
    cells = specs.rows(chart, "rect", "row", "time")
    assert len(cells) == RANKS * STEPS
    assert sum(cell["time"] for cell in cells) * 1_000 == pytest.approx(rows["wait_ns"].sum())  # us
    assert {cell["node"] for cell in cells} == {"node0", "node1", "node2", "node3"}
    assert [row["text"] for row in specs.rows(chart, "text", "text", "row")] == [
        "node0",
        "node1",
        "node2",
        "node3",
    ]
    assert "most on rank 0 (3.10 us), least on rank 8 (100 ns; medians)" in " ".join(
        specs.texts(chart)
    )


def test_one_late_rank_of_a_thousand_stays_visible():
    rank = np.repeat(np.arange(1024), 300)
    rows = pl.DataFrame(
        {"rank": rank, "step": np.tile(np.arange(300), 1024), "phase": "decode"}
    ).with_columns(dur_ns=pl.when(pl.col("rank") == 999).then(30_000_000).otherwise(10_000_000))
    chart = charts.ranks(rows)
    cells = pl.DataFrame(specs.rows(chart, "rect", "row", "time"))
    assert cells.height == 128 * 75
    assert cells.filter(pl.col("time") > 20)["ranks"].unique().to_list() == ["992 to 999"]
    text = " ".join(specs.texts(chart))
    assert "A row is 8 consecutive ranks" in text
    assert "most on rank 999 (30.0 ms)" in text


def test_unknown_waiting_is_grey(sixteen):
    rows = analyze.ranks(sixteen, by="step")
    hole = rows.with_columns(wait_ns=pl.when(pl.col("rank") != 3).then("wait_ns"))
    assert any(
        "not known (10 of 160 cells)" in text
        for text in specs.texts(charts.ranks(hole, value="wait_ns"))
    )


def test_a_report_draws_many_ranks_and_says_why_few_are_not_drawn(sixteen, sample_trace):
    trace = sample_trace("torch_tp4_eager_nccl")
    for drawing in (figures.RANK_STEPS, figures.RANK_WAITS, figures.LATE_GROUPS):
        assert figures.make_figure(sixteen, drawing).spec
        absent = figures.make_figure(trace, drawing).absent
        assert absent.found.endswith("a map of ranks is drawn from 8")
    absent = figures.make_figure(run_of(), figures.LATE_GROUPS).absent
    assert absent.found == "the recording does not say which ranks share a node or a parallel group"


def test_a_cell_is_the_use_of_a_rank_in_a_bin_and_the_least_busy_of_many_ranks_shows():
    rank = np.repeat(np.arange(200), 10)
    bins = pl.DataFrame(
        {"rank": rank, "device": 0, "start_ns": np.tile(np.arange(10), 200) * 1000, "dur_ns": 1000}
    )
    rows = bins.with_columns(share=pl.when(pl.col("rank") == 151).then(0.25).otherwise(0.75))
    cells = pl.DataFrame(specs.rows(charts.utilization(rows), "rect", "row", "share"))
    assert cells.height == 100 * 10
    assert cells.filter(pl.col("share") == 0.25)["row"].unique().to_list() == [150]
    few = pl.DataFrame(
        specs.rows(charts.utilization(rows.filter(pl.col("rank") < 2)), "rect", "row", "share")
    )
    assert few.filter(row=1)["begin"].to_list() == [float(i) for i in range(10)]  # us
