"""``import llmprof`` against ``import polars``, each in a fresh process."""

from __future__ import annotations

from functools import partial

from _process import Measured, alternate, run
from _table import ratio, seconds, size, table


def measure(rounds: int) -> dict[str, Measured]:
    """Seconds and memory by module; llmprof imports polars when it is used, as
    ``llmprof.readers`` does.
    """
    modules = ("polars", "llmprof", "llmprof.readers")
    return alternate({name: partial(run, "importing", name) for name in modules}, rounds)


def report(results: dict[str, Measured]) -> str:
    """Table of ratios to polars."""
    polars = results["polars"]
    return table(
        ["import", "time", "to polars", "CPU time", "to polars", "memory"],
        [
            [
                name,
                seconds(found["seconds"]),
                ratio(found["seconds"] / polars["seconds"]),
                seconds(found["cpu_seconds"]),
                ratio(found["cpu_seconds"] / polars["cpu_seconds"]),
                size(found["peak_bytes"]),
            ]
            for name, found in results.items()
        ],
    )
