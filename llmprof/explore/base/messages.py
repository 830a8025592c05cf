"""Messages between an explorer in Python and its JavaScript, declared once for both sides, and checked in both."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl
import traitlets
from msgspec import inspect

from llmprof.errors import LlmprofError

if TYPE_CHECKING:
    from llmprof.explore.base.widget import Explorer

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


class Scale(Record):
    """Colour scale of a phase (ns): its ends, the greatest value, and whether it is logarithmic."""

    phase: str | None
    low: float
    high: float
    most: float
    log: bool


@dataclass(frozen=True)
class Message:
    """A kind of request and its answer: fields and their types (those with None may be left out), and descriptions.

    ``buffers`` describes the buffers of the answer, ``busy`` a computation that takes long and runs in a thread.
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
        """Arguments of a request, one for each declared field."""
        try:
            return dict(msgspec.to_builtins(msgspec.convert(content, self._asked)))
        except msgspec.ValidationError as error:
            raise LlmprofError(f"the request {self.name!r} does not fit its declaration: {error}") from error

    def check(self, answer: Mapping[str, Any]) -> None:
        """Check an answer, in the form in which it is sent, against the declaration."""
        try:
            msgspec.convert(json.loads(json.dumps(answer, allow_nan=False)), self._answered)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise LlmprofError(f"the answer to {self.name!r} does not fit its declaration: {error}") from error


def structure(name: str, fields: Mapping[str, Any]) -> type[msgspec.Struct]:
    """Record type with these fields; fields that may be None are optional."""
    made: list[tuple[str, Any, Any]] = [
        (key, kind, None) if optional(kind) else (key, kind, msgspec.NODEFAULT) for key, kind in fields.items()
    ]
    label = "".join(word.capitalize() for word in name.split())
    return msgspec.defstruct(label, made, bases=(Record,), kw_only=True, forbid_unknown_fields=True)


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


def pack(frame: pl.DataFrame, columns: Sequence[str] | None = None) -> tuple[list[dict[str, Any]], Buffers]:
    """Columns of a frame as one buffer each: doubles (null: NaN), bytes of booleans, and codes of texts."""
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


ROOMS: Final = {
    "header": "Header",
    "timeline": "Timeline",
    "layers": "Layers",
    "overlap": "Overlap",
    "collectives": "AllReduce",
    "kernels": "Kernels",
    "compare": "Compare",
    "requests": "Requests",
    "ranks": "Ranks",
    "what_if": "WhatIf",
}
"""Explorers and the class of their widget."""

_HEAD = """// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";
"""
_PLAIN = {
    inspect.IntType: "number",
    inspect.FloatType: "number",
    inspect.StrType: "string",
    inspect.BoolType: "boolean",
    inspect.NoneType: "null",
    inspect.AnyType: "any",
}
_TRAITS = (
    (traitlets.Bool, "boolean"),
    ((traitlets.Int, traitlets.Float), "number"),
    (traitlets.Unicode, "string"),
    (traitlets.Dict, "Record<string, any>"),
)


def declarations(room: str) -> str:
    """Text of the ``messages.d.ts`` of an explorer."""
    widget: type[Explorer] = getattr(importlib.import_module(f"llmprof.explore.{room}.explorer"), ROOMS[room])
    records: dict[str, str] = {}
    lines = ["export type Messages = {"]
    for message in (handler.message for handler in widget.handlers.values()):
        if message.buffers:
            lines.append(f"  /** Buffers: {message.buffers}. */")
        lines.append(f"  {message.name}: {{")
        lines += [
            f"    {side}: {_fields(fields, records)};"
            for side, fields in (("asks", message.asks), ("answers", message.answers))
        ]
        lines.append("  };")
    lines += ["};", "", "export type Traits = {"]
    lines += [f"  {name}: {_trait(trait)};" for name, trait in sorted(_synced(widget).items())]
    lines += ["};", "", "export type Model = AnyModel<Traits, Messages>;"]
    return "\n".join([_HEAD, *records.values(), *lines, ""])


def written(room: str) -> Path:
    """File of the declarations of an explorer."""
    return Path(__file__).parents[1] / room / "messages.d.ts"


def _fields(fields: Mapping[str, Any], records: dict[str, str]) -> str:
    if not fields:
        return "Record<string, never>"
    types = ((name, optional(kind), _type(inspect.type_info(kind), records)) for name, kind in fields.items())
    return "{ " + "; ".join(f"{name}{'?' if free else ''}: {kind}" for name, free, kind in types) + " }"


def _type(kind: inspect.Type, records: dict[str, str]) -> str:
    """TypeScript form of a msgspec type; records are collected by name."""
    if type(kind) in _PLAIN:
        return _PLAIN[type(kind)]
    match kind:
        case inspect.LiteralType(values=values):
            return " | ".join(json.dumps(value) for value in values)
        case inspect.UnionType(types=types):
            return " | ".join(_type(member, records) for member in types)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            inner = _type(item, records)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        case inspect.TupleType(item_types=items):
            return f"[{', '.join(_type(item, records) for item in items)}]"
        case inspect.DictType(value_type=value):
            return f"Record<string, {_type(value, records)}>"
        case inspect.StructType(cls=cls):
            return _record(cls, kind, records)
    raise TypeError(f"{kind} has no counterpart in TypeScript")


def _record(cls: type[msgspec.Struct], kind: inspect.StructType, records: dict[str, str]) -> str:
    if cls.__name__ not in records:
        records[cls.__name__] = ""  # its place, before those of its fields
        words = (cls.__doc__ or "").split("\n")[0].replace(":func:", "").replace("`", "")
        parts = [f"/** {words} */", f"export type {cls.__name__} = {{"]
        for part in kind.fields:
            mark = "" if part.required else "?"
            parts.append(f"  {part.name}{mark}: {_type(part.type, records)};")
        records[cls.__name__] = "\n".join([*parts, "};", ""])
    return cls.__name__


def _synced(widget: type[Explorer]) -> dict[str, traitlets.TraitType[Any, Any]]:
    """Traits of a widget that are synchronised with the browser, without those that every widget has."""
    from ipywidgets import DOMWidget  # type: ignore[import-untyped]

    own = set(widget.class_traits(sync=True)) - set(DOMWidget.class_traits(sync=True))
    return {name: widget.class_traits()[name] for name in own if not name.startswith("_")}


def _trait(trait: traitlets.TraitType[Any, Any]) -> str:
    none = " | null" if trait.allow_none else ""
    if isinstance(trait, traitlets.Enum):
        return " | ".join(json.dumps(value) for value in trait.values or ())
    if trait.metadata.get("pair"):
        return f"[number, number]{none}"
    if isinstance(trait, traitlets.List):
        inner = _trait(trait._trait) if trait._trait is not None else "any"
        return f"{f'({inner})' if ' | ' in inner else inner}[]{none}"
    return next(words for kinds, words in _TRAITS if isinstance(trait, kinds)) + none


def write_declarations() -> None:
    """Write the declarations of all explorers again, after a change of the messages or traits of a widget."""
    for room in ROOMS:
        written(room).write_text(declarations(room), "utf-8")
