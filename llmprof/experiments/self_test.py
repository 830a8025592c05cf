"""Self-test of the timer of operators: it and PyTorch's profiler time the same known kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from llmprof.errors import LaunchError

SCRIPT: Final = Path(__file__).parent / "workers" / "self_test.py"
AGREES: Final = 0.05
"""Largest difference that counts as agreement; the launch and the two marks around a large product take less."""


def self_test(python: str = sys.executable, *, timeout_s: float = 300.0) -> dict[str, Any]:
    """Time a matrix product in both ways.

    Parameters
    ----------
    python : str
        Interpreter that has PyTorch.
    timeout_s : float
        Longest time.

    Returns
    -------
    dict
        ``platform, n, timed_us, profiler_us`` (medians)``, calls, seen, torch, difference`` (timed over the profiler's,
        less one; None where that saw nothing) and ``agrees``.

    Raises
    ------
    LaunchError
        There is no PyTorch, or it failed.
    """
    try:
        done = subprocess.run(  # noqa: S603 (our own script, no shell)
            [python, str(SCRIPT)], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"the self-test did not run: {error}", hint="give python: one that has PyTorch") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LaunchError(f"the self-test failed: {last[:200]}", hint="give python: one that has PyTorch")
    document: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    seen = document["profiler_us"]
    document["difference"] = document["timed_us"] / seen - 1 if seen else None
    document["agrees"] = document["difference"] is not None and abs(document["difference"]) <= AGREES
    return document
