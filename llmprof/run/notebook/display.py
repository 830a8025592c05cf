"""How a notebook shows frames, charts and what a recording lacks; ``%load_ext llmprof`` sets it."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import polars as pl

from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError, TraceWarning
from llmprof.readers.bundled import MissingSampleError
from llmprof.units import NS_PER_S, format_bytes, format_ns, format_share

_ROWS: Final = 20
_UNSET: Final = {"tbl_rows": "POLARS_FMT_MAX_ROWS", "fmt_str_lengths": "POLARS_FMT_STR_LEN"}
_DEFAULTS: Final = {"tbl_rows": _ROWS, "fmt_str_lengths": 70}
"""What is shown of a frame if the user set nothing else in Polars."""


def with_units(frame: pl.DataFrame) -> pl.DataFrame:
    """A frame as people read it: times, sizes and shares as text with their unit."""
    texts = [
        pl.Series(name, [None if value is None else write(value) for value in frame[name]])
        for name, dtype in frame.schema.items()
        if dtype.is_numeric() and (write := _writer(name))
    ]
    return frame.with_columns(texts)


def _writer(name: str) -> Callable[[float], str] | None:
    """How values of a column are written: by the unit at the end of its name."""
    unit = name.removesuffix("per_s").rpartition("_")[2]
    writers: dict[str, Callable[[float], str]] = {
        "ns": format_ns,
        "s": lambda seconds: format_ns(seconds * NS_PER_S),
        "bytes": format_bytes,
        "share": format_share,
    }
    return writers.get(unit)


def frame_text(frame: pl.DataFrame, render: Callable[[pl.DataFrame], str] = str) -> str:
    """Let Polars render the rows that it shows with their units, and say how many there are."""
    state = pl.Config.state(if_set=True)
    rows = int(state.get(_UNSET["tbl_rows"]) or _ROWS)
    ends = rows >= 0 and frame.height > 2 * rows  # no more than the rows at both ends is shown
    short = frame[:rows].vstack(frame[-rows:]) if ends else frame
    unset: dict[str, Any] = {
        name: value for name, value in _DEFAULTS.items() if _UNSET[name] not in state
    }
    with pl.Config(tbl_hide_column_data_types=True, float_precision=2, **unset):
        shown = render(with_units(short))
    none = "" if frame.height else ": nothing of this was recorded, or found"
    return shown.replace(f"shape: {_shape(short)}", f"shape: {_shape(frame)}{none}", 1)


def _shape(frame: pl.DataFrame) -> str:
    return f"({frame.height:_}, {frame.width:_})"


def frame_html(frame: pl.DataFrame) -> str:
    """The same as HTML, without types and without quotes around texts."""
    shown = frame_text(frame, lambda short: short._repr_html_())
    shown = _QUOTED.sub(r"<td>\1</td>", _TYPES.sub("</thead>", shown))
    return _WITH_UNIT.sub("<td>\\1\N{NO-BREAK SPACE}\\2</td>", shown)


_QUOTED: Final = re.compile(r"<td>&quot;([^<]*?)(?:&quot;)?</td>")
_WITH_UNIT: Final = re.compile(r"<td>([\d.,<\s]*\d) (\S{1,3})</td>")
_TYPES: Final = re.compile(r"<tr>(?:<td>[^<]*</td>)*</tr></thead>")


def extend_display(shell: Any) -> None:
    """Show frames with their units, charts in the theme of the page, errors as words, and what a
    recording lacks as a note that fails no cell.
    """
    formatters = shell.display_formatter.formatters
    formatters["text/html"].for_type(pl.DataFrame, frame_html)
    formatters["text/plain"].for_type(
        pl.DataFrame, lambda frame, printer, _cycle: printer.text(frame_text(frame))
    )
    shell.set_custom_exc((LlmprofError,), _in_words)
    warnings.showwarning = partial(_said, warnings.showwarning)
    shell.events.register("post_run_cell", _pass_missing)
    if importlib.util.find_spec("altair") is not None:
        from llmprof.charts import follow_theme

        follow_theme()


def _in_words(_shell: Any, _kind: type, error: LlmprofError, _traceback: Any, **_more: Any) -> None:
    """Show what an error says without its traceback."""
    from IPython.display import Markdown, display

    display(Markdown(f"> {error}"))  # type: ignore[no-untyped-call]


def _said(
    otherwise: Any, message: Warning | str, category: type[Warning], *place: Any, **more: Any
) -> None:
    """Show what a warning about a recording says, without where in the code it was."""
    from IPython.display import Markdown, display

    if issubclass(category, TraceWarning):
        display(Markdown(f"> {message}"))  # type: ignore[no-untyped-call]
    else:
        otherwise(message, category, *place, **more)


def _pass_missing(result: Any) -> None:
    """What a recording does not hold or does not say, and a sample that is not installed, are no
    failures: the cells after it run.
    """
    missing = NotCapturedError, AnalysisError, MissingSampleError
    if isinstance(result.error_in_exec, missing):
        result.error_in_exec = None
