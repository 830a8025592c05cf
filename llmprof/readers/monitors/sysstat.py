"""Reader of what ``sar`` prints, live or from its daily files, any of its sections."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from llmprof.readers.monitors.common import EPOCH, LOCAL, TIME_OF_DAY, Days, Samples, local_ns, number, text_of
from llmprof.trace import Trace
from llmprof.units import NS_PER_S

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


_HEAD: Final = re.compile(r"Linux \S+ \(.*\)\s+(\S+)\s+_\w+_")
_LINE: Final = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})(?: ([AP]M))?\s+(\S.*)")
_SLASHED: Final = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{2}|\d{4})")
_DOTTED: Final = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{2}|\d{4})")


def read_sar(path: Path) -> Trace:
    """Read what ``sar`` printed.

    Parameters
    ----------
    path : pathlib.Path
        Its text, of any sections (``-u``, ``-r``, ``-d``, ``-n DEV``, ``-A``).

    Returns
    -------
    Trace
        Table ``counters`` only; ``cpu.utilization`` is what is neither idle nor waiting for a disk. A sample stands
        at the end of its interval, as sar writes it. Times are local, of a zone that the file does not say; the date
        is unknown where day and month could be either way round (``11/12/26``). A device has its name at the end of
        the counter (``disk.read.sda``). Averages are left out.

    Raises
    ------
    ReadError
        There is no sample.
    """
    found = Samples()
    midnight: int | None = None
    clock, names, days = LOCAL, list[str](), defaultdict[tuple[str, ...], Days](Days)
    for line in text_of(path).splitlines():
        if head := _HEAD.match(line):
            midnight, names = _midnight(head[1]), []
            days.clear()
            clock = TIME_OF_DAY if midnight is None else clock
            continue
        at = _LINE.match(line)
        if at is None or "RESTART" in line:
            found.lost += line[:1].isdigit() and "RESTART" not in line
            continue
        cells = at[5].split()
        if figure(cells[-1]) is None:
            names = cells
        elif len(cells) != len(names):
            found.lost += 1
        else:
            hour = int(at[1]) % 12 + (12 if at[4] == "PM" else 0) if at[4] else int(at[1])
            time_ns = days[tuple(names)].ns((hour * 3600 + int(at[2]) * 60 + int(at[3])) * NS_PER_S)
            put(found, names, cells, (midnight or 0) + time_ns)
    notes = [f"{path.name} does not say its date for certain; print with S_TIME_FORMAT=ISO"]
    return found.trace(path, "sar", clock=clock, notes=notes if clock == TIME_OF_DAY else [])


def _midnight(text: str) -> int | None:
    """Midnight of a date in ns; None where it can be read in two ways or not at all."""
    try:
        return local_ns(datetime.strptime(text, "%Y-%m-%d"))
    except ValueError:
        pass
    slashed, dotted = _SLASHED.fullmatch(text), _DOTTED.fullmatch(text)
    if slashed:
        month, day, year = (int(part) for part in slashed.groups())
        if month <= 12 and day <= 12 and month != day:
            return None
        month, day = (month, day) if month <= 12 else (day, month)
    elif dotted:
        day, month, year = (int(part) for part in dotted.groups())
    else:
        return None
    try:
        return local_ns(datetime(year if year > 99 else 2000 + year, month, day))
    except ValueError:
        return None


def read_sadf(path: Path) -> Trace:
    """Read what ``sadf -d`` printed.

    Parameters
    ----------
    path : pathlib.Path
        Its lines, of any activities, one after another.

    Returns
    -------
    Trace
        Table ``counters`` only, named as those of ``sar``. Times are since the epoch where the file says UTC (the
        default) or seconds (``-U``), else local (``-T``). A sample stands at the end of its interval.

    Raises
    ------
    ReadError
        There is no sample.
    """
    found, zoned, names = Samples(), True, list[str]()
    for line in text_of(path).splitlines():
        cells = line.split(";")
        if line.startswith("#"):
            names = cells
        elif line.strip() and "LINUX-RESTART" not in line:
            in_zone, time_ns = _time_ns(cells[2]) if len(cells) == len(names) > 3 else (True, None)
            if time_ns is None:
                found.lost += 1
                continue
            zoned = zoned and in_zone
            put(found, names[3:], cells[3:], time_ns)
    return found.trace(path, "sadf", clock=EPOCH if zoned else LOCAL)


def _time_ns(text: str) -> tuple[bool, int | None]:
    """Whether a time has a zone, and the time; None where it cannot be read."""
    seconds = number(text)
    if seconds is not None:
        return True, round(seconds * 1e9)
    try:
        return text.endswith(" UTC"), local_ns(datetime.strptime(text.removesuffix(" UTC"), "%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return True, None
