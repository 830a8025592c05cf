"""``llm_profile``: arguments by position, familiar keys, parts that add up, and what is refused."""

import pytest

from llmprof.errors import LlmprofError
from llmprof.theory import llm_profile, profile

CASE = (
    "llama2-70b",
    "a100-sxm-40gb",
    2,
    20,
    1024,
    1024,
    0,
    1,
    8,
    1,
    1,
    True,
    2,
    2,
    0.9,
    0.9,
    0.9,
    0.9,
    "inference",
)


def test_arguments_by_position_are_those_of_the_names():
    named = {
        "tp_size": 8,
        "batch_size": 20,
        "seq_len": 1024,
        "generate_len": 1024,
        "kv_cache_bytes": 2,
    }
    shares = ("flops", "hbm_memory", "intra_node_memory", "inter_node_memory")
    efficiencies = {f"{name}_efficiency": 0.9 for name in shares}
    by_position = llm_profile(*CASE, False)
    assert by_position == llm_profile(
        "llama2-70b", "a100-sxm-40gb", print_flag=False, **named, **efficiencies
    )
    assert by_position["gpu_config"] == {
        "name": "A100 SXM 40GB",
        "memory_GPU_in_GB": "40 GB",
        "gpu_hbm_bandwidth": "1555 GB/s",
        "gpu_intra_node_bandwidth": "600 GB/s",
        "gpu_fp16_TFLOPS": "312 TFLOPS",
    }


def test_parts_of_a_step_add_up_with_the_cache_apart():
    values = llm_profile(*CASE, False)
    first, then = values["prefill_latency_parts"], values["decode_latency_parts"]
    assert sum(first.values()) == pytest.approx(values["prefill_first_token_latency"])
    assert sum(then.values()) == pytest.approx(values["decode_per_token_latency"])
    assert (values["TTFT"], values["TTOT"]) == (
        sum(first.values()),
        pytest.approx(sum(then.values())),
    )
    # 80 layers, 20 requests of 1,536 keys, 64 heads of 128 over 8 ranks; their arithmetic takes
    # less than the cache
    arithmetic = 80 * 4 * 20 * 1536 * 8192 / 8 / (0.9 * 312e12)
    cache = 80 * 2 * 128 * 2 * 20 * 1535 / (0.9 * 1555e9)
    assert then["attn_kernel"] == pytest.approx(arithmetic)
    assert then["kv_cache_rw"] == pytest.approx(cache - arithmetic)
    assert values["kv_cache_latency"] == pytest.approx(cache)
    assert first["kv_cache_rw"] == 0
    assert values["model_flops"] == values["prefill_flops"]
    options = {"tp_size": 16, "print_flag": False}
    published, wide = (llm_profile("DeepSeek-V3", "H200", size, **options) for size in (1, 2))
    assert published["weight_memory_per_gpu"] < 0.6 * wide["weight_memory_per_gpu"]
    usual = ("flops", "hbm", "intra_node", "inter_node")
    whole = profile(
        "DeepSeek-V3",
        "H200",
        tp_size=16,
        seq_len=522,
        generate_len=1526,
        dtype="bf16",
        **{f"{name}_efficiency": 0.9 for name in usual},
    )
    assert wide["weight_memory_per_gpu"] == whole.memory.weights
    assert wide["TTFT"] == whole.prefill_latency_s


# The keys that the script's own output prints, in its order.
KEYS = (
    *("inference_config", "gpu_config"),
    *("model_params", "prefill_flops", "decode_flops_per_step", "prefill_first_token_latency"),
    *("decode_per_token_latency", "kv_cache_latency", "total_infer_latency", "params_model"),
    *("prefill flops_model", "weight_memory_per_gpu", "prefill_max_bs"),
    *("prefill_act_memory_per_gpu", "decode_act_memory_per_gpu", "kv_cache_memory_per_gpu"),
    *("decode_memory_total", "decode_max_bs", "max_batch_total_tokens", "prefill_latency"),
    *(
        f"{phase}_{part}"
        for phase in ("prefill", "decode")
        for part in ("qkvo_proj", "attn_kernel", "mlp", "rmsnorm", "tp_comm", "kv_cache_rw")
    ),
    "decode_latency",
)


@pytest.mark.parametrize("tp", [1, 8])
def test_the_keys_that_its_output_prints_are_there(tp):
    values = llm_profile("llama2-7b", "H200", bs=20, tp_size=tp, print_flag=False)
    assert not set(KEYS) - set(values)
    layer = {"attention_kernel", "qkvo_proj", "mlp", "rmsnorm", "positional_embedding"}
    assert not (layer | {"input_embedding"}) - set(values["prefill_flops_per_layer"])
    held = ("weight_memory_per_gpu", "kv_cache_memory_per_gpu", "decode_act_memory_per_gpu")
    assert values["decode_memory_total"] == pytest.approx(sum(values[name] for name in held))
    assert values["prefill_tp_comm"] > 0 or tp == 1


def test_the_first_token_of_the_circulating_table_needs_no_efficiencies():
    """1.77 s there, with 0.9 of each peak by default."""
    case = {"bs": 20, "seq_len": 1024, "generate_len": 1024, "tp_size": 8, "print_flag": False}
    assert llm_profile("llama2-70b", "a100-sxm-40gb", **case)["TTFT"] == pytest.approx(1.77, 0.01)


def test_the_familiar_sections_are_printed_unless_asked_not_to(capsys):
    llm_profile("Qwen3-8B", "H200", print_flag=False)
    assert capsys.readouterr().out == ""
    llm_profile("Qwen3-8B", "H200", mode="training")
    printed = capsys.readouterr().out
    for title in (
        "LLM main infer config",
        "LLM infer performance analysis",
        "LLM Training analysis",
    ):
        assert title in printed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_cache_dtype_bytes": 3}, "kv_cache_dtype_bytes is 3"),
        ({"kv_cache_bytes": 0.5}, "kv_cache_dtype_bytes is 0.5"),
        ({"layernorm_dtype_bytes": 1}, "layernorm_dtype_bytes is 1"),
        ({"mode": "serve"}, "mode='serve'"),
        ({"bs": 0}, "batch_size"),
    ],
)
def test_wrong_values_are_refused(options, said):
    with pytest.raises(LlmprofError, match=said):
        llm_profile("Qwen3-8B", "H200", print_flag=False, **options)
