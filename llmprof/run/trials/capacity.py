"""Goodput: the highest rate of requests at which an SLO holds, by bisection in one start of a
server.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ConfigError
from llmprof.run.batch.sweep import new_folder
from llmprof.run.launch import ExperimentConfig, Run, RunFolder
from llmprof.run.launch.run.requests import repeats
from llmprof.run.trials.measure import loaded_engine
from llmprof.run.trials.objectives import Limit, holds, limits
from llmprof.run.workers.job import HELD
from llmprof.text import Progress

_LOWEST: Final = 1 / 64
"""Share of the capacity below which no rate is tried."""

OTHER_SEED: Final = 1_000_003
"""Added to the seed of a configuration for requests by which a choice is checked that other
requests led to.
"""


@dataclass(frozen=True)
class Goodput:
    """Highest rate of requests at which an SLO holds.

    Attributes
    ----------
    rate : float
        The highest rate at which it was measured to hold (1/s), with requests of a second seed,
        too; 0 if it holds at none.
    probes : polars.DataFrame
        Rates in the order in which they were measured: ``rate`` (1/s; null: all requests at once),
        ``answered``, the rate of answers, a column for each figure of the SLO (ns, or 1/s),
        ``holds``, ``seed``, ``run``.
    note : str
        What the reader has to know; empty if nothing.
    """

    rate: float
    probes: pl.DataFrame
    note: str = ""

    @property
    def row(self) -> dict[str, Any]:
        """The probe at the goodput, or at the lowest rate if the SLO held at none."""
        held = self.probes.filter("holds")
        of_rate = held.filter(rate=self.rate)
        if held.height:
            return (of_rate if of_rate.height else held).row(-1, named=True)
        return self.probes.sort(pl.col("rate").fill_null(float("inf"))).row(0, named=True)


def at_rate(config: ExperimentConfig, rate: float) -> ExperimentConfig:
    """The configuration with a rate of requests; all may be in flight unless the configuration
    limits them.
    """
    of_arrivals = () if rate else ("arrival", "burst")  # all at once have no times between them
    load = {name: value for name, value in config.load.items() if name not in of_arrivals}
    return config.replace(
        server={"max_concurrency": 0, **config.server, "request_rate": rate}, load=load
    )


def goodput(
    config: ExperimentConfig,
    slo: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    precision: float = 0.05,
    most_probes: int = 12,
    progress: Progress | None = None,
) -> Goodput:
    """Find the highest rate of requests at which an SLO holds.

    One server is started. All requests at once give its capacity. Then the rate is halved until the
    SLO holds, and bisected between the highest rate at which it held and the lowest at which it did
    not. A rate holds only if the server answers at 80 % of it or more, since a queue that grows
    shows in no latency of a short load. The rate that is found is measured with requests of another
    seed, and lowered until the SLO holds with them, so that luck has no part in it.

    Parameters
    ----------
    config : ExperimentConfig
        A served run; its load gives prompts, lengths and the kind of arrivals.
    slo : str
        Limits: ``"ttft_p99<=500ms,tpot_p95<=30ms"``.
    folder : path, optional
        Folder for the run folders of the rates; ``results/goodput_{experiment}_{time}`` if not
        given.
    precision : float
        The bisection ends when the two rates are this close, as a share.
    most_probes : int
        Most rates.
    progress : callable, optional
        Called with the current task, the number of measured rates, and the most rates.

    Returns
    -------
    Goodput
        ``.rate`` and ``.probes``, a row for each rate, each of which is a run folder.

    Raises
    ------
    ConfigError
        The run is not served, its arrival times are given, or the SLO is none.
    LaunchError
        The server does not run.

    Examples
    --------
    >>> trials.goodput(config, "ttft_p99<=500ms", precision=0.1).rate  # doctest: +SKIP
    """
    limited = limits(slo)
    check_goodput(config, limited)
    plain = config.replace(profile_mode="inference_only")
    where = Path(folder) if folder is not None else new_folder(config, f"goodput_{config.name}")
    rows: list[dict[str, Any]] = []
    tell = progress or (lambda what, done, total: None)
    homes = (where / f"engine-{k}" for k in itertools.count(1))
    with loaded_engine(
        at_rate(plain, 0.0), next(home for home in homes if not home.exists())
    ) as engine:

        def probe(rate: float, seed: int = config.seed) -> bool:
            words = f"{rate:.3g} requests a second" if rate else "all requests at once"
            words += ", with another seed" * (seed != config.seed)
            tell(f"{config.name}: {words}", len(rows), most_probes)
            name = f"rate-{rate:.4g}" if rate else "capacity"
            here = at_rate(plain, rate).replace(
                results_dir=str(where), experiment_name=f"{config.name}_{name}", seed=seed
            )
            rows.append(
                {
                    **_row(engine.measure_in(RunFolder.create(here), here), rate, limited),
                    "seed": seed,
                }
            )
            return bool(rows[-1]["holds"])

        probe(0.0)
        capacity = float(rows[0]["answered"] or 0.0)
        low, high = _bracket(probe, capacity, rows, most_probes)
        while low and high - low > precision * high and len(rows) < most_probes:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if probe(middle) else (low, middle)
        sure, step = low, precision
        while sure and len(rows) < most_probes and not probe(sure, config.seed + OTHER_SEED):
            sure, step = sure * (1 - step), 2 * step
    note = ""
    if rows[-1]["holds"] and rows[-1]["seed"] != config.seed:
        low = sure
    elif low:
        note = (
            f"with requests of another seed the SLO was not measured to hold at {low:.3g} requests"
            " a second"
        )
    if rows[0]["holds"]:
        low = capacity
        note = (
            "the SLO holds even with all requests at once, so the goodput is at least this: give"
            " more requests"
        )
    elif not low:
        note = f"the SLO holds at no rate from {capacity * _LOWEST:.3g} requests a second on"
    schema = dict.fromkeys(("rate", "answered", *(one.figure.name for one in limited)), pl.Float64)
    frame = pl.DataFrame(
        rows,
        schema={**schema, "holds": pl.Boolean, "seed": pl.Int64, "run": pl.String},
        orient="row",
    )
    return Goodput(low, frame, note)


def _bracket(probe: Any, capacity: float, rows: Sequence[Any], most: int) -> tuple[float, float]:
    """A rate at which the SLO holds (0: none was found) and a higher one at which it does not."""
    if rows[0]["holds"] or not capacity:
        return 0.0, 0.0
    high, rate = capacity, capacity / 2
    while rate >= capacity * _LOWEST and len(rows) < most:
        if probe(rate):
            return rate, high
        high, rate = rate, rate / 2
    return 0.0, high


def _row(run: Run, rate: float, slo: Sequence[Limit]) -> dict[str, Any]:
    requests = run.requests
    values = {one.figure.name: one.figure.of(requests) for one in slo}
    loads = [
        one["answered_per_s"] for one in run.worker.get("load") or () if one["phase"] == "plain"
    ]
    answered = min((one for one in loads if one is not None), default=None)
    if not rate and answered is None:
        answered = repeats(requests.filter(phase="plain"))["requests_per_s"].min()
    keeps_up = not rate or answered is None or answered >= HELD * rate
    return {
        "rate": rate or None,
        "answered": answered,
        **values,
        "holds": holds(values, slo) and keeps_up,
        "run": run.folder.path.name,
    }


def check_goodput(config: ExperimentConfig, slo: Sequence[Limit]) -> None:
    """Refuse a configuration that has no goodput."""
    if not config.served:
        raise ConfigError(
            "goodput needs a server, and the run is not served", hint="set served: true"
        )
    if not slo:
        raise ConfigError(
            "goodput needs an SLO", expected="such as slo=ttft_p99<=500ms,tpot_p95<=30ms"
        )
    if config.load.get("file"):
        raise ConfigError(
            "goodput varies the rate, and load.file states the times",
            hint="give lengths in its place",
        )
