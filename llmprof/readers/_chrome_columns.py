"""Columns out of a batch of Chrome trace events, one function a kind of events."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.readers import _chrome_args as kinds
from llmprof.readers._columns import Texts, ids, integers
from llmprof.readers._fitting import objects
from llmprof.readers._times import times

_UNKNOWN_SIZE: Final = (None, None, None)

Columns = dict[str, pl.Series]
Build = Callable[[Texts, list[Any], list[Any]], Columns]
"""Takes the texts of the file, events and their arguments."""


def kernels(texts: Texts, events: list[Any], args: list[kinds.KernelArgs]) -> Columns:
    """Kernels; the columns of a collective are there only if one of the kernels is described as one."""
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


def calls(texts: Texts, events: list[Any], args: list[kinds.CallArgs]) -> Columns:
    """Calls of a device runtime or driver."""
    return {**_span(texts, events), **_on_host(events), "correlation": _correlations(args), "op_id": _op_ids(args)}


def ops(texts: Texts, events: list[Any], args: list[kinds.OpArgs]) -> Columns:
    """Operators."""
    return {
        **_span(texts, events),
        **_on_host(events),
        "op_id": _op_ids(args),
        "shapes": texts.codes("shapes", _either(_SHAPES, args)),
        "dtypes": texts.codes("dtypes", _either(_TYPES, args)),
    }


def python_functions(texts: Texts, events: list[Any], args: list[kinds.Args]) -> Columns:
    """Python functions: as operators, without shapes."""
    return {**_span(texts, events), **_on_host(events)}


def markers(texts: Texts, events: list[Any], args: list[kinds.Args]) -> Columns:
    """Markers on the host."""
    return {**_span(texts, events), **_on_host(events), "op_id": _op_ids(args), "domain": _domains(texts, events)}


def device_markers(texts: Texts, events: list[Any], args: list[kinds.DeviceMarkerArgs]) -> Columns:
    """Markers on a device."""
    return {
        **_span(texts, events),
        "device": ids([e.pid if a.device is None else a.device for a, e in zip(args, events, strict=True)]),
        "stream": ids([e.tid if a.stream is None else a.stream for a, e in zip(args, events, strict=True)]),
        "op_id": _op_ids(args),
        "domain": _domains(texts, events),
    }


def by_process(texts: Texts, events: list[Any], args: list[kinds.ProcessArgs]) -> Columns:
    """Events that their process tells apart, which may have become known after them."""
    streams = [a.stream_physical if a.stream is None else a.stream for a in args]
    return {
        **_span(texts, events),
        **_on_host(events),
        "domain": _domains(texts, events),
        "correlation": _correlations(args),
        "op_id": _op_ids(args),
        "stream": ids([e.tid if s is None else s for s, e in zip(streams, events, strict=True)]),
        "ascend_task": pl.Series([a.task for a in args], dtype=pl.String),
        "in_elements": integers([a.elements for a in args]),
        "dtype": pl.Series([a.dtype for a in args], dtype=pl.String),
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
    """Samples of counters: an event with several values has a row for each."""
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
    found = _UNIT.search(key)
    return found[1] if found else None


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


def _on_device(events: list[Any], args: Sequence[kinds.KernelArgs | kinds.CopyArgs]) -> Columns:
    return {
        "device": ids([e.pid if a.device is None else a.device for a, e in zip(args, events, strict=True)]),
        "stream": ids([e.tid if a.stream is None else a.stream for a, e in zip(args, events, strict=True)]),
        "correlation": _correlations(args),
        "op_id": _op_ids(args),
        "graph_node": ids([a.graph_node for a in args]),
    }


def _on_host(events: list[Any]) -> Columns:
    return {"process": ids([e.pid for e in events]), "thread": ids([e.tid for e in events])}


def _op_ids(args: Sequence[kinds.Args]) -> pl.Series:
    return ids([a.op_id if a.external_id is None else a.external_id for a in args])


def _correlations(args: Sequence[kinds.CallArgs]) -> pl.Series:
    return ids([a.any_correlation if a.correlation is None else a.correlation for a in args])


def _either(fields: Sequence[_Field], args: list[kinds.OpArgs]) -> list[bytes | None]:
    """JSON of the first of several fields that an event has."""
    nothing = kinds.NOTHING
    found: list[msgspec.Raw] = []
    for column in (field(args) for field in fields):
        if column.count(nothing) < len(column):
            found = [b if a is nothing else a for a, b in zip(found, column, strict=True)] if found else column
            if nothing not in found:
                break
    return [None if v is nothing else bytes(v) for v in found] if found else [None] * len(args)


_Field = Callable[[list[kinds.OpArgs]], list[msgspec.Raw]]
_SHAPES: Final[Sequence[_Field]] = (
    lambda args: [a.dims for a in args],
    lambda args: [a.dims_2021 for a in args],
    lambda args: [a.dims_ascend for a in args],
    lambda args: [a.types_and_dims for a in args],
)
_TYPES: Final[Sequence[_Field]] = (lambda args: [a.types for a in args], lambda args: [a.types_and_dims for a in args])


def _domains(texts: Texts, events: list[Any]) -> pl.Series:
    return texts.codes("domain", [_domain(e.cat) for e in events])


@functools.cache
def _domain(category: str | None) -> str:
    return (category or "").lower() or "annotation"
