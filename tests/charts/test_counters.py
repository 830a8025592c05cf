import polars as pl
import pytest

from llmprof import charts
from llmprof.charts.subjects.counters import condense, counter_scale, lines_of
from tests.charts import frames, specs


def rows(name, unit, *values, device=None):
    times = [1_000_000_000 * i for i in range(len(values))]
    types = {
        "time_ns": pl.Int64,
        "name": pl.String,
        "unit": pl.String,
        "value": pl.Float64,
        "device": pl.Int32,
    }
    return pl.DataFrame(
        [(t, name, unit, v, device) for t, v in zip(times, values, strict=True)],
        schema=types,
        orient="row",
    )


def test_every_counter_that_moves_has_a_panel_and_every_device_a_line():
    chart = charts.counters(frames.sampled())
    said = specs.texts(chart)
    for title in (
        "gpu.utilization (%)",
        "gpu.memory_used (GiB)",
        "gpu.power (W)",
        "gpu.throttle.sw_power_cap",
    ):
        assert title in said
    assert not any("gpu_idle" in text for text in said), "that a GPU is idle is seen elsewhere"
    drawn = specs.rows(chart, "line", "mean", "line")
    assert {row["line"] for row in drawn} == {"GPU 0", "GPU 1", "host"}
    used = [row["mean"] for row in drawn if row["line"] == "GPU 0" and row["time"] == 10]
    assert 100 in used, "of GiB"


@pytest.mark.parametrize(
    ("name", "unit", "value", "title", "shown"),
    [
        ("memory.used", "B", 3 * 2**30, "memory.used (GiB)", 3),
        ("memory.used", "B", 3 * 2**20, "memory.used (MiB)", 3),
        ("gpu.nvlink_sent", "B/s", 120e9, "gpu.nvlink_sent (GB/s)", 120),
        ("gpu.sm_clock", "Hz", 1980e6, "gpu.sm_clock (MHz)", 1980),
        ("disk.wait.sda", "ns", 2e6, "disk.wait.sda (ms)", 2),
        ("run.processes", "1", 4, "run.processes", 4),
        ("SMs Active [Throughput %]", None, 40, "SMs Active [Throughput %]", 40),
        ("gpu.temperature", "°C", 40, "gpu.temperature (°C)", 40),
    ],
)
def test_units_are_chosen_for_people(name, unit, value, title, shown):
    scale = counter_scale(rows(name, unit, 0, value))
    assert (scale.title, value / scale.size) == (title, shown)


def test_a_short_peak_stays_in_sight():
    values = [1.0] * 10_000
    values[5_000] = 99.0
    few = condense(lines_of(rows("gpu.power", "W", *values)), 200)
    assert few.height <= 200
    assert (few["low"].min(), few["high"].max()) == (1, 99)
    assert few["mean"].mean() == pytest.approx(1.0098, rel=1e-3)
