"""Schema of the tables of a trace, which ``schema.json`` holds.

Every reader calls :func:`conform` at its end, so an analysis can rely on the columns, their order,
types and units. Times are ``int64`` nanoseconds from the start of the trace (the earliest event of
any rank). Columns of a single vendor come last and have a prefix (``nsys_``, ``ascend_``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import polars as pl

from llmprof.errors import SchemaError, checked, listed

VERSION = 2
"""Version of the schema, which is part of saved traces and of the cache key."""

END = pl.col("start_ns") + pl.col("dur_ns")
"""End of what a row says the start and length of."""

VENDOR_PREFIXES = ("nsys_", "ascend_", "torch_", "rocm_", "ort_", "trt_", "nvprof_", "timer_")


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table: its type, its unit, whether it may be null, and its meaning in a line."""

    name: str
    dtype: pl.DataType
    meaning: str
    unit: str = ""
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Table: its columns in order, the meaning of a row, and the tools that record it."""

    name: str
    row: str
    columns: tuple[Column, ...]
    recorded_by: str

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """Column names and Polars types, in order."""
        return {c.name: c.dtype for c in self.columns}

    def empty(self) -> pl.DataFrame:
        """Frame of this table without rows."""
        return pl.DataFrame(schema=self.schema)


def _decoded_type(_: type, name: str) -> pl.DataType:
    """Type of a column by its name in Polars."""
    dtype: pl.DataType = getattr(pl, name)()
    return dtype


_ALL = msgspec.json.decode(
    Path(__file__).with_name("schema.json").read_bytes(),
    type=list[Table],
    dec_hook=_decoded_type,
)
PROFILES: dict[str, Table] = {t.name: t for t in _ALL if t.name in ("metrics", "rules")}
"""Tables of hardware metrics, which are not part of a trace."""

TABLES: dict[str, Table] = {t.name: t for t in _ALL if t.name not in PROFILES}


@checked
def empty(table: str) -> pl.DataFrame:
    """Frame of a table without rows.

    >>> empty("copies").height
    0
    """
    return _spec(table).empty()


@checked
def fit_columns(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Bring a frame into the columns of a table, in order and with its types; the rows stay as
    they are.
    """
    # Columns that are missing become null; one that may not be null, or a type that does not cast,
    # raises an error.
    exprs = []
    for column in table.columns:
        if column.name in frame.columns:
            exprs.append(pl.col(column.name).cast(column.dtype))
        elif column.nullable:
            exprs.append(pl.lit(None, column.dtype).alias(column.name))
        else:
            raise SchemaError(
                f"table {table.name} lacks the column {column.name}", expected=column.meaning
            )
    try:
        out = frame.select(exprs)
    except (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError) as error:
        raise SchemaError(f"table {table.name} has a column of a wrong type: {error}") from error
    if bad := [c.name for c in table.columns if not c.nullable and out[c.name].null_count()]:
        raise SchemaError(
            f"table {table.name} has nulls in {listed(bad)}", expected="a value in every row"
        )
    return out


@checked
def conform(
    frame: pl.DataFrame, table: str, columns: Collection[str] | None = None
) -> pl.DataFrame:
    """Bring a frame into the form of a table: columns in order, types cast, missing ones null,
    sorted by rank and time.

    Vendor columns with a prefix stay, after the table's own. Of the nullable columns only those in
    ``columns`` are kept, if it is given. What is unknown, does not cast or may not be null raises
    an error.
    """
    spec = _spec(table)
    known = spec.schema
    vendor = [c for c in frame.columns if c not in known]
    if unknown := [c for c in vendor if not c.startswith(VENDOR_PREFIXES)]:
        found = f"table {table} does not have the columns {listed(unknown)}"
        expected = (
            f"columns of {listed(known)} or names that begin with one of {listed(VENDOR_PREFIXES)}"
        )
        raise SchemaError(found, expected=expected, hint="rename or drop them in the reader")
    if columns is not None:
        spec = replace(
            spec, columns=tuple(c for c in spec.columns if not c.nullable or c.name in columns)
        )
        vendor = [c for c in vendor if c in columns]
    out = fit_columns(frame, spec)
    if vendor:
        out = out.hstack(frame.select(vendor))
    time = next((name for name in ("start_ns", "time_ns") if name in out.columns), None)
    if time is None:  # sums without times stay in the order of the file
        return out.sort("rank", maintain_order=True)
    a, b = pl.col("rank"), pl.col(time)
    above = (a > a.shift()) | ((a == a.shift()) & (b >= b.shift()))  # null in the first row
    return compact(
        out.rechunk()
        if out.select(above.all()).item()
        else out.sort("rank", time, maintain_order=True)
    )


_MANY_ROWS = 1 << 12


@checked
def compact(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame; if it is long, columns of one value are constants, which take no memory, nor do
    their copies.
    """
    if frame.height < _MANY_ROWS:
        return frame
    same = [
        column
        for column in frame.iter_columns()
        if not column.dtype.is_nested()
        and column[0] == column[-1]
        and column.eq_missing(column.head(1)).all()
    ]
    return frame.with_columns(
        pl.lit(column[0]).cast(column.dtype).alias(column.name) for column in same
    )


def _spec(table: str) -> Table:
    if table not in TABLES:
        raise SchemaError(f"there is no table {table!r}", expected=f"one of {listed(TABLES)}")
    return TABLES[table]


@checked
def describe(tables: Mapping[str, Table] = TABLES) -> pl.DataFrame:
    """Schema as a frame: ``table, column, dtype, unit, nullable, meaning``."""
    rows = [
        (t.name, c.name, str(c.dtype), c.unit, c.nullable, c.meaning)
        for t in tables.values()
        for c in t.columns
    ]
    return pl.DataFrame(
        rows, schema=["table", "column", "dtype", "unit", "nullable", "meaning"], orient="row"
    )
