"""Tables of a dataset that are loaded on first access."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import polars as pl

from llmprof.errors import ReadError, SchemaError
from llmprof.trace import schema
from llmprof.trace.schema import END
from llmprof.trace.storage import dataset
from llmprof.trace.storage.dataset import AGAIN, Partition, damage, read_manifest
from llmprof.trace.storage.files import checksum
from llmprof.trace.storage.parquet import check_head
from llmprof.trace.storage.places import Place

TIMES: Final = ("start_ns", "time_ns")
"""Columns that hold a time on the trace's clock; a table has at most one of them."""


def load(place: Place) -> tuple[Deferred, dict[str, Any], dict[str, Any]]:
    """Open a dataset; partitions that are missing or damaged are left out, and the coverage's
    warnings name them.
    """
    manifest = read_manifest(place)
    kept, lost = [], []
    folders = (
        set(place.names()) if not place.is_local else None
    )  # one request instead of one for each partition
    for partition in manifest.partitions:
        missing = "" if folders is None or partition.folder in folders else "its folder is missing"
        if why := damage(place, partition) if folders is None else missing:
            lost.append((partition, why))
        else:
            kept.append(partition)
    if not kept:
        why = f": {lost[0][1]}" if lost else ""
        raise ReadError(f"no partition of {place.root} can be used{why}", hint=AGAIN)
    meta, coverage = manifest.meta, manifest.coverage
    check_head(place.root, meta, coverage)
    if lost:
        meta, coverage = _without(meta, coverage, lost)
    tables = Deferred(place, tuple(kept), manifest.origin_ns, manifest.tables)
    return tables, {**meta, "dataset": place.root}, coverage


def _without(
    meta: dict[str, Any], coverage: dict[str, Any], lost: Sequence[tuple[Partition, str]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and coverage without partitions that cannot be used."""
    ranks = {partition.rank for partition, _ in lost}
    reasons = [
        f"rank {partition.rank} ({Path(partition.source).name}) is left out: {why}; convert its"
        " file again"
        for partition, why in lost
    ]
    files = [file for file in coverage.get("files", ()) if file.get("rank") not in ranks]
    counts: dict[str, Any] = {
        key: sum(file.get(key) or 0 for file in files)
        for key in ("events", "kept", "bytes", "lost_bytes", "lost_pieces")
        if key in coverage
    }
    missing = sorted({*meta.get("missing_ranks", ()), *(rank for rank in ranks if rank >= 0)})
    of_ranks = [rank for rank in meta.get("ranks", ()) if rank.get("rank") not in ranks]
    warnings = [*coverage.get("warnings", ()), *reasons]
    damaged = [
        {"rank": part.rank, "file": Path(part.source).name, "why": why} for part, why in lost
    ]
    return (
        {**meta, "missing_ranks": missing, "ranks": of_ranks},
        {**coverage, **counts, "files": files, "warnings": warnings, "damaged": damaged},
    )


T = TypeVar("T")

_TABLE_OF: Final = {kind: table for kind, (table, _) in dataset.HOST_ROWS.items()}


@dataclass(frozen=True, eq=False)
class Deferred(Mapping[str, pl.DataFrame]):
    """Tables of a dataset, or of a part of it, that are loaded on first access."""

    place: Place
    partitions: tuple[Partition, ...]
    origin_ns: int
    names: tuple[str, ...]
    window: tuple[float, float] | None = None
    _loaded: dict[str, pl.DataFrame] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_loaded": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.names if self.window is None or time_of(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.names and (self.window is None or bool(time_of(str(name))))

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self:
            raise KeyError(name)
        if name not in self._loaded:
            if self.window is None:  # a window reads only parts of the files
                self._check(name)
            self._loaded[name] = schema.conform(
                self.answer(name, lambda scan: scan.collect()), name
            )
        return self._loaded[name]

    def _check(self, name: str) -> None:
        """Raise if a file of a table is not as it was written."""
        for partition in self.partitions if self.place.is_local else ():
            file = Path(self.place.at(f"{partition.folder}/{name}.parquet"))
            stored = partition.tables.get(name)
            if stored is not None and file.is_file() and checksum(file) != stored.checksum:
                raise ReadError(
                    f"{name}.parquet of rank {partition.rank} is damaged"
                    f" ({Path(partition.source).name}): it is not as it was written",
                    hint="convert that file again, or leave the rank out: trace.select(rank=…)",
                    ranks=[partition.rank],
                )

    def narrow(
        self,
        *,
        ranks: Sequence[int] | None = None,
        window: tuple[float, float] | None = None,
        tables: Sequence[str] | None = None,
    ) -> Deferred:
        """Part of the tables: some ranks, a window of time (ns), or some tables; None leaves a
        choice as it is.
        """
        partitions, names, limits = self.partitions, self.names, self.window
        if ranks is not None:
            chosen = set(ranks)
            partitions = tuple(partition for partition in partitions if partition.rank in chosen)
        if tables is not None:
            names = tuple(name for name in names if name in tables)
        if window is not None:
            limits = (
                window if limits is None else (max(limits[0], window[0]), min(limits[1], window[1]))
            )
        return replace(self, partitions=partitions, names=names, window=limits, _loaded={})

    def scan(self, name: str) -> pl.LazyFrame:
        """Lazy frame of a table; the files are read when it is collected."""
        return self._scan(name, self.partitions)

    def _scan(self, name: str, partitions: Sequence[Partition]) -> pl.LazyFrame:
        time = time_of(name)
        first, last = self.window or (-math.inf, math.inf)
        files: dict[
            tuple[str, ...], list[str]
        ] = {}  # files by their columns: some ranks may lack those of a vendor
        for partition in partitions:
            stored, span = partition.tables.get(name), partition.span_ns
            begun = span is None or span[0] - self.origin_ns < last
            if stored is None or not stored.rows or not begun:
                continue
            if span is not None and span[1] - self.origin_ns < first:
                continue
            files.setdefault(stored.columns, []).append(f"{partition.folder}/{name}.parquet")
        if not files:
            return schema.empty(name).lazy()
        scans = [pl.scan_parquet(self.place.parquet(alike)) for alike in files.values()]
        scan = scans[0] if len(scans) == 1 else pl.concat(scans, how="diagonal_relaxed")
        if (
            time and self.window is not None
        ):  # on the stored times, so that Polars skips row groups outside the window
            low, high = (_bound(edge, self.origin_ns) for edge in self.window)
            scan = scan.filter(pl.col(time).is_between(low, high, closed="left"))
        return scan.with_columns(pl.col(time) - self.origin_ns) if time and self.origin_ns else scan

    def answer(self, name: str, ask: Callable[[pl.LazyFrame], T]) -> T:
        """Result of a function that collects the lazy frame of a table."""
        try:
            return ask(self.scan(name))
        except (
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
            OSError,
            SchemaError,
        ) as error:
            damaged = [p for p in self.partitions if name in p.tables and not self._reads(name, p)]
            if not damaged:
                raise ReadError(
                    f"the table {name} of {self.place.root} cannot be read: {error}"
                ) from error
            ranks = ", ".join(str(partition.rank) for partition in damaged[:8])
            why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            found = (
                f"{name}.parquet of rank {ranks} is damaged ({Path(damaged[0].source).name}: {why})"
            )
            hint = "convert that file again, or leave the rank out: trace.select(rank=…)"
            raise ReadError(
                found, hint=hint, ranks=[partition.rank for partition in damaged]
            ) from error

    def _reads(self, name: str, partition: Partition) -> bool:
        try:
            self._scan(name, [partition]).collect()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
            return False
        return True

    def threads(self) -> pl.DataFrame:
        """Threads of the host by rank and kind of row, as they were kept, or else found in the
        tables now.
        """
        if self.window is None and all(map(dataset.fits, self.partitions)):
            kept = [(part.rank, *row) for part in self.partitions for row in part.threads or ()]
            frame = pl.DataFrame(kept, schema={"rank": pl.Int32, **dataset.THREADS}, orient="row")
            frame = frame.with_columns(pl.col("first_ns", "last_ns") - self.origin_ns)
            spans = pl.min("first_ns"), pl.max("last_ns")
            frame = frame.group_by("rank", "kind", "thread", maintain_order=True).agg(
                pl.sum("count"), *spans
            )
            return frame.filter(pl.col("kind").replace_strict(_TABLE_OF).is_in(list(self)))
        names = [name for name in dict.fromkeys(_TABLE_OF.values()) if name in self]
        return dataset.thread_spans({name: self.scan(name) for name in names})

    def columns(self, name: str, columns: Sequence[str]) -> pl.DataFrame:
        """Some columns of a table; the others are not read."""
        if name in self._loaded:
            return self._loaded[name].select(columns)
        return self.answer(name, lambda scan: scan.select(columns).collect(engine="streaming"))

    @property
    def loaded(self) -> frozenset[str]:
        """Names of the tables that are in memory."""
        return frozenset(self._loaded)

    @property
    def ranks(self) -> list[int]:
        """Ranks with at least one row in any of the tables."""
        return sorted(
            {p.rank for p in self.partitions if any(self._rows_of(p, name) for name in self)}
        )

    def ranks_with(self, name: str) -> set[int]:
        """Ranks with rows in a table."""
        return {partition.rank for partition in self.partitions if self._rows_of(partition, name)}

    def _rows_of(self, partition: Partition, name: str) -> int:
        stored = partition.tables.get(name)
        return stored.rows if stored is not None else 0

    def rows(self, name: str) -> int:
        """Number of rows of a table in the chosen ranks and window."""
        if name in self._loaded:
            return self._loaded[name].height
        if self.window is None or not time_of(name):
            return sum(self._rows_of(partition, name) for partition in self.partitions)
        return int(self.answer(name, lambda scan: scan.select(pl.len()).collect()).item())

    @property
    def bytes(self) -> int:
        """Memory of the tables that are loaded (bytes)."""
        return sum(int(frame.estimated_size()) for frame in self._loaded.values())

    def span_ns(self) -> tuple[int, int] | None:
        """First start and last end of the events (ns from the start of the trace); None if only
        the tables tell it.
        """
        spans = [
            partition.span_ns for partition in self.partitions if partition.span_ns is not None
        ]
        recorded = {name for partition in self.partitions for name in partition.tables}
        if self.window is not None or not spans or recorded - set(self.names):
            return None
        return (
            min(span[0] for span in spans) - self.origin_ns,
            max(span[1] for span in spans) - self.origin_ns,
        )


def time_of(name: str) -> str | None:
    """Name of the column that holds a table's time; None for a table without times."""
    return next((column for column in TIMES if column in schema.TABLES[name].schema), None)


def _bound(edge: float, origin_ns: int) -> int:
    """Edge of a window on the clock of the files, rounded up to whole ns, which all stored times
    are.
    """
    if math.isinf(edge):
        return -(1 << 62) if edge < 0 else 1 << 62
    return math.ceil(edge) + origin_ns


def ranks_of(tables: Mapping[str, pl.DataFrame]) -> list[int]:
    """Ranks with at least one row in any of the tables, in order."""
    if isinstance(tables, Deferred):
        return tables.ranks
    columns = (frame["rank"] for frame in tables.values() if frame.height)  # in order
    parts = (one.head(1) if one[0] == one[-1] else one.unique() for one in columns)
    return sorted({rank for part in parts for rank in part})


def span_of_tables(tables: Mapping[str, pl.DataFrame]) -> tuple[int, int]:
    """First start and last end of the events in tables (ns); samples and memory count only if
    there are no events.
    """
    if isinstance(tables, Deferred) and (span := tables.span_ns()) is not None:
        return span
    return span_of_frames(tables) or (0, 0)


def span_of_frames(tables: Mapping[str, pl.DataFrame]) -> tuple[int, int] | None:
    """First start and last end of the events in frames, else of their samples (ns); None if
    there is none.
    """
    start, end = pl.col("start_ns"), END
    spans: list[tuple[Any, Any]] = [
        frame.select(start.min(), end=end.max()).row(0)
        for frame in tables.values()
        if "start_ns" in frame.columns and frame.height
    ]
    if not spans:
        sampled = [tables[name] for name in ("samples", "memory") if name in tables]
        times = [frame["time_ns"].drop_nulls() for frame in sampled if "time_ns" in frame.columns]
        spans = [(column.min(), column.max()) for column in times if column.len()]
    return (min(span[0] for span in spans), max(span[1] for span in spans)) if spans else None


def narrowed(
    tables: Mapping[str, pl.DataFrame],
    ranks: Sequence[int] | None,
    window: tuple[float, float] | None,
) -> Mapping[str, pl.DataFrame]:
    """Rows of some ranks that start in a window (ns from the start of the trace); None for all
    ranks or all times.
    """
    if isinstance(tables, Deferred):
        return tables.narrow(ranks=ranks, window=window)
    kept = {}
    for name, frame in tables.items():
        if ranks is not None:
            frame = frame.filter(pl.col("rank").is_in(list(ranks)))
        if window is not None:
            time = time_of(name)
            if time is None:
                continue  # sums over the whole recording do not hold for a part of it
            frame = frame.filter(pl.col(time).is_between(*window, closed="left"))
        kept[name] = frame
    return kept
