"""Questions of an NPU; some also have answers for a GPU whose recording holds the same data."""

from llmprof.analyze.npu.cores import core_time, memory_by_component, operator_shapes
from llmprof.analyze.npu.waits import event_waits, launch_path, links
from llmprof.errors import door

door(globals())
