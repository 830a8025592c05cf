"""The verdict of a trial: prediction and measurement side by side, in words, as JSON and as a page."""  # noqa: E501

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from llmprof.errors import LlmprofError, ReadError
from llmprof.run.trials.gains import METRICS, effects
from llmprof.run.trials.objectives import holds, limits
from llmprof.text import METRIC_WORDS
from llmprof.trace.storage import files, typed
from llmprof.units import format_bytes, format_metric, format_share

if TYPE_CHECKING:
    from llmprof.report import Report

FILE: Final = "trial.json"
VERSION: Final = 1

PAIRS: Final = {"pair": pl.Int64, "metric": pl.String, "before": pl.Float64, "after": pl.Float64}


@dataclass(frozen=True)
class Verdict:
    """Result of a trial, finished or not.

    Attributes
    ----------
    folder : pathlib.Path
        Folder of the trial.
    state : mapping
        Content of ``trial.json``.
    """

    folder: Path
    state: Mapping[str, Any]

    @functools.cached_property
    def pairs(self) -> pl.DataFrame:
        """Measurements: ``pair, metric, before, after`` (ns, or 1/s), a row for each pair and metric."""  # noqa: E501
        rows = [
            {
                "pair": k,
                "metric": metric,
                "before": pair["A"]["means"][metric],
                "after": pair["B"]["means"].get(metric),
            }
            for k, pair in enumerate(self.state["pairs"])
            if "A" in pair and "B" in pair
            for metric in pair["A"]["means"]
        ]
        return pl.DataFrame(rows, schema=PAIRS, orient="row")

    @functools.cached_property
    def effects(self) -> pl.DataFrame:
        """Effect of the change on each metric, as :func:`llmprof.run.trials.effects` gives it."""
        return effects(self.pairs, until=self.state["until"], seed=self.state["config"]["seed"])

    @property
    def effect(self) -> dict[str, Any] | None:
        """The effect on the objective; None before the first pair."""
        return next(iter(self.effects.filter(metric=self.state["objective"]).to_dicts()), None)

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, ``no effect``, ``unknown``, or ``failed`` if the engine did not take the change."""  # noqa: E501
        if self.state.get("error"):
            return "failed"
        return "unknown" if self.effect is None else str(self.effect["verdict"])

    def fails_over(self, share: float) -> bool:
        """Whether the change costs more than a share of the time, beyond the interval, or the engine failed with it."""  # noqa: E501
        effect = self.effect
        return self.verdict == "failed" or (
            self.verdict == "worse" and effect is not None and effect["gain"] < -share
        )

    @property
    def held(self) -> bool | None:
        """Whether the measured gain lies within the predicted interval, with its own; None without a prediction."""  # noqa: E501
        predicted, effect = self.state.get("predicted"), self.effect
        if not predicted or effect is None or effect["gain_low"] is None:
            return None
        return bool(
            predicted["low"] <= effect["gain_high"] and effect["gain_low"] <= predicted["high"]
        )

    @functools.cached_property
    def slo_held(self) -> dict[str, list[bool]]:
        """Whether the SLO of the trial holds in each measurement as it is (``A``) and with the change (``B``)."""  # noqa: E501
        slo = limits(self.state.get("slo") or "")
        return {
            side: [holds(pair[side]["means"], slo) for pair in self.state["pairs"] if side in pair]
            for side in "AB"
        }

    @property
    def breaks_slo(self) -> bool:
        """Whether the SLO of the trial is missed in most measurements with the change."""
        held = self.slo_held["B"]
        return 2 * sum(held) < len(held)

    @property
    def says(self) -> str:
        """The verdict in a sentence or two."""
        change, objective = self.state["change"], METRIC_WORDS[self.state["objective"]]
        if self.verdict == "failed":
            return f"{change}: the engine does not run with it. {self.state['error']}"
        effect = self.effect
        if effect is None:
            return f"{change}: nothing is measured yet."
        saved = gain_words(effect)
        went = " to ".join(
            format_metric(self.state["objective"], effect[end]) for end in ("before", "after")
        )
        words = {
            "better": f"{change} is better: {objective} {went}, {saved} of the time is saved.",
            "worse": (
                f"{change} is worse: {objective} {went}, {gain_words(effect, sign=-1)} more time is"
                " taken."
            ),
            "no effect": (
                f"{change} has no effect on {objective}: {went}, {saved} of the time is saved."
            ),
            "unknown": (
                f"{change}: the effect on {objective} is not known yet: {went}, {saved} of the time"
                " is saved."
            ),
        }[self.verdict]
        predicted = self.state.get("predicted")
        if predicted:
            fits = {True: "as predicted", False: "not as predicted", None: "predicted"}[self.held]
            words += f" {fits.capitalize()}: {gain_words(_as_effect(predicted))} saved."
        if self.state.get("slo"):
            before, after = (f"{sum(held)} of {len(held)}" for held in self.slo_held.values())
            words += (
                f" The SLO holds in {after} measurements with the change, and in {before} as it is."
            )
        equal = self.state.get("equal") or {}
        if equal.get("between") is not None and equal["between"] < (equal.get("within") or 1.0):
            words += (
                f" The answers differ: {format_share(equal['between'])} of the tokens are equal"
            )
            words += (
                f", and {format_share(equal['within'])} without the change."
                if equal.get("within")
                else "."
            )
        return words

    @property
    def keep(self) -> dict[str, Any]:
        """The changed fields if the change is better, otherwise none: what the configuration to keep needs."""  # noqa: E501
        return dict(self.state["fields"]) if self.verdict == "better" else {}

    @functools.cached_property
    def why(self) -> pl.DataFrame | None:
        """Difference of a step as it is and one with the change.

        Rows are those of :func:`llmprof.analyze.diff` with ``part="times"``; None if the two were
        not recorded, or have no steps to compare.
        """
        from llmprof import analyze
        from llmprof.run import launch

        names = self.state.get("profiled") or {}
        if set(names) != {"A", "B"}:
            return None
        before, after = (launch.open_run(self.folder / names[side]).trace for side in "AB")
        try:
            named = pl.lit("as it is").alias("a_run"), pl.lit("with the change").alias("b_run")
            return analyze.diff(before, after, part="times").with_columns(*named)
        except LlmprofError:
            return None

    def write(self) -> Path:
        """Write ``verdict.json``: prediction, measurement, what it cost and what to keep."""
        document = {
            "change": self.state["change"],
            "fields": self.state["fields"],
            "verdict": self.verdict,
            "says": self.says,
            "objective": self.state["objective"],
            "predicted": self.state.get("predicted"),
            "unpredicted": self.state.get("unpredicted"),
            "held": self.held,
            "effects": self.effects.to_dicts(),
            "keep": self.keep,
            **{
                name: self.state.get(name)
                for name in ("equal", "drift", "memory_bytes", "notes", "error", "profiled")
            },
        }
        return files.write_json(self.folder / "verdict.json", document)

    def report(self) -> Report:
        """Write the page of the trial into its folder.

        Raises
        ------
        OutputError
            The folder cannot be written.
        """
        from llmprof.report.sweep import write_trial

        return write_trial(
            self.pairs,
            self.effects,
            self.why,
            self.folder,
            title=self._title,
            says=self.says,
            objective=self.state["objective"],
            facts=self._facts,
            notes=self.state.get("notes") or (),
        )

    @property
    def _title(self) -> str:
        return f"{self.state['change']} on {self.state['config']['model']}"

    @property
    def _facts(self) -> list[tuple[str, str]]:
        changed = ", ".join(f"{name}: {value}" for name, value in self.state["fields"].items())
        facts = [
            ("Verdict", self.verdict),
            ("Changed", changed),
            ("Engines", str(self.state.get("engines"))),
        ]
        if why := self.state.get("unpredicted"):
            facts.append(("Predicted", f"nothing: {why}"))
        versions = self.state.get("versions") or {}
        if versions.get("A") != versions.get("B"):
            facts.append(("Versions of the engine", f"{versions.get('A')} → {versions.get('B')}"))
        memory = self.state.get("memory_bytes") or {}
        if memory.get("A") and memory.get("B"):
            facts.append(("Memory", " → ".join(format_bytes(memory[side]) for side in "AB")))
        return facts

    def __repr__(self) -> str:
        return f"<Verdict {self.folder.name}: {self.verdict}>"


def gain_words(effect: Mapping[str, Any], sign: int = 1) -> str:
    """A gain with its interval, in words."""
    ends = [sign * effect[name] for name in ("gain_low", "gain_high") if effect[name] is not None]
    between = f" ({format_share(min(ends))} to {format_share(max(ends))})" if ends else ""
    return f"{format_share(sign * effect['gain'])}{between}"


def _as_effect(predicted: Mapping[str, Any]) -> dict[str, Any]:
    return {"gain": predicted["gain"], "gain_low": predicted["low"], "gain_high": predicted["high"]}


def open_trial(folder: str | os.PathLike[str]) -> Verdict:
    """Open the trial in a folder, finished or not.

    Raises
    ------
    ReadError
        The folder holds no trial, or its file is damaged.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise ReadError(
            f"{folder} holds no trial", expected=f"a folder that llmprof try wrote, with {FILE}"
        )
    return Verdict(Path(folder), load(path))


def load(path: Path) -> dict[str, Any]:
    """State of a trial."""
    found: dict[str, Any] = typed.read(path, typed.TrialJson)
    if found["objective"] not in METRICS:
        raise ReadError(
            f"{path} has the objective {found['objective']!r}",
            expected=f"one of {', '.join(METRICS)}",
        )
    return found


def calibration(root: str | os.PathLike[str]) -> pl.DataFrame:
    """Predictions and outcomes of all trials in a folder.

    Parameters
    ----------
    root : path
        Folder of trials, such as ``results``.

    Returns
    -------
    polars.DataFrame
        One row for each trial that predicted something and measured it: ``trial, model, change, objective``;
        ``predicted, predicted_low, predicted_high, measured, measured_low, measured_high`` (gains, as shares);
        ``held``, whether the two intervals meet.

    Examples
    --------
    >>> trials.calibration("results")["held"].sum()  # doctest: +SKIP
    19
    """  # noqa: E501
    rows = []
    for path in sorted(Path(root).glob(f"*/{FILE}")):
        try:
            one = open_trial(path.parent)
        except ReadError:
            continue
        predicted, effect = one.state.get("predicted"), one.effect
        if one.held is None or effect is None or not predicted:
            continue
        rows.append(
            {
                "trial": path.parent.name,
                "model": one.state["config"]["model"],
                "change": one.state["change"],
                "objective": one.state["objective"],
                "predicted": predicted["gain"],
                "predicted_low": predicted["low"],
                "predicted_high": predicted["high"],
                "measured": effect["gain"],
                "measured_low": effect["gain_low"],
                "measured_high": effect["gain_high"],
                "held": one.held,
            }
        )
    texts = dict.fromkeys(("trial", "model", "change", "objective"), pl.String)
    ends = (
        "predicted",
        "predicted_low",
        "predicted_high",
        "measured",
        "measured_low",
        "measured_high",
    )
    return pl.DataFrame(
        rows, schema={**texts, **dict.fromkeys(ends, pl.Float64), "held": pl.Boolean}, orient="row"
    )
