"""Summaries of Nsight Systems from any trace, with the names that ``nsys stats`` and its recipes
use.

Columns have the order and meaning of nsys's, with three differences: shares are fractions and not
percentages, means are not rounded, and sizes are in bytes. ``by=("rank",)`` groups by columns of
the summed rows first.
"""

from llmprof.analyze.nsys.nvtx import (
    nvtx_gpu_proj_sum,
    nvtx_kernels,
    nvtx_pushpop_sum,
    nvtx_pushpop_trace,
    nvtx_startend_sum,
    nvtx_sum,
)
from llmprof.analyze.nsys.summaries import (
    cuda_api_sum,
    cuda_gpu_kern_pace,
    cuda_gpu_kern_sum,
    cuda_gpu_mem_size_sum,
    cuda_gpu_mem_time_sum,
    cuda_kern_exec_sum,
    gpu_time_util_map,
    mpi_event_sum,
    openacc_sum,
    openmp_sum,
    osrt_sum,
)
from llmprof.errors import door

door(globals())
