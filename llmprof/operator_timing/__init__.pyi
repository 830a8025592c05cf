from .script import (
    OperatorTiming as OperatorTiming,
    compare as compare,
    read_results as read_results,
    time_operators as time_operators,
)
