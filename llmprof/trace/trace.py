"""The trace of a run: frames of one schema, metadata of the run, and counts of what was read and
lost.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from llmprof import text
from llmprof.errors import (
    AnalysisError,
    LlmprofError,
    NotCapturedError,
    Window,
    checked,
    listed,
    no_attribute,
    several,
)
from llmprof.names import table_fingerprint
from llmprof.trace import communication, schema
from llmprof.trace.capture import Capture
from llmprof.trace.storage import files, parquet, sql, sqlite
from llmprof.trace.storage.deferred import Deferred, narrowed, ranks_of, span_of_tables
from llmprof.trace.storage.parquet import META_FILE

if TYPE_CHECKING:
    from llmprof.trace.storage.pseudonyms import Pseudonyms

__all__ = ["META_FILE", "Trace"]


class Analyses:
    """Functions of :mod:`llmprof.analyze` with their first argument given."""

    def __init__(self, trace: Trace, room: str = "llmprof.analyze") -> None:
        self._trace, self._room = trace, room

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._room), name)
        if isinstance(found, ModuleType):
            return Analyses(self._trace, found.__name__)
        return functools.partial(found, self._trace)

    def __dir__(self) -> list[str]:
        return dir(import_module(self._room))


class Trace:
    """Frames of one run, one for each table of the schema.

    The functions of :mod:`llmprof.analyze` are its methods under ``trace.analyze``:
    ``trace.analyze.overlap()`` is ``analyze.overlap(trace)``.

    A table that was recorded without rows is an empty frame; access to a table that was not
    recorded raises :class:`~llmprof.errors.NotCapturedError`. A trace does not change: methods that
    select a part return a new trace, and its frames, ``meta`` and ``coverage`` are copies that the
    caller may change (copies of frames share their columns, so they cost nothing).

    Parameters
    ----------
    tables : mapping of str to polars.DataFrame
        Frames by table name; a missing table counts as not recorded. The tables of a dataset
        (:func:`llmprof.open`) are loaded at their first use.
    meta : mapping
        Facts about the run: ``format``, ``start_epoch_ns``, ``device``, ``world_size``,
        ``versions``, ``clock`` and ``ranks`` (a list with one mapping per rank).
    coverage : mapping
        Counts of the events and bytes that the reading kept and lost.
    database : pathlib.Path, optional
        The SQLite file that the trace was read from, for :meth:`sql`; it is not saved with the
        trace.
    """

    @checked
    def __init__(
        self,
        tables: Mapping[str, pl.DataFrame],
        meta: Mapping[str, Any] | None = None,
        coverage: Mapping[str, Any] | None = None,
        *,
        database: Path | None = None,
    ) -> None:
        if unknown := set(tables) - set(schema.TABLES):
            raise LlmprofError(
                f"unknown tables {listed(sorted(unknown))}",
                expected=f"some of {listed(schema.TABLES)}",
            )
        self._meta: dict[str, Any] = copy.deepcopy(dict(meta or {}))
        self._coverage: dict[str, Any] = copy.deepcopy(dict(coverage or {}))
        asked = self.capture.asked or {}
        self._tables: Mapping[str, pl.DataFrame] = (
            tables
            if isinstance(tables, Deferred)
            else {
                name: schema.conform(frame, name, asked.get(name)).clone()
                for name, frame in tables.items()
            }
        )
        self._database = database
        self._labels: Any = None  # those of a part, from the whole: llmprof.label.parts
        self._results: Any = None  # results that analyses keep: llmprof.analyze.catalog
        self._collectives: tuple[int, pl.DataFrame | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_results": None}

    @property
    def meta(self) -> dict[str, Any]:
        """Facts about the run."""
        return copy.deepcopy(self._meta)

    @property
    def coverage(self) -> dict[str, Any]:
        """Counts of the events and bytes that the reading kept and lost."""
        return copy.deepcopy(self._coverage)

    @property
    def events(self) -> pl.DataFrame:
        """What ran on the devices, a row an event, with its labels; most analyses begin here.

        Its columns are those of :func:`llmprof.analyze.events`. It is made at the first use.

        Examples
        --------
        >>> import llmprof
        >>> events = llmprof.sample("torch_tp1_eager").events
        >>> attention = events.filter(phase="decode", layer=3, stage="attention")
        >>> attention["operator"].unique().sort().to_list()
        ['_vllm_fa3_C::fwd', 'aten::fill_']
        """
        from llmprof.label.events import label_events

        return label_events(self)

    @property
    def capture(self) -> Capture:
        """How it was recorded: platform, profiler, tables that were asked for, and advice.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").capture.tool
        'torch'
        """
        return Capture(self)

    @property
    def analyze(self) -> Analyses:
        """The analyses: ``trace.analyze.overlap()`` is ``llmprof.analyze.overlap(trace)``.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").analyze.steps().height
        19
        """
        return Analyses(self)

    def __getitem__(self, name: str) -> pl.DataFrame:
        return self.events if name == "events" else self.table(name)

    def __len__(self) -> int:
        return self.events.height

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise no_attribute("a Trace", name, dir(self))

    def explore(self, *others: Trace, **options: Any) -> Any:
        """Explorers of the trace as tabs, for a notebook: :func:`llmprof.explore.open`."""
        from llmprof import explore

        return explore.open(self, *others, **options)

    def summary(self) -> Any:
        """The trace on a card: a sentence, the mean step of each rank, and what would gain most.

        Examples
        --------
        >>> import llmprof
        >>> card = llmprof.sample("torch_tp1_eager").summary()
        """
        from llmprof.report.cards import Card, of_trace

        return Card(repr(self), of_trace(self))

    def report(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write the report: a page if the path ends with ``.html``, else a folder with all files.

        Returns
        -------
        pathlib.Path
            The page or the folder.
        """
        from llmprof.report import html, write

        if Path(path).suffix == ".html":
            return files.write_output(path, html(self, **options))
        return write(self, path, **options).folder

    def findings(self, **options: Any) -> Any:
        """Ranked findings, as sentences: the rows of :func:`llmprof.analyze.findings`."""
        from llmprof.findings.findings import shown_findings

        return shown_findings(self, **options)

    def diff(self, other: Trace, **options: Any) -> pl.DataFrame:
        """What differs in another trace: :func:`llmprof.analyze.diff`."""
        frame: pl.DataFrame = self.analyze.diff(other, **options)
        return frame

    def what_if(self, *changes: Any, **options: Any) -> pl.DataFrame:
        """Predicted steps after changes: :func:`llmprof.analyze.what_if`."""
        frame: pl.DataFrame = self.analyze.what_if(*changes, **options)
        return frame

    @property
    def kernels(self) -> pl.DataFrame:
        """Kernels, one row for each launch."""
        return self.table("kernels")

    @property
    def copies(self) -> pl.DataFrame:
        """Memory copies and memory sets on a device."""
        return self.table("copies")

    @property
    def tasks(self) -> pl.DataFrame:
        """Tasks of device queues other than kernels and copies: waits, signals, pieces of
        collective calls.
        """
        return self.table("tasks")

    @property
    def runtime(self) -> pl.DataFrame:
        """Calls of the device runtime and driver API on the host."""
        return self.table("runtime")

    @property
    def ops(self) -> pl.DataFrame:
        """Operators (and Python functions, if they were recorded and read) on the host."""
        return self.table("ops")

    @property
    def markers(self) -> pl.DataFrame:
        """Ranges and marks that the program set."""
        return self.table("markers")

    @property
    def collectives(self) -> pl.DataFrame:
        """Collective and point-to-point communication, one row for each call and rank.

        These are the collectives that the profiler describes, and kernels whose names match
        patterns of :mod:`llmprof.names`. The patterns are those at the time of the call, or at the
        time of reading if only a part of the trace was read (``tables=``).
        """
        return self.table("collectives")

    @property
    def memory(self) -> pl.DataFrame:
        """Allocations and releases."""
        return self.table("memory")

    @property
    def counters(self) -> pl.DataFrame:
        """Samples of counters."""
        return self.table("counters")

    @property
    def samples(self) -> pl.DataFrame:
        """Samples of call stacks."""
        return self.table("samples")

    @property
    def totals(self) -> pl.DataFrame:
        """Total times by name that the profiler itself computed."""
        return self.table("totals")

    @checked
    def table(self, name: str) -> pl.DataFrame:
        """Frame of a table.

        Raises
        ------
        NotCapturedError
            The capture does not have this table, or the table was not read.
        """
        if name not in schema.TABLES:
            raise LlmprofError(
                f"there is no table {name!r}", expected=f"one of {listed(schema.TABLES)}"
            )
        frame = self._frame(name)
        if frame is not None:
            return frame.clone()
        if self.capture.asked is not None and name not in self.capture.asked:
            expected = f"one of the tables that were read: {listed(sorted(self.capture.asked))}"
            hint = f"read the file again with {name!r} among tables=, or without tables="
            raise NotCapturedError(
                f"this trace was read without its {name}", expected=expected, hint=hint, table=name
            )
        found = f"this capture holds no {name}"
        way = f"record it with {self.capture.how_to_record(name)}"
        raise NotCapturedError(found, hint=self.capture.other_process or way, table=name)

    def _frame(self, name: str) -> pl.DataFrame | None:
        """Frame of a table; None if it was not recorded."""
        if name != "collectives" or self.capture.asked is not None:
            return self._tables.get(name)
        version = table_fingerprint()
        if self._collectives is None or self._collectives[0] != version:
            self._collectives = (
                version,
                communication.make_collectives(self._tables, self.capture.device_ranks),
            )
        return self._collectives[1]

    @checked
    def has(self, *tables: str) -> bool:
        """Whether all the tables were recorded and have rows."""
        return all(self.capture.height(table) > 0 for table in tables)

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The recorded tables by name; all tables of a dataset are loaded."""
        return {
            name: frame.clone()
            for name in schema.TABLES
            if (frame := self._frame(name)) is not None
        }

    @property
    def table_names(self) -> list[str]:
        """Names of the recorded tables, in the order of the schema; no table is loaded."""
        has_collectives = self.capture.asked is None and not {"kernels", "ops"}.isdisjoint(
            self._tables
        )
        return [
            name
            for name in schema.TABLES
            if name in self._tables or (name == "collectives" and has_collectives)
        ]

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows of each recorded table; for collectives of a dataset, the number when it
        was made.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").rows["copies"]
        94
        """
        if not isinstance(self._tables, Deferred):
            return {
                name: frame.height
                for name in schema.TABLES
                if (frame := self._frame(name)) is not None
            }
        return {name: self.capture.height(name) for name in self.table_names}

    @checked
    def sql(self, query: str, *, on: Literal["tables", "file"] = "tables") -> pl.DataFrame:
        """Result of one SQL query that only reads.

        Parameters
        ----------
        query : str
            One ``SELECT`` over the recorded tables, in the dialect of Polars; ``SHOW TABLES`` lists
            them. Quote a column that has the name of a keyword: ``"group"``.
        on : {"tables", "file"}
            ``tables`` queries the tables of the trace; those of a dataset are streamed, so only a
            part is in memory. ``file`` queries the SQLite file from which the trace was read, with
            the profiler's tables (:func:`llmprof.trace.storage.sqlite.database_tables` lists them) and in the
            dialect of SQLite.

        Returns
        -------
        polars.DataFrame
            The columns that the query names.

        Raises
        ------
        AnalysisError
            The query is not valid for the tables, does not only read, or needs more than a query
            may take (:mod:`llmprof.trace.storage.bounded`): then its process was ended, and this one goes
            on.
        NotCapturedError
            ``on="file"``, and the trace was not read from one SQLite file.
        ReadError
            ``on="file"``, and the query is not valid for the file, or the file is gone.

        Examples
        --------
        >>> import llmprof
        >>> trace = llmprof.sample("torch_tp1_eager")
        >>> trace.sql("select count(*) as count from kernels").columns
        ['count']
        """  # noqa: E501
        # what costs time is found only if the query names it: collectives of a stored trace, and
        # the labelled events
        words = query.lower()
        if on == "tables":
            stored = isinstance(self._tables, Deferred)
            late = {"collectives"} if stored and "collectives" not in words else set()
            tables = [name for name in self.table_names if name not in late]
            of = self.capture.scan if stored else self.table
            labelled = {"events": self.events} if "events" in words else {}
            return sql.query_tables({name: of(name) for name in tables} | labelled, query)
        if self._database is None:
            hint = (
                "read the .sqlite that nsys export wrote, or query the tables of the trace:"
                " on='tables'"
            )
            raise NotCapturedError("this trace was not read from one SQLite file", hint=hint)
        return sqlite.query(self._database, query)

    @property
    def ranks(self) -> list[int]:
        """Ranks with at least one row in any table, in order."""
        return ranks_of(self._tables)

    @property
    def span_ns(self) -> tuple[int, int]:
        """First start and last end of all kernels, copies, calls, operators and markers (ns).

        If the trace has none of them, the times of the first and last sample of call stacks or of
        memory.
        """
        return span_of_tables(self._tables)

    @checked
    def select(
        self,
        *,
        rank: int | Iterable[int] | None = None,
        step: int | Iterable[int] | None = None,
        phase: str | Iterable[str] | None = None,
        layer: int | Iterable[int] | None = None,
        stage: str | Iterable[str] | None = None,
        stream: int | Iterable[int] | None = None,
        window: Window | None = None,
        tables: str | Iterable[str] | None = None,
    ) -> Trace:
        """Part of the trace; from a dataset only this part is loaded.

        Arguments are named as the columns of :attr:`events` and take a value or several.

        Parameters
        ----------
        rank : int or iterable of int, optional
            Ranks to keep.
        step, phase : optional
            Steps to keep (:func:`llmprof.analyze.steps` numbers them), or those of a phase: their
            kernels and copies, and events of the host from their labels to the next labels. Steps
            of the part are numbered from 0.
        layer, stage, stream : optional
            Layers, stages and streams to keep: their kernels and copies, and what the host did from
            their first launch in a step to their last. Labels stay those of the whole trace; they
            are not saved with the part.
        window : (start_ns, end_ns), optional
            Keep events that start in ``[start_ns, end_ns)``, in ns from the start of the trace. A
            device event is kept by its own start, so its launch may be outside.
        tables : str or iterable of str, optional
            Names of the tables to keep.

        Returns
        -------
        Trace
            The part, with the same origin of times.

        Raises
        ------
        AnalysisError
            The trace has no such rank, step, phase, layer, stage or stream, or the window ends
            before it starts.

        Examples
        --------
        >>> import llmprof
        >>> trace = llmprof.sample("torch_tp1_eager")
        >>> trace.select(tables="copies").table_names
        ['copies']
        >>> trace.select(phase="decode", layer=5).events["stage"].n_unique()
        9
        """
        from llmprof.label import parts

        chosen = several(rank)
        if chosen and (missing := [one for one in chosen if one not in self.ranks]):
            found = f"the ranks {listed(missing)} are not in the trace"
            raise AnalysisError(found, expected=f"some of {listed(self.ranks)}")
        part = self
        if chosen is not None or window is not None:
            kept = narrowed(self._tables, chosen, window)
            part = Trace(kept, self._meta, self._coverage, database=self._database)
            part._labels = parts.narrow_labels(self._labels, chosen, window)
        if step is not None or phase is not None:
            whole = self if chosen is None else self.select(rank=chosen)
            stored = isinstance(part._tables, Deferred)
            part = parts.select_steps(part, whole, several(step), several(phase), stored=stored)
        labels = {"layer": layer, "stage": stage, "stream": stream}
        if any(value is not None for value in labels.values()):
            part = parts.select_labels(part, labels)
        return part if tables is None else part._with_tables(several(tables) or [])

    def _with_tables(self, names: list[str]) -> Trace:
        """The trace with only some of its tables."""
        if unknown := sorted(set(names) - set(schema.TABLES)) or (["none"] if not names else []):
            raise LlmprofError(
                f"there is no table {unknown}", expected=f"some of {listed(schema.TABLES)}"
            )
        coverage = self._coverage | {"asked": dict.fromkeys(sorted(names))}
        if isinstance(self._tables, Deferred) and "collectives" not in names:
            return Trace(self._tables.narrow(tables=names), self._meta, coverage)
        kept = {name: frame for name in names if (frame := self._frame(name)) is not None}
        return Trace(kept, self._meta, coverage, database=self._database)

    def redact(self, names: Pseudonyms | None = None) -> Trace:
        """The trace with pseudonyms for texts that identify people or machines, or that are
        secrets.

        To share a file, redact the file of the profiler instead: :func:`llmprof.readers.redaction.redact`.

        Parameters
        ----------
        names : Pseudonyms, optional
            Pseudonyms that replace texts; new ones with a random key if not given.

        Returns
        -------
        Trace
            A trace with the same rows and times, and only the metadata that the schema needs.
        """  # noqa: E501
        from llmprof.trace.storage.pseudonyms import Pseudonyms

        names = Pseudonyms() if names is None else names
        return Trace(*names.trace(self._tables, self._meta, self._coverage))

    @checked
    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the trace as Parquet, one file per table, and ``llmprof.json``.

        The folder appears complete or not at all; a folder that has only a saved trace is replaced.

        Parameters
        ----------
        folder : path
            Folder to write; missing folders above it are made.

        Returns
        -------
        pathlib.Path
            The folder.

        Raises
        ------
        OutputError
            The folder cannot be written, is an input, or has other files than a saved trace.
        """
        target = files.check_output(folder, own=True)
        parquet.write(self._tables, self._meta, self._coverage, target)
        return target

    @property
    def name(self) -> str | None:
        """Name of the run, from the folder or file that was read; None if unknown.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").name
        'torch_tp1_eager'
        """
        name = self._meta.get("name")
        return str(name) if name else None

    @checked
    def called(self, name: str | None) -> Trace:
        """The same trace under another name, which comparisons use.

        Parameters
        ----------
        name : str or None
            Name of the run; None if unknown.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").called("eager").name
        'eager'
        """
        meta = {key: value for key, value in self._meta.items() if key != "name"}
        return Trace(
            self._tables,
            meta | ({"name": name} if name else {}),
            self._coverage,
            database=self._database,
        )

    def _repr_html_(self) -> str:
        from llmprof.report.cards import of_trace

        return of_trace(self)

    def __repr__(self) -> str:
        rows = ", ".join(
            f"{name} {rows:,}" for name, rows in self.rows.items() if name in self._tables
        )
        lo, hi = self.span_ns
        device = self._meta.get("device") or "unknown device"
        ranks = sum(rank >= 0 for rank in self.ranks)  # the host's counters have rank -1
        return (
            f"<Trace {text.counted(ranks, 'rank')}, {(hi - lo) / 1e6:,.1f} ms,"
            f" {text.plain(device)}: {rows}>"
        )


def open_saved(folder: str | os.PathLike[str]) -> Trace:
    """The trace that :meth:`Trace.save` wrote into a folder; a ReadError if it is damaged."""
    return Trace(*parquet.load(Path(folder)))
