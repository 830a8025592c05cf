"""Parameters and FLOPs against the models that transformers builds."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmprof.theory import Plan, catalog, shape
from llmprof.theory.memory import kv_bytes_per_token, parameters, total_parameters, weight_bytes
from llmprof.theory.plan import decode, prefill
from llmprof.theory.work import step_operators

HERE = Path(__file__).parent
REFERENCE = json.loads((HERE / "reference.json").read_text())
BATCH, PROMPT = REFERENCE["made_with"]["batch"], REFERENCE["made_with"]["prompt"]
ENGINE = Path(
    os.environ.get("LLMPROF_ENGINE_PYTHON", HERE.parent.parent / ".venv-vllm" / "bin" / "python")
)


def flops(name, batch):
    """As torch counts them: every query with every key, every token's logits, latent vectors
    expanded, no scan.
    """
    read = shape(name)
    if (
        read.family == "llama4_text"
    ):  # transformers sends every token to every expert, with a weight of zero
        layers = [
            replace(
                layer, feed_forward=replace(layer.feed_forward, active=layer.feed_forward.experts)
            )
            for layer in read.layers
        ]
        read = replace(read, layers=tuple(layers))
    found = step_operators(read, batch, Plan(), causal=False, all_logits=True, absorb=False)
    return sum(one.flops * one.layers for one in found if one.component not in ("conv", "scan"))


@pytest.mark.parametrize("name", catalog.names())
def test_parameters_are_exactly_those_of_transformers(name):
    expected, frame = REFERENCE["models"][name], parameters(shape(name))
    assert total_parameters(shape(name)) == frame["parameters"].sum() == expected["parameters"]
    assert (
        frame.filter(frame["component"] == "embedding")["parameters"].item()
        == expected["embedding"]
    )
    if not shape(name).tied:
        head = frame.filter(frame["component"] == "lm_head")["parameters"].item()
        assert head - (shape(name).vocab if shape(name).head_bias else 0) == expected["lm_head"]


@pytest.mark.parametrize("name", catalog.names())
def test_flops_are_those_that_torch_counts(name):
    expected = REFERENCE["models"][name]
    assert flops(name, prefill(BATCH, PROMPT)) == pytest.approx(expected["prefill_flops"], rel=1e-6)
    assert flops(name, decode(BATCH, PROMPT + 1)) == pytest.approx(
        expected["decode_flops"], rel=1e-6
    )


@pytest.mark.parametrize("name", catalog.names())
def test_weights_of_one_rank_are_the_parameters_and_parts_of_several_add_up(name):
    read = shape(name)
    assert weight_bytes(read, Plan()) == 2 * total_parameters(read)
    heads = [
        part.heads for layer in read.layers for part in (layer.attention, layer.recurrent) if part
    ]
    two = None if any(one % 2 for one in heads) else 2 * weight_bytes(read, Plan(tp=2))
    # norms, routers, learned positions and repeated keys are on both ranks
    assert two is None or 2 * total_parameters(read) <= two <= 2.12 * total_parameters(read)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 2 (keys and values) x layers x heads of keys and values x head size x 2 bytes
        ("Qwen2.5-7B", 2 * 28 * 4 * 128 * 2),
        ("Llama-2-7b-hf", 2 * 32 * 32 * 128 * 2),
        ("Llama-3.1-70B", 2 * 80 * 8 * 128 * 2),
        ("gemma-2-27b", 2 * 46 * 16 * 128 * 2),
        ("gpt2-xl", 2 * 48 * 25 * 64 * 2),
        # latent vectors: 512 + 64 numbers a layer
        ("DeepSeek-V3", 61 * 576 * 2),
    ],
)
def test_kv_cache_bytes_of_a_token(name, expected):
    assert kv_bytes_per_token(shape(name), Plan()) == expected


def test_kv_cache_is_split_repeated_windowed_and_quantized():
    assert kv_bytes_per_token(shape("Qwen2.5-7B"), Plan(tp=2)) == 28 * 4 * 128 * 2
    # 8 heads over 16 ranks: each keeps one whole head
    assert kv_bytes_per_token(shape("Llama-3.1-70B"), Plan(tp=16)) == 80 * 2 * 128 * 2
    assert kv_bytes_per_token(shape("DeepSeek-V3"), Plan(tp=8)) == 61 * 576 * 2
    assert kv_bytes_per_token(shape("Qwen3-8B"), Plan(kv_cache="fp8")) == 36 * 2 * 8 * 128
    # 22 of 26 layers keep 512 of 1,024 tokens
    assert (
        kv_bytes_per_token(shape("gemma-3-1b-pt"), Plan(), context=1024)
        == (4 + 22 / 2) * 2 * 256 * 2
    )
    assert set(REFERENCE["models"]) == set(catalog.names())


@pytest.mark.slow
@pytest.mark.skipif(
    not ENGINE.exists(), reason="needs an environment with transformers (make engine)"
)
def test_the_reference_is_what_transformers_says_today(tmp_path):
    out = tmp_path / "reference.json"
    names = [
        "Qwen2.5-7B",
        "gemma-3-1b-pt",
        "DeepSeek-V2-Lite",
        "Qwen3-30B-A3B",
        "opt-350m",
        "phi-2",
    ]
    names += [
        "NVIDIA-Nemotron-3-Nano-30B-A3B",
        "Qwen3-Next-80B-A3B",
        "Kimi-Linear-48B-A3B",
        "LFM2-1.2B",
    ]
    done = subprocess.run(
        [str(ENGINE), str(HERE / "reference.py"), str(out), *names], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(out.read_text())["models"] == {
        name: REFERENCE["models"][name] for name in names
    }
