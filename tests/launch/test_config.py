from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmprof.errors import ConfigError, OutputError
from llmprof.launch import ConfigManager, ExperimentConfig
from llmprof.launch.config.files import template
from llmprof.launch.engines._job import token_ids
from llmprof.launch.run import command as run_job
from llmprof.launch.run import load as run_load
from llmprof.launch.run.command import job


def config(**values) -> ExperimentConfig:
    return ExperimentConfig.from_dict({"model": "random:tiny"} | values)


def refused(**values) -> str:
    with pytest.raises(ConfigError) as caught:
        config(**values)
    return str(caught.value)


def test_only_the_model_is_asked_for():
    made = ExperimentConfig(model="random:tiny")
    assert (made.profile_mode, made.engine, made.batch_size, made.max_tokens) == ("torch", "vllm", 1, 16)
    assert made.python == sys.executable
    assert not made.with_stack
    assert made.max_iterations > 0, "a profiler without bound fills the memory"
    with pytest.raises(ConfigError, match="names no model"):
        ExperimentConfig.from_dict({})


@pytest.mark.parametrize(
    ("model", "mode", "name"),
    [
        ("random:Qwen2.5-7B", "nsys", "Qwen2.5-7B_nsys"),
        ("/models/My Model/", "torch", "My-Model_torch"),
        ("org/name", "ncu", "name_ncu"),
        ("..", "torch", "model_torch"),
    ],
)
def test_the_name_comes_from_the_model_and_the_mode(model, mode, name):
    assert config(model=model, profile_mode=mode).name == name
    assert config(model=model, experiment_name="mine").name == "mine"


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("profil_mode", "profile_mode"),
        ("batch-size", "batch_size"),
        ("Max_Tokens", "max_tokens"),
        ("tensor_paralel_size", "tensor_parallel_size"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(key, nearest):
    said = refused(**{key: 1})
    assert repr(key) in said
    assert f"did you mean {nearest}?" in said


def test_a_key_like_no_other_is_refused_with_the_list():
    assert "some of model, prompt" in refused(zzz=1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"batch_size": "4"}, "batch_size is text: '4'; expected a whole number; write it without quotes"),
        ({"batch_size": 4.5}, "batch_size is a number: 4.5; expected a whole number"),
        ({"batch_size": True}, "batch_size is true or false: True; expected a whole number"),
        ({"temperature": "1e-3"}, "temperature is text: '1e-3'; expected a number; .* 1.0e-3"),
        ({"temperature": float("nan")}, "expected a number"),
        ({"eager": "yes"}, "eager is text: 'yes'; expected true or false or null"),
        ({"prompt": [1]}, r"prompt\[0\] is a whole number: 1; expected text"),
        ({"prompt": {}}, "expected text or a list of text or null"),
        ({"input_tokens": [1, 2, 3]}, "input_tokens is a list"),
        ({"input_tokens": ["a", 2]}, r"input_tokens\[0\]"),
        ({"engine_args": []}, "engine_args is a list: \\[\\]; expected a mapping"),
        ({"engine_args": {1: 2}}, "a key of engine_args is a whole number"),
        ({"environment": {"A": [1]}}, "environment.A is a list"),
        ({"environment": {"A=B": "1"}}, "environment has the name 'A=B'"),
        ({"profile_mode": "nsis"}, "expected one of .*; did you mean nsys?"),
        ({"engine": "vlm"}, "did you mean vllm?"),
        ({"profile_mode": 3}, "profile_mode is 3"),
        ({"max_tokens": 0}, "max_tokens is 0; expected at least 1"),
        ({"temperature": -1}, "temperature is -1.0; expected at least 0"),
        ({"tensor_parallel_size": 0}, "expected at least 1"),
        ({"model": " "}, "model is ' '"),
        ({"experiment_name": "../x"}, "experiment_name is '../x'; expected letters"),
        ({"experiment_name": ".x"}, "experiment_name"),
        ({"ncu_options": {"lanch_skip": 1}}, "did you mean launch_skip?"),
        ({"ncu_options": {"launch_count": "x"}}, "ncu_options.launch_count is text"),
        ({"ncu_options": {"launch_skip": -1}}, "ncu_options.launch_skip is -1"),
        ({"served": True, "server": {"prot": 1}}, "server has the unknown key 'prot'.*did you mean port?"),
        ({"served": True, "server": {"port": 70000}}, "server.port is 70000"),
        ({"server": {"port": 0}}, "served is false"),
        ({"nsys_options": {"output": "x"}}, "which the run folder decides"),
        ({"nsys_options": {"trace; rm": "x"}}, "nsys_options has the key 'trace; rm'"),
        ({"nsys_options": {"trace": ["cuda"]}}, r"nsys_options.trace is \['cuda'\]"),
        ({"ncu_options": {"options": {"--export": "x"}}}, "which the run folder decides"),
        ({"prompt": "a", "input_tokens": 5}, "prompt and input_tokens are given together"),
        ({"prompt": []}, "prompt is empty"),
        ({"input_tokens": [5, 2]}, "in order"),
        ({"input_tokens": 0}, "at least 1"),
        ({"input_tokens": 500, "max_tokens": 50, "max_model_len": 512}, "are 550 together, and max_model_len is 512"),
        ({"engine": "transformers", "tensor_parallel_size": 2}, "cannot use 2 ranks; expected one"),
        ({"engine": "transformers", "served": True}, "has no server"),
        ({"served": True, "profile_mode": "ncu"}, "requests of a server time out"),
        ({"served": True, "profile_mode": "nsys_ncu"}, "requests of a server time out"),
        ({"layer_annotations": True, "eager": False}, "set eager: true"),
        ({"load": {"shared_prefix": 1.5}}, "share of each prompt"),
        ({"load": {"arrival": "poisson"}}, "run is not served"),
        ({"load": {"arrival": "burst"}, "served": True}, "there is no rate"),
        ({"load": {"speed": 0.0}}, "more than 0"),
        ({"load": {"inptu": 3}}, "did you mean input"),
        ({"load": {"input": 3}, "prompt": "a"}, "prompt and load are given together"),
        ({"engine_args": {"profiler_config": {}}}, "which a run sets itself; expected the option profile_mode"),
        ({"engine_args": {"tensor-parallel-size": 2}}, "expected the option tensor_parallel_size"),
        ({"until": 3.0}, "a share of the mean"),
        ({"top_p": 0.0}, "more than 0, at most 1"),
        ({"profile_mode": "ops", "ops_options": {"step": 3}}, "unknown key 'step'"),
        ({"profile_mode": "ops", "ops_options": {"steps": 0}}, "steps is 0"),
        ({"profile_mode": "ops", "ops_options": {"method": "patch"}}, "method is 'patch'"),
        ({"profile_mode": "ops", "ops_options": {"cycle": [["events", 3], ["magic", 1]]}}, "magic"),
        ({"profile_mode": "ops", "ops_options": {"functions": {"mine": "no place"}}}, "functions.mine"),
        ({"profile_mode": "ops", "eager": False}, "eager is false"),
        ({"profile_mode": "ops", "engine": "transformers"}, "cannot time operators"),
        ({"profile_mode": "ops", "served": True}, "cannot time operators"),
        ({"profile_mode": "torch", "ops_options": {"steps": 3}}, "profile_mode is torch"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        config(**values)


def test_a_change_is_checked_too():
    made = config(max_tokens=4)
    assert made.replace(max_tokens=8).max_tokens == 8
    assert made.max_tokens == 4
    with pytest.raises(ConfigError, match="did you mean max_tokens"):
        made.replace(max_token=8)


@given(
    st.text(min_size=1).filter(str.strip),
    st.integers(1, 10**6),
    st.floats(0, 100),
    st.dictionaries(
        st.text(min_size=1).map("x_".__add__), st.one_of(st.none(), st.booleans(), st.integers(), st.text())
    ),
)
def test_any_values_survive_a_file(tmp_path_factory, prompt, tokens, temperature, extra):
    made = config(prompt=prompt, max_tokens=tokens, temperature=temperature, engine_args=extra)
    folder = tmp_path_factory.mktemp("files")
    for suffix in ("json", "yaml"):
        assert ConfigManager.load_config(ConfigManager.save_config(made, folder / f"c.{suffix}")) == made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: !!python/object/apply:os.system [touch hacked]", "not plain data: .* line 1; .*no code .* was run"),
        ("model: !!python/name:os.system", "not plain data"),
        ("model: !evil x", "not plain data"),
        ("model: [a", "not valid YAML: .* in line"),
        ("model: a\nmodel: b", "the key 'model' twice"),
        ("- a", "the configuration is list"),
        ("", "the configuration is NoneType"),
        ("model: a\nbatch_sise: 2", "c.yaml: the configuration has the unknown key 'batch_sise'.*batch_size"),
        ("model: a\nbatch_size: four", "c.yaml: batch_size is text: 'four'"),
        ("model: " + "[" * 3000, "not valid YAML"),
    ],
)  # fmt: skip
def test_yaml_that_is_wrong_is_refused(tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        ConfigManager.load_config("c.yaml")
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"model": "a",}', "not valid JSON"), ('{"model": "a", "model": "b"}', "twice"), ("[]", "configuration is list")],
)  # fmt: skip
def test_json_that_is_wrong_is_refused(tmp_path, text, words):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        ConfigManager.load_config(path)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(ExperimentConfig)]), ANYTHING, max_size=4))
def test_whatever_is_given_is_taken_whole_or_refused(values):
    with contextlib.suppress(ConfigError):
        made = config(**values)
        assert ExperimentConfig.from_dict(json.loads(json.dumps(made.to_dict()))) == made


@given(st.text(alphabet="model: !&*[]{}-,'\"\n\t#|>@`%a1.", max_size=60))
def test_whatever_stands_in_a_file_is_taken_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "c.yaml"
    path.write_text(text)
    with contextlib.suppress(ConfigError):
        assert ConfigManager.load_config(path).model


def test_a_file_that_is_missing_or_not_utf8_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.yaml cannot be read: No such file"):
        ConfigManager.load_config(tmp_path / "no.yaml")
    path = tmp_path / "c.yaml"
    path.write_bytes("model: Zürich".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"not UTF-8: byte 0xfc in line 1.*WINDOWS-1252"):
        ConfigManager.load_config(path)


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        ConfigManager.save_config(config(), tmp_path / "file" / "c.yaml")


def test_a_relative_python_is_made_absolute_but_links_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(sys.executable)
    assert config(python="venv/python").python == os.fspath(tmp_path / "venv" / "python")
    assert config(python="python3").python == "python3"


# --- prompts


@pytest.mark.parametrize(
    ("name", "content", "prompts"),
    [
        ("p.txt", "one\n\n  two \n", ["one", "  two "]),
        ("p.txt", "\ufeffone\r\ntwo", ["one", "two"]),
        ("p.json", json.dumps(["one", {"prompt": "two"}, {"text": "three"}, 4]), ["one", "two", "three"]),
        ("p.jsonl", '{"question": "q"}\n\n{"conversations": [{"from": "human", "value": "v"}]}\n', ["q", "v"]),
        ("p.jsonl", '{"messages": [{"role": "user", "content": "c"}]}', ["c"]),
    ],
)
def test_prompts_come_from_files(tmp_path, name, content, prompts):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    assert run_load.from_file(path) == prompts
    made = config(prompt_file=str(path))
    assert run_job.texts(made) == prompts
    assert run_job.texts(made.replace(batch_size=4)) == (prompts * 4)[:4]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.txt", b"caf\xe9", "not UTF-8: byte 0xe9 in line 1"),
        ("p.txt", "a\nb".encode("utf-16"), "not UTF-8: .*UTF-16"),
        ("p.txt", b"\n \n", "has no prompts"),
        ("p.json", b"{", "not valid JSON"),
        ("p.json", b'[{"other": 1}]', "has no prompts; expected .*prompt, text"),
    ],
)
def test_prompt_files_that_are_wrong_are_refused(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        run_job.texts(config(prompt_file=str(path)))


def test_the_batch_is_as_large_as_the_prompts_unless_it_is_said():
    assert config(prompt=["a", "b", "c"]).batch_size == 3
    assert config(prompt="a").batch_size == 1
    assert config(input_tokens=8, batch_size=4).batch_size == 4
    assert run_job.texts(config(prompt=["a", "b"], batch_size=3)) == ["a", "b", "a"]
    assert run_job.texts(config(prompt=["a", "b"], batch_size=1)) == ["a"]


def tokens_of(*args) -> list[list[int]]:
    return token_ids(run_job.synthetic(*args))


def test_synthetic_prompts_are_the_same_for_a_seed_and_fit_the_vocabulary():
    made = config(input_tokens=[3, 9], batch_size=50)
    tokens = tokens_of(made, 40)
    assert {len(t) for t in tokens} <= set(range(3, 10))
    assert {n for t in tokens for n in t} <= set(range(5, 40))
    assert tokens == tokens_of(made, 40)
    assert tokens != tokens_of(made.replace(seed=1), 40)
    assert [len(t) for t in tokens_of(config(), None)] == [64]


def test_a_model_without_weights_gets_random_ones(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert job(config(model=str(tmp_path)), tmp_path)[0]["random_weights"]
    (tmp_path / "model.safetensors").touch()
    assert not job(config(model=str(tmp_path)), tmp_path)[0]["random_weights"]
    assert job(config(model=str(tmp_path), engine_args={"load_format": "dummy"}), tmp_path)[0]["random_weights"]
    assert not job(config(model="org/name"), "org/name")[0]["random_weights"]


@pytest.mark.parametrize(
    ("mode", "profiler", "plain"),
    [("inference_only", "none", True), ("torch", "torch", False), ("nsys", "cuda", False), ("ncu", "cuda", False)],
)
def test_the_job_follows_from_the_mode(mode, profiler, plain):
    values, _ = job(config(profile_mode=mode, plain=False, repeat=5), "m")
    assert (values["profiler"], values["plain"], values["repeat"]) == (profiler, plain, 5)
    values, _ = job(config(profile_mode=mode, repeat=5), "m", under_ncu=True)
    assert (values["plain"], values["repeat"]) == (False, 1)
    assert json.loads(json.dumps(values)) == values


def test_a_model_that_cannot_be_split_as_asked_is_refused_before_an_engine_starts(tmp_path):
    (tmp_path / "config.json").write_text('{"num_attention_heads": 14, "num_hidden_layers": 2}')
    with pytest.raises(ConfigError, match="has 14 attention heads; expected one of 1, 2, 7, 14"):
        job(config(model=str(tmp_path), tensor_parallel_size=3), tmp_path)
    with pytest.raises(ConfigError, match="has 2 layers; expected at most 2"):
        job(config(model=str(tmp_path), pipeline_parallel_size=3), tmp_path)
    assert job(config(model=str(tmp_path), tensor_parallel_size=2), tmp_path)[0]["tensor_parallel_size"] == 2


def test_a_commented_configuration_has_every_option_and_can_be_read(tmp_path):
    text = template(dataclasses.fields(ExperimentConfig))
    path = tmp_path / "default.yaml"
    path.write_text(text)
    assert ConfigManager.load_config(path) == ExperimentConfig(model="random:tiny")
    names = {one.name for one in dataclasses.fields(ExperimentConfig)}
    values = [line.removeprefix("# ") for line in text.splitlines() if line.removeprefix("# ").split(":")[0] in names]
    assert len(values) == len(names)
    path.write_text("\n".join(line for line in values if not line.startswith("python")))
    assert ConfigManager.load_config(path) == ExperimentConfig(model="random:tiny")
