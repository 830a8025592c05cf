import pytest

from llmprof.analyze.kernels import sums_of_kernels
from tests.building import table_of

EVENTS = table_of(
    "rank name category dur_ns",
    [
        (0, "gemm", "gemm", 10),
        (0, "gemm", "gemm", 20),
        (0, "gemm", "gemm", 60),
        (0, "rms", "norm", 10),
        (1, "rms", "norm", 30),
    ],
)


def test_all_ranks_together():
    got = sums_of_kernels(EVENTS)
    assert got.columns == [
        "name",
        "category",
        "count",
        "total_ns",
        "share",
        "mean_ns",
        "median_ns",
        "min_ns",
        "max_ns",
        "std_ns",
        "readable",
    ]
    gemm, rms = got.drop("readable").rows()
    # deviations from 30: 20, 10, 30; sample variance (400 + 100 + 900) / 2 = 700
    assert gemm[:-1] == ("gemm", "gemm", 3, 90, 90 / 130, 30.0, 20.0, 10, 60)
    assert gemm[-1] == pytest.approx(700**0.5)
    assert rms[:-1] == ("rms", "norm", 2, 40, 40 / 130, 20.0, 20.0, 10, 30)


def test_shares_are_of_the_group_and_one_run_has_no_deviation():
    got = sums_of_kernels(EVENTS, ["rank", "category"])
    assert got.select("rank", "name", "count", "share").rows() == [
        (0, "gemm", 3, 0.9),
        (0, "rms", 1, 0.1),
        (1, "rms", 1, 1.0),
    ]
    assert got["std_ns"].to_list()[1:] == [None, None]
