"""Readers of the output of host monitors: dstat, dool and pcp-dstat (CSV and terminal), sar and sadf."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from llmprof.readers.monitors.common import (
    EPOCH,
    LOCAL,
    NUMBERED,
    TIME_OF_DAY,
    Days,
    Samples,
    csv_rows,
    local_ns,
    number,
    text_of,
)
from llmprof.trace import Trace
from llmprof.units import NS_PER_S


class Column(NamedTuple):
    """Counter of a column, its unit, and the factor of a ``k`` after a number in text."""

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
    """Terminal output without colours, and with ASCII characters for the lines that dool draws."""
    return _ESCAPES.sub("", text).translate(_BOXES)


def column(group: str, name: str) -> Column | None:
    """Counter of a column; None for columns of times and of text."""
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
    """Name of the disk, network or processor of a group; empty for a group of the whole machine."""
    if "/" in group:
        return group.partition("/")[2]
    match = re.fullmatch(r"cpu(\w+) usage", group)
    return match[1] if match else ""


_TEXT_NUMBER: Final = re.compile(r"(-?\d+(?:\.\d*)?)([BkKMGTP]?)")
_POWERS: Final = {"": 0, "B": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_TITLE_RULE: Final = re.compile(r"-{2,}|\s+-?|-\s+")
_DIGIT: Final = re.compile(r"\b(?!\d+m\b)\d")
"""Pattern of a digit of a number; the digits in the titles 1m, 5m and 15m do not match."""
_TIMES: Final = ("%d-%m %H:%M:%S", "%b-%d %H:%M:%S")
_HEAD_DATE: Final = re.compile(r"(\d{2} \w{3} \d{4} \d{2}:\d{2}:\d{2})(?: (\w+))?")


class _Row(NamedTuple):
    groups: list[str]
    names: list[str]
    cells: list[str]


def read_dstat(path: Path) -> Trace:
    """Read the output of dstat, dool or pcp-dstat."""
    text = plain(text_of(path))
    in_csv = text.lstrip().startswith('"')
    begin, zone = _begin(text) if in_csv else (None, None)
    samples, days, clock, notes = Samples(), Days(), NUMBERED, list[str]()
    for turn, row in enumerate(_csv_rows(text, samples) if in_csv else _text_rows(text, samples)):
        if turn == 0:  # the mean since the start of the machine
            continue
        clock, time_ns = _when(row, begin, zone, days, turn)
        if time_ns is None:
            samples.lost += 1
            continue
        _put(samples, row, time_ns)
    if clock == NUMBERED:
        notes.append(f"{path.name} has no times: its samples were placed one second apart; record with dstat -T")
    if clock == TIME_OF_DAY:
        notes.append(f"{path.name} has no year; record with dstat -T")
    return samples.trace(path, "dstat", clock=clock, notes=notes, skipped={"row since the start of the machine": 1})


def _begin(text: str) -> tuple[datetime | None, str | None]:
    """Local time at which the recording began and its time zone, from the heading of a CSV."""
    match = _HEAD_DATE.search(text[:4096])
    try:
        return (datetime.strptime(match[1], "%d %b %Y %H:%M:%S"), match[2]) if match else (None, None)
    except ValueError:
        return None, None


def _csv_rows(text: str, samples: Samples) -> Iterator[_Row]:
    groups: list[str] = []
    names: list[str] = []
    before: list[str] = []
    for cells in csv_rows(text.splitlines(), samples):
        if not any(cells):
            continue
        if cells[0].endswith(("CSV output", "CSV Output")) or cells[0] in {"Author:", "Host:", "Cmdline:"}:
            groups, names, before = [], [], []
        elif not names and any(figure(cell) is not None for cell in cells):  # a sample where titles should be
            samples.lost += 1
        elif not names and not before:
            before = cells
        elif not names:
            names, last = cells, ""
            for cell in [*before, *[""] * (len(cells) - len(before))]:
                last = cell or last
                groups.append(last)
        elif len(cells) != len(names):
            samples.lost += 1
        else:
            yield _Row(groups[: len(names)], names, cells)


def _text_rows(text: str, samples: Samples) -> Iterator[_Row]:
    titles: list[str] = []
    groups: list[str] = []
    names: list[str] = []
    for line in text.splitlines():
        parts = [part.strip(" >") for part in re.split(r"[|]", line)]
        if re.match(r"-+[^\W\d]", line.strip()):
            titles = [title.replace("-", " ") for title in _TITLE_RULE.split(line.strip(" ->")) if title]
        elif not line.strip():
            continue
        elif titles and not _DIGIT.search(line):
            parts = [piece for part in parts for piece in part.split(":")]
            shape = [part.split() for part in parts]
            names = [name for part in shape for name in part]
            groups = [title for title, part in zip(titles, shape, strict=False) for _ in part]
        elif names:
            cells = _cells(parts, names)
            if not len(cells) == len(groups) == len(names):
                samples.lost += 1
            else:
                yield _Row(groups, names, cells)
        elif "|" in line:
            samples.lost += 1


def _cells(parts: list[str], names: list[str]) -> list[str]:
    out: list[str] = []
    for part in parts:
        if len(out) < len(names) and names[len(out)] in {"time", "date/time"}:
            out.append(part)
        else:
            out += part.replace(":", " ").split()
    return out


def _when(row: _Row, begin: datetime | None, zone: str | None, days: Days, turn: int) -> tuple[str, int | None]:
    """Clock and time of a row; the time is None if it cannot be read."""
    cell_of = {name.rpartition(":")[2]: cell for name, cell in zip(row.names, row.cells, strict=True)}
    if "epoch" in cell_of:
        since = number(cell_of["epoch"])
        return EPOCH, None if since is None else round(since * 1e6) * 1000
    text = cell_of.get("time") or cell_of.get("date/time")
    if text is None:
        return NUMBERED, turn * NS_PER_S
    for form in _TIMES:
        try:
            when = datetime.strptime(f"{begin.year if begin else 2000} {text}", f"%Y {form}")
        except ValueError:
            continue
        if begin is None:
            return TIME_OF_DAY, days.ns(local_ns(when) - local_ns(when.replace(hour=0, minute=0, second=0)))
        if when < begin - timedelta(days=180):  # over New Year
            when = when.replace(year=when.year + 1)
        return (EPOCH if zone in {"UTC", "GMT"} else LOCAL), local_ns(when)
    return (TIME_OF_DAY if begin is None else LOCAL), None


def _put(samples: Samples, row: _Row, time_ns: int) -> None:
    not_busy: dict[str, float] = {}
    idle_known = set[str]()
    for group, name, cell in zip(row.groups, row.names, row.cells, strict=True):
        counter = column(group, name)
        written = _TEXT_NUMBER.fullmatch(cell)
        if counter is None or written is None:
            continue
        value = float(written[1]) * counter.thousand ** _POWERS[written[2]]
        samples.add(time_ns, counter.counter, value, counter.unit)
        head, _, part = counter.counter.removeprefix("cpu.").partition(".")
        if counter.counter.startswith("cpu.") and head in {"idle", "iowait"}:
            not_busy[part] = not_busy.get(part, 0) + value
            idle_known |= {part} if head == "idle" else set()
    for part in idle_known:
        share = not_busy[part]
        samples.add(time_ns, "cpu.utilization" + (f".{part}" if part else ""), max(0.0, 100 - share), "%")


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
_SYSSTAT_WHOLE: Final = {"all", "-1"}


def put(samples: Samples, names: Sequence[str], cells: Sequence[str], time_ns: int) -> None:
    """Add the counters of one line; there is a name and a cell for each column, and the first may name a device."""
    key = _KEYS.get(names[0])
    part = cells[0] if key and cells[0] not in _SYSSTAT_WHOLE else ""
    not_busy = 0.0
    for name, cell in zip(names, cells, strict=True):
        value = figure(cell)
        if value is None or (key and name == names[0]):
            continue
        counter, unit = _COUNTERS.get(name) or (f"sar.{key}.{name}" if key else f"sar.{name}", _unit(name))
        samples.add(time_ns, f"{counter}.{part}" if part else counter, value, unit)
        not_busy += value if name in {"%idle", "%iowait"} else 0
    if key == "cpu" and "%idle" in names and figure(cells[names.index("%idle")]) is not None:
        samples.add(time_ns, f"cpu.utilization.{part}" if part else "cpu.utilization", max(0.0, 100 - not_busy), "%")


def _unit(name: str) -> str:
    if name.endswith("kB/s"):
        return "KiB/s"
    if name.startswith("%"):
        return "%"
    return "KiB" if name.startswith("kb") else "1/s" if name.endswith("/s") else "1"


def figure(text: str) -> float | None:
    """A number, also with a decimal comma."""
    return number(text.replace(",", "."))


_HEAD: Final = re.compile(r"Linux \S+ \(.*\)\s+(\S+)\s+_\w+_")
_LINE: Final = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})(?: ([AP]M))?\s+(\S.*)")
_SLASHED: Final = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{2}|\d{4})")
_DOTTED: Final = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{2}|\d{4})")


def read_sar(path: Path) -> Trace:
    """Read the output of ``sar``."""
    samples = Samples()
    midnight: int | None = None
    clock, names, days = LOCAL, list[str](), defaultdict[tuple[str, ...], Days](Days)
    for line in text_of(path).splitlines():
        if head := _HEAD.match(line):
            midnight, names = _midnight(head[1]), []
            days.clear()
            clock = TIME_OF_DAY if midnight is None else clock
            continue
        time = _LINE.match(line)
        if time is None or "RESTART" in line:
            samples.lost += line[:1].isdigit() and "RESTART" not in line
            continue
        cells = time[5].split()
        if not any(figure(cell) is not None for cell in cells):
            names = cells
        elif len(cells) != len(names):
            samples.lost += 1
        else:
            samples.lost += sum(figure(cell) is None for cell in cells[1:])
            hour = int(time[1]) % 12 + (12 if time[4] == "PM" else 0) if time[4] else int(time[1])
            time_ns = days[tuple(names)].ns((hour * 3600 + int(time[2]) * 60 + int(time[3])) * NS_PER_S)
            put(samples, names, cells, (midnight or 0) + time_ns)
    notes = [f"the date in {path.name} is ambiguous; print with S_TIME_FORMAT=ISO"]
    return samples.trace(path, "sar", clock=clock, notes=notes if clock == TIME_OF_DAY else [])


def _midnight(text: str) -> int | None:
    """Midnight of a date in ns; None if the date can be read in two ways or not at all."""
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
    """Read the output of ``sadf -d``."""
    samples, zoned, names = Samples(), True, list[str]()
    for line in text_of(path).splitlines():
        cells = line.split(";")
        if line.startswith("#"):
            names = cells
        elif line.strip() and "LINUX-RESTART" not in line:
            in_zone, time_ns = _time_ns(cells[2]) if len(cells) == len(names) > 3 else (True, None)
            if time_ns is None:
                samples.lost += 1
                continue
            zoned = zoned and in_zone
            put(samples, names[3:], cells[3:], time_ns)
    return samples.trace(path, "sadf", clock=EPOCH if zoned else LOCAL)


def _time_ns(text: str) -> tuple[bool, int | None]:
    """Whether a time has a zone, and the time; None if it cannot be read."""
    seconds = number(text)
    if seconds is not None:
        return True, round(seconds * 1e9)
    try:
        return text.endswith(" UTC"), local_ns(datetime.strptime(text.removesuffix(" UTC"), "%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return True, None
