"""Names of kernels on Huawei's Ascend: types of operators as CANN writes them, with the categories they belong to.

A kernel is named for the call, the kernel and the type (``aclnnMatmul_MatMulCommon_MatMulV2``), for the type and a
number (``Conv2D1``, ``trans_TransData_0``), or for its place in a MindSpore graph (``Default/…/MatMul-op12``).
Sources: the operator lists of CANN (``aclnn`` interfaces), torch_npu (``npu_*``) and vllm-ascend.
"""

from __future__ import annotations

from typing import Final

_TYPES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    # kernels that compute and communicate in one (MC2): what they are mainly for
    ("collective", (r"MoeDistribute(?:Dispatch|Combine)\w*", r"AlltoAllv?\w*", r"DispatchLayout", r"FusedDeepMoe")),
    (
        "linear",
        (
            r"(?:AllGather|AlltoAll)\w*MatMul\w*",
            r"(?:Quant|Grouped)?MatMul(?:AllReduce|ReduceScatter|Alltoall)\w*",
            r"MlaProlog\w*",
            r"MlaPreprocess",
        ),
    ),
    ("kv_cache_write", (r"KvRmsNormRopeCache", r"ReshapeAndCache\w*", r"Scatter(?:Pa)?KvCache\w*", r"PagedCacheLoad")),
    (
        "attention",
        (
            r"FlashAttention\w*", r"FusedInferAttentionScore", r"IncreFlashAttention", r"PromptFlashAttention",
            r"PagedAttention\w*", r"UnpadFlashAttention\w*", r"SelfAttention\w*", r"RingMla", r"RingAttention\w*",
            r"MultiLatentAttention", r"(?:Kv)?SparseFlashAttention", r"SparseFlashMla", r"LightningIndexer\w*",
            r"UnpadFA\w*",
        ),
    ),
    (
        "moe_routing",
        (
            r"MoeGatingTopK\w*", r"MoeInitRouting\w*", r"MoeFinalizeRouting\w*", r"MoeReRouting",
            r"MoeComputeExpertTokens", r"MoeTokenPermute\w*", r"MoeTokenUnpermute\w*", r"MoeUpdateExpert",
            r"MoeEPLB\w*", r"GroupTopK",
        ),
    ),
    ("moe_experts", (r"Grouped(?:Quant)?MatMul\w*", r"MoeFFN", r"FusedMoe\w*")),
    ("norm", (r"(?:Inplace)?(?:Add|Gemma)?(?:Add)?RmsNorm\w*", r"(?:Add)?LayerNorm\w*", r"GroupNorm\w*", r"BNInfer\w*",
              r"BatchNorm\w*", r"DeepNorm")),
    ("rope", (r"RotaryMul\w*", r"ApplyRotaryPosEmb", r"InterleaveRope", r"RotaryPositionEmbedding\w*", r"Rope\w*")),
    (
        "activation",
        (r"(?:Dequant)?SwiGlu\w*", r"Gelu\w*", r"GeGlu", r"Swish", r"Silu\w*", r"Relu(?:Grad)?", r"FastGelu\w*",
         r"ThresholdBackward"),
    ),
    ("quantize", (r"(?:Ascend)?(?:De)?Quant", r"Dynamic(?:Block|Mx)?Quant\w*", r"TransQuantParam")),
    ("sampling", (r"ArgMax\w*", r"TopK", r"TopKTopP\w*", r"Multinomial\w*", r"ApplyTopKTopP\w*", r"ApplyPenalty\w*",
                  r"StatelessRandom\w*", r"RejectionSample\w*")),
    ("embedding", (r"Gather", r"Embedding\w*", r"EmbeddingDenseGrad")),
    (
        "linear",
        (
            r"(?:Transpose|Quant|WeightQuant|Grouped)?(?:Batch|QuantBatch)?MatMul\w*", r"MatMul\w*", r"Gemm\w*", r"FFN",
            r"Conv(?:2D|3D|TransposeD?)\w*", r"DepthwiseConv\w*", r"Linear\w*", r"FusionOp_\w*(?:MatMul|Conv)\w*",
        ),
    ),
    ("other", (r"ZerosLike", r"Fill", r"MemSet", r"OnesLike", r"TransData", r"Cast", r"\w*Pool\w*")),
)  # fmt: skip


def _pattern(types: tuple[str, ...]) -> str:
    """Names of kernels of some types: after the call's name, with a number, or in a MindSpore graph."""
    listed = "|".join(types)
    return (
        rf"^(?:aclnn\w+_|trans_|te_\w+_)?(?:{listed})(?:V\d+)?D?(?:AiCore|Operation|Kernel)?(?:_?\d+)*$"
        rf"|^(?:Default|Gradients)/\S*\b(?:{listed})(?:V\d+)?D?-op\d+"
    )


PATTERNS: Final = [
    ("collective", r"^(?:Default|Gradients)/\S*(?:AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast)\w*-op\d+"),
    ("other", r"^\w+\d_MemSet$"),
    *((category, _pattern(types)) for category, types in _TYPES),
    ("other", r"^aclnn\w+_\w+_|^trans_\w+_\d+$|^(?:Default|Gradients)/\S*-op\d+"),
]
"""Ordered ``(category, pattern)``; casts, fills and changes of format are ``other`` and not copies: they run on the
vector cores, and the tool's own overlap analysis counts them as computing. What is named as CANN does but has no type
of these is ``other``, too, whatever words the patterns for other vendors would find in it."""
