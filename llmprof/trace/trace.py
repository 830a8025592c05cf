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
from typing import Any, Literal

import polars as pl

from llmprof import names, text
from llmprof.arguments import Window, checked
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError, listed
from llmprof.lazy import Carded
from llmprof.trace import communication, schema
from llmprof.trace.platforms import (
    DEVICE_TABLES,
    ON_DEVICE,
    ON_HOST,
    Platform,
    of_tool,
    platform_of,
    tool_of,
)
from llmprof.trace.storage import files, parquet, sql, sqlite
from llmprof.trace.storage.deferred import Deferred, narrowed, ranks_of, span_of
from llmprof.trace.storage.parquet import META_FILE
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


class Trace(Carded):
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
        asked = self.asked or {}
        self._tables: Mapping[str, pl.DataFrame] = (
            tables
            if isinstance(tables, Deferred)
            else {
                name: schema.conform(frame, name, asked.get(name)).clone()
                for name, frame in tables.items()
            }
        )
        self._database = database
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
        >>> events.filter(phase="decode", layer=3, stage="attention")["operator"].unique().to_list()
        ['_vllm_fa3_C::fwd']
        """
        from llmprof.label.events import events

        return events(self)

    @property
    def analyze(self) -> Analyses:
        """The analyses: ``trace.analyze.overlap()`` is ``llmprof.analyze.overlap(trace)``.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").analyze.steps().height
        20
        """
        return Analyses(self)

    def findings(self, **options: Any) -> Any:
        """Ranked findings: :func:`llmprof.analyze.findings`."""
        return self.analyze.findings(**options)

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
        if self.asked is not None and name not in self.asked:
            expected = f"one of the tables that were read: {listed(sorted(self.asked))}"
            hint = f"read the file again with {name!r} among tables=, or without tables="
            raise NotCapturedError(
                f"this trace was read without its {name}", expected=expected, hint=hint, table=name
            )
        found = f"this capture holds no {name}"
        raise NotCapturedError(found, hint=f"record it with {self.how_to_record(name)}", table=name)

    @checked
    def how_to_record(self, table: str) -> str:
        """Advice on how to record a table: that of the tool that wrote this recording, or of
        several if it is unknown.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").how_to_record("memory")
        'memory events (torch: profile_memory=True)'
        """
        way = self.platform.how_to_record(table, self.tool)
        return (
            f"{way}, if the run uses a device" if self.on_host and table in DEVICE_TABLES else way
        )

    @property
    def platform(self) -> Platform:
        """Platform of the devices (CUDA, ROCm, Ascend), with the words that findings and hints use
        for it.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").platform.words["graphs"]
        'CUDA graphs'
        """
        return platform_of(self._meta, self._tables)

    @property
    def tool(self) -> str | None:
        """The profiler that wrote it, by the name that advice on recording gives it; None if it is
        not known.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").tool
        'torch'
        """
        return tool_of(self._meta, self._tables)

    @property
    def on_host(self) -> bool:
        """Whether operators of the host take the place of device events, as in a run on the CPU."""
        device = ("kernels", "copies")
        if (
            any(table in self.table_names for table in device)
            or self.has("runtime")
            or not self.has("ops")
        ):
            return False
        return bool((self.ops["kind"] == "op").any())

    @property
    def words(self) -> dict[str, str]:
        """Words of sentences about the trace: what its events are called, and those of its
        platform.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").words["event"]
        'kernel'
        """
        words = {**self.platform.words, **(ON_HOST if self.on_host else ON_DEVICE)}
        return words | {"record_host": of_tool(words["record_host"], self.tool)}

    def _frame(self, name: str) -> pl.DataFrame | None:
        """Frame of a table; None if it was not recorded."""
        if name != "collectives" or self.asked is not None:
            return self._tables.get(name)
        version = names.version()
        if self._collectives is None or self._collectives[0] != version:
            self._collectives = version, communication.collectives(self._tables, self.device_ranks)
        return self._collectives[1]

    @property
    def asked(self) -> dict[str, list[str] | None] | None:
        """Tables in ``tables=`` of :func:`llmprof.read`, with their columns (None: all); None if
        all were read.
        """
        asked: dict[str, list[str] | None] | None = copy.deepcopy(self._coverage.get("asked"))
        return asked

    @checked
    def has(self, *tables: str) -> bool:
        """Whether all the tables were recorded and have rows."""
        return all(self.height(table) > 0 for table in tables)

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The recorded tables by name; all tables of a dataset are loaded."""
        return {
            name: frame.clone()
            for name in schema.TABLES
            if (frame := self._frame(name)) is not None
        }

    @property
    def recorded(self) -> dict[str, pl.DataFrame]:
        """The recorded tables as in :attr:`tables`, but with only those collectives that the
        profiler recorded.
        """
        return {name: frame.clone() for name, frame in self._tables.items()}

    @property
    def table_names(self) -> list[str]:
        """Names of the recorded tables, in the order of the schema; no table is loaded."""
        has_collectives = self.asked is None and not {"kernels", "ops"}.isdisjoint(self._tables)
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
        return {name: self.height(name) for name in self.table_names}

    @checked
    def height(self, name: str) -> int:
        """Number of rows of a table, 0 if it was not recorded; unlike :attr:`rows` it asks for no
        other table.

        Parameters
        ----------
        name : str
            Name of the table.

        Returns
        -------
        int
            The number of rows.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").height("copies")
        94
        """
        tables = self._tables
        if not isinstance(tables, Deferred):
            return 0 if (frame := self._frame(name)) is None else frame.height
        if name == "collectives" and name in self.table_names:
            return sum(partition.collectives for partition in tables.partitions)
        return tables.rows(name) if name in self.table_names else 0

    @checked
    def scan(self, name: str) -> pl.LazyFrame:
        """A table as a lazy frame; from a dataset only the rows and columns that the query needs
        are read.

        Parameters
        ----------
        name : str
            Name of a table of the schema.

        Returns
        -------
        polars.LazyFrame
            The columns of the table. Collectives are loaded at once, because they are found among
            the kernels.

        Raises
        ------
        NotCapturedError
            The capture does not have this table.
        """
        if isinstance(self._tables, Deferred) and name in self._tables and name != "collectives":
            return self._tables.scan(name)
        return self.table(name).lazy()

    @property
    def device_ranks(self) -> list[int]:
        """Ranks whose recording has kernels, also outside of this part of the trace."""
        stated = {rank["rank"] for rank in self._meta.get("ranks", ()) if rank.get("kernels")}
        if isinstance(self._tables, Deferred):
            return sorted(stated | self._tables.ranks_with("kernels"))
        kernels = self._tables.get("kernels")
        return sorted(stated if kernels is None else stated | set(kernels["rank"].unique()))

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
            the profiler's tables (:func:`llmprof.trace.storage.sqlite.tables` lists them) and in the
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
        if on == "tables" and isinstance(self._tables, Deferred):
            words = (
                query.lower()
            )  # finding collectives needs all kernels, so they are found only if the query has them
            tables = [name for name in self.table_names if name != "collectives" or name in words]
            return sql.answer({name: self.scan(name) for name in tables}, query)
        if on == "tables":
            return sql.answer(self.tables, query)
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
        return span_of(self._tables)

    @checked
    def select(
        self,
        *,
        ranks: int | Iterable[int] | None = None,
        window: Window | None = None,
        steps: int | Iterable[int] | None = None,
        tables: str | Iterable[str] | None = None,
    ) -> Trace:
        """Part of the trace; from a dataset only this part is loaded.

        Parameters
        ----------
        ranks : int or iterable of int, optional
            Ranks to keep.
        window : (start_ns, end_ns), optional
            Keep events that start in ``[start_ns, end_ns)``, in ns from the start of the trace. A
            device event is kept by its own start, so its launch may be outside.
        steps : int or iterable of int, optional
            Steps to keep (:func:`llmprof.analyze.steps` numbers them): their kernels and copies,
            and events of the host from their labels to the next labels.
        tables : str or iterable of str, optional
            Names of the tables to keep.

        Returns
        -------
        Trace
            The part, with the same origin of times.

        Raises
        ------
        AnalysisError
            The trace has no such rank or step, or the window ends before it starts.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").select(tables="copies").table_names
        ['copies']
        """
        chosen = None if ranks is None else [ranks] if isinstance(ranks, int) else list(ranks)
        if chosen and (missing := [rank for rank in chosen if rank not in self.ranks]):
            found = f"the ranks {listed(missing)} are not in the trace"
            raise AnalysisError(found, expected=f"some of {listed(self.ranks)}")
        part = self
        if chosen is not None or window is not None:
            kept = narrowed(self._tables, chosen, window)
            part = Trace(kept, self._meta, self._coverage, database=self._database)
        if steps is not None:
            # imported by name, because this layer must not import the analyses
            whole = self if chosen is None else self.select(ranks=chosen)
            stored = isinstance(part._tables, Deferred)
            part = import_module("llmprof.label.steps.steps").of_steps(
                part, whole, steps, stored=stored
            )
        return (
            part
            if tables is None
            else part._with_tables([tables] if isinstance(tables, str) else list(tables))
        )

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

    @checked
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

    @classmethod
    @checked
    def open(cls, folder: str | os.PathLike[str]) -> Trace:
        """Open a trace that :meth:`save` wrote.

        Raises
        ------
        ReadError
            The folder has no saved trace, or the trace is damaged or has another schema version.
        """
        return cls(*parquet.load(Path(folder)))

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

    _card = "of_trace"

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
