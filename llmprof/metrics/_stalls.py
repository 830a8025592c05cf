"""Warp states: why a warp did not issue its next instruction."""

from __future__ import annotations

from typing import Final

STALLS: Final[dict[str, tuple[str, str]]] = {
    "long_scoreboard": (
        "waiting for data of the L1 and texture path: global, local, texture or surface memory. Typical where each "
        "element is read once: norms, rotary embedding, activations, cache writes, attention in decode",
        "load wider (16 bytes a thread) and more at once, unroll so that several loads are under way, copy "
        "asynchronously to shared memory ahead of use (cp.async, TMA), raise occupancy, keep data in cache; if the "
        "DRAM is near its peak, move fewer bytes instead: fuse kernels, quantize",
    ),
    "short_scoreboard": (
        "waiting for an answer of the memory input/output queue that is not the L1 path: mostly shared memory, also "
        "special functions (exp, rsqrt) and dynamic branches",
        "remove bank conflicts, read shared memory wider, keep values in registers, reduce with warp shuffles",
    ),
    "barrier": (
        "waiting at a barrier of the block for other warps; in a warp-specialised GEMM also consumers waiting for "
        "producers",
        "balance the work between barriers, use smaller blocks or barriers of fewer warps, more pipeline stages",
    ),
    "warpgroup_arrive": (
        "waiting for a warpgroup instruction of the tensor cores (wgmma) to be ready or done. In a good Hopper GEMM "
        "this is the largest state: the tensor cores are the limit",
        "nothing if the tensor pipe is above some 80 %; else deeper pipelining, larger tiles, a ping-pong schedule",
    ),
    "math_pipe_throttle": (
        "waiting for an arithmetic pipe that is busy: the kernel uses it as fast as it goes",
        "use another pipe: tensor cores instead of FMA, packed half precision; fewer conversions and exponentials",
    ),
    "mio_throttle": (
        "the queue for shared memory, special functions and dynamic branches is full",
        "fewer and wider shared-memory instructions, fewer special functions; TMA and ldmatrix instead of plain loads",
    ),
    "lg_throttle": (
        "the queue for local and global memory instructions is full: too many small ones come too fast",
        "combine narrow accesses into wide ones, avoid register spilling (local memory), mix in arithmetic",
    ),
    "tex_throttle": (
        "the queue of the texture path is full",
        "fewer texture or surface accesses in a row; plain loads for some of them",
    ),
    "wait": (
        "waiting a fixed number of cycles for an instruction before it, as the compiler ordered",
        "more independent work in a thread (unroll), more warps; a large share alone is typical of tuned code",
    ),
    "no_instructions": (
        "waiting for instructions: jumps, code larger than the instruction cache, or a kernel so short that it hardly "
        "started",
        "less unrolling; for very short kernels fuse them or use CUDA graphs, since what happens inside matters little",
    ),
    "imc_miss": (
        "waiting for a constant (kernel parameters among them) that was not in its cache: the beginning of a kernel",
        "shows in short kernels; fewer parameters, fuse kernels",
    ),
    "branch_resolving": (
        "waiting for the target of a jump",
        "fewer branches and shorter loops: unroll, predicate, make warps agree",
    ),
    "dispatch_stall": (
        "the dispatcher held the instruction back because of a conflict of resources",
        "rarely large; look at register bank conflicts and at the pipes in use",
    ),
    "drain": (
        "the warp ended and waits for its memory writes",
        "spread writes over the kernel, write full sectors, avoid one big burst at the end",
    ),
    "membar": (
        "waiting at a memory fence",
        "fewer fences, of a narrower scope (block instead of device); common in communication kernels",
    ),
    "sleeping": ("all threads of the warp sleep or have yielded", "poll less, or do not poll at all"),
    "misc": ("a reason that the hardware does not tell apart", "look at the other states"),
    "selected": ("issuing an instruction: no stall", "nothing: this is the work"),
    "not_selected": (
        "ready, but another warp was chosen: there are more ready warps than issue slots",
        "nothing to gain from occupancy; fewer warps with more registers each may help",
    ),
}
"""Meaning and what to do, by state."""

SAME: Final = {"gmma": "warpgroup_arrive", "no_instruction": "no_instructions"}
