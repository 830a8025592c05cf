"""Reads the text output of one rank (timeline JSON and CSV files) as tables of the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.names.kernels import map_names
from llmprof.readers.ascend import counters, summaries, tables, timeline
from llmprof.readers.ascend.tables import device_tables
from llmprof.readers.common.flows import linked_by_flows
from llmprof.readers.common.reader import Frames
from llmprof.text import Progress
from llmprof.trace.schema import END

_NEAR_NS: Final = 2
"""Largest difference of equal start times in ns:

CSV rounds them to a thousandth of a us, the timeline does not.
"""


def read_text_files(
    files: Mapping[str, Sequence[Path]],
    *,
    python_functions: bool = True,
    progress: Progress | None = None,
) -> tuple[Frames, dict[str, Any]]:
    """Tables of the text files of one rank."""
    notes: list[str] = []
    source: timeline.AscendTimeline | None = None
    if paths := files.get("timeline"):
        source = _tried(
            lambda: timeline.read_timelines(
                paths, python_functions=python_functions, progress=progress
            ),
            notes,
        )
    kernels = _all(summaries.read_kernel_details, files.get("kernels", ()), notes)
    if (
        kernels is not None and len(files["kernels"]) > 1
    ):  # torch_npu and msprof both list the kernels
        kernels = kernels.sort(pl.col("stream").is_null(), maintain_order=True)
        kernels = kernels.unique(["name", "start_ns"], keep="first", maintain_order=True)
    if (
        kernels is None and source is None
    ):  # level 0 of msprof: names and types of tasks, without their inputs
        kernels = _all(summaries.read_kernel_details, files.get("task_time", ()), notes)
    listed = _all(summaries.communication, files.get("communication", ()), notes)
    allocations = _all(counters.operator_memory, files.get("operator_memory", ()), notes)
    records = _all(counters.memory_record, files.get("memory_record", ()), notes)
    modules = _all(counters.module_memory, files.get("module_memory", ()), notes)
    caches = _all(summaries.l2_cache, files.get("l2_cache", ()), notes)
    if source is None and all(
        frame is None for frame in (kernels, listed, modules, allocations, records)
    ):
        raise ReadError(
            f"nothing could be read: {'; '.join(notes) or 'there is no file of the profiler'}",
            expected=(
                "trace_view.json, kernel_details.csv or another file that torch_npu or msprof"
                " exports"
            ),
            hint=(
                "export again: torch_npu.profiler.profiler.analyse(folder), or msprof --export=on"
                " --output=folder"
            ),
        )
    out, matched = _tables(source, kernels, listed, caches)
    memory = [frame for frame in (allocations, records) if frame is not None]
    if memory:
        out["memory"] = pl.concat(memory, how="diagonal_relaxed").sort(
            "time_ns", maintain_order=True
        )
    of_timeline = None if source is None else counters.of_timeline(source)
    samples = [frame for frame in (of_timeline, modules) if frame is not None]
    if samples and sum(frame.height for frame in samples):
        out["counters"] = pl.concat(samples, how="diagonal_relaxed").sort(
            "time_ns", maintain_order=True
        )
    counts = (
        {"events": sum(frame.height for frame in out.values())}
        if source is None
        else source.coverage
    )
    return out, {"matched": matched, "notes": notes, **counts, "kept": tables.count_events(out)}


def _tried(read_one: Any, notes: list[str]) -> Any:
    """Result of a function that reads files.

    If it raises ReadError: None, and the reason is added to the notes.
    """
    try:
        return read_one()
    except ReadError as error:
        notes.append(error.found)
        return None


def _all(read_one: Any, paths: Sequence[Path], notes: list[str]) -> pl.DataFrame | None:
    """Rows of all files of one kind; None if no file could be read."""
    frames = [
        frame
        for path in paths
        if (frame := _tried(lambda path=path: read_one(path), notes)) is not None
    ]
    return pl.concat(frames, how="diagonal_relaxed") if frames else None


def _tables(
    source: timeline.AscendTimeline | None,
    kernels: pl.DataFrame | None,
    listed: pl.DataFrame | None,
    caches: pl.DataFrame | None,
) -> tuple[Frames, int]:
    """Join what the files say of kernels, calls and their pieces; and the number of events that
    two files tell of.
    """
    if kernels is not None and caches is not None:
        kernels = kernels.join(caches, on=["stream", "task_id"], how="left", maintain_order="left")
    listed_calls = None
    if kernels is not None:
        of_calls = summaries.is_collective_row(kernels)
        kernels, listed_calls = kernels.filter(~of_calls), kernels.filter(of_calls)
    if source is None:
        calls = _with_communication_times(_of_details(listed_calls), listed)
        both = (
            calls["group"].count() if listed_calls is not None and "group" in calls.columns else 0
        )
        return device_tables(kernels, calls if calls.height else None, None), both
    host = _host(source)
    tasks = _tasks(source)
    calls, pieces = _communication(source)
    flows = _flows(source)
    links = _links(flows, host.get("ops"))
    tasks, calls = _linked(tasks, links), _linked(calls, links)
    if "runtime" in host:
        frames = {"runtime": host["runtime"], "tasks": tasks, "calls": calls}
        to_calls = flows.filter(name=timeline.TO_CALLS)
        frames = linked_by_flows(frames, to_calls, ["thread"], ["stream"])
        host["runtime"], tasks, calls = frames.values()
    told = (
        tasks.height
        + calls.height
        + sum(0 if f is None else f.height for f in (kernels, listed_calls))
    )
    tasks, calls = _detailed(tasks, kernels), _with_listed(calls, listed_calls)
    matched = told - tasks.height - calls.height
    calls = _with_communication_times(calls, listed)
    group_of = (
        dict(calls.drop_nulls("group").select("name", "group").iter_rows()) if calls.height else {}
    )
    named = pl.col("collective").replace_strict(group_of, default=None, return_dtype=pl.String)
    pieces = pieces.with_columns(group=pl.coalesce(named, "group"))
    recorded = tasks.height or source.layer("device").height or kernels is not None
    launches = launcher_names(host["runtime"]) if "runtime" in host else None
    out = device_tables(tasks if recorded else None, calls, pieces, launches)
    if not recorded and not calls.height and not pieces.height:
        out = {}
    markers = [
        frame for frame in (host.pop("markers", None), _iterations(source)) if frame is not None
    ]
    if markers:
        out["markers"] = pl.concat(markers, how="diagonal_relaxed").sort(
            "start_ns", maintain_order=True
        )
    return host | out, matched


def _host(source: timeline.AscendTimeline) -> Frames:
    """Operators, ranges and calls of the host."""
    out: Frames = {}
    events = source.layer("host").sort("start_ns", maintain_order=True)
    ops = events.filter(~pl.col("cat").is_in(["enqueue", "dequeue"]) | pl.col("cat").is_null())
    if ops.height:
        ops = ops.with_columns(
            kind=pl.when(pl.col("cat") == "python_function")
            .then(pl.lit("python"))
            .otherwise(pl.lit("op"))
        ).with_row_index("op_id")
        ranges = tables.is_range(pl.col("name")) & (pl.col("kind") == "op")
        shapes = pl.coalesce("shapes", "shapes_new")
        out["ops"] = ops.filter(~ranges).select(
            "process",
            "thread",
            "start_ns",
            "dur_ns",
            "name",
            "kind",
            pl.col("op_id").cast(pl.Int64),
            shapes=as_lists(shapes, numbers=True),
            dtypes=as_lists(pl.col("dtypes")),
            ascend_stack=_stack(pl.col("stack")),
        )
        if not out["ops"]["ascend_stack"].count():
            out["ops"] = out["ops"].drop("ascend_stack")
        out["markers"] = ops.filter(ranges).select(
            "process",
            "thread",
            "start_ns",
            "dur_ns",
            "name",
            on_device=pl.lit(False),
            domain=pl.when(pl.col("name") == tables.GC)
            .then(pl.lit("gc"))
            .otherwise(pl.lit("user_annotation")),
        )
    tx = source.layer("msproftx")
    if tx.height:
        tx = tx.select(
            "process",
            "thread",
            "start_ns",
            "dur_ns",
            "name",
            domain=pl.coalesce("domain", pl.lit("mstx")),
            on_device=pl.lit(False),
        )
        out["markers"] = pl.concat([out["markers"], tx]) if "markers" in out else tx
    queue = events.filter(pl.col("cat").is_in(["enqueue", "dequeue"])).with_columns(
        level=pl.lit("queue")
    )
    calls = pl.concat([source.layer("cann"), queue], how="diagonal_relaxed").sort(
        "start_ns", maintain_order=True
    )
    if calls.height:
        processes = events["process"].drop_nulls().unique()
        if (
            processes.len() == 1
        ):  # the layer CANN has another process number, but its threads are those of the process
            calls = calls.with_columns(process=pl.lit(processes[0], dtype=pl.Int64))
        out["runtime"] = calls.select(
            "process",
            "thread",
            "start_ns",
            "dur_ns",
            "name",
            api=pl.lit("runtime"),
            correlation="connection",
            ascend_level=pl.coalesce(
                "level", pl.col("name").str.extract(r"^(\w+)@").str.to_lowercase()
            ),
            ascend_queue_id="queue",
        )
    return out


def as_lists(value: pl.Expr, *, numbers: bool = False) -> pl.Expr:
    """Convert ``"2,3;4"`` to the JSON list ``[[2, 3], [4]]``; without ``numbers``, to lists of
    texts.
    """

    def as_json(text: str) -> str:
        parts = [part.strip() for part in text.split(";")]
        if not numbers:
            return json.dumps(parts)
        return json.dumps([[int(n) for n in re.findall(r"\d+", part)] for part in parts])

    filled = pl.when(value != "").then(value)
    return filled.map_batches(lambda texts: map_names(texts, as_json), return_dtype=pl.String)


def _stack(value: pl.Expr) -> pl.Expr:
    """A call stack with one frame per line, innermost first."""
    return value.str.replace_all(r"\s*;\s*", "\n").str.strip_chars()


def _tasks(source: timeline.AscendTimeline) -> pl.DataFrame:
    events = source.layer("device").filter(pl.col("cat").is_null())
    return events.select(
        "start_ns",
        "dur_ns",
        "name",
        "task_type",
        stream=pl.coalesce("stream_physical", "stream", "thread"),
        task_id="task",
        context=pl.coalesce("context", "context_new"),
        correlation="connection",
    ).sort("start_ns", maintain_order=True)


def _communication(source: timeline.AscendTimeline) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Collective calls and their pieces.

    A piece belongs to the latest call of its group that began before it.
    """
    events = source.layer("communication").sort("start_ns", maintain_order=True)
    whole = tables.is_collective_call(pl.col("name")) | pl.col("thread_name").str.contains(
        r"(?i)communication(?: kernel)?$"
    )
    whole = whole.fill_null(False)
    calls = events.filter(whole).select(
        "start_ns",
        "dur_ns",
        "name",
        "count",
        _lane="thread",
        stream=pl.lit(None, pl.Int64),
        group=pl.lit(None, pl.String),
        algorithm=pl.col("algorithm").str.to_lowercase(),
        dtype="data_type",
        correlation="connection",
    )
    pieces = events.filter(~whole)
    lanes = calls.select("_lane").unique().sort("_lane")
    pieces = pieces.with_columns(_lane="thread")
    if lanes.height > 1:
        of_threads = lanes.with_columns(thread="_lane")
        pieces = (
            pieces.drop("_lane")
            .sort("thread")
            .join_asof(of_threads, on="thread", strategy="backward")
        )
    elif lanes.height:
        pieces = pieces.with_columns(_lane=pl.lit(lanes["_lane"][0], dtype=pl.Int64))
    latest = calls.select("_lane", "start_ns", collective="name").sort("start_ns")
    pieces = pieces.sort("start_ns", maintain_order=True).join_asof(
        latest, on="start_ns", by="_lane", strategy="backward", check_sortedness=False
    )
    return calls.drop("_lane"), pieces.select(
        "start_ns",
        "dur_ns",
        "name",
        "collective",
        stream="hccl_stream",
        plane=pl.col("thread_name").str.extract(r"(?i)plane\s*(\d+)").cast(pl.Int32),
        src_rank=pl.when(pl.col("src_rank") != tables.NO_ID)
        .then("src_rank")
        .cast(pl.Int32, strict=False),
        dst_rank=pl.when(pl.col("dst_rank") != tables.NO_ID)
        .then("dst_rank")
        .cast(pl.Int32, strict=False),
        bytes="size",
        link=_unless_placeholder(pl.col("link")),
        transport=_unless_placeholder(pl.col("transport")),
        group=pl.lit(None, pl.String),
        notify=pl.col("notify").cast(pl.String),
        task_id="hccl_task",
    )


def _unless_placeholder(value: pl.Expr) -> pl.Expr:
    return pl.when(~value.is_in(["INVALID_TYPE", "N/A", ""])).then(value)


def _flows(source: timeline.AscendTimeline) -> pl.DataFrame:
    """Flows with the stream on which they end; null for a collective call."""
    processes = source.layer("communication")["process"].unique()
    on_stream = ~pl.col("process").is_in(processes.implode())
    return source.flows.with_columns(stream=pl.when(on_stream).then("thread"))


def _links(flows: pl.DataFrame, ops: pl.DataFrame | None) -> pl.DataFrame:
    """Operators that launched device work, according to flows: stream, start, operator."""
    schema = {"stream": pl.Int64, "start_ns": pl.Int64, "op_id": pl.Int64}
    flows = flows.filter(name=timeline.TO_OPS)
    if ops is None or not flows.height:
        return pl.DataFrame(schema=schema)
    # The identifier of a flow is the start on the device, so two flows with the same start cannot
    # be matched.
    sources = flows.filter("is_source").select("id", "thread", "start_ns").unique("id", keep="none")
    targets = flows.filter(~pl.col("is_source")).select("id", "start_ns", "stream")
    # Of two operators that begin at the same time, the shorter one is inside the other.
    begin = ops.filter(kind="op").sort("dur_ns").unique(["thread", "start_ns"], keep="first")
    sources = sources.join(begin.select("thread", "start_ns", "op_id"), on=["thread", "start_ns"])
    linked = targets.join(sources.select("id", "op_id"), on="id", maintain_order="left")
    return linked.select(schema.keys()).unique(
        ["stream", "start_ns"], keep="first", maintain_order=True
    )


def _linked(frame: pl.DataFrame, links: pl.DataFrame) -> pl.DataFrame:
    return frame.join(
        links, on=["stream", "start_ns"], how="left", maintain_order="left", nulls_equal=True
    )


def _detailed(tasks: pl.DataFrame, kernels: pl.DataFrame | None) -> pl.DataFrame:
    """Tasks with their details from the CSV file, and the kernels that only the CSV file lists."""
    if kernels is None:
        return tasks
    facts = [c for c in kernels.columns if c.startswith("ascend_")]
    tasks, listed = tasks.sort("start_ns"), kernels.with_row_index("_row").sort("start_ns")
    if listed[
        "stream"
    ].null_count():  # torch_npu's table names no stream: then the name tells tasks apart
        placed = _nearest(
            listed, tasks.select("name", "start_ns", _stream="stream"), "name", _NEAR_NS
        )
        listed = listed.with_columns(stream=pl.coalesce("stream", placed["_stream"]))
    joined = _nearest(
        tasks, listed.select("stream", "start_ns", "_row", *facts), "stream", _NEAR_NS
    )
    rest = listed.filter(~pl.col("_row").is_in(joined["_row"].drop_nulls().implode())).drop("_row")
    return pl.concat([joined.drop("_row"), rest], how="diagonal_relaxed").sort(
        "start_ns", maintain_order=True
    )


def _of_details(listed: pl.DataFrame | None) -> pl.DataFrame:
    if listed is None:
        return summaries.NOTHING_OF_CALLS
    return listed.select("start_ns", "dur_ns", "name")


def _with_listed(calls: pl.DataFrame, listed: pl.DataFrame | None) -> pl.DataFrame:
    """Calls of the timeline, and calls that only the CSV file lists."""
    if listed is None:
        return calls
    known_calls = calls.select("name", "start_ns").sort("start_ns")
    near = _nearest(
        listed.sort("start_ns"), known_calls.with_columns(_known=pl.lit(True)), "name", 1000
    )
    rest = near.filter(pl.col("_known").is_null())
    return (
        pl.concat([calls, _of_details(rest)], how="diagonal_relaxed").sort("start_ns")
        if rest.height
        else calls
    )


def _with_communication_times(calls: pl.DataFrame, listed: pl.DataFrame | None) -> pl.DataFrame:
    """Calls with their group and times from communication.json; without calls, the rows of
    communication.json.
    """
    if listed is None or not listed.height:
        return calls
    if not calls.height:
        return listed
    facts = [c for c in listed.columns if c.startswith("ascend_")]
    times = listed.select("name", "start_ns", "group", *facts).sort("start_ns")
    return _nearest(calls.drop("group", strict=False).sort("start_ns"), times, "name", 1_000_000)


def _nearest(rows: pl.DataFrame, others: pl.DataFrame, by: str, most_ns: int) -> pl.DataFrame:
    return rows.join_asof(
        others, on="start_ns", by=by, strategy="nearest", tolerance=most_ns, check_sortedness=False
    )


def launcher_names(calls: pl.DataFrame) -> pl.DataFrame:
    """Name of what launched each task: the queue item that contains the call (``Dequeue@…``),
    else the call itself.
    """
    items = calls.filter(
        (pl.col("ascend_level") == "queue") & pl.col("name").str.starts_with("Dequeue")
    )
    launches = calls.filter(
        pl.col("correlation").is_not_null() & ~pl.col("name").str.starts_with("Enqueue")
    )
    items = items.select("thread", "start_ns", _item="name", _end=END)
    rows = launches.sort("start_ns").join_asof(
        items.sort("start_ns"),
        on="start_ns",
        by="thread",
        strategy="backward",
        check_sortedness=False,
    )
    within = pl.when(pl.col("_end") >= pl.col("start_ns")).then("_item")
    return rows.select("correlation", launched_by=pl.coalesce(within, "name"))


def _iterations(source: timeline.AscendTimeline) -> pl.DataFrame | None:
    """Iterations that the device marked, from MindSpore's and msprof's step trace."""
    events = source.layer("device", "steps").drop_nulls("cat")
    if not events.height:
        return None
    return events.select(
        "start_ns", "dur_ns", "name", domain=pl.lit("step_trace"), on_device=pl.lit(True)
    ).unique(["start_ns", "name"], keep="first", maintain_order=True)
