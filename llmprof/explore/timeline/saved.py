"""Saved state of a timeline: views that can be shown again, and marks with notes in a JSON file."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import platformdirs

from llmprof.errors import ArgumentError, LlmprofError, ReadError
from llmprof.explore.base.messages import MessageRecord, TimeRange
from llmprof.explore.timeline.data import TimelineData
from llmprof.explore.timeline.rows import KINDS
from llmprof.trace import Trace
from llmprof.trace.storage import files, typed

NOTES_FOLDER: Final = "LLMPROF_NOTES"
"""Environment variable with the folder of notes; by default it is ``notes`` in the user's data
folder.
"""

VERSION: Final = 1
MOST_MARKS, MOST_TEXT = 1_000, 2_000


class Arrangement(MessageRecord):
    """Arrangement of the rows: open and hidden ranks, folded and pinned rows, and hidden kinds.

    ``order`` is that of the ranks: ``late`` (by rank, but of many ranks the one that the others
    wait for comes first), ``rank``, ``waits`` (the rank that waits least comes first) or ``hand``
    (the order in ``ranks``). ``moved`` holds the rows of the ranks whose rows were moved, ``path``
    whether the critical path is shown.
    """

    open: list[int] | None = None
    hidden: list[int] = msgspec.field(default_factory=list)
    folded: list[int] | None = None
    pinned: list[int] = msgspec.field(default_factory=list)
    kinds: list[str] = msgspec.field(default_factory=list)
    named: str = ""
    devices: bool = False
    order: Literal["late", "rank", "waits", "hand"] = "late"
    ranks: list[int] = msgspec.field(default_factory=list)
    moved: list[int] = msgspec.field(default_factory=list)
    path: bool = False


class Mark(MessageRecord):
    """A mark: its time (ns from the start of the trace), and a note."""

    time: float
    text: str = ""


class Chosen(MessageRecord):
    """A selected span: its row and its id there."""

    row: int
    id: int


class SavedView(MessageRecord):
    """A view that can be shown again: the fingerprint of its trace, and the traits of the
    timeline.
    """

    trace: str
    window: TimeRange | None = None
    span: TimeRange | None = None
    span_rows: list[int] | None = None
    selection: Chosen | None = None
    color_by: Literal["stage", "category"] | None = None
    search: str | None = None
    arrangement: Arrangement | None = None
    queries: list[str] | None = None


def fingerprint(data: TimelineData) -> str:
    """Sixteen characters that identify a trace, from its rows, spans and times; its path does
    not matter.
    """
    rows = [
        [row.kind, row.rank, row.label, row.count] for row in data.drawn if row.kind not in KINDS
    ]
    starts = [part.rows["start_ns"].to_numpy() for part in data.device]
    extent = [
        min((int(of.min()) for of in starts), default=None),
        max((int(of.max()) for of in starts), default=None),
        sum(int(part.rows["dur_ns"].sum()) for part in data.device),
    ]
    return hashlib.sha256(json.dumps([extent, rows]).encode()).hexdigest()[:16]


def view_of(widget: Any, trace: str) -> dict[str, Any]:
    """The view of a timeline as plain values: all traits that differ from those of a new
    timeline.
    """
    names = [name for name in SavedView.__struct_fields__ if name != "trace"]
    values = {
        name: value for name in names if (value := getattr(widget, name)) not in (None, "", [])
    }
    return {"trace": trace, **values}


def restored(view: Mapping[str, Any] | str, trace: str, rows: int) -> dict[str, Any]:
    """Traits of a saved view."""
    try:
        content = msgspec.json.decode(view) if isinstance(view, str) else dict(view)
        made = msgspec.convert(content, SavedView)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        found = f"this is no saved view of a timeline: {error}"
        raise ArgumentError(
            found, expected="what `.view` of a timeline gave, or that as JSON"
        ) from error
    if made.trace != trace:
        found = f"this view is of another trace ({made.trace[:16]}; this one is {trace})"
        expected = (
            "the trace that it was saved of: its rows and times would mean something else here"
        )
        raise ArgumentError(found, expected=expected, hint="read that trace, or give window= alone")
    values: dict[str, Any] = msgspec.to_builtins(made)
    del values["trace"]
    # rows of queries come behind those of the trace, and the critical path where it was asked for
    # before or after them
    path = made.arrangement is not None and made.arrangement.path
    rows += len(made.queries or ()) if not path else 0
    if made.selection is not None and made.selection.row >= rows:
        values["selection"] = None
    if made.span_rows is not None:
        values["span_rows"] = [row for row in made.span_rows if row < rows] or None
    return {name: value for name, value in values.items() if value is not None}


MOST_EXPORTED: Final = 1_000_000
"""Most events of a file that the browser saves."""


def window_file(trace: Trace, window: TimeRange) -> bytes:
    """A window of a trace as packed Chrome JSON, which Perfetto and llmprof read."""
    from llmprof.report.export import export

    first, last = math.floor(window[0]), math.ceil(window[1])
    events = sum(frame.height for frame in trace.select(window=(first, last)).tables.values())
    if events > MOST_EXPORTED:
        raise LlmprofError(
            f"{events:,} events start in this window",
            expected=f"at most {MOST_EXPORTED:,}",
            hint="zoom in, or write all with llmprof export PATH -o trace.json.gz",
        )
    with tempfile.TemporaryDirectory() as folder:
        return export(trace, Path(folder) / "window.json.gz", window=(first, last)).read_bytes()


class Notes:
    """Marks of a trace in a JSON file, which is written with the first mark."""

    def __init__(self, trace: str, path: str | os.PathLike[str] | None = None) -> None:
        self._trace = trace
        folder = (
            os.environ.get(NOTES_FOLDER) or Path(platformdirs.user_data_dir("llmprof")) / "notes"
        )
        self.path = Path(path) if path is not None else Path(folder) / f"{trace}.json"
        self._damaged = ""

    def load(self) -> list[dict[str, Any]]:
        """Marks of the file, none where there is none."""
        self._damaged = ""
        try:
            kept = msgspec.convert(typed.found(self.path, _NotesFile), _NotesFile | None)
        except ReadError as error:
            raise self._kept(f"cannot be used ({error.found})") from error
        if kept is None:
            return []
        if kept.trace != self._trace:
            raise self._kept(
                f"has notes of another trace ({kept.trace[:16]}; this one is {self._trace})"
            )
        return sorted_marks(msgspec.to_builtins(kept.marks))

    def save(self, marks: Sequence[Mapping[str, Any]]) -> None:
        """Write the marks; the file is written completely or not at all."""
        if self._damaged:
            raise LlmprofError(self._damaged, hint=self._advice())
        content = msgspec.json.encode(
            _NotesFile(version=VERSION, trace=self._trace, marks=_checked_marks(marks))
        )
        files.made(self.path.parent)
        files.write(self.path, msgspec.json.format(content, indent=1))

    def _kept(self, why: str) -> LlmprofError:
        self._damaged = (
            f"the notes {self.path} are not shown: the file {why}; it is kept, and nothing is"
            " written to it"
        )
        return LlmprofError(self._damaged, hint=self._advice())

    def _advice(self) -> str:
        return f"mend {self.path.name} or move it away, and show the timeline again"


class _NotesFile(MessageRecord):
    """Content of a file of notes."""

    version: int
    trace: str
    marks: list[Mark]


def _checked_marks(marks: Sequence[Mapping[str, Any]]) -> list[Mark]:
    """Marks in the order of time."""
    try:
        made = msgspec.convert(list(marks), list[Mark])
    except (msgspec.ValidationError, TypeError) as error:
        raise LlmprofError(
            f"these are no marks: {error}", expected='a list of {"time": ns, "text": note}'
        ) from error
    if len(made) > MOST_MARKS or any(len(mark.text) > MOST_TEXT for mark in made):
        found = f"{len(made):,} marks, or a note that is too long"
        raise LlmprofError(
            found, expected=f"at most {MOST_MARKS:,} marks and {MOST_TEXT:,} characters a note"
        )
    if any(not math.isfinite(mark.time) for mark in made):
        raise LlmprofError("a mark has no time", expected="a number of ns")
    return sorted(made, key=lambda mark: mark.time)


def sorted_marks(marks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Marks in the order of time, as plain values."""
    plain: list[dict[str, Any]] = msgspec.to_builtins(_checked_marks(marks))
    return plain
