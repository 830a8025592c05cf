"""Entries of the glossary: metrics that matter for the kernels of LLM inference.

The texts are written for this toolkit; each source names NVIDIA's documentation of the metric.
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
    """Names without rollup and submetric; ``*`` stands for any text."""
    labels: tuple[str, ...]
    """Names on the details page."""
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
        "Time of the kernel on the GPU, measured while it ran alone and with the profiler's clocks and caches, so it "
        "differs from the timeline's.",
        "Near the timeline's duration. Much longer: clocks were locked to base (--clock-control base) or caches were "
        "emptied before the run.",
        "Profile with --clock-control none; compare kernels by their share of the timeline, not by this time.",
        _SECTIONS + ", GPU Speed Of Light Throughput",
    ),
    Entry(
        ("sm__throughput",),
        ("Compute (SM) Throughput",),
        "use of the SMs",
        "The busiest part of the SMs (an arithmetic pipe, the issue slots ...) in percent of its peak; the breakdown "
        "tells which part it is.",
        "Above 80 %: near the limit of the device. 60 to 80 %: the likely limit. Below 60 %, with memory as low too: "
        "latency.",
        "High: do less arithmetic or use faster units (tensor cores, lower precision). Low in both: see the warp "
        "states, the occupancy, and whether the grid fills the GPU.",
        _SECTIONS + ", GPU Speed Of Light Throughput",
    ),
    Entry(
        ("gpu__compute_memory_throughput",),
        ("Memory Throughput",),
        "use of the memory system",
        "The busiest part of the memory system, L1 and shared memory included, in percent of its peak. A GEMM that "
        "feeds the tensor cores from shared memory is high here without touching the DRAM much.",
        "For kernels that move data, above 80 %. For GEMMs it says little; look at DRAM and L2 by themselves.",
        "See which level is busy (dram__throughput, lts__throughput, l1tex__throughput) before doing anything.",
        _SECTIONS + ", GPU Speed Of Light Throughput",
    ),
    Entry(
        ("dram__throughput", "gpu__dram_throughput"),
        ("DRAM Throughput",),
        "use of the device memory",
        "Traffic of the device memory in percent of what it can keep up. What limits decoding, where all weights and "
        "the KV cache are read for each token.",
        "Kernels that stream data (GEMMs of decode, norms, attention of decode): 80 to 92 % is as good as it gets. "
        "Prefill GEMMs: below 50 % is normal.",
        "High: move fewer bytes: quantized weights or KV cache, larger batches (weights are read once for all "
        "requests), fused kernels. Low although the kernel is limited by memory: more bytes under way (wider loads, "
        "more warps, asynchronous copies), a grid that fills the GPU.",
        _SECTIONS + ", GPU Speed Of Light Throughput",
    ),
    Entry(
        ("dram__bytes_read", "dram__bytes_write", "dram__bytes", "dram__sectors_read", "dram__sectors_write"),
        ("Memory Workload Analysis: Memory Throughput", "DRAM Bandwidth"),
        "traffic of the device memory",
        "Bytes (or sectors of 32 bytes) that went between L2 and device memory. Writes count when they leave L2, so "
        "the end of a result may still be in L2 when the kernel ends and is not counted.",
        "Reads near the size of the inputs read once (for a GEMM 2 bytes x (M K + K N) in BF16). Several times that: "
        "the cache does not hold what is read again.",
        "Too much: tiles that reuse more, another order of tiles (swizzle), fusion. The profiler empties the caches "
        "before each pass; --cache-control none shows what L2 keeps from the kernel before.",
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
        "SM near the boost clock of the device; a GEMM at its power limit runs 10 to 25 % below it.",
        "Low: power or thermal limit, or locked clocks (--clock-control none leaves them alone). Peaks of data sheets "
        "are at the boost clock.",
        _GUIDE + "Clock Control",
    ),
    Entry(
        ("lts__throughput",),
        ("L2 Cache Throughput",),
        "use of the L2 cache",
        "The busiest part of L2 in percent of its peak.",
        "Below 60 % unless the data fit into L2; small norms and activations on data that the kernel before left in "
        "L2 are limited here.",
        "High: larger tiles, multicast between blocks of a cluster (TMA), fusion of neighbouring kernels.",
        _MEMORY + "L2 Cache",
    ),
    Entry(
        ("lts__t_sectors", "lts__t_requests", "lts__t_bytes", "lts__t_sectors_op_*", "lts__t_sectors_srcunit_*"),
        (),
        "traffic of the L2 cache",
        "Sectors of 32 bytes (requests, bytes) that L2 handled. srcunit tells who asked (tex: the SMs; ltcfabric: the "
        "other half of L2), op what for.",
        "Near the bytes that the SMs have to read; large srcunit_ltcfabric means data that lie in the far half.",
        "Four sectors per request are best: access whole lines of 128 bytes.",
        _MEMORY + "L2 Cache",
    ),
    Entry(
        ("lts__t_sector_hit_rate", "lts__t_sector_op_*_hit_rate"),
        ("L2 Hit Rate",),
        "L2 hit rate",
        "Share of sectors that L2 had. Each half of L2 counts, and so do writes, which nearly always hit.",
        "GEMMs: above 60 to 70 % (tiles share inputs). Kernels that read everything once: about half or less, and "
        "nothing is wrong with it.",
        "Low in a GEMM: order tiles so that neighbours run together, larger tiles. Set the access window "
        "(persisting L2) for small data that are read again and again.",
        _MEMORY + "L2 Cache",
    ),
    Entry(
        ("l1tex__throughput", "l1tex__data_pipe_lsu_wavefronts", "l1tex__lsu_writeback_active"),
        ("L1/TEX Cache Throughput",),
        "use of L1 and shared memory",
        "The busiest part of the L1 cache and shared memory in percent of its peak; tensor cores that read their "
        "operands from shared memory count here.",
        "Up to 90 % in a tuned GEMM. High in other kernels: bank conflicts or scattered accesses.",
        "Look at bank conflicts and sectors per request; use registers, warp shuffles, ldmatrix and TMA.",
        _MEMORY + "L1/TEX Cache",
    ),
    Entry(
        ("l1tex__t_sector_hit_rate", "l1tex__t_sector_pipe_*_hit_rate"),
        ("L1/TEX Hit Rate",),
        "L1 hit rate",
        "Share of sectors of global and local accesses that L1 had. TMA does not go through L1.",
        "0 % is right for kernels that load with TMA or read everything once.",
        "Matters only if long_scoreboard is the top stall and data are read again: then keep them in shared memory.",
        _MEMORY + "L1/TEX Cache",
    ),
    Entry(
        ("l1tex__t_sectors*", "l1tex__t_requests*", "l1tex__t_bytes*"),
        (),
        "traffic of the L1 cache",
        "Sectors of 32 bytes (requests of a warp, bytes) that the tag stage of L1 looked up, by what asked (pipe), for "
        "which memory (mem) and what for (op).",
        "Sectors by requests: 4 where a warp reads 4 bytes per thread in order, 16 where it reads 16 bytes per thread.",
        "More sectors per request than the threads need: neighbouring threads should read neighbouring addresses. Many "
        "requests: read 8 or 16 bytes per thread.",
        _MEMORY + "L1/TEX Cache",
    ),
    Entry(
        ("l1tex__m_l1tex2xbar_write_bytes", "l1tex__m_xbar2l1tex_read_bytes"),
        (),
        "traffic between SMs and L2",
        "Bytes that the SMs wrote to L2, or read from it.",
        "Writes: the size of the result. More: spilled registers, partial sums (split-K), results written twice.",
        "Reads many times the inputs are the rule in a GEMM; larger tiles and multicast reduce them.",
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
        "Additional passes (wavefronts) because threads of a warp wanted different words of one of the 32 banks.",
        "0, or few beside all shared-memory wavefronts.",
        "Pad rows, swizzle the layout (as CUTLASS and TMA do), read 16 bytes per thread, use ldmatrix.",
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
        "Neighbouring threads read neighbouring addresses; change the layout of the data; go through shared memory.",
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
        "Share of the time in which the tensor cores worked (cycles), or instructions that they got.",
        "Large GEMMs of prefill: 80 to 90 % of elapsed. Small ones: what the grid allows. Decode GEMMs: a few percent, "
        "because memory is the limit.",
        "Low in prefill: the grid does not fill the GPU evenly (waves per SM), tiles do not fit the shape, the "
        "pipeline is not fed (long_scoreboard, barrier), or the kernel does not use tensor cores at all (alignment, "
        "type).",
        _PIPES,
    ),
    Entry(
        ("sm__ops_path_tensor_*",),
        (),
        "operations of the tensor cores",
        "Multiplications and additions that the tensor cores did, by type of input and result; a multiply-add is two.",
        "2 M N K for a GEMM. More: tiles are padded beyond the shape (or, in causal attention, half-empty).",
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
        "Additions, multiplications and fused multiply-adds outside the tensor cores, by thread, without those that a "
        "predicate switched off. f: FP32, h: FP16, d: FP64; fma counts as two operations.",
        "Small beside the tensor operations in a GEMM; in norms and activations it is all the arithmetic there is.",
        "High FP32 in a GEMM: it does not use the tensor cores. Unfused add and mul: let the compiler fuse them.",
        _GUIDE + "Roofline Charts",
    ),
    Entry(
        ("sm__warps_active",),
        ("Achieved Occupancy", "Achieved Active Warps Per SM"),
        "achieved occupancy",
        "Warps that were resident on an SM, in percent of the most that it can hold.",
        "Near the theoretical occupancy. Kernels that stream data need some 50 % or asynchronous copies; tuned GEMMs "
        "and attention run best at 10 to 25 %.",
        "Far below the theoretical one: uneven blocks, a grid of less than one wave, or blocks that end early.",
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
        "Warps that fit on an SM by registers, shared memory, block size and barriers.",
        "No aim in itself: enough to hide latency. See achieved occupancy.",
        "See which limit (launch__occupancy_limit_*) is the smallest, and whether more warps would help: they do where "
        "long_scoreboard or wait is the top stall.",
        _SECTIONS + ", Occupancy",
    ),
    Entry(
        ("launch__occupancy_limit_registers",),
        ("Block Limit Registers",),
        "occupancy limit: registers",
        "Blocks that fit on an SM by their registers.",
        "Not the smallest limit, unless the kernel is a GEMM or attention that keeps accumulators in registers.",
        "Fewer registers per thread (__launch_bounds__, --maxrregcount, smaller tiles); beware of spilling.",
        _LAUNCH,
    ),
    Entry(
        ("launch__occupancy_limit_shared_mem",),
        ("Block Limit Shared Mem",),
        "occupancy limit: shared memory",
        "Blocks that fit on an SM by their shared memory.",
        "1 in pipelined GEMMs and attention, by design.",
        "Fewer pipeline stages or smaller tiles, if more blocks would help.",
        _LAUNCH,
    ),
    Entry(
        ("launch__occupancy_limit_warps", "launch__occupancy_limit_blocks", "launch__occupancy_limit_barriers"),
        ("Block Limit Warps", "Block Limit SM", "Block Limit Barriers"),
        "occupancy limit: warps, blocks, barriers",
        "Blocks that fit on an SM by their warps, by the number of blocks or by their barriers.",
        "The warp limit is the smallest: then the block size alone sets the occupancy.",
        "Block limit smallest: use larger blocks.",
        _LAUNCH,
    ),
    Entry(
        ("launch__registers_per_thread", "launch__registers_per_thread_allocated"),
        ("Registers Per Thread",),
        "registers per thread",
        "Registers of 32 bits that each thread has; 255 at most, and an SM has 65,536.",
        "Up to 32: any occupancy. 168 with 384 threads: one block an SM, usual for GEMMs.",
        "High with low occupancy and latency stalls: smaller tiles, __launch_bounds__. At 255: look for spilling.",
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
        "Accesses to local memory, most of them because registers did not suffice.",
        "0 in the inner loop.",
        "Smaller tiles, fewer live values, no arrays with an index known only at run time.",
        _SOURCE_METRICS,
    ),
    Entry(
        ("launch__shared_mem_per_block*", "launch__shared_mem_config_size"),
        ("Dynamic Shared Memory Per Block", "Static Shared Memory Per Block", "Shared Memory Configuration Size"),
        "shared memory per block",
        "Shared memory of a block: static, dynamic, and what the driver adds.",
        "Up to 227 KB a block on Hopper; what a deep pipeline needs.",
        "See the occupancy limit before making it smaller.",
        _LAUNCH,
    ),
    Entry(
        ("launch__waves_per_multiprocessor",),
        ("Waves Per SM",),
        "waves",
        "How often the grid fills the GPU at this occupancy; a fraction at the end is a tail in which SMs are idle.",
        "Just below a whole number, or so many that the tail does not matter (above some 5).",
        "Below 1: a larger grid (split-K, smaller tiles). Just above a whole number: other tiles, or a persistent "
        "kernel with even shares (stream-K).",
        _LAUNCH,
    ),
    Entry(
        ("launch__grid_size", "launch__block_size", "launch__thread_count", "launch__sm_count", "launch__cluster_*"),
        ("Grid Size", "Block Size", "Threads", "# SMs", "Cluster Size"),
        "launch configuration",
        "Blocks of the grid, threads of a block, clusters of blocks, SMs of the device.",
        "At least one block an SM; block sizes in multiples of 32, usually 128 to 512.",
        "Fewer blocks than SMs leaves SMs idle: smaller tiles, split the reduction, batch more.",
        _LAUNCH,
    ),
    Entry(
        ("smsp__issue_active", "sm__issue_active", "smsp__issue_inst0", "sm__inst_issued"),
        ("One or More Eligible", "No Eligible", "Issue Slots Busy", "Issued Warp Per Scheduler"),
        "issue slots",
        "Share of cycles in which a scheduler issued an instruction (inst0, No Eligible: none).",
        "Above 60 % for arithmetic outside the tensor cores. A tensor-core GEMM is fine at 15 to 25 %: one instruction "
        "does very much.",
        "Low without a busy pipe or memory: more ready warps: occupancy, independent work in a thread, fewer stalls.",
        _SECTIONS + ", Scheduler Statistics",
    ),
    Entry(
        ("smsp__warps_eligible", "smsp__warps_active"),
        ("Eligible Warps Per Scheduler", "Active Warps Per Scheduler"),
        "warps of a scheduler",
        "Warps that a scheduler has (active), and that could issue in a cycle (eligible).",
        "At least one eligible in most cycles.",
        "Many active and few eligible: see the stall reasons. Few active: see the occupancy.",
        _SECTIONS + ", Scheduler Statistics",
    ),
    Entry(
        ("smsp__average_warp_latency_per_inst_issued", "smsp__average_warps_active_per_inst_executed"),
        ("Warp Cycles Per Issued Instruction", "Warp Cycles Per Executed Instruction"),
        "cycles between instructions",
        "Cycles between two instructions of a warp; the stall reasons divide them up.",
        "As many as there are active warps of a scheduler, or fewer: then latency is hidden.",
        "Attack the largest stall reason.",
        _SECTIONS + ", Warp State Statistics",
    ),
    Entry(
        ("smsp__thread_inst_executed_per_inst_executed", "smsp__thread_inst_executed_pred_on_per_inst_executed"),
        ("Avg. Active Threads Per Warp", "Avg. Not Predicated Off Threads Per Warp"),
        "threads of a warp at work",
        "Threads of 32 that take part in an instruction (and are not switched off by a predicate).",
        "Above 28.",
        "Low: branches that split warps, blocks whose size is no multiple of 32, tails of rows shorter than a warp.",
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
        "Instructions of warps that were executed (issued: with repetitions); per cycle the IPC of an SM, 4 at most.",
        "Issued close to executed. The IPC says little for tensor-core kernels.",
        "Many instructions for few bytes or operations: vectorise accesses, hoist index arithmetic, unroll.",
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
        "Instructions, or busy time, of one pipe: alu (integers, compares), fma (FP32), fp64, xu (exp, rsqrt, "
        "conversions), lsu (memory), uniform (once for a warp), cbu (branches), tma.",
        "The pipe that does the work is the busiest. alu above fma: index arithmetic dominates.",
        "xu high in attention or activations: approximate exponentials, fewer conversions.",
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
        "Branches, and how many split a warp.",
        "Efficiency near 100 %.",
        "Let threads of a warp decide alike: sort work, pad, predicate short branches.",
        _SECTIONS + ", Source Counters",
    ),
    Entry(
        ("smsp__pcsamp_*",),
        (),
        "warp samples",
        "Samples of what warps did at regular intervals; a reason after issue_stalled_ is one of the warp states.",
        "Enough samples (thousands) for shares to mean something.",
        "Compare shares, not counts; see the explanation of the state.",
        _STALL_SOURCE,
    ),
    Entry(
        ("nvlrx__bytes*", "nvltx__bytes*", "pcie__read_bytes", "pcie__write_bytes"),
        (),
        "traffic to other devices",
        "Bytes over NVLink (received, sent) or PCIe while the kernel ran.",
        "0 in compute kernels; collectives cannot be profiled with replay, so their traffic is not seen here.",
        "Bytes over PCIe in a compute kernel: data in host memory; copy them first.",
        _GUIDE + "Metrics Decoder",
    ),
    Entry(
        ("profiler__*",),
        (),
        "the profiler's own figures",
        "Passes that were needed, memory that was saved and restored, samples that were dropped.",
        "No dropped samples; few passes.",
        "Many passes make counters of different passes differ by a few percent: collect fewer sections.",
        _GUIDE + "Kernel Replay",
    ),
)
