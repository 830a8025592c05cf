"""SQL over frames: one query that reads, answered by Polars."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import polars as pl

from llmprof.errors import AnalysisError

__all__ = ["query"]

_READS: Final = ("select", "with", "from", "values", "show", "explain")
_ASIDE: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Strings, quoted names and comments."""

_OF_FILES: Final = re.compile(r"\b(?:read|scan)_\w+\s*\(", re.IGNORECASE)
"""Functions of Polars' SQL that read files, also over the network."""


def query(frames: Mapping[str, pl.DataFrame], sql: str) -> pl.DataFrame:
    """Answer of an SQL query as a frame.

    Parameters
    ----------
    frames : mapping of str to polars.DataFrame
        Tables by name.
    sql : str
        One statement that reads, in the dialect of Polars: ``SELECT``, ``WITH``, ``SHOW TABLES``, ``EXPLAIN``.

    Returns
    -------
    polars.DataFrame
        Columns as the query names them.

    Raises
    ------
    AnalysisError
        The query is not valid for the tables, does something else than read, or reads files.

    Examples
    --------
    >>> query({"kernels": pl.DataFrame({"name": ["a", "b"]})}, "select count(*) as count from kernels").item()
    2
    """
    bare = _ASIDE.sub(" ", sql)
    words = re.findall(r"\w+", bare)
    if not words or words[0].lower() not in _READS:
        raise AnalysisError(
            f"the SQL query begins with {words[0].upper() if words else 'nothing'}",
            expected=f"one that reads: {', '.join(word.upper() for word in _READS)}",
        )
    if found := _OF_FILES.search(bare):
        raise AnalysisError(
            f"the SQL query calls {found[0]}…)",
            expected=f"a query over the tables {', '.join(frames)}",
            hint="read files with polars and join the frames",
        )
    try:
        with pl.SQLContext(frames=dict(frames), eager=True) as context:
            return context.execute(sql)
    except pl.exceptions.PolarsError as error:
        raise AnalysisError(
            f"the SQL query cannot be answered: {str(error).strip().splitlines()[0]}",
            expected=f"one statement over the tables {', '.join(frames) or '(none was recorded)'}",
            hint="docs/schema.md lists their columns",
        ) from error
