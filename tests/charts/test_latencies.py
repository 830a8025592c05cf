import polars as pl

from llmprof import charts
from tests.charts import frames, specs


def frame(*ttft_ms, phase="plain", **more):
    rows = pl.DataFrame({"ttft_ns": [int(value * 1e6) for value in ttft_ms]})
    columns = {"phase": phase, "repeat": 0, "tpot_ns": None, "e2e_ns": None} | more
    return rows.with_columns(pl.lit(value).alias(name) for name, value in columns.items())


def points(chart):
    return [(row["value"], row["share"]) for row in specs.rows(chart, "line", "share")]


def test_each_request_is_a_step():
    chart = charts.latencies(frame(30, 10, 20, 20))
    assert points(chart) == [(10, 0), (10, 25), (20, 50), (20, 75), (30, 100)]
    assert len(specs.rows(chart, "point", "share")) == 4
    assert chart.to_dict()["title"]["text"] == "Median without profiler: first token after 20.0 ms"
    chart = charts.latencies(frames.requested())
    drawn = specs.rows(chart, "point", "share")
    assert {row["part"] for row in drawn} == {"without profiler", "under the profiler"}
    assert max(row["value"] for row in drawn) < 1000, "ms"
    said = " ".join(specs.texts(chart))
    assert (
        "Without profiler: 24 requests in 3 repeats; under the profiler: 8 requests in one repeat."
        in said
    )
    for panel in (
        "Time to first token",
        "Time per output token",
        "Inter-token latency",
        "End to end",
    ):
        assert panel in said


def test_gaps_between_tokens_count_each():
    rows = pl.DataFrame(
        {
            "phase": ["plain"] * 2,
            "ttft_ns": [None] * 2,
            "tpot_ns": [None] * 2,
            "e2e_ns": [None] * 2,
            "itl_ns": [[1000, 3000], [2000]],
        }
    )
    chart = charts.latencies(rows)
    assert [value for value, _ in points(chart)] == [1, 1, 2, 3]
    assert chart.to_dict()["title"]["text"] == "Time from token to token"
