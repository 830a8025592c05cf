"""Messages of the explorer of overlap."""

from __future__ import annotations

from typing import Final, Literal

from llmprof.explore.base.messages import Column, Message, Record, Row, Window


class Bars(Record):
    """Bars of a side: its label, its rank, the packed columns and how many buffers they take."""

    label: str
    rank: int
    columns: list[Column]
    buffers: int


class Lane(Record):
    """A lane: what it shows, as spans or as bins of classes, and which buffers of its side it has."""

    name: str
    stream: bool
    count: int
    total_ns: int
    kind: Literal["spans", "bins"]
    buffers: list[int]
    classes: list[str] | None = None


class Side(Record):
    """Lanes of a rank in a window; ``first`` is the place of its buffers."""

    rank: int
    window: Window
    lanes: list[Lane]
    names: list[str]
    of: str
    first: int


CHOICES: Final = Message(
    "choices",
    answers={"ranks": list[int], "others": list[int], "phases": list[str], "parts": list[str]},
    busy="finding steps and overlap",
)
BARS: Final = Message(
    "bars",
    asks={"rank": int, "phase": str | None, "against": str},
    answers={"sides": list[Bars]},
    buffers="columns of each side after those of the one before",
    busy="measuring steps",
)
LANES: Final = Message(
    "lanes",
    asks={"rank": int, "window": Window | None, "against": str, "step": int | None, "pixels": float},
    answers={"sides": list[Side], "summary": list[Row], "whole": Window | None, "chosen": bool},
    buffers="of spans pairs (f8, ns from the window's start), of streams also name (u4) and class (u1); of bins f4",
    busy="cutting the window",
)
STEPS: Final = Message("steps", asks={"rank": int, "first": int, "last": int})

MESSAGES: Final = (CHOICES, BARS, LANES, STEPS)
