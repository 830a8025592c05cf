"""Modules of device events: the module in which each event was launched, and its layer: the best
evidence of a label.

Modules come from markers of the host (:mod:`llmprof.names.modules`). Calls of one thread nest, so
the innermost call around a launch is the event's module, and the calls around it give the layer and
the block. Kernels that a CUDA graph replays have no module, since only the graph as a whole is
launched.
"""

from __future__ import annotations

import polars as pl

from llmprof.label import nesting
from llmprof.label.nesting import innermost, parents
from llmprof.names import modules as purposes
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace

_MIN_LAYERS = 2
"""Least number of layers in a stack; a single block with attention is not a stack."""

_MIN_ALIKE = 3
"""At least this many sibling modules of one class with attention are layers, whatever their
name.
"""


@per_trace
def module_calls(trace: Trace) -> pl.DataFrame:
    """Calls of modules on the host, with the layer of each."""
    calls = _module_names(trace)
    if not calls.height:
        return calls
    calls = calls.with_columns(parents(calls, ["rank", "thread"]))
    depth = _depths(calls["parent"])
    calls = _layers(calls.with_columns(depth=depth))
    return _inherit_layers(calls).drop("depth")


def _module_names(trace: Trace) -> pl.DataFrame:
    """Markers that name modules, by their start, each with its own name, path, number and work."""
    empty = pl.DataFrame(
        schema={"rank": pl.Int32, "thread": pl.Int64, "start_ns": pl.Int64, "dur_ns": pl.Int64}
    )
    if not trace.has("markers"):
        return empty
    marks = trace.markers.filter(~pl.col("on_device") & (pl.col("dur_ns") > 0))
    distinct = marks[["name", "domain"]].unique()
    name = pl.col("name")
    path = pl.coalesce(name.str.extract(pattern, 1) for pattern in purposes.PATHS)
    of_class = pl.when(pl.col("domain") == purposes.DOMAIN).then(name.str.extract(purposes.CALL, 1))
    distinct = distinct.with_columns(path=path, module=pl.coalesce(of_class, path)).filter(
        pl.col("module").is_not_null()
    )
    if not distinct.height:
        return empty
    shared = pl.col("path").str.contains(f"(?i){purposes.SHARED}").fill_null(False)
    number = pl.col("path").str.extract(purposes.LAYER, 1).cast(pl.Int32, strict=False)
    distinct = distinct.with_columns(own_layer=pl.when(~shared).then(number))
    parts = [
        str(module).split(".") if path else [module]
        for module, path in distinct["module", "path"].iter_rows()
    ]
    works = [purposes.module_purpose(part[-1]) for part in parts]
    around = [
        next(
            (w.block for p in reversed(part[:-1]) if (w := purposes.module_purpose(p)).block), None
        )
        for part in parts
    ]
    distinct = distinct.with_columns(
        own_role=pl.Series([w.role for w in works], dtype=pl.String),
        own_block=pl.Series(
            [w.block or a for w, a in zip(works, around, strict=True)], dtype=pl.String
        ),
        encodes=pl.col("module").str.contains(purposes.ENCODER),
        is_block=pl.Series([w.block is not None for w in works], dtype=pl.Boolean),
        generic=pl.Series([w.generic for w in works], dtype=pl.Boolean),
        looks_like_layer=pl.col("module").str.contains(purposes.LAYER_CLASS)
        & pl.Series([w.block is None and w.role is None for w in works], dtype=pl.Boolean),
    )
    rows = marks.join(distinct, on=["name", "domain"], how="inner", maintain_order="left")
    return rows.select(
        "rank",
        pl.col("thread").fill_null(-1),
        "start_ns",
        "dur_ns",
        pl.col("module").alias("name"),
        *distinct.columns[2:3],
        *distinct.columns[4:],
    ).sort("rank", "thread", "start_ns", pl.col("dur_ns").neg(), maintain_order=True)


def _depths(parent: pl.Series) -> pl.Series:
    """Number of calls around each call; parents come before their children."""
    depth = pl.select(pl.when(parent.is_null()).then(0)).to_series()
    level = 0
    while depth.null_count():
        level += 1
        above = depth.gather(parent)
        reached = pl.select(
            pl.when(depth.is_null() & (above == level - 1)).then(level).otherwise(depth)
        ).to_series()
        if reached.null_count() == depth.null_count():
            return reached.fill_null(level)
        depth = reached
    return depth


def _layers(calls: pl.DataFrame) -> pl.DataFrame:
    """Add the layer of calls that are a layer by their class: siblings with attention, in their
    order.
    """
    attends = (pl.col("own_block") == "attention").fill_null(False)
    frame = calls.with_row_index("row").with_columns(attends=attends)
    holds = frame["attends"]
    parent = frame["parent"]
    for level in range(int(frame["depth"].max() or 0), 0, -1):  # type: ignore[arg-type]
        in_parent = (frame["depth"] == level) & holds & parent.is_not_null()
        if in_parent.any():
            rows = parent.filter(in_parent).unique()
            holds = holds.scatter(rows.cast(pl.Int64).to_list(), True)
    has_children = pl.Series(range(frame.height), dtype=pl.UInt32).is_in(
        parent.drop_nulls().unique().implode()
    )
    single = (
        pl.col("own_role").is_null() & pl.col("path").is_null() & has_children & ~pl.col("is_block")
    )
    # an encoder beside a decoder holds attention too, but is called neither layer nor block
    alike = pl.len().over("parent", "name") >= _MIN_ALIKE
    frame = frame.with_columns(holds=holds).with_columns(
        candidate=single & pl.col("holds") & (pl.col("looks_like_layer") | alike)
    )
    stacks = (
        frame.filter(pl.col("candidate") & pl.col("parent").is_not_null())
        .group_by("parent")
        .agg(n=pl.len())
        .filter(pl.col("n") >= _MIN_LAYERS)
    )
    is_layer = pl.col("candidate") & pl.col("parent").is_in(stacks["parent"].implode())
    frame = frame.with_columns(is_layer=is_layer.fill_null(False))
    numbered = frame.filter("is_layer").select(
        "row", number=pl.int_range(pl.len(), dtype=pl.Int32).over("parent")
    )
    frame = frame.join(numbered, on="row", how="left", maintain_order="left")
    return frame.with_columns(own_layer=pl.coalesce("own_layer", "number")).drop(
        "number", "attends", "holds", "candidate"
    )


def _inherit_layers(calls: pl.DataFrame) -> pl.DataFrame:
    """Pass layer, stack, role and block from each call to the calls inside it, one depth after
    the other.
    """
    parent, levels = calls["parent"], int(calls["depth"].max() or 0)  # type: ignore[arg-type]
    row = pl.Series(range(calls.height), dtype=pl.UInt32)
    layered = calls["own_layer"].is_not_null()
    layer, role, block = calls["own_layer"], calls["own_role"], calls["own_block"]
    encodes = calls["encodes"]
    root = pl.select(pl.when(parent.is_null()).then(row).forward_fill()).to_series()
    stack = pl.select(
        pl.when(layered).then(pl.when(calls["is_layer"]).then(parent).otherwise(root))
    ).to_series()
    block_call = pl.select(pl.when(calls["is_block"]).then(row)).to_series()
    for level in range(1, levels + 1):
        here = calls["depth"] == level
        starts = calls["is_layer"] & layer.gather(parent).is_null()
        down = here & ~starts
        # an outer layer counts, even if there is another stack inside it
        above = layer.gather(parent)
        layer = pl.select(
            pl.when(down & above.is_not_null()).then(above).otherwise(layer)
        ).to_series()
        stack = pl.select(
            pl.when(down & above.is_not_null()).then(stack.gather(parent)).otherwise(stack)
        ).to_series()
        block_call = pl.select(
            pl.when(down & block_call.is_null())
            .then(block_call.gather(parent))
            .otherwise(block_call)
        ).to_series()
        block = pl.select(
            pl.when(down & block.is_null()).then(block.gather(parent)).otherwise(block)
        ).to_series()
        encodes |= (here & encodes.gather(parent)).fill_null(False)
        inherits = down & role.is_null() & ~calls["is_block"] & ~calls["generic"]
        role = pl.select(pl.when(inherits).then(role.gather(parent)).otherwise(role)).to_series()
    frame = calls.with_columns(
        layer=layer,
        role=role,
        block=block,
        stack=stack,
        encodes=encodes,
        block_call=block_call,
        generic=pl.col("generic") & role.is_null(),
    )
    linear = pl.col("generic") | pl.col("own_role").is_in(
        ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
    )
    last = pl.col("start_ns").filter(linear).max().over("block_call")
    frame = frame.with_columns(last_linear=(linear & (pl.col("start_ns") == last)).fill_null(False))
    mixture = (pl.col("role") == "experts").any().over("block_call") & pl.col(
        "block_call"
    ).is_not_null()
    of_mixture = pl.col("block_call").is_in(frame.filter(role="experts")["parent"].implode())
    routes = pl.col("generic") & (mixture | of_mixture) & (pl.col("block") != "attention")
    frame = frame.with_columns(role=pl.when(routes).then(pl.lit("router")).otherwise("role"))
    of_root = (pl.col("parent").is_null().cum_sum() - 1).alias("root")
    first = (
        pl.col("start_ns").filter(pl.col("layer").is_not_null()).min()
    )  # when the first layer of the call begins
    return frame.with_columns(of_root).with_columns(first_layer_ns=first.over("root"))[
        [
            "rank",
            "thread",
            "start_ns",
            "dur_ns",
            "name",
            "parent",
            "layer",
            "stack",
            "role",
            "block",
            "block_call",
            "generic",
            "last_linear",
            "root",
            "first_layer_ns",
            "encodes",
            "depth",
        ]
    ]


def modules_of(events: pl.DataFrame, trace: Trace) -> pl.DataFrame | None:
    """Device events with the module that they were launched in."""
    calls = module_calls(trace)
    noted = _annotate_ranges(events, trace)
    if not calls.height:
        return noted
    launched = events.filter(pl.col("launch_start_ns").is_not_null() & ~pl.col("replayed")).select(
        "event", "rank", "launch_start_ns", thread=pl.col("launch_thread").fill_null(-1)
    )
    placed = innermost(launched, calls, ["rank", "thread"], at="launch_start_ns", name="_call")
    placed = placed.drop_nulls("_call")
    kept = calls.drop("rank", "thread", "start_ns", "dur_ns", "name", "parent").columns
    placed = placed.select(
        "event",
        "launch_start_ns",
        nesting.lookup_column(calls, "name", "_call").alias("module"),
        *(nesting.lookup_column(calls, c, "_call").alias(c) for c in kept),
    ).with_columns(before_layers=pl.col("launch_start_ns") < pl.col("first_layer_ns"))
    return (
        placed
        if noted is None
        else pl.concat([placed, noted.select(placed.columns).cast(placed.schema)])
    )


def _annotate_ranges(events: pl.DataFrame, trace: Trace) -> pl.DataFrame | None:
    """As :func:`modules_of`, for kernels of graphs whose module the program noted at the capture
    (PyTorch 2.12 on).
    """
    if not trace.has("kernels") or "torch_annotation" not in trace.kernels.columns:
        return None
    key = ["rank", "stream", "start_ns", "name"]
    # an annotation that is the path of a module or a layer; others say nothing of these
    path = pl.col("torch_annotation").str.extract(r"^(?:\{'Module': ')?((?:\w+\.)*\w+)", 1)
    path = pl.when(path.str.contains(purposes.LAYER) | path.str.contains(r"\.")).then(path)
    noted = trace.kernels.select(*key, path=path).drop_nulls("path")
    if not noted.height:
        return None
    distinct = noted[["path"]].unique()
    works = [
        [purposes.module_purpose(part) for part in str(path).split(".")]
        for path in distinct["path"]
    ]
    block = [next((w.block for w in reversed(work) if w.block), None) for work in works]
    distinct = distinct.with_columns(
        module="path",
        layer=pl.col("path").str.extract(purposes.LAYER, 1).cast(pl.Int32, strict=False),
        role=pl.Series([w[-1].role for w in works], dtype=pl.String),
        block=pl.Series(block, dtype=pl.String),
        generic=pl.Series([w[-1].generic and w[-1].role is None for w in works], dtype=pl.Boolean),
    )
    columns = [c for c in (*key, "event", "launch_start_ns") if c in events.columns]
    rows = events.select(columns).join(
        noted.unique(key, keep="first"), on=key, how="inner", nulls_equal=True
    )
    return rows.join(distinct, on="path", how="left").select(
        "event",
        "launch_start_ns",
        "module",
        "layer",
        stack=pl.lit(0, dtype=pl.UInt32),
        root=pl.lit(-1, dtype=pl.Int64),
        role="role",
        block="block",
        block_call=pl.lit(None, pl.UInt32),
        generic="generic",
        last_linear=pl.lit(False),
        first_layer_ns=pl.lit(0, dtype=pl.Int64),
        encodes=pl.col("path").str.contains(purposes.ENCODER),
        before_layers=pl.lit(False),
    )
