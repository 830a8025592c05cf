"""Sentences about the critical path of a recording, and the gain of changes."""

from __future__ import annotations

from typing import Any

import polars as pl

from llmprof import analyze
from llmprof.analyze.changes import Change
from llmprof.errors import LlmprofError
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

_ON_DEVICE = ("compute", "copy", "transfer", "device gap", "stream wait")
_NOTHING = 0.01
"""A gain below this share of a step counts as none, as in the findings."""


def of_pace(path: pl.DataFrame) -> list[str]:
    """Shares of the critical path on device and host, and how much of it is known.

    Parameters
    ----------
    path : polars.DataFrame
        Rows of ``analyze.critical_path(trace)``.

    Returns
    -------
    list of str
        Sentences.
    """
    whole = int(path["dur_ns"].sum())
    if not whole:
        return ["No step of this recording ends on a device, so nothing is known to set its pace."]
    on_device = int(path.filter(pl.col("part").is_in(_ON_DEVICE))["dur_ns"].sum())
    unexplained = int(path.filter(pl.col("part") == "unexplained")["dur_ns"].sum())
    assumed = int(path.filter(pl.col("evidence") == "assumed")["dur_ns"].sum())
    sentences = [
        f"Of the critical path, {format_share(on_device / whole)} lies on the devices and "
        f"{format_share((whole - on_device - unexplained) / whole)} on the host.",
        "Faster kernels would change little."
        if on_device < whole / 4
        else "Faster kernels would change something, as far as they are on it.",
    ]
    if assumed > 0.001 * whole:
        sentences.append(f"For {format_share(assumed / whole)} it is assumed from the times what was waited for.")
    if unexplained > 0.001 * whole:
        sentences.append(f"Nothing recorded explains {format_share(unexplained / whole)}.")
    return sentences


def of_predictions(findings: pl.DataFrame) -> list[str]:
    """Predictions of the replay for the findings: the remedy that gains most, and losses whose remedy gains little."""
    predicted = findings.filter(pl.col("predicted_ns").is_not_null())
    if predicted.is_empty():
        return ["No finding of this recording has a remedy that a replay could make."]
    best = predicted.sort("predicted_ns", descending=True).row(0, named=True)
    sentences = [f"The most is predicted for `{best['change']}` ({best['rule']}). {best['prediction']}"]
    hidden = predicted.filter(
        (pl.col("gain_ns") > 2 * pl.col("predicted_ns").clip(0)) & (pl.col("share_of_time") > _NOTHING)
    )
    sentences += [
        f"{row['rule']} is about {format_ns(row['figure'])} {row['unit'].removeprefix('ns ')}, but its remedy would "
        f"gain only {format_ns(max(0.0, row['predicted_ns']))}: something else sets the pace."
        for row in hidden.iter_rows(named=True)
    ]
    return sentences


def compared(trace: Trace, changes: list[Change]) -> pl.DataFrame:
    """Predicted gains of several changes: of each alone, and of all together.

    Returns
    -------
    polars.DataFrame
        ``change, phase, recorded_ns, predicted_ns, low_ns, high_ns, gain_ns, unknown``, for the phase with most steps;
        if a change cannot be made in this recording, ``unknown`` says why.
    """
    made = [(change,) for change in changes] + ([tuple(changes)] if len(changes) > 1 else [])
    rows: list[dict[str, Any]] = []
    for each in made:
        words = "; ".join(change.words for change in each)
        try:
            prediction = analyze.what_if(trace, *each).sort("steps", descending=True).row(0, named=True)
        except LlmprofError as error:
            rows.append({"change": words, "unknown": f"cannot be made here: {error.found}"})
        else:
            rows.append({"change": words} | {name: prediction[name] for name in _SCHEMA if name != "change"})
    return pl.DataFrame(rows, schema=_SCHEMA)


_SCHEMA = {
    "change": pl.String,
    "phase": pl.String,
    "recorded_ns": pl.Float64,
    "predicted_ns": pl.Float64,
    "low_ns": pl.Float64,
    "high_ns": pl.Float64,
    "gain_ns": pl.Float64,
    "unknown": pl.String,
}


def of_decision(rows: pl.DataFrame) -> list[str]:
    """Which of several changes is worth implementing.

    Parameters
    ----------
    rows : polars.DataFrame
        As :func:`compared` returns them.

    Returns
    -------
    list of str
        Sentences.
    """
    predicted = rows.filter(pl.col("gain_ns").is_not_null())
    if predicted.is_empty():
        return ["None of these changes can be made in this recording."]
    best = predicted.sort("gain_ns", "low_ns", descending=[True, False]).row(0, named=True)
    where = f"of a {best['phase']} step" if best["phase"] else "of the recording"
    if best["gain_ns"] < _NOTHING * best["recorded_ns"]:
        return [f"None of these changes gains 1 % {where}: look for what sets the pace instead."]
    sentences = [
        f"The most is gained by “{best['change']}”: {format_ns(best['recorded_ns'])} {where} become "
        f"{format_ns(best['predicted_ns'])} ({format_ns(best['low_ns'])} to {format_ns(best['high_ns'])})."
    ]
    vain = predicted.filter(pl.col("gain_ns") < _NOTHING * pl.col("recorded_ns"))["change"].to_list()
    if vain:
        sentences.append(f"Nothing is gained alone by {', '.join(f'“{change}”' for change in vain)}.")
    return sentences
