import polars as pl
import pytest

from llmprof import analyze
from llmprof.analyze.kernels import events_within, kernels_within
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.trace import Trace
from tests.analyze.builders import ATTENTION, DENSE, GEMM, NORM, forward, kernels, labels, launches

RUN = Trace(
    {
        "kernels": pl.DataFrame(
            {
                "rank": [0, 0, 0, 0, 1],
                "stream": [7, 7, 9, 7, 7],
                "start_ns": [0, 20, 25, 90, 0],
                "dur_ns": [10, 30, 10, 10, 40],
                "name": ["rms_norm_kernel", "nvjet_x", "nvjet_x", "nvjet_x", "rms_norm_kernel"],
            },
            schema_overrides={"rank": pl.Int32},
        )
    }
)


def test_everything_is_the_summary_with_places():
    found = kernels_within(RUN)
    gemm, norm = found.rows(named=True)
    assert (gemm["name"], gemm["count"], gemm["total_ns"], gemm["min_ns"], gemm["max_ns"]) == (
        "nvjet_x",
        3,
        50,
        10,
        30,
    )
    assert gemm["share"] == 0.5
    # sorted 10, 10, 30: place 0.99 x 2 = 1.98, so 10 + 0.98 x 20
    assert gemm["p99_ns"] == pytest.approx(29.6)
    assert (gemm["streams"], gemm["ranks"], gemm["phases"], gemm["layers"]) == ([7, 9], [0], [], [])
    assert (norm["streams"], norm["ranks"]) == ([7], [0, 1])
    common = [
        "name",
        "category",
        "count",
        "total_ns",
        "share",
        "mean_ns",
        "median_ns",
        "min_ns",
        "max_ns",
    ]
    assert found.select(common).equals(analyze.kernels(RUN).select(common))


@pytest.mark.parametrize(
    ("window", "counts"),
    [
        (
            (5, 21),
            {"nvjet_x": 1, "rms_norm_kernel": 2},
        ),  # the first norm ends inside, the GEMM starts inside
        (
            (10, 20),
            {"rms_norm_kernel": 1},
        ),  # what ends at its start or starts at its end is outside
        ((60, 80), {}),
    ],
    ids=["touches", "borders", "between"],
)
def test_window(window, counts):
    found = kernels_within(RUN, window=window)
    assert dict(found.select("name", "count").iter_rows()) == counts
    assert events_within(RUN, window=window).height == sum(counts.values())


def test_layers_and_stages_of_a_model():
    run = kernels(forward(2), start=10)
    trace = Trace(
        {
            "kernels": run,
            "runtime": launches(run),
            "markers": labels([("execute_new_0_cached_4", 0, 5)]),
        },
        {"world_size": 1},
    )
    norm = kernels_within(trace, where={"name": NORM}).row(0, named=True)
    assert (norm["layers"], norm["stages"], norm["phases"]) == (
        [0, 1],
        ["final_norm", "norm"],
        ["decode"],
    )
    gemms = kernels_within(trace, by=("stage", "layer"), where={"name": GEMM, "layer": 1})
    assert sorted(gemms["stage"]) == ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]
    rows = events_within(trace, where={"layer": 0, "stage": "attention"})
    assert rows["name"].to_list() == [ATTENTION]
    assert rows.columns == trace.events.columns
    assert kernels_within(trace, where={"layer": 0})["count"].sum() == len(DENSE)


def test_what_cannot_be_answered_says_why():
    with pytest.raises(NotCapturedError):
        kernels_within(Trace({}))
    for options in (
        {"by": ("colour",)},
        {"where": {"colour": 1}},
        {"window": (5.0, 1.0)},
        {"bins": 5000},
    ):
        with pytest.raises(AnalysisError):
            kernels_within(RUN, **options)
    with pytest.raises(AnalysisError):
        events_within(RUN, where={"colour": 1})
