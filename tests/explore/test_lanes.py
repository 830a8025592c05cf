"""Level of detail: bins and positions of a lane, by hand and against counting each nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmprof.explore.timeline.lanes import VISIBLE, Lane, levels


def lane(spans, codes=None):
    start, end = (np.array([span[side] for span in spans], dtype=np.int64) for side in (0, 1))
    count = len(spans)
    code = np.array(codes if codes is not None else [0] * count, dtype=np.uint8)
    number = np.arange(count, dtype=np.uint32)
    return Lane(start, end, {"category": code}, number, number)


def test_what_is_much_shorter_than_a_column_stays_visible():
    busy, main = lane([(1_000, 1_001)], [2]).bins(0, 1_000_000, 10, "category")
    assert busy.tolist() == [VISIBLE, *[0] * 9]
    assert main[0] == 2


@given(
    gaps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=30),
    first=st.integers(-20, 60),
    columns=st.integers(1, 7),
    width=st.integers(1, 13),
)
def test_bins_agree_with_counting(gaps, first, columns, width):
    spans, codes, at = [], [], 0
    for gap, long, code in gaps:
        spans.append((at + gap, at + gap + long))
        codes.append(code)
        at += gap + long
    busy, main = lane(spans, codes).bins(first, first + columns * width, columns, "category")
    for column in range(columns):
        left = first + column * width
        time = np.zeros(4)
        begun = False
        for (start, end), code in zip(spans, codes, strict=True):
            time[code] += max(0, min(end, left + width) - max(start, left))
            begun = begun or left <= start < left + width
        share = int(np.ceil(time.sum() / width * 255 - 1e-9))
        assert share <= busy[column] <= max(share + 1, VISIBLE if begun else 0)
        if time.any():
            assert time[main[column]] == time.max()


@pytest.mark.parametrize(
    ("spans", "slack", "depths"),
    [
        ([(0, 10), (1, 9), (2, 3), (4, 5), (10, 12)], 0, [0, 1, 2, 2, 0]),
        ([(0, 10), (9, 20)], 0, [0, 1]),
        ([(0, 10), (9, 20)], 1, [0, 0]),
        ([(0, 10), (0, 5), (5, 10)], 0, [0, 1, 1]),
        ([(0, 0), (0, 0)], 0, [0, 0]),
    ],
    ids=["nested", "overlap", "overlap within the slack", "begin together", "no length"],
)
def test_levels_are_the_depth_of_nesting(spans, slack, depths):
    start, end = (np.array([span[side] for span in spans], dtype=np.int64) for side in (0, 1))
    assert levels(start, end, slack=slack).tolist() == depths
