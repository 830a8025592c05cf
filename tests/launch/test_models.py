"""The catalogue of models with random weights."""

from __future__ import annotations

import json

import pytest

from llmprof.errors import ConfigError, OutputError
from llmprof.launch.config import models
from llmprof.theory import shape


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
