"""Builds the tables of the schema from the layers of an Ascend recording, read from text or a
database.

A device stream has not only kernels, but also copies, waits for events and notifies, and pieces of
collective calls. Tasks that compute become kernels, and so does each collective call, as one row;
other tasks go to the table ``tasks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from llmprof import names
from llmprof.names.matching import first_true
from llmprof.readers.common.reader import Frames

NO_ID: Final = 0xFFFF_FFFF
"""Value that msprof writes for a missing identifier."""

EVENT_WAIT, EVENT_RECORD, NOTIFY_WAIT, NOTIFY_RECORD = (
    "event_wait",
    "event_record",
    "notify_wait",
    "notify_record",
)
KERNEL, COPY, TRANSFER, CONTROL = "kernel", "copy", "transfer", "control"

_TASKS: Final[tuple[tuple[str, str], ...]] = (
    (EVENT_WAIT, r"event_?\s?wait|stream_?wait_?event"),
    (EVENT_RECORD, r"event_?\s?(?:record|reset)"),
    (NOTIFY_WAIT, r"notify_?\s?wait"),
    (NOTIFY_RECORD, r"notify_?\s?record|^write[_ ]value|ipc_?notify"),
    (COPY, r"^memcpy_|^memcpy$|^memset_async"),
    (TRANSFER, r"^(?:sdma|rdma|reduce_async|reduce_inline|inline_reduce|ub_|d2d_)"),
    (
        CONTROL,
        r"^(?:profiling|profiler)_|place_?holder|^communication_schedule$|^model_|^stream_|^label_|^flip|^fusion_issue|^end_graph|^cmo|^barrier|"
        r"^maintenance|^active_?aicpu|^debug_|^create_stream|^hostfunc|^callback|^get_device_msg|^ffts_plus$|^switch|"
        r"^datadump|^overflow|^npu_get|^nop$|^update_|^aicpu_info|^ctrl",
    ),
)
"""Kinds of device tasks by their name and type.

The first match wins; a task that matches none is a kernel.
"""

COMPUTE_CORES: Final = (
    r"^(?:AI_CORE|AI_VECTOR_CORE|AI_?CPU|MIX_AI[CV]|AIV|AIC|DSA_SQE|KERNEL_\w+|DVPP|VECTOR)"
)
"""Types of tasks that compute."""

_COMMUNICATION: Final = (
    r"(?i)^hcom_|(?:^|/)(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast)\w*-op\d+"
)
"""Names of collective calls: HCCL's own, and MindSpore's operators."""

LEVELS: Final = {
    "acl": "AscendCL",
    "node": "Node",
    "model": "Model",
    "hccl": "Hccl",
    "runtime": "Runtime",
}
"""Prefix of the names of calls by level, which only the text output has; databases of msprof
have no prefix.
"""

GC: Final = "GC"
"""Name of Python's garbage collections, if torch_npu records them (``gc_detect_threshold``)."""

_OPERATOR: Final = (
    r"^\w[\w.]*::|^aclnn|^acl_|^autograd::|Backward\d*$|^empty_tensor|^record_event|^wait_event|^destroy_event|^Hccl|"
    r"^(?:detach_?|contiguous_\w+|format_\w+|\w*memRepoint)$|^[A-Z][A-Za-z0-9]+$"
)
"""Pattern of the names of host operators; it separates them from ranges that the program set
(``record_function``).
"""


def task_kind(name: pl.Expr, task_type: pl.Expr) -> pl.Expr:
    """Kind of each device task: event_wait, event_record, notify_wait, notify_record, transfer,
    copy, control, kernel.

    A task whose type is one of computing tasks is a kernel for any name but that of an event or a
    notify.
    """
    both = (name, task_type.fill_null(""))
    by_pattern = [
        pl.when(pl.any_horizontal(text.str.contains(f"(?i){pattern}") for text in both)).then(
            pl.lit(what)
        )
        for what, pattern in _TASKS
    ]
    computes = task_type.str.contains(COMPUTE_CORES).fill_null(False)
    generic = name.str.contains(
        f"(?i)^(?:{'|'.join(pattern.replace('^', '') for _, pattern in _TASKS[:4])})"
    )
    return (
        pl.when(computes & ~generic)
        .then(pl.lit(KERNEL))
        .otherwise(pl.coalesce(*by_pattern, pl.lit(KERNEL)))
    )


def is_collective_call(name: pl.Expr) -> pl.Expr:
    """Whether a name is that of a whole collective call, not of a piece of a call."""
    return name.str.contains(_COMMUNICATION)


def is_range(name: pl.Expr) -> pl.Expr:
    """Whether a host event is a range that the program set, rather than an operator."""
    return ~name.str.contains(_OPERATOR) | (name == GC)


def _copy_kind(task_type: pl.Expr, launched_by: pl.Expr) -> pl.Expr:
    """Direction of a copy, from the call that launched it, else from the engine that ran it,
    else unknown.
    """
    by = launched_by.fill_null("").str.to_lowercase()
    inside = by.str.contains("device_to_device|d2d|devicetodevice") | task_type.fill_null(
        ""
    ).str.contains("^SDMA")
    to_device = by.str.contains("host_to_device|h2d|hosttodevice")
    to_host = by.str.contains("device_to_host|d2h|devicetohost")
    return first_true({"HtoD": to_device, "DtoH": to_host, "DtoD": inside}, "unknown")


TASKS: Final = {
    "device": pl.Int32,
    **dict.fromkeys(("stream", "start_ns", "dur_ns"), pl.Int64),
    **dict.fromkeys(("name", "task_type"), pl.String),
    **dict.fromkeys(("task_id", "context", "correlation", "op_id"), pl.Int64),
}
"""Columns of device tasks that are in both forms (text and database); further columns begin with
``ascend_``.
"""

CALLS: Final = {
    "device": pl.Int32,
    **dict.fromkeys(("stream", "start_ns", "dur_ns"), pl.Int64),
    **dict.fromkeys(("name", "group", "algorithm", "dtype"), pl.String),
    "count": pl.Int64,
    "world": pl.Int32,
    **dict.fromkeys(("correlation", "op_id"), pl.Int64),
}
"""Columns of collective calls."""

PIECES: Final = {
    "device": pl.Int32,
    **dict.fromkeys(("stream", "start_ns", "dur_ns"), pl.Int64),
    **dict.fromkeys(("name", "collective", "group"), pl.String),
    **dict.fromkeys(("plane", "src_rank", "dst_rank"), pl.Int32),
    "bytes": pl.Int64,
    **dict.fromkeys(("link", "transport", "notify"), pl.String),
    "task_id": pl.Int64,
}
"""Columns of the pieces of collective calls: transfers, reductions, notifies."""

DETAILS: Final = {
    **dict.fromkeys(
        ("ascend_op_type", "ascend_core", "ascend_input_shapes", "ascend_input_dtypes"), pl.String
    ),
    **dict.fromkeys(
        ("ascend_input_formats", "ascend_output_shapes", "ascend_output_dtypes"), pl.String
    ),
    "ascend_output_formats": pl.String,
    **dict.fromkeys(("ascend_block_dim", "ascend_wait_ns"), pl.Int64),
}
"""Facts about a kernel besides its time, in the order in which they are shown."""


WHOLE_GROUPS: Final = tuple(2**n for n in range(1, 16))
"""Numbers of ranks that are read as a whole group, if a recording names that many ranks from 0
on without a gap.
"""


def typed(frame: pl.DataFrame | None, columns: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """The frame with all of the given columns, cast to their types, and its columns that begin
    with ``ascend_``.
    """
    if frame is None:
        return pl.DataFrame(schema=dict(columns))
    kept = [c for c in frame.columns if c not in columns and c.startswith("ascend_")]
    return frame.select(
        *(
            pl.col(c).cast(dtype, strict=False)
            if c in frame.columns
            else pl.lit(None, dtype).alias(c)
            for c, dtype in columns.items()
        ),
        *kept,
    )


def device_tables(
    tasks: pl.DataFrame | None,
    calls: pl.DataFrame | None,
    pieces: pl.DataFrame | None,
    launches: pl.DataFrame | None = None,
) -> Frames:
    """Kernels, copies, collectives and other tasks of the device."""
    if tasks is None and calls is None and pieces is None:
        return {}
    calls, pieces = typed(calls, CALLS), typed(pieces, PIECES)
    calls = _with_streams(calls, pieces)
    rows = typed(tasks, TASKS).with_columns(kind=task_kind(pl.col("name"), pl.col("task_type")))
    rows = _with_pieces(rows, pieces)
    # a piece of a call has the correlation and the operator of the call, if it has none itself
    of_calls = calls.select("name", _correlation="correlation", _op="op_id").unique(
        "name", keep="none"
    )
    rows = rows.join(
        of_calls, left_on="collective", right_on="name", how="left", maintain_order="left"
    )
    found = {
        "correlation": pl.coalesce("correlation", "_correlation"),
        "op_id": pl.coalesce("op_id", "_op"),
    }
    rows = rows.with_columns(**found).drop("_correlation", "_op")
    wraps = _wraps(rows, calls)
    rows = rows.with_columns(kind=pl.when(wraps).then(pl.lit(CONTROL)).otherwise("kind"))
    details = [c for c in rows.columns if c.startswith("ascend_")]
    core = pl.col("ascend_core") if "ascend_core" in details else pl.col("task_type")
    kernels = rows.filter(kind=KERNEL).select(
        "device",
        "stream",
        "start_ns",
        "dur_ns",
        "name",
        "correlation",
        "op_id",
        core.fill_null(pl.col("task_type")).alias("ascend_core"),
        pl.col("task_id").alias("ascend_task_id"),
        *(c for c in details if c != "ascend_core"),
    )
    whole = calls.select(
        "device",
        "stream",
        "start_ns",
        "dur_ns",
        "name",
        "correlation",
        "op_id",
        ascend_core=pl.lit("HCCL"),
    )
    kernels = pl.concat([kernels, whole], how="diagonal_relaxed").sort(
        "start_ns", maintain_order=True
    )
    order = [c for c in DETAILS if c in kernels.columns]
    kernels = kernels.select(pl.exclude(order), *order).drop_nulls("start_ns")
    rest = rows.filter(~pl.col("kind").is_in([KERNEL, COPY]))
    out = {
        "kernels": kernels,
        "copies": _copies(rows.filter(kind=COPY), launches),
        "collectives": _collectives(calls),
        "tasks": rest.select(
            "device",
            "stream",
            "start_ns",
            "dur_ns",
            "name",
            "kind",
            "correlation",
            "op_id",
            "collective",
            "group",
            "plane",
            "src_rank",
            "dst_rank",
            "bytes",
            "link",
            "notify",
            ascend_task_type="task_type",
            ascend_task_id="task_id",
            ascend_transport="transport",
        ),
    }
    if (
        tasks is None
    ):  # only the communication was recorded: what ran beside it is unknown, not nothing
        del out["kernels"], out["copies"]
    return out


def count_events(frames: Frames) -> int:
    """Number of events in the tables: collective calls are among the kernels, too, if there are
    any.
    """
    return sum(
        frame.height
        for name, frame in frames.items()
        if name != "collectives" or "kernels" not in frames
    )


def _with_streams(calls: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """Calls with the stream of their first piece and the number of ranks that their pieces name."""
    named = pieces.drop_nulls("collective").sort("start_ns")
    if not (named.height and calls.height):
        return calls
    # in a ring or a partial mesh a rank names only its neighbours: with 8 ranks, one of them names
    # 0 to 4
    ranks = pl.concat([pl.col("src_rank"), pl.col("dst_rank")]).drop_nulls().unique()
    complete = (ranks.len() == ranks.max() + 1) & ranks.len().is_in(WHOLE_GROUPS)
    count = pl.when(complete).then(ranks.len()).cast(pl.Int32)
    sums = named.group_by("collective").agg(
        _stream=pl.col("stream").drop_nulls().first(), _world=count
    )
    worlds = named.group_by("group").agg(_group_world=count)
    calls = calls.join(
        sums, left_on="name", right_on="collective", how="left", maintain_order="left"
    )
    calls = calls.join(worlds, on="group", how="left", maintain_order="left", nulls_equal=True)
    return calls.with_columns(
        stream=pl.coalesce("stream", "_stream"),
        world=pl.coalesce("world", pl.max_horizontal("_world", "_group_world").cast(pl.Int32)),
    ).drop("_stream", "_world", "_group_world")


def _with_pieces(tasks: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """Tasks, with facts about those that are pieces of calls; pieces without a task are added."""
    columns = [
        c for c in PIECES if c not in ("device", "stream", "start_ns", "dur_ns", "name", "task_id")
    ]
    keys = ["stream", "start_ns"]
    facts = pieces.drop_nulls("stream").unique(keys, keep="first", maintain_order=True)
    facts = facts.select(*keys, pl.col("name").alias("_piece"), *columns)
    # a task that only launches others starts before them, so no two tasks share a start on a stream
    rows = tasks.join(facts, on=keys, how="left", maintain_order="left")
    of_piece = (
        pl.when(pl.col("_piece").is_not_null()).then(_kind_of_piece("_piece")).otherwise("kind")
    )
    rows = rows.with_columns(kind=of_piece, name=pl.coalesce("_piece", "name")).drop("_piece")
    lone = pieces.join(tasks.select(keys).unique(), on=keys, how="anti", nulls_equal=True)
    if not lone.height:
        return rows
    lone = lone.with_columns(kind=_kind_of_piece("name"))
    return pl.concat([rows, lone], how="diagonal_relaxed").sort("start_ns", maintain_order=True)


def _kind_of_piece(name: str) -> pl.Expr:
    of_name = task_kind(pl.col(name), pl.lit(None, pl.String))
    return pl.when(of_name.is_in([KERNEL, COPY])).then(pl.lit(TRANSFER)).otherwise(of_name)


def _wraps(tasks: pl.DataFrame, calls: pl.DataFrame) -> pl.Expr:
    """Whether a task only launches other tasks (of an FFTS+ context or a collective call), which
    are in the table.
    """
    has_context = pl.col("context").is_not_null() & (pl.col("context") != NO_ID)
    inner = (
        tasks.filter(has_context & (pl.col("kind") == KERNEL)).select("stream", "task_id").unique()
    )
    numbers = inner.with_columns(_wrapped=pl.lit(True))
    wrapped = tasks.join(numbers, on=["stream", "task_id"], how="left", maintain_order="left")[
        "_wrapped"
    ]
    unnamed = (
        pl.col("ascend_op_type").is_null() if "ascend_op_type" in tasks.columns else pl.lit(True)
    )
    of_calls = calls["correlation"].drop_nulls().unique()
    launches = pl.col("correlation").is_in(of_calls.implode()).fill_null(False)
    return (
        (pl.col("kind") == KERNEL) & unnamed & ~has_context & (wrapped.fill_null(False) | launches)
    )


def _copies(tasks: pl.DataFrame, launches: pl.DataFrame | None) -> pl.DataFrame:
    size = [pl.col("ascend_bytes").alias("bytes")] if "ascend_bytes" in tasks.columns else []
    if launches is None or not launches.height:
        tasks = tasks.with_columns(launched_by=pl.lit(None, pl.String))
    else:
        launches = launches.drop_nulls("correlation").unique(
            "correlation", keep="first", maintain_order=True
        )
        tasks = tasks.join(launches, on="correlation", how="left", maintain_order="left")
    by = pl.coalesce(*(c for c in ("ascend_direction", "launched_by") if c in tasks.columns))
    is_fill = pl.col("name").str.contains("(?i)^memset")
    kind_of = _copy_kind(pl.col("task_type"), by)
    return tasks.select(
        "device",
        "stream",
        "start_ns",
        "dur_ns",
        "name",
        "correlation",
        "op_id",
        pl.when(is_fill).then(pl.lit("memset")).otherwise(kind_of).alias("kind"),
        *size,
    )


def _collectives(calls: pl.DataFrame) -> pl.DataFrame:
    """Collective calls with their sizes; HCCL's count is what a rank sends, for a reduce_scatter
    what it receives.
    """
    name = pl.col("name")
    gets = name.str.contains(r"(?i)reduce_?scatter|receive")
    is_known = name.str.contains(r"(?i)all_?reduce|all_?gather|broadcast|reduce|send|receive")
    extra = [c for c in calls.columns if c.startswith("ascend_")]
    calls = calls.with_columns(kind=names.collective_kinds(calls["name"]))
    sent, got = pl.when(is_known & ~gets).then("count"), pl.when(gets).then("count")
    # The size is that of the larger end of the call, with the elements of all ranks.
    parts = (
        pl.when(pl.col("kind").is_in(["all_gather", "reduce_scatter"])).then("world").otherwise(1)
    )
    size = (
        pl.when(is_known | gets).then("count") * parts * names.element_bytes(pl.col("dtype"))
    ).cast(pl.Int64)
    return calls.select(
        "device",
        "stream",
        "start_ns",
        "dur_ns",
        "name",
        "group",
        "algorithm",
        "dtype",
        "world",
        "correlation",
        "op_id",
        *extra,
        kind="kind",
        in_elements=pl.when(pl.col("kind") == "reduce_scatter")
        .then(got * pl.col("world"))
        .otherwise(sent),
        out_elements=pl.when(pl.col("kind") == "all_gather")
        .then(sent * pl.col("world"))
        .otherwise(got),
        bytes=size,
        bytes_source=pl.when(size.is_not_null()).then(pl.lit("metadata")),
        on_device=pl.lit(True),
        ascend_count="count",
    )
