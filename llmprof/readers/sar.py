"""Reader of what ``sar`` prints, live or from its daily files, any of its sections."""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Final

from llmprof.readers import _sar_columns as columns
from llmprof.readers._monitor import LOCAL, TIME_OF_DAY, Days, Samples, local_ns, text_of
from llmprof.trace import Trace
from llmprof.units import NS_PER_S

_HEAD: Final = re.compile(r"Linux \S+ \(.*\)\s+(\S+)\s+_\w+_")
_LINE: Final = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})(?: ([AP]M))?\s+(\S.*)")
_SLASHED: Final = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{2}|\d{4})")
_DOTTED: Final = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{2}|\d{4})")


def read(path: Path) -> Trace:
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
        if columns.figure(cells[-1]) is None:
            names = cells
        elif len(cells) != len(names):
            found.lost += 1
        else:
            hour = int(at[1]) % 12 + (12 if at[4] == "PM" else 0) if at[4] else int(at[1])
            time_ns = days[tuple(names)].ns((hour * 3600 + int(at[2]) * 60 + int(at[3])) * NS_PER_S)
            columns.put(found, names, cells, (midnight or 0) + time_ns)
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
