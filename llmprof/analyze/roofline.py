"""Join of theory and trace: least possible and measured time of every stage of every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
from msgspec.structs import replace

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.passes import passes, with_passes
from llmprof.errors import AnalysisError, LlmprofError, listed
from llmprof.label.groups import last_before
from llmprof.label.intervals import union_length
from llmprof.label.steps.labels import CONTEXT_WORDS, batches
from llmprof.label.steps.steps import steps_of
from llmprof.names.matching import first_true
from llmprof.theory.bound import Machine, find_device
from llmprof.theory.catalog import catalogue_name, read_config
from llmprof.theory.hardware import Device
from llmprof.theory.plan import Batch, Plan, Requests, number_format
from llmprof.theory.profiler import machine_for
from llmprof.theory.shapes import Shape, shape
from llmprof.theory.work import OperatorWork, placed_operators
from llmprof.trace import Trace
from llmprof.trace.schema import END

COLUMNS: Final = {
    "rank": pl.Int32,
    "step": pl.Int32,
    "phase": pl.String,
    "layer": pl.Int32,
    "stage": pl.String,
    "tokens": pl.Float64,
    "requests": pl.Float64,
    "source": pl.String,
    "flops": pl.Float64,
    "memory_bytes": pl.Float64,
    "message_bytes": pl.Float64,
    "bound_ns": pl.Float64,
    "bound_by": pl.String,
    "total_ns": pl.Int64,
    "kernels": pl.Int64,
    "bound_share": pl.Float64,
    "mfu": pl.Float64,
    "mbu": pl.Float64,
    "gap_ns": pl.Float64,
    "reason": pl.String,
    "explained": pl.Boolean,
}
"""Columns of :func:`roofline`."""

IDLE: Final = "idle"
"""Stage of the rows with a step's time without any kernel or copy."""

AT_ROOF: Final = 0.8
"""A stage that reaches at least this share of its bound counts as at the roof."""

FIXED_NS: Final = 10_000
"""If the mean time of a kernel is below this, the fixed cost of kernels explains a stage far
from its bound.
"""

_COLLECTIVES: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",
    "reduce",
)
Per = Literal["stage", "layer", "step"]


@Analysis(
    question="How near does it come to the bound?",
    help="least possible and measured time of each stage of each step",
    view="bound",
    recorded="device activity or operators",
    cached=False,
)
def roofline(
    trace: Trace,
    model: str | Path | Mapping[str, Any] | Shape,
    device: str | Path | Device | None = None,
    *,
    tp_size: int | None = None,
    pp_size: int | None = None,
    dtype: str | None = None,
    kv_cache_dtype: str | None = None,
    expert_parallel: bool = False,
    context: float | None = None,
    by: Per = "stage",
) -> pl.DataFrame:
    """Least possible and measured time of each stage of each step.

    Work follows from the step's label and the model's shape (:mod:`llmprof.theory.work`), its least
    time from the device's stated peaks, the measured time from :attr:`llmprof.Trace.events`.
    Time without any kernel is in rows of the stage ``idle``, from a step's first event to the next
    step's first one (or its own last one).

    Parameters
    ----------
    trace : Trace
        Any trace whose steps say their tokens.
    model : str, path, mapping or Shape
        What ran: a name of the catalogue, a ``config.json``, its folder or its content.
    device : str, path or Device, optional
        What it ran on; the device that the trace names if not given.
    tp_size, pp_size : int, optional
        Parallel sizes; if not given, pp is the model's layers over those of a rank, and tp the
        ranks over pp.
    dtype, kv_cache_dtype : str, optional
        Number formats of the weights and of the cache; 16 bits, or what the config says, if not
        given.
    expert_parallel : bool
        Whether whole experts are spread over the ranks.
    context : float, optional
        Tokens of the context of requests whose prompts came before the trace; taken as none if not
        given.
    by : {"stage", "layer", "step"}
        A row for each stage of a step over all its layers; for each stage of each layer; or for
        each step.

    Returns
    -------
    polars.DataFrame
        ``rank, step, phase, layer`` (null but with ``by="layer"``)``, stage`` (null with
        ``by="step"``)``, tokens, requests, source``
        (:data:`llmprof.label.steps.labels.CONTEXT_WORDS`)``, flops, memory_bytes, message_bytes,
        bound_ns, bound_by`` (compute, memory, communication, none)``, total_ns, kernels,
        bound_share`` (bound over total)``, mfu, mbu`` (of the peaks)``, gap_ns`` (total minus
        bound)``, reason`` and ``explained`` (whether theory knows what the stage does). ``reason``
        is: at the roof; kernel below the roof; fixed cost of kernels; wait for others (a collective
        beyond its fastest rank); idle; no bound. Experts are counted as an even
        routing would touch them on average; see :func:`llmprof.theory.work.distinct_experts`.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.
    AnalysisError
        No step says its tokens; the trace names no device; or the layers of a rank are not those of
        the model.
    LlmprofError
        The model or device is unknown, or the sizes do not fit it.

    Examples
    --------
    >>> import llmprof
    >>> found = roofline(llmprof.sample("torch_tp1_cudagraph"), "Qwen2.5-1.5B")
    >>> bool((found.filter(found["bound_share"].is_not_null())["bound_share"] <= 1).all())
    True
    """
    read = shape(model)
    events = trace.events.drop_nulls("step")
    formats = (dtype, kv_cache_dtype)
    machine = _machine(
        trace, read, device, (tp_size, pp_size), formats, expert_parallel=expert_parallel
    )
    batch_of = batches(steps_of(trace), context=context)
    if not batch_of:
        found = "no step of the trace says how many tokens it computed"
        raise AnalysisError(
            found,
            hint="vLLM writes them into its step labels; other engines' steps cannot be joined",
        )
    measured = _measured(events)
    expected = _expected(read, machine, batch_of, events)
    joined = measured.join(
        expected, on=["rank", "step", "layer", "stage"], how="left", nulls_equal=True
    )
    if trace.meta.get("format") != "ops":  # samples of steps do not say what lies between them
        joined = pl.concat([joined, _idle(events)], how="diagonal_relaxed")
    labels = pl.DataFrame(
        [
            (r, s, sum(p.tokens for p in b), sum(p.count for p in b), how)
            for (r, s), (b, how) in batch_of.items()
        ],
        schema={c: COLUMNS[c] for c in ("rank", "step", "tokens", "requests", "source")},
        orient="row",
    )
    joined = joined.join(labels, on=["rank", "step"], how="inner")
    return (
        _rates(_rolled(joined, by), machine, by)
        .select(list(COLUMNS))
        .sort("rank", "step", "layer", "stage")
    )


def coverage_of(joined: pl.DataFrame) -> dict[str, float]:
    """Share of the device time that a join explains."""
    work = joined.filter(pl.col("stage") != IDLE)
    device = int(work["total_ns"].sum())
    explained = int(work.filter("explained")["total_ns"].sum())
    context_known = work.group_by("rank", "step").agg(pl.first("source") != "unknown")["source"]
    faster = (work["bound_ns"] - work["total_ns"] > 2000).sum()
    return {
        "device_ns": device,
        "explained_ns": explained,
        "explained_share": explained / device if device else 0.0,
        "idle_ns": int(joined.filter(stage=IDLE)["total_ns"].sum()),
        "contexts_known_share": float(context_known.mean() or 0.0) if context_known.len() else 0.0,  # type: ignore[arg-type]
        "below_bound": int(faster),
    }


def _machine(
    trace: Trace,
    read: Shape,
    device: str | Path | Device | None,
    sizes: tuple[int | None, int | None],
    formats: tuple[str | None, str | None],
    *,
    expert_parallel: bool,
    dp_size: int = 1,
) -> Machine:
    """The machine of a trace: its device, and a layout that fits the layers of its ranks."""
    (tp_size, pp_size), (dtype, kv_cache_dtype) = sizes, formats
    device_name = device if device is not None else trace.meta.get("device")
    if not device_name:
        raise AnalysisError(
            "the trace names no device", hint="give it: roofline(trace, model, 'H200')"
        )
    layers, total = list(_layers_of_ranks(trace.events).values()), len(read.layers)
    most = max(layers, default=0)
    if pp_size is None:
        pp_size = max(1, round(total / most)) if most else 1
        pp_size = min(pp_size, int(trace.meta.get("world_size") or pp_size))
    fits = most * pp_size >= total > most * (pp_size - 1) if pp_size > 1 else most == total
    if layers and not fits:
        found = (
            f"the ranks of the trace have {listed(sorted(set(layers)))} layers in a step,"
            f" {read.name} has {total}"
        )
        raise AnalysisError(
            found, expected="a model of as many layers", hint="pass the model that ran"
        )
    ranks = int(trace.meta.get("world_size") or len(trace.ranks) or 1)
    tp = tp_size or max(1, ranks // (pp_size * dp_size))
    weights = number_format(dtype) if dtype else read.weight_format
    plan = Plan(
        tp=tp,
        pp=pp_size,
        expert_parallel=expert_parallel,
        weights="bf16" if weights == "fp16" and dtype is None else weights,
        kv_cache=number_format(kv_cache_dtype) if kv_cache_dtype else "bf16",
        weight_bytes=None if dtype else read.weight_bytes,
    )
    plan.check(read)
    machine = find_device(device_name)
    if not machine.flop_per_s.get("bf16"):
        plan = replace(
            plan, weights="fp16" if plan.weights == "bf16" else plan.weights, activations="fp16"
        )
    return machine_for(read, machine, plan)


def _layers_of_ranks(events: pl.DataFrame) -> dict[int, int]:
    inside = events.filter(pl.col("layer").is_not_null() & pl.col("step").is_not_null())
    rows = inside.group_by("rank").agg(pl.max("layer") + 1).sort("rank")
    return {int(rank): int(count) for rank, count in rows.iter_rows()}


def _measured(events: pl.DataFrame) -> pl.DataFrame:
    """Device time of each stage of each layer, and of each stage outside."""
    frame = events.group_by("rank", "step", "phase", "layer", "stage").agg(
        total_ns=pl.sum("dur_ns"), kernels=pl.len().cast(pl.Int64)
    )
    fastest = (
        frame.filter(pl.col("stage").is_in(_COLLECTIVES))
        .group_by("step", "layer", "stage")
        .agg(fastest_ns=pl.min("total_ns"), ranks=pl.len())
        .with_columns(fastest_ns=pl.when(pl.col("ranks") > 1).then("fastest_ns"))
        .drop("ranks")
    )
    return frame.join(fastest, on=["step", "layer", "stage"], how="left", nulls_equal=True)


def noted_work(trace: Trace, device: str | Path | Device | None = None) -> pl.DataFrame | None:
    """:func:`stage_work` of the model that the notes of a run name; None where none is named, or
    it does not fit.
    """
    noted = trace.meta.get("model")
    if not isinstance(noted, dict):
        return None
    try:
        name, config = str(noted["name"]), noted["config"]
        read = shape(
            config if isinstance(config, Mapping) else catalogue_name(str(config)), name=name
        )
        found = stage_work(
            trace,
            read,
            device,
            kv_cache_dtype=noted.get("kv_cache_dtype"),
            expert_parallel=bool(noted.get("expert_parallel")),
        )
    except (KeyError, LlmprofError):
        return None
    said = f"{noted['by']}: " if noted.get("by") else ""
    return found.with_columns(assumed=pl.lit(said) + pl.col("assumed"))


def named(trace: Trace, model: str | Path | Mapping[str, Any] | Shape) -> Trace:
    """The trace with a model for whatever its shapes leave open, as the notes of a run name one."""
    if isinstance(model, Shape):
        return trace
    config = dict(model) if isinstance(model, Mapping) else str(model)
    if isinstance(config, str) and (Path(config).expanduser().exists() or config.endswith(".json")):
        config = read_config(config)
    noted = {"name": shape(model).name, "config": config}
    return Trace(
        trace.capture.recorded,
        trace.meta | {"model": noted},
        trace.coverage,
        database=trace._database,
    )


def stage_work(
    trace: Trace,
    model: str | Path | Mapping[str, Any] | Shape,
    device: str | Path | Device | None = None,
    *,
    kv_cache_dtype: str | None = None,
    expert_parallel: bool = False,
) -> pl.DataFrame:
    """``rank, step, layer, stage, flops, read_bytes, written_bytes, matrix, assumed`` of a model's
    stages.

    Passes outside of steps are those of :func:`llmprof.analyze.passes.passes`.
    """
    read = shape(model)
    events = with_passes(trace).drop_nulls("step")
    rows, batch_of = steps_of(trace), batches(steps_of(trace))
    if not batch_of:
        hint = (
            "where its operators were recorded in another run, take them from there: --eager,"
            " analyze.add_operators"
        )
        raise AnalysisError("no step of the trace says how many tokens it computed", hint=hint)
    own: dict[int, set[Batch]] = {}
    for (_, step), (batch, _) in batch_of.items():
        own.setdefault(step, set()).add(batch)
    replicas = max(map(len, own.values()))  # ranks with batches of their own are data parallel
    outside = passes(trace)
    for rank, step, tokens in outside[["rank", "step", "tokens"]].iter_rows():
        batch_of[rank, step] = ((Requests(tokens, 1, 1),), "padding")
    formats = (None, kv_cache_dtype)
    machine = _machine(
        trace,
        read,
        device,
        (None, None),
        formats,
        expert_parallel=expert_parallel and replicas == 1,
        dp_size=replicas,
    )
    found = _expected(read, machine, batch_of, events, _moved)
    plan = machine.plan
    words = f"{read.name}, tensor parallel {plan.tp}, weights of {plan.weights}"
    said = {source: f"{words}; {more}" if more else words for source, more in CONTEXT_WORDS.items()}
    sources = pl.DataFrame(
        [(rank, step, said[source]) for (rank, step), (_, source) in batch_of.items()],
        schema={"rank": pl.Int32, "step": pl.Int32, "assumed": pl.String},
        orient="row",
    )
    found = found.join(sources, on=["rank", "step"])
    found = found.filter((pl.col("step") >= 0) | ~pl.col("stage").is_in(_OF_REQUESTS))
    if replicas == 1:
        return found
    place, of_experts = ["rank", "step", "layer"], pl.col("stage").is_in(_OF_EXPERTS)
    mixtures = found.filter(stage="experts").select(place)
    rest = pl.concat(
        [found.filter(~of_experts), found.filter(of_experts).join(mixtures, on=place, how="anti")]
    )
    ranks = len(trace.ranks)
    exchanged = events.filter(of_experts & (pl.col("category") == "collective"))
    if (
        not mixtures.height
        or not exchanged.height
        or ranks != int(trace.meta.get("world_size") or ranks)
    ):
        return rest
    plan = replace(plan, tp=ranks // plan.pp, expert_parallel=True)
    spread = machine_for(
        read, find_device(device if device is not None else trace.meta["device"]), plan
    )
    at = ["rank", "step", "start_ns", "dur_ns"]
    rows = pl.concat([rows.select(at), outside.select(at)], how="vertical_relaxed")
    gathered = _expected(read, spread, _gathered(rows, batch_of), events, _moved)
    more = pl.lit("; experts: even routing of the tokens of all ranks whose steps run at the time")
    gathered = gathered.filter(of_experts).join(mixtures, on=place, how="semi", nulls_equal=True)
    gathered = gathered.join(sources, on=["rank", "step"]).with_columns(pl.col("assumed") + more)
    return pl.concat([rest, gathered.select(rest.columns)])


_OF_REQUESTS: Final = ("attention", "kv_cache_write")
"""Stages that a pass of padding has nothing to do in: it runs for no request."""

_OF_EXPERTS: Final = ("experts", "expert_dispatch", "activation", "combine")


def _gathered(
    rows: pl.DataFrame, batch_of: dict[tuple[int, int], tuple[Batch, str]]
) -> dict[tuple[int, int], tuple[Batch, str]]:
    """Batches of each step with those of the steps of other ranks that run in its middle."""
    rows = rows.drop_nulls("start_ns").sort("rank", "start_ns")
    middle = (pl.col("start_ns") + pl.col("dur_ns") // 2).alias("at")
    own = rows.select("rank", "step", middle)
    others = rows.select(other="rank", other_step="step", at="start_ns", until=END)
    ranks = others[["other"]].unique(maintain_order=True)
    points = own.join(ranks, how="cross").filter(pl.col("rank") != pl.col("other"))
    last = last_before(points, others, ["other"], at="at")
    beside = points.hstack(others[["other_step", "until"]][last]).filter(
        pl.col("at") < pl.col("until")
    )
    found = dict(batch_of)
    for rank, step, other, other_step in beside[
        ["rank", "step", "other", "other_step"]
    ].iter_rows():
        if (rank, step) in found and (more := batch_of.get((other, other_step))):
            batch, source = found[rank, step]
            found[rank, step] = (batch + more[0], source)
    return found


def _moved(machine: Machine, work: list[OperatorWork]) -> pl.DataFrame:
    """FLOPs and bytes of each stage: every byte of weights, cache and activations, in a cache of
    the device or not.
    """
    rows = [
        (each.stage, each.flops, each.bytes_read, each.bytes_written, each.math) for each in work
    ]
    names = {
        "stage": pl.String(),
        "flops": pl.Float64(),
        "read_bytes": pl.Float64(),
        "written_bytes": pl.Float64(),
    }
    frame = pl.DataFrame(rows, schema={**names, "matrix": pl.String()}, orient="row")
    matrix = pl.col("matrix").sort_by("flops", descending=True).first()
    return frame.group_by("stage", maintain_order=True).agg(
        pl.sum("flops", "read_bytes", "written_bytes"),
        matrix=pl.when(pl.sum("flops") > 0).then(matrix),
    )


def _expected(
    read: Shape,
    machine: Machine,
    batch_of: dict[tuple[int, int], tuple[Batch, str]],
    events: pl.DataFrame,
    summed: Callable[[Machine, list[OperatorWork]], pl.DataFrame] | None = None,
) -> pl.DataFrame:
    """Work and least time of each stage of each layer of each step; equal batches are computed
    once.
    """
    ranks = _layers_of_ranks(events)
    firsts = _first_layers(ranks, len(read.layers), machine.plan)
    stages_of: dict[Batch, pl.DataFrame] = {}
    for batch, _ in batch_of.values():
        if batch not in stages_of:
            stages_of[batch] = _stages(read, machine, batch, summed or _summed)
    numbers = {batch: n for n, batch in enumerate(stages_of)}
    table = pl.concat(
        [frame.with_columns(batch=pl.lit(numbers[b])) for b, frame in stages_of.items()]
    )
    which = pl.DataFrame(
        [
            (rank, step, firsts.get(rank, 0), ranks.get(rank, len(read.layers)), numbers[batch])
            for (rank, step), (batch, _) in batch_of.items()
        ],
        schema={
            "rank": pl.Int32,
            "step": pl.Int32,
            "first": pl.Int32,
            "count": pl.Int32,
            "batch": pl.Int32,
        },
        orient="row",
    )
    layer = pl.col("layer") - pl.col("first")
    inside = pl.col("layer").is_null() | layer.is_between(0, pl.col("count") - 1)
    return (
        which.join(table, on="batch")
        .filter(inside)
        .with_columns(layer=layer.cast(pl.Int32))
        .drop("batch", "first", "count")
    )


def _first_layers(ranks: dict[int, int], total: int, plan: Plan) -> dict[int, int]:
    """First layer of the model on each rank, with pipeline stages in the order of ranks."""
    if plan.pp == 1:
        return dict.fromkeys(ranks, 0)
    first = 0
    stage_of: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        stage_of.setdefault(rank // plan.tp, []).append(rank)
    starts: dict[int, int] = {}
    for stage in sorted(stage_of):
        for rank in stage_of[stage]:
            starts[rank] = min(first, max(0, total - ranks[rank]))
        first += ranks[stage_of[stage][0]]
    return starts


def _stages(
    read: Shape,
    machine: Machine,
    batch: Batch,
    summed: Callable[[Machine, list[OperatorWork]], pl.DataFrame],
) -> pl.DataFrame:
    """Stages of a step: one row per layer and stage, and one per stage outside the layers."""
    before, inside, after = placed_operators(read, batch, machine.plan)
    of_kind = {layer: summed(machine, work) for layer, work in inside.items()}
    frames = [
        of_kind[layer].with_columns(layer=pl.lit(n, dtype=pl.Int32))
        for n, layer in enumerate(read.layers)
    ]
    return pl.concat(
        [
            *frames,
            summed(machine, [*before, *after]).with_columns(layer=pl.lit(None, pl.Int32)),
        ]
    )


def _summed(machine: Machine, work: list[OperatorWork]) -> pl.DataFrame:
    """Work and least time of each stage of some operators."""
    rows = []
    for operator in work:
        time = machine.time(operator)
        sizes = (operator.flops, time.memory_bytes, operator.message_bytes)
        rows.append((operator.stage, *sizes, time.latency_s * 1e9, time.bound))
    names = ("stage", "flops", "memory_bytes", "message_bytes", "bound_ns", "bound_by")
    frame = pl.DataFrame(rows, schema={name: COLUMNS[name] for name in names}, orient="row")
    return (
        frame.sort("bound_ns", descending=True, maintain_order=True)
        .group_by("stage", maintain_order=True)
        .agg(
            pl.sum("flops", "memory_bytes", "message_bytes", "bound_ns"),
            pl.first("bound_by"),
        )
    )


def _idle(events: pl.DataFrame) -> pl.DataFrame:
    """Time of each step without any kernel or copy, up to the next step's first one."""
    spans = (
        events.group_by("rank", "step", "phase")
        .agg(first=pl.min("start_ns"), last=END.max())
        .sort("rank", "first")
        .with_columns(until=pl.col("first").shift(-1).over("rank"))
        .with_columns(until=pl.max_horizontal(pl.coalesce("until", "last"), "last"))
    )
    busy = union_length(events, ["rank", "step"])
    return spans.join(busy, on=["rank", "step"]).select(
        "rank",
        "step",
        "phase",
        layer=pl.lit(None, pl.Int32),
        stage=pl.lit(IDLE),
        total_ns=(pl.col("until") - pl.col("first") - pl.col("busy_ns")).clip(lower_bound=0),
        kernels=pl.lit(0, dtype=pl.Int64),
        bound_ns=pl.lit(0.0),
    )


def _rolled(joined: pl.DataFrame, by: Per) -> pl.DataFrame:
    """Sums over the layers, or over the stages too."""
    joined = joined.with_columns(
        explained=(pl.col("bound_by").is_not_null() & (pl.col("stage") != IDLE)).fill_null(
            value=False
        ),
        waits_ns=(pl.col("total_ns") - pl.col("fastest_ns")).clip(lower_bound=0),
    )
    if by == "layer":
        return joined
    keys = ["rank", "step", "phase", *(["stage"] if by == "stage" else [])]
    first = pl.first("tokens", "requests", "source")
    sums = pl.sum(
        "flops", "memory_bytes", "message_bytes", "bound_ns", "total_ns", "kernels", "waits_ns"
    )
    longest_bound = (
        pl.col("bound_by")
        .sort_by("bound_ns", descending=True, nulls_last=True)
        .drop_nulls()
        .first()
    )
    known_work = (pl.col("total_ns") * pl.col("explained")).sum() * 2 >= pl.sum("total_ns")
    rolled = joined.group_by(keys).agg(first, sums, bound_by=longest_bound, explained=known_work)
    empty = {"layer": pl.lit(None, pl.Int32)}
    if by == "step":
        empty["stage"] = pl.lit(None, pl.String)
    return rolled.with_columns(**empty)


def _rates(frame: pl.DataFrame, machine: Machine, by: Per) -> pl.DataFrame:
    """Efficiency, shares of the peaks, gap and its reason."""
    seconds = pl.col("total_ns") / 1e9
    has = (pl.col("total_ns") > 0) & pl.col("bound_by").is_not_null()
    frame = frame.with_columns(
        bound_share=pl.when(has & (pl.col("bound_ns") > 0)).then(
            pl.col("bound_ns") / pl.col("total_ns")
        ),
        mfu=pl.when(has & (pl.col("flops") > 0)).then(
            pl.col("flops") / seconds / machine.rate(machine.plan.math)
        ),
        mbu=pl.when(has & (pl.col("memory_bytes") > 0)).then(
            pl.col("memory_bytes") / seconds / machine.bandwidth
        ),
        gap_ns=pl.col("total_ns") - pl.col("bound_ns").fill_null(0.0),
    )
    mean = pl.col("total_ns") / pl.col("kernels").clip(lower_bound=1)
    waits = pl.col("stage").is_in(_COLLECTIVES) & (pl.col("waits_ns") * 2 > pl.col("total_ns"))
    cases = {
        "idle": pl.col("stage") == IDLE,
        "at the roof": pl.col("bound_share") >= AT_ROOF,
        "wait for others": waits,
        "no bound": pl.col("bound_by").is_null(),
        "fixed cost of kernels": mean < FIXED_NS,
    }
    why = first_true(cases, "kernel below the roof")
    return frame.with_columns(reason=why if by != "step" else pl.lit(None, pl.String))
