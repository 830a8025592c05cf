"""Groups of rows: hand-made rows with known answers, and random ones against a loop."""

from __future__ import annotations

import polars as pl
import pytest

from llmprof.analyze import groups


def test_values_of_groups_are_looked_up_once_a_run() -> None:
    of_rank = pl.DataFrame({"rank": [0, None], "size": [10, 20], "name": ["a", "b"]})
    frame = pl.DataFrame({"rank": [0, 0, None, 3, 0]})
    size, name = groups.of_groups(frame, of_rank, ["rank"])
    assert size.to_list() == [10, 10, 20, None, 10]
    assert name.to_list() == ["a", "a", "b", None, "a"]
    (all_in_one,) = groups.of_groups(frame, pl.DataFrame({"size": [4]}), [])
    assert all_in_one.to_list() == [4] * 5


@pytest.mark.parametrize(
    ("rows", "answer"),
    [
        ([(0, 5), (0, 5), (0, 6), (1, 2)], True),
        ([(0, 5), (1, 4), (0, 6)], False),
        ([(0, 6), (0, 5)], False),
        ([], True),
    ],
)
def test_rows_in_order(rows: list[tuple[int, int]], answer: bool) -> None:
    frame = pl.DataFrame(rows, schema={"rank": pl.Int32, "at": pl.Int64}, orient="row")
    assert groups.is_sorted(frame, ["rank", "at"]) is answer
