"""Writing and running a script that runs operators of a recording alone, and comparing the times."""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.analyze.operator_arguments import Argument, Call, Tensor
from llmprof.analyze.operator_calls import call_of, replayable, usual_dtype
from llmprof.errors import AnalysisError, LaunchError
from llmprof.launch.run import process
from llmprof.operator_timing.results import compare, read_results
from llmprof.storage.files import note_input, write_output
from llmprof.text import plain
from llmprof.trace import Trace
from llmprof.version import __version__

_MOST: Final = 200
"""Most operators in one script."""


@dataclass(frozen=True, slots=True)
class OperatorTiming:
    """Operators of a recording, the script that runs them alone, and the comparison with the recording."""

    script: str
    """Python source; it needs PyTorch, and vLLM if an operator is vLLM's."""
    operators: pl.DataFrame
    """Rows of :func:`llmprof.analyze.replayable`, in the order of the script."""
    device: str | None = None
    """Name of the device of the recording."""

    def write(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write the script to a file, to run it on another machine.

        Parameters
        ----------
        path : path-like
            The file.
        overwrite : bool
            Whether a file that exists is replaced; one that was read as an input never is.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        OutputError
            It exists or cannot be written.
        """
        return write_output(path, self.script, overwrite=overwrite)

    def compare(self, results: Path | str) -> pl.DataFrame:
        """Compare the results of the script (its option ``--json``), also from another machine, with the recording.

        Parameters
        ----------
        results : path-like
            The file.

        Returns
        -------
        polars.DataFrame
            As :func:`llmprof.operator_timing.results.compare` describes it.

        Raises
        ------
        ReadError
            The file cannot be read, or holds none of these operators.
        """
        note_input(results)
        return compare(self.operators, read_results(results), device=self.device)

    def run(
        self, *, python: str | None = None, device: str | None = None, seconds: float = 0.5, timeout_s: float = 1800.0
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
            results, log = place / "results.json", place / "log.txt"
            command = [python or sys.executable, str(self.write(place / "replay.py")), "--json", str(results)]
            command += ["--seconds", f"{seconds:g}", *(["--device", device] if device else [])]
            ended = process.run(command, log=log, env=dict(os.environ), cwd=place, timeout_s=timeout_s)
            if not results.exists():
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise LaunchError(
                    f"the script ended with status {ended.status}: {plain(last[0]) if last else 'it printed nothing'}",
                    hint="give an interpreter that has PyTorch (and vLLM for its operators) by python=",
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
    """Make a script that runs operators of a recording alone, with their recorded shapes, types and strides.

    The script holds no data of the recording: tensors are random. It times each operator with warm caches, with its
    weights in memory only, and with cold caches, by PyTorch's profiler as in the recording and by events on the device.
    The comparison shows whether the kernel itself or its surroundings explain the recorded time.

    Parameters
    ----------
    trace : Trace
        A trace of PyTorch with operators and their shapes (``record_shapes=True``).
    operator, kernel : str, optional
        Part of the operator's name, or of the name of a kernel that it launched.
    layer : int, optional
        Only operators that were called in this layer.
    phase : str, optional
        Only operators that were called in this phase, such as ``decode``.
    top : int
        Most operators, the longest first; operators with other shapes count separately.

    Returns
    -------
    OperatorTiming
        ``script``, and :meth:`OperatorTiming.write`, :meth:`OperatorTiming.run` and :meth:`OperatorTiming.compare`.

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
    rows = replayable(trace)
    if operator is not None:
        rows = rows.filter(pl.col("operator").str.contains(operator, literal=True))
    if kernel is not None:
        rows = rows.filter(pl.col("kernels").str.contains(kernel, literal=True))
    if layer is not None:
        rows = rows.filter(pl.col("layers").str.split(",").list.contains(str(layer)))
    if phase is not None:
        rows = rows.filter(pl.col("phases").str.split(",").list.contains(phase))
    given = {"operator": operator, "kernel": kernel, "layer": layer, "phase": phase}
    conditions = [f"{name} {value!r}" for name, value in given.items() if value is not None]
    if rows.is_empty():
        found = f"nothing in this recording has {' and '.join(conditions) or 'an operator'}"
        raise AnalysisError(found, hint="llmprof analyze PATH --what replayable lists the operators of the recording")
    can = rows.filter("can")
    if can.is_empty():
        first = rows.row(0, named=True)
        raise AnalysisError(
            f"{first['operator'] or (first['kernels'] or '')[:80]} cannot be run alone: {first['why']}",
            hint="llmprof analyze PATH --what replayable lists the operators that can be run alone",
        )
    chosen, device, world = can.head(top), trace.meta.get("device"), trace.meta.get("world_size")
    text = written(chosen, world=world if isinstance(world, int) else 1)
    return OperatorTiming(text, chosen, device if isinstance(device, str) else None)


def written(operators: pl.DataFrame, *, world: int = 1) -> str:
    """Source of the script for some operators.

    From the trace it takes only numbers, and operator names that are in the list of known operators.
    """
    usual = usual_dtype(operators)
    rows = operators.rows(named=True)
    parts = [_function(number, row, call_of(row, usual), world) for number, row in enumerate(rows, 1)]
    names = "".join(f"        operator_{number}(),\n" for number in range(1, len(parts) + 1))
    head = _HEAD.format(version=__version__)
    main = f'if __name__ == "__main__":\n    sys.exit(main([\n{names}    ]))\n'
    return "\n\n\n".join([head + _shared(), *parts, main])


_HEAD: Final = '''"""Runs operators of a recording alone: warm, with cold weights, and cold. By llmprof {version}.

    python THIS_FILE [--device cuda] [--seconds 0.5] [--json results.json]

It holds shapes, strides, types and numbers of the recording, and no data: tensors are random. The operators are at its
end. It needs PyTorch, and vLLM for operators of vLLM.
"""
'''


def _shared() -> str:
    """Common part of all scripts: the source of the program without its docstring and marks of checkers."""
    text = files("llmprof.operator_timing").joinpath("program.py").read_text(encoding="utf-8")
    text = re.sub(r'\A""".*?"""\n', "", text, flags=re.DOTALL).rstrip("\n")
    return re.sub(r"  # noqa: [A-Z0-9, ]+$|  # type: ignore\[[a-z-]+\]$", "", text, flags=re.MULTILINE)


def _function(number: int, row: dict[str, Any], call: Call, world: int) -> str:
    """Source of a function that returns one operator."""
    summary = f"{call.operator}: {row['count']} calls, median {row['median_ns'] / 1e3:.2f} us in the recording."
    notes = "".join(f"\n\n    {one[0].upper()}{one[1:]}." for one in call.assumed)
    arguments = "".join(f"            {_expression(one)},\n" for one in call.arguments)
    collective = call.known.kind == "all_reduce"
    more = f"        world={world},\n        collective=True,\n" if collective else ""
    end = "\n    " if notes else ""
    return (
        f"def operator_{number}() -> Operator:\n"
        f'    """{summary}{notes}{end}"""\n'
        f"    return Operator(\n        key={row['key']!r},\n        name={call.operator!r},\n"
        f"        arguments=[\n{arguments}        ],\n        stored={call.known.stored!r},\n"
        f"        calls={int(row['count'])},\n        recorded_ns={float(row['median_ns'])!r},\n{more}    )"
    )


def _expression(argument: Argument) -> str:
    """An argument as a Python expression."""
    if isinstance(argument, Tensor):
        holds = "" if argument.holds == ("random",) else "".join(f", {value!r}" for value in argument.holds)
        return f"Tensor({argument.shape!r}, {argument.strides!r}, {argument.dtype!r}{holds})"
    if isinstance(argument, tuple):
        return f"[{', '.join(map(_expression, argument))}]"
    if isinstance(argument, float) and not math.isfinite(argument):
        return f"float({str(argument)!r})"
    return repr(argument)
