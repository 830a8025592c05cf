"""Device activity: kernels and copies in one frame, each with its launch and its category.

The category of a kernel follows from the best evidence in the trace: the module that it was
launched in, else the operator that launched it, else its own name. A name alone can mislead: a GEMM
whose epilogue could apply a relu has "relu" in its name.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from llmprof import names
from llmprof.errors import NotCapturedError
from llmprof.label.groups import is_sorted, last_with
from llmprof.label.modules import modules_of
from llmprof.label.nesting import holds_any, innermost, outermost_ops
from llmprof.names.matching import by_distinct, contains, first_true, remembered
from llmprof.theory.calls import operator_categories
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

_SOFTMAX = r"(?i)soft_?max"
_BACKWARD = r"(?i)backward|bwd|log_?softmax|soft_?max_back"
_CHOOSES = r"(?i)top_?k|sort|radix|argmax|scan|multinomial|nonzero"
"""Kernels that choose among values: a softmax before one of them does not belong to attention."""

_PLAIN = ("elementwise", "copy", "fill", "other")

_MAX_BETWEEN = 8
"""Most kernels between the softmax and either matrix product: scale, mask, type conversion."""


def softmax_attention(events: pl.DataFrame) -> pl.Series | None:
    """Find attention that is computed by separate kernels."""
    coded = events["coded"]
    softmax = contains(coded, _SOFTMAX)
    softmax = softmax & ~contains(coded, _BACKWARD) if softmax.any() else softmax
    if not softmax.any():
        return None
    frame = (
        events.select(
            "rank",
            "stream",
            "start_ns",
            "category",
            softmax=softmax,
            chooses=contains(coded, _CHOOSES),
        )
        .with_row_index("_row")
        .sort("rank", "stream", "start_ns", maintain_order=True)
        .with_row_index("at")
        .with_columns(
            pl.col("at").cast(pl.Int64),
            softmax=pl.col("softmax") & pl.col("category").is_in(["elementwise", "attention"]),
            solid=~pl.col("category").is_in(_PLAIN) | pl.col("chooses"),
        )
    )
    frame = frame.with_columns(solid=pl.col("solid") & ~pl.col("softmax"))
    lane = ["rank", "stream"]
    solid_at = pl.when("solid").then("at")
    frame = frame.with_columns(
        before=solid_at.forward_fill().over(lane),
        after=solid_at.backward_fill().over(lane),
        linear=pl.col("category") == "gemm",
    )
    chosen_rows = frame.filter(
        pl.col("softmax")
        & (pl.col("at") - pl.col("before") <= _MAX_BETWEEN)
        & (pl.col("after") - pl.col("at") <= _MAX_BETWEEN)
    )
    linear = frame["linear"]
    near = linear.gather(chosen_rows["before"]) & linear.gather(chosen_rows["after"])
    chosen_rows = chosen_rows.filter(near)
    if not chosen_rows.height:
        return None
    rows = (
        chosen_rows.select(at=pl.int_ranges("before", pl.col("after") + 1))
        .explode("at")["at"]
        .unique()
    )
    inside = frame.filter(pl.col("at").is_in(rows.implode()))["_row"]
    flags = pl.Series("attention", range(events.height), dtype=pl.UInt32)
    return flags.is_in(inside.implode())


_WRAPPER: Final = "device_kernel"
"""CUTLASS's function around any kernel; where an exporter left out its template arguments, its
name says nothing.
"""


def wrapped_attention(events: pl.DataFrame) -> pl.Series | None:
    """Find kernels without a telling name that follow the store of a layer's keys: those of its
    attention.
    """
    bare = (events["coded"] == _WRAPPER).fill_null(False)
    if not bare.any():
        return None
    lane = ["rank", "stream"]
    frame = events.select(
        *lane, "start_ns", bare=bare, stores=pl.col("category") == "kv_cache_write"
    )
    frame = frame.with_row_index("_row").sort(*lane, "start_ns", maintain_order=True)
    other = (
        pl.when(~pl.col("bare")).then("stores").forward_fill().over(lane)
    )  # of the last kernel with a name
    rows = frame.filter(pl.col("bare") & other.fill_null(False))["_row"]
    return pl.Series("attention", range(events.height), dtype=pl.UInt32).is_in(rows.implode())


EVENT_KEY: Final = ("rank", "stream", "start_ns", "name")
"""What tells a device event from all others, in every table that has it."""


def add_recorded(events: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Device events with further columns of the recorded rows of their :data:`EVENT_KEY`; null
    where there is none.
    """
    rows = rows.unique(EVENT_KEY, keep="first")
    return events.join(rows, on=EVENT_KEY, how="left", nulls_equal=True, maintain_order="left")


COLUMNS = [
    "rank",
    "device",
    "stream",
    "start_ns",
    "dur_ns",
    "name",
    "source",
    "correlation",
    "op_id",
]

CATEGORY = pl.Enum(names.CATEGORIES)
EVIDENCE = pl.Enum(["module", "operator", "metadata", "name", "position"])

CAPTURED = "torch_capture_"
"""Columns of kernels with labels from captures of graphs: :func:`llmprof.analyze.add_operators`."""

EAGER: Final = "eager step"
"""Evidence of what :func:`llmprof.analyze.add_operators` found."""

_LINEAR_ROLES = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head")
_GEMM_NEIGHBOURS = (
    *(
        "fill",
        "copy",
        "quantize",
        "collective",
        "elementwise",
        "norm",
        "moe_routing",
        "sampling",
        "embedding",
        "conv",
    ),
)
"""Categories that a kernel keeps in a linear module: it prepares or finishes the GEMM."""

_OPERATOR_RANGE = r"^(\w+::\w+)(?:, (?:seq|op_id) = .*)?$"
"""NVTX ranges that torch's ``emit_nvtx`` makes of operators."""

_LAUNCHES = r"(?i)launch|memcpy|memset|graph|mdlri|module|cooperative|hcom|aclnn|aclop"

LAUNCHES_GRAPH = r"(?i)graph(?:exec)?_?launch|mdlri_?execute"
"""Names of host calls that replay a whole graph: cudaGraphLaunch, hipGraphLaunch,
aclmdlRIExecuteAsync.
"""


_ELSEWHERE: Final = {"samples": "hotspots", "totals": "totals", "memory": "memory"}
"""Tables of recordings without events, and the analyses that answer with them."""


@per_trace
def activity(trace: Trace) -> pl.DataFrame:
    """Kernels and copies of all ranks in the order of their start.

    The trace of a CPU run has no device. There the outermost operators of each thread take the
    place of kernels, with source ``op``.

    Parameters
    ----------
    trace : Trace
        Any trace with kernels, copies or operators. Tables that were recorded but are empty give an
        empty frame.

    Returns
    -------
    polars.DataFrame
        ``event`` (row number), ``rank, device, stream, start_ns, dur_ns, name``, ``source``
        (kernel, copy or op), ``category``, ``category_by`` (module, operator, metadata, name, or
        position among others; null if unknown), ``replayed`` (true if a graph was replayed: launch
        and operator are those of the whole graph), ``correlation, op_id``, and of the host call
        that launched it ``launch_start_ns, launch_end_ns, launch_thread``, null where the launch is
        not in the window or was not recorded.

    Raises
    ------
    NotCapturedError
        No kernels, copies or operators were recorded, or host calls without the device.

    Examples
    --------
    >>> trace.events["source"].unique().sort().to_list()
    ['copy', 'kernel']
    """
    events = launched_events(trace)
    if "category_by" not in events.columns:
        events = _add_categories(events, trace)
    return events.select(
        "event",
        *COLUMNS[:7],
        "category",
        "category_by",
        "replayed",
        *COLUMNS[7:],
        "launch_start_ns",
        "launch_end_ns",
        "launch_thread",
    )


@per_trace
def launched_events(trace: Trace) -> pl.DataFrame:
    """Rows of :func:`activity` without the meaning of names, for analyses that need only times
    and launches.
    """
    recorded = [
        _table_events(trace, table) for table in ("kernels", "copies") if table in trace.table_names
    ]
    if recorded:
        order = ["rank", "start_ns", "stream"]
        events = pl.concat([frame for frame in recorded if frame.height] or recorded)
        if events["stream"].null_count() or not is_sorted(events, order):
            events = events.sort(order, maintain_order=True)
        events = _add_launches(events, trace)
    elif trace.has("runtime"):
        hint = (
            f"record {trace.capture.how_to_record('kernels')}, and no other profiler attached to the"  # noqa: E501
            " process"
        )
        raise NotCapturedError(
            "this capture holds host calls but no device activity", hint=hint, table="kernels"
        )
    elif "ops" in trace.table_names:  # as trace.capture.on_host says
        events = _ops_as_activity(trace.ops)
    else:
        way = f"record {trace.capture.how_to_record('kernels')}, and check that the window covers some steps"  # noqa: E501
        other_tables = [(table, view) for table, view in _ELSEWHERE.items() if trace.has(table)]
        alternatives = " and ".join(
            f"{table} (analyze.{view}, --what {view})" for table, view in other_tables
        )
        way = trace.capture.other_process or way
        hint = f"it holds {alternatives}; for the others {way}" if alternatives else way
        raise NotCapturedError(
            "this capture holds no kernels, copies or operators", hint=hint, table="kernels"
        )
    return events.with_row_index("event")


_MANY_NAMES: Final = 1 << 16
"""Distinct names from which on their numbers take more memory than the time is worth that they
save.
"""


@per_trace
def coded_names(trace: Trace) -> pl.Series:
    """Names of :func:`launched_events`, unless many differ as numbers (Categorical), which are
    told apart faster.
    """
    written = launched_events(trace)["name"]
    many = pl.select(pl.lit(written).approx_n_unique()).item() > _MANY_NAMES
    return written if many else written.cast(pl.Categorical)


def coded_operators(trace: Trace) -> pl.Series:
    """Names in the table of operators as numbers (Categorical)."""
    return _coded_operators(trace).to_series()


@per_trace
def _coded_operators(trace: Trace) -> pl.DataFrame:
    return trace.table("ops").select(pl.col("name").cast(pl.Categorical))


def _table_events(trace: Trace, table: str) -> pl.DataFrame:
    """Rows of kernels or copies.

    The category of a copy follows from its kind; that of a kernel is added later.
    """
    frame = trace.table(table)
    in_graph = (
        pl.col("graph_node").is_not_null() if "graph_node" in frame.columns else pl.lit(False)
    )
    captured = pl.lit(None, CATEGORY)
    if table == "kernels":
        category, source = pl.lit(None, CATEGORY), pl.lit("kernel")
        if f"{CAPTURED}category" in frame.columns:
            captured = pl.col(f"{CAPTURED}category").cast(CATEGORY)
    else:
        filled = pl.col("kind") == "memset"
        category = (
            pl.when(filled)
            .then(pl.lit("fill", dtype=CATEGORY))
            .otherwise(pl.lit("copy", dtype=CATEGORY))
        )
        source = pl.lit("copy")
    return frame.select(
        *COLUMNS[:6],
        source.alias("source"),
        *COLUMNS[7:],
        category=category,
        captured=captured,
        replayed=in_graph,
    )


def _add_categories(events: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add ``category`` and ``category_by``: of kernels by module, operator and name, of copies
    by their kind.
    """
    is_copy = pl.col("source") == "copy"
    coded = coded_names(trace)
    named = names.named_categories(coded).cast(CATEGORY)
    events = events.with_columns(
        coded=coded,
        named=pl.when(~is_copy).then(named),
        of_operator=pl.coalesce("captured", _operator_categories(events, trace, shared=True)),
        copied="category",
    )
    by_operator = names.decides(pl.col("of_operator"), pl.col("named")) & ~is_copy
    if events["of_operator"].null_count() == events.height:
        by_operator = pl.lit(False)
    events = events.with_columns(by_operator=by_operator)
    operator = pl.col("by_operator")
    category = pl.when(operator).then("of_operator").otherwise(pl.coalesce("named", "copied"))
    by = first_true(
        {"metadata": is_copy, "operator": operator, "name": pl.col("named").is_not_null()}
    )
    events = events.with_columns(category=category, category_by=by.cast(EVIDENCE))
    modules = modules_of(events, trace)
    if modules is not None:
        linear = pl.col("role").is_in(_LINEAR_ROLES) | pl.col("generic")
        inside = modules.select("event", linear=linear.fill_null(False)).filter("linear")
        events = events.join(inside, on="event", how="left", maintain_order="left")
        gemm = (
            pl.col("linear")
            & ~is_copy
            & ~pl.col("category").is_in(_GEMM_NEIGHBOURS).fill_null(False)
        )
        gemm = gemm.fill_null(False)
        events = events.with_columns(
            category=pl.when(gemm).then(pl.lit("gemm", dtype=CATEGORY)).otherwise("category"),
            category_by=pl.when(gemm)
            .then(pl.lit("module", dtype=EVIDENCE))
            .otherwise("category_by"),
        ).drop("linear")
    events = events.with_columns(pl.col("category").fill_null("other"))
    for found in (softmax_attention(events), wrapped_attention(events)):
        if found is None:
            continue
        part = found & (events["source"] == "kernel")
        events = events.with_columns(
            category=pl.when(part).then(pl.lit("attention", dtype=CATEGORY)).otherwise("category"),
            category_by=pl.when(part)
            .then(pl.lit("position", dtype=EVIDENCE))
            .otherwise("category_by"),
        )
    return events.with_columns(pl.col("category").cast(pl.String))


def called_operators(trace: Trace) -> pl.DataFrame:
    """Operators that were called, without what else a profiler writes among them."""
    ops = trace.table("ops")
    own = ops["kind"] == "op"
    return ops if own.all() else ops.filter(own)


@per_trace
def launching_operators(trace: Trace) -> pl.DataFrame:
    """For each of :func:`launched_events` the row of its operator in :func:`called_operators`: see
    :func:`operator_rows`.
    """
    return operator_rows(launched_events(trace), called_operators(trace))


_MATCH: Final = pl.Enum(["id", "time"])


def operator_rows(events: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """For each device event the ``row`` of its operator in ``ops``, and ``match``: by ``id``, by
    ``time``, or null.
    """
    if is_sorted(ops, ["rank", "start_ns"]):
        row = last_with(events, ops, "op_id")
    else:  # of several with an identifier, the last to begin is the innermost
        by_start = ops.with_row_index("_row").sort("start_ns", maintain_order=True)
        row = by_start["_row"][last_with(events, by_start, "op_id")]
    by_id = row.is_not_null()
    match = pl.select(pl.when(by_id).then(pl.lit("id", dtype=_MATCH))).to_series()
    rest = np.flatnonzero((~by_id & events["launch_start_ns"].is_not_null()).to_numpy())
    if len(rest) and ops.height:
        launches = events.select(
            "rank",
            "launch_start_ns",
            thread=pl.col("launch_thread").fill_null(-1),
            event=pl.int_range(pl.len()),
        )[rest]
        rows = np.flatnonzero(holds_any(ops, launches["launch_start_ns"]))
        spans = ops.select("rank", "start_ns", "dur_ns", pl.col("thread").fill_null(-1))[rows]
        enclosing = innermost(
            launches, spans, ["rank", "thread"], at="launch_start_ns", name="_op"
        ).drop_nulls("_op")
        row = row.scatter(enclosing["event"], pl.Series(rows.astype(np.uint32))[enclosing["_op"]])
        match = match.scatter(
            enclosing["event"], pl.Series(["time"] * enclosing.height, dtype=_MATCH)
        )
    return pl.DataFrame({"row": row, "match": match})


def _operator_categories(events: pl.DataFrame, trace: Trace, *, shared: bool = False) -> pl.Series:
    """Category of each event, from the operator that launched it; ``shared``: the events are
    those of the trace.
    """
    none = pl.Series("of_operator", [None], dtype=CATEGORY).new_from_index(0, events.height)
    recorded = trace.has("ops")
    calls = called_operators(trace) if recorded else _noted_calls(trace)
    if calls is None or calls.is_empty():
        return none
    found = launching_operators(trace) if shared and recorded else operator_rows(events, calls)
    by_id = (found["match"] == "id") & ~events["replayed"]
    launched = ~events["replayed"]
    if by_id.any():  # joined by identifier: an event without one was launched outside of operators
        launched &= events["op_id"].is_not_null()
    row = found["row"].set(~launched, None)
    names_of = calls["name"][row]
    return operator_categories(_looked_up(names_of, row, calls)).cast(CATEGORY).alias("of_operator")


def _noted_calls(trace: Trace) -> pl.DataFrame | None:
    """Operators that torch's ``emit_nvtx`` wrote as ranges; None where there are no ranges."""
    if not trace.has("markers"):
        return None
    name = pl.col("name").str.extract(_OPERATOR_RANGE, 1)
    calls = trace.markers.filter(~pl.col("on_device")).with_columns(name=name)
    return calls.drop_nulls("name").select(
        "rank", "thread", "start_ns", "dur_ns", "name", op_id=pl.lit(None, pl.Int64)
    )


def _looked_up(called_names: pl.Series, rows: pl.Series, calls: pl.DataFrame) -> pl.Series:
    """Names of operators, where a gather inside of a look-up is that look-up."""
    gathers = called_names.is_in(["aten::gather", "aten::index_select"]).fill_null(False)
    if not gathers.any() or not (looks_up := calls["name"] == "aten::embedding").any():
        return called_names
    spans = calls.select("rank", "start_ns", "dur_ns", thread=pl.col("thread").fill_null(-1))
    at = gathers.arg_true()
    placed = innermost(
        spans[rows[at]], spans.filter(looks_up), ["rank", "thread"], at="start_ns", name="_call"
    )
    inside = at.filter(placed["_call"].is_not_null())
    return called_names.scatter(inside, pl.Series(["aten::embedding"] * inside.len()))


def _add_launches(events: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add the launching call: of the calls with this correlation, one that launches, or else the
    first.
    """
    if not trace.has("runtime"):
        nothing = pl.lit(None, pl.Int64)
        return events.with_columns(
            launch_start_ns=nothing, launch_end_ns=nothing, launch_thread=nothing
        )
    calls = trace.runtime.select(
        "rank", "correlation", "start_ns", "dur_ns", "name", launch_thread="thread"
    )
    calls = calls.drop_nulls("correlation")
    kinds = by_distinct(calls["name"], _launching)
    key = ["rank", "correlation"]
    calls = calls.select(
        *key,
        "name",
        "launch_thread",
        launch_start_ns="start_ns",
        launch_end_ns=END,
        launches=kinds > 0,
        graph=kinds > 1,
    )
    if _repeats(calls, "correlation"):
        calls = calls.sort(
            "launches", "launch_start_ns", descending=[True, False], maintain_order=True
        )
        # two launches one after the other that share a number link nothing
        twice = calls.filter("launches").group_by(*key, "name")
        shared = twice.agg(pl.max("launch_start_ns") >= pl.min("launch_end_ns"))
        shared = shared.filter("launch_start_ns").select(key)
        calls = calls.join(shared, on=key, how="anti", maintain_order="left")
        calls = calls.unique(key, keep="first", maintain_order=True)
    row = last_with(events, calls, "correlation")
    events = events.hstack(
        calls[["launch_thread", "launch_start_ns", "launch_end_ns", "graph"]][row]
    )
    return events.with_columns(replayed=pl.col("replayed") | pl.col("graph").fill_null(False)).drop(
        "graph"
    )


def _repeats(calls: pl.DataFrame, number: str) -> bool:
    """Whether a rank has two calls with one number; a look is faster than removing what is
    rarely there.
    """
    return calls.group_by("rank").agg(repeats=pl.col(number).n_unique() < pl.len())["repeats"].any()


@remembered
def _launching(distinct: tuple[str, ...]) -> pl.Series:
    """For each name of a call: 0 if it launches nothing, 1 if it launches a kernel, 2 if it
    launches a graph.
    """
    frame = pl.DataFrame({"name": pl.Series(distinct, dtype=pl.String)})
    launches, graph = (
        pl.col("name").str.contains(pattern).cast(pl.UInt8)
        for pattern in (_LAUNCHES, LAUNCHES_GRAPH)
    )
    return frame.select(kind=launches + launches * graph).to_series()


def _ops_as_activity(ops: pl.DataFrame) -> pl.DataFrame:
    ops = outermost_ops(ops)
    written = (
        ops.select(pl.coalesce("ort_op", "name"))["ort_op"]
        if "ort_op" in ops.columns
        else ops["name"]
    )
    of_operator = operator_categories(written)
    named = names.named_categories(written)
    by = first_true(
        {"operator": pl.lit(of_operator.is_not_null()), "name": pl.lit(named.is_not_null())}
    ).cast(EVIDENCE)
    return (
        ops.with_columns(category=pl.coalesce(of_operator, named, pl.lit("other")), category_by=by)
        .select(
            "rank",
            pl.lit(None, pl.Int32).alias("device"),
            pl.col("thread").alias("stream"),
            "start_ns",
            "dur_ns",
            "name",
            pl.lit("op").alias("source"),
            "category",
            "category_by",
            pl.lit(False).alias("replayed"),
            pl.lit(None, pl.Int64).alias("correlation"),
            "op_id",
            launch_start_ns="start_ns",
            launch_end_ns=END,
            launch_thread="thread",
        )
        .sort("rank", "start_ns", maintain_order=True)
    )
