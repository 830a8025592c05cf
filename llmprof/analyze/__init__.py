"""Analyses: pure functions that take a trace and return a Polars frame.

Each is in the module of its name. They are all imported here, so ``llmprof.analyze.steps`` is the function and never
the module: a module becomes an attribute of its package when it is first loaded, and that is before the lines below
have bound the function to the name.
"""

from __future__ import annotations

from llmprof.analyze.activity import activity, kernel_categories
from llmprof.analyze.collectives.collectives import collective_arrivals, collective_sizes, collectives
from llmprof.analyze.compare import diff
from llmprof.analyze.coverage import coverage
from llmprof.analyze.findings.findings import findings
from llmprof.analyze.idle import idle, launch_delay, stream_gaps
from llmprof.analyze.kernels.kernels import events_within, kernel_summary, kernels_within
from llmprof.analyze.kernels.operators import ops_to_kernels
from llmprof.analyze.layers.attribution import attribute
from llmprof.analyze.layers.launches import name_layers
from llmprof.analyze.layers.layers import layer_gaps, layers
from llmprof.analyze.ncu.command import ncu_command
from llmprof.analyze.ncu.join import ncu_join
from llmprof.analyze.ncu.speed_of_light import speed_of_light, stalls
from llmprof.analyze.nsys.nvtx import nvtx_gpu_proj_sum, nvtx_kernels, nvtx_sum
from llmprof.analyze.nsys.recipes import cuda_gpu_kern_pace, gpu_time_util_map
from llmprof.analyze.nsys.summaries import (
    cuda_api_sum,
    cuda_gpu_kern_sum,
    cuda_gpu_mem_size_sum,
    cuda_gpu_mem_time_sum,
    cuda_kern_exec_sum,
)
from llmprof.analyze.overlap import overlap, overlap_within
from llmprof.analyze.steps.steps import steps
from llmprof.analyze.steps.summary import steady_state, step_time

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
