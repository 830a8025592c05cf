"""What a change did: the difference of paired measurements with its interval, drift, and equal
outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from llmprof.run.workers.job import t95

METRICS: Final = {
    "wall_ns": -1,
    "ttft_ns": -1,
    "tpot_ns": -1,
    "e2e_ns": -1,
    "output_tokens_per_s": 1,
    "requests_per_s": 1,
}
"""Metrics of a trial; 1: more is better, -1: less is better."""

RESAMPLES: Final = 10_000
Z95: Final = 1.959964
LEAST_PAIRS: Final = 3
LEAST_TO_END: Final = 6
"""Pairs before a narrow interval may end a trial: three agree by chance so often that wrong
verdicts would double.
"""
NOTHING: Final = 0.005
"""An effect below this share is none, however surely it is known: starts of one engine differ by
more.
"""

_MOST_ALIKE: Final = 0.8

_SCHEMA: Final = {
    "metric": pl.String,
    "pairs": pl.Int64,
    "before": pl.Float64,
    "after": pl.Float64,
    "gain": pl.Float64,
    "gain_low": pl.Float64,
    "gain_high": pl.Float64,
    "verdict": pl.String,
}


def effects(pairs: pl.DataFrame, *, until: float = 0.02, seed: int = 0) -> pl.DataFrame:
    """Effect of a change on each metric, from pairs of measurements with and without it.

    The gain of a pair is the share of the time that the change saves, ``1 - after / before``, and
    for rates ``1 - before / after``: both say the same of one pair. The gain of all pairs is that
    of the mean of ``log(after / before)``. Its interval is the percentile interval of a paired
    bootstrap (10,000 samples of the pairs), widened by ``t(n - 1) / z * sqrt(n / (n - 1))``, since
    the plain one is too narrow for few pairs (T. Hesterberg, What Teachers Should Know About the
    Bootstrap, The American Statistician 69, 2015, section 5.3). Neighbouring pairs are alike on a
    machine that others use, too: with at least six pairs the interval is widened by ``sqrt((1 + r)
    / (1 - r))``, where ``r`` is the correlation of neighbours, at least 0 and at most 0.8.

    Parameters
    ----------
    pairs : polars.DataFrame
        ``pair, metric, before, after``, a row for each pair and metric; rows with unknown values
        are left out.
    until : float
        Half width of an interval from which on an effect that includes 0 is none, as a share.
    seed : int
        Seed of the samples.

    Returns
    -------
    polars.DataFrame
        By ``metric``: ``pairs``; ``before, after``, the geometric means over the pairs (ns, or
        1/s); ``gain`` (a share, above 0: better) with its 95 % interval ``gain_low, gain_high``;
        ``verdict``: ``better`` or ``worse`` if the interval leaves out 0 and the gain is at least
        0.5 %, ``no effect`` if it does not, or includes 0 and is known to ``until``, otherwise
        ``unknown``. With fewer than three pairs there is no interval.

    Examples
    --------
    >>> measured = pl.DataFrame({"pair": [0, 1, 2], "metric": "wall_ns", "before": [100.0, 102, 98], "after": 50.0})
    >>> trials.effects(measured).select(pl.col("gain").round(3), "verdict").row(0)
    (0.5, 'better')
    """  # noqa: E501
    rows = []
    known = pairs.drop_nulls(["before", "after"]).filter(pl.col("before") > 0, pl.col("after") > 0)
    for metric, better in METRICS.items():
        one = known.filter(metric=metric).sort("pair")
        if one.is_empty():
            continue
        logs = -better * (one["after"].log() - one["before"].log()).to_numpy()
        before, after = (math.exp(one[name].log().mean()) for name in ("before", "after"))  # type: ignore[arg-type]
        mean, low, high = float(logs.mean()), None, None
        if len(logs) >= LEAST_PAIRS:
            low, high = _interval(logs, seed)
        gain, gain_low, gain_high = (
            None if x is None else -math.expm1(x) for x in (mean, high, low)
        )
        verdict = _verdict(gain, gain_low, gain_high, until)
        rows.append((metric, len(logs), before, after, gain, gain_low, gain_high, verdict))
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _interval(logs: np.ndarray[Any, Any], seed: int) -> tuple[float, float]:
    n = len(logs)
    samples = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    low, high = np.percentile(logs[samples].mean(axis=1), [2.5, 97.5])
    mean, wider = (
        logs.mean(),
        t95(n - 1) / Z95 * math.sqrt(n / (n - 1)) * _alike(logs - logs.mean()),
    )
    return float(mean + (low - mean) * wider), float(mean + (high - mean) * wider)


def _alike(apart: np.ndarray[Any, Any]) -> float:
    """By how much neighbours that are alike widen the interval of a mean; 1 for few values."""
    square, n = float((apart * apart).sum()), len(apart)
    if n < LEAST_TO_END or not square:
        return 1.0
    r = (
        float((apart[:-1] * apart[1:]).sum()) / square + 1 / n
    )  # the estimate is too low by about 1 / n
    r = min(max(r, 0.0), _MOST_ALIKE)
    return math.sqrt((1 + r) / (1 - r))


def half_width(effect: Mapping[str, Any]) -> float:
    """Half of the interval of a gain; infinite without an interval."""
    if effect["gain_low"] is None:
        return math.inf
    return float(effect["gain_high"] - effect["gain_low"]) / 2


def _verdict(gain: float | None, low: float | None, high: float | None, until: float) -> str:
    if gain is None or low is None or high is None:
        return "unknown"
    if low > 0 or high < 0:
        return "no effect" if abs(gain) < NOTHING else "better" if gain > 0 else "worse"
    return "no effect" if (high - low) / 2 <= until else "unknown"


def drift(blocks: pl.DataFrame) -> dict[str, float] | None:
    """Change of the machine's speed during a trial, from blocks of both sides in the order in which
    they ran.

    ``blocks`` has ``at_ns, side, wall_ns``. The result has ``per_hour``, the slope of the log of a
    block's time against its side's mean, as a share of the time an hour, and ``t``, the slope over
    its standard error; None for few blocks.
    """
    each = blocks.drop_nulls("wall_ns").with_columns(
        y=pl.col("wall_ns").log() - pl.col("wall_ns").log().mean().over("side"),
        x=pl.col("at_ns") / 3.6e12,
    )
    if each.height < 2 * LEAST_PAIRS:
        return None
    x, y = each["x"].to_numpy() - each["x"].mean(), each["y"].to_numpy()
    square = float((x * x).sum())
    if not square:
        return None
    slope = float((x * y).sum()) / square
    rest = float(((y - slope * x) ** 2).sum()) / (each.height - 3)
    return {
        "per_hour": slope,
        "t": slope / math.sqrt(rest / square) if rest else math.inf * np.sign(slope),
    }


def tokens_equal(a: Sequence[Sequence[Any]], b: Sequence[Sequence[Any]]) -> float | None:
    """Share of the generated tokens that are equal at the same place of the same request; None
    without tokens.

    After the first token that differs the rest of an answer usually differs, too, so a share of 0.9
    means that answers part late or that few of them part.

    Examples
    --------
    >>> trials.tokens_equal([[5, 6, 7, 8]], [[5, 6, 9, 8]])
    0.75
    """
    total = sum(max(len(x), len(y)) for x, y in zip(a, b, strict=False))
    same = sum(p == q for x, y in zip(a, b, strict=False) for p, q in zip(x, y, strict=False))
    return same / total if total else None
