"""Report of a run: one HTML page that needs nothing else, with charts as PNG, frames as CSV and a JSON summary.

>>> llmprof.report.write(trace, "report")  # files in a folder
>>> llmprof.report.html(trace)             # the page as a text
"""

from __future__ import annotations

from llmprof.report._write import Report, html, write

__all__ = ["Report", "html", "write"]
