"""Roles of modules, which also describe the kernels that they launched."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

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
