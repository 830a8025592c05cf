"""Entries of the glossary: metrics that matter for the kernels of LLM inference, and the meaning of
the parts of a metric's name, as ``glossary.toml`` states them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

_TABLES: Final = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text("utf-8"))
_UNITS: Final = _TABLES["units"]
_PARTS: Final = _TABLES["rollups"] | _TABLES["submetrics"]
STALLS: Final[dict[str, dict[str, str]]] = _TABLES["stalls"]
"""Meaning and action, by warp state."""

SAME: Final = {"gmma": "warpgroup_arrive", "no_instruction": "no_instructions"}
GUIDE: Final = "NVIDIA Nsight Compute documentation, Kernel Profiling Guide: "


class Entry(NamedTuple):
    """Entry of a metric, or of a family of metrics with the same meaning."""

    names: list[str]
    """Names of metrics without rollup and submetric; ``*`` stands for any text."""
    labels: list[str]
    """Names of the same metrics on the details page of Nsight Compute."""
    title: str
    meaning: str
    good: str
    action: str
    source: str


ENTRIES: Final = [Entry(**row | {"source": GUIDE + row["source"]}) for row in _TABLES["entries"]]

_PREFIX: Final = re.compile(r"^(?:(?:breakdown|group|pmsampling|smsp):|[A-Z_]+\.Triage\w*\.)")


def base_name(name: str) -> str:
    """Name without prefixes, rollup and submetrics:

    ``dram__bytes_read.sum.per_second`` is ``dram__bytes_read``.
    """
    return _PREFIX.sub("", name.strip()).split(".", 1)[0]


def parts(name: str) -> dict[str, str]:
    """Meaning of the known parts of a metric's name."""
    name = _PREFIX.sub("", name.strip())
    head, *tail = name.split(".")
    unit, joined, quantity = head.partition("__")
    if unit == "derived" and "__" in quantity:
        inner, _, rest = quantity.partition("__")
        unit, quantity = (inner, rest) if inner in _UNITS else (unit, quantity)
    if not joined or unit not in _UNITS:
        return {}
    meanings = {unit: _UNITS[unit]}
    if quantity:
        meanings[quantity] = quantity.replace("_", " ")
    for part in tail:
        if meaning := _PARTS.get(part):
            meanings[part] = meaning
    return meanings
