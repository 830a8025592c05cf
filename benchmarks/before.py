"""Reading and analyses of this checkout beside those of another one, such as the commit before a
change.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from _process import ROOT, Measured, alternate, run
from _table import ratio, seconds, table

READ = ("torch_tp4_eager_nccl", "torch_tp4_cudagraph", "torch_tp1_moe_eager", "nsys_tp2_cudagraph")
ANALYSES = (
    "steps",
    "overlap",
    "launch_delay",
    "attribute",
    "layers",
    "collectives",
    "idle",
    "findings",
    "operators",
    "attribute>operators",
    "operators>operators",
)


def measure(other: Path, source: str, kernels: int, rounds: int) -> dict[str, Measured]:
    """CPU seconds by ``what: tree``; both trees read the samples of this one."""
    contenders = {}
    for tree, path in (("before", other.resolve()), ("after", ROOT)):
        for sample in READ:
            contenders[f"read:{sample}:{tree}"] = partial(
                run, "read_cpu", ROOT / "sample_traces" / sample, tree=path
            )
    for count in (0, kernels):
        for analysis in ANALYSES:
            for tree, path in (("before", other.resolve()), ("after", ROOT)):
                job = partial(
                    run, "analysis_cpu", ROOT / "sample_traces" / source, count, analysis, tree=path
                )
                contenders[f"{count}:{analysis}:{tree}"] = job
    return alternate(contenders, rounds)


def report(results: dict[str, Measured]) -> str:
    """Table with a row for each sample that is read and for each analysis, of the sample and of
    its repetition.
    """
    rows = []
    for key, after in results.items():
        count, name, tree = key.split(":")
        if tree == "before":
            continue
        before = results[f"{count}:{name}:before"]
        what = f"read {name}" if count == "read" else f"{name}()"
        size = "" if count == "read" else f"{after.get('kernels', 0):,}"
        if "failed" in before or "failed" in after:
            rows.append(
                [
                    what,
                    size,
                    str(before.get("failed", ""))[:40],
                    str(after.get("failed", ""))[:40],
                    "",
                ]
            )
            continue
        times = [found["cpu_seconds"] for found in (before, after)]
        rows.append([what, size, *map(seconds, times), ratio(times[1] / times[0])])
    return table(["CPU time", "kernels", "before", "after", ""], rows)
