"""A machine whose vLLM is a stand-in, and a configuration that runs on it."""

import pytest

from llmprof.run.launch import ExperimentConfig
from llmprof.run.launch.run import passes
from tests.launch.vllm_stand_in import StandInVllm


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine on which a token takes half the time with graphs."""
    made = StandInVllm(tmp_path)
    for name, value in made.environment({"decode_s": {"True": 1.0, "False": 0.5}}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(passes, "ask_doctor", lambda config, progress: None)
    return made


def config(machine, **changes):
    """A short run of the stand-in."""
    usual = {
        "model": str(machine.model),
        "input_tokens": 3,
        "max_tokens": 3,
        "batch_size": 2,
        "monitor_hz": 0,
    }
    usual |= {
        "repeat": 1,
        "eager": True,
        "results_dir": str(machine.folder / "results"),
        "max_model_len": 128,
    }
    return ExperimentConfig.from_dict(usual | changes)
