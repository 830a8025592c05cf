"""Writer of Chrome JSON with rows like Kineto's, for Perfetto, chrome://tracing and llmprof
itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl
from isal import igzip

from llmprof import __version__
from llmprof.names.matching import first_true
from llmprof.readers.chrome.batches import KINDS
from llmprof.readers.chrome.reader import label_copies
from llmprof.trace import Trace, schema

OWN: Final = "llmprof"
"""Category of the rows that llmprof adds to those of the profiler; its own reader leaves them
out.
"""

_CHUNK: Final = 50_000
_NO_PROCESS, _OWN_PROCESS, _COUNTERS = 2_000_000_000, 2_000_000_001, 2_000_000_002
_RUNTIMES: Final = {"amd": "hip_runtime", "ascend": "privateuse1_runtime"}


def write(trace: Trace, added: pl.DataFrame, file: Path) -> int:
    """Write a trace together with added tracks."""
    ranks = [rank for rank in trace.ranks if rank >= 0]
    several = len(ranks) > 1
    count = 0
    with (
        igzip.open(file, "wt", encoding="utf-8")
        if file.suffix == ".gz"
        else file.open("w", encoding="utf-8") as out
    ):
        out.write(_head(trace, ranks)[:-1] + ',\n"traceEvents":[\n{}')
        for lines in _everything(trace, added, several=several):
            for start in range(0, lines.len(), _CHUNK):
                part = lines.slice(start, _CHUNK)
                out.write(",\n" + ",\n".join(part.to_list()))
                count += part.len()
        out.write("\n]}\n")
    return count


def _head(trace: Trace, ranks: list[int]) -> str:
    meta = trace.meta
    head: dict[str, object] = {"schemaVersion": 1, "llmprof": __version__, "displayTimeUnit": "ns"}
    if meta.get("start_epoch_ns"):
        head["baseTimeNanoseconds"] = meta["start_epoch_ns"]
    if meta.get("device"):
        head["deviceProperties"] = [{"id": 0, "name": str(meta["device"])}]
    head |= {
        key: value
        for key, value in (meta.get("versions") or {}).items()
        if str(key).endswith("_version")
    }
    head |= {
        key: int(value)
        for key, value in (meta.get("options") or {}).items()
        if isinstance(value, bool)
    }
    about: dict[str, object] = {}
    if len(ranks) == 1:
        about["rank"] = ranks[0]
        first: dict[str, Any] = next(
            (rank for rank in meta.get("ranks", ()) if rank.get("rank") == ranks[0]), {}
        )
        about["backend"] = first.get("backend")
        about["pg_config"] = [
            {"pg_name": n, "ranks": r} for n, r in (first.get("groups") or {}).items()
        ]
    if meta.get("world_size"):
        about["world_size"] = meta["world_size"]
    if about:
        head["distributedInfo"] = {
            key: value for key, value in about.items() if value not in (None, [])
        }
    return json.dumps(head)


def _everything(trace: Trace, added: pl.DataFrame, *, several: bool) -> Iterator[pl.Series]:
    runtime = _RUNTIMES.get(trace.capture.platform.name, "cuda_runtime")
    makers = {
        "kernels": lambda frame: _kernels(frame, trace),
        "copies": _copies,
        "runtime": lambda frame: _calls(frame, runtime),
        "ops": _ops,
        "markers": _markers,
        "tasks": _tasks,
    }
    for name, make in makers.items():
        if trace.has(name):
            frame = trace.table(name).filter(pl.col("rank") >= 0)
            yield make(frame).select(_line(several=several)).to_series()
    if trace.has("memory"):
        frame = trace.memory.filter(pl.col("rank") >= 0)
        yield _memory(frame).select(_line("i", several=several)).to_series()
    if trace.has("counters"):
        frame = trace.counters.filter((pl.col("rank") >= 0) & pl.col("value").is_finite())
        yield _counters(frame).select(_line("C", several=several)).to_series()
    yield _added(added).select(_line(several=several)).to_series()
    yield _names(trace, added, several=several)


# --- text of columns ---


def _quoted(value: pl.Expr) -> pl.Expr:
    """Texts as JSON strings."""
    return pl.struct(v=value).struct.json_encode().str.slice(5).str.head(-1)


def _number(value: pl.Expr) -> pl.Expr:
    return value.cast(pl.String)


def _argument(name: str, value: pl.Expr) -> pl.Expr:
    """``"name":value`` of a text that is JSON; null without a text."""
    return pl.concat_str(pl.lit(f"{json.dumps(name)}:"), value)


def _arguments(*pieces: pl.Expr) -> pl.Expr:
    joined = pl.concat_str(*pieces, separator=",", ignore_nulls=True) if pieces else pl.lit("")
    return pl.concat_str(pl.lit("{"), joined, pl.lit("}"))


def _us(value: pl.Expr) -> pl.Expr:
    """Nanoseconds as decimal microseconds with all digits."""
    micros, nanos = value.abs() // 1000, (value.abs() % 1000).cast(pl.String).str.zfill(3)
    return pl.concat_str(
        pl.when(value < 0).then(pl.lit("-")).otherwise(pl.lit("")),
        micros.cast(pl.String),
        pl.lit("."),
        nanos,
    )


def _line(phase: str = "X", *, several: bool) -> pl.Expr:
    """Event as JSON, from the columns ``rank, cat, name, pid, tid, start_ns, dur_ns, args``."""
    pid = _number(pl.col("pid"))
    if several:
        pid = pl.concat_str(pl.lit('"[TP'), _number(pl.col("rank")), pl.lit("] "), pid, pl.lit('"'))
    pieces = [
        pl.lit(f'{{"ph":"{phase}","cat":'),
        _quoted(pl.col("cat")),
        pl.lit(',"name":'),
        _quoted(pl.col("name")),
        pl.lit(',"pid":'),
        pid,
        pl.lit(',"tid":'),
        _number(pl.col("tid")),
        pl.lit(',"ts":'),
        _us(pl.col("start_ns")),
    ]
    if phase == "X":
        pieces += [pl.lit(',"dur":'), _us(pl.col("dur_ns"))]
    elif phase == "i":
        pieces.append(pl.lit(',"s":"t"'))
    return pl.concat_str(*pieces, pl.lit(',"args":'), "args", pl.lit("}"))


# --- tables ---

_CORRELATION: Final = _argument("correlation", _number(pl.col("correlation")))
_EXTERNAL: Final = _argument("External id", _number(pl.col("op_id")))
_HIGH: Final = 2**32


def _on_device() -> list[pl.Expr]:
    node = pl.col("graph_node")
    apart = (node >= _HIGH) & (node % _HIGH > 0)  # in Kineto 0 means no node
    return [
        _argument("device", _number(pl.col("device"))),
        _argument("stream", _number(pl.col("stream"))),
        _CORRELATION,
        _EXTERNAL,
        _argument("graph id", _number(pl.when(apart).then(node // _HIGH))),
        _argument("graph node id", _number(pl.when(apart).then(node % _HIGH).otherwise(node))),
    ]


def _spans(
    frame: pl.DataFrame, cat: pl.Expr, pid: pl.Expr, tid: pl.Expr, args: pl.Expr
) -> pl.DataFrame:
    return frame.select(
        "rank",
        "name",
        "start_ns",
        "dur_ns",
        cat=cat,
        pid=pid.fill_null(_NO_PROCESS),
        tid=tid.fill_null(0),
        args=args,
    )


_DESCRIPTION: Final = {
    "Collective name": "recorded_as",
    "Process Group Name": "group",
    "Process Group Ranks": "group_ranks",
    "dtype": "dtype",
    "In msg nelems": "in_elements",
    "Out msg nelems": "out_elements",
    "Group size": "world",
    "Dst Rank": "peer",
}


def _kernels(frame: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    columns = [c.name for c in schema.TABLES["kernels"].columns]
    pieces = [
        *_on_device(),
        _argument("registers per thread", _number(pl.col("registers"))),
        _argument("shared memory", _number(pl.col("shared_bytes"))),
        _argument("est. achieved occupancy %", _number(pl.col("est_occupancy_pct"))),
        *(
            _argument(
                name,
                pl.concat_str(
                    pl.lit("["),
                    *(
                        pl.col(f"{name}_{axis}").cast(pl.String) + end
                        for axis, end in (("x", ","), ("y", ","), ("z", "]"))
                    ),
                ),
            )
            for name in ("grid", "block")
        ),
    ]
    if trace.has("collectives"):
        key = ["rank", "stream", "start_ns", "name"]
        calls = trace.collectives.filter(
            pl.col("on_device") & (pl.col("evidence").fill_null("metadata") == "metadata")
        )
        calls = calls.unique(key, keep="first", maintain_order=True).select(
            *key, *(pl.col(column).alias(f"_{column}") for column in _DESCRIPTION.values())
        )
        frame = frame.join(calls, on=key, how="left", maintain_order="left", nulls_equal=True)
        texts = ("recorded_as", "group", "group_ranks", "dtype")
        pieces += [
            _argument(
                name,
                pl.when(pl.col(f"_{column}").is_not_null()).then(_quoted(pl.col(f"_{column}"))),
            )
            if column in texts
            else _argument(name, _number(pl.col(f"_{column}")))
            for name, column in _DESCRIPTION.items()
        ]
    pieces += _extras(
        [c for c in frame.columns if c not in columns and not c.startswith("_")], frame
    )
    return _spans(frame, pl.lit("kernel"), pl.col("device"), pl.col("stream"), _arguments(*pieces))


def _extras(columns: list[str], frame: pl.DataFrame) -> list[pl.Expr]:
    """Vendor columns, which are for display: no reader restores them."""
    return [
        _argument(c, pl.when(pl.col(c).is_not_null()).then(_quoted(pl.col(c))))
        if frame.schema[c] == pl.String
        else _argument(c, pl.when(pl.col(c).is_finite()).then(_number(pl.col(c))))
        for c in columns
        if frame.schema[c] == pl.String or frame.schema[c].is_numeric()
    ]


def _copies(frame: pl.DataFrame) -> pl.DataFrame:
    about = ["name", "kind", "src_kind", "dst_kind"]
    distinct = label_copies(frame.select("name").unique())
    names = pl.DataFrame(distinct).rename({c: f"_{c}" for c in about[1:]})
    joined = frame.join(names, on="name", how="left", maintain_order="left")
    says = pl.all_horizontal(pl.col(c).eq_missing(pl.col(f"_{c}")) for c in about[1:])
    ends = pl.format(
        " ({} -> {})", pl.col("src_kind").str.to_titlecase(), pl.col("dst_kind").str.to_titlecase()
    )
    kinetos = pl.concat_str(pl.format("Memcpy {}", "kind"), ends.fill_null(""))
    filled = pl.concat_str(pl.lit("Memset"), ends.fill_null(""))
    name = pl.when(pl.col("kind") == "memset").then(filled).otherwise(kinetos)
    frame = frame.with_columns(
        name=joined.select(
            pl.when(says | (pl.col("kind") == "unknown")).then("name").otherwise(name)
        ).to_series()
    )
    cat = (
        pl.when(pl.col("kind") == "memset")
        .then(pl.lit("gpu_memset"))
        .otherwise(pl.lit("gpu_memcpy"))
    )
    args = _arguments(*_on_device(), _argument("bytes", _number(pl.col("bytes"))))
    return _spans(frame, cat, pl.col("device"), pl.col("stream"), args)


def _calls(frame: pl.DataFrame, runtime: str) -> pl.DataFrame:
    cat = pl.when(pl.col("api") == "driver").then(pl.lit("cuda_driver")).otherwise(pl.lit(runtime))
    return _spans(
        frame, cat, pl.col("process"), pl.col("thread"), _arguments(_CORRELATION, _EXTERNAL)
    )


def _ops(frame: pl.DataFrame) -> pl.DataFrame:
    cat = (
        pl.when(pl.col("kind") == "python")
        .then(pl.lit("python_function"))
        .otherwise(pl.lit("cpu_op"))
    )
    texts = {
        "Input Dims": "shapes",
        "Input type": "dtypes",
        "Input Strides": "torch_strides",
        "Concrete Inputs": "torch_inputs",
    }
    arguments = [
        _argument(name, pl.col(column)) for name, column in texts.items() if column in frame.columns
    ]
    args = _arguments(_EXTERNAL, *arguments)
    return _spans(frame, cat, pl.col("process"), pl.col("thread"), args)


def _markers(frame: pl.DataFrame) -> pl.DataFrame:
    domain = pl.col("domain")
    other = domain.is_in(
        [cat for cat, kind in KINDS.items() if kind not in ("marker", "device_marker")] + [OWN]
    )
    module = (domain == "module") & pl.col("name").str.starts_with("nn.Module: ")
    own = {
        "gpu_user_annotation": pl.col("on_device"),
        "python_function": module,
        "user_annotation": other,
    }
    cat = pl.coalesce(first_true(own), domain)
    pid = pl.when("on_device").then(pl.col("device").cast(pl.Int64)).otherwise("process")
    tid = pl.when("on_device").then("stream").otherwise("thread")
    on_device = pl.col("on_device")
    args = _arguments(
        _EXTERNAL,
        _argument("device", pl.when(on_device).then(_number(pl.col("device")))),
        _argument("stream", pl.when(on_device).then(_number(pl.col("stream")))),
    )
    return _spans(frame, cat, pid, tid, args)


def _tasks(frame: pl.DataFrame) -> pl.DataFrame:
    args = _arguments(_argument("kind", _quoted(pl.col("kind"))), _CORRELATION, _EXTERNAL)
    return _spans(frame, pl.lit(OWN), pl.col("device"), pl.col("stream"), args)


def _memory(frame: pl.DataFrame) -> pl.DataFrame:
    numbers = {
        "Device Id": "device",
        "Addr": "address",
        "Bytes": "bytes",
        "Total Allocated": "allocated_bytes",
        "Total Reserved": "reserved_bytes",
    }
    args = _arguments(
        _argument("Device Type", _number(pl.col("on_device").cast(pl.Int8))),
        *(_argument(name, _number(pl.col(column))) for name, column in numbers.items()),
    )
    return frame.select(
        "rank",
        start_ns="time_ns",
        name=pl.lit("[memory]"),
        cat=pl.lit("cpu_instant_event"),
        pid=pl.lit(_NO_PROCESS),
        tid=pl.col("thread").fill_null(0),
        args=args,
    )


def _counters(frame: pl.DataFrame) -> pl.DataFrame:
    key = (
        pl.when(pl.col("unit").is_not_null())
        .then(pl.format("value ({})", "unit"))
        .otherwise(pl.lit("value"))
    )
    args = pl.concat_str(
        pl.lit("{"), _quoted(key), pl.lit(":"), _number(pl.col("value")), pl.lit("}")
    )
    return frame.select(
        "rank",
        "name",
        start_ns="time_ns",
        cat=pl.lit("counter"),
        pid=pl.lit(_COUNTERS),
        tid=pl.col("device").fill_null(0),
        args=args,
    )


def _tids(added: pl.DataFrame) -> pl.DataFrame:
    """Number of each track of a rank, in the order in which they are shown."""
    order = {"findings": 0, "steps": 1, "layers": 2, "waits": 3, "idle": 4}
    place = pl.col("track").replace_strict(order, default=9, return_dtype=pl.Int64)
    return (
        added.select("rank", "track")
        .unique()
        .sort("rank", place, "track")
        .with_columns(tid=pl.int_range(pl.len()).over("rank"))
    )


def _added(added: pl.DataFrame) -> pl.DataFrame:
    numbered = added.join(_tids(added), on=["rank", "track"], how="left", maintain_order="left")
    detail = _argument(
        "detail", pl.when(pl.col("detail").is_not_null()).then(_quoted(pl.col("detail")))
    )
    return _spans(numbered, pl.lit(OWN), pl.lit(_OWN_PROCESS), pl.col("tid"), _arguments(detail))


def _names(trace: Trace, added: pl.DataFrame, *, several: bool) -> pl.Series:
    """Names and order of processes and tracks."""
    lines: list[str] = []

    def name(rank: int, pid: int, what: str, value: str | int, tid: int = 0) -> None:
        shown: str | int = f"[TP{rank}] {pid}" if several else pid
        kind = "sort_index" if isinstance(value, int) else "name"
        args = {kind: value}
        lines.append(
            json.dumps(
                {"ph": "M", "name": f"{what}_{kind}", "pid": shown, "tid": tid, "args": args}
            )
        )

    devices = [
        trace.table(t).select("rank", "device") for t in ("kernels", "copies") if trace.has(t)
    ]
    hosts = [
        trace.table(t).select("rank", "process")
        for t in ("runtime", "ops", "markers")
        if trace.has(t)
    ]
    for frames, column, words in (
        (devices, "device", trace.capture.platform.device),
        (hosts, "process", "host, process"),
    ):
        for rank, number in (
            pl.concat(frames).unique().sort("rank", column).iter_rows() if frames else ()
        ):
            if rank >= 0:
                pid = _NO_PROCESS if number is None else number
                name(
                    rank,
                    pid,
                    "process",
                    f"rank {rank}: {words} {'' if number is None else number}".rstrip(),
                )
                name(rank, pid, "process", 10 * rank + (1 if column == "device" else 2))
    for rank, track, tid in _tids(added).iter_rows():
        if tid == 0:
            name(rank, _OWN_PROCESS, "process", f"rank {rank}: llmprof")
            name(rank, _OWN_PROCESS, "process", 10 * rank)
        name(rank, _OWN_PROCESS, "thread", track, tid)
    return pl.Series(lines, dtype=pl.String)
