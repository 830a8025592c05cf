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


# colour 3 runs in [0, 10) and [30, 40), colour 5 in [10, 15)
THREE = lane([(0, 10), (10, 15), (30, 40)], [3, 5, 3])


def test_bins_say_how_busy_a_column_is_and_with_what():
    busy, main = THREE.bins(0, 40, 4, "category")
    assert busy.tolist() == [255, 128, 0, 255]
    assert main[[0, 1, 3]].tolist() == [3, 5, 3]


def test_a_span_fills_every_column_that_it_covers():
    busy, main = lane([(5, 35)], [7]).bins(0, 40, 4, "category")
    assert busy.tolist() == [128, 255, 255, 128]
    assert main.tolist() == [7, 7, 7, 7]


def test_what_is_much_shorter_than_a_column_stays_visible():
    busy, main = lane([(1_000, 1_001)], [2]).bins(0, 1_000_000, 10, "category")
    assert busy.tolist() == [VISIBLE, *[0] * 9]
    assert main[0] == 2


def test_spans_of_no_length_are_drawn_in_their_own_colour():
    busy, main = lane([(5, 5), (15, 15)], [1, 4]).bins(0, 20, 2, "category")
    assert busy.tolist() == [VISIBLE, VISIBLE]
    assert main.tolist() == [1, 4]


def test_spans_of_a_window_are_those_that_touch_it():
    assert THREE.within(0, 40) == (0, 3)
    assert THREE.within(12, 30) == (1, 2)
    assert THREE.within(10, 31) == (1, 3)
    assert THREE.within(15, 30) == (2, 2)
    assert THREE.within(100, 200) == (3, 3)


def test_long_spans_of_many_are_found():
    some = lane([(10 * i, 10 * i + (9 if i in (0, 63, 64, 150, 199) else 2)) for i in range(200)])
    assert some.longer(0, 200, 9).tolist() == [0, 63, 64, 150, 199]
    assert some.longer(1, 199, 8.5).tolist() == [63, 64, 150]
    assert some.longer(5, 8, 1).tolist() == [5, 6, 7]
    assert some.longer(0, 200, 9.5).tolist() == some.longer(7, 7, 0).tolist() == []


def test_the_span_at_a_time():
    assert [THREE.at(time) for time in (-1, 0, 9.9, 10, 15, 29, 30, 40)] == [None, 0, 0, 1, None, None, 2, None]


def test_colours_can_be_given_another_meaning_later():
    some = lane([(0, 10), (10, 20)], [3, 5])
    assert some.code("stage").tolist() == [3, 5]
    some.recolour("stage", np.array([8, 9], dtype=np.uint8))
    assert some.bins(0, 20, 2, "stage")[1].tolist() == [8, 9]
    assert some.bins(0, 20, 2, "category")[1].tolist() == [3, 5]
    assert some.present("stage") == [8, 9]


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


def test_bins_of_many_spans_are_as_exact_as_those_of_few():
    length = [5 if i % 3 else 7 for i in range(4_000)]
    spans = [(10 * i, 10 * i + length[i]) for i in range(4_000)]
    codes = [1 if i < 2_003 else 2 for i in range(4_000)]
    busy, main = lane(spans, codes).bins(3, 39_943, 11, "category")
    for column in range(11):
        left, right = (3 + 39_940 * (column + side) / 11 for side in (0, 1))
        parts = [max(0.0, min(end, right) - max(start, left)) for start, end in spans]
        assert busy[column] == int(np.ceil(255 * sum(parts) / (right - left) - 1e-9))
        of = [sum(part for part, code in zip(parts, codes, strict=True) if code == wanted) for wanted in (1, 2)]
        assert main[column] == 1 + int(np.argmax(of))


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
