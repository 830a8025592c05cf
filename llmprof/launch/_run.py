"""A run that was made: its folder, and what is in it."""

from __future__ import annotations

import functools
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from llmprof.errors import AnalysisError, NotCapturedError, TraceWarning
from llmprof.launch import _files, _results
from llmprof.launch.config import ExperimentConfig
from llmprof.launch.folder import RunFolder
from llmprof.launch.metrics import request_metrics

if TYPE_CHECKING:
    from llmprof.metrics_data import Metrics
    from llmprof.trace import Trace


@dataclass(frozen=True)
class Run:
    """A run that was made: its folder and what is in it.

    Attributes
    ----------
    folder : RunFolder
        Where it is.
    config : ExperimentConfig
        What was run.
    """

    folder: RunFolder
    config: ExperimentConfig

    @property
    def state(self) -> str:
        """``finished``, ``finished without import``, ``failed``, ``interrupted`` or ``running``."""
        return str(self.folder.state["state"])

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds; empty where the run did not come that far."""
        return _files.read_json(self.folder.summary) or {}

    @functools.cached_property
    def worker(self) -> dict[str, Any]:
        """What the engine script wrote of itself; empty where it did not come that far."""
        return _files.read_json(self.folder.worker) or {}

    @functools.cached_property
    def metrics(self) -> pl.DataFrame:
        """Requests, as :func:`llmprof.launch.metrics.request_metrics` gives them."""
        return request_metrics(self.worker)

    @functools.cached_property
    def trace(self) -> Trace:
        """The timeline with the samples of the monitors.

        Raises
        ------
        NotCapturedError
            The mode records none, or its capture was not imported.
        """
        found = _results.timeline(self.folder, self.config)
        if self.folder.monitors.is_file():
            from llmprof.launch import monitors

            try:
                found = monitors.counters(pl.read_parquet(self.folder.monitors), found)
            except AnalysisError as error:
                warnings.warn(f"the trace has no counters of the monitors: {error.found}", TraceWarning, stacklevel=2)
        return found

    @functools.cached_property
    def kernels(self) -> Metrics:
        """Hardware metrics that ncu measured.

        Raises
        ------
        NotCapturedError
            The mode does not use ncu.
        """
        if self.config.profile_mode not in {"ncu", "nsys_ncu"}:
            raise NotCapturedError(
                f"a run in mode {self.config.profile_mode} measures no hardware counters", hint="run it in mode ncu"
            )
        found: Metrics = _results.kernels(self.folder)
        return found

    def __repr__(self) -> str:
        return f"<Run {self.folder.path.name}: {self.state}>"


def open_run(path: str | os.PathLike[str]) -> Run:
    """A run from its folder, whatever its state.

    Raises
    ------
    ReadError
        The folder is no run folder.
    """
    folder = RunFolder.open(Path(path))
    return Run(folder, folder.config)
