import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llmprof.cli.output import to_json
from llmprof.cli.run import _commands, commands_text
from llmprof.errors import LaunchError, OutputError, ReadError
from llmprof.run.launch import ExperimentConfig, RunFolder, clean, runs
from llmprof.run.launch.config import disclosure
from llmprof.run.launch.run import command, folder
from llmprof.run.workers.job import with_secrets
from llmprof.trace.storage import files


@pytest.fixture
def config(tmp_path):
    return ExperimentConfig(model="random:tiny", results_dir=str(tmp_path / "results"))


def test_a_new_folder_has_the_name_of_model_mode_and_time(config, tmp_path):
    made = RunFolder.create(config)
    assert made.path.parent == tmp_path / "results"
    assert re.fullmatch(r"tiny_torch_\d{8}-\d{6}", made.path.name)
    assert made.config == config
    assert RunFolder.create(config, tmp_path / "other").path.parent == tmp_path / "other"
    assert RunFolder.open(made) == made
    assert os.fspath(made) == str(made.path)
    with pytest.raises(AttributeError, match="no 'nothing'"):
        _ = made.nothing


def test_two_runs_of_one_second_get_two_folders(config, monkeypatch):
    class Noon(folder.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 21, 12, 0, 0)

    monkeypatch.setattr(folder, "datetime", Noon)
    names = [RunFolder.create(config).path.name for _ in range(3)]
    assert names == [
        "tiny_torch_20261121-120000",
        "tiny_torch_20261121-120000-1",
        "tiny_torch_20261121-120000-2",
    ]


def test_a_run_whose_process_is_gone_was_interrupted(config):
    made = RunFolder.create(config)
    code = f"""
import os, sys
from llmprof.run.launch import RunFolder
folder = RunFolder.open({str(made.path)!r})
with folder.lock():
    folder.set_state("running", stage="engine")
    print(folder.state["state"], flush=True)
    os._exit(9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "running\n"
    assert made.state["state"] == "interrupted"
    assert made.state["stage"] == "engine"
    assert "has ended" in made.state["error"]["message"]


def test_two_runs_do_not_work_in_one_folder(config):
    made = RunFolder.create(config)
    with made.lock():
        assert made.locked
        said = rf"another process works .*process id {os.getpid()}.*; wait for its end"
        with pytest.raises(LaunchError, match=said), made.lock():
            raise AssertionError
    assert not made.locked
    with made.lock():
        pass
    with made.lock():
        made.set_state("running", stage="engine")
        said = made.state
        assert (said["state"], said["stage"], said["pid"], said["ended"]) == (
            "running",
            "engine",
            os.getpid(),
            None,
        )
        made.set_state("finished", stage="done")
    assert made.state["state"] == "finished"
    assert made.state["started"] == said["started"]
    assert made.state["ended"]


def test_what_is_no_run_folder_is_said(tmp_path, config):
    with pytest.raises(ReadError, match=r"not a run folder: it has no state\.json"):
        RunFolder.open(tmp_path / "none")
    made = RunFolder.create(config)
    with pytest.raises(ReadError, match="not the one around it"):
        RunFolder.open(made.path.parent)
    (made.path / "state.json").write_text("{")
    with pytest.raises(ReadError, match="is damaged"):
        _ = made.state


def test_clearing_keeps_the_configuration(config):
    made = RunFolder.create(config)
    (made.path / "traces").mkdir()
    (made.path / "traces" / "a").touch()
    made.log.touch()
    outside = made.path.parent / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (made.path / "link").symlink_to(outside)
    made.clear()
    assert sorted(p.name for p in made.path.iterdir()) == ["config.yaml", "state.json"]
    assert (outside / "precious").exists()


def test_only_runs_that_failed_are_cleaned_and_none_that_is_at_work(config):
    states = ["finished", "failed", "interrupted", folder.UNIMPORTED, "failed"]
    made = []
    for state in states:
        made.append(RunFolder.create(config))
        made[-1].set_state(state, stage="x")
    (Path(config.results_dir) / "no run").mkdir()
    assert runs(config.results_dir) == sorted(made, key=lambda f: f.path)
    with made[4].lock():
        removed = clean(config.results_dir)
    assert removed == [made[1].path, made[2].path]
    assert [f.path.exists() for f in made] == [True, False, False, True, True]
    assert clean(config.results_dir, states=("finished",)) == [made[0].path]


# --- files


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    files.write_json(path, {"n": 1})

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OutputError, match=r"cannot write a\.json: the disk is full .*; free space on the disk"
    ) as caught:
        files.write_json(path, {"n": 2})
    assert caught.value.facts["full"]
    assert json.loads(path.read_text()) == {"n": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_the_state_gets_onto_a_full_disk(config, monkeypatch):
    made = RunFolder.create(config)

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    made.set_state(
        "failed", stage="engine", error={"type": "OutputError", "message": "the disk is full"}
    )
    assert made.state["state"] == "failed"
    assert made.state["error"]["message"] == "the disk is full"
    with pytest.raises(OutputError, match="the disk is full"):
        files.write_small(made.path / "new.json", {})


def test_a_results_folder_that_cannot_be_made_is_said(tmp_path, config):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*; choose a folder that can be written"):
        RunFolder.create(config, tmp_path / "file" / "results")


SECRETS = {
    "DATABASE_URL": "postgres://me:planted-1@db/x",
    "SSH_PASSPHRASE": "planted-2",
    "MY_KEY": "planted-3",
    "AZURE_OPENAI_KEY": "planted-4",
    "VLLM_API_KEY": "planted-5",
    "SOMETHING": "planted-6",
    "VLLM_PROXY": "http://me:planted-7@proxy",
    "NCCL_PLUGIN": "hf_plantedplanted8",
}


def test_no_value_of_the_environment_is_written_unless_its_name_is_harmless(
    config, tmp_path, capsys
):
    given = config.replace(
        environment={**SECRETS, "NCCL_DEBUG": "WARN", "CUDA_VISIBLE_DEVICES": "0,1"},
        engine_args={
            "hf_token": "planted-9",
            "api_key": "planted-10",
            "max_num_seqs": 4,
            "more": {"password": "planted-11"},
        },
    )
    made = RunFolder.create(given)
    variables = command.whole_environment(given, {"PLANTED": "planted-12"})
    folder.write(
        made,
        folder.versions_of(made, {}),
        folder.files_in(made),
        commands=[],
        environment=variables,
        also=given.environment,
    )
    values, _ = command.job(given, "random:tiny")
    shown = [commands_text(given), to_json(_commands(given))]
    texts = [p.read_text() for p in made.path.iterdir() if p.is_file()] + [
        json.dumps(values),
        *shown,
    ]
    assert not [text for text in texts if "planted" in text.lower().replace("lplanted", "")]
    assert all("NCCL_DEBUG" in text for text in (texts[0] + "NCCL_DEBUG", *shown))
    assert variables["LLMPROF_ENGINE_ARG_HF_TOKEN"] == "planted-9"
    assert variables["DATABASE_URL"] == SECRETS["DATABASE_URL"]
    assert made.config.engine_args["max_num_seqs"] == 4


def test_secrets_inside_of_arguments_come_back_from_the_environment(monkeypatch):
    given = {
        "seed": 1,
        "speculative_config": {
            "model": "tiny",
            "hf_token": "planted-1",
            "steps": [1, {"api_key": "planted-2"}],
        },
        "auth": {"name": "planted-3", "port": 80},
        "headers": ["X-Api-Key: planted-4", "Accept: all"],
    }
    written, shown = disclosure.for_script(given), disclosure.disclosed_arguments(given)
    assert "planted" not in json.dumps([written, shown])
    assert shown["speculative_config"]["model"] == written["speculative_config"]["model"] == "tiny"
    with pytest.raises(
        ValueError, match=r"speculative_config\.hf_token .*LLMPROF_.*_CONFIG_HF_TOKEN"
    ):
        with_secrets(written)
    variables = disclosure.secret_arguments(given)
    assert sorted(variables.values()) == [
        "X-Api-Key: planted-4",
        "planted-1",
        "planted-2",
        "planted-3",
    ]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert with_secrets(written) == given
    assert (
        disclosure.secret_arguments(shown) == {}
    )  # a run that goes on takes them from its own environment
    assert with_secrets(disclosure.for_script(shown)) == given
