"""Analyses of NPU recordings: the path from the host to the device, waits, cores, links, memory.

They also work on GPU recordings that hold the same data.
"""

from llmprof.analyze.npu.cores import core_time, memory_by_component, operator_shapes
from llmprof.analyze.npu.waits import event_waits, host_synchronisation, launch_path, links

__all__ = [
    "core_time",
    "event_waits",
    "host_synchronisation",
    "launch_path",
    "links",
    "memory_by_component",
    "operator_shapes",
]
