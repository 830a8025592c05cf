"""What engines and profilers say when they fail, what it means, and what to do."""

from __future__ import annotations

import re
from typing import Final

KNOWN: Final[tuple[tuple[str, str, str], ...]] = (
    (
        r"larger than the available KV cache memory|No available memory for the cache blocks|"
        r"less than requested memory for kv",
        "there is too little memory for the KV cache",
        "lower max_model_len, raise engine_args gpu_memory_utilization (on CPU lower VLLM_CPU_KVCACHE_SPACE), or use "
        "more GPUs (tensor_parallel_size)",
    ),
    (
        r"less than desired GPU memory utilization",
        "other processes hold memory of the GPU that the engine wants",
        "end them (nvidia-smi lists them), or lower engine_args gpu_memory_utilization",
    ),
    (
        r"CUDA out of memory|torch\.OutOfMemoryError|OutOfMemoryError|HIP out of memory|CUDA_ERROR_OUT_OF_MEMORY",
        "the GPU is out of memory",
        "lower max_model_len, batch_size or engine_args gpu_memory_utilization (the KV cache takes what it says), set "
        "eager: true (CUDA graphs take memory), or use more GPUs (tensor_parallel_size)",
    ),
    (
        r"MemoryError|Cannot allocate memory|Unable to allocate|DefaultCPUAllocator: can't allocate",
        "the machine is out of main memory",
        "lower environment VLLM_CPU_KVCACHE_SPACE (GiB), batch_size or max_model_len; with_stack: false and "
        "max_iterations keep the profiler small",
    ),
    (
        r"Address already in use|address already in use|EADDRINUSE|error while attempting to bind",
        "a port that the run needs is in use",
        "set server.port to 0 (a free one is taken), or end the process that has it (ss -ltnp)",
    ),
    (
        r"invalid device ordinal|larger than the number of available GPUs|"
        r"World size \(?\d+\)? is larger|CUDA error: no CUDA-capable device|device_count\(\)",
        "the run asks for more ranks than there are GPUs",
        "lower tensor_parallel_size x pipeline_parallel_size, or make more GPUs visible (CUDA_VISIBLE_DEVICES)",
    ),
    (
        r"ERR_NVGPUCTRPERM",
        "the profiler may not read the hardware counters (ERR_NVGPUCTRPERM)",
        "have an administrator set NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN",
    ),
    (
        r"No space left on device|Errno 28|Disk quota exceeded",
        "the disk is full",
        "free space, choose another results_dir, or record less (with_stack: false, max_iterations)",
    ),
    (
        r"GatedRepoError|gated repo|401 Client Error|Invalid (?:username|credentials)",
        "the hub wants a token for this model",
        "download it first and give its folder; or name HF_TOKEN in environment (nsys and ncu write the environment "
        "down, so tokens are passed on only if they are named)",
    ),
    (
        r"does not appear to have a file named config\.json|Invalid repository ID|"
        r"is not a local folder and is not a valid model identifier|Can't load the configuration",
        "the engine finds no such model",
        "give a folder with config.json, a name on the hub (with network), or random:tiny",
    ),
    (
        r"No module named '(?:vllm|torch|transformers)",
        "the Python of the run does not have the engine",
        "name the Python that has it: python: /path/to/venv/bin/python",
    ),
    (
        r"Not enough allowed NUMA nodes",
        "vLLM's CPU build wants a NUMA node a rank",
        "set environment VLLM_CPU_OMP_THREADS_BIND, such as '0-3|4-7'",
    ),
    (
        r"torchvision::nms does not exist",
        "torchvision does not fit torch",
        "pip uninstall torchvision torchaudio torchcodec in the engine's environment",
    ),
    (
        r"longer than the maximum model length|exceeds the (?:model's )?max(?:imum)?[ _]model[ _]len|"
        r"maximum context length",
        "a prompt is longer than the model takes",
        "shorten it (input_tokens), or raise max_model_len",
    ),
    (
        r"No module named 'flashinfer|(?i:flashinfer).{0,80}(?:not (?:found|installed|available)|failed)",
        "the engine's sampler needs flashinfer, which does not work here",
        "set environment VLLM_USE_FLASHINFER_SAMPLER: '0'",
    ),
    (
        r"trust_remote_code",
        "the model brings code of its own",
        "set engine_args trust_remote_code: true if you trust it",
    ),
    (
        r"(?:server|/health).{0,60}(?:did not|not) (?:become|answer|come)|health check timed out",
        "the server did not come up in time",
        "raise server.health_timeout_s; experiment.log says how far it came",
    ),
)
"""Patterns of what engines and profilers say, what that means, and what to do."""


def known(text: str) -> tuple[str, str] | None:
    """Meaning and advice for a text of an engine or profiler; None where it says nothing known."""
    return next(((words, advice) for pattern, words, advice in KNOWN if re.search(pattern, text)), None)
