"""Mean, deviation and confidence over a few repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z95 = 1.959964


def t95(freedom: int) -> float:
    """Factor of a two-sided 95 % interval for so many degrees of freedom.

    Above 30 it is the Cornish-Fisher expansion of the quantile, right to the third decimal.
    """
    if freedom < 1:
        raise ValueError("a confidence interval needs two values")
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = _Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def over_repeats(means: Sequence[float]) -> dict[str, float | None]:
    """Mean, deviation, confidence interval and spread of one figure a repeat.

    Parameters
    ----------
    means : sequence of float
        One figure for each repeat; at least one.

    Returns
    -------
    dict
        ``mean``; ``std`` (n - 1 in its denominator), ``ci95_low`` and ``ci95_high`` (mean -/+ t * std / sqrt(n)), and
        ``spread`` (largest minus smallest, as a share of the mean), which are None where there is one repeat.
    """
    mean = fmean(means)
    if len(means) < 2:
        return {"mean": mean, "std": None, "ci95_low": None, "ci95_high": None, "spread": None}
    std = stdev(means)
    half = t95(len(means) - 1) * std / math.sqrt(len(means))
    spread = (max(means) - min(means)) / abs(mean) if mean else None
    return {"mean": mean, "std": std, "ci95_low": mean - half, "ci95_high": mean + half, "spread": spread}


def noise(means: Sequence[float]) -> float | None:
    """How far one more repeat may lie from the mean of these: half of the 95 % prediction interval.

    It is t * std * sqrt(1 + 1 / n); None where there is one repeat.
    """
    if len(means) < 2:
        return None
    return t95(len(means) - 1) * stdev(means) * math.sqrt(1 + 1 / len(means))
