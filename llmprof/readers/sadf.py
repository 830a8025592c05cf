"""Reader of ``sadf -d``: what sar recorded, as lines for programs, with the zone of their times."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from llmprof.readers import _sar_columns as columns
from llmprof.readers._monitor import EPOCH, LOCAL, Samples, local_ns, number, text_of
from llmprof.trace import Trace


def read(path: Path) -> Trace:
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
            columns.put(found, names[3:], cells[3:], time_ns)
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
