"""The passes that each mode makes, with their profilers and monitors."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import LaunchError
from llmprof.launch import _files, _ncu, command
from llmprof.launch._events import Lines
from llmprof.launch._passes import Passes
from llmprof.launch._rules import setting
from llmprof.launch.config import ExperimentConfig
from llmprof.launch.folder import RunFolder
from llmprof.launch.process import Progress
from llmprof.trace import Trace

_FEW_STEPS: Final = 4
"""Steps of the engine under ncu, where nothing says which launches are wanted: a prefill and some decode steps."""

_COPIED: Final = ("worker.json", "events.jsonl", "generated_output.txt")


def plan(config: ExperimentConfig) -> list[tuple[str, list[str]]]:
    """Command lines of a run, without starting or writing anything.

    Parameters
    ----------
    config : ExperimentConfig
        What would be run.

    Returns
    -------
    list of (str, list of str)
        Name of each pass and its arguments. In mode ``nsys_ncu`` the kernels of the second pass follow from the
        timeline of the first, so the filter shown is that for when there is none.
    """
    folder = RunFolder(Path(config.results_dir).expanduser().absolute() / f"{config.name}_TIME")
    found = []
    for name, out in _outs(config, folder):
        script = folder.script if name != "ncu" or out == folder.path else out / folder.script.name
        found.append((name, _wrapped(config, folder, name, command.worker(config, script, out))))
    return found


def _outs(config: ExperimentConfig, folder: RunFolder) -> list[tuple[str, Path]]:
    """Passes of a mode, and where each writes."""
    mode = config.profile_mode
    if mode == "nsys_ncu":
        return [("nsys", folder.path / "nsys"), ("ncu", folder.path / "ncu")]
    return [(mode if mode in {"nsys", "ncu"} else "engine", folder.path)]


def _wrapped(
    config: ExperimentConfig, folder: RunFolder, name: str, program: list[str], choice: _ncu.Choice | None = None
) -> list[str]:
    """Command of a pass with its profiler before it."""
    if name == "nsys":
        report = folder.nsys_report.with_suffix("")
        return command.nsys(config, program, report, executable=shutil.which("nsys") or "nsys")
    if name == "ncu":
        chosen: dict[str, Any] = {}
        if choice is not None:
            chosen = {
                "kernels": choice.functions, "skip": choice.skip, "count": choice.count, "device": choice.device
            }  # fmt: skip
        report = folder.ncu_report.with_suffix("")
        return command.ncu(config, program, report, executable=shutil.which("ncu") or "ncu", **chosen)
    return program


def engine(passes: Passes) -> dict[str, Any]:
    """The first pass of a mode, with the monitors beside it."""
    config, folder = passes.config, passes.folder
    name, out = _outs(config, folder)[0]
    if out != folder.path:
        out = folder.part(out.name)
    with _monitors(config, folder) as watch:
        worker = passes.run(
            name,
            mode=name if name != "engine" else config.profile_mode,
            out=out,
            wrap=lambda program: _wrapped(config, folder, name, program),
            started=watch,
            watch=_profiled(passes, None) if name == "ncu" else None,
            steps=_enough_steps(config, None) if name == "ncu" else None,
        )
    if out != folder.path:
        for copied in _COPIED:
            if (out / copied).is_file():
                _files.write(folder.path / copied, (out / copied).read_text("utf-8", errors="replace"))
    return worker


def ncu_pass(passes: Passes, trace: Trace | None) -> None:
    """The second pass of ``nsys_ncu``: the kernels that the timeline found most expensive."""
    config, folder = passes.config, passes.folder
    choice = None
    if trace is not None and setting(config, "ncu_options", "kernel_name") is None:
        choice = _ncu.choose(trace, top=setting(config, "ncu_options", "top"))
        passes.note(
            f"ncu: {choice.count} launches of {', '.join(choice.functions)}, which have {choice.share:.0%} of the time "
            "of all kernels but collectives"
        )
    elif trace is None:
        passes.note("ncu: the timeline was not imported, so the first launches of any kernel were profiled")
    passes.run(
        "ncu",
        mode="ncu",
        out=folder.part("ncu"),
        wrap=lambda program: _wrapped(config, folder, "ncu", program, choice),
        watch=_profiled(passes, choice.count if choice is not None else None),
        steps=_enough_steps(config, choice),
    )


def _enough_steps(config: ExperimentConfig, choice: _ncu.Choice | None) -> int | None:
    """Steps of the engine that ncu needs; None where the configuration counts launches itself."""
    if any(setting(config, "ncu_options", key) is not None for key in ("launch_skip", "launch_count")):
        return None
    if choice is None:
        return _FEW_STEPS
    spare = 1 if config.world_size == 1 else 0  # with several processes each step takes many seconds
    return None if choice.steps is None else choice.steps + spare


def _profiled(passes: Passes, count: int | None) -> Callable[[], object] | None:
    """What to call now and then to say how many launches ncu has profiled."""
    if passes.progress is None:
        return None
    wanted = setting(passes.config, "ncu_options", "launch_count") or count or command.DEFAULT_LAUNCHES
    return Lines(passes.folder.log, b"==PROF== Profiling", "ncu: profiling launches", wanted, passes.progress).read


@contextlib.contextmanager
def _monitors(config: ExperimentConfig, folder: RunFolder) -> Iterator[Callable[[int], object] | None]:
    """Sample the machine meanwhile; what comes is told the process to watch."""
    if not config.monitor_hz:
        yield None
        return
    from llmprof.launch.monitors import Sampler

    visible = config.environment.get("CUDA_VISIBLE_DEVICES")
    with Sampler(folder.monitors, hz=config.monitor_hz, visible=visible) as sampler:
        yield sampler.watch


def ask_doctor(config: ExperimentConfig, progress: Progress | None) -> None:
    from llmprof.launch.doctor import doctor

    if progress is not None:
        progress("checking the machine", 0, 0)
    failed = doctor(config).filter(pl.col("status") == "fail").to_dicts()
    if failed:
        first = failed[0]
        others = [f"{row['check']}: {row['found']}" for row in failed[1:]]
        raise LaunchError(
            f"{first['check']}: {first['found']}",
            expected=str(first["expected"] or ""),
            hint=f"{first['advice'] or ''}{f'; also {chr(59).join(others)}' if others else ''}",
            failed=failed,
        )
