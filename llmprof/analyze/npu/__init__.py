"""Questions that an NPU's recording answers: the way from the host to the device, waits, cores, links, memory.

Where a GPU's recording holds the same, they are answered for it, too.
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
