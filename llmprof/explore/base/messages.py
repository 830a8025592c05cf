"""Messages between an explorer and its browser's side, declared once for both.

Each room has a table of them in ``messages.py``. A request that does not fit its declaration is refused with words;
tests hold every answer against its own; and ``messages.d.ts``, which ``tsc`` checks the JavaScript against, is written
from the table (:mod:`llmprof.explore.base.typescript`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from llmprof.errors import LlmprofError

Window = tuple[float, float]
"""First and last time, in ns from the start of the trace."""

Row = dict[str, Any]
"""Row of a frame: the columns are those of the analysis that it comes from."""


class Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the records in messages. A field with a default may be left out."""


class Column(Record):
    """Column of a packed frame: :func:`llmprof.explore.base.wire.pack`."""

    name: str
    dtype: str
    values: list[str] | None = None


@dataclass(frozen=True)
class Message:
    """One kind of request and its answer.

    Attributes
    ----------
    name : str
        What the browser's side asks for.
    asks, answers : mapping of str to type
        Fields and their types: numbers, texts, lists, tuples, dictionaries with texts as keys, and :class:`Record`.
        A field whose type includes None may be left out.
    buffers : str
        What the buffers of the answer hold, in words; empty if there are none.
    busy : str
        What is computed, in words, where that takes a while: the answer is then made in a thread.
    """

    name: str
    asks: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    buffers: str = ""
    busy: str = ""

    @cached_property
    def _asked(self) -> type[msgspec.Struct]:
        return structure(f"{self.name} asks", self.asks)

    @cached_property
    def _answered(self) -> type[msgspec.Struct]:
        return structure(f"{self.name} answers", self.answers)

    def arguments(self, content: object) -> dict[str, Any]:
        """Arguments of a request, all of those that were declared.

        Raises
        ------
        LlmprofError
            A field is missing, not declared or of another type.
        """
        try:
            return dict(msgspec.to_builtins(msgspec.convert(content, self._asked)))
        except msgspec.ValidationError as error:
            raise LlmprofError(f"the request {self.name!r} does not fit its declaration: {error}") from error

    def check(self, answer: Mapping[str, Any]) -> None:
        """Hold an answer against the declaration, as it goes over the wire.

        Raises
        ------
        LlmprofError
            A field is missing, not declared or of another type, or not JSON (NaN is none).
        """
        try:
            msgspec.convert(json.loads(json.dumps(answer, allow_nan=False)), self._answered)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise LlmprofError(f"the answer to {self.name!r} does not fit its declaration: {error}") from error


def structure(name: str, fields: Mapping[str, Any]) -> type[msgspec.Struct]:
    """A record with these fields; those that may be None may be left out."""
    made: list[tuple[str, Any, Any]] = [
        (key, kind, None) if optional(kind) else (key, kind, msgspec.NODEFAULT) for key, kind in fields.items()
    ]
    label = "".join(word.capitalize() for word in name.split())
    return msgspec.defstruct(label, made, bases=(Record,), kw_only=True, forbid_unknown_fields=True)


def optional(kind: Any) -> bool:
    """Whether a type includes None."""
    return type(None) in getattr(kind, "__args__", ()) if kind is not None else True
