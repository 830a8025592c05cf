"""What made a run: versions, command lines, environment by allow-list, and the hashes of its files."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from llmprof.errors import LlmprofError
from llmprof.launch.config import disclosure
from llmprof.launch.run.folder import RunFolder
from llmprof.storage import files

_TIMEOUT_S: Final = 20


def machine(worker: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """GPUs and host of this machine, with what the engine said of them.

    Parameters
    ----------
    worker : mapping, optional
        What the engine script wrote of itself.

    Returns
    -------
    dict
        ``gpus`` (a row each; empty where there is no NVIDIA driver), ``driver, cuda_driver, cpu, cores,
        memory_bytes, kernel, platform`` and of the engine ``engine_platform, engine_devices, peak_memory_bytes``.
        Sizes in bytes, clocks in MHz, power in W.
    """
    worker = worker or {}
    found: dict[str, Any] = {
        "gpus": [],
        "driver": None,
        "cuda_driver": None,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "platform": platform.machine(),
        "engine_platform": worker.get("platform"),
        "engine_devices": worker.get("device_names"),
        "peak_memory_bytes": worker.get("peak_memory_bytes"),
    }
    try:
        import pynvml
    except ImportError:
        return found
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return found
    try:
        found["driver"] = pynvml.nvmlSystemGetDriverVersion()
        version = pynvml.nvmlSystemGetCudaDriverVersion()
        found["cuda_driver"] = f"{version // 1000}.{version % 1000 // 10}"
        found["gpus"] = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        found["error"] = str(error)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return found


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def asked(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except nvml.NVMLError:
            return None

    memory = asked(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    limit = asked(lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle))
    capability = asked(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return {
        "index": index,
        "name": asked(lambda: nvml.nvmlDeviceGetName(handle)),
        "memory_bytes": getattr(memory, "total", None),
        "free_bytes": getattr(memory, "free", None),
        "compute_capability": ".".join(map(str, capability)) if capability else None,
        "power_limit_w": limit / 1000 if limit else None,
        "max_sm_clock_mhz": asked(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "sm_clock_mhz": asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "pcie_generation": asked(lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
        "pcie_width": asked(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
    }


def tool_version(name: str) -> str | None:
    """What ``nsys`` or ``ncu`` says of its version; None where it is not on PATH or says nothing."""
    path = shutil.which(name)
    if path is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603
            [path, "--version"], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line.strip() for line in done.stdout.splitlines() if "ersion" in line]
    return lines[-1] if lines else None


def _cpu() -> str | None:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


_UNHASHED: Final = {"state.json", "manifest.json", ".lock"}


def allowed(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """Variables of an environment that are written down: known ones of engines, and the names of those that were set.

    Parameters
    ----------
    environment : mapping
        All variables.
    also : iterable of str
        Names that the configuration set: they are written down, and their values as far as the rule of
        :mod:`llmprof.launch.config.disclosure` lets them.
    """
    names = set(also)
    return disclosure.environment({
        name: value
        for name, value in sorted(environment.items())
        if name in names or disclosure.harmless(name, value)
    })  # fmt: skip


def write(
    folder: RunFolder,
    *,
    commands: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str],
    also: Iterable[str] = (),
    worker: Mapping[str, Any] | None = None,
) -> None:
    """Write ``manifest.json``, last of all files but the state.

    Parameters
    ----------
    folder : RunFolder
        A folder with everything else in it.
    commands : sequence of mapping
        ``pass, argv, status, seconds`` of each command that was run.
    environment : mapping
        Environment of the engine's process.
    also : iterable of str
        Variables that the configuration set.
    worker : mapping, optional
        What the engine script wrote of itself.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    worker = worker or {}
    versions = {
        "llmprof": importlib.import_module("llmprof").__version__,
        "python": platform.python_version(),
        "engine": worker.get("engine"),
        "engine_version": worker.get("engine_version"),
        "torch": worker.get("torch_version"),
        "engine_python": worker.get("python_version"),
        "nsys": tool_version("nsys"),
        "ncu": tool_version("ncu"),
    }
    said = {
        "versions": versions,
        "commands": [dict(one) for one in commands],
        "environment": allowed(environment, also),
        "files": [_hashed(path, folder.path) for path in _contents(folder.path)],
    }
    files.write_json(folder.manifest, said)


def changed(folder: RunFolder) -> list[str]:
    """Files of a run that are missing or differ from its manifest.

    Raises
    ------
    LlmprofError
        There is no manifest.
    """
    said = files.read_json(folder.manifest)
    if not isinstance(said, dict):
        raise LlmprofError(f"{folder.path.name} has no manifest", hint="the run did not come to its end")
    return [
        row["name"]
        for row in said["files"]
        if not (folder.path / row["name"]).is_file() or _hashed(folder.path / row["name"], folder.path) != row
    ]


def _contents(root: Path) -> list[Path]:
    found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in found if path.name not in _UNHASHED and not path.name.startswith("."))


def _hashed(path: Path, root: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise files.refused(path, error) from error
    return {"name": path.relative_to(root).as_posix(), "bytes": path.stat().st_size, "sha256": digest}
