"""Layers and stages of events by their order: each distinct stretch of kernels is labelled once, by
the rules.

The events of a step stand in the order of the compute stream. They are divided at each attention
(two attentions with only GEMMs between them are parts of one: a batch's prefill and its decode) and
where another pass of a model begins. There are no layers if attention or the GEMMs around it are
not recognised, and on ranks that also run a backward pass (training).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from llmprof import names
from llmprof.label.groups import distinct_keys, first_of_runs, group_values, is_sorted
from llmprof.label.layers.kernels import SEQUENCE_STAGES, STAGES, Kernel, distinct_kernels
from llmprof.label.layers.rules import BODY, EPILOGUE, PROLOGUE, Stretch, Usual

_SOURCES: Final = pl.Enum(["kernel", "copy", "op"])
_NO_STEP: Final = -1
"""Step number, during labelling, of events without a step."""
_MIN_GEMMS: Final = 2
"""A layer has more GEMMs than this (projections before and after attention, feed-forward part or
experts).
"""
_RECOGNISED: Final = 0.1
"""If separators are recognised, they are between at least this share of neighbouring attentions."""
_MAJORITY: Final = 0.5
"""A property of more than this share of a rank's layers counts as a property of its model."""
_MAX_SEAMS: Final = 0.5
"""If more than this share of the stretches between attentions has sampling or embeddings, these
do not mark passes.
"""
_MAX_CONVOLUTIONS: Final = 4
"""Most convolutions of a language model: those for patches of an image or frames of sound in its
input.
"""
_UNLIKE: Final = 2.5
"""A layer has at most this multiple of the events of the usual layer …"""
_OFTEN: Final = 0.1
"""… unless at least this share of the layers is as large: then it is another kind of layer."""
_MAX_UNLIKE: Final = 0.25
"""If more than this share of a step's layers is unlike the others, no layer of the step is
known.
"""

_NAMES: Final = (
    "no step",
    "no attention",
    "draft model",
    "several passes in one step",
    "several models in one step",
    "convolutions: an image model",
    "unlike the other layers",
    "encoder",
)
REASONS: Final = pl.Enum(_NAMES)
"""Reasons why an event has no layer although it may be part of one."""

_SAY_THEIR_STAGE: Final = (
    "norm",
    "rope",
    "kv_cache_write",
    "attention",
    "scan",
    "activation",
    "embedding",
    "sampling",
    "copy",
)
"""Categories that are stages in every model."""


def apply_by_sequence(
    frame: pl.DataFrame,
    by: Sequence[str],
    say: Callable[..., Any],
    made: Mapping[str, Any],
    *,
    also: Sequence[str] = (),
) -> pl.DataFrame:
    """Add the columns ``made``: what ``say`` returns for the values of ``by``, asked once for
    distinct ones.
    """
    # It is given the values of `also` in the first such row, too.
    distinct = frame.select(*by, *also).unique(by, keep="first", maintain_order=True)
    rows = [
        row if len(made) > 1 else (row,)
        for row in (say(*values) for values in distinct.iter_rows())
    ]
    said = distinct.select(by).hstack(pl.DataFrame(rows, schema=dict(made), orient="row"))
    return frame.join(said, on=list(by), how="left", nulls_equal=True, maintain_order="left")


class _LayerKernels:
    """Kernel of each event as a number, and what is true of each."""

    def __init__(self, events: pl.DataFrame, coded: pl.Series, kinds: pl.DataFrame | None) -> None:
        category = events["category"].cast(pl.Enum(names.CATEGORIES)).to_physical().cast(pl.Int64)
        source = events["source"].cast(_SOURCES).to_physical()
        key = coded.to_physical().cast(pl.Int64) * len(names.CATEGORIES) + category
        key = key * len(_SOURCES.categories) + source
        first = key.is_first_distinct().arg_true()
        number, distinct = distinct_kernels(
            coded[first], events["category"][first], events["source"][first]
        )
        self.numbers = dict(zip(distinct, range(len(distinct)), strict=True))
        """Number of each distinct kernel."""
        known = pl.DataFrame({"key": key[first], "kernel": number})
        rows = key.to_frame("key").join(known, on="key", how="left", maintain_order="left")
        self.of_row: np.ndarray = rows["kernel"].to_numpy().copy()
        if kinds is not None:
            said = kinds.filter(pl.col("kind").is_in(STAGES))
            said = events.select("event", row=pl.int_range(pl.len())).join(said, on="event")
            self.change(
                said["row"].to_numpy(),
                said["kind"].to_list(),
                lambda k, kind: k._replace(kind=kind),
            )

    def change(
        self, rows: np.ndarray, values: list[Any], to: Callable[[Kernel, Any], Kernel]
    ) -> None:
        """Replace the kernels of some rows by what ``to`` makes of them and a value."""
        known = list(self.numbers)
        pairs = list(zip(self.of_row[rows].tolist(), values, strict=True))
        new = {
            (k, v): self.numbers.setdefault(to(known[k], v), len(self.numbers))
            for k, v in dict.fromkeys(pairs)
        }
        self.of_row[rows] = [new[pair] for pair in pairs]

    def where(self, wanted: Callable[[Kernel], bool], rows: np.ndarray | None = None) -> pl.Series:
        """Whether the kernel of each row (all, or some) is wanted."""
        flags = np.fromiter(map(wanted, self.numbers), dtype=np.bool_, count=len(self.numbers))
        return pl.Series(flags[self.of_row if rows is None else self.of_row[rows]])


def label_layers(
    events: pl.DataFrame,
    kinds: pl.DataFrame | None = None,
    engine: pl.DataFrame | None = None,
    coded: pl.Series | None = None,
) -> pl.DataFrame:
    """Add ``layer, stage, confidence, reason`` to events in the order of ``event``."""
    # `kinds` has the `event, kind` of collectives whose name does not say their kind, `engine` the
    # `rank, step` of steps that an engine labelled, `coded` the names (Categorical), if at hand.
    known = _LayerKernels(
        events, (events["name"] if coded is None else coded).cast(pl.Categorical), kinds
    )
    if not any(k.category == "scan" and k.does("attends") for k in known.numbers):
        alone = known.where(lambda k: k.does("convolves before")).arg_true().to_numpy()
        known.change(
            alone, [None] * len(alone), lambda k, _: k._replace(roles=k.roles | {"attends"})
        )
    frame = _sequence_events(events, known)
    has_step = pl.col("step").is_not_null()
    with_steps = frame.filter(pl.col("attends") & has_step)["rank"].unique()
    # events launched before the recording began have no step, but a place among the others of their
    # stream
    placed = has_step | pl.col("rank").is_in(with_steps.implode())
    sequence = frame.filter(placed & pl.col("sequence").is_not_null()).with_columns(
        pl.col("step").fill_null(_NO_STEP)
    )
    sequence = _stretches(sequence, known)
    outside = np.array(
        [_number(STAGES, _outside(kernel)) for kernel in known.numbers], dtype=np.int64
    )[known.of_row]
    no_step = events["step"].is_null().to_numpy()
    rows = {
        "layer": np.full(events.height, -1, dtype=np.int32),
        "stage": np.where(no_step, -1, outside),
        "confidence": np.full(events.height, np.nan),
        "reason": np.where(no_step, _NAMES.index("no step"), -1),
    }
    if sequence.height:
        at = sequence["row"].to_numpy()
        for name, values in _labels(sequence, known, engine).items():
            rows[name][at] = values
    labelled = events.with_columns(
        layer=pl.Series(rows["layer"]).set(pl.Series(rows["layer"] < 0), None),
        stage=_text(STAGES, rows["stage"]),
        confidence=pl.Series(rows["confidence"]).fill_nan(None),
        reason=_text(_NAMES, rows["reason"]).cast(REASONS),
    )
    return _swap_by_size(_label_other_streams(labelled))


def _text(names_: Sequence[str], numbers: np.ndarray) -> pl.Series:
    """Names by number; null for -1."""
    return pl.Series([*names_, None], dtype=pl.String).gather(
        np.where(numbers < 0, len(names_), numbers)
    )


def _number(of: Sequence[str], name: str | None) -> int:
    return -1 if name is None else of.index(name)


def _outside(kernel: Kernel) -> str | None:
    """Stage of an event that is in no sequence."""
    if kernel.category == "collective":
        return kernel.kind
    if kernel.does("transfers"):
        return "kv_transfer"
    return "copy" if kernel.source == "copy" else "other"


def _sequence_events(events: pl.DataFrame, known: _LayerKernels) -> pl.DataFrame:
    """Events with ``attends`` and ``sequence``: the stream whose order they belong to, null if
    to none.
    """
    frame = events.select(
        "rank", "stream", "start_ns", "step", row=pl.int_range(pl.len())
    ).with_columns(
        attends=known.where(lambda k: k.does("attends")),
        backward=known.where(lambda k: k.does("backward")),
    )
    if frame["stream"].null_count():
        # annotated CUDA graphs: put in order with the busiest stream of their rank
        counts = frame.drop_nulls("stream").group_by("rank", "stream").len()
        busiest = counts.sort("len", "stream", descending=[True, False]).unique(
            "rank", keep="first"
        )
        (stream,) = group_values(frame, busiest[["rank", "stream"]], ["rank"])
        frame = frame.with_columns(stream=pl.coalesce("stream", stream, 0))
    streams = (
        frame.filter(pl.col("attends") | pl.col("backward"))
        .group_by("rank", "stream")
        .agg(n=pl.sum("attends"), backward=pl.col("backward").any())
        .filter((pl.col("n") > 0) & ~pl.col("backward").any().over("rank"))
        .sort("n", "stream", descending=[True, False])
    )
    (main,) = group_values(
        frame, streams.unique("rank", keep="first")[["rank", "stream"]], ["rank"]
    )
    (own,) = group_values(
        frame, streams.select("rank", "stream", own=pl.lit(True)), ["rank", "stream"]
    )
    several = streams.group_by("rank").len().filter(pl.col("len") > 1)["rank"]
    if several.len() and "launch_start_ns" in events.columns:
        # of several streams with attention (a batch in halves), the one that the thread launched to
        # before
        launched = pl.col("rank").is_in(several.implode()) & pl.col("launch_start_ns").is_not_null()
        order = frame.select("row", at=pl.when(own).then("stream")).hstack(
            events[["rank", "launch_thread", "launch_start_ns"]]
        )
        order = order.filter(launched).sort("rank", "launch_thread", "launch_start_ns", "row")
        order = order.select(
            "row", before=pl.col("at").forward_fill().over("rank", "launch_thread")
        )
        before = frame[["row"]].join(order, on="row", how="left", maintain_order="left")["before"]
        main = pl.select(pl.coalesce(before, main)).to_series()
    communicates = known.where(lambda k: k.kind in SEQUENCE_STAGES)
    return frame.with_columns(sequence=pl.when(own).then("stream").when(communicates).then(main))


def _stretches(sequence: pl.DataFrame, known: _LayerKernels) -> pl.DataFrame:
    """Events in order with ``first`` (of a pass) and ``begins`` (of a stretch)."""
    key = ("rank", "sequence", "step")
    order = (*key, "start_ns", "row")
    frame = sequence if is_sorted(sequence, order) else sequence.sort(order)
    at = frame["row"].to_numpy()
    first = np.zeros(frame.height, dtype=np.bool_)
    first[first_of_runs(frame, key)] = True
    frame = frame.with_columns(
        first=pl.Series(first), gemm=known.where(lambda k: k.does("gemm"), at)
    )
    turns = known.where(lambda k: k.does("rotates"), at)
    if turns.any():
        # a GEMM in single precision multiplies positions by frequencies: a cosine or sine follows,
        # and no GEMM
        single = known.where(lambda k: k.does("single"), at)
        mark = pl.when(turns).then(1).when(pl.col("gemm") | pl.col("attends")).then(2)
        angles = single & frame.select(mark.backward_fill().shift(-1) == 1).to_series().fill_null(
            value=False
        )
        rows = frame.select(angles & pl.col("gemm")).to_series().arg_true().to_numpy()
        known.change(
            at[rows], [None] * len(rows), lambda k, _: k._replace(roles=k.roles - {"gemm"})
        )
        frame = frame.with_columns(pl.col("gemm") & ~angles)
    mark = pl.when("attends").then(1).when(pl.col("gemm") | pl.col("first")).then(2)
    frame = frame.with_columns(
        scans=known.where(lambda k: k.category == "scan" and k.does("attends"), at)
    )
    scanned = pl.when("attends").then("scans").forward_fill().fill_null(False)
    # a convolution with no GEMM since the scan before it: the same layer's, for the other part of
    # the batch
    convolves = known.where(lambda k: k.does("convolves before"), at)
    continues = (
        pl.when(convolves).then(mark.forward_fill().shift(1) == 1).forward_fill().fill_null(False)
    )
    frame = frame.with_columns(
        begins=pl.col("attends") & (pl.col("first") | (mark.forward_fill().shift(1) != 1)),
        continues=pl.col("scans") & continues,
        group=pl.col("first").cum_sum(),
        gemms=pl.col("gemm").cum_sum(),
        # the gate and norm of a scan's result, before its output projection, part nothing
        separators=(
            known.where(lambda k: k.separates, at) & ~(scanned & (mark.forward_fill() == 1))
        ).cum_sum(),
        at=pl.int_range(pl.len()),
    )
    # only GEMMs since the attention before it: another part of the same attention, if separators
    # are recognised
    starts = frame.filter("begins")[["rank", "at", "group", "gemms", "separators", "continues"]]
    inner = pl.col("group") == pl.col("group").shift(1)
    separated = pl.when(inner).then(pl.col("separators") != pl.col("separators").shift(1))
    is_part = (~separated & (separated.mean().over("rank") > _RECOGNISED)) | (
        inner & pl.col("continues")
    )
    starts = starts.with_columns(part=is_part.fill_null(False))
    begins = np.zeros(frame.height, dtype=np.bool_)
    begins[starts.filter(~pl.col("part"))["at"].to_numpy()] = True
    frame = frame.with_columns(begins=pl.Series(begins))
    # hardly any GEMM after most attentions: GEMMs are not recognised, so there are no layers
    starts = starts.filter(~pl.col("part"))
    (all_gemms,) = group_values(starts, frame.group_by("group").agg(pl.last("gemms")), ["group"])
    until = pl.when(pl.col("group") == pl.col("group").shift(-1)).then(pl.col("gemms").shift(-1))
    starts = starts.with_columns(between=pl.coalesce(until, all_gemms) - pl.col("gemms"))
    usual = starts.group_by("rank").agg(gemms=pl.median("between"))
    unknown = usual.filter(pl.col("gemms") < _MIN_GEMMS)["rank"]
    frame = frame.filter(~pl.col("rank").is_in(unknown.implode())) if unknown.len() else frame
    return _add_passes(
        frame.select("row", "rank", "sequence", "step", "first", attends="begins"), known
    )


def _add_passes(frame: pl.DataFrame, known: _LayerKernels) -> pl.DataFrame:
    """Mark the rows at which another pass begins within a step, after sampling or with an
    embedding.
    """
    at = frame["row"].to_numpy()
    marks = frame.select(
        "first",
        "attends",
        row=pl.int_range(pl.len()),
        sampled=known.where(lambda k: k.category == "sampling", at),
        embedded=known.where(lambda k: k.does("embeds"), at),
    ).with_columns(
        stretch=(pl.col("first") | pl.col("attends")).cum_sum(),
        step=pl.col("first").cum_sum(),
    )
    marked = marks.filter(pl.col("sampled") | pl.col("embedded"))
    if not marked.height:
        return frame
    begins = marks.filter(pl.col("first") | pl.col("attends"))
    inner = begins.filter(pl.col("attends") & (pl.col("step") == pl.col("step").shift(-1)))
    row = pl.col("row")
    embedded = row.filter("embedded").min()
    sampled = row.filter(pl.col("sampled") & (row < embedded.fill_null(1 << 62))).max()
    seams = marked.join(inner[["stretch"]], on="stretch", how="semi")
    seams = seams.group_by("stretch", "step").agg(start=pl.coalesce(sampled + 1, embedded))
    counts = (
        inner.group_by("step").len("stretches").join(seams.group_by("step").len("seams"), on="step")
    )
    few = counts.filter(pl.col("seams") <= _MAX_SEAMS * pl.col("stretches"))
    starts = seams.join(few, on="step", how="semi")["start"]
    return frame.with_columns(
        first=pl.col("first") | pl.int_range(pl.len()).is_in(starts.implode())
    )


_PROPERTIES: Final = ("attends", "latent", "fused", "hybrid")
"""What a stretch is told of itself and its rank."""


def _labels(
    frame: pl.DataFrame, known: _LayerKernels, engine: pl.DataFrame | None
) -> dict[str, np.ndarray]:
    """Layer, stage, confidence and reason of each row; stages and reasons are numbers, -1 and
    NaN are null.
    """
    rows, all_kernels = frame["row"].to_numpy(), list(known.numbers)
    kernel = known.of_row[rows]
    begins = frame.select((pl.col("first") | pl.col("attends")).arg_true()).to_series().to_numpy()
    sizes = np.diff(begins, append=frame.height)
    convolves = known.where(lambda k: k.does("convolves"), rows).to_numpy().astype(np.int64)
    of_rank = frame.select(
        "rank",
        latent=known.where(lambda k: k.does("latent"), rows),
        fused=known.where(lambda k: k.category == "activation", rows),
        hybrid=known.where(lambda k: k.category == "scan", rows),
    )
    of_rank = of_rank.group_by("rank").agg(pl.col("latent", "fused", "hybrid").any())
    stretches = frame[["rank", "sequence", "step", "first", "attends"]][begins]
    stretches = stretches.hstack(group_values(stretches, of_rank, ["rank"])).with_columns(
        begin=begins,
        size=sizes,
        hash=_hashes(kernel, begins, sizes),
        convolutions=np.add.reduceat(convolves, begins),
        samples=np.add.reduceat(
            known.where(lambda k: k.category == "sampling", rows).to_numpy(), begins
        )
        > 0,
        caches=np.add.reduceat(
            known.where(lambda k: k.category == "kv_cache_write", rows).to_numpy(), begins
        )
        > 0,
        group=pl.col("first").cum_sum() - 1,
    )
    stretches = stretches.with_columns(
        is_last=pl.col("group") != pl.col("group").shift(-1, fill_value=-1),
        layer=pl.col("attends").cum_sum().over("group").cast(pl.Int64) - 1,
    )
    distinct: list[Stretch] = []
    named: list[tuple[list[int], list[str]]] = []
    labels: list[np.ndarray] = []

    def describe(
        _: int, size: int, *properties: Any
    ) -> tuple[int, int, int | None, int, bool, bool]:
        *flags, begin = properties
        of_stretch = [all_kernels[k] for k in kernel[begin : begin + size].tolist()]
        new = Stretch(of_stretch, **dict(zip(_PROPERTIES, flags, strict=True)))
        distinct.append(new)
        return (
            len(distinct) - 1,
            new.gemms,
            new.seen,
            len(new.parts),
            new.scans,
            new.first_expert is not None,
        )

    def name(stretch: int, is_last: bool, *usual: Any) -> tuple[int, int, int]:
        named.append(distinct[stretch].named(Usual(*usual), is_last=is_last))
        places = named[-1][0]
        return len(named) - 1, places.count(BODY), places.count(PROLOGUE)

    def rule_out(stretch: int, number: int, own_layers: bool, *reasons: str | None) -> int:
        of_stretch, (places, stages) = distinct[stretch], named[number]
        parts = of_stretch.parts if own_layers else []
        given = enumerate(zip(of_stretch.kernels, places, stages, strict=True))
        rows = [
            (*_label(k, at, stage, reasons[min(at, EPILOGUE)]), sum(row >= part for part in parts))
            for row, (k, at, stage) in given
        ]
        labels.append(np.array(rows))
        return len(labels) - 1

    key = ["hash", "size", *_PROPERTIES]
    number, flag = pl.Int64(), pl.Boolean()
    made = {
        "stretch": number,
        "gemms": number,
        "seen": number,
        "feeds": number,
        "scans": flag,
        "experts": flag,
    }
    stretches = apply_by_sequence(stretches, key, describe, made, also=["begin"])
    stretches = _add_blocks(_add_ends(stretches, distinct))
    key = ["stretch", "is_last", "last", "end", "lead", "qkv", "next_scans", "own_layers"]
    stretches = apply_by_sequence(
        stretches, key, name, dict.fromkeys(("named", "body", "prologue"), number)
    )
    stretches = _add_reasons(stretches, engine)
    key = ["stretch", "named", "own_layers", "reason_of_layer", "reason_of_next", "reason"]
    stretches = apply_by_sequence(stretches, key, rule_out, {"labels": number})
    # the labels of all distinct stretches stand one after the other: a row's is as far in as it is
    # in its stretch
    lengths = np.array([len(of_stretch) for of_stretch in labels])
    shift = (np.cumsum(lengths) - lengths)[stretches["labels"].to_numpy()] - begins
    place, stage, reason, fed = np.concatenate(labels)[
        np.arange(frame.height) + np.repeat(shift, sizes)
    ].T
    of_row = np.repeat(np.arange(len(begins)), sizes)
    number_of, following, sure = (
        stretches[c].to_numpy() for c in ("number", "next_number", "confidence")
    )
    sure_of_next = np.where(stretches["layer"].to_numpy() < 0, 1.0, sure)
    return {
        "layer": np.select(
            [place == BODY, place == PROLOGUE], [number_of[of_row] + fed, following[of_row]], -1
        ),
        "stage": stage,
        "confidence": np.select(
            [place == BODY, place == PROLOGUE], [sure[of_row], sure_of_next[of_row]], np.nan
        ),
        "reason": reason,
    }


def _add_blocks(stretches: pl.DataFrame) -> pl.DataFrame:
    """Add ``number, next_number`` of layers, ``own_layers`` and ``next_scans``."""
    # In a model with scans where some mixers have a feed-forward part and others have none or
    # several, each block is a layer (Nemotron-H), the feed-forward parts, too; otherwise a layer is
    # a mixer with what follows it. If all with such a part are attentions, they may be shared by
    # layers with scans (Zamba): the layers are guessed.
    inner, feeds = pl.col("attends") & ~pl.col("is_last"), pl.col("feeds") > 0
    by_rank = stretches.group_by("rank").agg(
        mixed=pl.col("hybrid").any()
        & feeds.filter(inner).any()
        & (~feeds.filter(inner).all() | (pl.col("feeds") > 1).any()),
        scan_feeds=feeds.filter(inner & pl.col("scans")).any(),
    )
    (mixed, scan_feeds) = group_values(stretches, by_rank, ["rank"])
    guessed = pl.col("mixed") & ~pl.col("scan_feeds")
    stretches = stretches.with_columns(mixed=mixed, scan_feeds=scan_feeds).with_columns(
        own_layers=pl.col("mixed") & pl.col("scan_feeds"),
        confidence=pl.when(guessed & pl.col("attends")).then(0.5).otherwise("confidence"),
    )
    own = pl.col("attends").cast(pl.Int64) + pl.when(pl.col("own_layers") & pl.col("attends")).then(
        "feeds"
    ).otherwise(0)
    return stretches.with_columns(
        next_number=own.cum_sum().over("group"),
        number=own.cum_sum().over("group") - own,
        next_scans=pl.col("scans").shift(-1).over("group").fill_null(False),
    )


def _label(
    kernel: Kernel, place: int, stage: str | None, reason: str | None
) -> tuple[int, int, int]:
    """Place, stage and reason of an event as numbers; an event with a reason has no layer, and
    so no place in one.
    """
    if reason == "no step":
        # the rest of a layer whose beginning was not recorded
        stage = None if stage in ("embedding", "prepare_inputs") else stage
    elif reason == "draft model" and kernel.category != "collective":
        stage = "draft"
    elif reason == "encoder" and kernel.category != "collective":
        stage = "encoder"
    elif reason is not None and kernel.category != "collective":
        stage = kernel.category if kernel.category in _SAY_THEIR_STAGE else "other"
    return place if reason is None else EPILOGUE, _number(STAGES, stage), _number(_NAMES, reason)


def _hashes(kernel: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """A number for each stretch, by its kernels and their places."""
    place = np.arange(len(kernel)) - np.repeat(begins, sizes)
    mixed = kernel.astype(np.uint64) << np.uint64(32) | place.astype(np.uint64)
    for shift, factor in (
        (30, 0xBF58476D1CE4E5B9),
        (27, 0x94D049BB133111EB),
        (31, 0x9E3779B97F4A7C15),
    ):  # SplitMix64
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return np.add.reduceat(mixed ^ mixed >> np.uint64(29), begins)


def _add_ends(stretches: pl.DataFrame, distinct: list[Stretch]) -> pl.DataFrame:
    """Add ``last`` (GEMM that ends the layer), ``end`` (row), ``lead, qkv`` (:class:`Usual`) and
    ``confidence``.
    """
    attends, gemms, seen = pl.col("attends"), pl.col("gemms"), pl.col("seen")
    inner = attends & ~pl.col("is_last")
    # a head with its own activation (no experts) may follow the last layer: this layer ends where
    # the other layers do
    most = seen.filter(inner).max().over("group")
    shortened = (
        pl.when("experts").then(seen).when(seen.is_not_null()).then(pl.min_horizontal(seen, most))
    )
    stretches = stretches.with_columns(seen=pl.when("is_last").then(shortened).otherwise(seen))
    by_rank = stretches.group_by("rank").agg(
        usual_end=seen.filter(attends).drop_nulls().mode().min(),
        qkv=pl.coalesce(
            (gemms - seen).filter(inner).drop_nulls().mode().min(),
            gemms.filter(~attends).mode().min(),
            1,
        ),
        usual_count=gemms.filter(inner).mode().min(),
    )
    stretches = stretches.hstack(group_values(stretches, by_rank, ["rank"]))
    guess = pl.coalesce(
        "usual_end",
        pl.when(inner).then(gemms - pl.col("qkv")),
        pl.col("usual_count") - pl.col("qkv"),
    )
    stretches = stretches.with_columns(
        last=pl.when(attends).then(pl.coalesce(seen, pl.min_horizontal(guess.clip(0), gemms))),
        confidence=pl.when(~attends)
        .then(None)
        .when(seen.is_null())
        .then(0.5)
        .when(inner & (gemms != pl.col("usual_count")))
        .then(0.8)
        .otherwise(1.0),
    ).with_columns(pl.col("last").fill_null(-1))

    def end(stretch: int, last: int) -> tuple[int | None, ...]:
        return tuple(distinct[stretch].end(last)) if last >= 0 else (None,) * 4

    made = {
        "end": pl.Int64,
        "own_norm": pl.Boolean,
        "end_with_norm": pl.Int64,
        "next_gemm": pl.Int64,
    }
    stretches = apply_by_sequence(stretches, ["stretch", "last"], end, made)
    by_rank = stretches.group_by("rank").agg(
        norms=pl.col("own_norm").filter(inner).mean() > _MAJORITY
    )
    (norms,) = group_values(stretches, by_rank, ["rank"])
    mine = (norms & stretches["own_norm"]).fill_null(False)
    stretches = stretches.with_columns(end=pl.when(mine).then("end_with_norm").otherwise("end"))
    lead = (pl.col("next_gemm") - pl.col("end") - 1).filter(inner).drop_nulls().mode().min()
    (lead_of_group,) = group_values(
        stretches, stretches.group_by("group").agg(lead=lead), ["group"]
    )
    return stretches.with_columns(pl.col("end").fill_null(-1), lead=lead_of_group.fill_null(1))


def _add_reasons(stretches: pl.DataFrame, engine: pl.DataFrame | None) -> pl.DataFrame:
    """Add ``reason, reason_of_layer, reason_of_next``: why pass, layer and the layer that begins
    here do not count.
    """
    key = ["rank", "sequence", "step"]
    passes = stretches.group_by("group", maintain_order=True).agg(
        pl.col(key).first(),
        pl.sum("convolutions"),
        pl.col("samples", "caches").any(),
        layers=pl.sum("attends").cast(pl.Int64),
    )
    steps = passes.group_by(key, maintain_order=True).agg(
        "group", "layers", "samples", "caches", pl.sum("convolutions")
    )
    by_engine = pl.lit(False)
    if engine is not None:
        steps = steps.join(
            engine.unique().with_columns(engine=True), on=["rank", "step"], how="left"
        )
        by_engine = pl.col("engine").fill_null(False)
    steps = steps.with_columns(
        images=(pl.col("convolutions") > _MAX_CONVOLUTIONS) & ~by_engine, whole=pl.col("step") >= 0
    )

    def judge(
        layers: list[int], samples: list[bool], caches: list[bool], *known: bool
    ) -> list[str | None]:
        images, whole = known
        if images:
            return ["convolutions: an image model"] * len(layers)
        # events launched before the recording began are the end of one pass or of several
        if not whole:
            return ["no step"] * len(layers)
        encoders = _encoders(samples, caches)
        return ["encoder" if layers[i] else None for i in range(encoders)] + reasons_of_passes(
            layers[encoders:]
        )

    steps = apply_by_sequence(
        steps,
        ["layers", "samples", "caches", "images", "whole"],
        judge,
        {"reason": pl.List(REASONS)},
    )
    by_group = steps[["group", "reason"]].explode("group", "reason").sort("group")
    return _add_unlike(stretches.with_columns(reason=by_group["reason"][stretches["group"]]))


def _encoders(samples: Sequence[bool], caches: Sequence[bool]) -> int:
    """Number of passes at the beginning of a step that encode an input: no keys are kept, no
    token is chosen.
    """
    # The language model's pass follows, which does both; without such a pass none is known to be an
    # encoder's.
    lead = next(
        (
            i
            for i, (chooses, keeps) in enumerate(zip(samples, caches, strict=True))
            if chooses or keeps
        ),
        0,
    )
    return lead if samples and samples[lead] and caches[lead] else 0


def reasons_of_passes(layers: Sequence[int]) -> list[str | None]:
    """Why the passes of one step, with so many layers each, have none that count."""
    with_layers = [i for i, n in enumerate(layers) if n]
    if len(with_layers) < 2:
        return [None] * len(layers)
    most = max(layers)
    if layers.count(most) > 1:
        return ["several passes in one step"] * len(layers)
    if layers[with_layers[0]] != most:
        return ["several models in one step"] * len(layers)
    return ["draft model" if i > with_layers[0] else None for i in range(len(layers))]


def _add_unlike(stretches: pl.DataFrame) -> pl.DataFrame:
    """Give layers that are far larger than the others their reason, and those of a step with
    many such layers.
    """
    free = stretches.filter(pl.col("reason").is_null())
    key = ["rank", "step", "group", "layer"]
    parts = (
        free.select(*key, size="body"),
        free.select(*key[:3], pl.col("layer") + 1, size="prologue"),
    )
    sizes = pl.concat(parts).filter(pl.col("size") > 0).group_by(key).agg(pl.sum("size"))
    if not sizes.height:
        return stretches.with_columns(reason_of_layer="reason", reason_of_next="reason")
    size = pl.col("size")
    seldom = pl.len().over("rank", size.log(1.2).round()) < _OFTEN * pl.len().over("rank")
    # a step may have larger layers than other steps: no layer is unlike those of its own step
    largest = size.filter(~pl.col("seldom")).max().over("rank", "step").fill_null(0)
    far = (size > _UNLIKE * size.median().over("rank")) & (size > largest)
    sizes = sizes.with_columns(seldom=seldom).with_columns(unlike=pl.col("seldom") & far)
    sizes = sizes.filter(pl.col("unlike") | (pl.mean("unlike").over("rank", "step") > _MAX_UNLIKE))
    of_layer = sizes.select(
        "group", "layer", unlike=pl.lit("unlike the other layers", dtype=REASONS)
    )
    (own,) = group_values(stretches, of_layer, ["group", "layer"])
    (following,) = group_values(
        stretches.select("group", pl.col("layer") + 1), of_layer, ["group", "layer"]
    )
    return stretches.with_columns(
        reason_of_layer=pl.coalesce("reason", own), reason_of_next=pl.coalesce("reason", following)
    )


_OTHER_STREAMS = (
    "gemm",
    "activation",
    "norm",
    "quantize",
    "moe_experts",
    "moe_routing",
    "elementwise",
)
"""Categories of compute that runs on other streams than the main one: shared experts, the second
of two norms.
"""


def _label_other_streams(events: pl.DataFrame) -> pl.DataFrame:
    """Give kernels on streams without attention the layer of the kernel that the same thread
    launched before them.
    """
    layered = pl.col("layer").is_not_null()
    lane = ["rank", "stream"]
    streams = distinct_keys(events.select(lane).filter(events["layer"].is_not_null()), lane)
    free = (
        ~layered
        & pl.col("reason").is_null()
        & (pl.col("stage") == "other")
        & (pl.col("source") == "kernel")
    )
    candidates = events.select(
        free & pl.col("step").is_not_null() & pl.col("category").is_in(_OTHER_STREAMS)
    ).to_series()
    lanes = distinct_keys(events.select(lane).filter(candidates), lane)
    if not lanes.join(streams, on=lane, how="anti", nulls_equal=True).height:
        return events
    time = pl.col("start_ns")
    if {"launch_start_ns", "replayed"} <= set(events.columns):
        # the order of launches if each kernel of the step has its own, otherwise the order on the
        # device
        launched = (~pl.col("replayed") & pl.col("launch_start_ns").is_not_null()) | (
            pl.col("source") != "kernel"
        )
        events = events.with_columns(_eager=launched.all().over("rank", "step"))
        time = pl.when("_eager").then("launch_start_ns").otherwise("start_ns")
    main = events.filter(layered & (pl.col("source") == "kernel")).with_columns(at=time)
    attended = (
        pl.col("at")
        .filter(pl.col("stage").is_in(["attention", "scan"]))
        .min()
        .over("rank", "step", "layer")
    )
    of_layer = ["rank", "step", "layer"]
    begin, end = pl.min("at").over(of_layer), pl.max("at").over(of_layer)
    mixes = (pl.col("stage") == "experts").any().over(of_layer)
    main = (
        main.with_columns(attended=attended, until=2 * end - begin, mixes=mixes)
        .drop_nulls("at")
        .sort("at")
    )
    key = ["rank", "step"]
    side = events.filter(candidates).join(streams, on=lane, how="anti", nulls_equal=True)
    side = side.select("event", *key, "stream", "category", at=time).drop_nulls("at").sort("at")
    placed = side.join_asof(
        main.select(*key, "at", "attended", "until", "mixes", "layer", "confidence"),
        on="at",
        by=key,
        strategy="backward",
        check_sortedness=False,
    ).filter(pl.col("layer").is_not_null() & (pl.col("at") <= pl.col("until")))
    # an activation parts the projections up from those down; what runs before the attention is one
    # of its inputs
    activated = (
        pl.col("at").filter(category="activation").min().over("rank", "step", "layer", "stream")
    )
    linear = pl.col("category").is_in(["gemm", "quantize"])
    before, after = pl.col("at") < activated, pl.col("at") > activated
    feed_forward = (
        pl.when(before).then(pl.lit("gate_up_proj")).when(after).then(pl.lit("down_proj"))
    )
    by_position = (
        pl.when(pl.col("at") < pl.col("attended")).then(pl.lit("qkv_proj")).otherwise(feed_forward)
    )
    said = {
        "norm": "norm",
        "activation": "activation",
        "moe_experts": "experts",
        "moe_routing": "router",
    }
    # beside chosen experts, those that every token goes to
    shared = pl.col("mixes") & ~(pl.col("at") < pl.col("attended")).fill_null(False)
    shared &= linear.any().over(*key, "stream", "layer")
    shared &= pl.col("category").is_in(["gemm", "activation", "quantize", "elementwise"])
    named = (
        pl.when(shared)
        .then(pl.lit("shared_experts"))
        .when(linear)
        .then(by_position)
        .otherwise(pl.col("category").replace_strict(said, default=None))
    )
    placed = placed.with_columns(stage=named).drop_nulls("stage")
    rows = placed.select(
        "event", _layer="layer", _stage="stage", _sure=pl.min_horizontal("confidence", 0.8)
    )
    events = events.join(rows, on="event", how="left", maintain_order="left")
    return events.with_columns(
        layer=pl.coalesce("_layer", "layer"),
        stage=pl.coalesce("_stage", "stage"),
        confidence=pl.coalesce("_sure", "confidence"),
    ).drop("_layer", "_stage", "_sure", "_eager", strict=False)


def _swap_by_size(events: pl.DataFrame) -> pl.DataFrame:
    """Exchange the output projection of attention and the input projection of a scan beside it, if
    sizes say so.

    Compilers put either first. What goes into a scan is larger than what comes from the attention
    in every such model.
    """
    pair = ["o_proj", "in_proj"]
    both = (
        pl.col("stage").is_in(pair) & (pl.col("source") == "kernel") & pl.col("layer").is_not_null()
    )
    found = events.filter(both)
    if found["stage"].n_unique() < len(pair):
        return events
    key = ["rank", "step", "layer"]
    sizes = found.group_by(key).agg(
        *(pl.col("dur_ns").filter(stage=stage).sum().alias(stage) for stage in pair)
    )
    sizes = sizes.filter((pl.col("o_proj") > 0) & (pl.col("in_proj") > 0))
    per_step = sizes.with_columns(pl.col(pair).sum().over("rank", "step"))
    exchanged = per_step.filter(pl.col("o_proj") > pl.col("in_proj")).select(key, exchanged=True)
    if not exchanged.height:
        return events
    other = pl.col("stage").replace(dict(zip(pair, reversed(pair), strict=True)))
    events = events.join(exchanged, on=key, how="left", maintain_order="left", nulls_equal=True)
    return events.with_columns(
        stage=pl.when(pl.col("exchanged") & both).then(other).otherwise("stage")
    ).drop("exchanged")
