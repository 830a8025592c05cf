"""Part of an engine script: facts about the machine, the environment of an engine, and advice for its errors."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TAIL = 64 * 1024
_TRACEBACK = 4000
_LINE = 500
_CONSEQUENCES = ("BrokenPipeError", "ConnectionResetError", "EOFError", "asyncio.exceptions.CancelledError")
_ERROR_LINE = re.compile(r"(?:^|[\s\]])((?:[A-Za-z_]+\.)*[A-Z]\w*(?:Error|Exception|Exit): .+)$")
_NO_ERROR = re.compile(r"^(?:\([^)]*\)\s*)?(?:WARNING|INFO|DEBUG)\b")
_DEAD_WORKER = re.compile(r"Worker proc (\S+) died unexpectedly \(exit code: -(\d+)\)")

_MEMORY = (
    "there is not enough memory: lower gpu_memory_utilization if other processes use the device, lower max_model_len "
    "if the KV cache does not fit, or set kv_cache_memory_bytes; fewer layers, a smaller batch_size or a larger "
    "tensor_parallel_size also help"
)
_ADVICE: tuple[tuple[str, str], ...] = (
    (r"already in use|errno 98|eaddrinuse", "choose another server port, or 0 for a free one"),
    (r"not enough allowed numa nodes", "set VLLM_CPU_OMP_THREADS_BIND to the cores of each rank, such as '0|1'"),
    (
        r"out of memory|cannot allocate memory|no available memory for the cache|not enough memory|"
        r"kv ?cache (?:memory|is) .*(?:needed|larger)|larger than the (?:available|maximum) .*kv|"
        r"desired gpu memory utilization|insufficient memory|defaultcpuallocator|error in memory profiling",
        _MEMORY,
    ),
    (
        r"must be divisible by tensor parallel|not divisible by|is not divisible",
        "choose a tensor_parallel_size that divides the model's attention heads, vocabulary and hidden sizes",
    ),
    (
        r"no module named 'flashinfer|flashinfer(?:(?!flashinfer).)*?(?:not|fail)",
        "set VLLM_USE_FLASHINFER_SAMPLER=0, or install flashinfer",
    ),
    (
        r"(?:user-specified|max_model_len).{0,80}greater than the derived",
        "lower max_model_len to what the model's config.json allows",
    ),
    (r"longer than the maximum|decoder prompt .* is longer", "raise max_model_len, or shorten the prompts"),
    (r"no space left on device", "the disk is full: free some space, or choose another results_dir"),
    (
        r"unrecognized arguments|unexpected keyword argument|extra inputs are not permitted",
        "this version of the engine does not know one of engine_args",
    ),
    (
        r"is not a valid model identifier|repository not found|couldn't connect to|offline mode is enabled|"
        r"localentrynotfounderror|cannot find an appropriate cached",
        "give a folder with the model's config.json, or random:tiny; names are only looked up in the local cache",
    ),
    (
        r"model architectures? .* (?:are|is) not supported|does not recognize this architecture|"
        r"has no vllm implementation|unrecognized model",
        "this version of the engine does not know the model's architecture: update it, or choose another model",
    ),
    (
        r"nccl error|ncclsystemerror|ncclunhandled|nccl(?:(?!nccl).)*?failed",
        "run once with NCCL_DEBUG=WARN in environment; NCCL_P2P_DISABLE=1 or all_reduce: nccl often helps",
    ),
    (
        r"has no attribute 'annotate_context_manager'",
        "this version of vLLM cannot profile on a CPU: choose profile_mode inference_only, or another version",
    ),
    (
        r"worker \S+ was ended by sigkill",
        "the system may have killed it because main memory ran out (dmesg shows that): lower batch_size, max_model_len "
        "or the memory of the KV cache",
    ),
    (
        r"worker \S+ was ended by sig(?:segv|abrt|bus|ill|fpe)",
        "the worker crashed in native code: run again, and with PYTHONFAULTHANDLER=1 in environment, which writes into "
        "the log where it crashed",
    ),
    (
        r"no module named '",
        "install the missing package into the environment of the engine, or set python to another interpreter",
    ),
    (
        r"no cuda gpus are available|found no nvidia driver|driver too old",
        "see what llmprof doctor says about the driver",
    ),
)


class Refused(Exception):  # noqa: N818 (the user reads this name)
    """An error that the user can correct."""

    def __init__(self, message: str, advice: str | None = None) -> None:
        super().__init__(message)
        self.advice = advice


def failure(error: BaseException, log: str) -> dict[str, Any]:
    """Description of an error for ``worker.json``."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = str(error) or type(error).__name__
    hint: str | None = error.advice if isinstance(error, Refused) else None
    if not hint and isinstance(error, Exception):
        causes = dead_workers(log) + errors_in(log)
        hint = advice(_messages(error)) or advice("\n".join(causes))
        cause = causes[0] if causes else None
        if cause and cause not in message:
            message = f"{message} (its log: {cause})"
    return {"type": type(error).__name__, "message": message, "advice": hint, "traceback": text[-_TRACEBACK:]}


def advice(text: str) -> str | None:
    """Remedy for the first known error in messages; None if none is known."""
    low = text.lower()
    return next((what for pattern, what in _ADVICE if re.search(pattern, low)), None)


def _messages(error: BaseException | None) -> str:
    """Messages of an error and of its causes, without the paths and code of their tracebacks."""
    messages: list[str] = []
    while error is not None:
        messages.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "\n".join(messages)


def errors_in(log: str) -> list[str]:
    """Lines with errors in a log, without those that are only consequences. The first line is usually the cause.

    Those of exceptions that the engine survived are left out, too.
    """
    matches = (_ERROR_LINE.search(line) for line in log.splitlines() if not is_survived(line))
    lines = [match[1].strip()[:_LINE] for match in matches if match]
    return [line for line in lines if not line.startswith(_CONSEQUENCES)]


def is_survived(line: str) -> bool:
    """Whether a line of a log is of a warning: an engine writes tracebacks of exceptions that it survived as such."""
    return _NO_ERROR.match(line) is not None


def dead_workers(log: str) -> list[str]:
    """Workers of vLLM that a signal ended, as its log names them; their own output says nothing of it."""
    return [f"its worker {name} was ended by {_signal(int(number))}" for name, number in _DEAD_WORKER.findall(log)]


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class OwnLog:
    """File to which this process writes its output, if any; engines write the cause of a failure only there."""

    def __init__(self) -> None:
        status = os.fstat(1) if _is_open(1) else None
        self._path = Path("/proc/self/fd/1") if status and stat.S_ISREG(status.st_mode) else None
        self._from = status.st_size if self._path and status else 0

    def tail(self) -> str:
        """End of the output that was written since this object was made."""
        return tail(self._path, self._from) if self._path else ""


def tail(path: Path, start: int = 0) -> str:
    """End of a file as text."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


SAFE = {
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # profilers cannot follow a forked worker, and CUDA cannot be used again after a fork
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
    """Set environment variables that are not set yet."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def guard(job: Mapping[str, Any]) -> None:
    """Set the environment variables that every run needs, before an engine is imported."""
    set_defaults(SAFE)
    if Path(job["model"]).is_dir():
        set_defaults({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
    if job["all_reduce"] == "nccl":
        set_defaults({"VLLM_ALLREDUCE_USE_FLASHINFER": "0"})


def check_model(model: str) -> None:
    """Check the folder of a model if the model is given as a path."""
    folder = Path(model)
    if (folder.is_absolute() or folder.is_dir()) and not (folder / "config.json").is_file():
        raise Refused(
            f"the model's folder {folder} {'has no config.json' if folder.is_dir() else 'is missing'}",
            "give a folder with the model's config.json, or random:tiny",
        )


def has_tokenizer(model: str) -> bool:
    """Whether a model comes with a tokenizer; a model on the hub is assumed to have one."""
    folder = Path(model)
    return not folder.is_dir() or any((folder / name).exists() for name in _TOKENIZERS)


def gpu_names() -> list[str] | None:
    """Names of the NVIDIA GPUs that this process may use; None if unknown. No CUDA context is created."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        table = subprocess.run(  # noqa: S603
            [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[cell.strip() for cell in line.split(",", 2)] for line in table.splitlines() if line.count(",") >= 2]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [name for _, _, name in rows]
    identifiers = [identifier.strip() for identifier in chosen.split(",") if identifier.strip()]
    named = [
        next((n for i, u, n in rows if identifier == i or (len(identifier) > 3 and u.startswith(identifier))), None)
        for identifier in identifiers
    ]
    return [name for name in named if name is not None] if any(named) or not identifiers else None


def cpu_name() -> str:
    """Name of the processor."""
    with contextlib.suppress(OSError):
        match = re.search(r"(?m)^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        if match:
            return match.group(1).strip()
    return os.uname().machine


def cpu_threads(ranks: int) -> dict[str, str]:
    """Environment variables that give each rank its share of the CPU's cores."""
    cores = sorted(os.sched_getaffinity(0))
    if ranks == 1:
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if len(cores) < ranks:
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    each = len(cores) // ranks
    shares = [cores[i * each : (i + 1) * each] for i in range(ranks)]
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(",".join(map(str, share)) for share in shares)}
