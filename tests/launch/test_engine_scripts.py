"""Real runs of the engine scripts on this machine's CPU, each ending in a trace that the analyses accept."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.launch import engines
from llmprof.launch.config import models
from tests.launch.vllm_stand_in import job

TOKENS, OUTPUT = 64, 6
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine_python(root):
    """The interpreter of ``make engine``, or the one that the environment names."""
    found = os.environ.get("LLMPROF_ENGINE_PYTHON") or str(root / ".venv-vllm" / "bin" / "python")
    if not Path(found).exists():
        pytest.fail("there is no engine to run: make engine")
    return found


@pytest.fixture
def run(engine_python, tmp_path):
    def run_job(**changes):
        prompts = [[5 + (7 * i + 13 * k) % 10_000 for k in range(TOKENS)] for i in range(2)]
        usual = {"model": str(models.resolve("random:tiny", tmp_path)), "prompt_token_ids": prompts}
        usual |= {"max_tokens": OUTPUT, "max_model_len": 128, "repeat": 1}
        script = tmp_path / "inference_script.py"
        script.write_text(engines.script(job(**usual | changes)))
        with (tmp_path / "log").open("wb") as log:
            command = [engine_python, str(script), "--out", str(tmp_path / "out")]
            # threads that spin for each other take a busy machine's time
            env = os.environ | {"OMP_NUM_THREADS": "1"}
            status = subprocess.run(command, stdout=log, stderr=log, env=env, timeout=400, check=False).returncode
        worker = json.loads((tmp_path / "out" / "worker.json").read_text())
        assert status == 0, (worker["error"], (tmp_path / "log").read_text()[-3000:])
        return worker, llmprof.read(tmp_path / "out" / "traces")

    return run_job


def check_trace(trace, *, ranks, requests=2):
    """Every rank has its steps, and nearly all its time is in them."""
    assert trace.ranks == list(range(ranks))
    steps = analyze.steps(trace).filter(pl.col("phase") != "empty")
    for rank in trace.ranks:
        mine = steps.filter(rank=rank)
        assert mine["context_tokens"].sum() == requests * TOKENS
        assert mine["generation_tokens"].sum() == requests * (OUTPUT - 1)
    labelled = analyze.attribute(trace)
    for (rank,), rows in labelled.group_by("rank"):
        assert {"attention", "norm", "qkv_proj"} <= set(rows["stage"]), rank
    covered = analyze.coverage(trace).filter(measure="step")
    assert covered["share"].min() > 0.8


def check_requests(worker, phase, count):
    found = [one for one in worker["requests"] if one["phase"] == phase]
    assert len(found) == count
    for one in found:
        assert (one["prompt_tokens"], one["output_tokens"]) == (TOKENS, OUTPUT)
        assert one["finish_reason"] == "length"
        assert 0 < one["ttft_s"] < one["e2e_s"]


def processes_of(folder):
    """Command lines that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return [line for line in found if str(folder).encode() in line]


def test_vllm_on_one_rank(run):
    worker, trace = run(engine_args={"frob": 1, "kv_cache_memory_bytes": 2**26})
    check_requests(worker, "plain", 2)
    check_requests(worker, "profiled", 2)
    check_trace(trace, ranks=1)
    assert worker["platform"] == "cpu"
    assert worker["dropped_engine_args"] == ["frob"]
    assert worker["kv_cache"]["bytes"] == 2**26
    assert worker["kv_cache"]["tokens"] == worker["kv_cache"]["blocks"] * worker["kv_cache"]["block_size"]


def test_vllm_on_two_ranks_with_names_of_layers(run):
    worker, trace = run(tensor_parallel_size=2, layer_annotations=True, plain=False)
    check_requests(worker, "profiled", 2)
    check_trace(trace, ranks=2)
    assert sorted(worker["peak_memory_bytes"]) == ["0", "1"]
    names = trace.markers["name"].cast(pl.String)
    assert names.str.starts_with("layer::model.layers.3.self_attn").any()
    collectives = analyze.attribute(trace).filter(category="collective")
    assert set(collectives["rank"]) == {0, 1}


def test_vllm_as_a_server(run, tmp_path):
    server = job()["server"] | {"num_prompts": 4, "max_concurrency": 2, "health_timeout_s": 200.0}
    worker, trace = run(served=True, server=server)
    check_requests(worker, "plain", 4)
    check_requests(worker, "profiled", 4)
    check_trace(trace, ranks=1, requests=4)
    for one in worker["requests"]:
        assert one["ttft_s"] + sum(one["itl_s"]) == pytest.approx(one["e2e_s"])
    assert worker["kv_cache"]["tokens"] > 0
    assert processes_of(tmp_path) == []


def test_transformers(run):
    worker, trace = run(engine="transformers", prompt_token_ids=[[7] * TOKENS, [9] * TOKENS])
    check_requests(worker, "plain", 2)
    check_trace(trace, ranks=1)
    assert all(len(one["itl_s"]) == OUTPUT - 1 for one in worker["requests"])
    assert set(analyze.attribute(trace)["layer"].drop_nulls()) == {0, 1, 2, 3}


def test_transformers_stops_the_profiler_after_some_steps(run):
    worker, trace = run(engine="transformers", max_iterations=3, engine_args={"frob": 1}, temperature=0.5)
    assert analyze.steps(trace)["phase"].to_list() == ["prefill", "decode", "decode"]
    assert worker["notes"] == ["engine option frob ignored: transformers does not know it"]
