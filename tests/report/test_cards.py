"""Cards: what a trace, a run, metrics and findings say of themselves in a notebook."""

from __future__ import annotations

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.trace import Trace

HOSTILE = '<script>alert(1)</script>"\x1b[31m'


def test_a_trace_says_ranks_steps_coverage_and_what_to_ask(sample_trace):
    shown = sample_trace("torch_tp4_eager_nccl")._repr_html_()
    for words in (
        ": 4 ranks", "Step time", "name unknown, 28 layers", "explore.open(trace).show_finding(1)",
        "NVIDIA H200", "prefill", "decode", "Steps on the device", "Coverage", "a named stage",
        "analyze.findings(trace)", "explore.open(trace)", "analyze.collectives(trace)", "Lost to damage",
    ):  # fmt: skip
        assert words in shown
    bundle = sample_trace("torch_tp4_eager_nccl")._repr_mimebundle_()
    assert bundle["text/html"] == shown
    assert bundle["text/plain"].startswith("<Trace 4 ranks")


def test_warnings_and_names_are_escaped():
    kernels = pl.DataFrame({"rank": [0], "start_ns": [0], "dur_ns": [5], "name": [HOSTILE]})
    meta = {"device": HOSTILE, "world_size": 4, "missing_ranks": [1, 2, 3], "versions": {HOSTILE: HOSTILE}}
    shown = Trace({"kernels": kernels}, meta, {"warnings": [HOSTILE]})._repr_html_()
    assert "<script>" not in shown
    assert "\x1b" not in shown
    assert "Ranks 1-3 of 4 are missing" in shown
    assert shown.count("class=&quot;") == 0


@pytest.mark.parametrize("tables", [{}, {"kernels": llmprof.schema.empty("kernels")}])
def test_a_trace_of_nothing_shows_itself(tables):
    assert "no rank" in Trace(tables)._repr_html_()


def test_metrics_show_their_longest_launches():
    metrics = llmprof.sample_metrics("ncu_tp1_eager")
    shown = metrics._repr_html_()
    assert "Hardware metrics of 24 launches" in shown
    assert "analyze.speed_of_light(metrics)" in shown
    assert metrics._repr_mimebundle_()["text/plain"] == repr(metrics)


def test_findings_are_sentences_and_a_frame(sample_trace):
    found = analyze.findings(sample_trace("torch_tp4_eager_nccl"))
    assert isinstance(found, pl.DataFrame)
    shown = found._repr_html_()
    causes = found.filter(pl.col("severity") != "info", pl.col("follows_from").is_null())
    assert f"{causes.height} findings" in shown
    assert found.time_went[0] in shown
    assert found["evidence"][0] in shown
    assert "<table" in found.select("title")._repr_html_()
    assert "One finding" in found.head(1)._repr_html_()
    found.drop_in_place("title")
    assert "<table" in found._repr_html_()


@pytest.mark.parametrize("name", ["timeline", "layers", "overlap", "all_reduce", "kernels"])
def test_explorers_say_what_they_show_where_no_widget_can(sample_trace, name):
    widget = getattr(llmprof.explore, name)(sample_trace("torch_tp1_eager"), rank=0, window=[0, 1_000_000])
    data = widget._repr_mimebundle_()[0]
    assert data["text/plain"].startswith(f"<{type(widget).__name__} of Trace 1 rank")
    assert "0 ns to 1.00 ms" in data["text/plain"] or "to 1 ms" in data["text/plain"]
    assert "0x" not in data["text/plain"]
