"""Work of operators and their least times, against numbers worked out by hand."""

import pytest

from llmprof.errors import LlmprofError
from llmprof.theory import Efficiency, Plan, Requests, hardware, shape
from llmprof.theory.bound import Machine
from llmprof.theory.memory import kv_bytes_per_token, state_bytes_per_request
from llmprof.theory.plan import decode, number_format, prefill
from llmprof.theory.work import OperatorWork, distinct_experts, placed_operators, step_operators

H200 = hardware.device("H200")


def one(name, batch, component, plan=None, **options):
    found = step_operators(shape(name), batch, plan or Plan(), **options)
    return next(o for o in found if o.component == component)


def test_pairs_of_a_causal_mask_and_of_a_window():
    # 4 queries after 6 cached tokens see 7, 8, 9 and 10 keys
    assert Requests(1, 4, 10).pairs() == 34
    assert Requests(2, 4, 10).pairs(window=8) == 2 * (7 + 8 + 8 + 8)
    # the first of them reaches back to key 0, the last to 2: 10 keys; with a window of 3, keys 4 to
    # 9
    assert Requests(1, 4, 10).keys() == 10
    assert Requests(1, 4, 10).keys(window=3) == 6


def test_a_decode_step_of_a_dense_model():
    # Qwen3-8B: hidden 4096, 32 heads, 8 of keys and values, head size 128; 3 requests at 100 tokens
    batch = decode(3, 100)
    qkv = one("Qwen3-8B", batch, "qkv_proj")
    assert qkv.flops == 2 * 3 * 4096 * (32 + 16) * 128
    assert qkv.weight_bytes == 4096 * (32 + 16) * 128 * 2
    assert (qkv.input_bytes, qkv.output_bytes) == (3 * 4096 * 2, 3 * (32 + 16) * 128 * 2)
    attention = one("Qwen3-8B", batch, "attention")
    assert attention.flops == 4 * 32 * 128 * 300
    assert attention.kv_read_bytes == 3 * 99 * 2 * 8 * 128 * 2
    head = one("Qwen3-8B", batch, "lm_head")
    assert (head.flops, head.weight_bytes) == (2 * 3 * 4096 * 151936, 4096 * 151936 * 2)
    batch = prefill(2, 50)
    assert one("Qwen3-8B", batch, "lm_head").flops == 2 * 2 * 4096 * 151936
    assert one("Qwen3-8B", batch, "lm_head", all_logits=True).flops == 2 * 100 * 4096 * 151936
    assert one("Qwen3-8B", batch, "attention").kv_read_bytes == 0
    found = [
        o
        for o in step_operators(shape("gemma-3-1b-pt"), decode(1, 2000), Plan())
        if o.component == "attention"
    ]
    assert [(o.layers, o.kv_read_bytes) for o in found] == [
        (22, 511 * 2 * 256 * 2),
        (4, 1999 * 2 * 256 * 2),
    ]


def test_tensor_parallel_ranks_share_the_work_and_exchange_hidden_states():
    batch, two = decode(4, 100), Plan(tp=2)
    assert (
        one("Qwen3-8B", batch, "gate_up_proj", two).flops * 2
        == one("Qwen3-8B", batch, "gate_up_proj").flops
    )
    assert one("Qwen3-8B", batch, "all_reduce", two).message_bytes == 4 * 4096 * 2
    reduced = sum(
        o.layers for o in step_operators(shape("Qwen3-8B"), batch, two) if o.stage == "all_reduce"
    )
    assert reduced == 2 * 36 + 1
    assert not [o for o in step_operators(shape("Qwen3-8B"), batch, Plan()) if o.message_bytes]


def test_experts_that_a_batch_touches():
    assert distinct_experts(128, 8, 1) == pytest.approx(8)
    # two tokens: 128 (1 - (1 - 1/16)^2)
    assert distinct_experts(128, 8, 2) == pytest.approx(15.5)
    assert distinct_experts(8, 2, 1000) == pytest.approx(8)
    found = one("Qwen3-30B-A3B", decode(2, 10), "experts")
    size = 3 * 2048 * 768
    assert found.flops == 2 * 2 * 8 * size
    assert found.weight_bytes == pytest.approx(15.5 * size * 2)
    spread = one("Qwen3-30B-A3B", decode(2, 10), "experts", Plan(tp=4, expert_parallel=True))
    assert spread.weight_bytes == pytest.approx(found.weight_bytes / 4)


def test_latent_attention_reads_the_compressed_cache_in_decode():
    read = step_operators(shape("DeepSeek-V3"), decode(1, 1000), Plan())
    attention = next(o for o in read if o.component == "attention")
    assert attention.kv_read_bytes == 999 * 576 * 2
    assert attention.flops == 2 * 128 * (576 + 512) * 1000
    absorbed = next(o for o in read if o.component == "absorbed_kv_b")
    assert absorbed.flops == 2 * 512 * 128 * (128 + 128)


def test_quantized_weights_leave_embeddings_and_head_alone():
    plan = Plan(weights="int4")
    assert one("Qwen3-8B", decode(1, 10), "o_proj", plan).weight_bytes == 4096 * 4096 * (
        0.5 + 2 / 128
    )
    assert one("Qwen3-8B", decode(1, 10), "o_proj", plan).math == "bf16"
    assert one("Qwen3-8B", decode(1, 10), "lm_head", plan).weight_bytes == 4096 * 151936 * 2
    assert one("Qwen3-8B", decode(1, 10), "o_proj", Plan(weights="fp8")).math == "fp8"
    machine = Machine(H200, Plan())
    spilled = OperatorWork("x", "norm", input_bytes=60 * 2**20, output_bytes=70 * 2**20)
    assert machine.crossing(spilled) == 30 * 2**20
    assert machine.crossing(OperatorWork("x", "rope", input_bytes=60 * 2**20, fusable=True)) == 0
    assert Machine(hardware.device("L4"), Plan()).crossing(spilled) == 0
    kept = Machine(H200, Plan(), resident=True)
    assert kept.crossing(OperatorWork("x", "o_proj", weight_bytes=1e6)) == 0


def test_an_all_reduce_sends_twice_its_share_over_one_direction_of_the_links():
    machine = Machine(H200, Plan(tp=4))
    # 2 x 3/4 of 300 MB at 450 GB/s
    assert machine.time(
        OperatorWork("r", "all_reduce", message_bytes=3e8)
    ).communication_s == pytest.approx(1e-3)
    # 16 ranks go over the network: 2 x 15/16 of 400 MB at 50 GB/s
    far = Machine(H200, Plan(tp=16))
    assert far.time(
        OperatorWork("r", "all_reduce", message_bytes=4e8)
    ).communication_s == pytest.approx(0.015)
    pcie = Machine(hardware.device("L4"), Plan(tp=2))
    assert pcie.time(
        OperatorWork("r", "all_reduce", message_bytes=32e9)
    ).communication_s == pytest.approx(1)
    assert "PCIe" in pcie.notes[0]
    machine = Machine(hardware.device("A100 SXM 80GB"), Plan(weights="fp8"))
    assert machine.rate("fp8") == 312e12
    assert "fp8" in machine.notes[0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Efficiency(flops=0), "flops efficiency is 0"),
        (lambda: Efficiency(memory=1.01), "memory efficiency is 1.01"),
        (lambda: Plan(tp=0), "tp=0"),
        (lambda: Plan(tp=4, sp=2), "sp=2"),
        (lambda: Plan(weights="bf17"), "bf17"),
        (lambda: Plan(activations="fp8"), "fp8"),
        (lambda: Plan(weight_bytes=0), "0 bytes"),
        (lambda: Requests(0, 1, 1), "count=0"),
        (lambda: Requests(1, 5, 4), "context of 4"),
        (lambda: number_format("int3"), "int3"),
        (
            lambda: Plan(tp=3).check(shape("Qwen3-8B")),
            "does not divide the 32 attention heads.*expected one of 1, 2, 4",
        ),
        (lambda: Plan(tp=14).check(shape("Qwen2.5-0.5B")), "inner size"),
        (lambda: Plan(pp=99).check(shape("Qwen3-8B")), "36 layers"),
        (lambda: Plan(tp=7).check(shape("Qwen2.5-7B")), "4 heads of keys and values"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(make, said):
    with pytest.raises(LlmprofError, match=said):
        make()


def test_a_state_is_read_and_written_once_a_step_whatever_the_length_of_the_request():
    # Nemotron-H-8B: 24 blocks of Mamba-2 with 128 heads of 64 x 128 numbers in fp32, and 4 taps
    # over 8192 + 2 x 8 x 128
    name, state, kept = "Nemotron-H-8B-Base-8K", 128 * 64 * 128 * 4, (8192 + 2048) * 3 * 2
    for context in (100, 10_000):
        scan, conv = (one(name, decode(5, context), part) for part in ("scan", "conv"))
        assert (scan.layers, scan.kv_read_bytes, scan.kv_write_bytes) == (24, 5 * state, 5 * state)
        assert (conv.kv_read_bytes, conv.kv_write_bytes) == (5 * kept, 5 * kept)
        assert scan.flops == 4 * 5 * 128 * 64 * 128
        assert conv.flops == 2 * 5 * (8192 + 2048) * 4
    assert state_bytes_per_request(shape(name), Plan()) == 24 * (state + kept)
    assert state_bytes_per_request(shape(name), Plan(tp=4)) == 6 * (state + kept)
    # a prompt that begins has no state to read; its next piece has
    assert one(name, prefill(2, 64), "scan").kv_read_bytes == 0
    assert one(name, (Requests(2, 64, 128, "prefill"),), "scan").kv_read_bytes == 2 * state
    # only the 4 attention layers cache keys and values
    assert kv_bytes_per_token(shape(name), Plan()) == 4 * 2 * 8 * 128 * 2
    # Qwen3-Next: 32 heads of 128 x 128; in_proj gives q, k (16 heads of 128 each), v, z (32 heads),
    # and two a head
    batch = decode(3, 50)
    assert one("Qwen3-Next-80B-A3B", batch, "scan").flops == 6 * 3 * 32 * 128 * 128
    assert one("Qwen3-Next-80B-A3B", batch, "in_proj").flops == 2 * 3 * 2048 * (
        2 * 2048 + 2 * 4096 + 64
    )
    # its full attention has a gate as wide as the query
    assert (
        one("Qwen3-Next-80B-A3B", batch, "qkv_proj").flops == 2 * 3 * 2048 * (2 * 16 + 2 * 2) * 256
    )
    stages = {operator.stage for operator in step_operators(shape("LFM2-1.2B"), batch, Plan())}
    assert {"in_proj", "conv", "out_proj"} <= stages
    assert not {"scan", "gate_norm"} & stages
    with pytest.raises(LlmprofError, match="64"):
        step_operators(shape("MiniMax-Text-01"), decode(1, 10), Plan(tp=3))


def test_sparse_attention_scores_all_keys_and_attends_to_the_best():
    # DeepSeek-V3.2: 64 heads of 128 score, 2048 tokens are attended: (576 + 512) numbers a key and
    # head
    short, long = (decode(2, context) for context in (1000, 50_000))
    for batch, seen, attended in ((short, 1000, 1000), (long, 50_000, 2048)):
        scores = one("DeepSeek-V3.2", batch, "index_scores")
        assert scores.flops == 2 * (64 * 128 + 64) * 2 * seen
        assert scores.kv_read_bytes == 2 * (seen - 1) * 128 * 2
        assert (
            one("DeepSeek-V3.2", batch, "attention").flops == 2 * 128 * (576 + 512) * 2 * attended
        )


def test_compressed_attention_reads_a_window_and_entries_of_several_tokens():
    # DeepSeek-V4-Flash, two requests of 10,000 tokens: 128 in the window; 78 entries of 128 tokens,
    # or the best 512 of 2,500 entries of 4 tokens; 64 heads of 512, keys are values
    batch = decode(2, 10_000)
    _, inside, _ = placed_operators(shape("DeepSeek-V4-Flash"), batch, Plan())
    found = {layer.kind: {o.component: o for o in parts} for layer, parts in inside.items()}
    for kind, entries in (
        ("sliding_attention", 0),
        ("compressed_attention", 78),
        ("sparse_attention", 512),
    ):
        attention = found[kind]["attention"]
        assert attention.flops == 2 * 64 * 4 * 512 * (128 + entries)
        assert attention.kv_read_bytes == 2 * (127 + entries) * 512 * 2
    sparse = found["sparse_attention"]
    assert sparse["index_scores"].flops == 2 * 2 * 64 * 128 * 2500
    assert sparse["o_a_proj"].flops == 2 * 2 * 64 * 512 * 1024
    assert sparse["o_b_proj"].flops == 2 * 2 * 8 * 1024 * 4096
    assert not {"index_scores", "compressor"} & set(found["sliding_attention"])
    # both halves of a layer: 24 numbers from four streams, and four streams mixed
    assert sparse["hyper_connections"].flops == 2 * 2 * 2 * (24 * 4 * 4096 + 16 * 4096)
    # at least the streams are read and written once for each half
    assert (
        sparse["hyper_connections"].input_bytes
        == sparse["hyper_connections"].output_bytes
        == 2 * 2 * 4 * 4096 * 2
    )
    # positions 1 to 9 with entries of 4 tokens: 0 0 0 1 1 1 1 2 2
    assert Requests(1, 9, 9).entries(4) == 8
    assert Requests(2, 2, 9).entries(4) == 2 * 4
    assert Requests(1, 9, 9).entries(4, 1) == 6
    assert Requests(1, 3, 3).entries(4) == 0


def test_per_layer_inputs_are_looked_up_and_multiplied():
    batch = decode(3, 50)
    # Gemma 4 E2B: 35 layers of 256 numbers a token from a table, and a projection to as many
    assert one("gemma-4-E2B", batch, "per_layer_embedding").input_bytes == 3 * 35 * 256 * 2
    assert one("gemma-4-E2B", batch, "per_layer_projection").flops == 2 * 3 * 1536 * 35 * 256
    assert one("gemma-4-31B", batch, "qkv_proj").flops == 2 * 3 * 5376 * (32 + 2 * 16) * 256
    _, inside, _ = placed_operators(shape("gemma-4-31B"), batch, Plan())
    # whole layers: 32 heads of 512, 4 of keys, and no matrix of values
    assert {o.flops for parts in inside.values() for o in parts if o.component == "qkv_proj"} == {
        2 * 3 * 5376 * (32 + 2 * 16) * 256,
        2 * 3 * 5376 * (32 + 4) * 512,
    }


def test_a_block_of_one_kind_has_the_stages_of_that_kind_alone():
    read = shape("Nemotron-H-8B-Base-8K")
    _, inside, _ = placed_operators(read, decode(1, 10), Plan())
    stages = {layer.kind: {o.stage for o in found} for layer, found in inside.items()}
    assert stages["mamba2"] == {"norm", "in_proj", "conv", "scan", "gate_norm", "out_proj"}
    assert stages["mlp"] == {"norm", "gate_up_proj", "activation", "down_proj"}
    assert stages["full_attention"] == {
        "norm",
        "qkv_proj",
        "rope",
        "kv_cache_write",
        "attention",
        "o_proj",
    }
    assert read.layers[0].kind == "mamba2"
    assert [layer.kind for layer in read.layers[6:9]] == ["mamba2", "full_attention", "mlp"]
    assert shape("Falcon-H1-7B-Base").layers[0].kind == "full_attention+mamba2"
    assert [layer.kind for layer in shape("NVIDIA-Nemotron-3-Nano-30B-A3B").layers[:6]] == [
        "mamba2",
        "moe",
        "mamba2",
        "moe",
        "mamba2",
        "full_attention",
    ]
