"""Checking values against the types that a dataclass declares, with errors that name the key."""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

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

    Whole numbers pass as numbers, lists as tuples, paths as text; nothing else is converted, so that ``"4"`` or
    ``yes`` in the wrong place is an error and not a guess.

    Parameters
    ----------
    value : object
        What was given.
    hint : type
        ``str, int, float, bool, None``, ``Literal``, unions, ``list[X]``, ``tuple[X, Y]``, ``dict[str, X]``, ``Any``.
    name : str
        Key, for the error.

    Returns
    -------
    object
        The value, converted where that is safe.

    Raises
    ------
    ConfigError
        It is of another type.
    """
    if hint is Any:
        return value
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value in args and isinstance(value, str):
            return value
        raise ConfigError(
            f"{name} is {value!r}", expected=f"one of {', '.join(map(str, args))}", hint=nearest(value, args)
        )
    if origin in {typing.Union, types.UnionType}:
        for one in args:
            if fits(value, one):
                return checked(value, one, name)
        raise _wrong(value, hint, name)
    if not fits(value, hint):
        raise _wrong(value, hint, name)
    if origin is list:
        return [checked(item, args[0], f"{name}[{i}]") for i, item in enumerate(value)]
    if origin is tuple:
        return tuple(checked(item, one, f"{name}[{i}]") for i, (item, one) in enumerate(zip(value, args, strict=True)))
    if origin is dict:
        return {checked(key, str, f"a key of {name}"): checked(v, args[1], f"{name}.{key}") for key, v in value.items()}
    return float(value) if hint is float else str(value) if hint is str else value


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the outer form of a type; what is inside a container is not looked at."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        return any(fits(value, one) for one in args)
    if hint is Any or origin is Literal:
        return hint is Any or value in args
    if origin is tuple:
        return isinstance(value, list | tuple) and len(value) == len(args)
    if hint is float:
        return fits(value, int) or (isinstance(value, float) and math.isfinite(value))
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    outer: dict[Any, Any] = {list: list | tuple, dict: Mapping, str: str | Path}
    return isinstance(value, outer.get(origin or hint, hint))


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
    if isinstance(value, str) and any(fits(0, one) for one in (hint, *typing.get_args(hint))):
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
