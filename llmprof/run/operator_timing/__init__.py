"""Times of operators alone: a script runs operators of a recording, and its times are compared
with the recorded.
"""

from llmprof.arguments import door
from llmprof.run.operator_timing.script import OperatorTiming, compare, read_results, time_operators

door(globals())
