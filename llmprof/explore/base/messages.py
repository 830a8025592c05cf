"""Messages between an explorer in Python and its JavaScript, declared once for both sides, and
checked in both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from llmprof.errors import LlmprofError

if TYPE_CHECKING:
    pass

TimeRange = tuple[float, float]
"""First and last time, in ns from the start of the trace."""

FrameRow = dict[str, Any]
"""Row of a frame: the columns are those of the analysis that it comes from."""


Fact = tuple[str, str]
"""Label and value, as text."""


class MessageRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the records in messages. A field with a default may be left out."""


class FrameColumn(MessageRecord):
    """Column of a packed frame: :func:`llmprof.explore.base.messages.pack`."""

    name: str
    dtype: str
    values: list[str] | None = None


class ColourScale(MessageRecord):
    """Colour scale of a phase (ns): its ends, the greatest value, and whether it is logarithmic."""

    phase: str | None
    low: float
    high: float
    most: float
    log: bool


@dataclass(frozen=True)
class Message:
    """A kind of request and its answer: fields and their types (those with None may be left out),
    and descriptions.

    ``buffers`` describes the buffers of the answer, ``busy`` a computation that takes long and runs
    in a thread.
    """

    name: str
    asks: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    buffers: str = ""
    busy: str = ""

    @cached_property
    def _asked(self) -> type[msgspec.Struct]:
        return _structure(f"{self.name} asks", self.asks)

    @cached_property
    def _answered(self) -> type[msgspec.Struct]:
        return _structure(f"{self.name} answers", self.answers)

    def arguments(self, content: object) -> dict[str, Any]:
        """Arguments of a request, one for each declared field."""
        try:
            return dict(msgspec.to_builtins(msgspec.convert(content, self._asked)))
        except msgspec.ValidationError as error:
            raise LlmprofError(
                f"the request {self.name!r} does not fit its declaration: {error}"
            ) from error

    def check(self, answer: Mapping[str, Any]) -> None:
        """Check an answer, in the form in which it is sent, against the declaration."""
        try:
            msgspec.convert(json.loads(json.dumps(answer, allow_nan=False)), self._answered)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise LlmprofError(
                f"the answer to {self.name!r} does not fit its declaration: {error}"
            ) from error


def _structure(name: str, fields: Mapping[str, Any]) -> type[msgspec.Struct]:
    """Record type with these fields; fields that may be None are optional."""
    made: list[tuple[str, Any, Any]] = [
        (key, kind, None) if optional(kind) else (key, kind, msgspec.NODEFAULT)
        for key, kind in fields.items()
    ]
    label = "".join(word.capitalize() for word in name.split())
    return msgspec.defstruct(
        label, made, bases=(MessageRecord,), kw_only=True, forbid_unknown_fields=True
    )


def optional(kind: Any) -> bool:
    """Whether a type includes None."""
    return type(None) in getattr(kind, "__args__", ()) if kind is not None else True


NOTHING = 0xFFFFFFFF
"""Code of a null text."""

Buffers = list[bytes | memoryview]


def array(values: Any, dtype: str) -> memoryview:
    """Values as little-endian bytes, ready to be sent."""
    raw = values.to_numpy() if isinstance(values, pl.Series) else values
    return np.ascontiguousarray(raw, dtype=f"<{dtype}").data.cast("B")


def pack(
    frame: pl.DataFrame, columns: Sequence[str] | None = None
) -> tuple[list[dict[str, Any]], Buffers]:
    """Columns of a frame as one buffer each: doubles (null:

    NaN), bytes of booleans, and codes of texts.
    """
    described: list[dict[str, Any]] = []
    buffers: Buffers = []
    for name in columns if columns is not None else frame.columns:
        series = frame[name]
        if series.dtype == pl.Boolean:
            described.append({"name": name, "dtype": "u1"})
            buffers.append(array(series.fill_null(False), "u1"))
        elif series.dtype.is_numeric():
            described.append({"name": name, "dtype": "f8"})
            buffers.append(array(series.cast(pl.Float64), "f8"))
        else:
            texts = series.cast(pl.String)
            values = texts.drop_nulls().unique(maintain_order=True)
            codes = texts.replace_strict(
                values, pl.int_range(values.len(), eager=True), return_dtype=pl.UInt32
            )
            described.append({"name": name, "dtype": "u4", "values": values.to_list()})
            buffers.append(array(codes.fill_null(NOTHING), "u4"))
    return described, buffers
