"""Conditions on a server's counters:

``ttft_p99 > 500ms for 30s and waiting > 4``, read by a parser and never run.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput, VisitError

from llmprof.errors import ConfigError, listed, nearest
from llmprof.run.live.counters import LENGTHS, QUANTILES, TIMES
from llmprof.units import SECONDS

_GRAMMAR: Final = r"""
start: any
?any: all ("or" all)*
?all: term ("and" term)*
?term: "not" term -> negated
     | "(" any ")" [_for]
     | NAME COMPARED value [_for] -> compared
_for: "for" span
value: NUMBER UNIT?
span: NUMBER UNIT?
COMPARED: ">=" | "<=" | ">" | "<"
NAME: /(?!(?:and|or|not|for)\b)[a-z_][a-z0-9_]*/
UNIT: /ns|us|ms|s(?![a-z])|min|m(?![a-z])|h(?![a-z])|%/
NUMBER: /\d+(?:\.\d+)?(?:e[+-]?\d+)?/
%ignore /\s+/
"""
_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

TIME_NAMES: Final = tuple(f"{name}_{part}" for name in TIMES for part in (*QUANTILES, "mean"))
"""Names of times: their limits need a unit."""
SHARE_NAMES: Final = ("kv_usage", "hit_rate")
"""Names of shares: 0.9 or 90%."""
OTHER_NAMES: Final = (
    *(
        "running",
        "waiting",
        "prompt_tokens_per_s",
        "output_tokens_per_s",
        "requests_per_s",
        "arrivals_per_s",
    ),
    "preemptions_per_s",
    *(f"{name}_mean" for name in LENGTHS),
)
NAMES: Final = (*TIME_NAMES, *SHARE_NAMES, *OTHER_NAMES)
"""Every name that a condition may use; all are columns of the history."""


@dataclass(slots=True)
class _Compared:
    name: str
    sign: str
    limit: float

    def holds(self, row: Mapping[str, Any], now_s: float) -> bool | None:
        value = row.get(self.name)
        return None if value is None else _COMPARE[self.sign](float(value), self.limit)


@dataclass(slots=True)
class _Lasting:
    """A condition that has to hold without a break for some time; what is unknown breaks it."""

    inner: Any
    for_s: float
    since_s: float | None = None

    def holds(self, row: Mapping[str, Any], now_s: float) -> bool | None:
        holds = self.inner.holds(row, now_s)
        if not holds:
            self.since_s = None
            return holds  # type: ignore[no-any-return]
        self.since_s = now_s if self.since_s is None else self.since_s
        return now_s - self.since_s >= self.for_s


@dataclass(slots=True)
class _Several:
    parts: list[Any]
    every: bool

    def holds(self, row: Mapping[str, Any], now_s: float) -> bool | None:
        each = [
            part.holds(row, now_s) for part in self.parts
        ]  # each is asked, so that each keeps its time
        decided = (False in each) if self.every else (True in each)
        return not self.every if decided else None if None in each else self.every


@dataclass(slots=True)
class _Not:
    inner: Any

    def holds(self, row: Mapping[str, Any], now_s: float) -> bool | None:
        holds = self.inner.holds(row, now_s)
        return None if holds is None else not holds


class _Built(Transformer[Token, Any]):
    """Objects that decide, from the tree of the parser."""

    def start(self, items: list[Any]) -> Any:
        return items[0]

    def any(self, items: list[Any]) -> Any:
        return _Several(items, every=False)

    def all(self, items: list[Any]) -> Any:
        return _Several(items, every=True)

    def negated(self, items: list[Any]) -> Any:
        return _Not(items[0])

    def term(self, items: list[Any]) -> Any:
        return _lasting(items[0], items[1:])

    def value(self, items: list[Any]) -> tuple[float, str]:
        return float(items[0]), str(items[1]) if len(items) > 1 and items[1] is not None else ""

    def span(self, items: list[Any]) -> float:
        unit = str(items[1]) if len(items) > 1 and items[1] is not None else ""
        if unit not in SECONDS:
            raise ConfigError(
                f"{items[0]}{unit} after for is no time", expected="a time such as 30s or 2m"
            )
        return float(items[0]) * SECONDS[unit]

    def compared(self, items: list[Any]) -> Any:
        name, sign, (number, unit) = str(items[0]), str(items[1]), items[2]
        if name not in NAMES:
            found = f"there is no counter {name!r}"
            raise ConfigError(found, expected=f"one of {listed(NAMES)}", hint=nearest(name, NAMES))
        if name in TIME_NAMES:
            if unit not in SECONDS:
                raise ConfigError(
                    f"{name} is compared with {items[2][0]:g}{unit}",
                    expected="a time such as 500ms",
                )
            number *= SECONDS[unit]
        elif unit == "%" and name in SHARE_NAMES:
            number /= 100
        elif unit:
            raise ConfigError(
                f"{name} is compared with {number:g}{unit}", expected="a number without a unit"
            )
        return _lasting(_Compared(name, sign, number), items[3:])


def _lasting(inner: Any, rest: list[Any]) -> Any:
    spans = [span for span in rest if span is not None]
    return _Lasting(inner, spans[0]) if spans else inner


@functools.cache
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr")


class Condition:
    """A condition that is asked with each row of the history.

    Parameters
    ----------
    text : str
        Comparisons with ``>``, ``>=``, ``<``, ``<=``, joined by ``and``, ``or``, ``not`` and
        parentheses. ``for 30s`` behind one asks that it holds without a break for that time.

    Raises
    ------
    ConfigError
        The text is no condition: the error shows where, and what could stand there.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._root = _Built().transform(_parser().parse(text))
        except UnexpectedInput as error:
            column = error.column if error.column > 0 else len(text) + 1
            found = (
                f"the condition cannot be read at character {column}:"
                f" {text[: column - 1]}>>>{text[column - 1 :]}"
            )
            expected = "such as ttft_p99 > 500ms for 30s and waiting > 4"
            raise ConfigError(found, expected=expected, column=column) from error
        except VisitError as error:
            if isinstance(error.orig_exc, ConfigError):
                raise error.orig_exc from None
            raise

    def holds(self, row: Mapping[str, Any], now_s: float) -> bool:
        """Whether it holds at a moment of a clock that never jumps; what is unknown does not
        hold.
        """
        return self._root.holds(row, now_s) is True
