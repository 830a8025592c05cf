"""What changed: each cause by counters and steps of hand-built captures, and never a regression
for a heavier load.
"""

import gzip
import json
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from llmprof.errors import AnalysisError
from llmprof.run.launch import ExperimentConfig, RunFolder, open_run
from llmprof.run.launch.monitors import table
from llmprof.run.live import changed, changes
from llmprof.run.live.counters import SAMPLE
from llmprof.trace.storage import files
from tests.live.stand_in import trace

GOOD = {
    "running": 8.0,
    "waiting": 0.0,
    "requests_per_s": 2.0,
    "prompt_length_mean": 500.0,
    "output_length_mean": 100.0,
    "hit_rate": 0.6,
    "kv_usage": 0.4,
    "preemptions_per_s": 0.0,
    "ttft_mean": 0.2,
    "queue_mean": 0.01,
    "tpot_mean": 0.01,
}
SLOW = {"ttft_mean": 0.5, "tpot_mean": 0.02}


def state(others, utilization, errors=0):
    """State of the devices after a window."""
    rows = [{"device": 0, "reasons": [], "ecc_corrected": 0, "ecc_uncorrected": errors}]
    return {"after": {"others": others, "others_utilization": utilization, "devices": rows}}


MEASURED = json.loads(Path(__file__).with_name("slowdowns.json").read_text())
"""What llmprof recorded of vLLM 0.26 with the shapes of Llama 3.1 8B on an H100, at 8 requests a
second of 512 tokens, of which 384 are the same, and 128 tokens of answer: twice as it is, and with
six slowdowns made on purpose.
"""


@pytest.fixture
def capture(tmp_path):
    def made(name, counters, *, samples=None, devices=None, cores=8, **of_trace):
        folder = RunFolder.create(
            ExperimentConfig(
                model="tiny",
                experiment_name=name,
                results_dir=str(tmp_path),
                served=True,
                python="python",
            )
        )
        folder.traces.mkdir()
        (folder.traces / "rank0.pt.trace.json.gz").write_bytes(
            gzip.compress(trace(0, 1, **of_trace))
        )
        files.write_json(folder.worker, {"requests": []})
        files.write_json(
            folder.recording, {"counters": {"before": counters}, "devices": devices or {}}
        )
        files.write_json(folder.gpu_info, {"cores": cores})
        if samples:
            each = [(name, value) for name, values in samples.items() for value in np.ravel(values)]
            rows = [(time.time_ns(), None, name, "1", value) for name, value in each]
            table.write(pl.DataFrame(rows, schema=table.SCHEMA, orient="row"), folder.monitors, {})
        return open_run(folder.path)

    return made


@pytest.mark.parametrize(
    ("cause", "now", "words"),
    [
        ("prefix_cache", {"hit_rate": 0.1, "ttft_mean": 0.5}, "10%, before 60%"),
        ("longer_prompts", {"prompt_length_mean": 2000.0, **SLOW}, "2,000, before 500"),
        # the same 300 tokens of 500 and of 2,000 are in the cache
        (
            "longer_prompts",
            {"prompt_length_mean": 2000.0, "hit_rate": 0.15, **SLOW},
            "2,000, before 500",
        ),
        ("more_load", {"requests_per_s": 4.0, "running": 16.0, **SLOW}, "4.00, before 2.00"),
        ("more_load", {"arrivals_per_s": 4.0, "requests_per_s": 1.0, **SLOW}, "4.00, before 2.00"),
        (
            "more_load",
            {"arrivals_per_s": None, "requests_per_s": None, "running": 16.0, **SLOW},
            "16.0, before 8.0",
        ),
        # as many come, and more are there at once, since each takes longer: that is no load
        ("unknown", {"running": 16.0, **SLOW}, "before 200 ms"),
        ("more_load", {"output_length_mean": 300.0, **SLOW}, "300, before 100"),
        ("kv_cache", {"kv_usage": 0.99, "waiting": 5.0, **SLOW}, "full"),
        ("kv_cache", {"preemptions_per_s": 0.5, **SLOW}, "full"),
        ("fewer_places", {"max_num_seqs": 8, "waiting": 6.0, "queue_mean": 2.0}, "8, before 128"),
        # as many places as before: the queue grows since each request takes longer
        (
            "unknown",
            {"max_num_seqs": 128, "running": 4.0, "waiting": 6.0, "queue_mean": 2.0},
            "2.00 s, before 10",
        ),
        ("fewer_places", {"running": 4.0, "waiting": 6.0, "queue_mean": 2.0}, "4, before 8"),
        ("none", {}, "Nothing is slower"),
        ("none", {"requests_per_s": 2.2, "tpot_mean": 0.0105}, "Nothing is slower"),
        ("none", {"requests_per_s": 4.0, "arrivals_per_s": 4.0}, "4.00, before 2.00"),
        # 2 and 4 requests in a second each
        ("unknown", {"seconds": 1.0, "requests_per_s": 4.0, **SLOW}, "Neither the load"),
        ("none", {"ttft_mean": 0.5, "ttft_count": 3.0}, "Nothing is slower"),
    ],
)
def test_causes_in_the_counters(capture, cause, now, words):
    known = {"seconds": 1.0, "ttft_count": 2.0} if {"seconds", "ttft_count"} & set(now) else {}
    known |= {"arrivals_per_s": 2.0} if "arrivals_per_s" in now else {}
    known |= {"max_num_seqs": 128} if "max_num_seqs" in now else {}
    told = changed(capture("now", GOOD | now), capture("good", GOOD | known))
    assert told["cause"] == cause
    assert words in told["says"]
    assert {row["what"] for row in told["evidence"]} >= {"running", "tpot_mean"}


@pytest.mark.parametrize(
    ("slowdown", "cause"),
    [
        ("baseline", "none"),
        ("again", "none"),
        ("device", "device"),  # matrix products of another process
        ("host", "host"),  # three busy loops on each processor of the server
        ("longer_prompts", "longer_prompts"),  # of 2,048 tokens
        ("more_load", "more_load"),  # 24 requests a second
        ("prefix_cache", "prefix_cache"),  # no two prompts begin alike
        ("fewer_places", "fewer_places"),  # max_num_seqs is 4, before 128
    ],
)
def test_slowdowns_of_a_server_on_a_device(capture, monkeypatch, slowdown, cause):
    good, now = MEASURED["baseline"], MEASURED[slowdown]
    monkeypatch.setattr(changes, "shared_step", lambda run, baseline: changes.Step(**now["step"]))
    runs = [
        capture(name, told["counters"], samples=told["samples"], devices=told["devices"], cores=16)
        for name, told in (("now", now), ("good", good))
    ]
    assert changed(*runs)["cause"] == cause


@pytest.mark.parametrize("cause", ["engine", "unknown"])
def test_what_the_slowdowns_need_is_looked_at(capture, monkeypatch, cause):
    """Without their samples, the two of the machine are not taken for something else that is
    known.
    """
    for slowdown in ("device", "host"):
        now = MEASURED[slowdown]
        step = (
            now["step"] if cause == "engine" else now["step"] | {"now_ns": now["step"]["before_ns"]}
        )
        monkeypatch.setattr(
            changes, "shared_step", lambda run, baseline, step=step: changes.Step(**step)
        )
        told = changed(
            capture("now", now["counters"]), capture("good", MEASURED["baseline"]["counters"])
        )
        assert told["cause"] in {cause, "unknown"}


def test_a_longer_step_at_the_same_load_is_the_engine(capture):
    told = changed(capture("now", GOOD | SLOW, mm_us=850), capture("good", GOOD, mm_us=400))
    step = next(row for row in told["evidence"] if row["what"] == "a step of decode")
    # five steps, of 1 ms to the next one; the last to its end: 400 + 10 + 100 us, 850 + 10 + 100
    assert (step["before"], step["now"]) == (
        pytest.approx((4 * 1_000_000 + 510_000) / 5, rel=0.02),
        pytest.approx((4 * 1_000_000 + 960_000) / 5, rel=0.02),
    )
    assert told["cause"] in {"engine", "unknown"}


@pytest.mark.parametrize(
    ("cause", "before", "now"),
    [
        ("device", {"samples": {"gpu.sm_clock": 1.98e9}}, {"samples": {"gpu.sm_clock": 1.2e9}}),
        ("device", {"devices": state(0, None)}, {"devices": state(1, None)}),
        ("device", {"devices": state(1, 0)}, {"devices": state(1, 60)}),
        (
            "device",
            {"samples": {"gpu.throttle_reasons": 0x4}},
            {"samples": {"gpu.throttle_reasons": 0x44}},
        ),
        ("host", {"samples": {"run.delay": 1.0}}, {"samples": {"run.delay": 40.0}}),
        # of 8 processors the server takes 2 (25 %) both times, all processes 30 % and then 70 %
        (
            "host",
            {"samples": {"cpu.utilization": 30.0, "run.cpu": 200.0}},
            {"samples": {"cpu.utilization": 70.0, "run.cpu": 200.0}},
        ),
    ],
)
def test_causes_in_the_samples(capture, cause, before, now):
    told = changed(
        capture("now", GOOD | SLOW, mm_us=850, **now), capture("good", GOOD, mm_us=400, **before)
    )
    assert told["cause"] == cause


def test_samples_explain_no_step_that_is_as_fast(capture):
    told = changed(
        capture("now", GOOD, samples={"gpu.sm_clock": 1.2e9}),
        capture("good", GOOD, samples={"gpu.sm_clock": 1.98e9}),
    )
    assert told["cause"] == "none"


def test_what_is_not_known_is_no_cause(capture):
    assert changed(capture("now", {}), capture("good", GOOD))["cause"] == "unknown"
    # a hit rate that is not counted is not zero
    assert changed(capture("now", {"tpot_mean": 0.01}), capture("good", GOOD))["cause"] == "none"


def test_the_best_hour_of_a_history(capture):
    rows = [
        dict.fromkeys(SAMPLE) | GOOD | {"time_ns": 0, "seconds": 3600.0, "output_tokens_per_s": 9.0}
    ]
    hours = pl.DataFrame(rows, schema=SAMPLE)
    told = changed(
        capture("now", GOOD | {"prompt_length_mean": 900.0, **SLOW}), None, history=hours
    )
    assert (told["cause"], told["baseline"]) == ("longer_prompts", "the best hour of the history")
    assert changed(capture("now", GOOD | SLOW), None, history=hours)["cause"] == "unknown"
    with pytest.raises(AnalysisError, match="nothing to compare"):
        changed(capture("now", GOOD), None)
    with pytest.raises(AnalysisError, match="no hour"):
        changed(capture("now", GOOD), None, history=hours.with_columns(seconds=60.0))
