"""SQLite databases of torch_npu and msprof: their tables, with texts in place of identifiers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.storage import sqlite

TABLES: Final = ("TASK", "PYTORCH_API", "CANN_API", "COMMUNICATION_OP", "COMPUTE_TASK_INFO", "AICORE_FREQ", "NPU_MEM")
"""Tables of which a recording has at least one."""


class Database:
    """One file: which tables it has, and their columns with texts in place of identifiers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite.connect(path) as connection:
            self.columns = sqlite.tables(connection)
        self._strings: dict[int, str] | None = None

    def read(
        self, table: str, whole: Iterable[str] = (), numbers: Iterable[str] = (), texts: Iterable[str] = ()
    ) -> pl.DataFrame | None:
        """Columns of a table, those that are missing as nulls; None where the table is absent."""
        if table not in self.columns:
            return None
        wanted: dict[str, pl.DataType] = dict.fromkeys(whole, pl.Int64())
        wanted |= dict.fromkeys(numbers, pl.Float64())
        wanted |= dict.fromkeys(texts, pl.String())
        there = {c: t for c, t in wanted.items() if c in self.columns[table]}
        if not there:
            return None
        frame = sqlite.read(self.path, table, there)
        return frame.select(
            pl.col(c).cast(t, strict=False) if c in there else pl.lit(None, dtype=t).alias(c) for c, t in wanted.items()
        )

    @property
    def strings(self) -> dict[int, str]:
        """Texts by identifier."""
        if self._strings is None:
            found = self.read("STRING_IDS", ("id",), texts=("value",))
            self._strings = {} if found is None else dict(found.drop_nulls().iter_rows())
        return self._strings

    def named(self, column: str) -> pl.Expr:
        """Texts of a column of identifiers, null for what says nothing."""
        value = pl.col(column).replace_strict(self.strings, default=None, return_dtype=pl.String)
        return pl.when(~value.is_in(["", "N/A"])).then(value)

    def enum(self, table: str, default: Mapping[int, str] | None = None) -> dict[int, str]:
        """Names of an enumeration."""
        found = self.read(table, ("id",), texts=("name",))
        return dict(default or {}) if found is None else dict(found.drop_nulls().iter_rows())


def is_database(path: Path) -> bool:
    """Whether a file is a database of torch_npu or msprof."""
    try:
        with path.open("rb") as file:
            if file.read(len(sqlite.MAGIC)) != sqlite.MAGIC:
                return False
        with sqlite.connect(path) as connection:
            found = sqlite.tables(connection)
    except (OSError, ReadError):
        return False
    recorded = "STRING_IDS" in found and bool(set(TABLES) & set(found))
    return recorded or bool({"StepTraceTime", "CommAnalyzerTime"} & set(found))


def communication_times(path: Path) -> pl.DataFrame | None:
    """HCCL's own times of each call and the hash of its group, of ``analysis.db``; None where it has none."""
    db = Database(path)
    columns = {
        "transit_time": "ascend_transit_ns", "wait_time": "ascend_wait_ns",
        "synchronization_time": "ascend_synchronization_ns", "idle_time": "ascend_idle_ns",
    }  # fmt: skip
    found = db.read("CommAnalyzerTime", numbers=tuple(columns), texts=("hccl_op_name", "group_name"))
    if found is None:
        return None
    return found.select(
        name="hccl_op_name", _hash="group_name",
        **{new: (pl.col(old) * 1e6).round().cast(pl.Int64, strict=False) for old, new in columns.items()},
    ).filter(pl.col("name") != "Total Op Info")  # fmt: skip
