"""Messages between the timeline and the browser: requests and answers."""

from __future__ import annotations

from typing import Final, Literal

from llmprof.explore.base.messages import Message, Record, Window
from llmprof.explore.timeline.search import Where
from llmprof.explore.timeline.stacks import By as Around

By = Literal["stage", "category"]
Fact = tuple[str, str]
"""Label and value, as text."""


class Hit(Record):
    """A span: its row, level and id there, start and end (ns), name and number of its color."""

    row: int
    level: int
    id: int
    start: int
    end: int
    name: str
    code: int


class End(Record):
    """One end of an arrow: row, level and time (ns)."""

    row: int
    level: int
    time: float


class Key(Record):
    """A color: the kind of name that it stands for (stage, category, phase, cause …), and the name."""

    kind: str
    name: str
    colour: str


class Group(Record):
    """A rank (the host's is -1), its device, its share of waiting on the device, and whether the others wait for it."""

    rank: int
    label: str
    detail: str
    waits: float | None
    late: bool


class Described(Record):
    """A row: its kind and rank, levels of nested spans, number of spans or samples, and a note if it has none."""

    kind: str
    rank: int
    label: str
    levels: int
    count: int
    note: str
    unit: str
    range: Window | None


class Listed(Record):
    """A hit of the search, with the rank and the label of its row."""

    hit: Hit
    rank: int
    label: str


class Named(Record):
    """A name in a selected range: its color, spans, their time inside the range, mean and p99 of whole spans (ns)."""

    name: str
    code: int
    count: int
    total_ns: float
    mean_ns: float
    p99_ns: float
    share: float | None


_VIEW = {"window": Window, "columns": int, "lanes": list[tuple[int, int, int, int, int]]}
"""Window with its margins, columns of the bins, and lanes: row, level, first event, events, bins or samples (or -1)."""

_PACKED = (
    "of events start and duration (f4, ns from the window's start), color (u1), name (u4), id (u4); of bins how busy "
    "(u1) and color (u1); of samples least and greatest (f4)"
)
_DESCRIBED = {
    "hit": Hit,
    "facts": list[Fact],
    "flows": list[tuple[End, End]],
    "target": Hit | None,
    "kind": str,
    "label": str,
}

ROWS: Final = Message(
    "rows",
    answers={
        "whole": Window,
        "found": bool,
        "missing": str,
        "keys": list[Key],
        "present": dict[str, list[int]],
        "groups": list[Group],
        "rows": list[Described],
        "names": list[str],
        "version": int,
        "trace": str,
    },
)
FIND: Final = Message("find", answers={"found": bool}, busy="finding steps and layers")
FOLLOW: Final = Message("follow", answers={"found": bool}, busy="following the critical path")
VIEW: Final = Message(
    "view",
    asks={"window": Window, "width": float, "rows": list[int], "colour_by": By},
    answers=_VIEW,
    buffers=_PACKED,
)
OVERVIEW: Final = Message("overview", asks={"width": float, "colour_by": By}, answers=_VIEW, buffers=_PACKED)
SPAN: Final = Message(
    "span",
    asks={"span": Window, "rows": list[int] | None},
    answers={"title": str, "facts": list[Fact], "rows": list[Named], "total": int},
)
NAMES: Final = Message("names", asks={"numbers": list[int]}, answers={"names": dict[str, str]})
DESCRIBE: Final = Message("describe", asks={"row": int, "id": int}, answers=_DESCRIBED)
HOVER: Final = Message("hover", asks={"row": int, "id": int}, answers=_DESCRIBED)
PICK: Final = Message(
    "pick", asks={"row": int, "level": int, "time": float, "reach": float}, answers={"hit": Hit | None}
)
NEIGHBOUR: Final = Message(
    "neighbour", asks={"row": int, "level": int, "id": int, "by": int}, answers={"hit": Hit | None}
)
SEARCH: Final = Message(
    "search",
    asks={"text": str, "after": float, "index": int | None},
    answers={"count": int, "index": int, "hit": Hit | None, "names": list[int]},
)
LIST: Final = Message(
    "list",
    asks={
        "text": str,
        "first": int,
        "count": int,
        "where": Where,
        "rank": int | None,
        "window": Window | None,
        "sort": str,
    },
    answers={"total": int, "names": int, "sum_ns": float, "ranks": list[int], "rows": list[Listed]},
)
GOTO: Final = Message(
    "goto", asks={"step": int | None, "layer": int | None, "rank": int | None}, answers={"window": Window}
)
FLAME: Final = Message(
    "flame",
    asks={"by": Around},
    answers={
        "kinds": list[Around],
        "of": str,
        "problem": str,
        "total": int,
        "events": int,
        "trunk": list[str],
        "names": list[str],
        "name": list[int],
        "level": list[int],
        "start": list[int],
        "value": list[int],
        "left_out": int,
    },
    busy="putting stacks together",
)
SPEEDSCOPE: Final = Message("speedscope", asks={"by": Around}, answers={"file": str, "content": str})

MESSAGES: Final = (
    *(ROWS, FIND, FOLLOW, VIEW, OVERVIEW, SPAN, NAMES),
    *(DESCRIBE, HOVER, PICK, NEIGHBOUR, SEARCH, LIST, GOTO),
    *(FLAME, SPEEDSCOPE),
)
