"""Builds the tables of the schema from the columns of a Chrome trace."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.readers.chrome.columns import Texts

_COPY_KIND: Final = re.compile(
    r"\b(?:copy|memcpy)?_?([HDP])(?:ost|evice|eer)?\s*(?:to|2)\s*([HDP])(?:ost|evice|eer)?\b", re.IGNORECASE
)
_COPY_ENDS: Final = re.compile(r"\((\w+)\s*->\s*(\w+)\)")
_FILL: Final = re.compile(r"^(?:memset|fill)", re.IGNORECASE)

_ON_DEVICE: Final = r"(?i)^gpu ?\d+$"
_COPY_NAME: Final = r"(?i)^(?:copy(?:host|device|peer)|memcpy|memset|fillbuffer)"
_CALL_NAME: Final = r"^(?:hip|cuda|cu|hsa_)[A-Z]\w+$"

_DMA: Final = "dma_request"
_SIGNALS: Final = ("event_wait", "event_record")
_DIRECTIONS: Final = {"HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD"}

_HOST: Final = ("process", "thread", "start_ns", "dur_ns", "name", "op_id")
_DEVICE: Final = ("stream", "start_ns", "dur_ns", "name", "correlation", "op_id")

_MOST_DEVICES: Final = 1 << 12

_DESCRIPTION: Final = (
    "collective", "in_elements", "out_elements", "world", "dtype", "group", "group_ranks", "peer",
)  # fmt: skip
"""Columns of kernels that describe a collective, if the profiler wrote them."""

Frames = dict[str, pl.DataFrame]


def tables(frames: Mapping[str, pl.DataFrame], process_names: Mapping[int, str], texts: Texts) -> Frames:
    """Tables of one file."""
    by_kind = {kind: _named(frame, texts) for kind, frame in frames.items()}
    for more in (_told_apart(by_kind.pop("process", None), process_names), _of_queue(by_kind.pop("queue", None))):
        for kind, frame in more.items():
            by_kind[kind] = pl.concat([by_kind[kind], frame], how="diagonal_relaxed") if kind in by_kind else frame
    kernels = by_kind.get("kernel")
    if kernels is not None and "torch_annotation" in kernels.columns:
        by_kind |= {kind: _lanes(by_kind[kind]) for kind in ("kernel", "copy") if kind in by_kind}
        kernels = by_kind["kernel"]
    runtime = _concat(*(_with(by_kind.get(api), api=pl.lit(api)) for api in ("runtime", "driver", "os")))
    if (markers := by_kind.get("device_marker")) is not None and "sync_kind" in markers.columns:
        runtime = _with_waits(runtime, markers)
        by_kind["device_marker"] = markers.drop("sync_kind", "correlation", "wait_on_stream", "wait_on_record")
    out = {
        "kernels": None if kernels is None else kernels.drop(_DESCRIPTION, strict=False),
        "copies": described(by_kind.get("copy")),
        "runtime": runtime,
        "ops": _concat(
            _with(by_kind.get("op"), kind=pl.lit("op")), _with(by_kind.get("python"), kind=pl.lit("python"))
        ),
        "markers": _concat(
            _with(by_kind.get("marker"), on_device=pl.lit(value=False)),
            _with(by_kind.get("module"), on_device=pl.lit(value=False)),
            _with(by_kind.get("device_marker"), on_device=pl.lit(value=True)),
        ),
        "collectives": _collectives(kernels),
        "memory": None if (memory := by_kind.get("memory")) is None else memory.drop("name"),
        "counters": by_kind.get("counter"),
        "tasks": by_kind.get("tasks"),
    }
    return {name: frame for name, frame in out.items() if frame is not None}


def _with_waits(calls: pl.DataFrame | None, markers: pl.DataFrame) -> pl.DataFrame | None:
    """Runtime calls, with the streams and the event record that the profiler's wait markers name."""
    if calls is None:
        return None
    kind, none = pl.col("sync_kind"), (-1, 2**32 - 1)
    stream_ids = {c: pl.when(~pl.col(c).is_in(none)).then(c) for c in ("stream", "wait_on_stream", "wait_on_record")}
    waits = markers.filter(kind.is_not_null() & pl.col("correlation").is_not_null()).select(
        "correlation",
        torch_waiting_stream=pl.when(kind == "Stream Wait Event").then(stream_ids["stream"]),
        torch_awaited_stream=pl.when(kind == "Stream Sync")
        .then(stream_ids["stream"])
        .otherwise(stream_ids["wait_on_stream"]),
        torch_awaited_call=stream_ids["wait_on_record"],
    )
    return calls.join(waits.unique("correlation"), on="correlation", how="left", maintain_order="left")


def _of_queue(queue: pl.DataFrame | None) -> Frames:
    """Commands of an MTIA device: programs as kernels, DMA requests as copies, waits and signals as tasks."""
    if queue is None:
        return {}
    copies = pl.col("name") == _DMA
    tasks = pl.col("name").is_in(_SIGNALS)
    return {
        "kernel": queue.filter(~copies & ~tasks).drop("bytes", "direction"),
        "copy": queue.filter(copies),
        "tasks": queue.filter(tasks).drop("bytes", "direction", "graph_node").with_columns(kind="name"),
    }


def _lanes(frame: pl.DataFrame) -> pl.DataFrame:
    """Events with a null stream in CUDA graphs: if there are annotations, PyTorch puts them on lanes, not streams."""
    in_graph = pl.col("graph_node").is_not_null()
    lane = pl.when(in_graph).then(pl.col("stream")).cast(pl.Int64)
    return frame.with_columns(stream=pl.when(~in_graph).then("stream"), torch_lane=lane)


def _collectives(kernels: pl.DataFrame | None) -> pl.DataFrame | None:
    """Kernels that the profiler describes as collectives; None if it describes none."""
    if kernels is None or "collective" not in kernels.columns:
        return None
    described = kernels.filter(pl.col("collective").is_not_null() | pl.col("in_elements").is_not_null())
    return described.select(
        "device", "stream", "start_ns", "dur_ns", "name", "correlation", "op_id",
        *(c for c in _DESCRIPTION[1:] if c in described.columns),
        recorded_as="collective", evidence=pl.lit("metadata"), on_device=pl.lit(value=True),
    )  # fmt: skip


def _named(frame: pl.DataFrame, texts: Texts) -> pl.DataFrame:
    """Frame with texts instead of codes, and with null for numbers that are not devices."""
    for place, column in enumerate(frame.columns):
        if column in _TEXTS:
            frame.replace_column(place, texts.texts(column, frame[column], _TEXTS[column]).alias(column))
    if "device" in frame.columns:  # an identifier of the operating system is not a device
        frame = frame.with_columns(pl.when(pl.col("device").is_between(0, _MOST_DEVICES)).then("device").cast(pl.Int32))
    return frame


def _told_apart(events: pl.DataFrame | None, process_names: Mapping[int, str]) -> Frames:
    """Events without a known category as frames by kind, which depends on the name of their process."""
    if events is None:
        return {}
    names = pl.DataFrame(
        {"process": list(process_names), "process_name": list(process_names.values())},
        schema={"process": pl.Int64, "process_name": pl.String},
    )
    events = events.join(names, on="process", how="left", maintain_order="left")
    process, name = pl.col("process_name").fill_null(""), pl.col("name")
    kind = (
        pl.when(process.str.contains(_ON_DEVICE) & name.str.contains(_COPY_NAME))
        .then(pl.lit("copy"))
        .when(process.str.contains(_ON_DEVICE))
        .then(pl.lit("kernel"))
        .when(name.str.contains(_CALL_NAME))
        .then(pl.lit("runtime"))
        .otherwise(pl.lit("marker"))
    )
    device = process.str.extract(r"(?i)^gpu ?(\d+)$", 1).cast(pl.Int32)
    apart = events.with_columns(kind=kind, device=device).partition_by("kind", as_dict=True, include_key=False)
    frames = {str(key[0]): frame for key, frame in apart.items()}
    columns = {
        "kernel": ("device", *_DEVICE),
        "copy": ("device", *_DEVICE),
        "runtime": (*_HOST, "correlation"),
        "marker": (*_HOST, "domain"),
    }
    return {kind: frame.select(columns[kind]) for kind, frame in frames.items()}


def _concat(*frames: pl.DataFrame | None) -> pl.DataFrame | None:
    present = [frame for frame in frames if frame is not None]
    return pl.concat(present, how="diagonal_relaxed") if len(present) > 1 else present[0] if present else None


def _with(frame: pl.DataFrame | None, **columns: pl.Expr) -> pl.DataFrame | None:
    return None if frame is None else frame.with_columns(**columns)


def described(copies: pl.DataFrame | None) -> pl.DataFrame | None:
    """Copies with their kind and the kind of memory at both ends, as far as their name or direction shows them."""
    if copies is None:
        return None
    rows = [(name, *_describe(name)) for name in copies["name"].unique()]
    schema = {"name": pl.String, "kind": pl.String, "src_kind": pl.String, "dst_kind": pl.String}
    named = copies.join(pl.DataFrame(rows, schema=schema, orient="row"), on="name", how="left", maintain_order="left")
    if "direction" not in named.columns:
        return named
    by_direction = pl.col("direction").replace_strict(_DIRECTIONS, default=None, return_dtype=pl.String)
    return named.with_columns(kind=pl.coalesce(by_direction, "kind")).drop("direction")


def _describe(name: str) -> tuple[str, str | None, str | None]:
    kind, ends = _COPY_KIND.search(name), _COPY_ENDS.search(name)
    moved = f"{kind[1].upper()}to{kind[2].upper()}" if kind else "unknown"
    source, target = (ends[1].lower(), ends[2].lower()) if ends else (None, None)
    return "memset" if _FILL.match(name) else moved, source, target


def _json_list(value: bytes | None, of_object: Callable[[dict[str, Any]], Any]) -> str | None:
    """Shapes or types as a JSON list on one line, also from the list of objects that ONNX Runtime writes."""
    if value is None:
        return None
    if _AS_DUMPED.fullmatch(value):
        return value.decode("ascii")
    document = msgspec.json.decode(value)
    if not isinstance(document, list):
        return None
    if any(isinstance(entry, dict) for entry in document):
        document = [of_object(entry) for entry in document if isinstance(entry, dict)]
    return json.dumps(document)


_AS_DUMPED: Final = re.compile(rb'\[(?:[\[\]]|, |(?:0|-?[1-9]\d{0,17})(?!\d)|"[ !#-\[\]-~]*")*+')
"""Valid JSON of lists, whole numbers and texts in ASCII that ``json.dumps`` would write the same."""


def _annotation(value: Any) -> str | None:
    """Text of an annotation, which is JSON."""
    return None if value is None else str(msgspec.json.decode(value))


_TEXTS: Final[dict[str, Callable[[Any], str | None]]] = {
    **dict.fromkeys(("name", "domain", "unit", "rocm_kernel", "ort_op"), lambda value: value),
    **dict.fromkeys(
        ("shapes", "torch_strides"), lambda value: _json_list(value, lambda entry: next(iter(entry.values()), []))
    ),
    **dict.fromkeys(("dtypes", "torch_inputs"), lambda value: _json_list(value, lambda entry: next(iter(entry), ""))),
    **dict.fromkeys(("torch_annotation", "rocm_grid", "rocm_block"), _annotation),
}


_OPTIONS: Final = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")


def base_ns(head: Mapping[str, msgspec.Raw]) -> int:
    """Origin of the times in the document (ns since the epoch); 0 if the document does not state it."""
    base = _decoded(head, "baseTimeNanoseconds")
    try:
        epoch_ns = int(base)
    except (TypeError, ValueError, OverflowError):
        return 0
    return epoch_ns if 0 <= epoch_ns < 2**61 else 0


def describe(head: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """Facts about the run from the keys of the document."""
    distributed = _decoded(head, "distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    properties = _decoded(head, "deviceProperties")
    properties = properties if isinstance(properties, list) else []
    groups = distributed.get("pg_config")
    groups = [groups] if isinstance(groups, dict) else groups if isinstance(groups, list) else []
    versions = {key: _decoded(head, key) for key in head if key.endswith("_version")}
    return {
        "rank": _natural(distributed.get("rank")),
        "world_size": _natural(distributed.get("world_size")) or None,
        "backend": distributed.get("backend"),
        "devices": [str(name) for d in properties if isinstance(d, dict) and (name := d.get("name"))],
        "device_count": len(properties),
        "groups": {str(g.get("pg_name")): g.get("ranks") for g in groups if isinstance(g, dict)},
        "group_descriptions": {
            str(g.get("pg_name")): text
            for g in groups
            if isinstance(g, dict) and isinstance(text := g.get("pg_desc"), str) and text not in _SAYS_NOTHING
        },
        "versions": {key: value for key, value in versions.items() if isinstance(value, str | int)},
        "options": {key: bool(_decoded(head, key)) for key in _OPTIONS if key in head},
    }


_SAYS_NOTHING: Final = ("", "undefined", "default_pg")


def _decoded(head: Mapping[str, msgspec.Raw], key: str) -> Any:
    try:
        return msgspec.json.decode(head[key]) if key in head else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _natural(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
