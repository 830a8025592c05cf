"""Captures of CUDA graphs and their replays: operators, shapes and modules for replayed kernels.

A replayed kernel has no separate launch, so its operator is not recorded. vLLM
(``profiler_config.capture_torch_profiler``) and SGLang write a second trace while the graphs are
captured. There each launch has its operator and module, but no kernel runs. The order of the
launches is that of the graph's kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

import polars as pl

from llmprof import names
from llmprof.analyze.inside import texts_inside, with_texts
from llmprof.errors import AnalysisError, TraceWarning
from llmprof.label.activity import (
    CAPTURED,
    CATEGORY,
    EVENT_KEY,
    _operator_categories,
    add_recorded,
    called_operators,
    operator_rows,
)
from llmprof.names.matching import first_true
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

_BEGIN, _END = "(?i)StreamBeginCapture", "(?i)StreamEndCapture"
_LAUNCH: Final = r"(?i)launch(?:cooperative)?kernel|memcpy|memset"
_NO_LAUNCH: Final = r"(?i)graph|attribute|symbol|host"

LEAST_AGREEMENT: Final = 0.9
"""A graph fits a replay if at least this share of its known names are those of the replay, place
by place; or, without names, if this share of its repeated launches (the same operator with the same
shapes, and the same place among its launches) repeat the same kernel.
"""

_NAMED, _ORDERED = 1.0, 0.9
"""Confidence if all kernel names agree, and if only number, order and repetitions do."""
_BESIDE: Final = (
    "fill",
    "copy",
    "quantize",
    "kv_cache_write",
    "moe_routing",
    "collective",
    "norm",
    "rope",
    "other",
)
"""Categories of kernels that an operator of any category may launch beside its main one."""

_OPERATOR: Final = ("op", "shapes", "dtypes", "strides", "inputs", "inside", "call")
CONTENT: Final = (*_OPERATOR, "category", "layer", "stage", "evidence", "grid", "block")
"""Columns that a capture gives for a kernel; ``call`` numbers the operator calls of a graph,
``inside`` has what they call.
"""


def captured(trace: Trace, captures: Trace | Sequence[Trace]) -> pl.DataFrame:
    """Labels of replayed kernels from the captures of their CUDA (HIP) graphs, matched by the
    sequence of kernels.
    """
    # On AMD devices the launches of a capture name their kernels, and nearly all names must agree;
    # those that do not stay unknown. On NVIDIA devices only the kernels of torch.compile are named:
    # then number and order of kernels, copies and fills must be the same, and launches of one
    # operator with the same shapes must have become one kernel. Kernels of several replays that one
    # launch has, or none, are taken apart by the names of captures. If several captures fit (the
    # same graph in every layer, or for several batch sizes), those are taken whose order is that of
    # the step's replays. Labels in which they still differ are unknown.
    several = [captures] if isinstance(captures, Trace) else list(captures)
    if not any(recorded_graphs(capture) for capture in several):
        expected = "calls of cudaStreamBeginCapture (hipStreamBeginCapture) and launches after them"
        hint = "vLLM records captures with profiler_config.capture_torch_profiler"
        raise AnalysisError("no graph was captured in these traces", expected=expected, hint=hint)
    return _matched(_replays(trace), several)


def add_capture_labels(trace: Trace, captures: Trace | Sequence[Trace]) -> Trace:
    """Add the labels from captures to replayed kernels, as :func:`captured` finds them."""
    rows = captured(trace, captures)
    known = rows.drop_nulls("confidence")
    if lost := rows.height - known.height:
        why = rows["reason"].drop_nulls().mode().sort()
        warnings.warn(
            f"{lost:,} of {rows.height:,} replayed kernels get no labels from captures: {why[0]}",
            TraceWarning,
            stacklevel=2,
        )
    rows = known
    key = ["rank", "stream", "start_ns", "name"]
    place = trace.events.filter(source="kernel").select("event", *key)
    of_capture = place.join(rows.drop("rank", "name", "graph", "reason"), on="event").drop("event")
    of_capture = of_capture.unique(key, keep="first").rename(
        {c: CAPTURED + c for c in (*CONTENT, "confidence")}
    )
    kernels = trace.kernels.join(
        of_capture, on=key, how="left", nulls_equal=True, maintain_order="left"
    )
    sizes = {
        side: pl.col(CAPTURED + side).str.extract_all(r"\d+").list for side in ("grid", "block")
    }
    kernels = kernels.with_columns(
        pl.coalesce(
            f"{side}_{axis}", of_side.get(number, null_on_oob=True).cast(pl.Int32, strict=False)
        )
        for side, of_side in sizes.items()
        for number, axis in enumerate("xyz")
    ).drop(CAPTURED + "grid", CAPTURED + "block")
    return Trace({**trace.tables, "kernels": kernels}, trace.meta, trace.coverage)


@per_trace
def _launches(trace: Trace) -> pl.DataFrame:
    """Launches between the begin and the end of a capture, in order, with ``graph`` (its
    number).
    """
    if not trace.has("runtime"):
        return pl.DataFrame()
    calls = trace.runtime.sort("rank", "thread", "start_ns", maintain_order=True).with_columns(
        begins=pl.col("name").str.contains(_BEGIN), ends=pl.col("name").str.contains(_END)
    )
    if not calls["begins"].any():
        return pl.DataFrame()
    thread = ["rank", "thread"]
    calls = calls.with_columns(
        graph=pl.col("begins").cum_sum(),
        open=(pl.col("begins").cum_sum() - pl.col("ends").cum_sum()).over(thread) > 0,
    )
    name = pl.col("name")
    launches = calls.filter(
        pl.col("open") & name.str.contains(_LAUNCH) & ~name.str.contains(_NO_LAUNCH)
    )
    nested = END.cum_max().shift(1).over("graph") >= END  # a driver call inside a runtime call
    columns = {c: pl.lit(None, pl.String) for c in _ROCM if c not in launches.columns}
    return launches.with_columns(**columns).filter(~nested.fill_null(False))


_ROCM: Final = ("rocm_kernel", "rocm_grid", "rocm_block")


@per_trace
def recorded_graphs(trace: Trace) -> list[pl.DataFrame]:
    """Captures of graphs in a trace, each with its launches in order.

    Each launch has ``place, source`` (kernel, copy, fill), ``name`` (of the kernel, or null), ``op,
    shapes, dtypes, category`` (of the operator), ``grid, block``, and for :func:`_as_run`
    ``start_ns, rank, correlation, op_id``.
    """
    launches = _launches(trace)
    if not launches.height:
        return []
    copies = {
        "fill": pl.col("name").str.contains("(?i)memset"),
        "copy": pl.col("name").str.contains("(?i)memcpy"),
    }
    launches = launches.with_columns(
        source=first_true(copies, "kernel"),
        launch_start_ns="start_ns",
        launch_thread="thread",
        replayed=pl.lit(False),
    )
    if trace.has("ops"):
        launches = launches.hstack(_operators(launches, called_operators(trace)))
    absent = [c for c in _OPERATOR if c not in launches.columns]
    launches = launches.with_columns(
        pl.lit(None, pl.UInt32 if c == "call" else pl.String).alias(c) for c in absent
    )
    compiled = pl.when(pl.col("op").str.starts_with("triton_")).then(
        "op"
    )  # torch.compile's kernels name the operator
    name = pl.coalesce("rocm_kernel", compiled).alias("name")
    launches = launches.with_columns(category=_operator_categories(launches, trace).cast(pl.String))
    launches = launches.select(
        "graph",
        "source",
        name,
        *_OPERATOR,
        "category",
        pl.col("rocm_grid").alias("grid"),
        pl.col("rocm_block").alias("block"),
        "start_ns",
        "rank",
        "correlation",
        "op_id",
    )
    launches = launches.with_columns(pl.col("call").rank("dense").over("graph"))
    parts = launches.partition_by("graph", maintain_order=True, include_key=False)
    return [part.with_row_index("place") for part in parts]


def _operators(launches: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Operators of launches with the texts of their arguments, and the row of each as the number
    of its call.
    """
    texts = {
        "shapes": "shapes",
        "dtypes": "dtypes",
        "strides": "torch_strides",
        "inputs": "torch_inputs",
    }
    rows, ops = operator_rows(launches, ops)["row"], with_texts(ops)
    inside = texts_inside(rows, ops)
    return ops.select(op="name", **texts)[rows].with_columns(inside=inside, call=rows)


def _as_run(trace: Trace, graphs: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Captures of one trace with ``layer, stage, evidence``: their launches are analysed as if
    they were kernels.
    """
    launches = pl.concat([graph.with_columns(graph=pl.lit(n)) for n, graph in enumerate(graphs)])
    kernels = launches.select(
        "rank",
        "start_ns",
        "correlation",
        "op_id",
        pl.col("name").fill_null(""),
        dur_ns=pl.lit(1, dtype=pl.Int64),
        device=pl.lit(0, dtype=pl.Int32),
        stream=pl.lit(0, dtype=pl.Int64),
    )
    host = {name: trace.table(name) for name in ("runtime", "ops", "markers") if trace.has(name)}
    attributed = Trace({**host, "kernels": kernels}, trace.meta, trace.coverage).events
    module = pl.col("evidence") == "module"
    operator = pl.col("category_by").is_in(["module", "operator"])
    attributed = attributed.select(
        "rank",
        "start_ns",
        category=pl.when(operator).then("category"),
        layer=pl.when(module).then("layer"),
        stage=pl.when(module).then("stage"),
        evidence=pl.when(module).then(pl.lit("module")).when(operator).then(pl.lit("operator")),
    ).unique(["rank", "start_ns"], keep="first")
    launches = launches.drop("category").join(
        attributed, on=["rank", "start_ns"], how="left", maintain_order="left"
    )
    return launches.select("graph", "place", *CONTENT).partition_by(
        "graph", maintain_order=True, include_key=False
    )


@per_trace
def _replays(trace: Trace) -> pl.DataFrame:
    """Replayed kernels and copies, the number of the replay and their ``place`` in it, by node
    or by start.
    """
    # replays whose launch was not recorded are those of one, until they are taken apart
    events = trace.events
    place = {}
    if trace.has("kernels") and "graph_node" in trace.kernels.columns:
        nodes = [
            trace.table(t).select(*EVENT_KEY, "graph_node")
            for t in ("kernels", "copies")
            if trace.has(t) and "graph_node" in trace.table(t).columns
        ]
        events = add_recorded(events, pl.concat(nodes))
    else:
        place = {"graph_node": pl.lit(None, pl.Int64)}
    events = events.with_columns(**place)
    rows = events.filter(pl.col("replayed") & pl.col("correlation").is_not_null())
    if not rows.height:
        rows = events.filter(pl.col("launch_start_ns").is_null())
        rows = rows.with_columns(correlation=pl.lit(None, rows.schema["correlation"]))
    launch = ["rank", "correlation"]
    ordered = (
        pl.when(pl.col("graph_node").is_not_null().all().over(launch))
        .then("graph_node")
        .otherwise("start_ns")
    )
    filled = (pl.col("source") == "copy") & (pl.col("category") == "fill")
    rows = rows.with_columns(
        ordered=ordered,
        source=pl.when(filled).then(pl.lit("fill")).otherwise("source"),
        replay=pl.struct(pl.min("start_ns").over(launch), *launch).rank("dense") - 1,
    ).sort("replay", "ordered", maintain_order=True)
    return rows.select(
        "event",
        "rank",
        "name",
        "source",
        "step",
        "replay",
        launched=pl.col("correlation").is_not_null(),
        place=pl.int_range(pl.len(), dtype=pl.UInt32).over("replay"),
    )


def _matched(events: pl.DataFrame, captures: list[Trace]) -> pl.DataFrame:
    """The frame of :func:`captured`."""
    of_traces = [recorded_graphs(one) for one in captures]
    graphs = [graph for some in of_traces for graph in some]
    other = {"layer": pl.Int32, "call": pl.UInt32}
    empty = {c: pl.lit(None, other.get(c, pl.String)) for c in CONTENT}
    empty |= {
        "graph": pl.lit(None, pl.Int64),
        "confidence": pl.lit(None, pl.Float64),
    }
    by_replay = {
        int(part["replay"][0]): part for part in events.partition_by("replay", maintain_order=True)
    }
    by_replay = dict(
        enumerate(piece for part in by_replay.values() for piece in _apart(part, graphs))
    )
    events = pl.concat(
        [part.with_columns(replay=pl.lit(n)) for n, part in by_replay.items()] or [events]
    )
    fits: dict[tuple[tuple[str, str], ...], tuple[list[int], float]] = {}
    of_replay: dict[int, tuple[list[int], float]] = {}
    for number, part in by_replay.items():
        sequence = tuple(part[["source", "name"]].iter_rows())
        if sequence not in fits:
            fits[sequence] = _fitting(part, graphs)
        of_replay[number] = fits[sequence]
    chosen = _in_order(events, of_replay)
    for (
        number,
        part,
    ) in by_replay.items():  # kernels without a name in the capture get the name from the replay
        for graph in [chosen[number]] if number in chosen else of_replay[number][0]:
            graphs[graph] = graphs[graph].with_columns(name=pl.coalesce("name", part["name"]))
    content: list[pl.DataFrame] = []
    for trace, some in zip(captures, of_traces, strict=True):
        content += _as_run(trace, graphs[len(content) : len(content) + len(some)]) if some else []
    common: dict[tuple[int, ...], pl.DataFrame] = {}
    rows = []
    for number, part in by_replay.items():
        fitting, confidence = of_replay[number]
        which = (chosen[number],) if number in chosen else tuple(fitting)
        if which and which not in common:
            common[which] = _common([content[graph] for graph in which])
        part = part[["event", "rank", "name", "place"]]
        whole = part.with_columns(
            graph=pl.lit(which[0] if len(which) == 1 else None, dtype=pl.Int64),
            confidence=pl.lit(confidence, dtype=pl.Float64),
            reason=pl.lit(None, pl.String),
        )
        if not which:
            rows.append(part.with_columns(**empty, reason=pl.lit(_NO_SEQUENCE)))
            continue
        same = part["name"].eq_missing(graphs[which[0]]["name"])
        rows.append(whole.filter(same).join(common[which], on="place", how="left"))
        rows.append(part.filter(~same).with_columns(**empty, reason=pl.lit(_OTHER_NAME)))
    columns = ["event", "rank", "name", "graph", *CONTENT, "confidence", "reason"]
    if rows:
        return pl.concat(rows, how="diagonal_relaxed").select(columns).sort("event")
    return events.with_columns(**empty, reason=pl.lit(None, pl.String)).select(columns)


_NO_SEQUENCE: Final = "no capture has this sequence of kernels"
_OTHER_NAME: Final = "the capture has another kernel in this place"


def _apart(replay: pl.DataFrame, graphs: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """A replay, or the replays of named captures that follow each other in it, where they fit."""
    graphs = [graph for graph in graphs if graph.height and _is_named(graph)]
    lengths = sorted({graph.height for graph in graphs})
    if not lengths or replay.height in lengths:
        return [replay]
    firsts = {graph["name"][0] for graph in graphs}
    names_of, at, rest, pieces = replay["name"].to_list(), 0, 0, []
    while at + lengths[0] <= replay.height:
        for length in reversed(lengths if at == rest or names_of[at] in firsts else []):
            piece = replay.slice(at, length)
            if piece.height == length and _fitting(piece, graphs)[0]:
                pieces += [replay.slice(rest, at - rest)] if at > rest else []
                pieces.append(piece)
                at = rest = at + length
                break
        else:
            at += 1
    pieces += [replay.slice(rest)] if rest < replay.height else []
    place = pl.int_range(pl.len(), dtype=pl.UInt32)
    return [piece.with_columns(place=place) for piece in pieces]


def _fitting(replay: pl.DataFrame, graphs: list[pl.DataFrame]) -> tuple[list[int], float]:
    """Numbers of the captures that a replay may belong to, and their confidence."""
    same = [n for n, graph in enumerate(graphs) if graph.height == replay.height]
    same = [n for n in same if graphs[n]["source"].equals(replay["source"])]
    kernels = replay["source"] == "kernel"
    run = replay["name"].filter(kernels)
    named = {n: graphs[n]["name"].filter(kernels) for n in same}
    agreed = {n: (named[n] == run).mean() for n in same}  # of the known ones
    same = [n for n in same if _share(agreed[n]) >= LEAST_AGREEMENT]
    exact = [n for n in same if _is_named(graphs[n])]
    if exact or not replay["launched"][0]:
        best = max((_share(agreed[n]) for n in exact), default=0.0)
        return [n for n in exact if _share(agreed[n]) == best], _NAMED * best
    return [n for n in same if _repeats(graphs[n].filter(kernels), run)], _ORDERED


def _is_named(graph: pl.DataFrame) -> bool:
    """Whether a capture names all of its kernels."""
    return not graph.filter(source="kernel")["name"].null_count()


def _share(mean: object) -> float:
    return mean if isinstance(mean, float) else 1.0


def _repeats(graph: pl.DataFrame, run: pl.Series) -> bool:
    """Whether repeated launches became repeated kernels, and no kernel contradicts its operator."""
    within = pl.int_range(pl.len()).over("op_id")  # an operator may launch several kernels
    group = pl.concat_str("op", "shapes", within.cast(pl.String), separator="|", ignore_nulls=True)
    both = graph.with_columns(run=run, group=pl.when(pl.col("op").is_not_null()).then(group))
    both = both.with_columns(named=names.named_categories(run).cast(CATEGORY))
    usual = (
        both.group_by("group", "run").len().group_by("group").agg(pl.max("len"), n=pl.sum("len"))
    )
    repeated = usual.filter(pl.col("group").is_not_null() & (pl.col("n") > 1))
    rows = both.filter(pl.col("category").is_not_null() & pl.col("named").is_not_null())
    named = pl.col("named").cast(pl.String)
    agrees = rows.filter(
        named.is_in(_BESIDE) | (named == pl.col("category")) | (pl.col("category") == "moe_experts")
    )
    if rows.height and agrees.height < LEAST_AGREEMENT * rows.height:
        return False
    return not repeated.height or int(repeated["len"].sum()) >= LEAST_AGREEMENT * int(
        repeated["n"].sum()
    )


def _in_order(events: pl.DataFrame, fits: dict[int, tuple[list[int], float]]) -> dict[int, int]:
    """Capture of each replay, in steps whose replays fit exactly one sequence of consecutive
    captures.
    """
    chosen: dict[int, int] = {}
    steps = events.drop_nulls("step").group_by("rank", "step").agg(pl.col("replay").unique().sort())
    for replayed in steps["replay"]:
        candidates = [set(fits[int(n)][0]) for n in replayed]
        begins = [
            g
            for g in sorted(candidates[0])
            if all(g + k in some for k, some in enumerate(candidates))
        ]
        if len(begins) == 1:
            chosen.update({int(n): begins[0] + k for k, n in enumerate(replayed)})
    return chosen


def _common(graphs: list[pl.DataFrame]) -> pl.DataFrame:
    """Labels that are equal in several captures, by place."""
    rows = graphs[0].select("place", *CONTENT)
    for other in graphs[1:]:
        rows = rows.with_columns(
            pl.when(pl.col(c).eq_missing(other[c])).then(c).alias(c) for c in CONTENT
        )
    return rows
