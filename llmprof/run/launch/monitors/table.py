"""What a monitor is, and the table of the samples of all monitors."""

import json
from array import array
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from llmprof.errors import ReadError
from llmprof.trace.storage import files, parquet, typed


class MonitorValue(NamedTuple):
    """One value of a counter, in its base unit; the device is None for the host."""

    name: str
    unit: str
    value: float
    device: int | None = None


class Source:
    """A source of values that the sampler reads regularly:
    :mod:`llmprof.run.launch.monitors.sampler` lists all of them.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        """Sentences on values that the source cannot read, each once."""

    def sample(self, now_s: float) -> Iterator[MonitorValue]:
        """Current values; ``now_s`` is the time on a monotonic clock (s)."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what the source holds, which is nothing in most."""


class Rates:
    """Rates of totals that only grow: the difference from the last sample, divided by the time
    between the two.

    The first sample has no rate, and neither has a total that fell because its counter started
    again.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, float]] = {}

    def __call__(self, key: Hashable, total: float, now_s: float) -> float | None:
        """Rate of a total per second, or None."""
        before = self._last.get(key)
        self._last[key] = (total, now_s)
        if before is None or total < before[0] or now_s <= before[1]:
            return None
        return (total - before[0]) / (now_s - before[1])


MAX_ROWS: Final = 20_000_000
"""Largest number of samples: they take 360 MB, and cover ten hours of eight GPUs at 5 Hz."""

SCHEMA: Final = {
    "time_ns": pl.Int64(),
    "device": pl.Int32(),
    **dict.fromkeys(("name", "unit"), pl.String()),
    "value": pl.Float64(),
}
"""Columns of the file; times are in ns since the epoch, and the device is null for the host."""

META_KEY: Final = "llmprof.monitors"


class SampleTable:
    """Samples in memory, 18 bytes each: a time, a value, and the number of a counter."""

    def __init__(self) -> None:
        self._times, self._values, self._codes = array("q"), array("d"), array("H")
        self._counters: dict[tuple[str, str, int | None], int] = {}

    def __len__(self) -> int:
        return len(self._times)

    def add(self, time_ns: int, value: MonitorValue) -> None:
        """Add one sample."""
        key = (value.name, value.unit, value.device)
        self._times.append(time_ns)
        self._values.append(float(value.value))
        self._codes.append(self._counters.setdefault(key, len(self._counters)))

    def frame(self) -> pl.DataFrame:
        """All samples."""
        schema = {"code": pl.UInt16, "name": pl.String, "unit": pl.String, "device": pl.Int32}
        counters = pl.DataFrame(
            [(code, *key) for key, code in self._counters.items()], schema=schema, orient="row"
        )
        rows = pl.DataFrame(
            {
                "time_ns": pl.Series(self._times, dtype=pl.Int64),
                "value": pl.Series(self._values, dtype=pl.Float64),
                "code": pl.Series(self._codes, dtype=pl.UInt16),
            }
        )
        return rows.join(counters, on="code", how="left", maintain_order="left").select(
            list(SCHEMA)
        )


def write(frame: pl.DataFrame, path: Path, about: Mapping[str, Any]) -> None:
    """Write samples and their metadata; the file appears complete or not at all."""
    files.made(path.parent)
    files.write(path, parquet.sealed(frame, {META_KEY: json.dumps(about)}))


def read(path: Path) -> pl.DataFrame:
    """Samples as :func:`write` wrote them."""
    try:
        return parquet.read_frame(path).select(
            pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()
        )
    except (ReadError, pl.exceptions.PolarsError) as error:
        found = f"{path.name} has no readable samples: {str(error)[:200]}"
        hint = "remove the file to use the run without samples; its other files are not affected"
        raise ReadError(
            found, expected=f"a Parquet file with the columns {', '.join(SCHEMA)}", hint=hint
        ) from error


def samples_metadata(path: Path) -> dict[str, Any]:
    """Metadata that the sampler wrote into a file:

    ``hz``, ``late`` (number of skipped samples) and ``notes``.
    """
    read(path)  # its metadata are looked at only if it can be read
    text = pl.read_parquet_metadata(parquet.unsealed(path)).get(META_KEY)
    return dict(typed.decoded(text, typed.NotesJson, path.name)) if text else {}
