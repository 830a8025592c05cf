import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import statistics
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmprof.errors import ConfigError, OutputError
from llmprof.run.launch import ConfigManager, ExperimentConfig, engines, plan
from llmprof.run.launch.config import models
from llmprof.run.launch.config.options import template
from llmprof.run.launch.run import command
from llmprof.run.launch.run.command import job
from llmprof.run.launch.run.load import from_file, lengths, load
from llmprof.run.workers.job import token_ids, turns
from llmprof.run.workers.server import achieved, arrivals


def config(**values):
    return ExperimentConfig.from_dict({"model": "random:tiny"} | values)


def refused(**values):
    with pytest.raises(ConfigError) as caught:
        config(**values)
    return str(caught.value)


def test_only_the_model_is_asked_for(monkeypatch):
    monkeypatch.setenv("LLMPROF_ENGINE_PYTHON", sys.executable)
    made = ExperimentConfig(model="random:tiny")
    assert (made.profile_mode, made.engine, made.batch_size, made.max_tokens) == (
        "torch",
        "vllm",
        1,
        16,
    )
    assert made.python == sys.executable
    assert not made.with_stack
    assert made.max_iterations > 0, "a profiler without bound fills the memory"
    with pytest.raises(ConfigError, match="names no model"):
        ExperimentConfig.from_dict({})
    made = config(max_tokens=4)
    assert made.replace(max_tokens=8).max_tokens == 8
    assert made.max_tokens == 4
    with pytest.raises(ConfigError, match="did you mean max_tokens"):
        made.replace(max_token=8)


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
    ("named", "where", "chosen"),
    [
        ("/opt/python", (("vllm", "torch"), ("vllm", "torch")), "/opt/python"),
        ("", (("vllm", "torch"), ("vllm", "torch")), "this"),
        ("", (("torch",), ("vllm", "torch")), "made"),
        ("", ((), ("torch",)), "this"),
    ],
)
def test_the_python_is_one_that_has_the_engine(tmp_path, monkeypatch, named, where, chosen):
    here, there = where
    monkeypatch.setenv("LLMPROF_ENGINE_PYTHON", named)
    monkeypatch.setattr(engines, "_MADE", tmp_path)
    for package in there:
        (tmp_path / "lib" / "python3.12" / "site-packages" / package).mkdir(parents=True)
    monkeypatch.setattr(
        engines.importlib.util, "find_spec", lambda name: name if name in here else None
    )
    python = {"this": sys.executable, "made": str(tmp_path / "bin" / "python")}.get(chosen, chosen)
    assert config().python == python
    assert config(python="/mine/python").python == "/mine/python"


def test_names_and_defaults_of_other_tools():
    made = ExperimentConfig(
        model_path="/models/Qwen", base_prompt="Hello", preset="classic", max_tokens=7
    )
    assert (made.model, made.prompt, made.max_tokens) == ("/models/Qwen", "Hello", 7)
    assert (made.profile_mode, made.temperature, made.batch_size) == ("inference_only", 0.7, 1)
    again = made.replace(model_path="m", preset="classic")
    assert (again.max_tokens, again.prompt) == (100, "Hello, how are you?")
    assert (again.replace(input_tokens=16).prompt, again.replace(batch_size=2).prompt) == (
        None,
        again.prompt,
    )
    assert ExperimentConfig(model="m", preset="classic", prompt_file="p.txt").prompt is None
    assert config(model="/x/y", model_name="My Qwen").name == "My-Qwen_torch"
    assert made.replace(model_name="org/Q", profile_mode="nsys").name == "Q_nsys", (
        "the mode stays in the name"
    )
    assert "given together" in refused(model_path="m")
    assert "one of classic" in refused(preset=1)
    with pytest.raises(ConfigError, match="names no model"):
        ExperimentConfig()
    with pytest.raises(ConfigError, match="unknown key 'base_promt'"):
        ExperimentConfig(model="m", base_promt="Hello")


def test_an_unknown_key_is_refused_with_the_nearest_known_one():
    for key, nearest in (
        ("profil_mode", "profile_mode"),
        ("batch-size", "batch_size"),
        ("Max_Tokens", "max_tokens"),
    ):
        said = refused(**{key: 1})
        assert repr(key) in said
        assert f"did you mean {nearest}" in said
    assert "some of model, prompt" in refused(zzz=1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"batch_size": "4"},
            "batch_size is text: '4'; expected a whole number; write it without quotes",
        ),
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
        (
            {"served": True, "server": {"prot": 1}},
            "server has the unknown key 'prot'.*did you mean port?",
        ),
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
        (
            {"input_tokens": 500, "max_tokens": 50, "max_model_len": 512},
            "are 550 together, and max_model_len is 512",
        ),
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
        (
            {"engine_args": {"profiler_config": {}}},
            "which a run sets itself; expected the option profile_mode",
        ),
        ({"engine_args": {"tensor-parallel-size": 2}}, "expected the option tensor_parallel_size"),
        ({"until": 3.0}, "a share of the mean"),
        ({"top_p": 0.0}, "more than 0, at most 1"),
        ({"profile_mode": "ops", "ops_options": {"step": 3}}, "unknown key 'step'"),
        ({"profile_mode": "ops", "ops_options": {"steps": 0}}, "steps is 0"),
        ({"profile_mode": "ops", "ops_options": {"method": "patch"}}, "method is 'patch'"),
        ({"profile_mode": "ops", "ops_options": {"cycle": [["events", 3], ["magic", 1]]}}, "magic"),
        (
            {"profile_mode": "ops", "ops_options": {"functions": {"mine": "no place"}}},
            "functions.mine",
        ),
        ({"profile_mode": "ops", "eager": False}, "eager is false"),
        ({"profile_mode": "ops", "engine": "transformers"}, "cannot time operators"),
        ({"profile_mode": "ops", "served": True}, "cannot time operators"),
        ({"profile_mode": "torch", "ops_options": {"steps": 3}}, "profile_mode is torch"),
    ],
)
def test_wrong_values_are_refused(values, words):
    with pytest.raises(ConfigError, match=words):
        config(**values)


@given(
    st.text(min_size=1).filter(str.strip),
    st.integers(1, 10**6),
    st.floats(0, 100),
    st.dictionaries(
        st.text(min_size=1).map("x_".__add__),
        st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    ),
)
def test_any_values_survive_a_file(tmp_path_factory, prompt, tokens, temperature, extra):
    made = config(prompt=prompt, max_tokens=tokens, temperature=temperature, engine_args=extra)
    folder = tmp_path_factory.mktemp("files")
    for suffix in ("json", "yaml"):
        assert (
            ConfigManager.load_config(ConfigManager.save_config(made, folder / f"c.{suffix}"))
            == made
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "model: !!python/object/apply:os.system [touch hacked]",
            "not plain data: .* line 1; .*no code .* was run",
        ),
        ("model: !!python/name:os.system", "not plain data"),
        ("model: !evil x", "not plain data"),
        ("model: [a", "not valid YAML: .* in line"),
        ("model: a\nmodel: b", "the key 'model' twice"),
        ("- a", "the configuration is list"),
        ("", "the configuration is NoneType"),
        (
            "model: a\nbatch_sise: 2",
            "c.yaml: the configuration has the unknown key 'batch_sise'.*batch_size",
        ),
        ("model: a\nbatch_size: four", "c.yaml: batch_size is text: 'four'"),
        ("model: " + "[" * 3000, "not valid YAML"),
    ],
)
def test_yaml_that_is_wrong_is_refused(tmp_path, monkeypatch, text, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        ConfigManager.load_config("c.yaml")
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"model": "a",}', "not valid JSON"),
        ('{"model": "a", "model": "b"}', "twice"),
        ("[]", "configuration is list"),
    ],
)
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


@given(
    st.dictionaries(
        st.sampled_from([f.name for f in dataclasses.fields(ExperimentConfig)]),
        ANYTHING,
        max_size=4,
    )
)
def test_whatever_is_given_is_taken_whole_or_refused(values):
    with contextlib.suppress(ConfigError):
        made = config(**values)
        assert ExperimentConfig.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_a_file_that_is_missing_or_not_utf8_or_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        ConfigManager.save_config(config(), tmp_path / "file" / "c.yaml")
    with pytest.raises(ConfigError, match=r"no\.yaml cannot be read: No such file"):
        ConfigManager.load_config(tmp_path / "no.yaml")
    path = tmp_path / "c.yaml"
    path.write_bytes("model: Zürich".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"not UTF-8: byte 0xfc in line 1.*WINDOWS-1252"):
        ConfigManager.load_config(path)


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
        (
            "p.json",
            json.dumps(["one", {"prompt": "two"}, {"text": "three"}, 4]),
            ["one", "two", "three"],
        ),
        (
            "p.jsonl",
            '{"question": "q"}\n\n{"conversations": [{"from": "human", "value": "v"}]}\n',
            ["q", "v"],
        ),
        ("p.jsonl", '{"messages": [{"role": "user", "content": "c"}]}', ["c"]),
    ],
)
def test_prompts_come_from_files(tmp_path, name, content, prompts):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    assert from_file(path) == prompts
    made = config(prompt_file=str(path))
    assert command.texts(made) == prompts
    assert command.texts(made.replace(batch_size=4)) == (prompts * 4)[:4]


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
        command.texts(config(prompt_file=str(path)))


def test_the_batch_is_as_large_as_the_prompts_unless_it_is_said():
    assert config(prompt=["a", "b", "c"]).batch_size == 3
    assert config(prompt="a").batch_size == 1
    assert config(input_tokens=8, batch_size=4).batch_size == 4
    assert command.texts(config(prompt=["a", "b"], batch_size=3)) == ["a", "b", "a"]
    assert command.texts(config(prompt=["a", "b"], batch_size=1)) == ["a"]


def tokens_of(*args):
    return token_ids(command.synthetic(*args))


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
    assert job(config(model=str(tmp_path), engine_args={"load_format": "dummy"}), tmp_path)[0][
        "random_weights"
    ]
    assert not job(config(model="org/name"), "org/name")[0]["random_weights"]


@pytest.mark.parametrize(
    ("mode", "profiler", "plain"),
    [
        ("inference_only", "none", True),
        ("torch", "torch", False),
        ("nsys", "cuda", False),
        ("ncu", "cuda", False),
    ],
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
    assert (
        job(config(model=str(tmp_path), tensor_parallel_size=2), tmp_path)[0][
            "tensor_parallel_size"
        ]
        == 2
    )


def test_a_commented_configuration_has_every_option_and_can_be_read(tmp_path):
    text = template(dataclasses.fields(ExperimentConfig))
    path = tmp_path / "default.yaml"
    path.write_text(text)
    assert ConfigManager.load_config(path) == ExperimentConfig(model="random:tiny")
    names = {one.name for one in dataclasses.fields(ExperimentConfig)}
    values = [
        line.removeprefix("# ")
        for line in text.splitlines()
        if line.removeprefix("# ").split(":")[0] in names
    ]
    assert len(values) == len(names)
    path.write_text("\n".join(line for line in values if not line.startswith("python")))
    assert ConfigManager.load_config(path) == ExperimentConfig(model="random:tiny")


RUN = Path("/runs/r")
WORKER = ["/venv/bin/python", "/runs/r/inference_script.py", "--out", "/runs/r"]


config_of_command = functools.partial(config, python="/venv/bin/python")


def test_options_of_ncu_go_over_everything():
    options = {
        "kernel_name": "regex:flash",
        "launch_skip": 0,
        "launch_count": 2,
        "set": "basic",
        "options": {
            "clock-control": "base",
            "--cache-control": "none",
            "force-overwrite": False,
            "replay-mode": None,
        },
    }
    made = command.ncu(
        config_of_command(ncu_options=options),
        WORKER,
        RUN / "report",
        kernels=["a"],
        skip=5,
        count=9,
    )
    pairs = dict(zip(made[1::2], made[2::2], strict=False))
    assert pairs["--kernel-name"] == "regex:flash"
    assert (pairs["--launch-skip"], pairs["--launch-count"], pairs["--set"]) == ("0", "2", "basic")
    assert (pairs["--clock-control"], pairs["--cache-control"]) == ("base", "none")
    assert not {"--force-overwrite", "--replay-mode"} & set(made)


@pytest.mark.parametrize("name", ["gemm", "regex:gemm", "^nvjet|gemm$", "."])
def test_collectives_are_left_out_whatever_name_is_asked_for(name):
    several = config_of_command(ncu_options={"kernel_name": name}, tensor_parallel_size=2)
    made = command.ncu(several, WORKER, RUN / "report")
    pattern = made[made.index("--kernel-name") + 1].removeprefix("regex:")
    assert re.search(pattern, "cutlass_gemm" if name != "." else "x")
    waiting = (
        "ncclDevKernel_AllReduce_gemm",
        "cross_device_reduce_1stage",
        "all_gather_gemm",
        "two_shot_all_reduce",
    )
    for waits in (
        *waiting,
        "multimem_all_reduce_kernel",
        "allreduce_fusion_kernel_oneshot_lamport",
    ):
        assert not re.search(pattern, waits)


def test_what_would_break_a_shell_is_one_argument():
    nasty = "/models/a b; touch $(x) `y` \"z\" 'q' \n"
    made = command.worker(config_of_command(python=f"{nasty}/python"), Path(nasty), RUN)
    assert made[1] == nasty
    assert len(made) == 4


# --- environment


def test_the_environment_makes_captures_right():
    found = command.environment(config_of_command())
    on = (
        "PYTHONUNBUFFERED",
        "VLLM_NO_USAGE_STATS",
        "DO_NOT_TRACK",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    )
    off = ("VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_USE_NCCL_SYMM_MEM", "NCCL_NVLS_ENABLE")
    others = {"TOKENIZERS_PARALLELISM": "false"}
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    assert found == dict.fromkeys(on, "1") | dict.fromkeys(off, "0") | others | offline
    assert "HF_HUB_OFFLINE" not in command.environment(config_of_command(model="org/name"))
    spawned = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}  # nsys and ncu cannot follow a fork
    assert spawned.items() <= command.environment(config_of_command(profile_mode="nsys")).items()


def test_the_configuration_has_the_last_word_on_the_environment():
    made = config_of_command(environment={"NCCL_NVLS_ENABLE": "1", "MINE": "x"})
    found = command.whole_environment(made, {"NCCL_NVLS_ENABLE": "2", "HOME": "/h"})
    assert (found["NCCL_NVLS_ENABLE"], found["MINE"], found["HOME"]) == ("1", "x", "/h")


def test_secrets_are_kept_from_reports_that_hold_the_environment():
    inherited = dict.fromkeys(
        [
            "HF_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "OPENAI_API_KEY",
            "DB_PASSWORD",
            "GOOGLE_CREDENTIALS",
            "BASIC_AUTH",
        ],
        "s",
    ) | {"TOKENIZERS_PARALLELISM": "true", "PATH": "/bin", "AUTHOR": "a"}
    kept = command.whole_environment(config_of_command(profile_mode="nsys"), inherited)
    assert "s" not in kept.values()
    assert {"PATH", "AUTHOR"} <= set(kept)
    assert (
        command.whole_environment(config_of_command(profile_mode="torch"), inherited)["HF_TOKEN"]
        == "s"
    )
    asked = config_of_command(profile_mode="ncu", environment={"HF_TOKEN": "mine"})
    assert command.whole_environment(asked, inherited)["HF_TOKEN"] == "mine"


# --- plan


def test_the_plan_lists_the_passes_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    engine, nsys, ncu = ("engine", "/venv/bin/python"), ("nsys", "nsys"), ("ncu", "ncu")
    of = {
        "inference_only": [engine],
        "torch": [engine],
        "nsys": [nsys],
        "ncu": [ncu],
        "nsys_ncu": [nsys, ncu],
    }
    for mode, passes in of.items():
        made = plan(config_of_command(profile_mode=mode, results_dir=str(tmp_path / "results")))
        assert [(name, argv[0]) for name, argv in made] == passes
    assert not (tmp_path / "results").exists()


# --- loads: lengths, arrivals, shared prefixes and files of requests


def served(file=None, **load_of):
    more = {"file": str(file)} if file is not None else {}
    return config(served=True, load=more | load_of)


@pytest.mark.parametrize(
    ("said", "mean", "deviation"),
    [
        ("512", 512, 0),
        ("100:300", 200, 58),  # uniform: (300 - 100) / sqrt(12)
        ("normal:400:50", 400, 50),
        ("lognormal:400:200", 400, 200),
        ("exponential:300", 300, 300),
    ],
)
def test_lengths_have_the_mean_and_deviation_that_were_asked_for(said, mean, deviation):
    found = lengths(said, 20_000, seed=1)
    assert statistics.fmean(found) == pytest.approx(mean, rel=0.03)
    assert statistics.pstdev(found) == pytest.approx(deviation, rel=0.06, abs=0.1)
    assert found == lengths(said, 20_000, seed=1)
    assert found[:50] != lengths(said, 50, seed=2) or not deviation


@pytest.mark.parametrize(
    "said", ["", "0", "-3", "9:3", "gauss:4:5", "normal:5", "exponential:a", "lognormal:0:1", "nan"]
)
def test_lengths_that_are_none_are_refused(said):
    with pytest.raises(ConfigError, match=r"load\.input is .*expected N, LOW:HIGH"):
        lengths(said, 3, seed=0)


def test_every_request_of_a_served_run_has_a_prompt_of_its_own():
    made, _ = job(config(served=True, input_tokens=64, server={"num_prompts": 20}), "tiny")
    prompts = token_ids(made["synthetic"])
    assert len(prompts) == 20
    assert len({tuple(prompt) for prompt in prompts}) == 20
    assert {len(prompt) for prompt in prompts} == {64}
    assert made["prefix_caching"] is False


def test_prompts_share_the_stated_share():
    made, _ = job(served(input="40:80", shared_prefix=0.5, prefixes=2), "tiny")
    prompts = token_ids(made["synthetic"])
    assert len({tuple(prompt) for prompt in prompts}) == 16
    for one, other in zip(prompts, prompts[2:], strict=False):
        half = min(len(one), len(other)) // 2
        assert one[:half] == other[:half]
    assert prompts[0][:20] != prompts[1][:20]
    assert made["prefix_caching"] is True


def test_files_of_requests_have_lengths_and_times(tmp_path):
    file = tmp_path / "azure.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.1805900,7,2\n"
    )
    found = load(served(file))
    assert (found.input_tokens, found.output_tokens) == ([374, 7], [44, 2])
    assert found.arrivals_s == pytest.approx([0.0, 1.5])
    assert load(served(file, speed=3.0)).arrivals_s == pytest.approx([0.0, 0.5])
    file = tmp_path / "mooncake.jsonl"
    rows = [
        {"timestamp": 3000, "input_length": 9, "output_length": 2},
        {"timestamp": 1000, "input_length": 5},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    found = load(served(file, time_unit="ms"))
    assert (found.input_tokens, found.arrivals_s) == ([5, 9], [0.0, 2.0])
    assert found.output_tokens == [16, 2]
    made, _ = job(served(file, time_unit="ms"), "tiny")
    assert made["server"]["num_prompts"] == 2
    assert [len(prompt) for prompt in token_ids(made["synthetic"])] == [5, 9]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{broken", "line 2 of load.jsonl: '{broken' is not a JSON object"),
        (
            '{"timestamp": 1, "input_length": -4}',
            "line 2 .*input_length is -4, which is not a number of tokens",
        ),
        ('{"timestamp": "soon", "input_length": 4}', "line 2 .*'soon' is not a time"),
        ('{"timestamp": 1}', "line 2 .*neither a length .* nor a prompt"),
    ],
)
def test_a_broken_line_is_named_and_left_out_only_when_asked(tmp_path, line, words):
    file = tmp_path / "load.jsonl"
    good = '{"timestamp": 0, "input_length": 3}'
    file.write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(ConfigError, match=words) as error:
        load(served(file))
    assert error.value.facts["line"] == 2
    found = load(served(file, skip_broken=True))
    assert found.input_tokens == [3, 3]
    assert found.notes == ("1 broken lines of load.jsonl were left out: 2",)


def test_a_file_without_requests_and_times_in_some_lines(tmp_path):
    file = tmp_path / "load.jsonl"
    file.write_text("\n")
    with pytest.raises(ConfigError, match="has no requests"):
        load(served(file))
    file.write_text('{"timestamp": 0, "input_length": 3}\n{"input_length": 3}')
    with pytest.raises(ConfigError, match=r"only some lines of .* have a time"):
        load(served(file))


@pytest.mark.parametrize("seed", [0, 7])
def test_poisson_arrivals_have_the_mean_rate_that_was_asked_for(seed):
    times = arrivals(25, 12.0, seed)
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(24 / 12.0)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps) > 2 / 12.0 > 0.5 / 12.0 > min(gaps)
    assert arrivals(3, 0.0, seed) == [0.0] * 3
    assert arrivals(1, 12.0, seed) == [0.0]


def test_the_achieved_rate_is_over_the_time_that_the_requests_took():
    requests = [{"start_ns": k * 10**9, "e2e_s": 2.0, "arrived_s": 0.0} for k in range(4)]
    # four requests arrive within 3 s, and the last one ends after 5 s
    assert achieved(requests, [0.0, 1.0, 2.0, 3.0]) == {"arrived_per_s": 1.0, "answered_per_s": 0.8}
    assert achieved(requests[:1], [0.0]) == {"arrived_per_s": None, "answered_per_s": None}


class _Notes:
    def __init__(self, walls):
        self.document, self.notes, self._walls = {"stages": []}, [], iter(walls)

    def measure(self):
        self.document["stages"].append({"name": "plain", "dur_ns": next(self._walls)})

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize(
    ("walls", "until", "repeats", "noted"),
    [
        ([100, 130, 90, 100], None, 2, 0),
        ([100, 101, 100] * 9, 0.03, 3, 0),  # half width: 4.303 * 0.577 / sqrt(3) = 1.43 of 100.3
        ([100, 200] * 20, 0.03, 6, 1),
    ],
)
def test_repeats_go_on_until_the_mean_is_known(walls, until, repeats, noted):
    record = _Notes(walls)
    for _ in turns({"until": until, "most_repeats": 6}, record, "plain", 2):
        record.measure()
    assert len(record.document["stages"]) == repeats
    assert len(record.notes) == noted


# --- the catalogue of models with random weights


def test_a_name_on_a_hub_and_a_folder_with_a_config_are_taken(tmp_path, monkeypatch):
    assert str(models.resolve("Qwen/Qwen2.5-7B", tmp_path)) == "Qwen/Qwen2.5-7B"
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    assert models.resolve(str(tmp_path / "m"), tmp_path / "x") == tmp_path / "m"
    monkeypatch.chdir(tmp_path)
    assert models.resolve("m", tmp_path / "x") == tmp_path / "m"
    assert not (tmp_path / "x").exists()


def test_random_weights_of_one_configuration_have_one_path(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "cache"))
    runs = [tmp_path / name for name in ("a", "b")]
    first, second = (models.resolve("random:tiny", run) for run in runs)
    assert first == second
    assert models.resolve("random:Qwen2.5-0.5B", runs[0]) != first
    text = (first / "config.json").read_text()
    assert {(run / "tiny" / "config.json").read_text() for run in runs} == {text}
    (tmp_path / "full").touch()
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "full"))
    assert models.resolve("random:tiny", runs[0]) == runs[0] / "tiny"


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"there is no model random:Qwen2\.5-7;.*did you mean random:Qwen2\.5-7B\?",
    ):
        models.resolve("random:Qwen2.5-7", tmp_path)
    for name in ("missing", "./missing", "/missing", "a/b/c"):
        with pytest.raises(ConfigError, match=f"the model's folder {name} is missing.*random:tiny"):
            models.resolve(name, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        models.resolve("random:tiny", tmp_path / "file")
    with pytest.raises(
        ConfigError,
        match=r"has no config\.json; expected a folder with the config\.json of a model",
    ):
        models.resolve(str(tmp_path), tmp_path)


def test_instances_are_served_and_have_devices_of_their_own():
    made = config(disaggregate="1+2", tensor_parallel_size=2)
    assert (made.served, made.devices, made.world_size) == (True, 6, 2)
    assert config().devices == 1
    assert ExperimentConfig.from_dict(made.to_dict()) == made


@pytest.mark.parametrize(
    "wrong",
    [
        {"disaggregate": "0+1"},
        {"disaggregate": "2"},
        {"disaggregate": "1+1", "engine": "sglang"},
        {"disaggregate": "1+1", "profile_mode": "nsys"},
        {"disaggregate": "1+1", "memory_snapshot": True},
    ],
)
def test_instances_that_cannot_be(wrong):
    with pytest.raises(ConfigError, match="disaggregate"):
        config(**wrong)
