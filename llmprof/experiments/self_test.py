"""Self-test of the operators' timer: the timer and PyTorch's profiler measure the same known kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from llmprof.errors import LaunchError

SCRIPT: Final = Path(__file__).parent / "workers" / "self_test.py"
AGREES: Final = 0.05
"""Largest difference that counts as agreement (share); launch and marks around a large matrix product take less."""


def self_test(python: str = sys.executable, *, timeout_s: float = 300.0) -> dict[str, Any]:
    """Time a matrix product with the timer and with PyTorch's profiler."""
    try:
        process = subprocess.run(  # noqa: S603 (our own script, no shell)
            [python, str(SCRIPT)], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"the self-test did not run: {error}", hint="set python to one that has PyTorch") from error
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["it printed no message"])[-1]
        raise LaunchError(f"the self-test failed: {last[:200]}", hint="set python to one that has PyTorch")
    document: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    profiled = document["profiler_us"]
    document["difference"] = document["timed_us"] / profiled - 1 if profiled else None
    document["agrees"] = document["difference"] is not None and abs(document["difference"]) <= AGREES
    return document
