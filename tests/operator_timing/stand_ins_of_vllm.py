"""For the interpreter that has PyTorch: operators of vLLM with their true schemas that only check their arguments.

Runs the script that is its first argument.
"""

import runpy
import sys
import types

import torch

for module in ("vllm", "vllm._custom_ops", "vllm.vllm_flash_attn"):
    sys.modules[module] = types.ModuleType(module)

FWD = (
    "fwd(Tensor! q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor!? out, Tensor? cu_seqlens_q, "
    "Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q, "
    "int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, "
    "Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
    "float softmax_scale, bool is_causal, int window_size_left, int window_size_right, float softcap, "
    "bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin, "
    "Tensor? s_aux, int cp_world_size, int cp_rank, Tensor? cp_tot_seqused_k) -> Tensor[]"
)
PLAN = (
    "get_scheduler_metadata(int batch_size, int max_seqlen_q, int max_seqlen_k, int num_heads, int num_heads_k, "
    "int headdim, int headdim_v, ScalarType qkv_dtype, Tensor seqused_k, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? leftpad_k, int? page_size, int max_seqlen_k_new, "
    "bool is_causal, int window_size_left, int window_size_right, bool has_softcap, int num_splits, bool? pack_gqa, "
    "int sm_margin) -> Tensor"
)


def fwd(q, k, v, *rest):
    out, ends, used, longest, pages, plan = rest[3], rest[4], rest[8], rest[9], rest[11], rest[26]
    assert int(ends[-1]) == q.shape[0]
    assert int((ends[1:] - ends[:-1]).max()) <= longest
    assert int(pages.min()) >= 0
    assert int(pages.max()) < k.shape[0]
    assert {ends.dtype, used.dtype, pages.dtype} == {torch.int32}
    assert plan.shape == (9,)
    return [out]


def plan(batch, longest, most, *rest):
    heads, heads_k, size, size_v, kind, used, ends = rest[:7]
    assert used.numel() == batch == ends.numel() - 1
    assert heads % heads_k == 0
    assert (size, size_v, kind, rest[11]) == (128, 128, torch.bfloat16, 16)
    return torch.zeros(9, dtype=torch.int32)


def write_cache(*given):
    key_cache, slots, kind, key_scale = given[2], given[4], given[5], given[6]
    assert kind == "auto"
    assert slots.unique().numel() == slots.numel()
    assert int(slots.max()) < key_cache.shape[0] * key_cache.shape[1]
    assert (key_scale.dim(), float(key_scale)) == (0, 1.0)


def align(experts, count, *rest):
    assert 0 <= int(experts.min()) <= int(experts.max()) < count


OPERATORS = {
    "_vllm_fa3_C": [(FWD, fwd), (PLAN, plan)],
    "_C_cache_ops": [
        (
            "reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, "
            "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()",
            write_cache,
        )
    ],
    "_moe_C": [
        (
            "topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, "
            "Tensor gating_output, bool renormalize, Tensor? bias) -> ()",
            lambda *given: None,
        ),
        (
            "moe_sum(Tensor input, Tensor! output, Tensor? topk_ids=None, Tensor? expert_map=None) -> ()",
            lambda *given: None,
        ),
        (
            "moe_align_block_size(Tensor topk_ids, int num_experts, int block_size, Tensor! sorted_token_ids, "
            "Tensor! experts_ids, Tensor! num_tokens_post_pad, Tensor? maybe_expert_map) -> ()",
            align,
        ),
    ],
}
kept = []
for namespace, operators in OPERATORS.items():
    library = torch.library.Library(namespace, "DEF")
    kept.append(library)
    for schema, function in operators:
        library.define(schema)
        library.impl(schema.partition("(")[0], function, "CPU")

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
