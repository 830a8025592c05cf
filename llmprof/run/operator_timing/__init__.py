"""Times of operators: those that a timer took during a run (``profile_mode="ops"``), and those of
a script that runs operators of a recording alone.
"""

from llmprof.analyze.operator_times import (
    against_trace,
    communication_times,
    operator_times,
    timing_suggestions,
    timers,
    timing_overhead,
)
from llmprof.errors import door
from llmprof.run.operator_timing.script import (
    OperatorTiming,
    compare_times,
    read_results,
    time_operators,
)

door(globals())
