from .results import compare as compare, read_results as read_results
from .script import OperatorTiming as OperatorTiming, time_operators as time_operators
