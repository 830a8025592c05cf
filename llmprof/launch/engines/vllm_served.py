"""Part of an engine script: runs a vLLM server under load, and profiles a window of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from llmprof.launch.engines._job import Record, drop_traces, each_point, take_traces, token_ids, turns
from llmprof.launch.engines._machine import Refused, guard
from llmprof.launch.engines._server import HOST, OK, Server, achieved, arguments, arrivals, free_port, load
from llmprof.launch.engines._vllm import (
    cuda_profiler_is_known,
    engine_options,
    environment,
    extension,
    fields_of,
    of_this_start,
    place,
    profiler_options,
    vllm_folder,
    warms_profiler,
)

_NAME = "model"
_LOOK_S = 0.5
NOT_FOUND = 404
_USAGE = re.compile(r"vllm:(?:kv|gpu)_cache_usage_perc\b")


def run_served(job: Mapping[str, Any], record: Record, worker: str) -> None:
    """Start the server, warm it up, measure, profile, stop it."""
    guard(job)
    platform = place(job, record)
    environment(job, platform)
    frontend = fields_of(vllm_folder() / "entrypoints" / "openai" / "cli_args.py", "FrontendArgs", "BaseFrontendArgs")
    options = engine_options(job, record, platform, also=frontend or set()) | profiler_options(job, record)
    options.setdefault("served_model_name", _NAME)
    if frontend and "disable_uvicorn_access_log" in frontend:
        options["disable_uvicorn_access_log"] = True
    if job["layer_annotations"] or job["profiler"] != "none" or job["prefix_caching"]:
        os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # methods of workers can only be called in this mode
    port = free_port(job["server"]["port"])
    with extension(record.out, worker):
        with record.stage("serve", message="starting the server"):
            server = Server(_command(job, options, port), port, record.out / "server.log")
            try:
                server.wait(job["server"]["health_timeout_s"])
            except BaseException:
                server.stop()
                raise
        try:
            first = _Client(job, record, server, options)
            first.prepare()
            each_point(of_this_start(job, record), record, lambda point: _Client(point, record, server, options).all())
        except RuntimeError:
            time.sleep(1.0)  # an engine that fails needs a moment to write the reason
            raise
        finally:
            server.stop()


def _command(job: Mapping[str, Any], options: Mapping[str, Any], port: int) -> list[str]:
    where = ["--host", HOST, "--port", str(port)]
    if (vllm_folder() / "entrypoints" / "cli" / "main.py").is_file():
        start = ["-m", "vllm.entrypoints.cli.main", "serve", job["model"]]
    else:
        start = ["-m", "vllm.entrypoints.openai.api_server", "--model", job["model"]]
    return [sys.executable, *start, *where, *arguments(options)]


class _Client:
    """Client that sends the requests of a run and records their times."""

    def __init__(self, job: Mapping[str, Any], record: Record, server: Server, options: Mapping[str, Any]) -> None:
        self._job, self._record, self._server = job, record, server
        self._peak: float | None = None
        prompts: Sequence[Any] = job["prompts"] or job["prompt_token_ids"] or token_ids(job["synthetic"])
        count = job["server"]["num_prompts"] or len(prompts)
        each = job["max_tokens_each"] or [job["max_tokens"]]
        self._arrivals: list[float] = (job["load"] or {}).get("arrivals_s") or arrivals(
            count, job["server"]["request_rate"], job["seed"]
        )
        self._bodies = [
            {
                "model": options["served_model_name"],
                "prompt": prompts[k % len(prompts)],
                "max_tokens": each[k % len(each)],
                "temperature": job["temperature"],
                "ignore_eos": job["ignore_eos"],
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
                **{name: job[name] for name, usual in (("top_p", 1.0), ("n", 1)) if job[name] != usual},
                **({"return_token_ids": True} if options.get("skip_tokenizer_init") else {}),
                **({"seed": job["seed"] + k} if job["temperature"] > 0 else {}),
            }
            for k in range(count)
        ]

    def prepare(self) -> None:
        """Prepare the engine once after its start: annotate layers, and start the profiler for the first time."""
        job, record = self._job, self._record
        if job["layer_annotations"]:
            self._rpc("llmprof_annotate", *(["1"] if job["profiler"] == "cuda" else []))
            record.note("names of modules are in the trace; they cost time")
        if warms_profiler(job, record):
            with record.stage("warm_profiler"):
                self._switch(on=True)
                asyncio.run(load(self._server.port, [{**self._bodies[0], "max_tokens": 2}], [0.0], concurrency=1))
                self._switch(on=False)
            drop_traces(record)

    def all(self) -> None:
        """Warm up, measure, profile."""
        job, record = self._job, self._record
        self._rpc("llmprof_begin")
        most = job["server"]["max_concurrency"] or len(self._bodies)
        answers = self._repeats("warmup", job["warmup"], self._bodies[:most])
        if job["plain"] or job["profiler"] == "none":
            answers = self._repeats("plain", job["repeat"], self._bodies)
        if job["profiler"] != "none":
            if job["memory_snapshot"]:
                self._rpc("llmprof_memory")
            self._rpc("llmprof_watch_steps")
            after = job["server"]["profile_after_s"]
            if not after:
                self._profile(on=True)
            answers = self._repeats("profiled", job["profile_repeats"], self._bodies, profile_after=after)
            self._profile(on=False)
            take_traces(record)
            steps = self._rpc("llmprof_steps")
            record.engine_steps("profiled", steps[0] if steps and isinstance(steps[0], list) else [])
            if job["memory_snapshot"]:
                record.snapshots([str(path) for path in self._rpc("llmprof_memory", record.snapshot_path)])
        record.outputs([answer["text"] for answer in answers], [answer["tokens"] for answer in answers])
        self._cache()
        facts = [fact for fact in self._rpc("llmprof_facts") if isinstance(fact, dict)]
        if facts:
            record.document["peak_memory_bytes"] = {str(fact["rank"]): fact["peak"] for fact in facts}

    def _rpc(self, method: str, *args: str) -> list[Any]:
        """Answers of the workers to a call; empty if this run or this version of vLLM cannot call them."""
        if os.environ.get("VLLM_SERVER_DEV_MODE") != "1":
            return []
        status, text = self._server.ask("POST", "/collective_rpc", {"method": method, "args": list(args)}, 600.0)
        if status == NOT_FOUND:
            self._record.note("this version of vLLM cannot call methods of a server's workers")
            return []
        if status != OK:
            raise RuntimeError(f"the server answered {method} with {status}: {text[:500]}")
        document = json.loads(text).get("results") if text.strip() else None
        return document if isinstance(document, list) else []

    def _repeats(
        self, phase: str, least: int, bodies: Sequence[Mapping[str, Any]], *, profile_after: float = 0.0
    ) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        before = self._server.metrics()
        arrive = self._arrivals if phase != "warmup" else [0.0] * len(bodies)
        for i in turns(self._job, self._record, phase, least):
            if self._job["prefix_caching"]:
                self._server.command("/reset_prefix_cache")
            with self._record.stage(phase, repeat=i, total=least, message=f"{len(bodies)} requests"):
                answers = asyncio.run(self._load(bodies, arrive, profile_after if i == 0 else 0.0))
            for k, answer in enumerate(answers):
                values = {name: value for name, value in answer.items() if name not in {"text", "tokens"}}
                self._record.request(phase, i, k, **values)
            if phase != "warmup":
                self._record.held(phase, i, achieved(answers, arrive), self._job["server"]["request_rate"])
        self._record.prefix_cache(phase, before, self._server.metrics())
        return answers

    async def _load(
        self, bodies: Sequence[Mapping[str, Any]], arrive: Sequence[float], profile_after: float
    ) -> list[dict[str, Any]]:
        watch = asyncio.ensure_future(self._watch())
        start = asyncio.ensure_future(self._start_later(profile_after))
        try:
            most = self._job["server"]["max_concurrency"]
            answers = await load(self._server.port, bodies, arrive, concurrency=most)
            if not start.done():
                raise Refused(
                    f"all requests were done before the profiler was to start, after {profile_after:g} s",
                    "lower server.profile_after_s, or raise server.num_prompts",
                )
            start.result()
        finally:
            watch.cancel()
            start.cancel()
        return answers

    async def _start_later(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
            await asyncio.get_running_loop().run_in_executor(None, lambda: self._profile(on=True))

    async def _watch(self) -> None:
        """Sample the use of the KV cache from time to time."""
        while True:
            await asyncio.sleep(_LOOK_S)
            metrics = await asyncio.get_running_loop().run_in_executor(None, self._server.metrics)
            usage = [value for name, value in metrics.items() if _USAGE.match(name)]
            if usage:
                self._peak = max(self._peak or 0.0, *usage)

    def _profile(self, *, on: bool) -> None:
        with self._record.stage("start_profile" if on else "stop_profile"):
            self._switch(on=on)

    def _switch(self, *, on: bool) -> None:
        if self._job["profiler"] == "cuda" and not cuda_profiler_is_known():
            self._server.command("/collective_rpc", {"method": "llmprof_cuda_profiler", "args": ["1"] if on else [""]})
        else:
            self._server.command("/start_profile" if on else "/stop_profile")

    def _cache(self) -> None:
        for name in self._server.metrics():
            blocks, size = (re.search(rf'\b{key}="(\d+)"', name) for key in ("num_gpu_blocks", "block_size"))
            if name.startswith("vllm:cache_config_info") and blocks and size:
                both = int(blocks[1]), int(size[1])
                usage = {"blocks": both[0], "block_size": both[1], "tokens": both[0] * both[1], "bytes": None}
                self._record.document["kv_cache"] = {**usage, "peak_usage": self._peak}
