"""Charts of runs and sweeps: what their titles and labels say."""

import polars as pl
import pytest

from llmprof import charts
from llmprof.charts.base import theme
from tests.building import table_of
from tests.charts import frames, specs


def title(chart):
    text = chart.to_dict()["title"]["text"]
    return text if isinstance(text, str) else " ".join(text)


class TestKernels:
    def test_variants_of_a_function_are_one_bar_and_the_rest_is_gathered(self):
        rows = [
            ("void ns::gemm<4>(int)", "gemm", 60, 2),
            ("void ns::gemm<8>(int)", "gemm", 20, 1),
            (
                "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<int> >>",
                "attention",
                15,
                1,
            ),
            ("a", "other", 4, 1),
            ("b", "other", 1, 7),
        ]
        frame = table_of("name category total_ns count", rows)
        chart = charts.kernels(frame, top=2)
        assert title(chart) == "gemm takes 80 % of the kernels' time"
        bars = specs.rows(chart, "bar", "row")
        assert [(bar["row"], bar["ns"], bar["count"]) for bar in bars] == [
            ("gemm", 80, 3),
            ("FlashAttention-3", 15, 1),
            ("2 others", 5, 8),
        ]
        assert "80 %, 3 × 26.7 ns" in specs.texts(chart)
        each = specs.rows(charts.kernels(frame, top=2, variants=True), "bar", "row")
        assert [(bar["row"], bar["label"]) for bar in each] == [
            ("gemm", "60 %, 2 × 30 ns"),
            ("gemm (2)", "20 %, 1 × 20 ns"),
            ("3 others", "20 %, 9 × 2.22 ns"),
        ]


class TestSweeps:
    def test_throughput_names_the_best_point(self):
        chart = charts.sweep_throughput(frames.swept(), parameters=["batch_size", "max_tokens"])
        assert (
            title(chart) == "Most output tokens: 436 ± 44 a second at batch_size=8, max_tokens=16"
        )
        assert "without the profiler" in " ".join(specs.texts(chart))

    def test_bars_of_points_are_named_by_what_differs(self):
        points = [f"a_long_parameter=16, another_one=32, last={n}" for n in (1, 2)]
        rows = [(n, point, "decode", "idle", 5, 1, 1) for n, point in enumerate(points)]
        frame = table_of("point label phase part ns steps ranks", rows)
        bars = specs.rows(charts.sweep_time(frame), "bar", "row")
        assert [bar["row"] for bar in bars] == ["last=1", "last=2"]

    def test_latency_has_a_panel_for_what_is_known(self):
        frame = frames.swept().with_columns(ttft_ns=pl.lit(None, dtype=pl.Float64))
        chart = charts.sweep_latency(frame, parameters=["batch_size", "max_tokens"])
        assert len(chart.to_dict()["hconcat"]) == 2

    def test_speed_up_and_efficiency_against_the_smallest_of_each_line(self):
        frame = pl.DataFrame(
            {
                "label": ["a", "b", "c", "d"],
                "tensor_parallel_size": [1, 2, 1, 2],
                "batch_size": [1, 1, 8, 8],
                "output_tokens_per_s": [100.0, 150.0, 400.0, 800.0],
            }
        )
        chart = charts.sweep_scaling(frame, parameters=["batch_size", "tensor_parallel_size"])
        assert title(chart) == (
            "At tensor parallel size 2: 2.00 times the output tokens a second, an efficiency of 100 % "
            "(of one repeat: the noise is not known)"
        )
        rows = {row["label"]: row["speedup"] for row in specs.rows(chart, "circle", "speedup")}
        assert rows == {"a": 1.0, "b": 1.5, "c": 1.0, "d": 2.0}
        efficiency = {
            row["label"]: row["efficiency"] for row in specs.rows(chart, "circle", "efficiency")
        }
        assert efficiency["b"] == pytest.approx(75.0)


class TestDashboard:
    def test_a_figure_is_no_wider_than_its_tile(self):
        figures = [("Overhead", "within the noise"), *[("Peak memory", "55.0 GiB")] * 5]
        tiles = specs.rows(charts.dashboard(figures=figures), "text", "size")
        room = (theme.inner() + 10) / len(figures) - 30
        sizes = {row["text"]: row["size"] for row in tiles}
        assert all(theme.text_px(text, size) <= room + 1e-9 for text, size in sizes.items())
        assert sizes["within the noise"] < sizes["55.0 GiB"] == 21

    def test_panels_without_data_are_left_out(self):
        alone = charts.dashboard(figures=[("Batch", "90 ms")])
        assert len(alone.to_dict()["vconcat"]) == 1
        assert {"Batch", "90 ms"} <= set(specs.texts(alone))
        empty = frames.sampled().clear()
        assert (
            len(
                charts.dashboard(request_summary=frames.summarised(), counters=empty).to_dict()[
                    "vconcat"
                ]
            )
            == 1
        )


def test_latencies_stand_with_the_intervals_of_their_means():
    known = pl.DataFrame(
        {
            "point": [0, 1],
            "label": ["batch_size=1", "batch_size=2"],
            "batch_size": [1, 2],
            "state": ["finished"] * 2,
            "ttft_ns": [20e6, 40e6],
            "tpot_ns": [2e6, 3e6],
            "e2e_ns": [100e6, 200e6],
            "ttft_ns_ci95_low": [-5e6, 30e6],
            "ttft_ns_ci95_high": [45e6, 50e6],
        }
    )
    spec = charts.sweep_latency(known, parameters=["batch_size"]).to_dict()
    first, second, _ = spec["hconcat"]
    rows = spec["datasets"][first["layer"][0]["data"]["name"]]
    assert [(row["low"], row["value"], row["high"]) for row in rows] == [(0, 20, 45), (30, 40, 50)]
    assert [
        layer["encoding"]["y2"]["field"] for layer in first["layer"] if "y2" in layer["encoding"]
    ] == [
        "high",
        "tail",
    ]
    # no interval is drawn where none is known
    assert [
        layer["encoding"]["y2"]["field"] for layer in second["layer"] if "y2" in layer["encoding"]
    ] == ["tail"]
