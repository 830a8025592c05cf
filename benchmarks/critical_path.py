"""The critical path of llmprof beside that of HTA: which events both name, and the CPU time of
both.

usage: python benchmarks/critical_path.py FOLDER   (a folder with HTA's test traces
critical_path__*.json.gz)
"""

from __future__ import annotations

import sys
from pathlib import Path

from _process import PEERS_PYTHON, run
from _table import ratio, seconds, table


def main(folder: Path) -> None:
    rows = []
    for path in sorted(folder.glob("critical_path__*.json.gz")):
        own, other = run("path_llmprof", path), run("path_hta", path, python=PEERS_PYTHON)
        if failed := [
            f"{who}: {found['failed']}"
            for who, found in (("llmprof", own), ("HTA", other))
            if "failed" in found
        ]:
            rows.append([_short(path), *failed])
            continue
        counts = []
        for where in ("device", "host"):
            mine, theirs = (set(found["path"][where]) for found in (own, other))
            counts += [f"{len(mine & theirs)}", f"{len(mine - theirs)}", f"{len(theirs - mine)}"]
        times = [seconds(own["cpu_seconds"]), seconds(other["cpu_seconds"])]
        rows.append(
            [_short(path), *counts, *times, ratio(other["cpu_seconds"] / own["cpu_seconds"])]
        )
    head = [
        "trace",
        "device: both",
        "llmprof only",
        "HTA only",
        "calls: both",
        "llmprof only",
        "HTA only",
    ]
    print(table([*head, "llmprof, CPU", "HTA, CPU", "HTA to llmprof"], rows))


def _short(path: Path) -> str:
    return path.name.removeprefix("critical_path__").split("__")[
        0 if "end_to_end" not in path.name else 1
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
