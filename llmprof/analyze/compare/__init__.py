"""Two runs compared: how much faster a step is, which parts of it, and which kernels."""

from llmprof.analyze.compare.diff import diff, diff_reports
from llmprof.analyze.compare.times import diff_events, diff_of, diff_times

__all__ = ["diff", "diff_events", "diff_of", "diff_reports", "diff_times"]
