"""The CSV files of torch_npu, msprof and MindSpore as typed columns, whatever their version made of them.

Headings differ in case, units stand in them, cells end in TABs, shapes are quoted three times, call stacks run over
many lines and what is not known is ``N/A``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import ReadError

ABSENT: Final = ("", "N/A", "NA", "None", "nan", "NULL")
"""Cells that say nothing."""

NS_PER_UNIT: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
BYTES_PER_UNIT: Final = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
"""msprof counts in powers of 1024: 2,160,232 KB of its text are 2,212,077,568 bytes of its database."""

_MOST_NS: Final = 2**61
"""Times beyond it are no times."""

_HEADING: Final = re.compile(r"^\s*(?P<name>.*?)\s*(?:\((?P<unit>[^()]*)\))?\s*$")


def read(path: Path) -> pl.DataFrame:
    """Every cell of a CSV file as text, stripped, null where it says nothing.

    Parameters
    ----------
    path : pathlib.Path
        A CSV file.

    Returns
    -------
    polars.DataFrame
        Columns by :func:`heading` of the file's headings; of two with one name the first is kept.

    Raises
    ------
    ReadError
        The file cannot be read, is empty or is no table.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ReadError(f"cannot read {path.name}: {error.strerror or error}", hint="check the file") from error
    if not raw.strip():
        raise ReadError(f"{path.name} is empty", expected="a table", hint="export it again")
    if raw.count(b'"') % 2:  # cut inside a quoted cell: what is before its line can be read
        raw = raw[: raw.rindex(b'"')]
        raw = raw[: raw.rindex(b"\n") + 1] if b"\n" in raw else raw
    try:
        frame = pl.read_csv(
            raw, infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy", raise_if_empty=True
        )
    except (pl.exceptions.PolarsError, ValueError) as error:
        raise ReadError(
            f"{path.name} is no table: {str(error).splitlines()[0]}",
            expected="comma-separated values with a line of headings",
            hint="export it again",
        ) from error
    names: dict[str, str] = {}
    for column in frame.columns:
        names.setdefault(heading(column), column)
    frame = frame.select(pl.col(column).alias(name) for name, column in names.items())
    cell = pl.all().str.strip_chars(' \t\r\n"')
    frame = frame.select(cell)
    return frame.select(pl.when(~pl.col(c).is_in(ABSENT)).then(pl.col(c)).alias(c) for c in frame.columns)


def heading(text: str) -> str:
    """A heading in one form: lower case, words joined by underscores, the unit last.

    Examples
    --------
    >>> heading("Start Time(us)"), heading("aic_mac_time(us)"), heading("Stream Id")
    ('start_time_us', 'aic_mac_time_us', 'stream_id')
    """
    found = _HEADING.match(text.replace("\ufeff", ""))
    name, unit = (found["name"], found["unit"]) if found else (text, None)
    if unit is not None and len(unit) > 5:  # words, not a unit
        name, unit = f"{name} {unit}", None
    unit = {"%": "pct"}.get(unit or "", unit)
    words = "_".join(re.findall(r"[A-Za-z0-9]+", name)).lower()
    return f"{words}_{unit.replace('/', '_per_')}" if unit else words


def has(frame: pl.DataFrame, *names: str) -> str | None:
    """The first of some columns that the frame has."""
    return next((name for name in names if name in frame.columns), None)


def text(frame: pl.DataFrame, *names: str) -> pl.Expr:
    """The first of some columns that the frame has, else null, as text."""
    name = has(frame, *names)
    return pl.lit(None, dtype=pl.String) if name is None else pl.col(name)


def whole(frame: pl.DataFrame, *names: str) -> pl.Expr:
    """Likewise as int64; null for what is no whole number."""
    return text(frame, *names).str.replace(r"\.0+$", "").cast(pl.Int64, strict=False)


def number(frame: pl.DataFrame, *names: str) -> pl.Expr:
    """Likewise as float64."""
    return text(frame, *names).cast(pl.Float64, strict=False)


def time_ns(frame: pl.DataFrame, *stems: str) -> pl.Expr:
    """The first of some columns of times, in whatever unit its heading says, as int64 ns."""
    for stem in stems:
        for unit, factor in NS_PER_UNIT.items():
            if f"{stem}_{unit}" in frame.columns:
                return ns_of_text(pl.col(f"{stem}_{unit}"), factor)
    return pl.lit(None, dtype=pl.Int64)


def size_bytes(frame: pl.DataFrame, *stems: str) -> pl.Expr:
    """The first of some columns of sizes, in whatever unit its heading says, as int64 bytes."""
    for stem in stems:
        for unit, factor in BYTES_PER_UNIT.items():
            if f"{stem}_{unit}" in frame.columns:
                return (number(frame, f"{stem}_{unit}") * factor).round().cast(pl.Int64, strict=False)
    return pl.lit(None, dtype=pl.Int64)


def ns_of_text(value: pl.Expr, factor: int = 1000) -> pl.Expr:
    """Times as decimal text in a unit of ``factor`` ns, exactly, as int64 ns; null for what is no number.

    Epoch microseconds with a fraction are beyond what float64 tells apart, so the digits are taken as they stand.
    """
    digits = len(str(factor)) - 1
    if not digits:
        return value.str.extract(r"^\s*(-?\d+)").cast(pl.Int64, strict=False)
    sign, whole_part, fraction = (
        value.str.extract(r"^\s*(-)", 1),
        value.str.extract(r"^\s*[-+]?(\d+)(?:\.\d*)?\s*$", 1),
        value.str.extract(r"^\s*[-+]?\d*\.(\d*)\s*$", 1).fill_null(""),
    )
    kept = fraction.str.slice(0, digits).str.pad_end(digits, "0").cast(pl.Int64, strict=False)
    rounded = pl.when(fraction.str.slice(digits, 1).cast(pl.Int64, strict=False).fill_null(0) >= 5).then(1).otherwise(0)
    units = whole_part.cast(pl.Int64, strict=False)
    plain = pl.when(units <= _MOST_NS // factor).then(units * factor + kept + rounded)
    signed = pl.when(sign.is_not_null()).then(-plain).otherwise(plain)
    wide = (value.cast(pl.Float64, strict=False) * factor).round()  # 1e-05 and the like
    wide = pl.when(wide.is_finite() & wide.is_between(-(2.0**61), 2.0**61)).then(wide).cast(pl.Int64, strict=False)
    return pl.coalesce(signed, wide)
