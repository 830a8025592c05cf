"""Environment of the engine: what makes a capture right, and what must not come into a report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmprof.redaction import REMOVED

if TYPE_CHECKING:
    from llmprof.launch.config import ExperimentConfig

_SAFE: Final = {
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # a forked worker is lost to nsys, and CUDA cannot be used again after a fork
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # NVLink multicast hangs in graph replay under nsys, and must stay off on shared hosts
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
SECRET: Final = re.compile(
    r"(?i)token(?!izers)|secret|passw|api_?key|access_?key|private|credential|(?:^|_)auth(?:_|$)"
)

"""Names of variables whose values are likely to be secrets."""


def environment(config: ExperimentConfig, *, mode: str | None = None) -> dict[str, str]:
    """Variables that a run sets for the engine; ``config.environment`` goes over all of them.

    Parameters
    ----------
    config : ExperimentConfig
        What is run.
    mode : str, optional
        Mode of this pass, if it is not that of the configuration.
    """
    mode = mode or config.profile_mode
    found = dict(_SAFE)
    if config.model.startswith("random:") or Path(config.model).is_dir():
        found |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if mode == "ncu" or config.profile_mode == "nsys_ncu":
        # one process for the engine: all requests are there before the first step, so each pass has the same launches
        found["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if config.layer_annotations and mode in {"nsys", "nsys_ncu", "ncu"}:
        # the V2 runner ignores layer-wise NVTX without a word
        found["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    return found | {name: value for name, value in config.environment.items() if value != REMOVED}


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables as they may be written down: a value that looks like a secret is replaced by a word.

    A run that goes on from its folder takes such a value from its own environment.
    """
    return {name: REMOVED if SECRET.search(name) else value for name, value in environment.items()}


def whole_environment(
    config: ExperimentConfig, inherited: Mapping[str, str], *, mode: str | None = None
) -> dict[str, str]:
    """Environment of the engine's process: inherited, with what a run sets.

    A report of nsys or ncu holds the whole environment, so under them variables that look like secrets are not passed
    on, unless the configuration names them.

    Parameters
    ----------
    config : ExperimentConfig
        What is run.
    inherited : mapping
        Environment of this process.
    mode : str, optional
        Mode of this pass, if it is not that of the configuration.
    """
    recorded = (mode or config.profile_mode) in {"nsys", "nsys_ncu", "ncu"}
    asked = {name for name, value in config.environment.items() if value == REMOVED}
    kept = {k: value for k, value in inherited.items() if k in asked or not (recorded and SECRET.search(k))}
    return kept | environment(config, mode=mode)
