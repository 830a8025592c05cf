"""What stands in for real runs in the tests of sweeps."""

from types import SimpleNamespace

from llmprof.errors import LaunchError, NotCapturedError
from llmprof.run.launch import ExperimentConfig, RunFolder
from llmprof.run.launch.run.requests import engine_steps_of, requests_of
from tests.launch.test_run import worker_with
from tests.report.builders import build


class FakeRun:
    """A run whose batch takes a tenth of a second for each request."""

    def __init__(self, config, trace):
        self.config, self._trace = config, trace
        self.folder = RunFolder.create(config)
        self.folder.set_state("finished", stage="done")
        self.times = {}
        wall = config.batch_size / 10
        self.worker = worker_with((wall, wall * 1.02), (wall * 2,)) | {"kv_cache": {"tokens": 7}}
        self.requests = requests_of(self.worker)
        self.summary = {}
        self.engine_steps = engine_steps_of({})

    @property
    def trace(self):
        if self._trace is None:
            raise NotCapturedError("no timeline")
        return self._trace


class Runs:
    """A runner for BatchRunner that notes what it ran, and fails or stops where it is told to."""

    def __init__(self, **on):
        self.ran = []
        self.on = on
        self.trace = build(ranks=2, steps=2)

    def __call__(
        self,
        config,
        *,
        progress,
        check=True,
    ):
        def run():
            point = (config.batch_size, config.max_tokens)
            self.ran.append(point)
            progress("plain", 1, 3)
            if (do := self.on.get(f"b{point[0]}")) is not None:
                do()
            return FakeRun(config, self.trace)

        return SimpleNamespace(run=run)


def fail():
    raise LaunchError("out of memory", hint="lower batch_size")


def interrupt():
    raise KeyboardInterrupt


def config(folder, **values):
    return ExperimentConfig(model="random:tiny", results_dir=str(folder), **values)
