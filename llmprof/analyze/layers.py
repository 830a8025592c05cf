"""Layers of every step with their stages and kinds, and layers of profiled kernel launches, by
order and names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.groups import sums_of_groups
from llmprof.analyze.overlap import COMMUNICATION, transferring
from llmprof.analyze.step_times import MAD_TO_SIGMA, MAX_DEVIATIONS
from llmprof.errors import AnalysisError, Columns
from llmprof.label.intervals import INTERVAL, length_within, merge, union_lengths
from llmprof.label.layers.kernels import STAGE
from llmprof.label.nesting import outermost_ops
from llmprof.names.matching import by_distinct
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

_KEY = ("rank", "step", "layer")
_LAUNCH = ("correlation", "launch_thread", "launch_start_ns", "launch_end_ns")
_MEASURES = (
    "start_ns",
    "dur_ns",
    "busy_ns",
    "kernels",
    "confidence",
    "host_start_ns",
    "host_dur_ns",
)


@Analysis(
    question="Which layers take the time?",
    help="every layer of every step by stage",
    view="layers",
    recorded="steps and attention kernels",
    options={"stages": True},
)
def layers(trace: Trace, *, by: Columns = (), stages: bool = False) -> pl.DataFrame:
    """Layers of every step of every rank, their stages, or sums of these.

    A stage that occurs twice in a layer (the two norms, the two all-reduces) has two rows, with
    different ``occurrence``. On the device a layer reaches from the start of its first kernel to
    the end of its last one.

    On the host a layer reaches from the start of the outermost operator that launched its first
    kernel to the end of the one that launched its last: the Python and dispatch time of the layer.
    It is null if one launch (of a CUDA graph) starts kernels of several layers, and if launches
    were not recorded.

    Parameters
    ----------
    trace : Trace
        Any trace whose steps and attention kernels are found.
    by : str or sequence of str
        Columns of the rows to sum them by, such as ``"stage"`` or ``("phase", "layer")``; with
        ``stage`` or ``occurrence`` among them, stages are summed.
    stages : bool
        A row for each stage of a layer.

    Returns
    -------
    polars.DataFrame
        ``rank, step, phase, layer, kind, stage, occurrence, start_ns, dur_ns, busy_ns, kernels,
        confidence, host_start_ns, host_dur_ns``; ``stage`` and ``occurrence`` with
        ``stages=True``. ``kind`` says what mixes the layer's tokens (attention: sparse, latent,
        sliding, full where other layers of the step have windows; KDA, gated delta net, lightning
        or another linear attention; Mamba-1, Mamba-2 or another state space; short convolution;
        attention and scan side by side: parallel hybrid) and what feeds forward (MLP, MoE), as the
        layer's kernels tell: ``Mamba-2 + MoE``; null where they do not. ``dur_ns`` is the span,
        ``busy_ns`` the part of it in which some kernel or copy of it ran, ``kernels`` counts both.

        With ``by``: its columns, ``count, total_ns, share`` (of all rows), ``mean_ns, median_ns,
        min_ns, max_ns`` (of ``dur_ns``), ``busy_ns, kernels`` (sums).

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor copies nor operators.

    Examples
    --------
    >>> layers = analyze.layers(trace)
    >>> layers["layer"].max() + 1  # layers of Qwen2.5-1.5B
    28
    """
    if by:
        rows = layers(trace, stages=stages or not {"stage", "occurrence"}.isdisjoint(by))
        return sums_of_groups(rows, by, pl.sum("busy_ns", "kernels"))
    key = [*_KEY, *(["stage"] if stages else [])]
    events, groups = _events_of_layers(trace, key)
    counts = events.group_by("group", maintain_order=True).agg(
        kernels=pl.len(), confidence=pl.min("confidence")
    )
    groups = groups.hstack(counts.drop("group"))
    if stages:
        groups = groups.hstack([_occurrences(groups)])
        key.append("occurrence")
    spans = union_lengths(events, ["group"], busy_ns=pl.lit(True)).select(
        "busy_ns", start_ns="first_ns", dur_ns=pl.col("last_ns") - pl.col("first_ns")
    )
    groups = groups.hstack(spans).join(
        _host_spans(events, trace), on="group", how="left", maintain_order="left"
    )
    groups = groups.join(kinds(trace), on=_KEY, how="left", maintain_order="left")
    return groups.select(
        "rank",
        "step",
        "phase",
        "layer",
        "kind",
        *key[3:],
        *_MEASURES,
    )


def _events_of_layers(trace: Trace, key: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Events with the number of their ``group``, and the groups: a layer, or a stage of one."""
    events = (
        trace.events.select(*key, "phase", "confidence", "event", *INTERVAL, *_LAUNCH)
        .drop_nulls("layer")
        .sort("rank", "step", "layer", "start_ns", "event")
        .with_columns(group=pl.struct(key).rle_id().set_sorted())
    )
    first = pl.col("group") != pl.col("group").shift(1)
    return events, events.filter(first.fill_null(True)).select("group", *key, "phase")


@per_trace
def host_times(trace: Trace) -> pl.DataFrame:
    """``rank, step, host_dur_ns`` of the layers of :func:`layers` whose host time is known."""
    events, groups = _events_of_layers(trace, _KEY)
    known = groups.join(_host_spans(events, trace), on="group", maintain_order="left")
    return known[["rank", "step", "host_dur_ns"]].drop_nulls("host_dur_ns")


def _occurrences(groups: pl.DataFrame) -> pl.Series:
    """Number of earlier groups of the same stage in the same layer; the groups of a layer are
    consecutive.
    """
    layer = pl.struct("rank", "step", "layer").rle_id()
    row = pl.int_range(pl.len(), dtype=pl.Int32)
    same = groups.select(group="group", layer=layer, stage=pl.col("stage").cast(STAGE)).sort(
        "layer", "stage", "group"
    )
    run = pl.struct("layer", "stage").rle_id()
    begins = pl.when((run != run.shift(1)).fill_null(True)).then(row)
    return same.with_columns(occurrence=row - begins.forward_fill()).sort("group")["occurrence"]


def _host_spans(events: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Host span of each group; null if one of its launches also starts kernels of another layer."""
    launched = events.select("group", "rank", "layer", *_LAUNCH).filter(
        pl.col("launch_start_ns").is_not_null()
    )
    # kernels of one launch are consecutive: a launch counts once in each group
    launch = ["group", "correlation"]
    calls = launched.select(*launch, "rank", "layer").filter(
        pl.any_horizontal(pl.col(column).ne_missing(pl.col(column).shift(1)) for column in launch)
        & pl.col("correlation").is_not_null()
    )
    ends = calls.group_by("rank", "correlation").agg(first=pl.min("layer"), last=pl.max("layer"))
    shared = calls.join(
        ends.filter(pl.col("first") != pl.col("last")), on=["rank", "correlation"], how="semi"
    )
    launched = (
        launched.filter(~pl.col("group").is_in(shared["group"].unique().implode()))
        .sort("launch_start_ns")
        .with_columns(begin="launch_start_ns", end="launch_end_ns")
    )
    if trace.has("ops") and launched.height:
        ops = outermost_ops(trace.ops.select("rank", "thread", *INTERVAL, "kind")).select(
            "rank",
            launch_thread="thread",
            launch_start_ns="start_ns",
            op_start_ns="start_ns",
            op_end_ns=END,
        )
        launched = launched.join_asof(
            ops.sort("launch_start_ns"),
            on="launch_start_ns",
            by=["rank", "launch_thread"],
            check_sortedness=False,
        )
        inside = pl.col("op_end_ns") >= pl.col("launch_start_ns")
        launched = launched.with_columns(
            begin=pl.when(inside).then("op_start_ns").otherwise("begin"),
            end=pl.when(inside).then("op_end_ns").otherwise("end"),
        )
    spans = launched.sort("group").group_by("group").agg(pl.min("begin"), pl.max("end"))
    return spans.select("group", host_start_ns="begin", host_dur_ns=pl.col("end") - pl.col("begin"))


GapMeasure = Literal["dur_ns", "busy_ns", "exposed_communication_ns", "host_dur_ns"]


LEAST_SHARE = 0.1
"""An outlier differs from the typical layer by more than this share of it, however similar the
others are.
"""


@Analysis(
    question="Which layers are slower than the typical layer?",
    help="layers with their gap to the typical one of their kind, rank and step",
    view="layer-gaps",
    recorded="steps and attention kernels",
)
def layer_gaps(
    trace: Trace, *, stage: str | None = None, measure: GapMeasure = "dur_ns"
) -> pl.DataFrame:
    """Layers of every step, each with its gap to the typical layer of the same kind, rank and step.

    The typical layer is the median over the layers of one kind and rank in one step, so a slow step
    alone makes no outliers. An outlier differs from it by more than four robust standard deviations
    (1.4826 times the median absolute deviation) and by more than 10 % of it.

    Parameters
    ----------
    trace : Trace
        Any trace whose steps and attention kernels are found.
    stage : str, optional
        Compare one stage only; times of a stage that occurs several times in a layer are added up.
    measure : {"dur_ns", "busy_ns", "exposed_communication_ns", "host_dur_ns"}
        Measure to compare.

    Returns
    -------
    polars.DataFrame
        ``rank, step, phase, layer, kind, start_ns, end_ns`` (first start and last end on the
        device), ``dur_ns, busy_ns, host_dur_ns`` as :func:`~llmprof.analyze.layers` gives them,
        ``communication_ns`` (union of the layer's collectives), ``exposed_communication_ns`` (the
        part without concurrent compute of the rank, of this or another layer), all in ns; then of
        ``measure`` ``typical_ns, gap_ns`` (its value minus the typical one) and ``outlier``, which
        are null where the value is.

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor copies nor operators.
    AnalysisError
        There is no such stage.

    Examples
    --------
    >>> gaps = analyze.layer_gaps(trace)
    >>> gaps.columns[:5]
    ['rank', 'step', 'phase', 'layer', 'kind']
    """
    if stage is None:
        rows = layers(trace).with_columns(end_ns=END)
    else:
        if stage not in STAGE.categories:
            raise AnalysisError(
                f"stage={stage!r} is not known", expected=f"one of {', '.join(STAGE.categories)}"
            )
        rows = _stage(layers(trace, stages=True), stage)
    rows = rows.join(_communication(trace, stage), on=list(_KEY), how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("communication_ns", "exposed_communication_ns").fill_null(0))
    value, group = pl.col(measure), ["rank", "step", "kind"]
    rows = rows.with_columns(typical_ns=value.median().over(group)).with_columns(
        gap_ns=value - pl.col("typical_ns")
    )
    off = pl.col("gap_ns").abs()
    limit = pl.max_horizontal(
        off.median().over(group) * MAD_TO_SIGMA * MAX_DEVIATIONS, pl.col("typical_ns") * LEAST_SHARE
    )
    return rows.select(
        *(
            "rank",
            "step",
            "phase",
            "layer",
            "kind",
            "start_ns",
            "end_ns",
            "dur_ns",
            "busy_ns",
            "host_dur_ns",
        ),
        *("communication_ns", "exposed_communication_ns"),
        pl.when(value.is_not_null()).then("typical_ns").alias("typical_ns"),
        "gap_ns",
        outlier=off > limit,
    )


def _stage(rows: pl.DataFrame, stage: str) -> pl.DataFrame:
    """One stage of each layer, with its occurrences added up; host time is null if it is null
    for one of them.
    """
    host = pl.col("host_dur_ns")
    return (
        rows.filter(stage=stage)
        .group_by(*_KEY, maintain_order=True)
        .agg(
            pl.first("phase", "kind"),
            pl.min("start_ns"),
            pl.sum("dur_ns", "busy_ns"),
            end_ns=END.max(),
            host_dur_ns=pl.when(host.is_not_null().all()).then(host.sum()),
        )
    )


def _communication(trace: Trace, stage: str | None) -> pl.DataFrame:
    """``rank, step, layer, communication_ns, exposed_communication_ns`` of the layers that have
    collectives.
    """
    events = trace.events
    collective = pl.col("category").is_in(COMMUNICATION)
    mine = events.filter(collective & pl.col("layer").is_not_null())
    if stage is not None:
        mine = mine.filter(stage=stage)
    compute = events.filter(~pl.col("category").is_in(COMMUNICATION) & ~transferring())
    parts = length_within(merge(mine, _KEY), compute, ["rank"], name="hidden_ns")
    return parts.group_by(_KEY).agg(
        communication_ns=pl.sum("dur_ns"),
        exposed_communication_ns=(pl.col("dur_ns") - pl.col("hidden_ns")).sum(),
    )


_FLAG, _SET = r"(?:\(bool\))?(?:true|false|[01]), ", r"(?:\(bool\))?(?:true|1), "
_LOCAL: Final = (
    rf"arch::Sm\d+, {_FLAG}{_SET}|flash_fwd_splitkv_kernel<.*?> ?>, {_FLAG}{_SET}|"
    rf"flash_fwd_kernel<.*?> ?>, {_FLAG}{_FLAG}{_SET}|SlidingOrChunked"
)
"""FlashAttention 3 and 2 with ``Is_local``, TensorRT-LLM: a window that is shorter than the
context.
"""
_ABSORBED: Final = rf"arch::Sm\d+, (?:{_FLAG}){{6}}{_SET}"
"""FlashAttention 3 with ``HasQv``: queries that multiply with a latent cache."""

_MIXERS: Final[tuple[tuple[str, str], ...]] = (
    (
        "sparse attention",
        r"(?i)mqa_logits|topk_transform|topKPerRow|topk_index|index_(?:block_)?score|indexer|_sparse_(?:fwd|decode|att|mla)",
    ),
    ("latent attention", rf"(?i)\bmla|_mla|mla_|BatchMLA|[a-z]Mla[A-Z]|{_ABSORBED}"),
    ("sliding attention", _LOCAL),
    ("KDA", r"(?i)\bkda_|_kda_|_kda\b"),
    ("gated delta net", r"(?i)gated_delta|chunk_delta|gdn_|gating_delta"),
    (
        "lightning attention",
        r"(?i)lightning|_fwd_(?:none_)?diag_kernel|_fwd_kv_(?:parallel|reduce)|linear_attn_decode",
    ),
    ("Mamba-2", r"(?i)_chunk_(?:scan|state|cumsum)_fwd|_state_passing_fwd|_bmm_chunk_fwd"),
    ("Mamba-1", r"(?i)selective_scan_fwd"),
    ("state space", r"(?i)selective_(?:scan|state)_update"),
)
_ATTENTIONS: Final = (*(kind for kind, _ in _MIXERS[:3]), "attention")
_SCANS: Final = (*(kind for kind, _ in _MIXERS[3:]), "linear attention")
_VAGUE: Final = ("attention", "state space", "linear attention")
"""What a mixer is called by kernels that several kinds share; another step of the same layer may
say more.
"""
_MIXING: Final = ("attention", "scan", "conv", "kv_cache_write", "rope", "indexer", "top_k")
_LEAST_SURE: Final = 0.5


@per_trace
def kinds(trace: Trace) -> pl.DataFrame:
    """``rank, step, layer, kind`` of every layer; null if its kernels do not tell."""
    # A kind is a mixer of tokens, a feed-forward part (MLP or MoE), or both, joined by " + ".
    events = trace.events.filter(pl.col("layer").is_not_null(), pl.col("step").is_not_null())
    said = by_distinct(events["name"], _said)
    category, at = pl.col("category"), pl.col("start_ns")
    attends, scans = category == "attention", (category == "scan") & (pl.col("stage") != "conv")
    feeds = pl.col("stage").is_in(["gate_up_proj", "down_proj", "experts"])
    frame = (
        events.with_columns(said=said)
        .group_by(_KEY)
        .agg(
            said=pl.col("said").filter(pl.col("stage").is_in(_MIXING)).drop_nulls().unique(),
            attends=attends.any(),
            scans=scans.any(),
            convolves=(pl.col("stage") == "conv").any(),
            experts=pl.col("stage").is_in(["experts", "router"]).any(),
            feeds=feeds.any(),
            between=(
                at.filter(feeds).min()
                < pl.max_horizontal(at.filter(attends).min(), at.filter(scans).min())
            ),
            sure=pl.min("confidence"),
        )
    )
    frame = frame.with_columns(
        attention=_first(_ATTENTIONS, pl.col("attends"), "attention"),
        scan=_first(_SCANS, pl.col("scans"), "linear attention"),
    )
    frame = frame.with_columns(_agreed(column) for column in ("attention", "scan"))
    windows = (pl.col("attention") == "sliding attention").any().over("rank", "step")
    whole = windows & (pl.col("attention") == "attention")
    attention = pl.when(whole).then(pl.lit("full attention")).otherwise("attention")
    both = pl.col("attends") & pl.col("scans")
    mixer = (
        pl.when(both & pl.col("between"))
        .then(pl.lit(""))
        .when(both)
        .then(pl.lit("parallel hybrid"))
        .when("attends")
        .then(attention)
        .when("scans")
        .then("scan")
        .when("convolves")
        .then(pl.lit("short convolution"))
    )
    feed = pl.when("experts").then(pl.lit("MoE")).when("feeds").then(pl.lit("MLP"))
    kind = pl.concat_str(mixer, feed, separator=" + ", ignore_nulls=True)
    known = (pl.col("sure") > _LEAST_SURE) & (mixer.fill_null("none") != "") & (kind != "")
    return frame.select(*_KEY, kind=pl.when(known).then(kind)).sort(_KEY)


def _said(names: tuple[str, ...]) -> pl.Series:
    """The first mixer that each name speaks for."""
    name = pl.col("name")
    said = pl.coalesce(
        pl.when(name.str.contains(pattern)).then(pl.lit(kind)) for kind, pattern in _MIXERS
    )
    return pl.DataFrame({"name": names}, schema={"name": pl.String}).select(said).to_series()


def _first(kinds_: tuple[str, ...], there: pl.Expr, otherwise: str) -> pl.Expr:
    """The most telling of some kinds that the kernels of a layer speak for."""
    named = pl.coalesce(
        pl.when(pl.col("said").list.contains(kind)).then(pl.lit(kind)) for kind in kinds_
    )
    return pl.when(there).then(named.fill_null(otherwise))


def _agreed(column: str) -> pl.Expr:
    """A vague kind becomes the one that all other steps of the layer agree on."""
    vague, layer = pl.col(column).is_in(_VAGUE), ("rank", "layer")
    others = pl.col(column).filter(~vague)
    agreed = vague & (others.n_unique().over(layer) == 1)
    return pl.when(agreed).then(others.first().over(layer)).otherwise(column).alias(column)
