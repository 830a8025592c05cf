"""Messages of the explorer of kernels."""

from __future__ import annotations

from typing import Any, Final

from llmprof.explore.base.messages import Column, Message, Record, Row, Window

Labels = dict[str, Any]
"""Values of labels that launches are told apart by: ``{"phase": "decode"}``."""


class Shown(Record):
    """What the table shows: filters, labels that rows are told apart by, a text, an order, a window."""

    rank: int | None = None
    step: int | None = None
    phase: str | None = None
    layer: int | None = None
    stage: str | None = None
    stream: int | None = None
    category: str | None = None
    by: tuple[str, ...] = ()
    search: str = ""
    sort: str = "-total_ns"
    window: Window | None = None
    in_window: bool = False


class Bar(Record):
    """Share of a peak (%), and the metric whose glossary text explains it."""

    label: str
    pct: float | None
    metric: str


class Roofline(Record):
    """Profiled launches on the roofline of a device."""

    points: list[Row]
    bandwidth: float | None
    peaks: dict[str, float]
    device: str | None


_SERIES = "time over the trace of each row (u1), the same number of points a row"

TABLE: Final = Message(
    "table",
    asks={"view": Shown, "count": int, "kernel": str | None},
    answers={
        "rows": list[Row],
        "total": int,
        "at": int | None,
        "launches": int,
        "total_ns": int,
        "options": dict[str, list[int | str]],
        "unmatched": int,
    },
    buffers=_SERIES,
    busy="adding up kernels",
)
ROWS: Final = Message(
    "rows",
    asks={"view": Shown, "offset": int, "count": int},
    answers={"rows": list[Row], "offset": int},
    buffers=_SERIES,
)
PICK: Final = Message("pick", asks={"view": Shown, "row": int})
LAUNCH: Final = Message("launch", asks={"event": int})
KERNEL: Final = Message(
    "kernel",
    asks={"view": Shown, "kernel": str, "of": Labels},
    answers={
        "name": str,
        "label": str,
        "category": str | None,
        "count": int,
        "total_ns": float,
        "mean_ns": float | None,
        "least_ns": float | None,
        "most_ns": float | None,
        "condensed": bool,
        "columns": list[Column],
        "span": Window | None,
        "grids": list[Row],
    },
    buffers="the launches' columns",
)
SHAPES: Final = Message(
    "shapes",
    asks={"kernel": str, "rank": int | None},
    answers={"rows": list[Row], "why": str, "total": int | None},
    busy="finding the operators",
)
METRICS: Final = Message(
    "metrics",
    asks={"kernel": str, "kernel_id": int | None},
    answers={
        "launches": list[Row],
        "note": str,
        "chosen": int | None,
        "speed": Row | None,
        "bars": list[Bar] | None,
        "roofline": Roofline | None,
        "stalls": list[Row] | None,
        "rules": list[Row] | None,
    },
    busy="matching the hardware metrics",
)
VALUES: Final = Message("values", asks={"kernel_id": int, "search": str}, answers={"rows": list[Row], "total": int})
EXPLAIN: Final = Message(
    "explain",
    asks={"metric": str},
    answers={"title": str, "meaning": str, "good": str, "action": str, "source": str},
)
COMMAND: Final = Message(
    "command",
    asks={"program": str, "view": Shown, "kernel": str, "of": Labels},
    answers={"command": str},
)

MESSAGES: Final = (TABLE, ROWS, PICK, LAUNCH, KERNEL, SHAPES, METRICS, VALUES, EXPLAIN, COMMAND)
