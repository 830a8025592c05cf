"""One pass of a run: the engine's script, by itself or under a profiler."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmprof.errors import LaunchError
from llmprof.launch import _advice, _files, _manifest, command, engines, process
from llmprof.launch._job import job
from llmprof.launch.config import ExperimentConfig
from llmprof.launch.folder import RunFolder
from llmprof.launch.process import Progress

Wrap = Callable[[list[str]], list[str]]

_MADE = ".passes.json"
_GOT = {
    "nsys": "install Nsight Systems (package nsight-systems-cli of NVIDIA, or with the CUDA toolkit) and put nsys on "
    "PATH, or choose profile_mode torch",
    "ncu": "install Nsight Compute (package nsight-compute of NVIDIA, or with the CUDA toolkit) and put ncu on PATH, "
    "or choose profile_mode nsys or torch",
}


@dataclass
class Passes:
    """Runs the passes of one run and keeps what they said.

    Attributes
    ----------
    config : ExperimentConfig
        What is run.
    folder : RunFolder
        Where.
    model : path or str
        Folder or name of the model.
    progress : callable or None
        Told what is being done.
    commands : list of dict
        ``pass, argv, status, seconds`` of each.
    notes : list of str
        What was decided or left out.
    environment : dict
        Environment of the last pass.
    """

    config: ExperimentConfig
    folder: RunFolder
    model: str | Path
    progress: Progress | None = None
    commands: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def run(
        self,
        name: str,
        *,
        mode: str,
        out: Path,
        wrap: Wrap | None = None,
        started: Callable[[int], object] | None = None,
        watch: Callable[[], object] | None = None,
        steps: int | None = None,
    ) -> dict[str, Any]:
        """Write the script of a pass and run it.

        Parameters
        ----------
        name : str
            Of the pass.
        mode : str
            Mode of this pass: decides the environment, and what is measured.
        out : pathlib.Path
            Folder for what the script writes.
        wrap : callable, optional
            Puts a profiler before the command.
        started : callable, optional
            Called with the number of its process.
        watch : callable, optional
            Called now and then while it runs.
        steps : int, optional
            Steps of the engine that are enough.

        Returns
        -------
        dict
            What the script wrote of itself (``worker.json``).

        Raises
        ------
        LaunchError
            The engine failed or wrote nothing of itself.
        """
        values, notes = job(self.config, self.model, under_ncu=mode == "ncu", steps=steps)
        self.notes += [note for note in notes if note not in self.notes]
        script = self.folder.script if mode != "ncu" or out == self.folder.path else out / self.folder.script.name
        _files.write(script, engines.script(values))
        argv = command.worker(self.config, script, out)
        argv = wrap(argv) if wrap is not None else argv
        self.environment = command.whole_environment(self.config, os.environ, mode=mode)
        done = process.run(
            argv,
            log=self.folder.log,
            env=self.environment,
            events=out / self.folder.events.name,
            timeout_s=self.config.timeout_s,
            progress=self.progress,
            started=started,
            watch=watch,
        )
        self.commands.append({"pass": name, "argv": argv, "status": done.status, "seconds": round(done.seconds, 3)})
        if done.left_over:
            self.notes.append(f"{name}: processes that were left over were ended: {', '.join(done.left_over)}")
        worker = _files.read_json(out / self.folder.worker.name)
        if not isinstance(worker, dict) or worker.get("error") or (done.status and wrap is None):
            raise _advice.failure(worker if isinstance(worker, dict) else None, done, self.folder.log)
        if done.status:
            self.notes.append(f"{name}: {Path(argv[0]).name} ended with status {done.status}, the engine with none")
        self.notes += [note for note in worker.get("notes") or () if note not in self.notes]
        self._remember()
        return worker

    def note(self, words: str) -> None:
        """Add a note, once."""
        if words not in self.notes:
            self.notes.append(words)

    def _remember(self) -> None:
        """Keep what a later attempt must know of the passes that were made."""
        environment = _manifest.allowed(self.environment, self.config.environment)
        said = {"commands": self.commands, "environment": environment, "notes": self.notes}
        _files.write_json(self.folder.path / _MADE, said)

    def recall(self) -> None:
        """Take over the passes of an earlier attempt."""
        said = _files.read_json(self.folder.path / _MADE) or {}
        self.commands += said.get("commands") or []
        self.notes += said.get("notes") or []
        self.environment |= said.get("environment") or command.environment(self.config)


def tool(name: str) -> str:
    """Path of a profiler's program.

    Raises
    ------
    LaunchError
        It is not on PATH.
    """
    found = shutil.which(name)
    if found is None:
        raise LaunchError(f"{name} is not on PATH", hint=_GOT[name])
    return found


def ran(commands: Sequence[Sequence[str]], name: str) -> list[dict[str, Any]]:
    """Command lines of a step that is no pass, for the manifest."""
    return [{"pass": name, "argv": list(argv), "status": None, "seconds": None} for argv in commands]
