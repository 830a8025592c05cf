"""Labels of device events: step, phase, layer and stage. Most analyses use this frame."""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from llmprof import names
from llmprof.label.activity import CAPTURED, EVIDENCE
from llmprof.label.layers.kernels import LAYER_STAGES
from llmprof.label.layers.sequences import REASONS, apply_by_sequence, reasons_of_passes
from llmprof.label.nesting import innermost
from llmprof.names import modules as purposes
from llmprof.theory.calls import operator_categories
from llmprof.trace import Trace

_CALL_RANGE: Final = r"^nccl:"
"""Ranges that torch's process groups open around their calls."""


def described_kinds(events: pl.DataFrame, trace: Trace) -> pl.DataFrame | None:
    """``event, kind`` of collectives whose description differs from their kernels' names."""
    # The description comes from the profiler's metadata, or else from the operator or the range of
    # torch's process group around the call (`nccl:all_to_all`): NCCL runs an all-to-all with send
    # and receive kernels, RCCL has a kernel for any kind.
    parts = [
        p
        for p in (_kinds_of_metadata(events, trace), _kinds_of_calls(events, trace))
        if p is not None
    ]
    return pl.concat(parts).unique("event", keep="first", maintain_order=True) if parts else None


def _kinds_of_calls(events: pl.DataFrame, trace: Trace) -> pl.DataFrame | None:
    kernels = events.filter(
        (pl.col("category") == "collective") & pl.col("launch_start_ns").is_not_null()
    )
    vague = kernels.filter(names.collective_kinds(kernels["name"]).is_in(["send_recv", "other"]))
    if not vague.height:
        return None
    columns = ("rank", "thread", "start_ns", "dur_ns", "name")
    calls = []
    if trace.has("markers"):
        calls.append(
            trace.markers.filter(~pl.col("on_device") & pl.col("name").str.contains(_CALL_RANGE))
        )
    if trace.has("ops"):
        calls.append(
            trace.ops.filter(operator_categories(trace.ops["name"]).fill_null("") == "collective")
        )
    around = (
        pl.concat(frame.select(columns) for frame in calls)
        if calls
        else pl.DataFrame(schema=events.schema)
    )
    kinds = names.collective_kinds(around["name"])
    around = around.with_columns(kind=kinds, thread=pl.col("thread").fill_null(-1)).filter(
        pl.col("kind") != "other"
    )
    if not around.height:
        return None
    points = vague.select(
        "event", "rank", "launch_start_ns", thread=pl.col("launch_thread").fill_null(-1)
    )
    placed = innermost(points, around, ["rank", "thread"], at="launch_start_ns", name="_call")
    said = placed.select("event", kind=pl.lit(around["kind"]).gather(pl.col("_call")))
    own = vague.select("event", own=names.collective_kinds(vague["name"]))
    return (
        said.drop_nulls()
        .join(own, on="event")
        .filter(pl.col("kind") != pl.col("own"))[["event", "kind"]]
    )


def _kinds_of_metadata(events: pl.DataFrame, trace: Trace) -> pl.DataFrame | None:
    if not trace.has("collectives"):
        return None
    key = ["rank", "stream", "start_ns", "name"]
    rows = trace.collectives.filter("on_device").select(*key, "kind")
    other = rows["kind"] != names.collective_kinds(rows["name"])
    if not other.any():
        return None
    rows = (
        rows.with_columns(_other=other)
        .unique(key, keep="first", maintain_order=True)
        .filter("_other")
    )
    return events.join(rows, on=key, nulls_equal=True)[["event", "kind"]] if rows.height else None


_PLAIN: Final = ("elementwise", "other", "copy", "fill")
"""Categories of events whose stage follows from what is around them."""
_EXPERT_STAGES: Final = (
    *(
        "router",
        "expert_dispatch",
        "experts",
        "activation",
        "combine",
        "gate_up_proj",
        "down_proj",
        "shared_experts",
    ),
)
_ATTENTION_STAGES: Final = ("rope", "kv_cache_write", "attention", "norm")
_PROJECTION: Final = {"o_proj": "o_proj", "up": "gate_up_proj", "down": "down_proj"}
"""Stage of the linear events of a block."""
_SAID_BY_CATEGORY: Final = (
    "norm",
    "attention",
    "scan",
    "rope",
    "kv_cache_write",
    "activation",
    "embedding",
    "sampling",
    "moe_experts",
    "collective",
    "copy",
)
"""Categories that determine the stage; the stage of a GEMM follows from its place."""


class _ModuleEvent(NamedTuple):
    """What is known of an event that was launched in a module; ``stage`` is that of its name and
    place.
    """

    category: str
    stage: str | None
    role: str | None
    block: str | None
    generic: bool | None
    last_linear: bool | None
    before_layers: bool | None
    after_attention: bool | None
    parted: bool | None
    exchange: str | None
    inside: bool
    """In a module that is a layer or part of one."""
    in_model: bool
    rotary: bool
    """Whether a module or a kernel of the rank rotates q and k."""
    shared: bool
    """In an expert that every token goes to, beside others that are chosen."""
    mixture: bool
    """In a layer with experts."""
    scanned: bool | None
    """Whether the last scan of its block came before it; null in a block without scans."""
    verdict: str | None

    @property
    def communicates(self) -> bool:
        """Whether it is part of a collective: then its stage is the kind of the collective."""
        return self.stage in names.COLLECTIVE_KINDS and self.stage != "other"

    def named(self) -> tuple[str | None, bool]:
        """Its stage, and whether its module determines that."""
        if self.verdict == "draft model" and self.category != "collective":
            return "draft", True
        said = None
        if self.verdict == "encoder" and self.category != "collective":
            return "encoder", True
        if self.inside and self.stage in ("indexer", "top_k", "lora"):
            return self.stage, False
        if self.inside and self.exchange:
            said = {"before": "expert_dispatch", "after": "combine"}.get(self.exchange)
        elif not self.communicates:
            said = (
                self._layer_stage()
                if self.inside
                else self._model_stage()
                if self.in_model
                else self._elsewhere()
            )
        # an event outside of layers cannot keep the stage of a layer, and an event in a layer no
        # stage from outside
        if said or self.stage is None or (not self.inside and not self.in_model):
            return said or self.stage, said is not None
        if self.inside:
            return (
                self.stage if self.stage in LAYER_STAGES or self.communicates else "other"
            ), False
        if self.stage in LAYER_STAGES:
            return ("prepare_inputs" if self.before_layers else "other"), False
        return self.stage, False

    def _layer_stage(self) -> str | None:
        feeds = self.role in ("gate_up_proj", "activation", "down_proj") or self.block in (
            "feed_forward",
            "experts",
        )
        if self.shared or (self.stage == "shared_experts" and feeds):
            return "shared_experts"
        if self.scanned is not None:
            return self._scan_mixer_stage()
        category, role, block, plain = self.category, self.role, self.block, self.category in _PLAIN
        linear = category == "gemm" or (self.generic and (plain or category == "quantize"))
        if role in (
            *(
                "norm",
                "rope",
                "in_proj",
                "qkv_proj",
                "o_proj",
                "gate_up_proj",
                "down_proj",
                "router",
                "activation",
            ),
        ):
            return role
        if role == "attention":
            by_category = category in ("kv_cache_write", "rope", "norm")
            return (
                category
                if by_category
                else "kv_cache_write"
                if self.stage == "kv_cache_write"
                else "attention"
            )
        if role == "experts":
            return None if category != "moe_experts" and self.stage in _EXPERT_STAGES else "experts"
        if category in ("norm", "kv_cache_write"):
            return category
        if block == "attention":
            return self._attention_stage(linear=bool(linear))
        if linear and block in _PROJECTION:
            return _PROJECTION[block]
        if linear and block == "feed_forward":
            return "down_proj" if self.last_linear else "gate_up_proj"
        if (
            block in ("up", "feed_forward")
            and (plain or category == "activation")
            and not self.mixture
        ):
            return "activation"
        if block == "experts" and category == "moe_experts":
            return "experts"
        # a layer computes only the residual outside of its modules, if these were recorded
        around = block in ("o_proj", "down") or (block is None and self.parted)
        return (
            "residual"
            if around and category in ("elementwise", "other") and self.stage != "norm"
            else None
        )

    def _scan_mixer_stage(self) -> str | None:
        """In the mixer of a state-space or linear-attention layer."""
        if self.category == "scan":
            return "conv" if self.stage == "conv" else "scan"
        if self.category == "gemm" or self.generic:
            return "out_proj" if self.scanned and self.role != "in_proj" else "in_proj"
        if self.role == "norm" or self.category == "norm":
            return "gate_norm" if self.scanned else "norm"
        return None if self.scanned and self.category in _PLAIN else "scan"

    def _attention_stage(self, *, linear: bool) -> str | None:
        if self.category in ("rope", "attention"):
            return self.category
        if linear:
            after = self.last_linear if self.after_attention is None else self.after_attention
            return "o_proj" if after else "qkv_proj"
        if self.category not in _PLAIN:
            return None
        if not self.after_attention and self.stage in _ATTENTION_STAGES:
            return None
        return "rope" if self.rotary and not self.after_attention else "attention"

    def _model_stage(self) -> str | None:
        if self.block == "embeddings" and self.role != "rope":
            return "embedding"
        if self.role in ("embedding", "rope", "lm_head", "sampling"):
            return self.role
        if self.block == "head":
            return "lm_head"
        if self.role == "norm":
            return "embedding" if self.before_layers else "final_norm"
        return "lm_head" if self.category == "gemm" and self.before_layers is False else None

    def _elsewhere(self) -> str | None:
        return self.role if self.role in ("sampling", "lm_head") and self.stage != "draft" else None


def label_modules(attributed: pl.DataFrame, modules: pl.DataFrame | None) -> pl.DataFrame:
    """Add ``evidence``, and the layers and stages that modules say in place of those from names
    and place.
    """
    alone = pl.col("category").is_in(_SAID_BY_CATEGORY) & (pl.col("stage") != "draft")
    by_category = pl.when(alone).then("category_by").otherwise(pl.lit("position", dtype=EVIDENCE))
    unknown = pl.col("stage").is_null() | (
        pl.col("reason").is_not_null() & (pl.col("stage") == "other")
    )
    attributed = attributed.with_columns(evidence=pl.when(~unknown).then(by_category))
    if modules is None:
        return attributed
    return _replace_labels(attributed, _module_labels(attributed, modules))


def label_captured(attributed: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Replace labels of replayed kernels whose module was recorded when their graph was
    captured.
    """
    if f"{CAPTURED}layer" not in kernels.columns:
        return attributed
    key = ["rank", "stream", "start_ns", "name"]
    stage = pl.col(f"{CAPTURED}stage")
    rows = kernels.filter((pl.col(f"{CAPTURED}evidence") == "module") & (stage != "other")).select(
        *key,
        _layer=f"{CAPTURED}layer",
        _stage=stage,
        _sure=f"{CAPTURED}confidence",
        _reason=pl.lit(None, REASONS),
        layer_known=pl.lit(True),
        stage_known=pl.lit(True),
    )
    events = attributed.select("event", *key)
    said = events.join(rows.unique(key, keep="first"), on=key, how="inner", nulls_equal=True)
    return _replace_labels(attributed, said.drop(key))


def _replace_labels(attributed: pl.DataFrame, said: pl.DataFrame) -> pl.DataFrame:
    """The labels that modules say in place of those from names and place."""
    attributed = attributed.join(said, on="event", how="left", maintain_order="left")
    of_module = pl.col("stage_known").fill_null(False)
    layer_known = pl.col("layer_known").fill_null(False)
    layer = pl.when(layer_known).then("_layer").otherwise("layer")
    sure = pl.when(of_module).then("_sure").otherwise(pl.coalesce("confidence", 1.0))
    return attributed.with_columns(
        layer=layer.cast(pl.Int32),
        stage=pl.coalesce("_stage", "stage"),
        confidence=pl.when(layer.is_not_null()).then(sure),
        evidence=pl.when(of_module).then(pl.lit("module", dtype=EVIDENCE)).otherwise("evidence"),
        reason=pl.when(layer_known).then("_reason").otherwise("reason"),
    ).drop("_layer", "_stage", "_sure", "_reason", "layer_known", "stage_known")


def _module_labels(events: pl.DataFrame, modules: pl.DataFrame) -> pl.DataFrame:
    """``event, _layer, _stage, _sure, _reason``, and whether the module says the layer (or none)
    and stage.
    """
    # Rows for the events of steps in which a module is a layer.
    shared = pl.col("module").str.contains(purposes.SHARED_EXPERTS).alias("shared")
    rows = (
        modules.with_columns(shared)
        .drop("launch_start_ns", "module")
        .rename({"layer": "module_layer"})
    )
    frame = events.join(rows, on="event", how="inner")
    layered = frame.drop_nulls("module_layer")[["rank", "step"]].unique()
    frame = frame.join(layered, on=["rank", "step"], how="semi", nulls_equal=True)
    at, category, role = pl.col("launch_start_ns"), pl.col("category"), pl.col("role")
    attention_ns = at.filter(category == "attention").min().over("block_call")
    scanned_ns = at.filter(category == "scan").max().over("block_call")
    # the experts' module sends the tokens before its first matrix product, and the results after
    # its last one
    products = at.filter((role == "experts") & category.is_in(["gemm", "moe_experts"]))
    exchanges = (role == "experts") & (category == "collective") & (pl.col("stage") != "all_reduce")
    after = (
        pl.when(at > products.max().over("block_call"))
        .then(pl.lit("after"))
        .otherwise(pl.lit("between"))
    )
    mixes = (category == "moe_experts") | (role == "experts")
    exchange = (
        pl.when(at < products.min().over("block_call")).then(pl.lit("before")).otherwise(after)
    )
    frame = frame.with_columns(
        after_attention=at > attention_ns,
        scanned=at > scanned_ns,
        parted=(pl.col("block").is_not_null() | role.is_not_null())
        .any()
        .over("rank", "module_layer"),
        exchange=pl.when(exchanges).then(exchange),
        mixture=mixes.fill_null(False).any().over("rank", "module_layer"),
        inside=pl.col("module_layer").is_not_null(),
        in_model=pl.col("first_layer_ns").is_not_null(),
        rotary=((role == "rope") | (category == "rope")).fill_null(False).any().over("rank"),
    )
    frame = frame.with_columns(pl.col("shared").fill_null(False) & pl.col("mixture"))
    # beside a language model; alone, an encoder is the model
    other_layers = pl.col("inside") & ~pl.col("encodes")
    frame = frame.with_columns(encodes=pl.col("encodes") & other_layers.any().over("rank"))
    verdicts = _verdicts(frame.filter(~pl.col("encodes")))
    frame = frame.join(verdicts, on=["rank", "step", "root"], how="left", nulls_equal=True)
    encoder = pl.lit("encoder", dtype=REASONS)
    frame = frame.with_columns(verdict=pl.when("encodes").then(encoder).otherwise("verdict"))
    # passes without labels between them do not count as several in one step
    no_step = pl.col("step").is_null() & pl.col("verdict").is_not_null()
    frame = frame.with_columns(
        verdict=pl.when(no_step).then(pl.lit("no step", dtype=REASONS)).otherwise("verdict")
    )
    said = {"_stage": pl.String, "stage_known": pl.Boolean}
    frame = apply_by_sequence(
        frame, _ModuleEvent._fields, lambda *known: _ModuleEvent(*known).named(), said
    )
    known = pl.col("inside") | pl.col("in_model") | pl.col("encodes")
    return frame.select(
        "event",
        "_stage",
        "stage_known",
        _layer=pl.when(known & pl.col("verdict").is_null()).then("module_layer"),
        layer_known=known,
        _sure=pl.lit(1.0),
        _reason=pl.when(
            pl.col("inside") | pl.col("verdict").is_in(["draft model", "encoder"])
        ).then("verdict"),
    )


def _verdicts(frame: pl.DataFrame) -> pl.DataFrame:
    """``rank, step, root, verdict`` of each model's call in a step: reason why its layers do not
    count, or null.
    """
    key = ["rank", "step"]
    roots = (
        frame.filter("inside")
        .group_by(*key, "root")
        .agg(layers=pl.struct("stack", "module_layer").n_unique().cast(pl.Int64))
        .filter(
            pl.col("layers") > 1
        )  # an outermost call with one layer is a range of a layer, not a model's call
        .sort("root")
        .group_by(key)
        .agg("root", "layers")
    )
    judged = apply_by_sequence(roots, ["layers"], reasons_of_passes, {"verdict": pl.List(REASONS)})
    return judged.explode("root", "verdict").select(*key, "root", "verdict")
