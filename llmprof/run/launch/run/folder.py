"""The folder of a run: its files, its state, the lock of the process that works in it, and its
manifest.
"""

import contextlib
import fcntl
import fnmatch
import functools
import hashlib
import itertools
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final, Self

from llmprof import __version__
from llmprof.errors import LaunchError, LlmprofError, ReadError
from llmprof.readers.saved import CONFIG_FILE, SQLITE, STATE_FILE, TRACES
from llmprof.run.launch.config import disclosure
from llmprof.run.launch.config.options import ConfigManager, ExperimentConfig
from llmprof.run.launch.monitors import nvml
from llmprof.run.workers.machine import cpu_name
from llmprof.trace.storage import files, typed


def hold(file: IO[bytes]) -> bool:
    """Lock an open file until it is closed; False if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def hold_file(path: Path, busy: Callable[[], LlmprofError]) -> Iterator[IO[bytes]]:
    """Lock a file during a block; ``busy`` makes the error if another process holds the lock."""
    try:
        file = path.open("ab")
    except OSError as error:
        raise files.refused(path, error) from error
    with file:
        if not hold(file):
            raise busy()
        yield file


RUNNING, FINISHED, FAILED, INTERRUPTED = "running", "finished", "failed", "interrupted"
START: Final = "start"
"""The first stage of a run."""
UNIMPORTED: Final = "finished without import"
"""State of a run whose raw capture exists, but which no program on this machine could turn into
a report.
"""

_LOCK = ".lock"
_KEPT: Final = {STATE_FILE, CONFIG_FILE, _LOCK}
_PLACES: Final = {
    "log": "experiment.log",
    "summary": "summary.json",
    "gpu_info": "gpu_info.json",
    "output": "generated_output.txt",
    "metrics": "metrics.json",
    "script": "inference_script.pyz",
    "manifest": "manifest.json",
    "worker": "worker.json",
    "events": "events.jsonl",
    "traces": TRACES,
    "model": "model",
    "monitors": "monitors.parquet",
    "recording": "recording.json",
    "nsys_report": "report.nsys-rep",
    "qdstrm": "report.qdstrm",
    "sqlite": SQLITE,
    "nsys_metrics": "nsys_metrics.json",
    "nsys_summary": "nsys_summary.csv",
    "ncu_report": "report.ncu-rep",
    "ncu_metrics": "ncu_metrics.json",
    "kernel_comparison": "kernel_comparison.csv",
}


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run's folder; each of its files is an attribute:

    ``log, summary, gpu_info, output, metrics, script, manifest, worker, events, traces, model,
    monitors, recording, nsys_report, qdstrm, sqlite, nsys_metrics, nsys_summary, ncu_report,
    ncu_metrics, kernel_comparison``.

    Attributes
    ----------
    path : pathlib.Path
        The folder.

    Raises
    ------
    OutputError
        A method cannot write into the folder.
    """

    path: Path

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __getattr__(self, name: str) -> Path:
        try:
            return self.path / _PLACES[name]
        except KeyError:
            raise AttributeError(f"a run folder has no {name!r}") from None

    def link(self, name: str, path: Path) -> None:
        """Name a file or folder of the run a second time; a file system without links has it
        once.
        """
        with contextlib.suppress(OSError):
            link = self.path / name
            link.parent.mkdir(exist_ok=True)
            if path.exists() and not link.is_symlink():
                link.symlink_to(os.path.relpath(path, link.parent))

    @classmethod
    def create(cls, config: ExperimentConfig, root: str | Path | None = None) -> Self:
        """Make a folder ``NAME_YYYYmmdd-HHMMSS`` in ``config.results_dir`` or another root, with
        the configuration.
        """
        where = Path(root if root is not None else config.results_dir).expanduser().absolute()
        stamp = f"{config.name}_{datetime.now().astimezone():%Y%m%d-%H%M%S}"
        try:
            where.mkdir(parents=True, exist_ok=True)
            for number in itertools.count():  # another run may begin in the same second
                made = cls(where / (f"{stamp}-{number}" if number else stamp))
                with contextlib.suppress(FileExistsError):
                    made.path.mkdir()
                    break
        except OSError as error:
            raise files.refused(where, error) from error
        ConfigManager.save_config(disclosure.config(config), made.path / CONFIG_FILE)
        made.set_state(RUNNING, stage=START)
        return made

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a folder that a run wrote.

        Raises
        ------
        ReadError
            The folder is not a run folder.
        """
        where = Path(path).expanduser().absolute()
        if not (where / STATE_FILE).is_file():
            found = f"{where} is not a run folder: it has no {STATE_FILE}"
            hint = (
                "pass the folder MODEL_MODE_TIME itself, not the one around it"
                if where.is_dir()
                else ""
            )
            raise ReadError(found, expected="a folder that llmprof run wrote", hint=hint)
        return cls(where)

    @property
    def config(self) -> ExperimentConfig:
        """The configuration of the run."""
        return ConfigManager.load_config(self.path / CONFIG_FILE)

    @property
    def state(self) -> dict[str, Any]:
        """State of the run: ``state, stage, pid, started, ended, error``.

        If the state is ``running`` but the process has ended, the state is ``interrupted``.

        Raises
        ------
        ReadError
            The state is damaged.
        """
        state: dict[str, Any] = typed.read(
            self.path / STATE_FILE, typed.RunJson, hint="start a new run"
        )
        if state["state"] == RUNNING and not self.locked:
            killed = f"the process {state.get('pid')} of the run has ended"
            return {**state, "state": INTERRUPTED, "error": {"type": "Killed", "message": killed}}
        return state

    def set_state(
        self,
        state: str,
        *,
        stage: str,
        error: dict[str, Any] | None = None,
        stages: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write the state, with the times of the stages so far; the start time stays as it was,
        unless this is the start.
        """
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        before = typed.read_if_whole(self.path / STATE_FILE, typed.RunJson)
        again = before is not None and (state, stage) != (RUNNING, START)
        times = {
            "started": before.get("started", now) if again else now,
            "ended": None if state == RUNNING else now,
        }
        reached = {"state": state, "stage": stage, "stages": list(stages)}
        summary = {**reached, "pid": os.getpid(), **times, "error": error}
        files.write_small(self.path / STATE_FILE, summary)

    @property
    def locked(self) -> bool:
        """Whether a process works in the folder now."""
        try:
            with (self.path / _LOCK).open("ab") as file:
                return not hold(file)
        except OSError:
            return False

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder, so that no other process works in it; a LaunchError says that one
        does.
        """
        with hold_file(self.path / _LOCK, self._busy):
            yield

    def _busy(self) -> LaunchError:
        state = typed.read_if_whole(self.path / STATE_FILE, typed.RunJson) or {}
        found = f"another process works in {self.path} (process id {state.get('pid', 'unknown')})"
        hint = "wait for its end, or start a new run, which gets a new folder"
        return LaunchError(found, hint=hint, path=str(self.path))

    def part(self, name: str) -> Path:
        """Folder for the files of one of several passes; it is made if it is missing."""
        return files.made(self.path / name)

    def clear(self) -> None:
        """Remove the files that a run wrote, except its configuration."""
        for path in self.path.iterdir():
            if path.name in _KEPT:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def runs(root: str | Path) -> list[RunFolder]:
    """The run folders inside a folder, in the order of their names."""
    where = Path(root).expanduser()
    return [RunFolder(path.parent.absolute()) for path in sorted(where.glob(f"*/{STATE_FILE}"))]


def clean(
    root: str | Path, *, states: tuple[str, ...] = (FAILED, INTERRUPTED), match: str = "*"
) -> list[Path]:
    """Remove the folders of runs in the given states whose names match a pattern, such as
    ``tiny_*``.

    Returns
    -------
    list of pathlib.Path
        Folders that were removed; one in which a process works never is.
    """
    removed = []
    for folder in runs(root):
        if (
            fnmatch.fnmatchcase(folder.path.name, match)
            and folder.state["state"] in states
            and not folder.locked
        ):
            shutil.rmtree(folder.path)
            removed.append(folder.path)
    return removed


_TIMEOUT_S: Final = 20


def machine(worker: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Facts about the GPUs and the host of this machine, and facts that the engine reported."""
    worker = worker or {}
    found, _ = nvml.ask_nvml(
        lambda api: (
            nvml.versions(api)
            | {"gpus": [_gpu(api, index) for index in range(api.nvmlDeviceGetCount())]}
        )
    )
    return {
        **(found or {"gpus": [], "driver": None, "cuda_driver": None}),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "platform": platform.machine(),
        "engine_platform": worker.get("platform"),
        "engine_devices": worker.get("device_names"),
        "peak_memory_bytes": worker.get("peak_memory_bytes"),
    }


def _gpu(api: Any, index: int) -> dict[str, Any]:
    answer = functools.partial(nvml.nvml_value, api)
    handle = api.nvmlDeviceGetHandleByIndex(index)
    memory, limit = answer("MemoryInfo", handle), answer("PowerManagementLimit", handle)
    capability = answer("CudaComputeCapability", handle)
    return {
        "index": index,
        "name": answer("Name", handle),
        "memory_bytes": getattr(memory, "total", None),
        "free_bytes": getattr(memory, "free", None),
        "compute_capability": ".".join(map(str, capability)) if capability else None,
        "power_limit_w": limit / 1000 if limit else None,
        "max_sm_clock_mhz": answer("MaxClockInfo", handle, api.NVML_CLOCK_SM),
        "sm_clock_mhz": answer("ClockInfo", handle, api.NVML_CLOCK_SM),
        "pcie_generation": answer("CurrPcieLinkGeneration", handle),
        "pcie_width": answer("CurrPcieLinkWidth", handle),
    }


def tool_version(name: str) -> str | None:
    """Version that ``nsys`` or ``ncu`` prints; None if the program is not on PATH or prints no
    version.
    """
    path = shutil.which(name)
    if path is None:
        return None
    argv = [path, "--version"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line.strip() for line in done.stdout.splitlines() if "ersion" in line]
    return lines[-1] if lines else None


_UNHASHED: Final = {"state.json", "manifest.json"}


def allowed(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """Environment variables that may be written to a file: known ones of engines, and those of
    the configuration.
    """
    shown = set(also) | {
        name for name, value in environment.items() if disclosure.harmless(name, value)
    }
    return disclosure.disclosed_environment(
        {name: environment[name] for name in sorted(shown & environment.keys())}
    )


def versions_of(folder: RunFolder, worker: Mapping[str, Any]) -> dict[str, Any]:
    """Versions of all programs that took part in a run."""
    versions = {
        "llmprof": __version__,
        "python": platform.python_version(),
        "engine": worker.get("engine"),
        "engine_version": worker.get("engine_version"),
        "torch": worker.get("torch_version"),
        "engine_python": worker.get("python_version"),
        "nsys": tool_version("nsys"),
        "ncu": tool_version("ncu"),
    }
    # of the machine that recorded it, if this one resumes it
    recorded = (typed.read_if_whole(folder.manifest, typed.ManifestJson) or {}).get("versions", {})
    return versions | {name: version for name, version in recorded.items() if version is not None}


def files_in(folder: RunFolder) -> list[Path]:
    """Files of a run, of which its manifest has the size and SHA-256."""
    return [
        path
        for path in sorted(folder.path.rglob("*"))
        if path.is_file()
        and not path.is_symlink()
        and path.name not in _UNHASHED
        and path.name[0] != "."
    ]


def write(
    folder: RunFolder,
    versions: Mapping[str, Any],
    paths: Iterable[Path],
    *,
    commands: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str],
    also: Iterable[str] = (),
) -> None:
    """Write ``manifest.json``: versions, commands, environment, and the size and SHA-256 of each
    file that is still there.
    """
    made = {
        "commands": [dict(command) for command in commands],
        "environment": allowed(environment, also),
    }
    hashed = [_hashed(path, folder.path) for path in paths if path.is_file()]
    files.write_json(folder.manifest, {"versions": versions, **made, "files": hashed})


def changed_files(folder: RunFolder) -> list[str]:
    """Files of a run that are missing or differ from its manifest."""
    manifest = typed.found(folder.manifest, typed.ManifestJson)
    if manifest is None:
        raise LlmprofError(
            f"{folder.path.name} has no manifest", hint="the run did not finish: resume it first"
        )
    return [
        row["name"]
        for row in manifest["files"]
        if not (folder.path / row["name"]).is_file()
        or _hashed(folder.path / row["name"], folder.path) != row
    ]


def _hashed(path: Path, root: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise files.refused(path, error) from error
    return {
        "name": path.relative_to(root).as_posix(),
        "bytes": path.stat().st_size,
        "sha256": digest,
    }
