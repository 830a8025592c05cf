"""The table of operators: what each does, how its work follows from its arguments, and how it can
be run alone.

A line of ``operators.toml`` is a name or a family of names. To add an operator, add a line; the
places in it are those of its arguments in the published signature that the line names.
"""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import polars as pl
from msgspec import Struct, field

from llmprof import plugins
from llmprof.errors import LlmprofError, checked, listed
from llmprof.names import CATEGORIES
from llmprof.names.matching import by_distinct, by_unique_name
from llmprof.theory.calls.call import NoWorkError, OperatorCall
from llmprof.theory.calls.work import RULES, CallWork, Cost

Content = tuple[str, int, int] | tuple[str, int] | tuple[str]
"""Content of a tensor of integers.

``("below", argument, axis)``: indices below the size of an axis of another argument;
``("below_axis", argument, number)``: the same, for the axis that a recorded number names;
``("below_value", argument)``: indices below a recorded number;
``("slots", argument)``: distinct slots of a paged cache;
``("pages", argument)``: pages of a paged cache;
``("ends", argument, longest)``: ends of the parts of an argument's first axis;
``("value", argument)``: a recorded number in every place;
``("ones",)``: ones; ``("fa3_metadata",)``: the plan of FlashAttention 3."""


class Timeable(Struct, frozen=True):
    """How an operator can be called alone, with tensors of random numbers."""

    stored: tuple[int, ...] = ()
    """Arguments that stay in memory between steps: weights and caches."""
    holds: Mapping[int, Content] = field(default_factory=lambda: MappingProxyType({}))
    """Content of arguments that cannot be filled with arbitrary random numbers."""
    usual: Mapping[int, float | int | bool | str] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Values of arguments that recordings lack, such as texts, which profilers do not write."""
    pages: tuple[int, ...] = ()
    """Arguments whose first axis is the number of pages of a cache; fewer pages are enough for a
    run.
    """
    assumed: str = ""
    """Assumption about facts that the recording lacks."""


class Operator(Struct, frozen=True):
    """A line of the table of operators.

    Parameters
    ----------
    kind : str
        What it does, in a word: a category of kernels, or a finer word.
    names : str
        Names of its operators, separated by spaces; a name that ends with ``*`` stands for all with
        this beginning.
    work : callable, optional
        From an :class:`OperatorCall` to its :class:`CallWork`; it raises :class:`NoWorkError` with
        the reason where it has none. Its docstring begins with FLOPs and bytes. Without it, the
        operator has no bound.
    timed : Timeable, optional
        How it can be run alone, if it can.
    source : str
        Where its signature is published, unless its namespace says it (:data:`SIGNATURES`).
    whole : bool
        Whether kernels of operators that it calls are part of it, whatever kinds these have.
    lengths : bool
        Whether its work depends on the lengths of the sequences of the step.
    inside : str
        Names of operators that it calls and whose arguments its work needs, separated by spaces.
    mixed : bool
        Whether its kernels have several purposes, so that it does not say their category.
    """

    kind: str
    names: str
    work: Callable[[OperatorCall], CallWork] | None = None
    timed: Timeable | None = None
    source: str = ""
    whole: bool = False
    lengths: bool = False
    inside: str = ""
    mixed: bool = False

    @property
    def signatures(self) -> str:
        """Where the signatures of its operators are published."""
        spaces = (name.split("::")[0] for name in self.names.split())
        return self.source or "; ".join(dict.fromkeys(SIGNATURES.get(each, "") for each in spaces))


_CATEGORIES: Final[Mapping[str, str]] = {
    **{kind: kind for kind in CATEGORIES if kind not in ("scan", "collective", "other")},
    **dict.fromkeys(("softmax", "reduction", "gather", "scatter", "foreach"), "elementwise"),
    "convolution": "conv",
    "all_reduce": "collective",
}
"""Category of the kernels of an operator by its kind; kernels of other kinds say their own."""

_TABLES: Final = tomllib.loads(Path(__file__).with_name("operators.toml").read_text("utf-8"))
SIGNATURES: Final[Mapping[str, str]] = _TABLES["signatures"]
"""Where the signatures of the operators of a namespace are published; a function without one has
its own source.
"""


def _operator(given: Mapping[str, Any]) -> Operator:
    """The operator of an entry of a table; what no field says is an option of its rule."""
    options = dict(given)
    line = {name: options.pop(name) for name in Operator.__struct_fields__ if name in options}
    if "timed" in line:
        timed = line["timed"]
        for name in ("holds", "usual"):
            by_place = {int(place): value for place, value in timed.get(name, {}).items()}
            timed = timed | {name: by_place}
        line["timed"] = Timeable(**timed)
    if "rule" in options:
        line["work"] = Cost(RULES[options.pop("rule")], options.pop("places", ()), options)
    return Operator(**line)


OPERATORS: list[Operator] = [_operator(given) for given in _TABLES["operators"]]
"""The table; the first line that knows an operator's name counts."""

FAMILIES: Final = [(each["category"], "|".join(each["patterns"])) for each in _TABLES["families"]]
"""Ordered ``(category, pattern)`` of operators that have no line (with an empty category they have
several purposes); the first match wins.
"""


@checked
def register_operator(operator: Operator) -> None:
    """Add a line to the front of the table, for this process.

    Parameters
    ----------
    operator : Operator
        Names of operators, their kind, and the function of their work.

    Raises
    ------
    LlmprofError
        It names no operator.
    """
    if not operator.names.split():
        raise LlmprofError(
            f"the operator of the kind {operator.kind!r} has no name",
            expected="names separated by spaces",
        )
    OPERATORS.insert(0, operator)
    forget_operators()


def forget_operators() -> None:
    """Read the table and the plug-ins again."""
    for kept in (_by_name, _families, operator_named, timeable_operators, _category_by_name):
        kept.cache_clear()


def _own() -> list[Operator]:
    """Operators of the user's file: a rule of the table at other places."""
    kinds = sorted({line.kind for line in OPERATORS})
    found = []
    for name, given in plugins.own()["operators"].items():
        try:
            line = _operator({"names": name, **given})
            if not isinstance(line.work, Cost) or line.kind not in kinds:
                raise ValueError(f"no rule, or the kind {line.kind!r} is none of {listed(kinds)}")
            inspect.signature(line.work.rule).bind(None, *line.work.places, **line.work.named)
            found.append(line)
        except (KeyError, TypeError, ValueError) as error:
            raise LlmprofError(
                f"{os.environ[plugins.OWN]} has {name!r} = {given!r}: {error}",
                expected=f"kind, places and options of a rule, one of {listed(RULES)}",
            ) from error
    return found


@cache
def _by_name() -> dict[str, Operator]:
    added = [operator for _, operator in plugins.records(plugins.OPERATORS, Operator)]
    table: dict[str, Operator] = {}
    for operator in [*_own(), *OPERATORS, *added]:
        for name in operator.names.split():
            table.setdefault(name, operator)
    return table


@cache
def _families() -> dict[str, Operator]:
    """The line of each family, by the beginning of its names."""
    return {name[:-1]: line for name, line in _by_name().items() if name.endswith("*")}


@cache
def operator_named(name: str) -> Operator | None:
    """The line of an operator, or None."""
    of_family = (line for start, line in _families().items() if name.startswith(start))
    return _by_name().get(name) or next(of_family, None)


def costed_operator(name: str) -> Operator | None:
    """The line of an operator whose work is known, or None."""
    found = operator_named(name)
    return found if found and found.work else None


@cache
def timeable_operators() -> Mapping[str, tuple[str, Timeable]]:
    """Kind of each operator that can be run alone, and how; a script calls no other."""
    table = _by_name().items()
    return {name: (each.kind, each.timed) for name, each in table if each.timed is not None}


def work_of(call: OperatorCall) -> CallWork:
    """Work of a call.

    Parameters
    ----------
    call : OperatorCall
        From :func:`parse_call`.

    Raises
    ------
    NoWorkError
        The operator is not known, or the recording does not say enough.

    Examples
    --------
    >>> from llmprof.theory.calls import parse_call
    >>> call = parse_call("aten::mm", "[[4, 8], [8, 2]]", '["c10::BFloat16", "c10::BFloat16"]')
    >>> work_of(call)
    CallWork(flops=128.0, read=96.0, written=16, matrix='bf16', assumed='', source='shapes',
    result=(1, 4, 2))
    """
    operator = operator_named(call.operator)
    if operator is None or operator.work is None:
        raise NoWorkError(f"llmprof does not know the work of {call.operator}")
    try:
        with plugins.foreign():
            return operator.work(call)
    except plugins.FailedError as error:
        raise NoWorkError(f"the work of {call.operator} cannot be computed: {error}") from error


@cache
def _category_by_name() -> dict[str, str]:
    """Category of the kernels of each operator with a line; empty for one with several purposes."""
    said = {
        name: "" if operator.mixed else _CATEGORIES.get(operator.kind)
        for name, operator in _by_name().items()
    }
    return {name: category for name, category in said.items() if category is not None}


_BACKWARD: Final = r"^(?:autograd::engine::evaluate_function: )?(\w+)Backward\d*$"
"""Pattern of the node that computes an operator's gradients."""


@checked
def operator_categories(names: pl.Series) -> pl.Series:
    """Category of each operator, for its kernels; null if the operator has several purposes or
    is unknown.
    """
    # The node that computes the gradients of an operator has that operator's category.
    return by_distinct(names, _of_operators).alias("category")


def _of_operators(distinct: tuple[str, ...]) -> pl.Series:
    own = pl.Series("name", distinct, dtype=pl.String)
    forward = (
        own.str.extract(_BACKWARD)
        .str.replace_all("([a-z0-9])([A-Z])", "${1}_$2")
        .str.to_lowercase()
    )
    forward = pl.select(
        pl.when(forward.is_not_null()).then(pl.format("aten::{}", forward))
    ).to_series()
    said = [
        part
        for each in (own, forward)
        for part in (
            each.replace_strict(_category_by_name(), default=None, return_dtype=pl.String),
            by_unique_name(each, FAMILIES, None),
        )
    ]
    return pl.select(pl.coalesce(said).replace({"": None})).to_series()
