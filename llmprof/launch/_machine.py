"""What a run ran on: GPUs, driver, processors, memory."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, Final

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
