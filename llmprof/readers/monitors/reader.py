"""Readers of monitors: finds out which monitor wrote a text, and reads those of GPUs
(``nvidia-smi``, ``gpustat``).
"""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common import reader
from llmprof.readers.common.reader import Reader
from llmprof.trace import Trace
from llmprof.units import NS_PER_S

EPOCH: Final = "epoch"
LOCAL: Final = "local time of an unknown zone"
TIME_OF_DAY: Final = "local time of an unknown date and zone"
NUMBERED: Final = "order of the samples: the file has no times"

DAY_NS: Final = 86_400_000_000_000
_MOST_DEVICES: Final = 2**16
_MOST_TEXT_BYTES: Final = 256 << 20
_START: Final = datetime(1970, 1, 1)

_NAMES: Final = tomllib.loads(Path(__file__).with_name("counters.toml").read_text("utf-8"))
"""What monitors call their counters, and what llmprof calls them."""


def _text_of(path: Path) -> str:
    """Text of a file, plain or gzip:

    UTF-8, or UTF-16 with its mark (as PowerShell redirects output).
    """
    return reader.text_of(reader.bytes_of(path, most=_MOST_TEXT_BYTES)[0])


def _number(text: str) -> float | None:
    """A number as monitors write it, also a hexadecimal bit mask; None for other text (``-``,
    ``[N/A]``).
    """
    try:
        value = float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _base(unit: str) -> tuple[str, float]:
    """Base unit of a unit, and the factor from the unit to it; an unknown unit stays as it is."""
    base, factor = _NAMES["units"].get(unit, (unit or "1", 1.0))
    return base, factor


def _local_ns(when: datetime) -> int:
    """Time without a zone in ns, as if it were UTC."""
    return (when - _START) // timedelta(microseconds=1) * 1000


class Days:
    """Converts successive times of day to times that continue after midnight."""

    def __init__(self) -> None:
        self._last = 0
        self._days = 0

    def ns(self, time_of_day_ns: int) -> int:
        """Time in ns from the first midnight."""
        if time_of_day_ns < self._last - DAY_NS // 2:
            self._days += 1
        self._last = time_of_day_ns
        return self._days * DAY_NS + time_of_day_ns


def csv_rows(lines: Iterable[str], samples: Samples) -> Iterator[list[str]]:
    """Rows of CSV, one per line: no monitor writes a cell over several lines, so an open quote
    costs only one row.
    """
    for line in lines:
        try:
            yield next(csv.reader([line]), [])
        except csv.Error:
            samples.lost += 1


class Samples:
    """Samples in the order of a file."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int | None, str, float, str]] = []
        self.lost = 0
        """Number of lines or values that could not be read."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self, time_ns: int, name: str, value: float | None, unit: str, device: int | None = None
    ) -> None:
        """Add a value in any unit; None, a value that the monitor did not have, is left out."""
        if value is None:
            return
        to, factor = _base(unit)
        fits = abs(time_ns) < reader.MOST_NS and math.isfinite(value * factor)
        if fits and (device is None or 0 <= device < _MOST_DEVICES):
            self._rows.append((time_ns, device, name, value * factor, to))
        else:
            self.lost += 1

    def trace(
        self,
        path: Path,
        kind: str,
        *,
        clock: str,
        devices: Sequence[str] = (),
        notes: Sequence[str] = (),
        skipped: Mapping[str, int] | None = None,
    ) -> Trace:
        """Make the trace of one file: counters of rank -1, with times in ns from the first
        sample on.
        """
        if not self._rows:
            found = f"{path.name} has the heading of {kind} but no sample"
            raise ReadError(found, hint="let the monitor run longer than one interval")
        columns = {
            "time_ns": pl.Int64,
            "device": pl.Int32,
            "name": pl.String,
            "value": pl.Float64,
            "unit": pl.String,
        }
        frame = pl.DataFrame(self._rows, schema=columns, orient="row")
        first = min(row[0] for row in self._rows)
        lost = (
            [f"{path.name}: lines or values that could not be read: {self.lost:,}"]
            if self.lost
            else []
        )
        meta: dict[str, Any] = {
            "format": kind,
            "start_epoch_ns": first if clock == EPOCH else None,
            "start_local": _local_text(first, clock),
            "clock": clock,
            "device": ", ".join(dict.fromkeys(devices)) or None,
            "ranks": [],
            "missing_ranks": [],
        }
        kept = len(self._rows)
        counts = {"events": kept + self.lost, "kept": kept, "bytes": path.stat().st_size}
        file = {"rank": -1, "file": path.name, **counts, "skipped": dict(skipped or {})}
        coverage = {"files": [file], **counts, "warnings": [*notes, *lost]}
        counters = frame.with_columns(pl.col("time_ns") - first, rank=pl.lit(-1, pl.Int32))
        return Trace({"counters": counters}, meta, coverage)


def _local_text(first_ns: int, clock: str) -> str | None:
    when = _START + timedelta(microseconds=first_ns // 1000)
    if clock == LOCAL:
        return when.isoformat(timespec="milliseconds")
    return when.time().isoformat(timespec="milliseconds") if clock == TIME_OF_DAY else None


class CounterColumn(NamedTuple):
    """Counter of a column, its unit, and the factor of a ``k`` after a number in text."""

    counter: str
    unit: str
    thousand: int = 1000


_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BOXES: Final = str.maketrans({"─": "-", "┄": "-", "│": "|", "┬": " "})
_WHOLE: Final = {"total cpu usage", "total usage", "dsk/total", "net/total", "io/total"}


def _plain(text: str) -> str:
    """Terminal output without colours, and with ASCII characters for the lines that dool draws."""
    return _ESCAPES.sub("", text).translate(_BOXES)


def _column(group: str, name: str) -> CounterColumn | None:
    """Counter of a column; None for columns of times and of text."""
    group, name = group.strip().lower(), name.rpartition(":")[2].strip().lower()
    if name in {"time", "date/time", "epoch"}:
        return None
    for given in _NAMES["dstat"]:
        if re.fullmatch(given["group"], group) and name in given["columns"]:
            head, unit = given["counter"], given["unit"]
            part = "" if group in _WHOLE or head in {"memory", "paging"} else _part(group)
            counter = f"{head}.{given['columns'][name]}" + (f".{part}" if part else "")
            return CounterColumn(counter, unit, 1024 if unit in {"B", "B/s"} else 1000)
    plain = re.sub(r"\W+", "_", f"{group}.{name}".replace("/", "."), flags=re.ASCII)
    return CounterColumn(f"dstat.{plain}", "1")


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
_DSTAT_TIMES: Final = ("%d-%m %H:%M:%S", "%b-%d %H:%M:%S")
_HEAD_DATE: Final = re.compile(r"(\d{2} \w{3} \d{4} \d{2}:\d{2}:\d{2})(?: (\w+))?")


class _Row(NamedTuple):
    groups: list[str]
    names: list[str]
    cells: list[str]


def _read_dstat(path: Path) -> Trace:
    """Read the output of dstat, dool or pcp-dstat."""
    text = _plain(_text_of(path))
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
        notes.append(
            f"{path.name} has no times: its samples were placed one second apart; record with"
            " dstat -T"
        )
    if clock == TIME_OF_DAY:
        notes.append(f"{path.name} has no year; record with dstat -T")
    return samples.trace(
        path, "dstat", clock=clock, notes=notes, skipped={"row since the start of the machine": 1}
    )


def _begin(text: str) -> tuple[datetime | None, str | None]:
    """Local time at which the recording began and its time zone, from the heading of a CSV."""
    match = _HEAD_DATE.search(text[:4096])
    try:
        return (
            (datetime.strptime(match[1], "%d %b %Y %H:%M:%S"), match[2]) if match else (None, None)
        )
    except ValueError:
        return None, None


def _csv_rows(text: str, samples: Samples) -> Iterator[_Row]:
    groups: list[str] = []
    names: list[str] = []
    before: list[str] = []
    for cells in csv_rows(text.splitlines(), samples):
        if not any(cells):
            continue
        if cells[0].endswith(("CSV output", "CSV Output")) or cells[0] in {
            "Author:",
            "Host:",
            "Cmdline:",
        }:
            groups, names, before = [], [], []
        elif not names and any(
            _figure(cell) is not None for cell in cells
        ):  # a sample where titles should be
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
            titles = [
                title.replace("-", " ") for title in _TITLE_RULE.split(line.strip(" ->")) if title
            ]
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


def _when(
    row: _Row, begin: datetime | None, zone: str | None, days: Days, turn: int
) -> tuple[str, int | None]:
    """Clock and time of a row; the time is None if it cannot be read."""
    cell_of = {
        name.rpartition(":")[2]: cell for name, cell in zip(row.names, row.cells, strict=True)
    }
    if "epoch" in cell_of:
        since = _number(cell_of["epoch"])
        return EPOCH, None if since is None else round(since * 1e6) * 1000
    text = cell_of.get("time") or cell_of.get("date/time")
    if text is None:
        return NUMBERED, turn * NS_PER_S
    for form in _DSTAT_TIMES:
        try:
            when = datetime.strptime(f"{begin.year if begin else 2000} {text}", f"%Y {form}")
        except ValueError:
            continue
        if begin is None:
            return TIME_OF_DAY, days.ns(
                _local_ns(when) - _local_ns(when.replace(hour=0, minute=0, second=0))
            )
        if when < begin - timedelta(days=180):  # over New Year
            when = when.replace(year=when.year + 1)
        return (EPOCH if zone in {"UTC", "GMT"} else LOCAL), _local_ns(when)
    return (TIME_OF_DAY if begin is None else LOCAL), None


def _put(samples: Samples, row: _Row, time_ns: int) -> None:
    not_busy: dict[str, float] = {}
    idle_known = set[str]()
    for group, name, cell in zip(row.groups, row.names, row.cells, strict=True):
        counter = _column(group, name)
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
        samples.add(
            time_ns, "cpu.utilization" + (f".{part}" if part else ""), max(0.0, 100 - share), "%"
        )


_KEYS: Final = {"CPU": "cpu", "DEV": "disk", "IFACE": "network"}
_SYSSTAT_WHOLE: Final = {"all", "-1"}


def put(samples: Samples, names: Sequence[str], cells: Sequence[str], time_ns: int) -> None:
    """Add the counters of one line; there is a name and a cell for each column, and the first
    may name a device.
    """
    key = _KEYS.get(names[0])
    part = cells[0] if key and cells[0] not in _SYSSTAT_WHOLE else ""
    not_busy = 0.0
    for name, cell in zip(names, cells, strict=True):
        value = _figure(cell)
        if value is None or (key and name == names[0]):
            continue
        counter, unit = _NAMES["sar"].get(name) or (
            f"sar.{key}.{name}" if key else f"sar.{name}",
            _unit(name),
        )
        samples.add(time_ns, f"{counter}.{part}" if part else counter, value, unit)
        not_busy += value if name in {"%idle", "%iowait"} else 0
    if key == "cpu" and "%idle" in names and _figure(cells[names.index("%idle")]) is not None:
        samples.add(
            time_ns,
            f"cpu.utilization.{part}" if part else "cpu.utilization",
            max(0.0, 100 - not_busy),
            "%",
        )


def _unit(name: str) -> str:
    if name.endswith("kB/s"):
        return "KiB/s"
    if name.startswith("%"):
        return "%"
    return "KiB" if name.startswith("kb") else "1/s" if name.endswith("/s") else "1"


def _figure(text: str) -> float | None:
    """A number, also with a decimal comma."""
    return _number(text.replace(",", "."))


_HEAD: Final = re.compile(r"Linux \S+ \(.*\)\s+(\S+)\s+_\w+_")
_LINE: Final = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})(?: ([AP]M))?\s+(\S.*)")
_SLASHED: Final = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{2}|\d{4})")
_DOTTED: Final = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{2}|\d{4})")


def _read_sar(path: Path) -> Trace:
    """Read the output of ``sar``."""
    samples = Samples()
    midnight: int | None = None
    clock, names, days = LOCAL, list[str](), defaultdict[tuple[str, ...], Days](Days)
    for line in _text_of(path).splitlines():
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
        if not any(_figure(cell) is not None for cell in cells):
            names = cells
        elif len(cells) != len(names):
            samples.lost += 1
        else:
            samples.lost += sum(_figure(cell) is None for cell in cells[1:])
            hour = int(time[1]) % 12 + (12 if time[4] == "PM" else 0) if time[4] else int(time[1])
            time_ns = days[tuple(names)].ns(
                (hour * 3600 + int(time[2]) * 60 + int(time[3])) * NS_PER_S
            )
            put(samples, names, cells, (midnight or 0) + time_ns)
    notes = [f"the date in {path.name} is ambiguous; print with S_TIME_FORMAT=ISO"]
    return samples.trace(path, "sar", clock=clock, notes=notes if clock == TIME_OF_DAY else [])


def _midnight(text: str) -> int | None:
    """Midnight of a date in ns; None if the date can be read in two ways or not at all."""
    try:
        return _local_ns(datetime.strptime(text, "%Y-%m-%d"))
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
        return _local_ns(datetime(year if year > 99 else 2000 + year, month, day))
    except ValueError:
        return None


def _read_sadf(path: Path) -> Trace:
    """Read the output of ``sadf -d``."""
    samples, zoned, names = Samples(), True, list[str]()
    for line in _text_of(path).splitlines():
        cells = line.split(";")
        if line.startswith("#"):
            names = cells
        elif line.strip() and "LINUX-RESTART" not in line:
            in_zone, time_ns = (
                _sadf_time_ns(cells[2]) if len(cells) == len(names) > 3 else (True, None)
            )
            if time_ns is None:
                samples.lost += 1
                continue
            zoned = zoned and in_zone
            put(samples, names[3:], cells[3:], time_ns)
    return samples.trace(path, "sadf", clock=EPOCH if zoned else LOCAL)


def _sadf_time_ns(text: str) -> tuple[bool, int | None]:
    """Whether a time has a zone, and the time; None if it cannot be read."""
    seconds = _number(text)
    if seconds is not None:
        return True, round(seconds * 1e9)
    try:
        return text.endswith(" UTC"), _local_ns(
            datetime.strptime(text.removesuffix(" UTC"), "%Y-%m-%d %H:%M:%S")
        )
    except ValueError:
        return True, None


_SPLIT: Final = re.compile(r"[\s,]+")

_UNITS: Final = {unit: unit for unit in ("%", "W", "C", "MHz", "MB/s", "GB/s", "KB/s", "mW")} | {
    "MB": "MiB"
}
_IDX: Final = {"Idx", "idx"}
_PLACE: Final = {"Date", "Time", "gpu"}
_NOTES: Final = {
    NUMBERED: "has no times: its samples were placed one second apart; record with dmon -o DT",
    TIME_OF_DAY: "has no date, only times of day; record with dmon -o DT",
}


def _read_dmon(path: Path) -> Trace:
    """Read the output of ``nvidia-smi dmon``."""
    samples, days = Samples(), Days()
    names: list[str] = []
    units: list[str] = []
    turn, seen, clock = 0, set[int](), NUMBERED
    for line in _text_of(path).splitlines():
        words = _SPLIT.sub(" ", line.strip().lstrip("#")).split()
        if "gpu" in words:
            names, clock = (
                words,
                NUMBERED if "Time" not in words else LOCAL if "Date" in words else TIME_OF_DAY,
            )
        elif _IDX & set(words):
            units = words
        elif words:
            row = dict(zip(names, words, strict=False))
            device = _number(row.get("gpu", ""))
            if device is not None and device in seen:  # the first device again: the next sample
                turn, seen = turn + 1, set()
            time_ns = _time_ns(row, clock, days, turn)
            if len(words) != len(names) or device is None or time_ns is None:
                samples.lost += 1
                continue
            seen.add(int(device))
            unit_of = dict(zip(names, units, strict=False))
            for column in row.keys() - _PLACE:
                name, unit = _NAMES["dmon"].get(column) or (
                    f"gpu.{column}",
                    _UNITS.get(unit_of.get(column, ""), ""),
                )
                samples.add(time_ns, name, _number(row[column]), unit, int(device))
    return samples.trace(
        path, "dmon", clock=clock, notes=[f"{path.name} {_NOTES[clock]}"] if clock in _NOTES else []
    )


def _time_ns(row: dict[str, str], clock: str, days: Days, turn: int) -> int | None:
    """Time of a row; None if it cannot be read."""
    if clock == NUMBERED:
        return turn * NS_PER_S
    try:
        time = datetime.strptime(row.get("Time", ""), "%H:%M:%S")
        if clock == TIME_OF_DAY:
            return days.ns((time.hour * 3600 + time.minute * 60 + time.second) * NS_PER_S)
        date = datetime.strptime(row.get("Date", "").replace("/", ""), "%Y%m%d")
    except ValueError:
        return None
    return _local_ns(datetime.combine(date.date(), time.time()))


_HEADING: Final = re.compile(r"\s*+([\w.]+)\s*+(?:\[(.+)\])?\s*+")
_UNITLESS: Final = {"temperature.gpu": "C", "temperature.memory": "C"}
_REASON: Final = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)")
_WHO: Final = ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
_WORDS: Final = {"Active": 1.0, "Not Active": 0.0, "Enabled": 1.0, "Disabled": 0.0}
_TIMES: Final = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S")


def _read_query_gpu(path: Path) -> Trace:
    """Read the output of ``nvidia-smi --query-gpu``."""
    samples, notes = Samples(), list[str]()
    lines = [line for line in _text_of(path).splitlines() if line.strip()]
    heading = lines[0]
    fields = [_HEADING.fullmatch(cell) for cell in next(csv_rows([heading], samples), [""])]
    names = [field[1] if field else "" for field in fields]
    units = {field[1]: field[2] or "" for field in fields if field}
    who = next((name for name in _WHO if name in names), None)
    order: dict[str, int] = {}
    products: dict[int | None, str] = {}
    for turn, cells in enumerate(
        csv_rows((line for line in lines[1:] if line != heading), samples)
    ):
        row = dict(zip(names, (cell.strip() for cell in cells), strict=False))
        time_ns = _query_time_ns(row["timestamp"]) if "timestamp" in row else turn * NS_PER_S
        if len(cells) != len(names) or time_ns is None:
            samples.lost += 1
            continue
        index = _number(row.get("index", ""))
        device = int(index) if index is not None else None
        if device is None and who:
            device = order.setdefault(row[who], len(order))
        products[device] = row.get("name") or row.get("gpu_name", "")
        for field, text in row.items():
            if counter := _counter(field, units.get(field, "")):
                samples.add(time_ns, counter, *_value(field, text, units.get(field, "")), device)
    if "timestamp" not in names:
        notes.append(
            f"{path.name} has no times: its samples were placed one second apart; query timestamp"
            " as well"
        )
    if order:
        notes.append(
            f"{path.name} has no index: devices are numbered as they appear; query index as well"
        )
    clock = LOCAL if "timestamp" in names else NUMBERED
    return samples.trace(
        path, "query-gpu", clock=clock, devices=[p for p in products.values() if p], notes=notes
    )


def _counter(field: str, unit: str) -> str | None:
    """Name of the counter of a field; None for a field that describes the device or the sample."""
    if name := _NAMES["query_gpu"].get(field):
        return str(name)
    if reason := _REASON.fullmatch(field):
        return f"gpu.throttle.{reason[1]}" if reason[1] != "supported" else None
    return f"gpu.{field.replace('.', '_')}" if unit else None


def _value(field: str, text: str, unit: str) -> tuple[float | None, str]:
    """Number and unit of a cell; a unit in the cell takes precedence over that of the heading."""
    if text in _WORDS:
        return _WORDS[text], "1"
    figure, _, written = text.partition(" ")
    return _number(figure), written or unit or _UNITLESS.get(field, "")


def _query_time_ns(text: str) -> int | None:
    for form in _TIMES:
        try:
            return _local_ns(datetime.strptime(text.replace("-", "/"), form))
        except ValueError:
            continue
    return None


_BEGIN: Final = re.compile(r"[\[{]")


def _read_gpustat(path: Path) -> Trace:
    """Read the output of ``gpustat --json``."""
    samples, zoned, devices = Samples(), True, list[str]()
    for document in _documents(_text_of(path), samples):
        gpus = document.get("gpus")
        try:
            when = datetime.fromisoformat(str(document.get("query_time")))
        except ValueError:
            samples.lost += 1
            continue
        zoned = zoned and when.tzinfo is not None
        time_ns = round(when.timestamp() * 1e6) * 1000 if when.tzinfo else _local_ns(when)
        for gpu in gpus if isinstance(gpus, list) else []:
            index = gpu.get("index")
            device = index if isinstance(index, int) else None
            devices.append(str(gpu.get("name") or ""))
            for field, (name, unit) in _NAMES["gpustat"].items():
                value = gpu.get(field)
                samples.add(
                    time_ns,
                    name,
                    float(value) if isinstance(value, int | float) else None,
                    unit,
                    device,
                )
    clock = EPOCH if zoned else LOCAL
    return samples.trace(path, "gpustat", clock=clock, devices=[d for d in devices if d])


def _documents(text: str, samples: Samples) -> list[dict[str, Any]]:
    """The JSON documents of a file; a cut document counts as lost."""
    decoder, position, out = json.JSONDecoder(), 0, list[Any]()
    while begin := _BEGIN.search(text, position):
        position = begin.start()
        try:
            document, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError:
            samples.lost += 1
            break
        out += document if isinstance(document, list) else [document]
    return [document for document in out if isinstance(document, dict)]


_SIGNS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("dmon", re.compile(r"\s*#\s*(?:Date[\s,]+)?(?:Time[\s,]+)?gpu\b[^\n]*\n\s*#[^\n]*\b[Ii]dx\b")),
    ("gpustat", re.compile(r'\s*+\[?\s*+\{(?=[^\[]*"query_time"\s*:)(?=[^\[]*"gpus"\s*:)')),
    (
        "dstat",
        re.compile(
            r'\s*(?:"(?:pcp-)?d(?:stat|ool) [\d.]+ CSV output"|"Host:",.*\n"Cmdline:")',
            re.IGNORECASE,
        ),
    ),
    ("sar", re.compile(r"\s*Linux \S+ \([^)\n]*\)\s+\S+\s+_\w+_\s+\(\d+ CPU\)")),
    ("sadf", re.compile(r"\s*# hostname;interval;timestamp;")),
)
_FIELD: Final = re.compile(
    r"(?:timestamp|name|index|uuid|count|pstate|(?:gpu_)?(?:uuid|bus_id|name)|driver_version|"
    r"(?:utilization|memory|temperature|power|clocks|fan|pcie|ecc|encoder|enforced|pci|vbios|gpu|persistence|"
    r"clocks_(?:throttle|event)_reasons|c2c|mig|compute|display|accounting)[\w.]*)(?: \[.+\])?"
)
_MEASURE: Final = re.compile(
    r"(?:utilization|memory|temperature|power\.draw|clocks|fan\.speed|clocks_(?:throttle|event)_reasons)[\w.]*"
)
_TITLES: Final = re.compile(r"-+\w[^\n|]*-$")
_DSTAT_NAMES: Final = re.compile(
    r"\b(?:usr sys idl|read +writ|recv +send|used +free|int +csw|1m +5m|time|epoch)\b"
)


def _kind(start: bytes) -> str | None:
    """Name of the format of a text by its first bytes; None if no known monitor wrote it."""
    text = reader.text_of(start)
    for name, sign in _SIGNS:
        if sign.match(text):
            return name
    lines = [line.strip() for line in text.splitlines()[:8] if line.strip()]
    fields = [cell.strip() for cell in lines[0].split(",")] if lines else []
    if (
        fields
        and all(_FIELD.fullmatch(field) for field in fields)
        and any(_MEASURE.match(field) for field in fields)
    ):
        return "query-gpu"
    shown = [_plain(line).strip() for line in lines]
    for titles, names in pairwise(shown):
        if _TITLES.match(titles) and _DSTAT_NAMES.search(names.replace("|", " ")):
            return "dstat"
    return None


def _reader(name: str, what: str, read: Callable[[Path], Trace]) -> Reader:
    return Reader(
        name=name,
        version=1,
        what=what,
        sniff=lambda probe: not probe.is_folder and _kind(probe.start) == name,
        read=lambda path, _: read(path),
        alone=True,
    )


READERS: Final = (
    _reader("dmon", "output of nvidia-smi dmon", _read_dmon),
    _reader("query-gpu", "output of nvidia-smi --query-gpu --format=csv", _read_query_gpu),
    _reader("gpustat", "output of gpustat --json", _read_gpustat),
    _reader("dstat", "output of dstat or dool", _read_dstat),
    _reader("sar", "output of sar", _read_sar),
    _reader("sadf", "output of sadf -d", _read_sadf),
)
