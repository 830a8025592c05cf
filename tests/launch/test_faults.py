"""Everything that goes wrong in a run: each is an error that says what to do, and no process is
left.
"""

import errno
import gc
import json
import os
import shutil
import signal
import threading
import time

import polars as pl
import psutil
import pytest

from llmprof.errors import (
    CaptureError,
    ConfigError,
    LaunchError,
    LlmprofError,
    OutputError,
    TraceWarning,
)
from llmprof.run.launch import ExperimentRunner, RunFolder, open_run, resume
from llmprof.run.launch.doctor import doctor
from llmprof.run.launch.run import process
from llmprof.trace.storage import files
from tests.processes import gone

# An interrupt may come between opening a file and the `with` that closes it; Python says so when
# the file is freed.
anywhere = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def fails(stand_ins, kind=LaunchError, **values):
    with pytest.raises(kind) as caught:
        ExperimentRunner(stand_ins.config(**values)).run()
    return caught.value


def folders(stand_ins):
    where = stand_ins.folder / "results"
    return sorted(where.iterdir()) if where.exists() else []


# --- before anything starts


@pytest.mark.parametrize(("mode", "tool"), [("nsys", "nsys"), ("nsys_ncu", "nsys"), ("ncu", "ncu")])
def test_a_profiler_that_is_missing_is_known_before_the_start(stand_ins, monkeypatch, mode, tool):
    monkeypatch.setenv("PATH", str(stand_ins.bin))
    error = fails(stand_ins, profile_mode=mode)
    assert str(error).startswith(f"{tool} is not on PATH; install Nsight")
    assert folders(stand_ins) == []


def test_what_is_wrong_is_known_before_the_start(stand_ins):
    path = stand_ins.folder / "prompts.txt"
    path.write_bytes("größe".encode("latin-1"))
    assert "prompts.txt is not UTF-8: byte 0xf6 in line 1" in str(
        fails(stand_ins, ConfigError, prompt_file=str(path))
    )
    assert folders(stand_ins) == []
    error = fails(stand_ins, LlmprofError, model=str(stand_ins.folder / "none"))
    assert "none" in str(error)
    assert "/no/python cannot be started" in str(fails(stand_ins, python="/no/python"))
    (stand_ins.model / "config.json").unlink()
    assert "config.json" in str(fails(stand_ins, LlmprofError))


def test_what_the_doctor_calls_a_failure_stops_the_run(stand_ins, monkeypatch):
    row = {
        "check": "ranks",
        "status": "fail",
        "found": "1 GPU",
        "expected": "4",
        "advice": "lower tensor_parallel_size",
    }
    other = row | {"check": "disk", "found": "1 MB free"}
    fine = row | {"check": "driver", "status": "ok"}
    monkeypatch.setattr(doctor, "doctor", lambda config: pl.DataFrame([fine, row, other]))
    said = "ranks: 1 GPU; expected 4; lower tensor_parallel_size; also disk: 1 MB free"
    with pytest.raises(LaunchError, match=said):
        stand_ins.ask_doctor(stand_ins.config(), None)


# --- the engine


@pytest.mark.parametrize(
    ("says", "words", "knob"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried 2.00 GiB",
            "GPU is out of memory",
            "max_model_len",
        ),
        (
            "ValueError: No available memory for the cache blocks.",
            "KV cache",
            "gpu_memory_utilization",
        ),
        (
            "ValueError: To serve at least one request, 4.0 GiB KV cache is needed, which is larger than the available KV "
            "cache memory",
            "KV cache",
            "max_model_len",
        ),
        (
            "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (155). Please lower max_num_seqs "
            "to at most 155 or increase gpu_memory_utilization.",
            "states",
            "max_num_seqs",
        ),
        (
            "ValueError: Free memory on device is less than desired GPU memory utilization (0.9)",
            "other processes",
            "gpu_memory_utilization",
        ),
        ("OSError: [Errno 98] Address already in use", "port", "server.port"),
        (
            "RuntimeError: CUDA error: invalid device ordinal",
            "more ranks than there are GPUs",
            "tensor_parallel_size",
        ),
        (
            "ValueError: World size (4) is larger than the number of available GPUs (1)",
            "more ranks",
            "CUDA",
        ),
        (
            "OSError: /x does not appear to have a file named config.json",
            "did not find the model",
            "random:tiny",
        ),
        (
            "GatedRepoError: 401 Client Error. Access to x is restricted",
            "requires a token",
            "HF_TOKEN in environment",
        ),
        ("ModuleNotFoundError: No module named 'vllm'", "engine is not installed", "python:"),
        ("OSError: [Errno 28] No space left on device", "disk is full", "results_dir"),
        ("AssertionError: Not enough allowed NUMA nodes", "NUMA", "VLLM_CPU_OMP_THREADS_BIND"),
        (
            "RuntimeError: Available memory on node 0 on kv cache allocation is less than requested memory for kv",
            "KV cache",
            "VLLM_CPU_KVCACHE_SPACE",
        ),
        ("RuntimeError: operator torchvision::nms does not exist", "torchvision", "pip uninstall"),
    ],
)
def test_what_an_engine_says_becomes_advice(tmp_path, says, words, knob):
    log = tmp_path / "experiment.log"
    log.write_text(f"# 2026-11-21T12:00:00+00:00 python\nINFO\n{says}\nINFO bye\n")
    in_log = process.engine_failure(None, process.Finished(1, 1.0, (), {"event": "init"}), log)
    error = {"error": {"type": "RuntimeError", "message": says, "advice": None, "traceback": ""}}
    told = process.engine_failure(
        error, process.Finished(3, 1.0, (), {"event": "error"}), tmp_path / "none"
    )
    for said, when in ((in_log, "while it started"), (told, "with an error")):
        assert said.found.startswith(f"the engine failed {when}: ")
        assert words in said.found
        assert knob in said.hint


@pytest.mark.parametrize("how", ["start", "explained"])
def test_a_run_whose_engine_fails_says_so_in_its_folder(stand_ins, how):
    stand_ins.how(fail=how, says="OSError: [Errno 98] Address already in use")
    error = fails(stand_ins)
    assert "a port that the run needs is in use" in error.found
    assert "server.port" in error.hint
    state = json.loads((folders(stand_ins)[0] / "state.json").read_text())
    assert (state["state"], state["stage"]) == ("failed", "engine")
    assert "a port that the run needs is in use" in state["error"]["message"]


def test_options_that_an_engine_mentions_are_no_errors(tmp_path):
    log = tmp_path / "experiment.log"
    log.write_text(
        "INFO using FlashInfer for sampling, no trust_remote_code\nRuntimeError: something else\n"
    )
    for worker in (None, {"error": {"message": "RuntimeError: something else"}}):
        error = process.engine_failure(worker, process.Finished(1, 1.0, (), {"event": "init"}), log)
        assert error.found == "the engine failed while it started: RuntimeError: something else"
        assert error.hint == "the whole output is in experiment.log"


@pytest.mark.parametrize(
    ("last", "found"),
    [("RuntimeError: cancelled", "RuntimeError: cancelled"), ("INFO bye", "exit status 1")],
)
def test_an_exception_that_the_engine_survived_is_no_cause(tmp_path, last, found):
    log = tmp_path / "experiment.log"
    log.write_text(
        f"{last}\n"
        "(MainProcess pid=7) WARNING 11-23 09:25:14 [base.py:380] ValueError: Tokenizer not available\n"
        "WARNING 11-23 09:25:14 OSError: x does not appear to have a file named config.json\n"
    )
    error = process.engine_failure(None, process.Finished(1, 1.0, (), {"event": "init"}), log)
    assert error.found == f"the engine failed while it started: {found}"
    assert error.hint == "the whole output is in experiment.log"


def test_a_crash_in_mid_run_says_where_and_what_may_have_killed_it(stand_ins):
    stand_ins.how(fail="middle")
    error = fails(stand_ins)
    assert "in mid-run, after 'plain': it was killed by SIGKILL" in error.found
    assert "main memory ran out" in error.hint


# --- interrupts


@anywhere
@pytest.mark.parametrize("mode", [pytest.param("torch", marks=pytest.mark.slow), "nsys"])
def test_an_interrupt_ends_all_processes_and_the_folder_says_so(stand_ins, monkeypatch, mode):
    """The stop button of a notebook:

    SIGINT to this process only; nsys runs its program in another session.
    """
    monkeypatch.setattr(process, "INTERRUPT_S", 3.0)
    stand_ins.install("nsys")
    pids = stand_ins.folder / "pids"
    stand_ins.how(hang=True, pids=str(pids))

    def interrupt():
        until = time.monotonic() + 180
        while not pids.exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ExperimentRunner(stand_ins.config(profile_mode=mode)).run()
    thread.join()
    assert all(gone(pid) for pid in json.loads(pids.read_text()))
    (path,) = folders(stand_ins)
    run = open_run(path)
    assert run.state == "interrupted"
    assert run.folder.state["stage"] == "engine"
    assert not run.folder.locked
    assert not [p for p in psutil.process_iter() if str(path) in " ".join(_argv(p))]
    gc.collect()


def _argv(found):
    try:
        return found.cmdline()
    except psutil.Error:
        return []


def test_two_runs_at_once_in_one_folder_are_refused(stand_ins):
    stand_ins.how(sample="torch_tp1_eager")
    config = stand_ins.config()
    folder = RunFolder.create(config)
    with folder.lock():
        with pytest.raises(LaunchError, match="another process works in"):
            ExperimentRunner(config).run_in(folder)
        folder.set_state("running", stage="engine")
        with pytest.raises(LaunchError, match="is running; wait for its end"):
            resume(folder.path)
        assert folder.state["state"] == "running"


# --- the disk


@pytest.mark.parametrize("name", ["inference_script.pyz", "metrics.json", "manifest.json"])
def test_a_full_disk_is_said_and_the_folder_too(stand_ins, monkeypatch, name):
    stand_ins.how(sample="torch_tp1_eager")
    write = files.write

    def full(path, text):
        if path.name == name:
            raise files.refused(path, OSError(errno.ENOSPC, "No space left on device"))
        return write(path, text)

    monkeypatch.setattr(files, "write", full)
    error = fails(stand_ins, OutputError)
    assert f"cannot write {name}: the disk is full" in str(error)
    assert "choose another folder" in error.hint
    run = open_run(error.facts["folder"])
    assert run.state == "failed"
    assert "the disk is full" in run.folder.state["error"]["message"]


def test_an_engine_that_a_full_disk_made_speechless(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))
    error = process.engine_failure(
        None, process.Finished(1, 1.0, (), {}), tmp_path / "experiment.log"
    )
    assert "the disk is full" in error.found
    assert "results_dir" in error.hint


def test_a_disk_too_full_for_the_state_still_gives_the_first_error(stand_ins, monkeypatch):
    stand_ins.how(fail="start", says="RuntimeError: first")
    set_state = RunFolder.set_state

    def full(self, state, **more):
        if state == "failed":
            raise files.refused(self.path, OSError(errno.ENOSPC, "No space left on device"))
        set_state(self, state, **more)

    monkeypatch.setattr(RunFolder, "set_state", full)
    error = fails(stand_ins)
    assert "RuntimeError: first" in str(error)
    assert open_run(error.facts["folder"]).state == "interrupted"


# --- captures


def test_torch_without_traces_is_no_success(stand_ins):
    error = fails(stand_ins, CaptureError)
    assert "the capture cannot be read" in error.found
    assert open_run(error.facts["folder"]).state == "failed"
    stand_ins.install("nsys")
    error = fails(stand_ins, CaptureError, profile_mode="nsys", tensor_parallel_size=2)
    assert error.found.endswith("none of rank 1")
    assert "spawned" in error.hint


@pytest.mark.parametrize(
    ("tool", "writes", "found", "advice"),
    [
        ("nsys", "nothing", "nsys wrote no report", "cudaProfilerStart"),
        ("ncu", "no permission", "ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("ncu", "nothing", "ncu wrote no report", "kernel_name and launch_skip"),
    ],
)
def test_a_profiler_that_wrote_nothing_is_no_success(stand_ins, tool, writes, found, advice):
    stand_ins.install(tool)
    stand_ins.how(f"STAND_IN_{tool.upper()}", writes=writes)
    error = fails(stand_ins, CaptureError, profile_mode=tool)
    assert found in error.found
    assert advice in error.hint


def test_an_error_of_ours_leaves_its_traceback_in_the_folder(stand_ins, monkeypatch):
    stand_ins.how(sample="torch_tp1_eager")

    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("llmprof.run.launch.run.results.requests.document", broken)
    with pytest.raises(ZeroDivisionError):
        ExperimentRunner(stand_ins.config()).run()
    state = open_run(folders(stand_ins)[0]).folder.state
    assert state["state"] == "failed"
    assert "a bug" in state["error"]["traceback"]


@pytest.mark.parametrize(
    ("part", "mode"),
    [
        ("results.check_capture", "torch"),
        ("results._write_numbers", "nsys"),
        ("profilers.write_numbers", "ncu"),
    ],
)
def test_a_result_that_fails_does_not_cost_the_run(stand_ins, monkeypatch, part, mode):
    stand_ins.install("nsys", "ncu")
    stand_ins.how(sample="torch_tp1_eager")

    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(f"llmprof.run.launch.run.{part}", broken)
    with pytest.warns(TraceWarning, match="ZeroDivisionError: a bug"):
        run = ExperimentRunner(stand_ins.config(profile_mode=mode)).run()
    assert run.state == "finished"
    assert run.summary["metrics"]
    (failed,) = open_run(run.folder.path).summary["failed"]
    assert "in broken" in failed["traceback"]
