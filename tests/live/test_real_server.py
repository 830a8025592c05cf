"""vLLM's CPU server under load: recorded, watched, and left alone by a recorder that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import polars as pl
import pytest

import llmprof
from llmprof import analyze, launch
from llmprof.launch.config import models
from llmprof.live.past import history
from llmprof.storage import files
from tests.live.test_record import guards

pytestmark = pytest.mark.slow

PROMPT, ANSWER, CLIENTS = 24, 16, 3


@pytest.fixture(scope="module")
def served(engine_python, tmp_path_factory):
    """Address of the server; it ends with all its processes."""
    home = tmp_path_factory.mktemp("served")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    profiler = {
        "profiler": "torch", "torch_profiler_dir": str(home / "profiles"), "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
    }  # fmt: skip
    model = str(models.resolve("random:tiny", home / "model"))
    command = [
        *(engine_python, "-m", "vllm.entrypoints.cli.main", "serve", model),
        *("--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--max-model-len", "128"),
        *("--enforce-eager", "--served-model-name", "tiny", "--skip-tokenizer-init"),
        *("--profiler-config", json.dumps(profiler)),
    ]  # fmt: skip
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=home
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 1200
        while True:
            assert process.poll() is None, (home / "server.log").read_text()[-3000:]
            assert time.monotonic() < until
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                break
            time.sleep(0.5)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def load(served):
    """Requests, one after the other from each of some clients."""
    end = threading.Event()

    def client(seed: int) -> None:
        number = seed
        while not end.is_set():
            number += 1
            body = {
                "model": "tiny", "prompt": [(number * 7 + k) % 900 + 1 for k in range(PROMPT)], "max_tokens": ANSWER,
                "temperature": 0, "ignore_eos": True, "return_token_ids": True,
            }  # fmt: skip
            request = urllib.request.Request(
                f"{served}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=300) as answer:
                answer.read()

    threads = [threading.Thread(target=client, args=(1000 * k,)) for k in range(CLIENTS)]
    for thread in threads:
        thread.start()
    yield
    end.set()
    for thread in threads:
        thread.join()


def test_a_window_is_recorded(served, load, tmp_path, monkeypatch):
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "cache"))
    run = llmprof.record(served, seconds=60, steps=12, results_dir=tmp_path, timeout_s=600)
    assert run.state == "finished"
    recording = files.read_json(run.folder.recording)
    assert (recording["engine"], recording["ranks"], recording["model"]) == ("vllm", 1, "tiny")
    assert recording["told_by"] == ["/v1/models", "its process"]
    steps = analyze.steps(run.trace).filter(pl.col("phase") != "empty")
    assert 1 <= steps.height <= 14, "the server itself stopped after the steps that it was asked for"
    assert steps["generation_requests"].max() <= CLIENTS
    assert analyze.findings(run.trace).height
    within = recording["counters"]["within"]
    assert within["running"] > 0
    assert not guards()


def test_a_watch_records_when_its_condition_holds(served, load, tmp_path, monkeypatch):
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "cache"))
    said = []
    folder = llmprof.watch(
        served, "running > 0.5", every_s=0.5, seconds=20, steps=8, cooldown_s=3600, for_s=20, output=tmp_path / "w",
        say=said.append,
    )  # fmt: skip
    (capture,) = (folder / "captures").iterdir()
    assert launch.open_run(capture).state == "finished", said
    assert files.read_json(capture / "findings.json")
    assert history(folder).filter(level="recent")["running"].max() > 0
