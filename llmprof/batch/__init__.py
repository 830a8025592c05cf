"""Sweeps: one run for every combination of parameters, what each came to, and notebooks over many runs.

>>> sweep = llmprof.BatchRunner(config).run_parameter_sweep({"batch_size": [1, 2, 4], "max_tokens": [16, 64]})
>>> sweep.comparison  # one row a run: latencies, throughput, and the shares of its time
>>> batch.write_report(sweep).index  # the same as a page with charts
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.batch._devices import devices
from llmprof.batch._notebooks import Walkthroughs, notebooks_over
from llmprof.batch._parameters import PRESETS, configs, parse, preset
from llmprof.batch._runner import BatchRunner
from llmprof.batch._sweep import Sweep, open_sweep

if TYPE_CHECKING:
    from llmprof.batch._report import write_report

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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # drawing needs Altair, running does not
        if name == "write_report":
            from llmprof.batch._report import write_report

            return write_report
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
