"""Output of commands: JSON, CSV, and sentences that fit the terminal."""

import inspect
import json
import math
import os
import textwrap
import warnings
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

import polars as pl

from llmprof import analyze, text
from llmprof.errors import ConfigError, DefectError, LlmprofError, TraceWarning, guarded
from llmprof.readers import bundled, read
from llmprof.readers.common.helpers import process_count
from llmprof.readers.reading import hardware_metrics_only
from llmprof.text import Progress
from llmprof.trace import Trace
from llmprof.trace.storage import files
from llmprof.trace.storage.deferred import Deferred

LONGEST_NAME: Final = 100
"""Most characters of a text in a table that is written to a file or a pipe: names of kernels may
have 1,500.
"""

TABLES: Final = (
    "Tables are as wide as the terminal, or COLUMNS=N; in a file or a pipe they have all columns\n"
    f"and at most {LONGEST_NAME} characters of a name. --csv and --json give names whole."
)
"""Text of ``--help`` about the width of tables."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """Output of a command: width (None: unlimited), progress callback, and a function that
    prints.
    """

    width: int | None = None
    progress: Progress | None = None
    say: Callable[[str], None] | None = None

    def tell(self, words: str) -> None:
        """Print words, if there are any, before the command ends."""
        if self.say is not None and words:
            self.say(words)


T = TypeVar("T")


def try_making(what: str, make: Callable[[], T], again: str) -> T | None:
    """What a command makes of work that is done and kept; if it fails, a warning says how to
    make it again.
    """
    try:
        with guarded(what):
            return make()
    except DefectError:  # it was warned of
        return None
    except LlmprofError as error:
        warnings.warn(
            f"{what} could not be made: {error} To make it again: {again}",
            TraceWarning,
            stacklevel=2,
        )
        return None


class Failing(str):
    """Output of a command that ends with exit code 1, such as a comparison beyond its limit."""

    __slots__ = ()


def share(words: str) -> float:
    """A share as ``3%`` or ``0.03``."""
    number = words.strip()
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"{words!r} is not a share; write 3% or 0.03")
    return value


def key_value(item: str, flag: str, *, as_text: bool = False) -> tuple[str, Any]:
    """Split ``key=value``; a value that is JSON or a Python constant is converted, unless it is
    to stay text.
    """
    from llmprof.run.launch.config.options import plain_value

    key, equals, value = item.lstrip("-").partition("=")
    if not key or not equals:
        raise ConfigError(f"{flag} {item!r} has no value", expected=f"{flag} KEY=VALUE")
    return key, value if as_text else plain_value(value)


def options_of(args: Namespace, function: Callable[..., Any]) -> dict[str, Any]:
    """The options of a command that have the names of keyword arguments of a function."""
    parameters = inspect.signature(function).parameters.values()
    names = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY} - {"progress"}
    return {name: value for name, value in vars(args).items() if name in names}


def to_json(value: object) -> str:
    """Format a value as JSON: paths become text, infinities and NaN become null, what is not
    printed is escaped.
    """
    words = json.dumps(
        _finite(value), indent=1, ensure_ascii=False, allow_nan=False, default=os.fspath
    )
    return text.escaped(words, lambda character: json.dumps(character)[1:-1])


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_csv(frame: pl.DataFrame, file: str, *, overwrite: bool) -> str:
    """Write a frame to a CSV file and say so; for ``-``, return the CSV itself."""
    if file == "-":
        return text.csv(frame).rstrip("\n")
    files.write_output(file, text.csv(frame), overwrite=overwrite)
    return f"{text.counted(frame.height, 'row')} in {file}"


def for_programs(frame: pl.DataFrame, args: Namespace) -> str:
    """The frame as ``--csv`` or ``--json`` ask for it, with at most ``--limit`` rows."""
    kept = frame.head(args.limit) if getattr(args, "limit", None) else frame
    return to_csv(kept, args.csv, overwrite=args.force) if args.csv else to_json(kept.to_dicts())


def wrap_words(words: str, width: int | None, first: str, rest: str) -> str:
    """Wrap words to a width; ``first`` and ``rest`` are the indents of the first and of the
    other lines.
    """
    if width is None:
        return first + text.plain(words)
    lines = textwrap.fill(
        text.unbroken(text.plain(words)),
        max(40, width),
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return lines.replace("\N{NO-BREAK SPACE}", " ")


SAMPLE = "sample:"


def input_paths(paths: Sequence[str]) -> list[Path]:
    """Resolve the paths of a command; ``sample:NAME`` becomes the files of the sample."""
    resolved: list[Path] = []
    for path in paths:
        resolved += (
            bundled.sample_files(path.removeprefix(SAMPLE))
            if path.startswith(SAMPLE)
            else [Path(path)]
        )
    return resolved


def open_trace(paths: Sequence[str], args: Namespace, terminal: Terminal) -> Trace:
    """Read paths, run folders and samples (``sample:NAME``) as one trace."""
    inputs = input_paths(paths)
    if alone := [path for path in inputs if hardware_metrics_only(path)]:
        found = f"{alone[0].name} holds hardware metrics of single launches and no timeline"
        hint = "give this file alone to llmprof info, findings, analyze, report, explore or diff"
        raise LlmprofError(found, expected="a recording of a timeline", hint=hint)
    cache = False if getattr(args, "no_cache", False) else None
    format_name, workers = getattr(args, "format", None), getattr(args, "workers", None)
    options: dict[str, Any] = {"cache": cache, "progress": reading(terminal), "workers": workers}
    trace = read(inputs, format=format_name, **options)
    others = {
        name: read(input_paths([other]), **options)
        for name in ("captures", "eager")
        if (other := getattr(args, name, None))
    }
    return analyze.add_operators(trace, **others) if others else trace


MANY_ROWS: Final = 2_000_000
"""A dataset with at least this number of rows is analysed faster by several processes, although
they must start.
"""


def is_profile(paths: Sequence[str]) -> bool:
    """Return whether all paths hold hardware metrics and no timeline."""
    named = input_paths(paths)
    return bool(named) and all(hardware_metrics_only(path) for path in named)


def on_workers(
    analyses: Mapping[str, Mapping[str, Any]], trace: Trace, args: Namespace, terminal: Terminal
) -> dict[str, pl.DataFrame]:
    """Analyse a dataset rank by rank, in several processes if it is large or ``--workers`` says so.

    The trace keeps the results for later calls of the same analyses. For a trace that is no
    dataset, nothing is computed, and the result is empty.
    """
    if not isinstance(trace._tables, Deferred):
        return {}
    from llmprof.report.dataset.cluster import local
    from llmprof.report.dataset.mapping import prepare

    count = args.workers
    if count is None:
        several = sum(trace.rows.values()) >= MANY_ROWS and find_spec("distributed") is not None
        count = process_count(None) if several else 1
    with local(min(count, len(trace.ranks))) if count > 1 else nullcontext(False) as client:
        return prepare(analyses, trace, client=client, progress=terminal.progress)


def reading(terminal: Terminal) -> Progress | None:
    """Return a callback that shows how much of a file was read; None if no progress is shown."""
    tell = terminal.progress
    return (
        None
        if tell is None
        else lambda name, done, size: tell(f"reading {Path(name).name}", done, size)
    )
