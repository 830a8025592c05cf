"""Reader of llmprof's timings of operators: calls of layers, modules and functions, steps and collectives.

Each call of a layer or module becomes a marker, and a call without timed calls inside becomes an operator. On a GPU a
time is the difference of two CUDA events on the model's stream, so it includes the device's waits for the host.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import MixedRunsError, ReadError, listed
from llmprof.readers.common.reader import Part, Probe, Reader, Request
from llmprof.storage.files import regular

FORMAT: Final = "llmprof-ops"
VERSION: Final = 1

_STEPS: Final = {
    "step": pl.Int64, "label": pl.String, "phase": pl.String, "method": pl.String, "held": pl.Boolean,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "host_start_ns": pl.Int64, "host_end_ns": pl.Int64,
    "bytes_before": pl.Int64, "bytes_after": pl.Int64,
}  # fmt: skip
_CALLS: Final = {
    "step": pl.Int64, "name": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "host_start_ns": pl.Int64,
    "host_end_ns": pl.Int64, "bytes_before": pl.Int64, "bytes_after": pl.Int64,
}  # fmt: skip
_COLLECTIVES: Final = {
    "step": pl.Int64, "kind": pl.String, "group": pl.String, "world": pl.Int32, "dtype": pl.String,
    "in_elements": pl.Int64, "out_elements": pl.Int64, "element_bytes": pl.Int64, "waits": pl.Boolean,
    "layer": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "host_start_ns": pl.Int64, "host_end_ns": pl.Int64,
}  # fmt: skip
_ENTRIES: Final = {"at_ns": pl.Int64, "phase": pl.String, "method": pl.String}

_BUS: Final = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Factors of the bus bandwidth of collectives over ``n`` ranks: the algorithm bandwidth times this factor times
``(n - 1) / n``; for other collectives both bandwidths are equal (nccl-tests, PERFORMANCE.md)."""


@dataclass(frozen=True)
class Timings:
    """Timings of operators on all ranks of one run.

    Attributes
    ----------
    calls : polars.DataFrame
        One row for each call: ``rank, step, phase, method, held`` (whether the device waited before the step), ``name``
        (path of the module), ``kind`` (model, layer, module, functional, user), ``layer`` (null outside the layers),
        ``operator`` (path below the layer), ``start_ns, dur_ns`` (times of the device; on a CPU of the host),
        ``host_start_ns, host_dur_ns, behind_ns`` (time from the end on the host to the end on the device), ``nested``
        (whether other calls were timed inside it), ``outermost`` (whether no other call but the model contains it),
        ``shapes`` (JSON), ``bytes_before, bytes_after`` (allocated memory), ``values`` (the user's metrics, as JSON).
    steps : polars.DataFrame
        One row for each timed step: ``rank, step, label, phase, method, held, start_ns, dur_ns, host_dur_ns,
        bytes_before, bytes_after``.
    collectives : polars.DataFrame
        One row for each collective: ``rank, step, phase, kind, group, world, layer, bytes, start_ns, dur_ns,
        algorithm_gbps, bus_gbps`` (GB/s), ``waits`` (whether it is asynchronous; its time then ends with the wait for
        it), ``dtype, in_elements, out_elements``.
    entries : polars.DataFrame
        One row for each step of the engine, timed or not: ``rank, at_ns`` (its begin), ``phase, method`` (``none``: not
        timed).
    ranks : list of dict
        Metadata of the file of each rank.
    """

    calls: pl.DataFrame
    steps: pl.DataFrame
    collectives: pl.DataFrame
    entries: pl.DataFrame
    ranks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def on_device(self) -> bool:
        """Whether the times are times of a GPU."""
        return any(facts["platform"] == "cuda" for facts in self.ranks)


def read_timings(path: str | Path) -> Timings:
    """Read timings of operators from the folder of a run, a folder of timing files, or one file."""
    given = Path(path)
    places = [given / "traces", given] if given.is_dir() else []
    files = next((paths for place in places if (paths := sorted(place.glob("ops_rank*.json.gz")))), [])
    if given.is_file():
        files = [given]
    if not files:
        raise ReadError(
            f"{given.name} has no timings of operators",
            expected="ops_rank0.json.gz and so on",
            hint="record them by a run in profile_mode ops",
        )
    return together([(file, document(file)) for file in files])


def document(path: Path) -> dict[str, Any]:
    """Content of one file, with its format and version checked."""
    try:
        data = regular(path).read_bytes()
    except OSError as error:
        raise ReadError(f"cannot read {path.name}: {error.strerror or error}") from error
    try:
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        parsed = json.loads(text)
    except (OSError, EOFError, ValueError, zlib.error, RecursionError) as error:
        raise ReadError(
            f"{path.name} is damaged: {str(error)[:200]}", expected="the complete file of a run", hint="run it again"
        ) from error
    if not isinstance(parsed, dict) or parsed.get("format") != FORMAT:
        raise ReadError(f"{path.name} has no timings of operators", expected=f'"format": "{FORMAT}"')
    if parsed.get("version") != VERSION:
        raise ReadError(
            f"{path.name} has version {parsed.get('version')!r} of its format",
            expected=f"version {VERSION}",
            hint="read it with the llmprof that wrote it, or run it again",
        )
    return parsed


def together(parts: Iterable[tuple[Path, Mapping[str, Any]]]) -> Timings:
    """Join the contents of the files of one run."""
    parts = list(parts)
    ranks = [int(content.get("rank", 0)) for _, content in parts]
    if len(set(ranks)) < len(ranks):
        raise MixedRunsError(
            f"several files have the same rank; the ranks are {listed(sorted(ranks))}", expected="the files of one run"
        )
    if len({content.get("world_size", 1) for _, content in parts}) > 1:
        raise MixedRunsError("the files belong to runs with different world sizes", expected="the files of one run")
    frames: dict[str, list[pl.DataFrame]] = {"calls": [], "steps": [], "collectives": [], "entries": []}
    for (path, content), rank in zip(parts, ranks, strict=True):
        try:
            tables_of_file = _frames(content)
        except (pl.exceptions.PolarsError, KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise ReadError(
                f"{path.name} has invalid tables ({type(error).__name__}: {str(error)[:200]})",
                expected="a file as the timer wrote it",
            ) from error
        for name, frame in tables_of_file.items():
            frames[name].append(frame.select(pl.lit(rank, dtype=pl.Int32).alias("rank"), pl.all()))
    whole = {name: pl.concat(of_ranks) for name, of_ranks in frames.items()}
    origin = whole["steps"]["start_ns"].min()
    begin = int(origin) if isinstance(origin, int) else 0
    shifted = {
        name: frame.with_columns(pl.col("^(host_)?start_ns$|^at_ns$") - begin).sort(
            "rank", "at_ns" if name == "entries" else "start_ns", maintain_order=True
        )
        for name, frame in whole.items()
    }
    tables = {"calls", "steps", "collectives", "entries"}
    heads = [{key: value for key, value in content.items() if key not in tables} for _, content in parts]
    return Timings(**shifted, ranks=[{**head, "start_epoch_ns": begin} for head in heads])


def _frames(content: Mapping[str, Any]) -> dict[str, pl.DataFrame]:
    steps = _table(content["steps"], _STEPS)
    phases = steps.select("step", "phase", "method", "held")
    steps = _durations(steps)
    return {
        "steps": steps,
        "calls": _calls(content, phases),
        "collectives": _collectives(content, phases),
        "entries": _table(content["entries"], _ENTRIES),
    }


def _table(columns: Mapping[str, Any], schema: Mapping[str, Any]) -> pl.DataFrame:
    return pl.DataFrame({name: columns[name] for name in schema}, schema=dict(schema))


def _durations(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        dur_ns=(pl.col("end_ns") - pl.col("start_ns")).clip(0),
        host_dur_ns=pl.col("host_end_ns") - pl.col("host_start_ns"),
        behind_ns=pl.col("end_ns") - pl.col("host_end_ns"),
    ).drop("end_ns", "host_end_ns")


def _calls(content: Mapping[str, Any], phases: pl.DataFrame) -> pl.DataFrame:
    names, kinds, path = content["names"], content["kinds"], content["layer_path"]
    frame = _durations(_table(content["calls"], _CALLS))
    frame = frame.with_columns(
        pl.Series(key, [None if one is None else json.dumps(one) for one in content["calls"][key]], dtype=pl.String)
        for key in ("shapes", "values")
    )
    names_by_number = pl.DataFrame(
        {"name": range(len(names)), "path": names, "kind": kinds}, schema_overrides={"name": pl.Int64}
    )
    layer, operator = pl.lit(None, pl.Int32), pl.col("path")
    if path:
        layers = path.replace(".", r"\.")
        layer = operator.str.extract(rf"^{layers}\.(\d+)(?:[./]|$)", 1).cast(pl.Int32)
        operator = pl.when(layer.is_null()).then(operator).otherwise(operator.str.replace(rf"^{layers}\.\d+[./]?", ""))
    operator = pl.when(pl.col("kind") == "layer").then(pl.lit("layer")).otherwise(operator)
    names_by_number = names_by_number.with_columns(layer=layer, operator=operator)
    frame = frame.join(names_by_number, on="name", how="left", maintain_order="left")
    frame = frame.drop("name").rename({"path": "name"}).join(phases, on="step", how="left", maintain_order="left")
    return _nesting(frame).select(
        "step", "phase", "method", "held", "name", "kind", "layer", "operator", "start_ns", "dur_ns", "host_start_ns",
        "host_dur_ns", "behind_ns", "nested", "outermost", "shapes", "bytes_before", "bytes_after", "values",
    )  # fmt: skip


def _nesting(frame: pl.DataFrame) -> pl.DataFrame:
    """Add ``nested`` and ``outermost``, by the times of the host: there an inner call lies within the outer one."""
    rows = frame.with_row_index("_row").with_columns(_end=pl.col("host_start_ns") + pl.col("host_dur_ns"))
    rows = rows.sort("step", "host_start_ns", "_end", descending=[False, False, True])
    inner = rows.filter(pl.col("kind") != "model")
    inner = inner.with_columns(
        nested=((pl.col("host_start_ns").shift(-1) < pl.col("_end")) & (pl.col("step").shift(-1) == pl.col("step")))
        .fill_null(value=False),
        outermost=(pl.col("_end") > pl.col("_end").cum_max().shift(1).over("step")).fill_null(value=True),
    )  # fmt: skip
    out = rows.join(inner.select("_row", "nested", "outermost"), on="_row", how="left")
    return out.with_columns(pl.col("nested").fill_null(value=True), pl.col("outermost").fill_null(value=False)).sort(
        "_row"
    )


def _collectives(content: Mapping[str, Any], phases: pl.DataFrame) -> pl.DataFrame:
    frame = _durations(_table(content["collectives"], _COLLECTIVES))
    frame = frame.join(phases, on="step", how="left", maintain_order="left")
    factor = pl.col("kind").replace_strict(_BUS, default=None, return_dtype=pl.Float64)
    bus = pl.when(factor.is_null()).then(1.0).otherwise(factor * (pl.col("world") - 1) / pl.col("world"))
    size = pl.max_horizontal("in_elements", "out_elements") * pl.col("element_bytes")
    # an empty message, or a duration below the clock's resolution, has no bandwidth
    speed = pl.when((pl.col("bytes") > 0) & (pl.col("dur_ns") > 0)).then(pl.col("bytes") / pl.col("dur_ns"))
    frame = frame.with_columns(bytes=size).with_columns(algorithm_gbps=speed)
    return frame.with_columns(bus_gbps=pl.col("algorithm_gbps") * bus).select(
        "step", "phase", "method", "held", "kind", "group", "world", "layer", "bytes", "start_ns", "dur_ns",
        "host_start_ns", "host_dur_ns", "algorithm_gbps", "bus_gbps", "waits", "dtype", "in_elements", "out_elements",
    )  # fmt: skip


_KINDS = {"send": "send_recv", "recv": "send_recv", "gather": "other"}


def _sniff(probe: Probe) -> bool:
    return not probe.is_folder and f'"format":"{FORMAT}"'.encode() in probe.start[:200].replace(b": ", b":")


def _read(path: Path, _request: Request) -> list[Part]:
    content = document(path)
    timings = together([(path, content)])
    head = timings.ranks[0]
    epoch = head["start_epoch_ns"]
    cuda = head["platform"] == "cuda"
    place = {"process": pl.lit(head.get("pid"), dtype=pl.Int64), "thread": pl.lit(head.get("pid"), dtype=pl.Int64)}
    start = pl.col("start_ns") + epoch
    calls = timings.calls.filter(pl.col("kind") != "model").with_row_index("op_id")
    ops = calls.filter(~pl.col("nested")).select(
        **place, start_ns=start, dur_ns="dur_ns", name="name", kind=pl.lit("op"), op_id=pl.col("op_id").cast(pl.Int64),
        shapes="shapes",
    )  # fmt: skip
    modules = calls.filter(pl.col("kind").is_in(["layer", "module"])).select(
        **place, start_ns=start, dur_ns="dur_ns", name=pl.lit("layer::") + pl.col("name"), domain=pl.lit(FORMAT),
        on_device=pl.lit(value=False),
    )  # fmt: skip
    steps = timings.steps.select(
        **place, start_ns=start, dur_ns="dur_ns", name="label", domain=pl.lit(FORMAT), on_device=pl.lit(value=False)
    )
    comm = timings.collectives
    collectives = comm.select(
        start_ns=start, dur_ns="dur_ns", name=pl.col("kind") + " of " + pl.col("group"), recorded_as="kind",
        kind=pl.col("kind").replace(_KINDS), group="group", world="world", dtype="dtype", in_elements="in_elements",
        out_elements="out_elements", bytes="bytes", bytes_source=pl.lit("shapes"), on_device=pl.lit(cuda),
    )  # fmt: skip
    tables = {"ops": ops, "markers": pl.concat([steps, modules]), "collectives": collectives}
    memory = [
        frame.select(
            time_ns=pl.col("start_ns") + pl.col("dur_ns") * int(late) + epoch, allocated_bytes=column,
            on_device=pl.lit(cuda),
        ).drop_nulls()
        for frame in (timings.steps, calls)
        for late, column in ((False, "bytes_before"), (True, "bytes_after"))
    ]  # fmt: skip
    if any(frame.height for frame in memory):
        tables["memory"] = pl.concat(memory)
    rows = timings.calls.height + timings.steps.height + comm.height
    device = head.get("device")
    about = {
        "rank": head["rank"],
        "world_size": head.get("world_size"),
        "backend": None,
        "devices": [device] if device else [],
        "versions": {"torch": head.get("torch")},
        "options": {"timer": head["options"], "method": head["options"].get("method"), "clock": head["clock"]},
    }
    coverage = {"events": rows, "kept": rows, "bytes": path.stat().st_size, "notes": head.get("notes", [])}
    return [Part(path, tables, about, coverage)]


READER = Reader(
    name="ops",
    version=2,
    what="timings of operators (llmprof run --profile-mode ops)",
    sniff=_sniff,
    read=_read,
    suffixes=(".json.gz", ".json"),
)
