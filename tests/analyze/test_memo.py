"""Results that are kept: the same for every way to call, bounded, and never changed by a caller."""

import pickle

import polars as pl
import pytest

from llmprof import analyze
from llmprof.trace import Trace
from llmprof.trace.kept import KeptResults, per_trace
from tests.analyze.builders import DENSE, kernels


def trace_of():
    return Trace(
        {"kernels": kernels(DENSE)},
        {"device": "NVIDIA H200", "ranks": [{"rank": 0}]},
        {"events": 3},
    )


def spoil(frame):
    """Change a frame in every way that works in place."""
    frame[0, "dur_ns"] = 99
    frame["start_ns"][0] = 77
    frame.drop_in_place("name")
    frame.extend(frame.clone())
    frame.insert_column(0, pl.lit(1).alias("new"))
    frame.columns = [f"x_{name}" for name in frame.columns]


@pytest.mark.parametrize("name", ["events", "kernels", "steps", "layers", "overlap", "idle"])
def test_changing_an_answer_changes_no_later_one(name):
    trace, analysis = trace_of(), getattr(analyze, name)
    before = analysis(trace)
    expected = before.clone().rechunk()
    taken = analysis(trace)
    for column in taken.columns:
        taken.drop_in_place(column)
    assert analysis(trace).equals(expected)
    assert analysis(trace).columns == expected.columns
    assert before.equals(expected)


def test_changing_tables_changes_nothing_else():
    given = kernels(DENSE)
    trace = Trace({"kernels": given})
    before = trace.kernels.rechunk()
    summary = analyze.kernels(trace)
    spoil(given)
    for frame in (
        trace.kernels,
        trace.table("kernels"),
        trace.tables["kernels"],
        trace.events,
    ):
        spoil(frame)
    trace.tables.clear()
    assert trace.kernels.equals(before)
    assert analyze.kernels(trace).equals(summary)
    assert analyze.kernels(Trace(trace.tables)).equals(summary)


calls = []


@per_trace
def counted(trace, by=(), *, min_ns=0):
    calls.append((by, min_ns))
    return pl.DataFrame({"n": [len(calls)]})


def test_equal_arguments_are_one_call_however_they_are_given():
    trace = trace_of()
    calls.clear()
    for _ in range(2):
        counted(trace)
        counted(trace=trace)
        counted(trace, ())
        counted(trace, by=[])
        counted(trace, min_ns=0, by=())
    assert calls == [((), 0)]
    counted(trace, ["a"], min_ns=1)
    counted(by=("a",), min_ns=1, trace=trace)
    assert calls == [((), 0), (["a"], 1)]
    counted(trace, {"a": [1]})
    counted(trace, {"a": (1,)})
    assert len(calls) == 3
    counted(trace_of())
    assert len(calls) == 4


def test_what_was_not_used_for_longest_is_dropped():
    frame = pl.DataFrame({"x": range(1000)})  # 8,000 bytes
    kept = KeptResults(20_000)
    kept.put("a", frame)
    kept.put("b", frame)
    assert kept.get("a") is frame
    kept.put("c", frame)
    assert (kept.get("a") is frame, kept.get("b"), kept.get("c") is frame) == (True, None, True)
    assert (len(kept), kept.bytes) == (2, 16_000)
    kept.put("c", frame.head(10))
    assert kept.bytes == 8_080
    kept.put("large", pl.DataFrame({"x": range(3000)}))
    assert kept.get("large") is None
    assert len(kept) == 2


def test_each_frame_of_a_result_counts():
    kept, frame = KeptResults(20_000), pl.DataFrame({"x": range(1000)})
    kept.put("pair", (frame, frame, "words"))
    assert kept.bytes == 2 * frame.estimated_size()


def test_a_trace_with_results_can_be_pickled():
    trace = trace_of()
    found = analyze.overlap(trace)
    assert analyze.overlap(pickle.loads(pickle.dumps(trace))).equals(found)
