from .summaries import cuda_gpu_kern_sum as cuda_gpu_kern_sum, cuda_api_sum as cuda_api_sum
from .summaries import (
    cuda_gpu_mem_time_sum as cuda_gpu_mem_time_sum,
    cuda_gpu_mem_size_sum as cuda_gpu_mem_size_sum,
)
from .nvtx import (
    nvtx_sum as nvtx_sum,
    nvtx_pushpop_sum as nvtx_pushpop_sum,
    nvtx_startend_sum as nvtx_startend_sum,
)
from .nvtx import nvtx_gpu_proj_sum as nvtx_gpu_proj_sum
from .summaries import osrt_sum as osrt_sum, openacc_sum as openacc_sum, openmp_sum as openmp_sum
from .summaries import mpi_event_sum as mpi_event_sum, cuda_kern_exec_sum as cuda_kern_exec_sum
from .nvtx import nvtx_pushpop_trace as nvtx_pushpop_trace, nvtx_kernels as nvtx_kernels
from .summaries import (
    cuda_gpu_kern_pace as cuda_gpu_kern_pace,
    gpu_time_util_map as gpu_time_util_map,
)
