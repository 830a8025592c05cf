"""The catalogue of models with random weights."""

from __future__ import annotations

import json

import pytest

from llmprof.errors import ConfigError, OutputError
from llmprof.launch.config import models
from llmprof.theory import shape

PARAMETERS = {
    # what the model cards say, in billions, to the digits that they give
    "Qwen2.5-0.5B": 0.49,
    "Qwen2.5-1.5B": 1.54,
    "Qwen2.5-7B": 7.61,
    "Qwen2.5-14B": 14.7,
    "Qwen2.5-32B": 32.5,
    "Qwen2.5-72B": 72.7,
    "Qwen3-0.6B": 0.6,
    "Qwen3-8B": 8.2,
    "Qwen3-14B": 14.8,
    "Qwen3-32B": 32.8,
    "Qwen3-30B-A3B": 30.5,
    "Llama-3.1-8B": 8.03,
    "Llama-3.1-70B": 70.6,
}


def parameters(config):
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    attention = 2 * hidden * query + 2 * hidden * key
    attention += query + 2 * key if config["model_type"] == "qwen2" else 0
    if "num_experts" in config:
        mlp = config["num_experts"] * (3 * hidden * config["moe_intermediate_size"] + hidden)
    else:
        mlp = 3 * hidden * config["intermediate_size"]
    tables = 1 if config["tie_word_embeddings"] else 2
    return layers * (attention + mlp) + tables * config["vocab_size"] * hidden


@pytest.mark.parametrize("name", PARAMETERS)
def test_shapes_have_as_many_parameters_as_the_model_card_says(name):
    assert parameters(models.config_of(f"random:{name}")) / 1e9 == pytest.approx(PARAMETERS[name], rel=0.012)


@pytest.mark.parametrize("name", models.NAMES)
def test_every_model_is_whole_and_has_a_source(name):
    config = models.config_of(name)
    assert {"architectures", "model_type", "vocab_size"} <= set(config)
    assert shape(config).hidden >= 256
    assert config["vocab_size"] >= 10240
    assert name in models.SOURCES[name] or name.startswith("tiny")


def test_a_model_of_the_catalogue_is_written(tmp_path):
    found = models.resolve("random:tiny", tmp_path / "model")
    assert found == tmp_path / "model" / "tiny"
    assert json.loads((found / "config.json").read_text()) == models.config_of("tiny")


def test_an_unknown_model_names_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no model random:Qwen2\.5-7;.*did you mean random:Qwen2\.5-7B\?"):
        models.resolve("random:Qwen2.5-7", tmp_path)


def test_a_folder_with_a_config_is_taken(tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    assert models.resolve(str(tmp_path / "m"), tmp_path / "x") == tmp_path / "m"
    monkeypatch.chdir(tmp_path)
    assert models.resolve("m", tmp_path / "x") == tmp_path / "m"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["missing", "./missing", "/missing", "a/b/c"])
def test_a_missing_folder_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=f"the model's folder {name} is missing.*random:tiny"):
        models.resolve(name, tmp_path)


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config\.json; expected a folder with the config\.json of a model"):
        models.resolve(str(tmp_path), tmp_path)


def test_a_name_on_a_hub_is_passed_on(tmp_path):
    assert str(models.resolve("Qwen/Qwen2.5-7B", tmp_path)) == "Qwen/Qwen2.5-7B"


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        models.resolve("random:tiny", tmp_path / "file")
