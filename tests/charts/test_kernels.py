"""Chart of kernels: the longest first, the rest gathered, names short and apart."""

from __future__ import annotations

import polars as pl
import pytest

from llmprof import charts
from llmprof.errors import AnalysisError
from tests.charts import specs

NAMES = ["void ns::f<4>(int)", "void ns::f<8>(int)", "<script>alert(1)</script>", "tiny"]
FRAME = pl.DataFrame(
    {
        "name": NAMES,
        "category": ["linear", "linear", "other", "norm"],
        "count": [2, 1, 1, 4],
        "total_ns": [60, 20, 10, 10],
    }
).with_columns(share=pl.col("total_ns") / 100, mean_ns=pl.col("total_ns") / pl.col("count"))


def rows(chart) -> list[dict[str, object]]:
    return specs.rows(chart, "bar", "row")


def test_longest_first_and_the_rest_gathered() -> None:
    shown = rows(charts.kernels(FRAME, top=2, variants=True))
    assert [row["row"] for row in shown] == ["f", "f (2)", "2 others"]
    assert [row["label"] for row in shown] == ["60 %, 2 × 30 ns", "20 %, 1 × 20 ns", "20 %, 5 × 4 ns"]
    title = charts.kernels(FRAME, variants=True).to_dict()["title"]["text"]
    assert title == "f takes 60 % of the kernels' time"


def test_nothing_to_draw_says_so() -> None:
    with pytest.raises(AnalysisError, match="no rows"):
        charts.kernels(FRAME.clear())
    with pytest.raises(AnalysisError, match="category"):
        charts.kernels(FRAME.drop("category"))
