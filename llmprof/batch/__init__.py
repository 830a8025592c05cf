"""Sweeps: a run for every combination of parameters, the comparison of the results, and notebooks over many runs.

>>> sweep = llmprof.BatchRunner(config).run_parameter_sweep({"batch_size": [1, 2, 4]})  # doctest: +SKIP
>>> sweep.comparison  # one row per run: latencies, throughput, and the shares of its time  # doctest: +SKIP
>>> batch.write_report(sweep).index  # the same as a page with charts  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.lazy import attach

__all__ = [
    "PRESETS",
    "BatchRunner",
    "Sweep",
    "Walkthroughs",
    "configs",
    "devices",
    "notebooks_over",
    "open_sweep",
    "parse",
    "preset",
    "write_report",
]

if TYPE_CHECKING:
    from llmprof.batch.notebooks import Walkthroughs, notebooks_over
    from llmprof.batch.parameters import PRESETS, configs, parse, preset
    from llmprof.batch.runner import BatchRunner, devices
    from llmprof.batch.sweep import Sweep, open_sweep, write_report
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "PRESETS": "llmprof.batch.parameters",
            "BatchRunner": "llmprof.batch.runner",
            "Sweep": "llmprof.batch.sweep",
            "Walkthroughs": "llmprof.batch.notebooks",
            "configs": "llmprof.batch.parameters",
            "devices": "llmprof.batch.runner",
            "notebooks_over": "llmprof.batch.notebooks",
            "open_sweep": "llmprof.batch.sweep",
            "parse": "llmprof.batch.parameters",
            "preset": "llmprof.batch.parameters",
            "write_report": "llmprof.batch.sweep",
        },
    )
