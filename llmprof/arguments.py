"""Checks of the arguments of public functions, made from their annotations.

:func:`checked` refuses an argument of the wrong kind with an error that names the argument and the
expected kind::

    >>> from llmprof import analyze
    >>> analyze.overlap("trace.json")
    Traceback (most recent call last):
    llmprof.errors.ArgumentError: overlap() got the string 'trace.json' as trace; expected a Trace;
    read it first: ...

The rooms of llmprof check all functions that they export (:func:`door`); a function needs
only annotations. Runtime type checkers (typeguard, beartype) do not serve here: their errors name
types but no remedy, they have no kinds for windows and names of columns, and they refuse numpy's
numbers.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import numbers
import operator
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, Final, Literal, ParamSpec, TypeVar

from llmprof.errors import AnalysisError, ArgumentError, no_attribute

__all__ = [
    "AtLeastOne",
    "Columns",
    "NotNegative",
    "Share",
    "Window",
    "check",
    "checked",
    "door",
    "refuse_unknown",
    "several",
]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of an argument: the values that it may have."""

    words: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] | None = None
    refuse: Callable[[Any], str] | None = None


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _are(value: Any, kind: Any, each: Callable[[Any], bool]) -> bool:
    return (
        isinstance(value, kind) and not isinstance(value, str | Mapping) and all(map(each, value))
    )


Columns = Annotated[
    Sequence[str],
    Kind(
        "the name of a column or a sequence of names",
        lambda value: (
            isinstance(value, str) or _are(value, Collection, lambda name: isinstance(name, str))
        ),
        convert=lambda names: (names,) if isinstance(names, str) else tuple(dict.fromkeys(names)),
    ),
]
"""Names of columns; a single one may be given as a string."""

Window = Annotated[
    tuple[float, float],
    Kind(
        "(start_ns, end_ns)",
        lambda value: _are(value, Sequence, _is_number) and len(value) == 2,
        convert=lambda window: (window[0], window[1]),
        refuse=lambda window: "" if window[0] <= window[1] else "does not end after it starts",
    ),
]
"""Start and end in ns from the start of the trace; the end is not part of it."""


def _whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


NotNegative = Annotated[
    int,
    Kind(
        "a whole number from 0 on",
        _whole,
        operator.index,
        lambda number: "is negative" if number < 0 else "",
    ),
]
"""A whole number from 0 on."""

AtLeastOne = Annotated[
    int,
    Kind(
        "a whole number from 1 on",
        _whole,
        operator.index,
        lambda number: "is less than 1" if number < 1 else "",
    ),
]
"""A whole number from 1 on."""

Share = Annotated[
    float,
    Kind(
        "a number from 0 to 1",
        _is_number,
        float,
        lambda share: "" if 0 <= share <= 1 else "is not from 0 to 1",
    ),
]
"""A part of a whole."""


def several(given: Any) -> Any:
    """A value or several as a list; None if not given."""
    return given if given is None else [given] if isinstance(given, str | int) else list(given)


def refuse_unknown(names: Iterable[str], known: Collection[str], argument: str) -> None:
    """Check that columns exist."""
    if unknown := [name for name in names if name not in known]:
        found = f"{argument}: there is no column {' and no '.join(map(repr, unknown))}"
        raise AnalysisError(found, expected=f"some of {', '.join(known)}", argument=argument)


_ANYTHING: Final = Kind("anything", lambda value: True)
_SIMPLE: Final[dict[Any, Kind]] = {
    Any: _ANYTHING,
    object: _ANYTHING,
    inspect.Parameter.empty: _ANYTHING,
    None: Kind("None", lambda value: value is None),
    type(None): Kind("None", lambda value: value is None),
    bool: Kind("True or False", lambda value: isinstance(value, bool)),
    int: Kind("a whole number", _whole, operator.index),
    float: Kind(
        "a number",
        _is_number,
        lambda number: number if isinstance(number, int | float) else float(number),
    ),
    str: Kind("a string", lambda value: isinstance(value, str)),
    bytes: Kind("bytes", lambda value: isinstance(value, bytes)),
    os.PathLike: Kind("a path", lambda value: isinstance(value, os.PathLike)),
}
_PLURALS: Final = {
    "a string": "strings",
    "a path": "paths",
    "a number": "numbers",
    "a whole number": "whole numbers",
}


def kind_of(annotation: Any) -> Kind:
    """The kind that an annotation stands for; an unknown annotation accepts anything."""
    if isinstance(annotation, typing.Hashable) and annotation in _SIMPLE:
        return _SIMPLE[annotation]
    origin = typing.get_origin(annotation)
    if origin is not None:
        return _made_of(origin, typing.get_args(annotation))
    if isinstance(annotation, type) and not getattr(annotation, "_is_protocol", False):
        return Kind(
            _with_article(_public_name(annotation)), lambda value: isinstance(value, annotation)
        )
    return _ANYTHING


def _made_of(origin: Any, inside: tuple[Any, ...]) -> Kind:
    """The kind of an annotation with parameters in brackets, or of a union."""
    if origin is Annotated:
        return next((note for note in inside[1:] if isinstance(note, Kind)), kind_of(inside[0]))
    if origin in (typing.Union, types.UnionType):
        return _any_of([kind_of(argument) for argument in inside])
    if origin is Literal:
        kinds = tuple({type(value) for value in inside})
        return Kind(
            " or ".join(map(repr, inside)),
            lambda value: isinstance(value, kinds),
            refuse=lambda value: "" if value in inside else "is not known",
        )
    if origin in _SIMPLE:
        return _SIMPLE[origin]
    if origin is type:
        return Kind("a class", lambda value: isinstance(value, type))
    if origin is collections.abc.Callable:
        return Kind("a callable", callable)
    return _container(origin, inside) if isinstance(origin, type) else _ANYTHING


def _any_of(kinds: Sequence[Kind]) -> Kind:
    words = list(dict.fromkeys(kind.words for kind in kinds))
    if "a path" in words and "a string" in words:
        words.remove("a string")

    def first(value: Any) -> Kind | None:
        return next((kind for kind in kinds if kind.accepts(value)), None)

    def convert(value: Any) -> Any:
        kind = first(value)
        return value if kind is None or kind.convert is None else kind.convert(value)

    def refuse(value: Any) -> str:
        kind = first(value)
        return "" if kind is None or kind.refuse is None else kind.refuse(value)

    return Kind(" or ".join(words), lambda value: first(value) is not None, convert, refuse)


def _container(origin: type, inside: tuple[Any, ...]) -> Kind:
    """The kind of a sequence, mapping, set or tuple; the items of an iterator are not checked."""
    if issubclass(origin, Mapping):
        keys, values = (kind_of(argument) for argument in (*inside, Any, Any)[:2])
        return Kind(
            "a mapping",
            lambda value: (
                isinstance(value, Mapping)
                and (
                    getattr(value, "loads_values", False)  # checking the values would load them
                    or all(
                        keys.accepts(key) and values.accepts(item) for key, item in value.items()
                    )
                )
            ),
        )
    if origin is tuple and inside and inside[-1] is not Ellipsis:
        parts = [kind_of(argument) for argument in inside]
        return Kind(
            f"({', '.join(part.words for part in parts)})",
            lambda value: (
                isinstance(value, tuple | list)
                and len(value) == len(parts)
                and all(part.accepts(item) for part, item in zip(parts, value, strict=True))
            ),
        )
    each = kind_of(inside[0]) if inside else _ANYTHING
    base = Sequence if issubclass(origin, tuple | list) else origin
    plural = _PLURALS.get(each.words, f"{each.words.removeprefix('a ').removeprefix('an ')}s")
    words = (
        "an iterable"
        if base is Iterable
        else "a set"
        if issubclass(base, frozenset | set)
        else "a sequence"
    )

    def accepts(value: Any) -> bool:
        if isinstance(value, str | bytes) or not isinstance(value, base):
            return False
        return not isinstance(value, Collection) or all(map(each.accepts, value))

    return Kind(words if each is _ANYTHING else f"{words} of {plural}", accepts)


def _public_name(kind: type) -> str:
    package = kind.__module__.partition(".")[0]
    return (
        kind.__name__
        if package in ("llmprof", "builtins", "pathlib")
        else f"{package}.{kind.__name__}"
    )


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def described(value: Any) -> str:
    """A value in a few words."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return f"the string {_short(repr(value))}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, tuple | list) and len(value) <= 3:
        return _short(repr(value))
    return _with_article(_public_name(type(value)))


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


def _advice(kind: Kind, value: Any) -> str:
    """Advice for an argument of the wrong kind, if there is an obvious one."""
    is_path = isinstance(value, str | os.PathLike)
    name, package = type(value).__name__, type(value).__module__.partition(".")[0]
    if "Trace" in kind.words:
        if is_path:
            return f"read it first: llmprof.read({_short(repr(os.fspath(value)))})"
        if name in ("Run", "Metrics") and package == "llmprof":
            return (
                "pass the trace of the run: run.trace"
                if name == "Run"
                else "read the timeline: llmprof.read(path)"
            )
    if "Metrics" in kind.words:
        if is_path:
            return f"read it first: llmprof.read_metrics({_short(repr(os.fspath(value)))})"
        if name == "Run":
            return "pass the metrics of the run (mode ncu): run.metrics"
    if "polars.DataFrame" in kind.words:
        if package == "pandas":
            return "convert it first: polars.from_pandas(frame)"
        if name == "LazyFrame":
            return "collect it first: frame.collect()"
        if name == "Trace":
            return (
                "pass the frame that an analysis of the trace returns; the docstring names the"
                " analysis"
            )
    return ""


@dataclass(slots=True)
class _Checks:
    """The checks of one function, made at its first call: annotations may name classes that are
    imported later.
    """

    function: Callable[..., Any]
    signature: inspect.Signature = field(init=False)
    kinds: dict[str, Kind] = field(init=False)
    rest: dict[str, Kind] = field(init=False)

    def __post_init__(self) -> None:
        self.signature = inspect.signature(self.function)
        self.kinds, self.rest = {}, {}
        for name, parameter in self.signature.parameters.items():
            kind = self._kind(parameter.annotation)
            if kind is _ANYTHING:
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                self.rest[name] = kind
            else:
                self.kinds[name] = kind

    def _kind(self, annotation: Any) -> Kind:
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, inspect.unwrap(self.function).__globals__)  # noqa: S307 (our own source)
            except NameError:  # imported for type checkers only
                return _ANYTHING
        return kind_of(annotation)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Bind and check the arguments; returns them converted for the function."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            expected = (
                "its arguments:"
                f" {', '.join(name for name in self.signature.parameters if name != 'self')}"
            )
            raise ArgumentError(f"{self.function.__name__}(): {error}", expected=expected) from None
        for name, value in bound.arguments.items():
            if name in self.kinds:
                bound.arguments[name] = self._checked(name, self.kinds[name], value)
            elif name in self.rest:
                for each in value.values() if isinstance(value, dict) else value:
                    self._checked(name, self.rest[name], each)
        return bound

    def _checked(self, name: str, kind: Kind, value: Any) -> Any:
        if not kind.accepts(value):
            found = f"{self.function.__name__}() got {described(value)} as {name}"
            raise ArgumentError(
                found, expected=kind.words, hint=_advice(kind, value), argument=name
            )
        if kind.refuse is not None and (wrong := kind.refuse(value)):
            raise AnalysisError(
                f"{name}={_short(repr(value))} {wrong}", expected=kind.words, argument=name
            )
        return value if kind.convert is None else kind.convert(value)


def check(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Check the arguments of a call that is made elsewhere, or in parts, and return them."""
    return _Checks(function).bind(args, kwargs).arguments


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a function before each call."""
    if hasattr(function, "__checks__"):
        return function
    checks: _Checks | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal checks
        if checks is None:
            checks = _Checks(function)
        bound = checks.bind(args, kwargs)
        return function(*bound.args, **bound.kwargs)

    call.__checks__ = True  # type: ignore[attr-defined]
    return call


def door(exported: dict[str, Any], *rooms: str, **later: str) -> None:
    """Make the ``globals()`` of a package its door: what it imported is all that it shows.

    Arguments of its functions are checked, and a name that it does not have is answered with the
    nearest one that it has. Of modules only ``rooms`` are shown. Names of higher rooms, ``later``
    with the module of each, are imported at their first use.
    """
    own = (__name__, "llmprof.errors")
    names = [
        name
        for name, value in exported.items()
        if name in rooms
        or not (
            name.startswith("_")
            or name.isupper()
            or isinstance(value, types.ModuleType)
            or getattr(value, "__module__", None) in own
        )
    ]
    for name in names:
        if isinstance(exported[name], types.FunctionType):
            exported[name] = checked(exported[name])
    names += later
    added = exported.get("__getattr__", lambda name: None)

    def absent(name: str) -> Any:
        if name in later:
            module = import_module(f"llmprof.{later[name]}")
            value = getattr(module, name, module)
            exported[name] = checked(value) if isinstance(value, types.FunctionType) else value
            return exported[name]
        if (value := added(name)) is not None:
            return value
        raise no_attribute(f"module {exported['__name__']!r}", name, names)

    exported |= {"__all__": names, "__dir__": lambda: names, "__getattr__": absent}
