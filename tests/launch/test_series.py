"""One start of an engine for several points, on a stand-in for vLLM through the real script and runner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from llmprof.batch import BatchRunner, open_sweep
from llmprof.launch import ExperimentConfig, open_run, resume
from tests.launch.vllm_stand_in import StandInVllm
from tests.processes import still_running

pytestmark = pytest.mark.filterwarnings("ignore:.*repeats disagree:llmprof.errors.TraceWarning")


def config(vllm, **values) -> ExperimentConfig:
    usual = {
        "model": str(vllm.model), "results_dir": str(vllm.folder / "results"), "python": sys.executable, "repeat": 2,
        "profile_mode": "inference_only", "monitor_hz": 0, "input_tokens": 8, "max_model_len": 128,
    }  # fmt: skip
    return ExperimentConfig.from_dict(usual | values)


def sweep(vllm, parameters, **options):
    return BatchRunner(config(vllm), check=False, **options).run_parameter_sweep(parameters)


GRID = {"batch_size": [1, 2, 3], "max_tokens": [4, 8]}


def test_a_sweep_of_six_points_starts_the_engine_once(vllm):
    told = []
    done = sweep(vllm, GRID, progress=lambda *what: told.append(what))
    assert done.comparison["state"].to_list() == ["finished"] * 6
    assert len(vllm.calls("LLM")) == 1
    sizes = [(len(call["prompts"]), call["sampling"][0]["max_tokens"]) for call in vllm.calls("generate")]
    assert sizes == [(b, t) for b in (1, 2, 3) for t in (4, 8) for _ in range(3)]  # a warm-up and two repeats
    assert done.state["starts"] == [{"points": [0, 1, 2, 3, 4, 5], "starts": 1}]
    for point, folder in enumerate(done.runs):
        run = open_run(folder)
        assert run.state == "finished"
        assert run.worker["engine_start"] == {"point": point, "points": 6}
        assert run.config.batch_size == (1, 1, 2, 2, 3, 3)[point]
        assert run.requests.filter(phase="plain").height == 2 * run.config.batch_size
        assert f"point {point + 1} of 6 that one start of the engine measured" in run.summary["notes"]
    assert ("batch_size=2, max_tokens=8: plain 2 of 2", 3, 6) in told
    assert told[-1] == ("sweep", 6, 6)


def test_what_the_engine_must_know_gets_another_start(vllm):
    done = sweep(vllm, {"max_model_len": [64, 128], "batch_size": [1, 2]})
    assert done.comparison["state"].to_list() == ["finished"] * 4
    assert [call["values"]["max_model_len"] for call in vllm.calls("LLM")] == [64, 128]


def test_a_pipeline_on_a_cpu_holds_one_session_of_the_profiler_a_start(tmp_path, monkeypatch):
    """A second session can crash its first worker, so each point has a start of its own, without a warm-up."""
    vllm = StandInVllm(tmp_path, version="0.33.0+cpu")
    for name, value in vllm.environment({"traces": True}).items():
        monkeypatch.setenv(name, value)
    values = config(vllm, profile_mode="torch", pipeline_parallel_size=2)
    done = BatchRunner(values, check=False).run_parameter_sweep({"batch_size": [1, 2, 3]})
    assert all("the capture is empty" in why for why in done.failed.values()), "a stand-in has no kernels"
    assert len(vllm.calls("LLM")) == len(vllm.calls("start_profile")) == 3
    sizes = [len(call["prompts"]) for call in vllm.calls("generate")]
    assert (sizes, set(sizes)) == (sorted(sizes), {1, 2, 3}), "one point after the other, none twice"
    for point in done.state["points"]:
        worker = json.loads((done.folder / point["run"] / "worker.json").read_text())
        assert any(note.startswith("one point for each start of the engine") for note in worker["notes"]) == (
            point["point"] < 2
        )


def test_purists_get_a_fresh_engine_for_each_point(vllm):
    assert sweep(vllm, {"batch_size": [1, 2]}, fresh_engine=True).comparison["state"].to_list() == ["finished"] * 2
    assert len(vllm.calls("LLM")) == 2


def test_an_engine_that_dies_is_started_once_more_for_what_is_left(vllm):
    vllm.how(dies_at=2)  # prompts in a batch
    done = sweep(vllm, {"batch_size": [1, 2, 3, 4]})
    assert done.comparison["state"].to_list() == ["finished", "failed", "finished", "finished"]
    assert "it was killed by SIGKILL" in done.failed["batch_size=2"]
    assert len(vllm.calls("LLM")) == 2
    assert done.state["starts"] == [{"points": [0, 1, 2, 3], "starts": 2}]
    assert [point["start"] for point in done.state["points"]] == [1, 1, 2, 2]


def test_an_engine_that_never_starts_is_not_started_for_each_point(vllm):
    vllm.how(fails="torch.OutOfMemoryError: CUDA out of memory")
    done = sweep(vllm, {"batch_size": [1, 2, 3]})
    assert done.comparison["state"].to_list() == ["failed"] * 3
    assert all("out of memory" in error for error in done.failed.values())
    assert len(vllm.calls("LLM")) == 1


def test_a_point_that_the_engine_refuses_does_not_end_the_others(vllm):
    vllm.how(refuses_at=2)
    done = sweep(vllm, {"batch_size": [1, 2, 3]})
    assert done.comparison["state"].to_list() == ["finished", "failed", "finished"]
    assert "raise max_model_len" in done.failed["batch_size=2"]
    assert len(vllm.calls("LLM")) == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupt", "kill"])
def test_an_interrupted_series_keeps_its_points_and_leaves_nothing_running(vllm, how):
    """The runner is stopped at the third of four points; what was measured is only read afterwards."""
    vllm.how(hangs_at=3, child=True)
    code = """
import json, sys
from llmprof.batch import BatchRunner
from llmprof.launch import ExperimentConfig
config = ExperimentConfig.from_dict(json.loads(sys.argv[1]))
BatchRunner(config, check=False).run_parameter_sweep({"batch_size": [1, 2, 3, 4]}, folder=sys.argv[2])
"""
    folder = vllm.folder / "sweep"
    argv = [sys.executable, "-c", code, json.dumps(config(vllm).to_dict()), str(folder)]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 180
    while time.monotonic() < until and not any(len(call["prompts"]) == 3 for call in vllm.calls("generate")):
        time.sleep(0.05)
    below = psutil.Process(process.pid).children(recursive=True)
    (child,) = vllm.calls("child")
    assert child["pid"] in {one.pid for one in below}
    process.send_signal(how)
    process.wait(60)
    assert still_running(below) == []
    states = open_sweep(folder).comparison["state"].to_list()
    assert states == (["interrupted"] * 3 + ["pending"] if how == signal.SIGINT else ["running"] * 4)
    before = len(vllm.calls("generate"))
    vllm.how()
    done = BatchRunner.resume(folder, check=False)
    assert done.comparison["state"].to_list() == ["finished"] * 4
    asked = [len(call["prompts"]) for call in vllm.calls("generate")[before:]]
    assert sorted(set(asked)) == [3, 4], "the first two were measured before"


def test_a_run_of_a_series_can_be_finished_by_itself(vllm):
    done = sweep(vllm, {"batch_size": [1, 2]})
    run = open_run(done.runs[1])
    run.folder.summary.unlink()
    run.folder.set_state("interrupted", stage="import")
    assert resume(run.folder.path, check=False).summary["metrics"]


def test_each_point_can_be_repeated_by_its_own_script(vllm):
    done = sweep(vllm, {"batch_size": [1, 2]})
    script = open_run(done.runs[1]).folder.script
    out = vllm.folder / "again"
    status = subprocess.run([sys.executable, str(script), "--out", str(out)], env=os.environ, check=False).returncode
    assert status == 0
    assert len(json.loads((out / "worker.json").read_text())["requests"]) == 2 * 3
    whole = subprocess.run(
        [sys.executable, str(done.folder / "engine-1" / "inference_script.py"), "--out", str(vllm.folder / "all")],
        env=os.environ,
        check=False,
    )
    assert whole.returncode == 0
    assert len(list((vllm.folder / "all").glob("*/worker.json"))) == 2
