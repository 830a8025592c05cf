"""Real runs of the engine scripts on this machine's CPU, each ending in a trace that the analyses accept."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

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


def test_transformers_stops_the_profiler_after_some_steps(run):
    worker, trace = run(engine="transformers", max_iterations=3, engine_args={"frob": 1}, temperature=0.5)
    assert analyze.steps(trace)["phase"].to_list() == ["prefill", "decode", "decode"]
    assert worker["notes"] == ["engine option frob ignored: transformers does not know it"]
