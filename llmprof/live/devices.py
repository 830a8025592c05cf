"""Processes on the devices of this machine that do not belong to the server."""

from __future__ import annotations

import psutil


def others_on_devices(pid: int) -> int | None:
    """Number of processes that use a GPU of this machine and belong neither to a process nor to its children.

    None if there is no NVML, or if it names none of the server's processes: a container sees other numbers of processes
    than the driver.
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
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        found = {one.pid for handle in handles for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    return len(found - own) if found & own else None
