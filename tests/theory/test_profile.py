"""Profiles: the numbers of a model on a machine, and what is refused."""

import pytest

from llmprof.errors import LlmprofError
from llmprof.theory import Plan, find_device, parse_device, profile, read_device, shape
from llmprof.theory.memory import weight_bytes
from llmprof.theory.training import activations


@pytest.fixture(scope="module")
def llama():
    """The case of the table that circulates:

    Llama-2 70B, eight A100 40 GB, 20 requests of 1024 + 1024 tokens.
    """
    return profile(
        "llama2-70b", "a100-sxm-40gb", tp_size=8, batch_size=20, seq_len=1024, generate_len=1024
    )


def test_a_decode_step_reads_weights_and_cache(llama):
    decode = llama.components.filter(llama.components["phase"] == "decode")
    weights = decode["weight_bytes"].sum()
    # all weights of the rank but the embedding, of which rows are looked up
    assert weights == pytest.approx(llama.memory.weights - 32000 * 8192 * 2 / 8, rel=1e-9)
    # 80 layers, one head of keys and values of 128 a rank, 20 requests with 1,535 cached tokens
    # each
    assert decode["kv_read_bytes"].sum() == 80 * 2 * 128 * 2 * 20 * 1535
    assert llama.kv_cache_latency_s == pytest.approx(80 * 512 * 20 * 1535 / 1555e9)
    assert llama.decode_latency_s == pytest.approx(0.01217, rel=1e-3)


def test_largest_batches_are_what_is_left_beside_the_weights(llama):
    m = llama.memory
    assert m.weights == pytest.approx(17.2465e9, rel=1e-4)
    assert m.kv_per_token == 80 * 2 * 128 * 2
    left = 40e9 - m.weights
    assert m.largest_decode_batch == int(
        left // (m.kv_per_token * 2048 + m.decode_activations / 20)
    )
    assert m.fits
    assert m.max_batch_total_tokens * m.kv_per_token < left


def test_efficiencies_stretch_the_parts_that_they_name():
    ideal = profile("Qwen3-8B", "H200", batch_size=4, seq_len=2048)
    slow = profile("Qwen3-8B", "H200", batch_size=4, seq_len=2048, hbm_efficiency=0.5)
    # the small projections of few requests are bound by memory in decode
    assert slow.decode_latency_s == pytest.approx(2 * ideal.decode_latency_s, rel=1e-6)
    assert slow.prefill_latency_s < 1.1 * ideal.prefill_latency_s


def test_without_a_cache_every_step_computes_the_whole_sequence():
    whole = profile("Qwen3-8B", "H200", seq_len=1000, generate_len=48, use_kv_cache=False)
    kept = profile("Qwen3-8B", "H200", seq_len=1024, generate_len=2)
    assert whole.decode_latency_s == pytest.approx(kept.prefill_latency_s, rel=1e-2)
    full = profile("Qwen3-8B", "H200")
    low = profile("Qwen3-8B", "H200", dtype="fp8", kv_cache_dtype="fp8")
    assert 0.5 < low.decode_latency_s / full.decode_latency_s < 0.7
    assert low.memory.kv_per_token == full.memory.kv_per_token / 2
    assert (
        profile("Qwen3-8B", "H200", bytes_per_param=1).weights_per_gpu_bytes
        == low.weights_per_gpu_bytes
    )
    assert profile("gpt2", "v100-sxm-32gb").plan.activations == "fp16"


def test_pipeline_stages_share_the_weights_and_pass_the_hidden_states_on():
    one, two = (profile("Qwen2.5-7B", "H200", pp_size=n) for n in (1, 2))
    assert two.weights_per_gpu_bytes < 0.6 * one.weights_per_gpu_bytes
    assert two.memory.kv_per_token == one.memory.kv_per_token / 2
    passed = two.components.filter(
        (two.components["stage"] == "send_recv") & (two.components["phase"] == "prefill")
    )
    assert passed["latency_s"].item() == pytest.approx(1024 * 3584 * 2 / 450e9)


def test_a_model_that_is_too_large_says_by_how_much_and_what_fits():
    with pytest.raises(
        LlmprofError, match=r"141\.1 GB .* 61\.1 GB more .* smallest tp that fits is 2"
    ):
        profile("Llama-3.1-70B", "H100 SXM")
    with pytest.raises(LlmprofError, match="smallest tp that fits is 64"):
        profile("Llama-3.1-405B", "T4", dtype="fp16")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"seq_len": -1}, "seq_len=-1"),
        ({"generate_len": 1.5}, "1.5 as generate_len"),
        ({"tp_size": 3}, "attention heads"),
        ({"hbm_efficiency": 0}, "efficiency is 0"),
        ({"flops_efficiency": 2}, "efficiency is 2"),
        ({"dtype": "int3"}, "int3"),
        ({"mode": "both"}, "mode='both'"),
        ({"ds_zero": 4, "mode": "training"}, "ds_zero=4"),
        ({"memory_utilization": 0}, "utilization"),
        ({"inter_node_bytes_per_s": 0}, "inter_node"),
    ],
)
def test_bad_options_are_refused(options, said):
    with pytest.raises(LlmprofError, match=said):
        profile("Qwen3-8B", "H200", **options)


def test_devices_are_found_read_and_refused(tmp_path):
    assert find_device("a100-sxm-40gb").name == "A100 SXM 40GB"
    with pytest.raises(LlmprofError, match="not stated by its vendor"):
        find_device("Ascend 910B")
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\ntflops: {bf16: 100}\nmemory_gb_per_s: 1000\nmemory_gb: 32\nlink_gb_per_s: 100\n"
    )
    mine = read_device(file)
    assert (mine.peak("bf16"), mine.memory_bytes) == (100e12, 32e9)
    assert profile("Qwen3-8B", file).decode_latency_s > profile("Qwen3-8B", "H200").decode_latency_s
    for bad in (
        {"name": "x"},
        {"name": "x", "tflops": {"bf16": "a"}, "memory_gb_per_s": 1},
        {"speed": 1},
    ):
        with pytest.raises(LlmprofError):
            parse_device(bad)
    file.write_text("- a list")
    with pytest.raises(LlmprofError, match="mapping"):
        read_device(file)
    with pytest.raises(LlmprofError, match="cannot be read"):
        read_device(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("name", "taken"),
    [("H100", "H100 SXM"), ("nvidia a100", "A100 SXM 40GB"), ("t4-pcie-15gb", "T4")],
)
def test_a_name_of_a_family_is_its_first_device_and_a_note_says_so(name, taken):
    found = profile("Qwen3-0.6B", name)
    assert found.device.name == taken
    assert found.notes[0].startswith(f"{name} is taken as {taken}")
    assert profile("Qwen3-0.6B", taken).notes == found.notes[1:]
    for other in ("RTX", "H1", "A100 SXM4 40GB MIG 1g.5gb", "T4 SXM deluxe"):
        with pytest.raises(LlmprofError):
            profile("Qwen3-0.6B", other)


def test_deepseek_v3_is_published_in_fp8():
    """Bytes of the published checkpoint (its ``model.safetensors.index.json``): 688,586,727,753."""
    found = profile("DeepSeek-V3", "H200", tp_size=8, batch_size=1)
    assert (found.plan.weights, found.plan.weight_bytes) == ("fp8", 1 + 4 / 128**2)
    once = weight_bytes(found.shape, Plan(weights="fp8", weight_bytes=1 + 4 / 128**2))
    hidden, experts = 7168, 3 * 7168 * 2048
    attention = hidden * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * hidden
    low = 61 * attention + 3 * 3 * hidden * 18432 + 58 * 257 * experts
    high = found.parameters - low
    assert once == pytest.approx(low * (1 + 4 / 128**2) + 2 * high, rel=1e-12)
    # the checkpoint also has a layer that predicts a second token, with copies of the embedding and
    # the head
    second = (attention + 257 * experts) * (1 + 4 / 128**2) + 2 * (
        256 * hidden + 2 * hidden**2 + 2 * 129280 * hidden
    )
    assert once + second == pytest.approx(688_586_727_753, rel=1e-4)


def test_training_counts_sixteen_bytes_a_parameter_and_shares_them_by_stage():
    def memory(stage, dp=4):
        return profile("Qwen2.5-1.5B", "H200", mode="training", dp_size=dp, ds_zero=stage).training

    parameters = 1543714304
    assert memory(0, 1).weights + memory(0, 1).gradients + memory(0, 1).optimizer == 16 * parameters
    assert memory(1).optimizer == 12 * parameters / 4
    assert memory(2).gradients == 2 * parameters / 4
    assert memory(3).weights == 2 * parameters / 4
    assert memory(3).communication_s == pytest.approx(1.5 * memory(2).communication_s)


def test_training_step_is_three_passes_and_four_with_recomputation():
    plain = profile("Qwen2.5-1.5B", "H200", mode="training", batch_size=8).training
    again = profile(
        "Qwen2.5-1.5B", "H200", mode="training", batch_size=8, recompute="full"
    ).training
    assert plain.backward_s == 2 * plain.forward_s
    assert again.recompute_s < plain.forward_s < 1.5 * again.recompute_s
    assert again.activations < plain.activations / 3
    assert plain.frame()["quantity"].to_list()[-1] == "flops_per_step"
    # without the attention's own: inputs of norms and projections 4, q k v and result 4, inner size
    # twice 4; 2 bytes
    per_token = activations(shape("gpt2"), Plan(), 1) - 50257 * 4
    assert per_token == 12 * 768 * 2 * (4 + 4 + 8)
