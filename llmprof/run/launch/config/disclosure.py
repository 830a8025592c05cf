"""Rules of disclosure: which environment variables and engine arguments may be written to files or
shown.

A value is written only if its name is on a list of harmless names, and neither name nor value looks
like a credential. Any other value is replaced by a word; a run that is resumed from its folder
reads the value from its own environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from llmprof.trace.storage.pseudonyms import REMOVED, Pseudonyms

if TYPE_CHECKING:
    from llmprof.run.launch.config.options import ExperimentConfig

HARMLESS: Final = re.compile(
    r"(?:VLLM|CUDA|NCCL|RCCL|TORCH|TORCHDYNAMO|TORCHINDUCTOR|PYTORCH|OMP|MKL|KMP|GOMP|TRITON|NVTE|CUBLAS|CUDNN|HIP|ROCR|"
    r"ASCEND|HCCL)_[A-Z0-9_]+|(?:HF_HUB|TRANSFORMERS|HF_DATASETS)_OFFLINE|TOKENIZERS_PARALLELISM|PYTHONUNBUFFERED|"
    r"PYTHONHASHSEED|NVIDIA_VISIBLE_DEVICES|NVIDIA_TF32_OVERRIDE|DO_NOT_TRACK"
)
"""Variables that set how engines and libraries work."""

SECRET: Final = re.compile(
    r"(?i)token(?!izer)(?!s(?:$|_))|secret|passw|passphrase|passwd|pwd|(?:^|_)key(?:s|$|_)|[a-z]key$|private|credential|"
    r"(?:^|_)auth(?:_|$|oriz)|cookie|session_?id|certificate|(?:^|_)cert(?:_|$)|dsn$|webhook"
)
"""Names whose values are likely to be secrets."""

_LOCATION: Final = re.compile(r"://(?:(?!://)[^\s@])*@|\bBearer\s", re.IGNORECASE)
_TOLD_KINDS: Final = {"token", "secret", "email", "random"}


def harmless(name: str, value: object) -> bool:
    """Whether an environment variable may be written to files with its value."""
    return bool(HARMLESS.fullmatch(name)) and not SECRET.search(name) and not _tells(value)


def _tells(value: object) -> bool:
    """Whether a value itself looks like a credential, whatever its name."""
    text = str(value)
    if _LOCATION.search(text):
        return True
    seen = Pseudonyms(b"")
    seen.text(text)
    return bool(_TOLD_KINDS & seen.counts.keys())


def disclosed_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables in which a word replaces every value that may not be written or
    shown.
    """
    return {name: value if harmless(name, value) else REMOVED for name, value in variables.items()}


def disclosed_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an engine in which a word replaces every value that may not be written,
    nested values included.
    """
    return _replaced(values, lambda path, value: REMOVED)


Replace = Callable[[tuple[str, ...], Any], Any]


def _replaced(values: Mapping[str, Any], replace: Replace) -> dict[str, Any]:
    """Apply a function of path and value to each argument whose value may not be written."""

    def each(value: Any, path: tuple[str, ...], *, hidden: bool) -> Any:
        if isinstance(value, Mapping):
            return {
                name: each(
                    item, (*path, str(name)), hidden=hidden or bool(SECRET.search(str(name)))
                )
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [each(item, (*path, str(i)), hidden=hidden) for i, item in enumerate(value)]
        if isinstance(value, bool | int | float | None) or not (
            hidden or value == REMOVED or _tells(value)
        ):
            return value
        return replace(path, value)

    replaced: dict[str, Any] = each(values, (), hidden=False)
    return replaced


def config(given: ExperimentConfig) -> ExperimentConfig:
    """Configuration in which a word replaces every value that may not be written."""
    return given.replace(
        environment=disclosed_environment(given.environment),
        engine_args=disclosed_arguments(given.engine_args),
        server=disclosed_arguments(given.server),
    )


def variable_of(*path: str) -> str:
    """Environment variable from which a script reads an engine argument that is not written into
    the script.
    """
    return "LLMPROF_ENGINE_ARG_" + re.sub(r"\W", "_", "_".join(path)).upper()


def secret_arguments(values: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables, with values as text, for engine arguments that may not be written
    into the script.
    """
    secrets: dict[str, str] = {}

    def take(path: tuple[str, ...], value: Any) -> str:
        if value != REMOVED:
            secrets[variable_of(*path)] = str(value)
        return REMOVED

    _replaced(values, take)
    return secrets


def for_script(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for a script, in which the name of an environment variable replaces each secret."""
    return _replaced(values, lambda path, value: {"from_environment": variable_of(*path)})
