"""Queries in SQL that a timeline is asked: their results as tables, places and rows of the
timeline.
"""

import re
from typing import Any, Final

import numpy as np
import polars as pl

from llmprof.errors import AnalysisError, LlmprofError
from llmprof.explore.timeline.data import TimelineData
from llmprof.explore.timeline.rows import QUERY_GROUP, QUERY_KIND, TimelineRow, spans
from llmprof.trace.storage.sql import CALLABLE

BLOCK: Final = 200
"""Most rows of one answer."""

LONGEST: Final = 300
"""Most characters of a value that is shown."""

EXPORTED: Final = 200_000
"""Most rows of a file that the browser writes; the frame in Python has them all."""

WORDS: Final = tuple(sorted({"select", "from", "where", "order by", "group by", "desc", *CALLABLE}))
"""What a query may have beside tables and columns."""


_PREFIX: Final = re.compile(
    r"^the SQL query(?:, line \d+, column \d+:| cannot be answered:)? |(?: \(line \d+, column"
    r" \d+\))$"
)
"""What an error says of the place, which is said apart."""


class Queries:
    """The last result of a query, in an order."""

    def __init__(self, data: TimelineData) -> None:
        self._data = data
        self.text, self.frame = "", pl.DataFrame()
        self.drawn: list[str] = []
        """Statements whose results are rows of the timeline."""
        self._sorted: tuple[str, pl.DataFrame] = ("", self.frame)

    def tables(self) -> list[dict[str, Any]]:
        """Tables of the trace and their columns."""
        trace = self._data.trace
        return [
            {"name": name, "columns": trace.capture.scan(name).collect_schema().names()}
            for name in trace.table_names
        ]

    def run(self, text: str) -> dict[str, Any]:
        """Run a query: its columns and first rows, or what is wrong with it and where."""
        try:
            frame = self._data.trace.sql(text)
        except LlmprofError as error:
            where = {name: error.facts.get(name) for name in ("line", "column")}
            known = "cannot be answered" in error.found
            words = [
                _PREFIX.sub("", error.found),
                *([] if known else [f"expected {error.expected}", error.hint]),
            ]
            return self._said(text) | {"problem": "; ".join(filter(None, words)), **where}
        self.text, self.frame, self._sorted = text, frame, ("", frame)
        return self._said(text)

    def _said(self, text: str) -> dict[str, Any]:
        names = set(self.frame.columns)
        columns = [
            {"name": name, "number": kind.is_numeric()} for name, kind in self.frame.schema.items()
        ]
        known = text == self.text
        return {
            "problem": "",
            "line": None,
            "column": None,
            "python": statement(text),
            "columns": columns if known else [],
            "total": self.frame.height if known else 0,
            "rows": self.rows(0, BLOCK, "") if known else [],
            "places": known and "start_ns" in names,
            "spans": known and {"start_ns", "dur_ns"} <= names,
        }

    def ordered(self, sort: str) -> pl.DataFrame:
        """The result, sorted by a column (with - in front: the greatest first)."""
        column = sort.removeprefix("-")
        if self._sorted[0] != sort:
            frame = self.frame
            if column in frame.columns:
                frame = frame.sort(
                    column, descending=sort.startswith("-"), nulls_last=True, maintain_order=True
                )
            self._sorted = sort, frame
        return self._sorted[1]

    def rows(self, first: int, count: int, sort: str) -> list[list[str]]:
        """Some rows as text."""
        some = self.ordered(sort).slice(max(first, 0), min(max(count, 0), BLOCK))
        return [[_text(value) for value in row] for row in some.iter_rows()]

    def place(self, row: int, sort: str) -> tuple[int | None, tuple[float, float]]:
        """Rank (None where it is not said) and range of time of a row of the result."""
        frame = self.ordered(sort)
        if not 0 <= row < frame.height or "start_ns" not in frame.columns:
            raise AnalysisError("this row has no time", expected="a column start_ns in the result")
        record = frame.row(row, named=True)
        start, dur, rank = record["start_ns"], record.get("dur_ns") or 0, record.get("rank")
        if not isinstance(start, int | float) or not isinstance(dur, int | float):
            raise AnalysisError(
                "this row has no time", expected="a number (ns) as start_ns and as dur_ns"
            )
        return rank if rank in self._data.trace.ranks else None, (
            float(start),
            float(start) + max(float(dur), 1.0),
        )

    def track(self) -> int:
        """Add the result to the timeline as a row of its own, behind all others; its number."""
        frame = self.frame
        missing = [
            name
            for name in ("start_ns", "dur_ns")
            if name not in frame.columns or not frame[name].dtype.is_numeric()
        ]
        if missing:
            found = f"the result has no column {' and no '.join(missing)}"
            raise AnalysisError(found, expected="start_ns and dur_ns, in ns")
        frame = frame.drop_nulls(["start_ns", "dur_ns"])
        if not frame.height:
            raise AnalysisError("the result has no rows", expected="at least one span")
        data = self._data
        name = next(
            (one for one in ("name", "label", "kind", "stage") if one in frame.columns), None
        )
        texts = frame.select(
            pl.lit("query") if name is None else pl.col(name).cast(pl.String)
        ).to_series()
        texts = texts if texts.len() == frame.height else pl.Series(["query"] * frame.height)
        number = 1 + sum(row.kind.startswith(QUERY_KIND) for row in data.drawn)
        made = frame.select(pl.col("start_ns", "dur_ns").cast(pl.Int64)).with_columns(
            data.names.numbers(texts),
            data.keys.codes("category", pl.Series("code", ["marker"] * frame.height)),
            id=pl.int_range(pl.len(), dtype=pl.UInt32),
        )
        kind = f"{QUERY_KIND} {number}"
        row = TimelineRow(kind, QUERY_GROUP, kind, spans(made.sort("start_ns", -pl.col("dur_ns"))))
        data.queried[kind] = frame
        data.drawn.append(row)
        self.drawn.append(self.text)
        return len(data.drawn) - 1

    def restore(self, text: str) -> None:
        """Make the row of a saved view again; a query that this version cannot answer raises."""
        problem = self.run(text)["problem"]
        if problem:
            raise AnalysisError(
                f"a row of the view cannot be made: {problem}",
                expected="a query that runs",
                hint=text,
            )
        self.track()


def statement(text: str) -> str:
    """The query as a statement of Python."""
    if "\n" in text and "\\" not in text and '"""' not in text and not text.endswith('"'):
        return f'trace.sql("""\n{text}\n""")'
    return f"trace.sql({text!r})"


def _text(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) and np.isfinite(value) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
