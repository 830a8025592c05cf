"""Which tables and columns of a trace somebody asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from llmprof import schema
from llmprof.errors import LlmprofError
from llmprof.trace import Trace

Tables = Iterable[str] | Mapping[str, Iterable[str] | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to keep; a table is missing in :attr:`asked` if it is not wanted, and has None for all its columns."""

    asked: Mapping[str, frozenset[str] | None] | None = None
    """None: everything."""

    @classmethod
    def of(cls, tables: Tables | None) -> Wanted:
        """What the argument ``tables`` of :func:`llmprof.read` means.

        Raises
        ------
        LlmprofError
            It names no table, or a table or a column that the schema does not have.
        """
        if tables is None:
            return cls()
        if isinstance(tables, str):
            tables = (tables,)
        given = tables if isinstance(tables, Mapping) else dict.fromkeys(tables)
        if not given:
            raise LlmprofError("tables= names no table", expected=f"some of {list(schema.TABLES)}")
        if unknown := [name for name in given if name not in schema.TABLES]:
            raise LlmprofError(f"there is no table {unknown}", expected=f"some of {list(schema.TABLES)}")
        asked = {name: None if columns is None else frozenset(columns) for name, columns in given.items()}
        for name, columns in asked.items():
            known = schema.TABLES[name].schema
            if unknown := sorted(
                c for c in columns or () if c not in known and not c.startswith(schema.VENDOR_PREFIXES)
            ):
                raise LlmprofError(f"table {name} has no column {unknown}", expected=f"some of {list(known)}")
        return cls(asked)

    def __contains__(self, table: str) -> bool:
        return self.asked is None or table in self.asked

    def has(self, table: str, column: str) -> bool:
        """Whether a column of a table is wanted."""
        if self.asked is None:
            return True
        columns = self.asked.get(table, frozenset())
        return columns is None or column in columns

    def columns_of(self, table: str) -> frozenset[str] | None:
        """Columns of a wanted table; None for all."""
        return None if self.asked is None else self.asked[table]

    def narrowed(self, frame: pl.DataFrame, table: str) -> pl.DataFrame:
        """The columns of a frame that are wanted or may not be null."""
        columns = self.columns_of(table)
        if columns is None:
            return frame
        needed = {c.name for c in schema.TABLES[table].columns if not c.nullable}
        return frame.select(c for c in frame.columns if c in columns or c in needed)

    def part_of(self, trace: Trace, *, database: Path | None = None) -> Trace:
        """What is wanted of a trace."""
        if self.asked is None or trace.coverage.get("asked") == self.listed():
            return Trace(trace.tables, trace.meta, trace.coverage, database=database) if database else trace
        tables = {name: self.narrowed(frame, name) for name, frame in trace.tables.items() if name in self}
        return Trace(tables, trace.meta, trace.coverage | self.covered(tables), database=database)

    def covered(self, tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
        """What the coverage says of it: what was asked for, and the rows that were kept."""
        if self.asked is None:
            return {}
        return {
            "asked": self.listed(),
            "kept": sum(frame.height for name, frame in tables.items() if name != "collectives"),
        }

    def listed(self) -> dict[str, list[str] | None] | None:
        """The same as lists: for the coverage, and as a part of the cache's key."""
        if self.asked is None:
            return None
        return {
            name: None if self.asked[name] is None else sorted(self.asked[name] or ()) for name in sorted(self.asked)
        }
