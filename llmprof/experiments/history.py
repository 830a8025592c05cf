"""Experiment ``watch``: keeps figures of repeated runs as a history, and tests the last run against those before."""

from __future__ import annotations

import fcntl
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import polars as pl

from llmprof.errors import AnalysisError, OutputError, ReadError
from llmprof.storage.files import refused

SCHEMA: Final = {
    "run": pl.Int64, "time_ns": pl.Int64, "label": pl.String, "metric": pl.String, "better": pl.String,
    "value": pl.Float64,
}  # fmt: skip
TEST: Final = (
    "two-sided permutation test of the difference of means between the repeats of the last run and those of the runs "
    "before it (9,999 seeded permutations), together with a least change of the median"
)
"""Description of the test that flags a regression."""
_PERMUTATIONS: Final = 9_999


def append(
    path: str | Path, values: Mapping[str, Sequence[float]], *, better: Mapping[str, str] | None = None, label: str = ""
) -> pl.DataFrame:
    """Add one run to a history; two processes may do it at the same time.

    Parameters
    ----------
    path : path
        Parquet file of the history; it is made.
    values : mapping of str to sequence of float
        Repeats by figure.
    better : mapping of str to str, optional
        ``lower`` (usual) or ``higher`` by figure.
    label : str
        Name of the run.

    Returns
    -------
    polars.DataFrame
        The whole history.

    Raises
    ------
    ReadError
        The existing file is not a history.
    OutputError
        It cannot be written.
    """
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _alone(file):
            old = read_history(file) if file.exists() else pl.DataFrame(schema=dict(SCHEMA))
            number = int(old.select(pl.col("run").max().fill_null(0)).item()) + 1 if old.height else 1
            now, kinds = time.time_ns(), better or {}
            rows = [
                (number, now, label, name, kinds.get(name, "lower"), float(value))
                for name, repeats in values.items()
                for value in repeats
            ]
            new = pl.DataFrame(rows, schema=dict(SCHEMA), orient="row")
            whole = pl.concat([old, new])
            part = file.with_name(f".{file.name}.part")
            whole.write_parquet(part)
            part.replace(file)
            return whole
    except OSError as error:
        raise refused(file, error) from error


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    with file.with_name(f".{file.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_history(path: str | Path) -> pl.DataFrame:
    """A history: ``run, time_ns, label, metric, better, value``, one row per repeat.

    Raises
    ------
    ReadError
        The file cannot be read, or is no history.
    """
    try:
        history = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ReadError(
            f"{Path(path).name} cannot be read: {str(error)[:200]}", expected="a history of watch"
        ) from error
    if dict(history.schema) != {name: dtype() for name, dtype in SCHEMA.items()}:
        raise ReadError(f"{Path(path).name} is no history of watch", expected=f"columns {list(SCHEMA)}")
    return history


def regressions(
    history: pl.DataFrame, *, least_change: float = 0.05, level: float = 0.01, window: int = 10
) -> pl.DataFrame:
    """Whether the last run is worse than those before it, by :data:`TEST`.

    Parameters
    ----------
    history : polars.DataFrame
        Of :func:`read_history`.
    least_change : float
        Smallest change of the median that counts.
    level : float
        Significance level: a lower p-value counts as a real change.
    window : int
        Most runs before the last one that it is compared with.

    Returns
    -------
    polars.DataFrame
        ``metric, before, now`` (medians)``, change`` (of now over before)``, p_value, runs, verdict`` (``worse, better,
        same``, or ``unknown`` with fewer than three repeats on a side).

    Examples
    --------
    >>> rows = [(run, 0, "", "step_s", "lower", 1.0 + run // 4 + i / 100) for run in (1, 2, 3, 4) for i in range(5)]
    >>> regressions(pl.DataFrame(rows, schema=dict(SCHEMA), orient="row"))["verdict"].to_list()
    ['worse']
    """
    if history.is_empty():
        raise AnalysisError("the history is empty", hint="run watch first")
    last = int(history["run"].max())  # type: ignore[arg-type]
    rows = []
    for (metric, better), repeats in history.group_by("metric", "better", maintain_order=True):
        now = repeats.filter(pl.col("run") == last)["value"].to_list()
        before = repeats.filter(pl.col("run").is_between(last - window, last - 1))
        old = before["value"].to_list()
        change = median(now) / median(old) - 1 if now and old and median(old) else None
        p = permutation(old, now) if min(len(old), len(now)) >= 3 else None
        verdict = "unknown"
        if p is not None and change is not None:
            verdict = "same"
            if p < level and abs(change) >= least_change:
                verdict = "worse" if (change > 0) == (better == "lower") else "better"
        rows.append((metric, median(old) if old else None, median(now) if now else None, change, p,
                     before["run"].n_unique(), verdict))  # fmt: skip
    schema = {"metric": pl.String, "before": pl.Float64, "now": pl.Float64, "change": pl.Float64, "p_value": pl.Float64,
              "runs": pl.Int64, "verdict": pl.String}  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def permutation(one: Sequence[float], other: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p-value of the difference of two means by permutation.

    >>> permutation([1.0, 1.1, 0.9, 1.0], [2.0, 2.1, 1.9, 2.0]) < 0.05
    True
    """
    chance = random.Random(seed)  # noqa: S311 (no secret)
    both, n = [*one, *other], len(one)
    seen = abs(sum(other) / len(other) - sum(one) / n)
    hits = 0
    for _ in range(_PERMUTATIONS):
        chance.shuffle(both)
        hits += abs(sum(both[n:]) / len(other) - sum(both[:n]) / n) >= seen - 1e-15
    return (hits + 1) / (_PERMUTATIONS + 1)


def watch(
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
    """Repeat a measurement into a history, and compare the last run with those before.

    Parameters
    ----------
    measure : callable
        Returns repeats by figure.
    path : path
        History.
    runs : int
        How many runs are added.
    every_s : float
        Seconds from the begin of one to that of the next.
    better, label, least_change
        As :func:`append` and :func:`regressions`.
    sleep : callable
        Waits.

    Returns
    -------
    polars.DataFrame
        Of :func:`regressions`.

    Raises
    ------
    OutputError
        ``runs`` is below one, or the history cannot be written.
    """
    if runs < 1:
        raise OutputError(f"{runs} runs were asked for", expected="at least 1")
    history = pl.DataFrame(schema=dict(SCHEMA))
    for number in range(runs):
        began = time.monotonic()
        history = append(path, measure(), better=better, label=label)
        if number + 1 < runs:
            sleep(max(0.0, every_s - (time.monotonic() - began)))
    return regressions(history, least_change=least_change)
