"""Names of kernels: the function in a profiler's name of a kernel, and the patterns of Huawei's
Ascend kernels.

The name of an Ascend kernel consists of the call, the kernel and the type
(``aclnnMatmul_MatMulCommon_MatMulV2``), of the type and a number (``Conv2D1``,
``trans_TransData_0``), or of a path in a MindSpore graph (``Default/…/MatMul-op12``). Sources: the
operator lists of CANN (``aclnn`` interfaces), torch_npu (``npu_*``) and vllm-ascend.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final

import polars as pl

_ANONYMOUS: Final = re.compile(r"\(anonymous namespace\)|<unnamed>|\{anonymous\}")
_CAST: Final = re.compile(r"\((?:[A-Za-z_][\w: ]*)\)(?=-?\d)")
_SUFFIX: Final = re.compile(r"(?<![\w.])(-?\d+)(?:[uU]?[lL]{0,2})(?!\w)")
_NAMESPACE: Final = re.compile(r"(?:\b\w+|anonymous)::")
_CLONE: Final = re.compile(r"(?<!\s)\s*+\[clone[^][]*+\]|\.(?:kd|constprop\.\d+)$")

_MANGLED: Final = re.compile(r"L[a-z]n?\d+E|([1-9]\d{0,2})(?=[A-Za-z_])")
"""A number as template argument, or the length of a word that follows."""
_WRAPPERS: Final = ("device_kernel", "kentry", "Kernel", "Kernel2")
"""Functions that only run the class that is their template argument."""


def function(names: pl.Series) -> pl.Series:
    """Function of each kernel name, without return type, namespaces, template arguments and
    parameters.
    """
    return map_names(names, function_of)


def displayed(names: pl.Series) -> pl.Series:
    """Function of each kernel name for display; CUTLASS's ``device_kernel`` is shown as its
    first template argument.
    """
    base = function(names).fill_null("unnamed")
    inner = names.str.extract(r"device_kernel<(?:(?:\w+::)*enable_\w+<)?(?:\w+::)*(\w+)")
    return pl.select(
        pl.when(base == "device_kernel").then(pl.coalesce(inner, base)).otherwise(base)
    ).to_series()


def comparable(names: pl.Series) -> pl.Series:
    """Function and template arguments of each name, without the differences between profilers."""
    return map_names(names, _comparable)


def map_names(names: pl.Series, change: Callable[[str], str]) -> pl.Series:
    """A change of each name, made once for each distinct one."""
    unique = names.drop_nulls().unique()
    table = pl.DataFrame(
        {"name": unique, "made": [change(n) for n in unique]},
        schema={"name": pl.String, "made": pl.String},
    )
    return (
        pl.DataFrame({"name": names})
        .join(table, on="name", how="left", maintain_order="left")["made"]
        .alias(names.name)
    )


@lru_cache(maxsize=4096)
def _parts(name: str) -> tuple[str, str]:
    """The name before its parameters, with and without template arguments."""
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


def function_of(name: str) -> str:
    """Function of one kernel name; for a mangled wrapper, the class that it runs."""
    if name.startswith("_Z"):
        words, at = [name], 0
        while found := _MANGLED.search(name, at):
            at = found.end() + int(found[1] or 0)
            word = name[found.end() : at]
            if word and word not in _WRAPPERS and not word.startswith("_GLOBAL_"):
                words.append(word)
                if not name[at : at + 1].isdigit():
                    break
        return words[-1]
    words = _parts(name)[1].replace("&&", " ").split()
    return (words[-1].rsplit("::", 1)[-1] if words else "") or name


def _comparable(name: str) -> str:
    if name.startswith("_Z"):
        return name
    called, function_name = _parts(name)[0], function_of(name)
    start = called.rfind(f"{function_name}<")
    while start > 0 and (called[start - 1].isalnum() or called[start - 1] == "_"):
        start = called.rfind(f"{function_name}<", 0, start)
    if start < 0:
        return function_name
    arguments = called[start + len(function_name) :].replace("true", "1").replace("false", "0")
    arguments = _NAMESPACE.sub("", arguments)
    return function_name + re.sub(r"\s+", "", _SUFFIX.sub(r"\1", arguments))


_CORE: Final = r"(?:/?_(?:mix_ai[cv]|ai[cv]|vector_core|ai_core))*"
"""Suffix that msprof adds to the name of a kernel if a row holds only the part on one kind of
core.
"""


def _pattern(types: list[str]) -> str:
    """Pattern of the names of kernels of some types: after a call's name, with a number, or in a
    MindSpore graph.
    """
    listed = "|".join(types)
    return (
        rf"^(?:aclnn\w+_|trans_|te_\w+_)?(?:{listed})(?:V\d+)?D?(?:AiCore|AiCpu|Operation|Kernel)?(?:_?\d+)*{_CORE}$"
        rf"|^(?:Default|Gradients)/\S*\b(?:{listed})(?:V\d+)?D?-op\d+"
    )


_TYPES: Final = tomllib.loads(Path(__file__).with_name("cann.toml").read_text("utf-8"))["types"]
PATTERNS: Final = [
    (
        "collective",
        r"^(?:Default|Gradients)/\S*(?:AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast)\w*-op\d+",
    ),
    ("elementwise", rf"^\w+\d_MemSet{_CORE}$"),
    *((each["category"], _pattern(each["names"])) for each in _TYPES),
    ("other", r"^aclnn\w+_\w+_|^trans_\w+_\d+$|^(?:Default|Gradients)/\S*-op\d+"),
]
"""Ordered ``(category, pattern)``.

Casts, fills and changes of format count as ``elementwise``, not as copies or fills: they run on the
vector cores, and the vendor's overlap analysis counts them as computing. A name in CANN's form with
another type is ``other``, even if patterns for other vendors would match it.
"""
