"""Sorts the events of a Chrome trace by kind and by rank, batch by batch, and turns them into
columns.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import polars as pl

from llmprof.names.modules import DOMAIN
from llmprof.readers.chrome import events as kinds
from llmprof.readers.chrome.events import OtherPhase, in_ns, times
from llmprof.readers.common.reader import MOST_RANKS, NO_TIME
from llmprof.readers.common.repair import BAD_JSON, ListDecoder, objects
from llmprof.trace.schema import compact

_NUMBERED: Final = re.compile(
    r"(?:(?:stream|queue|thread|process|pid|tid|hip|cuda api|nvtx|host|device|gpu|npu)["
    r" _#:-]*)?(\d{1,18})",
    re.IGNORECASE,
)


class DistinctTexts:
    """Distinct texts of a file by column; rows hold a code, so a name that occurs a million
    times is stored once.
    """

    def __init__(self) -> None:
        self._codes: dict[str, _Codes] = defaultdict(_Codes)
        self._told: dict[str, int] = {}
        self._tables: dict[str, pl.Series] = {}

    def codes(self, column: str, values: Iterable[Any]) -> pl.Series:
        """Code of each value (text, JSON bytes or None) of a column."""
        codes = self._codes[column]
        return pl.Series([codes[v] for v in values], dtype=pl.UInt32)

    def new(self) -> dict[str, list[Any]]:
        """Values that came since the last call, by column, in the order of their codes."""
        out = {}
        for column, codes in self._codes.items():
            if len(codes) > (told := self._told.get(column, 0)):
                out[column] = list(itertools.islice(codes, told, None))
                self._told[column] = len(codes)
        return out

    def code_of_none(self, column: str) -> int:
        """Code of a missing value."""
        return self._codes[column][None]

    def texts(self, column: str, codes: pl.Series, text: Callable[[Any], str | None]) -> pl.Series:
        """Texts of the codes of a column; each distinct value is turned into text once, and gets
        no code any more.
        """
        if column not in self._tables:
            self._tables[column] = pl.Series(
                map(text, self._codes.pop(column, ())), dtype=pl.String
            )
        return self._tables[column].gather(codes)


class _Codes(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


def _ids(values: Sequence[int | str | None]) -> pl.Series:
    """Identifiers as int64: integers as they are, ``"stream 7"`` as 7, other text as a number
    made of its hash.
    """
    # A hash is negative, so it never equals a real identifier, and it is the same in every file.
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        known = functools.cache(_id)
        return pl.Series([known(v) for v in values], dtype=pl.Int64)


def _id(value: int | str | None) -> int | None:
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else _hash(str(value))
    if not value or not value.strip():
        return None
    if value.strip() == "-1":  # Kineto's own spans
        return -1
    numbered = _NUMBERED.fullmatch(value.strip())
    return int(numbered[1]) if numbered else _hash(value)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return -2 - (int.from_bytes(digest, "big") >> 2)  # -1 is what profilers write for "none"


def _integers(
    values: Sequence[int | float | None], dtype: pl.DataType | type[pl.DataType] = pl.Int64
) -> pl.Series:
    """Whole numbers of a type; null where a value does not fit into it."""
    try:
        return pl.Series(values, dtype=dtype)
    except (TypeError, OverflowError):
        limit = 2 ** (31 if dtype == pl.Int32 else 63)
        whole = [int(v) if v is not None and -limit <= v < limit else None for v in values]
        return pl.Series(whole, dtype=dtype)


_UNKNOWN_SIZE: Final = (None, None, None)

BatchColumns = dict[str, pl.Series]
Build = Callable[[DistinctTexts, list[Any], list[Any]], BatchColumns]
"""Takes the texts of the file, events and their arguments."""


def _kernels(texts: DistinctTexts, events: list[Any], args: list[kinds.KernelArgs]) -> BatchColumns:
    """Kernels.

    The columns of a collective exist only if at least one kernel is described as a collective.
    """
    columns = {
        **_on_device(texts, events, args),
        "registers": _integers([a.registers for a in args], pl.Int32),
        "shared_bytes": _integers([a.shared for a in args]),
        "est_occupancy_pct": pl.Series([a.occupancy for a in args], dtype=pl.Float64),
    }
    for part, sizes in (("grid", [a.grid for a in args]), ("block", [a.block for a in args])):
        known = (
            [_UNKNOWN_SIZE if size is None else size for size in sizes] if None in sizes else sizes
        )
        for axis, values in zip("xyz", zip(*known, strict=True), strict=True):
            columns[f"{part}_{axis}"] = _integers(values, pl.Int32)
    if any(
        [  # noqa: C419
            a.annotation or a.marked or a.module or a.module_path or a.module_path_2 or a.layer
            for a in args
        ]
    ):
        columns["torch_annotation"] = texts.codes(
            "torch_annotation", [_annotation(a) for a in args]
        )
    if any([a.collective or a.in_elements for a in args]):  # noqa: C419 - a list is faster
        described = ("collective", "dtype", "group", "group_ranks")
        columns |= {
            **{
                name: pl.Series([getattr(a, name) for a in args], dtype=pl.String)
                for name in described
            },
            "in_elements": _integers([a.in_elements for a in args]),
            "out_elements": _integers([a.out_elements for a in args]),
            "world": _integers([a.group_size for a in args], pl.Int32),
            "peer": _integers(
                [a.source_rank if a.target_rank is None else a.target_rank for a in args], pl.Int32
            ),
        }
    return columns


def _queue(texts: DistinctTexts, events: list[Any], args: list[kinds.QueueArgs]) -> BatchColumns:
    """Commands of an MTIA device's queues, with size and direction of copies."""
    return {
        **_on_device(texts, events, args),
        "bytes": _integers([a.size for a in args]),
        "direction": pl.Series([a.direction for a in args], dtype=pl.String),
    }


def _calls(texts: DistinctTexts, events: list[Any], args: list[kinds.LaunchArgs]) -> BatchColumns:
    """Calls of a device runtime or driver, with the kernel that they launch if the file names
    it.
    """
    columns = {**_on_host(texts, events, args), "correlation": _correlations(args)}
    if any([a.kernel for a in args]):  # noqa: C419 - a list is faster
        columns["rocm_kernel"] = texts.codes("rocm_kernel", [a.kernel for a in args])
        columns["rocm_grid"] = texts.codes("rocm_grid", [bytes(a.grid) or None for a in args])
        columns["rocm_block"] = texts.codes("rocm_block", [bytes(a.block) or None for a in args])
    return columns


def ops(texts: DistinctTexts, events: list[Any], args: list[kinds.OpArgs]) -> BatchColumns:
    """Operators, with PyTorch's description of their arguments if it was recorded."""
    return {**_on_host(texts, events, args), **_arguments(texts, args)}


def repeated_ops(texts: DistinctTexts, events: list[Any], args: Repeated) -> BatchColumns:
    """Operators, with arguments that :func:`repeated` found."""
    columns = {
        name: codes.gather(args.rows) for name, codes in _arguments(texts, args.distinct).items()
    }
    return {**_on_host(texts, events), "op_id": args.op_ids, **columns}


def _arguments(texts: DistinctTexts, args: list[kinds.OpArgs]) -> BatchColumns:
    """PyTorch's description of the arguments of operators."""
    columns = {
        "shapes": texts.codes("shapes", _either(_SHAPES, args)),
        "dtypes": texts.codes("dtypes", _either(_TYPES, args)),
    }
    for name, field in (
        ("torch_strides", [a.strides for a in args]),
        ("torch_inputs", [a.inputs for a in args]),
    ):
        if field.count(kinds.NOTHING) < len(field):
            columns[name] = texts.codes(
                name, [None if v is kinds.NOTHING else bytes(v) for v in field]
            )
    if any([a.op_name for a in args]):  # noqa: C419 - a list is faster
        columns["ort_op"] = texts.codes("ort_op", [a.op_name for a in args])
    return columns


class Repeated(NamedTuple):
    """Arguments of operators that differ, and for each event their place among them and its
    operator's identifier.
    """

    distinct: list[kinds.OpArgs]
    rows: pl.Series
    op_ids: pl.Series


_FIRST_MEMBER: Final = re.compile(rb'\{\s*"[Ee]xternal id": ?(?=\d)')
_LAST_KEY: Final = '"Ev Idx":'
_TIMES_EACH: Final = 4

_OP_ARGS: Final = msgspec.json.Decoder(list[kinds.OpArgs])


def repeated(texts: Sequence[msgspec.Raw]) -> Repeated | None:
    """Arguments as Kineto writes them: equal but for the first and the last number, so few have
    to be decoded.
    """
    first = _FIRST_MEMBER.match(bytes(texts[0]))
    if first is None:
        return None
    try:
        written = pl.Series([bytes(text) for text in texts], dtype=pl.Binary).cast(pl.String)
        apart = _numbers_apart(written, first[0].decode())
        shared, alike = apart["shared"], apart.select(pl.first("row").over("shared")).to_series()
        is_first = alike == apart["row"]
        if is_first.sum() * _TIMES_EACH > apart.height or shared.null_count():
            return None
        members = (
            text if text.endswith(b"}") else text.rstrip().removesuffix(b",") + b"}"
            for text in shared.filter(is_first)
        )
        distinct = _OP_ARGS.decode(b"[{" + b",{".join(members) + b"]")
    except (*BAD_JSON, pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError):
        return None
    if len(distinct) != is_first.sum() or any(args.op_id is not None for args in distinct):
        return None
    places = (is_first.cum_sum() - 1).gather(alike)
    return Repeated(distinct, places, apart["op_id"])


def _numbers_apart(texts: pl.Series, before: str) -> pl.DataFrame:
    """For each text its ``row``, the ``op_id`` that follows its beginning, and the members
    ``shared`` with others.
    """
    # A last member that is the event's number is cut off, which leaves the comma before it.
    text, comma, last = pl.col("text").cast(pl.Binary), pl.col("comma"), pl.col("last")
    places = pl.DataFrame({"text": texts}).select(
        "text",
        comma=pl.col("text").str.find(",", literal=True),
        last=pl.col("text").str.find(_LAST_KEY, literal=True),
    )
    is_last = ~text.bin.slice(last).bin.contains(b",")
    rest = pl.when(is_last).then(last - comma - 1)
    return places.select(
        row=pl.int_range(pl.len(), dtype=pl.UInt32),
        op_id=text.bin.head(comma).cast(pl.String).str.strip_prefix(before).cast(pl.Int64),
        shared=text.bin.slice(comma + 1, rest),
    )


def _device_markers(
    texts: DistinctTexts, events: list[Any], args: list[kinds.DeviceMarkerArgs]
) -> BatchColumns:
    """Markers on a device.

    The columns of a synchronisation exist only if at least one marker is one.
    """
    columns = {
        **_span(texts, events),
        "device": _ids(
            [e.pid if a.device is None else a.device for a, e in zip(args, events, strict=True)]
        ),
        "stream": _ids(
            [e.tid if a.stream is None else a.stream for a, e in zip(args, events, strict=True)]
        ),
        "op_id": _op_ids(args),
        "domain": _domains(texts, events),
    }
    if any([a.sync_kind for a in args]):  # noqa: C419 - a list is faster
        columns |= {
            "sync_kind": pl.Series([a.sync_kind for a in args], dtype=pl.String),
            "correlation": _correlations(args),
            "wait_on_stream": _ids([a.wait_on_stream for a in args]),
            "wait_on_record": _ids([a.wait_on_record for a in args]),
        }
    return columns


def _by_process(
    texts: DistinctTexts, events: list[Any], args: list[kinds.CallArgs]
) -> BatchColumns:
    """Events whose kind depends on the name of their process, which the file may give after
    them.
    """
    return {
        **_on_host(texts, events, args),
        "domain": _domains(texts, events),
        "correlation": _correlations(args),
        "stream": _ids([e.tid for e in events]),
    }


def _flows(texts: DistinctTexts, events: list[Any], _: list[Any]) -> BatchColumns:
    """Begins and ends of flows, which belong together by number, and category or else name."""
    return {
        **times("start", [e.ts for e in events]),
        "name": texts.codes("name", [e.category or e.name for e in events]),
        "process": _ids([e.pid for e in events]),
        "thread": _ids([e.tid for e in events]),
        "id": _ids([e.id for e in events]),
        "is_source": pl.Series([e.cat.phase == "s" for e in events], dtype=pl.Boolean),
    }


def _memory(texts: DistinctTexts, events: list[Any], args: list[kinds.MemoryArgs]) -> BatchColumns:
    """Allocations and releases."""
    return {
        **times("time", [e.ts for e in events]),
        "name": texts.codes("name", [e.name for e in events]),
        "thread": _ids([e.tid for e in events]),
        "device": _ids([a.device for a in args]),
        "on_device": pl.Series([a.device_type not in (None, 0) for a in args], dtype=pl.Boolean),
        "bytes": _integers([a.size for a in args]),
        "address": _ids([a.address for a in args]),
        "allocated_bytes": _integers([a.allocated for a in args]),
        "reserved_bytes": _integers([a.reserved for a in args]),
    }


def _counters(texts: DistinctTexts, events: list[Any], args: list[Any]) -> BatchColumns:
    """Samples of counters; an event with several values gives a row for each."""
    rows = [
        (event, key if sampled else f"{event.name}.{key}" if several else event.name, key, number)
        for event, values in zip(events, objects([e.args for e in events]), strict=True)
        for sampled, several in ((event.name == _PM_SAMPLING, len(values) > 1),)
        for key, value in values.items()
        if (number := _number(value)) is not None
    ]
    return {
        "device": _ids([row[0].pid if row[0].name == _PM_SAMPLING else None for row in rows]),
        **times("time", [row[0].ts for row in rows]),
        "name": texts.codes("name", [row[1] for row in rows]),
        "unit": texts.codes("unit", [_unit(row[2]) for row in rows]),
        "value": pl.Series([row[3] for row in rows], dtype=pl.Float64),
    }


@functools.cache
def _unit(key: str) -> str | None:
    if named := next((unit for pattern, unit in _UNITS if re.search(pattern, key)), None):
        return named
    match = _UNIT.search(key)
    return match[1] if match else None


_PM_SAMPLING: Final = "CUPTI PM Sampling"
"""Kineto's events of samples of a device (its number is the process), with a value a metric."""

_UNITS: Final = ((r"\.pct(?:_of_peak\w*)?$", "%"), (r"bytes\w*\.\w+\.per_second$", "B/s"))
"""Units that the names of NVIDIA's metrics say."""

_UNIT: Final = re.compile(r"(?:^|\()([kKMGT]?i?(?:B|Hz|bit)(?:/s)?|%|[mk]?W|[mun]?s|C)\)?$")


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _span(texts: DistinctTexts, events: Sequence[Any]) -> BatchColumns:
    return {
        **times("start", [e.ts for e in events]),
        **times("dur", [e.dur for e in events]),
        "name": texts.codes("name", [e.name for e in events]),
    }


def _on_device(
    texts: DistinctTexts,
    events: list[Any],
    args: Sequence[kinds.KernelArgs | kinds.CopyArgs | kinds.QueueArgs],
) -> BatchColumns:
    """Columns of all work on a device."""
    return {
        **_span(texts, events),
        "device": _ids(
            [e.pid if a.device is None else a.device for a, e in zip(args, events, strict=True)]
        ),
        "stream": _ids(
            [e.tid if a.stream is None else a.stream for a, e in zip(args, events, strict=True)]
        ),
        "correlation": _correlations(args),
        "op_id": _op_ids(args),
        "graph_node": _graph_nodes(args),
    }


def _graph_nodes(args: Sequence[kinds.KernelArgs | kinds.CopyArgs | kinds.QueueArgs]) -> pl.Series:
    """Nodes of graphs: the number of a node is unique with that of its graph, which newer
    profilers write beside it.
    """
    nodes, graphs = (
        _ids([a.graph_node or None for a in args]),
        _ids([a.graph or None for a in args]),
    )
    if graphs.null_count() == graphs.len():
        return nodes
    known = pl.when(nodes < 2**32).then(graphs * 2**32 + nodes).otherwise(nodes)
    return pl.select(pl.coalesce(known, nodes)).to_series()


def _annotation(args: kinds.KernelArgs) -> bytes | None:
    """The program's annotation of a kernel at the capture: the path of a module, else a text or
    the layer.
    """
    for field in (args.module_path, args.module_path_2, args.module, args.marked, args.annotation):
        if field is not kinds.NOTHING and bytes(field) not in (b"", b"null"):
            return bytes(field)
    if args.layer is kinds.NOTHING:
        return None
    layer = bytes(args.layer).strip(b'"')
    path = b"layers." + layer if layer.isdigit() else layer
    name = bytes(args.marked_name).strip(b'"')
    return b'"' + path + (b"." + name if name else b"") + b'"'


def _on_host(
    texts: DistinctTexts, events: list[Any], args: Sequence[kinds.ChromeArgs] | None = None
) -> BatchColumns:
    """Columns of everything on the host."""
    place = {"process": _ids([e.pid for e in events]), "thread": _ids([e.tid for e in events])}
    return _span(texts, events) | place | ({} if args is None else {"op_id": _op_ids(args)})


def _op_ids(args: Sequence[kinds.ChromeArgs]) -> pl.Series:
    return _ids([a.op_id if a.external_id is None else a.external_id for a in args])


def _correlations(args: Sequence[kinds.CallArgs]) -> pl.Series:
    return _ids([a.call if a.correlation is None else a.correlation for a in args])


def _either(fields: Sequence[_Field], args: list[kinds.OpArgs]) -> list[bytes | None]:
    """JSON of the first of several fields that is present, for each event."""
    nothing = kinds.NOTHING
    values: list[msgspec.Raw] = []
    for column in (field(args) for field in fields):
        if column.count(nothing) < len(column):
            values = (
                [b if a is nothing else a for a, b in zip(values, column, strict=True)]
                if values
                else column
            )
            if nothing not in values:
                break
    return [None if v is nothing else bytes(v) for v in values] if values else [None] * len(args)


_Field = Callable[[list[kinds.OpArgs]], list[msgspec.Raw]]
_SHAPES: Final[Sequence[_Field]] = (
    lambda args: [a.dims for a in args],
    lambda args: [a.dims_2021 for a in args],
    lambda args: [a.types_and_dims for a in args],
)
_TYPES: Final[Sequence[_Field]] = (
    lambda args: [a.types for a in args],
    lambda args: [a.types_and_dims for a in args],
)


def _domains(texts: DistinctTexts, events: list[Any]) -> pl.Series:
    return texts.codes("domain", [_domain(e.cat) for e in events])


@functools.cache
def _domain(category: str | None) -> str:
    return (category or "").lower() or "annotation"


_CATEGORIES: Final = {
    "kernel": ("kernel", "cuda", "hpu_op"),
    "copy": ("gpu_memcpy", "memcpy", "gpu_memset", "memset"),
    "runtime": (
        *("cuda_runtime", "runtime", "hip_runtime", "xpu_runtime", "mtia_runtime", "glow_runtime"),
        *("privateuse1_runtime", "cuda_api"),
    ),
    "os": ("osrt",),
    "driver": ("cuda_driver", "xpu_driver", "privateuse1_driver"),
    "op": ("cpu_op", "operator", "node"),
    "python": ("python_function",),
    "marker": (
        "user_annotation",
        "overhead",
        "nvtx",
        "graph_host_node",
        "session",
        "enqueue",
        "dequeue",
    ),
    "device_marker": ("gpu_user_annotation", "cuda_sync", "nvtx-kernel"),
    "queue": ("mtia_ccp_events",),
    "": ("trace", "llmprof"),
}
KINDS: Final = {
    category: kind for kind, categories in _CATEGORIES.items() for category in categories
}
"""Category (lower case) -> kind of event; empty means not used.

The kind of other categories depends on the process.
"""

_COLUMNS: Final[dict[str, tuple[type[Any] | None, Build]]] = {
    "kernel": (kinds.KernelArgs, _kernels),
    "copy": (
        kinds.CopyArgs,
        lambda t, events, args: (
            _on_device(t, events, args) | {"bytes": _integers([a.size for a in args])}
        ),
    ),
    "queue": (kinds.QueueArgs, _queue),
    "runtime": (kinds.LaunchArgs, _calls),
    "driver": (kinds.LaunchArgs, _calls),
    "os": (kinds.LaunchArgs, _calls),
    "op": (kinds.OpArgs, ops),
    "python": (None, lambda t, events, _: _on_host(t, events)),
    "marker": (
        kinds.ChromeArgs,
        lambda t, events, args: _on_host(t, events, args) | {"domain": _domains(t, events)},
    ),
    "module": (
        None,
        lambda t, events, _: (
            _on_host(t, events) | {"domain": t.codes("domain", [DOMAIN] * len(events))}
        ),
    ),
    "device_marker": (kinds.DeviceMarkerArgs, _device_markers),
    "process": (kinds.CallArgs, _by_process),
    "memory": (kinds.MemoryArgs, _memory),
    "flow": (None, _flows),
    "counter": (None, _counters),
}
"""For each kind of event: class of its arguments (None if there are none, or no fixed class), and
the function that converts events to columns.
"""

_WORTH_AN_ATTEMPT: Final = 256
_PYTHON: Final = "python_function"
_MODULE: Final = "nn.Module: "
"""Prefix of the name of a Python function that is the call of a torch module; such calls are
kept as markers.
"""
_GLOO: Final = "gloo:"
"""Prefix of the name of a range in which a thread of a process group communicates: work, and so
an operator.
"""

_LEFT_OUT: Final = {
    "s": "flow",
    "t": "flow",
    "f": "flow",
    "M": "metadata",
    "i": "instant",
    "I": "instant",
}

NO_PHASE: Final = "ph ''"
"""Reason for leaving out an entry without a phase, which is no event."""


class LaneName(NamedTuple):
    """Name of a process, or of one of its threads."""

    process: int
    thread: int | None
    name: str


@dataclass(slots=True)
class EventBatch:
    """Columns and counts of one batch of events."""

    unit: int
    """Position of the batch in the file."""
    total: int = 0
    kept: int = 0
    wrong_types: int = 0
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)
    lane_names: list[LaneName] = dataclasses.field(default_factory=list)
    frames: dict[str, pl.DataFrame] = dataclasses.field(default_factory=dict)

    def facts(self) -> list[Any]:
        """All but the columns, as another process can take it."""
        names = [list(lane) for lane in self.lane_names]
        return [self.total, self.kept, self.wrong_types, self.skipped, names, list(self.frames)]

    @classmethod
    def of(cls, unit: int, facts: list[Any]) -> EventBatch:
        """The batch that another process told :meth:`facts` of, without its columns."""
        total, kept, wrong_types, skipped, names, _ = facts
        return cls(unit, total, kept, wrong_types, skipped, [LaneName(*name) for name in names])


class Batches:
    """Columns of the batches read so far, by kind of event."""

    def __init__(self, *, python_functions: bool) -> None:
        self.texts = DistinctTexts()
        self.batches: list[EventBatch] = []
        self.kept = 0
        self.skipped: Counter[str] = Counter()
        self._kinds = _Kinds(python_functions=python_functions)
        self._args = {
            kind: ListDecoder(args) for kind, (args, _) in _COLUMNS.items() if args is not None
        }
        self._names = ListDecoder(kinds.NameArgs)
        self._attempts = 2  # at arguments that repeat

    @property
    def total(self) -> int:
        """Number of events read."""
        return sum(batch.total for batch in self.batches)

    @property
    def wrong_types(self) -> int:
        """Arguments that were dropped because of their type."""
        return sum(batch.wrong_types for batch in self.batches)

    @property
    def lane_names(self) -> list[LaneName]:
        """Names of processes and threads; of several for one, the last counts."""
        names = [lane for batch in self._in_order() for lane in batch.lane_names]
        return list({lane[:2]: lane for lane in names}.values())

    def _in_order(self) -> list[EventBatch]:
        return sorted(self.batches, key=lambda batch: batch.unit)

    def add(self, events: list[Any], unit: int = 0) -> None:
        """Sort a batch of events by kind and add them to the columns."""
        batch = EventBatch(unit, total=len(events))
        skipped: Counter[str] = Counter()
        groups: dict[str, list[Any]] = defaultdict(list)
        others: dict[str, list[Any]] = defaultdict(list)
        append = _Appending(self._kinds, groups, others)
        wrong = self._wrong_types()
        for event in events:
            append[event.cat](event)
        self._add_others(others, groups, batch, skipped)
        self._take_modules(groups, batch)
        if gloo := [
            e for e in groups.get("marker", ()) if e.name is not None and e.name.startswith(_GLOO)
        ]:
            groups["marker"] = [
                e for e in groups["marker"] if e.name is None or not e.name.startswith(_GLOO)
            ]
            groups["op"] += gloo
        for kind, group in groups.items():
            if kind in _COLUMNS:
                batch.frames[kind] = self._columns(kind, group)
            else:
                skipped[kind] += len(group)
        batch.skipped = dict(skipped)
        batch.wrong_types = self._wrong_types() - wrong
        self.batches.append(batch)

    def _wrong_types(self) -> int:
        return sum(decoder.wrong_types for decoder in self._args.values())

    def _take_modules(self, groups: dict[str, list[Any]], batch: EventBatch) -> None:
        """Add calls of modules as a group of their own, also where the Python functions are
        kept.
        """
        kept = "python" in groups
        functions = groups.get("python" if kept else _PYTHON, [])
        modules = [e for e in functions if e.name is not None and e.name.startswith(_MODULE)]
        if modules:
            groups["module"] = modules
            if kept:
                batch.kept -= len(modules)
            else:
                groups[_PYTHON] = [
                    e for e in functions if e.name is None or not e.name.startswith(_MODULE)
                ]

    def _add_others(
        self,
        others: dict[str, list[Any]],
        groups: dict[str, list[Any]],
        batch: EventBatch,
        skipped: Counter[str],
    ) -> None:
        """Add the events of other phases than that of complete events; ``others`` has them by
        phase.
        """
        for phase, events in others.items():
            left_out = len(events)
            if phase == "C" or isinstance(events[0], kinds.Flow):
                groups["counter" if phase == "C" else "flow"] += events
                batch.kept += left_out
                continue
            if phase == "M":
                named = [e for e in events if e.name in ("process_name", "thread_name")]
                threads = _ids([e.tid if e.name == "thread_name" else None for e in named])
                lanes = zip(
                    _ids([e.pid for e in named]),
                    threads,
                    self._names([e.args for e in named]),
                    strict=True,
                )
                batch.lane_names += [
                    LaneName(pid, tid, str(a.name))
                    for pid, tid, a in lanes
                    if pid is not None and a.name is not None
                ]
            elif phase in ("i", "I") and (memory := [e for e in events if e.name == "[memory]"]):
                groups["memory"] += memory
                left_out -= len(memory)
            skipped[_LEFT_OUT.get(phase, f"ph {phase!r}" if phase else NO_PHASE)] += left_out

    def _columns(self, kind: str, events: list[Any]) -> pl.DataFrame:
        written = [e.args for e in events] if kind in self._args else []
        if kind == "op" and self._attempts and len(events) >= _WORTH_AN_ATTEMPT:
            if (found := repeated(written)) is not None:
                return compact(pl.DataFrame(repeated_ops(self.texts, events, found)))
            self._attempts -= 1
        args = self._args[kind](written) if written else []
        return compact(pl.DataFrame(_COLUMNS[kind][1](self.texts, events, args)))

    def frames(self, base_ns: int) -> dict[str, pl.DataFrame]:
        """One frame for each kind, with the events that have a time and a name; the batches are
        freed on the way.
        """
        by_kind: dict[str, list[pl.DataFrame]] = defaultdict(list)
        for batch in self._in_order():
            self.kept += batch.kept
            self.skipped.update(batch.skipped)
            for kind in list(batch.frames):
                by_kind[kind].append(batch.frames.pop(kind))
        alike = [
            (kind, pl.concat(list(group)))
            for kind in list(by_kind)
            for _, group in itertools.groupby(by_kind.pop(kind), key=lambda frame: frame.schema)
        ]
        converted: dict[str, list[pl.DataFrame]] = defaultdict(list)
        for (kind, _), frame in zip(
            alike, in_ns([frame for _, frame in alike], base_ns), strict=True
        ):
            converted[kind].append(frame)
        del alike
        out = {}
        for kind in list(converted):
            frame = pl.concat(converted.pop(kind), how="diagonal_relaxed")
            out[kind] = self._complete(frame)
            if kind != "counter":  # if one event has several rows
                self.skipped[NO_TIME] += frame.height - out[kind].height
                self.kept += out[kind].height
        return out

    def _complete(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The events that have a time and a name."""
        at, nameless = (
            "time_ns" if "time_ns" in frame.columns else "start_ns",
            self.texts.code_of_none("name"),
        )
        if not frame[at].null_count() and not (frame["name"] == nameless).any():
            return frame
        return frame.filter(pl.col(at).is_not_null() & (pl.col("name") != nameless))


class _Appending(dict[str | OtherPhase | None, Callable[[Any], None]]):
    """For each category, the function that appends an event to the group of its kind, or to
    those of its phase.
    """

    def __init__(
        self, event_kinds: _Kinds, groups: dict[str, list[Any]], others: dict[str, list[Any]]
    ) -> None:
        super().__init__()
        self._kinds = event_kinds
        self._groups = groups
        self._others = others

    def __missing__(self, category: str | OtherPhase | None) -> Callable[[Any], None]:
        if isinstance(category, OtherPhase):
            group = self._others[category.phase]
        else:
            group = self._groups[self._kinds[category]]
        self[category] = append = group.append
        return append


class _Kinds(dict[str | None, str]):
    """Kind of event by its category, spelled as in the file."""

    def __init__(self, *, python_functions: bool) -> None:
        super().__init__()
        self._python = "python" if python_functions else _PYTHON

    def __missing__(self, category: str | None) -> str:
        lower = (category or "").lower()
        kind = KINDS.get(lower, "process")
        self[category] = own = self._python if kind == "python" else kind or lower
        return own


_LABEL: Final = re.compile(r"\[((?:[A-Z]{2}\d+-?)+)\] (.*)", re.DOTALL)
_DIMENSION: Final = re.compile(r"([A-Z]{2})(\d+)")
_MERGED_ARGS: Final = b'"pid_raw"'
_ORDER: Final = ("DP", "EP", "PP", "TP")


class _RankLabel(msgspec.Struct, gc=False):
    rank: int | None = None


def split_ranks(events: list[Any]) -> dict[str, list[Any]]:
    """Events by the label of their rank; a file of one rank has all of them under the empty
    label.
    """
    first = next((e for e in events if getattr(e, "pid", None) is not None), None)
    if first is None:
        return {"": events}
    by_process = isinstance(first.pid, str) and _LABEL.match(first.pid) is not None
    if not by_process and _MERGED_ARGS not in bytes(first.args):
        return {"": events}
    out: dict[str, list[Any]] = defaultdict(list)
    known = functools.cache(_label)
    unlabelled: list[Any] = []
    for event in events:
        if (pid := getattr(event, "pid", None)) is None:
            out[""].append(event)
        elif (label_and_pid := known(pid)) is not None:
            event.pid = label_and_pid[1]
            out[label_and_pid[0]].append(event)
        else:
            unlabelled.append(event)
    for event, args in zip(
        unlabelled, ListDecoder(_RankLabel)([e.args for e in unlabelled]), strict=True
    ):
        merged = args.rank is not None and _MERGED_ARGS in bytes(event.args)
        out[str(args.rank) if merged else ""].append(event)
    return out


def _label(pid: Any) -> tuple[str, str] | None:
    """Label in the identifier of a process, and the rest of the identifier; None if it has no
    label.
    """
    match = _LABEL.match(pid) if isinstance(pid, str) else None
    return (match[1], match[2]) if match else None


def rank_numbers(labels: Iterable[str]) -> dict[str, int]:
    """Rank of each label: its number if it is one, else its position by data, expert, pipeline
    and tensor part.
    """
    ordered = sorted(labels, key=_parts)
    numbers = [_parts(label)[-1] for label in ordered]
    alone = all(label.isdecimal() or re.fullmatch(r"TP\d+", label) for label in ordered)
    alone = alone and max(numbers) < MOST_RANKS
    return dict(zip(ordered, numbers if alone else range(len(ordered)), strict=True))


def _parts(label: str) -> tuple[int, ...]:
    parts = {name: int(number) for name, number in _DIMENSION.findall(label)}
    return (
        *(parts.get(name, 0) for name in _ORDER[:-1]),
        int(label) if label.isdecimal() else parts.get("TP", 0),
    )
