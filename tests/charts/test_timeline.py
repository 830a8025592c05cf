import re

import polars as pl
import pytest

from llmprof import charts
from tests.charts import frames, specs

WINDOW = (26_500_000, 27_300_000)


def event(start, dur, stage="attention", **more):
    row = {
        "rank": 0,
        "stream": 7,
        "start_ns": start,
        "dur_ns": dur,
        "name": "k",
        "step": 0,
        "phase": "decode",
    }
    return {**row, "layer": 0, "stage": stage, "category": "other", **more}


def test_a_bar_is_an_event_with_its_figures():
    frame = frames.attributed()
    bars = specs.rows(charts.timeline(frame, window=WINDOW), "rect", "name")
    end = pl.col("start_ns") + pl.col("dur_ns")
    inside = frame.filter(pl.col("start_ns") < WINDOW[1], end > WINDOW[0])
    assert len(bars) == inside.height
    assert sorted(row["dur_ns"] for row in bars) == inside["dur_ns"].sort().to_list()
    exact = {(row["rank"], round(row["start"] * 1_000) + WINDOW[0], row["stage"]) for row in bars}
    for rank, start, stage in inside.select(
        "rank", pl.col("start_ns").clip(WINDOW[0]), "stage"
    ).iter_rows():
        assert (rank, start, stage) in exact


def test_bars_of_odd_events():
    chart = charts.timeline(pl.DataFrame([event(0, 10), event(500_000, 500_000)]))
    pixel = 1 / chart.to_dict()["width"]
    bars = specs.rows(chart, "rect", "name")
    assert min(row["end"] - row["start"] for row in bars) == pytest.approx(pixel)
    name = "void " + "x" * 5_000 + "_end"
    (row,) = specs.rows(charts.timeline(pl.DataFrame([event(0, 1_000, name=name)])), "rect", "name")
    assert len(row["name"]) == 120
    assert re.fullmatch(r"void x+…x+_end", row["name"])
    bare = {"stream": None, "step": None, "phase": None, "layer": None, "stage": None}
    frame = pl.DataFrame([event(0, 1_000), event(2_000, 1_000, **bare)], infer_schema_length=None)
    chart = charts.timeline(frame)
    assert {row["stage"] for row in specs.rows(chart, "rect", "name")} == {"attention", "other"}
    assert {"host", "stream 7"} <= set(specs.texts(chart))
    frame = frame.filter(pl.col("step").is_null())
    assert specs.rows(charts.timeline(frame), "rect", "name")


def test_slices_hold_all_the_time():
    frame = frames.attributed()
    chart = charts.timeline(frame, max_bars=100)
    slices = specs.rows(chart, "rect", "busy_ns")
    by_stage = (
        pl.DataFrame(slices)
        .group_by("rank", "stage")
        .agg(pl.col("busy_ns").sum())
        .sort("rank", "stage")
    )
    expected = (
        frame.group_by("rank", "stage").agg(busy_ns=pl.col("dur_ns").sum()).sort("rank", "stage")
    )
    assert by_stage.cast({"rank": pl.Int32}).equals(expected)
    assert all(0 < row["share"] <= 1 for row in slices)
    assert "10,912 of 10,912 events, merged into slices" in " ".join(specs.texts(chart))


def test_a_slice_is_as_high_as_the_lane_was_busy():
    # one event of 1 us every 4 us, so thin that bars would look like a busy device
    frame = pl.DataFrame([event(i * 4_000, 1_000) for i in range(2_500)])
    chart = charts.timeline(frame, max_bars=100_000)
    slices = specs.rows(chart, "rect", "busy_ns")
    shares = [row["share"] for row in slices]
    assert sum(shares) / len(shares) == pytest.approx(0.25, abs=0.02)
    (lane,) = {
        (row["top"], row["bottom"])
        for row in specs.rows(chart, "rect", "top")
        if set(row) == {"top", "bottom"}
    }
    height = lane[1] - lane[0]
    assert all(
        row["bottom"] - row["top"] == pytest.approx(height * row["share"], abs=0.02)
        for row in slices
    )
    assert all(row["bottom"] == lane[1] for row in slices)
    frame = pl.DataFrame(
        [event(0, 1_000_000), event(0, 1_000_000, "norm"), event(0, 1_000_000, "rope")]
    )
    slices = specs.rows(charts.timeline(frame, max_bars=1), "rect", "busy_ns")
    heights = pl.DataFrame(slices).group_by("start").agg(pl.col("share").sum())["share"]
    assert heights.max() == pytest.approx(1, abs=1e-3)


def test_only_crowded_lanes_are_merged():
    crowded = [event(i * 4_000, 1_000, rank=1) for i in range(2_500)]
    frame = pl.DataFrame([event(0, 6_000_000), event(6_500_000, 3_500_000), *crowded])
    chart = charts.timeline(frame)
    assert {row["rank"] for row in specs.rows(chart, "rect", "name")} == {0}
    assert {row["rank"] for row in specs.rows(chart, "rect", "busy_ns")} == {1}
    said = " ".join(specs.texts(chart))
    assert "2 of 2,502 events, a bar each" in said
    assert "2,500 more events, on 1 of 2 lanes, merged" in said
