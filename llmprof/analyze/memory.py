"""Device memory over time: its holders, and the operators and steps that allocate and release it.

Sources are events of PyTorch's profiler (``profile_memory=True``), snapshots and memory timelines
of its allocator, memory usage of Nsight Systems, and the memory tables of torch_npu and msprof.
They count differently: PyTorch's profiler counts blocks of its caching allocator, a snapshot the
requested bytes, and Nsight Systems the bytes taken from the driver.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.label.nesting import innermost, lookup_column
from llmprof.label.steps.steps import steps_of
from llmprof.names.matching import first_true
from llmprof.trace import Trace

_PLACE: Final = ["rank", "device", "on_device"]
_COMPONENTS: Final = ("operators", "PTA")
"""Components of an NPU's memory that belong to PyTorch's allocator: events of operators, or else
its samples.
"""

_OF_GRAPH_ENGINE: Final = "cann::"
"""Prefix of operators whose rows count the allocator of CANN's graph engine (GE), and not
PyTorch's.
"""

_LASTING: Final = (
    (
        "KV cache",
        (
            r"(?m)(?:\b_?allocate_kv_cache\w*|: initialize_kv_cache_tensors|:"
            r" _create_buffers)$|/cache_utils\.py\("
        ),
    ),
    ("CUDA graphs", r"(?m): (?:capture_model|_?capture_cudagraphs?|capture_graph)$"),
    (
        "weights",
        r"(?m):"
        r" (?:create_weights|load_weights|process_weights_after_loading|initialize_model|_load_pretrained_model)$"  # noqa: E501
        r"|/torch/nn/modules/\w+\.py\(\d+\): __init__$",
    ),
)
"""Purpose of memory by the functions in the stack of its allocation; the first match counts."""

_FORWARD: Final = (
    r"(?m): (?:forward\w*|execute_model|_call_impl|_dummy_run|sample_tokens|compute_logits)$"
)
"""Functions that allocate activations; memory that they never release is a workspace or a cache,
and stays unknown.
"""

_CATEGORIES: Final = {
    "parameter": "weights",
    "activation": "activations",
    "temporary": "temporary",
    "input": "inputs",
    "gradient": "gradients",
    "optimizer state": "optimizer state",
}
_OWN_FRAMES: Final = (
    r"/torch/(?:nn/modules/module|utils/_device|_ops|_compile|utils/_contextlib|overrides)\.py\("
)
"""Frames of PyTorch that do not show who allocates."""


@Analysis(
    question="How much device memory is held, and by whom?",
    help="peak, fragmentation and allocations of each device",
    view="memory",
    recorded="memory events",
)
def memory(
    trace: Trace,
    *,
    by: Literal["device", "holder", "operator", "step", "time"] = "device",
    at_ns: int | None = None,
) -> pl.DataFrame:
    """Allocated memory, and who holds, allocates and releases it.

    Parameters
    ----------
    trace : Trace
        A trace with memory events.
    by : {"device", "holder", "operator", "step", "time"}
        Kind of row: a device; a holder of memory at the peak, or at ``at_ns``; an operator; a step;
        or a moment of a change.
    at_ns : int, optional
        With ``by="holder"``, the moment instead of the peak of each device (ns from the start of
        the trace).

    Returns
    -------
    polars.DataFrame
        ``rank, device, on_device`` (false: memory of the host; device is then null), and of a

        - device: ``peak_allocated_bytes`` (most that was allocated at a time), ``peak_time_ns, first_bytes``
          (before the first event), ``last_bytes``, ``peak_reserved_bytes`` (most that the allocator
          had taken from the device), ``fragmentation`` (share of the reserved memory that is not
          allocated, at ``peak_time_ns``), ``count`` (allocations)``, allocated_bytes, released_bytes,
          max_bytes`` and ``known_share`` (of the peak, whose holder is known);
        - holder: ``part`` (KV cache, weights, activations, CUDA graphs, inputs …; ``temporary``:
          released within the recording; ``before the recording``; null: not known), ``evidence``
          (stack, category, lifetime), ``holder`` (innermost frame of the program, or operator),
          ``bytes, blocks, share`` (of what is allocated then), ``first_time_ns``;
        - operator: ``operator`` (operator that was running, else the innermost frame),
          ``count`` (allocations)``, allocated_bytes, released_bytes, max_bytes``;
        - step: ``step, phase, peak_allocated_bytes`` and the columns of an operator;
        - time: ``time_ns, allocated_bytes, reserved_bytes`` after each change.

        The largest first; steps in their order.

    Raises
    ------
    NotCapturedError
        The trace holds no memory events, or only samples where events are asked for; or there are
        no steps.
    AnalysisError
        ``at_ns`` is given with another ``by`` than ``holder``.

    Examples
    --------
    >>> import polars as pl
    >>> import llmprof
    >>> rows = {"rank": 0, "device": 0, "time_ns": [1, 2, 3], "bytes": [8, 4, -8], "address": [1, 2, 1]}
    >>> events = pl.DataFrame({**rows, "on_device": True})
    >>> llmprof.analyze.memory(llmprof.Trace({"memory": events}))["peak_allocated_bytes"].to_list()
    [12]
    """  # noqa: E501
    if at_ns is not None and by != "holder":
        raise AnalysisError("at_ns= belongs to by='holder'", expected=f"at_ns=None with by={by!r}")
    rows = _timeline(trace)
    if by == "time":
        return rows.select(*_PLACE, "time_ns", "allocated_bytes", "reserved_bytes")
    if by == "device":
        return _devices(trace, rows)
    if by == "holder":
        return _holders(trace, rows, at_ns)
    events = _events(rows)
    if not events.height and rows.height:
        hint = (
            "record with profile_memory=True, or take a snapshot with"
            " torch.cuda.memory._record_memory_history()"
        )
        raise NotCapturedError(
            "this trace holds samples of the memory, and no allocations", hint=hint, table="memory"
        )
    if by == "operator":
        owned = _with_operator(trace, events)
        return _flows(owned, [*_PLACE, "operator"]).sort(
            "rank",
            "device",
            "allocated_bytes",
            "released_bytes",
            "operator",
            descending=[False, False, True, True, False],
            nulls_last=True,
        )
    return _by_step(trace, events)


def _timeline(trace: Trace) -> pl.DataFrame:
    """Allocated and reserved memory after each event, of PyTorch's allocator or of the driver."""
    rows = trace.memory.with_columns(device=pl.when("on_device").then("device"))
    if "ascend_component" in rows.columns and rows["ascend_component"].count():
        components = rows["ascend_component"].unique().to_list()
        chosen = next((name for name in _COMPONENTS if name in components), None)
        rows = rows.filter(ascend_component=chosen) if chosen is not None else rows
        if "ascend_operator" in rows.columns:
            rows = rows.filter(
                ~pl.col("ascend_operator").str.starts_with(_OF_GRAPH_ENGINE).fill_null(False)
            )
    rows = rows.sort(*_PLACE, "time_ns", nulls_last=True, maintain_order=True)
    summed = pl.col("bytes").fill_null(0).cum_sum().over(_PLACE)
    reported = pl.col("allocated_bytes").count().over(_PLACE) > 0
    return rows.with_columns(
        allocated_bytes=pl.when(reported)
        .then(pl.col("allocated_bytes").forward_fill().over(_PLACE).fill_null(0))
        .otherwise(summed),
        reserved_bytes=pl.col("reserved_bytes").forward_fill().over(_PLACE),
    )


def _events(rows: pl.DataFrame) -> pl.DataFrame:
    """Allocations and releases within the recording."""
    events = rows.filter(pl.col("bytes").is_not_null() & (pl.col("bytes") != 0))
    if "torch_action" in events.columns:
        events = events.filter(
            ~pl.col("torch_action").is_in(["held", "new version"]).fill_null(False)
        )
    return events


def _flows(events: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    size = pl.col("bytes")
    up, down = size.filter(size > 0), size.filter(size < 0)
    return events.group_by(keys).agg(
        count=up.len().cast(pl.Int64),
        allocated_bytes=up.sum(),
        released_bytes=-down.sum(),
        max_bytes=up.max().fill_null(0),
    )


def _devices(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    before = pl.first("allocated_bytes") - pl.first("bytes").fill_null(0)
    if "torch_action" in rows.columns:
        held = pl.col("torch_action").eq_missing("held")
        inside = pl.col("bytes").filter(held).sum()
        before = pl.when(held.any()).then(inside).otherwise(before)
    peaks = rows.group_by(_PLACE).agg(
        peak_allocated_bytes=pl.max("allocated_bytes"),
        peak_time_ns=pl.col("time_ns").get(pl.col("allocated_bytes").arg_max()),
        first_bytes=before,
        last_bytes=pl.last("allocated_bytes"),
        peak_reserved_bytes=pl.max("reserved_bytes"),
        _reserved=pl.col("reserved_bytes").get(pl.col("allocated_bytes").arg_max()),
    )
    unused = (pl.col("_reserved") - pl.col("peak_allocated_bytes")) / pl.col("_reserved")
    peaks = peaks.with_columns(fragmentation=pl.when(pl.col("_reserved") > 0).then(unused)).drop(
        "_reserved"
    )
    out = peaks.join(_flows(_events(rows), _PLACE), on=_PLACE, how="left", nulls_equal=True)
    known = pl.col("part").is_not_null() & (pl.col("part") != "before the recording")
    with_holder = (
        _holders(trace, rows, None).filter(known).group_by(_PLACE).agg(known_share=pl.sum("share"))
    )
    out = out.join(with_holder, on=_PLACE, how="left", nulls_equal=True)
    counts = ("count", "allocated_bytes", "released_bytes", "max_bytes")
    return out.with_columns(pl.col("known_share", *counts).fill_null(0)).sort(
        *_PLACE, nulls_last=True
    )


def _holders(trace: Trace, rows: pl.DataFrame, at_ns: int | None) -> pl.DataFrame:
    """Holders of memory at one moment of each device."""
    schema: dict[str, Any] = {
        **{name: rows.schema[name] for name in _PLACE},
        "part": pl.String,
        "evidence": pl.String,
        "holder": pl.String,
        "bytes": pl.Int64,
        "blocks": pl.Int64,
        "share": pl.Float64,
        "first_time_ns": pl.Int64,
    }
    if not rows.height:
        return pl.DataFrame(schema=schema)
    rows = rows.with_row_index("_row")
    if at_ns is None:
        peak = rows.group_by(_PLACE).agg(
            _at=pl.col("_row").get(pl.col("allocated_bytes").arg_max())
        )
    else:
        early = rows.filter(pl.col("time_ns") <= at_ns)
        peak = early.group_by(_PLACE).agg(_at=pl.max("_row"))
    rows = rows.join(peak, on=_PLACE, how="inner", nulls_equal=True, maintain_order="left")
    whole = rows.filter(pl.col("_row") == pl.col("_at")).select(*_PLACE, _all="allocated_bytes")
    live = _live(rows.filter(pl.col("bytes").is_not_null() & (pl.col("bytes") != 0)))
    named = _named(trace, live)
    totals = named.group_by(*_PLACE, "part", "evidence", "holder").agg(
        pl.sum("bytes"),
        blocks=pl.col("address").count().cast(pl.Int64).replace(0, None),
        first_time_ns=pl.min("time_ns"),
    )
    # memory from before the recording, without known blocks
    sums = totals.group_by(_PLACE).agg(_known=pl.sum("bytes"))
    rest = whole.join(sums, on=_PLACE, how="left", nulls_equal=True).select(
        *_PLACE,
        part=pl.lit("before the recording"),
        evidence=pl.lit(None, pl.String),
        holder=pl.lit(None, pl.String),
        bytes=pl.col("_all") - pl.col("_known").fill_null(0),
        blocks=pl.lit(None, pl.Int64),
        first_time_ns=pl.lit(None, pl.Int64),
    )
    totals = pl.concat([totals.select(rest.columns), rest.filter(pl.col("bytes") > 0)])
    share = pl.when(pl.col("_all") > 0).then(pl.col("bytes") / pl.col("_all"))
    totals = totals.join(whole, on=_PLACE, nulls_equal=True).with_columns(share=share)
    return totals.select(pl.col(name).cast(dtype) for name, dtype in schema.items()).sort(
        *_PLACE, "bytes", "holder", descending=[False, False, False, True, False], nulls_last=True
    )


def _live(events: pl.DataFrame) -> pl.DataFrame:
    """Blocks that are held at the row ``_at`` and released later or never, by address or else in
    sum.
    """
    keys = [*_PLACE, "address"]
    addressed = events.drop_nulls("address")
    ends = addressed.with_columns(
        _until=pl.col("_row").shift(-1).over(keys), _ends_ns=pl.col("time_ns").shift(-1).over(keys)
    )
    held = ends.filter(
        (pl.col("bytes") > 0)
        & (pl.col("_row") <= pl.col("_at"))
        & (pl.col("_until").is_null() | (pl.col("_until") > pl.col("_at")))
    )
    bare = events.filter(pl.col("address").is_null() & (pl.col("_row") <= pl.col("_at")))
    labels = [
        c for c in ("torch_category", "ascend_operator") if c in bare.columns and bare[c].count()
    ]
    if bare.height:
        sums = bare.group_by(*_PLACE, *labels).agg(pl.sum("bytes"), pl.min("time_ns"))
        held = pl.concat([held, sums.filter(pl.col("bytes") > 0)], how="diagonal_relaxed")
    return held


def _named(trace: Trace, live: pl.DataFrame) -> pl.DataFrame:
    """Blocks with ``part``, ``evidence`` and ``holder``."""
    nothing = pl.lit(None, pl.String)

    def there(column: str) -> pl.Expr:
        return pl.col(column) if column in live.columns else nothing

    stack = there("torch_stack")
    held = there("torch_action").eq_missing("held")
    released = (
        pl.col("_ends_ns").is_not_null() if "_ends_ns" in live.columns else pl.lit(False)
    ) & ~held
    of_stack = (
        pl.when(released & stack.str.contains(_FORWARD))
        .then(pl.lit("activations"))
        .otherwise(nothing)
    )
    for part, pattern in reversed(_LASTING):
        of_stack = pl.when(stack.str.contains(pattern)).then(pl.lit(part)).otherwise(of_stack)
    category = there("torch_category").replace_strict(
        _CATEGORIES, default=None, return_dtype=pl.String
    )
    named = live.with_columns(_stack=of_stack, _category=category)
    evidence = {
        "stack": pl.col("_stack").is_not_null(),
        "category": pl.col("_category").is_not_null(),
    }
    named = named.with_columns(
        part=pl.coalesce(
            "_stack",
            "_category",
            pl.when(released & stack.is_null()).then(pl.lit("temporary")),
            pl.when(held & stack.is_null()).then(pl.lit("before the recording")),
        ),
        evidence=first_true({**evidence, "lifetime": released & stack.is_null()}),
    )
    short = _innermost_frame(stack)
    ops = (
        _with_operator(trace, named)["operator"]
        if named.height
        else pl.Series("operator", [], dtype=pl.String)
    )
    return named.with_columns(
        holder=pl.coalesce(short, ops, there("ascend_operator"), there("torch_category"))
    )


def _innermost_frame(stack: pl.Expr) -> pl.Expr:
    """The last frame of a stack that is not one of PyTorch's."""
    frames = stack.str.split("\n").list.eval(
        pl.element().filter(~pl.element().str.contains(_OWN_FRAMES))
    )
    return frames.list.last().str.extract(r"([^/\\]+)$", 1)


def _with_operator(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Events with the operator that was running on their thread, or that the profiler wrote with
    them.
    """
    events = events.with_columns(operator=pl.lit(None, pl.String))
    if trace.has("ops") and events["thread"].count():
        spans = trace.ops.filter(kind="op")
        events = innermost(events, spans, ["rank", "thread"], at="time_ns", name="_span")
        events = events.with_columns(operator=lookup_column(spans, "name", "_span")).drop("_span")
    if "ascend_operator" in events.columns:
        events = events.with_columns(operator=pl.coalesce("operator", "ascend_operator"))
    if "torch_stack" in events.columns:
        events = events.with_columns(
            operator=pl.coalesce("operator", _innermost_frame(pl.col("torch_stack")))
        )
    return events


def _by_step(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Flows of each step; what was allocated before its host label began belongs to the one
    before.
    """
    begin = pl.coalesce("host_start_ns", "start_ns")
    labels = (
        steps_of(trace)
        .select("rank", "step", "phase", time_ns=begin)
        .drop_nulls("time_ns")
        .sort("time_ns")
    )
    if not labels.height:
        hint = "record a run of vLLM, or label the steps with record_function"
        raise NotCapturedError(
            "this trace holds no steps that memory could be counted by", hint=hint, table="markers"
        )
    placed = events.sort("time_ns").join_asof(
        labels, on="time_ns", by="rank", strategy="backward", check_sortedness=False
    )
    keys = [*_PLACE, "step", "phase"]
    flows = _flows(placed, keys)
    peaks = placed.group_by(keys).agg(peak_allocated_bytes=pl.max("allocated_bytes"))
    return peaks.join(flows, on=keys, nulls_equal=True).sort(*_PLACE, "step", nulls_last=True)
