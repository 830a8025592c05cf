"""Command lines and environment of a run: pure functions, and no shell is ever given a string."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmprof.launch._environment import environment, whole_environment
from llmprof.launch._rules import ncu_options, setting

if TYPE_CHECKING:
    from llmprof.launch.config import ExperimentConfig

__all__ = [
    "COLLECTIVES",
    "DEFAULT_LAUNCHES",
    "NCU",
    "NSYS",
    "environment",
    "exactly",
    "export",
    "ncu",
    "nsys",
    "whole_environment",
    "worker",
]

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
    name = asked["kernel_name"] or _kernel_names(config, kernels)
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
