"""Reports: one self-contained HTML page, with charts as PNG, frames as CSV and a JSON summary.

>>> llmprof.report.write(trace, "report")  # files in a folder  # doctest: +SKIP
>>> llmprof.report.html(trace)             # the page as a text  # doctest: +SKIP
>>> llmprof.report.Visualizer("results/tiny_torch_…").create_all_visualizations()  # pictures of a run  # doctest: +SKIP
"""  # noqa: E501

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
