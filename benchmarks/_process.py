"""A job in a process of its own: seconds and peak memory that nothing else disturbs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORK = ROOT / ".bench"
PEERS_PYTHON = WORK / "peers" / "bin" / "python"

Measured = dict[str, Any]


def run(
    job: str, *arguments: object, python: Path = Path(sys.executable), tree: Path = ROOT
) -> Measured:
    """What a job of ``_jobs.py`` measured with the package of a checkout, or ``{"failed":
    reason}``.
    """
    command = [str(python), str(HERE / "_jobs.py"), job, *map(str, arguments)]
    paths = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tree, env=environment
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"failed": last[0]}
    found: Measured = json.loads(done.stdout.splitlines()[-1])
    return found


def alternate(contenders: dict[str, Callable[[], Measured]], rounds: int) -> dict[str, Measured]:
    """Each contender once a round, in turn, so that a busy moment of the machine meets all of them.

    Times are the minimum of all rounds, sizes the maximum.
    """
    best: dict[str, Measured] = {}
    for _ in range(rounds):
        for name, measure in contenders.items():
            if "failed" not in best.get(name, {}):
                best[name] = _better(best.get(name), measure())
    return best


def _better(old: Measured | None, new: Measured) -> Measured:
    if old is None or "failed" in new:
        return new
    pick = {"seconds": min, "bytes": max}
    return {
        key: pick.get(key.rsplit("_", 1)[-1], lambda _, b: b)(old[key], value)
        for key, value in new.items()
    }
