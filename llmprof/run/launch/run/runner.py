"""Runner of experiments: runs the passes of a mode, keeps the state of the folder up to date,
and returns the run.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from llmprof.errors import (
    AnalysisError,
    LaunchError,
    LlmprofError,
    NotCapturedError,
    ReadError,
    TraceWarning,
)
from llmprof.readers.reading import with_cpu_samples
from llmprof.run.launch.config.models import resolve
from llmprof.run.launch.config.options import ExperimentConfig
from llmprof.run.launch.run import passes as run_passes
from llmprof.run.launch.run import results
from llmprof.run.launch.run.command import job
from llmprof.run.launch.run.folder import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    START,
    UNIMPORTED,
    RunFolder,
)
from llmprof.run.launch.run.passes import Passes, ran, tool
from llmprof.run.launch.run.requests import engine_steps_of, requests_of
from llmprof.run.launch.run.results import RunResults
from llmprof.run.launch.run.series import ENGINE_FILE, gather_run
from llmprof.text import Progress
from llmprof.trace.storage import files, typed

if TYPE_CHECKING:
    from llmprof.trace import Trace
    from llmprof.trace.metrics.data import Metrics


class Summary(dict[str, Any]):
    """Mapping whose keys can be read as attributes, also in nested mappings."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _attributes(self[name])
        except KeyError:
            raise AttributeError(f"the summary has no {name!r}; it has {', '.join(self)}") from None


def _attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return Summary(value)
    return [_attributes(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Run:
    """A run that was started: its folder, its configuration and its results."""

    folder: RunFolder
    config: ExperimentConfig
    _timeline: Trace | None = field(default=None, compare=False)

    @property
    def state(self) -> str:
        """``finished``, ``finished without import``, ``failed``, ``interrupted`` or ``running``."""
        return str(self.folder.state["state"])

    @property
    def recorded(self) -> bool:
        """Whether it is a window of a server that llmprof did not start: nothing can repeat it."""
        return self.folder.recording.is_file()

    @functools.cached_property
    def summary(self) -> Summary:
        """``summary.json``, or empty; its keys are attributes, too:

        ``run.summary.top_kernels[0].time_percentage``.
        """
        return Summary(typed.found(self.folder.summary, typed.SummaryJson) or {})

    def __getitem__(self, key: str) -> Any:
        """``run["status"]`` is the state; any other key is read from the summary."""
        return self.state if key == "status" else self.summary[key]

    @functools.cached_property
    def worker(self) -> dict[str, Any]:
        """Content of the engine script's ``worker.json``; empty if the script ended before it
        was written.
        """
        return typed.found(self.folder.worker, typed.WorkerJson) or {}

    @functools.cached_property
    def times(self) -> dict[str, int]:
        """Where the time of the run went (ns): until the engine was ready (``start``), its
        ``passes``, its ``stop`` as far as it was waited for, and llmprof's own work (``own``).

        Empty if the stages of the run are not known: of a run that shared its engine, and of one
        that did not finish.
        """
        stages = self.folder.state.get("stages") or []
        engine = self.worker.get("stages")
        ours = {one["name"]: one["dur_ns"] for one in stages}
        if not engine or "engine" not in ours or self.state == RUNNING:
            return {}
        (ended,) = (s["start_ns"] + s["dur_ns"] for s in stages if s["name"] == "engine")
        ends = [(one["name"], one["start_ns"] + one["dur_ns"]) for one in engine]
        first, last = min(one["start_ns"] for one in engine), max(end for _, end in ends)
        ready = max((end for name, end in ends if name in _STARTS), default=first)
        spent = {
            "start": ready - first,
            "passes": last - ready + ours.get("ncu", 0),
            "stop": max(0, ended - last) + ours.get("stop", 0),
        }
        whole = sum(one["dur_ns"] for one in stages)
        return spent | {"own": whole - sum(spent.values())}

    @functools.cached_property
    def requests(self) -> pl.DataFrame:
        """Requests of the run, with the columns of
        :func:`llmprof.run.launch.run.requests.requests_of`.
        """
        return requests_of(self.worker)

    @functools.cached_property
    def engine_steps(self) -> pl.DataFrame:
        """Steps of the engine's scheduler in the window, as
        :func:`llmprof.run.launch.run.requests.engine_steps_of`.
        """
        return engine_steps_of(self.worker)

    @functools.cached_property
    def trace(self) -> Trace:
        """The timeline, with the samples of the monitors and of the host's call stacks
        (``cpu_sampler``).

        Raises
        ------
        NotCapturedError
            The mode records no timeline, or the capture was not imported.
        """
        trace = self._timeline or results.run_trace(self.folder, self.config)
        if self.folder.monitors.is_file():
            from llmprof.run.launch import monitors
            from llmprof.run.launch.monitors import table

            try:
                trace = monitors.counters(table.read(self.folder.monitors), trace)
            except (AnalysisError, ReadError) as error:
                warnings.warn(
                    f"the trace has no counters of the monitors: {error.found}",
                    TraceWarning,
                    stacklevel=2,
                )
        return with_cpu_samples(self.folder.path, trace)

    @functools.cached_property
    def metrics(self) -> Metrics:
        """Hardware metrics that ncu measured.

        Raises
        ------
        NotCapturedError
            The mode does not use ncu.
        """
        if self.config.profile_mode not in {"ncu", "nsys_ncu"}:
            found = f"a run in mode {self.config.profile_mode} measures no hardware counters"
            raise NotCapturedError(found, hint="run it in mode ncu")
        measured: Metrics = results.metrics(self.folder)
        return measured

    def try_(self, change: Any = None, **options: Any) -> Any:
        """Try a change of this run's configuration, and measure both in turn:
        :func:`llmprof.trial`.
        """
        from llmprof.run.trials import trial

        return trial(self, change, **options)

    def _repr_html_(self) -> str:
        from llmprof.report.cards import of_run

        return of_run(self)

    def __repr__(self) -> str:
        return f"<Run {self.folder.path.name}: {self.state}>"


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run from its folder, whatever its state.

    Raises
    ------
    ReadError
        The folder is not a run folder.
    """
    folder = RunFolder.open(Path(path))
    return Run(folder, folder.config)


At = Callable[..., None]
"""Writes the stage that a run has reached into its folder, and the state if it does not run any
more.
"""


@contextlib.contextmanager
def keep_state(folder: RunFolder, first: str = START, since_ns: int = 0) -> Iterator[At]:
    """Keep the state of a folder and the times of its stages up to date, however the run ends; the
    first stage began now, or earlier.
    """
    stages: list[dict[str, Any]] = []

    def at(stage: str, state: str = RUNNING) -> None:
        now = time.time_ns()
        if stages:
            stages[-1]["dur_ns"] = now - stages[-1]["start_ns"]
        start = now if stages else since_ns or now
        stages.append({"name": stage, "start_ns": start, "dur_ns": 0})
        folder.set_state(state, stage=stage, stages=stages)

    at(first)
    try:
        yield at
    except BaseException as error:
        told = {"type": type(error).__name__, "message": str(error) or "interrupted"}
        if isinstance(error, LlmprofError):
            told |= {"found": error.found, "advice": error.hint}
            error.facts.setdefault("folder", str(folder.path))
        elif not isinstance(error, OSError | KeyboardInterrupt):
            told["traceback"] = traceback.format_exc()[-4000:]
        with contextlib.suppress(
            LlmprofError
        ):  # if a full disk prevents even that, the first error is kept
            state = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
            folder.set_state(state, stage=stages[-1]["name"], error=told, stages=stages)
        if isinstance(error, OSError):
            raise files.refused(Path(str(error.filename or folder.path)), error) from error
        raise


_STARTS: Final = {"import", "init", "serve"}
"""Stages of an engine after which it is ready."""

_RECORDED: Final = {"import", "ncu", "check", "show", "stop", "write", "done"}
"""Stages in which the engine's part of the run is already recorded."""


class ExperimentRunner:
    """Runner of an experiment.

    Parameters
    ----------
    config : ExperimentConfig
        Configuration of the run.
    progress : callable, optional
        Called with the current task, the amount of work that is done, and the whole amount (0:
        unknown).
    check : bool
        Whether the doctor checks the machine first; a failure that it finds stops the run before it
        starts.
    show : callable, optional
        Called with the run when its results are written, mostly while the engine still stops.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        *,
        progress: Progress | None = None,
        check: bool = True,
        show: Callable[[Run], object] | None = None,
    ) -> None:
        self.config = config
        self._progress, self._check, self._show = progress, check, show
        self._since_ns = time.time_ns()

    def run(self) -> Run:
        """Run the experiment in a new folder.

        Returns
        -------
        Run
            Finished run, whose capture was checked; ``state`` says if a raw capture could not be
            imported here.

        Raises
        ------
        LaunchError
            The machine cannot run the experiment (the error has the doctor's reason), or the engine
            or the profiler failed; the error says what to do.
        CaptureError
            The capture is empty or incomplete.
        OutputError
            The run's folder cannot be written, or the disk is full.

        Warns
        -----
        TraceWarning
            Repeats disagree, parts of the capture are missing, or it was not imported.
        """
        for name in ("nsys", "ncu"):
            if name in self.config.profile_mode:
                tool(name)
        if self._check:
            run_passes.ask_doctor(self.config, self._progress)
        job(
            self.config, self.config.model
        )  # so that an unreadable prompt file is reported before anything starts
        return self.run_in(RunFolder.create(self.config))

    def run_in(self, folder: RunFolder) -> Run:
        """Run the experiment in an existing folder with a separate engine; files of an earlier
        attempt are removed.
        """
        with folder.lock(), keep_state(folder, since_ns=self._since_ns) as stage:
            folder.clear()
            stage("model")
            passes = Passes(
                self.config, folder, resolve(self.config.model, folder.model), self._progress
            )
            made = RunResults(self.config, folder, {}, passes.notes)
            unshown: list[BaseException] = []

            def measured(worker: dict[str, Any]) -> None:
                made.worker = worker
                if self.config.profile_mode == "nsys_ncu":
                    stage("import")
                    self._say("importing the timeline")
                    trace = made.timeline()
                    stage("ncu")
                    run_passes.ncu_pass(passes, trace)
                unshown.extend(self._made(made, stage))
                stage("stop")

            stage("engine")
            run_passes.run_engine(passes, measured)
            self._finish(made, passes, stage)
        return self._shown(folder, unshown)

    def finish_in(self, folder: RunFolder) -> Run:
        """Import and check a recorded run, and write its results; if the pass of ncu is missing,
        it is run.
        """
        with folder.lock(), keep_state(folder, "import") as stage:
            gather_run(folder)
            passes = Passes(self.config, folder, self.config.model, self._progress)
            passes.recall()
            made = RunResults(
                self.config,
                folder,
                typed.found(folder.worker, typed.WorkerJson) or {},
                passes.notes,
            )
            if self.config.profile_mode == "nsys_ncu" and not folder.ncu_report.is_file():
                passes.model = resolve(self.config.model, folder.model)
                stage("ncu")
                run_passes.ncu_pass(passes, made.timeline())
            unshown = self._made(made, stage)
            self._finish(made, passes, stage)
        return self._shown(folder, unshown)

    def _made(self, made: RunResults, stage: At) -> list[BaseException]:
        """Read and check the capture, write its results and show them; an error of the showing,
        which does not cost the run.
        """
        stage("import")
        self._say("reading the capture")
        trace = made.timeline() if made.imported else None
        stage("check")
        self._say("checking the capture and writing numbers")
        made.write()
        stage("show")
        try:
            made.say()
            if self._show is not None:
                self._show(Run(made.folder, self.config, trace))
        except BaseException as error:  # noqa: BLE001 (raised at the end of the run)
            return [error]
        return []

    def _finish(self, made: RunResults, passes: Passes, stage: At) -> None:
        stage("write")
        made.close([*passes.commands, *ran(made.imports, "import")], passes.environment)
        stage("done", FINISHED if made.imported else UNIMPORTED)

    def _shown(self, folder: RunFolder, unshown: Sequence[BaseException]) -> Run:
        for error in unshown:
            raise error
        return Run(folder, self.config)

    def _say(self, what: str) -> None:
        if self._progress is not None:
            self._progress(what, 0, 0)


def resume(
    path: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    check: bool = True,
    show: Callable[[Run], object] | None = None,
) -> Run:
    """Resume a run: a finished run stays as it is, a recorded run is imported, any other is started
    again; its results are shown as by :class:`ExperimentRunner`.

    Raises
    ------
    LlmprofError
        As :meth:`ExperimentRunner.run`.
    """
    run = open_run(path)
    runner = ExperimentRunner(run.config, progress=progress, check=check, show=show)
    if run.state == FINISHED:
        if show is not None:
            show(run)
        return run
    if run.state == RUNNING:
        raise LaunchError(
            f"{run.folder.path.name} is running", hint="wait for its end, or end its process"
        )
    if run.recorded:
        found = f"{run.folder.path.name} is a recording of a server that llmprof did not start"
        raise LaunchError(found, hint="record the server again: llmprof record")
    shared = (run.folder.path / ENGINE_FILE).is_file()
    recorded = (
        (shared or run.folder.state.get("stage") in _RECORDED)
        and run.worker
        and not run.worker.get("error")
    )
    if run.state == UNIMPORTED or recorded:
        return runner.finish_in(run.folder)
    if check:
        run_passes.ask_doctor(run.config, progress)
    return runner.run_in(run.folder)
