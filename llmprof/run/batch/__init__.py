"""Sweeps: a run for every combination of parameters, the comparison of the results, and notebooks
over many runs.

>>> sweep = llmprof.sweep(config, batch_size=[1, 2, 4])  # doctest: +SKIP
>>> sweep.comparison  # one row per run: latencies, throughput, and the shares of its time  # doctest: +SKIP
>>> batch.write_report(sweep).index  # the same as a page with charts  # doctest: +SKIP
"""  # noqa: E501

from llmprof.errors import door
from llmprof.run.batch.notebooks import Walkthroughs, notebooks_over
from llmprof.run.batch.parameters import PRESETS, configs, parse, preset
from llmprof.run.batch.runner import BatchRunner, device_count
from llmprof.run.batch.sweep import Sweep, open_sweep, write_report

door(globals())
