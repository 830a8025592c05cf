"""Checking values against the types that a dataclass declares, with errors that name the key."""

from __future__ import annotations

import difflib
import math
import re
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from llmprof.errors import ConfigError

_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
    type(None): "null",
}


def checked(value: Any, hint: Any, name: str) -> Any:
    """Value in the type that was declared.

    Whole numbers pass as numbers and lists as tuples; nothing else is converted, so that ``"4"`` or ``yes`` in the
    wrong place is an error and not a guess.

    Parameters
    ----------
    value : object
        What was given.
    hint : type
        Any type that msgspec knows.
    name : str
        Key, for the error.

    Returns
    -------
    object
        The value, converted where that is safe.

    Raises
    ------
    ConfigError
        It is of another type, or a number is not finite.
    """
    plain = str(value) if isinstance(value, Path) else value
    try:
        converted = msgspec.convert(plain, hint, strict=True)
    except msgspec.ValidationError as error:
        raise _refusal(plain, hint, name, str(error)) from error
    if isinstance(converted, float) and not math.isfinite(converted):
        raise _wrong(value, hint, name)
    return converted


def _refusal(value: Any, hint: Any, name: str, problem: str) -> ConfigError:
    """The error of msgspec in the words of a configuration, with the place inside the value that it names."""
    for step in re.findall(r"\[(\d+|\.\.\.)\]|`(key)` in", problem):
        if step[0] == "...":
            declared = typing.get_args(hint)[1]
            key = next(key for key, one in value.items() if not _converts(one, declared))
            value, hint, name = value[key], declared, f"{name}.{key}"
        elif step[1]:
            declared = typing.get_args(hint)[0]
            key = next(key for key in value if not _converts(key, declared))
            value, hint, name = key, declared, f"a key of {name}"
        else:
            value, hint, name = value[int(step[0])], _items(hint, int(step[0])), f"{name}[{step[0]}]"
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return ConfigError(
            f"{name} is {value!r}",
            expected=f"one of {', '.join(map(str, choices))}",
            hint=nearest(value, choices),
            key=name,
        )
    return _wrong(value, hint, name)


def _converts(value: Any, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError:
        return False
    return True


def _items(hint: Any, index: int) -> Any:
    """Type of an item of a list or tuple, which may be one of several types that were declared."""
    for one in (hint, *typing.get_args(hint)):
        origin, args = typing.get_origin(one), typing.get_args(one)
        if origin is list:
            return args[0]
        if origin is tuple:
            return args[index]
    return hint


def nearest(key: object, known: Iterable[object]) -> str:
    """``did you mean X?`` for the known key that is most like one; empty where none is."""
    names = [str(k) for k in known]
    found = difflib.get_close_matches(str(key).replace("-", "_").lower(), names, n=1, cutoff=0.6)
    return f"did you mean {found[0]}?" if found else ""


def refuse_unknown(given: Iterable[object], known: Iterable[str], what: str) -> None:
    """Raise for the first key that is not known.

    Raises
    ------
    ConfigError
        With the nearest known key.
    """
    names = list(known)
    for key in given:
        if key not in names:
            raise ConfigError(
                f"{what} has the unknown key {key!r}",
                expected="" if nearest(key, names) else f"some of {', '.join(names)}",
                hint=nearest(key, names),
                key=key,
            )


def _wrong(value: Any, hint: Any, name: str) -> ConfigError:
    kind = _WORDS.get(type(value), type(value).__name__)
    text = repr(value)
    if len(text) > 60:
        text = f"{text[:60]}…"
    advice = ""
    if isinstance(value, str) and any(_converts(0, one) for one in (hint, *typing.get_args(hint))):
        advice = "write it without quotes; a number such as 1e-3 needs a dot in YAML: 1.0e-3"
    return ConfigError(f"{name} is {kind}: {text}", expected=_words(hint), hint=advice, key=name)


def _words(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(_words(one) for one in args)
    if origin is list:
        return f"a list of {_words(args[0]).removeprefix('a ')}"
    if origin is tuple:
        return f"a list of {len(args)} values"
    if origin is Literal:
        return f"one of {', '.join(args)}"
    return _WORDS.get(origin or hint, str(hint))
