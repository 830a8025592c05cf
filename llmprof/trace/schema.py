"""Schema of the tables of a trace, as data.

Every reader calls :func:`conform` at its end, so an analysis can rely on the columns, their order,
types and units. Times are ``int64`` nanoseconds from the start of the trace (the earliest event of
any rank). Columns of a single vendor come last and have a prefix (``nsys_``, ``ascend_``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import polars as pl

from llmprof.errors import SchemaError, checked, listed

VERSION = 2
"""Version of the schema, which is part of saved traces and of the cache key."""

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


_I32, _I64, _F64, _STR, _BOOL = pl.Int32(), pl.Int64(), pl.Float64(), pl.String(), pl.Boolean()

_RANK = Column("rank", _I32, "rank in the run; -1 for a front end without a device", nullable=False)
_DEVICE = Column("device", _I32, "index of the device in its process")
_STREAM = Column("stream", _I64, "stream (queue) on the device")
_PROCESS = Column("process", _I64, "operating-system process")
_THREAD = Column("thread", _I64, "operating-system thread")
_START = Column("start_ns", _I64, "start, from the start of the trace", "ns", nullable=False)
_DUR = Column("dur_ns", _I64, "duration", "ns", nullable=False)
_NAME = Column("name", _STR, "name as the profiler wrote it", nullable=False)
_OF_DEVICE = (_RANK, _DEVICE, _STREAM, _START, _DUR, _NAME)
_CORRELATION = Column(
    "correlation", _I64, "joins device work to the host call that launched it; unique in a rank"
)
_OP_ID = Column("op_id", _I64, "joins to the operator that was running on the host")
_OF_HOST = (_RANK, _PROCESS, _THREAD, _START, _DUR, _NAME)
_GRAPH_NODE = Column("graph_node", _I64, "node of the CUDA graph that launched it, if recorded")
_TIME = Column("time_ns", _I64, "when, from the start of the trace", "ns", nullable=False)
_GROUP = Column("group", _STR, "name of the process group")

KERNELS = Table(
    "kernels",
    "one kernel run on a device",
    (
        *_OF_DEVICE,
        _CORRELATION,
        _OP_ID,
        _GRAPH_NODE,
        *(Column(f"grid_{axis}", _I32, f"blocks in {axis}", "blocks") for axis in "xyz"),
        *(
            Column(f"block_{axis}", _I32, f"threads of a block in {axis}", "threads")
            for axis in "xyz"
        ),
        Column("registers", _I32, "registers per thread"),
        Column("shared_bytes", _I64, "shared memory per block, static and dynamic", "B"),
        Column(
            "est_occupancy_pct", _F64, "occupancy as the profiler estimated it, not measured", "%"
        ),
    ),
    "device activity (torch: ProfilerActivity.CUDA; nsys: -t cuda, with --cuda-graph-trace=node)",
)

COPIES = Table(
    "copies",
    "one memory copy or memory set on a device",
    (
        *_OF_DEVICE,
        _CORRELATION,
        _OP_ID,
        Column("kind", _STR, "HtoD, DtoH, DtoD, PtoP, HtoH, memset or unknown", nullable=False),
        Column("bytes", _I64, "bytes moved or set", "B"),
        Column("src_kind", _STR, "pageable, pinned, device, managed or array"),
        Column("dst_kind", _STR, "pageable, pinned, device, managed or array"),
        _GRAPH_NODE,
    ),
    "device activity (torch: ProfilerActivity.CUDA; nsys: -t cuda)",
)

RUNTIME = Table(
    "runtime",
    "one call of the device runtime or driver API on the host, or of another library that the"
    " profiler traced",
    (
        *_OF_HOST,
        Column("api", _STR, "runtime, driver, os, openacc, openmp or mpi", nullable=False),
        _CORRELATION,
        _OP_ID,
    ),
    "host activity (torch: ProfilerActivity.CUDA with CPU; nsys: -t cuda,osrt,openacc,openmp,mpi)",
)

OPS = Table(
    "ops",
    "one operator (or Python function) call on the host",
    (
        *_OF_HOST,
        Column("kind", _STR, "op or python", nullable=False),
        _OP_ID,
        Column("shapes", _STR, "shapes of the inputs as JSON, if recorded"),
        Column("dtypes", _STR, "types of the inputs as JSON, if recorded"),
    ),
    "host operators (torch: ProfilerActivity.CPU; shapes need record_shapes=True)",
)

MARKERS = Table(
    "markers",
    "one named range or mark that the program set: step labels, NVTX ranges, user annotations",
    (
        _RANK,
        _PROCESS,
        _THREAD,
        _DEVICE,
        _STREAM,
        _START,
        _DUR,
        _NAME,
        Column("domain", _STR, "domain or category of the marker", nullable=False),
        Column(
            "on_device", _BOOL, "true for the profiler's projection onto the device", nullable=False
        ),
        _OP_ID,
    ),
    "annotations (torch: record_function and vLLM's step labels; nsys: -t nvtx)",
)

COLLECTIVES = Table(
    "collectives",
    "one collective or point-to-point communication on one rank",
    (
        *_OF_DEVICE,
        Column(
            "recorded_as",
            _STR,
            "name of the collective in the profiler (allreduce, _allgather_base), if it has one",
        ),
        Column(
            "evidence",
            _STR,
            "metadata (the profiler describes the kernel as a collective) or name (from the"
            " kernel's name); null if the call itself was recorded as a collective",
        ),
        Column(
            "kind",
            _STR,
            "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send_recv,"
            " other",
        ),
        Column("algorithm", _STR, "custom_1stage, ring_ll, nvls …, if the name states it"),
        _GROUP,
        Column("group_ranks", _STR, "ranks of the group as JSON, if recorded"),
        Column("world", _I32, "number of ranks in the group"),
        Column("dtype", _STR, "element type"),
        Column("in_elements", _I64, "elements that this rank sends"),
        Column("out_elements", _I64, "elements that this rank receives"),
        Column("bytes", _I64, "message size: the larger of input and output of this rank", "B"),
        Column("bytes_source", _STR, "metadata, shapes or null"),
        Column("peer", _I32, "the other rank of a point-to-point call"),
        _CORRELATION,
        _OP_ID,
        Column(
            "on_device", _BOOL, "false if the call ran on the host (CPU backends)", nullable=False
        ),
    ),
    "device activity, or host operators on CPU; sizes need NCCL metadata (torch >= 2.3) or"
    " record_shapes=True",
)

TASKS = Table(
    "tasks",
    "one task of a device's queue other than a kernel or a copy: a wait, a signal, a piece of a"
    " collective call",
    (
        *_OF_DEVICE,
        Column(
            "kind",
            _STR,
            "event_wait, event_record, notify_wait, notify_record, transfer (a piece of a"
            " collective) or control",
            nullable=False,
        ),
        _CORRELATION,
        _OP_ID,
        Column("collective", _STR, "name of the collective call that it belongs to"),
        _GROUP,
        Column("plane", _I32, "lane of the collective call"),
        Column("src_rank", _I32, "rank in the group that sends"),
        Column("dst_rank", _I32, "rank in the group that receives"),
        Column("bytes", _I64, "bytes moved", "B"),
        Column("link", _STR, "HCCS, PCIE, ROCE, SIO, ON_CHIP …"),
        Column("notify", _STR, "identifier of the event or notify, as written"),
    ),
    "device activity of an Ascend NPU (torch_npu: ProfilerActivity.NPU with profiler level 1 or"
    " higher)",
)

MEMORY = Table(
    "memory",
    "one allocation or release, or one sample of an allocator",
    (
        _RANK,
        _DEVICE,
        _THREAD,
        _TIME,
        Column("bytes", _I64, "bytes allocated (positive) or released (negative)", "B"),
        Column("allocated_bytes", _I64, "allocated bytes after the event", "B"),
        Column(
            "reserved_bytes", _I64, "bytes that the allocator has reserved after the event", "B"
        ),
        Column("address", _I64, "address of the block"),
        Column("on_device", _BOOL, "false for host memory", nullable=False),
    ),
    "memory events (torch: profile_memory=True; nsys: --cuda-memory-usage=true)",
)

COUNTERS = Table(
    "counters",
    "one sample of a counter",
    (
        _RANK,
        _DEVICE,
        _TIME,
        _NAME,
        Column("value", _F64, "value in the base unit", nullable=False),
        Column("unit", _STR, "unit of the value"),
    ),
    "counter samples (nsys: --gpu-metrics-devices=all; torch: PerformanceMetricsConfig; llmprof's"
    " own monitors)",
)

SAMPLES = Table(
    "samples",
    "one sample of a call stack, or all samples of one stack if the file holds only their sum",
    (
        _RANK,
        _PROCESS,
        _THREAD,
        Column(
            "time_ns",
            _I64,
            "time from the start of the trace; null if only sums were recorded",
            "ns",
        ),
        _NAME,
        Column(
            "stack",
            _STR,
            "frames, one per line, the outermost first; the last one is the name",
            nullable=False,
        ),
        Column("module", _STR, "program or library of the innermost frame"),
        Column("command", _STR, "name of the thread or process as the profiler wrote it"),
        Column("event", _STR, "what was sampled: cpu-clock, cycles, CPU time …"),
        Column(
            "value",
            _I64,
            "weight of the row in its unit, without functions that the frame calls",
            nullable=False,
        ),
        Column("unit", _STR, "ns, samples, or the event's own", nullable=False),
        Column("cpu", _I32, "processor on which it ran"),
    ),
    "a sampler of the host's CPU (perf record -g, VTune), or folded stacks of one",
)

TOTALS = Table(
    "totals",
    "sum of the times of all events of one name, for which the profiler kept no single times",
    (
        _RANK,
        _DEVICE,
        Column("kind", _STR, "kernel, copy, call, op, layer or range", nullable=False),
        _NAME,
        Column("scope", _STR, "ranges that it ran in, one per line, the outermost first"),
        Column("count", _I64, "number of events"),
        Column("total_ns", _I64, "sum of their durations", "ns", nullable=False),
        Column("median_ns", _I64, "median of their durations", "ns"),
        Column("min_ns", _I64, "shortest duration", "ns"),
        Column("max_ns", _I64, "longest duration", "ns"),
        Column(
            "flops", _F64, "floating-point operations of all of them, as the program stated them"
        ),
        Column("bytes", _F64, "bytes moved by all of them, as the program stated them", "B"),
    ),
    "a profiler's own summary (nvprof, nsys stats, rocprofv3 --stats, trtexec --exportProfile,"
    " Triton Proton)",
)

_KERNEL_ID = Column(
    "kernel_id", _I32, "number of the launch, from 0 over everything read together", nullable=False
)
_SECTION = Column("section", _STR, "section of the report; null on pages without sections")

METRICS = Table(
    "metrics",
    "one hardware metric of one kernel launch",
    (
        _KERNEL_ID,
        Column("kernel_name", _STR, "name as the profiler wrote it"),
        Column("grid", _STR, "blocks, as (x, y, z)"),
        Column("block", _STR, "threads of a block, as (x, y, z)"),
        _STREAM,
        _DEVICE,
        _SECTION,
        Column("metric", _STR, "name of the metric", nullable=False),
        Column(
            "unit",
            _STR,
            "base unit of the value: B, ns, Hz, %, 1, or a quotient such as B/s",
            nullable=False,
        ),
        Column("value", _F64, "value in the base unit; null if it is not a number"),
        Column("text", _STR, "text of a value that is not a number, or has more than one"),
    ),
    "a kernel profiler (ncu --set full)",
)

RULES = Table(
    "rules",
    "one result of a rule of the profiler for one kernel launch",
    (
        _KERNEL_ID,
        _SECTION,
        Column("rule", _STR, "identifier of the rule", nullable=False),
        Column(
            "kind",
            _STR,
            "OPT (something to gain), INF (information), WRN (warning), ERR",
            nullable=False,
        ),
        Column("text", _STR, "what the rule says", nullable=False),
        Column(
            "estimated_speedup_pct", _F64, "possible speed-up, as the profiler estimates it", "%"
        ),
        Column(
            "speedup_scope",
            _STR,
            "global: of the kernel's time; local: of the part the rule looks at",
        ),
    ),
    "a kernel profiler (ncu, details page)",
)

PROFILES: dict[str, Table] = {t.name: t for t in (METRICS, RULES)}
"""Tables of hardware metrics, which are not part of a trace."""

TABLES: dict[str, Table] = {
    t.name: t
    for t in (
        KERNELS,
        COPIES,
        TASKS,
        RUNTIME,
        OPS,
        MARKERS,
        COLLECTIVES,
        MEMORY,
        COUNTERS,
        SAMPLES,
        TOTALS,
    )
}


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
            exprs.append(pl.lit(None, dtype=column.dtype).alias(column.name))
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
