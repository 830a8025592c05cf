"""Platforms: the vendor of a trace's devices, and its words for runtime, graphs, communication
library and cores.

Findings, hints and charts use these words, so that findings about an NPU name the tools of the NPU.
The platform follows from the device, the versions and the names of the runtime calls in a trace. If
a trace has none of them, the words are those that are right for every device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from llmprof.errors import checked
from llmprof.trace import schema

_LOOKED_AT: Final = 4096
"""Number of runtime calls whose names are checked: a process calls one runtime."""


@dataclass(frozen=True)
class Platform:
    """Words of one vendor's devices, and its advice on how to record a table if it differs from
    that of the schema.
    """

    name: str
    device: str
    words: Mapping[str, str]
    recorded_by: Mapping[str, str] = field(default_factory=dict)

    def how_to_record(self, table: str, tool: str | None = None) -> str:
        """Advice on how to record a table of the schema on this platform, of one tool if it
        knows how.
        """
        if tool == ONNX_RUNTIME and table in DEVICE_TABLES:
            return _ON_ONNX_RUNTIME
        return of_tool(self.recorded_by.get(table, schema.TABLES[table].recorded_by), tool)


DEVICE_TABLES: Final = ("kernels", "copies", "runtime")
"""Tables that only a run on a device fills."""

ONNX_RUNTIME: Final = "ONNX Runtime"
_ON_ONNX_RUNTIME: Final = f"device activity ({ONNX_RUNTIME}: a build with --enable_cuda_profiling)"


def of_tool(advice: str, tool: str | None) -> str:
    """The part of an advice that is for one tool:

    ``events (torch: this; nsys: that)``; all of it if it names none.
    """
    before, begun, rest = advice.partition(" (")
    inside, _, after = rest.partition(")")
    own = [way for way in re.split(r"; (?=\w[\w ]*: )", inside) if tool and way.startswith(tool)]
    return f"{before}{begun}{'; '.join(own)}){after}" if own else advice


_UNKNOWN_WORDS: Final = {
    "device": "device",
    "runtime": "the device's runtime",
    "graph": "graph",
    "graphs": "graphs",
    "communication": "the communication library",
    "core": "core",
    "gemm": "The GEMM library",
    "use_graphs": "graphs (no enforce_eager)",
    "compile": "torch.compile",
    "fuse": "torch.compile, fused norm and rope kernels",
    "fuse_communication": "all-reduce fused with the norm",
    "pin": "pin each worker to cores of its device's NUMA node",
    "record_host": " (CPU activity)",
    "each_node": "",
    "ahead": "",
}

UNKNOWN: Final = Platform("unknown", "device", _UNKNOWN_WORDS)
"""Platform with words that are right for every device."""


def _platform(
    name: str,
    device: str,
    graphs: str,
    words: Mapping[str, str],
    recorded_by: Mapping[str, str] | None = None,
) -> Platform:
    """A platform, with the sentences that name its device and its graphs."""
    of_device = {
        "device": device,
        "graph": f"{graphs} graph",
        "graphs": f"{graphs} graphs",
        "use_graphs": f"{graphs} graphs (no enforce_eager)",
        "pin": f"pin each worker to cores of its {device}'s NUMA node",
    }
    return Platform(name, device, {**_UNKNOWN_WORDS, **of_device, **words}, recorded_by or {})


NVIDIA: Final = _platform(
    "nvidia",
    "GPU",
    "CUDA",
    {
        "runtime": "CUDA",
        "communication": "NCCL",
        "core": "SM",
        "gemm": "cuBLAS",
        "record_host": " (torch: CPU activity; nsys: -t cuda,nvtx,osrt)",
        "each_node": ", such as nsys with --cuda-graph-trace=node,",
    },
)
"""CUDA."""

_ON_ROCM: Final = (
    "device activity (torch on ROCm: the device among the profiler's activities; rocprofv3:"
    " --{}-trace)"
)
AMD: Final = _platform(
    "amd",
    "GPU",
    "HIP",
    {
        "runtime": "HIP",
        "communication": "RCCL",
        "core": "compute unit",
        "gemm": "hipBLASLt or rocBLAS",
        "record_host": " (torch: CPU activity; rocprofv3: --hip-trace --marker-trace)",
    },
    {
        "kernels": _ON_ROCM.format("kernel"),
        "copies": _ON_ROCM.format("memory-copy"),
        "runtime": (
            "host activity (torch on ROCm: CPU and device among the activities; rocprofv3:"
            " --hip-trace)"
        ),
        "collectives": (
            "device activity; sizes need the metadata of torch >= 2.3 or record_shapes=True"
        ),
    },
)
"""ROCm."""

_ON_ASCEND: Final = "device activity (torch_npu: ProfilerActivity.NPU; msprof: --task-time=on)"
ASCEND: Final = _platform(
    "ascend",
    "NPU",
    "ACL",
    {
        "runtime": "AscendCL",
        "communication": "HCCL",
        "core": "AI core",
        "gemm": "CANN",
        "use_graphs": "capture the decode step as an ACL graph (vllm-ascend: no enforce_eager)",
        "compile": "torch.compile with TorchAir",
        "fuse": "the fused operators of torch_npu: npu_add_rms_norm, npu_rotary_mul, npu_swiglu",
        "fuse_communication": "MatMul fused with its all-reduce (npu_mm_all_reduce_base)",
        "pin": "pin each worker to cores of its NPU's NUMA node (CPU_AFFINITY_CONF)",
        "record_host": (
            " (torch_npu and MindSpore: CPU activity, level 1 or higher; msprof: --ascendcl=on"
            " --runtime-api=on)"
        ),
        "ahead": " TASK_QUEUE_ENABLE=2 lets torch_npu prepare launches on a second thread.",
    },
    {
        "kernels": _ON_ASCEND,
        "copies": _ON_ASCEND,
        "runtime": (
            "host activity (torch_npu: ProfilerActivity.CPU with NPU; msprof: --ascendcl=on"
            " --runtime-api=on)"
        ),
        "markers": (
            "annotations (torch: record_function and vLLM's step labels; torch_npu: mstx=True)"
        ),
        "collectives": "device activity of profiler level 1 or higher (msprof: --hccl=on)",
        "memory": "profile_memory=True (msprof: --sys-hardware-mem=on)",
        "counters": (
            "hardware samples (torch_npu: the experimental config; msprof: --sys-hardware-mem=on)"
        ),
    },
)
"""CANN: AscendCL, HCCL, AI cores."""

_ON_XPU: Final = "device activity (torch: ProfilerActivity.XPU; replayed graphs are not recorded)"
INTEL: Final = _platform(
    "intel",
    "GPU",
    "SYCL",
    {
        "runtime": "Level Zero",
        "communication": "oneCCL",
        "core": "Xe core",
        "gemm": "oneDNN",
        "record_host": " (torch: CPU activity)",
    },
    {
        "kernels": _ON_XPU,
        "copies": _ON_XPU,
        "runtime": "host activity (torch: ProfilerActivity.CPU with XPU)",
    },
)
"""Intel GPUs: SYCL over Level Zero."""

_ON_XLA: Final = "device activity (jax.profiler.trace around some steps: xplane.pb)"
XLA: Final = _platform(
    "xla",
    "TPU",
    "XLA",
    {
        "runtime": "XLA",
        "communication": "XLA's collectives",
        "record_host": " (jax.profiler.trace)",
    },
    {
        "kernels": _ON_XLA,
        "copies": _ON_XLA,
        "runtime": "host activity (jax.profiler.trace with host_tracer_level 2)",
        "ops": "host operators (none: JAX runs whole programs)",
        "markers": "annotations (jax.profiler.StepTraceAnnotation, TraceAnnotation)",
        "memory": "memory events (none; jax.profiler.save_device_memory_profile is a snapshot)",
        "counters": "counter samples (llmprof's own monitors)",
    },
)
"""TPUs and other devices of XLA."""

PLATFORMS: Final = {
    platform.name: platform for platform in (NVIDIA, AMD, ASCEND, INTEL, XLA, UNKNOWN)
}
"""Every platform by its name."""

ON_DEVICE: Final = {
    "events": "kernels and copies",
    "event": "kernel",
    "stream": "stream",
    "time": "device time",
}
"""What sentences call the events of a device."""

ON_HOST: Final = {
    "events": "operators",
    "event": "operator",
    "stream": "thread",
    "time": "operator time",
}
"""The same where operators of the host take their place."""

_DEVICES: Final = (
    (ASCEND, r"(?i)\bascend|\bnpu\b|^910"),
    (AMD, r"(?i)\bamd\b|instinct|radeon|\bmi\d{3}|gfx\d"),
    (INTEL, r"(?i)\bintel\b.*(?:gpu|graphics|arc|max)|\bxpu\b"),
    (XLA, r"(?i)\btpu\b"),
    (NVIDIA, r"(?i)nvidia|geforce|tesla|quadro|\brtx\b|\b[abhglv]b?\d{2,3}s?\b"),
)
_CALLS: Final = (
    (AMD, r"^(?:hip[A-Z]|hsa_|__hip)"),
    (NVIDIA, r"^(?:cuda[A-Z]|cu[A-Z])"),
    (INTEL, r"^(?:ur|ze|zes)[A-Z]"),
    (ASCEND, r"^(?:acl[a-z]|AscendCL@|Runtime@|rt[A-Z])"),
)
_FORMATS: Final = {
    "ascend": ASCEND,
    "nsys": NVIDIA,
    "ncu": NVIDIA,
    "rocm": AMD,
    "rpd": AMD,
    "xplane": XLA,
}
_BACKENDS: Final = {"hccl": ASCEND}


@checked
def platform_of(meta: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> Platform:
    """Platform of a trace, from the name of its device, its versions, its format, or the names
    of its runtime calls.
    """
    ranks = [rank for rank in meta.get("ranks") or () if isinstance(rank, Mapping)]
    names = [meta.get("device"), *(name for rank in ranks for name in rank.get("devices") or ())]
    devices = pl.Series([str(name) for name in names if name], dtype=pl.String)
    if (by_device := _first(devices, _DEVICES)) is not None:
        return by_device
    versions = " ".join(str(key) for key in meta.get("versions") or ())
    for platform, key in ((AMD, "hip_"), (ASCEND, "cann"), (NVIDIA, "cuda_"), (NVIDIA, "cupti_")):
        if key in versions:
            return platform
    for rank in ranks:
        if rank.get("backend") in _BACKENDS:
            return _BACKENDS[rank["backend"]]
    if (by_format := _FORMATS.get(str(meta.get("format")))) is not None:
        return by_format
    calls = tables.get("runtime")
    if calls is None or "name" not in calls.columns:
        return UNKNOWN
    return _first(calls["name"].head(_LOOKED_AT).drop_nulls().unique(), _CALLS) or UNKNOWN


def _first(texts: pl.Series, patterns: tuple[tuple[Platform, str], ...]) -> Platform | None:
    return next(
        (platform for platform, pattern in patterns if texts.str.contains(pattern).any()), None
    )


_TOOLS: Final = {"nsys": "nsys", "rocm": "rocprofv3", "rpd": "rpd"}
_OF_TORCH: Final = r"^(?:aten|c10d)::|^ProfilerStep#|\.py\(\d+\)"


def tool_of(meta: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> str | None:
    """The tool that wrote a recording, by the name that advice on recording gives it; None if it
    is not known.
    """
    if (written := meta.get("format")) != "chrome":
        return _TOOLS.get(str(written))
    ranks = [rank for rank in meta.get("ranks") or () if isinstance(rank, Mapping)]
    if (
        meta.get("versions")
        or meta.get("options")
        or any(rank.get("backend") or rank.get("devices") for rank in ranks)
    ):
        return "torch"
    ops = tables.get("ops")
    if ops is None:
        return None
    if "ort_op" in ops.columns and ops["ort_op"].null_count() < ops.height:
        return ONNX_RUNTIME
    return "torch" if ops["name"].head(_LOOKED_AT).str.contains(_OF_TORCH).any() else None
