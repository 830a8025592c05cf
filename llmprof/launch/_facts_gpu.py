"""Facts about GPUs, from NVML; nothing is changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from llmprof.launch._facts import Gpu, GpuProcess
from llmprof.launch.monitors._nvml import chosen

_MHZ: Final = 1e6


def gpus(visible: str | None) -> dict[str, Any]:
    """``gpus, gpu_problem, driver, cuda_driver`` of :class:`~llmprof.launch._facts.Facts`."""
    try:
        import pynvml
    except ImportError:
        return {"gpu_problem": "the package nvidia-ml-py is not installed"}
    return ask(pynvml, visible)


def ask(nvml: Any, visible: str | None) -> dict[str, Any]:
    """Facts from NVML or a stand-in; see :func:`gpus`."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        absent = error.value in {
            getattr(nvml, name, None) for name in ("NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED")
        }
        return {"gpus": () if absent else None, "gpu_problem": str(error)}
    try:
        version = nvml.nvmlSystemGetCudaDriverVersion()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return {
            "gpus": tuple(_gpu(nvml, i, handle) for i, handle in enumerate(chosen(nvml, handles, visible))),
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "cuda_driver": f"{version // 1000}.{version % 1000 // 10}",
        }
    except nvml.NVMLError as error:
        return {"gpus": None, "gpu_problem": str(error)}
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    def said(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except nvml.NVMLError:
            return None

    def clock(name: str, kind: int) -> float | None:
        mhz = said(lambda: getattr(nvml, f"nvmlDeviceGet{name}")(handle, kind))
        return None if mhz is None else mhz * _MHZ

    memory = said(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    running = said(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    reasons = said(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    if reasons is None:
        reasons = said(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    bus = said(lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    return Gpu(
        index=index,
        name=_text(said(lambda: nvml.nvmlDeviceGetName(handle)) or "unnamed GPU"),
        memory_bytes=getattr(memory, "total", None),
        free_bytes=getattr(memory, "free", None),
        processes=None if running is None else tuple(_process(one) for one in running),
        sm_clock_hz=clock("ClockInfo", nvml.NVML_CLOCK_SM),
        most_sm_clock_hz=clock("MaxClockInfo", nvml.NVML_CLOCK_SM),
        set_clock_hz=clock("ApplicationsClock", nvml.NVML_CLOCK_GRAPHICS),
        default_clock_hz=clock("DefaultApplicationsClock", nvml.NVML_CLOCK_GRAPHICS),
        reasons=reasons,
        numa_node=None if bus is None else _numa_node(bus),
    )


def _process(one: Any) -> GpuProcess:
    name: str | None = None
    with contextlib.suppress(OSError):  # of another container, or gone
        name = Path(f"/proc/{one.pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    return GpuProcess(pid=one.pid, name=name, memory_bytes=one.usedGpuMemory)


def _numa_node(bus: str) -> int | None:
    # NVML writes eight digits of the domain, the kernel four
    place = Path("/sys/bus/pci/devices") / bus.lower()[-len("0000:00:00.0") :] / "numa_node"
    with contextlib.suppress(OSError, ValueError):
        node = int(place.read_text(encoding="ascii"))
        return node if node >= 0 else None
    return None


def _text(value: str | bytes) -> str:
    return os.fsdecode(value)
