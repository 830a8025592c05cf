"""A server that answers as vLLM or SGLang does, writes a trace for each rank, and can misbehave in
many ways.

It runs in a process of its own: ``python stand_in.py FOLDER PORT``. How it behaves stands in
``FOLDER/how.json``, which is read at each request; what it was asked is in ``FOLDER/asked.jsonl``;
whether its profiler is on, in ``FOLDER/on``.
"""

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

MODES = {
    "ranks": 1,
    "engine": "vllm",
    "profiler": True,
    "prefix": True,
    "files": None,
    "slow_write_s": 0.0,
}


def trace(
    rank,
    ranks,
    *,
    steps=6,
    mm_us=600,
    batch=4,
    base_ns=None,
):
    """A trace of one rank on a CPU: decode steps of 1 ms, in each of which two operators run.

    ``aten::mm`` takes ``mm_us`` of a step, ``aten::silu`` 100 us; the host does something else
    between them.
    """
    events = []
    for step in range(steps):
        begin = 1000 * step
        name = f"execute_context_0(0)_generation_{batch}({batch})"
        rows = [("user_annotation", name, begin, 990), ("cpu_op", "aten::mm", begin + 10, mm_us)]
        rows.append(("cpu_op", "aten::silu", begin + 20 + mm_us, 100))
        events += [
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 1,
                "tid": 1,
                "ts": 1e6 + ts,
                "dur": dur,
                "args": {},
            }
            for cat, name, ts, dur in rows
        ]
    base_ns = (time.time_ns() if base_ns is None else base_ns) - 10**9
    return json.dumps(
        {
            "schemaVersion": 1,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": base_ns,
            "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": ranks},
            "traceEvents": events,
        }
    ).encode()


def metrics(engine, began, rate=100.0):
    """Counters of a server that makes ``rate`` tokens a second, one request each 10 tokens, 50
    ms to the first.
    """
    tokens = int((time.monotonic() - began) * rate) + 1000
    done = tokens // 10
    words = {
        "vllm": (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:generation_tokens_total",
            "vllm:prompt_tokens_total",
            "vllm:time_to_first_token_seconds",
        ),
        "sglang": (
            "sglang:num_running_reqs",
            "sglang:num_queue_reqs",
            "sglang:generation_tokens_total",
            "sglang:prompt_tokens_total",
            "sglang:time_to_first_token_seconds",
        ),
    }[engine]
    running, waiting, out, prompt, ttft = words
    return (
        "\n".join(
            [
                f'{running}{{engine="0"}} 4.0',
                f'{waiting}{{engine="0"}} 1.0',
                f'{out}{{engine="0"}} {tokens}',
                f'{prompt}{{engine="0"}} {tokens * 2}',
                f'{ttft}_bucket{{engine="0",le="0.04"}} 0',
                f'{ttft}_bucket{{engine="0",le="0.06"}} {done}',
                f'{ttft}_bucket{{engine="0",le="+Inf"}} {done}',
                f'{ttft}_count{{engine="0"}} {done}',
                f'{ttft}_sum{{engine="0"}} {done * 0.05}',
            ]
        )
        + "\n"
    )


class Handler(BaseHTTPRequestHandler):
    """Answers of the server."""

    home: Path
    began = time.monotonic()
    job: dict = {}  # noqa: RUF012

    def log_message(self, *args):
        """Say nothing."""

    def how(self):
        try:
            return MODES | json.loads((self.home / "how.json").read_text())
        except (OSError, ValueError):
            return dict(MODES)

    def say(self, status, text, kind="application/json"):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def asked(self, body):
        how = self.how()
        with (self.home / "asked.jsonl").open("a") as file:
            file.write(
                json.dumps(
                    {"path": self.path, "body": body, "auth": self.headers.get("Authorization")}
                )
                + "\n"
            )
        if how.get("hang") == self.path:
            time.sleep(60)
        if how.get("kill") == self.path:
            os.kill(os.getpid(), signal.SIGKILL)
        if how.get("html") in {self.path, "all"}:
            self.say(
                200 if how.get("html_ok", True) else 502,
                "<!DOCTYPE html><html>login</html>",
                "text/html",
            )
            return {}
        return how

    def do_GET(self):
        how = self.asked(None)
        if not how:
            return
        model = {"id": "tiny", "owned_by": how["engine"], "root": "tiny", "max_model_len": 64}
        if self.path == "/v1/models":
            self.say(200, json.dumps({"object": "list", "data": [model]}))
        elif self.path == "/version" and how["engine"] == "vllm":
            self.say(200, json.dumps({"version": "0.32.0"}))
        elif self.path == "/get_server_info" and how["engine"] == "sglang":
            told = {
                "version": "0.5.0",
                "tp_size": how["ranks"],
                "pp_size": 1,
                "dp_size": 1,
                "api_key": "sk-secret",
            }
            self.say(200, json.dumps(told))
        elif self.path.startswith("/server_info") and how.get("dev"):
            config = {
                "profiler_config": {"torch_profiler_dir": str(self.home / "profiles")},
                "parallel_config": {"tensor_parallel_size": how.get("says_ranks", how["ranks"])},
            }
            self.say(200, json.dumps({"vllm_config": config, "vllm_env": {}}))
        elif self.path == "/metrics" and how.get("metrics", True):
            self.say(200, metrics(how["engine"], self.began, how.get("rate", 100.0)), "text/plain")
        else:
            self.say(404, '{"detail":"Not Found"}')

    def do_POST(self):
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else {}
        how = self.asked(body)
        if not how:
            return
        on = self.home / "on"
        if not how["profiler"]:
            self.say(404, '{"detail":"Not Found"}')
        elif self.path == "/start_profile":
            if on.exists():
                self.say(409, '{"error":{"message":"A profiling session is already active."}}')
                return
            on.touch()
            Handler.job = body
            self.say(200, "")
        elif self.path == "/stop_profile":
            if on.exists():
                self.write(how)
                on.unlink(missing_ok=True)
                self.say(200, "")
            else:
                self.say(500, "Profiling is not in progress. Call /start_profile first.")
        else:
            self.say(404, "")

    def write(self, how):
        """The traces of the ranks; one of them is missing or half, if that is asked for."""
        folder = Path(self.job.get("output_dir") or self.home / "profiles")
        folder.mkdir(parents=True, exist_ok=True)
        prefix = (
            f"{self.job.get('profile_prefix')}_"
            if how["prefix"] and self.job.get("profile_prefix")
            else ""
        )
        base_ns = time.time_ns()
        for rank in range(how["ranks"]) if how["files"] is None else how["files"]:
            data = gzip.compress(
                trace(rank, how["ranks"], base_ns=base_ns, **how.get("trace", {})), 1
            )
            name = f"{prefix}dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}.{time.time_ns()}.pt.trace.json.gz"
            if how.get("half") == rank:
                data = data[: len(data) // 2]
            if how["slow_write_s"]:
                threading.Thread(
                    target=slowly, args=(folder / name, data, how["slow_write_s"])
                ).start()
            else:
                (folder / name).write_bytes(data)


def slowly(path, data, seconds):
    """Write a file in ten parts."""
    with path.open("wb", buffering=0) as file:
        for k in range(10):
            file.write(data[k * len(data) // 10 : (k + 1) * len(data) // 10])
            time.sleep(seconds / 10)


class StandIn:
    """The server, in a process of its own."""

    def __init__(self, home):
        self.home = home
        self.profiles = home / "profiles"
        self.profiles.mkdir(parents=True)
        self.process = None
        self.port = 0

    def start(self, **how):
        """Start it; returns its address."""
        self.how(**how)
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(self.home), str(self.port)],
            stdout=subprocess.PIPE,
            cwd=self.home,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return f"http://127.0.0.1:{self.port}"

    def how(self, **how):
        """How it behaves from now on."""
        (self.home / "how.json").write_text(json.dumps(how))

    @property
    def asked(self):
        """What it was asked."""
        path = self.home / "asked.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def on(self):
        """Whether its profiler is on."""
        return (self.home / "on").exists()

    def stop(self):
        """End it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process = None


if __name__ == "__main__":
    Handler.home = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


def guards():
    """Processes that guard a recording."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "llmprof.run.live.guard" in process.cmdline():
                found.append(process.pid)
    return found
