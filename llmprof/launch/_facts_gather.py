"""All facts about this machine; whatever cannot be found out stays None."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmprof.launch import _facts_engine, _facts_gpu
from llmprof.launch._facts import Facts, Tool
from llmprof.launch._machine import tool_version

if TYPE_CHECKING:
    from llmprof.launch.config import ExperimentConfig

_SYS_ADMIN: Final = 1 << 21
_USUAL: Final = {
    "nsys": ("/opt/nvidia/nsight-systems/*/bin/nsys", "/usr/local/cuda*/bin/nsys"),
    "ncu": ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu"),
}


def gather(config: ExperimentConfig | None = None) -> Facts:
    """Facts about this machine, and with a configuration about its Python, port and results folder.

    Parameters
    ----------
    config : ExperimentConfig, optional
        What is to be run; tools that its mode does not need are not asked for their versions.
    """
    visible = (config.environment if config else {}).get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    mode = config.profile_mode if config else "nsys_ncu"
    found: dict[str, Any] = _facts_gpu.gpus(visible)
    with contextlib.suppress(OSError):
        shm = shutil.disk_usage("/dev/shm")  # noqa: S108
        found |= {"shm_bytes": shm.total, "shm_free_bytes": shm.free}
    place = _existing(Path(config.results_dir if config else "."))
    with contextlib.suppress(OSError):
        found["disk_free_bytes"] = shutil.disk_usage(place).free
    params = _text("/proc/driver/nvidia/params")
    restricted = re.search(r"RmProfilingAdminOnly:\s*(\d)", params or "")
    paranoid = _text("/proc/sys/kernel/perf_event_paranoid")
    available = re.search(r"MemAvailable:\s*(\d+) kB", _text("/proc/meminfo") or "")
    return Facts(
        **found,
        visible=visible,
        nsys=_tool("nsys", asked="nsys" in mode),
        ncu=_tool("ncu", asked="ncu" in mode),
        restricted=None if restricted is None else restricted[1] != "0",
        administrator=_administrator(),
        paranoid=int(paranoid) if paranoid and paranoid.lstrip("-").isdigit() else None,
        governors=_governors(),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_free_bytes=int(available[1]) * 1024 if available else None,
        disk=str(place),
        disk_writable=os.access(place, os.W_OK | os.X_OK),
        port_free=_port_free(config.server.get("port", 0)) if config and config.served else None,
        interpreter=_facts_engine.ask(config) if config else None,
    )


def _tool(name: str, *, asked: bool) -> Tool:
    path = shutil.which(name)
    if path is not None:
        return Tool(path=path, version=tool_version(name) if asked else None)
    places = (place for usual in _USUAL[name] for place in sorted(Path("/").glob(usual[1:]), reverse=True))
    found = next((place for place in places if os.access(place, os.X_OK)), None)
    return Tool(elsewhere=str(found.parent) if found else None)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    place = folder.expanduser().absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _administrator() -> bool:
    found = re.search(r"CapEff:\s*([0-9a-f]+)", _text("/proc/self/status") or "")
    return bool(int(found[1], 16) & _SYS_ADMIN) if found else os.geteuid() == 0


def _governors() -> tuple[str, ...] | None:
    files = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    return tuple(sorted({text for file in files if (text := _text(file))})) or None


def _port_free(port: int) -> bool | None:
    """Whether a port can be opened; None for 0, which takes a free one."""
    if not port:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True


def _text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
