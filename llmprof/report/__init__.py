"""Reports: one HTML page that needs nothing else, with charts as PNG, frames as CSV and a JSON summary.

>>> llmprof.report.write(trace, "report")  # files in a folder
>>> llmprof.report.html(trace)             # the page as a text
>>> llmprof.report.Visualizer("results/tiny_torch_…").create_all_visualizations()  # pictures of a run
"""

from __future__ import annotations

from llmprof.report._sweep import write_sweep
from llmprof.report._visualize import Visualizer
from llmprof.report._write import Report, html, write

__all__ = ["Report", "Visualizer", "html", "write", "write_sweep"]
