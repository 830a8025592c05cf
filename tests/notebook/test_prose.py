"""Sentences of the notebooks: what they say of frames whose figures are known, and that they say nothing else."""

from __future__ import annotations

import polars as pl
import pytest

import llmprof
from llmprof.notebook import prose
from llmprof.trace import Trace
from tests.samples import sample


def calls(**columns: list[object]) -> pl.DataFrame:
    """Two all-reduces of two ranks: rank 1 comes 90 us and 80 us after rank 0; the transfer takes 10 us."""
    frame = {
        "rank": [0, 1, 0, 1],
        "call": [0, 0, 1, 1],
        "kind": ["all_reduce"] * 4,
        "dur_ns": [100_000, 10_000, 90_000, 10_000],
        "wait_ns": [90_000, 0, 80_000, 0],
        "transfer_ns": [10_000] * 4,
        "last_rank": [1, 1, 1, 1],
        "end_spread_ns": [500, 500, 700, 700],
    }
    return pl.DataFrame(frame | columns)


class TestWords:
    def test_paragraphs_and_nothing(self):
        assert prose.say("One.", ["Two.", "", "Three."], []).data == "One.\n\nTwo. Three."
        assert prose.say([], "") is None

    @pytest.mark.parametrize(
        ("number", "noun", "text"),
        [
            (1, "rank", "1 rank"),
            (0, "step", "0 steps"),
            (1500, "copy", "1,500 copies"),
            (18.72, "kernel", "18.7 kernels"),
            (2, "delay", "2 delays"),
        ],
    )
    def test_numbers_of_things(self, number, noun, text):
        assert prose.counted(number, noun) == text

    def test_why_not(self):
        def refuse() -> None:
            raise llmprof.errors.AnalysisError("no such thing")

        assert prose.or_why_not(refuse).data == "*Not to be had from this recording: no such thing.*"
        assert prose.or_why_not(lambda: 3) == 3


class TestLateRank:
    def test_who_is_late_and_what_the_others_wait(self):
        assert prose.late_rank(calls()) == {
            "late_rank": 1, "late_share": 1.0, "others_waiting": 170 / 190, "median_duration_ns": 95_000.0,
            "median_transfer_ns": 10_000.0, "end_spread_ns": 700.0, "calls_a_rank": 2,
        }  # fmt: skip

    def test_nobody(self):
        assert prose.late_rank(calls().clear()) is None


BEFORE = {
    "step_ms": 10.0,
    "kernels": 400.0,
    "launch_calls": 400.0,
    "compute_ms": 1.0,
    "communication_ms": 0.0,
    "idle_share": 0.9,
}


class TestDecodeSteps:
    def test_faster(self):
        after = BEFORE | {"step_ms": 2.0, "launch_calls": 20.0, "communication_ms": 0.5, "idle_share": 0.25}
        assert prose.of_decode_steps(BEFORE, after) == [
            "As many kernels, and 20 launch calls where there were 400: a decode step takes 2.00 ms instead of 10.0 ms "
            "(5.0 times as fast), and the device is idle in 25.0 % of it instead of 90.0 %.",
            "What is visible now was hidden before: compute takes 50.0 % of the step, and communication 25.0 %.",
        ]

    def test_slower_and_without_communication(self):
        (said,) = prose.of_decode_steps(BEFORE, BEFORE | {"step_ms": 20.0, "kernels": 500.0})
        assert "400 kernels become 500" in said
        assert "2.0 times slower" in said

    def test_nothing_to_compare(self):
        assert prose.of_decode_steps(None, BEFORE) == []


def test_a_trace_of_nothing_is_told_as_such(recording_of_nothing: Trace):
    trace = recording_of_nothing
    assert prose.of_steps(trace) == ["No steps were found: nothing labels them, and no pass of a model repeats."]
    assert prose.of_coverage(trace) == ["Nothing that takes time was recorded, so there is nothing to cover."]
    assert prose.of_findings(llmprof.analyze.findings(trace)) == [
        "No rule found anything worth saying in this recording."
    ]
    assert prose.of_layer(trace, 0, None, 5) == ["No layers were found, so there is none to take apart."]
    assert prose.of_communication(trace) == ["The trace has no communication between ranks."]
    for said in (
        prose.of_the_cause(trace),
        prose.of_idle(trace),
        prose.of_a_pipeline(trace),
        prose.of_watched_rank(trace, 0),
    ):
        assert said == []  # fmt: skip
    assert prose.matched_calls(trace).is_empty()


@pytest.fixture
def recording_of_nothing() -> Trace:
    """Kernels were recorded, but none ran."""
    return Trace({"kernels": llmprof.schema.empty("kernels"), "copies": llmprof.schema.empty("copies")})


def test_words_of_a_sample_are_only_for_the_sample():
    trace = sample("torch_tp1_cudagraph")
    as_sample = " ".join(prose.what_ran(trace, sample="torch_tp1_cudagraph"))
    as_a_users = " ".join(prose.what_ran(trace))
    assert "Qwen2.5-1.5B" in as_sample
    assert "4 requests of 64 tokens" in as_sample
    for word in ("Qwen", "1.5B", "random", "bundled", "sample"):
        assert word not in as_a_users
    assert "It does not say: model." in as_a_users


def test_a_rank_is_not_called_late_because_of_its_host_where_all_hosts_are_alike():
    """All four ranks of a pair of one host: without launches nothing is said of the cause."""
    trace = sample("torch_cpu_tp2_layer_annotations")
    said = " ".join(prose.of_the_cause(trace))
    assert "is late because" not in said
    assert "alone would show" not in said  # a tenth of the time is communication
