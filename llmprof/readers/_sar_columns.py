"""What the columns of sysstat mean, in the text of ``sar`` and in the lines of ``sadf``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmprof.readers._monitor import Samples, number

_KEYS: Final = {"CPU": "cpu", "DEV": "disk", "IFACE": "network"}
_COUNTERS: Final[dict[str, tuple[str, str]]] = {
    "%user": ("cpu.user", "%"),
    "%usr": ("cpu.user", "%"),
    "%nice": ("cpu.nice", "%"),
    "%system": ("cpu.system", "%"),
    "%sys": ("cpu.system", "%"),
    "%iowait": ("cpu.iowait", "%"),
    "%steal": ("cpu.steal", "%"),
    "%idle": ("cpu.idle", "%"),
    "kbmemfree": ("memory.free", "KiB"),
    "kbavail": ("memory.available", "KiB"),
    "kbmemused": ("memory.used", "KiB"),
    "%memused": ("memory.utilization", "%"),
    "kbbuffers": ("memory.buffers", "KiB"),
    "kbcached": ("memory.cached", "KiB"),
    "kbswpused": ("swap.used", "KiB"),
    "kbswpfree": ("swap.free", "KiB"),
    "rkB/s": ("disk.read", "KiB/s"),
    "wkB/s": ("disk.written", "KiB/s"),
    "await": ("disk.wait", "ms"),
    "rxkB/s": ("network.received", "KiB/s"),
    "txkB/s": ("network.sent", "KiB/s"),
    "cswch/s": ("system.context_switches", "1/s"),
    "ldavg-1": ("load.1min", "1"),
    "ldavg-5": ("load.5min", "1"),
    "ldavg-15": ("load.15min", "1"),
}
_WHOLE: Final = {"all", "-1"}


def put(found: Samples, names: Sequence[str], cells: Sequence[str], time_ns: int) -> None:
    """Add the counters of one line: a name and a cell a column, the first of which may say which part it is of."""
    key = _KEYS.get(names[0])
    part = cells[0] if key and cells[0] not in _WHOLE else ""
    not_busy = 0.0
    for name, cell in zip(names, cells, strict=True):
        value = figure(cell)
        if value is None or (key and name == names[0]):
            continue
        counter, unit = _COUNTERS.get(name) or (f"sar.{key}.{name}" if key else f"sar.{name}", _unit(name))
        found.add(time_ns, f"{counter}.{part}" if part else counter, value, unit)
        not_busy += value if name in {"%idle", "%iowait"} else 0
    if key == "cpu" and "%idle" in names:
        found.add(time_ns, f"cpu.utilization.{part}" if part else "cpu.utilization", max(0.0, 100 - not_busy), "%")


def _unit(name: str) -> str:
    if name.endswith("kB/s"):
        return "KiB/s"
    if name.startswith("%"):
        return "%"
    return "KiB" if name.startswith("kb") else "1/s" if name.endswith("/s") else "1"


def figure(text: str) -> float | None:
    """A number, with the decimal comma of some languages too."""
    return number(text.replace(",", "."))
