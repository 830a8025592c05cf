import json
from pathlib import Path

import pytest

from llmprof.errors import LlmprofError
from llmprof.theory import Plan, catalog, shape
from llmprof.theory.memory import (
    active_parameters,
    kv_bytes_per_token,
    total_parameters,
    weight_bytes,
)


def config(**changes):
    read = catalog.model_config("Qwen3-8B") | changes
    return {name: value for name, value in read.items() if value != "absent"}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("random:qwen3-8b", "Qwen3-8B"),
        ("llama2-70b", "Llama-2-70b-hf"),
        ("meta-llama/Llama-2-70b-chat-hf", "Llama-2-70b-hf"),
        ("Qwen2.5-7B-Instruct", "Qwen2.5-7B"),
        ("llama3-8b", "Meta-Llama-3-8B"),
        ("mixtral-8x7b", "Mixtral-8x7B-v0.1"),
        ("gemma-3-27b-it", "gemma-3-27b-pt"),
    ],
)
def test_models_are_found_however_they_are_written(written, name):
    assert shape(written).name == name


def test_an_unknown_model_names_the_nearest_and_an_unknown_family_is_a_llama():
    with pytest.raises(LlmprofError, match=r"Qwen3-8B") as caught:
        shape("Qwen3-9B")
    assert "Qwen3-8B" in caught.value.facts["near"]
    read = shape(catalog.model_config("Meta-Llama-3-8B") | {"model_type": "newllama"})
    assert total_parameters(read) == total_parameters(shape("Meta-Llama-3-8B"))
    assert "newllama" in read.notes[0]
    assert shape("Meta-Llama-3-8B").notes == ()


def test_a_nested_text_config_is_the_model(tmp_path):
    outer = {
        "model_type": "gemma3",
        "text_config": catalog.model_config("gemma-3-4b-pt"),
        "vision_config": {},
    }
    assert total_parameters(shape(outer)) == total_parameters(shape("gemma-3-4b-pt"))
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config()))
    assert shape(folder).name == shape(folder / "config.json").name == "mine"
    assert (
        total_parameters(shape(folder))
        == total_parameters(shape(config()))
        == total_parameters(shape("Qwen3-8B"))
    )
    with pytest.raises(LlmprofError, match=r"config\.json"):
        shape(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LlmprofError, match=r"config\.json"):
        shape(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(LlmprofError, match="array"):
        shape(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": "absent"}, "no hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"num_key_value_heads": 5}, "32 heads and 5"),
        (
            {"num_attention_heads": 33, "num_key_value_heads": 33, "head_dim": "absent"},
            "33 heads do not divide",
        ),
        ({"is_encoder_decoder": True}, "not a decoder"),
        ({"state_size": 16}, "not a decoder"),
        ({"intermediate_size": "absent"}, "no intermediate_size"),
    ],
)
def test_a_bad_config_says_what_is_wrong(changes, said):
    with pytest.raises(LlmprofError, match=said):
        shape(config(**changes))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        (
            "Nemotron-H-8B-Base-8K",
            {"hybrid_override_pattern": "M-M*"},
            "kinds of 4 layers and has 52",
        ),
        ("Qwen3-Next-80B-A3B", {"linear_num_value_heads": None}, "no linear_num_value_heads"),
        ("Falcon-H1-7B-Base", {"mamba_n_heads": 7}, "7 heads for 3072 channels"),
        ("Qwen3-8B", {"ssm_state_size": 128}, "ssm_state_size"),
    ],
)
def test_a_pattern_of_layers_that_does_not_fit_is_refused(name, changes, said):
    with pytest.raises(LlmprofError, match=said):
        shape(catalog.model_config(name) | changes)


def test_a_pattern_is_read_as_each_family_writes_it():
    pattern = catalog.model_config("Nemotron-H-8B-Base-8K")["hybrid_override_pattern"]
    words = {"M": "linear_attention", "-": "mlp", "*": "full_attention", "E": "moe"}
    listed = catalog.model_config("Nemotron-H-8B-Base-8K") | {
        "hybrid_override_pattern": None,
        "layers_block_type": [words[one] for one in pattern],
    }
    assert shape(listed).layers == shape("Nemotron-H-8B-Base-8K").layers
    # MiniMax's own file: 0 is lightning, 1 full attention; Kimi's counts layers from one
    minimax = catalog.model_config("MiniMax-Text-01")
    codes = [int(kind == "full_attention") for kind in minimax.pop("layer_types")]
    assert shape(minimax | {"attn_type_list": codes}).layers == shape("MiniMax-Text-01").layers
    kimi = catalog.model_config("Kimi-Linear-48B-A3B")
    full = [n + 1 for n, kind in enumerate(kimi.pop("layer_types")) if kind == "full_attention"]
    parts = {
        "full_attn_layers": full,
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    }
    assert shape(kimi | {"linear_attn_config": parts}).layers == shape("Kimi-Linear-48B-A3B").layers


@pytest.mark.parametrize(
    ("name", "changes", "said", "least"),
    [
        (
            "Nemotron-H-8B-Base-8K",
            {"hybrid_override_pattern": "M-M*" * 12 + "M-MX"},
            "'X' (1)",
            None,
        ),
        (
            "granite-4.0-h-small",
            {"layer_types": ["mamba"] * 39 + ["retention"]},
            "'retention' (1)",
            None,
        ),
        # four layers without attention: 32 + 8 + 8 heads of 128 each, the output, the norms of
        # queries and keys
        (
            "Qwen3-8B",
            {"layer_types": ["attention"] * 32 + ["mystery"] * 4},
            "'mystery' (4)",
            4 * (4096 * 128 * (32 + 16) + 4096 * 4096 + 2 * 128),
        ),
        (
            "Qwen3-8B",
            {"gabor_rank": 64, "use_gabor": True, "gabor_bias": False},
            "gabor_rank, use_gabor",
            0,
        ),
        ("DeepSeek-V4-Flash", {"compress_ratios": [0] * 42 + [16]}, "'compressed by 16' (1)", None),
    ],
)
def test_what_is_not_understood_is_named_and_the_rest_is_the_least(name, changes, said, least):
    read = shape(catalog.model_config(name) | changes)
    assert read.lower_bound
    assert said in read.notes[-1]
    assert "gabor_bias" not in read.notes[-1]
    if least is not None:
        assert total_parameters(read) == total_parameters(shape(name)) - least


def test_configs_of_the_catalogue_are_understood_whole():
    assert not [name for name in catalog.names() if shape(name).notes]


def test_pages_say_how_many_published_models_there_are():
    published = len([name for name in catalog.names() if not name.startswith("tiny")])
    root = Path(__file__).parents[2]
    for page, said in (
        ("README.md", f"{published} published models"),
        ("README.zh-CN.md", f"{published} 个已发布的模型"),
        ("docs/predict.md", f"all {published} published models"),
        ("CHANGELOG.md", f"{published} published models"),
    ):
        assert said in (root / page).read_text(encoding="utf-8").replace("\n", " "), page


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    # parameters of the checkpoint in its formats: experts of 4 or 8 bits with scales, the other
    # projections FP8
    [
        ("DeepSeek-V4-Flash", 156),
        ("Kimi-K2-Instruct", 1029),
        ("Kimi-K2-Thinking", 594),
        ("MiniMax-M2", 230),
        ("DeepSeek-V3.2", 675),
    ],
)
def test_published_formats_give_the_size_of_the_checkpoint(name, gigabytes):
    read = shape(name)
    plan = Plan(weights=read.weight_format, weight_bytes=read.weight_bytes)
    assert weight_bytes(read, plan) / 1e9 == pytest.approx(gigabytes, rel=0.01)


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        (None, "bf16"),
    ],
)
def test_quantization_of_the_config(quantization, said):
    assert shape(config(quantization_config=quantization)).weight_format == said


def test_layers_follow_the_config():
    assert [layer.attention.window for layer in shape("gemma-2-2b").layers[:4]] == [
        4096,
        None,
        4096,
        None,
    ]
    assert [layer.attention.window for layer in shape("gemma-3-1b-pt").layers[:6]] == [512] * 5 + [
        None
    ]
    assert {layer.attention.window for layer in shape("Mistral-7B-v0.1").layers} == {4096}
    assert {layer.attention.window for layer in shape("Qwen2.5-7B").layers} == {None}
    read = shape("Mixtral-8x7B-v0.1")
    # six of eight experts of three matrices in 32 layers
    assert total_parameters(read) - active_parameters(read) == 32 * 6 * 3 * 4096 * 14336
    assert active_parameters(shape("Qwen3-8B")) == total_parameters(shape("Qwen3-8B"))
    config = catalog.model_config("gemma-3n-E2B")
    config["intermediate_size"][3] += 8
    assert total_parameters(shape(config)) - total_parameters(shape("gemma-3n-E2B")) == 3 * 2048 * 8
    with pytest.raises(LlmprofError, match="29 inner sizes"):
        shape(config | {"intermediate_size": config["intermediate_size"][1:]})
    indexers = (
        ["full"] * 3 + ["full", "shared", "shared", "shared"] * 18 + ["full", "shared", "shared"]
    )
    read = shape(catalog.model_config("GLM-5") | {"indexer_types": indexers})
    whole = shape("GLM-5").layers[0].attention
    each = whole.q_rank * 32 * 128 + 6144 * (128 + 32) + 2 * 128
    assert (
        total_parameters(shape("GLM-5")) - total_parameters(read) == indexers.count("shared") * each
    )
    assert {layer.kind for layer in read.layers} == {"sparse_attention"}
    read = shape("gemma-4-E2B")
    first, last = read.layers[0], read.layers[34]
    # the last 20 layers read the keys and values of layers before them, and their feed-forward part
    # is twice as wide
    assert [layer.attention.shared for layer in read.layers] == [False] * 15 + [True] * 20
    assert (first.feed_forward.inner, last.feed_forward.inner) == (6144, 12288)
    assert (first.attention.head_dim, first.attention.window) == (256, 512)
    assert (last.attention.head_dim, last.attention.window) == (512, None)
    # 12 layers of 512 tokens, and three whole ones of heads twice as large; one head of keys and
    # values
    assert kv_bytes_per_token(read, Plan(), context=1024) == (12 / 2 * 512 + 3 * 1024) * 2
    assert kv_bytes_per_token(read, Plan(tp=2), context=1024) == (12 / 2 * 512 + 3 * 1024) * 2
    mixed = shape("gemma-4-26B-A4B").layers[5]
    assert (mixed.attention.kv_heads, mixed.attention.tied_values, mixed.norms) == (2, True, 7)
    assert (mixed.feed_forward.shared_inner, mixed.feed_forward.active) == (2112, 8)


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", 1 + 4 / 128**2, False)),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
            ("int4", 0.5 + 2.5 / 128, False),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True},
            ("int4", 0.5 + 2 / 32, False),
        ),
        (
            {
                "quant_method": "mxfp4",
                "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
            },
            ("mxfp4", None, True),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
            ("nvfp4", None, False),
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, ("fp8", None, False)),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "ignore": ["re:.*self_attn.*", "lm_head"],
                "config_groups": {
                    "group_0": {
                        "weights": {
                            "num_bits": 4,
                            "type": "int",
                            "group_size": 32,
                            "symmetric": True,
                        }
                    }
                },
            },
            ("int4", 0.5 + 2 / 32, True),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            ("fp8", None, False),
        ),
        ({"quant_method": "secret"}, ("bf16", None, False)),
    ],
)
def test_scales_and_what_is_not_quantized_follow_the_config(quantization, expected):
    read = shape(config(quantization_config=quantization))
    assert (read.weight_format, read.weight_bytes, read.only_experts) == expected
    assert bool(read.notes) == (quantization["quant_method"] == "secret")


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)])
def test_weights_in_mxfp4_take_what_the_published_checkpoints_do(name, gib):
    # arXiv 2508.10925, table 1: checkpoint sizes; only the experts are quantized
    assert round(weight_bytes(shape(name), Plan(weights="mxfp4")) / 2**30, 1) == gib
