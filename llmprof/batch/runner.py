"""Running a sweep: point by point, resumable, and on past a point that fails."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmprof.batch import sweep as batch_state
from llmprof.batch.parameters import apply, label, point_name, points
from llmprof.batch.points import Points, Runs
from llmprof.batch.sweep import Sweep, open_sweep
from llmprof.errors import ConfigError, LlmprofError
from llmprof.launch import ExperimentConfig, ExperimentRunner
from llmprof.launch.config import disclosure
from llmprof.launch.run.folder import machine
from llmprof.launch.run.series import groups
from llmprof.notebook.cell import told
from llmprof.progress import Progress


class BatchRunner:
    """Runs of one configuration with changed parameters.

    Parameters
    ----------
    config : ExperimentConfig
        What all points share.
    progress : callable, optional
        Called with what is being done, how many points are done, and how many there are; in a notebook one output of
        the cell says it if this is not given.
    runner : callable, optional
        What runs one point, called as ``runner(config, progress=...)``. Without it, points that differ only in their
        workload are measured by one start of the engine, and the others by an :class:`ExperimentRunner`.
    fresh_engine : bool
        Start the engine for each point.
    shuffle : bool
        Measure the points in a random order (by the seed of the configuration), so that a drift of the machine does
        not look like an effect of a parameter.
    check : bool
        Ask the doctor first, once for each start of an engine.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        *,
        progress: Progress | None = None,
        runner: Callable[..., Runs] | None = None,
        fresh_engine: bool = False,
        shuffle: bool = False,
        check: bool = True,
    ) -> None:
        self._config, self._progress, self._runner = config, progress, runner
        self._fresh, self._shuffle, self._check = fresh_engine, shuffle, check

    def run_parameter_sweep(
        self, parameters: Mapping[str, Sequence[Any]], *, folder: str | os.PathLike[str] | None = None
    ) -> Sweep:
        """Run every combination of the parameters that has not finished yet.

        A point that fails is noted, and the next one runs. After each point the folder says how far the sweep is; an
        interrupted one goes on where it was when it is called again with its folder, or with :meth:`resume`.

        Parameters
        ----------
        parameters : mapping of str to sequence
            Values by field of the configuration; ``engine_args.KEY`` varies one option of the engine.
        folder : path, optional
            Folder of the sweep, new or begun; ``results/{experiment}_sweep_{time}`` if not given.

        Returns
        -------
        Sweep
            What each point came to.

        Raises
        ------
        LlmprofError
            A parameter is not known or has no values; the folder belongs to another sweep, or to a running one.
        OutputError
            The folder cannot be written.
        """
        grid = points(parameters)
        self._refuse_twins(grid)
        target = Path(folder) if folder is not None else self._new_folder()
        wanted = {name: list(values) for name, values in parameters.items()}
        with batch_state.alone(target):
            if (target / batch_state.FILE).exists():
                state = batch_state.load(target)
                if state["parameters"] != wanted:
                    raise LlmprofError(
                        f"the sweep in {target} has the parameters {state['parameters']}",
                        expected=f"{wanted}",
                        hint="choose another folder, or resume it with its own parameters",
                    )
            else:
                state = batch_state.new(disclosure.config(self._config).to_dict(), wanted, grid)
                state["fresh_engine"] = self._fresh
                if self._shuffle:
                    state["order"] = random.Random(self._config.seed).sample(range(len(grid)), len(grid))  # noqa: S311
                batch_state.store(state, target)
            if self._progress is not None:
                self._run(state, target, self._progress)
            else:
                with told(target.name) as progress:
                    self._run(state, target, progress)
        return Sweep(target, state)

    @classmethod
    def resume(cls, folder: str | os.PathLike[str], **options: Any) -> Sweep:
        """Go on with a sweep: points that failed, were interrupted or did not begin.

        Parameters
        ----------
        folder : path
            Folder of the sweep.
        **options
            As for the class.

        Raises
        ------
        ReadError
            The folder holds no sweep.
        """
        begun = open_sweep(folder)
        runner = cls(ExperimentConfig.from_dict(begun.state["config"]), **options)
        return runner.run_parameter_sweep(begun.parameters, folder=folder)

    def _refuse_twins(self, grid: Sequence[Mapping[str, Any]]) -> None:
        """Raise where two points would be the same run, such as batch_size 0 (as many as prompts) and 1."""
        seen: dict[str, Mapping[str, Any]] = {}
        for values in grid:
            try:
                key = repr(apply(self._config, values).to_dict())
            except LlmprofError:  # it will be a failed point
                continue
            if key in seen:
                raise ConfigError(
                    f"the points {label(seen[key])} and {label(values)} are the same run",
                    hint="leave one of the values out",
                )
            seen[key] = values

    def _new_folder(self) -> Path:
        stamp = dt.datetime.now(tz=dt.UTC).astimezone().strftime("%Y%m%d-%H%M%S")
        stem, root = f"{self._config.name}_sweep_{stamp}", Path(self._config.results_dir)
        return next(path for n in range(1, 1000) if not (path := root / (f"{stem}-{n}" if n > 1 else stem)).exists())

    def _run(self, state: dict[str, Any], folder: Path, progress: Progress | None) -> None:
        listed: list[dict[str, Any]] = state["points"]
        order = state.get("order") or range(len(listed))
        left = [listed[k] for k in order if not self._is_done(listed[k], folder)]
        configs: dict[int, ExperimentConfig] = {}
        for point in left:
            try:
                made = apply(self._config, point["values"])
                name = point_name(made.name, point["values"])
                configs[point["point"]] = made.replace(results_dir=str(folder), experiment_name=name)
            except LlmprofError as error:
                point |= {"state": "failed", "run": None, "error": str(error)}
        work = Points(state, folder, progress, check=self._check)
        places = [point["point"] for point in left if point["point"] in configs]
        if self._runner is None and not (self._fresh or state.get("fresh_engine")):
            together = [[places[k] for k in group] for group in groups([configs[place] for place in places])]
        else:
            together = [[place] for place in places]
        for group in together:
            if len(group) > 1:
                work.together({place: configs[place] for place in group})
            else:
                work.alone(group[0], configs[group[0]], self._runner or ExperimentRunner)
        work.store()
        if progress:
            progress("sweep", len(listed), len(listed))

    def _is_done(self, point: Mapping[str, Any], folder: Path) -> bool:
        return point["state"] == "finished" and (folder / str(point["run"])).is_dir()


def devices() -> int:
    """GPUs of this machine that ``CUDA_VISIBLE_DEVICES`` leaves; 0 where there is none, or none can be asked."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(machine()["gpus"])
    return len([one for one in visible.split(",") if one.strip() not in {"", "-1"}])
