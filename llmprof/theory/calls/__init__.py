"""Work of recorded operator calls: FLOPs and bytes from the shapes and types of their arguments.

Each kind of operator has a small function and an :class:`OperatorKind` in a list.
:func:`register_kind` adds one for this process; other packages name theirs in the group
``llmprof.operators`` of their entry points::

    llmprof.theory.calls.register_kind(OperatorKind("attention", "mine::attention", work_of_mine,
    "4 n d pairs", "my paper"))
"""

from __future__ import annotations

from functools import cache

from llmprof import plugins
from llmprof.errors import checked
from llmprof.errors import LlmprofError
from llmprof.theory.calls import attention, elements, experts, npu, products, rows, scans
from llmprof.theory.calls.call import OperatorCall as OperatorCall
from llmprof.theory.calls.call import Lengths as Lengths
from llmprof.theory.calls.call import NoWorkError as NoWorkError
from llmprof.theory.calls.call import CallTensor as CallTensor
from llmprof.theory.calls.call import parse_call as parse_call
from llmprof.theory.calls.work import OperatorKind as OperatorKind
from llmprof.theory.calls.work import CallWork as CallWork

KINDS: list[OperatorKind] = [
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
def register_kind(kind: OperatorKind) -> None:
    """Add a kind of operator to the front of the table, for this process.

    Parameters
    ----------
    kind : OperatorKind
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
    operator_kind.cache_clear()


@cache
def _by_name() -> dict[str, OperatorKind]:
    added = [kind for _, kind in plugins.records(plugins.OPERATORS, OperatorKind)]
    table: dict[str, OperatorKind] = {}
    for kind in [*KINDS, *added]:
        for name in kind.operators.split():
            table.setdefault(name, kind)
    return table


@cache
def operator_kind(operator: str) -> OperatorKind | None:
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
    >>> call = parse_call("aten::mm", "[[4, 8], [8, 2]]", '["c10::BFloat16", "c10::BFloat16"]')
    >>> work_of(call)
    CallWork(flops=128.0, read=96.0, written=16, matrix='bf16', assumed='', source='shapes',
    result=(1, 4, 2))
    """
    kind = operator_kind(call.operator)
    if kind is None:
        raise NoWorkError(f"llmprof does not know the work of {call.operator}")
    try:
        with plugins.foreign():
            return kind.work(call)
    except plugins.FailedError as error:
        raise NoWorkError(f"the work of {call.operator} cannot be computed: {error}") from error
