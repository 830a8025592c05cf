"""Messages of the explorer that compares two traces."""

from __future__ import annotations

from typing import Any, Final

from llmprof.explore.base.messages import Column, Message, Record, Row

Labels = dict[str, Any]
"""Labels of a row: ``{"phase": "decode", "stage": "norm"}``."""


class Shown(Record):
    """What the table shows: labels that rows are aligned by, filters, a text and an order."""

    by: list[str]
    tolerance: float
    phase: str | None = None
    status: str | None = None
    search: str = ""
    sort: str = "-delta_ns"


class Phase(Record):
    """Bars of a phase: numbers of steps and the time by stage (ns) in both traces."""

    phase: str
    a_steps: int | None
    b_steps: int | None
    stages: list[Row]


class Kernels(Record):
    """Kernels of a row in both traces, and how many there are in all."""

    rows: list[Row]
    total: int


TABLE: Final = Message(
    "table",
    asks={"view": Shown, "count": int},
    answers={
        "rows": list[Row],
        "total": int,
        "all": int,
        "largest": float | None,
        "counts": dict[str, int],
        "phases": list[str],
        "bars": list[Phase],
    },
    busy="comparing the traces",
)
ROWS: Final = Message(
    "rows", asks={"view": Shown, "offset": int, "count": int}, answers={"rows": list[Row], "offset": int}
)
PICK: Final = Message("pick", asks={"view": Shown, "row": int})
DETAILS: Final = Message(
    "details",
    asks={"picked": Labels, "tolerance": float},
    answers={"steps": list[list[Column]], "kernels": Kernels},
    buffers="columns of the steps of both traces",
    busy="looking into both traces",
)

MESSAGES: Final = (TABLE, ROWS, PICK, DETAILS)
