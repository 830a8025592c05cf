"""Summaries of Nsight Systems from any trace, with the names that ``nsys stats`` and its recipes use.

=================== =============================================================================================
Kernels             :func:`cuda_gpu_kern_sum`, :func:`cuda_kern_exec_sum`, :func:`cuda_gpu_kern_pace`,
                    :func:`gpu_time_util_map`
Calls and copies    :func:`cuda_api_sum`, :func:`cuda_gpu_mem_time_sum`, :func:`cuda_gpu_mem_size_sum`
Other libraries     :func:`osrt_sum`, :func:`openacc_sum`, :func:`openmp_sum`, :func:`mpi_event_sum`
Ranges              :func:`nvtx_sum`, :func:`nvtx_pushpop_sum`, :func:`nvtx_startend_sum`,
                    :func:`nvtx_pushpop_trace`, :func:`nvtx_gpu_proj_sum`, :func:`nvtx_kernels`
=================== =============================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.lazy import attach

__all__ = [
    "cuda_api_sum",
    "cuda_gpu_kern_pace",
    "cuda_gpu_kern_sum",
    "cuda_gpu_mem_size_sum",
    "cuda_gpu_mem_time_sum",
    "cuda_kern_exec_sum",
    "gpu_time_util_map",
    "mpi_event_sum",
    "nvtx_gpu_proj_sum",
    "nvtx_kernels",
    "nvtx_pushpop_sum",
    "nvtx_pushpop_trace",
    "nvtx_startend_sum",
    "nvtx_sum",
    "openacc_sum",
    "openmp_sum",
    "osrt_sum",
]

if TYPE_CHECKING:
    from llmprof.analyze.nsys.nvtx import (
        nvtx_gpu_proj_sum,
        nvtx_kernels,
        nvtx_pushpop_sum,
        nvtx_pushpop_trace,
        nvtx_startend_sum,
        nvtx_sum,
    )
    from llmprof.analyze.nsys.recipes import (
        cuda_gpu_kern_pace,
        gpu_time_util_map,
    )
    from llmprof.analyze.nsys.summaries import (
        cuda_api_sum,
        cuda_gpu_kern_sum,
        cuda_gpu_mem_size_sum,
        cuda_gpu_mem_time_sum,
        cuda_kern_exec_sum,
        mpi_event_sum,
        openacc_sum,
        openmp_sum,
        osrt_sum,
    )
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "cuda_api_sum": "llmprof.analyze.nsys.summaries",
            "cuda_gpu_kern_pace": "llmprof.analyze.nsys.recipes",
            "cuda_gpu_kern_sum": "llmprof.analyze.nsys.summaries",
            "cuda_gpu_mem_size_sum": "llmprof.analyze.nsys.summaries",
            "cuda_gpu_mem_time_sum": "llmprof.analyze.nsys.summaries",
            "cuda_kern_exec_sum": "llmprof.analyze.nsys.summaries",
            "gpu_time_util_map": "llmprof.analyze.nsys.recipes",
            "mpi_event_sum": "llmprof.analyze.nsys.summaries",
            "nvtx_gpu_proj_sum": "llmprof.analyze.nsys.nvtx",
            "nvtx_kernels": "llmprof.analyze.nsys.nvtx",
            "nvtx_pushpop_sum": "llmprof.analyze.nsys.nvtx",
            "nvtx_pushpop_trace": "llmprof.analyze.nsys.nvtx",
            "nvtx_startend_sum": "llmprof.analyze.nsys.nvtx",
            "nvtx_sum": "llmprof.analyze.nsys.nvtx",
            "openacc_sum": "llmprof.analyze.nsys.summaries",
            "openmp_sum": "llmprof.analyze.nsys.summaries",
            "osrt_sum": "llmprof.analyze.nsys.summaries",
        },
    )
