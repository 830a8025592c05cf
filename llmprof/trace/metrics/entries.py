"""Entries of the glossary: metrics that matter for the kernels of LLM inference.

The texts were written for llmprof. Each source names the part of NVIDIA's documentation that
describes the metric.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_GUIDE = "NVIDIA Nsight Compute documentation, Kernel Profiling Guide: "
_SECTIONS = _GUIDE + "Sections and Rules"
_LAUNCH = _GUIDE + "Metrics Reference, Launch Metrics"
_PIPES = _GUIDE + "Metrics Decoder, Pipelines"
_MEMORY = _GUIDE + "Memory Tables, "
_STALL_SOURCE = _GUIDE + "Metrics Reference, Warp Stall Reasons"
_SOURCE_METRICS = _GUIDE + "Metrics Reference, Source Metrics"


class Entry(NamedTuple):
    """Entry of a metric, or of a family of metrics with the same meaning."""

    names: tuple[str, ...]
    """Names of metrics without rollup and submetric; ``*`` stands for any text."""
    labels: tuple[str, ...]
    """Names of the same metrics on the details page of Nsight Compute."""
    title: str
    meaning: str
    good: str
    action: str
    source: str


ENTRIES: Final[tuple[Entry, ...]] = (
    Entry(
        ("gpu__time_duration",),
        ("Duration",),
        "duration",
        "Time of the kernel on the GPU. It was measured while the kernel ran alone, with the"
        " profiler's clocks and caches, so it differs from the kernel's time in the timeline.",
        "Near the duration in the timeline. Much longer: the profiler locked the clocks to base"
        " (--clock-control base) or emptied the caches before the kernel.",
        "Profile with --clock-control none; compare kernels by their share of the timeline, not by"
        " this time.",
        _SECTIONS + ", GPU Speed Of Light Throughput",
    ),
    Entry(
        ("sm__throughput",),
        ("Compute (SM) Throughput",),
        "use of the SMs",
        "The busiest part of the SMs (an arithmetic pipe, the issue slots ...) in percent of its"
        " peak; the breakdown tells which part it is.",
        "Above 80 %: the kernel is near the limit of the device. 60 to 80 %: compute is the likely"
        " limit. Below 60 %, and memory below 60 % too: latency is the limit.",
        "High: do less arithmetic or use faster units (tensor cores, lower precision). Low, and"
        " memory low too: see the warp states and the occupancy, and check whether the grid fills"
        " the GPU.",
        _SECTIONS + ", GPU Speed Of Light Throughput",
    ),
    Entry(
        ("gpu__compute_memory_throughput",),
        ("Memory Throughput",),
        "use of the memory system",
        "The busiest part of the memory system, L1 and shared memory included, in percent of its"
        " peak. A GEMM that feeds the tensor cores from shared memory is high here without touching"
        " the DRAM much.",
        "Kernels that move data: above 80 %. For GEMMs the figure says little; look at DRAM and L2"
        " separately.",
        "First see which level is busy: dram__throughput, lts__throughput or l1tex__throughput.",
        _SECTIONS + ", GPU Speed Of Light Throughput",
    ),
    Entry(
        ("dram__throughput", "gpu__dram_throughput"),
        ("DRAM Throughput",),
        "use of the device memory",
        "Traffic of the device memory in percent of the peak that it can sustain. It is what limits"
        " decoding: each step reads all weights and the KV cache.",
        "Kernels that stream data (GEMMs of decode, norms, attention of decode): 80 to 92 % is as"
        " good as it gets. Prefill GEMMs: below 50 % is normal.",
        "High: move fewer bytes by quantizing weights or the KV cache, by larger batches (weights"
        " are read once for all requests), or by fusing kernels. Low although memory limits the"
        " kernel: keep more bytes in flight (wider loads, more warps, asynchronous copies) and fill"
        " the GPU with a larger grid.",
        _SECTIONS + ", GPU Speed Of Light Throughput",
    ),
    Entry(
        (
            "dram__bytes_read",
            "dram__bytes_write",
            "dram__bytes",
            "dram__sectors_read",
            "dram__sectors_write",
        ),
        ("Memory Workload Analysis: Memory Throughput", "DRAM Bandwidth"),
        "traffic of the device memory",
        "Bytes (or sectors of 32 bytes) that went between L2 and device memory. Writes count when"
        " they leave L2. The last part of a result may still be in L2 when the kernel ends; it is"
        " not counted.",
        "Reads near the size of the inputs read once (for a GEMM 2 bytes x (M K + K N) in BF16)."
        " Several times as many: data that are read again have already left the cache.",
        "Too many: choose tiles that reuse more data, another order of tiles (swizzle), or fuse"
        " kernels. The profiler empties the caches before each pass; with --cache-control none, L2"
        " keeps data of the previous kernel.",
        _GUIDE + "Memory Tables, Device Memory",
    ),
    Entry(
        (
            "dram__cycles_elapsed",
            "gpc__cycles_elapsed",
            "sm__cycles_elapsed",
            "smsp__cycles_elapsed",
            "lts__cycles_elapsed",
        ),
        ("SM Frequency", "DRAM Frequency", "Elapsed Cycles"),
        "clocks",
        "Cycles of the unit's clock; per second it is the frequency at which the kernel ran.",
        "SM near the boost clock of the device; a GEMM at its power limit runs 10 to 25 %"
        " below it.",
        "Low: a power or thermal limit, or clocks that the profiler locked (--clock-control none"
        " leaves them alone). Data sheets give peaks at the boost clock.",
        _GUIDE + "Clock Control",
    ),
    Entry(
        ("lts__throughput",),
        ("L2 Cache Throughput",),
        "use of the L2 cache",
        "The busiest part of L2 in percent of its peak.",
        "Below 60 %, unless the data fit into L2. L2 is the limit of small norms and activations"
        " whose input the previous kernel left in L2.",
        "High: use larger tiles or multicast between blocks of a cluster (TMA), or fuse"
        " neighbouring kernels.",
        _MEMORY + "L2 Cache",
    ),
    Entry(
        (
            "lts__t_sectors",
            "lts__t_requests",
            "lts__t_bytes",
            "lts__t_sectors_op_*",
            "lts__t_sectors_srcunit_*",
        ),
        (),
        "traffic of the L2 cache",
        "Sectors of 32 bytes (requests, bytes) that L2 handled. srcunit names the requester (tex:"
        " the SMs; ltcfabric: the other half of L2), op the operation.",
        "Near the bytes that the SMs have to read. A large srcunit_ltcfabric means that much of the"
        " data is in the other half of L2.",
        "Four sectors per request are best: access whole lines of 128 bytes.",
        _MEMORY + "L2 Cache",
    ),
    Entry(
        ("lts__t_sector_hit_rate", "lts__t_sector_op_*_hit_rate"),
        ("L2 Hit Rate",),
        "L2 hit rate",
        "Share of the requested sectors that were in L2. Both halves of L2 count, and so do writes,"
        " which nearly always hit.",
        "GEMMs: above 60 to 70 % (tiles share inputs). Kernels that read everything once: about"
        " half or less, which is normal.",
        "Low in a GEMM: order the tiles so that neighbours run at the same time, or use larger"
        " tiles. Set the access window (persisting L2) for small data that are read many times.",
        _MEMORY + "L2 Cache",
    ),
    Entry(
        ("l1tex__throughput", "l1tex__data_pipe_lsu_wavefronts", "l1tex__lsu_writeback_active"),
        ("L1/TEX Cache Throughput",),
        "use of L1 and shared memory",
        "The busiest part of the L1 cache and shared memory in percent of its peak; tensor cores"
        " that read their operands from shared memory count here.",
        "Up to 90 % in a tuned GEMM. High in other kernels: bank conflicts or scattered accesses.",
        "Look at bank conflicts and sectors per request; use registers, warp shuffles, ldmatrix and"
        " TMA.",
        _MEMORY + "L1/TEX Cache",
    ),
    Entry(
        ("l1tex__t_sector_hit_rate", "l1tex__t_sector_pipe_*_hit_rate"),
        ("L1/TEX Hit Rate",),
        "L1 hit rate",
        "Share of the sectors of global and local accesses that were in L1. TMA does not go"
        " through L1.",
        "0 % is right for kernels that load with TMA or read everything once.",
        "It matters only if long_scoreboard is the top stall and the kernel reads data more than"
        " once: keep those data in shared memory.",
        _MEMORY + "L1/TEX Cache",
    ),
    Entry(
        ("l1tex__t_sectors*", "l1tex__t_requests*", "l1tex__t_bytes*"),
        (),
        "traffic of the L1 cache",
        "Sectors of 32 bytes (requests of a warp, bytes) that the tag stage of L1 looked up, by"
        " pipe (pipe), memory space (mem) and operation (op).",
        "Sectors per request: 4 if each thread of a warp reads the next 4 bytes, 16 if each reads"
        " the next 16 bytes.",
        "More sectors per request than the threads need: let neighbouring threads read neighbouring"
        " addresses. Many requests: read 8 or 16 bytes per thread.",
        _MEMORY + "L1/TEX Cache",
    ),
    Entry(
        ("l1tex__m_l1tex2xbar_write_bytes", "l1tex__m_xbar2l1tex_read_bytes"),
        (),
        "traffic between SMs and L2",
        "Bytes that the SMs wrote to L2, or read from it.",
        "Writes: the size of the result. More than that: spilled registers, partial sums (split-K),"
        " or results that are written twice.",
        "A GEMM normally reads its inputs many times from L2; larger tiles and multicast reduce"
        " these reads.",
        _MEMORY + "L2 Cache",
    ),
    Entry(
        (
            "l1tex__data_bank_conflicts_pipe_lsu*",
            "derived__memory_l1_conflicts_shared_nway",
            "derived__memory_l1_wavefronts_shared_excessive",
            "memory_l1_wavefronts_shared*",
        ),
        (),
        "shared-memory bank conflicts",
        "Additional passes (wavefronts) because threads of a warp accessed different words of the"
        " same bank, of which there are 32.",
        "0, or few compared with all shared-memory wavefronts.",
        "Pad rows, swizzle the layout (as CUTLASS and TMA do), read 16 bytes per thread, use"
        " ldmatrix.",
        _MEMORY + "Shared Memory",
    ),
    Entry(
        (
            "derived__memory_l2_theoretical_sectors_global_excessive",
            "smsp__sass_average_data_bytes_per_sector_mem_global*",
        ),
        (),
        "coalescing of global accesses",
        "Whether the threads of a warp use all of the 32 bytes of each sector that they fetch.",
        "32 bytes per sector; no excessive sectors.",
        "Let neighbouring threads read neighbouring addresses, change the layout of the data, or"
        " load through shared memory.",
        _SOURCE_METRICS,
    ),
    Entry(
        (
            "sm__pipe_tensor_cycles_active*",
            "sm__pipe_tensor_op_*_cycles_active*",
            "sm__inst_executed_pipe_tensor*",
            "sm__pipe_tensor_type_*",
        ),
        (),
        "use of the tensor cores",
        "Share of the cycles in which the tensor cores worked, or the number of instructions issued"
        " to them.",
        "Large GEMMs of prefill: 80 to 90 % of elapsed. Small GEMMs: as much as the grid allows."
        " Decode GEMMs: a few percent, because memory is the limit.",
        "Low in prefill: the grid does not fill the GPU evenly (waves per SM), the tiles do not fit"
        " the shape, the operands arrive too late (long_scoreboard, barrier), or the kernel does"
        " not use tensor cores at all (alignment, type).",
        _PIPES,
    ),
    Entry(
        ("sm__ops_path_tensor_*",),
        (),
        "operations of the tensor cores",
        "Multiplications and additions that the tensor cores did, by type of input and result. A"
        " multiply-add counts as two.",
        "2 M N K for a GEMM. More than that: tiles reach beyond the shape or, in causal attention,"
        " are half empty.",
        "Choose tiles that divide the shape; pad the batch to a multiple of the tile.",
        _GUIDE + "Metrics Structure; Metrics Reference, Overview",
    ),
    Entry(
        (
            "smsp__sass_thread_inst_executed_op_*",
            "sm__sass_thread_inst_executed_op_*",
            "derived__smsp__sass_thread_inst*",
        ),
        (),
        "FP instructions of threads",
        "Additions, multiplications and fused multiply-adds outside the tensor cores, counted per"
        " thread, without those that a predicate switched off. f: FP32, h: FP16, d: FP64. An fma"
        " counts as two operations.",
        "GEMMs: few compared with the operations of the tensor cores. Norms and activations: all of"
        " their arithmetic.",
        "Much FP32 in a GEMM: it does not use the tensor cores. Separate add and mul: let the"
        " compiler fuse them.",
        _GUIDE + "Roofline Charts",
    ),
    Entry(
        ("sm__warps_active",),
        ("Achieved Occupancy", "Achieved Active Warps Per SM"),
        "achieved occupancy",
        "Warps that were resident on an SM, in percent of the most that it can hold.",
        "Near the theoretical occupancy. Kernels that stream data need about 50 %, or asynchronous"
        " copies. Tuned GEMMs and attention run best at 10 to 25 %.",
        "Far below the theoretical occupancy: blocks take unequal times, or the grid has fewer"
        " blocks than fit on the GPU at once.",
        _SECTIONS + ", Occupancy",
    ),
    Entry(
        (
            "sm__maximum_warps_per_active_cycle_pct",
            "smsp__maximum_warps_avg_per_active_cycle",
            "sm__maximum_warps_avg_per_active_cycle",
        ),
        ("Theoretical Occupancy", "Theoretical Active Warps per SM"),
        "theoretical occupancy",
        "Warps that fit on an SM, given the registers, shared memory and barriers of a block and"
        " its size.",
        "High enough to hide latency; more is not better in itself. See achieved occupancy.",
        "See which limit (launch__occupancy_limit_*) is the smallest. More warps help if"
        " long_scoreboard or wait is the top stall.",
        _SECTIONS + ", Occupancy",
    ),
    Entry(
        ("launch__occupancy_limit_registers",),
        ("Block Limit Registers",),
        "occupancy limit: registers",
        "Blocks whose registers fit on an SM.",
        "Not the smallest of the limits, unless the kernel is a GEMM or attention that keeps"
        " accumulators in registers.",
        "Use fewer registers per thread (__launch_bounds__, --maxrregcount, smaller tiles), but"
        " beware of spilling.",
        _LAUNCH,
    ),
    Entry(
        ("launch__occupancy_limit_shared_mem",),
        ("Block Limit Shared Mem",),
        "occupancy limit: shared memory",
        "Blocks whose shared memory fits on an SM.",
        "1 in pipelined GEMMs and attention, by design.",
        "If more blocks would help: use fewer pipeline stages or smaller tiles.",
        _LAUNCH,
    ),
    Entry(
        (
            "launch__occupancy_limit_warps",
            "launch__occupancy_limit_blocks",
            "launch__occupancy_limit_barriers",
        ),
        ("Block Limit Warps", "Block Limit SM", "Block Limit Barriers"),
        "occupancy limit: warps, blocks, barriers",
        "Blocks that fit on an SM, given its limits of warps, blocks and barriers.",
        "The limit of warps is the smallest of all: then registers and shared memory do not lower"
        " the occupancy.",
        "The limit of blocks is the smallest: use larger blocks.",
        _LAUNCH,
    ),
    Entry(
        ("launch__registers_per_thread", "launch__registers_per_thread_allocated"),
        ("Registers Per Thread",),
        "registers per thread",
        "Registers of 32 bits that each thread has, at most 255. An SM has 65,536.",
        "Up to 32: registers do not limit the occupancy. 168 with 384 threads per block: one block"
        " fits on an SM, which is usual for GEMMs.",
        "High, with low occupancy and latency stalls: use smaller tiles or __launch_bounds__. At"
        " 255: look for spilling.",
        _LAUNCH,
    ),
    Entry(
        (
            "derived__local_spilling_requests*",
            "sass__inst_executed_register_spilling*",
            "sass__inst_executed_local_loads",
            "sass__inst_executed_local_stores",
            "smsp__inst_executed_op_local*",
        ),
        ("Local Memory Spilling Requests", "Local Memory Spilling Request Overhead"),
        "register spilling",
        "Accesses to local memory, most of them because the registers did not suffice.",
        "0 in the inner loop.",
        "Use smaller tiles, keep fewer values live, and avoid arrays whose index is known only at"
        " run time.",
        _SOURCE_METRICS,
    ),
    Entry(
        ("launch__shared_mem_per_block*", "launch__shared_mem_config_size"),
        (
            "Dynamic Shared Memory Per Block",
            "Static Shared Memory Per Block",
            "Shared Memory Configuration Size",
        ),
        "shared memory per block",
        "Shared memory of a block: static, dynamic, and the part that the driver adds.",
        "As much as its pipeline needs; up to 227 KB per block on Hopper.",
        "Look at the occupancy limit before you make it smaller.",
        _LAUNCH,
    ),
    Entry(
        ("launch__waves_per_multiprocessor",),
        ("Waves Per SM",),
        "waves",
        "How often the grid fills the GPU at this occupancy. A fraction means that SMs are idle in"
        " the last wave.",
        "Just below a whole number, or so many waves that the last one does not matter (above"
        " about 5).",
        "Below 1: use a larger grid (split-K, smaller tiles). Just above a whole number: use other"
        " tiles, or a persistent kernel that divides the work evenly (stream-K).",
        _LAUNCH,
    ),
    Entry(
        (
            "launch__grid_size",
            "launch__block_size",
            "launch__thread_count",
            "launch__sm_count",
            "launch__cluster_*",
        ),
        ("Grid Size", "Block Size", "Threads", "# SMs", "Cluster Size"),
        "launch configuration",
        "Blocks of the grid, threads of a block, clusters of blocks, SMs of the device.",
        "At least one block per SM, and block sizes that are multiples of 32, usually 128 to 512.",
        "Fewer blocks than SMs leave SMs idle: use smaller tiles, split the reduction, or batch"
        " more requests.",
        _LAUNCH,
    ),
    Entry(
        ("smsp__issue_active", "sm__issue_active", "smsp__issue_inst0", "sm__inst_issued"),
        ("One or More Eligible", "No Eligible", "Issue Slots Busy", "Issued Warp Per Scheduler"),
        "issue slots",
        "Share of the cycles in which a scheduler issued an instruction (inst0 and No Eligible: in"
        " which it issued none).",
        "Arithmetic outside the tensor cores: above 60 %. A GEMM on tensor cores: 15 to 25 %,"
        " because one instruction does much work.",
        "Low, and neither a pipe nor memory is busy: more warps must be ready. Raise the occupancy,"
        " give a thread independent instructions, or reduce the stalls.",
        _SECTIONS + ", Scheduler Statistics",
    ),
    Entry(
        ("smsp__warps_eligible", "smsp__warps_active"),
        ("Eligible Warps Per Scheduler", "Active Warps Per Scheduler"),
        "warps of a scheduler",
        "Warps that a scheduler has (active), and those of them that can issue an instruction in a"
        " cycle (eligible).",
        "At least one eligible warp in most cycles.",
        "Many active warps but few eligible ones: see the stall reasons. Few active warps: see the"
        " occupancy.",
        _SECTIONS + ", Scheduler Statistics",
    ),
    Entry(
        (
            "smsp__average_warp_latency_per_inst_issued",
            "smsp__average_warps_active_per_inst_executed",
        ),
        ("Warp Cycles Per Issued Instruction", "Warp Cycles Per Executed Instruction"),
        "cycles between instructions",
        "Cycles between two instructions of a warp. The stall reasons say what these cycles were"
        " spent on.",
        "No more than the active warps of a scheduler: then latency is hidden.",
        "Reduce the largest stall.",
        _SECTIONS + ", Warp State Statistics",
    ),
    Entry(
        (
            "smsp__thread_inst_executed_per_inst_executed",
            "smsp__thread_inst_executed_pred_on_per_inst_executed",
        ),
        ("Avg. Active Threads Per Warp", "Avg. Not Predicated Off Threads Per Warp"),
        "threads of a warp at work",
        "Threads, of the 32 of a warp, that take part in an instruction (pred_on: and that no"
        " predicate switched off).",
        "Above 28.",
        "Low: look for branches that split warps, for block sizes that are no multiple of 32, and"
        " for rows whose end fills only a part of a warp.",
        _SECTIONS + ", Warp State Statistics",
    ),
    Entry(
        ("smsp__inst_executed", "sm__inst_executed", "smsp__inst_issued", "inst_executed"),
        (
            "Executed Instructions",
            "Issued Instructions",
            "Executed Ipc Active",
            "Executed Ipc Elapsed",
            "Issued Ipc Active",
        ),
        "instructions",
        "Instructions that warps executed (issued: repetitions included). Per cycle it is the IPC"
        " of an SM, at most 4.",
        "Issued close to executed. The IPC says little for tensor-core kernels.",
        "Many instructions for few bytes or operations: vectorise accesses, move index arithmetic"
        " out of loops, and unroll them.",
        _SECTIONS + ", Instruction Statistics",
    ),
    Entry(
        (
            "sm__inst_executed_pipe_*",
            "sm__pipe_alu_cycles_active",
            "sm__pipe_fma*_cycles_active",
            "sm__pipe_fp64_cycles_active",
        ),
        (),
        "use of the other pipes",
        "Instructions or busy cycles of one pipe: alu (integers, comparisons), fma (FP32), fp64, xu"
        " (exp, rsqrt, conversions), lsu (memory), uniform (once per warp), cbu (branches), tma"
        " (bulk copies).",
        "The pipe that does the kernel's own arithmetic is the busiest. If alu is above fma, index"
        " arithmetic dominates.",
        "High xu in attention or activations: approximate the exponentials, or convert types less"
        " often.",
        _PIPES,
    ),
    Entry(
        (
            "smsp__inst_executed_op_branch*",
            "smsp__sass_branch_targets*",
            "smsp__sass_average_branch_targets*",
            "derived__smsp__inst_executed_op_branch_pct",
        ),
        ("Branch Efficiency", "Branch Instructions", "Avg. Divergent Branches"),
        "branches",
        "Branch instructions, and how many of them split a warp.",
        "Efficiency near 100 %.",
        "Let all threads of a warp take the same branch: sort or pad the work, and predicate short"
        " branches.",
        _SECTIONS + ", Source Counters",
    ),
    Entry(
        ("smsp__pcsamp_*",),
        (),
        "warp samples",
        "Samples of the state of warps, taken at regular intervals. The word after issue_stalled_"
        " is the warp state.",
        "Thousands of samples; with fewer, the shares mean little.",
        "Compare shares, not counts. The entry of each warp state explains it.",
        _STALL_SOURCE,
    ),
    Entry(
        ("nvlrx__bytes*", "nvltx__bytes*", "pcie__read_bytes", "pcie__write_bytes"),
        (),
        "traffic to other devices",
        "Bytes over NVLink (received, sent) or PCIe while the kernel ran.",
        "0 in compute kernels. Kernel replay cannot profile collectives, so their traffic is"
        " missing here.",
        "Bytes over PCIe in a compute kernel: it reads data in host memory. Copy them to the device"
        " first.",
        _GUIDE + "Metrics Decoder",
    ),
    Entry(
        ("profiler__*",),
        (),
        "the profiler's own figures",
        "The number of passes, the memory that the profiler saved and restored, and the samples"
        " that it dropped.",
        "No dropped samples; few passes.",
        "Counters of different passes can differ by a few percent. If there are many passes,"
        " collect fewer sections.",
        _GUIDE + "Kernel Replay",
    ),
)
