"""Part of an engine script: vLLM's own profiler, asked for in the way that the installed version knows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmprof.launch.engines._record import Record
from llmprof.launch.engines._vllm import fields_of, vllm_folder


def profiler_options(job: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """Arguments of the engine for its profiler; versions up to 0.12 are asked by the environment, which is set here.

    Returns
    -------
    dict
        ``{"profiler_config": {…}}``, or nothing.
    """
    if job["profiler"] == "none":
        return {}
    folder = vllm_folder()
    engine = fields_of(folder / "engine" / "arg_utils.py", "EngineArgs")
    if engine is not None and "profiler_config" not in engine:
        _by_environment(job, record)
        return {}
    wanted: dict[str, Any] = {"profiler": job["profiler"], "max_iterations": job["max_iterations"]}
    if job["profiler"] == "torch":
        wanted |= {
            "torch_profiler_dir": str(_traces(record)),
            "torch_profiler_with_stack": job["with_stack"],
            "torch_profiler_record_shapes": job["record_shapes"],
            "torch_profiler_dump_cuda_time_total": False,  # a table in the log, for seconds of work
            "ignore_frontend": True,  # the server's own process has no work of the model
        }
    known = fields_of(folder / "config" / "profiler.py", "ProfilerConfig")
    _check_iterations(job, record, known is None or "max_iterations" in known)
    return {"profiler_config": {name: value for name, value in wanted.items() if known is None or name in known}}


def _by_environment(job: Mapping[str, Any], record: Record) -> None:
    variables = (vllm_folder() / "envs.py").read_text(encoding="utf-8")
    if job["profiler"] == "cuda":
        wanted = {"VLLM_TORCH_CUDA_PROFILE": "1"}
    else:
        wanted = {
            "VLLM_TORCH_PROFILER_DIR": str(_traces(record)),
            "VLLM_TORCH_PROFILER_RECORD_SHAPES": str(int(job["record_shapes"])),
            "VLLM_TORCH_PROFILER_WITH_STACK": str(int(job["with_stack"])),
            "VLLM_TORCH_PROFILER_USE_GZIP": "1",
            "VLLM_TORCH_PROFILER_DUMP_CUDA_TIME_TOTAL": "0",
            "VLLM_TORCH_PROFILER_DISABLE_ASYNC_LLM": "1",
        }
    if job["max_iterations"]:
        wanted["VLLM_PROFILER_MAX_ITERS"] = str(job["max_iterations"])
    _check_iterations(job, record, "VLLM_PROFILER_MAX_ITERS" in variables)
    os.environ.update({name: value for name, value in wanted.items() if name in variables})


def cuda_profiler_is_known() -> bool:
    """Whether this version starts and stops CUDA's profiler by itself."""
    engine = fields_of(vllm_folder() / "engine" / "arg_utils.py", "EngineArgs")
    if engine is None or "profiler_config" in engine:
        return True
    return "VLLM_TORCH_CUDA_PROFILE" in (vllm_folder() / "envs.py").read_text(encoding="utf-8")


def _check_iterations(job: Mapping[str, Any], record: Record, known: bool) -> None:
    if job["max_iterations"] and not known:
        record.note("max_iterations ignored: this version of vLLM records the whole window")


def _traces(record: Record) -> Path:
    folder = record.out / "traces"
    folder.mkdir(exist_ok=True)
    return folder
