"""Typed decoding of JSON objects that keeps what fits where a field has another type than expected."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

Kind = TypeVar("Kind", bound=msgspec.Struct)

UNFIT: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, Any]])


class ListDecoder(Generic[Kind]):
    """Decodes a list of objects of one kind.

    Attributes
    ----------
    wrong_types : int
        Fields and objects that were dropped so far because of their type.
    """

    def __init__(self, kind: type[Kind]) -> None:
        self.kind = kind
        self.wrong_types = 0
        self._decoder: msgspec.json.Decoder[list[Kind]] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    def __call__(self, texts: Sequence[msgspec.Raw]) -> list[Kind]:
        """One object for each text, with default values for what does not fit."""
        try:
            return self._decoder.decode(b"[" + b",".join(texts) + b"]")
        except UNFIT:
            pass
        found = []
        for text in texts:
            fitted, wrong = fit(self.kind, text)
            found.append(fitted)
            self.wrong_types += wrong
        return found


def objects(texts: Sequence[msgspec.Raw]) -> list[dict[str, Any]]:
    """Each text as an object; an empty one for what is none."""
    try:
        return _OBJECTS.decode(b"[" + b",".join(texts) + b"]")
    except UNFIT:
        return [_object(text) for text in texts]


def _object(text: msgspec.Raw) -> dict[str, Any]:
    try:
        return _OBJECT.decode(text)
    except UNFIT:
        return {}


def fit(kind: type[Kind], text: msgspec.Raw | bytes) -> tuple[Kind, int]:
    """An object of a kind, and the number of its fields that do not fit.

    Numbers written as text count as numbers; a field that does not fit keeps its default.
    """
    out = kind()
    try:
        members = _MEMBERS.decode(text)
    except UNFIT:
        return out, int(bytes(text) != b"null")
    wrong = 0
    fields = _fields(kind)
    for key, value in members.items():
        if key not in fields:
            continue
        name, decoder = fields[key]
        try:
            setattr(out, name, decoder.decode(value))
        except UNFIT:
            wrong += 1
    return out, wrong


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[str, msgspec.json.Decoder[Any]]]:
    return {
        field.encode_name: (field.name, msgspec.json.Decoder(field.type, strict=False))
        for field in msgspec.structs.fields(kind)
    }
