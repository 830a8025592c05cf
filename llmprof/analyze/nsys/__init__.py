"""Summaries under the names of Nsight Systems, from any trace: what ``nsys stats`` and its recipes print.

=================== =============================================================================================
Kernels             :func:`cuda_gpu_kern_sum`, :func:`cuda_kern_exec_sum`, :func:`cuda_gpu_kern_pace`,
                    :func:`gpu_time_util_map`
Calls and copies    :func:`cuda_api_sum`, :func:`cuda_gpu_mem_time_sum`, :func:`cuda_gpu_mem_size_sum`
Ranges              :func:`nvtx_sum`, :func:`nvtx_gpu_proj_sum`, :func:`nvtx_kernels`
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
    "nvtx_gpu_proj_sum",
    "nvtx_kernels",
    "nvtx_sum",
]

if TYPE_CHECKING:
    from llmprof.analyze.nsys.nvtx import nvtx_gpu_proj_sum, nvtx_kernels, nvtx_sum
    from llmprof.analyze.nsys.recipes import cuda_gpu_kern_pace, gpu_time_util_map
    from llmprof.analyze.nsys.summaries import (
        cuda_api_sum,
        cuda_gpu_kern_sum,
        cuda_gpu_mem_size_sum,
        cuda_gpu_mem_time_sum,
        cuda_kern_exec_sum,
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
            "nvtx_gpu_proj_sum": "llmprof.analyze.nsys.nvtx",
            "nvtx_kernels": "llmprof.analyze.nsys.nvtx",
            "nvtx_sum": "llmprof.analyze.nsys.nvtx",
        },
    )
