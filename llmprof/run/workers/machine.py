"""Of the program of an engine: facts about the machine, the environment of an engine, and advice
for its errors.
"""

from __future__ import annotations

import contextlib
import json
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
_CONSEQUENCES = (
    "BrokenPipeError",
    "ConnectionResetError",
    "EOFError",
    "asyncio.exceptions.CancelledError",
)
_ERROR_LINE = re.compile(r"(?:^|[\s\]])((?:[A-Za-z_]+\.)*[A-Z]\w*(?:Error|Exception|Exit): .+)$")
_NO_ERROR = re.compile(r"^(?:\([^)]*\)\s*)?(?:WARNING|INFO|DEBUG)\b")
_DEAD_WORKER = re.compile(r"Worker proc (\S+) died unexpectedly \(exit code: -(\d+)\)")

KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"larger than the (?:available|maximum) .*kv|no available memory for the cache|"
        r"less than requested memory for kv|kv ?cache (?:memory|is) .*(?:needed|larger)",
        "there is too little memory for the KV cache",
        (
            "lower max_model_len, raise engine_args gpu_memory_utilization (on CPU lower"
            " VLLM_CPU_KVCACHE_SPACE), set kv_cache_memory_bytes, or use more GPUs"
            " (tensor_parallel_size)"
        ),
    ),
    (
        r"max_num_seqs \(\d+\) exceeds available mamba cache blocks",
        "there is too little memory for the states of as many sequences as the engine plans for",
        (
            "lower engine_args max_num_seqs, or raise engine_args gpu_memory_utilization or"
            " kv_cache_memory_bytes"
        ),
    ),
    (
        r"desired gpu memory utilization|error in memory profiling",
        "other processes hold memory of the GPU that the engine wants",
        "end them (nvidia-smi lists them), or lower engine_args gpu_memory_utilization",
    ),
    (
        r"out of memory|outofmemoryerror|cuda_error_out_of_memory",
        "the GPU is out of memory",
        (
            "lower max_model_len, batch_size or engine_args gpu_memory_utilization (the KV cache"
            " takes what it says, or kv_cache_memory_bytes), set eager: true (CUDA graphs take"
            " memory), or use more GPUs (tensor_parallel_size)"
        ),
    ),
    (
        r"memoryerror|cannot allocate memory|unable to allocate|defaultcpuallocator|insufficient"
        r" memory|"
        r"not enough memory",
        "the machine is out of main memory",
        (
            "lower environment VLLM_CPU_KVCACHE_SPACE (GiB), batch_size or max_model_len;"
            " with_stack: false and a lower max_iterations reduce the memory of the profiler"
        ),
    ),
    (
        r"already in use|errno 98|eaddrinuse|error while attempting to bind",
        "a port that the run needs is in use",
        (
            "set server.port to 0 (a free port is chosen), or end the process that uses the port"
            " (ss -ltnp lists it)"
        ),
    ),
    (
        r"gpu is lost|fallen off the bus|uncorrectable ecc|cudaerrordeviceunavailable|"
        r"devices?\(?s?\)? is/are busy or unavailable|requires reset",
        "a GPU does not answer any longer",
        (
            "nvidia-smi and the messages of the kernel (dmesg, Xid) show which one and why; until"
            " it is reset, leave it out with CUDA_VISIBLE_DEVICES and lower tensor_parallel_size"
        ),
    ),
    (
        r"unspecified launch failure|illegal memory access|device-side assert|illegal instruction",
        "a kernel failed on the GPU",
        (
            "CUDA_LAUNCH_BLOCKING=1 in environment names its call; an Xid in the messages of the"
            " kernel (dmesg) tells a fault of the device from one of the program"
        ),
    ),
    (
        r"peer access is not supported|peer mapping resources|p2p is (?:disabled|not supported)",
        "the GPUs cannot read each other's memory",
        (
            "set all_reduce: nccl, and NCCL_P2P_DISABLE=1 in environment; nvidia-smi topo -p2p r"
            " shows which pairs can (a container or an IOMMU may forbid it)"
        ),
    ),
    (
        r"invalid device ordinal|larger than the number of available gpus|"
        r"world size \(?\d+\)? is larger|cuda error: no cuda-capable device|device_count\(\)",
        "the run asks for more ranks than there are GPUs",
        (
            "lower tensor_parallel_size x pipeline_parallel_size, or make more GPUs visible"
            " (CUDA_VISIBLE_DEVICES)"
        ),
    ),
    (
        r"err_nvgpuctrperm",
        "the profiler may not read the hardware counters (ERR_NVGPUCTRPERM)",
        (
            "have an administrator set NVreg_RestrictProfilingToAdminUsers=0, or run with"
            " CAP_SYS_ADMIN"
        ),
    ),
    (
        r"no space left on device|errno 28|disk quota exceeded",
        "the disk is full",
        (
            "free space on the disk, choose another results_dir, or record less (with_stack: false,"
            " max_iterations)"
        ),
    ),
    (
        r"gatedrepoerror|gated repo|401 client error|invalid (?:username|credentials)",
        "the hub requires a token for this model",
        (
            "download the model first and give its folder; or name HF_TOKEN in environment (nsys"
            " and ncu record the environment, so tokens are passed on only if they are named)"
        ),
    ),
    (
        r"does not appear to have a file named config\.json|invalid repository id|is not a valid"
        r" model identifier|"
        r"can't load the configuration|repository not found|couldn't connect to|offline mode is"
        r" enabled|"
        r"localentrynotfounderror|cannot find an appropriate cached",
        "the engine did not find the model",
        (
            "give a folder with config.json, a name on the hub (with network, or in the local"
            " cache), or random:tiny"
        ),
    ),
    (
        r"no module named '(?:vllm|torch|transformers)",
        "the engine is not installed in the Python of the run",
        "name the Python in which it is installed: python: /path/to/venv/bin/python",
    ),
    (
        r"not enough allowed numa nodes",
        "vLLM's CPU build needs a NUMA node for each rank",
        "set environment VLLM_CPU_OMP_THREADS_BIND to the cores of each rank, such as '0-3|4-7'",
    ),
    (
        r"torchvision::nms does not exist",
        "the installed torchvision does not work with the installed torch",
        "pip uninstall torchvision torchaudio torchcodec in the engine's environment",
    ),
    (
        r"(?:user-specified|max_model_len).{0,80}greater than the derived",
        "max_model_len is larger than the model allows",
        "lower max_model_len to what the model's config.json allows",
    ),
    (
        r"longer than the maximum|decoder prompt .* is longer|maximum context length|"
        r"exceeds the (?:model's )?max(?:imum)?[ _]model[ _]len",
        "a prompt is longer than the model allows",
        "raise max_model_len, or shorten the prompt (input_tokens)",
    ),
    (
        r"no module named 'flashinfer|flashinfer(?:(?!flashinfer).)*?(?:not|fail)",
        "a part of the engine needs flashinfer, which does not work here",
        (
            "install the flashinfer that the engine names; without it, models with linear attention"
            " (gated delta nets) need engine_args gdn_prefill_backend: triton, and the sampler"
            " environment VLLM_USE_FLASHINFER_SAMPLER: '0'"
        ),
    ),
    (
        r"trust_remote_code",
        "the model comes with Python code",
        "set engine_args trust_remote_code: true if you trust this code",
    ),
    (
        r"(?:server|/health).{0,60}(?:did not|not) (?:become|answer|come)|health check timed out",
        "the server did not start in time",
        "raise server.health_timeout_s; experiment.log shows how far the server came",
    ),
    (
        r"must be divisible by tensor parallel|not divisible by|is not divisible",
        "the model cannot be split over so many ranks",
        (
            "choose a tensor_parallel_size that divides the model's attention heads, vocabulary and"
            " hidden sizes"
        ),
    ),
    (
        r"unrecognized arguments|unexpected keyword argument|extra inputs are not permitted",
        "the engine refused an option",
        "this version of the engine does not know one of engine_args",
    ),
    (
        r"model architectures? .* (?:are|is) not supported|does not recognize this architecture|"
        r"has no vllm implementation|unrecognized model",
        "the engine cannot run this model",
        (
            "this version of the engine does not know the model's architecture: update it, or"
            " choose another model"
        ),
    ),
    (
        r"nccl error|ncclsystemerror|ncclunhandled|nccl(?:(?!nccl).)*?failed",
        "NCCL failed",
        (
            "run once with NCCL_DEBUG=WARN in environment; NCCL_P2P_DISABLE=1 or all_reduce: nccl"
            " often helps"
        ),
    ),
    (
        r"has no attribute 'annotate_context_manager'",
        "this version of vLLM cannot profile on a CPU",
        "choose profile_mode inference_only, or another version",
    ),
    (
        r"worker \S+ was ended by sigkill",
        "a worker was killed",
        (
            "the system may have killed it because main memory ran out (dmesg shows that): lower"
            " batch_size, max_model_len or the memory of the KV cache"
        ),
    ),
    (
        r"worker \S+ was ended by sig(?:segv|abrt|bus|ill|fpe)",
        "a worker crashed in native code",
        (
            "run again, and with PYTHONFAULTHANDLER=1 in environment, which writes into the log"
            " where it crashed"
        ),
    ),
    (
        r"no module named '",
        "a Python package is missing",
        "install it into the environment of the engine, or set python to another interpreter",
    ),
    (
        r"no cuda gpus are available|found no nvidia driver|driver too old",
        "the driver of the GPU does not work",
        "see what llmprof doctor says about the driver",
    ),
)
"""Patterns of messages of engines and profilers in lower case, each with its meaning and advice."""


class Refused(Exception):  # noqa: N818 (the user reads this name)
    """An error that the user can correct."""

    def __init__(self, message: str, advice: str | None = None) -> None:
        super().__init__(message)
        self.advice = advice


def describe_failure(error: BaseException, log: str) -> dict[str, Any]:
    """Description of an error for ``worker.json``."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = str(error) or type(error).__name__
    hint: str | None = error.advice if isinstance(error, Refused) else None
    if not hint and isinstance(error, Exception):
        causes = dead_workers(log) + errors_in(log)
        reason = known_cause(_messages(error)) or known_cause("\n".join(causes))
        hint = reason[1] if reason else None
        cause = causes[0] if causes else None
        if cause and cause not in message:
            message = f"{message} (its log: {cause})"
    return {
        "type": type(error).__name__,
        "message": message,
        "advice": hint,
        "traceback": text[-_TRACEBACK:],
    }


def known_cause(text: str) -> tuple[str, str] | None:
    """Meaning and advice for the first known error in messages; None if none is known."""
    low = text.lower()
    return next(
        ((words, advice) for pattern, words, advice in KNOWN if re.search(pattern, low)), None
    )


def _messages(error: BaseException | None) -> str:
    """Messages of an error and of its causes, without the paths and code of their tracebacks."""
    messages: list[str] = []
    while error is not None:
        messages.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "\n".join(messages)


def errors_in(log: str) -> list[str]:
    """Lines with errors in a log, without those that are only consequences.

    The first line is usually the cause.

    Those of exceptions that the engine survived are left out, too.
    """
    matches = (_ERROR_LINE.search(line) for line in log.splitlines() if not is_survived(line))
    lines = [match[1].strip()[:_LINE] for match in matches if match]
    return [line for line in lines if not line.startswith(_CONSEQUENCES)]


def is_survived(line: str) -> bool:
    """Whether a line of a log is of a warning: an engine writes tracebacks of exceptions that it
    survived as such.
    """
    return _NO_ERROR.match(line) is not None


def dead_workers(log: str) -> list[str]:
    """Workers of vLLM that a signal ended, as its log names them; their own output says nothing
    of it.
    """
    names = {str(int(one)): one.name for one in signal.Signals}
    found = _DEAD_WORKER.findall(log)
    return [
        f"its worker {name} was ended by {names.get(number, f'signal {number}')}"
        for name, number in found
    ]


class OwnLog:
    """File to which this process writes its output, if any; engines write the cause of a failure
    only there.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        with contextlib.suppress(OSError):  # it is closed
            status = os.fstat(1)
            if stat.S_ISREG(status.st_mode):
                self._path, self._from = Path("/proc/self/fd/1"), status.st_size

    def tail(self) -> str:
        """End of the output that was written since this object was made."""
        return tail(self._path, self._from) if self._path else ""


def tail(path: Path, start: int = 0, most: int = _TAIL) -> str:
    """End of a file as text; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - most))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


SAFE = {
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # NVLink multicast hangs in graph replay under nsys, and must stay off on shared hosts
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
SPAWNED = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
"""For nsys and ncu, which cannot follow a forked worker; a spawned one imports the engine again."""
_ASK_S = 20
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "spiece.model",
)


def set_defaults(values: Mapping[str, str]) -> None:
    """Set environment variables that are not set yet."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def set_environment(job: Mapping[str, Any]) -> None:
    """Set the environment variables that every run needs, before an engine is imported."""
    set_defaults(SAFE)
    if Path(job["model"]).is_dir():
        set_defaults({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
    if job["profiler"] == "cuda":
        set_defaults(SPAWNED)
    if job["all_reduce"] == "nccl":
        set_defaults({"VLLM_ALLREDUCE_USE_FLASHINFER": "0"})


def check_model(model: str) -> None:
    """Check the folder of a model if the model is given as a path."""
    folder = Path(model)
    if (folder.is_absolute() or folder.is_dir()) and not (folder / "config.json").is_file():
        found = (
            f"the model's folder {folder}"
            f" {'has no config.json' if folder.is_dir() else 'is missing'}"
        )
        raise Refused(found, "give a folder with the model's config.json, or random:tiny")


def has_tokenizer(model: str) -> bool:
    """Whether a model comes with a tokenizer; a model on the hub is assumed to have one."""
    folder = Path(model)
    return not folder.is_dir() or any((folder / name).exists() for name in _TOKENIZERS)


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write JSON to a file, which appears complete or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(document, indent=1), encoding="utf-8")
    part.replace(path)


def gpu_names() -> list[str] | None:
    """Names of the NVIDIA GPUs that this process may use; None if unknown.

    No CUDA context is created.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    argv = [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        table = subprocess.run(  # noqa: S603
            argv, capture_output=True, text=True, timeout=_ASK_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [
        [cell.strip() for cell in line.split(",", 2)]
        for line in table.splitlines()
        if line.count(",") >= 2
    ]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [name for _, _, name in rows]
    wanted = [word.strip() for word in chosen.split(",") if word.strip()]
    named = [
        next((n for i, u, n in rows if word == i or (len(word) > 3 and u.startswith(word))), None)
        for word in wanted
    ]
    return [name for name in named if name is not None] if any(named) or not wanted else None


def cpu_name() -> str:
    """Name of the processor."""
    with contextlib.suppress(OSError):
        match = re.search(
            r"(?m)^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8")
        )
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
