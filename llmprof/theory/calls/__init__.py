"""Work of recorded operator calls: FLOPs and bytes from the shapes and types of their arguments.

Each kind of operator has a small function and a :class:`Kind` in a list. :func:`register` adds one
for this process; other packages name theirs in the group ``llmprof.operators`` of their entry
points::

    llmprof.theory.calls.register(Kind("attention", "mine::attention", work_of_mine, "4 n d pairs",
    "my paper"))
"""

from __future__ import annotations

from functools import cache

from llmprof import plugins
from llmprof.errors import checked
from llmprof.errors import LlmprofError
from llmprof.theory.calls import attention, elements, experts, npu, products, rows, scans
from llmprof.theory.calls.call import Call as Call
from llmprof.theory.calls.call import Lengths as Lengths
from llmprof.theory.calls.call import NoWorkError as NoWorkError
from llmprof.theory.calls.call import Tensor as Tensor
from llmprof.theory.calls.call import recorded as recorded
from llmprof.theory.calls.work import Kind as Kind
from llmprof.theory.calls.work import Work as Work

KINDS: list[Kind] = [
    *products.KINDS,
    *attention.KINDS,
    *rows.KINDS,
    *elements.KINDS,
    *experts.KINDS,
    *scans.KINDS,
    *npu.KINDS,
]
"""Kinds of operators; the first that knows an operator's name counts."""


@checked
def register(kind: Kind) -> None:
    """Add a kind of operator to the front of the table, for this process.

    Parameters
    ----------
    kind : Kind
        Names of its operators, and the function of their work.

    Raises
    ------
    LlmprofError
        It names no operator.
    """
    if not kind.operators.split():
        raise LlmprofError(
            f"the kind {kind.name!r} names no operator", expected="names separated by spaces"
        )
    KINDS.insert(0, kind)
    _by_name.cache_clear()
    kind_of.cache_clear()


@cache
def _by_name() -> dict[str, Kind]:
    added = [kind for _, kind in plugins.records(plugins.OPERATORS, Kind)]
    table: dict[str, Kind] = {}
    for kind in [*KINDS, *added]:
        for name in kind.operators.split():
            table.setdefault(name, kind)
    return table


@cache
def kind_of(operator: str) -> Kind | None:
    """The kind of an operator by its name, or None."""
    table = _by_name()
    found = table.get(operator)
    if found is None:
        found = next(
            (
                kind
                for name, kind in table.items()
                if name.endswith("*") and operator.startswith(name[:-1])
            ),
            None,
        )
    return found


def work_of(call: Call) -> Work:
    """Work of a call.

    Parameters
    ----------
    call : Call
        From :func:`recorded`.

    Raises
    ------
    NoWorkError
        The operator is not known, or the recording does not say enough.

    Examples
    --------
    >>> call = recorded("aten::mm", "[[4, 8], [8, 2]]", '["c10::BFloat16", "c10::BFloat16"]')
    >>> work_of(call)
    Work(flops=128.0, read=96.0, written=16, matrix='bf16', assumed='', source='shapes', result=(1,
    4, 2))
    """
    kind = kind_of(call.operator)
    if kind is None:
        raise NoWorkError(f"llmprof does not know the work of {call.operator}")
    try:
        with plugins.foreign():
            return kind.work(call)
    except plugins.FailedError as error:
        raise NoWorkError(f"the work of {call.operator} cannot be computed: {error}") from error
