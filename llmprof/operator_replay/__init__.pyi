from .results import compare as compare, read_results as read_results
from .script import Replay as Replay, replay as replay
