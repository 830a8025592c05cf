"""Messages between an explorer and its browser's side, declared once for both.

Each room has a table of them in its ``explorer.py``. A request that does not fit its declaration is refused with words;
tests hold every answer against its own; and ``messages.d.ts``, which ``tsc`` checks the JavaScript against, is written
from the table (:mod:`llmprof.explore.base.typescript`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import polars as pl

from llmprof.errors import LlmprofError

Window = tuple[float, float]
"""First and last time, in ns from the start of the trace."""

Row = dict[str, Any]
"""Row of a frame: the columns are those of the analysis that it comes from."""


class Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the records in messages. A field with a default may be left out."""


class Column(Record):
    """Column of a packed frame: :func:`llmprof.explore.base.messages.pack`."""

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


NOTHING = 0xFFFFFFFF
"""Code of a text that is null."""

Buffers = list[bytes | memoryview]


def array(values: Any, dtype: str) -> memoryview:
    """Values as bytes of little-endian numbers, ready to be sent.

    Parameters
    ----------
    values : array_like or polars.Series
        Numbers.
    dtype : str
        ``f8``, ``f4``, ``u4``, ``i4``, ``u2`` or ``u1``.
    """
    raw = values.to_numpy() if isinstance(values, pl.Series) else values
    return np.ascontiguousarray(raw, dtype=f"<{dtype}").data.cast("B")


def pack(frame: pl.DataFrame, columns: Sequence[str] | None = None) -> tuple[list[dict[str, Any]], Buffers]:
    """Columns of a frame as one buffer each; ``table(msg.columns, buffers)`` of ``wire.mjs`` reads them.

    Numbers and times become doubles (null: NaN), booleans bytes, and texts codes into their distinct values.

    Parameters
    ----------
    frame : polars.DataFrame
        Columns of numbers, booleans and texts.
    columns : sequence of str, optional
        Columns to send; all if not given.

    Returns
    -------
    columns : list of dict
        Of each column its ``name``, ``dtype`` (f8, u1 or u4) and, for texts, the distinct ``values``.
    buffers : list of bytes
        One a column.
    """
    described: list[dict[str, Any]] = []
    buffers: Buffers = []
    for name in columns if columns is not None else frame.columns:
        series = frame[name]
        if series.dtype == pl.Boolean:
            described.append({"name": name, "dtype": "u1"})
            buffers.append(array(series.fill_null(value=False), "u1"))
        elif series.dtype.is_numeric():
            described.append({"name": name, "dtype": "f8"})
            buffers.append(array(series.cast(pl.Float64), "f8"))
        else:
            texts = series.cast(pl.String)
            values = texts.drop_nulls().unique(maintain_order=True)
            codes = texts.replace_strict(values, pl.int_range(values.len(), eager=True), return_dtype=pl.UInt32)
            described.append({"name": name, "dtype": "u4", "values": values.to_list()})
            buffers.append(array(codes.fill_null(NOTHING), "u4"))
    return described, buffers
