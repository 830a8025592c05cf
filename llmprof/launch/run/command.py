"""Command lines and environment of a run: pure functions, and no shell is ever given a string."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmprof.launch.config.disclosure import SECRET, secret_arguments
from llmprof.launch.config.rules import ncu_options, setting
from llmprof.storage.pseudonyms import REMOVED

if TYPE_CHECKING:
    from llmprof.launch.config.options import ExperimentConfig

_SAFE: Final = {
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # a forked worker is lost to nsys, and CUDA cannot be used again after a fork
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # NVLink multicast hangs in graph replay under nsys, and must stay off on shared hosts
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


def environment(config: ExperimentConfig, *, mode: str | None = None) -> dict[str, str]:
    """Variables that a run sets for the engine; ``config.environment`` goes over all of them.

    Parameters
    ----------
    config : ExperimentConfig
        What is run.
    mode : str, optional
        Mode of this pass, if it is not that of the configuration.
    """
    mode = mode or config.profile_mode
    found = dict(_SAFE)
    if config.model.startswith("random:") or Path(config.model).is_dir():
        found |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if mode == "ncu" or config.profile_mode == "nsys_ncu":
        # one process for the engine: all requests are there before the first step, so each pass has the same launches
        found["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if config.layer_annotations and mode in {"nsys", "nsys_ncu", "ncu"}:
        # the V2 runner ignores layer-wise NVTX without a word
        found["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    return found | {name: value for name, value in config.environment.items() if value != REMOVED}


def whole_environment(
    config: ExperimentConfig, inherited: Mapping[str, str], *, mode: str | None = None
) -> dict[str, str]:
    """Environment of the engine's process: inherited, with what a run sets.

    A report of nsys or ncu holds the whole environment, so under them variables that look like secrets are not passed
    on, unless the configuration names them.

    Parameters
    ----------
    config : ExperimentConfig
        What is run.
    inherited : mapping
        Environment of this process.
    mode : str, optional
        Mode of this pass, if it is not that of the configuration.
    """
    recorded = (mode or config.profile_mode) in {"nsys", "nsys_ncu", "ncu"}
    asked = {name for name, value in config.environment.items() if value == REMOVED}
    kept = {k: value for k, value in inherited.items() if k in asked or not (recorded and SECRET.search(k))}
    return kept | environment(config, mode=mode) | secret_arguments(config.engine_args)


NSYS: Final[dict[str, Any]] = {
    "trace": "cuda,nvtx",
    "sample": "none",
    "cpuctxsw": "none",
    "cuda-graph-trace": "node",
    "trace-fork-before-exec": True,
    "capture-range": "cudaProfilerApi",
    "capture-range-end": "stop",
    "force-overwrite": True,
}
"""Options of ``nsys profile``. Without a node each, a CUDA graph is one row for some 97 % of the time; the capture
range keeps start-up out, and its end must not stop the program (the default)."""

NCU: Final[dict[str, Any]] = {
    "target-processes": "all",
    "profile-from-start": "off",
    "replay-mode": "kernel",
    "graph-profiling": "node",
    "clock-control": "none",
    "filter-mode": "per-gpu",
    "kernel-name-base": "function",
}
"""Options of ``ncu``: clocks stay as they are, and what runs before cudaProfilerStart is not profiled."""

COLLECTIVES: Final = (
    "(nccl|NCCL|rccl|cross_device_reduce|all_?reduce|AllReduce|all_?gather|AllGather|reduce_?scatter|ReduceScatter|"
    "multimem|one_?shot|two_?shot|nvshmem|deep_ep)"
)
"""Functions that wait for other ranks: replayed alone they wait for ever."""

DEFAULT_LAUNCHES: Final = 24
"""Launches that ncu profiles unless told otherwise: about a minute with the full set."""


def worker(config: ExperimentConfig, script: Path, out: Path) -> list[str]:
    """Command that runs the engine script.

    Parameters
    ----------
    config : ExperimentConfig
        Says which Python.
    script : pathlib.Path
        The script.
    out : pathlib.Path
        Folder for what it writes.
    """
    return [config.python, str(script), "--out", str(out)]


def nsys(
    config: ExperimentConfig, program: Sequence[str], report: Path, *, executable: str | Path = "nsys"
) -> list[str]:
    """Command that records a timeline with Nsight Systems.

    Parameters
    ----------
    config : ExperimentConfig
        Its ``nsys_options`` go over the defaults.
    program : sequence of str
        Command to record.
    report : pathlib.Path
        Report without suffix.
    executable : path
        nsys.
    """
    options = _over(NSYS, config.nsys_options)
    return [str(executable), "profile", *_written(options, true="true"), f"--output={report}", *program]


def ncu(
    config: ExperimentConfig,
    program: Sequence[str],
    report: Path,
    *,
    kernels: Sequence[str] = (),
    skip: int | None = None,
    count: int | None = None,
    device: int | None = None,
    executable: str | Path = "ncu",
) -> list[str]:
    """Command that measures kernels with Nsight Compute; collectives never pass its filter.

    Parameters
    ----------
    config : ExperimentConfig
        Its ``ncu_options`` go over everything else.
    program : sequence of str
        Command to run again.
    report : pathlib.Path
        Report without suffix.
    kernels : sequence of str
        Functions to profile; all but collectives if empty.
    skip, count : int, optional
        Launches that pass the filter to leave out first, and to profile; 0 and 24 if not given.
    device : int, optional
        The only GPU to profile.
    executable : path
        ncu.
    """
    asked = {key: setting(config, "ncu_options", key) for key in ("kernel_name", "launch_skip", "launch_count")}
    options: dict[str, Any] = dict(NCU)
    if device is not None:
        options["devices"] = device
    name = _as_regex(asked["kernel_name"]) if asked["kernel_name"] else _kernel_names(config, kernels)
    if name:
        options["kernel-name"] = name
    options["launch-skip"] = asked["launch_skip"] if asked["launch_skip"] is not None else skip or 0
    options["launch-count"] = asked["launch_count"] or count or DEFAULT_LAUNCHES
    options["set"] = setting(config, "ncu_options", "set")
    options["force-overwrite"] = True
    options = _over(options, ncu_options(config))
    return [str(executable), *_written(options, true=None), "--export", str(report), *program]


def _kernel_names(config: ExperimentConfig, kernels: Sequence[str]) -> str | None:
    if kernels:
        return f"regex:^({'|'.join(exactly(name) for name in kernels)})$"
    return f"regex:^(?!.*{COLLECTIVES})" if config.world_size > 1 else None


def _as_regex(name: str) -> str:
    """A wanted name as ncu takes a regular expression; without ``regex:`` ncu would take it for the whole name."""
    return name if name.startswith("regex:") else f"regex:{name}"


def exactly(name: str) -> str:
    """A name as a regular expression for it alone; what cannot be printed matches any character."""
    return re.sub(r"[^\x20-\x7e]", ".", re.sub(r"([.^$*+?()\[\]{}|\\/])", r"\\\1", name))


def export(report: Path, target: Path, *, executable: str | Path = "nsys") -> list[str]:
    """Command that exports a report of nsys to SQLite."""
    return [
        *(str(executable), "export", "--type=sqlite", "--force-overwrite=true"),
        *(f"--output={target}", str(report)),
    ]


def _over(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    changes = {key.removeprefix("--"): value for key, value in changes.items()}
    return {key: value for key, value in {**options, **changes}.items() if value is not None}


def _written(options: Mapping[str, Any], *, true: str | None) -> list[str]:
    """Options as arguments: ``--name=value``, or for ncu (which has switches) ``--name value``."""
    found = []
    for key, value in options.items():
        if true is not None:
            found.append(f"--{key}={str(value).lower() if isinstance(value, bool) else value}")
        elif value is True:
            found.append(f"--{key}")
        elif value is not False:
            found += [f"--{key}", str(value)]
    return found
