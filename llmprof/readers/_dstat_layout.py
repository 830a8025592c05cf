"""What the columns of dstat, dool and pcp-dstat mean: names of groups and columns to counters in base units."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Column(NamedTuple):
    """Counter of a column, its unit, and by how much a ``k`` multiplies in text."""

    counter: str
    unit: str
    thousand: int = 1000


_CPU: Final = {
    "usr": "user", "sys": "system", "idl": "idle", "wai": "iowait", "hiq": "hard_interrupts", "siq": "soft_interrupts",
    "stl": "steal",
}  # fmt: skip
_MEMORY: Final = {"used": "used", "free": "free", "buff": "buffers", "cach": "cached", "avai": "available"}
_GROUPS: Final[tuple[tuple[re.Pattern[str], str, str, dict[str, str]], ...]] = (
    (re.compile(r"(?:total cpu|total|cpu\w*) usage"), "cpu", "%", _CPU),
    (re.compile(r"memory usage|mem\b.*"), "memory", "B", _MEMORY),
    (re.compile(r"swap"), "swap", "B", {"used": "used", "free": "free"}),
    (re.compile(r"dsk/.+"), "disk", "B/s", {"read": "read", "writ": "written"}),
    (re.compile(r"net/.+"), "network", "B/s", {"recv": "received", "send": "sent"}),
    (re.compile(r"paging"), "paging", "B/s", {"in": "in", "out": "out"}),
    (re.compile(r"io/.+"), "disk_requests", "1/s", {"read": "read", "writ": "written"}),
    (re.compile(r"system"), "system", "1/s", {"int": "interrupts", "csw": "context_switches"}),
    (re.compile(r"load avg"), "load", "1", {"1m": "1min", "5m": "5min", "15m": "15min"}),
    (re.compile(r"procs"), "processes", "1", {"run": "running", "blk": "blocked", "new": "new_per_s"}),
)
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BOXES: Final = str.maketrans({"─": "-", "┄": "-", "│": "|", "┬": " "})
_WHOLE: Final = {"total cpu usage", "total usage", "dsk/total", "net/total", "io/total"}


def plain(text: str) -> str:
    """Text of a terminal without its colours, and with lines of ASCII for those of dool."""
    return _ESCAPES.sub("", text).translate(_BOXES)


def column(group: str, name: str) -> Column | None:
    """What a column holds; None for the columns of time and for text.

    Parameters
    ----------
    group : str
        Title of the group (``total cpu usage``, ``dsk/sda``).
    name : str
        Title of the column (``usr``), with the group's before a colon where there are several of a kind.

    Returns
    -------
    Column or None
        The counter; a part of a whole (one disk, one processor) has its name at the end: ``disk.read.sda``.
    """
    group, name = group.strip().lower(), name.rpartition(":")[2].strip().lower()
    if name in {"time", "date/time", "epoch"}:
        return None
    for pattern, head, unit, names in _GROUPS:
        if pattern.fullmatch(group) and name in names:
            part = "" if group in _WHOLE or head in {"memory", "paging"} else _part(group)
            counter = f"{head}.{names[name]}" + (f".{part}" if part else "")
            return Column(counter, unit, 1024 if unit in {"B", "B/s"} else 1000)
    plain = re.sub(r"\W+", "_", f"{group}.{name}".replace("/", "."), flags=re.ASCII)
    return Column(f"dstat.{plain}", "1")


def _part(group: str) -> str:
    """Name of the disk, network or processor that a group is of; empty for a group of the whole machine."""
    if "/" in group:
        return group.partition("/")[2]
    found = re.fullmatch(r"cpu(\w+) usage", group)
    return found[1] if found else ""
