"""Comparison of two runs: the change of the step time, by parts and by kernels."""

from llmprof.analyze.compare.diff import diff, diff_reports
from llmprof.analyze.compare.times import diff_events, diff_of, diff_times

__all__ = ["diff", "diff_events", "diff_of", "diff_reports", "diff_times"]
