"""Code that the readers of monitors share: text of a file, base units, clocks, and the trace of the samples."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common import summaries
from llmprof.trace import Trace

EPOCH: Final = "epoch"
LOCAL: Final = "local time of an unknown zone"
TIME_OF_DAY: Final = "local time of an unknown date and zone"
NUMBERED: Final = "order of the samples: the file has no times"

DAY_NS: Final = 86_400_000_000_000
_MOST_DEVICES: Final = 2**16
_MOST_TEXT_BYTES: Final = 256 << 20
_START: Final = datetime(1970, 1, 1)

_FACTORS: Final[dict[str, tuple[str, float]]] = {
    "%": ("%", 1),
    "B": ("B", 1),
    "KiB": ("B", 2**10),
    "MiB": ("B", 2**20),
    "GiB": ("B", 2**30),
    "B/s": ("B/s", 1),
    "KiB/s": ("B/s", 2**10),
    "KB/s": ("B/s", 1e3),
    "MB/s": ("B/s", 1e6),
    "GB/s": ("B/s", 1e9),
    "MHz": ("Hz", 1e6),
    "W": ("W", 1),
    "mW": ("W", 1e-3),
    "C": ("°C", 1),
    "ms": ("ns", 1e6),
    "us": ("ns", 1e3),
    "s": ("ns", 1e9),
    "1/s": ("1/s", 1),
    "1": ("1", 1),
}


def text_of(path: Path) -> str:
    """Text of a file, plain or gzip: UTF-8, or UTF-16 with its mark (as PowerShell redirects output)."""
    return summaries.text_of(summaries.bytes_of(path, most=_MOST_TEXT_BYTES)[0])


def number(text: str) -> float | None:
    """A number as monitors write it, also a hexadecimal bit mask; None for other text (``-``, ``[N/A]``)."""
    try:
        value = float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def base(unit: str) -> tuple[str, float]:
    """Base unit of a unit, and the factor from the unit to it; an unknown unit stays as it is."""
    return _FACTORS.get(unit, (unit or "1", 1.0))


def local_ns(when: datetime) -> int:
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
    """Rows of CSV, one per line: no monitor writes a cell over several lines, so an open quote costs only one row."""
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

    def add(self, time_ns: int, name: str, value: float | None, unit: str, device: int | None = None) -> None:
        """Add a value in any unit; None, a value that the monitor did not have, is left out."""
        if value is None:
            return
        to, factor = base(unit)
        if (
            abs(time_ns) < summaries.MOST_NS
            and math.isfinite(value * factor)
            and (device is None or 0 <= device < _MOST_DEVICES)
        ):
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
        """Make the trace of one file: counters of rank -1, with times in ns from the first sample on."""
        if not self._rows:
            raise ReadError(
                f"{path.name} has the heading of {kind} but no sample",
                hint="let the monitor run longer than one interval",
            )
        columns = {"time_ns": pl.Int64, "device": pl.Int32, "name": pl.String, "value": pl.Float64, "unit": pl.String}
        frame = pl.DataFrame(self._rows, schema=columns, orient="row")
        first = min(row[0] for row in self._rows)
        warnings = [
            *notes,
            *([f"{path.name}: lines or values that could not be read: {self.lost:,}"] if self.lost else []),
        ]
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
        file = {
            "rank": -1,
            "file": path.name,
            "events": kept,
            "kept": kept,
            "bytes": path.stat().st_size,
            "skipped": dict(skipped or {}),
        }
        coverage = {"files": [file], "events": kept, "kept": kept, "bytes": file["bytes"], "warnings": warnings}
        counters = frame.with_columns(pl.col("time_ns") - first, rank=pl.lit(-1, pl.Int32))
        return Trace({"counters": counters}, meta, coverage)


def _local_text(first_ns: int, clock: str) -> str | None:
    when = _START + timedelta(microseconds=first_ns // 1000)
    if clock == LOCAL:
        return when.isoformat(timespec="milliseconds")
    return when.time().isoformat(timespec="milliseconds") if clock == TIME_OF_DAY else None
