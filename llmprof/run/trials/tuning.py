"""A search for the best settings under an SLO: bounds exclude, findings rank, Optuna samples, a
trial confirms.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import polars as pl

from llmprof.errors import ConfigError, LaunchError, LlmprofError, guarded
from llmprof.run.batch import sweep as batch_state
from llmprof.run.batch.parameters import label, parse, point_name
from llmprof.run.batch.runner import Points
from llmprof.run.batch.sweep import alone, new_folder
from llmprof.run.launch import ExperimentConfig, ExperimentRunner, Run, RunFolder, open_run
from llmprof.run.launch.config import disclosure
from llmprof.run.launch.run import passes
from llmprof.run.launch.run.folder import machine
from llmprof.run.launch.run.series import engine_home, shared_key
from llmprof.run.trials.bounds import NOTHING, Reach, reach, this_device
from llmprof.run.trials.capacity import OTHER_SEED, at_rate, check_goodput, goodput
from llmprof.run.trials.gains import METRICS
from llmprof.run.trials.measure import (
    LoadedEngine,
    beside_each_other,
    loaded_engines,
    of_memory,
    predicted_gain,
    trial,
)
from llmprof.run.trials.objectives import GOODPUT, Figure, limits, parse_duration, parse_figure
from llmprof.run.trials.schedule import NoPredictionError
from llmprof.run.trials.search import Chooser, Values, config_with, of_load, space_of, with_start
from llmprof.run.trials.settings import REMEDIES, remedies
from llmprof.run.trials.study import KEY, Study, open_study
from llmprof.run.trials.verdict import Verdict
from llmprof.text import Progress
from llmprof.trace.storage import files

VERSION: Final = 1
_NEAR: Final = 0.02
"""A search ends where no open point can be better than the best by more than this share."""
HANG: Final = 10.0
LEAST_HANG_S: Final = 120.0
"""A point has hung if it takes ten times as long as the slowest one that ran, and at least two
minutes.
"""
_RESERVE: Final = 1 / 3
"""Most of the budget that is kept for the confirmation."""
_MOST_TOGETHER: Final = 8
_MOST_ENGINES: Final = 4
_ALL_MEMORY: Final = 0.96
"""Share of a device's memory that all engines beside each other may have."""
_BESIDE_TENSORS: Final = 4e9
"""Bytes of an engine beside its tensors: the context of CUDA, libraries, graphs."""
_RECORDING: Final = 8
"""Both sides of the confirmation are recorded if the time of this many points is left."""


def tune(
    run: Run | ExperimentConfig | str | os.PathLike[str],
    *,
    objective: str = "output_tokens_per_s",
    slo: str = "",
    budget: str | float = "30m",
    search: Mapping[str, Sequence[Any]] | str | None = None,
    most_points: int | None = None,
    engines: int | None = None,
    confirm: bool = True,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    check: bool = True,
) -> Study:
    """Search the settings of an engine, and its load, for the best objective that holds an SLO.

    The start is measured first. Then come what the findings of its run advise, the best prediction
    first, each other value alone, the best values together, and samples of Optuna (TPE with the SLO
    as constraints). Points that the device's data sheet rules out are not measured. Points that
    differ in their load share a start of the engine, and engines that fit beside each other start
    at the same time and measure one after the other. The best point is then tried against the start
    with other seeds (:func:`llmprof.trial`). A study can be interrupted at any moment and continued
    with its folder.

    Parameters
    ----------
    run : Run, ExperimentConfig or path
        Configuration to start from, or a recorded run (or its folder), whose findings rank what is
        tried first.
    objective : str
        What is searched for: a rate (``output_tokens_per_s``, ``requests_per_s``), a latency that
        shall be short (``e2e_ns``, ``ttft_p99``), or ``goodput``, the highest rate of requests at
        which the SLO holds.
    slo : str
        Limits: ``"ttft_p99<=500ms,tpot_p95<=30ms"``.
    budget : str or float
        Longest time, as ``30m`` or in seconds. Up to a third of it is kept for the confirmation.
    search : mapping or str, optional
        Values by setting, named as in a sweep:
        ``"engine_args.max_num_seqs:8,16;server.max_concurrency:4,8"``. By default settings of vLLM
        that often matter, and the concurrency of a server without a rate; ``none`` finds the
        goodput of the configuration as it is.
    most_points : int, optional
        Most points, too.
    engines : int, optional
        Most engines that are loaded at the same time; each measures while the others wait. By
        default as many (up to 4) as a device has memory for by the engine's
        ``gpu_memory_utilization``, or by its ``kv_cache_memory_bytes`` and what the first point
        took; otherwise 1. If neither is given, each engine of a number gets an equal part of 88 %
        of the memory.
    confirm : bool
        Whether the best point is tried against the start in the end.
    folder : path, optional
        Folder of a new study, or of one to continue; ``results/tune_{experiment}_{time}`` if not
        given.
    progress : callable, optional
        Called with the current task and the best so far, the seconds that passed, and the budget in
        seconds.
    check : bool
        Whether the doctor checks the machine first.

    Returns
    -------
    Study
        ``.says``, ``.points`` (a row for each), ``.best``, ``.command`` to deploy it,
        ``.confirmation``, ``.report()``.

    Raises
    ------
    ConfigError
        A metric or setting is not known; no point can hold the SLO (with the nearest, and what
        forbids it); the budget is too short for two measurements; the folder holds another study,
        or one of another engine or workload.
    LaunchError
        The engine does not run as it is, or Optuna is missing.

    Examples
    --------
    >>> study = llmprof.tune("run.yaml", slo="tpot_p95<=30ms", budget="15m")  # doctest: +SKIP
    >>> study.says, study.command  # doctest: +SKIP
    """
    origin = _origin(run)
    config = origin.config if isinstance(origin, Run) else origin
    wanted, limited, budget_s = parse_figure(objective), limits(slo), parse_duration(budget)
    if wanted.column == GOODPUT:
        check_goodput(config, limited)
    if most_points is not None and most_points < 2:
        raise ConfigError(f"most_points is {most_points}", expected="at least 2")
    if engines is not None and engines < 1:
        raise ConfigError(f"engines is {engines}", expected="at least 1")
    plain = {
        "profile_mode": "inference_only",
        "plain": True,
        "cpu_sampler": "none",
        "layer_annotations": False,
    }
    base = config.replace(**plain, ops_options={})
    if engines and engines > 1 and this_device():
        base = beside_each_other(base, engines)
    given = ({} if search == "none" else parse(search)) if isinstance(search, str) else search
    space, start = with_start(space_of(config) if given is None else given, base)
    if not space and wanted.column != GOODPUT:
        found = "there is no setting to search"
        raise ConfigError(
            found, expected='search="engine_args.max_num_seqs:8,16,32", or other settings'
        )
    start = {name: start[name] for name in space}
    where = Path(folder) if folder is not None else new_folder(config, f"tune_{config.name}")
    head = {
        "version": VERSION,
        "objective": wanted.name,
        "slo": ",".join(one.text for one in limited),
        "start": start,
        "workload": _workload(config),
        "profile_mode": (
            config.profile_mode if config.profile_mode in {"torch", "nsys"} else "inference_only"
        ),
    }
    with alone(where):
        state = _state(where, base, space, head)
        work = TuningSearch(
            Study(where, state), base, progress=progress, most=most_points, engines=engines
        )
        work.prepare(budget_s, origin, check=check)
        try:
            work.run()
        finally:
            work.end()
        if confirm:
            work.confirm()
        study = Study(where, state)
        study.write()
    return study


def _origin(run: Run | ExperimentConfig | str | os.PathLike[str]) -> Run | ExperimentConfig:
    if isinstance(run, Run | ExperimentConfig):
        return run
    path = Path(run)
    if path.suffix in {".yaml", ".yml", ".json"}:
        from llmprof.run.launch import ConfigManager

        return ConfigManager.load_config(path)
    return open_run(path)


def _workload(config: ExperimentConfig) -> str | None:
    """Checksum of the files that the load is in; None without such files."""
    names = [config.prompt_file, config.load.get("file")]
    whole = hashlib.sha256()
    for name in filter(None, names):
        try:
            whole.update(Path(str(name)).read_bytes())
        except OSError as error:
            raise ConfigError(f"{name} cannot be read: {error.strerror or error}") from error
    return whole.hexdigest()[:16] if any(names) else None


def _state(
    where: Path, config: ExperimentConfig, space: dict[str, list[Any]], head: dict[str, Any]
) -> dict[str, Any]:
    """State of a new study, or of the one in the folder."""
    fresh = batch_state.new(disclosure.config(config).to_dict(), space, [])
    fresh[KEY] = {**head, "spent_s": 0.0, "excluded": [], "notes": []}
    if not (where / batch_state.FILE).exists():
        batch_state.save_state(fresh, where)
    state: dict[str, Any] = dict(open_study(where).state)
    plain = batch_state.as_stored(fresh)
    apart = [name for name in ("config", "parameters") if state[name] != plain[name]]
    if apart == ["config"]:
        fields = [
            key for key, value in plain["config"].items() if state["config"].get(key) != value
        ]
        if set(fields) <= {"results_dir", "python"}:
            apart = []
        else:
            apart = fields
    apart += [name for name in head if state[KEY].get(name) != plain[KEY][name]]
    if apart:
        found = (
            f"{where} holds another study: {', '.join(apart)}"
            f" {'differ' if len(apart) > 1 else 'differs'}"
        )
        raise ConfigError(
            found, hint="choose another folder, or give what the study was begun with"
        )
    return state


class TuningSearch:
    """Chooses and measures points until the budget, the space or the bound ends."""

    def __init__(
        self,
        study: Study,
        config: ExperimentConfig,
        *,
        progress: Progress | None,
        most: int | None,
        engines: int | None = None,
    ) -> None:
        self.study, self.folder, self.config = study, study.folder, config
        self.state: dict[str, Any] = dict(study.state)
        self.space: dict[str, list[Any]] = self.state["parameters"]
        self.objective, self.slo, self.progress, self.most = (
            study.objective,
            study.slo,
            progress,
            most,
        )
        self.mine: dict[str, Any] = self.state[KEY]
        self.start: Values = self.mine["start"]
        self.points: list[dict[str, Any]] = self.state["points"]
        self.loads = of_load(config, self.space, self.start)
        self.work = Points(self.state, self.folder, self._tell, check=False, most_starts=2)
        self.gpu: str | None = None
        self.engines = engines
        self.budget_s, self._began, self._spent = 0.0, time.monotonic(), float(self.mine["spent_s"])
        self._reach: dict[str, Reach] = {}
        self.chooser: Chooser

    # what is known

    @property
    def spent_s(self) -> float:
        """Seconds of this and earlier calls."""
        return self._spent + time.monotonic() - self._began

    def store(self) -> None:
        """Write the state, with the time that was spent."""
        self.mine["spent_s"] = self.spent_s
        self.work.store()

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress is None:
            return
        best = self.study.best
        so_far = ""
        if best is not None:
            value = self.objective.text(best["metrics"][self.objective.name])
            so_far = f"; best so far: {value} ({self.study.words(best['values'])})"
        self.progress(
            f"{what}{so_far}", min(int(self.spent_s), int(self.budget_s)), int(self.budget_s)
        )

    def reach(self, values: Values) -> Reach:
        """What a point can reach at best."""
        if self.gpu is None:
            return NOTHING
        key = label(values)
        if key not in self._reach:
            try:
                self._reach[key] = reach(config_with(self.config, values, self.start), self.gpu)
            except LlmprofError as error:
                self._reach[key] = Reach({}, {}, str(error))
        return self._reach[key]

    def open(self) -> list[Values]:
        """Points that are neither measured nor excluded."""
        taken = [
            point["values"] for point in self.points if point["state"] in {"finished", "failed"}
        ]
        broken = self._broken()
        excluded = [one["values"] for one in self.mine["excluded"]]
        return [
            values
            for values in self.chooser.points
            if values not in taken
            and values not in excluded
            and not any(values[name] == value for name, value in broken)
        ]

    def _broken(self) -> list[tuple[str, Any]]:
        """Values with which the engine failed although all else was as at the start: they are
        not combined.
        """
        found = []
        for point in self.points:
            apart = [name for name, value in point["values"].items() if value != self.start[name]]
            if point["state"] == "failed" and len(apart) == 1:
                found.append((apart[0], point["values"][apart[0]]))
        return found

    # the course of a search

    def prepare(self, budget_s: float, origin: Run | ExperimentConfig, *, check: bool) -> None:
        """Look at the machine, exclude what theory rules out, and rank what the findings advise."""
        self.budget_s = budget_s
        if check:
            passes.ask_doctor(self.config, self.progress)
        if "gpu" not in self.mine:
            self.mine["gpu"] = this_device()
            if isinstance(origin, Run):
                self.mine["ranking"] = rank_points(origin, self.space, self.objective)
        elif self.mine["gpu"] != (here := this_device()):
            raise ConfigError(
                f"the study was begun on {self.mine['gpu']}, and this machine has {here}"
            )
        self.gpu = self.mine["gpu"]
        ranked = self.mine.get("ranking") or []
        self.chooser = Chooser(
            self.folder,
            self.space,
            self.start,
            objective=self.objective,
            slo=self.slo,
            seed=self.config.seed,
            first=[one["values"] for one in ranked],
        )
        for point in self.points:
            if point["state"] in {"finished", "failed"} and point.get("trial") is None:
                self._take(point)
        self._exclude()
        self.store()

    def _exclude(self) -> None:
        """Exclude points that cannot hold the SLO, cannot run, or cannot be better than the best
        by a margin.
        """
        if self.gpu is None:
            return
        best = self.study.best
        for values in self.open():
            if values == self.start:
                continue
            at_best = self.reach(values)
            reason, near = at_best.forbids(self.slo), False
            value, top = (
                None if best is None else best["metrics"][self.objective.name],
                at_best.of(self.objective),
            )
            if not reason and value is not None and top is not None and not self._above(top, value):
                near = True
                reason = (
                    f"at best {self.objective.text(top)} ({at_best.why[self.objective.column]})"
                )
            if reason:
                self.mine["excluded"].append({"values": values, "reason": reason, "near": near})
        forbidden = self.reach(self.start).forbids(self.slo)
        if forbidden and not self.points and not [one for one in self.open() if one != self.start]:
            self._forbidden(forbidden)

    def _above(self, bound: float, value: float) -> bool:
        """Whether a bound leaves room for a value that is better by a margin."""
        return (
            bound > value * (1 + _NEAR)
            if self.objective.more_is_better
            else bound < value * (1 - _NEAR)
        )

    def _forbidden(self, of_start: str) -> None:
        """Raise the error of an SLO that no point can hold, with the nearest point."""
        reached = [
            (self.start, self.reach(self.start)),
            *((one, self.reach(one)) for one in self.chooser.points),
        ]
        least = []
        for values, at_best in reached:
            beyond = [limit.excess(at_best.of(limit.figure)) for limit in self.slo]
            known = [one for one in beyond if one is not None]
            if known and not at_best.refused:
                least.append((max(known), self.study.words(values), at_best.forbids(self.slo)))
        nearest = min(least, default=None)
        said = f"; the nearest is {nearest[1]}: {nearest[2]}" if nearest else f": {of_start}"
        raise ConfigError(
            f"no point can hold the SLO {self.mine['slo']} on {self.gpu}{said}",
            hint="allow more time",
        )

    def run(self) -> None:
        """Measure until something ends the search."""
        self.mine.pop("stopped", None)
        if not any(
            point["state"] == "finished" and point["values"] == self.start for point in self.points
        ):
            self._first()
        begun = [
            point["values"] for point in self.points if point["state"] not in {"finished", "failed"}
        ]
        while begun:  # what an interrupted call had chosen
            self._measure(groups := self._groups(begun, begun, self.at_once()))
            begun = [values for values in begun if not any(values in group for group in groups)]
        while not (reason := self._ended()):
            self._measure(self._next())
            self._exclude()
        self.mine["stopped"] = reason

    def _first(self) -> None:
        """Measure the start; without it nothing can be compared."""
        self.points[:] = [point for point in self.points if point["values"] != self.start]
        self._measure([[self.start]])
        point = self.points[0]
        if point["state"] == "failed":
            found = f"the engine does not run as it is: {point['error']}"
            raise LaunchError(found, hint="mend the configuration first")
        took = float(point["seconds"] or 0.0)
        if 2 * took > self.budget_s and self.space:
            self.store()
            raise ConfigError(
                f"the budget of {self.budget_s:.0f} s is too short for two measurements: the first"
                f" took {took:.0f} s",
                expected=f"at least {math.ceil(2 * took / 60)}m; more for a confirmation",
                hint="the measurement is kept: go on with this folder and a larger budget",
            )

    def _ended(self) -> str:
        left = self.open()
        if not left:
            near = any(one.get("near") for one in self.mine["excluded"])
            return (
                "the bound is near: no open point can be better by 2 %"
                if near
                else "no point is open"
            )
        if self.most is not None and len(self.points) >= self.most:
            return f"{self.most} points were measured"
        if self.spent_s + self._typical_s() + self._reserve_s() > self.budget_s:
            return f"the budget of {self.budget_s:.0f} s"
        return ""

    def _last(self) -> bool:
        """Whether the next point is the last one that the budget and the number of points allow."""
        if self.most is not None and len(self.points) + 1 >= self.most:
            return True
        return self.spent_s + 2 * self._typical_s() + self._reserve_s() > self.budget_s

    def _typical_s(self) -> float:
        took = [
            float(point["seconds"] or 0.0) for point in self.points if point["state"] == "finished"
        ]
        return median(took) if took else 0.0

    def _reserve_s(self) -> float:
        """Time for the confirmation, if there is something to confirm."""
        best = self.study.best
        if best is None or best["values"] == self.start:
            return 0.0
        return min(self.budget_s * _RESERVE, 6 * self._typical_s())

    def at_once(self) -> int:
        """Engines that may be loaded at the same time."""
        if self.objective.column == GOODPUT:
            return 1
        if self.engines is None and self.gpu is not None:
            arguments = self.config.engine_args
            if share := arguments.get("gpu_memory_utilization"):
                self.engines = int(_ALL_MEMORY / share)
            elif arguments.get("kv_cache_memory_bytes"):
                took = max(
                    (one["result"].get("peak_memory_bytes") or 0 for one in self._done()), default=0
                )
                whole = self.config.world_size == 1 and machine()["gpus"][0]["memory_bytes"]
                self.engines = (
                    int(_ALL_MEMORY * whole / (1.1 * took + _BESIDE_TENSORS))
                    if took and whole
                    else 1
                )
            self.engines = max(1, min(self.engines or 1, _MOST_ENGINES))
        return self.engines or 1

    def _done(self) -> list[dict[str, Any]]:
        return [point for point in self.points if point["state"] == "finished"]

    def _next(self) -> list[list[Values]]:
        """The next points, by engine."""
        left, last, engines = self.open(), self._last(), 1
        room = math.inf if self.most is None else self.most - len(self.points)
        planned = [values for values in self.chooser.plan() if values in left]
        if not last:
            typical = self._typical_s()
            fits = (
                (self.budget_s - self.spent_s - self._reserve_s()) / typical
                if typical
                else math.inf
            )
            ahead = (
                1 if planned else 0
            )  # kept for the best values together, worth more than one more value alone
            engines = int(max(1, min(self.at_once(), room - ahead, fits - ahead)))
        if planned and not last:
            return self._groups(planned, left, engines, room)
        together = self.chooser.together(self._done(), self.study.ahead)
        chosen = [together] if together in left else planned[:1]
        while len(chosen) < engines and (
            rest := [values for values in left if values not in chosen]
        ):
            chosen.append(self.chooser.sample(rest, len(chosen)))
        return self._groups(chosen, left, engines, room)

    def _groups(
        self, chosen: Sequence[Values], left: Sequence[Values], engines: int, room: float = math.inf
    ) -> list[list[Values]]:
        """Chosen points, each with those that differ from it only in their load: what several
        engines measure.
        """
        groups: list[list[Values]] = []
        for first in chosen:
            if len(groups) < engines and room >= 1 and not any(first in group for group in groups):
                taken = [values for values in left if not any(values in group for group in groups)]
                groups.append(self._sharing(first, taken)[: int(min(room, _MOST_TOGETHER))])
                room -= len(groups[-1])
        return groups

    def _sharing(self, chosen: Values, others: Sequence[Values]) -> list[Values]:
        """A point, and others that differ from it only in their load."""
        if self.objective.column == GOODPUT:
            return [chosen]
        own = [name for name in self.space if name not in self.loads]
        return [
            chosen,
            *(
                one
                for one in others
                if one != chosen and all(one[name] == chosen[name] for name in own)
            ),
        ]

    def _measure(self, groups: list[list[Values]]) -> None:
        """Measure groups of points, each of which shares a start of the engine, and tell Optuna."""
        configs = [found for group in groups if (found := self._configs(group))]
        if self.objective.column == GOODPUT:
            for one in configs:
                for place, config in one.items():
                    self._goodput(place, config)
        elif len(configs) > 1:
            self._beside(configs)
        else:
            for one in configs:
                self._in_one_engine(one)
        for group in groups:
            for values in group:
                self._take(self.points[self._place(values)])
        self.store()

    def _configs(self, group: list[Values]) -> dict[int, ExperimentConfig]:
        """Configurations of points by place; a point that has none has failed."""
        predictions = {label(one["values"]): one["gain"] for one in self.mine.get("ranking") or []}
        configs: dict[int, ExperimentConfig] = {}
        for values in group:
            place = self._place(values)
            apart = {name: value for name, value in values.items() if value != self.start[name]}
            self.points[place]["predicted"] = predictions.get(label(apart))
            try:
                config = config_with(self.config, values, self.start)
                name = point_name(f"{place:03d}", apart)
                limit = self._limit_s(config)
                configs[place] = config.replace(
                    results_dir=str(self.folder), experiment_name=name, timeout_s=limit
                )
            except LlmprofError as error:
                self.points[place] |= {"state": "failed", "error": str(error), "seconds": 0.0}
        return configs

    def _in_one_engine(self, configs: dict[int, ExperimentConfig]) -> None:
        if len(configs) > 1 and len({shared_key(config) for config in configs.values()}) == 1:
            self.work.together(configs)
        else:
            for place, config in configs.items():
                self.work.alone(place, config, ExperimentRunner)

    def _beside(self, groups: Sequence[dict[int, ExperimentConfig]]) -> None:
        """Measure groups of points, each in an engine; the engines load at the same time and
        measure in turn.
        """
        again: list[dict[int, ExperimentConfig]] = []
        began, number = time.monotonic(), sum(map(len, groups))
        first = [max(group.values(), key=lambda config: config.batch_size) for group in groups]
        homes = [files.made(engine_home(self.folder)) for _ in groups]
        self._tell(f"starting {len(groups)} engines", 0, 0)
        with loaded_engines(first, homes) as engines:
            errors = [
                _error_of_loading(engine, config.timeout_s)
                for engine, config in zip(engines, first, strict=True)
            ]
            loading = (time.monotonic() - began) / number
            for group, engine, error in zip(groups, engines, errors, strict=True):
                if error is not None and of_memory(error):
                    again.append(group)
                    continue
                for place, config in group.items():
                    self.work.alone(place, config, functools.partial(_Loaded, engine, error))
                    self.points[place]["seconds"] = round(
                        self.points[place]["seconds"] + loading, 3
                    )
        if again:
            self.engines = len(groups) - len(again)
            self.note(
                f"{len(groups)} engines do not fit beside each other; {max(1, self.engines)} were"
                " loaded at a time"
            )
        for group in again:
            self._in_one_engine(group)

    def _place(self, values: Values) -> int:
        """Place of a point, which is added if it is new."""
        for point in self.points:
            if point["values"] == values:
                return int(point["point"])
        blank = {"state": "pending", "run": None, "error": None, "started": None, "seconds": None}
        self.points.append({"point": len(self.points), "values": dict(values), **blank})
        return len(self.points) - 1

    def _limit_s(self, config: ExperimentConfig) -> float:
        """Longest time of a point: it must not take the rest of the budget by hanging."""
        took = [
            float(point["seconds"] or 0.0) for point in self.points if point["state"] == "finished"
        ]
        if not took:
            return config.timeout_s
        limit = min(max(LEAST_HANG_S, HANG * max(took)), max(1.0, self.budget_s - self.spent_s))
        return round(min(limit, config.timeout_s or math.inf), 1)

    def _goodput(self, place: int, config: ExperimentConfig) -> None:
        """Find the goodput of a point; its run is that at the highest rate at which the SLO
        holds.
        """
        point, began = self.points[place], time.monotonic()
        point |= {"state": "running", "error": None}
        self.store()
        try:
            found = goodput(config, self.mine["slo"], folder=self.folder, progress=self._tell)
        except LlmprofError as error:
            point |= {"state": "failed", "error": str(error)}
        except BaseException:
            point["state"] = "interrupted"
            raise
        else:
            shown = found.row
            if found.note:
                self.note(f"{self.study.words(point['values'])}: {found.note}")
            point |= {
                "state": "finished",
                "run": shown["run"],
                "result": batch_state.measures(open_run(self.folder / shown["run"])),
                "metrics": {
                    GOODPUT: found.rate,
                    **{one.figure.name: shown[one.figure.name] for one in self.slo},
                },
                "probes": found.probes.to_dicts(),
            }
        finally:
            point["seconds"] = round(time.monotonic() - began, 3)

    def _take(self, point: dict[str, Any]) -> None:
        """Read the figures of a point from its run, and add it to Optuna's study."""
        if point["state"] == "finished" and "metrics" not in point:
            done = open_run(self.folder / str(point["run"]))
            self._same_engine(done, point)
            names = {
                one.name: one for one in (self.objective, *(limit.figure for limit in self.slo))
            }
            point["metrics"] = {name: one.of(done.requests) for name, one in names.items()}
            missing = [name for name, value in point["metrics"].items() if value is None]
            if missing:
                point |= {"state": "failed", "error": f"the engine reports no {', '.join(missing)}"}
        if point["state"] in {"finished", "failed"}:
            point["trial"] = self.chooser.record(point)

    def _same_engine(self, done: Run, point: dict[str, Any]) -> None:
        version = done.worker.get("engine_version")
        before = self.mine.setdefault("engine_version", version)
        if before != version:
            point |= {"state": "pending", "run": None}
            self.store()
            found = (
                f"the study was begun with {self.config.engine} {before}, and {version} is"
                " installed now"
            )
            raise ConfigError(
                found, hint="choose another folder, or the interpreter of the first version"
            )

    def end(self) -> None:
        """Write what is known, however the search ended."""
        self.mine["importance"] = self.chooser.importance()
        if self.study.best is None and any(point["state"] == "finished" for point in self.points):
            self.mine["bound"] = self._bound_of_nearest()
        self.store()
        self.study.write()

    def _bound_of_nearest(self) -> str:
        nearest = self.study.nearest
        if nearest is None:
            return ""
        forbidden = self.reach(nearest["values"]).forbids(self.slo)
        if forbidden:
            return f"A bound forbids it: {forbidden}."
        known = [
            f"{limit.figure.name} {limit.figure.text(best)}"
            for limit in self.slo
            if (best := self.reach(nearest["values"]).of(limit.figure)) is not None
        ]
        return (
            f"No bound forbids it: at best {', '.join(known)}."
            if known
            else "No bound is known that forbids it."
        )

    def confirm(self) -> Verdict | None:
        """Try the best point against the start, with other seeds, as long as the budget allows."""
        best = self.study.best
        if best is None or best["values"] == self.start:
            return None
        fields = {
            name: value for name, value in best["values"].items() if value != self.start[name]
        }
        left, each = self.budget_s - self.spent_s, self._typical_s()
        if each and left < 2 * each:
            self.note(
                "the budget left no time to confirm the best point; go on with this folder and a"
                " larger one"
            )
            self.store()
            return None
        name = self.objective.column
        other = self.config.replace(
            seed=self.config.seed + OTHER_SEED,
            results_dir=str(self.folder),
            profile_mode=self.mine["profile_mode"],
        )
        if name == GOODPUT:
            other = at_rate(other, best["metrics"][GOODPUT])
        self._tell("confirming the best point", 0, 0)
        self.mine["confirmation"] = f"confirmation-{best['point']:03d}"
        found = trial(
            other,
            fields,
            folder=self.folder / self.mine["confirmation"],
            objective=name if name in METRICS else None,
            slo=self.mine["slo"],
            most_pairs=max(3, min(12, int(left / (2 * each)) if each else 12)),
            profile=left > _RECORDING * each,
            progress=self._tell,
            check=False,
        )
        with contextlib.suppress(LlmprofError), guarded("the report of the confirmation"):
            found.report()
        self.store()
        self.study = Study(self.folder, self.state)
        return found

    def note(self, words: str) -> None:
        """Add a note once."""
        if words not in self.mine["notes"]:
            self.mine["notes"].append(words)


def _error_of_loading(engine: LoadedEngine, timeout_s: float) -> LlmprofError | None:
    """Wait until an engine is loaded; the error, if it does not load."""
    try:
        engine.ready(timeout_s)
    except LlmprofError as error:
        return error
    return None


@dataclass
class _Loaded:
    """Runs a point in an engine that is loaded, or did not load."""

    engine: LoadedEngine
    error: LlmprofError | None
    config: ExperimentConfig
    progress: Progress

    def run(self) -> Run:
        if self.error is not None:
            raise self.error
        self.progress("measuring", 0, 0)
        return self.engine.measure_in(RunFolder.create(self.config), self.config)


def rank_points(
    run: Run, space: Mapping[str, Sequence[Any]], objective: Figure
) -> list[dict[str, Any]]:
    """Points of a space that answer the findings of a run:

    ``remedy, values, gain``, the best prediction first.
    """
    rows = (
        remedies(run)
        .filter(pl.col("reason").is_null())
        .unique("remedy", keep="first", maintain_order=True)
    )
    found = []
    for name in rows["remedy"]:
        one = next(remedy for remedy in REMEDIES if remedy.name == name)
        values = {
            key: value for key, value in one.fields(run.config, run.worker).items() if key in space
        }
        if values and all(value in space[key] for key, value in values.items()):
            gain = None
            with contextlib.suppress(NoPredictionError):
                gain = predicted_gain(run, name, objective.column, values)["gain"]
            found.append({"remedy": name, "values": values, "gain": gain})
    return sorted(found, key=lambda one: -(one["gain"] or 0.0))
