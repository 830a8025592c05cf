"""An export of Nsight Systems: its version, the facts about its capture, and its tables with
texts and times.
"""

import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import NotCapturedError, ReadError
from llmprof.readers.common.cupti import LAUNCH_SHAPE
from llmprof.readers.common.reader import MOST_NS, MOST_RANKS, TableFilter
from llmprof.text import counted
from llmprof.trace.storage import files, sqlite
from llmprof.trace.storage.files import regular

REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
"""Suffixes of reports of nsys; the second one is that of versions before 2021.4."""

FOLDER_ENDINGS: Final = {"_pqtdir": "parquet", "_arwdir": "arrow"}
"""Kind of the files in a folder that nsys exported, by the end of the folder's name."""

ARROW_SUFFIX: Final = ".arrows"
"""Suffix of an export with all tables as Arrow streams, one after another."""

PLACES: Final = (
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "usr/local/cuda*/bin/nsys",
    "opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Systems/bin/nsys",
)
"""Patterns of the places where NVIDIA's installers put nsys."""


class SqliteTables:
    """Tables of an SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite.connect(path) as connection:
            self.columns = sqlite.database_tables(connection)

    def read(self, table: str, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
        """Existing columns of a table, cast to the given types; empty text becomes null."""
        return sqlite.read(self.path, table, types)


class FolderTables:
    """Tables that ``nsys export`` wrote as Parquet files or as Arrow streams."""

    def __init__(self, sources: Mapping[str, Path | bytes]) -> None:
        self._sources = sources
        columns = {}
        for table, source in sources.items():
            with _damage(table):
                of_parquet = isinstance(source, Path) and source.suffix == ".parquet"
                columns[table] = list(
                    pl.read_parquet_schema(source)
                    if of_parquet
                    else pl.read_ipc_stream(source, n_rows=0).columns
                )
        self.columns = sqlite.DatabaseTables(columns)

    def read(self, table: str, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
        """Existing columns of a table, cast to the given types; empty text becomes null."""
        own = {name: spelled for name in types if (spelled := self.columns[table].spelled(name))}
        present = {name: types[name] for name in own}
        source, columns = self._sources[self.columns.spelled(table) or table], list(own.values())
        with _damage(table):
            if isinstance(source, Path) and source.suffix == ".parquet":
                frame = pl.scan_parquet(source).select(columns).collect()
            else:
                frame = pl.read_ipc_stream(source, columns=columns)
        frame = frame.rename(dict(zip(own.values(), own, strict=True)))
        return frame.select(
            (
                pl.when(pl.col(name).cast(pl.String) != "")
                .then(pl.col(name).cast(pl.String))
                .alias(name)
                if dtype == pl.String()
                else pl.col(name).cast(dtype, strict=False)
            )
            for name, dtype in present.items()
        )


@contextmanager
def _damage(table: str) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise ReadError(
            f"the table {table} is damaged: {error}", hint="export the report again"
        ) from error


_MOST_SCHEMA_BYTES: Final = 1 << 16
_CONTINUES: Final = b"\xff\xff\xff\xff"
_TABLE_NAMES: Final = (
    re.compile(rb"table_name\0+(.)\0\0\0([A-Za-z]\w*)\0", re.DOTALL),
    re.compile(rb"(.)\0\0\0([A-Za-z]\w*)\0+\n\0\0\0table_name", re.DOTALL),
)
"""Patterns of the name of a table after its length; nsys writes the name after or before its
key.
"""


def _streams(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each Arrow stream; the name of the table is in the metadata of the stream's
    schema.

    A stream is a list of messages up to one of length 0. A message is a mark, the length of a
    flatbuffer, the flatbuffer, and a body whose length is in the flatbuffer:
    https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format.
    """
    position = begin = 0
    while position + 8 <= len(data) and data[position : position + 4] == _CONTINUES:
        size = struct.unpack_from("<i", data, position + 4)[0]
        message, position = position + 8, position + 8 + max(size, 0)
        if size > 0:
            position += _body_length(data, message, size)
            continue
        head = data[begin : min(begin + _MOST_SCHEMA_BYTES, position)]
        matching = [
            match
            for pattern in _TABLE_NAMES
            if (match := pattern.search(head)) and match[1][0] == len(match[2])
        ]
        if matching:
            yield matching[0][2].decode(), data[begin:position]
        begin = position


def _body_length(data: bytes, offset: int, size: int) -> int:
    """Field ``bodyLength`` (the fourth) of the flatbuffer ``Message``."""
    try:
        table = offset + struct.unpack_from("<I", data, offset)[0]
        fields = table - struct.unpack_from("<i", data, table)[0]
        has_field = struct.unpack_from("<H", data, fields)[0] > 10
        place = struct.unpack_from("<H", data, fields + 4 + 2 * 3)[0] if has_field else 0
        return max(0, int(struct.unpack_from("<q", data, table + place)[0])) if place else 0
    except struct.error as error:
        found = f"the Arrow file is damaged at byte {offset:,}"
        raise ReadError(
            found, expected=f"a message of {size:,} bytes", hint="export it again"
        ) from error


def _open_tables(path: Path) -> SqliteTables | FolderTables:
    """Tables of an export."""
    if path.is_dir():
        kinds = tuple(f".{kind}" for kind in FOLDER_ENDINGS.values())
        return FolderTables(
            {p.stem: regular(p) for p in sorted(path.iterdir()) if p.suffix in kinds}
        )
    return (
        FolderTables(dict(_streams(regular(path).read_bytes())))
        if path.suffix == ARROW_SUFFIX
        else SqliteTables(path)
    )


def is_parquetdir(path: Path) -> bool:
    """Whether a folder is an export of nsys as Parquet files."""
    return path.is_dir() and any(
        (path / f"{name}.parquet").exists() for name in ("StringIds", "NVTX_EVENTS")
    )


def is_folder_export(path: Path) -> bool:
    """Whether a folder is an export of nsys as Parquet or Arrow files."""
    names = [
        f"{table}.{kind}"
        for table in ("StringIds", "NVTX_EVENTS")
        for kind in FOLDER_ENDINGS.values()
    ]
    return path.is_dir() and any((path / name).exists() for name in names)


def is_arrow_export(start: bytes) -> bool:
    """Whether a file begins as an export of nsys in Arrow streams."""
    return start.startswith(_CONTINUES) and b"table_name" in start


def _is_nvprof(tables: Collection[str]) -> bool:
    """Whether the tables of a database are those of nvprof (``.nvvp``), the predecessor of nsys."""
    return (
        "StringTable" in tables
        and "CUPTI_ACTIVITY_KIND_DRIVER" in tables
        and "StringIds" not in tables
    )


_CUPTI: Final = re.compile(r"CUPTI_ACTIVITY\w*", re.IGNORECASE)


def is_nsys_sqlite(path: Path) -> bool:
    """Whether an SQLite database has tables of nsys."""
    with sqlite.connect(path) as connection:
        names = sqlite.database_tables(connection)
    known = "StringIds" in names or "NVTX_EVENTS" in names
    return known or bool(names.matching(_CUPTI) or names.refused)


def find_nsys() -> str | None:
    """The ``nsys`` on PATH, else the newest one in the usual places of NVIDIA's installers; None
    if there is none.
    """
    on_path = shutil.which("nsys")
    if on_path is not None:
        return on_path
    usual = [str(path) for place in PLACES for path in Path("/").glob(place) if shutil.which(path)]
    return max(usual, key=lambda path: [int(n) for n in re.findall(r"\d+", path)], default=None)


def export_sqlite(report: Path, folder: Path) -> Path:
    """Export a report to SQLite with the ``nsys`` that :func:`find_nsys` finds."""
    nsys = find_nsys()
    if nsys is None:
        raise NotCapturedError(
            f"{report.name} is a report that only nsys can open, and there is no nsys on PATH "
            "or in the folders of its installers",
            hint=(
                "install Nsight Systems (package nsight-systems-cli of NVIDIA, or with the CUDA"
                " toolkit), or export the report on a machine with nsys: nsys export --type sqlite"
                f" {report.name}"
            ),
        )
    target = folder / f"{report.stem}.sqlite"
    files.made(folder)
    command = [
        nsys,
        "export",
        "--type",
        "sqlite",
        "--force-overwrite",
        "true",
        "--output",
        str(target),
        str(report),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (no shell)
    if done.returncode or not target.exists():
        message = (done.stderr or done.stdout).strip().splitlines()
        raise ReadError(
            f"nsys could not export {report.name} (status {done.returncode}): "
            f"{message[-1] if message else 'no message'}",
            hint="a report needs an nsys at least as new as the one that wrote it",
        )
    return target


_RANKS: Final = {
    "RANK": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK": "",
    "PMI_RANK": "PMI_SIZE",
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_RANK": "JSM_NAMESPACE_SIZE",
    "PALS_RANKID": "",
    "FLUX_TASK_RANK": "FLUX_JOB_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
"""Environment variables in which launchers (torchrun, Open MPI, PMI, MVAPICH, jsrun, PALS, Flux,
Slurm) give a process its rank, and those with the number of ranks; the first variable that is set
counts.
"""

_NODES: Final = ("NODE_RANK", "GROUP_RANK", "SLURM_NODEID", "MACHINE_RANK")
"""Environment variables with the number of the node."""

_VARIABLE: Final = re.compile(
    rf'^({"|".join([*_RANKS, *(w for w in _RANKS.values() if w), *_NODES])})="?(\d{{1,7}})"?$'
)
_NODE_ARGUMENT: Final = re.compile(r"^--(?:node|machine)[-_]rank(?:=(\d{1,5}))?$")

EVENTS: Final = {
    "cuda": "cuda",
    "nvtxevents": "nvtx",
    "osruntime": "osrt",
    "openacc": "openacc",
    "openmp": "openmp",
}
"""Word after ``nsys profile --trace`` for each value of ``CAPTURE_EVENT_TYPE``."""


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """Facts about a capture; old exports state none."""

    traced: frozenset[str] | None = None
    """Traced APIs, as named by ``nsys profile --trace``; None if the export does not state them."""
    memory: bool = False
    host: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    """Variables of the recorded environment that give a rank, a number of ranks or a node."""
    node_argument: int | None = None
    report: str = ""

    def asked(self, what: str) -> bool | None:
        """Whether an API was traced; None if that is unknown."""
        return None if self.traced is None else what in self.traced

    @property
    def rank(self) -> tuple[int, str] | None:
        """Rank of the launched process, and the variable that gives it."""
        first = next(((self.numbers[name], name) for name in _RANKS if name in self.numbers), None)
        return first if first is not None and first[0] < MOST_RANKS else None

    @property
    def world(self) -> int | None:
        """Number of ranks, from the variable of the launcher that gives the rank."""
        rank = self.rank
        world = None if rank is None else self.numbers.get(_RANKS[rank[1]])
        return (
            world
            if world is not None and rank is not None and rank[0] < world < MOST_RANKS
            else None
        )

    @property
    def node(self) -> int | None:
        """Number of the node."""
        first = next((self.numbers[name] for name in _NODES if name in self.numbers), None)
        return self.node_argument if self.node_argument is not None else first

    @property
    def options(self) -> dict[str, str]:
        """The options of nsys, in the form of a trace's metadata."""
        return {} if self.traced is None else {"trace": ",".join(sorted(self.traced))}


TableReader = Callable[[str], pl.DataFrame | None]
"""Function of a table's name that returns its columns ``name`` and ``value``; None if the table
is missing.
"""


def _read_capture(pairs: TableReader, report: str) -> CaptureFacts:
    """Facts about a capture; of the environment only variables that number a process, since
    others may hold secrets.
    """
    facts = list(_rows(pairs("META_DATA_CAPTURE")))
    system = dict(_rows(pairs("TARGET_INFO_SYSTEM_ENV")))
    values: dict[str, list[str]] = {}
    for name, value in facts:
        values.setdefault(re.sub(r"^PROCESS_\d+:", "", name), []).append(value)
    traced = {
        EVENTS.get(value.lower(), value.lower()) for value in values.get("CAPTURE_EVENT_TYPE", [])
    }
    for key, what in (
        ("COLLECT_CUDA_TRACE", "cuda"),
        ("COLLECT_NVTX_TRACE", "nvtx"),
        ("MPI_TRACE_OPTIONS:COLLECT_MPI_TRACE", "mpi"),
    ):
        traced |= {what} if "true" in values.get(key, []) else set()
    variables = [
        *values.get("ENVIRONMENT_VARIABLE", []),
        *system.get("DeviceEnvironment", "").split(";"),
    ]
    matching = [match for variable in variables if (match := _VARIABLE.match(variable))]
    hosts = [*values.get("DEVICE_DISPLAY_NAME", []), system.get("Hostname", "")]
    return CaptureFacts(
        traced=frozenset(traced) if traced else None,
        memory="true" in values.get("COLLECT_GPU_MEMORY_USAGE", []),
        host=next((host for host in hosts if host), ""),
        numbers={match[1]: int(match[2]) for match in reversed(matching)},
        node_argument=_node([value for name, value in facts if ":ARGUMENT_" in name]),
        report=report,
    )


def _rows(frame: pl.DataFrame | None) -> Iterable[tuple[str, str]]:
    return [] if frame is None else frame.drop_nulls().iter_rows()


def _node(arguments: list[str]) -> int | None:
    for i, argument in enumerate(arguments):
        if match := _NODE_ARGUMENT.match(argument):
            number = match[1] or (arguments[i + 1] if i + 1 < len(arguments) else "")
            return int(number) if re.fullmatch(r"\d{1,5}", number) else None
    return None


NEWEST_SCHEMA = (3, 25)
"""Newest schema that was tested; newer ones are read with a warning."""

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
NVTX = "NVTX_EVENTS"
WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RECORDS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"

PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75
# 70 and 71 are events from merged nvtxt files
STYLES = {PUSH_POP: "PushPop", START_END: "StartEnd", MARK: "Mark", 70: "PushPop", 71: "StartEnd"}
RANGES = tuple(STYLES)

KERNEL_COLUMNS = {
    "streamId": "stream",
    "correlationId": "correlation",
    "graphNodeId": "graph_node",
    **LAUNCH_SHAPE,
}
_TYPES = dict.fromkeys(("deviceId", *LAUNCH_SHAPE), pl.Int32())
"""Types of columns that have four bytes in our schema."""
_OWNERS = {
    **dict.fromkeys(
        (name.lower() for name in (KERNEL, GRAPH, MEMCPY, MEMSET, MEMORY)), "globalPid"
    ),
    **dict.fromkeys((name.lower() for name in (RUNTIME, NVTX, "PROFILER_OVERHEAD")), "globalTid"),
}
"""Column with the process or thread of the events, by table."""
LIBRARIES = {
    "os": re.compile(r"OSRT_API", re.IGNORECASE),
    "openacc": re.compile(r"CUPTI_ACTIVITY_KIND_OPENACC_\w+", re.IGNORECASE),
    "openmp": re.compile(r"OPENMP_EVENT_KIND_\w+", re.IGNORECASE),
    "mpi": re.compile(r"\AMPI_\w+_EVENTS", re.IGNORECASE),
}
"""Patterns of the tables with library calls on the host, by the name of the library in our
schema.
"""
_OPEN = {"NVTX_EVENTS", MEMORY}
"""Tables with rows that need no end."""
TIMES = {"start_ns": "start_ns", "dur_ns": "dur_ns", "time_ns": "time_ns"}


class Export:
    """An export and its tables, which are read as frames with a column ``pid`` (nsys's global
    process id).
    """

    def __init__(self, path: Path, wanted: TableFilter) -> None:
        self.path = path
        self.wanted = wanted
        self._tables = _open_tables(path)
        self.columns = self._tables.columns
        if _is_nvprof(self.columns):
            found = f"{path.name} is a session of nvprof or the NVIDIA Visual Profiler"
            expected = "an export of Nsight Systems"
            raise ReadError(
                found,
                expected=expected,
                hint="read it without format=, or with format='nvprof-session'",
            )
        if not any(name in self.columns for name in ("StringIds", KERNEL, RUNTIME, "NVTX_EVENTS")):
            raise ReadError(
                f"{path.name} is not an export of Nsight Systems: its tables are"
                f" {sorted(self.columns)[:6]}"
                f"{''.join(f'; {note}' for note in self.columns.notes())}",
                expected="StringIds and CUPTI_ACTIVITY_KIND_* or NVTX_EVENTS",
                hint="export the report with nsys export --type sqlite",
            )
        self.meta = self._pairs("META_DATA_EXPORT") | self._pairs("EXPORT_META_DATA")
        self.notes: list[str] = []
        report = (
            self.meta.get("EXPORT_PARAM_INPUT_FILE") or self.meta.get("EXPORT_INPUT_FILE") or ""
        )
        self.capture = _read_capture(
            lambda table: self._read(table, text=("name", "value")), report
        )
        schema = tuple(
            int(n) for n in re.findall(r"\d+", str(self.meta.get("EXPORT_SCHEMA_VERSION", "")))[:2]
        )
        self.start_ns = self._start()
        if schema > NEWEST_SCHEMA:
            self.notes.append(
                f"its schema {_dotted(schema)} is newer than {_dotted(NEWEST_SCHEMA)}, the newest"
                " that was tested: known tables and columns are read; compare the counts with nsys"
                " stats"
            )
        if KERNEL not in self.columns and GRAPH in self.columns:
            self.notes.append(
                "each launch of a CUDA graph was recorded as a whole, without its kernels; record"
                " with --cuda-graph-trace=node"
            )

    def _pairs(self, table: str) -> dict[str, str]:
        rows = self._read(table, text=("name", "value"))
        return {} if rows is None else dict(rows.drop_nulls().iter_rows())

    def _start(self) -> int:
        rows = self._read("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
        start = 0 if rows is None or not rows.height else int(rows.item(0, 0) or 0)
        if not 0 <= start < MOST_NS:
            self.note(
                f"the capture states the start {start} ns, which is not a valid time: times count"
                " from 0"
            )
            return 0
        return start

    def _read(self, table: str, *columns: str, text: tuple[str, ...] = ()) -> pl.DataFrame | None:
        """Columns of a table, where a missing one is null; None if the table or its first column
        is missing.
        """
        types = {name: _TYPES.get(name, pl.Int64()) for name in columns} | dict.fromkeys(
            text, pl.String()
        )
        return self._rows(table, types)

    def _rows(self, table: str, types: Mapping[str, pl.DataType]) -> pl.DataFrame | None:
        present = self.columns.get(table)
        if present is None:
            return None
        first = next(iter(types))
        if first not in present:
            if owner(table) or table == "StringIds":
                self.note(f"{table} has no column {first}: none of its rows could be read")
            return None
        frame = self._tables.read(table, types)
        missing = {name: dtype for name, dtype in types.items() if name not in frame.columns}
        frame = frame.with_columns(
            pl.lit(None, dtype).alias(name) for name, dtype in missing.items()
        )
        return self._mended(frame, table) if owner(table) and first == "start" else frame

    def _mended(self, frame: pl.DataFrame, table: str) -> pl.DataFrame:
        """Complete the events, so that all have a time, an end and a process."""
        if "end" in frame.columns and table not in _OPEN and (endless := frame["end"].null_count()):
            self.note(
                f"the end is missing in {counted(endless, 'row')} of {table}: the duration is read"
                " as 0"
            )
            frame = frame.with_columns(pl.col("end").fill_null(pl.col("start")))
        owner_column = owner(table)
        if owner_column in frame.columns and (strays := frame[owner_column].null_count()):
            if (
                owner_column == "globalPid"
                and "correlationId" in frame.columns
                and not self._only_process
            ):
                frame = self._owned_by_call(frame, table)
                strays = frame[owner_column].null_count()
            assumed = "the only process in the file" if self._only_process else "a separate process"
            if strays:
                rows = counted(strays, "row")
                self.note(
                    f"the process ({owner_column}) is missing in {rows} of {table}: {assumed} is"
                    " assumed"
                )
            frame = frame.with_columns(pl.col(owner_column).fill_null(self._only_process))
        return frame

    def _owned_by_call(self, frame: pl.DataFrame, table: str) -> pl.DataFrame:
        """Give device work without a process the process of the call with its correlation."""
        if not all(
            name in self.columns.get(RUNTIME, []) for name in ("correlationId", "globalTid")
        ):
            return frame
        calls = self._tables.read(
            RUNTIME, {"correlationId": pl.Int64(), "globalTid": pl.Int64()}
        ).drop_nulls()
        owners = calls.group_by("correlationId").agg(
            _pid=((pl.col("globalTid") // (1 << 24)) * (1 << 24)).unique()
        )
        owners = owners.filter(pl.col("_pid").list.len() == 1).with_columns(
            pl.col("_pid").list.first()
        )
        before = frame["globalPid"].null_count()
        rows = frame.join(owners, on="correlationId", how="left", maintain_order="left")
        rows = rows.with_columns(globalPid=pl.coalesce("globalPid", "_pid")).drop("_pid")
        if filled := before - rows["globalPid"].null_count():
            self.note(
                f"the process is missing in {counted(filled, 'row')} of {table}: it is that of the"
                " call with the same correlation"
            )
        return rows

    @cached_property
    def _only_process(self) -> int:
        """Global identifier of the process of all events that name one; 0 if there are several
        or none.
        """
        processes: set[int] = set()
        for table, columns in self.columns.items():
            if (owner_column := owner(table)) in columns:
                pid = (pl.col(owner_column) // (1 << 24)) * (1 << 24)
                rows = self._tables.read(table, {owner_column: pl.Int64()})
                processes |= set(rows.select(pid.unique()).to_series().drop_nulls())
        return processes.pop() if len(processes) == 1 else 0

    def note(self, text: str) -> None:
        """Add a note for the user about the file, once."""
        if text not in self.notes:
            self.notes.append(text)

    @cached_property
    def strings(self) -> pl.DataFrame:
        """Texts by id."""
        rows = self._read("StringIds", "id", text=("value",))
        if rows is None:
            rows = pl.DataFrame(schema={"id": pl.Int64, "value": pl.String})
        if "value" not in self.columns.get("StringIds", ["value"]):
            self.note("StringIds has no column value: names are unknown")
        rows = rows.drop_nulls("id")
        if again := rows.height - rows["id"].n_unique():
            self.note(
                f"StringIds has {counted(again, 'duplicate identifier')}: the first text of each is"
                " used"
            )
            rows = rows.unique("id", keep="first", maintain_order=True)
        return rows

    def _texts(self, frame: pl.DataFrame, *ids: str, cut: str = "") -> pl.DataFrame:
        """Add ``name``: the text of the first id column that has one, without a part that
        matches ``cut``, or null.
        """
        value = pl.col("value").str.replace(cut, "") if cut else pl.col("value")
        for column in (c for c in ids if c in frame.columns):
            more = "name" in frame.columns
            texts = self.strings.select(
                pl.col("id").alias(column), value.alias("_other" if more else "name")
            )
            frame = frame.join(texts, on=column, how="left", maintain_order="left")
            if more:
                frame = frame.with_columns(name=pl.coalesce("name", "_other")).drop("_other")
            if not frame["name"].null_count():
                return frame
        return (
            frame if "name" in frame.columns else frame.with_columns(name=pl.lit(None, pl.String))
        )

    def _named(self, frame: pl.DataFrame, *ids: str, default: str, cut: str = "") -> pl.DataFrame:
        """Add ``name`` as :meth:`_texts` does, with a default."""
        return self.without_gaps(self._texts(frame, *ids, cut=cut), default)

    def without_gaps(self, frame: pl.DataFrame, default: str) -> pl.DataFrame:
        """The frame with a default for each missing name."""
        nameless = frame["name"].null_count()
        if not nameless:
            return frame
        if default:
            self.note(
                f"StringIds has no text for the name in {counted(nameless, 'row')}: it is"
                f" {default!r}"
            )
        return frame.with_columns(pl.col("name").fill_null(default))

    def _times(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(
            start_ns=pl.col("start") + self.start_ns, dur_ns=pl.col("end") - pl.col("start")
        ).drop("start", "end")


def owner(table: str) -> str:
    """Column with the process or thread of the events in a table; empty for tables of other
    data.
    """
    if any(pattern.fullmatch(table) for pattern in LIBRARIES.values()):
        return "globalTid"
    return _OWNERS.get(table.lower(), "")


def rename(frame: pl.DataFrame, names: dict[str, str]) -> pl.DataFrame:
    """Those columns in ``names`` that the frame has, under their new names."""
    return frame.select(
        pl.col(old).alias(new) for old, new in names.items() if old in frame.columns
    )


def with_columns_of(frame: pl.DataFrame, columns: tuple[str, ...]) -> pl.DataFrame:
    """The frame with missing columns as nulls."""
    return frame.with_columns(
        pl.lit(None, pl.Int64).alias(c) for c in columns if c not in frame.columns
    )


def label_threads(frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``pid, process, thread`` from nsys's global thread id: 16 bits host, 24 bits process,
    24 bits thread.
    """
    tid = pl.col("globalTid")
    return frame.with_columns(
        pid=(tid // (1 << 24)) * (1 << 24),
        process=(tid // (1 << 24)) % (1 << 24),
        thread=tid % (1 << 24),
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
