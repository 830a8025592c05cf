"""Sweeps: a run for every combination of parameters, the comparison of the results, and notebooks
over many runs.

>>> sweep = llmprof.sweep(config, batch_size=[1, 2, 4])  # doctest: +SKIP
>>> sweep.comparison  # one row per run: latencies, throughput, and the shares of its time  # doctest: +SKIP
>>> batch.write_report(sweep).index  # the same as a page with charts  # doctest: +SKIP
"""  # noqa: E501

from llmprof.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
