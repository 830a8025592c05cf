"""Part of an engine script: the machine that it runs on, and the environment that its engine needs there."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmprof.launch.engines._failures import Refused

_SAFE = {
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # a forked worker is lost to profilers, and CUDA cannot be used again after a fork
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # NVLink multicast hangs in graph replay under nsys, and must stay off on shared hosts
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
_ASK_S = 20
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "spiece.model")


def set_defaults(values: Mapping[str, str]) -> None:
    """Set variables of the environment that are not set yet."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def guard(job: Mapping[str, Any]) -> None:
    """Set what every run needs, before an engine is imported."""
    set_defaults(_SAFE)
    if Path(job["model"]).is_dir():
        set_defaults({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
    if job["all_reduce"] == "nccl":
        set_defaults({"VLLM_ALLREDUCE_USE_FLASHINFER": "0"})


def check_model(model: str) -> None:
    """See that a model that is given as a folder is one.

    Raises
    ------
    Refused
        The folder is missing or has no ``config.json``.
    """
    folder = Path(model)
    if (folder.is_absolute() or folder.is_dir()) and not (folder / "config.json").is_file():
        raise Refused(
            f"the model's folder {folder} {'has no config.json' if folder.is_dir() else 'is missing'}",
            "give a folder with the model's config.json, or random:tiny",
        )


def has_tokenizer(model: str) -> bool:
    """Whether a model comes with a tokenizer; a name on the hub is taken to have one."""
    folder = Path(model)
    return not folder.is_dir() or any((folder / name).exists() for name in _TOKENIZERS)


def gpu_names() -> list[str] | None:
    """Names of the NVIDIA GPUs that this process may use; None where that is not known. No CUDA context is made."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        found = subprocess.run(  # noqa: S603
            [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[cell.strip() for cell in line.split(",", 2)] for line in found.splitlines() if line.count(",") >= 2]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [name for _, _, name in rows]
    wanted = [one.strip() for one in chosen.split(",") if one.strip()]
    named = [next((n for i, u, n in rows if one == i or (len(one) > 3 and u.startswith(one))), None) for one in wanted]
    return [name for name in named if name is not None] if any(named) or not wanted else None


def cpu_name() -> str:
    """Name of the processor."""
    with contextlib.suppress(OSError):
        found = re.search(r"(?m)^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        if found:
            return found.group(1).strip()
    return os.uname().machine


def cpu_threads(ranks: int) -> dict[str, str]:
    """Variables that give each rank its share of the cores of a CPU."""
    cores = sorted(os.sched_getaffinity(0))
    if ranks == 1:
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if len(cores) < ranks:
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    each = len(cores) // ranks
    shares = [cores[i * each : (i + 1) * each] for i in range(ranks)]
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, share)) for share in shares)}
