"""Passes of each mode, with their profilers and monitors."""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from llmprof.errors import LaunchError, TraceWarning
from llmprof.run.launch import engines
from llmprof.run.launch.config.options import ExperimentConfig, setting
from llmprof.run.launch.run import command, process, profilers
from llmprof.run.launch.run import folder as run_folder
from llmprof.run.launch.run.command import job
from llmprof.run.launch.run.folder import RunFolder
from llmprof.run.launch.run.process import Lines
from llmprof.text import Progress
from llmprof.trace import Trace
from llmprof.trace.storage import files, typed

Wrap = Callable[[list[str]], list[str]]

MADE = ".passes.json"
"""File of a run folder that lists the finished passes, for a later attempt."""

_GOT = {
    "nsys": (
        "install Nsight Systems (package nsight-systems-cli of NVIDIA, or with the CUDA toolkit)"
        " and put nsys on PATH, or choose profile_mode torch"
    ),
    "ncu": (
        "install Nsight Compute (package nsight-compute of NVIDIA, or with the CUDA toolkit) and"
        " put ncu on PATH, or choose profile_mode nsys or torch"
    ),
}


@dataclass
class Passes:
    """Runs the passes of a run, and collects their commands, notes and environment."""

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
        measured: Callable[[dict[str, Any]], object] | None = None,
    ) -> dict[str, Any]:
        """Write the script of a pass and run it; what it measured may be read while it stops."""
        values, notes = job(self.config, self.model, under_ncu=mode == "ncu", steps=steps)
        self.note(*notes)
        script = (
            self.folder.script
            if mode != "ncu" or out == self.folder.path
            else out / self.folder.script.name
        )
        files.write(script, engines.script(values))
        argv = command.worker(self.config, script, out)
        argv = wrap(argv) if wrap is not None else argv
        self.environment = command.whole_environment(self.config, os.environ, mode=mode)
        ended: dict[str, Any] = {"pass": name, "argv": argv, "status": None, "seconds": None}
        self.commands.append(ended)
        raised: list[Exception] = []

        def stopping() -> None:
            worker = typed.read_if_whole(out / self.folder.worker.name, typed.WorkerJson)
            if measured is not None and worker is not None:
                self._keep(worker)
                try:
                    measured(worker)
                except Exception as error:  # noqa: BLE001 (raised when the engine has stopped)
                    raised.append(error)
                if self.progress is not None:
                    self.progress("waiting for the engine to stop", 0, 0)

        done = process.run(
            argv,
            log=self.folder.log,
            env=self.environment,
            events=out / self.folder.events.name,
            timeout_s=self.config.timeout_s,
            progress=self.progress,
            started=started,
            watch=watch,
            stopping=stopping,
        )
        ended |= {"status": done.status, "seconds": round(done.seconds, 3)}
        if done.left_over:
            self.notes.append(
                f"{name}: processes that still ran afterwards were ended:"
                f" {', '.join(done.left_over)}"
            )
        worker: dict[str, Any] | None = typed.read_if_whole(
            out / self.folder.worker.name, typed.WorkerJson
        )
        if worker is None or worker.get("error") or (done.status and wrap is None):
            raise process.engine_failure(worker, done, self.folder.log)
        if done.status:
            self.notes.append(
                f"{name}: {Path(argv[0]).name} ended with status {done.status}, the engine with"
                " none"
            )
        self._keep(worker)
        for error in raised:
            raise error
        return worker

    def _keep(self, worker: Mapping[str, Any]) -> None:
        """Write what is known of the passes for a later attempt."""
        self.note(*worker.get("notes") or ())
        environment = run_folder.allowed(self.environment, self.config.environment)
        summary = {"commands": self.commands, "environment": environment, "notes": self.notes}
        files.write_json(self.folder.path / MADE, summary)

    def note(self, *notes: str) -> None:
        """Add notes, each once."""
        self.notes += [words for words in notes if words not in self.notes]

    def recall(self) -> None:
        """Read the finished passes of an earlier attempt."""
        made = typed.found(self.folder.path / MADE, typed.MadeJson) or {}
        self.commands += made.get("commands") or []
        self.notes += made.get("notes") or []
        self.environment |= made.get("environment") or command.environment(self.config)


def tool(name: str) -> str:
    """Path of a profiler's program."""
    program = shutil.which(name)
    if program is None:
        raise LaunchError(f"{name} is not on PATH", hint=_GOT[name])
    return program


def ran(commands: Sequence[Sequence[str]], name: str) -> list[dict[str, Any]]:
    """Command lines of a step that is not a pass, as rows for the manifest."""
    return [
        {"pass": name, "argv": list(argv), "status": None, "seconds": None} for argv in commands
    ]


_FEW_STEPS: Final = 4
"""Number of engine steps under ncu if the launches to profile are not known: a prefill and some
decode steps.
"""

_COPIED: Final = ("worker.json", "events.jsonl", "generated_output.txt")


def plan(config: ExperimentConfig) -> list[tuple[str, list[str]]]:
    """Command lines of a run, without starting or writing anything.

    Returns
    -------
    list of (str, list of str)
        Name of each pass and its arguments. In mode ``nsys_ncu`` the timeline of the first pass
        decides which kernels the second pass profiles; the filter shown is the one that is used
        without a timeline.
    """
    folder = RunFolder(Path(config.results_dir).expanduser().absolute() / f"{config.name}_TIME")
    lines = []
    for name, out in _outs(config, folder):
        script = folder.script if name != "ncu" or out == folder.path else out / folder.script.name
        lines.append((name, _wrapped(config, folder, name, command.worker(config, script, out))))
    return lines


def _outs(config: ExperimentConfig, folder: RunFolder) -> list[tuple[str, Path]]:
    """Passes of a mode, with the folder of each."""
    mode = config.profile_mode
    if mode == "nsys_ncu":
        return [("nsys", folder.path / "nsys"), ("ncu", folder.path / "ncu")]
    return [(mode if mode in {"nsys", "ncu"} else "engine", folder.path)]


def _wrapped(
    config: ExperimentConfig,
    folder: RunFolder,
    name: str,
    program: list[str],
    choice: profilers.Choice | None = None,
) -> list[str]:
    """Command of a pass, wrapped by its profiler."""
    if name == "nsys":
        report = folder.nsys_report.with_suffix("")
        return command.nsys(config, program, report, executable=shutil.which("nsys") or "nsys")
    if name == "ncu":
        report, found = folder.ncu_report.with_suffix(""), shutil.which("ncu") or "ncu"
        chosen = (
            {}
            if choice is None
            else {name: getattr(choice, name) for name in ("skip", "count", "device")}
        )
        kernels = () if choice is None else choice.functions
        return command.ncu(config, program, report, executable=found, kernels=kernels, **chosen)
    return profilers.wrapped(config.cpu_sampler, folder.path, program)


def run_engine(passes: Passes, measured: Callable[[dict[str, Any]], object]) -> None:
    """First pass of a mode, together with the monitors; what it measured is read while the engine
    stops if no other program writes a part of it then.
    """
    config, folder = passes.config, passes.folder
    name, out = _outs(config, folder)[0]
    if out != folder.path:
        out = folder.part(out.name)
    if name == "ncu":
        _warn_of_collectives(passes)
    if config.cpu_sampler != "none":
        profilers.start(config.cpu_sampler, folder.path)
    seen = False
    with contextlib.ExitStack() as monitors:
        watch = monitors.enter_context(monitors_beside(config, folder.monitors))

        def whole(worker: dict[str, Any]) -> None:
            nonlocal seen
            seen = True
            monitors.close()
            # here and now: a resumed run may be elsewhere
            files.write_json(folder.gpu_info, run_folder.machine(worker))
            measured(worker)

        late = engines.engine(config.engine, served=config.served).writes_late
        alone = name == "engine" and config.cpu_sampler == "none" and not late
        worker = passes.run(
            name,
            mode=name if name != "engine" else config.profile_mode,
            out=out,
            wrap=lambda program: _wrapped(config, folder, name, program),
            started=watch,
            watch=_profiled(passes, None) if name == "ncu" else None,
            steps=_enough_steps(config, None) if name == "ncu" else None,
            measured=whole if alone else None,
        )
    if config.cpu_sampler != "none":
        profilers.finish_sampler(config.cpu_sampler, folder.path, passes.note)
    if out != folder.path:
        for copied in _COPIED:
            if (out / copied).is_file():
                files.write(
                    folder.path / copied, (out / copied).read_text("utf-8", errors="replace")
                )
    if not seen:
        whole(worker)


def _warn_of_collectives(passes: Passes) -> None:
    if command.asks_for_collectives(passes.config):
        words = (
            "ncu_options.kernel_name names collectives"
            f" ({passes.config.ncu_options['kernel_name']}): "
        )
        words += "a kernel that waits for other ranks waits forever when ncu replays it alone"
        warnings.warn(words, TraceWarning, stacklevel=4)
        passes.note(words)


def ncu_pass(passes: Passes, trace: Trace | None) -> None:
    """Second pass of ``nsys_ncu``, which profiles the most expensive kernels of the timeline."""
    config, folder = passes.config, passes.folder
    _warn_of_collectives(passes)
    choice = None
    if trace is not None and setting(config, "ncu_options", "kernel_name") is None:
        choice = profilers.choose_launches(trace, top=setting(config, "ncu_options", "top"))
        profiled = ", ".join(name for name in choice.functions if name not in choice.elsewhere)
        left_out = ", ".join(choice.elsewhere)
        passes.note(
            f"ncu profiles {choice.count} launches of {profiled}, which take {choice.share:.0%} of"
            " the time of all "
            "kernels but"
            f" collectives{f'; not profiled, since they run in other steps: {left_out}' if left_out else ''}"  # noqa: E501
        )
    elif trace is None:
        passes.note(
            "ncu: the timeline was not imported, so the first launches of any kernel were profiled"
        )
    passes.run(
        "ncu",
        mode="ncu",
        out=folder.part("ncu"),
        wrap=lambda program: _wrapped(config, folder, "ncu", program, choice),
        watch=_profiled(passes, choice.count if choice is not None else None),
        steps=_enough_steps(config, choice),
    )


def _enough_steps(config: ExperimentConfig, choice: profilers.Choice | None) -> int | None:
    """Number of engine steps that ncu needs; None if the configuration states the number of
    launches.
    """
    if any(
        setting(config, "ncu_options", key) is not None for key in ("launch_skip", "launch_count")
    ):
        return None
    if choice is None or choice.steps is None:
        return _FEW_STEPS if choice is None else None
    return choice.steps + (
        config.world_size == 1
    )  # with several processes each step takes many seconds


def _profiled(passes: Passes, count: int | None) -> Callable[[], object] | None:
    """Function that reports how many launches ncu has profiled; it has to be called regularly."""
    if passes.progress is None:
        return None
    total = (
        setting(passes.config, "ncu_options", "launch_count") or count or command.DEFAULT_LAUNCHES
    )
    return Lines(
        passes.folder.log, b"==PROF== Profiling", "ncu: profiling launches", total, passes.progress
    ).read


@contextlib.contextmanager
def monitors_beside(
    config: ExperimentConfig, path: Path
) -> Iterator[Callable[[int], object] | None]:
    """Sample the machine during the block; yields a function that takes the id of the process to
    watch.
    """
    if not config.monitor_hz:
        yield None
        return
    from llmprof.run.launch.monitors import Sampler

    visible = config.environment.get("CUDA_VISIBLE_DEVICES")
    with Sampler(path, hz=config.monitor_hz, visible=visible) as sampler:
        yield sampler.watch


def ask_doctor(config: ExperimentConfig, progress: Progress | None) -> None:
    """Stop before the engine starts if the doctor finds that the run cannot work."""
    from llmprof.run.launch.doctor.doctor import doctor

    if progress is not None:
        progress("checking the machine", 0, 0)
    if failed := doctor(config).filter(status="fail").to_dicts():
        found = [f"{row['check']}: {row['found']}" for row in failed]
        hint = (
            f"{failed[0]['advice']}{f'; also {chr(59).join(found[1:])}' if len(found) > 1 else ''}"
        )
        raise LaunchError(found[0], expected=failed[0]["expected"], hint=hint, failed=failed)
