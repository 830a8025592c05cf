"""Part of an engine script: a vLLM server under load, profiled for a window of it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from llmprof.launch.engines._job import Record
from llmprof.launch.engines._machine import Refused, guard
from llmprof.launch.engines._server import HOST, Server, arguments, free_port, load
from llmprof.launch.engines._vllm import (
    cuda_profiler_is_known,
    engine_options,
    environment,
    extension,
    fields_of,
    place,
    profiler_options,
    vllm_folder,
)

_NAME = "model"
_LOOK_S = 0.5
_USAGE = re.compile(r"vllm:(?:kv|gpu)_cache_usage_perc\b")


def run_served(job: Mapping[str, Any], record: Record, worker: str) -> None:
    """Start the server, warm it up, measure, profile, stop it.

    Parameters
    ----------
    job : mapping
        What is run.
    record : Record
        Takes stages, requests and facts.
    worker : str
        Text of the module of the workers' extension.
    """
    guard(job)
    platform = place(job, record)
    environment(job, platform)
    frontend = fields_of(vllm_folder() / "entrypoints" / "openai" / "cli_args.py", "FrontendArgs", "BaseFrontendArgs")
    options = engine_options(job, record, platform, also=frontend or set()) | profiler_options(job, record)
    options.setdefault("served_model_name", _NAME)
    if frontend and "disable_uvicorn_access_log" in frontend:
        options["disable_uvicorn_access_log"] = True
    if job["layer_annotations"] or _by_worker(job):
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
            _Client(job, record, server, options).all()
        except RuntimeError:
            time.sleep(1.0)  # an engine that fails needs a moment to say why
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


def _by_worker(job: Mapping[str, Any]) -> bool:
    return job["profiler"] == "cuda" and not cuda_profiler_is_known()


class _Client:
    """The load of a run and what it records.

    Parameters
    ----------
    job : mapping
        What is run.
    record : Record
        Takes stages, requests and facts.
    server : Server
        It answers.
    options : mapping
        Of its engine.
    """

    def __init__(self, job: Mapping[str, Any], record: Record, server: Server, options: Mapping[str, Any]) -> None:
        self._job, self._record, self._server = job, record, server
        self._peak: float | None = None
        prompts: Sequence[Any] = job["prompts"] or job["prompt_token_ids"]
        self._bodies = [
            {
                "model": options["served_model_name"],
                "prompt": prompts[k % len(prompts)],
                "max_tokens": job["max_tokens"],
                "temperature": job["temperature"],
                "ignore_eos": job["ignore_eos"],
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
                **({"return_token_ids": True} if options.get("skip_tokenizer_init") else {}),
                **({"seed": job["seed"] + k} if job["temperature"] > 0 else {}),
            }
            for k in range(job["server"]["num_prompts"] or len(prompts))
        ]

    def all(self) -> None:
        """Warm up, measure, profile."""
        job, record = self._job, self._record
        if job["layer_annotations"]:
            arguments_ = ["1"] if job["profiler"] == "cuda" else []
            self._server.command("/collective_rpc", {"method": "llmprof_annotate", "args": arguments_})
            record.note("names of modules are in the trace; they cost time")
        most = job["server"]["max_concurrency"] or len(self._bodies)
        found = self._repeats("warmup", job["warmup"], self._bodies[:most])
        if job["plain"] or job["profiler"] == "none":
            found = self._repeats("plain", job["repeat"], self._bodies)
        if job["profiler"] != "none":
            after = job["server"]["profile_after_s"]
            if not after:
                self._profile(on=True)
            found = self._repeats("profiled", job["profile_repeats"], self._bodies, profile_after=after)
            self._profile(on=False)
        record.outputs([one["text"] for one in found], [one["tokens"] for one in found])
        self._cache()

    def _repeats(
        self, phase: str, repeats: int, bodies: Sequence[Mapping[str, Any]], *, profile_after: float = 0.0
    ) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for i in range(repeats):
            with self._record.stage(phase, repeat=i, total=repeats, message=f"{len(bodies)} requests"):
                found = asyncio.run(self._load(bodies, profile_after if i == 0 else 0.0))
            for k, one in enumerate(found):
                told = {name: value for name, value in one.items() if name not in {"text", "tokens"}}
                self._record.request(phase, i, k, **told)
        return found

    async def _load(self, bodies: Sequence[Mapping[str, Any]], profile_after: float) -> list[dict[str, Any]]:
        server = self._job["server"]
        watch = asyncio.ensure_future(self._watch())
        start = asyncio.ensure_future(self._start_later(profile_after))
        try:
            found = await load(
                self._server.port,
                bodies,
                concurrency=server["max_concurrency"],
                rate=server["request_rate"],
                seed=self._job["seed"],
            )
            if not start.done():
                raise Refused(
                    f"all requests were done before the profiler was to start, after {profile_after:g} s",
                    "lower server.profile_after_s, or raise server.num_prompts",
                )
            start.result()
        finally:
            watch.cancel()
            start.cancel()
        return found

    async def _start_later(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
            await asyncio.get_running_loop().run_in_executor(None, lambda: self._profile(on=True))

    async def _watch(self) -> None:
        """Look at the cache of keys and values now and then."""
        while True:
            await asyncio.sleep(_LOOK_S)
            told = await asyncio.get_running_loop().run_in_executor(None, self._server.metrics)
            usage = [value for name, value in told.items() if _USAGE.match(name)]
            if usage:
                self._peak = max(self._peak or 0.0, *usage)

    def _profile(self, *, on: bool) -> None:
        with self._record.stage("start_profile" if on else "stop_profile"):
            if _by_worker(self._job):
                method = {"method": "llmprof_cuda_profiler", "args": ["1"] if on else [""]}
                self._server.command("/collective_rpc", method)
            else:
                self._server.command("/start_profile" if on else "/stop_profile")

    def _cache(self) -> None:
        for name in self._server.metrics():
            blocks, size = (re.search(rf'\b{key}="(\d+)"', name) for key in ("num_gpu_blocks", "block_size"))
            if name.startswith("vllm:cache_config_info") and blocks and size:
                both = int(blocks[1]), int(size[1])
                known = {"blocks": both[0], "block_size": both[1], "tokens": both[0] * both[1], "bytes": None}
                self._record.document["kv_cache"] = {**known, "peak_usage": self._peak}
