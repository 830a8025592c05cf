"""Names of kernels as different profilers write them: the function in them, and a form in which they compare."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import polars as pl

_ANONYMOUS: Final = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")
_CAST: Final = re.compile(r"\((?:[A-Za-z_][\w: ]*)\)(?=-?\d)")
_SUFFIX: Final = re.compile(r"(?<![\w.])(-?\d+)(?:[uU]?[lL]{0,2})(?!\w)")
_NAMESPACE: Final = re.compile(r"(?:\b\w+|anonymous)::")
_CLONE: Final = re.compile(r"\s*\[clone[^\]]*\]|\.(?:kd|constprop\.\d+)$")


def function(names: pl.Series) -> pl.Series:
    """Function of each kernel name, without return type, namespaces, template arguments and parameters.

    >>> function(pl.Series(["void at::native::add<4, float>(int, float)"])).to_list()
    ['add']
    """
    return _each(names, _function)


def comparable(names: pl.Series) -> pl.Series:
    """Function and template arguments of each name, without what profilers write differently.

    Namespaces, casts (``(int)4``), suffixes (``1ul``), spaces and parameters go; ``true`` is 1 and ``false`` is 0.

    >>> comparable(pl.Series(["void f<(int)4, (bool)1>(T1 *)", "void ns::f<4, true>(float*)"])).to_list()
    ['f<4,1>', 'f<4,1>']
    """
    return _each(names, _comparable)


def _each(names: pl.Series, one: Callable[[str], str]) -> pl.Series:
    unique = names.drop_nulls().unique()
    table = pl.DataFrame(
        {"name": unique, "made": [one(n) for n in unique]}, schema={"name": pl.String, "made": pl.String}
    )
    return (
        pl.DataFrame({"name": names})
        .join(table, on="name", how="left", maintain_order="left")["made"]
        .alias(names.name)
    )


@lru_cache(maxsize=4096)
def _parts(name: str) -> tuple[str, str]:
    """What comes before the parameters, and the same without template arguments."""
    name = _CAST.sub("", _CLONE.sub("", _ANONYMOUS.sub("anonymous", name))).strip()
    stack: list[str] = []
    bare = []
    end = len(name)
    for i, c in enumerate(name):
        if c == "(" and not stack and i:
            end = i
            break
        if c in "<(":
            stack.append(c)
        elif c == ">" and stack and stack[-1] == "<":
            stack.pop()
        elif c == ")" and "(" in stack:
            while stack.pop() != "(":
                pass
        elif not stack and c not in ">)":
            bare.append(c)
    return name[:end], "".join(bare)


def _function(name: str) -> str:
    words = _parts(name)[1].replace("&&", " ").split()
    return (words[-1].rsplit("::", 1)[-1] if words else "") or name


def _comparable(name: str) -> str:
    called, made = _parts(name)[0], _function(name)
    at = called.rfind(f"{made}<")
    while at > 0 and (called[at - 1].isalnum() or called[at - 1] == "_"):
        at = called.rfind(f"{made}<", 0, at)
    if at < 0:
        return made
    arguments = called[at + len(made) :].replace("true", "1").replace("false", "0")
    arguments = _NAMESPACE.sub("", arguments)
    return made + re.sub(r"\s+", "", _SUFFIX.sub(r"\1", arguments))
