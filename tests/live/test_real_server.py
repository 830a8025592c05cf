"""vLLM's CPU server under load: recorded, watched, and left alone by a recorder that is killed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import LlmprofError
from llmprof.run import launch
from llmprof.run.launch.config import models
from llmprof.run.live import history
from llmprof.trace.storage import typed
from tests.live.stand_in import guards

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
        "profiler": "torch",
        "torch_profiler_dir": str(home / "profiles"),
        "torch_profiler_with_stack": False,
        "torch_profiler_dump_cuda_time_total": False,
    }
    model = str(models.resolve("random:tiny", home / "model"))
    command = [
        *(engine_python, "-m", "vllm.entrypoints.cli.main", "serve", model),
        *(
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--load-format",
            "dummy",
            "--max-model-len",
            "128",
        ),
        *("--enforce-eager", "--served-model-name", "tiny", "--skip-tokenizer-init"),
        *("--profiler-config", json.dumps(profiler)),
    ]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    environment |= {"OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=home,
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

    def client(seed):
        number = seed
        while not end.is_set():
            number += 1
            body = {
                "model": "tiny",
                "prompt": [(number * 7 + k) % 900 + 1 for k in range(PROMPT)],
                "max_tokens": ANSWER,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            request = urllib.request.Request(
                f"{served}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(request, timeout=300) as answer,
            ):
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
    recording = typed.found(run.folder.recording, Any)
    assert (recording["engine"], recording["ranks"], recording["model"]) == ("vllm", 1, "tiny")
    assert recording["told_by"] == ["/v1/models", "its process"]
    steps = analyze.steps(run.trace).filter(pl.col("phase") != "empty")
    assert 1 <= steps.height <= 14, (
        "the server itself stopped after the steps that it was asked for"
    )
    assert steps["decode_requests"].max() <= CLIENTS
    assert analyze.findings(run.trace).height
    within = recording["counters"]["within"]
    assert within["running"] > 0
    until = time.monotonic() + 60
    while guards():  # it ends by itself once the recording is over; another test may have its own
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_watch_records_when_its_condition_holds(served, load, tmp_path, monkeypatch):
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "cache"))
    said = []
    folder = llmprof.watch(
        served,
        "running > 0.5",
        every_s=0.5,
        seconds=20,
        steps=8,
        cooldown_s=3600,
        for_s=20,
        output=tmp_path / "w",
        say=said.append,
    )
    (capture,) = (folder / "captures").iterdir()
    assert launch.open_run(capture).state == "finished", said
    assert typed.found(capture / "findings.json", Any)
    assert history(folder).filter(level="recent")["running"].max() > 0


def test_a_recorder_that_is_killed_leaves_no_profiler_on(served, load, tmp_path, monkeypatch):
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for wait_s in (0.0, 2.0):
        process = subprocess.Popen(
            [sys.executable, "-m", "llmprof", "record", served, "--seconds", "300", "--steps", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + 300
        while not guards():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        time.sleep(wait_s)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        while guards():
            assert time.monotonic() < until
            time.sleep(0.1)
        for path in launch.runs("results"):
            with pytest.raises(LlmprofError):
                llmprof.read(path.path)  # nothing half reads as whole
        answer = urllib.request.Request(
            f"{served}/start_profile", b"{}", {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(answer, timeout=120) as done:
            assert done.status == 200, "no session was active: else vLLM refuses"
        stop = urllib.request.Request(f"{served}/stop_profile", b"")
        with urllib.request.urlopen(stop, timeout=600) as done:
            assert done.status == 200
