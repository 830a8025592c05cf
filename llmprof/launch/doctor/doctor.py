"""The doctor: whether this machine can run an experiment, and what would spoil its figures.

>>> from llmprof.launch.doctor.doctor import doctor
>>> doctor()                      # the machine  # doctest: +SKIP
>>> doctor(config)                # the machine for one run  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from llmprof.launch.doctor import checks
from llmprof.launch.doctor.checks import Check
from llmprof.launch.doctor.facts import Facts, gather

if TYPE_CHECKING:
    from llmprof.launch.config.options import ExperimentConfig

__all__ = ["CHECKS", "doctor"]

CHECKS: Final[tuple[Check, ...]] = (
    checks.engine,
    checks.model,
    checks.gpus,
    checks.driver,
    checks.ranks,
    checks.gpu_memory,
    checks.gpu_processes,
    checks.clocks,
    checks.nsys,
    checks.ncu,
    checks.counter_permission,
    checks.perf_events,
    checks.memory,
    checks.shared_memory,
    checks.disk,
    checks.port,
    checks.governor,
    checks.numa,
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
