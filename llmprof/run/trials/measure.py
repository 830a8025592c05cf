"""One trial: two engines, with and without a change, that are measured in turn until their
difference is known.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import polars as pl

from llmprof import analyze
from llmprof.errors import ConfigError, LaunchError, LlmprofError, NotCapturedError
from llmprof.run.batch import device_count
from llmprof.run.batch.parameters import label
from llmprof.run.batch.sweep import alone, new_folder
from llmprof.run.launch import ExperimentConfig, ExperimentRunner, Run, RunFolder, engines, open_run
from llmprof.run.launch.config import disclosure
from llmprof.run.launch.config.models import resolve
from llmprof.run.launch.run import command, passes, process
from llmprof.run.launch.run.folder import machine
from llmprof.run.launch.run.requests import repeats, requests_of
from llmprof.run.launch.run.runner import keep_state
from llmprof.run.trials import beside, schedule
from llmprof.run.trials.gains import (
    LEAST_PAIRS,
    LEAST_TO_END,
    METRICS,
    drift,
    half_width,
    tokens_equal,
)
from llmprof.run.trials.objectives import Limit, limits
from llmprof.run.trials.schedule import NoPredictionError
from llmprof.run.trials.settings import REMEDIES, changed_config, parse_change, remedies
from llmprof.run.trials.verdict import FILE, VERSION, Verdict, load
from llmprof.text import Progress
from llmprof.trace.storage import files, typed

_WHICH: Final = {"A": "as it is", "B": "with the change"}
_POLL_S: Final = 0.02
_KEPT: Final = (
    "predicted",
    "unpredicted",
    "profiled",
    "equal",
    "engines",
    "memory_bytes",
    "versions",
    "notes",
)
"""What a trial that is continued knows already, beside its pairs."""
_MEMORY: Final = 0.88
"""Share of the device's memory for all engines that are loaded beside each other; vLLM takes 0.9
for one.
"""


def trial(
    run: Run | ExperimentConfig | str | os.PathLike[str],
    change: str | Mapping[str, Any] | None = None,
    *,
    until: float = 0.02,
    most_pairs: int = 12,
    warm: bool | None = None,
    profile: bool = True,
    objective: str | None = None,
    slo: str = "",
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    check: bool = True,
) -> Verdict:
    """Try a change: measure it against the run as it is, in turn, until the difference is known.

    Two engines are started, one with the change, and stay loaded. They measure the same requests in
    turn (A B, B A, A B …), each time after a warm-up and without a profiler, until the 95 %
    interval of the gain is known to ``until``. Then each is profiled once, for the reason. If the
    two do not fit beside each other, they are started in turn.

    Parameters
    ----------
    run : Run, ExperimentConfig or path
        The run whose configuration is changed, its folder, or a configuration. The findings of a
        run with a trace say what to try and predict its gain.
    change : str or mapping, optional
        Name of a remedy (:data:`llmprof.run.trials.REMEDIES`), or ``FIELD=VALUE``, several of them
        between semicolons, with the fields of a sweep: ``engine_args.max_num_seqs=64``; or a
        mapping of these fields to their values. By default the first remedy of the run's findings
        that can be tried.
    until : float
        Half width of the interval that ends the measurement, as a share (0.02: 2 %).
    most_pairs : int
        Most pairs of measurements.
    warm : bool, optional
        Whether both engines stay loaded. By default they do; on a GPU each then gets 44 % of its
        memory, on both sides, unless ``gpu_memory_utilization`` is set.
    profile : bool
        Whether both sides are recorded once in the end.
    objective : str, optional
        Metric that decides: ``wall_ns, ttft_ns, tpot_ns, e2e_ns, output_tokens_per_s`` or
        ``requests_per_s``. By default ``output_tokens_per_s``, and ``e2e_ns`` for a server whose
        request rate is given.
    slo : str
        Limits that each measurement is held against, too: ``"ttft_p99<=500ms,tpot_p95<=30ms"``.
    folder : path, optional
        Folder of a new trial, or of one to continue; ``results/trial_{experiment}_{time}`` if not
        given.
    progress : callable, optional
        Called with the current task, the number of finished pairs, and the most pairs.
    check : bool
        Whether the doctor checks the machine first.

    Returns
    -------
    Verdict
        ``.verdict``, ``.says``, ``.effects`` (a row for each metric), ``.keep``, ``.report()``. A
        change that the engine refuses is a verdict, too (``failed``).

    Raises
    ------
    ConfigError
        The change is not known or changes nothing, nothing can be tried, or the folder belongs to
        another trial.
    LaunchError
        The engine does not run even without the change.

    Examples
    --------
    >>> llmprof.trial("results/tiny_torch_20260101-120000", "graphs").says  # doctest: +SKIP
    """
    origin = run if isinstance(run, Run | ExperimentConfig) else open_run(run)
    config, worker = (origin.config, origin.worker) if isinstance(origin, Run) else (origin, {})
    if isinstance(origin, Run) and origin.recorded:
        found = (
            "the run is a recording of a server that llmprof did not start, whose load cannot be"
            " repeated"
        )
        raise ConfigError(found, expected="a run of llmprof run")
    if not 0 < until < 1:
        raise ConfigError(f"until is {until}", expected="a share between 0 and 1, such as 0.02")
    if most_pairs < LEAST_PAIRS:
        raise ConfigError(f"most_pairs is {most_pairs}", expected=f"at least {LEAST_PAIRS}")
    objective = objective or _objective(config)
    if objective not in METRICS:
        raise ConfigError(
            f"there is no metric {objective!r}", expected=f"one of {', '.join(METRICS)}"
        )
    limited = limits(slo)
    if isinstance(change, Mapping):
        name, fields = label(change), dict(change)
    else:
        name, fields = parse_change(change or _first(origin), config, worker)
    other = changed_config(config, fields)
    where = Path(folder) if folder is not None else new_folder(config, f"trial_{config.name}")
    state = new_state(config, name, fields, objective=objective, until=until, slo=limited)
    if (where / FILE).exists():
        earlier = load(where / FILE)
        if (earlier["config"], earlier["fields"]) != (
            state["config"],
            json.loads(json.dumps(fields)),
        ):
            raise ConfigError(
                f"{where} holds the trial of {earlier['change']!r}", hint="choose another folder"
            )
        state |= {name: earlier[name] for name in _KEPT if name in earlier}
        state |= {"pairs": [pair for pair in earlier["pairs"] if {"A", "B"} <= pair.keys()]}
    elif isinstance(origin, Run):
        try:
            state["predicted"] = predicted_gain(origin, name, objective, fields)
        except NoPredictionError as why:
            state["unpredicted"] = str(why)

    with alone(where):
        work = Trial(where, state, config, other, progress, most_pairs, limited)
        work.store()
        if check:
            passes.ask_doctor(config, progress)
        work.measure(warm=warm)
        if profile and not state.get("error"):
            work.profile()
        verdict = Verdict(where, state)
        verdict.write()
    return verdict


def new_state(
    config: ExperimentConfig,
    name: str,
    fields: Mapping[str, Any],
    *,
    objective: str,
    until: float,
    slo: Sequence[Limit] = (),
) -> dict[str, Any]:
    """State of a trial before its first pair."""
    return {
        "version": VERSION,
        "config": disclosure.config(config).to_dict(),
        "change": name,
        "fields": dict(fields),
        "objective": objective,
        "until": until,
        "slo": ",".join(one.text for one in slo),
        "pairs": [],
        "notes": [],
    }


def _objective(config: ExperimentConfig) -> str:
    paced = config.served and (config.server.get("request_rate") or config.load.get("file"))
    return "e2e_ns" if paced else "output_tokens_per_s"


def _first(origin: Run | ExperimentConfig) -> str:
    if isinstance(origin, ExperimentConfig):
        raise ConfigError(
            "a configuration has no findings that say what to try", expected="a change"
        )
    for row in remedies(origin).filter(pl.col("reason").is_null()).head(1).to_dicts():
        return str(row["remedy"])
    found = "no finding of the run has a setting of the engine that can be tried"
    expected = "a change, such as graphs or engine_args.max_num_seqs=64"
    raise ConfigError(found, expected=expected, hint="llmprof try RUN --list says why")


def predicted_gain(
    run: Run, name: str, objective: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Gain of a change that a replay of the run's trace predicts, or the schedule of its requests.

    It is the gain of decode steps for the time of a token, otherwise that of the time of all steps,
    without the profiler where that is known.
    """
    change = next((one.change for one in REMEDIES if one.name == name), None)
    if change is None:
        if objective not in _OF_ALL_STEPS:
            raise NoPredictionError("a schedule predicts the time of all requests, not that of one")
        return schedule.predict_gain(run, fields)
    if objective == "ttft_ns":
        raise NoPredictionError(
            "a replay predicts steps, not the time that a request waits for them"
        )
    try:
        rows = analyze.what_if(run.trace, change)
        whole = float(analyze.steps(run.trace)["dur_ns"].sum())
    except LlmprofError as error:
        raise NoPredictionError(str(error)) from error
    if objective == "tpot_ns":
        rows = rows.filter(phase="decode")
    if rows.is_empty():
        raise NoPredictionError("the recording has no steps that the change concerns")
    names = ("recorded_ns", "predicted_ns", "low_ns", "high_ns")
    plain = not rows["plain_recorded_ns"].null_count()
    times = rows.select(
        (pl.col(f"plain_{one}" if plain else one) * pl.col("steps")).sum().alias(one)
        for one in names
    )
    recorded, after, low, high = times.row(0)
    total = recorded
    if objective != "tpot_ns":
        total = max(
            recorded,
            whole - rows.select((pl.col("recorded_ns") * pl.col("steps")).sum()).item() + recorded,
        )
    return {
        "gain": (recorded - after) / total,
        "low": (recorded - high) / total,
        "high": (recorded - low) / total,
        "of": ", ".join(str(phase or "the recording") for phase in rows["phase"]),
        "plain": plain,
    }


_OF_ALL_STEPS: Final = ("wall_ns", "output_tokens_per_s", "requests_per_s")


class _RefusedError(Exception):
    """The engine failed with the change."""


def _blamed(side: str, error: LlmprofError) -> Exception:
    """The error of a side: with the change it is a result, without it nothing can be measured."""
    return _RefusedError() if side == "B" else error


class _Stopped(BaseException):
    """Ends the engine of a thread."""


class LoadedEngine:
    """An engine that stays loaded and measures on request, in a thread of its own."""

    def __init__(self, config: ExperimentConfig, home: Path) -> None:
        self.home, self._count = home, 0
        self._stop = threading.Event()
        self._result: process.Finished | LlmprofError | None = None
        files.made(home)
        plain = config.replace(profile_mode="inference_only", timeout_s=0.0)
        self._model = resolve(plain.model, home / "model")
        self._job, _ = command.job(plain, self._model)
        script = files.write(
            home / "inference_script.pyz", engines.script(self._job | {"follow": True})
        )
        self._argv = command.worker(plain, script, home)
        self._env = command.whole_environment(plain, os.environ)
        self._thread = threading.Thread(target=self._run, name=f"engine {home.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = process.run(
                self._argv,
                log=self.home / "experiment.log",
                env=self._env,
                events=self.home / "events.jsonl",
                watch=self._look,
            )
        except LlmprofError as error:
            self._result = error
        except _Stopped:
            pass

    def _look(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    def measure_in(self, folder: RunFolder, config: ExperimentConfig) -> Run:
        """Measure another load in a run folder; the run, finished."""
        job, _ = command.job(config, self._model)
        (self.home / folder.path.name).symlink_to(folder.path, target_is_directory=True)
        files.write(folder.script, engines.script(job))
        with (
            folder.lock(),
            keep_state(folder) as stage,
            passes.monitors_beside(config, folder.monitors),
        ):
            stage("engine")
            worker = self.measure(
                config.timeout_s,
                folder.path.name,
                {k: v for k, v in job.items() if self._job[k] != v},
            )
            files.write_json(folder.gpu_info, machine(worker))
        return ExperimentRunner(config, check=False).finish_in(folder)

    def measure(
        self, timeout_s: float, name: str | None = None, job: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Measure the requests once more; the record of the engine, as ``worker.json`` has it."""
        name = name or f"block-{self._count:02d}"
        self._count += 1
        with (self.home / "points.jsonl").open("a") as file:
            file.write(json.dumps({"folder": name, "job": job or {}}) + "\n")
        begun = time.monotonic()
        path = self.home / name / "worker.json"
        while not path.is_file():
            if not self._thread.is_alive():
                raise self._failed()
            if timeout_s and time.monotonic() - begun > timeout_s:
                raise LaunchError(
                    f"the engine measured nothing for {timeout_s:g} s", hint="raise timeout_s"
                )
            time.sleep(_POLL_S)
        worker: dict[str, Any] | None = typed.read_if_whole(path, typed.WorkerJson)
        if worker is None or worker.get("error"):
            finished = process.Finished(1, 0.0, (), {})
            raise process.engine_failure(worker, finished, self.home / "experiment.log")
        return worker

    def ready(self, timeout_s: float) -> None:
        """Wait until the engine is loaded; it is, too, when it has measured once."""
        begun, events = time.monotonic(), self.home / "events.jsonl"
        while not events.is_file() or '"event": "ready"' not in events.read_text(
            "utf-8", "replace"
        ):
            if not self._thread.is_alive():
                raise self._failed()
            if time.monotonic() - begun > timeout_s:
                raise LaunchError(
                    f"the engine was not loaded within {timeout_s:g} s", hint="raise timeout_s"
                )
            time.sleep(_POLL_S)

    def _failed(self) -> LlmprofError:
        if isinstance(self._result, LlmprofError):
            return self._result
        done = self._result or process.Finished(1, 0.0, (), {})
        return process.engine_failure(
            typed.read_if_whole(self.home / "worker.json", typed.WorkerJson),
            done,
            self.home / "experiment.log",
        )

    def ask_to_end(self) -> None:
        """Ask the engine to end after what it measures now."""
        with contextlib.suppress(OSError), (self.home / "points.jsonl").open("a") as file:
            file.write("\n")

    def end(self) -> None:
        """End the engine, at once if it does not end by itself."""
        self.ask_to_end()
        self._thread.join(process.INTERRUPT_S)
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def loaded_engine(config: ExperimentConfig, home: Path) -> Iterator[LoadedEngine]:
    """An engine that is loaded within the block."""
    with loaded_engines([config], [home]) as loaded:
        yield loaded[0]


@contextlib.contextmanager
def loaded_engines(
    configs: Sequence[ExperimentConfig], homes: Sequence[Path]
) -> Iterator[list[LoadedEngine]]:
    """Engines that start at the same time and are loaded within the block."""
    loaded: list[LoadedEngine] = []
    with contextlib.ExitStack() as stack:
        for config, home in zip(configs, homes, strict=True):
            loaded.append(LoadedEngine(config, home))
            stack.callback(loaded[-1].end)
        for engine in loaded:
            stack.callback(engine.ask_to_end)
        yield loaded


@dataclass
class Trial:
    """Measures the pairs of a trial and keeps its state."""

    folder: Path
    state: dict[str, Any]
    before: ExperimentConfig
    after: ExperimentConfig
    progress: Progress | None
    most: int
    slo: Sequence[Limit] = ()
    answers: dict[str, list[Any]] = field(default_factory=lambda: {"A": [], "B": []})

    @property
    def sides(self) -> dict[str, ExperimentConfig]:
        """Configuration of each side."""
        return {"A": self.before, "B": self.after}

    def store(self) -> None:
        """Write what is known."""
        files.write_json(self.folder / FILE, self.state)

    def note(self, words: str) -> None:
        """Add a note for the reader, once."""
        if words not in self.state["notes"]:
            self.state["notes"].append(words)

    def tell(self, what: str) -> None:
        """Tell what is done now."""
        if self.progress is not None:
            self.progress(what, len(self.state["pairs"]), self.most)

    def measure(self, *, warm: bool | None) -> None:
        """Measure pairs until the effect is known, both engines loaded if that is wished and
        possible.
        """
        if self.known:
            return
        if others := beside.device_processes(self.before):
            self.note(
                f"{beside.process_names(others)} used the device before the trial, so its times may"
                " be wrong"
            )
        try:
            if warm is False or not self._beside_each_other():
                if warm:
                    raise LaunchError(
                        self.state["notes"][-1],
                        hint="leave warm out: the engines then start in turn",
                    )
                self._in_turn()
        except _RefusedError as error:
            self.state["error"] = str(error.__cause__)
        finally:
            self.summarise()
            self.store()

    @property
    def known(self) -> bool:
        """Whether the effect on the objective is known well enough."""
        pairs = self.state["pairs"]
        if len(pairs) >= self.most:
            return True
        effect = Verdict(self.folder, self.state).effect if len(pairs) >= LEAST_TO_END else None
        return effect is not None and half_width(effect) <= self.state["until"]

    def _beside_each_other(self) -> bool:
        """Measure with both engines loaded; False if they do not fit beside each other."""
        on_gpu = device_count() > 0
        with contextlib.ExitStack() as stack:
            loaded = {}
            for side, config in self.sides.items():
                self.tell(f"starting the engine {_WHICH[side]}")
                loaded[side] = stack.enter_context(
                    loaded_engine(beside_each_other(config) if on_gpu else config, self._home(side))
                )
                try:
                    worker = loaded[side].measure(config.timeout_s)
                except LlmprofError as error:
                    if on_gpu and of_memory(error):
                        self.note(
                            "the engines were started in turn, since they do not fit beside each"
                            f" other: {error}"
                        )
                        return False
                    raise _blamed(side, error) from error
                if on_gpu and _preempts(worker):
                    self.note(
                        "the engines were started in turn: with half of the memory the requests do"
                        " not fit"
                    )
                    return False
            self.state["engines"] = "both loaded, measured in turn"
            unsized = (
                one for one in self.sides.values() if "kv_cache_memory_bytes" not in one.engine_args
            )
            if on_gpu and any(beside_each_other(config) is not config for config in unsized):
                self.note(f"each engine had {_MEMORY / 2:.0%} of the device's memory")
            self.pairs({side: engine.measure for side, engine in loaded.items()}, loaded=True)
        return True

    def _in_turn(self) -> None:
        self.state["engines"] = "started in turn, for each measurement"

        def measure(side: str, timeout_s: float) -> dict[str, Any]:
            with loaded_engine(self.sides[side], self._home(side)) as engine:
                return engine.measure(timeout_s)

        self.pairs({side: functools.partial(measure, side) for side in "AB"})

    def pairs(
        self, measure: Mapping[str, Callable[[float], dict[str, Any]]], *, loaded: bool = False
    ) -> None:
        """Measure pairs until the effect is known, and look at the device meanwhile.

        ``loaded`` says that the engines stay loaded, so that no other process of the trial comes to
        the device.
        """
        ours = beside.device_processes(self.before)
        samples = self.folder / f"monitors-{len(self.state['pairs'])}.parquet"
        with passes.monitors_beside(self.before, samples):
            while not self.known:
                self._pair(measure)
                if loaded and (others := beside.device_processes(self.before) - ours):
                    self.note(
                        f"{beside.process_names(others)} used the device during the trial, so its"
                        " times may be wrong"
                    )
        if slowed := beside.slowed(samples):
            self.note(f"the device was slowed down during the trial: {slowed}")

    def _pair(self, measure: Mapping[str, Callable[[float], dict[str, Any]]]) -> None:
        """Measure both sides, the one first that was second in the pair before."""
        number = len(self.state["pairs"])
        pair: dict[str, Any] = {}
        for side in ("AB", "BA")[number % 2]:
            self.tell(f"pair {number + 1}: {_WHICH[side]}")
            at = time.time_ns()
            try:
                worker = measure[side](self.sides[side].timeout_s)
            except LlmprofError as error:
                raise _blamed(side, error) from error
            pair[side] = {"at_ns": at, "means": _means(worker, self.slo)}
            self.answers[side].append(worker.get("outputs"))
            peaks = worker.get("peak_memory_bytes") or {}
            self.state.setdefault("memory_bytes", {})[side] = max(peaks.values(), default=None)
            self.state.setdefault("versions", {})[side] = worker.get("engine_version")
        self.state["pairs"].append(pair)
        self.store()

    def _home(self, side: str) -> Path:
        homes = (self.folder / f"engine-{side}-{n}" for n in itertools.count(1))
        return next(home for home in homes if not home.exists())

    def summarise(self) -> None:
        """Say how the machine drifted, and how equal the answers of both sides are."""
        blocks = pl.DataFrame(
            [
                {
                    "at_ns": pair[side]["at_ns"],
                    "side": side,
                    "wall_ns": pair[side]["means"].get("wall_ns"),
                }
                for pair in self.state["pairs"]
                for side in "AB"
                if side in pair
            ],
            schema={"at_ns": pl.Int64, "side": pl.String, "wall_ns": pl.Float64},
        )
        self.state["drift"] = found = drift(blocks)
        if (
            found is not None
            and abs(found["t"]) > _CLEAR_T
            and abs(found["per_hour"]) * _hours(blocks) > _MUCH
        ):
            self.note(
                f"the machine became {'slower' if found['per_hour'] > 0 else 'faster'} during the"
                f" trial, by {abs(found['per_hour']) * _hours(blocks):.1%}; the order of the"
                " measurements cancels this"
            )
        a, b = self.answers["A"], self.answers["B"]
        greedy = all(not config.temperature for config in self.sides.values())
        if a and b and a[0] and b[0] and greedy:
            within = tokens_equal(a[0], a[1]) if len(a) > 1 and a[1] else None
            self.state["equal"] = {"between": tokens_equal(a[0], b[0]), "within": within}

    def profile(self) -> None:
        """Record each side once."""
        mode = self.sides["A"].profile_mode
        if mode not in {"torch", "nsys", "nsys_ncu"}:
            mode = "torch"
        named = dict(self.state.get("profiled") or {})
        for side, config in self.sides.items():
            if side in named:
                continue
            self.tell(f"recording {_WHICH[side]}")
            recorded = config.replace(
                results_dir=str(self.folder),
                experiment_name=f"{side}_recorded",
                profile_mode="nsys" if mode == "nsys_ncu" else mode,
                plain=False,
                until=None,
            )
            try:
                named[side] = ExperimentRunner(recorded, check=False).run().folder.path.name
            except LlmprofError as error:
                self.note(f"{side} was not recorded: {error}")
        self.state["profiled"] = named
        self.store()


_CLEAR_T: Final = 3.0
_MUCH: Final = 0.01


def _hours(blocks: pl.DataFrame) -> float:
    return float(blocks["at_ns"][-1] - blocks["at_ns"][0]) / 3.6e12


def beside_each_other(config: ExperimentConfig, count: int = 2) -> ExperimentConfig:
    """The configuration of an engine that leaves room for others, where it does not say itself what
    it takes.

    With a cache of a given size, too: vLLM asks at its start for that share of the memory to be
    free.
    """
    if config.engine != "vllm" or "gpu_memory_utilization" in config.engine_args:
        return config
    return config.replace(
        engine_args={**config.engine_args, "gpu_memory_utilization": round(_MEMORY / count, 3)}
    )


def of_memory(error: LlmprofError) -> bool:
    """Whether an engine failed since it had too little memory."""
    words = str(error).lower()
    return any(part in words for part in ("memory", "kv cache", "no available", "blocks"))


def _preempts(worker: Mapping[str, Any]) -> bool:
    """Whether all requests at once need more of the KV cache than the engine has."""
    held = (worker.get("kv_cache") or {}).get("tokens")
    plain = [
        one
        for one in worker.get("requests") or ()
        if one["phase"] == "plain" and one["repeat"] == 0
    ]
    needed = sum((one.get("prompt_tokens") or 0) + (one.get("output_tokens") or 0) for one in plain)
    return bool(held and needed > held)


def _means(worker: Mapping[str, Any], slo: Sequence[Limit] = ()) -> dict[str, float]:
    """Mean over the plain repeats of each metric that is known, and the figures of the SLO."""
    requests = requests_of(worker)
    each = repeats(requests).filter(phase="plain")
    if each.is_empty():
        raise NotCapturedError(
            "the engine measured no repeat without profiler", hint="set repeat to at least 1"
        )
    means = {name: each[name].drop_nulls().to_list() for name in METRICS if name in each.columns}
    known = {
        name: fmean(values)
        for name, values in means.items()
        if values and all(map(math.isfinite, values))
    }
    figures = {one.figure.name: one.figure.of(requests) for one in slo}
    return {name: value for name, value in figures.items() if value is not None} | known
