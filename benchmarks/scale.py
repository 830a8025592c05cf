"""Analyses of millions of kernels, each from conformed frames alone, against a plain sort of the
same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from _process import Measured, alternate, run
from _table import ratio, seconds, size, table

ANALYSES = ("overlap", "attribute", "layers", "collectives", "idle", "opportunities")


def measure(source: str, kernels: Sequence[int], rounds: int) -> dict[str, Measured]:
    """Seconds and memory by ``analysis:kernels``."""
    contenders = {
        f"{analysis}:{count}": partial(
            run, "scale", source, count, analysis, 3 if count <= 2_000_000 else 1
        )
        for count in kernels
        for analysis in ANALYSES
    }
    return alternate(contenders, rounds)


def report(results: dict[str, Measured]) -> str:
    """Table with a row for each analysis and number of kernels; to linear: growth of CPU time
    over that of kernels.
    """
    rows = []
    for key, found in results.items():
        analysis = key.split(":")[0]
        if "failed" in found:
            rows.append([analysis, found["failed"][:60], *[""] * 8])
            continue
        smallest = next(
            r for k, r in results.items() if k.startswith(f"{analysis}:") and "failed" not in r
        )
        linear = (
            found["cpu_seconds"]
            / smallest["cpu_seconds"]
            / (found["kernels"] / smallest["kernels"])
        )
        rows.append(
            [
                f"{analysis}()",
                f"{found['kernels'] / 1e6:.2f} M",
                seconds(found["seconds"]),
                seconds(found["cpu_seconds"]),
                seconds(found["sort_cpu_seconds"]),
                ratio(found["cpu_seconds"] / found["sort_cpu_seconds"]),
                "" if found is smallest else ratio(linear),
                size(found["before_bytes"]),
                size(found["peak_bytes"]),
            ]
        )
    head = [
        "scale",
        "kernels",
        "time",
        "CPU time",
        "CPU of sort",
        "to sort",
        "to linear",
        "memory before",
        "peak memory",
    ]
    return table(head, rows)
