"""Layers and stages of hand-built forward passes: every kind of layer, and what is not one."""

import random

import polars as pl
import pytest

from llmprof.analyze import layers
from llmprof.trace import Trace
from tests.analyze import builders
from tests.analyze.builders import (
    ALL_GATHER,
    ALL_REDUCE,
    ARGMAX,
    ATTENTION,
    CACHE,
    DENSE,
    DENSE_STAGES,
    EMBEDDING,
    GATHER,
    GEMM,
    NORM,
    ROPE,
    SAMPLE,
    SILU,
    UNKNOWN,
    forward,
    kernels,
    labels,
    launches,
    step_of,
)

BEFORE = ["_prepare_inputs_kernel", EMBEDDING]
BEFORE_STAGES = [(None, "prepare_inputs"), (None, "embedding")]
AFTER = [NORM, GATHER, GEMM, SAMPLE, ARGMAX]
AFTER_STAGES = [
    (None, stage) for stage in ("final_norm", "final_norm", "lm_head", "sampling", "sampling")
]


def places(names):
    """Layer and stage of every kernel of one labelled step."""
    return step_of(kernels(names)).events.select("layer", "stage").rows()


def expected(layer, count):
    return [(n, stage) for n in range(count) for stage in layer]


KERNELS = vars(builders) | {
    "ADD": "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16> >",
    "MUL": "void at::native::vectorized_elementwise_kernel<8, at::native::BinaryFunctor<at::native::MulFunctor<float> > >",
    "SIGMOID": "void at::native::vectorized_elementwise_kernel<8, at::native::sigmoid_kernel_cuda(at::TensorIteratorBase&)>",
    "COPY": "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>",
    "CAT": "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u> >",
    "NEG": "void at::native::elementwise_kernel<128, 4, at::native::neg_kernel_cuda>",
    "POW": "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::pow_tensor_scalar_kernel>",
    "REDUCE_SCATTER": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "FUSED_AR_NORM": "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(Pattern)1>",
    "QUANT": "void per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn>",
    "PLAIN_SILU": "void at::native::silu_kernel",
    "TOPKGATING": "void vllm::moe::topkGating<8, 128>",
    "MOE_ALIGN_BLOCK_SIZE": "void vllm::moe::moe_align_block_size_kernel<int>",
    "MOE_SUM_VEC": "void vllm::moe::moe_sum_vec_kernel<c10::BFloat16>",
    "GET_DISPATCH_LAYOUT": "void deep_ep::layout::get_dispatch_layout<256, 4, 2>(long const*)",
    "NOTIFY_DISPATCH": "void deep_ep::intranode::notify_dispatch<8>(int const*, int*)",
    "DEEPEP_DISPATCH": "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
    "CACHED_NOTIFY_COMBINE": "void deep_ep::intranode::cached_notify_combine<8>(void**, int*)",
    "DEEPEP_COMBINE": "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)",
    "LOW_LATENCY_DISPATCH": "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)",
    "LOW_LATENCY_COMBINE": "void deep_ep::internode_ll::combine<7168, 9, 8>(void*)",
    "A2A_PREPARE": "void flashinfer::moe_alltoall::moeA2APrepareDispatchKernel(int*)",
    "A2A_DISPATCH": "void flashinfer::moe_alltoall::moeA2ADispatchKernel<8, false>(int const*, DispatchKernelPointers)",
    "A2A_SANITIZE": "void flashinfer::moe_alltoall::moeA2ASanitizeExpertIdsKernel(int*)",
    "A2A_COMBINE": "void flashinfer::moe_alltoall::moeA2ACombineKernel<__nv_bfloat16, 8>(CombineKernelPointers)",
    "MORI_DISPATCH": "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)",
    "MORI_COMBINE": "void mori::moe::EpCombineIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)",
}
LAYERS = {
    "dense": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM gate_up_proj:GEMM activation:SILU down_proj:GEMM
    """,
    "tensor parallel": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM all_reduce:ALL_REDUCE norm:NORM gate_up_proj:GEMM activation:SILU
        down_proj:GEMM all_reduce:ALL_REDUCE
    """,
    "split-K and the combination of a split attention": """
        norm:NORM qkv_proj:GEMM qkv_proj:SPLIT_K rope:ROPE kv_cache_write:CACHE
        attention:ATTENTION attention:COMBINE o_proj:GEMM o_proj:SPLIT_K norm:NORM
        gate_up_proj:GEMM gate_up_proj:SPLIT_K activation:SILU down_proj:GEMM
        down_proj:SPLIT_K
    """,
    "q and k normed": """
        norm:NORM qkv_proj:GEMM norm:NORM norm:NORM rope:ROPE kv_cache_write:CACHE
        attention:ATTENTION o_proj:GEMM norm:NORM gate_up_proj:GEMM activation:SILU
        down_proj:GEMM
    """,
    "a copy between projection and rope": """
        norm:NORM qkv_proj:GEMM rope:COPY rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM gate_up_proj:GEMM activation:SILU down_proj:GEMM
    """,
    "torch.compile without names": """
        norm:NORM qkv_proj:GEMM rope:UNKNOWN kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM gate_up_proj:GEMM activation:SILU down_proj:GEMM
    """,
    "gate and up apart, no kernel named but the GEMMs and silu, as in transformers": """
        norm:POW norm:MUL qkv_proj:GEMM qkv_proj:GEMM qkv_proj:GEMM rope:MUL rope:NEG
        rope:CAT rope:ADD kv_cache_write:CAT kv_cache_write:CAT attention:ATTENTION
        o_proj:GEMM residual:ADD norm:POW norm:MUL gate_up_proj:GEMM activation:PLAIN_SILU
        gate_up_proj:GEMM activation:MUL down_proj:GEMM residual:ADD
    """,
    "all-reduce fused with the norm": """
        qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION o_proj:GEMM
        all_reduce:FUSED_AR_NORM gate_up_proj:GEMM activation:SILU down_proj:GEMM
        all_reduce:FUSED_AR_NORM
    """,
    "sequence parallel": """
        norm:NORM all_gather:ALL_GATHER qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE
        attention:ATTENTION o_proj:GEMM reduce_scatter:REDUCE_SCATTER norm:NORM
        all_gather:ALL_GATHER gate_up_proj:GEMM activation:SILU down_proj:GEMM
        reduce_scatter:REDUCE_SCATTER
    """,
    "latent attention: two projections of q, one of kv, and one more after attention": """
        norm:NORM qkv_proj:GEMM norm:NORM qkv_proj:GEMM norm:NORM qkv_proj:GEMM rope:ROPE
        kv_cache_write:CACHE attention:_fwd_grouped_kernel_stage1
        attention:_fwd_kernel_stage2 o_proj:GEMM o_proj:GEMM all_reduce:ALL_REDUCE norm:NORM
        gate_up_proj:GEMM activation:SILU down_proj:GEMM all_reduce:ALL_REDUCE
    """,
    "prefill and decode of one batch in two attentions": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM attention:_fwd_grouped_kernel_stage1 o_proj:GEMM o_proj:GEMM norm:NORM
        gate_up_proj:GEMM activation:SILU down_proj:GEMM
    """,
    "two attention kernels side by side": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        attention:ATTENTION attention:merge_attn_states_kernel o_proj:GEMM norm:NORM
        gate_up_proj:GEMM activation:SILU down_proj:GEMM
    """,
    "quantized GEMMs": """
        norm:NORM qkv_proj:QUANT qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE
        attention:ATTENTION attention:QUANT o_proj:GEMM norm:NORM gate_up_proj:QUANT
        gate_up_proj:GEMM activation:SILU down_proj:QUANT down_proj:GEMM
    """,
    "mixture of experts": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM router:GEMM router:TOPKGATING
        expert_dispatch:MOE_ALIGN_BLOCK_SIZE experts:fused_moe_kernel activation:SILU
        experts:fused_moe_kernel combine:MOE_SUM_VEC
    """,
    "experts on several ranks": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM all_reduce:ALL_REDUCE norm:NORM router:GEMM router:topkGating
        expert_dispatch:ALL_GATHER experts:fused_moe_kernel activation:SILU
        experts:fused_moe_kernel combine:moe_sum_kernel combine:REDUCE_SCATTER
    """,
    "experts with a shared one": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM router:GEMM shared_experts:GEMM shared_experts:SILU
        shared_experts:GEMM router:topkGating experts:fused_moe_kernel activation:SILU
        experts:fused_moe_kernel combine:moe_sum_kernel
    """,
    "a shared expert after the chosen ones, with a gate": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM router:GEMM router:topkGating experts:fused_moe_kernel
        activation:SILU experts:fused_moe_kernel combine:moe_sum_kernel shared_experts:GEMM
        shared_experts:SILU shared_experts:GEMM shared_experts:GEMM shared_experts:SIGMOID
        shared_experts:MUL combine:ADD
    """,
    "sparse attention": """
        norm:NORM qkv_proj:GEMM qkv_proj:GEMM rope:ROPE
        indexer:indexer_k_quant_and_cache_kernel indexer:sm90_fp8_paged_mqa_logits
        top_k:topKPerRowDecode kv_cache_write:CACHE attention:ATTENTION o_proj:GEMM
        norm:NORM gate_up_proj:GEMM activation:SILU down_proj:GEMM
    """,
    "gpt-oss: experts' GEMMs with the activation in them": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM router:GEMM router:_topk_forward
        expert_dispatch:_sum_bitmatrix_rows router:_combined_routing_compute
        experts:_matmul_ogs_NNT_bf16xbf16xmxfp4_swiglu
        experts:_matmul_ogs_NNT_bf16xbf16xmxfp4 combine:_finalize_matmul_scatter_bf16
    """,
    "a state-space layer": """
        norm:NORM in_proj:GEMM conv:causal_conv1d_fwd_kernel scan:_chunk_cumsum_fwd_kernel
        scan:_chunk_state_fwd_kernel scan:_chunk_scan_fwd_kernel gate_norm:NORM
        out_proj:GEMM norm:NORM gate_up_proj:GEMM activation:SILU down_proj:GEMM
    """,
    "a short convolution": """
        norm:NORM in_proj:GEMM conv:_causal_conv1d_update_kernel out_proj:GEMM norm:NORM
        gate_up_proj:GEMM activation:SILU down_proj:GEMM
    """,
    "scan and attention side by side": """
        norm:NORM in_proj:GEMM conv:_causal_conv1d_update_kernel
        scan:_selective_scan_update_kernel gate_norm:SILU out_proj:GEMM qkv_proj:GEMM
        rope:ROPE kv_cache_write:CACHE attention:ATTENTION o_proj:GEMM norm:NORM
        gate_up_proj:GEMM activation:SILU down_proj:GEMM
    """,
    "lightning attention with a gate": """
        norm:NORM in_proj:GEMM norm:NORM scan:_fwd_diag_kernel scan:_fwd_kv_parallel
        scan:_fwd_kv_reduce in_proj:GEMM gate_norm:NORM out_proj:GEMM norm:NORM
        gate_up_proj:GEMM activation:SILU down_proj:GEMM
    """,
    "adapters beside every projection": """
        norm:NORM qkv_proj:GEMM lora:_lora_shrink_kernel lora:_lora_expand_kernel rope:ROPE kv_cache_write:CACHE
        attention:ATTENTION o_proj:GEMM lora:_lora_shrink_kernel lora:_lora_expand_kernel norm:NORM gate_up_proj:GEMM
        lora:_lora_shrink_kernel lora:_lora_expand_kernel activation:SILU down_proj:GEMM lora:_lora_shrink_kernel lora:_lora_expand_kernel
    """,
    "adapters of SGLang, whose names end in the word of a GEMM": """
        norm:NORM qkv_proj:GEMM lora:_sgemm_lora_a_kernel lora:_qkv_lora_b_kernel rope:ROPE
        kv_cache_write:CACHE attention:ATTENTION o_proj:GEMM norm:NORM gate_up_proj:GEMM
        activation:SILU down_proj:GEMM lora:_sgemm_lora_a_kernel lora:_sgemm_lora_b_kernel
    """,
    "adapters of experts": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM router:GEMM router:topkGating experts:fused_moe_kernel
        lora:_fused_moe_lora_kernel activation:SILU experts:fused_moe_kernel
        lora:_fused_moe_lora_kernel combine:moe_sum_kernel
    """,
    "experts on many ranks: DeepEP": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM router:GEMM router:topkGating
        expert_dispatch:GET_DISPATCH_LAYOUT expert_dispatch:NOTIFY_DISPATCH
        expert_dispatch:DEEPEP_DISPATCH experts:m_grouped_gemm_masked activation:SILU
        experts:m_grouped_gemm_masked combine:CACHED_NOTIFY_COMBINE combine:DEEPEP_COMBINE
    """,
    "experts on many ranks: DeepEP for decode": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM router:GEMM router:topkGating expert_dispatch:LOW_LATENCY_DISPATCH
        experts:m_grouped_gemm_masked activation:SILU experts:m_grouped_gemm_masked
        combine:LOW_LATENCY_COMBINE
    """,
    "experts on many ranks: FlashInfer": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM router:GEMM router:topkGating
        expert_dispatch:A2A_PREPARE expert_dispatch:A2A_DISPATCH
        expert_dispatch:A2A_SANITIZE experts:m_grouped_gemm_masked
        activation:SILU experts:m_grouped_gemm_masked combine:A2A_COMBINE
    """,
    "experts on many ranks: MORI, whose arguments name both ways": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM router:GEMM router:topkGating
        expert_dispatch:MORI_DISPATCH experts:m_grouped_gemm_masked
        activation:SILU experts:m_grouped_gemm_masked combine:MORI_COMBINE
    """,
    "experts on many ranks: pplx": """
        norm:NORM qkv_proj:GEMM rope:ROPE kv_cache_write:CACHE attention:ATTENTION
        o_proj:GEMM norm:NORM router:GEMM router:topkGating
        expert_dispatch:a2a_dispatch_send_kernel expert_dispatch:a2a_dispatch_recv_kernel
        experts:m_grouped_gemm_masked activation:SILU experts:m_grouped_gemm_masked
        combine:a2a_combine_send_kernel combine:a2a_combine_recv_kernel
    """,
    "a mixer without a feed-forward part": """
        norm:NORM in_proj:GEMM conv:_causal_conv1d_update_kernel
        scan:_selective_scan_update_kernel gate_norm:NORM out_proj:GEMM
    """,
}
"""A layer of each kind: the stage of each kernel and the kernel, by its name above or as it is."""


def kind_of_layer(kind):
    """Kernels of a kind of layer, and the stage of each."""
    words = [word.split(":") for word in LAYERS[kind].split()]
    return [KERNELS.get(name, name) for _, name in words], [stage for stage, _ in words]


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_and_stages(kind):
    layer, stages = kind_of_layer(kind)
    names = [*BEFORE, *layer * 4, *AFTER]
    want = [*BEFORE_STAGES, *expected(stages, 4), *AFTER_STAGES]
    assert [*zip(names, places(names), strict=True)] == [*zip(names, want, strict=True)]


@pytest.mark.parametrize("kind", ["dense", "mixture of experts", "tensor parallel"])
def test_a_pipeline_stage_without_embedding_and_head(kind):
    layer, stages = kind_of_layer(kind)
    found = places(["_prepare_inputs_kernel", *layer * 3, "_update_kernel"])
    assert found == [(None, "prepare_inputs"), *expected(stages, 3), (None, "other")]


def test_without_a_known_activation_the_end_follows_from_the_projections_before_the_first_layer():
    # one GEMM before the first attention, so the last of the four in each stretch is the next
    # layer's qkv
    layer = [NORM, GEMM, ROPE, CACHE, ATTENTION, GEMM, NORM, GEMM, UNKNOWN, GEMM]
    found = places([*BEFORE, *layer * 4, *AFTER])
    assert found == [*BEFORE_STAGES, *expected(DENSE_STAGES, 4), *AFTER_STAGES]
    run = kernels([*BEFORE, *layer * 4, *AFTER])
    confidence = layers(Trace({"kernels": run}))["confidence"]
    assert confidence.unique().to_list() == [0.5]


def test_confidence_says_where_a_layer_differs():
    odd = [*DENSE[:6], GEMM, *DENSE[6:]]  # one GEMM more before the norm
    run = kernels([*BEFORE, *DENSE, *DENSE, *odd, *DENSE, *AFTER])
    found = layers(Trace({"kernels": run}))
    assert found["confidence"].to_list() == [1.0, 1.0, 0.8, 0.8]  # where 2 ends, 3 begins


def test_the_embeddings_all_reduce_is_outside_the_layers():
    layer, stages = kind_of_layer("tensor parallel")
    found = places([*BEFORE, ALL_REDUCE, *layer * 3, NORM, GEMM, ALL_GATHER, SAMPLE])
    after = [(None, stage) for stage in ("final_norm", "lm_head", "all_gather", "sampling")]
    assert found == [*BEFORE_STAGES, (None, "all_reduce"), *expected(stages, 3), *after]


def test_a_recording_that_ends_inside_a_layer_and_an_embedding_fused_with_the_first_norm():
    found = places([*BEFORE, *DENSE * 2, *DENSE[:6]])
    assert found[:-6] == [*BEFORE_STAGES, *expected(DENSE_STAGES, 2)]
    assert found[-6:] == [(2, stage) for stage in DENSE_STAGES[:6]]
    first = ["triton_red_fused__to_copy_embedding_rms_norm_0", *DENSE[1:]]
    found = places(["_prepare_inputs_kernel", *first, *DENSE * 2, *AFTER])
    assert found == [(None, "prepare_inputs"), *expected(DENSE_STAGES, 3), *AFTER_STAGES]


@pytest.mark.parametrize(
    "names",
    [
        [f"acme_kernel_{n}" for n in range(20)] * 3,  # nothing known
        [UNKNOWN, ATTENTION, UNKNOWN, UNKNOWN, UNKNOWN] * 4,  # attention, but no GEMM around it
        ["volta_sgemm_128x32_nt", "relu_kernel", EMBEDDING] * 10,  # no attention
        [*DENSE * 2, "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<>", GEMM]
        * 2,  # training
        [
            *DENSE * 2,
            "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float>",
            GEMM,
        ]
        * 2,
    ],
)
def test_abstains(names):
    found = places(names)
    assert {layer for layer, _ in found} == {None}
    assert {stage for _, stage in found} == {"other"}
    run = kernels(names)
    assert layers(Trace({"kernels": run, "runtime": launches(run)})).is_empty()


def test_copies_and_streams_beside_the_layers():
    run = kernels([*BEFORE, *DENSE * 2, *AFTER], dur=10)
    other = kernels(
        [GEMM, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"],
        stream=9,
        start=100,
        first=500,
    )
    copy = kernels(
        ["Memcpy DtoH (Device -> Pinned)"], stream=11, start=120, first=600
    ).with_columns(kind=pl.lit("DtoH"))
    everything = pl.concat([run, other])
    calls = launches(pl.concat([everything, copy.drop("kind")]))
    trace = step_of(everything, copies=copy, runtime=calls)
    beside = trace.events.filter(pl.col("stream") != 7).select("stream", "step", "layer", "stage")
    assert beside.rows() == [
        (9, 0, None, "other"),
        (9, 0, None, "send_recv"),
        (11, 0, None, "copy"),
    ]
    main = trace.events.filter(pl.col("stream") == 7).select("layer", "stage").rows()
    assert main == [*BEFORE_STAGES, *expected(DENSE_STAGES, 2), *AFTER_STAGES]


def test_a_collective_on_another_stream_takes_its_place_in_the_layer():
    layer, stages = kind_of_layer("tensor parallel")
    run = kernels([*BEFORE, *layer * 3, *AFTER]).with_columns(
        stream=pl.when(pl.col("name") == ALL_REDUCE)
        .then(pl.lit(20, dtype=pl.Int64))
        .otherwise("stream")
    )
    assert step_of(run).events.select("layer", "stage").rows() == [
        *BEFORE_STAGES,
        *expected(stages, 3),
        *AFTER_STAGES,
    ]


def test_a_copy_into_a_collectives_buffer_and_a_cleared_workspace():
    run = kernels(
        [
            *BEFORE,
            *DENSE[:6],
            "Memcpy DtoD",
            ALL_REDUCE,
            NORM,
            "Memset (Device)",
            *DENSE[7:],
            *DENSE,
            *AFTER,
        ]
    )
    is_copy = pl.col("name").str.starts_with("Mem")
    copies = run.filter(is_copy).with_columns(
        kind=pl.when(pl.col("name").str.contains("Memset"))
        .then(pl.lit("memset"))
        .otherwise(pl.lit("DtoD"))
    )
    trace = step_of(run.filter(~is_copy), copies=copies, runtime=launches(run))
    found = trace.events.filter(pl.col("source") == "copy")
    assert found.select("name", "category", "layer", "stage").rows() == [
        ("Memcpy DtoD", "copy", 0, "all_reduce"),
        ("Memset (Device)", "fill", 0, "gate_up_proj"),
    ]


@pytest.mark.parametrize("stream", [7, 20])
def test_the_profilers_word_on_a_collective_counts(stream):
    # RCCL runs every collective in one generic kernel; its metadata say which
    generic = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    layer, stages = kind_of_layer("tensor parallel")
    layer = [generic if name == ALL_REDUCE else name for name in layer]
    on = pl.when(pl.col("name") == generic).then(pl.lit(stream, dtype=pl.Int64)).otherwise("stream")
    run = kernels([*BEFORE, *layer * 3, *AFTER]).with_columns(stream=on)
    calls = run.filter(name=generic).with_columns(
        kind=pl.lit("all_reduce"), on_device=pl.lit(value=True)
    )
    calls = calls.select("rank", "stream", "start_ns", "dur_ns", "name", "kind", "on_device")
    found = step_of(run, collectives=calls).events.select("layer", "stage").rows()
    assert found == [*BEFORE_STAGES, *expected(stages, 3), *AFTER_STAGES]
    nameless = step_of(run).events
    assert nameless["stage"].value_counts().filter(pl.col("stage") == "other")[
        "count"
    ].to_list() == [6]


def test_a_step_without_layers():
    run = kernels(["_update_kernel", EMBEDDING, *DENSE * 2], pause=10)
    marks = labels([("execute_new_0_cached_4", -50, 10), ("execute_new_1_cached_0", 30, 10)])
    found = step_of(run, markers=marks).events
    assert found["step"].to_list() == [0, 0, *[1] * 20]
    assert found["stage"][:2].to_list() == ["other", "other"]
    assert found["layer"].n_unique() == 3


def test_ranks_and_steps_are_told_apart():
    rng = random.Random(0)
    frames, marks = [], []
    for rank in (0, 1, 2):
        start = 0
        for step in range(4):
            run = kernels(
                forward(2 + rank),
                start=start,
                dur=rng.randrange(5, 20),
                rank=rank,
                first=1000 * step + 1,
            )
            marks.append(labels([("execute_new_0_cached_4", start - 50, 10)], rank=rank))
            frames.append(run)
            start += 10_000
    run = pl.concat(frames)
    trace = Trace({"kernels": run, "runtime": launches(run), "markers": pl.concat(marks)})
    counts = layers(trace).group_by("rank", "step").len().sort("rank", "step")
    assert counts["len"].to_list() == [2] * 4 + [3] * 4 + [4] * 4
    assert trace.events["phase"].unique().to_list() == ["decode"]
    for rank in (0, 1, 2):
        alone = trace.select(rank=rank).events.drop("event")
        assert alone.equals(trace.events.filter(pl.col("rank") == rank).drop("event"))


SEES = [
    NORM,
    GEMM,
    ATTENTION,
    GEMM,
    NORM,
    GEMM,
    "void vllm::gelu_quick_kernel<c10::BFloat16>",
    GEMM,
]
"""A layer of a vision tower: it keeps no keys."""


@pytest.mark.parametrize("seen", [2, 4, 9])
def test_a_vision_tower_before_the_language_model_is_an_encoder(seen):
    # it may have fewer layers than the language model, as many, or more
    found = places(["_patches_kernel", *SEES * seen, *forward(4)[1:]])
    tower = 1 + len(SEES) * seen
    assert found[:tower] == [(None, "encoder")] * tower
    assert found[tower:] == [(None, "embedding"), *expected(DENSE_STAGES, 4), *AFTER_STAGES]


def test_passes_that_keep_keys_or_sample_are_no_encoders():
    # a model and its draft; the first one chooses tokens
    found = places([*forward(4), *forward(2)[1:]])
    assert {stage for layer, stage in found if layer is None} >= {"draft"}
    assert "encoder" not in {stage for _, stage in found}
    # an encoder alone, as of embeddings: its layers are the model's
    alone = places([EMBEDDING, *SEES * 6, NORM])
    assert "encoder" not in {stage for _, stage in alone}
    assert {layer for layer, _ in alone} >= set(range(6))


def test_a_module_that_sees_is_an_encoder_whatever_its_layers_are_called():
    run, marks, at = [], [], 0
    for tower, count, layer in (
        ("visual.blocks", 3, SEES),
        ("language_model.model.layers", 2, DENSE),
    ):
        for n in range(count):
            marks.append((f"{{'Module': '{tower}.{n}'}}", at - 8, 10 * len(layer)))
            run += layer
            at += 10 * len(layer)
    step = labels([("execute_new_0_cached_4", -50, 10)])
    inside = pl.concat([step, labels(marks).with_columns(thread=1)], how="diagonal")
    found = step_of(kernels(run), markers=inside).events
    assert found["stage"].to_list()[: 3 * len(SEES)] == ["encoder"] * (3 * len(SEES))
    assert found["layer"].to_list() == [None] * (3 * len(SEES)) + [0] * len(DENSE) + [1] * len(
        DENSE
    )
    assert found["reason"].to_list()[: 3 * len(SEES)] == ["encoder"] * (3 * len(SEES))


@pytest.mark.parametrize(
    "name",
    [
        "void lmc::load_and_reshape_multi_layer_kernel<__nv_bfloat16, true>(__nv_bfloat16*)",
        "void transfer_kernel_impl<&get_global_offset_lf, false>(void const*)",
        "void swap_blocks_kernel(int*)",
    ],
)
def test_keys_on_their_way_to_another_engine_have_a_stage_and_leave_layers_alone(name):
    run = kernels(forward(3))
    moved = kernels([(name, 40)], start=100, stream=20, first=500)
    found = step_of(pl.concat([run, moved])).events
    assert found.filter(pl.col("stream") == 20).select("layer", "stage").rows() == [
        (None, "kv_transfer")
    ]
    assert found.filter(pl.col("stream") == 7)["layer"].drop_nulls().unique().to_list() == [0, 1, 2]


def test_a_head_without_a_choice_of_tokens_is_no_sampling():
    # the pooled result of an embedding model: a product and a bend
    layer = [NORM, GEMM, ATTENTION, GEMM, NORM, GEMM, SILU, GEMM]
    tanh = "void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda>"
    found = places([EMBEDDING, *layer * 4, NORM, GEMM, tanh])
    assert found[-3:] == [(None, "final_norm"), (None, "lm_head"), (None, "other")]
    assert (
        places([EMBEDDING, *layer * 4, NORM, GEMM, tanh, ARGMAX])[-2:] == [(None, "sampling")] * 2
    )
