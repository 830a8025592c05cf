"""What a source of samples is, and how totals become rates."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple, Protocol


class Value(NamedTuple):
    """One value of a counter, in its base unit; the device is None for the host."""

    name: str
    unit: str
    value: float
    device: int | None = None


class Source(Protocol):
    """Something that can be asked again and again."""

    notes: list[str]
    """What it cannot say, in words; each thing once."""

    def sample(self, now_s: float) -> Iterator[Value]:
        """Values of now; ``now_s`` is a clock that only goes forward."""

    def close(self) -> None:
        """Let go of what it holds."""


class Rates:
    """Rates of totals that only grow: the difference to the last time over the time between.

    The first time there is no rate, and none where a total went back (a counter that began again).
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, float]] = {}

    def __call__(self, key: Hashable, total: float, now_s: float) -> float | None:
        """Rate a second of a total, or None."""
        before = self._last.get(key)
        self._last[key] = (total, now_s)
        if before is None or total < before[0] or now_s <= before[1]:
            return None
        return (total - before[0]) / (now_s - before[1])
