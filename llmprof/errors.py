"""Errors of llmprof: one base class, each kind carrying the facts it was raised for.

Every message says what was found, what was expected and what to do about it. The arguments of all
functions that a room exports are checked against their annotations (:func:`door`)::

    >>> from llmprof import analyze
    >>> analyze.overlap("trace.json")
    Traceback (most recent call last):
    llmprof.errors.ArgumentError: overlap() got 'trace.json' as trace; expected Trace; read it
    first: llmprof.read('trace.json').
"""

from __future__ import annotations

import inspect
import math
import os
import reprlib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from numbers import Integral, Real
from types import FunctionType, ModuleType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

P = ParamSpec("P")
R = TypeVar("R")


def listed(items: Iterable[object]) -> str:
    """Items joined by commas for a sentence; ``none`` if there are no items.

    >>> listed(["prefill", "decode"]), listed([]), listed((0, 1))
    ('prefill, decode', 'none', '0, 1')
    """
    return ", ".join(map(str, items)) or "none"


def one_of(known: Sequence[str], near: Sequence[str] = ()) -> str:
    """What was expected: one of some names; where only near ones are listed, of how many.

    >>> one_of(["a", "b"]), one_of(["a", "b"], ["b"])
    ('one of a, b', 'one of 2 names, such as b')
    """
    return (
        f"one of {len(known)} names, such as {listed(near)}" if near else f"one of {listed(known)}"
    )


class LlmprofError(Exception):
    """Base of every error that llmprof raises on purpose.

    Parameters
    ----------
    found : str
        What was found.
    expected : str, optional
        What was expected instead.
    hint : str, optional
        What the user can do about it.
    **facts
        Machine-readable details, kept in ``facts``.
    """

    remedy: ClassVar[str] = ""
    """The hint of an error of this class that has none of its own."""

    def __init__(self, found: str, *, expected: str = "", hint: str = "", **facts: object) -> None:
        self.found = found
        self.expected = expected
        self.hint = hint or self.remedy
        self.facts = facts
        super().__init__(found)

    def __str__(self) -> str:
        parts = [self.found, f"expected {self.expected}" if self.expected else "", self.hint]
        message = "; ".join(part.rstrip(".") for part in parts if part)
        return message if message.endswith(("?", "!")) else f"{message}."

    def about(self, what: str) -> None:
        """Name the file or folder that the error is about, unless it names one; keep it in
        ``facts``.
        """
        if "path" in self.facts:
            return
        self.facts["path"] = what
        if what not in self.found:
            self.found = f"{what}: {self.found}"


class ArgumentError(LlmprofError, TypeError):
    """An argument has a kind that the function does not accept; the message names both kinds."""


class ReadError(LlmprofError):
    """A file or folder could not be read as a trace."""

    remedy = (
        "check that it is the whole file that the profiler wrote; if it is, record or export it"
        " again"
    )


class UnknownFormatError(ReadError):
    """No reader recognises the content."""

    remedy = "pass the file that the profiler wrote, as it wrote it"


class MixedRunsError(ReadError):
    """The files do not belong to one run, or two of them have the same rank."""

    remedy = "read each run separately"


class SchemaError(LlmprofError):
    """A frame does not conform to the schema."""

    remedy = "docs/reference.md lists the tables and the types of their columns"


class NotCapturedError(LlmprofError):
    """The capture does not have the requested data; the hint names the profiler option that
    records them.
    """


class IncompleteError(NotCapturedError):
    """Much of what was launched was not recorded, so that a comparison would be of the recordings,
    not of the runs.
    """


class AnalysisError(LlmprofError):
    """The data exist but do not allow the requested analysis."""


class DefectError(AnalysisError):
    """One part of a result could not be made, by a fault of llmprof; the others were.

    Its cause is what was raised.
    """

    remedy = (
        "the same command, or its --resume with the folder of a run, makes it again, and with"
        " --debug shows the traceback: please report this fault of llmprof"
    )


class OutputError(LlmprofError):
    """A result could not be written."""


class ConfigError(LlmprofError):
    """The description of a run is wrong: an unknown key, a wrong type, or options that
    contradict each other.
    """


class LaunchError(LlmprofError):
    """A run could not be started, or its engine or profiler failed."""


class CaptureError(LaunchError):
    """The profiler ran, but its recording is empty or incomplete."""


class ClusterError(LlmprofError):
    """The workers of a cluster cannot be reached, or are lost."""


def nearest(word: object, known: Iterable[str]) -> str:
    """``did you mean X?`` with the known words nearest to a word; empty if there is none."""
    import difflib  # here, since few imports of llmprof end in it

    # dashes, underscores and capital letters are what people mix up
    by_letters = {one.strip("-").replace("-", "_").lower(): one for one in known}
    letters = str(word).strip("-").replace("-", "_").lower()
    near = [by_letters[one] for one in difflib.get_close_matches(letters, by_letters, 2, 0.5)]
    return f"did you mean {' or '.join(near)}?" if near else ""


def no_attribute(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for an attribute that does not exist, with the names that are nearest to it."""
    parts = [f"{owner} has no attribute {name!r}", nearest(name, known)]
    return AttributeError("; ".join(filter(None, parts)), name=name)


@contextmanager
def needs(
    package: str, what: str, extra: str, kind: type[LlmprofError] = LlmprofError, more: str = ""
) -> Iterator[None]:
    """Where an import in this block fails, say what needs the package, and how to install it."""
    try:
        yield
    except ImportError as error:
        found = f"{what} the package {package}, which is not installed"
        raise kind(found, hint=f"pip install 'llmprof[{extra}]'{more}") from error


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Make one of several parts: what it raises by a fault of llmprof becomes a warning and a
    :class:`DefectError`.
    """
    try:
        yield
    except (LlmprofError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except (
        BaseException
    ) as error:  # also a panic of Polars, which is no Exception: no part may cost the others
        failed = DefectError(f"{what} failed: {type(error).__name__}: {error}")
        warning = TraceWarning(str(failed))
        warning.__cause__ = error
        warnings.warn(warning, stacklevel=3)
        raise failed from error


class TraceWarning(UserWarning):
    """A part of a trace was lost, was repaired or looks wrong; the rest was read."""


class PluginWarning(UserWarning):
    """A plug-in of another package cannot be used, or reads the same files as another reader;
    the rest works.
    """


# --- arguments of public functions


@dataclass(frozen=True)
class ArgumentKind:
    """A note in an annotation: its values in words, and a function that hands one on.

    The function raises a TypeError for a value of another kind, and a ValueError for one that is
    out of range.
    """

    words: str
    take: Callable[[Any], Any]


def _names(given: Any) -> tuple[str, ...]:
    taken = _take(given, str | Collection[str])
    return (taken,) if isinstance(taken, str) else tuple(dict.fromkeys(taken))


def _start_and_end(given: Any) -> tuple[float, float]:
    start, end = _take(given, tuple[float, float])
    if not start <= end:
        raise ValueError("does not end after it starts")
    return start, end


def _within(low: float, high: float = math.inf, kind: type = int) -> Callable[[Any], Any]:
    def take(given: Any) -> Any:
        number = _take(given, kind)
        if not low <= number <= high:
            raise ValueError("is out of range")
        return number

    return take


Columns = Annotated[Sequence[str], ArgumentKind("the name of a column, or several", _names)]
"""Names of columns; a single one may be given as a string."""

Window = Annotated[tuple[float, float], ArgumentKind("(start_ns, end_ns)", _start_and_end)]
"""Start and end in ns from the start of the trace; the end is not part of it."""

NotNegative = Annotated[int, ArgumentKind("a whole number from 0 on", _within(0))]
AtLeastOne = Annotated[int, ArgumentKind("a whole number from 1 on", _within(1))]
Share = Annotated[float, ArgumentKind("a number from 0 to 1", _within(0, 1, float))]
"""A part of a whole."""


def _take(given: Any, hint: Any) -> Any:
    """A value as an annotation asks for it; a TypeError or a ValueError if it does not fit."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated and isinstance(inside[1], ArgumentKind):
        return inside[1].take(given)
    if origin in (Union, UnionType):
        wrong: Exception = TypeError()
        for one in inside:
            try:
                return _take(given, one)
            except TypeError:
                continue
            except ValueError as error:  # of the right type, but another alternative may take it
                wrong = error
        raise wrong
    if origin is Literal:
        if given not in inside:
            raise ValueError("is not known")
        return given
    # numbers of numpy are numbers, and True is none
    if hint in (int, float):
        is_number: bool = isinstance(given, Integral if hint is int else Real)
        if isinstance(given, bool) or not is_number:
            raise TypeError
        return given if isinstance(given, int | float) else hint(given)
    if origin is tuple and Ellipsis not in inside:
        if not isinstance(given, tuple | list) or len(given) != len(inside):
            raise TypeError
        return tuple(map(_take, given, inside))
    kind = Sequence if origin in (list, tuple) else origin or hint
    if isinstance(kind, type) and kind is not Any and not getattr(kind, "_is_protocol", False):
        if not isinstance(given, kind) or (origin and isinstance(given, str | bytes)):
            raise TypeError
        # the values of a mapping may be loaded at their first use, an iterator is used up
        if inside and isinstance(given, Collection) and not isinstance(given, Mapping):
            for item in given:
                _take(item, inside[0])
    return given


def _words(hint: Any) -> str:
    """What an annotation asks for."""
    inside = get_args(hint)
    if get_origin(hint) is Annotated:
        return str(inside[1].words)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_words, inside))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, inside))
    return _name(hint) if isinstance(hint, type) else str(hint).replace("collections.abc.", "")


def _name(kind: type) -> str:
    package = kind.__module__.partition(".")[0]
    own = package in ("llmprof", "builtins", "pathlib")
    return kind.__name__.removesuffix("Type") if own else f"{package}.{kind.__name__}"


def described(value: object) -> str:
    """A value in a few words."""
    if value is None or isinstance(value, str | int | float | list | tuple):
        return reprlib.repr(value)
    return f"a {_name(type(value))}"


_ADVICE: Final = {
    ("Trace", "path"): "read it first: llmprof.read({!r})",
    ("Trace", "Run"): "pass the trace of the run: run.trace",
    ("Trace", "Metrics"): "read the timeline: llmprof.read(path)",
    ("Metrics", "path"): "read it first: llmprof.read_metrics({!r})",
    ("Metrics", "Run"): "pass the metrics of the run (mode ncu): run.metrics",
    ("polars.DataFrame", "pandas.DataFrame"): "convert it first: polars.from_pandas(frame)",
    ("polars.DataFrame", "polars.LazyFrame"): "collect it first: frame.collect()",
    ("polars.DataFrame", "Trace"): "pass the frame that an analysis of the trace returns; the"
    " docstring names the analysis",
}
"""What to do, by what is asked for and what is given."""


def _argument(function: Callable[..., Any], name: str, given: Any, hint: Any) -> Any:
    """An argument as the function takes it."""
    try:
        return _take(given, hint)
    except ValueError as error:
        found = f"{name}={reprlib.repr(given)} {error}"
        raise AnalysisError(found, expected=_words(hint), argument=name) from None
    except TypeError:
        expected = _words(hint)
        is_path = isinstance(given, str | os.PathLike)
        what = "path" if is_path else _name(type(given))
        hint = next((do for (to, of), do in _ADVICE.items() if to in expected and of == what), "")
        raise ArgumentError(
            f"{function.__name__}() got {described(given)} as {name}",
            expected=expected,
            hint=hint.format(str(given)),
            argument=name,
        ) from None


@cache
def _declared(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Signature and annotations of a function; at its first call, since its module is imported."""
    return inspect.signature(function), get_type_hints(function, include_extras=True)


def bound(function: Callable[..., Any], *args: Any, **kwargs: Any) -> inspect.BoundArguments:
    """The arguments of a call as the function takes them; an error says what it does not take."""
    signature, hints = _declared(function)
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [name for name in signature.parameters if name != "self"]
        unknown = next((name for name in kwargs if name not in names), "")
        raise ArgumentError(
            f"{function.__name__}(): {error}",
            expected=f"its arguments: {', '.join(names)}",
            hint=nearest(unknown, names),
        ) from None
    for name, value in given.arguments.items():
        parameter, hint = signature.parameters[name], hints.get(name, Any)
        if parameter.kind is parameter.VAR_POSITIONAL:
            given.arguments[name] = tuple(_argument(function, name, one, hint) for one in value)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            given.arguments[name] = _argument(function, name, value, hint)
    return given


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a function before each call."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = bound(function, *args, **kwargs)
        return function(*given.args, **given.kwargs)

    return call


def several(given: Any) -> Any:
    """A value or several as a list; None if not given."""
    return given if given is None else [given] if isinstance(given, str | int) else list(given)


def refuse_unknown(names: Iterable[str], known: Collection[str], argument: str) -> None:
    """Check that columns exist."""
    if unknown := [name for name in names if name not in known]:
        found = f"{argument}: there is no column {' and no '.join(map(repr, unknown))}"
        raise AnalysisError(
            found,
            expected=f"some of {', '.join(known)}",
            hint=nearest(unknown[0], known),
            argument=argument,
        )


def door(
    exported: dict[str, Any], later: Mapping[str, str] | None = None, rooms: Collection[str] = ()
) -> None:
    """Make the ``globals()`` of a package its door: what it imported is all that it shows.

    Arguments of its functions are checked, and a name that it does not have is answered with the
    nearest one that it has. Of modules only ``rooms`` are shown. The names of each module in
    ``later`` are imported at their first use: those of higher rooms, and what draws.
    """
    names = [
        name
        for name, value in exported.items()
        if name in rooms
        or not (
            name.startswith("_")
            or name.isupper()
            or isinstance(value, ModuleType)
            or getattr(value, "__module__", None) == __name__
        )
    ]
    for name in names:
        if isinstance(exported[name], FunctionType):
            exported[name] = checked(exported[name])
    places = {name: place for place, words in (later or {}).items() for name in words.split()}
    names += places
    added = exported.get("__getattr__", lambda name: None)

    def absent(name: str) -> Any:
        if name in places:
            module = import_module(f"llmprof.{places[name]}")
            value = getattr(module, name, module)
            exported[name] = checked(value) if isinstance(value, FunctionType) else value
            return exported[name]
        if (value := added(name)) is not None:
            return value
        raise no_attribute(f"module {exported['__name__']!r}", name, names)

    exported |= {"__all__": names, "__dir__": lambda: names, "__getattr__": absent}
