"""Runner of sweeps: points that share an engine are measured together, others one by one; a
sweep can be resumed.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from llmprof.errors import ConfigError, LlmprofError, listed
from llmprof.run.batch import sweep as batch_state
from llmprof.run.batch.parameters import apply, label, point_name, points
from llmprof.run.batch.sweep import Sweep, measures, open_sweep
from llmprof.run.launch import ExperimentConfig, ExperimentRunner, Run, RunFolder
from llmprof.run.launch.config import disclosure
from llmprof.run.launch.run import passes
from llmprof.run.launch.run.folder import machine
from llmprof.run.launch.run.series import Outcome, begun, groups, measured, run_series
from llmprof.run.notebook.cell import told
from llmprof.text import Progress


class Points:
    """Runs the points of a sweep and writes its state after each."""

    def __init__(
        self,
        state: dict[str, Any],
        folder: Path,
        progress: Progress | None,
        *,
        check: bool,
        most_starts: int | None = None,
    ) -> None:
        self._state, self._folder, self._progress, self._check = state, folder, progress, check
        self._most_starts = most_starts
        self._points: list[dict[str, Any]] = state["points"]

    def store(self) -> None:
        """Write the state of the sweep."""
        batch_state.save_state(self._state, self._folder)

    @contextmanager
    def _kept(self, point: dict[str, Any]) -> Iterator[None]:
        """Keep how a point ends."""
        try:
            yield
        except LlmprofError as error:
            point |= {"state": "failed", "error": str(error)}
        except BaseException:
            point["state"] = "interrupted"
            raise
        finally:
            self.store()

    def alone(self, place: int, config: ExperimentConfig, runner: Callable[..., Any]) -> None:
        """Run a point in a separate engine."""
        point = self._points[place]
        earlier = self._recorded(point)
        begun_at = time.monotonic()
        self._begin(point)
        self.store()
        tell = self._telling(place)
        with self._kept(point):
            try:
                tell("starting", 0, 0)
                if earlier is not None:
                    run = ExperimentRunner(config, progress=tell, check=False).finish_in(earlier)
                else:
                    options = {"check": self._check} if runner is ExperimentRunner else {}
                    run = runner(config, progress=tell, **options).run()
                self._finish(point, run)
            finally:
                point["seconds"] = round(time.monotonic() - begun_at, 3)

    def together(self, configs: Mapping[int, ExperimentConfig]) -> None:
        """Measure points with one start of an engine, then read the recording of each point.

        Points that an earlier attempt has measured are only read.
        """
        places = []
        for place, config in configs.items():
            earlier = self._recorded(self._points[place])
            if earlier is None:
                places.append(place)
            else:
                self._read(place, config, earlier)
        if not places:
            return
        for place in places:
            self._points[place] |= {"state": "pending", "error": None}
        try:
            if self._check:
                passes.ask_doctor(configs[places[0]], self._progress)
            self._measure(places, configs)
        except LlmprofError as error:
            for place in places:
                if self._points[place]["state"] in {"running", "pending"}:
                    self._points[place] |= {"state": "failed", "run": None, "error": str(error)}
            self.store()
        except BaseException:
            self._interrupted(places)
            raise

    def _measure(self, places: list[int], configs: Mapping[int, ExperimentConfig]) -> None:
        starts = 0

        def began(folders: Mapping[int, RunFolder]) -> None:
            nonlocal starts
            starts += 1
            for k, folder in folders.items():
                self._begin(self._points[places[k]])
                self._points[places[k]] |= {"run": folder.path.name, "start": starts}
            self.store()

        outcomes: list[tuple[int, Outcome]] = []
        options: dict[str, Any] = {"began": began, "most_starts": self._most_starts}
        options["progress"] = self._of_the_engine(places)
        for k, outcome in run_series([configs[place] for place in places], self._folder, **options):
            outcomes.append((places[k], outcome))
            if outcome.state != "measured":
                words = (
                    str(outcome.error) if outcome.error else "the engine ended before this point"
                )
                self._points[places[k]] |= {"state": "failed", "error": words}
        self._state["starts"] = [
            *self._state.get("starts", ()),
            {"points": places, "starts": starts},
        ]
        self.store()
        for place, outcome in outcomes:
            if outcome.state == "measured":
                self._read(place, configs[place], outcome.folder)

    def _read(self, place: int, config: ExperimentConfig, folder: RunFolder) -> None:
        """Import and check the recording of a point, and write its results."""
        point, tell = self._points[place], self._telling(place)
        point |= {"state": "running", "run": folder.path.name, "error": None}
        with self._kept(point):
            run = ExperimentRunner(config, progress=tell, check=False).finish_in(folder)
            self._finish(point, run)
            stages = [
                stage
                for stage in run.worker.get("stages") or ()
                if stage["name"] not in _OF_THE_START
            ]
            point["seconds"] = round(sum(stage["dur_ns"] for stage in stages) / 1e9, 3)

    def _interrupted(self, places: list[int]) -> None:
        """Prepare the next attempt, which reads the points that were measured and starts the
        others again.
        """
        for place in places:
            point = self._points[place]
            if point["state"] != "running":
                continue
            folder = RunFolder(self._folder / str(point["run"]))
            if begun(folder):
                point["state"] = "interrupted"
            else:
                shutil.rmtree(folder.path, ignore_errors=True)
                point |= {"state": "pending", "run": None, "started": None}
        self.store()

    def _recorded(self, point: Mapping[str, Any]) -> RunFolder | None:
        """Folder of a point that was measured but whose capture has not been read yet."""
        if point["state"] not in {"running", "interrupted"} or not point["run"]:
            return None
        folder = RunFolder(self._folder / str(point["run"]))
        return folder if measured(folder) else None

    def _begin(self, point: dict[str, Any]) -> None:
        point |= {"state": "running", "run": None, "error": None, "seconds": None}
        point["started"] = dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds")

    def _finish(self, point: dict[str, Any], run: Run) -> None:
        where = os.path.relpath(run.folder.path, self._folder)
        point |= {"state": "finished", "run": where, "error": None, "result": measures(run)}

    def _telling(self, place: int) -> Progress:
        total = len(self._points)
        words = f"point {place + 1} of {total} ({label(self._points[place]['values'])})"

        def tell(what: str, part: int, parts: int) -> None:
            if self._progress:
                self._progress(
                    f"{words}: {what}{f' {part} of {parts}' if parts > 1 else ''}", place, total
                )

        return tell

    def _of_the_engine(self, places: list[int]) -> Progress:
        """Progress of several points in one engine, with the number of the current point."""

        def tell(what: str, part: int, parts: int) -> None:
            if self._progress:
                place = (
                    places[min(part + len(places) - parts, len(places) - 1)] if parts else places[0]
                )
                words = label(self._points[place]["values"])
                self._progress(f"{words}: {what}", place, len(self._points))

        return tell


_OF_THE_START = {"import", "init", "serve", "warm_profiler"}
"""Stages of an engine's start, which its points share."""


def sweep(
    config: ExperimentConfig,
    *,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    fresh_engine: bool = False,
    shuffle: bool = False,
    check: bool = True,
    **axes: Sequence[Any],
) -> Sweep:
    """Run a configuration for every combination of some parameters, and compare the runs.

    Parameters
    ----------
    config : ExperimentConfig
        Configuration that all points share.
    folder : path, optional
        Folder of a new sweep, or of one to continue; ``results/{experiment}_sweep_{time}`` if not
        given.
    progress, fresh_engine, shuffle, check
        As of :class:`BatchRunner`.
    **axes : sequence
        Values by field of the configuration; ``**{"engine_args.block_size": [16, 32]}`` varies an
        option of the engine.

    Returns
    -------
    Sweep
        The results of all points: ``.comparison`` has a row per run, ``.folder`` has their files.

    Raises
    ------
    LlmprofError
        A parameter is not known or has no values; the folder belongs to another sweep, or to a
        running one.
    OutputError
        The folder cannot be written.

    Examples
    --------
    >>> config = llmprof.ExperimentConfig(model="random:tiny", profile_mode="torch")
    >>> llmprof.sweep(config, batch_size=[1, 2, 4], max_tokens=[16, 64]).comparison  # doctest: +SKIP
    """  # noqa: E501
    runner = BatchRunner(
        config, progress=progress, fresh_engine=fresh_engine, shuffle=shuffle, check=check
    )
    return runner.run_parameter_sweep(axes, folder=folder)


class BatchRunner:
    """Runner of one configuration with changed parameters.

    Parameters
    ----------
    config : ExperimentConfig
        Configuration that all points share.
    progress : callable, optional
        Called with the current task, the number of finished points, and the number of all points.
        By default a notebook shows them in one output of the cell.
    runner : callable, optional
        Function that runs a point, called as ``runner(config, progress=...)``. By default, points
        that differ only in their workload are measured by one start of the engine, and the others
        by an :class:`ExperimentRunner`.
    fresh_engine : bool
        Whether the engine is started for each point.
    shuffle : bool
        Whether the points are measured in random order (by the seed of the configuration), so that
        a drift of the machine does not look like an effect of a parameter.
    check : bool
        Whether the doctor checks the machine first, once for each start of an engine.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        *,
        progress: Progress | None = None,
        runner: Callable[..., Any] | None = None,
        fresh_engine: bool = False,
        shuffle: bool = False,
        check: bool = True,
    ) -> None:
        self._config, self._progress, self._runner = config, progress, runner
        self._fresh, self._shuffle, self._check = fresh_engine, shuffle, check

    def run_parameter_sweep(
        self,
        parameters: Mapping[str, Sequence[Any]],
        *,
        folder: str | os.PathLike[str] | None = None,
    ) -> Sweep:
        """Run every combination of the parameters that has not finished yet.

        If a point fails, its error is kept and the next point runs. The state is written to the
        folder after each point, so an interrupted sweep can be continued by another call with its
        folder, or by :meth:`resume`.

        Parameters
        ----------
        parameters, folder
            As ``axes`` and ``folder`` of :func:`llmprof.sweep`, and with its errors.

        Returns
        -------
        Sweep
            The results of all points.
        """
        grid = points(parameters)
        self._refuse_twins(grid)
        if folder is None:
            folder = batch_state.new_folder(self._config, f"{self._config.name}_sweep")
        target = Path(folder)
        chosen = {name: list(values) for name, values in parameters.items()}
        with batch_state.alone(target):
            if (target / batch_state.FILE).exists():
                state = batch_state.load(target)
                if state["parameters"] != chosen:
                    found = f"the sweep in {target} has the parameters {state['parameters']}"
                    hint = "choose another folder, or resume this sweep with its own parameters"
                    raise LlmprofError(found, expected=f"{listed(chosen)}", hint=hint)
            else:
                state = batch_state.new(disclosure.config(self._config).to_dict(), chosen, grid)
                state["fresh_engine"] = self._fresh
                if self._shuffle:
                    state["order"] = random.Random(self._config.seed).sample(  # noqa: S311
                        range(len(grid)), len(grid)
                    )
                batch_state.save_state(state, target)
            with (
                told(target.name) if self._progress is None else nullcontext(self._progress)
            ) as progress:
                self._run(state, target, progress)
        return Sweep(target, state)

    @classmethod
    def resume(cls, folder: str | os.PathLike[str], **options: Any) -> Sweep:
        """Continue the sweep in a folder, with options of the class: run the points that did not
        finish.

        Raises
        ------
        ReadError
            The folder holds no sweep.
        """
        stopped = open_sweep(folder)
        runner = cls(ExperimentConfig.from_dict(stopped.state["config"]), **options)
        return runner.run_parameter_sweep(stopped.parameters, folder=folder)

    def _refuse_twins(self, grid: Sequence[Mapping[str, Any]]) -> None:
        """Raise if two points would be the same run, such as batch_size 0 (as many as prompts)
        and 1.
        """
        values_of: dict[str, Mapping[str, Any]] = {}
        for values in grid:
            try:
                key = repr(apply(self._config, values).to_dict())
            except LlmprofError:  # this point will fail
                continue
            if key in values_of:
                found = f"the points {label(values_of[key])} and {label(values)} are the same run"
                raise ConfigError(found, hint="leave one of the values out")
            values_of[key] = values

    def _run(self, state: dict[str, Any], folder: Path, progress: Progress | None) -> None:
        states: list[dict[str, Any]] = state["points"]
        order = state.get("order") or range(len(states))
        there = {
            k
            for k in order
            if states[k]["state"] == "finished" and (folder / str(states[k]["run"])).is_dir()
        }
        remaining = [states[k] for k in order if k not in there]
        configs: dict[int, ExperimentConfig] = {}
        for point in remaining:
            try:
                config = apply(self._config, point["values"])
                name = point_name(config.name, point["values"])
                configs[point["point"]] = config.replace(
                    results_dir=str(folder), experiment_name=name
                )
            except LlmprofError as error:
                point |= {"state": "failed", "run": None, "error": str(error)}
        work = Points(state, folder, progress, check=self._check)
        places = [point["point"] for point in remaining if point["point"] in configs]
        if self._runner is None and not (self._fresh or state.get("fresh_engine")):
            together = [
                [places[k] for k in group] for group in groups([configs[place] for place in places])
            ]
        else:
            together = [[place] for place in places]
        for group in together:
            if len(group) > 1:
                work.together({place: configs[place] for place in group})
            else:
                work.alone(group[0], configs[group[0]], self._runner or ExperimentRunner)
        work.store()
        if progress:
            progress("sweep", len(states), len(states))


def device_count() -> int:
    """Number of GPUs of this machine within ``CUDA_VISIBLE_DEVICES``; 0 if there is none, or
    NVML is missing.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(machine()["gpus"])
    return len([device for device in visible.split(",") if device.strip() not in {"", "-1"}])
