"""History of a server's counters in three levels of detail, of bounded size, in SQLite with a
checksum of each.
"""

from __future__ import annotations

import io
import os
import sqlite3
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import AnalysisError, ReadError
from llmprof.run.live.counters import LENGTHS, QUANTILES, SAMPLE, TIMES
from llmprof.trace.storage import files, sqlite, typed
from llmprof.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Level:
    """One level of detail: rows of ``every_s`` seconds (0: as they were read), at most ``rows``
    of them.
    """

    name: str
    every_s: int
    rows: int


LEVELS: Final = (
    Level("recent", 0, 10_000),
    Level("minutes", 60, 10_080),
    Level("hours", 3600, 8_760),
)
"""Ten thousand readings, a week of minutes, a year of hours."""

_BUFFER: Final = 500
_SUMMED: Final = tuple(f"{name}_count" for name in (*TIMES, *LENGTHS))
_MEANS: Final = tuple(f"{name}_mean" for name in (*TIMES, *LENGTHS))
_QUANTILES: Final = tuple(f"{name}_{part}" for name in TIMES for part in QUANTILES)
_EMPTY: Final = pl.DataFrame(schema=SAMPLE)


def coarser(rows: pl.DataFrame, every_s: int) -> pl.DataFrame:
    """Rows of a coarser level.

    Values of the moment and rates are averaged over time, means over their requests; quantiles are
    medians of those of the rows, since quantiles cannot be added up; counts are summed.
    """
    every_ns = every_s * NS_PER_S
    plain = [
        name
        for name in SAMPLE
        if name not in {"time_ns", "seconds", *_SUMMED, *_MEANS, *_QUANTILES}
    ]

    def mean(name: str, weight: str) -> pl.Expr:
        known = pl.col(name).is_not_null()
        return (pl.col(name) * pl.col(weight)).sum() / pl.col(weight).filter(known).sum()

    grouped = rows.group_by(pl.col("time_ns") // every_ns * every_ns, maintain_order=True).agg(
        pl.sum("seconds"),
        *(mean(name, "seconds").alias(name) for name in plain),
        *(pl.col(name).median() for name in _QUANTILES),
        *(mean(name, name.replace("_mean", "_count")).alias(name) for name in _MEANS),
        *(
            pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)
            for name in _SUMMED
        ),
    )
    return (
        grouped.with_columns(pl.col(pl.Float64).fill_nan(None))
        .select(list(SAMPLE))
        .cast(pl.Schema(SAMPLE))
    )


@dataclass(slots=True)
class WatchHistory:
    """History in a folder.

    A row that does not fit any more goes, the oldest first; the file is small.
    """

    folder: Path
    frames: dict[str, pl.DataFrame] = field(
        default_factory=lambda: {level.name: _EMPTY for level in LEVELS}
    )
    _new: list[Mapping[str, Any]] = field(default_factory=list)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> WatchHistory:
        """The history in a folder; a damaged one is set aside, and a new one begins."""
        made = cls(Path(folder))
        if made.file.exists():
            try:
                made.frames = stored(made.file)
            except ReadError as error:
                typed.set_aside(made.file, error)
        return made

    @property
    def file(self) -> Path:
        """The database."""
        return self.folder / "history.sqlite"

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a reading; it is on disk after the next :meth:`store`."""
        self._new.append(row)
        if len(self._new) >= _BUFFER:
            self._take()

    def recent(self) -> pl.DataFrame:
        """The readings that are kept, the oldest first."""
        self._take()
        return self.frames["recent"]

    def hours(self) -> pl.DataFrame:
        """Every hour that is kept, the oldest first."""
        self._take()
        return self.frames["hours"]

    def store(self) -> None:
        """Write what is new; if that fails, the file stays as it was, and the rows in memory."""
        self._take()
        files.made(self.folder)
        with closing(sqlite3.connect(":memory:")) as database:
            with database:
                database.execute(
                    "CREATE TABLE levels (name TEXT PRIMARY KEY, content BLOB, checksum INTEGER)"
                )
                for name, frame in self.frames.items():
                    made = io.BytesIO()
                    frame.write_parquet(made, compression="zstd")
                    row = (name, made.getvalue(), zlib.crc32(made.getvalue()))
                    database.execute("INSERT INTO levels VALUES (?, ?, ?)", row)
            files.write(self.file, database.serialize())

    def _take(self) -> None:
        """Put the new rows into each level."""
        if not self._new:
            return
        rows = pl.DataFrame(self._new, schema=SAMPLE, orient="row")
        self._new = []
        for level in LEVELS:
            before = self.frames[level.name]
            if not level.every_s:
                both = pl.concat([before, rows])
            else:
                added = coarser(rows, level.every_s)
                # a clock that was set back lands in a row that exists: both are one row then
                same = before.join(added, on="time_ns", how="semi")
                rest = before.join(added, on="time_ns", how="anti")
                both = pl.concat([rest, coarser(pl.concat([same, added]), level.every_s)]).sort(
                    "time_ns"
                )
            self.frames[level.name] = both.tail(level.rows)


def stored(file: Path) -> dict[str, pl.DataFrame]:
    """Frames by level in the file of a history.

    Polars sees no byte that was not written: it may abort on others.
    """
    with sqlite.connect(file) as database:
        if "levels" not in sqlite.database_tables(database):
            raise ReadError(
                f"{file} is not a history",
                expected="the file that llmprof watch writes",
                hint=typed.AGAIN,
            )
        rows = database.execute("SELECT name, content, checksum FROM levels").fetchall()
    found = {
        name: content
        for name, content, crc in rows
        if isinstance(content, bytes) and zlib.crc32(content) == crc
    }
    if found.keys() != {level.name for level in LEVELS}:
        raise ReadError(f"{file} is damaged: a checksum is wrong", hint=typed.AGAIN)
    try:
        return {level.name: _conformed(pl.read_parquet(found[level.name])) for level in LEVELS}
    except pl.exceptions.PolarsError as error:
        raise ReadError(f"{file} is of another version: {error}", hint=typed.AGAIN) from error


def _conformed(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows with the columns of this version; a column that came later is null."""
    later = [
        pl.lit(None).alias(name)
        for name in SAMPLE
        if name not in frame.columns and name != "time_ns"
    ]
    return frame.with_columns(later).select(list(SAMPLE)).cast(pl.Schema(SAMPLE))


def history(folder: str | os.PathLike[str]) -> pl.DataFrame:
    """Read the history that ``llmprof watch`` keeps of a server: every reading, then minutes, then
    hours.

    Parameters
    ----------
    folder : path
        Folder of the watch.

    Returns
    -------
    polars.DataFrame
        ``level`` (recent, minutes, hours), ``time_ns`` (since the epoch; of minutes and hours the
        beginning), ``seconds`` that were observed, ``running, waiting`` (requests), ``kv_usage,
        hit_rate`` (shares), ``prompt_tokens_per_s, output_tokens_per_s, requests_per_s`` (that
        ended), ``arrivals_per_s`` (that came), ``preemptions_per_s``, of each time (``ttft, tpot,
        e2e, queue, prefill, decode``, in seconds) ``…_p50, …_p90, …_p99, …_mean`` and the number
        ``…_count``, and ``prompt_length_mean, output_length_mean, step_tokens_mean`` (tokens).
        Null: not known.

    Raises
    ------
    ReadError
        The folder has no history, or a damaged one.

    Examples
    --------
    >>> llmprof.run.live.history("results/watch_127.0.0.1-8000")["ttft_p99"].max()  # doctest: +SKIP
    """
    file = WatchHistory(Path(folder) / FOLDER).file
    if not file.is_file():
        raise ReadError(
            f"{folder} has no history of a server", expected="the folder that llmprof watch writes"
        )
    levels = stored(file).items()
    return pl.concat(
        [frame.select(pl.lit(name).alias("level"), pl.all()) for name, frame in levels]
    )


FOLDER: Final = "history"
"""Folder of the history within that of a watch."""


def best_hour(hours: pl.DataFrame, by: str = "tpot_mean") -> dict[str, Any]:
    """The hour under load in which a further token took least time, of those with half an hour
    of observation.
    """
    usable = hours.filter(
        (pl.col("seconds") >= 1800) & (pl.col("output_tokens_per_s") > 0)
    ).drop_nulls(by)
    if usable.is_empty():
        found = "the history has no hour with load that was observed for half an hour"
        raise AnalysisError(
            found, hint="watch longer, or give baseline=, a folder of an earlier capture"
        )
    return usable.sort(by).row(0, named=True)
