"""Results of a run: reads and checks its trace, writes its numbers and its energy, and shows its
warnings.
"""

import contextlib
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import polars as pl

from llmprof import analyze, text
from llmprof.errors import (
    CaptureError,
    DefectError,
    NotCapturedError,
    ReadError,
    TraceWarning,
    guarded,
)
from llmprof.readers import read
from llmprof.readers.ncu.reader import read_metrics
from llmprof.readers.saved import with_facts_of_run
from llmprof.run.launch.config.options import ExperimentConfig
from llmprof.run.launch.engines import engine
from llmprof.run.launch.monitors import table
from llmprof.run.launch.run import folder as run_folder
from llmprof.run.launch.run import process, profilers, requests
from llmprof.run.launch.run.folder import RunFolder
from llmprof.run.workers.machine import known_cause, tail
from llmprof.text import counted, ranks_in_words
from llmprof.trace import Trace
from llmprof.trace.schema import END
from llmprof.trace.storage import files, typed
from llmprof.units import NS_PER_S

COUNTER: Final = "gpu.energy"
LEAST_SAMPLES: Final = 3
"""Least number of samples of each GPU within a repeat.

With fewer no energy is given, since the counter moves in steps.
"""

_SCHEMA = {
    "phase": pl.String,
    "repeat": pl.Int64,
    **dict.fromkeys(("joules", "watts"), pl.Float64),
    "output_tokens": pl.Int64,
    "joules_per_output_token": pl.Float64,
    **dict.fromkeys(("devices", "samples"), pl.Int64),
}


def energy(samples: pl.DataFrame, worker: Mapping[str, Any]) -> pl.DataFrame:
    """Energy of the GPUs in each repeat of a run.

    ``joules = sum over the GPUs of E(end) - E(start)``, where ``E`` is the counter of NVML
    (``nvmlDeviceGetTotalEnergyConsumption``, Volta and later), interpolated linearly between two
    samples. It is the energy of the whole board, including work of other processes.
    """
    counter = samples.filter(name=COUNTER).sort("time_ns")
    if counter.is_empty():
        found = "the monitors have no counter of energy"
        raise NotCapturedError(
            found, hint="it needs an NVIDIA GPU from Volta on, nvidia-ml-py, and monitor_hz above 0"
        )
    tokens: dict[tuple[Any, Any], int] = {}
    for request in worker.get("requests") or ():
        key = (request.get("phase"), request.get("repeat"))
        tokens[key] = tokens.get(key, 0) + (request.get("output_tokens") or 0)
    rows = []
    for stage in worker.get("stages") or ():
        if stage["name"] not in {"plain", "profiled"}:
            continue
        first, last = stage["start_ns"], stage["start_ns"] + stage["dur_ns"]
        devices = counter.partition_by("device")
        fewest = min(device["time_ns"].is_between(first, last).sum() for device in devices)
        if fewest < LEAST_SAMPLES:
            continue
        ends = [
            np.interp([0, last - first], device["time_ns"] - first, device["value"])
            for device in devices
        ]
        joules, count = float(np.diff(ends).sum()), tokens.get((stage["name"], stage["repeat"]), 0)
        each, watts = joules / count if count else None, joules / (stage["dur_ns"] / NS_PER_S)
        rows.append(
            (stage["name"], stage["repeat"], joules, watts, count, each, len(devices), fewest)
        )
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def energy_summary(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Joules per output token of each phase, with the 95 % interval of the mean over its
    repeats.
    """
    phases = []
    for (phase,), rows in frame.drop_nulls("joules_per_output_token").group_by(
        "phase", maintain_order=True
    ):
        over = requests.over_repeats(rows["joules_per_output_token"].to_list())
        interval = {name: over[name] for name in ("ci95_low", "ci95_high")}
        facts = {"phase": phase, "joules_per_output_token": over["mean"], **interval}
        phases.append(facts | {"watts": fmean(rows["watts"].to_list()), "repeats": rows.height})
    return phases


_TOP: Final = 20
_MOST_KERNELS: Final = 5


def _write_numbers(trace: Trace, folder: RunFolder) -> dict[str, Any]:
    """Write ``nsys_summary.csv`` (time by kernel) and ``nsys_metrics.json``."""
    kernels = analyze.nsys.cuda_gpu_kern_sum(trace)
    files.write(folder.nsys_summary, text.csv(kernels))
    kernels = kernels.with_columns(time_percentage=100 * pl.col("share"))
    events = trace.events
    ranks = events.group_by("rank").agg(
        kernels=(pl.col("source") == "kernel").sum(),
        kernel_time_ns=pl.col("dur_ns").filter(source="kernel").sum(),
        copy_time_ns=pl.col("dur_ns").filter(source="copy").sum(),
        span_ns=END.max() - pl.min("start_ns"),
    )
    categories = (
        events.group_by("category")
        .agg(events=pl.len(), total_ns=pl.sum("dur_ns"))
        .with_columns(share=pl.col("total_ns") / pl.sum("total_ns"))
        .sort("total_ns", descending=True)
    )
    first, last = trace.span_ns
    time_ns = int(trace.kernels["dur_ns"].sum())
    totals = {"kernels": trace.kernels.height, "kernel_time_ns": time_ns, "span_ns": last - first}
    top = kernels.head(_TOP).to_dicts()
    names = {"kernel_names": kernels["name"].n_unique(), "ranks": ranks.height}
    numbers = totals | {
        "summary": totals | names | {"top_kernels": top[:_MOST_KERNELS]},
        "ranks": ranks.sort("rank").to_dicts(),
        "categories": categories.to_dicts(),
        "top_kernels": top,
        "api": _rows(analyze.nsys.cuda_api_sum, trace),
        "copies": _rows(analyze.nsys.cuda_gpu_mem_time_sum, trace),
    }
    files.write_json(folder.nsys_metrics, numbers)
    return numbers


def _rows(analysis: Any, trace: Trace) -> list[dict[str, Any]] | None:
    try:
        rows: list[dict[str, Any]] = analysis(trace).head(_TOP).to_dicts()
    except NotCapturedError:
        return None
    return rows


TIMELINES: Final = {"torch", "nsys", "nsys_ncu", "ops"}
_TRACES: Final = {"torch", "ops"}
"""Modes whose timeline is in the folder of traces; in other modes it is the export of nsys."""
_OF_THE_CONFIGURATION: Final = (
    *(
        "name",
        "model",
        "profile_mode",
        "served",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "batch_size",
    ),
    "max_tokens",
)


@dataclass
class RunResults:
    """Reads the captures of one run and writes its results."""

    config: ExperimentConfig
    folder: RunFolder
    worker: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    imports: list[tuple[str, ...]] = field(default_factory=list)
    imported: bool = True
    _trace: Trace | None = None
    _versions: Mapping[str, Any] = field(default_factory=dict)
    _paths: Sequence[Path] = ()

    def timeline(self) -> Trace | None:
        """The trace, imported first if needed; None if it cannot be imported here, or if the
        mode records none.
        """
        mode = self.config.profile_mode
        if self._trace is None and mode in TIMELINES:
            if mode not in _TRACES:
                done = profilers.import_capture(
                    self.folder, log_tail=tail(self.folder.log, most=process.TAIL_BYTES)
                )
                self.imports += [one for one in done.commands if one not in self.imports]
                self.imported = done.done
                if not done.done:
                    self.summary["capture"] = {"imported": False, "advice": done.advice}
                    self.warned.append(f"the capture was not imported: {done.advice}")
                    return None
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", TraceWarning)
                self._trace = run_trace(self.folder, self.config)
            self.warned += [str(one.message) for one in caught]
        return self._trace

    def write(self) -> None:
        """Check the capture and write all result files but the manifest."""
        config, folder = self.config, self.folder
        document = requests.document(self.worker)
        files.write_json(folder.metrics, document)
        trace = self.timeline() if self.imported else None
        if trace is not None:
            self.summary["capture"] = {"imported": True}
            with self._part("checking the capture"):
                self.summary["capture"] |= (found := check_capture(trace, config, self.worker))
                self.warned += found["warnings"]
            if config.profile_mode not in _TRACES and trace.has("kernels"):
                with self._part("counting the kernels"):
                    numbers = _write_numbers(trace, folder)
                    self.summary["top_kernels"] = numbers["summary"]["top_kernels"]
                for capture in (folder.nsys_report, folder.sqlite):
                    folder.link(f"vllm_profile{capture.suffix}", capture)
        if config.profile_mode in {"ncu", "nsys_ncu"}:
            with self._part("counting the metrics of ncu"):
                self._write_ncu(trace)
        self.warned += document["warnings"]
        self.summary["metrics"] = document["summary"]
        self.summary |= {
            name: document[name] for name in ("overhead", "kv_cache", "peak_memory_bytes")
        }
        if folder.monitors.is_file():
            with (
                self._part("counting the energy"),
                contextlib.suppress(NotCapturedError, ReadError),
            ):
                used = energy(table.read(folder.monitors), self.worker)
                self.summary["energy"] = {
                    "repeats": used.to_dicts(),
                    "phases": energy_summary(used),
                }
        files.write_json(folder.summary, self._head() | self.summary)
        self._versions = run_folder.versions_of(folder, self.worker)
        self._paths = run_folder.files_in(folder)

    def close(self, commands: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> None:
        """Write the manifest, and the notes that came since the results were written."""
        files.write_json(self.folder.summary, self._head() | self.summary)
        run_folder.write(
            self.folder,
            self._versions,
            self._paths,
            commands=commands,
            environment=environment,
            also=self.config.environment,
        )

    @contextlib.contextmanager
    def _part(self, what: str) -> Iterator[None]:
        """Make one of several results; a fault in it stands in the summary, and the run has the
        others.
        """
        try:
            with guarded(what):
                yield
        except DefectError as error:
            raised = "".join(traceback.format_exception(error.__cause__))[-4000:]
            self.summary.setdefault("failed", []).append(
                {"what": what, "found": error.found, "traceback": raised}
            )

    def say(self) -> None:
        """Show the warnings."""
        for message in self.warned:
            warnings.warn(message, TraceWarning, stacklevel=5)

    def _write_ncu(self, trace: Trace | None) -> None:
        try:
            measured = metrics(self.folder)
        except CaptureError as error:
            if not self.folder.ncu_metrics.is_file():
                raise
            self.notes.append(
                f"the metrics of ncu from an earlier attempt were kept: {error.found}"
            )
            return
        self.summary["ncu"] = {"launches": len(profilers.write_numbers(measured, self.folder))}
        if trace is not None:
            both = profilers.write_comparison(trace, measured, self.folder)
            self.summary["ncu"]["kernels"] = both.height

    def _head(self) -> dict[str, Any]:
        worker = self.worker
        return {
            **{name: getattr(self.config, name) for name in _OF_THE_CONFIGURATION},
            **{name: worker.get(name) for name in ("engine", "engine_version", "platform")},
            "devices": worker.get("device_names"),
            "started": self.folder.state.get("started"),
            "stages": worker.get("stages"),
            "notes": self.notes,
            "warnings": self.warned,
        }


_LEAST_SHARE: Final = 0.5
_MOST_WINDOW: Final = 0.5


def check_capture(
    trace: Trace, config: ExperimentConfig, worker: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Check that a trace has what the run had to record."""
    worker = worker or {}
    platform = worker.get("platform")
    device = platform == "cuda" if platform else trace.has("kernels") or trace.has("runtime")
    on_device = device and config.profile_mode != "ops"
    event = "kernel" if on_device else "operator"
    events = _events(trace, config, on_device=on_device)
    counts = dict(events.group_by("rank").len().sort("rank").iter_rows())
    missing = sorted(set(range(config.devices)) - set(counts))
    if missing:
        found = (
            f"the capture has {event}s of {ranks_in_words(sorted(counts))}, but none of"
            f" {ranks_in_words(missing)}"
        )
        expected = f"{event}s of all {config.devices} ranks"
        hint = _WHY_RANKS.get(config.profile_mode, _WHY_RANKS["nsys"])
        raise CaptureError(found, expected=expected, hint=hint, missing=missing)
    warned: list[str] = []
    steps = analyze.steps(trace)
    labelled = engine(config.engine, served=config.served).labels_steps
    if not steps.height and labelled:
        raise CaptureError(
            f"the capture has {counted(events.height, event)}, but no step of the engine",
            expected="steps labelled execute_… by vLLM 0.11 or newer, or repeated kernels",
            hint=(
                "the profiled window may lie outside the requests: check server.profile_after_s and"
                " max_iterations"
            ),
        )
    sources = steps["source"].unique().sort().to_list()
    if "inferred" in sources and labelled:
        warned.append(
            "the trace has no labels of steps, so they were inferred from the repetition of kernels"
        )
    shares = dict(analyze.coverage(trace).filter(kind="step").select("rank", "share").iter_rows())
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
        events = trace.events
    except NotCapturedError as error:
        found = f"the capture is empty: {error.found}"
        raise CaptureError(found, hint=_why_empty(trace, config, on_device=on_device)) from error
    rows = events.filter(
        (pl.col("source") == ("kernel" if on_device else "op")) & (pl.col("rank") >= 0)
    )
    if not rows.height:
        what = "kernels" if on_device else "operators"
        raise CaptureError(
            f"the capture has no {what}", hint=_why_empty(trace, config, on_device=on_device)
        )
    return rows


def _why_empty(trace: Trace, config: ExperimentConfig, *, on_device: bool) -> str:
    if config.profile_mode == "ops":
        return (
            "no step of the engine was timed: raise max_tokens or ops_options.steps, or lower"
            " ops_options.every"
        )
    if config.profile_mode == "torch":
        if on_device and (trace.has("ops") or trace.has("runtime")):
            return (
                "PyTorch's profiler recorded the host only: another tool (nsys, ncu, a debugger,"
                " DCGM) uses CUPTI, or PyTorch was built without CUPTI"
            )
        return (
            "no step ran in the profiled window: raise max_tokens, or lower server.profile_after_s"
        )
    if trace.has("runtime"):
        return (
            "nsys recorded calls but no kernels: its CUPTI is older than the driver; use a newer"
            " Nsight Systems, and run no other profiler at the same time"
        )
    return (
        "nsys followed no process that used the GPU: the workers must be spawned"
        " (VLLM_WORKER_MULTIPROC_METHOD=spawn) and the engine must call cudaProfilerStart (profiler"
        " cuda)"
    )


_WHY_RANKS: Final = {
    "ops": "a rank wrote no ops_rankN.json.gz: see its messages in experiment.log",
    "torch": (
        "the profiler of a rank did not stop in time or failed: see its messages in experiment.log;"
        " with_stack: false and a lower max_iterations make it faster"
    ),
    "nsys": (
        "nsys did not follow the processes of the other ranks: workers must be spawned and not"
        " forked (VLLM_WORKER_MULTIPROC_METHOD=spawn, trace-fork-before-exec)"
    ),
}


def _window_share(trace: Trace, worker: Mapping[str, Any]) -> float | None:
    """Share of the profiled stages' time that lies within the trace's span."""
    stages = [
        s for s in worker.get("stages") or () if s.get("name") == "profiled" and s.get("dur_ns")
    ]
    first, last = trace.span_ns
    if not stages or last <= first:
        return None
    return min(1.0, float(last - first) / float(sum(s["dur_ns"] for s in stages)))


def run_trace(folder: RunFolder, config: ExperimentConfig) -> Trace:
    """Trace of a run, without the samples of the monitors."""
    if config.profile_mode not in TIMELINES:
        found = f"a run in mode {config.profile_mode} records no timeline"
        raise NotCapturedError(found, hint="run it in mode torch, nsys or nsys_ncu")
    if config.profile_mode not in _TRACES and not folder.sqlite.is_file():
        summary = typed.found(folder.summary, typed.SummaryJson) or {}
        advice = (summary.get("capture") or {}).get(
            "advice"
        ) or "see state.json and experiment.log of the run"
        raise NotCapturedError(f"{folder.path.name} has no {folder.sqlite.name}", hint=advice)
    try:
        trace = read(folder.traces if config.profile_mode in _TRACES else folder.sqlite)
        return with_facts_of_run(folder.path, trace)
    except ReadError as error:
        hint = "the profiler did not finish writing it; see its messages in experiment.log"
        raise CaptureError(f"the capture cannot be read: {error.found}", hint=hint) from error


def metrics(folder: RunFolder) -> Any:
    """Hardware metrics of a run."""
    if not folder.ncu_report.is_file():
        reason = known_cause(process.alarming(tail(folder.log, most=process.TAIL_BYTES)))
        usual = "no launch passed the filter: see ncu_options kernel_name and launch_skip"
        names = "names of kernels differ by device: on Hopper cuBLAS has nvjet in place of gemm"
        words, hint = reason or ("", f"{usual}; {names}")
        raise CaptureError(f"ncu wrote no report{f': {words}' if words else ''}", hint=hint)
    try:
        return read_metrics(folder.ncu_report)
    except ReadError as error:
        raise CaptureError(
            f"the report of ncu cannot be read: {error.found}", hint=error.hint
        ) from error
