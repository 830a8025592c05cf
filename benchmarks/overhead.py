"""What ``llmprof watch`` and ``llmprof record`` cost a server under a steady load, measured in
pairs.

``python benchmarks/overhead.py --model random:Llama-3.1-8B --folder DIR watch record`` starts vLLM
with its profiler configured, and keeps a number of clients busy with long answers, so that each
step decodes as many requests. ``watch``: seconds with and without the watch in turn (A B B A …); it
is stopped and continued by signals, so it costs no start. ``record``: seconds before and after a
capture, and before and after as long a wait, in turn. The tokens are those that the server itself
counts. Prints the windows and the changes with their 95 % intervals as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import llmprof
from llmprof.run.launch.config import models
from llmprof.run.workers.machine import SAFE

COUNTER = "vllm:generation_tokens_total"


def main() -> None:
    """Measure the parts that are asked for, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=["watch", "record"])
    parser.add_argument("--model", default="random:tiny")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has vLLM")
    parser.add_argument(
        "--serve", type=json.loads, default=[], help="more arguments of the server, as JSON"
    )
    parser.add_argument("--clients", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument(
        "--tokens", type=int, default=4000, help="of each answer (default: %(default)s)"
    )
    parser.add_argument("--pairs", type=int, default=12, help="of the watch (default: %(default)s)")
    parser.add_argument(
        "--cycles", type=int, default=4, help="with and without a capture (default: %(default)s)"
    )
    parser.add_argument(
        "--window-s", type=float, default=10.0, help="length of a window (default: %(default)s)"
    )
    parser.add_argument(
        "--every",
        default="5s",
        help="time between two readings of the watch (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of a capture (default: %(default)s)"
    )
    parser.add_argument(
        "--budget-s", type=float, default=3600.0, help="no pair begins later (default: %(default)s)"
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} {what}", file=sys.stderr, flush=True)

    found: dict[str, Any] = {}
    with served(args) as url, load(url, args.clients, args.tokens):
        say("the server answers")
        until = time.monotonic() + 300
        while counted(url)[1] < args.clients * args.tokens and time.monotonic() < until:
            time.sleep(1)  # the first answers are short, so steps are faster until then
        say("the load is steady")
        ends = began + args.budget_s
        if "record" in args.parts:
            found["record"] = recorded(url, args, ends, say)
        if "watch" in args.parts:
            found["watch"] = watched(url, args, ends, say)
        (args.folder / "overhead.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


@contextlib.contextmanager
def served(args: argparse.Namespace) -> Iterator[str]:
    """Address of a server; it ends with all its processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    profiler = {"profiler": "torch", "torch_profiler_dir": str(args.folder / "profiles")}
    profiler |= {"torch_profiler_with_stack": False, "torch_profiler_dump_cuda_time_total": False}
    command = [args.python, "-m", "vllm.entrypoints.cli.main", "serve"]
    command += [
        str(models.resolve(args.model, args.folder / "model")),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--load-format", "dummy", "--skip-tokenizer-init", "--served-model-name", "served"]
    command += ["--profiler-config", json.dumps(profiler), *args.serve]
    with (args.folder / "server.log").open("wb") as log:
        options: dict[str, Any] = {
            "stdout": log,
            "stderr": subprocess.STDOUT,
            "start_new_session": True,
        }
        process = subprocess.Popen(command, env=SAFE | os.environ, **options)
    try:
        while process.poll() is None:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5),
            ):
                break
            time.sleep(0.5)
        else:
            raise SystemExit(
                f"the server ended:\n{(args.folder / 'server.log').read_text()[-3000:]}"
            )
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def load(url: str, clients: int, tokens: int) -> Iterator[None]:
    """Clients that always have a request; their first answers end one after the other, so
    lengths are spread evenly.
    """
    end = threading.Event()

    def client(k: int) -> None:
        length = max(1, tokens * (k + 1) // clients)
        while not end.is_set():
            body = {
                "model": "served",
                "prompt": [k + 1] * 16,
                "max_tokens": length,
                "ignore_eos": True,
                "temperature": 0,
                "return_token_ids": True,
            }
            head = {"Content-Type": "application/json"}
            with contextlib.suppress(OSError):
                request = urllib.request.Request(
                    f"{url}/v1/completions", json.dumps(body).encode(), head
                )
                urllib.request.urlopen(request, timeout=600).read()
            length = tokens

    for k in range(clients):
        threading.Thread(target=client, args=(k,), daemon=True).start()
    try:
        yield
    finally:
        end.set()


def rate(url: str, seconds: float) -> float:
    """Tokens a second that the server counts over a window."""
    first = counted(url)
    time.sleep(seconds)
    last = counted(url)
    return (last[1] - first[1]) / (last[0] - first[0])


def counted(url: str) -> tuple[float, float]:
    """A time (s) and the tokens that the server has generated by then."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        at = time.monotonic()
        lines = answer.read().decode().splitlines()
    return at, sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(COUNTER))


def watched(url: str, args: argparse.Namespace, ends: float, say: Any) -> dict[str, Any]:
    """Pairs of windows with and without the watch."""
    command = [
        sys.executable,
        "-m",
        "llmprof",
        "watch",
        url,
        "--every",
        args.every,
        "-o",
        str(args.folder / "watch"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pairs: list[dict[str, float]] = []
    try:
        time.sleep(args.window_s)
        while len(pairs) < args.pairs and time.monotonic() + 2 * args.window_s + 2 < ends:
            pair = {}
            for side in ("with", "without") if len(pairs) % 2 == 0 else ("without", "with"):
                os.kill(process.pid, signal.SIGCONT if side == "with" else signal.SIGSTOP)
                pair[side] = rate(url, args.window_s)
            pairs.append(pair)
            say(f"watch: {pair}")
    finally:
        process.kill()
        process.wait()
    return {
        "pairs": pairs,
        "every": args.every,
        "change": change([one["with"] / one["without"] - 1 for one in pairs]),
    }


def recorded(url: str, args: argparse.Namespace, ends: float, say: Any) -> dict[str, Any]:
    """Windows before and after a capture, and before and after as long a wait."""
    cycles: list[dict[str, Any]] = []
    lasted = args.seconds + 10.0
    while len(cycles) < args.cycles and time.monotonic() + 2 * (lasted + 2 * args.window_s) < ends:
        cycle: dict[str, Any] = {}
        for side in ("capture", "wait") if len(cycles) % 2 == 0 else ("wait", "capture"):
            before, at = rate(url, args.window_s), time.monotonic()
            if side == "capture":
                llmprof.record(url, seconds=args.seconds, steps=None, results_dir=args.folder)
                lasted = time.monotonic() - at
            else:
                time.sleep(lasted)
            cycle[side] = {
                "before": before,
                "after": rate(url, args.window_s),
                "seconds": time.monotonic() - at,
            }
        cycles.append(cycle)
        say(f"record: {cycle}")
    changes = {
        side: [one[side]["after"] / one[side]["before"] - 1 for one in cycles]
        for side in ("capture", "wait")
    }
    apart = [a - b for a, b in zip(changes["capture"], changes["wait"], strict=True)]
    return {
        "cycles": cycles,
        **{side: change(values) for side, values in changes.items()},
        "apart": change(apart),
    }


def change(values: Sequence[float]) -> dict[str, Any]:
    """Mean of some changes, its standard error, and its 95 % interval by a bootstrap."""
    if not values:
        return {"n": 0}
    chance = random.Random(1)
    means = sorted(fmean(chance.choices(values, k=len(values))) for _ in range(10_000))
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return {
        "n": len(values),
        "mean": fmean(values),
        "error": error,
        "low": means[250],
        "high": means[9_749],
    }


if __name__ == "__main__":
    main()
