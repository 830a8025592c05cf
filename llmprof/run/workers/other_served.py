"""Of the program of an engine: runs servers of SGLang and TensorRT-LLM under load, and profiles a
window of it.

The code follows their documentation and source and was tested against stand-ins only: neither ran
on hardware.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .job import (
    RunRecord,
    each_point,
    name_gpus,
    take_traces,
    version_of,
)
from .machine import Refused, check_model, has_tokenizer, set_environment
from .server import HOST, Client, arguments, free_port, serving

_UNTESTED = (
    "llmprof was tested with stand-ins of this engine only, never on hardware: check what it"
    " recorded"
)


def run_sglang(job: Mapping[str, Any], record: RunRecord) -> None:
    """Start SGLang's server, warm it up, measure, profile, stop it.

    Endpoints of the server start and stop the profiler: PyTorch's, which writes a trace for each
    rank, or CUDA's, which starts and stops the recording of nsys.
    """
    _begin(job, record, "sglang")
    if job["profiler"] == "torch":
        traces = record.traces()
        os.environ["SGLANG_TORCH_PROFILER_DIR"] = str(traces)
        profile_options: dict[str, Any] = {"output_dir": str(traces), "activities": ["CPU", "GPU"]}
        profile_options |= {"record_shapes": job["record_shapes"], "with_stack": job["with_stack"]}
    else:
        profile_options = {"activities": ["CUDA_PROFILER"]}
    if job["max_iterations"]:
        record.note(
            "max_iterations ignored: the profiler of SGLang is stopped when all requests are done"
        )
    options = {
        "model_path": job["model"],
        "served_model_name": "model",
        "dtype": job["dtype"],
        "context_length": job["max_model_len"],
        "tp_size": job["tensor_parallel_size"],
        "pp_size": job["pipeline_parallel_size"],
        "random_seed": job["seed"],
        "load_format": "dummy" if job["random_weights"] else None,
        "disable_radix_cache": True if not job["prefix_caching"] else None,
        "disable_cuda_graph": True if job["eager"] else None,
        "disable_custom_all_reduce": True if job["all_reduce"] == "nccl" else None,
    }
    all_options = {
        **options,
        **job["engine_args"],
    }  # a switch that is off is not written: SGLang has no --no-…
    words = arguments(
        {
            name: value
            for name, value in all_options.items()
            if value is not None and value is not False
        }
    )
    start = [sys.executable, "-m", "sglang.launch_server"]
    flush = "/flush_cache" if job["prefix_caching"] else None
    _serve(
        job,
        record,
        [*start, *words],
        start=("/start_profile", profile_options),
        stop="/stop_profile",
        flush=flush,
    )


def run_tensorrt_llm(job: Mapping[str, Any], record: RunRecord) -> None:
    """Start ``trtllm-serve``, warm it up, measure, and profile a window of its iterations.

    The server has no endpoint that starts a profiler. It counts iterations and profiles those in
    ``TLLM_PROFILE_START_STOP`` with CUDA's profiler, which starts and stops the recording of nsys.
    If ``TLLM_TORCH_PROFILE_TRACE`` names a file, it profiles them with PyTorch's profiler too.
    """
    _begin(job, record, "tensorrt_llm", "tensorrt-llm")
    beside = Path(sys.executable).with_name("trtllm-serve")
    program = str(beside) if beside.is_file() else shutil.which("trtllm-serve")
    if program is None:
        raise Refused(
            "there is no trtllm-serve",
            "install tensorrt-llm, and set python to the interpreter that has it",
        )
    first = job["server"]["profile_from_iteration"]
    if job["profiler"] != "none":
        window = f"{first}-{first + (job['max_iterations'] or _ITERATIONS)}"
        os.environ["TLLM_PROFILE_START_STOP"] = window
        record.note(
            f"the profiled window is iterations {window} of the engine, counted from its start,"
            " with the warm-up: the engine has no other way to choose it"
        )
    if job["profiler"] == "torch":
        os.environ["TLLM_TORCH_PROFILE_TRACE"] = str(record.traces() / "rank0.pt.trace.json")
    if job["random_weights"]:
        raise Refused("trtllm-serve cannot run random weights", "name a model with weights")
    options = {
        "backend": "pytorch",
        "tp_size": job["tensor_parallel_size"],
        "pp_size": job["pipeline_parallel_size"],
        "max_seq_len": job["max_model_len"],
    }
    named = {
        name: value
        for name, value in {**options, **job["engine_args"]}.items()
        if value is not None
    }
    words = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    _serve(job, record, [program, job["model"], *words])


_ITERATIONS = 50
"""Profiled iterations of TensorRT-LLM if ``max_iterations`` is 0."""


def _begin(job: Mapping[str, Any], record: RunRecord, *packages: str) -> None:
    """Record the engine and its devices, and refuse options that the engine does not support."""
    set_environment(job)
    record.note(_UNTESTED)
    record.document["engine_version"] = version_of(*packages)
    record.document["platform"] = "cuda"
    check_model(job["model"])
    if not has_tokenizer(job["model"]):
        found = "the model has no tokenizer, which this server needs"
        raise Refused(found, "choose a model that has a tokenizer, or the engine vllm")
    for name in ("layer_annotations", "memory_snapshot"):
        if job[name]:
            raise Refused(
                f"{name} works with the engine vllm only",
                "choose the engine vllm, or leave the option out",
            )
    name_gpus(job, record)


def _serve(
    job: Mapping[str, Any],
    record: RunRecord,
    command: Sequence[str],
    *,
    start: tuple[str, Mapping[str, Any]] | None = None,
    stop: str | None = None,
    flush: str | None = None,
) -> None:
    """Start the server and send it the requests.

    ``start`` and ``stop`` are endpoints that start and stop the profiler, and ``flush`` empties the
    prefix cache.
    """
    port = free_port(job["server"]["port"])
    with serving([*command, "--host", HOST, "--port", str(port)], job, record, port) as server:

        def point(values: Mapping[str, Any]) -> None:
            client = _FlushingClient(values, record, server)
            client.flush = flush
            answers = client.repeats(
                "warmup", values["warmup"], first=values["server"]["max_concurrency"] or None
            )
            if values["plain"] or values["profiler"] == "none":
                answers = client.repeats("plain", values["repeat"])
            if values["profiler"] != "none":
                if start is not None:
                    with record.stage("start_profile"):
                        server.command(*start)
                answers = client.repeats("profiled", values["profile_repeats"])
                if stop is not None:
                    with record.stage("stop_profile"):
                        server.command(stop)
                take_traces(record)
            record.outputs(
                [answer["text"] for answer in answers], [answer["tokens"] for answer in answers]
            )

        each_point(job, record, point)


class _FlushingClient(Client):
    """Client of a server with an endpoint that empties its prefix cache."""

    flush: str | None = None

    def empty_cache(self) -> None:
        """Empty the prefix cache; a server refuses it while requests run."""
        if self.flush:
            with contextlib.suppress(RuntimeError):
                self.server.command(self.flush)
