"""Failures of a run: the check that a capture is complete, and errors of an engine or profiler from its output."""

import contextlib
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import analyze
from llmprof.errors import CaptureError, LaunchError, NotCapturedError
from llmprof.launch.config.options import ExperimentConfig
from llmprof.launch.engines import engine
from llmprof.launch.engines._machine import is_survived, known, tail
from llmprof.launch.run.process import Finished
from llmprof.text import counted, ranks_in_words
from llmprof.trace import Trace

TAIL_BYTES: Final = 200_000
_ALARM: Final = re.compile(r"(?i)error|exception|fail|kill|cannot|no space|out of memory|less than|larger than")
_LEAST_ROOM: Final = 1 << 20
_KILLED: Final = {signal.SIGKILL: "it was killed", signal.SIGSEGV: "it crashed (segmentation fault)"}


def failure(worker: Mapping[str, Any] | None, finished: Finished, log: Path) -> LaunchError:
    """Error for a run whose engine failed."""
    error = (worker or {}).get("error") or {}
    output = tail(log, most=TAIL_BYTES)
    output = output[output.rfind("\n# 20") + 1 :]
    message = str(error.get("message") or _last_error(output) or _ending(finished.status))
    of_error = known(f"{error.get('type', '')} {message}")
    generic = not error or "initialization failed" in message
    reason = of_error or (known(alarming(output)) if generic else None)
    when = _when(finished)
    with contextlib.suppress(OSError):  # on a full disk, an engine cannot write its error
        if reason is None and shutil.disk_usage(log.parent).free < _LEAST_ROOM:
            reason = known("No space left on device")
    words, hint = reason or ("", "")
    advice = error.get("advice") or hint or f"the whole output is in {log.name}"
    if finished.status == -signal.SIGKILL and not reason:
        why = "the system may have killed it because main memory ran out (dmesg shows that)"
        advice = f"{why}: lower batch_size or max_model_len"
    what = f"{words} ({_shorten(message)})" if words else _shorten(message)
    found, stage = f"the engine failed {when}: {what}", finished.last_event.get("event")
    return LaunchError(found, hint=str(advice), log=str(log), stage=stage)


def _when(finished: Finished) -> str:
    last = finished.last_event.get("event")
    before = {None: "before it began", "import": "while it was imported", "init": "while it started"}
    return before.get(last, f"in mid-run, after {last!r}") if last != "error" else "with an error"


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        how = signal.Signals(-status)
    except ValueError:
        return f"ended by signal {-status}"
    return f"{_KILLED.get(how, 'it was ended')} by {how.name}"


def alarming(output: str) -> str:
    """Lines that look like errors; most other lines of an engine only list its options."""
    return "\n".join(line for line in output.splitlines() if _ALARM.search(line) and not is_survived(line))


def _last_error(output: str) -> str:
    """The last line that looks like an exception's message; if vLLM's engine core failed, the line of the cause."""
    lines = [line.strip() for line in output.splitlines() if not is_survived(line)]
    matching = [line for line in lines if re.search(r"(?:^|[\s\]])[A-Za-z_.]*(?:Error|Exception)(?::| \()", line)]
    causes = [line for line in matching if "Engine core initialization failed" not in line]
    return (causes or matching or [""])[-1]


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:300]}…"


_LEAST_SHARE: Final = 0.5
_MOST_WINDOW: Final = 0.5


def check(trace: Trace, config: ExperimentConfig, worker: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Check that a trace has what the run had to record."""
    worker = worker or {}
    platform = worker.get("platform")
    device = platform == "cuda" if platform else trace.has("kernels") or trace.has("runtime")
    on_device = device and config.profile_mode != "ops"
    event = "kernel" if on_device else "operator"
    events = _events(trace, config, on_device=on_device)
    counts = dict(events.group_by("rank").len().sort("rank").iter_rows())
    missing = sorted(set(range(config.world_size)) - set(counts))
    if missing:
        found = f"the capture has {event}s of {ranks_in_words(sorted(counts))}, but none of {ranks_in_words(missing)}"
        expected = f"{event}s of all {config.world_size} ranks"
        hint = _WHY_RANKS.get(config.profile_mode, _WHY_RANKS["nsys"])
        raise CaptureError(found, expected=expected, hint=hint, missing=missing)
    warned: list[str] = []
    steps = analyze.steps(trace)
    labelled = engine(config.engine, served=config.served).labels_steps
    if not steps.height and labelled:
        raise CaptureError(
            f"the capture has {counted(events.height, event)}, but no step of the engine",
            expected="steps labelled execute_… by vLLM 0.11 or newer, or repeated kernels",
            hint="the profiled window may lie outside the requests: check server.profile_after_s and max_iterations",
        )
    sources = steps["source"].unique().sort().to_list()
    if "inferred" in sources and labelled:
        warned.append("the trace has no labels of steps, so they were inferred from the repetition of kernels")
    shares = dict(analyze.coverage(trace).filter(measure="step").select("rank", "share").iter_rows())
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
        "events_are": f"{event}s",
        "steps": dict(steps.group_by("rank").len().sort("rank").iter_rows()),
        "steps_from": sources,
        "step_share": shares,
        "window_share": window,
        "warnings": warned,
    }


def _events(trace: Trace, config: ExperimentConfig, *, on_device: bool) -> pl.DataFrame:
    """Kernels, or outermost operators on a CPU."""
    try:
        events = analyze.activity(trace)
    except NotCapturedError as error:
        found = f"the capture is empty: {error.found}"
        raise CaptureError(found, hint=_why_empty(trace, config, on_device=on_device)) from error
    rows = events.filter((pl.col("source") == ("kernel" if on_device else "op")) & (pl.col("rank") >= 0))
    if not rows.height:
        what = "kernels" if on_device else "operators"
        raise CaptureError(f"the capture has no {what}", hint=_why_empty(trace, config, on_device=on_device))
    return rows


def _why_empty(trace: Trace, config: ExperimentConfig, *, on_device: bool) -> str:
    if config.profile_mode == "ops":
        return "no step of the engine was timed: raise max_tokens or ops_options.steps, or lower ops_options.every"
    if config.profile_mode == "torch":
        if on_device and (trace.has("ops") or trace.has("runtime")):
            return (
                "PyTorch's profiler recorded the host only: another tool (nsys, ncu, a debugger, DCGM) uses CUPTI, or "
                "PyTorch was built without CUPTI"
            )
        return "no step ran in the profiled window: raise max_tokens, or lower server.profile_after_s"
    if trace.has("runtime"):
        return (
            "nsys recorded calls but no kernels: its CUPTI is older than the driver; use a newer Nsight Systems, and "
            "run no other profiler at the same time"
        )
    return (
        "nsys followed no process that used the GPU: the workers must be spawned "
        "(VLLM_WORKER_MULTIPROC_METHOD=spawn) and the engine must call cudaProfilerStart (profiler cuda)"
    )


_WHY_RANKS: Final = {
    "ops": "a rank wrote no ops_rankN.json.gz: see its messages in experiment.log",
    "torch": "the profiler of a rank did not stop in time or failed: see its messages in experiment.log; with_stack: "
    "false and a lower max_iterations make it faster",
    "nsys": "nsys did not follow the processes of the other ranks: workers must be spawned and not forked "
    "(VLLM_WORKER_MULTIPROC_METHOD=spawn, trace-fork-before-exec)",
}


def _window_share(trace: Trace, worker: Mapping[str, Any]) -> float | None:
    """Share of the profiled stages' time that lies within the trace's span."""
    stages = [s for s in worker.get("stages") or () if s.get("name") == "profiled" and s.get("dur_ns")]
    first, last = trace.span_ns
    if not stages or last <= first:
        return None
    whole = sum(s["dur_ns"] for s in stages)
    return min(1.0, float(last - first) / float(whole))
