"""Reads a database of torch_npu or msprof as tables of the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError, listed
from llmprof.readers.ascend import counters, tables, text
from llmprof.readers.ascend.files import TABLES, Database, hccl_times
from llmprof.readers.ascend.tables import CALLS, PIECES, device_tables, typed
from llmprof.readers.common.reader import Frames
from llmprof.trace.storage import sqlite

NONE: Final = tables.NO_ID
_DUR_NS: Final = pl.col("endNs") - pl.col("startNs")
_LEVELS: Final = {5000: "runtime", 5500: "hccl", 10000: "node", 15000: "model", 20000: "acl"}
_OP, _QUEUE, _PYTHON, _MSTX = 50001, 50002, 50003, 50004
_PMU_NAMES: Final = {"aic_total_time": "aic_time", "aiv_total_time": "aiv_time"}
_DEFAULT_TYPES: Final = {
    0: "INT8",
    1: "INT16",
    2: "INT32",
    3: "FP16",
    4: "FP32",
    5: "INT64",
    6: "UINT64",
    7: "UINT8",
    8: "UINT16",
    9: "UINT32",
    10: "FP64",
    11: "BFP16",
    12: "INT128",
}
"""HcclDataType, for databases without ENUM_HCCL_DATA_TYPE."""


def read_database(
    path: Path, analysis: Path | None = None, *, python_functions: bool = True
) -> tuple[Frames, dict[str, Any], dict[str, Any]]:
    """Tables of one rank's database."""
    db = Database(path)
    if not any(table in db.columns for table in TABLES) and not db.columns.refused:
        found = (
            f"{path.name} has none of the tables of a recording; it has {sorted(db.columns)[:6]}"
        )
        hint = "pass the folder *_ascend_pt, or its ascend_pytorch_profiler*.db"
        raise ReadError(found, expected=f"some of {listed(TABLES)}", hint=hint)
    notes: list[str] = []
    host, links = _host(db, python_functions=python_functions)
    times = None if analysis is None else hccl_times(analysis)
    out = host | _device(db, links, host.get("runtime"), times)
    if (allocations := counters.memory_of_database(db)) is not None:
        out["memory"] = allocations
    if (samples := counters.of_database(db)) is not None:
        out["counters"] = samples
    usual = {"TASK", "PYTORCH_API", "CANN_API", "COMMUNICATION_OP"}
    refused = {view.upper() for view in db.columns.refused}
    if missing := sorted(table for table in usual - refused if table not in db.columns):
        notes.append(
            f"it has no {', '.join(missing)}: that level of profiling does not record them"
        )
    notes += db.columns.notes()
    counted = [
        c
        for c in (*TABLES, "COMMUNICATION_TASK_INFO", "MEMORY_RECORD", "OP_MEMORY")
        if c in db.columns
    ]
    with sqlite.connect(path) as connection:
        rows = sum(
            connection.execute(f"SELECT count(*) FROM {sqlite.quoted(c)}").fetchone()[0]  # noqa: S608
            for c in counted
        )
    coverage = {
        "events": rows,
        "kept": tables.count_events(out),
        "bytes": path.stat().st_size,
        "notes": notes,
    }
    return out, _head(db), coverage


def _head(db: Database) -> dict[str, Any]:
    head: dict[str, Any] = {}
    names = db.read("NPU_INFO", texts=("name",))
    if names is not None:
        head["devices"] = [name for name in names["name"].to_list() if name]
        head["device_count"] = len(head["devices"])
    ranks = db.read("RANK_DEVICE_MAP", ("rankId", "deviceId"))
    if (
        ranks is not None
        and ranks.height
        and ranks["rankId"][0] is not None
        and 0 <= ranks["rankId"][0] < 1 << 20
    ):
        head["rank"] = int(ranks["rankId"][0])
    return head


def _host(db: Database, *, python_functions: bool) -> tuple[Frames, pl.DataFrame]:
    """Operators, ranges and calls of the host, and the operator of each correlation."""
    out: Frames = {}
    links = pl.DataFrame(schema={"correlation": pl.Int64, "op_id": pl.Int64})
    markers: list[pl.DataFrame] = []
    queue: pl.DataFrame | None = None
    api = db.read(
        "PYTORCH_API",
        (
            "startNs",
            "endNs",
            "globalTid",
            "connectionId",
            "name",
            "inputDtypes",
            "inputShapes",
            "callchainId",
            "type",
        ),
    )
    if api is not None:
        api = api.sort("startNs", maintain_order=True)
        if not python_functions:
            api = api.filter((pl.col("type") != _PYTHON) | pl.col("type").is_null())
        api = _thread(api).with_columns(
            start_ns="startNs", dur_ns=_DUR_NS, name=db.named("name").fill_null("unnamed")
        )
        queue = api.filter(type=_QUEUE)
        mstx = api.filter(type=_MSTX)
        ops = api.filter(
            pl.col("type").is_null() | ~pl.col("type").is_in([_QUEUE, _MSTX])
        ).with_row_index("op_id")
        ops = ops.with_columns(
            pl.col("op_id").cast(pl.Int64),
            kind=pl.when(pl.col("type") == _PYTHON).then(pl.lit("python")).otherwise(pl.lit("op")),
        )
        ranges = tables.is_range(pl.col("name")) & (pl.col("kind") == "op")
        # some versions swap inputDtypes and inputShapes
        first, second = db.named("inputShapes"), db.named("inputDtypes")
        shapes = pl.when(_is_types(first)).then(second).otherwise(first)
        dtypes = pl.when(_is_types(first)).then(first).otherwise(second)
        ops = ops.join(_stacks(db), on="callchainId", how="left", maintain_order="left")
        out["ops"] = ops.filter(~ranges).select(
            "process",
            "thread",
            "start_ns",
            "dur_ns",
            "name",
            "kind",
            "op_id",
            text.as_lists(shapes, numbers=True).alias("shapes"),
            text.as_lists(dtypes).alias("dtypes"),
            "ascend_stack",
        )
        if not out["ops"]["ascend_stack"].count():
            out["ops"] = out["ops"].drop("ascend_stack")
        markers += [
            frame.select(
                "process",
                "thread",
                "start_ns",
                "dur_ns",
                "name",
                domain=pl.lit(domain),
                on_device=pl.lit(False),
            )
            for frame, domain in ((ops.filter(ranges), "user_annotation"), (mstx, "mstx"))
        ]
        several = db.read("CONNECTION_IDS", ("id", "connectionId"))
        if several is not None:
            several = several.drop_nulls()
            links = ops.select("op_id", id="connectionId").drop_nulls()
            links = links.join(several.select("id", correlation="connectionId"), on="id").select(
                "correlation", "op_id"
            )
            links = links.unique("correlation", keep="last", maintain_order=True)
            first_of = several.unique("id", keep="first", maintain_order=True)
            first_of = first_of.select(connectionId="id", _queue="connectionId")
            queue = queue.join(first_of, on="connectionId", how="left", maintain_order="left")
            queue = queue.with_columns(connectionId=pl.coalesce("_queue", "connectionId"))
    set_ranges = db.read("MSTX_EVENTS", ("startNs", "endNs", "globalTid", "message", "domainId"))
    if set_ranges is not None and set_ranges.height:
        set_ranges = _thread(set_ranges).select(
            "process",
            "thread",
            start_ns="startNs",
            dur_ns=_DUR_NS,
            name=db.named("message").fill_null("unnamed"),
            domain=db.named("domainId").fill_null("mstx"),
            on_device=pl.lit(False),
        )
        markers.append(set_ranges)
    collected = db.read("GC_RECORD", ("startNs", "endNs", "globalTid"))
    if collected is not None and collected.height:
        collected = _thread(collected).select(
            "process",
            "thread",
            start_ns="startNs",
            dur_ns=_DUR_NS,
            name=pl.lit(tables.GC),
            domain=pl.lit("gc"),
            on_device=pl.lit(False),
        )
        markers.append(collected)
    if (calls := _calls(db, queue)) is not None:
        out["runtime"] = calls
    steps = db.read("STEP_TIME", ("id", "startNs", "endNs"))
    has_steps = any(frame["name"].str.contains("^ProfilerStep#").any() for frame in markers)
    if steps is not None and steps.height and not has_steps:
        marks = steps.select(
            process=pl.lit(None, pl.Int64),
            thread=pl.lit(None, pl.Int64),
            start_ns="startNs",
            dur_ns=pl.col("endNs") - pl.col("startNs"),
            name=pl.format("ProfilerStep#{}", "id"),
            domain=pl.lit("user_annotation"),
            on_device=pl.lit(False),
        )
        markers.append(marks)
    if markers:
        out["markers"] = pl.concat(markers)
    return out, links


def _is_types(value: pl.Expr) -> pl.Expr:
    """Whether a text lists types rather than shapes."""
    return value.str.contains("[A-Za-z]").fill_null(False)


def _thread(frame: pl.DataFrame) -> pl.DataFrame:
    """Process and thread from msprof's global thread id, which holds each in 32 bits."""
    tid = pl.col("globalTid")
    return frame.with_columns(process=tid // (1 << 32), thread=tid % (1 << 32))


def _stacks(db: Database) -> pl.DataFrame:
    """Call stacks by their identifier, one frame per line, innermost first."""
    chains = db.read("PYTORCH_CALLCHAINS", ("id", "stack", "stackDepth"))
    schema = {"callchainId": pl.Int64, "ascend_stack": pl.String}
    if chains is None:
        return pl.DataFrame(schema=schema)
    named = (
        chains.with_columns(frame=db.named("stack")).drop_nulls("frame").sort("id", "stackDepth")
    )
    return named.group_by(callchainId="id", maintain_order=True).agg(
        ascend_stack=pl.col("frame").str.join("\n")
    )


def _calls(db: Database, queue: pl.DataFrame | None) -> pl.DataFrame | None:
    """Calls of CANN under the names of the text output, and the items of torch_npu's task queue."""
    rows = db.read("CANN_API", ("startNs", "endNs", "type", "globalTid", "connectionId", "name"))
    columns = (
        "process",
        "thread",
        "start_ns",
        "dur_ns",
        "name",
        "correlation",
        "ascend_level",
        "ascend_queue_id",
    )
    parts = []
    if rows is not None:
        names = db.enum("ENUM_API_TYPE", _LEVELS)
        level = pl.col("type").replace_strict(names, default="cann", return_dtype=pl.String)
        prefix = level.replace_strict(tables.LEVELS, default=None, return_dtype=pl.String)
        plain = db.named("name").fill_null("unnamed")
        is_whole = prefix.is_null() | plain.str.contains("@")
        rows = _thread(rows).with_columns(
            start_ns="startNs",
            dur_ns=_DUR_NS,
            name=pl.when(is_whole).then(plain).otherwise(pl.format("{}@{}", prefix, plain)),
            correlation=_id("connectionId"),
            ascend_level=level,
            ascend_queue_id=pl.lit(None, pl.Int64),
        )
        parts.append(rows.select(columns))
    if queue is not None and queue.height:
        queue = queue.with_columns(
            correlation=pl.lit(None, pl.Int64),
            ascend_level=pl.lit("queue"),
            ascend_queue_id=_id("connectionId"),
        )
        parts.append(queue.select(columns))
    if not parts:
        return None
    return (
        pl.concat(parts).with_columns(api=pl.lit("runtime")).sort("start_ns", maintain_order=True)
    )


def _id(column: str) -> pl.Expr:
    return pl.when(pl.col(column) != NONE).then(column)


def _device(
    db: Database, links: pl.DataFrame, runtime: pl.DataFrame | None, times: pl.DataFrame | None
) -> Frames:
    tasks = db.read(
        "TASK",
        (
            "startNs",
            "endNs",
            "deviceId",
            "connectionId",
            "globalTaskId",
            "taskType",
            "contextId",
            "streamId",
            "taskId",
        ),
    )
    calls, pieces = _collectives(db, tasks, links, times)
    if tasks is not None:
        tasks = tasks.with_columns(
            start_ns="startNs",
            dur_ns=_DUR_NS,
            device="deviceId",
            stream="streamId",
            task_id="taskId",
            context=_id("contextId"),
            correlation=_id("connectionId"),
            task_type=db.named("taskType"),
        )
        tasks = tasks.join(links, on="correlation", how="left", maintain_order="left")
        tasks = _with_facts(db, tasks)
        tasks = tasks.with_columns(
            name=pl.coalesce("_name", "task_type", pl.lit("unnamed task"))
        ).sort("start_ns")
    return device_tables(
        tasks, calls, pieces, None if runtime is None else text.launcher_names(runtime)
    )


def _with_facts(db: Database, tasks: pl.DataFrame) -> pl.DataFrame:
    """Tasks with facts about kernels, copies and hardware counters."""
    columns = {
        "opType": "op_type",
        "taskType": "core",
        "inputShapes": "input_shapes",
        "inputDataTypes": "input_dtypes",
        "inputFormats": "input_formats",
        "outputShapes": "output_shapes",
        "outputDataTypes": "output_dtypes",
        "outputFormats": "output_formats",
        "opState": "op_state",
    }
    info = db.read(
        "COMPUTE_TASK_INFO", ("globalTaskId", "name", "blockDim", "mixBlockDim", "waitNs", *columns)
    )
    if info is None:
        tasks = tasks.with_columns(_name=pl.lit(None, pl.String))
    else:
        shapes = {"input_shapes", "output_shapes"}
        info = info.unique("globalTaskId", keep="first").select(
            "globalTaskId",
            db.named("name").alias("_name"),
            *(
                (db.named(old).str.strip_chars('"') if new in shapes else db.named(old)).alias(
                    f"ascend_{new}"
                )
                for old, new in columns.items()
            ),
            ascend_block_dim="blockDim",
            ascend_mix_block_dim="mixBlockDim",
            ascend_wait_ns="waitNs",
        )
        info = info.drop(
            [c for c in info.columns if c.startswith("ascend_") and not info[c].count()]
        )
        tasks = tasks.join(info, on="globalTaskId", how="left", maintain_order="left")
    scheduled = db.read("COMMUNICATION_SCHEDULE_TASK_INFO", ("globalTaskId", "name"))
    if (
        scheduled is not None and scheduled.height
    ):  # tasks of AI CPUs that start the pieces of collectives
        named = db.named("name").fill_null("unnamed")
        scheduled = scheduled.unique("globalTaskId", keep="first").select(
            "globalTaskId", _scheduler=named
        )
        tasks = tasks.join(scheduled, on="globalTaskId", how="left", maintain_order="left")
        starts = pl.when(pl.col("_scheduler").is_not_null()).then(pl.lit("COMMUNICATION_SCHEDULE"))
        tasks = tasks.with_columns(
            _name=pl.coalesce("_name", "_scheduler"), task_type=starts.otherwise("task_type")
        )
    pmu = db.read("TASK_PMU_INFO", ("globalTaskId", "name"), ("value",))
    if pmu is not None and pmu.height:
        counter = db.named("name").replace(_PMU_NAMES)
        in_ns = pl.when(counter.str.ends_with("_time")).then(pl.format("ascend_{}_ns", counter))
        pmu = pmu.with_columns(name=in_ns.otherwise(pl.format("ascend_{}", counter))).drop_nulls(
            "name"
        )
        wide = pmu.pivot(
            on="name", index="globalTaskId", values="value", aggregate_function="first"
        )
        tasks = tasks.join(wide, on="globalTaskId", how="left", maintain_order="left")
    copied = db.read("MEMCPY_INFO", ("globalTaskId", "size", "memcpyOperation"))
    if copied is not None and copied.height:
        names = db.enum("ENUM_MEMCPY_OPERATION")
        operation = pl.col("memcpyOperation").replace_strict(
            names, default=None, return_dtype=pl.String
        )
        copied = copied.unique("globalTaskId", keep="first")
        copied = copied.select("globalTaskId", ascend_bytes="size", ascend_direction=operation)
        tasks = tasks.join(copied, on="globalTaskId", how="left", maintain_order="left")
    return tasks


def _collectives(
    db: Database, tasks: pl.DataFrame | None, links: pl.DataFrame, times: pl.DataFrame | None
) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    ops = db.read(
        "COMMUNICATION_OP",
        (
            "opName",
            "startNs",
            "endNs",
            "connectionId",
            "groupName",
            "opId",
            "dataType",
            "algType",
            "count",
            "deviceId",
        ),
    )
    if ops is None:
        return None, None
    types = db.enum("ENUM_HCCL_DATA_TYPE", _DEFAULT_TYPES)
    dtype = pl.col("dataType").replace_strict(types, default=None, return_dtype=pl.String)
    ops = ops.select(
        "opId",
        device="deviceId",
        start_ns="startNs",
        dur_ns=_DUR_NS,
        name=db.named("opName").fill_null("unnamed collective"),
        correlation=_id("connectionId"),
        group=db.named("groupName"),
        dtype=pl.when(~dtype.is_in(["N/A", "INVALID_TYPE"])).then(dtype),
        algorithm=db.named("algType").str.to_lowercase(),
        count="count",
    )
    if (
        tasks is not None
        and ops["device"].null_count() == ops.height
        and tasks["deviceId"].n_unique() == 1
    ):
        ops = ops.with_columns(device=pl.lit(tasks["deviceId"][0]))
    ops = ops.join(links, on="correlation", how="left", maintain_order="left")
    pieces = _pieces(db, tasks, ops)
    calls = typed(ops, CALLS)
    if times is not None and times.height:
        calls = calls.join(
            times.unique("name", keep="first"), on="name", how="left", maintain_order="left"
        )
        calls = calls.with_columns(group=pl.coalesce("_hash", "group")).drop("_hash")
        hashes = dict(calls.drop_nulls("group").select("name", "group").iter_rows())
        if pieces is not None:
            named = pl.col("collective").replace_strict(
                hashes, default=None, return_dtype=pl.String
            )
            pieces = pieces.with_columns(group=pl.coalesce(named, "group"))
    return calls, pieces


def _pieces(db: Database, tasks: pl.DataFrame | None, ops: pl.DataFrame) -> pl.DataFrame | None:
    info = db.read(
        "COMMUNICATION_TASK_INFO",
        (
            "globalTaskId",
            "taskType",
            "planeId",
            "groupName",
            "notifyId",
            "srcRank",
            "dstRank",
            "transportType",
            "size",
            "linkType",
            "opId",
        ),
    )
    if info is None or tasks is None:
        return None
    links = db.enum("ENUM_HCCL_LINK_TYPE")
    transports = db.enum("ENUM_HCCL_TRANSPORT_TYPE")
    names = ops.select("opId", collective="name").drop_nulls().unique("opId", keep="first")
    times = tasks.select(
        "globalTaskId", device="deviceId", stream="streamId", start_ns="startNs", dur_ns=_DUR_NS
    )
    rows = info.join(times, on="globalTaskId", how="inner", maintain_order="left")
    rows = rows.join(names, on="opId", how="left", maintain_order="left")

    def word(column: str, table: dict[int, str]) -> pl.Expr:
        value = pl.col(column).replace_strict(table, default=None, return_dtype=pl.String)
        return pl.when(~value.is_in(["N/A", "INVALID_TYPE"])).then(value)

    rows = rows.select(
        "device",
        "stream",
        "start_ns",
        "dur_ns",
        "collective",
        name=db.named("taskType").fill_null("unnamed task"),
        group=db.named("groupName"),
        plane="planeId",
        src_rank=_id("srcRank"),
        dst_rank=_id("dstRank"),
        bytes="size",
        link=word("linkType", links),
        transport=word("transportType", transports),
        notify=pl.col("notifyId").cast(pl.String),
    )
    return typed(rows, PIECES).sort("start_ns", maintain_order=True)
