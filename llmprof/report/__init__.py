"""Reports: one self-contained HTML page, with charts as PNG, frames as CSV and a JSON summary.

>>> llmprof.report.write(trace, "report")  # files in a folder  # doctest: +SKIP
>>> llmprof.report.html(trace)             # the page as a text  # doctest: +SKIP
>>> llmprof.report.Visualizer("results/tiny_torch_…").create_all_visualizations()  # pictures of a run  # doctest: +SKIP
"""  # noqa: E501

from typing import TYPE_CHECKING

from llmprof.errors import door

if TYPE_CHECKING:
    from llmprof.report.folder import Report, html, write
    from llmprof.report.operators import (
        advised,
        compute_vs_communication,
        layer_performance_heatmap,
        performance_bottlenecks,
    )
    from llmprof.report.run import Visualizer
    from llmprof.report.sweep import write_sweep

# at their first use, since the cards of the terminal need no Altair
door(
    globals(),
    {
        "report.folder": "Report html write",
        "report.operators": "advised compute_vs_communication layer_performance_heatmap"
        " performance_bottlenecks",
        "report.run": "Visualizer",
        "report.sweep": "write_sweep",
    },
)
