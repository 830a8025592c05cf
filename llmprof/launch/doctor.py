"""The doctor: whether this machine can run an experiment, and what would spoil its figures.

>>> from llmprof.launch.doctor import doctor
>>> doctor()                      # the machine
>>> doctor(config)                # the machine for one run
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from llmprof.launch import _checks, _checks_gpu, _checks_run
from llmprof.launch._checks import Check
from llmprof.launch._facts import Facts
from llmprof.launch._facts_gather import gather

if TYPE_CHECKING:
    from llmprof.launch.config import ExperimentConfig

__all__ = ["CHECKS", "doctor"]

CHECKS: Final[tuple[Check, ...]] = (
    _checks_run.engine,
    _checks_run.model,
    _checks_gpu.gpus,
    _checks_gpu.driver,
    _checks_gpu.ranks,
    _checks_gpu.gpu_memory,
    _checks_gpu.gpu_processes,
    _checks_gpu.clocks,
    _checks.nsys,
    _checks.ncu,
    _checks.counter_permission,
    _checks.perf_events,
    _checks.memory,
    _checks.shared_memory,
    _checks.disk,
    _checks_run.port,
    _checks.governor,
    _checks.numa,
)
"""Checks in the order in which they are reported; each yields its rows from facts and a configuration."""

_COLUMNS: Final = ("check", "status", "found", "expected", "advice")


def doctor(config: ExperimentConfig | None = None, *, facts: Facts | None = None) -> pl.DataFrame:
    """Check the machine, and with a configuration whether it can run that.

    Nothing is changed, no clock is touched, and the engine is looked for but not imported. It takes about a second:
    the interpreter of the configuration, nsys and ncu are started for their versions.

    Parameters
    ----------
    config : ExperimentConfig, optional
        What is to be run; without it the machine alone is checked, and nothing is a failure.
    facts : Facts, optional
        Facts instead of those of this machine.

    Returns
    -------
    polars.DataFrame
        ``check, status, found, expected, advice``. The status is ``ok``; ``warn``: figures may suffer; ``fail``: the
        run would not work; ``unknown``: this machine does not say.
    """
    known = gather(config) if facts is None else facts
    rows = [finding for check in CHECKS for finding in check(known, config)]
    return pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.String), orient="row")
