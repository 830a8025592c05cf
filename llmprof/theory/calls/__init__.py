"""Work of recorded operator calls: FLOPs and bytes from the shapes and types of their arguments.

:mod:`llmprof.theory.calls.operators` is the table of operators; the other modules have the
functions of their work. :func:`register_operator` adds a line for this process; other packages name
theirs in the group ``llmprof.operators`` of their entry points::

    llmprof.theory.calls.register_operator(Operator("attention", "mine::attention", work_of_mine))
"""

from __future__ import annotations

from llmprof.theory.calls.call import CallTensor as CallTensor
from llmprof.theory.calls.call import Lengths as Lengths
from llmprof.theory.calls.call import NoWorkError as NoWorkError
from llmprof.theory.calls.call import OperatorCall as OperatorCall
from llmprof.theory.calls.call import parse_call as parse_call
from llmprof.theory.calls.operators import OPERATORS as OPERATORS
from llmprof.theory.calls.operators import Operator as Operator
from llmprof.theory.calls.operators import Timeable as Timeable
from llmprof.theory.calls.operators import costed_operator as costed_operator
from llmprof.theory.calls.operators import forget_operators as forget_operators
from llmprof.theory.calls.operators import operator_categories as operator_categories
from llmprof.theory.calls.operators import operator_named as operator_named
from llmprof.theory.calls.operators import register_operator as register_operator
from llmprof.theory.calls.operators import timeable_operators as timeable_operators
from llmprof.theory.calls.operators import work_of as work_of
from llmprof.theory.calls.work import CallWork as CallWork
