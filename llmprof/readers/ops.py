"""Reader of llmprof's timings of operators: calls of layers, modules and functions, steps and
collectives.

A call without timed calls inside becomes an operator; the calls around it, those of modules and
layers, are kept as Python calls, and as markers they give the operator its layer and stage. On a
GPU a time is the difference of two CUDA events on the model's stream, so it includes the device's
waits for the host.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import FilePart, Probe, Reader, Request
from llmprof.trace.schema import END
from llmprof.trace.storage.files import regular

FORMAT: Final = "llmprof-ops"
VERSION: Final = 1

ENTRIES: Final = "llmprof-ops-engine"
"""Domain of the markers of all steps of the engine, timed or not."""

_TIMES: Final = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
_MEMORY: Final = {"bytes_before": pl.Int64, "bytes_after": pl.Int64}
_STEPS: Final = {
    "step": pl.Int64,
    "label": pl.String,
    "phase": pl.String,
    "method": pl.String,
    "held": pl.Boolean,
    **dict.fromkeys(_TIMES, pl.Int64),
    **_MEMORY,
}
_CALLS: Final = {"step": pl.Int64, "name": pl.Int64, **dict.fromkeys(_TIMES, pl.Int64), **_MEMORY}
_COLLECTIVES: Final = {
    "step": pl.Int64,
    "kind": pl.String,
    "group": pl.String,
    "world": pl.Int32,
    "dtype": pl.String,
    "in_elements": pl.Int64,
    "out_elements": pl.Int64,
    "element_bytes": pl.Int64,
    "waits": pl.Boolean,
    "layer": pl.Int32,
    **dict.fromkeys(_TIMES, pl.Int64),
}
_ENTRIES: Final = {"at_ns": pl.Int64, "phase": pl.String, "method": pl.String}
_FACTS: Final = (
    "model",
    "platform",
    "device",
    "clock",
    "clock_uncertainty_ns",
    "torch",
    "layers",
    "options",
    "collectives_seen",
    "notes",
    "world_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
)
_KINDS: Final = {"send": "send_recv", "recv": "send_recv", "gather": "other"}


def _document(path: Path) -> dict[str, Any]:
    """Content of one file, with its format and version checked."""
    try:
        data = regular(path).read_bytes()
    except OSError as error:
        raise ReadError(f"cannot read {path.name}: {error.strerror or error}") from error
    try:
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        parsed = json.loads(text)
    except (OSError, EOFError, ValueError, zlib.error, RecursionError) as error:
        found = f"{path.name} is damaged: {str(error)[:200]}"
        raise ReadError(
            found, expected="the complete file of a run", hint="run it again"
        ) from error
    if not isinstance(parsed, dict) or parsed.get("format") != FORMAT:
        raise ReadError(
            f"{path.name} has no timings of operators", expected=f'"format": "{FORMAT}"'
        )
    if parsed.get("version") != VERSION:
        found = f"{path.name} has version {parsed.get('version')!r} of its format"
        expected = f"version {VERSION}"
        raise ReadError(
            found, expected=expected, hint="read it with the llmprof that wrote it, or run it again"
        )
    return parsed


def _table(columns: Mapping[str, Any], schema: Mapping[str, Any]) -> pl.DataFrame:
    """A table of the file, with durations in place of ends."""
    frame = pl.DataFrame({name: columns[name] for name in schema}, schema=dict(schema))
    return frame.with_columns(
        dur_ns=pl.col("end_ns") - pl.col("start_ns"),
        host_dur_ns=pl.col("host_end_ns") - pl.col("host_start_ns"),
        behind_ns=pl.col("end_ns") - pl.col("host_end_ns"),
    )


def _calls(content: Mapping[str, Any]) -> pl.DataFrame:
    """Calls with their kind, layer, place in it, and whether other calls are within."""
    names, layers = content["names"], content["layer_path"].replace(".", r"\.")
    path = pl.col("path")
    layer, operator = pl.lit(None, pl.Int32), path
    if layers:
        layer = path.str.extract(rf"^{layers}\.(\d+)(?:[./]|$)", 1).cast(pl.Int32)
        operator = path.str.replace(rf"^{layers}\.\d+[./]?", "")
    operator = pl.when(pl.col("kind") == "layer").then(pl.lit("layer")).otherwise(operator)
    named = {"name": range(len(names)), "path": names, "kind": content["kinds"]}
    by_number = pl.DataFrame(named, schema_overrides={"name": pl.Int64}).with_columns(
        layer=layer, operator=operator
    )
    frame = _table(content["calls"], _CALLS).with_columns(
        pl.Series(
            key,
            [None if one is None else json.dumps(one) for one in content["calls"][key]],
            dtype=pl.String,
        )
        for key in ("shapes", "values")
    )
    frame = frame.join(by_number, on="name", how="left", maintain_order="left").with_row_index(
        "op_id"
    )
    # by the times of the host: there an inner call lies within the outer one
    frame = frame.sort("step", "host_start_ns", "host_end_ns", descending=[False, False, True])
    inside = (pl.col("host_start_ns").shift(-1) < pl.col("host_end_ns")) & (
        pl.col("step").shift(-1) == pl.col("step")
    )
    return frame.with_columns(nested=(pl.col("kind") == "model") | inside.fill_null(False)).sort(
        "op_id"
    )


def _read(path: Path, _request: Request) -> list[FilePart]:
    content = _document(path)
    try:
        tables = _tables(content)
    except (
        pl.exceptions.PolarsError,
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        OverflowError,
    ) as error:
        found = f"{path.name} has invalid tables ({type(error).__name__}: {str(error)[:200]})"
        raise ReadError(found, expected="a file as the timer wrote it") from error
    device = content.get("device")
    head = {
        "rank": content.get("rank", 0),
        "world_size": content.get("world_size", 1),
        "devices": [device] if device else [],
        "versions": {"torch": content.get("torch")},
        "timer": {key: content.get(key) for key in _FACTS},
    }
    rows = (
        tables["ops"].height
        + tables["markers"]["timer_step"].count()
        + tables["collectives"].height
    )
    coverage = {
        "events": rows,
        "kept": rows,
        "bytes": path.stat().st_size,
        "notes": content.get("notes", []),
    }
    return [FilePart(path, tables, head, coverage)]


def _tables(content: Mapping[str, Any]) -> dict[str, pl.DataFrame]:
    """Tables of the schema; columns of the timer alone have the prefix ``timer_``."""
    cuda, process = content["platform"] == "cuda", pl.lit(content.get("pid"), dtype=pl.Int64)
    place = {"process": process, "thread": process}
    calls, steps = _calls(content), _table(content["steps"], _STEPS)
    comm = _table(content["collectives"], _COLLECTIVES)
    method = pl.col("method") + pl.when("held").then(pl.lit("+hold")).otherwise(pl.lit(""))
    ops = calls.select(
        **place,
        start_ns="start_ns",
        dur_ns="dur_ns",
        name="operator",
        kind=pl.when("nested").then(pl.lit("python")).otherwise(pl.lit("op")),
        op_id=pl.col("op_id").cast(pl.Int64),
        shapes="shapes",
        timer_kind="kind",
        timer_step="step",
        timer_layer="layer",
        timer_host_ns="host_dur_ns",
        timer_behind_ns="behind_ns",
        timer_bytes_before="bytes_before",
        timer_bytes_after="bytes_after",
        timer_values="values",
    )
    marks = {
        **place,
        "start_ns": pl.col("start_ns"),
        "dur_ns": pl.col("dur_ns"),
        "domain": pl.lit(FORMAT),
        "on_device": pl.lit(False),
    }
    # a layer that was timed as a whole has no stage, so it gives none
    modules = (pl.col("kind") == "module") | ((pl.col("kind") == "layer") & pl.col("nested"))
    entries = pl.DataFrame(
        {name: content["entries"][name] for name in _ENTRIES}, schema=_ENTRIES
    ).with_columns(
        start_ns="at_ns", dur_ns=(pl.col("at_ns").shift(-1) - pl.col("at_ns")).fill_null(0)
    )
    markers = [
        steps.select(
            **marks, name="label", timer_step="step", timer_phase="phase", timer_method=method
        ),
        calls.filter(modules).select(**marks, name=pl.lit("layer::") + pl.col("path")),
        entries.select(**{**marks, "domain": pl.lit(ENTRIES)}, name="phase", timer_method="method"),
    ]
    collectives = comm.select(
        start_ns="start_ns",
        dur_ns="dur_ns",
        name=pl.col("kind") + " of " + pl.col("group"),
        recorded_as="kind",
        kind=pl.col("kind").replace(_KINDS),
        group="group",
        world="world",
        dtype="dtype",
        in_elements="in_elements",
        out_elements="out_elements",
        bytes=pl.max_horizontal("in_elements", "out_elements") * pl.col("element_bytes"),
        bytes_source=pl.lit("shapes"),
        on_device=pl.lit(cuda),
        timer_step="step",
        timer_layer="layer",
        timer_waits="waits",
    )
    memory = pl.concat(
        frame.select(time_ns=time, allocated_bytes=column, on_device=pl.lit(cuda)).drop_nulls()
        for frame in (steps, calls)
        for time, column in (
            ("start_ns", "bytes_before"),
            (END, "bytes_after"),
        )
    )
    tables = {"ops": ops, "markers": pl.concat(markers, how="diagonal"), "collectives": collectives}
    return tables | ({"memory": memory} if memory.height else {})


def _sniff(probe: Probe) -> bool:
    return not probe.is_folder and f'"format":"{FORMAT}"'.encode() in probe.start[:200].replace(
        b": ", b":"
    )


READER = Reader(
    name="ops",
    version=4,
    what="timings of operators (llmprof run --profile-mode ops)",
    sniff=_sniff,
    read=_read,
    suffixes=(".json.gz", ".json"),
)
