"""Reader of ``nvidia-smi dmon``: aligned text or CSV, with or without the date and time of ``-o DT``."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Final

from llmprof.readers._monitor import LOCAL, NUMBERED, TIME_OF_DAY, Days, Samples, local_ns, number, text_of
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
"""Counter and unit of the columns; MB of memory is MiB there. Others keep their name and the unit that is written."""

_UNITS: Final = {unit: unit for unit in ("%", "W", "C", "MHz", "MB/s", "GB/s", "KB/s", "mW")} | {"MB": "MiB"}
_IDX: Final = {"Idx", "idx"}
_PLACE: Final = {"Date", "Time", "gpu"}
_NOTES: Final = {
    NUMBERED: "holds no times: its samples were placed one second apart; record with dmon -o DT",
    TIME_OF_DAY: "holds no date, only times of day; record with dmon -o DT",
}


def read(path: Path) -> Trace:
    """Read what ``nvidia-smi dmon`` printed.

    Parameters
    ----------
    path : pathlib.Path
        Its output; headings may be repeated, columns may be any (``-s``).

    Returns
    -------
    Trace
        Table ``counters`` only, a row a device, time and column that has a number. Times are local, of a zone that
        the file does not say; without ``-o D`` the date is unknown, and without ``-o T`` samples are placed one
        second apart, which is the program's default.

    Raises
    ------
    ReadError
        There is no sample.
    """
    found, days = Samples(), Days()
    names: list[str] = []
    units: list[str] = []
    turn, seen, clock = 0, set[int](), NUMBERED
    for line in text_of(path).splitlines():
        words = _SPLIT.sub(" ", line.strip().lstrip("#")).split()
        if "gpu" in words:
            names, clock = words, _clock(words)
        elif _IDX & set(words):
            units = words
        elif words:
            row = dict(zip(names, words, strict=False))
            device = number(row.get("gpu", ""))
            if device is not None and device in seen:  # the first device again: the next turn
                turn, seen = turn + 1, set()
            time_ns = _time_ns(row, clock, days, turn)
            if len(words) != len(names) or device is None or time_ns is None:
                found.lost += 1
                continue
            seen.add(int(device))
            said = dict(zip(names, units, strict=False))
            for column in row.keys() - _PLACE:
                name, unit = _COLUMNS.get(column) or (f"gpu.{column}", _UNITS.get(said.get(column, ""), ""))
                found.add(time_ns, name, number(row[column]), unit, int(device))
    return found.trace(path, "dmon", clock=clock, notes=[f"{path.name} {_NOTES[clock]}"] if clock in _NOTES else [])


def _clock(names: list[str]) -> str:
    return NUMBERED if "Time" not in names else LOCAL if "Date" in names else TIME_OF_DAY


def _time_ns(row: dict[str, str], clock: str, days: Days, turn: int) -> int | None:
    """Time of a row; None where it cannot be read."""
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
