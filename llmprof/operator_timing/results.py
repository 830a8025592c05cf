"""Results of a timing script: reading them, and comparing them with the recording."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import ReadError
from llmprof.operator_timing.program import MODES
from llmprof.units import format_ns

FORMAT: Final = "llmprof operator replay"

NEAR: Final = 0.1
"""Times that differ by at most this share count as the same."""

NOISE: Final = 0.2
"""If the 95 % interval of a median is wider than this share of it, the verdict is unknown."""

_MOST_BYTES: Final = 64 << 20

VERDICTS: Final = ("the kernel", "its surroundings", "unknown")

_SCHEMA: Final = {
    "key": pl.String(), "operator": pl.String(), "kind": pl.String(), "shapes": pl.String(), "count": pl.Int64(),
    "recorded_ns": pl.Float64(), "recorded_low_ns": pl.Float64(), "recorded_high_ns": pl.Float64(),
    "warm_ns": pl.Float64(), "warm_low_ns": pl.Float64(), "warm_high_ns": pl.Float64(),
    "in_turn_ns": pl.Float64(), "weights_cold_ns": pl.Float64(), "cold_ns": pl.Float64(), "ratio": pl.Float64(),
    "clock": pl.String(), "same_kernels": pl.Boolean(), "verdict": pl.Enum(VERDICTS), "words": pl.String(),
    "host_recorded_ns": pl.Float64(), "host_alone_ns": pl.Float64(), "device": pl.String(),
}  # fmt: skip


def read_results(path: Path | str) -> dict[str, Any]:
    """Read the results of a timing script.

    Parameters
    ----------
    path : path-like
        File that the script wrote with ``--json``.

    Returns
    -------
    dict
        ``device, cuda, versions`` and ``operators``: for each ``key, operator`` and either ``error`` or ``modes``
        (times by mode and clock) and ``kernels``.

    Raises
    ------
    ReadError
        The file cannot be read, or is not of a timing script.
    """
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ReadError(f"{file.name} is too large for results of a timing script", expected="at most 64 MiB")
        document = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise ReadError(f"{file.name} cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = f"{file.name} is not valid JSON: {error}"
        raise ReadError(found, expected="the file of a timing script's --json") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT or document.get("version") != 1:
        found = f"{file.name} holds no results of a timing script"
        raise ReadError(found, expected=f'"format": "{FORMAT}", "version": 1')
    rows = document.get("operators")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ReadError(f"{file.name} holds no operators", expected="a list of objects")
    return document


def compare(operators: pl.DataFrame, results: Mapping[str, Any], *, device: str | None = None) -> pl.DataFrame:
    """Compare times of operators alone with their times in the recording.

    Parameters
    ----------
    operators : polars.DataFrame
        Rows of :func:`llmprof.analyze.replayable`.
    results : mapping
        Of :func:`read_results`.
    device : str, optional
        Name of the device of the recording.

    Returns
    -------
    polars.DataFrame
        One row for each operator that is in both: ``key, operator, kind, shapes, count`` (recorded calls),
        ``recorded_ns`` (median of a call) with ``recorded_low_ns, recorded_high_ns`` (95 % interval), ``warm_ns``
        (everything in the caches) with its interval, ``in_turn_ns`` (as in a step: other kernels ran, inputs were just
        written, weights are in memory), ``weights_cold_ns`` (without the other kernels; null where there are no
        weights), ``cold_ns`` (nothing in the caches), ``ratio`` (recorded over warm), ``clock`` (``profiler``: sums of
        kernels, as in the recording; ``events``: between two events on the device; ``wall``), ``same_kernels`` (null on
        a CPU), ``verdict`` (``the kernel``: alone it takes as long; ``its surroundings``: in the run it takes longer
        than alone with cold caches; ``unknown``), ``words`` (why), ``host_recorded_ns, host_alone_ns`` (the operator on
        the host), ``device`` (on which it ran alone).

    Raises
    ------
    ReadError
        The results hold none of the operators.
    """
    row_of = {row["key"]: row for row in operators.iter_rows(named=True) if row["key"]}
    ran = str(results.get("device") or "") or None
    rows = [
        _row(row_of[key], result, ran, device, on_device=bool(results.get("cuda")))
        for result in results["operators"]
        if isinstance(key := result.get("key"), str) and key in row_of
    ]
    if not rows:
        found = "the results hold no operator of this recording"
        raise ReadError(found, expected="results of a script made from this recording")
    return pl.DataFrame(rows, schema=_SCHEMA)


def _row(
    row: Mapping[str, Any], measured: Mapping[str, Any], ran: str | None, device: str | None, *, on_device: bool
) -> dict[str, Any]:
    modes = measured.get("modes")
    modes = modes if isinstance(modes, dict) else {}
    clock = "profiler" if _time(modes, "warm", "profiler") else "clock"
    times = {mode: _time(modes, mode, clock) for mode in MODES}
    kernels = measured.get("kernels")
    same = None
    if on_device and isinstance(kernels, list) and kernels and row["kernels"]:
        same = set(map(str, kernels)) == set(row["kernels"].split("\n"))
    out: dict[str, Any] = {
        "key": row["key"], "operator": row["operator"], "kind": row["kind"], "shapes": row["shapes"],
        "count": row["count"], "recorded_ns": row["median_ns"], "recorded_low_ns": row["low_ns"],
        "recorded_high_ns": row["high_ns"], **{f"{mode}_ns": times[mode] for mode in MODES},
        "warm_low_ns": _time(modes, "warm", clock, "low_ns"), "warm_high_ns": _time(modes, "warm", clock, "high_ns"),
        "clock": clock if clock == "profiler" else "events" if on_device else "wall", "same_kernels": same,
        "host_recorded_ns": row["host_median_ns"], "host_alone_ns": _time(modes, "warm", "host"), "device": ran,
    }  # fmt: skip
    out["ratio"] = out["recorded_ns"] / times["warm"] if times["warm"] else None
    if not times["warm"]:
        words = error[:300] if isinstance(error := measured.get("error"), str) else "no time was measured"
        return out | {"verdict": "unknown", "words": f"it did not run: {words}"}
    verdict, words = _verdict(out)
    if device and ran and device != ran:
        verdict, words = "unknown", f"recorded on {device}, run alone on {ran}"
    return out | {"verdict": verdict, "words": words}


def _time(modes: Mapping[str, Any], mode: str, clock: str, what: str = "median_ns") -> float | None:
    clocks = modes.get(mode)
    times = clocks.get(clock) if isinstance(clocks, dict) else None
    value = times.get(what) if isinstance(times, dict) else None
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    return number if math.isfinite(number) and number > 0 else None


def _verdict(row: Mapping[str, Any]) -> tuple[str, str]:
    """Verdict on the recorded time of an operator, and its reason."""
    recorded, warm = float(row["recorded_ns"]), float(row["warm_ns"])
    modes = {mode: float(row[f"{mode}_ns"]) for mode in MODES if row[f"{mode}_ns"]}
    fastest, slowest = min(modes.values()), max(modes.values())
    wide = []
    for name, which, middle in (("in the recording", "recorded", recorded), ("alone", "warm", warm)):
        low, high = row[f"{which}_low_ns"], row[f"{which}_high_ns"]
        if low is not None and high is not None and middle and (high - low) / middle > NOISE:
            wide.append(name)
    if row["same_kernels"] is False:
        return "unknown", "other kernels ran than in the recording: another version, device or choice of the library"
    if wide:
        return "unknown", f"its time {' and '.join(wide)} varies too much (95 % interval of the median)"
    if fastest * (1 - NEAR) <= recorded <= slowest * (1 + NEAR):
        near = min(modes, key=lambda mode: abs(modes[mode] - recorded))
        how = "alone it takes as long" if abs(recorded / modes[near] - 1) <= NEAR else "between the times alone"
        return "the kernel", f"{how}, {_HOW[near]}"
    if recorded > slowest:
        why = " in any way: other work at the same time, lower clocks or a wait inside"
        if row["kind"] == "all_reduce":
            why = ": a rank that is early waits for the last one"
        return "its surroundings", f"{format_ns(recorded - slowest)} more than alone{why}"
    return "unknown", f"{format_ns(fastest - recorded)} less than alone: other values or lengths, or higher clocks"


_HOW: Final = {
    "warm": "with warm caches",
    "in_turn": "after other kernels",
    "weights_cold": "with its weights in memory",
    "cold": "with cold caches",
}
