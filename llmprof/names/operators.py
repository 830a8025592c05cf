"""Roles of modules, which also describe the kernels that they launched, and how names are
matched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec

import numpy as np
import polars as pl

DOMAIN: Final = "module"

CALL: Final = r"^nn\.Module: (.+?)(?:_(\d+))?$"
"""Pattern of the name of such a marker: the class of the module, and the number of the object in
its class.
"""

PATHS: Final = (
    r"^\{'Module': '([^']+)'",
    r"^layer::(.+)$",
    r"^((?:[A-Za-z_]\w*\.)+(?:layers|h|blocks)\.\d+(?:\.\w+)*)$",
)
"""Patterns of markers that name a module's path in the model: vLLM's layerwise NVTX, its
annotations, other ranges.
"""

LAYER: Final = r"(?:^|\.)(?:layers?|h|blocks?|decoder_layers)[._](\d+)(?:\.|$)"

SHARED: Final = r"rotary|rope"
"""Modules whose single object serves all layers: the number in their path is not the layer that
calls them.
"""

ENCODER: Final = (
    r"(?i)(?:^|\.)(?:visual|vision\w*|image_encoder|audio\w*|speech_encoder)(?:\.|$)"
    r"|(?:Vision|Visual|Siglip|Clip|Audio|Whisper)\w*(?:Transformer|Tower|Encoder|Model)$"
    r"|Text(?:Transformer|Encoder)$"
)
"""Modules that encode images, sound or the text that is compared with them: paths, and classes
of the outermost one.
"""

SHARED_EXPERTS: Final = r"shared_?(?:experts?|mlp)"
"""Modules of experts that every token goes to; without chosen ones beside them they are a plain
feed-forward part.
"""

ROLES: Final[list[tuple[str, str]]] = [
    ("rope", r"(?i)rotary|^rope$|RoPE"),
    ("norm", r"(?i)norm(?:\d?d?)$|norm_?\d*$|^ln_|_ln$|^norm"),
    ("lm_head", r"(?i)^lm_?head|LogitsProcessor|ParallelLMHead|^embed_out$|logits_processor"),
    ("embedding", r"(?i)embed"),
    ("sampling", r"(?i)sampler$|^sampler"),
    (
        "qkv_proj",
        r"(?i)qkv|^(?:q|k|v)_(?:[ab]_)?proj|^(?:q|k|v|query|key|value)$|^kv_[ab]_proj|^c_attn$|W_pack|query_key_value",
    ),
    (
        "gate_up_proj",
        r"(?i)gate_?up|^(?:gate|up)_proj$|^fc_?1$|^fc_in$|^w[13]$|MergedColumn|^c_fc$|_h_to_4h$|^linear_fc1$|^wi(?:_\d)?$|^input_linear$",
    ),
    (
        "down_proj",
        r"(?i)down_proj$|^fc_?2$|^fc_out$|^w2$|_4h_to_h$|^linear_fc2$|^wo_ff$|^output_linear$",
    ),
    ("in_proj", r"(?i)^in_proj|^x_proj$|^dt_proj$|^[bfg]_(?:[ab]_)?proj$"),
    ("o_proj", r"(?i)^o_proj$|^out_proj$|^out_lin$|^wo$|^to_out"),
    ("activation", r"(?i)act_fn$|^act$|AndMul$|activation$|^(?:silu|gelu|relu|swish|swiglu)\w*$"),
    ("router", r"(?i)router$|^gate$|TopK\w{0,64}Router|^topk$|MoEGate$"),
    ("experts", r"(?i)^experts$|FusedMoE|\wExperts$|SharedFusedMoE|GroupedExperts|^MoERunner"),
    (
        "attention",
        r"(?i)^attn$|^Attention$|RadixAttention|core_attention|FlashAttention|MLAAttention|^mla_attn$|PagedAttention",
    ),
]
"""Ordered ``(role, pattern)`` of modules with a single purpose; the first match wins."""

BLOCKS: Final[list[tuple[str, str]]] = [
    ("o_proj", r"SelfOutput$"),
    (
        "head",
        r"(?i)LMHead$|prediction_?head|mlm_?head|OnlyMLM|classifier$|pooler$|^score$|HeadTransform",
    ),
    ("embeddings", r"(?i)embeddings?$|PatchEmbed"),
    # the attention of a model with experts may have "moe" in its name, too (Qwen3MoeAttention)
    ("attention", r"(?i)moe\w{0,64}(?:attn|attention)"),
    ("experts", r"(?i)moe|experts|sparse_?moe"),
    ("attention", r"(?i)attn|attention|mixer|mamba|deltanet|mha$|short_?conv|^conv$"),
    ("up", r"Intermediate$"),
    ("down", r"(?<!Self)(?<!Model)(?<!Attention)Output$"),
    ("feed_forward", r"(?i)mlp|feed_?forward|ffn?$|DenseGated|DenseAct"),
]
"""Ordered ``(block, pattern)`` of modules that contain others; the head of a whole model is not
a block.
"""

GENERIC: Final = r"Linear\w{0,64}$|LinearBase|^Conv1D$|^dense$|^c_proj$"
"""Linear modules whose role depends on the block that they are in."""

MODEL: Final = r"For[A-Z]\w{1,64}$|Model$|LMHeadModel$|Transformer$"

LAYER_CLASS: Final = r"(?:Layer|Block)(?:V?\d+)?$"
"""Pattern of classes of whole layers, if they are not a block."""

_WHOLE_LAYER: Final = r"(?:Decoder|Encoder|Transformer)\w{0,64}(?:Layer|Block)$"
"""Pattern of classes of layers whose name also states their content, such as a mixture of
experts.
"""


class Purpose(NamedTuple):
    """Purpose of a module: its own role, its block, and whether it is a linear module with a
    generic name.
    """

    role: str | None
    block: str | None
    generic: bool


def module_purpose(name: str) -> Purpose:
    """Purpose of a module by its class, or by the last part of its path."""
    if re.search(MODEL, name) or re.search(_WHOLE_LAYER, name):
        return Purpose(None, None, generic=False)
    role = next((role for role, pattern in ROLES if re.search(pattern, name)), None)
    block = next((block for block, pattern in BLOCKS if re.search(pattern, name)), None)
    if role == "embedding" and block == "embeddings" and name.endswith("ddings"):
        role = None
    return Purpose(role, block, generic=role is None and re.search(GENERIC, name) is not None)


def match(name: pl.Expr, patterns: list[tuple[str, str]], default: str | None) -> pl.Expr:
    """Value of the first pattern that a name matches."""
    tests = [
        pl.when(name.str.contains(f"(?i){pattern}")).then(pl.lit(value))
        for value, pattern in patterns
    ]
    return pl.coalesce(*tests, pl.lit(default, dtype=pl.String))


def first_true(cases: Mapping[str, pl.Expr], otherwise: str | None = None) -> pl.Expr:
    """The first text whose condition holds for a row."""
    texts = [pl.when(condition).then(pl.lit(text)) for text, condition in cases.items()]
    return pl.coalesce(*texts, pl.lit(otherwise, dtype=pl.String))


P = ParamSpec("P")

_AT_ONCE: Final = 1 << 16
"""Distinct names that are matched together: more take memory for each pattern."""
_FEW: Final = 1 << 12
"""Most names whose meaning is kept: more than a recording of one model has."""


def remembered(
    meaning: Callable[Concatenate[tuple[str, ...], P], pl.Series],
) -> Callable[Concatenate[tuple[str, ...], P], pl.Series]:
    """Decorator: keep what few names mean, because compiling patterns takes longer than matching
    the names of a trace.

    What it returns is shared, and must not be changed.
    """
    kept: Any = lru_cache(maxsize=64)(meaning)

    @wraps(meaning)
    def looked_up(names: tuple[str, ...], /, *args: P.args, **options: P.kwargs) -> pl.Series:
        found: pl.Series = (kept if len(names) <= _FEW else meaning)(names, *args, **options)
        return found

    return looked_up


def by_unique_name(
    names: pl.Series, patterns: list[tuple[str, str]], default: str | None
) -> pl.Series:
    """Like :func:`match`, but each distinct name is matched once."""
    table = tuple(patterns)
    return by_distinct(names, lambda each: _values(each, table, default))


def by_distinct(names: pl.Series, meaning: Callable[[tuple[str, ...]], pl.Series]) -> pl.Series:
    """Values of names, from a function that sees each distinct name once."""
    coded = names.cast(pl.Categorical)
    if coded.null_count() == coded.len():
        return meaning(()).extend_constant(None, coded.len())
    codes = coded.to_physical()
    rows = one_of_each(codes)
    distinct = coded[rows].cast(pl.String)
    values = pl.concat(
        [meaning(tuple(distinct[i : i + _AT_ONCE])) for i in range(0, len(rows), _AT_ONCE)]
    )
    row_of_code = np.zeros(int(codes.max()) + 1, dtype=np.uint32)  # type: ignore[arg-type]
    row_of_code[codes[rows].to_numpy()] = np.arange(len(rows), dtype=np.uint32)
    numbers = pl.Series(row_of_code[codes.fill_null(0).to_numpy()])
    return values.gather(numbers.set(codes.is_null(), None) if codes.null_count() else numbers)


def contains(names: pl.Series, pattern: str) -> pl.Series:
    """Whether each name matches a regular expression, which is looked for once in each distinct
    name.
    """
    return by_distinct(
        names, lambda distinct: pl.Series(distinct, dtype=pl.String).str.contains(pattern)
    )


def one_of_each(codes: pl.Series) -> np.ndarray:
    """A row for each distinct number (from 0, not far more than there are rows), in the order of
    the numbers.
    """
    rows = np.arange(codes.len())
    if codes.null_count():
        rows, codes = rows[codes.is_not_null().to_numpy()], codes.drop_nulls()
    if not len(rows):
        return rows
    row_of = np.full(int(codes.max()) + 1, -1)  # type: ignore[arg-type]
    row_of[codes.to_numpy()] = rows
    return row_of[row_of >= 0]


@remembered
def _values(
    names: tuple[str, ...], patterns: tuple[tuple[str, str], ...], default: str | None
) -> pl.Series:
    """Value of each name."""
    ascii_only = all(name.isascii() for name in names)
    usable = [(value, _of_ascii(pattern) if ascii_only else pattern) for value, pattern in patterns]
    frame = pl.DataFrame({"name": pl.Series(names, dtype=pl.String)})
    return frame.select(value=match(pl.col("name"), usable, default))["value"]


def _of_ascii(pattern: str) -> str:
    """Pattern with ASCII character classes, which matches ASCII names equally and compiles four
    times as fast.
    """
    return re.sub(
        r"\\(b\{[a-z-]+\}|.)",
        lambda escape: _ASCII.get(escape[1], escape[0]),
        pattern,
        flags=re.DOTALL,
    )


_ASCII = {"w": "[0-9A-Za-z_]", "d": "[0-9]", "s": r"[\t\n\x0b\x0c\r ]", "b": r"(?-u:\b)"}

_VAGUE = ("elementwise", "other", "embedding", "sampling")
"""Categories of kernels that serve several purposes: gathers, choices among values, arithmetic.

Any other category of a kernel's own name is sure, whatever operator launched it.
"""

_KEPT = {"attention": ("other",), "collective": ("elementwise",)}
"""For categories of operators: vague kernels that stay, because they prepare or finish its work."""


def decides(by_operator: pl.Expr, by_name: pl.Expr) -> pl.Expr:
    """Whether the operator says the category: it takes precedence only over a name that is
    vague, or agrees.
    """
    vague = by_name.is_null() | by_name.is_in(_VAGUE) | (by_operator == by_name)
    vague |= (by_operator == "moe_experts") & (by_name == "gemm")
    keeps = pl.any_horizontal(
        (by_operator == category) & by_name.is_in(kept) for category, kept in _KEPT.items()
    )
    return by_operator.is_not_null() & vague & ~keeps.fill_null(value=False)
