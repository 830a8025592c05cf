"""Stand-ins for what a machine without a GPU lacks: an engine, nsys and ncu, as real programs on
PATH.
"""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from llmprof.run.launch import ExperimentConfig
from llmprof.run.launch.run import passes

HERE = Path(__file__).parent
SAMPLES = HERE.parents[1] / "sample_traces"


def text(name):
    """Program of a stand-in, knowing where the samples are."""
    return (HERE / "stand_ins" / f"{name}.py").read_text().replace("@SAMPLES@", str(SAMPLES))


class StandIns:
    """Puts stand-ins in place and says what they were asked."""

    def __init__(self, folder, patch):
        self.folder, self.patch = folder, patch
        self.ask_doctor = passes.ask_doctor
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.model = folder / "tiny"
        self.model.mkdir()
        (self.model / "config.json").write_text('{"vocab_size": 1000}')
        patch.setitem(
            sys.modules, "ncu_report", None
        )  # reports of the stand-in are read by the stand-in
        patch.setenv("STAND_IN_ARGV", str(folder / "argv.jsonl"))
        patch.setenv("PATH", os.pathsep.join([str(self.bin), os.environ["PATH"]]))
        engine = text("engine")
        patch.setattr(
            passes.engines, "script", lambda job: engine.replace("@JOB@", json.dumps(job))
        )

    def install(self, *names):
        """Put nsys or ncu on PATH."""
        for name in names:
            path = self.bin / name
            path.write_text(f"#!{sys.executable}\n{text(name)}")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def how(self, name="STAND_IN", **values):
        """How a stand-in behaves."""
        self.patch.setenv(name, json.dumps(values))

    def config(self, **values):
        """A configuration that runs on the stand-ins."""
        usual = {
            "model": str(self.model),
            "results_dir": str(self.folder / "results"),
            "monitor_hz": 0,
            "repeat": 2,
        }
        return ExperimentConfig.from_dict(usual | {"python": sys.executable} | values)

    @property
    def argv(self):
        """Command lines that the stand-ins for nsys and ncu got."""
        path = self.folder / "argv.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """Stand-in engine; nsys and ncu on request; a doctor who finds nothing."""
    made = StandIns(tmp_path, monkeypatch)
    monkeypatch.setattr(passes, "ask_doctor", lambda config, progress: None)
    return made
