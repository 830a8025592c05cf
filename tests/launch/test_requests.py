"""Requests of a run, with answers computed by hand."""

from __future__ import annotations

import math

import pytest

from llmprof.errors import NotCapturedError, ReadError
from llmprof.launch.run import requests as run_requests

MS = 1_000_000


def request(phase, repeat, request, **times):
    """A request of 64 + 5 tokens."""
    unknown = dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "queue_s", "prefill_s", "decode_s", "e2e_s"))
    head = {"phase": phase, "repeat": repeat, "request": request, "start_ns": None, "prompt_tokens": 64}
    return head | {"output_tokens": 5, "finish_reason": "length"} | unknown | times


def worker(plain=(1.0, 1.2), profiled=(2.2,)):
    """Two requests a repeat; the wall time of each repeat is given (s)."""
    requests = [request("warmup", 0, 0, ttft_s=9.0)]
    stages = [{"name": "import", "start_ns": 0, "dur_ns": 5, "repeat": None}]
    for phase, walls in (("plain", plain), ("profiled", profiled)):
        for repeat, wall in enumerate(walls):
            stages.append({"name": phase, "start_ns": 0, "dur_ns": round(wall * 1e9), "repeat": repeat})
            for k in range(2):
                times = {"ttft_s": wall / 10 + k / 100, "decode_s": wall / 2, "itl_s": [wall / 8] * 4}
                requests.append(request(phase, repeat, k, **times))
    return {"requests": requests, "stages": stages, "kv_cache": {"blocks": 7}, "peak_memory_bytes": {"0": 5}}


def summary_of(frame, metric, phase="plain"):
    (row,) = run_requests.summarize(frame).filter(phase=phase, metric=metric).to_dicts()
    return row


def test_requests_have_times_in_ns_and_the_wall_time_of_their_repeat():
    frame = run_requests.requests_of(worker())
    row = frame.row(1, named=True)
    assert row["phase"] == "plain"
    assert row["ttft_ns"] == 100 * MS
    assert row["itl_ns"] == [125 * MS] * 4
    assert row["wall_ns"] == 1000 * MS
    assert row["e2e_ns"] is None
    assert frame.row(0, named=True)["wall_ns"] is None


@pytest.mark.parametrize(
    "bad",
    [{}, {"requests": None}, {"requests": [3]}, {"requests": [request("plain", 0, 0, ttft_s="soon")]}],
    ids=["no-key", "null", "not-mappings", "text-for-time"],
)
def test_a_file_of_another_kind_is_refused(bad):
    with pytest.raises(ReadError, match=r"worker\.json"):
        run_requests.requests_of(bad)


def test_throughput_is_tokens_over_the_wall_time_of_a_repeat():
    each = run_requests.repeats(run_requests.requests_of(worker()))
    assert each.select("phase", "repeat").rows() == [("warmup", 0), ("plain", 0), ("plain", 1), ("profiled", 0)]
    plain = each.row(1, named=True)
    assert plain["requests"] == 2
    assert plain["output_tokens_per_s"] == pytest.approx(10.0)
    assert plain["tokens_per_s"] == pytest.approx(138.0)
    assert plain["requests_per_s"] == pytest.approx(2.0)
    assert each.row(0, named=True)["tokens_per_s"] is None


def test_mean_deviation_and_interval_are_over_the_repeats_and_percentiles_over_the_requests():
    row = summary_of(run_requests.requests_of(worker()), "ttft_ns")
    # repeats: (100 + 110) / 2 and (120 + 130) / 2 ms
    assert row["mean"] == pytest.approx(115 * MS)
    assert row["std"] == pytest.approx(math.sqrt(200) * MS)
    assert row["ci95_high"] - row["mean"] == pytest.approx(12.706 * 10 * MS)
    assert row["p50"] == pytest.approx(115 * MS)
    assert row["p90"] == pytest.approx(127 * MS)
    assert (row["n"], row["repeats"], row["unit"]) == (4, 2, "ns")
    assert row["spread"] == pytest.approx(20 / 115)
    assert row["agree"] is False


def test_repeats_that_disagree_are_named_once_a_phase():
    (words,) = run_requests.disagreements(run_requests.summarize(run_requests.requests_of(worker())))
    assert words.startswith("the 2 plain repeats disagree: ")
    calm = run_requests.summarize(run_requests.requests_of(worker()), tolerance=0.5)
    assert run_requests.disagreements(calm) == []


def test_overhead_is_profiled_over_plain_and_clear_beyond_the_noise():
    calm = run_requests.overhead(run_requests.requests_of(worker((1.0, 1.01, 0.99), (2.0, 2.2))))
    row = calm.row(0, named=True)
    assert row["metric"] == "wall_ns"
    assert row["overhead"] == pytest.approx(1.1)
    assert row["noise"] == pytest.approx(4.303 * 10 * MS * math.sqrt(4 / 3))
    assert row["clear"] is True
    noisy = run_requests.overhead(run_requests.requests_of(worker((1.0, 3.0), (2.2,)))).row(0, named=True)
    assert noisy["clear"] is False
    assert run_requests.overhead(run_requests.requests_of(worker((1.0,), (2.0,)))).row(0, named=True)["clear"] is None


@pytest.mark.parametrize(("plain", "profiled"), [((), (1.0,)), ((1.0,), ())], ids=["no-plain", "no-profiled"])
def test_overhead_needs_both_kinds_of_repeats(plain, profiled):
    with pytest.raises(NotCapturedError, match="inference_only"):
        run_requests.overhead(run_requests.requests_of(worker(plain, profiled)))
