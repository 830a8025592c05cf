"""Analyses: pure functions that take a trace and return a Polars frame.

Each is in the module of its name. They are all imported here, so ``llmprof.analyze.steps`` is the function and never
the module: a module becomes an attribute of its package when it is first loaded, and that is before the lines below
have bound the function to the name.
"""

from __future__ import annotations

from llmprof.analyze.activity import activity
from llmprof.analyze.attribution import attribute
from llmprof.analyze.categories import kernel_categories
from llmprof.analyze.collective_arrivals import collective_arrivals
from llmprof.analyze.collective_sizes import collective_sizes
from llmprof.analyze.collectives import collectives
from llmprof.analyze.coverage import coverage
from llmprof.analyze.cuda_gpu_kern_pace import cuda_gpu_kern_pace
from llmprof.analyze.cuda_kern_exec_sum import cuda_kern_exec_sum
from llmprof.analyze.diff import diff
from llmprof.analyze.events_within import events_within
from llmprof.analyze.findings import findings
from llmprof.analyze.gpu_time_util_map import gpu_time_util_map
from llmprof.analyze.idle import idle, stream_gaps
from llmprof.analyze.kernel_summary import kernel_summary
from llmprof.analyze.kernels_within import kernels_within
from llmprof.analyze.launch_delay import launch_delay
from llmprof.analyze.layer_gaps import layer_gaps
from llmprof.analyze.layers import layers
from llmprof.analyze.name_layers import name_layers
from llmprof.analyze.ncu_command import ncu_command
from llmprof.analyze.ncu_join import ncu_join
from llmprof.analyze.nsys_reports import (
    cuda_api_sum,
    cuda_gpu_kern_sum,
    cuda_gpu_mem_size_sum,
    cuda_gpu_mem_time_sum,
)
from llmprof.analyze.nvtx_kernels import nvtx_kernels
from llmprof.analyze.nvtx_reports import nvtx_gpu_proj_sum, nvtx_sum
from llmprof.analyze.ops_to_kernels import ops_to_kernels
from llmprof.analyze.overlap import overlap
from llmprof.analyze.overlap_within import overlap_within
from llmprof.analyze.speed_of_light import speed_of_light
from llmprof.analyze.stalls import stalls
from llmprof.analyze.steady_state import steady_state
from llmprof.analyze.step_time import step_time
from llmprof.analyze.steps import steps

__all__ = [
    "activity",
    "attribute",
    "collective_arrivals",
    "collective_sizes",
    "collectives",
    "coverage",
    "cuda_api_sum",
    "cuda_gpu_kern_pace",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_size_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_kern_exec_sum",
    "diff",
    "events_within",
    "findings",
    "gpu_time_util_map",
    "idle",
    "kernel_categories",
    "kernel_summary",
    "kernels_within",
    "launch_delay",
    "layer_gaps",
    "layers",
    "name_layers",
    "ncu_command",
    "ncu_join",
    "nvtx_gpu_proj_sum",
    "nvtx_kernels",
    "nvtx_sum",
    "ops_to_kernels",
    "overlap",
    "overlap_within",
    "speed_of_light",
    "stalls",
    "steady_state",
    "step_time",
    "steps",
    "stream_gaps",
]
