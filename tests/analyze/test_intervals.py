"""Interval arithmetic against a reference that counts nanoseconds one by one."""

from collections import defaultdict

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from llmprof.errors import AnalysisError
from llmprof.label import groups, intervals

SCHEMA = {"rank": pl.Int32(), "step": pl.Int32(), "start_ns": pl.Int64(), "dur_ns": pl.Int64()}
BY = ("rank", "step")

rows = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(st.none(), st.integers(0, 1)),
        st.integers(-20, 40),
        st.integers(0, 12),
    ),
    max_size=25,
)


def frame_of(data):
    return pl.DataFrame(data, schema=SCHEMA, orient="row")


def one(*spans):
    """Intervals of one group from (start, end) pairs."""
    return pl.DataFrame(
        {"start_ns": [a for a, _ in spans], "dur_ns": [b - a for a, b in spans]},
        schema_overrides={"start_ns": pl.Int64, "dur_ns": pl.Int64},
    )


def ticks(data):
    """Covered nanoseconds of each group; a group of empty intervals is an empty set."""
    out = defaultdict(set)
    for rank, step, start, dur in data:
        out[rank, step].update(range(start, start + dur))
    return out


def by_group(frame, *names):
    return {(r["rank"], r["step"]): tuple(r[n] for n in names) for r in frame.iter_rows(named=True)}


def test_unions_by_hand():
    # [0,10) holds [2,4); [10,12) touches it; [20,25) and [23,30) overlap; 15 is empty
    frame = one((0, 10), (2, 4), (10, 12), (15, 15), (20, 25), (23, 30))
    assert intervals.union_length(frame).item() == 12 + 10
    assert intervals.merge(frame).rows() == [(0, 12), (20, 10)]
    assert intervals.gaps(frame).rows() == [(12, 8)]
    frame = frame_of([(0, None, 0, 5), (0, 1, 3, 5), (0, None, 4, 2)])
    assert intervals.union_length(frame, BY).rows() == [(0, 1, 5), (0, None, 6)]
    windows = frame_of([(0, None, 0, 100), (0, 1, 0, 4), (1, 0, 0, 9)])
    assert intervals.length_within(windows, frame, BY)["busy_ns"].to_list() == [6, 1, 0]
    frame = frame_of([(0, 0, 0, 5), (0, 0, 10, 5)]).with_columns(
        start_ns=pl.Series([0, None], dtype=pl.Int64)
    )
    assert intervals.union_length(frame, BY).rows() == [(0, 0, 5)]
    assert intervals.clip_intervals(frame, frame_of([(0, 0, 2, 100)]), BY).select(
        "start_ns", "dur_ns"
    ).rows() == [(2, 3)]
    assert intervals.union_length(one()).to_dicts() == [{"busy_ns": 0}]
    assert intervals.union_length(frame_of([]), BY).height == 0
    assert intervals.merge(one()).height == 0
    assert intervals.gaps(frame_of([]), BY).columns == [*BY, "start_ns", "dur_ns"]
    assert intervals.length_within(one((0, 9)), one())["busy_ns"].to_list() == [0]
    assert intervals.clip_intervals(one((0, 9)), one()).columns == ["start_ns", "dur_ns", "window"]
    assert intervals.clip_intervals(one(), one((0, 9))).height == 0
    with pytest.raises(AnalysisError, match="overlap"):
        intervals.clip_intervals(one((0, 1)), one((0, 5), (4, 6)))
    with pytest.raises(AnalysisError, match=r"has no columns rank"):
        intervals.union_length(one((0, 1)), ["rank"])


@given(rows)
def test_lengths_equal_the_count_of_nanoseconds(data):
    frame, expected = frame_of(data), ticks(data)
    got = by_group(intervals.union_length(frame, BY), "busy_ns")
    assert got == {group: (len(covered),) for group, covered in expected.items()}
    assert intervals.union_length(frame, ["rank"])["busy_ns"].sum() == sum(
        len(set().union(*(c for (r, _), c in expected.items() if r == rank))) for rank in (0, 1)
    )


@given(rows, rows)
def test_clip_equals_cutting_by_hand(data, raw):
    windows = intervals.merge(frame_of(raw), BY).rows()
    expected = []
    for rank, step, start, dur in data:
        for n, (r, s, w_start, w_dur) in enumerate(windows):
            low, high = max(start, w_start), min(start + dur, w_start + w_dur)
            if (r, s) == (rank, step) and low < high:
                expected.append((rank, step, low, high - low, n))
    got = intervals.clip_intervals(frame_of(data), frame_of(windows), BY)
    assert sorted(got.rows(), key=str) == sorted(expected, key=str)


@given(rows)
def test_gaps_have_what_ends_them_and_what_ended_before(data):
    frame = frame_of(data)
    between, ends = intervals.gaps_between(frame, BY)
    assert_frame_equal(between.drop("next"), intervals.gaps(frame, BY))
    whole = [
        (row, r, s, begin, begin + dur) for row, (r, s, begin, dur) in enumerate(data) if dur > 0
    ]
    for gap, (rank, step, start, length, following) in enumerate(between.rows()):
        group = [(row, begin, end) for row, r, s, begin, end in whole if (r, s) == (rank, step)]
        assert following == min(row for row, begin, _ in group if begin == start + length)
        ended = sorted(row for row, _, end in group if end == start)
        assert ends.filter(pl.col("gap") == gap)["row"].sort().to_list() == ended != []


@given(rows, rows)
def test_last_before_equals_looking_at_every_mark(data, raw):
    points, marks = frame_of(data), frame_of(raw)
    expected = []
    for rank, step, at, _ in data:
        before = [
            (time, row)
            for row, (r, s, time, _) in enumerate(raw)
            if (r, s) == (rank, step) and time <= at
        ]
        expected.append(
            max(before)[1] if before and step is not None else None
        )  # null is in no group
    assert groups.last_before(points, marks, BY, at="start_ns").to_list() == expected
