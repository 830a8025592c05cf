"""Measuring the points of a sweep: those that share an engine together, the others one by one."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from llmprof.batch import sweep as batch_state
from llmprof.batch.parameters import label
from llmprof.batch.sweep import measures
from llmprof.errors import LlmprofError
from llmprof.launch import ExperimentConfig, ExperimentRunner, Run, RunFolder
from llmprof.launch.run import passes
from llmprof.launch.run.series import Outcome, begun, measured, run_series
from llmprof.progress import Progress


class Runs(Protocol):
    """What runs one point."""

    def run(self) -> Run:
        """Run it."""


class Points:
    """Points of a sweep and what becomes of them, written down after each.

    Parameters
    ----------
    state : dict
        Content of ``sweep.json``; it is changed.
    folder : pathlib.Path
        Of the sweep.
    progress : callable or None
        Called with what is being done, how many points are done, and how many there are.
    check : bool
        Ask the doctor before an engine starts.
    """

    def __init__(self, state: dict[str, Any], folder: Path, progress: Progress | None, *, check: bool) -> None:
        self._state, self._folder, self._progress, self._check = state, folder, progress, check
        self._points: list[dict[str, Any]] = state["points"]

    def store(self) -> None:
        """Write the state of the sweep."""
        batch_state.store(self._state, self._folder)

    def alone(self, place: int, config: ExperimentConfig, runner: Callable[..., Runs]) -> None:
        """Run a point in an engine of its own."""
        point = self._points[place]
        earlier = self._recorded(point)
        begun_at = time.monotonic()
        self._begin(point)
        self.store()
        tell = self._telling(place)
        try:
            tell("starting", 0, 0)
            if earlier is not None:
                run = ExperimentRunner(config, progress=tell, check=False).finish_in(earlier)
            elif runner is ExperimentRunner:
                run = ExperimentRunner(config, progress=tell, check=self._check).run()
            else:
                run = runner(config, progress=tell).run()
            self._finish(point, run)
        except LlmprofError as error:
            point |= {"state": "failed", "error": str(error)}
        except BaseException:
            point["state"] = "interrupted"
            raise
        finally:
            point["seconds"] = round(time.monotonic() - begun_at, 3)
            self.store()

    def together(self, configs: Mapping[int, ExperimentConfig]) -> None:
        """Measure points with one start of an engine, then read what each recorded.

        Those that an earlier attempt measured are only read.
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
        if self._check:
            try:
                passes.ask_doctor(configs[places[0]], self._progress)
            except LlmprofError as error:
                for place in places:
                    self._points[place] |= {"state": "failed", "run": None, "error": str(error)}
                self.store()
                return
        try:
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
        series = run_series(
            [configs[place] for place in places], self._folder, progress=self._of_the_engine(places), began=began
        )
        for k, outcome in series:
            outcomes.append((places[k], outcome))
            if outcome.state != "measured":
                words = str(outcome.error) if outcome.error else "the engine ended before it came to this point"
                self._points[places[k]] |= {"state": "failed", "error": words}
        self._state["starts"] = [*self._state.get("starts", ()), {"points": places, "starts": starts}]
        self.store()
        for place, outcome in outcomes:
            if outcome.state == "measured":
                self._read(place, configs[place], outcome.folder)

    def _read(self, place: int, config: ExperimentConfig, folder: RunFolder) -> None:
        """Import, check and write down what a point recorded."""
        point, tell = self._points[place], self._telling(place)
        point |= {"state": "running", "run": folder.path.name, "error": None}
        try:
            run = ExperimentRunner(config, progress=tell, check=False).finish_in(folder)
            self._finish(point, run)
            stages = [stage for stage in run.worker.get("stages") or () if stage["name"] not in _OF_THE_START]
            point["seconds"] = round(sum(stage["dur_ns"] for stage in stages) / 1e9, 3)
        except LlmprofError as error:
            point |= {"state": "failed", "error": str(error)}
        except BaseException:
            point["state"] = "interrupted"
            raise
        finally:
            self.store()

    def _interrupted(self, places: list[int]) -> None:
        """What was measured is read by the next attempt, and what was not begun is as if it never was."""
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
        """Folder of a point that an engine measured, of which only the capture was not read."""
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
        done = place

        def tell(what: str, part: int, parts: int) -> None:
            if self._progress:
                share = f" {part} of {parts}" if parts > 1 else ""
                self._progress(f"{words}: {what}{share}", done, total)

        return tell

    def _of_the_engine(self, places: list[int]) -> Progress:
        """Progress of several points in one engine: which of them it is at."""

        def tell(what: str, part: int, parts: int) -> None:
            if self._progress:
                place = places[min(part + len(places) - parts, len(places) - 1)] if parts else places[0]
                words = label(self._points[place]["values"])
                self._progress(f"{words}: {what}", place, len(self._points))

        return tell


_OF_THE_START = {"import", "init", "serve", "warm_profiler"}
"""Stages of the start of an engine, which its points share."""
