import polars as pl
import pytest

from llmprof import charts
from llmprof.charts.base.theme import MISSING
from tests.building import table_of
from tests.charts import frames, specs


@pytest.mark.parametrize("value", ["dur_ns", "busy_ns"])
def test_a_cell_is_a_layer_of_a_step(value):
    frame = frames.layered()
    cells = specs.rows(charts.layers(frame, value=value), "rect", "layer", value)
    assert len(cells) == frame.height
    assert sum(cell[value] for cell in cells) == frame[value].sum()
    assert {round(cell[value] / cell["time"]) for cell in cells} == {1_000}  # us


def test_a_null_and_a_missing_row_are_not_captured():
    frame = frames.layered().filter(
        ~((pl.col("step") == 3) & (pl.col("layer") == 5) & (pl.col("rank") == 0))
    )
    hole = (pl.col("step") == 4) & (pl.col("layer") == 6) & (pl.col("rank") == 1)
    frame = frame.with_columns(dur_ns=pl.when(~hole).then("dur_ns"))
    chart = charts.layers(frame)
    grey = [unit for unit in specs.marks(chart.to_dict()) if unit["mark"].get("color") == MISSING]
    assert [row for unit in grey for row in unit["rows"]] == [
        {"step": 3, "layer": 5},
        {"step": 4, "layer": 6},
    ]
    assert any("not captured (2 of 896 cells)" in text for text in specs.texts(chart))


def test_the_scale_is_logarithmic_where_a_phase_dwarfs_the_others():
    frame = frames.layered()
    plain = _scales(charts.layers(frame))
    slow = frame.with_columns(
        dur_ns=pl.when(pl.col("phase") == "prefill").then(pl.col("dur_ns") * 20).otherwise("dur_ns")
    )
    assert plain == {"linear"}
    assert _scales(charts.layers(slow)) == {"log"}
    first = (pl.col("step") == 4) & (pl.col("layer") == 0)
    chart = charts.layers(
        frame.with_columns(dur_ns=pl.when(first).then(90_000_000).otherwise("dur_ns"))
    )
    cap = frame["dur_ns"].quantile(0.95)
    domains = [
        u["encoding"]["color"]["scale"]["domain"]
        for u in specs.marks(chart.to_dict())
        if _shaded(u)
    ]
    assert domains
    assert all(domain[1] * 1_000 == pytest.approx(cap, rel=0.05) for domain in domains)
    assert any("and more (" in text and "up to 90.0 ms" in text for text in specs.texts(chart))


def test_many_steps_become_medians_and_the_chart_says_so():
    rows = [
        (0, step, "decode", layer, 1_000 * (step % 3) + 1_000)
        for step in range(300)
        for layer in range(4)
    ]
    frame = table_of("rank step phase layer dur_ns", rows)
    chart = charts.layers(frame)
    cells = specs.rows(chart, "rect", "layer", "dur_ns")
    assert len({cell["step"] for cell in cells}) == 100
    assert {cell["dur_ns"] for cell in cells} == {2_000}
    assert any("median of 3 consecutive steps" in text for text in specs.texts(chart))


def _scales(chart):
    units = specs.marks(chart.to_dict())
    return {unit["encoding"]["color"]["scale"]["type"] for unit in units if _shaded(unit)}


def _shaded(unit):
    return "scheme" in unit["encoding"].get("color", {}).get("scale", {})
