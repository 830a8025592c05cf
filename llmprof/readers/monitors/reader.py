"""Readers of monitors: finds out which monitor wrote a text, and reads those of GPUs (``nvidia-smi``, ``gpustat``)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from llmprof.readers.common import summaries
from llmprof.readers.common.reader import Reader
from llmprof.readers.monitors import host
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

_SPLIT: Final = re.compile(r"[\s,]+")
_COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "pwr": ("gpu.power", "W"),
    "gtemp": ("gpu.temperature", "C"),
    "temp": ("gpu.temperature", "C"),
    "mtemp": ("gpu.memory_temperature", "C"),
    "sm": ("gpu.utilization", "%"),
    "mem": ("gpu.memory_utilization", "%"),
    "enc": ("gpu.encoder", "%"),
    "dec": ("gpu.decoder", "%"),
    "mclk": ("gpu.memory_clock", "MHz"),
    "pclk": ("gpu.sm_clock", "MHz"),
    "fb": ("gpu.memory_used", "MiB"),
    "bar1": ("gpu.bar1_used", "MiB"),
    "ccpm": ("gpu.protected_memory_used", "MiB"),
    "rxpci": ("gpu.pcie_received", "MB/s"),
    "txpci": ("gpu.pcie_sent", "MB/s"),
    "pviol": ("gpu.power_violation", "%"),
    "tviol": ("gpu.thermal_violation", "1"),
}
"""Counters and units by column; MB of memory means MiB. Other columns keep their name and the written unit."""

_UNITS: Final = {unit: unit for unit in ("%", "W", "C", "MHz", "MB/s", "GB/s", "KB/s", "mW")} | {"MB": "MiB"}
_IDX: Final = {"Idx", "idx"}
_PLACE: Final = {"Date", "Time", "gpu"}
_NOTES: Final = {
    NUMBERED: "has no times: its samples were placed one second apart; record with dmon -o DT",
    TIME_OF_DAY: "has no date, only times of day; record with dmon -o DT",
}


def read_dmon(path: Path) -> Trace:
    """Read the output of ``nvidia-smi dmon``."""
    samples, days = Samples(), Days()
    names: list[str] = []
    units: list[str] = []
    turn, seen, clock = 0, set[int](), NUMBERED
    for line in text_of(path).splitlines():
        words = _SPLIT.sub(" ", line.strip().lstrip("#")).split()
        if "gpu" in words:
            names, clock = words, NUMBERED if "Time" not in words else LOCAL if "Date" in words else TIME_OF_DAY
        elif _IDX & set(words):
            units = words
        elif words:
            row = dict(zip(names, words, strict=False))
            device = number(row.get("gpu", ""))
            if device is not None and device in seen:  # the first device again: the next sample
                turn, seen = turn + 1, set()
            time_ns = _time_ns(row, clock, days, turn)
            if len(words) != len(names) or device is None or time_ns is None:
                samples.lost += 1
                continue
            seen.add(int(device))
            unit_of = dict(zip(names, units, strict=False))
            for column in row.keys() - _PLACE:
                name, unit = _COLUMNS.get(column) or (f"gpu.{column}", _UNITS.get(unit_of.get(column, ""), ""))
                samples.add(time_ns, name, number(row[column]), unit, int(device))
    return samples.trace(path, "dmon", clock=clock, notes=[f"{path.name} {_NOTES[clock]}"] if clock in _NOTES else [])


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
    return local_ns(datetime.combine(date.date(), time.time()))


_HEADING: Final = re.compile(r"\s*+([\w.]+)\s*+(?:\[(.+)\])?\s*+")
_QUERY_COUNTERS: Final[dict[str, str]] = {
    "utilization.gpu": "gpu.utilization",
    "utilization.memory": "gpu.memory_utilization",
    "utilization.encoder": "gpu.encoder",
    "utilization.decoder": "gpu.decoder",
    "memory.used": "gpu.memory_used",
    "memory.free": "gpu.memory_free",
    "memory.total": "gpu.memory_total",
    "memory.reserved": "gpu.memory_reserved",
    "power.draw": "gpu.power",
    "power.draw.average": "gpu.power_average",
    "power.draw.instant": "gpu.power_instant",
    "power.limit": "gpu.power_limit",
    "enforced.power.limit": "gpu.power_limit_enforced",
    "temperature.gpu": "gpu.temperature",
    "temperature.memory": "gpu.memory_temperature",
    "clocks.current.sm": "gpu.sm_clock",
    "clocks.sm": "gpu.sm_clock",
    "clocks.current.memory": "gpu.memory_clock",
    "clocks.mem": "gpu.memory_clock",
    "clocks.current.graphics": "gpu.graphics_clock",
    "clocks.gr": "gpu.graphics_clock",
    "fan.speed": "gpu.fan",
    "clocks_throttle_reasons.active": "gpu.throttle_reasons",
    "clocks_event_reasons.active": "gpu.throttle_reasons",
    "pcie.link.gen.current": "gpu.pcie_generation",
    "pcie.link.gen.gpucurrent": "gpu.pcie_generation",
    "pcie.link.width.current": "gpu.pcie_width",
}
_UNITLESS: Final = {"temperature.gpu": "C", "temperature.memory": "C"}
_REASON: Final = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)")
_WHO: Final = ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
_WORDS: Final = {"Active": 1.0, "Not Active": 0.0, "Enabled": 1.0, "Disabled": 0.0}
_TIMES: Final = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S")


def read_query_gpu(path: Path) -> Trace:
    """Read the output of ``nvidia-smi --query-gpu``."""
    samples, notes = Samples(), list[str]()
    lines = [line for line in text_of(path).splitlines() if line.strip()]
    heading = lines[0]
    fields = [_HEADING.fullmatch(cell) for cell in next(csv_rows([heading], samples), [""])]
    names = [field[1] if field else "" for field in fields]
    units = {field[1]: field[2] or "" for field in fields if field}
    who = next((name for name in _WHO if name in names), None)
    order: dict[str, int] = {}
    products: dict[int | None, str] = {}
    for turn, cells in enumerate(csv_rows((line for line in lines[1:] if line != heading), samples)):
        row = dict(zip(names, (cell.strip() for cell in cells), strict=False))
        time_ns = _query_time_ns(row["timestamp"]) if "timestamp" in row else turn * NS_PER_S
        if len(cells) != len(names) or time_ns is None:
            samples.lost += 1
            continue
        index = number(row.get("index", ""))
        device = int(index) if index is not None else None
        if device is None and who:
            device = order.setdefault(row[who], len(order))
        products[device] = row.get("name") or row.get("gpu_name", "")
        for field, text in row.items():
            if counter := _counter(field, units.get(field, "")):
                samples.add(time_ns, counter, *_value(field, text, units.get(field, "")), device)
    if "timestamp" not in names:
        notes.append(f"{path.name} has no times: its samples were placed one second apart; query timestamp as well")
    if order:
        notes.append(f"{path.name} has no index: devices are numbered as they appear; query index as well")
    clock = LOCAL if "timestamp" in names else NUMBERED
    return samples.trace(path, "query-gpu", clock=clock, devices=[p for p in products.values() if p], notes=notes)


def _counter(field: str, unit: str) -> str | None:
    """Name of the counter of a field; None for a field that describes the device or the sample."""
    if field in _QUERY_COUNTERS:
        return _QUERY_COUNTERS[field]
    if reason := _REASON.fullmatch(field):
        return f"gpu.throttle.{reason[1]}" if reason[1] != "supported" else None
    return f"gpu.{field.replace('.', '_')}" if unit else None


def _value(field: str, text: str, unit: str) -> tuple[float | None, str]:
    """Number and unit of a cell; a unit in the cell takes precedence over that of the heading."""
    if text in _WORDS:
        return _WORDS[text], "1"
    figure, _, written = text.partition(" ")
    return number(figure), written or unit or _UNITLESS.get(field, "")


def _query_time_ns(text: str) -> int | None:
    for form in _TIMES:
        try:
            return local_ns(datetime.strptime(text.replace("-", "/"), form))
        except ValueError:
            continue
    return None


_GPUSTAT_COUNTERS: Final[dict[str, tuple[str, str]]] = {
    "utilization.gpu": ("gpu.utilization", "%"),
    "utilization.enc": ("gpu.encoder", "%"),
    "utilization.dec": ("gpu.decoder", "%"),
    "memory.used": ("gpu.memory_used", "MiB"),
    "memory.total": ("gpu.memory_total", "MiB"),
    "temperature.gpu": ("gpu.temperature", "C"),
    "fan.speed": ("gpu.fan", "%"),
    "power.draw": ("gpu.power", "W"),
    "enforced.power.limit": ("gpu.power_limit_enforced", "W"),
}

_BEGIN: Final = re.compile(r"[\[{]")


def read_gpustat(path: Path) -> Trace:
    """Read the output of ``gpustat --json``."""
    samples, zoned, devices = Samples(), True, list[str]()
    for document in _documents(text_of(path), samples):
        gpus = document.get("gpus")
        try:
            when = datetime.fromisoformat(str(document.get("query_time")))
        except ValueError:
            samples.lost += 1
            continue
        zoned = zoned and when.tzinfo is not None
        time_ns = round(when.timestamp() * 1e6) * 1000 if when.tzinfo else local_ns(when)
        for gpu in gpus if isinstance(gpus, list) else []:
            index = gpu.get("index")
            device = index if isinstance(index, int) else None
            devices.append(str(gpu.get("name") or ""))
            for field, (name, unit) in _GPUSTAT_COUNTERS.items():
                value = gpu.get(field)
                samples.add(time_ns, name, float(value) if isinstance(value, int | float) else None, unit, device)
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
    ("dstat", re.compile(r'\s*(?:"(?:pcp-)?d(?:stat|ool) [\d.]+ CSV output"|"Host:",.*\n"Cmdline:")', re.IGNORECASE)),
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
_DSTAT_NAMES: Final = re.compile(r"\b(?:usr sys idl|read +writ|recv +send|used +free|int +csw|1m +5m|time|epoch)\b")


def kind(start: bytes) -> str | None:
    """Name of the format of a text by its first bytes; None if no known monitor wrote it."""
    text = summaries.text_of(start)
    for name, sign in _SIGNS:
        if sign.match(text):
            return name
    lines = [line.strip() for line in text.splitlines()[:8] if line.strip()]
    fields = [cell.strip() for cell in lines[0].split(",")] if lines else []
    if fields and all(_FIELD.fullmatch(field) for field in fields) and any(_MEASURE.match(field) for field in fields):
        return "query-gpu"
    plain = [host.plain(line).strip() for line in lines]
    for titles, names in pairwise(plain):
        if _TITLES.match(titles) and _DSTAT_NAMES.search(names.replace("|", " ")):
            return "dstat"
    return None


def _reader(name: str, what: str, read: Callable[[Path], Trace]) -> Reader:
    return Reader(
        name=name,
        version=1,
        what=what,
        sniff=lambda probe: not probe.is_folder and kind(probe.start) == name,
        read=lambda path, _: read(path),
        alone=True,
    )


READERS: Final = (
    _reader("dmon", "output of nvidia-smi dmon", read_dmon),
    _reader("query-gpu", "output of nvidia-smi --query-gpu --format=csv", read_query_gpu),
    _reader("gpustat", "output of gpustat --json", read_gpustat),
    _reader("dstat", "output of dstat or dool", host.read_dstat),
    _reader("sar", "output of sar", host.read_sar),
    _reader("sadf", "output of sadf -d", host.read_sadf),
)
