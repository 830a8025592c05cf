"""What the doctor knows of a machine: facts as data, so that its checks need no machine."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that computes on a GPU; name and memory are None where the driver does not say."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU; None is what the driver does not say. Clocks in Hz."""

    index: int
    name: str
    memory_bytes: int | None = None
    free_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    sm_clock_hz: float | None = None
    most_sm_clock_hz: float | None = None
    set_clock_hz: float | None = None
    """Clock for applications that someone set (``nvidia-smi -ac``)."""
    default_clock_hz: float | None = None
    reasons: int | None = None
    """Mask of the reasons for a lower clock."""
    numa_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A program on PATH and what it says of its version; ``elsewhere`` is a usual folder that has it instead."""

    path: str | None = None
    version: str | None = None
    elsewhere: str | None = None


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The Python that has the engine.

    Attributes
    ----------
    versions : dict
        Version by distribution, of those that are installed.
    modules : tuple of str
        Modules that can be found (nothing is imported).
    torch_cuda, torch_hip : str or None
        Version of CUDA or HIP that torch was built with.
    error : str
        Why nothing is known; empty otherwise.
    """

    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    torch_cuda: str | None = None
    torch_hip: str | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A machine; None is what could not be found out.

    Attributes
    ----------
    gpus : tuple of Gpu or None
        GPUs that a run can see; None where NVML cannot be asked.
    gpu_problem : str
        What NVML said instead.
    restricted : bool or None
        Whether only an administrator may read the GPU's counters.
    administrator : bool
        Whether this process may do what an administrator may (CAP_SYS_ADMIN).
    paranoid : int or None
        ``/proc/sys/kernel/perf_event_paranoid``.
    governors : tuple of str or None
        Governors of the processors' clocks, each once.
    numa_nodes : int or None
        Nodes of memory.
    cores : int
        Processors that this process may use.
    shm_bytes, shm_free_bytes : int or None
        Size of ``/dev/shm`` and what is free of it.
    disk : str
        The folder that exists where results are to go.
    disk_free_bytes : int or None
        Free space there.
    disk_writable : bool
        Whether files can be made there.
    port_free : bool or None
        Whether the port of the server can be opened; None where none was asked for.
    """

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
