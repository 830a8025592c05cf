"""What made a run: versions, command lines, environment by allow-list, and the hashes of its files."""

from __future__ import annotations

import hashlib
import importlib
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from llmprof.errors import LlmprofError
from llmprof.launch import _files
from llmprof.launch._machine import tool_version
from llmprof.launch.folder import RunFolder

_ALLOWED: Final = re.compile(
    r"^(?:VLLM_|CUDA_|NCCL_|TORCH_|TORCHDYNAMO_|TORCHINDUCTOR_|PYTORCH_|OMP_|MKL_|KMP_|GOMP_|TRITON_|NVTE_|"
    r"HF_HUB_OFFLINE$|TRANSFORMERS_OFFLINE$|TOKENIZERS_PARALLELISM$|PYTHONUNBUFFERED$|PYTHONHASHSEED$|"
    r"LD_PRELOAD$|NVIDIA_VISIBLE_DEVICES$|DO_NOT_TRACK$)"
)
_SECRET: Final = re.compile(r"(?i)token(?!izers)|secret|passw|key|credential|(?:^|_)auth(?:_|$)")
_UNHASHED: Final = {"state.json", "manifest.json", ".lock"}


def allowed(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """Variables of an environment that may be written down: known ones of engines, and none that looks like a secret.

    Parameters
    ----------
    environment : mapping
        All variables.
    also : iterable of str
        Names that the configuration set, whose values are written down too unless they look like secrets.
    """
    names = set(also)
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in names or _ALLOWED.match(name)) and not _SECRET.search(name)
    }


def write(
    folder: RunFolder,
    *,
    commands: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str],
    also: Iterable[str] = (),
    worker: Mapping[str, Any] | None = None,
) -> None:
    """Write ``manifest.json``, last of all files but the state.

    Parameters
    ----------
    folder : RunFolder
        A folder with everything else in it.
    commands : sequence of mapping
        ``pass, argv, status, seconds`` of each command that was run.
    environment : mapping
        Environment of the engine's process.
    also : iterable of str
        Variables that the configuration set.
    worker : mapping, optional
        What the engine script wrote of itself.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    worker = worker or {}
    versions = {
        "llmprof": importlib.import_module("llmprof").__version__,
        "python": platform.python_version(),
        "engine": worker.get("engine"),
        "engine_version": worker.get("engine_version"),
        "torch": worker.get("torch_version"),
        "engine_python": worker.get("python_version"),
        "nsys": tool_version("nsys"),
        "ncu": tool_version("ncu"),
    }
    said = {
        "versions": versions,
        "commands": [dict(one) for one in commands],
        "environment": allowed(environment, also),
        "files": [_hashed(path, folder.path) for path in _contents(folder.path)],
    }
    _files.write_json(folder.manifest, said)


def changed(folder: RunFolder) -> list[str]:
    """Files of a run that are missing or differ from its manifest.

    Raises
    ------
    LlmprofError
        There is no manifest.
    """
    said = _files.read_json(folder.manifest)
    if not isinstance(said, dict):
        raise LlmprofError(f"{folder.path.name} has no manifest", hint="the run did not come to its end")
    return [
        row["name"]
        for row in said["files"]
        if not (folder.path / row["name"]).is_file() or _hashed(folder.path / row["name"], folder.path) != row
    ]


def _contents(root: Path) -> list[Path]:
    found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in found if path.name not in _UNHASHED and not path.name.startswith("."))


def _hashed(path: Path, root: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _files.refused(path, error) from error
    return {"name": path.relative_to(root).as_posix(), "bytes": path.stat().st_size, "sha256": digest}
