"""Experiment ``watch``: keeps a history of figures of repeated runs, and compares the last run
with earlier ones.
"""

from __future__ import annotations

import fcntl
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median, stdev
from typing import Final

import polars as pl

from llmprof.errors import AnalysisError, OutputError, ReadError, listed
from llmprof.trace.storage.files import refused, write
from llmprof.trace.storage.parquet import read_frame, sealed

SCHEMA: Final = {
    "run": pl.Int64,
    "time_ns": pl.Int64,
    "label": pl.String,
    "metric": pl.String,
    "better": pl.String,
    "value": pl.Float64,
}
TEST: Final = (
    "whether the median of the last run is outside the interval that the medians of the earlier"
    " runs predict for another run (two-sided Student's t, at least three earlier runs), together"
    " with a least change"
)
"""Description of the test that flags a regression.

Repeats within a run share what differs from run to run (clocks, temperature, placement in memory),
so that a run counts once, by its median.
"""
_FEWEST: Final = 3


def append(
    path: str | Path,
    values: Mapping[str, Sequence[float]],
    *,
    better: Mapping[str, str] | None = None,
    label: str = "",
) -> pl.DataFrame:
    """Add one run to a history; two processes may do this at the same time."""
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _alone(file):
            old = read_history(file) if file.exists() else pl.DataFrame(schema=dict(SCHEMA))
            number = int(old.select(pl.max("run").fill_null(0)).item()) + 1 if old.height else 1
            head, kinds = (number, time.time_ns(), label), better or {}
            each = [(name, value) for name, repeats in values.items() for value in repeats]
            rows = [(*head, name, kinds.get(name, "lower"), float(value)) for name, value in each]
            new = pl.DataFrame(rows, schema=dict(SCHEMA), orient="row")
            history = pl.concat([old, new])
            write(file, sealed(history))
            return history
    except OSError as error:
        raise refused(file, error) from error


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    with file.with_name(f".{file.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_history(path: str | Path) -> pl.DataFrame:
    """Read a history."""
    history = read_frame(Path(path))
    if dict(history.schema) != {name: dtype() for name, dtype in SCHEMA.items()}:
        raise ReadError(
            f"{Path(path).name} is not a history of watch", expected=f"columns {listed(SCHEMA)}"
        )
    return history


def regressions(
    history: pl.DataFrame, *, least_change: float = 0.05, level: float = 0.01, window: int = 10
) -> pl.DataFrame:
    """Compare the last run with the earlier runs by :data:`TEST`."""
    if history.is_empty():
        raise AnalysisError("the history is empty", hint="run watch first")
    last = int(history["run"].max())  # type: ignore[arg-type]
    medians = history.group_by("metric", "better", "run", maintain_order=True).agg(
        pl.median("value")
    )
    rows = []
    for (metric, better), runs in medians.group_by("metric", "better", maintain_order=True):
        now = runs.filter(run=last)["value"].to_list()
        old = runs.filter(pl.col("run").is_between(last - window, last - 1))["value"].to_list()
        before = median(old) if old else None
        change = now[0] / before - 1 if now and before else None
        p = one_more(old, now[0]) if now and len(old) >= _FEWEST else None
        verdict = "unknown"
        if p is not None and change is not None:
            verdict = "same"
            if p < level and abs(change) >= least_change:
                verdict = "worse" if (change > 0) == (better == "lower") else "better"
        rows.append((metric, before, now[0] if now else None, change, p, len(old), verdict))
    figures = dict.fromkeys(("before", "now", "change", "p_value"), pl.Float64)
    schema = {"metric": pl.String, **figures, "runs": pl.Int64, "verdict": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def one_more(values: Sequence[float], new: float) -> float:
    """Two-sided p-value of a new value, under the hypothesis that it has the same normal
    distribution as the others.

    ``(new - mean) / (s * sqrt(1 + 1/n))`` follows Student's t with ``n - 1`` degrees of freedom;
    its probability is the finite series of Abramowitz and Stegun, Handbook of Mathematical
    Functions, 26.7.3 and 26.7.4.
    """
    n = len(values)
    away, spread = abs(new - mean(values)), stdev(values) * math.sqrt(1 + 1 / n)
    if not spread:
        return float(not away)
    freedom = n - 1
    angle = math.atan(away / spread / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(freedom // 2):
        total += term
        term *= cosine**2 * ((2 * k + 2) / (2 * k + 3) if odd else (2 * k + 1) / (2 * k + 2))
    inside = (angle + sine * total) * 2 / math.pi if odd else sine * total
    return min(1.0, max(0.0, 1 - inside))


def track_measure(
    measure: Callable[[], Mapping[str, Sequence[float]]],
    path: str | Path,
    *,
    runs: int = 1,
    every_s: float = 0.0,
    better: Mapping[str, str] | None = None,
    label: str = "",
    least_change: float = 0.05,
    sleep: Callable[[float], None] = time.sleep,
) -> pl.DataFrame:
    """Repeat a measurement, add its runs to a history, and compare the last run with the earlier
    ones.
    """
    if runs < 1:
        raise OutputError(f"runs is {runs}", expected="at least 1")
    history = pl.DataFrame(schema=dict(SCHEMA))
    for number in range(runs):
        began = time.monotonic()
        history = append(path, measure(), better=better, label=label)
        if number + 1 < runs:
            sleep(max(0.0, every_s - (time.monotonic() - began)))
    return regressions(history, least_change=least_change)
