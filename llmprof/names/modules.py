"""What the name of a module says of its work: the class of a torch module, or its place in the model.

A trace names modules in three ways. Torch's profiler with stacks writes the class and the number of the object
(``nn.Module: Qwen2MLP_3``). vLLM's layerwise NVTX and its layer annotations write the place in the model
(``model.layers.3.mlp.down_proj``). Kernels of CUDA graphs that PyTorch annotated carry such a place too.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

DOMAIN: Final = "module"
"""Domain of the markers that are calls of torch modules."""

CALL: Final = r"^nn\.Module: (.+?)(?:_(\d+))?$"
"""Name of such a marker: the class, and the number of the object among those of its class."""

PATHS: Final = (
    r"^\{'Module': '([^']+)'",
    r"^layer::(.+)$",
    r"^((?:[A-Za-z_]\w*\.)+(?:layers|h|blocks)\.\d+(?:\.\w+)*)$",
)
"""Markers that name a module's place in the model: vLLM's layerwise NVTX, its annotations, ranges named by a path."""

LAYER: Final = r"(?:^|\.)(?:layers?|h|blocks?|decoder_layers)[._](\d+)(?:\.|$)"
"""Number of the layer in a path."""

SHARED: Final = r"rotary|rope"
"""Modules of which one object serves all layers: the number in their path is not that of the layer that calls them."""

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
        r"(?i)gate_?up|^(?:gate|up)_proj$|^fc_?1$|^fc_in$|^w[13]$|MergedColumn|^c_fc$|_h_to_4h$|^linear_fc1$|^wi(?:_\d)?$",
    ),
    ("down_proj", r"(?i)down_proj$|^fc_?2$|^fc_out$|^w2$|_4h_to_h$|^linear_fc2$|^wo_ff$"),
    ("o_proj", r"(?i)^o_proj$|^out_proj$|^out_lin$|^wo$|^to_out"),
    ("activation", r"(?i)act_fn$|^act$|AndMul$|activation$|^(?:silu|gelu|relu|swish|swiglu)\w*$"),
    ("router", r"(?i)router$|^gate$|TopK\w*Router|TopkRouter|^topk$|MoEGate$"),
    ("experts", r"(?i)^experts$|FusedMoE|\w+Experts$|SharedFusedMoE|GroupedExperts"),
    (
        "attention",
        r"(?i)^attn$|^Attention$|RadixAttention|core_attention|FlashAttention|MLAAttention|^mla_attn$|PagedAttention",
    ),
]
"""Ordered ``(role, pattern)`` of the module that does one thing; the first match wins."""

BLOCKS: Final[list[tuple[str, str]]] = [
    ("o_proj", r"SelfOutput$"),
    ("head", r"(?i)LMHead$|prediction_?head|mlm_?head|OnlyMLM|classifier$|pooler$|^score$|HeadTransform"),
    ("embeddings", r"(?i)embeddings?$|PatchEmbed"),
    ("experts", r"(?i)moe|experts|sparse_?moe"),
    ("attention", r"(?i)attn|attention|mixer|mamba|deltanet|mha$"),
    ("up", r"Intermediate$"),
    ("down", r"(?<!Self)(?<!Model)(?<!Attention)Output$"),
    ("feed_forward", r"(?i)mlp|feed_?forward|ffn?$|DenseGated|DenseAct"),
]
"""Ordered ``(block, pattern)`` of the module that holds others; a head that is the whole model is none."""

GENERIC: Final = r"Linear\w*$|LinearBase|^Conv1D$|^dense$|^c_proj$"
"""Linear modules whose work follows from the block that they are in."""

MODEL: Final = r"For[A-Z]\w+$|Model$|LMHeadModel$|Transformer$"
"""Classes of whole models, whatever else their name holds."""

LAYER_CLASS: Final = r"(?:Layer|Block)(?:V?\d+)?$"
"""Classes that are whole layers by their name, unless they are a block."""

_WHOLE_LAYER: Final = r"(?:Decoder|Encoder|Transformer)\w*(?:Layer|Block)$"
"""Classes of layers whose name also says what they hold, such as a mixture of experts."""


class Work(NamedTuple):
    """What a module is for: its own role, the block that it is, and whether it is a linear module of no name."""

    role: str | None
    block: str | None
    generic: bool


def work(name: str) -> Work:
    """What a module of this class, or with this last part of its path, is for.

    Examples
    --------
    >>> work("QKVParallelLinear")
    Work(role='qkv_proj', block=None, generic=False)
    >>> work("Qwen2MLP")
    Work(role=None, block='feed_forward', generic=False)
    """
    if re.search(MODEL, name) or re.search(_WHOLE_LAYER, name):
        return Work(None, None, generic=False)
    role = next((role for role, pattern in ROLES if re.search(pattern, name)), None)
    block = next((block for block, pattern in BLOCKS if re.search(pattern, name)), None)
    if role == "embedding" and block == "embeddings" and name.endswith("ddings"):
        role = None
    return Work(role, block, generic=role is None and re.search(GENERIC, name) is not None)
