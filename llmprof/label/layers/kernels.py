"""What the rules for layers see of an event: its category and the roles that its name gives it."""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from llmprof import names
from llmprof.names.matching import by_distinct, remembered

_LAYER_STAGES: Final = (
    "norm",
    "qkv_proj",
    "rope",
    "kv_cache_write",
    "attention",
    "o_proj",
    "gate_up_proj",
    "activation",
    "down_proj",
    "in_proj",
    "conv",
    "scan",
    "gate_norm",
    "out_proj",
    "residual",
    "router",
    "expert_dispatch",
    "experts",
    "combine",
    "shared_experts",
    "indexer",
    "top_k",
    "lora",
)
_OUTSIDE: Final = (
    *(
        "prepare_inputs",
        "embedding",
        "final_norm",
        "lm_head",
        "sampling",
        "draft",
        "encoder",
        "kv_transfer",
    ),
    *("copy", "other"),
)

LAYER_STAGES: Final = frozenset(_LAYER_STAGES)
STAGES: Final = tuple(dict.fromkeys((*_LAYER_STAGES, *_OUTSIDE, *names.COLLECTIVE_KINDS)))
STAGE: Final = pl.Enum(STAGES)
"""Type of a stage while events are labelled: numbers in place of texts, for millions of events."""

SEQUENCE_STAGES: Final = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
"""Collectives that belong to the order of the compute stream although they may run on another
stream.
"""

_PLAIN: Final = ("other", "elementwise")
_ROLES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "convolves": (("conv",), ""),
    # GEMMs in single precision, sines and cosines compute the angles of rope
    "single": (("gemm",), r"(?i)sgemm|gemm_f32f32|Cijk_\w+?_S_?B_"),
    "rotates": (_PLAIN, r"(?i)\b(?:cos|sin)_kernel"),
    # activations and norms that the framework computes kernel by kernel
    "bends": (("elementwise",), r"(?i)\b(?:tanh|erf|sigmoid)_kernel"),
    "roots": (_PLAIN, r"(?i)rsqrt"),
    "powers": (_PLAIN, r"(?i)\bpow_|PowFunctor|\bsquare"),
    "adds": (
        _PLAIN,
        r"(?i)CUDAFunctor_add|\bop_add\b|\bAddFunctor|aten::add_?$|residual|^triton_poi_fused_add_\d|_Add(?:AiCore)?$|^Add\d+$",
    ),
    "multiplies": (
        _PLAIN,
        r"(?i)MulFunctor|\bop_mul\b|aten::mul_?$|^triton_poi_fused_mul_\d|_Muls?(?:AiCore)?$|^Mul\d+$",
    ),
    "framework": (_PLAIN, r"at::native|^aten::"),
    "fuses add": (("norm",), r"(?i)add_?rms|add_?layer|fused_add|AddRMS|addRms"),
    # kernels of latent attention multiply with the absorbed projections of k and v
    "latent": ((), r"(?i)\bmla|_mla|mla_|BatchMLA|[a-z]Mla[A-Z]"),
    "readies": ((), r"(?i)prepare_varlen|get_scheduler_metadata|get_mla_metadata"),
    # choices among values: between GEMMs they choose experts
    "chooses": (_PLAIN, r"(?i)gatherTopK|bitonicSort|radixSort|\btopk"),
    "routes": (("moe_routing",), "(?i)topk|gating|softmax|routing|gate"),
    # sparse attention scores the keys, and chooses those to attend to
    "scores": (("attention", "kv_cache_write"), r"(?i)mqa_logits|indexer|index_(?:block_)?score"),
    "selects": (("attention",), r"(?i)topk_transform|topKPerRow|topk_index"),
    "dispatches": (("collective",), f"(?i){names.DISPATCH}"),
    "returns": (("collective",), f"(?i){names.RETURN}"),
    "adapts": (("gemm",), f"(?i){names.LORA}"),
    "transfers": (("copy",), f"(?i){names.KV_TRANSFER}"),
    "embeds": (("embedding",), f"(?i){names.EMBEDDING}"),
    # compilers put the look-up into the first norm
    "embeds_and_norms": (("norm",), f"(?i){names.EMBEDDING}"),
    "caches": (("copy",), "(?i)CatArray|index_copy|index_put|aten::cat$"),
}
"""Categories in which the name may have a role (none: all of them), and its pattern."""

_UNLESS: Final = {
    # these bring tokens to the experts or back
    "routes": "(?i)init_?routing|finali[sz]e|permute|re_?routing",
}
_PREPARES: Final = (
    r"^aten::(?:view|reshape|empty|empty_like|empty_strided|new_empty|slice|select|narrow|split|split_with_sizes|chunk|"
    r"unbind|as_strided|expand|permute|transpose|t|squeeze|unsqueeze|flatten|unflatten|detach|alias|lift_fresh|"
    r"resolve_conj|resolve_neg|movedim)$"
)
"""Operators that only bring tensors into the form that the next operator needs."""


class Kernel(NamedTuple):
    """All that a rule may ask of an event."""

    category: str
    source: str
    kind: str | None
    """Kind of a collective."""
    roles: frozenset[str]

    def does(self, role: str) -> bool:
        """Whether its name has a role of :data:`_ROLES`, or one that is added to it."""
        return role in self.roles

    def among(self, *categories: str) -> bool:
        """Whether it has one of these categories."""
        return self.category in categories

    @property
    def separates(self) -> bool:
        """Whether it is between the attentions of two layers, and not within one."""
        return self.among("norm", "activation", "moe_experts", "moe_routing", "collective")


_PATTERNS: Final = {
    **{role: pattern for role, (_, pattern) in _ROLES.items()},
    **{f"unless {role}": pattern for role, pattern in _UNLESS.items()},
    "helps a gemm": f"(?i){names.GEMM_HELPERS}",
    "gradient": names.GRADIENT,
    "optimizer": f"(?i){names.OPTIMIZER}",
    "helps attention": f"(?i){names.ATTENTION_HELPERS}",
    "conv1d": r"conv1d",
    "prepares": _PREPARES,
}


@remembered
def _match_roles(distinct: tuple[str, ...]) -> pl.Series:
    """For each name which of :data:`_PATTERNS` it matches."""
    name = pl.Series("name", distinct, dtype=pl.String)
    return pl.DataFrame(
        {key: name.str.contains(pattern) for key, pattern in _PATTERNS.items()}
    ).to_struct()


def distinct_kernels(
    name: pl.Series, category: pl.Series, source: pl.Series
) -> tuple[pl.Series, list[Kernel]]:
    """The distinct kernels of some names, categories and sources, and the number of each row's."""
    has = dict(zip(_PATTERNS, by_distinct(name, _match_roles).struct.unnest(), strict=True))
    groups = dict.fromkeys(of for of, _ in _ROLES.values())
    within = (pl.col("category").is_in(of).alias(str(n)) for n, of in enumerate(groups))
    among = dict(zip(groups, category.to_frame("category").select(within), strict=True))
    roles = {role: among[of] & has[role] if of else has[role] for role, (of, _) in _ROLES.items()}
    for role in _UNLESS:
        roles[role] &= ~has[f"unless {role}"]
    roles["roots"] |= category == "norm"
    products = category.is_in(["gemm", "conv"]) & ~has["helps a gemm"]
    roles["gemm"] = products | (category == "moe_experts")
    roles["returns"] &= ~roles["dispatches"]
    roles["backward"] = (
        category.is_in(["attention", "norm", "activation"]) & has["gradient"] | has["optimizer"]
    )
    roles["attends"] = (category == "attention") & ~has["helps attention"] & ~roles["backward"]
    # the causal convolution before a scan is part of its mixer, and the mixer itself where there
    # are no scans
    roles["convolves before"] = (category == "scan") & has["conv1d"]
    roles["attends"] |= (category == "scan") & ~roles["convolves before"]
    roles["prepares"] = (category == "quantize") | ((source == "copy") & (category == "fill"))
    roles["prepares"] |= (source == "op") & has["prepares"]
    collective = (category == "collective").arg_true()
    kinds = pl.Series([None], dtype=pl.String).new_from_index(0, name.len())
    kinds = kinds.scatter(collective, names.collective_kinds(name[collective]))
    bits = sum(flag.cast(pl.Int64) * 2**at for at, flag in enumerate(roles.values()))
    frame = pl.DataFrame({"category": category, "source": source, "kind": kinds, "bits": bits})
    distinct = frame.unique(maintain_order=True).with_row_index("number")
    number = frame.join(
        distinct, on=frame.columns, how="left", nulls_equal=True, maintain_order="left"
    )["number"]
    return number, [
        Kernel(
            row[0],
            row[1],
            row[2],
            frozenset(role for at, role in enumerate(roles) if row[3] >> at & 1),
        )
        for row in distinct.drop("number").iter_rows()
    ]
