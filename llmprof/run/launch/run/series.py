"""Series of runs that one start of an engine measures, if their configurations allow it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from llmprof.errors import LaunchError, LlmprofError
from llmprof.run.launch import engines
from llmprof.run.launch.config.models import resolve
from llmprof.run.launch.config.options import ExperimentConfig, setting
from llmprof.run.launch.run import command, passes, process
from llmprof.run.launch.run import folder as run_folder
from llmprof.run.launch.run.command import job
from llmprof.run.launch.run.folder import FAILED, INTERRUPTED, RUNNING, RunFolder
from llmprof.text import Progress
from llmprof.trace.storage import files, typed

WORKLOAD: Final = (
    *(
        "prompt",
        "prompt_file",
        "input_tokens",
        "max_tokens",
        "temperature",
        "top_p",
        "n",
        "batch_size",
        "load",
    ),
    *(
        "warmup",
        "repeat",
        "until",
        "most_repeats",
        "ignore_eos",
        "plain",
        "memory_snapshot",
        "timeout_s",
    ),
    *("experiment_name", "results_dir"),
)
"""Fields of a configuration that an engine does not need at its start."""

OF_THE_SERVER: Final = ("num_prompts", "request_rate", "max_concurrency", "profile_after_s")
"""Keys of ``server`` that only the load needs."""

ENGINE_FILE: Final = "engine.json"
"""File of a run folder that names the start of the engine that measured the run."""

_ALONE: Final = {"ncu", "nsys_ncu"}
_WINDOW: Final = "start_profile"


def shared_key(config: ExperimentConfig) -> str | None:
    """Part of a configuration that an engine needs at its start; None if the run needs a separate
    engine.

    Two runs with equal keys can be measured by one start of an engine. Under ncu each run is a
    separate program, because launches are counted from the start of the program, and so it is under
    a sampler of the host.
    """
    if config.profile_mode in _ALONE or config.cpu_sampler != "none":
        return None
    values = {name: value for name, value in config.to_dict().items() if name not in WORKLOAD}
    values["server"] = {
        key: value for key, value in config.server.items() if key not in OF_THE_SERVER
    }
    values["shares_prefixes"] = setting(config, "load", "shared_prefix") > 0
    return json.dumps(values, sort_keys=True, default=str)


class Outcome(NamedTuple):
    """Result of one point of a series."""

    folder: RunFolder
    state: str
    error: LlmprofError | None = None


@dataclass
class Series:
    """Runs that one start of an engine measures one after the other, each in its own folder."""

    configs: Sequence[ExperimentConfig]
    folders: Sequence[RunFolder]
    home: Path
    progress: Progress | None = None
    notes: list[str] = field(default_factory=list)

    def run(self) -> list[Outcome]:
        """Start the engine once and measure all points; none of its processes is left at the
        end.
        """
        files.made(self.home)
        config = self.configs[0]
        jobs = self._jobs()
        base = jobs[0] | {"batch_size": max(one["batch_size"] for one in jobs)}
        points = [
            {"folder": folder.path.name, "job": {k: v for k, v in one.items() if base[k] != v}}
            for folder, one in zip(self.folders, jobs, strict=True)
        ]
        script = self.home / "inference_script.pyz"
        files.write(script, engines.script(base | {"points": points}))
        argv = command.worker(config, script, self.home)
        if config.profile_mode == "nsys":
            repeated = config.replace(
                nsys_options={"capture-range-end": "repeat", **config.nsys_options}
            )
            argv = command.nsys(
                repeated, argv, self.home / "report", executable=passes.tool("nsys")
            )
        environment = command.whole_environment(config, os.environ)
        log = self.home / "experiment.log"
        self._prepare(jobs, argv, run_folder.allowed(environment, config.environment))
        limit = (
            sum(one.timeout_s for one in self.configs)
            if all(one.timeout_s for one in self.configs)
            else 0.0
        )
        with contextlib.ExitStack() as locks:
            for folder in self.folders:
                locks.enter_context(folder.lock())
                folder.set_state(RUNNING, stage="engine")
            done: process.Finished | None = None
            stopped: LaunchError | None = None
            try:
                with passes.monitors_beside(config, self.home / "monitors.parquet") as watch:
                    options: dict[str, Any] = {
                        "events": self.home / "events.jsonl",
                        "timeout_s": limit,
                    }
                    options |= {"progress": self._told if self.progress else None, "started": watch}
                    done = process.run(argv, log=log, env=environment, **options)
            except (
                LaunchError
            ) as error:  # the engine took too long: points that were measured are kept
                stopped = error
            except BaseException:
                for folder in self.folders:
                    state = INTERRUPTED if begun(folder) else FAILED
                    summary = {"type": "KeyboardInterrupt", "message": "interrupted"}
                    folder.set_state(
                        state, stage="import" if measured(folder) else "engine", error=summary
                    )
                raise
            return [self._outcome(folder, done, stopped, log) for folder in self.folders]

    def _jobs(self) -> list[dict[str, Any]]:
        jobs = []
        for config, folder in zip(self.configs, self.folders, strict=True):
            made, notes = job(config, resolve(config.model, folder.model))
            self.notes += [note for note in notes if note not in self.notes]
            jobs.append(made)
        # all points share one model: another model would need another engine
        return [each_job | {"model": jobs[0]["model"]} for each_job in jobs]

    def _prepare(
        self, jobs: Sequence[Mapping[str, Any]], argv: list[str], environment: Mapping[str, str]
    ) -> None:
        """Give each point a folder inside the engine's, a script that repeats it alone, and a
        record of its engine.
        """
        for k, (folder, one) in enumerate(zip(self.folders, jobs, strict=True)):
            link = self.home / folder.path.name
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(folder.path, self.home), target_is_directory=True)
            files.write(folder.script, engines.script(one))
            summary = {
                "home": os.path.relpath(self.home, folder.path),
                "point": k,
                "points": len(jobs),
                "before": [other.path.name for other in self.folders[:k]],
                "argv": argv,
                "environment": dict(environment),
                "notes": self.notes,
            }
            files.write_json(folder.path / ENGINE_FILE, summary)

    def _told(self, what: str, part: int, parts: int) -> None:
        """Report the progress of a point: its number, and the number of points."""
        match = re.match(r"point (\d+) of \d+: ", what)
        words = what[match.end() :] if match else what
        share = f" {part + 1} of {parts}" if parts > 1 else ""
        if self.progress is not None:
            self.progress(
                f"{words}{share}", int(match.group(1)) - 1 if match else 0, len(self.folders)
            )

    def _outcome(
        self,
        folder: RunFolder,
        done: process.Finished | None,
        stopped: LaunchError | None,
        log: Path,
    ) -> Outcome:
        if measured(folder):
            folder.set_state(RUNNING, stage="import")
            files.write_json(
                folder.gpu_info,
                run_folder.machine(typed.read_if_whole(folder.worker, typed.WorkerJson)),
            )
            return Outcome(folder, "measured")
        if not begun(folder) and any(begun(other) for other in self.folders):
            folder.set_state(
                FAILED,
                stage="engine",
                error={"type": "NotRun", "message": "the engine ended before it"},
            )
            return Outcome(folder, "left")
        worker = typed.read_if_whole(folder.worker, typed.WorkerJson) or typed.read_if_whole(
            self.home / "worker.json", typed.WorkerJson
        )
        error = stopped or process.engine_failure(
            worker, done or process.Finished(1, 0.0, (), {}), log
        )
        summary = {
            "type": type(error).__name__,
            "message": str(error),
            "found": error.found,
            "advice": error.hint,
        }
        folder.set_state(FAILED, stage="engine", error=summary)
        return Outcome(folder, "failed", error)


def begun(folder: RunFolder) -> bool:
    """Whether an engine began to measure a run."""
    return folder.events.is_file()


def measured(folder: RunFolder) -> bool:
    """Whether the engine has finished its part of a run, so that only its capture remains to be
    read.
    """
    worker = typed.read_if_whole(folder.worker, typed.WorkerJson)
    return worker is not None and not worker.get("error")


def gather_run(folder: RunFolder) -> None:
    """Copy the files that one start of an engine wrote for several runs into the folder of one of
    them.

    These are the capture of the run's window, the monitors' samples during the run, the output and
    the commands. A run that had a separate engine, or that was gathered before, stays as it is.
    """
    start = typed.found(folder.path / ENGINE_FILE, typed.StartJson)
    if start is None or (folder.path / passes.MADE).is_file():
        return
    home = (folder.path / start["home"]).resolve()
    worker = typed.found(folder.worker, typed.WorkerJson) or {}
    earlier = [
        typed.found(folder.path.parent / name / "worker.json", typed.WorkerJson) or {}
        for name in start["before"]
    ]
    window = sum(any(s.get("name") == _WINDOW for s in one.get("stages") or ()) for one in earlier)
    for suffix, target in ((".nsys-rep", folder.nsys_report), (".qdstrm", folder.qdstrm)):
        if target.exists():
            continue
        numbered = sorted(
            home.glob(f"report*{suffix}"),
            key=lambda p: (int((re.findall(r"\d+", p.name) or [0])[-1]), p),
        )
        if window < len(numbered):
            shutil.copyfile(numbered[window], target)
    _take_samples(home / "monitors.parquet", folder, worker)
    if (home / "experiment.log").is_file() and not folder.log.exists():
        files.write(folder.log, (home / "experiment.log").read_text("utf-8", errors="replace"))
    notes = [*start["notes"], *(worker.get("notes") or ())]
    if (points := start["points"]) > 1:
        notes.append(
            f"point {start['point'] + 1} of {points} that one start of the engine measured"
        )
    made = {"commands": passes.ran([start["argv"]], "engine"), "environment": start["environment"]}
    files.write_json(folder.path / passes.MADE, made | {"notes": list(dict.fromkeys(notes))})


def _take_samples(path: Path, folder: RunFolder, worker: Mapping[str, Any]) -> None:
    stages = [
        stage
        for stage in worker.get("stages") or ()
        if stage["name"] not in {"import", "init", "serve"}
    ]
    if not path.is_file() or not stages or folder.monitors.exists():
        return
    first = min(stage["start_ns"] for stage in stages)
    last = max(stage["start_ns"] + stage["dur_ns"] for stage in stages)
    from llmprof.run.launch.monitors import table

    table.write(
        table.read(path).filter(pl.col("time_ns").is_between(first, last)),
        folder.monitors,
        table.samples_metadata(path),
    )


def groups(configs: Sequence[ExperimentConfig]) -> list[list[int]]:
    """Groups of configurations that can share an engine, as lists of positions, in the order of
    their first members.
    """
    by_key: dict[str, list[int]] = {}
    for place, config in enumerate(configs):
        by_key.setdefault(shared_key(config) or f"alone {place}", []).append(place)
    return list(by_key.values())


def engine_home(root: Path) -> Path:
    """Folder for the next start of an engine: ``engine-1``, ``engine-2`` and so on."""
    taken = [
        int(match[1])
        for path in root.glob("engine-*")
        if (match := re.fullmatch(r"engine-(\d+)", path.name))
    ]
    return root / f"engine-{max(taken, default=0) + 1}"


def run_series(
    configs: Sequence[ExperimentConfig],
    root: Path,
    *,
    progress: Progress | None = None,
    began: Callable[[Mapping[int, RunFolder]], object] | None = None,
    most_starts: int | None = None,
) -> Iterator[tuple[int, Outcome]]:
    """Measure points that share an engine; if the engine dies, it is started again for the
    remaining points.
    """
    left = list(range(len(configs)))
    starts = min(len(configs), most_starts or len(configs))
    for attempt in range(starts):
        here = [configs[place].replace(results_dir=str(root)) for place in left]
        folders = [RunFolder.create(config) for config in here]
        if began is not None:
            began(dict(zip(left, folders, strict=True)))
        outcomes = Series(here, folders, engine_home(root), progress).run()
        more = attempt + 1 < starts and (
            attempt == 0 or any(outcome.state == "measured" for outcome in outcomes)
        )
        again = []
        for place, outcome in zip(left, outcomes, strict=True):
            if more and outcome.state == "left":
                shutil.rmtree(outcome.folder.path)
                again.append(place)
            else:
                yield place, outcome
        left = again
        if not left:
            return
