"""What the parts of a metric's name say: ``unit__quantity.rollup.submetric``."""

from __future__ import annotations

import re
from typing import Final

UNITS: Final = {
    "dram": "device memory (HBM or GDDR) behind the L2 cache",
    "fbpa": "the interface of the L2 cache to the device memory",
    "lts": "a slice of the L2 cache",
    "ltc": "the L2 cache",
    "lrc": "the point where both halves of the L2 cache meet",
    "l1tex": "the L1 and texture cache of an SM, with the shared memory in the same storage",
    "sm": "a streaming multiprocessor",
    "smsp": "one of the (usually four) partitions of an SM, each with a warp scheduler",
    "sass": "the machine instructions of the kernel, counted by patching its code",
    "tpc": "a pair of SMs",
    "gpc": "a cluster of SMs",
    "gpu": "the whole GPU",
    "gr": "the graphics and compute engine",
    "fe": "the front end that takes in commands",
    "idc": "the cache for constants in an SM that are addressed with an index",
    "imc": "the cache for constants that are written in instructions",
    "gcc": "the cache for constants and instructions of a GPC",
    "pcie": "the PCIe link",
    "nvlrx": "NVLink, receiving",
    "nvltx": "NVLink, sending",
    "c2clink": "the link between CPU and GPU on one module",
    "launch": "how the kernel was launched",
    "device": "a fixed attribute of the device",
    "profiler": "the profiler itself",
    "derived": "a value that the profiler computes of others",
    "memory": "memory accesses by instruction",
    "numa": "the topology of memory",
    "nvlink": "the topology of NVLink",
}

ROLLUPS: Final = {
    "sum": "added up over all instances of the unit",
    "avg": "the mean over all instances of the unit",
    "min": "the smallest of all instances of the unit",
    "max": "the largest of all instances of the unit",
}

SUBMETRICS: Final = {
    "pct_of_peak_sustained_elapsed": "in percent of the highest rate that can be kept up, over the whole kernel",
    "pct_of_peak_sustained_active": "in percent of the highest rate that can be kept up, while the unit was active",
    "pct_of_peak_burst_elapsed": "in percent of the highest rate for a moment, over the whole kernel",
    "peak_sustained": "the highest rate that can be kept up, in a cycle",
    "peak_sustained_elapsed": "the most that could have happened in the time of the kernel",
    "peak_sustained_active": "the most that could have happened while the unit was active",
    "per_second": "in a second",
    "per_cycle_elapsed": "in a cycle, over the whole kernel",
    "per_cycle_active": "in a cycle in which the unit was active",
    "ratio": "as a quotient",
    "pct": "in percent",
    "max_rate": "the highest value that the quotient can have",
}

_PREFIX: Final = re.compile(r"^(?:(?:breakdown|group|pmsampling|smsp):|[A-Z_]+\.Triage\w*\.)")


def base(name: str) -> str:
    """Name without prefixes, rollup and submetrics: ``dram__bytes_read.sum.per_second`` is ``dram__bytes_read``."""
    return _PREFIX.sub("", name.strip()).split(".", 1)[0]


def parts(name: str) -> dict[str, str]:
    """Meaning of each part of a name that is known.

    Returns
    -------
    dict of str to str
        By part: the unit, what is counted (in words), the rollup and the submetrics.
    """
    name = _PREFIX.sub("", name.strip())
    head, *tail = name.split(".")
    unit, joined, quantity = head.partition("__")
    if unit == "derived" and "__" in quantity:
        inner, _, rest = quantity.partition("__")
        unit, quantity = (inner, rest) if inner in UNITS else (unit, quantity)
    if not joined or unit not in UNITS:
        return {}
    found = {unit: UNITS[unit]}
    if quantity:
        found[quantity] = quantity.replace("_", " ")
    for part in tail:
        if meaning := ROLLUPS.get(part) or SUBMETRICS.get(part):
            found[part] = meaning
    return found
