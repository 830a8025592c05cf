"""Engine scripts, on stand-ins of several versions of vLLM."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from llmprof.errors import ConfigError
from llmprof.launch import engines
from tests.launch.vllm_stand_in import Ran, StandInVllm, job
from tests.processes import is_running

KINDS = {"vllm": {}, "served": {"served": True}, "transformers": {"engine": "transformers"}}


@pytest.fixture
def newest(tmp_path):
    return StandInVllm(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_stands_alone(kind):
    text = engines.script(job(**KINDS[kind]))
    tree = ast.parse(text)
    imported = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    imported |= {name.name for n in ast.walk(tree) if isinstance(n, ast.Import) for name in n.names}
    assert {name.split(".")[0] for name in imported} <= set(sys.stdlib_module_names)
    assert 'if __name__ == "__main__":' in text


@pytest.mark.parametrize("kind", KINDS)
def test_no_part_of_a_script_hides_a_name_of_another(kind):
    names: list[str] = []
    for node in ast.parse(engines.script(job(**KINDS[kind]))).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else []
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    assert sorted(names) == sorted(set(names))


def test_the_job_comes_back_whatever_is_in_it():
    wanted = job(
        prompts=["\"\"\"\\ ''' \n\u2028 ü {x}", "}"], prompt_token_ids=None, engine_args={"a": {"b": [1, None]}}
    )
    found: dict[str, object] = {"__name__": "elsewhere"}
    exec(compile(engines.script(wanted), "script", "exec"), found)
    assert found["JOB"] == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"engine": "exllama"},
            "there is no engine 'exllama'; expected one of sglang, tensorrt_llm, transformers, vllm",
        ),
        (
            {"engine": "transformers", "served": True},
            "the engine transformers has no server; choose engine sglang, tensorrt_llm, vllm",
        ),
    ],
    ids=["unknown", "served"],
)
def test_an_engine_that_is_not_there_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        engines.script(job(**changes))


def test_phases_come_in_order_and_only_the_profiled_one_is_in_the_window(newest):
    ran = newest.run()
    assert ran.status == 0, ran.errors
    assert [call.get("method", call["what"]) for call in ran.calls] == [
        *("LLM", "start_profile", "generate", "stop_profile", "llmprof_begin"),
        *("generate", "generate", "generate", "llmprof_watch_steps"),
        *("start_profile", "generate", "stop_profile", "llmprof_steps", "llmprof_facts", "shutdown"),
    ]
    events = [json.loads(line)["event"] for line in (ran.out / "events.jsonl").read_text().splitlines()]
    assert events == [
        *("import", "init", "warm_profiler", "warmup", "plain", "plain"),
        *("start_profile", "profiled", "stop_profile", "done"),
    ]
    stages = [(stage["name"], stage["repeat"]) for stage in ran.worker["stages"]]
    assert stages[3:6] == [("warmup", 0), ("plain", 0), ("plain", 1)]
    assert [r["phase"] for r in ran.worker["requests"]] == ["warmup"] * 2 + ["plain"] * 4 + ["profiled"] * 2


def test_a_newer_version_is_asked_by_arguments(newest):
    ran = newest.run(engine_args={"gpu_memory_utilization_x": 1, "max_num_seqs": 4}, max_iterations=9)
    (llm,) = ran.called("LLM")
    assert llm["values"] == {
        "model": str(newest.model),
        "dtype": "bfloat16",
        "max_model_len": 128,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "seed": 0,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "worker_extension_cls": "llmprof_worker.LlmprofWorker",
        "max_num_seqs": 4,
        "disable_log_stats": False,
        "profiler_config": {
            "profiler": "torch",
            "max_iterations": 9,
            "torch_profiler_dir": str(ran.out / "traces"),
            "torch_profiler_with_stack": False,
            "torch_profiler_record_shapes": True,
            "torch_profiler_with_memory": False,
            "torch_profiler_dump_cuda_time_total": False,
            "ignore_frontend": True,
        },
    }
    assert ran.worker["dropped_engine_args"] == ["gpu_memory_utilization_x"]
    assert ran.worker["notes"] == ["engine option gpu_memory_utilization_x ignored: vLLM 0.33.0 does not know it"]
    guards = {
        "HF_HUB_OFFLINE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_NCCL_SYMM_MEM": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    assert guards.items() <= llm["environment"].items()
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in llm["environment"]


def test_times_of_requests_are_those_that_the_engine_tells(newest):
    first = newest.run(repeat=1).worker["requests"][2]
    assert first == {
        "phase": "plain",
        "repeat": 0,
        "request": 0,
        "id": "0",
        "arrived_s": None,
        "start_ns": 1_000_500_000_000,
        "prompt_tokens": 3,
        "output_tokens": 3,
        "finish_reason": "length",
        "ttft_s": 1.125,
        "tpot_s": 0.5,
        "itl_s": None,
        "queue_s": 0.25,
        "prefill_s": 0.75,
        "decode_s": 1.0,
        "e2e_s": 2.125,
    }


@pytest.mark.parametrize(
    ("version", "profile"),
    [
        ("0.33.0", ["start_profile", "stop_profile"]),
        ("0.11.0", ["start_profile", "stop_profile"]),
        ("0.10.2", [["llmprof_cuda_profiler", [True]], ["llmprof_cuda_profiler", [False]]]),
    ],
    ids=["0.33", "0.11", "0.10"],
)
def test_the_profiler_of_cuda_is_started_and_stopped_in_every_version(tmp_path, version, profile):
    ran = StandInVllm(tmp_path, version).run(profiler="cuda", plain=False)
    asked = [[c["method"], c["args"]] if c["what"] == "collective_rpc" else c["what"] for c in ran.calls]
    others = [["llmprof_begin", []], ["llmprof_watch_steps", []], ["llmprof_steps", []], ["llmprof_facts", []]]
    window = [one for one in asked if one not in ("LLM", "shutdown", *others)]
    assert window == ["generate", profile[0], "generate", profile[1]]


def test_texts_are_generated_with_the_tokenizer_and_sampled_with_a_seed_each(newest):
    (newest.model / "tokenizer.json").touch()
    ran = newest.run(prompts=["a", "b"], prompt_token_ids=None, temperature=0.5, seed=3, ignore_eos=False)
    (warm, one, *_) = ran.called("generate")
    assert warm["prompts"] == ["a"]
    assert one["prompts"] == ["a", "b"]
    common = {"temperature": 0.5, "max_tokens": 3, "ignore_eos": False}
    assert one["sampling"] == [common | {"seed": 3}, common | {"seed": 4}]
    assert "skip_tokenizer_init" not in ran.called("LLM")[0]["values"]
    assert (ran.out / "generated_output.txt").read_text().startswith("=== request 0: text\ntext 0\n")


def test_a_cpu_is_seen_from_the_version_and_gets_its_own_environment(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    ran = StandInVllm(tmp_path, "0.32.0+cpu").run(tensor_parallel_size=2)
    (llm,) = ran.called("LLM")
    assert ran.worker["platform"] == "cpu"
    assert llm["values"]["enforce_eager"] is True
    assert llm["values"]["max_num_seqs"] == 8
    half = len(cores) // 2
    halves = "|".join(",".join(map(str, cores[i * half : (i + 1) * half])) for i in range(2))
    assert llm["environment"]["VLLM_CPU_OMP_THREADS_BIND"] == (halves if half else "nobind")
    assert llm["environment"]["TORCHDYNAMO_DISABLE"] == "1"


@pytest.mark.parametrize(
    ("changes", "found", "advice"),
    [
        ({"tensor_parallel_size": 4}, "needs 4 GPUs .* there are 2", "lower tensor_parallel_size"),
        ({"model": "/none"}, "folder /none is missing", "random:tiny"),
    ],
    ids=["more ranks than GPUs", "no model"],
)
def test_what_cannot_run_is_explained_before_the_engine_starts(newest, changes, found, advice):
    ran = newest.run(**changes)
    assert ran.status == 3
    error = ran.worker["error"]
    assert error["type"] == "Refused"
    assert re.search(found, error["message"])
    assert advice in error["advice"]
    assert ran.order == []


def test_out_of_memory_says_which_knob(newest):
    ran = newest.run({"fails": "CUDA out of memory. Tried to allocate 20 GiB"})
    assert ran.status == 3
    for knob in ("gpu_memory_utilization", "max_model_len", "kv_cache_memory_bytes"):
        assert knob in ran.worker["error"]["advice"]


def test_the_cause_is_taken_from_what_the_workers_say(newest):
    says = "INFO flashinfer is not out of memory\n(Worker) ValueError: No available memory for the cache blocks."
    ran = newest.run({"says": says, "fails": "Engine core initialization failed. See root cause above."})
    assert ran.status == 3
    assert "its log: ValueError: No available memory for the cache blocks." in ran.worker["error"]["message"]
    assert "kv_cache_memory_bytes" in ran.worker["error"]["advice"]


def test_a_full_disk_is_explained_and_leaves_no_process(newest):
    out = newest.folder / "out"
    out.mkdir()
    (out / "generated_output.txt").symlink_to("/dev/full")
    ran = newest.run({"child": True})
    assert ran.status == 3
    assert "No space left on device" in ran.worker["error"]["message"]
    assert "results_dir" in ran.worker["error"]["advice"]
    assert not is_running(ran.called("child")[0]["pid"])


def test_events_that_cannot_be_written_end_the_run_in_order(newest):
    out = newest.folder / "out"
    out.mkdir()
    (out / "events.jsonl").symlink_to("/dev/full")
    ran = newest.run()
    assert ran.status == 3
    assert "results_dir" in ran.worker["error"]["advice"]


def test_an_unknown_error_is_a_crash_that_is_written_down(newest):
    ran = newest.run({"fails": "something new", "child": True})
    assert ran.status == 1
    assert ran.worker["error"]["message"] == "something new"
    assert ran.worker["error"]["advice"] is None
    assert 'raise RuntimeError(HOW["fails"])' in ran.worker["error"]["traceback"]
    assert [stage["name"] for stage in ran.worker["stages"]] == ["import"]
    assert json.loads((ran.out / "events.jsonl").read_text().splitlines()[-1])["event"] == "error"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "termination"])
def test_a_signal_ends_the_children_and_leaves_what_there_is(newest, number):
    process = newest.start({"child": True, "hangs": True})
    calls = newest.folder / "calls.jsonl"
    until = time.monotonic() + 180
    while time.monotonic() < until and not (calls.exists() and '"generate"' in calls.read_text()):
        time.sleep(0.05)
    process.send_signal(number)
    ran = newest.finish(process)
    assert ran.status == 130
    assert ran.worker["error"]["type"] == "KeyboardInterrupt"
    assert not is_running(ran.called("child")[0]["pid"])
    assert "shutdown" in ran.order


def test_an_interpreter_without_the_engine_is_explained(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(engines.script(job(model=str(tmp_path))))
    (tmp_path / "config.json").write_text("{}")
    done = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, env={}, timeout=300, check=False)
    (out,) = tmp_path.glob("repeat-*")
    ran = Ran(done.returncode, out, [], "", json.loads((out / "worker.json").read_text()))
    assert ran.status == 3
    assert ran.worker["error"]["message"] == f"{sys.executable} has no vLLM"
    assert "python" in ran.worker["error"]["advice"]
