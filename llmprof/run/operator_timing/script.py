"""Writing and running a script that runs operators of a recording alone, and comparing the
times.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof import __version__
from llmprof.analyze.operator_arguments import RecordedArgument, RecordedCall, RecordedTensor
from llmprof.analyze.operator_calls import call_of_row, operator_calls, usual_dtype
from llmprof.errors import AnalysisError, LaunchError, ReadError
from llmprof.run.launch.run import process
from llmprof.run.workers.operators import MODES
from llmprof.text import plain
from llmprof.trace import Trace
from llmprof.trace.storage.files import note_input, write_output
from llmprof.units import format_ns

_MOST: Final = 200
"""Most operators in one script."""


@dataclass(frozen=True, slots=True)
class OperatorTiming:
    """Operators of a recording, the script that runs them alone, and the comparison with the
    recording.
    """

    script: str
    """Python source; it needs PyTorch, and vLLM if an operator is vLLM's."""
    operators: pl.DataFrame
    """Rows of :func:`llmprof.analyze.operator_calls`, in the order of the script."""
    device: str | None = None
    """Name of the device of the recording."""

    def write(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write the script to a file, to run it on another machine.

        Raises
        ------
        OutputError
            The file exists and ``overwrite`` is false, was read as an input, or cannot be written.
        """
        return write_output(path, self.script, overwrite=overwrite)

    def compare(self, results: Path | str) -> pl.DataFrame:
        """Compare a file with results of the script (option ``--json``), also of another machine,
        with the recording.

        Returns
        -------
        polars.DataFrame
            As :func:`llmprof.run.operator_timing.compare` describes it.

        Raises
        ------
        ReadError
            The file cannot be read, or holds none of these operators.
        """
        note_input(results)
        return compare_times(self.operators, read_results(results), device=self.device)

    def run(
        self,
        *,
        python: str | None = None,
        device: str | None = None,
        seconds: float = 0.5,
        timeout_s: float = 1800.0,
    ) -> pl.DataFrame:
        """Run the script on this machine and compare.

        Parameters
        ----------
        python : str, optional
            Interpreter with PyTorch (and vLLM); by default this one.
        device : str, optional
            ``cuda`` or ``cpu``; by default a GPU if there is one.
        seconds : float
            About how long each operator is timed.
        timeout_s : float
            Longest time for all operators.

        Returns
        -------
        polars.DataFrame
            As :meth:`compare`.

        Raises
        ------
        LaunchError
            The script cannot be run; the message holds the end of what it printed.
        """
        with tempfile.TemporaryDirectory(prefix="llmprof-replay-") as folder:
            place = Path(folder)
            results = place / "results.json"
            command = [
                python or sys.executable,
                str(self.write(place / "replay.py")),
                "--json",
                str(results),
            ]
            command += ["--seconds", f"{seconds:g}", *(["--device", device] if device else [])]
            status, lines = process.output_of(command, env=os.environ, timeout_s=timeout_s)
            if not results.exists():
                raise LaunchError(
                    f"the script ended with status {status}:"
                    f" {plain(lines[-1]) if lines else 'it printed nothing'}",
                    hint=(
                        "give an interpreter that has PyTorch (and vLLM for its operators) by"
                        " python="
                    ),
                )
            return self.compare(results)


def time_operators(
    trace: Trace,
    *,
    operator: str | None = None,
    kernel: str | None = None,
    layer: int | None = None,
    phase: str | None = None,
    top: int = 1,
) -> OperatorTiming:
    """Make a script that runs operators of a recording alone, with their recorded shapes, types and
    strides.

    The script holds no data of the recording: tensors are random. It times each operator with warm
    caches, with its weights in memory only, and with cold caches, by PyTorch's profiler as in the
    recording and by events on the device. The comparison shows whether the kernel itself or its
    surroundings explain the recorded time.

    Parameters
    ----------
    trace : Trace
        A trace of PyTorch with operators and their shapes (``record_shapes=True``).
    operator, kernel : str, optional
        Part of the operator's name, or of the name of a kernel that it launched.
    layer, phase : int and str, optional
        Only operators that were called in this layer, or in this phase, such as ``decode``.
    top : int
        Most operators, the longest first; operators with other shapes count separately.

    Returns
    -------
    OperatorTiming
        ``script``, and :meth:`OperatorTiming.write`, :meth:`OperatorTiming.run` and
        :meth:`OperatorTiming.compare`.

    Raises
    ------
    NotCapturedError
        The trace has no operators.
    AnalysisError
        No operator meets the conditions, or none that does can be run alone; the message says why.

    Examples
    --------
    >>> made = llmprof.time_operators(trace, operator="mm", top=2)
    >>> made.operators.height
    2
    >>> made.script.splitlines()[0][3:38]
    'Runs operators of a recording alone'
    """
    if not 1 <= top <= _MOST:
        raise AnalysisError(f"top is {top}", expected=f"1 to {_MOST}")
    rows = operator_calls(trace)
    if operator is not None:
        rows = rows.filter(pl.col("operator").str.contains(operator, literal=True))
    if kernel is not None:
        rows = rows.filter(pl.col("kernels").str.contains(kernel, literal=True))
    if layer is not None:
        rows = rows.filter(pl.col("layer").str.split(",").list.contains(str(layer)))
    if phase is not None:
        rows = rows.filter(pl.col("phase").str.split(",").list.contains(phase))
    given = {"operator": operator, "kernel": kernel, "layer": layer, "phase": phase}
    conditions = [f"{name} {value!r}" for name, value in given.items() if value is not None]
    if rows.is_empty():
        found = f"nothing in this recording has {' and '.join(conditions) or 'an operator'}"
        raise AnalysisError(
            found,
            hint="llmprof analyze PATH --what operator-calls lists the operators of the recording",
        )
    can = rows.drop_nulls("key")
    if can.is_empty():
        first = rows.row(0, named=True)
        raise AnalysisError(
            f"{first['operator'] or (first['kernels'] or '')[:80]} cannot be run alone:"
            f" {first['reason']}",
            hint="llmprof analyze PATH --what operator-calls lists those that can be run alone",
        )
    chosen, device, world = can.head(top), trace.meta.get("device"), trace.meta.get("world_size")
    text = written(chosen, world=world if isinstance(world, int) else 1)
    return OperatorTiming(text, chosen, device if isinstance(device, str) else None)


def written(operators: pl.DataFrame, *, world: int = 1) -> str:
    """Source of the script for some operators: of the trace it holds only numbers, and names of
    known operators.
    """
    usual = usual_dtype(operators)
    rows = operators.rows(named=True)
    parts = [
        _function(number, row, call_of_row(row, usual), world) for number, row in enumerate(rows, 1)
    ]
    names = "".join(f"        operator_{number}(),\n" for number in range(1, len(parts) + 1))
    head = _HEAD.format(version=__version__)
    main = f'if __name__ == "__main__":\n    sys.exit(main([\n{names}    ]))\n'
    return "\n\n\n".join([head + _shared(), *parts, main])


_HEAD: Final = '''"""Runs operators of a recording alone: warm, with cold weights, and cold. By llmprof {version}.

    python THIS_FILE [--device cuda] [--seconds 0.5] [--json results.json]

It holds shapes, strides, types and numbers of the recording, and no data: tensors are random. The operators are at its
end. It needs PyTorch, and vLLM for operators of vLLM.
"""
'''  # noqa: E501


def _shared() -> str:
    """Common part of all scripts: the source of the clock and of the program, without their
    docstrings and marks of checkers.
    """
    both = "\n\n\n".join(
        re.sub(
            r'\A"""[\s\S]*?"""\n|^from (__future__|\.device_clock) import .*\n',
            "",
            files("llmprof.run.workers").joinpath(name).read_text(encoding="utf-8"),
            flags=re.MULTILINE,
        ).strip("\n")
        for name in ("device_clock.py", "operators.py")
    )
    return "from __future__ import annotations\n\n" + re.sub(
        r"  # noqa: [A-Z0-9, ]+.*$|  # type: ignore\[[a-z-]+\]$", "", both, flags=re.MULTILINE
    )


def _function(number: int, row: dict[str, Any], call: RecordedCall, world: int) -> str:
    """Source of a function that returns one operator."""
    summary = (
        f"{call.operator}: {row['count']} calls, median {row['median_ns'] / 1e3:.2f} us in the"
        " recording."
    )
    notes = "".join(f"\n\n    {one[0].upper()}{one[1:]}." for one in call.assumed)
    arguments = "".join(f"            {expression(one)},\n" for one in call.arguments)
    collective = call.kind == "all_reduce"
    more = f"        world={world},\n        collective=True,\n" if collective else ""
    end = "\n    " if notes else ""
    return (
        f"def operator_{number}() -> Operator:\n"
        f'    """{summary}{notes}{end}"""\n'
        f"    return TimedOperator(\n        key={row['key']!r},\n        name={call.operator!r},\n"
        f"        arguments=[\n{arguments}        ],\n        stored={call.known.stored!r},\n"
        f"        calls={int(row['count'])},\n       "
        f" recorded_ns={float(row['median_ns'])!r},\n{more}    )"
    )


def expression(argument: RecordedArgument) -> str:
    """An argument as a Python expression."""
    if isinstance(argument, RecordedTensor):
        holds = (
            ""
            if argument.holds == ("random",)
            else "".join(f", {value!r}" for value in argument.holds)
        )
        return f"MadeTensor({argument.shape!r}, {argument.strides!r}, {argument.dtype!r}{holds})"
    if isinstance(argument, tuple):
        return f"[{', '.join(map(expression, argument))}]"
    if isinstance(argument, float) and not math.isfinite(argument):
        return f"float({str(argument)!r})"
    return repr(argument)


FORMAT: Final = "llmprof operator replay"

NEAR: Final = 0.1
"""Times that differ by at most this share count as the same."""

NOISE: Final = 0.2
"""If the 95 % interval of a median is wider than this share of it, the verdict is unknown."""

_MOST_BYTES: Final = 64 << 20

VERDICTS: Final = ("the kernel", "its surroundings", "unknown")

_SCHEMA: Final = {
    "key": pl.String(),
    "operator": pl.String(),
    "kind": pl.String(),
    "shapes": pl.String(),
    "count": pl.Int64(),
    "recorded_ns": pl.Float64(),
    "recorded_low_ns": pl.Float64(),
    "recorded_high_ns": pl.Float64(),
    "warm_ns": pl.Float64(),
    "warm_low_ns": pl.Float64(),
    "warm_high_ns": pl.Float64(),
    "in_turn_ns": pl.Float64(),
    "weights_cold_ns": pl.Float64(),
    "cold_ns": pl.Float64(),
    "ratio": pl.Float64(),
    "clock": pl.String(),
    "same_kernels": pl.Boolean(),
    "verdict": pl.Enum(VERDICTS),
    "words": pl.String(),
    "host_recorded_ns": pl.Float64(),
    "host_alone_ns": pl.Float64(),
    "device": pl.String(),
}


def read_results(path: Path | str) -> dict[str, Any]:
    """Read the results that a timing script wrote with ``--json``.

    Returns
    -------
    dict
        ``device, cuda, versions`` and ``operators``: for each ``key, operator`` and either
        ``error`` or ``modes`` (times by mode and clock) and ``kernels``.

    Raises
    ------
    ReadError
        The file cannot be read, or is not of a timing script.
    """
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ReadError(
                f"{file.name} is too large for results of a timing script",
                expected="at most 64 MiB",
            )
        document = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise ReadError(f"{file.name} cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = f"{file.name} is not valid JSON: {error}"
        raise ReadError(found, expected="the file of a timing script's --json") from error
    if (
        not isinstance(document, dict)
        or document.get("format") != FORMAT
        or document.get("version") != 1
    ):
        found = f"{file.name} holds no results of a timing script"
        raise ReadError(found, expected=f'"format": "{FORMAT}", "version": 1')
    rows = document.get("operators")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ReadError(f"{file.name} holds no operators", expected="a list of objects")
    return document


def compare_times(
    operators: pl.DataFrame, results: Mapping[str, Any], *, device: str | None = None
) -> pl.DataFrame:
    """Compare times of operators alone with their times in the recording.

    Parameters
    ----------
    operators : polars.DataFrame
        Rows of :func:`llmprof.analyze.operator_calls`.
    results : mapping
        Of :func:`read_results`.
    device : str, optional
        Name of the device of the recording.

    Returns
    -------
    polars.DataFrame
        One row for each operator that is in both: ``key, operator, kind, shapes, count`` (recorded
        calls), ``recorded_ns`` (median of a call) with ``recorded_low_ns, recorded_high_ns`` (95 %
        interval), ``warm_ns`` (everything in the caches) with its interval, ``in_turn_ns`` (as in a
        step: other kernels ran, inputs were just written, weights are in memory),
        ``weights_cold_ns`` (without the other kernels; null where there are no weights),
        ``cold_ns`` (nothing in the caches), ``ratio`` (recorded over warm), ``clock``
        (``profiler``: sums of kernels, as in the recording; ``events``: between two events on the
        device; ``wall``), ``same_kernels`` (null on a CPU), ``verdict`` (``the kernel``: alone it
        takes as long; ``its surroundings``: in the run it takes longer than alone with cold caches;
        ``unknown``), ``words`` (why), ``host_recorded_ns, host_alone_ns`` (the operator on the
        host), ``device`` (on which it ran alone).

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
    row: Mapping[str, Any],
    measured: Mapping[str, Any],
    ran: str | None,
    device: str | None,
    *,
    on_device: bool,
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
        "key": row["key"],
        "operator": row["operator"],
        "kind": row["kind"],
        "shapes": row["shapes"],
        "count": row["count"],
        "recorded_ns": row["median_ns"],
        "recorded_low_ns": row["low_ns"],
        "recorded_high_ns": row["high_ns"],
        **{f"{mode}_ns": times[mode] for mode in MODES},
        "warm_low_ns": _time(modes, "warm", clock, "low_ns"),
        "warm_high_ns": _time(modes, "warm", clock, "high_ns"),
        "clock": clock if clock == "profiler" else "events" if on_device else "wall",
        "same_kernels": same,
        "host_recorded_ns": row["host_median_ns"],
        "host_alone_ns": _time(modes, "warm", "host"),
        "device": ran,
    }
    out["ratio"] = out["recorded_ns"] / times["warm"] if times["warm"] else None
    if not times["warm"]:
        words = (
            error[:300]
            if isinstance(error := measured.get("error"), str)
            else "no time was measured"
        )
        return out | {"verdict": "unknown", "words": f"it did not run: {words}"}
    verdict, words = _verdict(out)
    if device and ran and device != ran:
        verdict, words = "unknown", f"recorded on {device}, run alone on {ran}"
    return out | {"verdict": verdict, "words": words}


def _time(modes: Mapping[str, Any], mode: str, clock: str, what: str = "median_ns") -> float | None:
    clocks = modes.get(mode)
    times = clocks.get(clock) if isinstance(clocks, dict) else None
    value = times.get(what) if isinstance(times, dict) else None
    number = (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    )
    return number if math.isfinite(number) and number > 0 else None


def _verdict(row: Mapping[str, Any]) -> tuple[str, str]:
    """Verdict on the recorded time of an operator, and its reason."""
    recorded, warm = float(row["recorded_ns"]), float(row["warm_ns"])
    modes = {mode: float(row[f"{mode}_ns"]) for mode in MODES if row[f"{mode}_ns"]}
    fastest, slowest = min(modes.values()), max(modes.values())
    wide = []
    for name, which, middle in (
        ("in the recording", "recorded", recorded),
        ("alone", "warm", warm),
    ):
        low, high = row[f"{which}_low_ns"], row[f"{which}_high_ns"]
        if low is not None and high is not None and middle and (high - low) / middle > NOISE:
            wide.append(name)
    if row["same_kernels"] is False:
        return (
            "unknown",
            (
                "other kernels ran than in the recording: another version, device or choice of the"
                " library"
            ),
        )
    if wide:
        return (
            "unknown",
            f"its time {' and '.join(wide)} varies too much (95 % interval of the median)",
        )
    if fastest * (1 - NEAR) <= recorded <= slowest * (1 + NEAR):
        near = min(modes, key=lambda mode: abs(modes[mode] - recorded))
        how = (
            "alone it takes as long"
            if abs(recorded / modes[near] - 1) <= NEAR
            else "between the times alone"
        )
        return "the kernel", f"{how}, {_HOW[near]}"
    if recorded > slowest:
        why = " in any way: other work at the same time, lower clocks or a wait inside"
        if row["kind"] == "all_reduce":
            why = ": a rank that is early waits for the last one"
        return "its surroundings", f"{format_ns(recorded - slowest)} more than alone{why}"
    return (
        "unknown",
        (
            f"{format_ns(fastest - recorded)} less than alone: other values or lengths, or higher"
            " clocks"
        ),
    )


_HOW: Final = {
    "warm": "with warm caches",
    "in_turn": "after other kernels",
    "weights_cold": "with its weights in memory",
    "cold": "with cold caches",
}
