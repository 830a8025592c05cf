"""Of the program of an engine: runs a vLLM server under load, and profiles a window of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .job import RunRecord, devices_of, drop_traces, each_point, instances_of, take_traces
from .machine import Refused, set_environment
from .server import (
    HOST,
    OK,
    Client,
    EngineServer,
    arguments,
    free_port,
    load,
    serving_all,
)
from .vllm_common import (
    check_devices,
    cuda_profiler_is_known,
    engine_options,
    fields_of,
    of_this_start,
    prepare_environment,
    profiler_options,
    vllm_folder,
    warms_profiler,
)

_NAME = "model"
_LOOK_S = 0.5
NOT_FOUND = 404
_USAGE = re.compile(r"vllm:(?:kv|gpu)_cache_usage_perc\b")


def run_served(job: Mapping[str, Any], record: RunRecord) -> None:
    """Start the server, warm it up, measure, profile, stop it."""
    set_environment(job)
    platform = check_devices(job, record)
    prepare_environment(job, platform)
    frontend = fields_of(
        vllm_folder() / "entrypoints" / "openai" / "cli_args.py", "FrontendArgs", "BaseFrontendArgs"
    )
    options = engine_options(job, record, platform, also=frontend or set()) | profiler_options(
        job, record
    )
    options.setdefault("served_model_name", _NAME)
    if frontend and "disable_uvicorn_access_log" in frontend:
        options["disable_uvicorn_access_log"] = True
    if job["layer_annotations"] or job["profiler"] != "none" or job["prefix_caching"]:
        os.environ["VLLM_SERVER_DEV_MODE"] = (
            "1"  # methods of workers can only be called in this mode
        )
    instances = instances_of(job)
    starts = [
        (
            f"{name}-server" if name else "server",
            _command(job, _own_options(options, job, record, name), port),
            port,
            _own_environment(job, platform, k) if name else {},
        )
        for k, name in enumerate(instances or [""])
        for port in [free_port(0 if k else job["server"]["port"])]
    ]
    with serving_all(starts, job, record) as servers:
        _VllmClient(job, record, servers, options).prepare()
        each_point(
            of_this_start(job, record),
            record,
            lambda point: _VllmClient(point, record, servers, options).all(),
        )
    shutil.rmtree(record.home / _STORAGE, ignore_errors=True)


_STORAGE = "kv"
"""Folder of keys and values in the folder of a run, for connectors through shared storage."""

_STEPS = "steps"
"""Folder in the folder of a run where the engines write their steps."""

_BOTH = ("Nixl", "Example")
"""Connectors whose instances all have the role ``kv_both``."""


def _own_options(
    options: Mapping[str, Any], job: Mapping[str, Any], record: RunRecord, name: str
) -> dict[str, Any]:
    """Options of the server of an instance: what moves keys and values, and its folder of traces.

    Without ``kv_transfer_config`` it is NIXL between GPUs, and shared storage on a CPU.
    """
    own = dict(options)
    if not name:
        return own
    usual: dict[str, Any] = {"kv_connector": "NixlConnector"}
    if record.document["platform"] == "cpu":
        extra = {"shared_storage_path": str(record.home / _STORAGE)}
        usual = {"kv_connector": "ExampleConnector", "kv_connector_extra_config": extra}
    given = job["engine_args"].get("kv_transfer_config") or usual
    if not isinstance(given, Mapping) or "kv_connector" not in given:
        raise Refused(
            f"kv_transfer_config is {given!r}",
            'name a connector: {"kv_connector": "NixlConnector"}',
        )
    connector = record.document["connector"] = given["kv_connector"]
    record.note(f"keys and values go from prefill to decode by {connector}")
    role = "kv_producer" if name.startswith("prefill") else "kv_consumer"
    role = "kv_both" if str(connector).startswith(_BOTH) else role
    own["kv_transfer_config"] = {"kv_role": role, **given}
    if "torch_profiler_dir" in own.get("profiler_config", {}):
        traces = str(record.traces() / name)
        own["profiler_config"] = {**own["profiler_config"], "torch_profiler_dir": traces}
    return own


def _own_environment(job: Mapping[str, Any], platform: str, number: int) -> dict[str, str]:
    """Variables of the server of an instance: its GPUs, and the port where NIXL's agents meet."""
    if platform == "cpu":
        return {}
    ranks = devices_of(job) // len(instances_of(job))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(gpu) for gpu in range(devices_of(job))]
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus[number * ranks : (number + 1) * ranks]),
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port(0)),
    }


def _command(job: Mapping[str, Any], options: Mapping[str, Any], port: int) -> list[str]:
    where = ["--host", HOST, "--port", str(port)]
    if (vllm_folder() / "entrypoints" / "cli" / "main.py").is_file():
        start = ["-m", "vllm.entrypoints.cli.main", "serve", job["model"]]
    else:
        start = ["-m", "vllm.entrypoints.openai.api_server", "--model", job["model"]]
    return [sys.executable, *start, *where, *arguments(options)]


class _VllmClient(Client):
    """Client of a vLLM server, whose workers it can call."""

    def __init__(
        self,
        job: Mapping[str, Any],
        record: RunRecord,
        servers: Sequence[EngineServer],
        options: Mapping[str, Any],
    ) -> None:
        """Of several servers, the last one generates, and its metrics count."""
        more = {"return_token_ids": True} if options.get("skip_tokenizer_init") else {}
        usage = {"include_usage": True, "continuous_usage_stats": True}
        super().__init__(
            job,
            record,
            servers[-1],
            model=options["served_model_name"],
            stream_options=usage,
            **more,
        )
        self._servers = servers
        prefill, decode = (
            [server.port for server in servers if server.name.startswith(kind)]
            for kind in ("prefill", "decode")
        )
        turns = max(len(prefill), len(decode))
        self._routes = [(prefill[k % len(prefill)], decode[k % len(decode)]) for k in range(turns)]
        self._peak: float | None = None
        self._window_after: float | None = None

    def prepare(self) -> None:
        """Prepare the engine once after its start: annotate layers, and start the profiler for
        the first time.
        """
        job, record = self.job, self.record
        if job["layer_annotations"]:
            self._rpc("llmprof_annotate", *(["1"] if job["profiler"] == "cuda" else []))
            record.note("names of modules are in the trace; they cost time")
        if warms_profiler(job, record):
            with record.stage("warm_profiler"):
                self._switch(on=True)
                asyncio.run(
                    load(
                        self.server.port,
                        [{**self.bodies[0], "max_tokens": 2}],
                        [0.0],
                        concurrency=1,
                        routes=self._routes,
                    )
                )
                self._switch(on=False)
            drop_traces(record)

    def all(self) -> None:
        """Warm up, measure, profile."""
        job, record = self.job, self.record
        self._rpc("llmprof_begin")
        answers = self.repeats(
            "warmup", job["warmup"], first=job["server"]["max_concurrency"] or None
        )
        if job["plain"] or job["profiler"] == "none":
            answers = self.repeats("plain", job["repeat"])
        if job["profiler"] != "none":
            if job["memory_snapshot"]:
                self._rpc("llmprof_memory")
            self._rpc("llmprof_watch_steps")
            after = job["server"]["profile_after_s"]
            if not after:
                self._profile(on=True)
            self._window_after = after
            try:
                answers = self.repeats("profiled", job["profile_repeats"])
            except RuntimeError:
                with contextlib.suppress(RuntimeError, OSError):
                    self._profile(on=False)  # what the other servers recorded is kept
                take_traces(record)
                raise
            self._profile(on=False)
            take_traces(record)
            if not self._routes:
                for engine, steps in enumerate(self._steps()):
                    record.engine_steps("profiled", steps, engine=engine)
            if job["memory_snapshot"]:
                record.snapshots(
                    [str(path) for path in self._rpc("llmprof_memory", record.snapshot_path)]
                )
        record.outputs(
            [answer["text"] for answer in answers], [answer["tokens"] for answer in answers]
        )
        for name in self.server.metrics():
            found = [
                re.search(rf'\b{key}="(\d+)"', name) for key in ("num_gpu_blocks", "block_size")
            ]
            if name.startswith("vllm:cache_config_info") and all(found):
                record.kv_cache(*(int(match[1]) for match in found if match), peak_usage=self._peak)
        facts = [fact for fact in self._rpc("llmprof_facts") if isinstance(fact, dict)]
        if facts:
            record.document["peak_memory_bytes"] = {
                str(rank): fact["peak"] for rank, fact in enumerate(facts)
            }

    def _steps(self) -> list[list[Any]]:
        """Steps of each engine of the server as its first worker noted them."""
        folder = self.record.home / _STEPS
        folder.mkdir(exist_ok=True)
        answers = self._rpc("llmprof_steps", str(folder))
        written = [json.loads(file.read_text(encoding="utf-8")) for file in folder.iterdir()]
        shutil.rmtree(folder)
        told = [steps for steps in answers[:1] if isinstance(steps, list)]
        return sorted(filter(None, written)) or told

    def _rpc(self, method: str, *args: str) -> list[Any]:
        """Answers of the workers of all servers to a call; empty if this run or this version of
        vLLM cannot call them.
        """
        if os.environ.get("VLLM_SERVER_DEV_MODE") != "1":
            return []
        return [each for server in self._servers for each in self._answers(server, method, args)]

    def _answers(self, server: EngineServer, method: str, args: Sequence[str]) -> list[Any]:
        status, text = server.ask(
            "POST", "/collective_rpc", {"method": method, "args": list(args)}, 600.0
        )
        if status == NOT_FOUND:
            self.record.note("this version of vLLM cannot call methods of a server's workers")
            return []
        if status != OK:
            raise RuntimeError(f"the server answered {method} with {status}: {text[:500]}")
        document = json.loads(text).get("results") if text.strip() else None
        return document if isinstance(document, list) else []

    def empty_cache(self) -> None:
        """Empty the prefix cache, if requests share prefixes, and shared storage."""
        if self.job["prefix_caching"]:
            self._command("/reset_prefix_cache")
        shutil.rmtree(self.record.home / _STORAGE, ignore_errors=True)

    def _command(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Send a command to all servers at one time."""
        with ThreadPoolExecutor() as threads:
            sent = [threads.submit(server.command, path, body) for server in self._servers]
        for answer in sent:  # all have it, also if one of them fails
            answer.result()

    def send(
        self, bodies: Sequence[Mapping[str, Any]], arrive: Sequence[float]
    ) -> list[dict[str, Any]]:
        """Send the requests of one repeat; the window may open within the first of the profiled
        ones.
        """
        after, self._window_after = self._window_after, None
        return asyncio.run(self._load(bodies, arrive, after or 0.0))

    async def _load(
        self, bodies: Sequence[Mapping[str, Any]], arrive: Sequence[float], profile_after: float
    ) -> list[dict[str, Any]]:
        watch = asyncio.ensure_future(self._watch())
        start = asyncio.ensure_future(self._start_later(profile_after))
        most = self.job["server"]["max_concurrency"]
        sent = asyncio.ensure_future(
            load(self.server.port, bodies, arrive, concurrency=most, routes=self._routes)
        )
        try:
            await asyncio.wait({watch, sent}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():  # it ends where a server did, for whose answer others may wait
                watch.result()
            answers = await sent
            if not start.done():
                found = (
                    "all requests were done before the profiler was to start, after"
                    f" {profile_after:g} s"
                )
                raise Refused(found, "lower server.profile_after_s, or raise server.num_prompts")
            start.result()
        finally:
            for task in (watch, start, sent):
                task.cancel()
        return answers

    async def _start_later(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
            await asyncio.get_running_loop().run_in_executor(None, lambda: self._profile(on=True))

    async def _watch(self) -> None:
        """Sample the use of the KV cache from time to time, while all servers run."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for server in self._servers:
                server.check()
            metrics = await asyncio.get_running_loop().run_in_executor(None, self.server.metrics)
            usage = [value for name, value in metrics.items() if _USAGE.match(name)]
            if usage:
                self._peak = max(self._peak or 0.0, *usage)

    def _profile(self, *, on: bool) -> None:
        with self.record.stage("start_profile" if on else "stop_profile"):
            self._switch(on=on)

    def _switch(self, *, on: bool) -> None:
        if self.job["profiler"] == "cuda" and not cuda_profiler_is_known():
            self._command(
                "/collective_rpc",
                {"method": "llmprof_cuda_profiler", "args": ["1"] if on else [""]},
            )
        else:
            self._command("/start_profile" if on else "/stop_profile")
