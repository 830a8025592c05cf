"""Result of a search: its points, the best of them, why it is better, and the command line to
deploy it.
"""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from llmprof.errors import LlmprofError, ReadError
from llmprof.run.batch import sweep as batch_state
from llmprof.run.batch.parameters import label
from llmprof.run.launch import ConfigManager, ExperimentConfig
from llmprof.run.trials.objectives import GOODPUT, Figure, Limit, holds, limits, parse_figure, worst
from llmprof.run.trials.search import config_with
from llmprof.run.trials.verdict import Verdict, open_trial
from llmprof.run.workers.server import arguments
from llmprof.text import SLO_WORDS
from llmprof.trace.storage import files, typed
from llmprof.units import format_share

if TYPE_CHECKING:
    from llmprof.report import Report

KEY: Final = "tune"


@dataclass(frozen=True)
class Study:
    """Result of a search, finished or not.

    Attributes
    ----------
    folder : pathlib.Path
        Folder of the study: a run folder for each point, ``sweep.json`` and Optuna's ``study.db``.
    state : mapping
        Content of ``sweep.json``.
    """

    folder: Path
    state: Mapping[str, Any]

    @property
    def _tune(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.state[KEY]
        return found

    @functools.cached_property
    def objective(self) -> Figure:
        """What is searched for."""
        return parse_figure(self._tune["objective"])

    @functools.cached_property
    def slo(self) -> list[Limit]:
        """Limits that hold for a point that counts."""
        return limits(self._tune["slo"])

    @property
    def config(self) -> ExperimentConfig:
        """The starting configuration."""
        return ExperimentConfig.from_dict(self.state["config"])

    @property
    def points(self) -> pl.DataFrame:
        """Points that were measured or failed, in the order in which they ran.

        Returns
        -------
        polars.DataFrame
            ``point, label``; a column for each setting (null: the engine's default); ``state, run,
            error``; a column for the objective and for each figure of the SLO (ns, or 1/s);
            ``holds``, whether the SLO holds; ``excess``, by which share of its limit the worst
            figure is beyond it (at most 0: none); ``predicted``, the gain that a replay predicted,
            as a share; ``seconds``.
        """
        names = list(dict.fromkeys([self.objective.name, *(one.figure.name for one in self.slo)]))
        rows = []
        for point in self.state["points"]:
            values = point.get("metrics") or {}
            ran = point["state"] == "finished"
            missed = worst(values, self.slo)
            rows.append(
                {
                    "point": point["point"],
                    "label": self.words(point["values"]),
                    **{name: batch_state.cell(value) for name, value in point["values"].items()},
                    **{name: point.get(name) for name in ("state", "run", "error")},
                    **{name: values.get(name) for name in names},
                    "holds": self._holds(values) if ran else None,
                    "excess": missed[1] if ran and missed else None,
                    "predicted": point.get("predicted"),
                    "seconds": point.get("seconds"),
                }
            )
        settings = batch_state.columns_of(self.state)
        texts = dict.fromkeys(("state", "run", "error"), pl.String)
        numbers = dict.fromkeys(names, pl.Float64)
        ends = {
            "holds": pl.Boolean,
            **dict.fromkeys(("excess", "predicted", "seconds"), pl.Float64),
        }
        schema: dict[str, Any] = {
            "point": pl.Int64,
            "label": pl.String,
            **settings,
            **texts,
            **numbers,
            **ends,
        }
        return pl.DataFrame(rows, schema=schema, orient="row")

    def words(self, values: Mapping[str, Any]) -> str:
        """A point in words: the settings that differ from the start."""
        start = self._tune["start"]
        return (
            label({name: value for name, value in values.items() if value != start[name]})
            or "as it is"
        )

    @property
    def best(self) -> dict[str, Any] | None:
        """The measured point with the best objective among those that hold the SLO; None if none
        does.
        """
        found = None
        for point in self.state["points"]:
            if self.better(point, found):
                found = point
        return found

    def better(self, point: Mapping[str, Any], than: Mapping[str, Any] | None) -> bool:
        """Whether a point holds the SLO and is better than another one, which holds it, too."""
        value = (point.get("metrics") or {}).get(self.objective.name)
        if point["state"] != "finished" or value is None or not holds(point["metrics"], self.slo):
            return False
        if than is None:
            return True
        other = than["metrics"][self.objective.name]
        return bool(value > other if self.objective.more_is_better else value < other)

    def ahead(self, point: Mapping[str, Any], than: Mapping[str, Any]) -> bool:
        """Whether a point is better than another one or, if neither holds the SLO, nearer to it."""
        if self.better(point, None) or self.better(than, None):
            return self.better(point, than if self.better(than, None) else None)
        mine, other = self._missed(point), self._missed(than)
        return mine is not None and (other is None or mine[1] < other[1])

    @property
    def nearest(self) -> dict[str, Any] | None:
        """The measured point that misses the SLO least; None if none ran."""
        each = [
            (one[1], k)
            for k, point in enumerate(self.state["points"])
            if (one := self._missed(point))
        ]
        return self.state["points"][min(each)[1]] if each else None

    @property
    def _ran(self) -> list[dict[str, Any]]:
        """Measured points whose figures were read: a killed search may not have come to that."""
        return [
            one
            for one in self.state["points"]
            if one["state"] == "finished" and one.get("metrics") is not None
        ]

    def _missed(self, point: Mapping[str, Any]) -> tuple[Limit, float] | None:
        return worst(point.get("metrics") or {}, self.slo) if point["state"] == "finished" else None

    @functools.cached_property
    def confirmation(self) -> Verdict | None:
        """The trial of the best point against the start with other seeds; None if it was not
        made.
        """
        name, best = self._tune.get("confirmation"), self.best
        if best is None or name != f"confirmation-{best['point']:03d}":
            return None
        try:
            return open_trial(self.folder / name)
        except ReadError:
            return None

    @property
    def keep(self) -> dict[str, Any]:
        """The settings to change: those of the best point, unless its confirmation says that it
        is no better.
        """
        best, trial = self.best, self.confirmation
        if best is None:
            return {}
        if trial is not None:
            good = (
                {"better"}
                if self.objective.column != GOODPUT
                else {"better", "no effect", "unknown"}
            )
            if trial.verdict not in good or trial.breaks_slo:
                return {}
        return {
            name: value
            for name, value in best["values"].items()
            if value != self._tune["start"][name]
        }

    @property
    def kept(self) -> ExperimentConfig:
        """The configuration to keep."""
        return config_with(self.config, self._tune["start"] | self.keep, self._tune["start"])

    @property
    def command(self) -> str:
        """Command line that serves the model with the settings to keep; for other engines one of
        llmprof.
        """
        config = self.kept
        if config.engine != "vllm":
            return f"llmprof run --config {shlex.quote(str(self.folder / 'best.yaml'))}"
        options = {
            "dtype": config.dtype,
            "max_model_len": config.max_model_len,
            "tensor_parallel_size": (
                config.tensor_parallel_size if config.tensor_parallel_size > 1 else None
            ),
            "pipeline_parallel_size": (
                config.pipeline_parallel_size if config.pipeline_parallel_size > 1 else None
            ),
            "enforce_eager": True if config.eager else None,
            "enable_prefix_caching": bool(config.load.get("shared_prefix")),  # as it was measured
            **config.engine_args,
        }
        given = arguments({name: value for name, value in options.items() if value is not None})
        variables = [f"{name}={value}" for name, value in config.environment.items()]
        return shlex.join(
            [*(["env", *variables] if variables else []), "vllm", "serve", config.model, *given]
        )

    @property
    def says(self) -> str:
        """The result in a few sentences."""
        ran = self._ran
        if not ran:
            return "Nothing was measured."
        best, one = self.best, self.objective
        if best is None:
            return self._none_holds()
        start, value = ran[0] if ran[0]["point"] == 0 else None, best["metrics"][one.name]
        slo = f" with {', '.join(limit.text for limit in self.slo)}" if self.slo else ""
        from_start = (
            f" ({one.text(start['metrics'].get(one.name))} as it is)"
            if start and start is not best
            else ""
        )
        words = (
            f"Best of {len(ran)}: {self.words(best['values'])}, {one.name}"
            f" {one.text(value)}{from_start}{slo}."
        )
        if start is best:
            words = (
                f"None of {len(ran)} points is better than the start: {one.name}"
                f" {one.text(value)}{slo}."
            )
        trial = self.confirmation
        if trial is not None:
            head = (
                "Confirmed with other seeds"
                if self.keep
                else "With other seeds it is not confirmed, so the start stays"
            )
            words += f" {head}: {trial.says}"
        elif start is not best:
            words += " It was not measured again with other seeds, so luck may be in it."
        return words

    def _holds(self, metrics: Mapping[str, float | None]) -> bool | None:
        """Whether a point holds the SLO; None if there is none."""
        return holds(metrics, self.slo) if self.slo else None

    def _none_holds(self) -> str:
        nearest = self.nearest
        if nearest is None:
            return f"No point has a figure of the SLO {self._tune['slo']}."
        limit, beyond = self._missed(nearest)  # type: ignore[misc]
        value = limit.figure.text(nearest["metrics"].get(limit.figure.name))
        words = (
            f"No measured point holds the SLO. The nearest is {self.words(nearest['values'])}:"
            f" {limit.figure.name} is {value}, {format_share(beyond)} beyond {limit.text}."
        )
        return f"{words} {self._tune.get('bound') or 'No bound is known that forbids it.'}"

    @property
    def pareto(self) -> pl.DataFrame:
        """Latency and throughput of each measured point.

        Returns
        -------
        polars.DataFrame
            ``point, label``; ``latency`` (ns), the first latency of the SLO, or the mean time of a
            further token or of a request; ``rate`` (1/s), the objective if it is a rate, else
            output tokens; ``kind`` (``best``, ``start``, ``holds the SLO``, ``misses the SLO``;
            ``measured`` without one); ``front``, whether no other point is better in both.
        """
        best, rows = self.best, []
        for point in self._ran:
            means = (point.get("result") or {}).get("measures") or {}
            held = SLO_WORDS[self._holds(point["metrics"])]
            kind = (
                "best"
                if point is best
                else "start"
                if point["values"] == self._tune["start"]
                else held
            )
            both = {**means, **point["metrics"]}
            latency, rate = both.get(self.axes[0]), both.get(self.axes[1])
            head = {"point": point["point"], "label": self.words(point["values"])}
            rows.append({**head, "latency": latency, "rate": rate, "kind": kind})
        numbers = {"latency": pl.Float64, "rate": pl.Float64}
        texts = {"point": pl.Int64, "label": pl.String}
        frame = pl.DataFrame(rows, schema={**texts, **numbers, "kind": pl.String}, orient="row")
        ordered = frame.with_row_index("at").sort(
            "latency", "rate", descending=[False, True], nulls_last=True
        )
        before = pl.col("rate").cum_max().shift(1)
        front = (before.is_null() | (pl.col("rate") > before)) & pl.col("latency").is_not_null()
        return ordered.with_columns(front=front.fill_null(False)).sort("at").drop("at")

    @property
    def axes(self) -> tuple[str, str]:
        """Names of the figures that :attr:`pareto` has as ``latency`` and ``rate``."""
        ran = self._ran
        means = (ran[0].get("result") or {}).get("measures") or {} if ran else {}
        known = [name for name in ("tpot_ns", "e2e_ns", "wall_ns") if means.get(name) is not None]
        latency = next(
            (one.figure.name for one in self.slo if one.figure.is_time), (known or ["wall_ns"])[0]
        )
        return (
            latency,
            self.objective.name if self.objective.more_is_better else "output_tokens_per_s",
        )

    @property
    def rates(self) -> pl.DataFrame:
        """Rates at which each point was measured for its goodput; empty with another objective.

        Returns
        -------
        polars.DataFrame
            ``label, rate`` (1/s; null: all requests at once), ``answered`` (1/s), a column for each
            figure of the SLO (ns, or 1/s), ``holds, seed, run``.
        """
        rows = [
            {"label": self.words(point["values"]), **probe}
            for point in self.state["points"]
            for probe in point.get("probes") or ()
        ]
        return pl.DataFrame(rows, schema={"label": pl.String, **self._of_rates}, orient="row")

    @property
    def _of_rates(self) -> dict[str, Any]:
        numbers = dict.fromkeys(
            ("rate", "answered", *(one.figure.name for one in self.slo)), pl.Float64
        )
        return {**numbers, "holds": pl.Boolean, "seed": pl.Int64, "run": pl.String}

    @functools.cached_property
    def importance(self) -> pl.DataFrame:
        """Importance of each setting (``setting, share``) by Optuna's PED-ANOVA, empty for few
        points.
        """
        rows = list((self._tune.get("importance") or {}).items())
        return pl.DataFrame(
            rows, schema={"setting": pl.String, "share": pl.Float64}, orient="row"
        ).sort("share", descending=True)

    @property
    def slices(self) -> pl.DataFrame:
        """Points that differ from the start in one setting, and the start:

        ``setting, value, objective, holds``.
        """
        start, rows = self._tune["start"], []
        for point in self._ran:
            apart = [name for name, value in point["values"].items() if value != start[name]]
            for name in [] if len(apart) > 1 else apart or list(start):
                value = point["metrics"].get(self.objective.name)
                rows.append(
                    {
                        "setting": name,
                        "value": str(batch_state.cell(point["values"][name])),
                        "place": self._place(name, point["values"][name]),
                        "objective": value,
                        "holds": self._holds(point["metrics"]),
                    }
                )
        schema = {
            "setting": pl.String,
            "value": pl.String,
            "place": pl.Int64,
            "objective": pl.Float64,
            "holds": pl.Boolean,
        }
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        several = frame.filter(pl.len().over("setting") > 1)
        return several.sort("setting", "place", maintain_order=True).drop("place")

    def _place(self, name: str, value: Any) -> int:
        values = [self._tune["start"][name], *self.state["parameters"][name]]
        numbers = sorted((one for one in values if isinstance(one, int | float)), key=float)
        return numbers.index(value) + 1 if value in numbers else 0

    def write(self) -> Path:
        """Write ``study.json`` (for programs) and ``best.yaml``, the configuration to keep."""
        best = self.best
        document = {
            "says": self.says,
            "objective": self._tune["objective"],
            "slo": self._tune["slo"],
            "stopped": self._tune.get("stopped"),
            "best": (
                best and {"values": best["values"], "metrics": best["metrics"], "run": best["run"]}
            ),
            "keep": self.keep,
            "confirmation": self.confirmation and self.confirmation.verdict,
            "command": self.command,
            "points": self.points.to_dicts(),
            "excluded": self._tune.get("excluded"),
            "importance": self.importance.to_dicts(),
            "notes": self._tune.get("notes"),
        }
        ConfigManager.save_config(
            self.kept.replace(results_dir="results"), self.folder / "best.yaml", overwrite=True
        )
        return files.write_json(self.folder / "study.json", document)

    def report(self) -> Report:
        """Write the page of the study into its folder.

        Raises
        ------
        OutputError
            The folder cannot be written.
        """
        from llmprof.report.sweep import write_study

        trial = self.confirmation
        frames = {
            "points": self.points,
            "pareto": self.pareto,
            "slices": self.slices,
            "importance": self.importance,
        }
        if (rates := self.rates).height:
            frames["rates"] = rates
        if (why := self._why) is not None:
            frames["why"] = why
        return write_study(
            frames,
            self.folder,
            objective=self.objective.name,
            axes=self.axes,
            settings=list(self.state["parameters"]),
            title=f"Search for the best {self.objective.name} of {self.config.model}",
            says=self.says,
            facts=self._facts,
            notes=[*(self._tune.get("notes") or ()), *(trial.state["notes"] if trial else ())],
            excluded=[
                (self.words(one["values"]), one["reason"])
                for one in self._tune.get("excluded") or ()
            ],
        )

    @property
    def _why(self) -> pl.DataFrame | None:
        trial = self.confirmation
        try:
            return trial.why if trial is not None else None
        except LlmprofError:
            return None

    @property
    def _facts(self) -> list[tuple[str, str]]:
        points = self.state["points"]
        failed = sum(point["state"] == "failed" for point in points)
        ran = f"{sum(point['state'] == 'finished' for point in points)} measured, {failed} failed"
        facts = [
            ("Objective", self._tune["objective"]),
            ("SLO", self._tune["slo"] or "none"),
            ("Points", f"{ran}, {len(self._tune.get('excluded') or ())} excluded by a bound"),
            ("Ended", self._tune.get("stopped") or "not yet"),
            ("To deploy", self.command),
        ]
        if self.confirmation is not None:
            facts.insert(
                3,
                (
                    "Confirmation",
                    f"{self.confirmation.verdict}, in {self._tune['confirmation']}/index.html",
                ),
            )
        return facts

    def __repr__(self) -> str:
        return f"<Study {self.folder.name}: {len(self.state['points'])} points>"


def open_study(folder: str | os.PathLike[str]) -> Study:
    """Open the study in a folder, finished or not.

    Raises
    ------
    ReadError
        The folder holds no study, or its file is damaged.
    """
    state = batch_state.load(Path(folder))
    if KEY not in state:
        raise ReadError(f"{folder} holds no study", expected="a folder that llmprof tune wrote")
    if state["parameters"].keys() != state[KEY]["start"].keys():
        found = (
            f"{folder} is damaged: {batch_state.FILE} has not the same settings at the start as in"
            " its points"
        )
        raise ReadError(found, hint=typed.AGAIN)
    study = Study(Path(folder), state)
    for point in state["points"]:
        for probe in point.get("probes") or ():
            typed.validated(
                probe, typed.row(study._of_rates), f"{folder}: a rate of point {point['point']}"
            )
    return study
