"""The summaries of Nsight Systems in the catalogue: ``llmprof analyze --what cuda_gpu_kern_sum`` and the like."""

from __future__ import annotations

from typing import Final

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.nsys import nvtx, recipes, summaries

_SUMMARIES: Final = {
    summaries.cuda_gpu_kern_sum: ("Which kernels take the time?", "nsys: time of kernels by name"),
    summaries.cuda_api_sum: ("Which calls of CUDA take the host's time?", "nsys: time of CUDA calls by name"),
    summaries.cuda_gpu_mem_time_sum: ("How long do copies take?", "nsys: time of copies and memory sets by kind"),
    summaries.cuda_gpu_mem_size_sum: ("How much is copied?", "nsys: bytes of copies and memory sets by kind"),
    nvtx.nvtx_sum: ("Which ranges of the program take the time?", "nsys: time of NVTX ranges by name"),
    nvtx.nvtx_pushpop_sum: ("Which pushed ranges take the time?", "nsys: time of push/pop ranges by name"),
    nvtx.nvtx_startend_sum: ("Which started ranges take the time?", "nsys: time of start/end ranges by name"),
    nvtx.nvtx_gpu_proj_sum: ("Which ranges keep the device busy?", "nsys: NVTX ranges projected onto the device"),
    summaries.osrt_sum: (
        "What does the host wait for in the operating system?",
        "nsys: time of calls of the OS by name",
    ),
    summaries.openacc_sum: ("Which events of OpenACC take the time?", "nsys: time of OpenACC events by name and line"),
    summaries.openmp_sum: ("Which events of OpenMP take the time?", "nsys: time of OpenMP events by name"),
    summaries.mpi_event_sum: ("Which calls of MPI take the time?", "nsys: time of MPI calls by name"),
}
_OTHERS: Final = {
    summaries.cuda_kern_exec_sum: ("How long do launches wait?", "nsys: launch, queue and run time of kernels"),
    nvtx.nvtx_pushpop_trace: ("How are the ranges nested?", "nsys: each push/pop range with its place in the stack"),
    nvtx.nvtx_kernels: ("What did each range launch?", "nsys: instances of ranges with their device work"),
    recipes.cuda_gpu_kern_pace: ("Do the ranks keep pace?", "nsys: runs of the heaviest kernel, side by side"),
    recipes.gpu_time_util_map: ("When is the device busy?", "nsys: busy share of the device by bin of time"),
}

ANALYSES: Final = (
    *(
        Analysis(function=one, question=question, help=words, view=one.__name__, grouped_by="by")
        for one, (question, words) in _SUMMARIES.items()
    ),
    *(
        Analysis(function=one, question=question, help=words, view=one.__name__)
        for one, (question, words) in _OTHERS.items()
    ),
)
