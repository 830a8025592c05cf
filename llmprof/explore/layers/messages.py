"""Messages of the explorer of layers."""

from __future__ import annotations

from typing import Final, Literal

from llmprof.explore.base.messages import Message, Record, Row

Measure = Literal["time", "busy", "exposed", "gap", "host"]


class Measured(Record):
    """A measure that the color can show."""

    name: Measure
    title: str
    meaning: str


class Scale(Record):
    """Scale of the colors of a phase (ns): its ends, the greatest value, and whether it is logarithmic."""

    phase: str | None
    low: float
    high: float
    most: float
    log: bool


CHOICES: Final = Message(
    "choices",
    answers={"ranks": list[int], "stages": list[str], "phases": list[str], "measures": list[Measured]},
    busy="finding steps and layers",
)
CELLS: Final = Message(
    "cells",
    asks={
        "measure": Measure,
        "rank": int,
        "stage": str | None,
        "phase": str | None,
        "steps": tuple[int, int] | None,
    },
    answers={
        "measure": Measure,
        "title": str,
        "meaning": str,
        "rank": int,
        "columns": list[tuple[int, int, int]],
        "layers": list[int],
        "condensed": int,
        "outliers": int,
        "missing": int,
        "steps": tuple[int | None, int | None],
        "diverging": bool,
        "scales": list[Scale],
    },
    buffers="values (f4, columns after each other, NaN where there is none) and outliers (u1)",
    busy="measuring layers",
)
PICK: Final = Message("pick", asks={"rank": int, "step": int, "layer": int})
CELL: Final = Message(
    "cell",
    asks={"rank": int, "step": int, "layer": int, "stage": str | None},
    answers={
        "rank": int,
        "step": int,
        "layer": int,
        "stage": str | None,
        "cell": Row | None,
        "stages": list[Row],
        "kernels": list[Row],
        "more": int,
    },
    busy="looking into the cell",
)

MESSAGES: Final = (CHOICES, CELLS, PICK, CELL)
