"""An experiment that is killed half-way, and watches of every experiment, on a stand-in for vLLM."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from llmprof.experiments.history import append, read_history
from llmprof.experiments.scaling import read_points, run_points
from llmprof.launch import ExperimentConfig
from tests.processes import still_running

pytestmark = pytest.mark.filterwarnings("ignore:.*repeats disagree:llmprof.errors.TraceWarning")

CASES = {"lengths": [8, 16], "batches": [1, 2], "outputs": [3]}


def values(vllm) -> dict:
    return {
        "model": str(vllm.model), "results_dir": str(vllm.folder / "results"), "python": sys.executable, "repeat": 2,
        "monitor_hz": 0, "max_model_len": 128,
    }  # fmt: skip


@pytest.mark.slow
def test_a_killed_experiment_leaves_nothing_half_written_and_goes_on(vllm):
    """SIGKILL at the third of four points: no JSON is cut, and the first two are not measured again."""
    vllm.how(hangs_at=2)
    code = """
import json, sys
from llmprof.experiments.scaling import run_points
from llmprof.launch import ExperimentConfig
run_points(ExperimentConfig.from_dict(json.loads(sys.argv[1])), sys.argv[2], check=False, **json.loads(sys.argv[3]))
"""
    folder = vllm.folder / "tp1_pp1"
    argv = [sys.executable, "-c", code, json.dumps(values(vllm)), str(folder), json.dumps(CASES)]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 120
    while time.monotonic() < until and not any(len(call["prompts"]) == 2 for call in vllm.calls("generate")):
        time.sleep(0.05)
    engine = psutil.Process(process.pid).children(recursive=True)
    assert engine, "the engine and its guard"
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert still_running(engine) == []  # while they end, they remove files of their own
    assert not (folder / "points.json").exists()
    for path in folder.rglob("*.json"):
        if path.name != "worker.json" or path.stat().st_size:
            json.loads(path.read_text())
    done = len(vllm.calls("generate"))
    vllm.how()
    points = run_points(ExperimentConfig.from_dict(values(vllm)), folder, check=False, **CASES)
    assert points.select("prompt", "batch", "out", "repeats").rows() == [
        (prompt, batch, 3, 2) for prompt in (8, 16) for batch in (1, 2)
    ]  # fmt: skip
    assert read_points(folder / "points.json").height == 4
    assert {len(call["prompts"]) for call in vllm.calls("generate")[done:]} <= {1, 2}
    again = len(vllm.calls("generate"))
    run_points(ExperimentConfig.from_dict(values(vllm)), folder, check=False, **CASES)
    assert len(vllm.calls("generate")) == again, "what was measured is only read"


@pytest.mark.parametrize("stage", ["before the file", "in its place"])
def test_a_history_survives_a_writer_that_is_killed(tmp_path, stage):
    """A writer that dies while it holds the lock loses its own run only; the next one goes on."""
    path = tmp_path / "history.parquet"
    append(path, {"step_s": [1.0]})
    when = "write_parquet" if stage == "before the file" else "replace"
    code = f"""
import os, signal, sys
from pathlib import Path
import polars as pl
from llmprof.experiments import history
def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)
if {when!r} == "replace": Path.replace = die
else: pl.DataFrame.write_parquet = die
history.append(sys.argv[1], {{"step_s": [2.0]}})
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL
    assert read_history(path)["value"].to_list() == [1.0]
    append(path, {"step_s": [3.0]})
    assert read_history(path).select("run", "value").rows() == [(1, 1.0), (2, 3.0)]
