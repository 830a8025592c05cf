"""A stand-in for vLLM: it generates nothing, takes no time, and writes down what it was asked."""

import atexit
import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path

HOW = json.loads(os.environ.get("STAND_IN_VLLM", "{}"))
OLD = HOW.get("old", False)


def called(what, **values):
    with Path(os.environ["STAND_IN_CALLS"]).open("a") as file:
        file.write(json.dumps({"what": what, **values}) + "\n")


def environment(*prefixes):
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith(prefixes)}


class SamplingParams:
    def __init__(self, **values):
        self.values = values


class LLM:
    def __init__(self, **values):
        called("LLM", values=values, environment=environment("VLLM_", "NCCL_", "HF_", "TORCH"))
        self.values = values
        if HOW.get("says"):
            sys.stdout.write(HOW["says"] + "\n")
            sys.stdout.flush()
        if HOW.get("fails") or HOW.get("fails_eager", "never") == values.get("enforce_eager"):
            raise RuntimeError(HOW.get("fails") or "no such setting")
        if HOW.get("alone"):
            try:
                os.close(os.open(HOW["alone"], os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                raise RuntimeError("No available memory for the cache blocks") from None
            atexit.register(os.unlink, HOW["alone"])
        nothing = types.SimpleNamespace
        cache = nothing(num_gpu_blocks=100, block_size=16)
        model = nothing(skip_tokenizer_init=values.get("skip_tokenizer_init", False))
        core = nothing(shutdown=lambda: called("shutdown"))
        config = nothing(cache_config=cache, model_config=model)
        self.llm_engine = nothing(vllm_config=config, engine_core=core)
        if HOW.get("child"):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            called("child", pid=child.pid)

    def generate(self, prompts, sampling, use_tqdm):
        called(
            "generate",
            prompts=prompts,
            sampling=[one.values for one in sampling],
            use_tqdm=use_tqdm,
        )
        if HOW.get("hangs") or HOW.get("hangs_at") == len(prompts):
            time.sleep(600)
        if HOW.get("dies_at") == len(prompts):
            os.kill(os.getpid(), 9)
        if HOW.get("refuses_at") == len(prompts):
            raise ValueError(
                "The decoder prompt (length 900) is longer than the maximum model length of 128."
            )
        nothing = types.SimpleNamespace
        stats = nothing(
            arrival_time=1000.5,
            queued_ts=10.0,
            scheduled_ts=10.25,
            first_token_ts=11.0,
            last_token_ts=11.0
            + HOW.get("decode_s", {}).get(str(self.values.get("enforce_eager")), 1.0),
            first_token_latency=1.125,
        )
        return [
            nothing(
                request_id=str(k),
                prompt_token_ids=[1, 2, 3],
                metrics=None if OLD else stats,
                outputs=[nothing(text=f"text {k}", token_ids=[7, 8, 9], finish_reason="length")],
            )
            for k in range(len(prompts))
        ]

    def start_profile(self):
        called("start_profile")

    def stop_profile(self):
        called("stop_profile")
        if HOW.get("traces"):
            self.windows = getattr(self, "windows", 0) + 1
            folder = Path(self.values["profiler_config"]["torch_profiler_dir"])
            (folder / f"rank0.{self.windows}.pt.trace.json").write_text('{"traceEvents": []}')

    def collective_rpc(self, method, args=()):
        called("collective_rpc", method=method, args=list(args))
        if method == "llmprof_facts":
            return [
                {"rank": r, "device": f"GPU {r}", "peak": 1000 + r, "kv_bytes": 4096}
                for r in range(2)
            ]
        if method == "llmprof_steps":
            return [[[1000, 2000, {"0-ab": 3}, {"0-ab": 0}, []]]] * 2
        if method == "llmprof_memory":
            return [args[0].replace("RANK", str(r)) if args else "" for r in range(2)]
        return [3, 3]

    def reset_prefix_cache(self):
        called("reset_prefix_cache")
