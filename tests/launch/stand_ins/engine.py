# ruff: noqa: T201 (a program, which prints)
"""Stands in for an engine script: takes the same argument, writes the same files, from a sample
trace.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

JOB = json.loads(os.environ.get("STAND_IN_JOB") or r"""@JOB@""")
SAMPLES = Path(r"""@SAMPLES@""")
HOW = json.loads(os.environ.get("STAND_IN") or "{}")


def event(out, name, done=0, total=0, message=""):
    with (out / "events.jsonl").open("a") as file:
        file.write(
            json.dumps(
                {
                    "time_ns": time.time_ns(),
                    "event": name,
                    "done": done,
                    "total": total,
                    "message": message,
                }
            )
        )
        file.write("\n")


def request(phase, repeat, k):
    slow = 1.2 if phase == "profiled" else 1.0
    return {
        "phase": phase,
        "repeat": repeat,
        "request": k,
        "start_ns": 1_000_000 * (repeat + 1),
        "prompt_tokens": 64,
        "output_tokens": JOB["max_tokens"],
        "ttft_s": 0.01 * slow,
        "tpot_s": 0.002 * slow,
        "itl_s": None,
        "queue_s": 0.001,
        "prefill_s": 0.009,
        "decode_s": 0.03,
        "e2e_s": 0.04 * slow,
        "finish_reason": "length",
    }


def write(out, error=None):
    phases = [("plain", i) for i in range(JOB["repeat"])] if JOB["plain"] else []
    phases += [("profiled", 0)] if JOB["profiler"] != "none" else []
    worker = {
        "engine": JOB["engine"],
        "engine_version": "0.0",
        "torch_version": "2.0",
        "python_version": "3.11.0",
        "platform": HOW.get("platform", "cuda"),
        "device_names": ["Stand-in"],
        "profiler": JOB["profiler"],
        "argv": sys.argv,
        "stages": [{"name": "init", "start_ns": time.time_ns(), "dur_ns": 5, "repeat": None}],
        "requests": []
        if error
        else [request(p, i, k) for p, i in phases for k in range(JOB["batch_size"])],
        "kv_cache": None,
        "peak_memory_bytes": {"0": 1000},
        "notes": HOW.get("notes", []),
        "dropped_engine_args": [],
        "error": error,
    }
    (out / "worker.json").write_text(json.dumps(worker))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    out = Path(parser.parse_args().out)
    out.mkdir(exist_ok=True)
    event(out, "import")
    print("a flood of words that belongs into the log", flush=True)
    if "pids" in HOW:
        hidden = "import time; time.sleep(600)"
        env = {k: v for k, v in os.environ.items() if k != "LLMPROF_RUN_ID"}
        children = [
            subprocess.Popen([sys.executable, "-c", hidden]),
            subprocess.Popen(
                [sys.executable, "-c", hidden], start_new_session=True, stdout=subprocess.DEVNULL
            ),
            subprocess.Popen([sys.executable, "-c", hidden], start_new_session=True, env=env),
        ]
        Path(HOW["pids"]).write_text(json.dumps([os.getpid(), *(child.pid for child in children)]))
    event(out, "init", message="the engine")
    if HOW.get("fail") == "start":
        print(HOW["says"], flush=True)
        os._exit(1)
    event(out, "plain", 1, JOB["repeat"])
    if HOW.get("deaf"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while HOW.get("hang"):
        time.sleep(0.05)
    if HOW.get("fail") == "explained":
        event(out, "error", message=HOW["says"])
        write(
            out,
            {
                "type": "RuntimeError",
                "message": HOW["says"],
                "advice": HOW.get("advice"),
                "traceback": "",
            },
        )
        sys.exit(3)
    if HOW.get("fail") == "middle":
        os.kill(os.getpid(), signal.SIGKILL)
    event(out, "profiled", 1, 1)
    (out / "generated_output.txt").write_text("stand-in text\n")
    if JOB["profiler"] == "torch":
        (out / "traces").mkdir()
        for file in (
            sorted((SAMPLES / HOW["sample"]).glob("*.json.gz"))[: HOW.get("ranks", 99)]
            if "sample" in HOW
            else ()
        ):
            shutil.copy(file, out / "traces")
    write(out)
    if "stops" in HOW:
        (out / "scratch").touch()
        event(out, "stop")
        while not Path(HOW["stops"]).exists():
            time.sleep(0.02)
        (out / "scratch").unlink()
    if HOW.get("fail") == "stop":
        write(out, {"type": "RuntimeError", "message": HOW["says"], "advice": None})
        sys.exit(3)
    event(out, "done", 1, 1)


if __name__ == "__main__":
    main()
