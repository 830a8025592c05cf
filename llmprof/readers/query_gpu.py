"""Reader of ``nvidia-smi --query-gpu=... --format=csv``, with units in the values or not (``nounits``)."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Final

from llmprof.readers._monitor import LOCAL, NUMBERED, Samples, csv_rows, local_ns, number, text_of
from llmprof.trace import Trace
from llmprof.units import NS_PER_S

_HEADING: Final = re.compile(r"\s*([\w.]+)\s*(?:\[(.+)\])?\s*")
_COUNTERS: Final[dict[str, str]] = {
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


def read(path: Path) -> Trace:
    """Read what ``nvidia-smi --query-gpu`` printed.

    Parameters
    ----------
    path : pathlib.Path
        Its CSV with the heading; any fields.

    Returns
    -------
    Trace
        Table ``counters`` only. Times are local, of a zone that the file does not say; without the field
        ``timestamp`` the samples are placed one second apart. Devices are those of the field ``index``, else they
        are numbered in the order in which their ``uuid``, bus or serial number come; null where there is neither.

    Raises
    ------
    ReadError
        There is no sample.
    """
    found, notes = Samples(), list[str]()
    lines = [line for line in text_of(path).splitlines() if line.strip()]
    heading = lines[0]
    fields = [_HEADING.fullmatch(cell) for cell in next(csv_rows([heading], found), [""])]
    names = [field[1] if field else "" for field in fields]
    units = {field[1]: field[2] or "" for field in fields if field}
    who = next((name for name in _WHO if name in names), None)
    order: dict[str, int] = {}
    products: dict[int | None, str] = {}
    for turn, cells in enumerate(csv_rows((line for line in lines[1:] if line != heading), found)):
        row = dict(zip(names, (cell.strip() for cell in cells), strict=False))
        time_ns = _time_ns(row["timestamp"]) if "timestamp" in row else turn * NS_PER_S
        if len(cells) != len(names) or time_ns is None:
            found.lost += 1
            continue
        index = number(row.get("index", ""))
        device = int(index) if index is not None else None
        if device is None and who:
            device = order.setdefault(row[who], len(order))
        products[device] = row.get("name") or row.get("gpu_name", "")
        for field, text in row.items():
            if counter := _counter(field, units.get(field, "")):
                found.add(time_ns, counter, *_value(field, text, units.get(field, "")), device)
    if "timestamp" not in names:
        notes.append(f"{path.name} holds no times: its samples were placed one second apart; query timestamp as well")
    if order:
        notes.append(f"{path.name} holds no index: its devices are numbered as they come; query index as well")
    clock = LOCAL if "timestamp" in names else NUMBERED
    return found.trace(path, "query-gpu", clock=clock, devices=[p for p in products.values() if p], notes=notes)


def _counter(field: str, unit: str) -> str | None:
    """Name of the counter of a field; None for what describes the device or the sample."""
    if field in _COUNTERS:
        return _COUNTERS[field]
    if reason := _REASON.fullmatch(field):
        return f"gpu.throttle.{reason[1]}" if reason[1] != "supported" else None
    return f"gpu.{field.replace('.', '_')}" if unit else None


def _value(field: str, text: str, unit: str) -> tuple[float | None, str]:
    """Number and unit of a cell; the unit in the cell counts before that of the heading."""
    if text in _WORDS:
        return _WORDS[text], "1"
    figure, _, written = text.partition(" ")
    return number(figure), written or unit or _UNITLESS.get(field, "")


def _time_ns(text: str) -> int | None:
    for form in _TIMES:
        try:
            return local_ns(datetime.strptime(text.replace("-", "/"), form))
        except ValueError:
            continue
    return None
