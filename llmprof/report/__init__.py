"""Reports: one self-contained HTML page, with charts as PNG, frames as CSV and a JSON summary.

>>> llmprof.report.write(trace, "report")  # files in a folder  # doctest: +SKIP
>>> llmprof.report.html(trace)             # the page as a text  # doctest: +SKIP
>>> llmprof.report.Visualizer("results/tiny_torch_…").create_all_visualizations()  # pictures of a run  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.lazy import attach

__all__ = ["Report", "Visualizer", "html", "write", "write_sweep"]

if TYPE_CHECKING:
    from llmprof.report.folder import Report, html, write
    from llmprof.report.run import Visualizer
    from llmprof.report.sweep import write_sweep
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "Report": "llmprof.report.folder",
            "Visualizer": "llmprof.report.run",
            "html": "llmprof.report.folder",
            "write": "llmprof.report.folder",
            "write_sweep": "llmprof.report.sweep",
        },
    )
