"""Waterfall of a step to its targets: the bars add up, and what remains is all of the rest."""

import polars as pl
import pytest

from llmprof import charts
from llmprof.errors import LlmprofError
from tests.charts import frames, specs


def test_bars_go_from_the_step_to_its_targets_and_the_rest_adds_up():
    frame = frames.gained().filter(phase=frames.gained()["phase"][0])
    step = frame.filter(part="step").row(0, named=True)
    chart = charts.opportunities(frames.gained())
    bars = [row for row in specs.rows(chart, "bar", "from_ns") if "from_ns" in row]
    first, *parts, without, replayed = bars
    assert (first["to_ns"], without["to_ns"]) == (
        step["total_ns"],
        pytest.approx(step["total_ns"] - step["gap_ns"]),
    )
    assert replayed["to_ns"] == step["total_ns"] - step["gain_ns"]
    for above, below in zip(
        [first["to_ns"], *(part["to_ns"] for part in parts)], parts, strict=False
    ):
        assert below["from_ns"] == pytest.approx(above)
    gemm = frame.filter((pl.col("kind") == "gemm") & (pl.col("part") == "opportunity"))[
        "gap_ns"
    ].sum()
    [bar] = [part for part in parts if part["row"] == "gemm"]
    assert bar["from_ns"] - bar["to_ns"] == pytest.approx(gemm)
    remaining = {row["part"]: row["ns"] for row in specs.rows(chart, "bar", "part")}
    beside = frame.filter(part="beside other work")["total_ns"].sum()
    assert sum(remaining.values()) + beside == pytest.approx(step["total_ns"] - step["gap_ns"])
    assert remaining["idle"] == frame.filter(part="idle")["total_ns"][0]
    with pytest.raises(LlmprofError):
        charts.opportunities(frames.gained().with_columns(gap_ns=pl.lit(0.0)))
