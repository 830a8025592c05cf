"""Files of Ascend's tools: CSV as columns with types, and SQLite databases."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import ReadError, TraceWarning
from llmprof.readers.common.reader import IMPOSSIBLE, MOST_NS
from llmprof.trace.storage import sqlite
from llmprof.trace.storage.files import regular

ABSENT: Final = ("", "N/A", "NA", "None", "nan", "NULL")
"""Cells that stand for a missing value."""

NS_PER_UNIT: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
BYTES_PER_UNIT: Final = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
"""Bytes by unit, powers of 1024 in msprof: 2,160,232 KB in its text are 2,212,077,568 bytes in
its database.
"""

_HEADING: Final = re.compile(r"(?P<name>.*?)(?:\((?P<unit>[^()]*)\))?$")


def read_csv(path: Path) -> pl.DataFrame:
    """Read a CSV file with every cell as stripped text, or null for a missing value."""
    try:
        raw = regular(path).read_bytes()
    except OSError as error:
        raise ReadError(
            f"cannot read {path.name}: {error.strerror or error}", hint="check the file"
        ) from error
    if not raw.strip():
        raise ReadError(f"{path.name} is empty", expected="a table", hint="export it again")
    if (
        raw.count(b'"') % 2
    ):  # the file ends inside a quoted cell: the lines before that cell can be read
        raw = raw[: raw.rindex(b'"')]
        raw = raw[: raw.rindex(b"\n") + 1] if b"\n" in raw else raw
    try:
        frame = pl.read_csv(
            raw,
            infer_schema=False,
            truncate_ragged_lines=True,
            encoding="utf8-lossy",
            raise_if_empty=True,
        )
    except (pl.exceptions.PolarsError, ValueError) as error:
        found = f"{path.name} is not a table: {str(error).splitlines()[0]}"
        expected = "comma-separated values with a line of headings"
        raise ReadError(found, expected=expected, hint="export it again") from error
    names: dict[str, str] = {}
    for column in frame.columns:
        names.setdefault(uniform_heading(column), column)
    frame = frame.select(pl.col(column).alias(name) for name, column in names.items())
    frame = frame.select(pl.all().str.strip_chars(' \t\r\n"'))
    return frame.select(
        pl.when(~pl.col(c).is_in(ABSENT)).then(pl.col(c)).alias(c) for c in frame.columns
    )


def uniform_heading(text: str) -> str:
    """A heading in a uniform spelling: lower case, words joined by underscores, the unit last."""
    match = _HEADING.match(text.replace("\ufeff", "").strip())
    name, unit = (match["name"], match["unit"]) if match else (text, None)
    if unit is not None and len(unit) > 5:  # words, not a unit
        name, unit = f"{name} {unit}", None
    unit = {"%": "pct"}.get(unit or "", unit)
    words = "_".join(re.findall(r"[A-Za-z0-9]+", name)).lower()
    return f"{words}_{unit.replace('/', '_per_')}" if unit else words


def has(frame: pl.DataFrame, *names: str) -> str | None:
    """The first of some columns that the frame has."""
    return next((name for name in names if name in frame.columns), None)


def text_column(frame: pl.DataFrame, *names: str) -> pl.Expr:
    """The first of some columns that the frame has, else null, as text."""
    name = has(frame, *names)
    return pl.lit(None, pl.String) if name is None else pl.col(name)


def int_column(frame: pl.DataFrame, *names: str) -> pl.Expr:
    """The first of some columns that the frame has, as int64; null where a cell is not a whole
    number.
    """
    return text_column(frame, *names).str.replace(r"\.0+$", "").cast(pl.Int64, strict=False)


def float_column(frame: pl.DataFrame, *names: str) -> pl.Expr:
    """The first of some columns that the frame has, as float64."""
    return text_column(frame, *names).cast(pl.Float64, strict=False)


def time_ns(frame: pl.DataFrame, *stems: str, unreadable: int | None = None) -> pl.Expr:
    """The first of some columns of times as int64 ns, converted from the unit that its heading
    names.
    """
    for stem in stems:
        for unit, factor in NS_PER_UNIT.items():
            if (name := f"{stem}_{unit}") in frame.columns:
                return ns_of_text(pl.col(name), factor, unreadable)
        if (
            stem in frame.columns
        ):  # versions of 2023 do not write the unit of start times: us, or ns since the epoch
            scaled_ns = ns_of_text(pl.col(stem), unreadable=unreadable)
            whole_ns = (
                pl.col(stem).str.extract(r"^\s*(\d{18,19})\s*$", 1).cast(pl.Int64, strict=False)
            )
            return pl.coalesce(whole_ns, scaled_ns)
    return pl.lit(None, pl.Int64)


def size_bytes(frame: pl.DataFrame, *stems: str) -> pl.Expr:
    """The first of some columns of sizes as int64 bytes, converted from the unit that its
    heading names.
    """
    for stem in stems:
        for unit, factor in BYTES_PER_UNIT.items():
            if f"{stem}_{unit}" in frame.columns:
                return (
                    (float_column(frame, f"{stem}_{unit}") * factor)
                    .round()
                    .cast(pl.Int64, strict=False)
                )
    return pl.lit(None, pl.Int64)


def ns_of_text(value: pl.Expr, factor: int = 1000, unreadable: int | None = None) -> pl.Expr:
    """Times as decimal text in a unit of ``factor`` ns, exactly, as int64 ns; ``unreadable`` for
    text that is none.
    """
    if unreadable is not None:
        return pl.when(value.is_not_null()).then(ns_of_text(value, factor).fill_null(unreadable))
    # float64 cannot hold epoch microseconds with a fraction exactly, so the digits are converted as
    # text.
    digits = len(str(factor)) - 1
    if not digits:
        return value.str.extract(r"^\s*(-?\d+)").cast(pl.Int64, strict=False)
    sign, whole_part, fraction = (
        value.str.extract(r"^\s*(-)", 1),
        value.str.extract(r"^\s*[-+]?(\d+)(?:\.\d*)?\s*$", 1),
        value.str.extract(r"^\s*[-+]?\d*\.(\d*)\s*$", 1).fill_null(""),
    )
    kept = fraction.str.slice(0, digits).str.pad_end(digits, "0").cast(pl.Int64, strict=False)
    rounded = (
        pl.when(fraction.str.slice(digits, 1).cast(pl.Int64, strict=False).fill_null(0) >= 5)
        .then(1)
        .otherwise(0)
    )
    units = whole_part.cast(pl.Int64, strict=False)
    plain = pl.when(units <= MOST_NS // factor).then(units * factor + kept + rounded)
    signed = pl.when(sign.is_not_null()).then(-plain).otherwise(plain)
    wide = (value.cast(pl.Float64, strict=False) * factor).round()  # 1e-05 and the like
    wide = pl.when(wide.abs() <= MOST_NS).then(wide).cast(pl.Int64, strict=False)
    return pl.coalesce(signed, wide)


TABLES: Final = (
    "TASK",
    "PYTORCH_API",
    "CANN_API",
    "COMMUNICATION_OP",
    "COMPUTE_TASK_INFO",
    "AICORE_FREQ",
    "NPU_MEM",
)
"""Tables of recordings: a database with at least one of them is a recording."""


class Database:
    """A database file, with the columns of its tables and the texts of identifiers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite.connect(path) as connection:
            self.columns = sqlite.database_tables(connection)

    def read(
        self,
        table: str,
        whole: Iterable[str] = (),
        numbers: Iterable[str] = (),
        texts: Iterable[str] = (),
    ) -> pl.DataFrame | None:
        """Columns of a table; a missing column is all null. None if the table is missing."""
        if table not in self.columns:
            return None
        types: dict[str, pl.DataType] = dict.fromkeys(whole, pl.Int64())
        types |= dict.fromkeys(numbers, pl.Float64()) | dict.fromkeys(texts, pl.String())
        existing = {c: t for c, t in types.items() if c in self.columns[table]}
        if not existing:
            return None
        frame = sqlite.read(self.path, table, existing).select(
            pl.col(c).cast(t, strict=False) if c in existing else pl.lit(None, t).alias(c)
            for c, t in types.items()
        )
        return frame.with_columns(pl.col(c).fill_null(IMPOSSIBLE) for c in types if c == "startNs")

    @cached_property
    def strings(self) -> dict[int, str]:
        """Texts by identifier."""
        rows = self.read("STRING_IDS", ("id",), texts=("value",))
        return {} if rows is None else dict(rows.drop_nulls().iter_rows())

    def named(self, column: str) -> pl.Expr:
        """Texts of a column of identifiers; null for a missing value."""
        value = pl.col(column).replace_strict(self.strings, default=None, return_dtype=pl.String)
        return pl.when(~value.is_in(["", "N/A"])).then(value)

    def enum(self, table: str, default: Mapping[int, str] | None = None) -> dict[int, str]:
        """Names of an enumeration."""
        rows = self.read(table, ("id",), texts=("name",))
        return dict(default or {}) if rows is None else dict(rows.drop_nulls().iter_rows())


def is_database(path: Path) -> bool:
    """Whether a file is a database of torch_npu or msprof."""
    try:
        with path.open("rb") as file:
            if file.read(len(sqlite.MAGIC)) != sqlite.MAGIC:
                return False
        with sqlite.connect(path) as connection:
            names = sqlite.database_tables(connection)
    except (OSError, ReadError):
        return False
    recorded = "STRING_IDS" in names and (
        any(table in names for table in TABLES) or bool(names.refused)
    )
    return recorded or "StepTraceTime" in names or "CommAnalyzerTime" in names


def hccl_times(path: Path) -> pl.DataFrame | None:
    """Times of each call by HCCL's own analysis (ns) and the hash of its group, from
    ``analysis.db``; None if it has none.
    """
    db = Database(path)
    columns = {
        "transit_time": "ascend_transit_ns",
        "wait_time": "ascend_wait_ns",
        "synchronization_time": "ascend_synchronization_ns",
        "idle_time": "ascend_idle_ns",
    }
    rows = db.read("CommAnalyzerTime", numbers=tuple(columns), texts=("hccl_op_name", "group_name"))
    for note in db.columns.notes():
        warnings.warn(f"{path.name}: {note}", TraceWarning, stacklevel=2)
    if rows is None:
        return None
    return rows.select(
        name="hccl_op_name",
        _hash="group_name",
        **{
            new: (pl.col(old) * 1e6).round().cast(pl.Int64, strict=False)
            for old, new in columns.items()
        },
    ).filter(pl.col("name") != "Total Op Info")
