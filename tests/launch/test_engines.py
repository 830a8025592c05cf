"""Engine scripts, on stand-ins of several versions of vLLM."""

import ast
import asyncio
import contextlib
import http.client
import io
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from llmprof.errors import ConfigError
from llmprof.run.launch import ExperimentConfig, engines, plan
from llmprof.run.workers import machine, vllm_common
from llmprof.run.workers.job import RunRecord
from llmprof.run.workers.server import EngineServer, end_of_talk, routed
from tests.launch.vllm_stand_in import HERE, Ran, StandInVllm, job, job_of
from tests.live.hostile import SLOW, hostile, whole
from tests.processes import is_running

KINDS = {"vllm": {}, "served": {"served": True}, "transformers": {"engine": "transformers"}}


@pytest.fixture
def newest(tmp_path):
    return StandInVllm(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_stands_alone(kind):
    packed = zipfile.ZipFile(io.BytesIO(engines.script(job(**KINDS[kind]))))
    names = [Path(name) for name in packed.namelist() if name.endswith(".py")]
    for name in names:
        nodes = list(ast.walk(ast.parse(packed.read(str(name)))))
        imported = {one.name for n in nodes if isinstance(n, ast.Import) for one in n.names}
        imported |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
        assert {name.split(".")[0] for name in imported} <= set(sys.stdlib_module_names), name
        beside = {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.level}
        assert beside <= {one.stem for one in names}, name


def test_the_job_comes_back_whatever_is_in_it():
    wanted = job(
        prompts=["\"\"\"\\ ''' \n\u2028 ü {x}", "}"],
        prompt_token_ids=None,
        engine_args={"a": {"b": [1, None]}},
    )
    assert job_of(engines.script(wanted)) == wanted


def test_an_engine_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="there is no engine 'exllama'; expected one of sglang"):
        engines.script(job(engine="exllama"))
    with pytest.raises(
        ConfigError, match="the engine transformers has no server; choose engine sglang"
    ):
        engines.script(job(engine="transformers", served=True))


def test_phases_come_in_order_and_only_the_profiled_one_is_in_the_window(newest):
    ran = newest.run()
    assert ran.status == 0, ran.errors
    assert [call.get("method", call["what"]) for call in ran.calls] == [
        *("LLM", "start_profile", "generate", "stop_profile", "llmprof_begin"),
        *("generate", "generate", "generate", "llmprof_watch_steps"),
        *(
            "start_profile",
            "generate",
            "stop_profile",
            "llmprof_steps",
            "llmprof_facts",
            "shutdown",
        ),
    ]
    events = [
        json.loads(line)["event"] for line in (ran.out / "events.jsonl").read_text().splitlines()
    ]
    assert events == [
        *("import", "init", "warm_profiler", "warmup", "plain", "plain"),
        *("start_profile", "profiled", "stop_profile", "stop", "done"),
    ]
    stages = [(stage["name"], stage["repeat"]) for stage in ran.worker["stages"]]
    assert stages[3:6] == [("warmup", 0), ("plain", 0), ("plain", 1)]
    assert [r["phase"] for r in ran.worker["requests"]] == ["warmup"] * 2 + ["plain"] * 4 + [
        "profiled"
    ] * 2
    times = {
        "ttft_s": 1.125,
        "tpot_s": 0.5,
        "queue_s": 0.25,
        "prefill_s": 0.75,
        "decode_s": 1.0,
        "e2e_s": 2.125,
    }
    first = {
        "start_ns": 1_000_500_000_000,
        "prompt_tokens": 3,
        "output_tokens": 3,
        "finish_reason": "length",
        **times,
    }
    assert first.items() <= ran.worker["requests"][2].items()


def profiler_config(ran, most):
    """What vLLM is told of its profiler."""
    return {
        "profiler": "torch",
        "max_iterations": most,
        "torch_profiler_dir": str(ran.out / "traces"),
        "torch_profiler_with_stack": False,
        "torch_profiler_record_shapes": True,
        "torch_profiler_with_memory": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
    }


def test_a_newer_version_is_asked_by_arguments(newest):
    ran = newest.run(
        engine_args={"gpu_memory_utilization_x": 1, "max_num_seqs": 4}, max_iterations=9
    )
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
        "worker_extension_cls": "llmprof_engine.vllm_worker.LlmprofWorker",
        "gdn_prefill_backend": "triton",
        "max_num_seqs": 4,
        "disable_log_stats": False,
        "profiler_config": profiler_config(ran, 9),
    }
    assert ran.worker["dropped_engine_args"] == ["gpu_memory_utilization_x"]
    assert ran.worker["notes"] == [
        "engine option gpu_memory_utilization_x ignored: vLLM 0.33.0 does not know it"
    ]
    guards = {
        "HF_HUB_OFFLINE": "1",
        "NCCL_NVLS_ENABLE": "0",
    }
    assert guards.items() <= llm["environment"].items()  # all of them: test_config
    assert "VLLM_WORKER_MULTIPROC_METHOD" not in llm["environment"]
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in llm["environment"]


@pytest.mark.parametrize(
    ("version", "profile"),
    [
        ("0.33.0", ["start_profile", "stop_profile"]),
        ("0.10.2", [["llmprof_cuda_profiler", [True]], ["llmprof_cuda_profiler", [False]]]),
    ],
)
def test_the_profiler_of_cuda_is_started_and_stopped_in_every_version(tmp_path, version, profile):
    ran = StandInVllm(tmp_path, version).run(profiler="cuda", plain=False)
    asked = [
        [c["method"], c["args"]] if c["what"] == "collective_rpc" else c["what"] for c in ran.calls
    ]
    others = [
        ["llmprof_begin", []],
        ["llmprof_watch_steps", []],
        ["llmprof_steps", []],
        ["llmprof_facts", []],
    ]
    window = [one for one in asked if one not in ("LLM", "shutdown", *others)]
    assert window == ["generate", profile[0], "generate", profile[1]]
    started = ran.called("LLM")[0]["environment"]
    assert started["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"  # nsys and ncu cannot follow a fork


def test_texts_are_generated_with_the_tokenizer_and_sampled_with_a_seed_each(newest):
    (newest.model / "tokenizer.json").touch()
    ran = newest.run(
        prompts=["a", "b"], prompt_token_ids=None, temperature=0.5, seed=3, ignore_eos=False
    )
    (warm, one, *_) = ran.called("generate")
    assert warm["prompts"] == ["a"]
    assert one["prompts"] == ["a", "b"]
    common = {"temperature": 0.5, "max_tokens": 3, "ignore_eos": False}
    assert one["sampling"] == [common | {"seed": 3}, common | {"seed": 4}]
    assert "skip_tokenizer_init" not in ran.called("LLM")[0]["values"]
    assert (
        (ran.out / "generated_output.txt").read_text().startswith("=== request 0: text\ntext 0\n")
    )


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
)
def test_what_cannot_run_is_explained_before_the_engine_starts(newest, changes, found, advice):
    ran = newest.run(**changes)
    assert ran.status == 3
    error = ran.worker["error"]
    assert error["type"] == "Refused"
    assert re.search(found, error["message"])
    assert advice in error["advice"]
    assert ran.order == []


def test_the_cause_is_taken_from_what_the_workers_say(newest):
    says = "INFO flashinfer is not out of memory\n(Worker) ValueError: No available memory for the cache blocks."
    ran = newest.run(
        {"says": says, "fails": "Engine core initialization failed. See root cause above."}
    )
    assert ran.status == 3
    assert (
        "its log: ValueError: No available memory for the cache blocks."
        in ran.worker["error"]["message"]
    )
    assert "kv_cache_memory_bytes" in ran.worker["error"]["advice"]


@pytest.mark.parametrize("name", ["generated_output.txt", "events.jsonl"])
def test_a_full_disk_is_explained_and_leaves_no_process(newest, name):
    out = newest.folder / "out"
    out.mkdir()
    (out / name).symlink_to("/dev/full")
    ran = newest.run({"child": True})
    assert ran.status == 3
    assert "No space left on device" in ran.worker["error"]["message"]
    assert "results_dir" in ran.worker["error"]["advice"]
    assert not any(is_running(child["pid"]) for child in ran.called("child"))


def test_an_unknown_error_is_a_crash_that_is_written_down(newest):
    ran = newest.run({"fails": "something new", "child": True})
    assert ran.status == 1
    assert ran.worker["error"]["message"] == "something new"
    assert ran.worker["error"]["advice"] is None
    assert "raise RuntimeError(HOW" in ran.worker["error"]["traceback"]
    assert [stage["name"] for stage in ran.worker["stages"]] == ["import"]
    assert json.loads((ran.out / "events.jsonl").read_text().splitlines()[-1])["event"] == "error"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "termination"]
)
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
    script = tmp_path / "script.pyz"
    script.write_bytes(engines.script(job(model=str(tmp_path))))
    (tmp_path / "config.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-I", str(script)], capture_output=True, env={}, timeout=300, check=False
    )
    (out,) = tmp_path.glob("repeat-*")
    ran = Ran(done.returncode, out, [], "", json.loads((out / "worker.json").read_text()))
    assert ran.status == 3
    assert ran.worker["error"]["message"] == f"{sys.executable} has no vLLM"
    assert "python" in ran.worker["error"]["advice"]


# --- parts of the engine scripts, each by itself


MESSAGES = {
    "AssertionError: Error in memory profiling. Initial free memory 3 GiB": "memory",
    "Total number of attention heads (4) must be divisible by tensor parallel size (3)": "tensor_parallel_size",
    "Value error, User-specified max_model_len (9000) is greater than the derived max_model_len": "max_model_len",
    "ValueError: The decoder prompt (length 900) is longer than the maximum model length of 512.": "max_model_len",
    "Value error, Model architectures ['Abc'] are not supported for now.": "architecture",
    "OSError: abc is not a local folder and is not a valid model identifier": "config.json",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690": "NCCL_DEBUG",
    "ModuleNotFoundError: No module named 'flashinfer'": "gdn_prefill_backend: triton",
    "RuntimeError: FlashInfer sampling does not support this device": "VLLM_USE_FLASHINFER_SAMPLER",
    "pynvml.NVMLError_GpuIsLost: GPU is lost": "CUDA_VISIBLE_DEVICES",
    "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered": "CUDA_VISIBLE_DEVICES",
    "torch.AcceleratorError: CUDA error: unspecified launch failure": "CUDA_LAUNCH_BLOCKING",
    "RuntimeError: CUDA error: peer access is not supported between these two devices": "P2P",
    "ModuleNotFoundError: No module named 'jmespath'": "install",
    "AttributeError: 'profile' object has no attribute 'annotate_context_manager'": "another version",
}


def test_known_errors_have_an_advice():
    for message, knob in MESSAGES.items():
        assert knob in (machine.known_cause(message) or ("", ""))[1], message
    unknown = (
        "IndexError: list index out of range",
        "INFO Available KV cache memory: 3.2 GiB",
        "INFO Using FlashInfer",
    )
    assert [machine.known_cause(message) for message in unknown] == [None] * 3


def test_an_error_is_explained_by_what_led_to_it():
    try:
        try:
            raise ValueError("No available memory for the cache blocks.")
        except ValueError as first:
            raise RuntimeError("the engine failed") from first
    except RuntimeError as error:
        found = machine.describe_failure(error, "")
    assert found["message"] == "the engine failed"
    assert "kv_cache_memory_bytes" in found["advice"]
    assert found["traceback"].endswith("RuntimeError: the engine failed\n")
    log = (
        "(EngineCore pid=1) ERROR 11-21 13:21:24 [core.py:1] ValueError: not enough heads \n"
        "BrokenPipeError: [Errno 32] Broken pipe\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert [found.partition(":")[0] for found in machine.errors_in(log)] == [
        "ValueError",
        "RuntimeError",
    ]


@pytest.mark.parametrize(
    ("code", "name", "advised"),
    [
        (-11, "SIGSEGV", "PYTHONFAULTHANDLER"),
        (-9, "SIGKILL", "main memory"),
        (-250, "signal 250", None),
    ],
)
def test_a_worker_that_a_signal_ended_is_named(code, name, advised):
    log = (
        "(MainProcess pid=7) WARNING 11-23 09:25:14 [base.py:380] ValueError: Tokenizer not available\n"
        f"(EngineCore pid=9) ERROR 11-23 Worker proc VllmWorker-1 died unexpectedly (exit code: {code})\n"
        "(EngineCore pid=9) ERROR 11-23 [core.py:1750] RuntimeError: cancelled\n"
    )
    found = machine.describe_failure(RuntimeError("Call to profile method failed: cancelled"), log)
    ended = f"its worker VllmWorker-1 was ended by {name}"
    assert found["message"] == f"Call to profile method failed: cancelled (its log: {ended})"
    assert (advised in found["advice"]) if advised else (found["advice"] is None)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["H200", "H100", "L4"]),
        ("2,0", ["L4", "H200"]),
        ("GPU-bbbb", ["H100"]),
        ("", []),
        ("MIG-1", None),
    ],
)
def test_gpus_are_those_that_are_visible(tmp_path, monkeypatch, visible, names):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho '0, GPU-aaaa, H200'; echo '1, GPU-bbbb, H100'; echo '2, GPU-cccc, L4'\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpu_names() == names


@pytest.mark.parametrize(
    ("cores", "ranks", "bound"),
    [
        ({0, 1}, 1, "nobind"),
        ({0, 1}, 2, "0|1"),
        ({2, 3, 5, 7, 8}, 2, "2,3|5,7"),
        ({0}, 2, "nobind"),
    ],
)
def test_ranks_share_the_cores_of_a_cpu(monkeypatch, cores, ranks, bound):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    few = {"OMP_NUM_THREADS": "1"} if len(cores) < ranks else {}
    assert machine.cpu_threads(ranks) == {"VLLM_CPU_OMP_THREADS_BIND": bound} | few


def test_fields_of_a_class_are_read_without_importing_it(tmp_path):
    source = tmp_path / "a.py"
    source.write_text(
        "import nothing_like_this\nclass A:\n    x: int = 1\n    y = 2\nclass B(A):\n    z: str\n"
    )
    assert vllm_common.fields_of(source, "A") == {"x"}
    assert vllm_common.fields_of(source, "A", "B") == {"x", "z"}
    assert vllm_common.fields_of(source, "C") is None
    assert vllm_common.fields_of(tmp_path / "b.py", "A") is None


def test_a_stage_that_fails_is_not_measured(tmp_path):
    record = RunRecord(tmp_path / "out", job())
    with record.stage("init"):
        pass
    with pytest.raises(KeyError), record.stage("plain", repeat=0):
        raise KeyError
    assert [stage["name"] for stage in record.document["stages"]] == ["init"]
    assert len((tmp_path / "out" / "events.jsonl").read_text().splitlines()) == 2


# --- the script of a served vLLM, on a stand-in server


def server(**changes):
    return job()["server"] | changes


def served(vllm, how=None, **changes):
    return vllm.run(how, served=True, **changes)


def test_a_server_is_started_loaded_profiled_and_stopped(vllm):
    ran = served(vllm, repeat=1)
    assert ran.status == 0, ran.errors
    completions, rpc = "/v1/completions", "/collective_rpc"
    assert ran.order == [
        *("serve", "child", "/start_profile", completions, "/stop_profile", rpc),
        *([completions] * 2 + [completions] * 4),
        *(rpc, "/start_profile", *[completions] * 4, "/stop_profile", rpc, rpc, "interrupted"),
    ]
    methods = ["llmprof_begin", "llmprof_watch_steps", "llmprof_steps", "llmprof_facts"]
    assert [call["body"]["method"] for call in ran.called(rpc)] == methods
    assert not is_running(ran.called("child")[0]["pid"])
    stages = [stage["name"] for stage in ran.worker["stages"]]
    assert stages == [
        "serve",
        "warm_profiler",
        "warmup",
        "plain",
        "start_profile",
        "profiled",
        "stop_profile",
    ]
    assert ran.called("serve")[0]["dev"] == "1"
    assert served(vllm, profiler="none").calls[-1]["what"] == "interrupted"


def test_the_command_of_the_server_has_the_options_of_the_engine(vllm):
    ran = served(
        vllm, engine_args={"api_key": "k", "max_num_seqs": 4, "frob": 1}, tensor_parallel_size=2
    )
    (found,) = ran.called("serve")
    argv = found["argv"]
    port = argv[argv.index("--port") + 1]
    assert argv == [
        *("serve", str(vllm.model), "--host", "127.0.0.1", "--port", port),
        *("--dtype", "bfloat16", "--max-model-len", "128"),
        *(
            "--tensor-parallel-size",
            "2",
            "--pipeline-parallel-size",
            "1",
            "--distributed-executor-backend",
            "mp",
        ),
        *(
            "--seed",
            "0",
            "--load-format",
            "dummy",
            "--skip-tokenizer-init",
            "--no-enable-prefix-caching",
        ),
        *(
            "--worker-extension-cls",
            "llmprof_engine.vllm_worker.LlmprofWorker",
            "--gdn-prefill-backend",
            "triton",
        ),
        *("--api-key", "k", "--max-num-seqs", "4"),
        *("--profiler-config", json.dumps(profiler_config(ran, 0)), "--served-model-name", "model"),
    ]
    assert ran.worker["dropped_engine_args"] == ["frob"]


def test_times_of_requests_are_those_that_the_client_saw(vllm):
    ran = served(vllm, {"token_s": 0.01}, repeat=1)
    for one in ran.worker["requests"]:
        assert (one["prompt_tokens"], one["output_tokens"], one["finish_reason"]) == (
            3,
            3,
            "length",
        )
        assert len(one["itl_s"]) == 2
        assert one["ttft_s"] >= 0.01
        assert one["e2e_s"] == pytest.approx(one["ttft_s"] + sum(one["itl_s"]))
        assert one["tpot_s"] == pytest.approx(sum(one["itl_s"]) / 2)
        assert one["queue_s"] is None
    phases = [(one["phase"], one["request"]) for one in ran.worker["requests"]]
    wanted = {"warmup": 2, "plain": 4, "profiled": 4}
    assert phases == [(phase, k) for phase, count in wanted.items() for k in range(count)]
    assert (
        (ran.out / "generated_output.txt")
        .read_text()
        .startswith("=== request 0: token numbers\n1 2 3\n")
    )


def test_the_cache_is_read_from_the_metrics(vllm):
    cache = served(vllm, {"token_s": 0.25}, plain=False, warmup=0).worker["kv_cache"]
    known = {"blocks": 100, "block_size": 16, "tokens": 1600, "bytes": None, "peak_usage": 0.25}
    assert cache == known


def test_the_window_may_begin_within_the_load(vllm):
    ran = served(
        vllm,
        {"token_s": 0.05},
        server=server(profile_after_s=0.05, max_concurrency=1),
        warmup=0,
        plain=False,
    )
    assert ran.status == 0, ran.errors
    at = ran.order.index("/start_profile")
    assert ran.order[at - 1] == "/v1/completions"
    assert ran.order[at + 1] == "/v1/completions"
    ran = served(vllm, server=server(profile_after_s=30.0), plain=False)
    assert ran.status == 3
    assert "profile_after_s" in ran.worker["error"]["advice"]


def test_a_port_in_use_is_explained(vllm):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ran = served(vllm, server=server(port=port))
    assert ran.status == 3
    assert ran.worker["error"]["message"].startswith(f"port {port} cannot be used: ")
    assert ran.worker["error"]["advice"] == "choose another server port, or 0"
    assert ran.order == []


def test_a_server_that_ends_at_once_is_explained_from_its_log(vllm):
    ran = served(vllm, {"exits": "ValueError: No available memory for the cache blocks."})
    assert ran.status == 3
    assert (
        "with status 1 (its log: ValueError: No available memory" in ran.worker["error"]["message"]
    )


def test_a_server_that_never_answers_is_given_up(vllm):
    ran = served(vllm, {"sick": True}, server=server(health_timeout_s=0.5))
    assert ran.status == 3
    assert ran.worker["error"]["message"] == "the server did not answer within 0.5 s"
    # on a busy machine the server may be ended before it has a child
    assert not any(is_running(child["pid"]) for child in ran.called("child"))


def test_a_server_that_dies_in_the_middle_is_explained_from_its_log(vllm):
    ran = served(vllm, {"dies": True})
    assert ran.status == 3
    assert "the server ended in the middle of a request" in ran.worker["error"]["message"]
    assert "CUDA out of memory" in ran.worker["error"]["message"]
    assert not is_running(ran.called("child")[0]["pid"])


def test_a_refused_request_is_an_error(vllm):
    ran = served(vllm, {"refuses": True})
    assert ran.status == 1
    assert ran.worker["error"]["message"] == 'the server answered 404: {"error": "no such model"}'


def servers_of(ran):
    """Ports of the servers that prefill and that decode, and what was asked of each."""
    ports = [
        int(call["argv"][call["argv"].index("--port") + 1])
        for call in sorted(
            ran.called("serve"), key=lambda call: call["known"]["CUDA_VISIBLE_DEVICES"]
        )
    ]
    return [[call for call in ran.calls if call.get("port") == port] for port in ports]


def test_a_prompt_is_read_by_one_server_and_generated_by_another(vllm):
    ran = served(vllm, {"token_s": 0.01}, disaggregate="1+1", repeat=1)
    assert ran.status == 0, ran.errors
    starts = ran.called("serve")
    assert sorted(start["known"]["CUDA_VISIBLE_DEVICES"] for start in starts) == ["0", "1"]
    assert len({start["known"]["VLLM_NIXL_SIDE_CHANNEL_PORT"] for start in starts}) == 2
    for start in starts:
        moved = json.loads(start["argv"][start["argv"].index("--kv-transfer-config") + 1])
        assert moved == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        traces = json.loads(start["argv"][start["argv"].index("--profiler-config") + 1])
        kind = "decode" if start["known"]["CUDA_VISIBLE_DEVICES"] == "1" else "prefill"
        assert traces["torch_profiler_dir"] == str(ran.out / "traces" / kind)
    assert ran.worker["connector"] == "NixlConnector"
    sent, taken = (
        [call["body"] for call in calls if call["what"] == COMPLETIONS] for calls in servers_of(ran)
    )
    assert len(sent) == len(taken) == 1 + 2 + 4 + 4  # of the profiler's warm-up, and the phases
    for first, then in zip(
        sorted(sent, key=lambda body: body["prompt"]),
        sorted(taken, key=lambda body: body["prompt"]),
        strict=True,
    ):
        assert (first["max_tokens"], first["kv_transfer_params"]["do_remote_decode"]) == (1, True)
        assert then["kv_transfer_params"] == {"remote_block_ids": then["prompt"]}
        assert then["prompt"] == first["prompt"]
    for calls in servers_of(ran):
        switched = [call["what"] for call in calls if call["what"].endswith("_profile")]
        assert switched == ["/start_profile", "/stop_profile"] * 2
    for one in ran.worker["requests"]:
        assert 0 < one["prefilled_s"] <= one["ttft_s"] - 0.01
        assert one["e2e_s"] == pytest.approx(one["ttft_s"] + sum(one["itl_s"]))


def test_a_connector_of_ones_own_has_roles(vllm):
    given = {"kv_connector": "MooncakeConnector", "kv_buffer_size": 7}
    ran = served(
        vllm,
        disaggregate="2+1",
        profiler="none",
        engine_args={"kv_transfer_config": given},
        repeat=1,
        tensor_parallel_size=1,
    )
    assert ran.status == 3  # there are two GPUs
    assert "3 GPUs" in ran.worker["error"]["message"]
    ran = served(
        vllm, disaggregate="1+1", profiler="none", engine_args={"kv_transfer_config": given}
    )
    roles = {
        start["known"]["CUDA_VISIBLE_DEVICES"]: json.loads(
            start["argv"][start["argv"].index("--kv-transfer-config") + 1]
        )
        for start in ran.called("serve")
    }
    assert roles == {
        "0": {"kv_role": "kv_producer"} | given,
        "1": {"kv_role": "kv_consumer"} | given,
    }
    wrong = served(vllm, disaggregate="1+1", engine_args={"kv_transfer_config": "nixl"})
    assert wrong.status == 3
    assert "kv_transfer_config" in wrong.worker["error"]["message"]


def test_an_instance_that_dies_while_the_other_waits_is_named(vllm):
    # the second request of two at a time finds no server that prefills; the first one would wait
    # for its tokens for minutes
    ran = served(
        vllm, {"prefill_dies": 1, "token_s": 100.0}, disaggregate="1+1", plain=False, warmup=0
    )
    assert ran.status != 0
    assert "the prefill-server ended with status 7" in ran.worker["error"]["message"]
    _, decode = servers_of(ran)
    switched = [call["what"] for call in decode if call["what"].endswith("_profile")]
    assert switched == ["/start_profile", "/stop_profile"]  # what it recorded is kept
    assert not any(is_running(child["pid"]) for child in ran.called("child"))


@pytest.mark.parametrize("body", ["", '{"choices": [{"te'])
def test_an_answer_that_is_cut_is_no_answer(body):
    """Of a server that prefills and ends in the middle of one, after it said that all is well."""

    async def ask():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 200 OK\r\n\r\n{body}".encode())
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await routed((port, port), {"prompt": "a"})

    with pytest.raises(RuntimeError):
        asyncio.run(ask())


def test_an_interrupt_ends_the_server_and_its_children(vllm):
    process = vllm.start({"token_s": 30.0}, served=True)
    calls = vllm.folder / "calls.jsonl"
    until = time.monotonic() + 180
    while time.monotonic() < until and not (
        calls.exists() and "/v1/completions" in calls.read_text()
    ):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    ran = vllm.finish(process)
    assert ran.status == 130
    assert ran.worker["error"]["type"] == "KeyboardInterrupt"
    assert not is_running(ran.called("child")[0]["pid"])
    assert ran.order[-1] == "interrupted"


# --- scripts of SGLang's and TensorRT-LLM's servers on stand-ins: their command lines, and when the
# window is open


COMPLETIONS = "/v1/completions"


@pytest.fixture
def site(tmp_path):
    """Stand-ins of both servers, and a model with a tokenizer."""
    made = StandInVllm(tmp_path)
    server = (HERE / "server.py").read_text()
    package = tmp_path / "site" / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(server)
    for name, version in (("sglang", "0.5.11"), ("tensorrt_llm", "1.2.0")):
        info = tmp_path / "site" / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    program = tmp_path / "bin" / "trtllm-serve"
    program.write_text(f"#!{sys.executable}\n{server}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (made.model / "tokenizer.json").write_text("{}")
    return made


def run(site, name, how=None, **changes):
    return site.run(how, engine=name, served=True, repeat=1, random_weights=False, **changes)


def argv_of(ran):
    (call,) = ran.called("serve")
    return call["argv"]


def test_sglang_is_told_to_record_the_profiled_requests_alone(site):
    ran = run(
        site,
        "sglang",
        tensor_parallel_size=2,
        engine_args={"mem_fraction_static": 0.7, "enable_metrics": True},
    )
    assert ran.status == 0, ran.errors
    assert ran.order == [
        *("serve", "child", *[COMPLETIONS] * 2, *[COMPLETIONS] * 4),
        *("/start_profile", *[COMPLETIONS] * 4, "/stop_profile", "interrupted"),
    ]
    argv = argv_of(ran)
    port = argv[-1]
    assert argv == [
        *("--model-path", str(site.model), "--served-model-name", "model", "--dtype", "bfloat16"),
        *(
            "--context-length",
            "128",
            "--tp-size",
            "2",
            "--pp-size",
            "1",
            "--random-seed",
            "0",
            "--disable-radix-cache",
        ),
        *(
            "--mem-fraction-static",
            "0.7",
            "--enable-metrics",
            "--host",
            "127.0.0.1",
            "--port",
            port,
        ),
    ]
    (began,) = ran.called("/start_profile")
    assert began["body"] == {
        "output_dir": str(ran.out / "traces"),
        "activities": ["CPU", "GPU"],
        "record_shapes": True,
        "with_stack": False,
    }
    phases = [(one["phase"], one["request"]) for one in ran.worker["requests"]]
    wanted = {"warmup": 2, "plain": 4, "profiled": 4}
    assert phases == [(phase, k) for phase, count in wanted.items() for k in range(count)]
    assert ran.worker["engine_version"] == "0.5.11"
    assert any("never on hardware" in note for note in ran.worker["notes"])
    assert not is_running(ran.called("child")[0]["pid"])


def test_trtllm_serve_gets_its_window_by_the_environment(site, tmp_path):
    server = job()["server"] | {"profile_from_iteration": 40}
    seen = tmp_path / "environment.json"
    program = tmp_path / "bin" / "trtllm-serve"
    text = program.read_text()
    write = f"import json, os\nopen({str(seen)!r}, 'w').write(json.dumps(dict(os.environ)))\n"
    program.write_text(text.replace('"""A stand-in', f'{write}"""A stand-in', 1))
    ran = run(
        site, "tensorrt_llm", server=server, max_iterations=30, engine_args={"max_batch_size": 8}
    )
    assert ran.status == 0, ran.errors
    assert ran.order == ["serve", "child", *[COMPLETIONS] * 10, "interrupted"]
    assert argv_of(ran)[:-4] == [
        *(
            str(site.model),
            "--backend",
            "pytorch",
            "--tp_size",
            "1",
            "--pp_size",
            "1",
            "--max_seq_len",
            "128",
        ),
        *("--max_batch_size", "8"),
    ]
    values = json.loads(seen.read_text())
    assert values["TLLM_PROFILE_START_STOP"] == "40-70"
    assert values["TLLM_TORCH_PROFILE_TRACE"] == str(ran.out / "traces" / "rank0.pt.trace.json")
    assert ran.worker["engine_version"] == "1.2.0"
    assert any("iterations 40-70" in note for note in ran.worker["notes"])
    run(site, "tensorrt_llm", profiler="none")
    assert "TLLM_PROFILE_START_STOP" not in json.loads(seen.read_text())


@pytest.mark.parametrize("name", ["sglang", "tensorrt_llm"])
@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"layer_annotations": True}, "layer_annotations works with the engine vllm only"),
        ({"memory_snapshot": True}, "memory_snapshot works with the engine vllm only"),
        ({"tensor_parallel_size": 4}, "needs 4 GPUs"),
    ],
)
def test_what_they_cannot_do_is_refused_before_a_server_starts(site, name, changes, found):
    ran = run(site, name, **changes)
    assert ran.status == 3
    assert found in ran.worker["error"]["message"]
    assert ran.calls == []


def test_a_model_without_a_tokenizer_is_refused_and_so_are_random_weights_where_they_cannot_be(
    site,
):
    ran = site.run(None, engine="tensorrt_llm", served=True, random_weights=True)
    assert "random weights" in ran.worker["error"]["message"]
    (site.model / "tokenizer.json").unlink()
    assert "no tokenizer" in run(site, "sglang").worker["error"]["message"]


def test_command_lines_under_nsys_and_modes_that_are_refused(tmp_path):
    config = ExperimentConfig(
        model=str(tmp_path),
        engine="tensorrt_llm",
        served=True,
        profile_mode="nsys",
        python="/usr/bin/python3",
    )
    ((name, argv),) = plan(config)
    assert (name, argv[1]) == ("nsys", "profile")
    assert {
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--trace-fork-before-exec=true",
    } <= set(argv)
    with pytest.raises(
        ConfigError,
        match="tensorrt_llm does not support profile_mode ops; expected one of inference",
    ):
        config.replace(profile_mode="ops")
    with pytest.raises(ConfigError, match="sglang runs as a server only"):
        config.replace(engine="sglang", served=False, profile_mode="torch")


@pytest.fixture
def asking(tmp_path):
    """Who asks a hostile server, as if it were the one that it started."""

    def made(url):
        server = EngineServer(
            [sys.executable, "-c", ""], int(url.rpartition(":")[2]), tmp_path / "server.log"
        )
        stack.callback(server.stop)
        return server

    with contextlib.ExitStack() as stack:
        yield made


@pytest.mark.parametrize("kind", SLOW)
def test_an_answer_of_the_server_has_one_time_for_all_of_it(kind, asking):
    with hostile(SLOW[kind]) as server, pytest.raises((OSError, http.client.HTTPException)):
        asking(server.url).ask("GET", "/health", timeout_s=0.2)


def test_a_talk_that_ended_by_itself_can_be_ended():
    ours, theirs = socket.socketpair()
    theirs.close()
    ours.close()
    end_of_talk(ours)


def test_counters_of_the_server_that_cannot_be_read_are_left_out(asking):
    lines = ["a 1", "b x", 'c{le="}"} 2e3', "d 1.2.3", "e", "", "{ 4", "f Inf"]
    with hostile(whole("\n".join(lines).encode())) as server:
        assert asking(server.url).metrics() == {"a": 1.0, 'c{le="}"}': 2000.0, "f": float("inf")}
    with hostile({"/metrics": whole(b"a 1", status=500)}) as server:
        assert asking(server.url).metrics() == {}
