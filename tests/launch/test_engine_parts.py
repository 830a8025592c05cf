"""Parts of the engine scripts, each by itself."""

from __future__ import annotations

import os
import stat

import pytest

from llmprof.launch.engines import _machine, _vllm
from llmprof.launch.engines._job import Record
from tests.launch.vllm_stand_in import job

MESSAGES = {
    "AssertionError: Error in memory profiling. Initial free memory 3 GiB": "memory",
    "Total number of attention heads (4) must be divisible by tensor parallel size (3)": "tensor_parallel_size",
    "Value error, User-specified max_model_len (9000) is greater than the derived max_model_len": "max_model_len",
    "ValueError: The decoder prompt (length 900) is longer than the maximum model length of 512.": "max_model_len",
    "Value error, Model architectures ['Abc'] are not supported for now.": "architecture",
    "OSError: abc is not a local folder and is not a valid model identifier": "config.json",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690": "NCCL_DEBUG",
    "ModuleNotFoundError: No module named 'flashinfer'": "VLLM_USE_FLASHINFER_SAMPLER",
    "ModuleNotFoundError: No module named 'jmespath'": "install",
    "AttributeError: 'profile' object has no attribute 'annotate_context_manager'": "another version",
}


@pytest.mark.parametrize("message", MESSAGES)
def test_known_errors_have_an_advice(message):
    assert MESSAGES[message] in (_machine.known(message) or ("", ""))[1]


@pytest.mark.parametrize(
    "message",
    ["IndexError: list index out of range", "INFO Available KV cache memory: 3.2 GiB", "INFO Using FlashInfer backend"],
)
def test_what_is_not_known_has_none(message):
    assert _machine.known(message) is None


def test_an_error_is_explained_by_what_led_to_it():
    try:
        try:
            raise ValueError("No available memory for the cache blocks.")
        except ValueError as first:
            raise RuntimeError("the engine failed") from first
    except RuntimeError as error:
        found = _machine.failure(error, "")
    assert found["message"] == "the engine failed"
    assert "kv_cache_memory_bytes" in found["advice"]
    assert found["traceback"].endswith("RuntimeError: the engine failed\n")


def test_the_first_error_of_a_log_is_the_cause():
    log = (
        "(EngineCore pid=1) ERROR 11-21 13:21:24 [core.py:1] ValueError: not enough heads \n"
        "BrokenPipeError: [Errno 32] Broken pipe\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    found = _machine.errors_in(log)
    assert found == [
        "ValueError: not enough heads",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]


@pytest.mark.parametrize(
    ("code", "name", "advised"),
    [(-11, "SIGSEGV", "PYTHONFAULTHANDLER"), (-9, "SIGKILL", "main memory"), (-250, "signal 250", None)],
)
def test_a_worker_that_a_signal_ended_is_named(code, name, advised):
    log = (
        "(MainProcess pid=7) WARNING 11-23 09:25:14 [base.py:380] ValueError: Tokenizer not available\n"
        f"(EngineCore pid=9) ERROR 11-23 Worker proc VllmWorker-1 died unexpectedly (exit code: {code})\n"
        "(EngineCore pid=9) ERROR 11-23 [core.py:1750] RuntimeError: cancelled\n"
    )
    found = _machine.failure(RuntimeError("Call to profile method failed: cancelled"), log)
    ended = f"its worker VllmWorker-1 was ended by {name}"
    assert found["message"] == f"Call to profile method failed: cancelled (its log: {ended})"
    assert (advised in found["advice"]) if advised else (found["advice"] is None)


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["H200", "H100", "L4"]), ("2,0", ["L4", "H200"]), ("GPU-bbbb", ["H100"]), ("", []), ("MIG-1", None)],
    ids=["all", "numbers", "name", "none", "unknown"],
)
def test_gpus_are_those_that_are_visible(tmp_path, monkeypatch, visible, names):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, GPU-aaaa, H200'; echo '1, GPU-bbbb, H100'; echo '2, GPU-cccc, L4'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _machine.gpu_names() == names


@pytest.mark.parametrize(
    ("cores", "ranks", "wanted"),
    [
        ({0, 1}, 1, {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}),
        ({0, 1}, 2, {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}),
        ({2, 3, 5, 7, 8}, 2, {"VLLM_CPU_OMP_THREADS_BIND": "2,3|5,7"}),
        ({0}, 2, {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}),
    ],
    ids=["one rank", "a core each", "shares", "too few"],
)
def test_ranks_share_the_cores_of_a_cpu(monkeypatch, cores, ranks, wanted):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    assert _machine.cpu_threads(ranks) == wanted


def test_fields_of_a_class_are_read_without_importing_it(tmp_path):
    source = tmp_path / "a.py"
    source.write_text("import nothing_like_this\nclass A:\n    x: int = 1\n    y = 2\nclass B(A):\n    z: str\n")
    assert _vllm.fields_of(source, "A") == {"x"}
    assert _vllm.fields_of(source, "A", "B") == {"x", "z"}
    assert _vllm.fields_of(source, "C") is None
    assert _vllm.fields_of(tmp_path / "b.py", "A") is None


def test_a_stage_that_fails_is_not_measured(tmp_path):
    record = Record(tmp_path / "out", job())
    with record.stage("init"):
        pass
    with pytest.raises(KeyError), record.stage("plain", repeat=0):
        raise KeyError
    assert [stage["name"] for stage in record.document["stages"]] == ["init"]
    assert len((tmp_path / "out" / "events.jsonl").read_text().splitlines()) == 2
