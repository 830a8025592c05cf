"""Messages between the comparison and the browser: requests and answers."""

from __future__ import annotations

from typing import Any, Final

from llmprof.explore.base.messages import Column, Message, Record, Row, Window

Labels = dict[str, Any]
"""Labels of a row: ``{"phase": "decode", "stage": "norm"}``."""

Pair = tuple[int, int]
"""Numbers of the two runs that are compared in detail."""


class Shown(Record):
    """View of the table: two runs, labels that rows are aligned by, filters, a search text and an order."""

    pair: Pair
    by: list[str]
    tolerance: float
    phase: str | None = None
    rank: int | None = None
    status: str | None = None
    search: str = ""
    sort: str = "-delta_ns"


class Part(Record):
    """Part of the time of a step (ns): its group, its words, and the stage of compute or cause of idle time."""

    group: str
    label: str
    part: str | None
    ns: float


class Bar(Record):
    """A run: its name, its steps of the phase, the time of a step and until the next (ns), and its parts."""

    name: str
    steps: int
    step_ns: float | None
    between_ns: float | None
    parts: list[Part]


class Change(Record):
    """Bar of a waterfall: :func:`llmprof.analyze.compare.story.diff_waterfall`; null where a run does not have it."""

    group: str
    label: str
    part: str | None
    a_ns: float | None
    b_ns: float | None
    delta_ns: float
    from_ns: float
    to_ns: float
    beyond_noise: bool | None


class Way(Record):
    """Waterfall from one run to another: their numbers and its bars."""

    a: int
    b: int
    bars: list[Change]


class Track(Record):
    """Timeline of a run: rank, step, point of alignment (ns from its start), columns and their first buffer."""

    name: str
    rank: int | None
    step: int | None
    origin_ns: int | None
    columns: list[Column]
    first: int
    note: str


class Kernels(Record):
    """Kernels of a row in both traces, and how many there are in all."""

    rows: list[Row]
    total: int


STORY: Final = Message(
    "story",
    asks={"pair": Pair, "phase": str | None, "rank": int | None},
    answers={
        "phases": list[str],
        "phase": str | None,
        "ranks": list[int],
        "words": list[str],
        "context": list[str],
        "runs": list[Bar],
        "ways": list[Way],
    },
    busy="comparing steps",
)
TRACKS: Final = Message(
    "tracks",
    asks={
        "pair": Pair,
        "phase": str | None,
        "rank": int | None,
        "place": int | None,
        "layer": int | None,
        "window": Window | None,
    },
    answers={
        "sides": list[Track],
        "lanes": list[str],
        "window": Window,
        "whole": Window,
        "place": int | None,
        "places": int,
        "layers": list[int],
    },
    buffers="columns of the timeline of each side after those of the one before",
    busy="aligning the timelines",
)
TABLE: Final = Message(
    "table",
    asks={"view": Shown, "count": int},
    answers={
        "rows": list[Row],
        "total": int,
        "all": int,
        "largest": float | None,
        "counts": dict[str, int],
    },
    busy="comparing kernels",
)
ROWS: Final = Message(
    "rows", asks={"view": Shown, "offset": int, "count": int}, answers={"rows": list[Row], "offset": int}
)
PICK: Final = Message("pick", asks={"view": Shown, "row": int})
DETAILS: Final = Message(
    "details",
    asks={"picked": Labels, "tolerance": float, "pair": Pair, "rank": int | None},
    answers={"steps": list[list[Column]], "kernels": Kernels},
    buffers="columns of the steps of both traces",
    busy="looking into both traces",
)

MESSAGES: Final = (STORY, TRACKS, TABLE, ROWS, PICK, DETAILS)
