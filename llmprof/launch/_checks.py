"""What a check of the doctor is, and the checks of a machine without its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from llmprof.launch._facts import Facts, Tool
from llmprof.units import format_bytes

if TYPE_CHECKING:
    from llmprof.launch.config import ExperimentConfig

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


Check = Callable[[Facts, "ExperimentConfig | None"], Iterator[Finding]]
"""A check gets facts and the configuration, None for a check of the machine alone."""


def nsys(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """Nsight Systems is there if the mode needs it."""
    if config is None or config.profile_mode in {"nsys", "nsys_ncu"}:
        yield _tool("nsys", facts.nsys, needed=config is not None, without="torch")


def ncu(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """Nsight Compute is there if the mode needs it."""
    if config is None or config.profile_mode in {"ncu", "nsys_ncu"}:
        yield _tool("ncu", facts.ncu, needed=config is not None, without="torch or nsys")


def _tool(name: str, tool: Tool, *, needed: bool, without: str) -> Finding:
    product = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}[name]
    if tool.path is None:
        found = f"no {name} on PATH"
        advice = f"install {product} and put its folder on PATH, or use profile_mode {without}"
        if tool.elsewhere:
            found += f", but in {tool.elsewhere}"
            advice = f"put {tool.elsewhere} on PATH"
        return Finding(name, "fail" if needed else "warn", found, f"{product} on PATH", advice)
    if tool.version is None:
        return Finding(
            name, "warn", f"{tool.path} does not say its version", f"a working {name}", f"try {name} --version"
        )
    return Finding(name, "ok", f"{tool.version} ({tool.path})", f"{product} on PATH")


def counter_permission(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The GPU's hardware counters may be read, if the mode does so."""
    needed = config is not None and config.profile_mode in {"ncu", "nsys_ncu"}
    if config is not None and not needed:
        return
    name, expected = "counter permission", "RmProfilingAdminOnly: 0, or an administrator"
    if facts.administrator:
        yield Finding(name, "ok", "this process is an administrator's", expected)
    elif facts.restricted is None:
        yield Finding(name, "unknown", "the driver's parameters cannot be read", expected)
    elif facts.restricted:
        advice = (
            "have an administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0, or give CAP_SYS_ADMIN"
        )
        yield Finding(name, "fail" if needed else "warn", "only an administrator may read counters", expected, advice)
    else:
        yield Finding(name, "ok", "every user may read counters", expected)


def perf_events(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """Sampling of the processors is allowed; nothing here needs it, but options of nsys may."""
    if config is not None and config.profile_mode not in {"nsys", "nsys_ncu"}:
        return
    name, expected = "perf_event_paranoid", "at most 2, for --sample and --cpuctxsw of nsys"
    if facts.paranoid is None:
        yield Finding(name, "unknown", "the kernel does not say it", expected)
    elif facts.paranoid > 2 and not facts.administrator:
        advice = "needed only for sampling the processors: sysctl kernel.perf_event_paranoid=2"
        yield Finding(name, "warn", str(facts.paranoid), expected, advice)
    else:
        yield Finding(name, "ok", str(facts.paranoid), expected)


def governor(facts: Facts, _: ExperimentConfig | None) -> Iterator[Finding]:
    """The processors' clocks follow the load at once."""
    if facts.governors is None:
        yield Finding("CPU governor", "unknown", "this machine does not say it", "performance")
    elif facts.governors != ("performance",):
        advice = "the host launches kernels more slowly and less evenly: cpupower frequency-set -g performance"
        yield Finding("CPU governor", "warn", ", ".join(facts.governors), "performance", advice)
    else:
        yield Finding("CPU governor", "ok", "performance", "performance")


def numa(facts: Facts, _: ExperimentConfig | None) -> Iterator[Finding]:
    """Which nodes of memory there are, and at which of them the GPUs are."""
    if facts.numa_nodes is None:
        yield Finding("NUMA", "unknown", "this machine does not say its nodes", "")
        return
    nodes = sorted({gpu.numa_node for gpu in facts.gpus or () if gpu.numa_node is not None})
    found = f"{facts.numa_nodes} node{'s' * (facts.numa_nodes > 1)}, {facts.cores} processors"
    if nodes:
        found += f"; GPUs at {', '.join(map(str, nodes))}"
    if facts.numa_nodes > 1:
        where = str(nodes[0]) if len(nodes) == 1 else "N"
        advice = f"processes may move away from their GPU's memory: numactl --cpunodebind={where} --membind={where}"
        yield Finding("NUMA", "warn", found, "one node, or processes bound to a node", advice)
    else:
        yield Finding("NUMA", "ok", found, "one node, or processes bound to a node")


def memory(facts: Facts, _: ExperimentConfig | None) -> Iterator[Finding]:
    """The host has memory for the engine."""
    free = facts.memory_free_bytes
    if free is None:
        yield Finding("host memory", "unknown", "this machine does not say it")
    else:
        little = free < LITTLE_MEMORY_BYTES
        advice = "the engine and torch's trace need some GiB: end other programs, or record fewer iterations"
        expected = f"at least {format_bytes(LITTLE_MEMORY_BYTES)} free"
        yield Finding(
            "host memory", "warn" if little else "ok", f"{format_bytes(free)} free", expected, advice * little
        )


def shared_memory(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """``/dev/shm`` is large enough for the ranks to talk through it."""
    expected = f"at least {format_bytes(LITTLE_SHM_BYTES)} free"
    if facts.shm_bytes is None or facts.shm_free_bytes is None:
        yield Finding(_SHM, "unknown", "there is none, or it cannot be read", expected)
        return
    found = f"{format_bytes(facts.shm_free_bytes)} of {format_bytes(facts.shm_bytes)} free"
    if facts.shm_free_bytes >= LITTLE_SHM_BYTES or (config is not None and config.world_size == 1):
        yield Finding(_SHM, "ok", found, expected)
    else:
        advice = "NCCL and the engine's workers fail when it is full: docker run --shm-size=8g, or --ipc=host"
        yield Finding(_SHM, "warn", found, expected, advice)


def disk(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """There is space where results go."""
    expected = f"at least {format_bytes(LITTLE_DISK_BYTES)} free"
    advice = "make space, or choose another results_dir; a trace takes 10 MB to some GB"
    status: Status
    if not facts.disk_writable:
        status = "warn" if config is None else "fail"
        advice = "choose another results_dir"
        yield Finding("disk", status, f"{facts.disk} cannot be written", "a folder for results", advice)
    elif facts.disk_free_bytes is None:
        yield Finding("disk", "unknown", f"the free space of {facts.disk} cannot be read", expected)
    else:
        free = facts.disk_free_bytes
        status = "ok" if free >= LITTLE_DISK_BYTES else "warn"
        status = "fail" if free < LEAST_DISK_BYTES and config is not None else status
        found = f"{format_bytes(free)} free in {facts.disk}"
        yield Finding("disk", status, found, expected, "" if status == "ok" else advice)
