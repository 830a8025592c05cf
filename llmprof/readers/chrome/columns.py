"""Turns a batch of Chrome trace events into columns, with one function for each kind of event."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import polars as pl

from llmprof.names.operators import DOMAIN
from llmprof.readers.chrome import events as kinds
from llmprof.readers.chrome.events import times
from llmprof.readers.common.repair import UNFIT, objects

_NUMBERED: Final = re.compile(
    r"(?:(?:stream|queue|thread|process|pid|tid|hip|cuda api|nvtx|host|device|gpu|npu)[ _#:-]*)?(\d{1,18})",
    re.IGNORECASE,
)


class Texts:
    """Distinct texts of a file by column; rows hold a code, so a name that occurs a million times is stored once."""

    def __init__(self) -> None:
        self._codes: dict[str, _Codes] = defaultdict(_Codes)
        self._told: dict[str, int] = {}

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
        """Texts of the codes of a column; each distinct value is turned into text once."""
        table = pl.Series([text(value) for value in self._codes[column]], dtype=pl.String)
        return table.gather(codes)


class _Codes(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


def ids(values: Sequence[int | str | None]) -> pl.Series:
    """Identifiers as int64: integers as they are, ``"stream 7"`` as 7, other text as a number made of its hash.

    A hash is negative, so it never equals a real identifier, and it is the same in every file.
    """
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


def integers(values: Sequence[int | float | None], dtype: pl.DataType | type[pl.DataType] = pl.Int64) -> pl.Series:
    """Whole numbers of a type; null where a value does not fit into it."""
    try:
        return pl.Series(values, dtype=dtype)
    except (TypeError, OverflowError):
        limit = 2 ** (31 if dtype == pl.Int32 else 63)
        whole = [int(v) if v is not None and -limit <= v < limit else None for v in values]
        return pl.Series(whole, dtype=dtype)


_UNKNOWN_SIZE: Final = (None, None, None)

Columns = dict[str, pl.Series]
Build = Callable[[Texts, list[Any], list[Any]], Columns]
"""Takes the texts of the file, events and their arguments."""


def kernels(texts: Texts, events: list[Any], args: list[kinds.KernelArgs]) -> Columns:
    """Kernels. The columns of a collective exist only if at least one kernel is described as a collective."""
    columns = {
        **_span(texts, events),
        **_on_device(events, args),
        "registers": integers([a.registers for a in args], pl.Int32),
        "shared_bytes": integers([a.shared for a in args]),
        "est_occupancy_pct": pl.Series([a.occupancy for a in args], dtype=pl.Float64),
    }
    for part, sizes in (("grid", [a.grid for a in args]), ("block", [a.block for a in args])):
        known = [_UNKNOWN_SIZE if size is None else size for size in sizes] if None in sizes else sizes
        for axis, values in zip("xyz", zip(*known, strict=True), strict=True):
            columns[f"{part}_{axis}"] = integers(values, pl.Int32)
    if any([a.annotation or a.marked or a.module or a.module_path or a.module_path_2 or a.layer for a in args]):  # noqa: C419
        columns["torch_annotation"] = texts.codes("torch_annotation", [_annotation(a) for a in args])
    if any([a.collective or a.in_elements for a in args]):  # noqa: C419 - a list is faster
        columns |= {
            "collective": pl.Series([a.collective for a in args], dtype=pl.String),
            "in_elements": integers([a.in_elements for a in args]),
            "out_elements": integers([a.out_elements for a in args]),
            "world": integers([a.group_size for a in args], pl.Int32),
            "dtype": pl.Series([a.dtype for a in args], dtype=pl.String),
            "group": pl.Series([a.group for a in args], dtype=pl.String),
            "group_ranks": pl.Series([a.group_ranks for a in args], dtype=pl.String),
            "peer": integers([a.source_rank if a.target_rank is None else a.target_rank for a in args], pl.Int32),
        }
    return columns


def copies(texts: Texts, events: list[Any], args: list[kinds.CopyArgs]) -> Columns:
    """Copies and fills."""
    return {**_span(texts, events), **_on_device(events, args), "bytes": integers([a.size for a in args])}


def queue(texts: Texts, events: list[Any], args: list[kinds.QueueArgs]) -> Columns:
    """Commands of an MTIA device's queues, with size and direction of copies."""
    return {
        **_span(texts, events),
        **_on_device(events, args),
        "bytes": integers([a.size for a in args]),
        "direction": pl.Series([a.direction for a in args], dtype=pl.String),
    }


def calls(texts: Texts, events: list[Any], args: list[kinds.LaunchArgs]) -> Columns:
    """Calls of a device runtime or driver, with the kernel that they launch if the file names it."""
    columns = {**_span(texts, events), **_on_host(events), "correlation": _correlations(args), "op_id": _op_ids(args)}
    if any([a.kernel for a in args]):  # noqa: C419 - a list is faster
        columns["rocm_kernel"] = texts.codes("rocm_kernel", [a.kernel for a in args])
        columns["rocm_grid"] = texts.codes("rocm_grid", [bytes(a.grid) or None for a in args])
        columns["rocm_block"] = texts.codes("rocm_block", [bytes(a.block) or None for a in args])
    return columns


def ops(texts: Texts, events: list[Any], args: list[kinds.OpArgs]) -> Columns:
    """Operators, with PyTorch's description of their arguments if it was recorded."""
    return {**_span(texts, events), **_on_host(events), "op_id": _op_ids(args), **_arguments(texts, args)}


def repeated_ops(texts: Texts, events: list[Any], args: Repeated) -> Columns:
    """The same columns as of :func:`ops`, of arguments that :func:`repeated` found."""
    columns = {name: codes.gather(args.rows) for name, codes in _arguments(texts, args.distinct).items()}
    return {**_span(texts, events), **_on_host(events), "op_id": args.op_ids, **columns}


def _arguments(texts: Texts, args: list[kinds.OpArgs]) -> Columns:
    """PyTorch's description of the arguments of operators."""
    columns = {
        "shapes": texts.codes("shapes", _either(_SHAPES, args)),
        "dtypes": texts.codes("dtypes", _either(_TYPES, args)),
    }
    for name, field in (("torch_strides", [a.strides for a in args]), ("torch_inputs", [a.inputs for a in args])):
        if field.count(kinds.NOTHING) < len(field):
            columns[name] = texts.codes(name, [None if v is kinds.NOTHING else bytes(v) for v in field])
    if any([a.op_name for a in args]):  # noqa: C419 - a list is faster
        columns["ort_op"] = texts.codes("ort_op", [a.op_name for a in args])
    return columns


class Repeated(NamedTuple):
    """Arguments of operators that differ, and for each event their place among them and its operator's identifier."""

    distinct: list[kinds.OpArgs]
    rows: pl.Series
    op_ids: pl.Series


_FIRST_MEMBER: Final = re.compile(rb'\{\s*"[Ee]xternal id": ?(?=\d)')
_LAST_KEY: Final = '"Ev Idx":'
_APART: Final = b"\x1f"
"""No JSON holds this character."""
_TIMES_EACH: Final = 4

_OP_ARGS: Final = msgspec.json.Decoder(list[kinds.OpArgs])


def repeated(texts: Sequence[msgspec.Raw]) -> Repeated | None:
    """Arguments as Kineto writes them: equal but for the first and the last number, so few have to be decoded."""
    first = _FIRST_MEMBER.match(bytes(texts[0]))
    if first is None:
        return None
    try:
        written = pl.Series([_APART.join(texts)], dtype=pl.Binary).cast(pl.String).str.split(_APART.decode()).explode()
        if written.len() != len(texts):
            return None
        apart = _numbers_apart(written, first[0].decode())
        alike = apart.group_by("shared", maintain_order=True).agg("row")
        if alike.height * _TIMES_EACH > apart.height or alike["shared"].null_count():
            return None
        members = (text if text.endswith(b"}") else text.rstrip().removesuffix(b",") + b"}" for text in alike["shared"])
        distinct = _OP_ARGS.decode(b"[{" + b",{".join(members) + b"]")
    except (*UNFIT, pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError):
        return None
    if len(distinct) != alike.height or any(args.op_id is not None for args in distinct):
        return None
    places = alike.with_row_index("place").select("place", "row").explode("row").sort("row")["place"]
    return Repeated(distinct, places, apart["op_id"])


def _numbers_apart(texts: pl.Series, before: str) -> pl.DataFrame:
    """For each text its ``row``, the ``op_id`` that follows its beginning, and the members ``shared`` with others.

    A last member that is the event's number is cut off, which leaves the comma before it.
    """
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


def python_functions(texts: Texts, events: list[Any], args: list[kinds.Args]) -> Columns:
    """Python functions: as operators, without shapes."""
    return {**_span(texts, events), **_on_host(events)}


def markers(texts: Texts, events: list[Any], args: list[kinds.Args]) -> Columns:
    """Markers on the host."""
    return {**_span(texts, events), **_on_host(events), "op_id": _op_ids(args), "domain": _domains(texts, events)}


def modules(texts: Texts, events: list[Any], args: list[Any]) -> Columns:
    """Calls of torch modules on the host, as markers of the domain :data:`~llmprof.names.operators.DOMAIN`."""
    return {**_span(texts, events), **_on_host(events), "domain": texts.codes("domain", [DOMAIN] * len(events))}


def device_markers(texts: Texts, events: list[Any], args: list[kinds.DeviceMarkerArgs]) -> Columns:
    """Markers on a device. The columns of a synchronisation exist only if at least one marker is one."""
    columns = {
        **_span(texts, events),
        "device": ids([e.pid if a.device is None else a.device for a, e in zip(args, events, strict=True)]),
        "stream": ids([e.tid if a.stream is None else a.stream for a, e in zip(args, events, strict=True)]),
        "op_id": _op_ids(args),
        "domain": _domains(texts, events),
    }
    if any([a.sync_kind for a in args]):  # noqa: C419 - a list is faster
        columns |= {
            "sync_kind": pl.Series([a.sync_kind for a in args], dtype=pl.String),
            "correlation": _correlations(args),
            "wait_on_stream": ids([a.wait_on_stream for a in args]),
            "wait_on_record": ids([a.wait_on_record for a in args]),
        }
    return columns


def by_process(texts: Texts, events: list[Any], args: list[kinds.CallArgs]) -> Columns:
    """Events whose kind depends on the name of their process, which the file may give after them."""
    return {
        **_span(texts, events),
        **_on_host(events),
        "domain": _domains(texts, events),
        "correlation": _correlations(args),
        "op_id": _op_ids(args),
        "stream": ids([e.tid for e in events]),
    }


def memory(texts: Texts, events: list[Any], args: list[kinds.MemoryArgs]) -> Columns:
    """Allocations and releases."""
    return {
        **times("time", [e.ts for e in events]),
        "name": texts.codes("name", [e.name for e in events]),
        "thread": ids([e.tid for e in events]),
        "device": ids([a.device for a in args]),
        "on_device": pl.Series([a.device_type not in (None, 0) for a in args], dtype=pl.Boolean),
        "bytes": integers([a.size for a in args]),
        "address": ids([a.address for a in args]),
        "allocated_bytes": integers([a.allocated for a in args]),
        "reserved_bytes": integers([a.reserved for a in args]),
    }


def counters(texts: Texts, events: list[Any], args: list[Any]) -> Columns:
    """Samples of counters; an event with several values gives a row for each."""
    rows = [
        (event, event.name if len(values) == 1 else f"{event.name}.{key}", key, number)
        for event, values in zip(events, objects([e.args for e in events]), strict=True)
        for key, value in values.items()
        if (number := _number(value)) is not None
    ]
    return {
        **times("time", [row[0].ts for row in rows]),
        "name": texts.codes("name", [row[1] for row in rows]),
        "unit": texts.codes("unit", [_unit(row[2]) for row in rows]),
        "value": pl.Series([row[3] for row in rows], dtype=pl.Float64),
    }


@functools.cache
def _unit(key: str) -> str | None:
    match = _UNIT.search(key)
    return match[1] if match else None


_UNIT: Final = re.compile(r"(?:^|\()([kKMGT]?i?(?:B|Hz|bit)(?:/s)?|%|[mk]?W|[mun]?s|C)\)?$")


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _span(texts: Texts, events: Sequence[Any]) -> Columns:
    return {
        **times("start", [e.ts for e in events]),
        **times("dur", [e.dur for e in events]),
        "name": texts.codes("name", [e.name for e in events]),
    }


def _on_device(events: list[Any], args: Sequence[kinds.KernelArgs | kinds.CopyArgs | kinds.QueueArgs]) -> Columns:
    return {
        "device": ids([e.pid if a.device is None else a.device for a, e in zip(args, events, strict=True)]),
        "stream": ids([e.tid if a.stream is None else a.stream for a, e in zip(args, events, strict=True)]),
        "correlation": _correlations(args),
        "op_id": _op_ids(args),
        "graph_node": _graph_nodes(args),
    }


def _graph_nodes(args: Sequence[kinds.KernelArgs | kinds.CopyArgs | kinds.QueueArgs]) -> pl.Series:
    """Nodes of graphs: the number of a node is unique with that of its graph, which newer profilers write beside it."""
    nodes, graphs = ids([a.graph_node or None for a in args]), ids([a.graph or None for a in args])
    if graphs.null_count() == graphs.len():
        return nodes
    known = pl.when(nodes < 2**32).then(graphs * 2**32 + nodes).otherwise(nodes)
    return pl.select(pl.coalesce(known, nodes)).to_series()


def _annotation(args: kinds.KernelArgs) -> bytes | None:
    """The program's annotation of a kernel at the capture: the path of a module, else a text or the layer."""
    for field in (args.module_path, args.module_path_2, args.module, args.marked, args.annotation):
        if field is not kinds.NOTHING and bytes(field) not in (b"", b"null"):
            return bytes(field)
    if args.layer is kinds.NOTHING:
        return None
    layer = bytes(args.layer).strip(b'"')
    path = b"layers." + layer if layer.isdigit() else layer
    name = bytes(args.marked_name).strip(b'"')
    return b'"' + path + (b"." + name if name else b"") + b'"'


def _on_host(events: list[Any]) -> Columns:
    return {"process": ids([e.pid for e in events]), "thread": ids([e.tid for e in events])}


def _op_ids(args: Sequence[kinds.Args]) -> pl.Series:
    return ids([a.op_id if a.external_id is None else a.external_id for a in args])


def _correlations(args: Sequence[kinds.CallArgs]) -> pl.Series:
    return ids([a.correlation_nsys if a.correlation is None else a.correlation for a in args])


def _either(fields: Sequence[_Field], args: list[kinds.OpArgs]) -> list[bytes | None]:
    """JSON of the first of several fields that is present, for each event."""
    nothing = kinds.NOTHING
    values: list[msgspec.Raw] = []
    for column in (field(args) for field in fields):
        if column.count(nothing) < len(column):
            values = [b if a is nothing else a for a, b in zip(values, column, strict=True)] if values else column
            if nothing not in values:
                break
    return [None if v is nothing else bytes(v) for v in values] if values else [None] * len(args)


_Field = Callable[[list[kinds.OpArgs]], list[msgspec.Raw]]
_SHAPES: Final[Sequence[_Field]] = (
    lambda args: [a.dims for a in args],
    lambda args: [a.dims_2021 for a in args],
    lambda args: [a.types_and_dims for a in args],
)
_TYPES: Final[Sequence[_Field]] = (lambda args: [a.types for a in args], lambda args: [a.types_and_dims for a in args])


def _domains(texts: Texts, events: list[Any]) -> pl.Series:
    return texts.codes("domain", [_domain(e.cat) for e in events])


@functools.cache
def _domain(category: str | None) -> str:
    return (category or "").lower() or "annotation"
