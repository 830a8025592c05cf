"""Choice of the points of a search: the space, what is tried first, and Optuna's samples of the
rest.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmprof.errors import LaunchError, LlmprofError, needs
from llmprof.run.batch.parameters import apply
from llmprof.run.batch.parameters import points as grid_of
from llmprof.run.launch import ExperimentConfig
from llmprof.run.launch.config.options import setting
from llmprof.run.launch.run.series import shared_key
from llmprof.run.trials.objectives import Figure, Limit

if TYPE_CHECKING:
    import optuna

Values = dict[str, Any]
STUDY: Final = "study.db"
NAME: Final = "tune"
_CHUNKS: Final = (512, 2048, 8192)


def space_of(config: ExperimentConfig) -> dict[str, list[Any]]:
    """Settings that are worth a search where none are named: of vLLM, and the load of a server
    without a rate.

    Settings that change what the engine answers (8-bit caches, quantization) or need other devices
    are not in it.
    """
    space: dict[str, list[Any]] = {}
    served = config.served
    if served and not setting(config, "server", "request_rate") and not config.load.get("file"):
        usual = setting(config, "server", "max_concurrency") or setting(
            config, "server", "num_prompts"
        )
        most = setting(config, "server", "num_prompts")
        space["server.max_concurrency"] = sorted(
            {max(1, usual // 2), usual, min(most, usual * 2), min(most, usual * 4)}
        )
    if config.engine == "vllm":
        at_once = setting(config, "server", "num_prompts") if served else config.batch_size
        now = config.engine_args.get("max_num_seqs")
        fewer = {(now or at_once) // 4, (now or at_once) // 2} - {0}
        space["engine_args.max_num_seqs"] = [*sorted(fewer), *([now, 2 * now] if now else [None])]
        chunk = config.engine_args.get("max_num_batched_tokens")
        space["engine_args.max_num_batched_tokens"] = [
            *sorted({*_CHUNKS, *([chunk] if chunk else [])}),
            *([] if chunk else [None]),
        ]
        if config.eager:
            space["eager"] = [True, False]
        space["engine_args.async_scheduling"] = [False, True]
    return {name: values for name, values in space.items() if len(values) > 1}


def start_of(config: ExperimentConfig, name: str) -> Any:
    """Value of a setting in a configuration; None where the engine's default holds."""
    head, dot, key = name.partition(".")
    if not dot:
        return getattr(config, name, None)
    if head == "server":
        return setting(config, head, key)
    return getattr(config, head).get(key)


def with_start(
    space: Mapping[str, Sequence[Any]], config: ExperimentConfig
) -> tuple[dict[str, list[Any]], Values]:
    """The space with the value that each setting has at the start, and these values."""
    if space:
        grid_of({name: list(values) for name, values in space.items()})  # checks names and numbers
    start = {name: start_of(config, name) for name in space}
    wide = {
        name: list(values) if start[name] in values else [start[name], *values]
        for name, values in space.items()
    }
    return {name: values for name, values in wide.items() if len(values) > 1}, start


def config_with(
    config: ExperimentConfig, values: Mapping[str, Any], start: Mapping[str, Any]
) -> ExperimentConfig:
    """Configuration of a point; settings that are as at the start stay as they are written
    there.
    """
    return apply(config, {name: value for name, value in values.items() if value != start[name]})


def of_load(
    config: ExperimentConfig, space: Mapping[str, Sequence[Any]], start: Mapping[str, Any]
) -> list[str]:
    """Settings of a space that an engine does not need at its start, so that their points share
    one.
    """
    plain = config.replace(profile_mode="inference_only")
    key, found = shared_key(plain), []
    for name, values in space.items():
        other = next(value for value in values if value != start[name])
        with contextlib.suppress(LlmprofError):
            if shared_key(apply(plain, {name: other})) == key:
                found.append(name)
    return found


class Chooser:
    """Chooses points of a finite space: each setting alone, the best of them together, then
    Optuna's samples.

    Optuna's study lies in ``study.db`` of the folder and has every measured point with its
    constraints.
    """

    def __init__(
        self,
        folder: Path,
        space: Mapping[str, Sequence[Any]],
        start: Values,
        *,
        objective: Figure,
        slo: Sequence[Limit],
        seed: int,
        first: Sequence[Values] = (),
    ) -> None:
        self._optuna = _imported()
        self.space, self.start, self.objective, self.slo = space, start, objective, slo
        self._first = [one for one in first if self._inside(one)]
        options = self._optuna.distributions.CategoricalDistribution
        self._options = {
            name: options([_choice(value) for value in values]) for name, values in space.items()
        }
        self._seed, self._direction = seed, "maximize" if objective.more_is_better else "minimize"
        with _quiet():
            self.study: optuna.Study = self._optuna.create_study(
                storage=f"sqlite:///{folder / STUDY}",
                study_name=NAME,
                direction=self._direction,
                load_if_exists=True,
            )

    def _inside(self, values: Values) -> bool:
        return values.keys() <= self.space.keys() and all(
            value in self.space[name] for name, value in values.items()
        )

    @property
    def points(self) -> Iterator[Values]:
        """All points of the space."""
        for values in itertools.product(*self.space.values()):
            yield dict(zip(self.space, values, strict=True))

    def plan(self) -> Iterator[Values]:
        """Points to measure before Optuna is asked: what the findings advise, then each other value
        alone.

        Of a setting with many values, those next to its start come first.
        """
        yield from (self.start | one for one in self._first)
        alone: list[tuple[int, Values]] = []
        for name, values in self.space.items():
            at = values.index(self.start[name])
            alone += [
                (abs(k - at), self.start | {name: value})
                for k, value in enumerate(values)
                if k != at
            ]
        yield from (values for _, values in sorted(alone, key=lambda pair: pair[0]))

    def together(self, measured: Sequence[Mapping[str, Any]], better: Any) -> Values:
        """The best value of each setting alone, together in one point."""
        best = dict(self.start)
        for name in self.space:
            alone = [
                p
                for p in measured
                if all(p["values"][other] == self.start[other] for other in best if other != name)
            ]
            top = None
            for point in alone:
                if top is None or better(point, top):
                    top = point
            if top is not None:
                best[name] = top["values"][name]
        return best

    def sample(self, open_to: Sequence[Values], number: int = 0) -> Values:
        """Optuna's next sample (of several: by number), or of the open points the one nearest to
        it.
        """
        known = self.study.get_trials()
        with _quiet():
            sampler = self._optuna.samplers.TPESampler(
                seed=self._seed + len(known) + number, n_startup_trials=0
            )
            beside = self._optuna.create_study(
                sampler=sampler, direction=self._direction
            )  # what is only asked is not kept
            beside.add_trials(known)
            wanted = {
                name: _value(choice) for name, choice in beside.ask(self._options).params.items()
            }
        nearest = min(open_to, key=lambda values: self._distance(values, wanted))
        return dict(nearest)

    def _distance(self, a: Values, b: Values) -> float:
        """Steps between two points, each setting's over its number of values."""
        apart = 0.0
        for name, values in self.space.items():
            apart += abs(values.index(a[name]) - values.index(b[name])) / (len(values) - 1) + (
                a[name] != b[name]
            )
        return apart

    def record(self, point: Mapping[str, Any]) -> int:
        """Add a measured or failed point to Optuna's study; its number there."""
        trial_of, states = self._optuna.trial.create_trial, self._optuna.trial.TrialState
        value = (point.get("metrics") or {}).get(self.objective.name)
        ran = point["state"] == "finished" and value is not None and math.isfinite(value)
        params = {name: _choice(value) for name, value in point["values"].items()}
        facts = {
            "run": point.get("run"),
            **({"error": point["error"]} if point.get("error") else {}),
        }
        with _quiet():
            made = trial_of(
                state=states.COMPLETE if ran else states.FAIL,
                value=value if ran else None,
                params=params,
                distributions=self._options,
                user_attrs=facts,
                **({"constraints": self._constraints(point)} if ran and self.slo else {}),
            )
            self.study.add_trial(made)
        return len(self.study.get_trials(deepcopy=False)) - 1

    def _constraints(self, point: Mapping[str, Any]) -> dict[str, float]:
        excess = {one.text: one.excess(point["metrics"].get(one.figure.name)) for one in self.slo}
        return {text: 1.0 if beyond is None else beyond for text, beyond in excess.items()}

    def importance(self) -> dict[str, float]:
        """Optuna's importance of each setting (PED-ANOVA) for the objective; empty if too few
        points ran.
        """
        complete = self._optuna.trial.TrialState.COMPLETE
        if len(self.study.get_trials(deepcopy=False, states=(complete,))) < _LEAST_FOR_IMPORTANCE:
            return {}
        with _quiet():
            try:
                found = self._optuna.importance.get_param_importances(self.study)
            except (ValueError, RuntimeError):
                return {}
        return {name: float(share) for name, share in found.items()}


_LEAST_FOR_IMPORTANCE: Final = 4


def _choice(value: Any) -> Any:
    """A value as Optuna stores it: what is no scalar becomes JSON."""
    return (
        value
        if value is None or isinstance(value, bool | int | float | str)
        else f"json:{json.dumps(value)}"
    )


def _value(choice: Any) -> Any:
    return (
        json.loads(choice[5:]) if isinstance(choice, str) and choice.startswith("json:") else choice
    )


def _imported() -> Any:
    with needs("optuna", "a search needs", "tune", LaunchError):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of Optuna on parts of its interface that may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
