"""State of the devices of this machine, as NVML tells it: who uses them, and what holds them
back.
"""

from __future__ import annotations

import contextlib
from typing import Any

import psutil

from llmprof.run.launch.monitors.nvml import nvml_value, reasons_of


def device_states(pid: int) -> dict[str, Any] | None:
    """State of the devices that a process and its children use.

    ``others``: processes on these devices that do not belong to it; ``others_utilization``: share
    of the time in which their kernels ran in the driver's last sample (%); ``devices``: of each
    ``device``, ``reasons`` of a lower clock, and ``ecc_corrected, ecc_uncorrected`` (errors of
    memory since the driver was loaded). What a device does not report is None. None as a whole if
    there is no NVML, or if it names none of the server's processes: a container sees other numbers
    of processes than the driver.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        root = psutil.Process(pid)
        own = {pid, *(child.pid for child in root.children(recursive=True))}
        pynvml.nvmlInit()
    except (psutil.Error, pynvml.NVMLError):
        return None
    try:
        return _devices(pynvml, own)
    except pynvml.NVMLError:
        return None
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _devices(nvml: Any, own: set[int]) -> dict[str, Any] | None:
    rows, others, shares = [], set(), []
    for device in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(device)
        found = {one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        if not found & own:
            continue
        others |= found - own
        used = nvml_value(nvml, "ProcessUtilization", handle, 0)
        if used is not None:
            shares.append(sum(one.smUtil for one in _last(used) if one.pid not in own))
        mask = nvml_value(nvml, "CurrentClocksEventReasons", handle)
        mask = nvml_value(nvml, "CurrentClocksThrottleReasons", handle) if mask is None else mask
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        ecc = [
            nvml_value(nvml, "TotalEccErrors", handle, kind, nvml.NVML_VOLATILE_ECC)
            for kind in kinds
        ]
        rows.append(
            {
                "device": device,
                "reasons": None if mask is None else reasons_of(mask),
                "ecc_corrected": ecc[0],
                "ecc_uncorrected": ecc[1],
            }
        )
    if not rows:
        return None
    return {"others": len(others), "others_utilization": max(shares, default=None), "devices": rows}


def _last(samples: Any) -> list[Any]:
    """The newest sample of each process."""
    newest = {one.pid: one for one in sorted(samples, key=lambda one: one.timeStamp)}
    return list(newest.values())
