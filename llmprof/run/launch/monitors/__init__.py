"""Monitors that sample counters during a run:

GPUs through NVML, the host and the run's processes through psutil.

>>> from llmprof.run.launch.monitors import Sampler, counters
>>> with Sampler("monitors.parquet", hz=2) as sampler:  # doctest: +SKIP
...     sampler.watch(pid)
>>> trace = counters(pl.read_parquet("monitors.parquet"), trace)  # doctest: +SKIP

Names of the counters, all in base units; counters of GPUs have a device:

``gpu.utilization``, ``gpu.memory_utilization`` (%), ``gpu.memory_used`` (B), ``gpu.power`` (W),
``gpu.temperature``, ``gpu.memory_temperature`` (°C), ``gpu.sm_clock``, ``gpu.memory_clock`` (Hz),
``gpu.pcie_received``, ``gpu.pcie_sent``, ``gpu.nvlink_received``, ``gpu.nvlink_sent`` (B/s),
``gpu.throttle_reasons`` (a bit mask, from which :func:`counters` makes a counter
``gpu.throttle.REASON`` of 0 and 1 for each reason); ``cpu.utilization`` (% of all processors),
``memory.used`` (B), ``disk.read``, ``disk.written``, ``network.received``, ``network.sent`` (B/s);
and for the run's processes ``run.cpu`` (%, 100 is one processor), ``run.delay`` (% of the time in
which a main thread could have run but no processor was free, of the process that waited most;
Linux), ``run.memory`` (B, resident; shared pages count in each process), ``run.processes`` (number
of processes).
"""

from typing import TYPE_CHECKING

from llmprof.errors import door

if TYPE_CHECKING:
    from llmprof.run.launch.monitors.sampler import Sampler, counters

# at their first use, since they need psutil, and the folder of a run does not
door(globals(), {"run.launch.monitors.sampler": "Sampler counters"})
