"""Is a capture whole? An empty one is an error with its likely cause, never a success."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from llmprof import analyze
from llmprof.errors import CaptureError, NotCapturedError
from llmprof.launch.config.options import ExperimentConfig
from llmprof.launch.engines import engine
from llmprof.trace import Trace

_LEAST_SHARE: Final = 0.5
_MOST_WINDOW: Final = 0.5


def check(trace: Trace, config: ExperimentConfig, worker: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Whether a trace holds what the run was to record.

    Parameters
    ----------
    trace : Trace
        What was captured.
    config : ExperimentConfig
        What was run.
    worker : mapping, optional
        What the engine script wrote of itself; without it the platform follows from the trace.

    Returns
    -------
    dict
        ``ranks`` (events of each), ``events_are`` (kernels, or operators on CPU), ``steps`` (of each rank),
        ``steps_from``, ``step_share`` (of device time, by rank), ``window_share`` (of the profiled stage's time that
        the trace spans), ``warnings``.

    Raises
    ------
    CaptureError
        There are no kernels (operators on CPU), those of a rank are missing, or there are no steps where the engine
        labels them; with the likely cause.
    """
    worker = worker or {}
    on_device = _on_device(trace, worker)
    events = _events(trace, config, on_device=on_device)
    counts = dict(events.group_by("rank").len().sort("rank").iter_rows())
    missing = sorted(set(range(config.world_size)) - set(counts))
    if missing:
        raise CaptureError(
            f"the capture has {_what(on_device=on_device)} of the ranks {sorted(counts)} and none of {missing}",
            expected=f"all {config.world_size} ranks",
            hint=_why_ranks(config),
            missing=missing,
        )
    warned: list[str] = []
    steps = analyze.steps(trace)
    labelled = engine(config.engine, served=config.served).labels_steps
    if not steps.height and labelled:
        raise CaptureError(
            f"the capture has {events.height} {_what(on_device=on_device)}, but no step of the engine",
            expected="steps labelled execute_… by vLLM 0.11 or newer, or repeated kernels",
            hint="the profiled window may lie outside the requests: check server.profile_after_s and max_iterations",
        )
    sources = steps["source"].unique().sort().to_list()
    if "inferred" in sources and labelled:
        warned.append("the trace has no labels of steps, so they were inferred from the repetition of kernels")
    coverage = analyze.coverage(trace).filter(pl.col("measure") == "step")
    shares = dict(coverage.select("rank", "share").iter_rows())
    warned += [
        f"only {share:.0%} of the time of rank {rank} lies in steps of the engine"
        for rank, share in shares.items()
        if share is not None and share < _LEAST_SHARE
    ]
    window = _window_share(trace, worker)
    if window is not None and window < _MOST_WINDOW and not config.served:
        bound = f" (max_iterations is {config.max_iterations})" if config.max_iterations else ""
        warned.append(f"the trace spans only {window:.0%} of the profiled time{bound}")
    return {
        "ranks": counts,
        "events_are": _what(on_device=on_device),
        "steps": dict(steps.group_by("rank").len().sort("rank").iter_rows()),
        "steps_from": sources,
        "step_share": shares,
        "window_share": window,
        "warnings": warned,
    }


def _on_device(trace: Trace, worker: Mapping[str, Any]) -> bool:
    platform = worker.get("platform")
    return platform == "cuda" if platform else trace.has("kernels") or trace.has("runtime")


def _what(*, on_device: bool) -> str:
    return "kernels" if on_device else "operators"


def _events(trace: Trace, config: ExperimentConfig, *, on_device: bool) -> pl.DataFrame:
    """Kernels, or outermost operators on CPU; there is at least one."""
    try:
        events = analyze.activity(trace)
    except NotCapturedError as error:
        raise CaptureError(
            f"the capture is empty: {error.found}", hint=_why_empty(trace, config, on_device=on_device)
        ) from error
    found = events.filter((pl.col("source") == ("kernel" if on_device else "op")) & (pl.col("rank") >= 0))
    if not found.height:
        raise CaptureError(
            f"the capture has no {_what(on_device=on_device)}", hint=_why_empty(trace, config, on_device=on_device)
        )
    return found


def _why_empty(trace: Trace, config: ExperimentConfig, *, on_device: bool) -> str:
    if config.profile_mode == "torch":
        if on_device and (trace.has("ops") or trace.has("runtime")):
            return (
                "the torch profiler saw the host only: another profiler (nsys, ncu, a debugger, DCGM) holds CUPTI, or "
                "torch was built without it"
            )
        return "the window held no step: raise max_tokens, or lower warmup and profile_after_s of the server"
    if trace.has("runtime"):
        return (
            "nsys saw calls but no kernels: its CUPTI is older than the driver; use a newer Nsight Systems, and run no "
            "other profiler beside it"
        )
    return (
        "nsys followed no process that used the GPU: the workers must be spawned "
        "(VLLM_WORKER_MULTIPROC_METHOD=spawn) and the engine must call cudaProfilerStart (profiler cuda)"
    )


def _why_ranks(config: ExperimentConfig) -> str:
    if config.profile_mode == "torch":
        return (
            "the profiler of a rank did not stop in time or failed: experiment.log has its words; with_stack: false "
            "and a lower max_iterations make it faster"
        )
    return (
        "nsys lost the processes of the other ranks: workers must be spawned and not forked "
        "(VLLM_WORKER_MULTIPROC_METHOD=spawn, trace-fork-before-exec)"
    )


def _window_share(trace: Trace, worker: Mapping[str, Any]) -> float | None:
    """Share of the profiled stages' time that lies within the trace's span."""
    stages = [s for s in worker.get("stages") or () if s.get("name") == "profiled" and s.get("dur_ns")]
    first, last = trace.span_ns
    if not stages or last <= first:
        return None
    whole = sum(s["dur_ns"] for s in stages)
    return min(1.0, float(last - first) / float(whole))
