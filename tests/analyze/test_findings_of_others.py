"""Steps and findings of recordings of others, against counts made by hand
(../shared/strangers/README.md).
"""

import pytest

import llmprof
from llmprof.analyze import findings, steps
from llmprof.label.steps.steps import steps_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")]

CHROME = "strangers/chrome/"

STEPS = {
    "tracemap_mi300x.pt.trace.json.gz": ("inferred", ["prefill", *["decode"] * 9]),
    "gold_nsys_example.json": ("execute_model", ["prefill", *["decode"] * 9]),
    "hist__mi300__ddp_resnet18_no_pool.json.gz": ("optimizer", ["other"] * 5),
    "resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz": (
        "profiler_step",
        ["other"] * 6,
    ),
}


@pytest.mark.parametrize("file", STEPS)
def test_steps(file, shared):
    source, phases = STEPS[file]
    found = steps(llmprof.read(shared / CHROME / file))
    assert found["phase"].to_list() == phases
    assert found["source"].unique().to_list() == [source]


def test_the_prefill_of_a_trace_without_labels_is_the_long_step(shared):
    found = steps_of(llmprof.read(shared / CHROME / "tracemap_mi300x.pt.trace.json.gz"))
    assert found["dur_ns"][0] == pytest.approx(133e6, rel=0.01)
    assert found["dur_ns"][1:].is_between(17e6, 26e6).all()
    found = findings(
        llmprof.read(
            shared / CHROME / "perf_model__normalization__normalization_layer_test.json.gz"
        )
    )
    assert found.filter(rule="idle_at_the_ends")["severity"].to_list() == ["info"]


FIRST = {
    "amd_hpctraining__merged_all_events.json.gz": ("host_bound", 3, 0.6),
    "hist__mi300__ddp_resnet18_no_pool.json.gz": ("allocation", 0, 0.8),
    "resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz": ("data_loading", 0, 0.18),
    "mi300__google_owlv2-large-patch14-ensemble__1016001.json.gz": ("input_preparation", 0, 0.6),
    "perf_model__normalization__normalization_layer_test.json.gz": ("loading", 0, 0.8),
}
"""First finding, its rank and the least share of the time."""


@pytest.mark.parametrize("file", FIRST)
def test_first_findings(file, shared):
    rule, rank, least = FIRST[file]
    first = findings(llmprof.read(shared / CHROME / file)).row(0, named=True)
    assert (first["rule"], first["rank"]) == (rule, rank)
    assert first["share"] >= least


def test_the_late_rank_is_named_with_its_own_figure(shared):
    """Rank 3 is last in every all-reduce; the others wait for it, which is no second cause."""
    found = findings(llmprof.read(shared / CHROME / "amd_hpctraining__merged_all_events.json.gz"))
    late, waiting = found.row(0, named=True), found.filter(rule="arrival_skew").row(0, named=True)
    # of the first two steps; of the third, 2 % of what was launched is not recorded
    assert late["figure"] == pytest.approx(30.0e6, rel=0.01)
    assert (waiting["order"], waiting["follows_from"]) == (2, "host_bound")
    # of rank 0, which waits most: 16.6 of 46.0 ms
    assert waiting["share"] == pytest.approx(16.56 / 46.04, rel=0.01)


def test_calls_that_free_memory_are_one_finding(shared):
    trace = llmprof.read(shared / CHROME / "hist__mi300__ddp_resnet18_no_pool.json.gz")
    calls = trace.runtime.filter(name="hipFree")
    assert (calls.height, calls["dur_ns"].sum()) == (1360, pytest.approx(3.35e9, rel=0.01))
    found = findings(trace)
    told = found.filter(found["title"].str.contains("hipFree"))
    assert told["rule"].to_list() == ["allocation"]
    assert told["recorded_share"][0] < calls["dur_ns"].sum() / 3.39e9
