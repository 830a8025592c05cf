"""Requests of a server that llmprof did not start: joined to the trace by their times.

Spans are synthetic.

The run is that of ``test_requests``; the spans say of it what vLLM's would: arrival, time in the
queue (until just before the first step), time to the first token and to the last.
"""

import json
from types import SimpleNamespace

import polars as pl
import pytest

import llmprof
from llmprof import analyze, explore
from llmprof.analyze.requests.requests import run_of
from llmprof.errors import AnalysisError, NotCapturedError
from tests.analyze.test_requests import EPOCH, MS, REQUESTS, made
from tests.readers.test_otlp import document, span

FIRST_STEP_MS = {"a": 10, "b": 30, "c": 112}


def spans(tmp_path, *, late_ms=0.0):
    rows = [
        span(
            EPOCH + round((at + late_ms) * MS),
            number=k + 1,
            request__id=f"cmpl-{name}",
            usage__prompt_tokens=prompt,
            usage__completion_tokens=out,
            latency__time_in_queue=(FIRST_STEP_MS[name] - 0.3 - at) / 1e3,
            latency__time_to_first_token=(first - at) / 1e3,
            latency__e2e=(last - at) / 1e3,
        )
        for k, (name, at, first, last, prompt, out) in enumerate(REQUESTS)
    ]
    file = tmp_path / "spans.jsonl"
    file.write_text("\n".join(json.dumps(document(row)) for row in rows))
    return llmprof.read_requests(file)


def test_joined_by_the_same_function_as_requests_of_our_own_runs(tmp_path):
    outside = made().trace, spans(tmp_path)
    joined = run_of(outside)
    assert (joined.left_out, joined.apart_ns) == (0, 0)
    ours, theirs = analyze.requests(made()), analyze.requests(outside)
    same = [
        "request",
        "start_ns",
        "first_step_ns",
        "ttft_ns",
        "e2e_ns",
        "queue_prefill_ns",
        "queue_decode_ns",
    ]
    same += [
        "prefill_ns",
        "prefill_other_ns",
        "decode_ns",
        "decode_prefill_ns",
        "steps",
        "behind",
        "reason",
    ]
    assert theirs.select(same).equals(ours.select(same))
    assert theirs["rest_ns"].to_list() == [0, 0, 0]
    assert theirs["max_gap_ns"].to_list() == [None] * 3
    columns = ["request", "part", "start_ns", "dur_ns", "step"]
    ours, theirs = (analyze.requests(run, by="span").select(columns) for run in (made(), outside))
    assert theirs.equals(ours)
    assert explore.requests(outside).table.height == 3
    widget = explore.timeline(outside[0], run=outside)
    assert [row.label for row in widget._data.rows[:3]] == ["request 0", "request 1", "request 2"]


@pytest.mark.parametrize(
    ("late_ms", "apart"), [(6.0, "5.70 ms"), (-4.0, "3.00 ms"), (3000.0, r"3\.00 s|2\.9\d s")]
)
def test_clocks_that_disagree_are_not_joined_and_it_says_by_how_much(tmp_path, late_ms, apart):
    with pytest.raises(
        AnalysisError, match=rf"disagree by at least (?:{apart}); expected at most 1\.00 ms"
    ):
        analyze.requests((made().trace, spans(tmp_path, late_ms=late_ms)))


def test_requests_of_another_time_or_without_what_is_needed_are_refused(tmp_path):
    told = spans(tmp_path)
    far = told.with_columns(pl.col("start_epoch_ns") + 3_600_000 * MS)
    with pytest.raises(NotCapturedError, match="none of the requests was served"):
        analyze.requests((made().trace, far))
    with pytest.raises(AnalysisError, match="no column 'queue_ns'"):
        analyze.requests((made().trace, told.drop("queue_ns")))
    run = made()
    bare = SimpleNamespace(trace=type(run.trace)(run.trace.tables, {"world_size": 1}))
    with pytest.raises(NotCapturedError, match="does not say when it was recorded"):
        analyze.requests((bare.trace, told))
