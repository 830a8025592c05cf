"""TypeScript declarations of the explorers' messages and traits:

``python docs/declarations.py`` writes them again.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import traitlets
from ipywidgets import DOMWidget
from msgspec import inspect

from llmprof import explore
from llmprof.explore.base.messages import optional
from llmprof.explore.base.widget import Explorer

ROOMS: Final = {
    "header": "Header",
    "timeline": "Timeline",
    "layers": "Layers",
    "overlap": "Overlap",
    "collectives": "Collectives",
    "kernels": "Kernels",
    "compare": "Compare",
    "requests": "RequestsExplorer",
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
    widget: type[Explorer] = getattr(
        importlib.import_module(f"llmprof.explore.{room}.explorer"), ROOMS[room]
    )
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
    return Path(explore.__file__).parent / room / "messages.d.ts"


def _fields(fields: Mapping[str, Any], records: dict[str, str]) -> str:
    if not fields:
        return "Record<string, never>"
    types = (
        (name, optional(kind), _type(inspect.type_info(kind), records))
        for name, kind in fields.items()
    )
    return (
        "{ "
        + "; ".join(f"{name}{'?' if free else ''}: {kind}" for name, free, kind in types)
        + " }"
    )


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
        words = (
            " ".join((cls.__doc__ or "").split("\n\n")[0].split())
            .replace(":func:", "")
            .replace("`", "")
        )
        parts = [f"/** {words} */", f"export type {cls.__name__} = {{"]
        for part in kind.fields:
            mark = "" if part.required else "?"
            parts.append(f"  {part.name}{mark}: {_type(part.type, records)};")
        records[cls.__name__] = "\n".join([*parts, "};", ""])
    return cls.__name__


def _synced(widget: type[Explorer]) -> dict[str, traitlets.TraitType[Any, Any]]:
    """Traits of a widget that are synchronised with the browser, without those that every widget
    has.
    """
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


if __name__ == "__main__":
    for one in ROOMS:
        written(one).write_text(declarations(one), "utf-8")
