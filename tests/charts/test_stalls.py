"""Stalls: bars add up, small reasons are gathered, the longest kernels come first."""

import polars as pl
import pytest

from llmprof import charts
from llmprof.charts.base.draw import float_of
from llmprof.charts.base.theme import IDLE, REST
from llmprof.charts.subjects.kernels import READY, REASONS
from tests.charts import frames, specs

BARE = ["kernel_id", "reason", "share"]


def bars(frame):
    return pl.DataFrame(specs.rows(charts.stalls(frame), "bar", "part"))


def test_parts_are_means_weighted_by_duration():
    frame, drawn = frames.stalled(), bars(frames.stalled())
    for stage in frame["stage"].unique():
        mine = frame.filter(stage=stage)
        whole = mine.unique("kernel_id")["dur_ns"].sum()
        for reason in ("long_scoreboard", "barrier", "wait"):
            some = mine.filter(reason=reason)
            share = float_of((some["share"] * some["dur_ns"]).sum()) / float_of(whole)
            part = drawn.filter(row=stage, part=reason)["percent"]
            assert part.sum() == pytest.approx(100 * share)
    assert drawn.group_by("row").agg(pl.col("percent").sum())["percent"].to_list() == pytest.approx(
        [100] * 7
    )
    assert drawn.group_by("row").agg(pl.col("end").max())["end"].to_list() == pytest.approx(
        [100] * 7
    )


def test_bars_are_ordered_gathered_and_named():
    order = (
        frames.profiled()
        .group_by("stage")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", descending=True)
    )
    assert (
        bars(frames.stalled())["row"].unique(maintain_order=True).to_list()
        == order["stage"].to_list()
    )
    assert "316 us" in specs.texts(charts.stalls(frames.stalled()))
    chart = charts.stalls(frames.stalled())
    scale = next(
        u["encoding"]["color"]["scale"]
        for u in specs.marks(chart.to_dict())
        if "color" in u["encoding"]
    )
    colours = dict(zip(scale["domain"], scale["range"], strict=True))
    assert list(colours)[-1] == READY
    assert colours[READY] == IDLE
    gathered = [name for name in colours if name.startswith("other (")]
    assert len(gathered) == 1
    assert colours[gathered[0]] == REST
    assert colours["long_scoreboard"] == REASONS["long_scoreboard"]
    assert "drain" not in colours
    frame = frames.stalled().select(BARE)
    drawn = bars(frame)
    assert drawn["row"].unique(maintain_order=True).to_list() == [f"launch {i}" for i in range(14)]
    assert not any(text.endswith(" us") for text in specs.texts(charts.stalls(frame)))
    frame = pl.DataFrame(
        {
            "kernel_id": [0, 0, 1],
            "reason": ["wait", "drain", "wait"],
            "share": [0.6, float("nan"), None],
        }
    )
    assert bars(frame)["row"].unique().to_list() == ["launch 0"]
