"""A window of a server that runs already, recorded by the server's own profiler, as the folder
of a run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import polars as pl

from llmprof.errors import (
    CaptureError,
    ConfigError,
    LaunchError,
    LlmprofError,
    TraceWarning,
    listed,
)
from llmprof.readers.otlp import read_requests
from llmprof.readers.saved import CONFIG_FILE
from llmprof.run.launch import ConfigManager, ExperimentConfig, Run, open_run
from llmprof.run.launch.monitors import Sampler
from llmprof.run.launch.run.folder import FINISHED, RunFolder, machine
from llmprof.run.launch.run.results import RunResults
from llmprof.run.launch.run.runner import keep_state
from llmprof.run.live import traces
from llmprof.run.live.counters import Scrape, between
from llmprof.run.live.devices import device_states
from llmprof.run.live.guard import IDLE, Guard, stop
from llmprof.run.live.lock import RECORDING, Lock
from llmprof.run.live.server import (
    API_KEY,
    NEEDED,
    OK,
    About,
    Address,
    HttpAnswer,
    LostError,
    ServerClient,
    identify,
)
from llmprof.run.live.spans import SCHEME, Spans, received
from llmprof.text import Progress, are, counted, ranks_in_words
from llmprof.trace.storage import files, typed
from llmprof.units import NS_PER_S, format_bytes, format_share

_MOST_S: Final = 600.0
STEPS: Final = 100
"""Most steps of a window by default: an H100 stood still for 20 ms for each that it had
recorded.
"""
_STEPS_PER_S: Final = 1000
"""Bound of the steps that a server is asked to record if none is given: no engine is faster, and if
this process and its guard die, the server itself stops there.
"""
_AROUND_S: Final = (1.0, 5.0)
"""Least and most time between two readings of the counters before the window, which give the rates
without the profiler: as long as the window, since of fewer requests less is known.
"""
_LOOK_S: Final = 0.25
SPANS_S: Final = 6.0
"""Seconds after the window until which spans are awaited:

OpenTelemetry sends them every five seconds.
"""
START_S: Final = 120.0
STOP_S: Final = 600.0
_KEPT_COSTS: Final = 10
_HARMLESS_ENGINES: Final = ("vllm", "sglang", "tensorrt_llm")

Say = Callable[[str], None]
Told = str | os.PathLike[str] | Spans
"""Where requests are told: a file, or a receiver of spans."""


@dataclass(slots=True)
class CapturePlan:
    """What a capture will do, before it begins: the server, the window, where the traces are,
    and what it will cost.
    """

    about: About
    url: str
    seconds: float
    steps: int | None
    costs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def words(self) -> str:
        """The server and the window."""
        said = self.about
        engine = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt_llm": "TensorRT-LLM"}.get(
            said.engine, said.engine
        )
        version = f" {said.version}" if said.version else ""
        model = f" with {said.model}" if said.model else ""
        until = f"{self.seconds:g} s" + (f", at most {self.steps:,} steps" if self.steps else "")
        ranks = counted(said.ranks, "rank") if said.ranks else "ranks unknown"
        return f"{engine}{version}{model} at {self.url} ({ranks}): recording {until}."

    @property
    def cost(self) -> str:
        """Expected cost, from earlier captures of this server."""
        if not self.costs:
            return (
                "What this costs here is not known, since no capture of this server was made"
                " before. While the profiler is on, steps take longer; the server may pause while"
                " it writes the traces."
            )
        sizes = [row["bytes"] / row["seconds"] for row in self.costs if row["seconds"]]
        lost = [row["overhead"] for row in self.costs if row["overhead"] is not None]
        pause = median(row["stop_s"] for row in self.costs)
        said = [f"about {format_bytes(round(median(sizes)))} a second"] if sizes else []
        said += [f"{fewer(median(lost))} tokens a second in the window"] if lost else []
        said += [f"{pause:.1f} s until the traces were written"]
        return f"By the last {len(self.costs)} captures of this server it costs {', '.join(said)}."


def fewer(overhead: float) -> str:
    """Words of an overhead: how much less there was, or more, if the load changed meanwhile."""
    return f"{format_share(abs(overhead))} {'fewer' if overhead >= 0 else 'more'}"


def record(
    url: str | Sequence[str],
    *,
    seconds: float = 3.0,
    steps: int | None = STEPS,
    folder: str | os.PathLike[str] | None = None,
    fetch: Sequence[str] | None = None,
    ranks: int | None = None,
    requests: str | os.PathLike[str] | None = None,
    results_dir: str | os.PathLike[str] = "results",
    timeout_s: float = 300.0,
    say: Say | None = None,
    progress: Progress | None = None,
) -> Run:
    """Record a window of a server that runs already, by its own profiler; or of several at one
    time, such as one that prefills and one that decodes.

    The server has to be started with its profiler: vLLM with ``--profiler-config`` (before 0.13
    with the variable ``VLLM_TORCH_PROFILER_DIR``); SGLang has it always; TensorRT-LLM in newer
    versions. A second process switches the profiler off if this one ends, hangs or is killed, and
    the server itself is asked to stop after ``steps``.

    Parameters
    ----------
    url : str or sequence of str
        Address of the server, such as ``http://127.0.0.1:8000``, or those of several, whose traces
        are then in one run. A name and a password in it, or
        the token in the environment variable ``LLMPROF_API_KEY``, are sent, and stored nowhere;
        both at once are refused.
    seconds : float
        Longest time of the window, in seconds.
    steps : int, optional
        Most steps of the engine in the window (None: as many as there are). While a server writes
        its traces it stands still, in proportion to them. Versions that do not stop by themselves
        are stopped by their own count of steps.
    folder : path, optional
        Folder into which the server writes its traces, as it is seen from here. By default what a
        server of this machine says (vLLM in development mode, or the command line of its process).
    fetch : sequence of str, optional
        Command that copies that folder here, as a list of words, if it is not seen from here:
        ``["kubectl", "cp", "pod:/profiles"]``. ``{to}`` stands for the place here; without it, it
        comes last.
    ranks : int, optional
        Number of traces that the server writes, one for each rank; by default what the server says.
    requests : path or str, optional
        Where the server's requests are told: a file that :func:`read_requests` reads (spans of an
        OpenTelemetry collector, or SGLang's records), or ``otlp://127.0.0.1:4318``, at which spans
        are received during the recording, if the server sends them there over HTTP.
    results_dir : path
        Folder in which the folder of the capture is made.
    timeout_s : float
        Longest time to wait for the traces, in seconds.
    say : callable, optional
        Called with what will be recorded, and then with what that will cost, before the profiler is
        switched on.
    progress : callable, optional
        Called with the current task, the amount of work that is done, and the whole amount (0:
        unknown).

    Returns
    -------
    Run
        A finished run. ``run.trace`` is its timeline; ``recording.json`` in its folder says what
        the server is, when the window was and what it cost, with the server's counters before,
        within and after the window.

    Raises
    ------
    ConfigError
        The address, the window or the folder cannot be used.
    LaunchError
        The server does not answer, has no profiler, refuses, or is recorded by another process.
    CaptureError
        A rank wrote no whole trace, or nothing was computed in the window.
    OutputError
        The disk is full, or the folder cannot be written.

    Examples
    --------
    >>> run = llmprof.record("http://127.0.0.1:8000", seconds=3, steps=40)  # doctest: +SKIP
    """
    spans = isinstance(requests, str) and requests.startswith(SCHEME)
    with received(str(requests)) if spans else contextlib.nullcontext(requests) as told:
        window = functools.partial(
            record_window,
            seconds=seconds,
            steps=steps,
            folder=folder,
            fetch=fetch,
            ranks=ranks,
            requests=told,
            results_dir=results_dir,
            timeout_s=timeout_s,
            say=say,
            progress=progress,
        )
        return window(url) if isinstance(url, str) else _record_beside(list(url), window)


def _record_beside(urls: Sequence[str], window: Callable[..., Run]) -> Run:
    """Windows of several servers at one time as one run, with a folder of traces for each."""
    if not urls or len(set(urls)) < len(urls):
        raise ConfigError(
            f"the addresses are {listed(urls) or 'none'}", expected="one or more, each once"
        )
    together = threading.Barrier(len(urls))

    def ready() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # one that failed is not awaited
            together.wait(START_S)

    def beside(url: str) -> Run:
        try:
            return window(url, ready=ready)
        except BaseException:
            together.abort()
            raise

    with ThreadPoolExecutor(len(urls)) as threads:
        recorded = [threads.submit(beside, url) for url in urls]
    errors = {url: done.exception() for url, done in zip(urls, recorded, strict=True)}
    if failed := next((error for error in errors.values() if error is not None), None):
        kept = [str(done.result().folder.path) for done in recorded if done.exception() is None]
        if isinstance(failed, LlmprofError) and kept:
            raise CaptureError(
                f"{next(url for url in urls if errors[url])} was not recorded: {failed.found}",
                hint=f"{failed.hint or 'record them again'}; the others are in {listed(kept)}",
            ) from failed
        raise failed
    runs = [done.result() for done in recorded]
    first = runs[0].folder
    for number, (url, run) in enumerate(zip(urls, runs, strict=True)):
        address = urlsplit(url)
        name = f"{address.hostname}-{address.port or number}"
        whole = run.folder.traces.rename(run.folder.path / name)
        files.made(first.traces)
        shutil.move(whole, first.traces / name)
        if number:
            shutil.move(run.folder.recording, first.path / f"recording_{name}.json")
            shutil.rmtree(run.folder.path)
    results = RunResults(runs[0].config, first, dict(runs[0].worker), [])
    results.timeline()
    results.write()
    results.close([{"recorded": url} for url in urls], {})
    return open_run(first.path)


def record_window(
    url: str,
    *,
    seconds: float,
    steps: int | None,
    folder: str | os.PathLike[str] | None,
    fetch: Sequence[str] | None,
    ranks: int | None,
    requests: Told | None,
    results_dir: str | os.PathLike[str],
    timeout_s: float,
    say: Say | None,
    progress: Progress | None,
    ready: Callable[[], None] | None = None,
) -> Run:
    """Record a window, with the requests of a file or of a receiver that is open already."""
    if not 0 < seconds <= _MOST_S:
        raise ConfigError(
            f"seconds is {seconds:g}", expected=f"more than 0 and at most {_MOST_S:g}"
        )
    if steps is not None and steps < 1:
        raise ConfigError(f"steps is {steps}", expected="1 or more")
    address = Address.of(url, token=os.environ.get(API_KEY))
    server = ServerClient(address)
    said = identify(server)
    said.ranks = ranks or said.ranks
    if said.engine == "tgi":
        raise LaunchError(f"{address.url} cannot be recorded", hint=NEEDED["tgi"])
    capture = ServerCapture(
        server, said, seconds=seconds, steps=steps, timeout_s=timeout_s, progress=progress
    )
    lock = Lock(address)
    with lock.taken() as descriptor:
        costs = typed.read_or_set_aside(lock.costs, list[typed.CostJson]) or []
        plan = CapturePlan(said, address.url, seconds, steps, costs)
        if say is not None:
            say(plan.words)
            say(plan.cost)
        config = _config(said, results_dir)
        with tempfolder(results_dir, capture.prefix) as own:
            capture.place = traces.find_traces(
                folder or said.folder,
                fetch,
                capture.prefix,
                own,
                made=folder is None and said.pid is not None,
            )
            run_folder = RunFolder.create(config)
            try:
                with run_folder.lock(), keep_state(run_folder) as stage:
                    capture.note(run_folder)
                    capture.run(run_folder, lock, descriptor, stage, ready)
                    capture.finish(run_folder, config, requests, stage)
            except BaseException:
                if not capture.began:
                    shutil.rmtree(run_folder.path, ignore_errors=True)
                raise
        _remember(lock.costs, plan.costs, capture)
    return open_run(run_folder.path)


@contextlib.contextmanager
def tempfolder(root: str | os.PathLike[str], prefix: str) -> Iterator[Path]:
    """Folder for what a command copies from the server, which is gone at the end."""
    own = Path(root).expanduser().absolute() / f".{prefix}"
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _config(said: About, results_dir: str | os.PathLike[str]) -> ExperimentConfig:
    known = said.engine if said.engine in _HARMLESS_ENGINES else "vllm"
    short = (said.model or "model").rstrip("/").rsplit("/", 1)[-1]
    return ExperimentConfig(
        model=said.root or said.model or "unknown",
        model_name=f"{short}_recorded",
        engine=known,
        served=True,
        profile_mode="torch",
        tensor_parallel_size=said.parallel.get("tp", 1),
        pipeline_parallel_size=said.parallel.get("pp", 1),
        results_dir=str(results_dir),
        python=sys.executable,
        plain=False,
    )


class ServerCapture:
    """One window: the profiler on and off again, the traces, and the folder of the run."""

    def __init__(
        self,
        server: ServerClient,
        said: About,
        *,
        seconds: float,
        steps: int | None,
        timeout_s: float,
        progress: Progress | None,
    ) -> None:
        self.server, self.said, self.seconds, self.steps = server, said, seconds, steps
        self.timeout_s, self._progress = timeout_s, progress
        self.around_s = min(max(seconds, _AROUND_S[0]), _AROUND_S[1])
        self.prefix = f"llmprof-{uuid4().hex[:12]}"
        self.place: traces.TracePlace
        self.began = False
        self.notes: list[str] = []
        self.window: tuple[int, int] = (0, 0)
        self.stop_s = 0.0
        self.bytes = 0
        self.overhead: float | None = None
        self.devices: dict[str, Any] = {}
        self._scrapes: dict[str, list[Scrape]] = {"before": [], "within": [], "after": []}

    def run(
        self,
        folder: RunFolder,
        lock: Lock,
        descriptor: int,
        stage: Callable[[str], None],
        ready: Callable[[], None] | None = None,
    ) -> None:
        """Switch the profiler on, as soon as others are ready, wait, switch it off, whatever
        happens, and take the traces.
        """
        if lock.left_on:
            self.notes.append(
                "an earlier recording was killed with its guard: the profiler was switched off"
                " first"
            )
            stop(self.server, within_s=0)
        stage("counters")
        self._read("before")
        self._look("before")
        time.sleep(self.around_s)
        self._read("before")
        if ready is not None:
            ready()
        self.place.remember()
        within_s = START_S + self.seconds + 2 * self.around_s
        guard = Guard(self.server.address, within_s=within_s, lock=descriptor)
        stopped = False
        lock.write(RECORDING, folder.path)
        monitors = contextlib.ExitStack()
        try:
            stage("start_profile")
            self._say("starting the profiler")
            try:
                self.server.start(self.said.engine, self._body(), timeout_s=START_S + self.seconds)
            except LostError:
                self.began = True
                raise
            except LaunchError:
                stopped = (
                    True  # it said no: nothing of ours is on, and what another one records goes on
                )
                raise
            self.began = True
            start_ns, from_s = time.time_ns(), time.monotonic()
            monitors.enter_context(self._sampler(folder))
            stage("record")
            self._wait(from_s)
            self.window = (start_ns, time.time_ns())
        finally:
            if not stopped:
                stage("stop_profile")
                self._say("stopping the profiler, which writes the traces")
                stopped = self._stop()
            guard.release(stopped=stopped)
            if stopped:
                lock.write(IDLE)
            with contextlib.suppress(LlmprofError):  # samples are worth less than the traces
                monitors.close()
        self._read("after")
        self._look("after")
        stage("collect")
        if not stopped:
            hint = (
                "a guard goes on trying to switch it off for two minutes; look whether the server"
                " still runs"
            )
            raise CaptureError(
                f"{self.server.address.url} was lost while its profiler was on", hint=hint
            )
        self._collect(folder)

    def _sampler(self, folder: RunFolder) -> Any:
        """Monitors of this machine, if the server runs on it."""
        if self.said.pid is None:
            self.notes.append(
                "host and devices were not sampled: the server's process is not seen on this"
                " machine"
            )
            return contextlib.nullcontext()
        return Sampler(folder.monitors, hz=4.0, pids=[self.said.pid])

    def _body(self) -> dict[str, Any]:
        most = self.steps or round(self.seconds * _STEPS_PER_S)
        if self.said.engine == "vllm":
            return {"profile_prefix": self.prefix, "max_iterations": most}
        body: dict[str, Any] = {"activities": ["CPU", "GPU"], "num_steps": most}
        if not self.place.fetch:
            body["output_dir"] = str(self.place.folder / self.prefix)
        if self.said.engine == "sglang":
            body |= {"with_stack": False, "record_shapes": True}
        return body

    def _wait(self, from_s: float) -> None:
        """Wait until the window ends: by its time, by its steps, or because every rank has
        written its trace.
        """
        self._read("within")
        until = from_s + self.seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left))
            self._say("recording", round(100 * (1 - left / self.seconds)), 100)
            if self.steps and self._counted():
                self._read("within")
                if (self._counted() or 0) - (self._counted(0) or 0) >= self.steps:
                    break  # older versions do not stop by themselves
            if self.steps and self.said.ranks and not self.place.fetch:
                found = self.place.found()
                if len(found) >= self.said.ranks and all(map(traces.is_whole, found)):
                    break
        self._read("within")

    def _counted(self, place: int = -1) -> float | None:
        """Steps that the server has counted at a reading within the window; None if it does not
        count them.
        """
        steps = (
            self._scrapes["within"][place].histograms.get("step_tokens")
            if self._scrapes["within"]
            else None
        )
        return None if steps is None else steps.count

    def _stop(self) -> bool:
        began = time.monotonic()
        try:
            answer: HttpAnswer = self.server.stop(timeout_s=STOP_S)
        except LostError:
            return stop(self.server, within_s=5.0)
        finally:
            self.stop_s = time.monotonic() - began
        if answer.status != OK:
            self.notes.append(
                f"/stop_profile answered {answer.words}; the profiler may have stopped by itself"
                " before"
            )
        return True

    def _collect(self, folder: RunFolder) -> None:
        self._say("waiting for the traces of all ranks")
        copied = traces.collect(
            self.place,
            folder.traces,
            ranks=self.said.ranks,
            timeout_s=self.timeout_s,
            progress=self._progress,
        )
        self.bytes = sum(path.stat().st_size for path in copied)
        if not self.place.clear():
            self.notes.append(f"traces were left in the server's folder {self.place.folder}")
        elif self.place.fetch:
            self.notes.append(
                "the traces were left in the server's folder, since a command copied them"
            )
        named = traces.sizes_of([path.name for path in copied])
        if not self.said.parallel:
            self.said.parallel = named or {"tp": len(copied)}
            if not named and len(copied) > 1:
                self.notes.append(f"{len(copied)} ranks of unknown kind count as tensor parallel")

    def finish(
        self, folder: RunFolder, config: ExperimentConfig, requests: Told | None, stage: Any
    ) -> None:
        """Read the traces, and write the files of a run."""
        stage("check")
        self._say("reading the capture")
        sizes = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}
        config = config.replace(
            **{name: self.said.parallel.get(size, 1) for size, name in sizes.items()}
        )
        ConfigManager.save_config(config, folder.path / CONFIG_FILE, overwrite=True)
        counters = self._costs()
        start_ns, end_ns = self.window
        worker = {
            "engine": self.said.engine,
            "engine_version": self.said.version,
            "stages": [
                {"name": "window", "repeat": 0, "start_ns": start_ns, "dur_ns": end_ns - start_ns}
            ],
            "requests": self._requests(requests),
        }
        files.write_json(folder.worker, worker)
        files.write_json(folder.gpu_info, machine(worker))
        self.note(folder, counters)
        results = RunResults(config, folder, worker, self.notes)
        try:
            trace = results.timeline()
            missing = trace.meta.get("missing_ranks") if trace is not None else None
            if missing:
                raise CaptureError(
                    f"the traces are of {counted(len(trace.meta['ranks']), 'rank')}, "  # type: ignore[union-attr]
                    f"and {ranks_in_words(missing)} {are(len(missing))} missing",
                    hint=(
                        "give ranks=, so that the capture waits for them, or the folder that all"
                        " ranks write into"
                    ),
                    missing=missing,
                )
            results.write()
            results.close(
                [
                    {
                        "recorded": self.server.address.url,
                        "seconds": self.seconds,
                        "steps": self.steps,
                    }
                ],
                {},
            )
        except CaptureError as error:
            if counters.get("within", {}).get("output_tokens_per_s") == 0:
                found = f"the server computed nothing in the window of {self.seconds:g} s"
                raise CaptureError(found, hint="record it while requests run") from error
            raise
        with warnings.catch_warnings():
            warnings.simplefilter("always", TraceWarning)
            results.say()
        stage("done", FINISHED)

    def note(self, folder: RunFolder, counters: Mapping[str, Any] | None = None) -> None:
        """Write what is known of the recording so far."""
        said, (start_ns, end_ns) = self.said, self.window
        known = {
            name: getattr(said, name)
            for name in ("engine", "version", "model", "ranks", "parallel", "told_by")
        }
        window = {"start_epoch_ns": start_ns, "end_epoch_ns": end_ns} if end_ns else None
        cost = (
            {"bytes": self.bytes, "stop_s": self.stop_s, "overhead": self.overhead}
            if end_ns
            else None
        )
        files.write_json(
            folder.recording,
            {
                "url": self.server.address.url,
                **known,
                "config": said.config,
                "steps_asked": self.steps,
            }
            | {"window": window, "cost": cost, "counters": counters or {}, "notes": self.notes}
            | {"devices": self.devices},
        )

    def _read(self, when: str) -> None:
        """Read the counters; a server without them is recorded all the same."""
        try:
            scrape = self.server.scrape()
            self._scrapes[when].append(scrape)
            words = (
                f"{counted(scrape.unread, 'line')} of the counters cannot be read"
                if scrape.unread
                else ""
            )
        except LostError as error:
            words = f"no counters {when} the window: {error.found}"
        if words and words not in self.notes:
            self.notes.append(words)

    def _look(self, when: str) -> None:
        """Ask for the state of the devices, if the server runs on this machine."""
        state = None if self.said.pid is None else device_states(self.said.pid)
        if state is not None:
            self.devices[when] = state

    def _costs(self) -> dict[str, Any]:
        """Rates before and within the window, and what the profiler cost by them."""
        rates = {
            when: between(scrapes[0], scrapes[-1])
            for when, scrapes in self._scrapes.items()
            if when != "after" and len(scrapes) > 1
        }
        if self._scrapes["within"] and self._scrapes["after"]:
            rates["after"] = between(self._scrapes["within"][-1], self._scrapes["after"][-1])
        before, within = (
            rates.get(when, {}).get("output_tokens_per_s") for when in ("before", "within")
        )
        if before and within is not None:
            self.overhead = 1 - within / before
        return {
            when: {k: v for k, v in row.items() if v is not None} for when, row in rates.items()
        }

    def _requests(self, told: Told | None) -> list[dict[str, Any]]:
        """Requests that overlap with the window."""
        if told is None:
            return []
        start_ns, end_ns = self.window
        if isinstance(told, Spans):
            self._say("waiting for the spans of requests")
            time.sleep(max(0.0, SPANS_S - (time.time_ns() - end_ns) / NS_PER_S))
            if told.refused:
                self.notes.append(
                    f"{counted(told.refused, 'request')} of the spans' sender could not be read"
                )
        ends = pl.col("start_epoch_ns") + pl.col("e2e_ns").fill_null(0)
        try:
            rows = (
                told.frame() if isinstance(told, Spans) else read_requests(told, skip_broken=True)
            )
        except LlmprofError as error:
            self.notes.append(f"no requests: {error.found}")
            return []
        inside = rows.filter((pl.col("start_epoch_ns") < end_ns) & (ends > start_ns))
        self.notes.append(
            "requests that had not ended when the traces were read have no span, and are missing"
        )
        return [
            {
                name: row[name]
                for name in ("phase", "repeat", "id", "prompt_tokens", "output_tokens")
            }
            | {"request": number, "start_ns": row["start_epoch_ns"]}
            | {
                f"{name}_s": None if row[f"{name}_ns"] is None else row[f"{name}_ns"] / NS_PER_S
                for name in ("queue", "ttft", "prefill", "decode", "e2e")
            }
            for number, row in enumerate(inside.iter_rows(named=True))
        ]

    def _say(self, what: str, done: int = 0, total: int = 0) -> None:
        if self._progress is not None:
            self._progress(what, done, total)


def _remember(path: Path, costs: list[dict[str, Any]], capture: ServerCapture) -> None:
    """Keep what a capture cost, for the words of the next one."""
    start_ns, end_ns = capture.window
    seconds = (end_ns - start_ns) / NS_PER_S
    row = {
        "seconds": seconds,
        "bytes": capture.bytes,
        "overhead": capture.overhead,
        "stop_s": capture.stop_s,
    }
    with contextlib.suppress(LlmprofError):
        files.write_json(path, [*costs, row][-_KEPT_COSTS:])
