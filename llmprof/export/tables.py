"""Answers of all analyses as files: CSV, Parquet, or one Excel workbook."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from llmprof import text
from llmprof.analyze.catalog import analyses
from llmprof.errors import LlmprofError
from llmprof.trace import Trace

MOST_ROWS: Final = 1_048_575
"""Rows of a sheet of Excel below its heading."""

_LONG: Final = ("events", "launch-path")
"""Views with a row an event, which go into the files of data but not into a workbook."""


def answers(trace: Trace, *, events: bool = True) -> dict[str, pl.DataFrame]:
    """Frame of each analysis that the trace can answer, by the name of its view.

    Parameters
    ----------
    trace : Trace
        Any trace.
    events : bool
        With those that have a row an event.

    Returns
    -------
    dict of str to polars.DataFrame
        In the order of the catalogue; what was not captured, and what has no rows, is left out.

    Examples
    --------
    >>> "kernels" in answers(trace)
    True
    """
    frames: dict[str, pl.DataFrame] = {}
    for one in analyses():
        if not events and one.view in _LONG:
            continue
        try:
            frame = pl.DataFrame(one.function(trace))
        except LlmprofError:
            continue
        if frame.height:
            frames[one.view] = frame
    return frames


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Lists and structs as text."""
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    as_text = [pl.col(c).map_elements(str, return_dtype=pl.String) for c in nested]
    return frame.with_columns(as_text) if nested else frame


def write_csv(frames: dict[str, pl.DataFrame], folder: Path) -> int:
    """Each frame as ``NAME.csv``, in which no cell is a formula of a spreadsheet."""
    folder.mkdir(parents=True)
    for name, frame in frames.items():
        (folder / f"{name}.csv").write_text(text.csv(_flat(frame)), encoding="utf-8")
    return sum(frame.height for frame in frames.values())


def write_parquet(frames: dict[str, pl.DataFrame], folder: Path) -> int:
    """Each frame as ``NAME.parquet``."""
    folder.mkdir(parents=True)
    for name, frame in frames.items():
        frame.write_parquet(folder / f"{name}.parquet")
    return sum(frame.height for frame in frames.values())


def write_excel(frames: dict[str, pl.DataFrame], file: Path) -> int:
    """Each frame as a sheet of one workbook.

    Raises
    ------
    LlmprofError
        The package ``xlsxwriter`` is not installed.
    """
    try:
        import xlsxwriter
    except ImportError as error:
        raise LlmprofError("Excel needs the package xlsxwriter", hint="pip install 'llmprof[export]'") from error
    # a name of a kernel is text, whatever it begins with
    options = {"strings_to_formulas": False, "strings_to_urls": False, "nan_inf_to_errors": True}
    written = 0
    with xlsxwriter.Workbook(str(file), options) as book:
        for name, frame in frames.items():
            part = _flat(frame).head(MOST_ROWS)
            part.write_excel(book, worksheet=name[:31], autofit=part.height < 5000, freeze_panes=(1, 0))
            written += part.height
    return written
