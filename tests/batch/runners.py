"""What stands in for real runs in the tests of sweeps."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from llmprof.errors import LaunchError, NotCapturedError
from llmprof.run.launch import ExperimentConfig, RunFolder
from llmprof.run.launch.run.requests import engine_steps_of, requests_of
from llmprof.trace import Trace
from tests.launch.test_run import worker_with
from tests.report.builders import build


class FakeRun:
    """A run whose batch takes a tenth of a second for each request."""

    def __init__(self, config: ExperimentConfig, trace: Trace | None) -> None:
        self.config, self._trace = config, trace
        self.folder = RunFolder.create(config)
        self.folder.set_state("finished", stage="done")
        wall = config.batch_size / 10
        self.worker: dict[str, Any] = worker_with((wall, wall * 1.02), (wall * 2,)) | {
            "kv_cache": {"tokens": 7}
        }
        self.requests = requests_of(self.worker)
        self.summary: dict[str, Any] = {}
        self.engine_steps = engine_steps_of({})

    @property
    def trace(self) -> Trace:
        if self._trace is None:
            raise NotCapturedError("no timeline")
        return self._trace


class Runs:
    """A runner for BatchRunner that notes what it ran, and fails or stops where it is told to."""

    def __init__(self, **on: Callable[[], None]) -> None:
        self.ran: list[tuple[Any, ...]] = []
        self.on = on
        self.trace: Trace | None = build(ranks=2, steps=2)

    def __call__(
        self,
        config: ExperimentConfig,
        *,
        progress: Callable[[str, int, int], None],
        check: bool = True,
    ) -> SimpleNamespace:
        def run() -> FakeRun:
            point = (config.batch_size, config.max_tokens)
            self.ran.append(point)
            progress("plain", 1, 3)
            if (do := self.on.get(f"b{point[0]}")) is not None:
                do()
            return FakeRun(config, self.trace)

        return SimpleNamespace(run=run)


def fail() -> None:
    raise LaunchError("out of memory", hint="lower batch_size")


def interrupt() -> None:
    raise KeyboardInterrupt


def config(folder: Path, **values: Any) -> ExperimentConfig:
    return ExperimentConfig(model="random:tiny", results_dir=str(folder), **values)
