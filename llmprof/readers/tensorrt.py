"""Readers of the exports of ``trtexec``:

``--exportProfile``, ``--exportTimes`` and ``--exportLayerInfo``.

A profile has the total time of each layer; an export of times has the stages of every iteration
(enqueue, copy in, compute, copy out) on one clock. The type of a layer comes from the engine's
layer information, which is read with a profile ``NAME.profile.json`` if ``NAME.graph.json`` is in
the same folder, as ``trt-engine-explorer`` names the files.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import Probe, Reader, Request, json_of, ns, trace_of
from llmprof.text import counted, left_out
from llmprof.trace import Trace

_PROFILE: Final = re.compile(rb'\[\s*\{\s*"count"\s*:\s*\d+\s*\}')
_TIMES: Final = re.compile(rb'\[\s*\{\s*"startEnqMs"\s*:')
_LAYERS: Final = re.compile(rb'\{\s*"Layers"\s*:\s*\[')

_STAGES: Final = (
    ("startH2dMs", "h2dMs", "copy in", "HtoD"),
    ("startComputeMs", "computeMs", "compute", ""),
    ("startD2hMs", "d2hMs", "copy out", "DtoH"),
)
"""Keys of the start and the length of each stage; the length is more exact than the difference
of end and start.
"""


def _rows(path: Path) -> tuple[list[dict[str, Any]], str]:
    document, damage = json_of(path, "the output of trtexec")
    if not isinstance(document, list):
        raise ReadError(f"{path.name} is not a JSON list", expected="the output of trtexec")
    return [row for row in document if isinstance(row, dict)], damage


def _read_profile(path: Path, request: Request) -> Trace:
    rows, damage = _rows(path)
    iterations = next(
        (row["count"] for row in rows if isinstance(row.get("count"), int) and "name" not in row),
        None,
    )
    layers = [
        row for row in rows if isinstance(row.get("name"), str) and row.get("timeMs") is not None
    ]
    types = _layer_information(path)
    totals = pl.DataFrame(
        {
            "kind": ["layer"] * len(layers),
            "name": [row["name"] for row in layers],
            "scope": [types.get(row["name"]) for row in layers],
            "count": [iterations] * len(layers),
            "total_ns": [_ns(row["timeMs"]) for row in layers],
            "median_ns": [_ns(row.get("medianMs")) for row in layers],
        },
        schema={
            "kind": pl.String,
            "name": pl.String,
            "scope": pl.String,
            "count": pl.Int64,
            "total_ns": pl.Int64,
            "median_ns": pl.Int64,
        },
    )
    notes = [] if iterations is not None else ["the number of iterations is not in the file"]
    if lost := len(rows) - len(layers) - (iterations is not None):
        notes.append(left_out(lost, "entry", "without a name or a time"))
    return trace_of(
        path, "trt-profile", {"totals": totals}, events=len(layers), notes=notes, damage=damage
    )


def _ns(value: object) -> int | None:
    return None if (number := _float(value)) is None else ns(number * 1e6)


def _layer_information(profile: Path) -> dict[str, str]:
    """Type of each layer by its name, from the layer information beside a profile."""
    if not profile.name.endswith(".profile.json"):
        return {}
    beside = profile.with_name(profile.name.removesuffix(".profile.json") + ".graph.json")
    try:
        document = (
            json.loads(beside.read_bytes())
            if beside.is_file() and beside.stat().st_size < 1 << 28
            else {}
        )
    except (OSError, ValueError, RecursionError):
        return {}
    layers = document.get("Layers") if isinstance(document, dict) else None
    return {
        layer["Name"]: layer["LayerType"]
        for layer in layers or []
        if isinstance(layer, dict)
        and isinstance(layer.get("Name"), str)
        and isinstance(layer.get("LayerType"), str)
    }


def _read_times(path: Path, request: Request) -> Trace:
    rows, damage = _rows(path)
    keys = {key: pl.Float64 for begin, length, _, _ in _STAGES for key in (begin, length)}
    keys |= {"startEnqMs": pl.Float64, "endEnqMs": pl.Float64}
    frame = pl.DataFrame(
        {key: [_float(row.get(key)) for row in rows] for key in keys}, schema=keys
    ).with_row_index("iteration")

    def spans(begin: str, took: pl.Expr) -> pl.DataFrame:
        stated = frame.select(
            "iteration", start_ns=pl.col(begin) * 1e6, dur_ns=took * 1e6
        ).drop_nulls()
        return stated.with_columns(
            pl.col("start_ns", "dur_ns").round().cast(pl.Int64, strict=False)
        )

    device = pl.lit(0, dtype=pl.Int32)
    parts, copies = [], []
    for begin, length, name, copy in _STAGES:
        stage = spans(begin, pl.col(length)).with_columns(device=device)
        if copy:
            moved = stage.filter(pl.col("dur_ns").ne_missing(0))
            copies.append(
                moved.select("device", "start_ns", "dur_ns", name=pl.lit(name), kind=pl.lit(copy))
            )
        else:
            label = pl.format("iteration {}", "iteration")
            ranges = stage.with_columns(name=label, domain=pl.lit(name), on_device=pl.lit(True))
            parts.append(ranges.drop("iteration"))
    enqueue = spans("startEnqMs", pl.col("endEnqMs") - pl.col("startEnqMs"))
    calls = enqueue.select("start_ns", "dur_ns", name=pl.lit("enqueue"), api=pl.lit("runtime"))
    tables = {"markers": pl.concat(parts), "copies": pl.concat(copies), "runtime": calls}
    lost = frame.height - tables["markers"].height
    notes = (
        [f"the compute time is missing for {lost:,} of {counted(frame.height, 'iteration')}"]
        if lost
        else []
    )
    notes.append("the file has times of whole iterations, not of kernels")
    return trace_of(
        path,
        "trt-times",
        tables,
        head={"absolute": False},
        events=frame.height,
        notes=notes,
        damage=damage,
    )


def _float(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(min(max(value, -1e300), 1e300))  # an integer may have more digits
    return None


def _starts(pattern: re.Pattern[bytes]) -> Callable[[Probe], bool]:
    return lambda probe: pattern.match(probe.start.lstrip(b"\xef\xbb\xbf \t\r\n")) is not None


READERS: Final = (
    Reader(
        name="trt-profile",
        version=2,
        what="times of layers of TensorRT (trtexec --exportProfile)",
        sniff=_starts(_PROFILE),
        read=_read_profile,
        alone=True,
    ),
    Reader(
        name="trt-times",
        version=2,
        what="times of iterations of TensorRT (trtexec --exportTimes)",
        sniff=_starts(_TIMES),
        read=_read_times,
        alone=True,
    ),
    Reader(
        name="trt-layers",
        version=1,
        what="a description of the layers of a TensorRT engine",
        sniff=_starts(_LAYERS),
        instead="the profile NAME.profile.json beside NAME.graph.json",
        alone=True,
    ),
)
