"""Running an experiment: the passes of its mode, the state of its folder, and what it gives back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from llmprof.errors import LaunchError
from llmprof.launch import _files, _stages, _state
from llmprof.launch._job import job
from llmprof.launch._passes import Passes, ran, tool
from llmprof.launch._results import Results
from llmprof.launch._run import Run, open_run
from llmprof.launch._stages import plan
from llmprof.launch.config import ExperimentConfig
from llmprof.launch.folder import FINISHED, RUNNING, UNIMPORTED, RunFolder
from llmprof.launch.process import Progress

__all__ = ["ExperimentRunner", "Run", "open_run", "plan", "resume"]

_RECORDED: Final = {"import", "ncu", "check", "done"}
"""Stages that a run comes to when its engine has been recorded."""

_TOOLS: Final = {"nsys": ("nsys",), "nsys_ncu": ("nsys", "ncu"), "ncu": ("ncu",)}


class ExperimentRunner:
    """Runs one experiment.

    Parameters
    ----------
    config : ExperimentConfig
        What to run.
    progress : callable, optional
        Called with what is being done, how much is done, and of how much (0: unknown).
    check : bool
        Ask the doctor first; what it calls a failure stops the run before it starts.
    """

    def __init__(self, config: ExperimentConfig, *, progress: Progress | None = None, check: bool = True) -> None:
        self.config = config
        self._progress, self._check = progress, check

    def run(self) -> Run:
        """Run it, in a new folder.

        Returns
        -------
        Run
            Finished, and its capture checked; ``state`` says where a raw capture could not be imported here.

        Raises
        ------
        LaunchError
            The machine cannot run it (the doctor says why), or the engine or profiler failed, with advice.
        CaptureError
            The capture is empty or incomplete.
        OutputError
            The run's folder cannot be written, or the disk is full.

        Warns
        -----
        TraceWarning
            Repeats disagree, parts of the capture are missing, or it was not imported.
        """
        for name in _TOOLS.get(self.config.profile_mode, ()):
            tool(name)
        if self._check:
            _stages.ask_doctor(self.config, self._progress)
        job(self.config, self.config.model)  # a prompt file that cannot be read is known before anything starts
        return self.run_in(RunFolder.create(self.config))

    def run_in(self, folder: RunFolder) -> Run:
        """Run it in a folder that exists; what an earlier attempt left there is removed.

        Raises
        ------
        LlmprofError
            As :meth:`run`, or another process works in the folder.
        """
        with folder.lock(), _state.kept(folder) as at:
            folder.clear()
            at("model")
            passes = Passes(self.config, folder, self._model(folder), self._progress)
            at("engine")
            worker = _stages.engine(passes)
            results = Results(self.config, folder, worker, passes.notes)
            if self.config.profile_mode == "nsys_ncu":
                at("import")
                self._say("importing the timeline")
                trace = results.timeline()
                at("ncu")
                _stages.ncu_pass(passes, trace)
            return self._finish(results, passes, at)

    def finish_in(self, folder: RunFolder) -> Run:
        """Import, check and write numbers of a run whose engine has done its part; what ncu did not do is done.

        Raises
        ------
        LlmprofError
            As :meth:`run`.
        """
        with folder.lock(), _state.kept(folder) as at:
            passes = Passes(self.config, folder, self.config.model, self._progress)
            passes.recall()
            results = Results(self.config, folder, _files.read_json(folder.worker) or {}, passes.notes)
            if self.config.profile_mode == "nsys_ncu" and not folder.ncu_report.is_file():
                passes.model = self._model(folder)
                at("ncu")
                _stages.ncu_pass(passes, results.timeline())
            return self._finish(results, passes, at)

    def _finish(self, results: Results, passes: Passes, at: _state.At) -> Run:
        at("import")
        self._say("reading the capture")
        trace = results.timeline() if results.imported else None
        at("check")
        self._say("checking the capture and writing numbers")
        results.write([*passes.commands, *ran(results.imports, "import")], passes.environment)
        del trace
        at("done", UNIMPORTED if not results.imported else FINISHED)
        results.say()
        return Run(results.folder, self.config)

    def _model(self, folder: RunFolder) -> str | Path:
        from llmprof.launch.models import resolve

        return resolve(self.config.model, folder.model)

    def _say(self, what: str) -> None:
        if self._progress is not None:
            self._progress(what, 0, 0)


def resume(path: str | os.PathLike[str], *, progress: Progress | None = None, check: bool = True) -> Run:
    """Go on with a run: nothing where it is finished, the import where only that is missing, all of it otherwise.

    Raises
    ------
    LlmprofError
        As :meth:`ExperimentRunner.run`.
    """
    run = open_run(path)
    runner = ExperimentRunner(run.config, progress=progress, check=check)
    if run.state == FINISHED:
        return run
    if run.state == RUNNING:
        raise LaunchError(f"{run.folder.path.name} is running", hint="wait for its end, or end its process")
    recorded = run.folder.state.get("stage") in _RECORDED and run.worker and not run.worker.get("error")
    if run.state == UNIMPORTED or recorded:
        return runner.finish_in(run.folder)
    if check:
        _stages.ask_doctor(run.config, progress)
    return runner.run_in(run.folder)
