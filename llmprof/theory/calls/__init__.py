"""Work of recorded operator calls: FLOPs and bytes from the shapes and types of their arguments.

``operators.toml`` is the table of operators, which :mod:`llmprof.theory.calls.operators` reads; the
other modules have the rules of their work. :func:`register_operator` adds a line for this process;
other packages name theirs in the group ``llmprof.operators`` of their entry points::

    llmprof.theory.calls.register_operator(Operator("attention", "mine::attention", work_of_mine))
"""

from __future__ import annotations

# each of these modules adds its rules of work to those that the table names
from llmprof.theory.calls import attention, elements, experts, npu, products, rows, scans
from llmprof.theory.calls.call import (
    CallTensor as CallTensor,
    Lengths as Lengths,
    NoWorkError as NoWorkError,
    OperatorCall as OperatorCall,
    parse_call as parse_call,
)
from llmprof.theory.calls.operators import (
    OPERATORS as OPERATORS,
    Operator as Operator,
    Timeable as Timeable,
    costed_operator as costed_operator,
    forget_operators as forget_operators,
    operator_categories as operator_categories,
    operator_named as operator_named,
    register_operator as register_operator,
    timeable_operators as timeable_operators,
    work_of as work_of,
)
from llmprof.theory.calls.work import CallWork as CallWork
