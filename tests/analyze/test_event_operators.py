"""Operators of events by id and by time, against hand-made traces and a plain search."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from llmprof.analyze import kernels
from llmprof.label.groups import last_with
from llmprof.label.nesting import innermost
from llmprof.trace import Trace
from tests.building import table_of

# Thread 1 of rank 0: outer [0,100) holds linear [10,30) which holds addmm [12,25); relu [40,50);
# outer has id 1.
OPS = table_of(
    "rank thread start_ns dur_ns name kind op_id shapes",
    [
        (0, 1, 0, 100, "outer", "op", 1, None),
        (0, 1, 10, 20, "linear", "op", 2, "[[4, 8]]"),
        (0, 1, 12, 13, "addmm", "op", 3, "[[4, 8], [8, 2]]"),
        (0, 1, 13, 1, "frame.py(1): run", "python", 8, None),
        (0, 1, 40, 10, "relu", "op", 4, None),
        (1, 2, 0, 10, "linear", "op", 2, "[[9, 9]]"),
    ],
)
RUNTIME = table_of(
    "rank thread start_ns dur_ns correlation",
    [
        (0, 1, 13, 2, 101),  # in addmm (and a Python frame, which is no operator)
        (0, 1, 26, 2, 102),  # in linear, after addmm
        (0, 1, 30, 2, 103),  # in outer: linear has just ended
        (0, 1, 41, 2, 104),
        (0, 3, 45, 2, 105),  # a thread without operators
        (0, 1, 200, 2, 106),  # after all of them
        (1, 2, 5, 2, 101),
    ],
).with_columns(name=pl.lit("cudaLaunchKernel"), api=pl.lit("runtime"))
KERNELS = table_of(
    "rank start_ns dur_ns name correlation op_id",
    [
        (0, 300, 10, "gemm", 101, 3),
        (0, 310, 20, "gemm", 101, 3),
        (0, 330, 10, "gemm", 102, None),
        (0, 340, 10, "fill_kernel", 103, None),
        (0, 350, 10, "relu_kernel", 104, 77),  # an id that no operator has
        (0, 360, 10, "gemm", 105, None),
        (0, 370, 10, "gemm", 106, None),
        (0, 380, 20, "gemm", None, None),
        (1, 300, 10, "gemm", 101, None),
    ],
)


def test_by_id_then_by_time_then_not_at_all():
    events = Trace({"kernels": KERNELS, "runtime": RUNTIME, "ops": OPS}).events
    assert events.select("rank", "start_ns", "name", "operator", "shapes").rows() == [
        (0, 300, "gemm", "addmm", "[[4, 8], [8, 2]]"),
        (0, 310, "gemm", "addmm", "[[4, 8], [8, 2]]"),
        (0, 330, "gemm", "linear", "[[4, 8]]"),
        (0, 340, "fill_kernel", "outer", None),
        (0, 350, "relu_kernel", "relu", None),
        (0, 360, "gemm", None, None),
        (0, 370, "gemm", None, None),
        (0, 380, "gemm", None, None),
        (1, 300, "gemm", "linear", "[[9, 9]]"),
    ]


def test_types_of_the_inputs_tell_calls_apart():
    ops = (
        OPS.filter(rank=0, kind="op")
        .head(2)
        .with_columns(shapes=pl.lit("[[2]]"), dtypes=pl.Series(['["float"]', '["half"]']))
    )
    run = KERNELS.head(2).with_columns(op_id=pl.Series([1, 2]))
    found = Trace({"kernels": run, "ops": ops}).events
    assert found.select("operator", "shapes", "dtypes").rows() == [
        ("outer", "[[2]]", '["float"]'),
        ("linear", "[[2]]", '["half"]'),
    ]


def test_without_operators_they_are_unknown():
    found = Trace({"kernels": KERNELS}).events
    assert found.select("operator", "shapes", "dtypes").null_count().row(0) == (9, 9, 9)
    assert kernels(Trace({"kernels": KERNELS}), by="operator")["operator"].null_count() == 3


def test_kernels_of_each_operator():
    found = kernels(Trace({"kernels": KERNELS, "runtime": RUNTIME, "ops": OPS}), by="operator")
    assert found.select("operator", "name", "count", "total_ns", "share").rows() == [
        ("addmm", "gemm", 2, 30, 1.0),
        ("linear", "gemm", 2, 20, 1.0),
        ("outer", "fill_kernel", 1, 10, 1.0),
        ("relu", "relu_kernel", 1, 10, 1.0),
        (None, "gemm", 3, 40, 1.0),
    ]


NUMBERED = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([None, -1, 0, 1, 2, 3, 1 << 40])), max_size=12
)


@given(NUMBERED, NUMBERED)
def test_the_last_with_a_number_equals_a_search(points, marks):
    """Ranks in any order, numbers that are null, negative or far apart."""
    schema = {"rank": pl.Int32, "id": pl.Int64}
    got = last_with(
        *(pl.DataFrame(rows, schema=schema, orient="row") for rows in (points, marks)), "id"
    )
    places = {mark: n for n, mark in enumerate(marks) if mark[1] is not None}
    assert got.to_list() == [places.get(point) for point in points]


@st.composite
def nested(draw):
    """Properly nested spans (thread, start, duration), parents before their children."""
    spans = []

    def fill(thread, low, high, depth):
        at = low
        while at <= high and len(spans) < 30 and draw(st.booleans()):
            start = draw(st.integers(at, high))
            end = draw(st.integers(start, high))
            spans.append((thread, start, end - start))
            if depth < 4:
                fill(thread, start, end, depth + 1)
            at = end

    for thread in (1, 2):
        fill(thread, 0, 30, 0)
    return spans


@given(
    nested(), st.lists(st.tuples(st.integers(1, 3), st.integers(-2, 33)), max_size=20), st.randoms()
)
def test_innermost_equals_a_search_for_the_shortest(spans, points, random):
    schema = {"thread": pl.Int64(), "start_ns": pl.Int64(), "dur_ns": pl.Int64()}
    frame = pl.DataFrame(spans, schema=schema, orient="row")
    got = innermost(
        pl.DataFrame(points, schema={"thread": pl.Int64(), "at": pl.Int64()}, orient="row"),
        frame,
        ["thread"],
        at="at",
        name="span",
    )
    assert got.select("thread", "at").rows() == points
    for (thread, at), found in zip(points, got["span"], strict=True):
        covering = [d for t, s, d in spans if t == thread and s <= at < s + d]
        assert (None if found is None else spans[found][2]) == (min(covering) if covering else None)
