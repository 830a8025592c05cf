"""The script of a served vLLM, on a stand-in server."""

from __future__ import annotations

import json
import os
import signal
import socket
import time

import pytest

from tests.launch.vllm_stand_in import job
from tests.processes import is_running


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
    assert stages == ["serve", "warm_profiler", "warmup", "plain", "start_profile", "profiled", "stop_profile"]
    assert ran.called("serve")[0]["dev"] == "1"
    assert served(vllm, profiler="none").calls[-1]["what"] == "interrupted"


def test_the_command_of_the_server_has_the_options_of_the_engine(vllm):
    ran = served(vllm, engine_args={"api_key": "k", "max_num_seqs": 4, "frob": 1}, tensor_parallel_size=2)
    (found,) = ran.called("serve")
    argv = found["argv"]
    port = argv[argv.index("--port") + 1]
    profiler = {
        "profiler": "torch",
        "max_iterations": 0,
        "torch_profiler_dir": str(ran.out / "traces"),
        "torch_profiler_with_stack": False,
        "torch_profiler_record_shapes": True,
        "torch_profiler_with_memory": False,
        "torch_profiler_dump_cuda_time_total": False,
        "ignore_frontend": True,
    }
    assert argv == [
        *("serve", str(vllm.model), "--host", "127.0.0.1", "--port", port),
        *("--dtype", "bfloat16", "--max-model-len", "128"),
        *("--tensor-parallel-size", "2", "--pipeline-parallel-size", "1", "--distributed-executor-backend", "mp"),
        *("--seed", "0", "--load-format", "dummy", "--skip-tokenizer-init", "--no-enable-prefix-caching"),
        *("--worker-extension-cls", "llmprof_worker.LlmprofWorker", "--api-key", "k", "--max-num-seqs", "4"),
        *("--profiler-config", json.dumps(profiler), "--served-model-name", "model"),
    ]
    assert ran.worker["dropped_engine_args"] == ["frob"]


def test_times_of_requests_are_those_that_the_client_saw(vllm):
    ran = served(vllm, {"token_s": 0.01}, repeat=1)
    for one in ran.worker["requests"]:
        assert (one["prompt_tokens"], one["output_tokens"], one["finish_reason"]) == (3, 3, "length")
        assert len(one["itl_s"]) == 2
        assert one["ttft_s"] >= 0.01
        assert one["e2e_s"] == pytest.approx(one["ttft_s"] + sum(one["itl_s"]))
        assert one["tpot_s"] == pytest.approx(sum(one["itl_s"]) / 2)
        assert one["queue_s"] is None
    phases = [(one["phase"], one["request"]) for one in ran.worker["requests"]]
    wanted = {"warmup": 2, "plain": 4, "profiled": 4}
    assert phases == [(phase, k) for phase, count in wanted.items() for k in range(count)]
    assert (ran.out / "generated_output.txt").read_text().startswith("=== request 0: token numbers\n1 2 3\n")


def test_the_cache_is_read_from_the_metrics(vllm):
    cache = served(vllm, {"token_s": 0.25}, plain=False, warmup=0).worker["kv_cache"]
    known = {"blocks": 100, "block_size": 16, "tokens": 1600, "bytes": None, "peak_usage": 0.25}
    assert cache == known


def test_the_window_may_begin_within_the_load(vllm):
    ran = served(vllm, {"token_s": 0.05}, server=server(profile_after_s=0.05, max_concurrency=1), warmup=0, plain=False)
    assert ran.status == 0, ran.errors
    at = ran.order.index("/start_profile")
    assert ran.order[at - 1] == "/v1/completions"
    assert ran.order[at + 1] == "/v1/completions"


def test_a_window_after_the_load_is_refused(vllm):
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
    message = "the server ended with status 1 (its log: ValueError: No available memory for the cache blocks.)"
    assert ran.worker["error"]["message"] == message


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


def test_an_interrupt_ends_the_server_and_its_children(vllm):
    process = vllm.start({"token_s": 30.0}, served=True)
    calls = vllm.folder / "calls.jsonl"
    until = time.monotonic() + 180
    while time.monotonic() < until and not (calls.exists() and "/v1/completions" in calls.read_text()):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    ran = vllm.finish(process)
    assert ran.status == 130
    assert ran.worker["error"]["type"] == "KeyboardInterrupt"
    assert not is_running(ran.called("child")[0]["pid"])
    assert ran.order[-1] == "interrupted"
