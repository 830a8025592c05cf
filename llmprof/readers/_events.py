"""Events of a Chrome trace as objects: only what some table uses is decoded, and arguments not before they are needed.

Three decoders take turns. The first reads times as numbers, which is exact to the nanosecond for whole microseconds
and for fractions below :data:`EXACT_US`; the second keeps the text of times (epoch microseconds with a fraction, times
written as strings); the last takes one event after another and drops fields of a wrong type.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Final

import msgspec

from llmprof.readers._fitting import UNFIT, fit
from llmprof.readers._times import loses_digits

Id = int | str | None
_NOTHING: Final = msgspec.Raw(b"{}")


class Event(msgspec.Struct, gc=False):
    """An event with its times as numbers (us)."""

    cat: str | None = None
    name: str | None = None
    pid: Id = None
    tid: Id = None
    ts: int | float | None = None
    dur: int | float | None = None
    args: msgspec.Raw = _NOTHING


class ExactEvent(msgspec.Struct, gc=False):
    """An event with its times as the text of the file."""

    cat: str | None = None
    name: str | None = None
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: msgspec.Raw = _NOTHING


class Ignored(msgspec.Struct, gc=False):
    """An event that no table uses: nothing of it is decoded."""


class _Phase(msgspec.Struct, gc=False):
    ph: Any = None


def _of_phases(base: type[msgspec.Struct], phases: str) -> dict[str, Any]:
    name = base.__name__
    return {ph: msgspec.defstruct(f"{name}_{ph}", [], bases=(base,), tag_field="ph", tag=ph, gc=False) for ph in phases}


def _decoder_of(*classes: Any) -> msgspec.json.Decoder[list[Any]]:
    return msgspec.json.Decoder(list[functools.reduce(operator.or_, classes)])  # type: ignore[misc]


_EVENTS: Final = _of_phases(Event, "XiICM")
_EXACT_EVENTS: Final = _of_phases(ExactEvent, "XiICM")
_IGNORED: Final = _of_phases(Ignored, "stfbneBESTFpPNODVvRc(),=")

PHASES: Final[dict[Any, str]] = {kind: ph for kinds in (_EVENTS, _EXACT_EVENTS, _IGNORED) for ph, kind in kinds.items()}
"""Phase (``ph``) of each class of events; what has another phase is an :class:`Ignored`."""

COMPLETE: Final = (_EVENTS["X"], _EXACT_EVENTS["X"])
"""Classes of complete events: with a begin and a duration."""

_FAST_DECODER: Final = _decoder_of(*_EVENTS.values(), *_IGNORED.values())
_EXACT_DECODER: Final = _decoder_of(*_EXACT_EVENTS.values(), *_IGNORED.values())
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_PHASE: Final = msgspec.json.Decoder(_Phase)


def in_one_form(events: list[Any]) -> list[Any]:
    """Events with all their times as numbers or all as text; a batch put together from pieces may hold both."""
    classes = set(map(type, events))
    if classes.isdisjoint(_EVENTS.values()) or classes.isdisjoint(_EXACT_EVENTS.values()):
        return events
    return [_exact_form(event) if isinstance(event, Event) else event for event in events]


def _exact_form(event: Event) -> ExactEvent:
    found: ExactEvent = _EXACT_EVENTS[PHASES[type(event)]](event.cat, event.name, event.pid, event.tid, args=event.args)
    found.ts, found.dur = msgspec.Raw(msgspec.json.encode(event.ts)), msgspec.Raw(msgspec.json.encode(event.dur))
    return found


class EventDecoder:
    """Decoder that starts fast and falls back where a file needs it.

    Attributes
    ----------
    exact : bool
        Whether times are kept as text by now.
    wrong_types : int
        Fields and events that were dropped because of their type.
    """

    def __init__(self) -> None:
        self.exact = False
        self.wrong_types = 0

    def __call__(self, text: bytes) -> list[Any]:
        """Events of a JSON list; raises a decode error if the text is no JSON."""
        if not self.exact:
            try:
                events = _FAST_DECODER.decode(text)
            except msgspec.ValidationError:
                pass
            else:
                if not loses_digits([e.ts for e in events if type(e) is COMPLETE[0]]):
                    return events
        try:
            events = _EXACT_DECODER.decode(text)
        except msgspec.ValidationError:
            return self._one_by_one(text)
        self.exact = True
        return events

    def _one_by_one(self, text: bytes) -> list[Any]:
        events, wrong = [], 0
        for element in _ELEMENTS.decode(text):
            try:
                phase = _PHASE.decode(element).ph
            except UNFIT:
                wrong += 1  # no object
                continue
            kind = (_EXACT_EVENTS | _IGNORED).get(phase, Ignored) if isinstance(phase, str) else Ignored
            event, unfit = fit(kind, element)
            events.append(event)
            wrong += unfit
        self.wrong_types += wrong
        return events
