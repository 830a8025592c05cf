"""How names are matched with ordered patterns: each distinct name once, and few of them once a
process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Any, Concatenate, Final, ParamSpec

import polars as pl

from llmprof.errors import LlmprofError


def match(name: pl.Expr, patterns: list[tuple[str, str]], default: str | None) -> pl.Expr:
    """Value of the first pattern that a name matches."""
    return _first(name, [(value, f"(?i){pattern}") for value, pattern in patterns], default)


def _first(name: pl.Expr, patterns: list[tuple[str, str]], default: str | None) -> pl.Expr:
    tests = [pl.when(name.str.contains(pattern)).then(pl.lit(value)) for value, pattern in patterns]
    return pl.coalesce(*tests, pl.lit(default, dtype=pl.String))


def first_true(cases: Mapping[str, pl.Expr], otherwise: str | None = None) -> pl.Expr:
    """The first text whose condition holds for a row."""
    texts = [pl.when(condition).then(pl.lit(text)) for text, condition in cases.items()]
    return pl.coalesce(*texts, pl.lit(otherwise, dtype=pl.String))


P = ParamSpec("P")

_AT_ONCE: Final = 1 << 16
"""Distinct names that are matched together: more take memory for each pattern."""
_FEW: Final = 1 << 12
"""Most names whose meaning is kept: more than a recording of one model has."""


def remembered(
    meaning: Callable[Concatenate[tuple[str, ...], P], pl.Series],
) -> Callable[Concatenate[tuple[str, ...], P], pl.Series]:
    """Decorator: keep what few names mean, because compiling patterns takes longer than matching
    the names of a trace.

    What it returns is shared, and must not be changed.
    """
    kept: Any = lru_cache(maxsize=64)(meaning)

    @wraps(meaning)
    def looked_up(names: tuple[str, ...], /, *args: P.args, **options: P.kwargs) -> pl.Series:
        found: pl.Series = (kept if len(names) <= _FEW else meaning)(names, *args, **options)
        return found

    return looked_up


def by_unique_name(
    names: pl.Series, patterns: list[tuple[str, str]], default: str | None
) -> pl.Series:
    """Like :func:`match`, but each distinct name is matched once."""
    table = tuple(patterns)
    return by_distinct(names, lambda each: _values(each, table, default))


def by_distinct(names: pl.Series, meaning: Callable[[tuple[str, ...]], pl.Series]) -> pl.Series:
    """Values of names, from a function that sees each distinct name once."""
    coded = names.cast(pl.Categorical)
    distinct = coded[coded.arg_unique()].drop_nulls()
    if distinct.is_empty():
        return meaning(()).extend_constant(None, coded.len())
    codes = distinct.to_physical()
    order = codes.arg_sort()  # the same names have one order, in which their meaning is kept
    distinct, codes = distinct[order].cast(pl.String), codes[order]
    values = pl.concat(
        [meaning(tuple(distinct[i : i + _AT_ONCE])) for i in range(0, len(distinct), _AT_ONCE)]
    )
    row_of_code = pl.Series([0], dtype=pl.UInt32).new_from_index(0, codes[-1] + 1)
    row_of_code.scatter(codes, pl.Series(range(len(codes)), dtype=pl.UInt32))
    return values[row_of_code[coded.to_physical()]]


def contains(names: pl.Series, pattern: str) -> pl.Series:
    """Whether each name matches a regular expression, which is looked for once in each distinct
    name.
    """
    return by_distinct(names, lambda distinct: _contain(distinct, pattern))


@remembered
def _contain(names: tuple[str, ...], pattern: str) -> pl.Series:
    """Whether each name matches."""
    return pl.Series(names, dtype=pl.String).str.contains(pattern)


@remembered
def _values(
    names: tuple[str, ...], patterns: tuple[tuple[str, str], ...], default: str | None
) -> pl.Series:
    """Value of each name."""
    frame, name = pl.DataFrame({"name": pl.Series(names, dtype=pl.String)}), pl.col("name")
    if not all(each.isascii() for each in names):
        return frame.select(value=match(name, list(patterns), default))["value"]
    usable = [(value, _of_small(_of_ascii(pattern))) for value, pattern in patterns]
    return frame.select(value=_first(name.str.to_lowercase(), usable, default))["value"]


def _of_small(pattern: str) -> str:
    """Pattern in small letters, which compiles twice as fast as one without regard to case, unless
    its capitals are more than letters.
    """
    if _CAPITALS.search(pattern):
        return f"(?i){pattern}"
    return re.sub(
        r"\\.|[A-Z]", lambda part: part[0].lower() if len(part[0]) == 1 else part[0], pattern
    )


_CAPITALS: Final = re.compile(r"\(\?(?!:|-u:)|\\[pPxuU]|[A-Z]-[^A-Z]|[^A-Z]-[A-Z]")
"""Flags and named groups, classes and codes of characters, and ranges that are not of capitals."""


def _of_ascii(pattern: str) -> str:
    """Pattern with ASCII character classes, which matches ASCII names equally and compiles four
    times as fast.
    """
    return re.sub(
        r"\\(b\{[a-z-]+\}|.)",
        lambda escape: _ASCII.get(escape[1], escape[0]),
        pattern,
        flags=re.DOTALL,
    )


_ASCII = {"w": "[0-9A-Za-z_]", "d": "[0-9]", "s": r"[\t\n\x0b\x0c\r ]", "b": r"(?-u:\b)"}

VAGUE = ("elementwise", "other", "embedding", "sampling")
"""Categories of kernels that serve several purposes: gathers, choices among values, arithmetic.

Any other category of a kernel's own name is sure, whatever operator launched it.
"""

_KEPT = {"attention": ("other",), "collective": ("elementwise",)}
"""For categories of operators: vague kernels that stay, because they prepare or finish its work."""


def decides(by_operator: pl.Expr, by_name: pl.Expr) -> pl.Expr:
    """Whether the operator says the category: it takes precedence only over a name that is
    vague, or agrees.
    """
    vague = by_name.is_null() | by_name.is_in(VAGUE) | (by_operator == by_name)
    vague |= by_operator.is_in(["moe_experts", "conv"]) & (by_name == "gemm")
    keeps = pl.any_horizontal(
        (by_operator == category) & by_name.is_in(kept) for category, kept in _KEPT.items()
    )
    return by_operator.is_not_null() & vague & ~keeps.fill_null(False)


def check_pattern(pattern: str) -> None:
    """Refuse what is no regular expression, or matches every name."""
    try:
        matches_nothing = pl.Series([""]).str.contains(f"(?i){pattern}")[0]
    except pl.exceptions.ComputeError as error:
        found = f"{pattern!r} is not a regular expression of the Rust regex crate: {error}"
        raise LlmprofError(
            found, hint="look-around and backreferences are not supported"
        ) from error
    if matches_nothing:
        raise LlmprofError(
            f"{pattern!r} matches every name", expected="a pattern that needs some text"
        )
