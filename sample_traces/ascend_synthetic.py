#!/usr/bin/env python3
"""Make a synthetic recording of a DeepSeek-V3-like model on two Ascend NPUs: nothing in it was measured.

It writes what torch_npu writes (``*_ascend_pt`` folders of two ranks, as text and as databases) out of stated
durations, because no NPU was at hand, and beside it ``truth.json``: the layer and stage of every kernel, and the
overlap of every step. Four variants of one program:

``baseline``     an AllReduce after attention and one after the experts; the compute stream waits for each;
``split``        the AllReduce after the experts as ReduceScatter + AllGather, the AllGather moved behind the next
                 layer's norm and first projection, where it carries the small latent and runs beside computation;
``micro_batch``  each batch in two halves on two streams: one computes while the other communicates;
``both``         the two together.

Where the durations come from:

* shapes: DeepSeek-V3 (arXiv 2412.19437, section 4.2, and the published config): hidden 7168, 128 heads, q latent 1536,
  kv latent 512 + 64 for rope, 256 experts of 2048 of which 8 are taken, one shared expert, 129280 tokens in the
  vocabulary. Fewer layers (1 dense and 4 with experts), so that the files stay small;
* a kernel takes the longer of FLOPs / (0.5 x 376 TFLOP/s) and bytes / (0.7 x 1.6 TB/s), at least 3 us. The peaks are
  the fp16 rate and the memory of one die of an Ascend 910C, as Huawei's simulator msmodeling states them
  (tensor_cast/device.py, A3_752T_128G_DIE; in bf16 it has 353.9); the efficiencies and the least time are
  ASSUMPTIONS, and so are 8 experts a rank, two ranks and 60 GB/s between them with 12 us of latency;
* the host needs 5 us for an operator and the task queue 3 us for its launch: ASSUMPTIONS;
* frequency, HBM, LLC and QoS counters and the frames of call stacks: ASSUMPTIONS;
* stages have the names of llmprof: a ReduceScatter behind the experts is their ``combine``;
* ranks differ by a fixed pseudo-random +-2 %: an ASSUMPTION.

Use: ``python ascend_synthetic.py FOLDER [--variant baseline] [--form text|db|both]``; only the standard library.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

VARIANTS = ("baseline", "split", "micro_batch", "both")
RANKS = 2
HIDDEN, HEADS, Q_LATENT, KV_LATENT, ROPE = 7168, 128 // 16, 1536, 512, 64
NOPE, V_HEAD = 128, 128
DENSE, EXPERT, EXPERTS, TOP = 18432 // 2, 2048, 8, 8
VOCABULARY = 129280 // 2
LAYERS, DENSE_LAYERS = 5, 1
PEAK_FLOPS, PEAK_BYTES = 376e12, 1.6e12
COMPUTE_SHARE, MEMORY_SHARE = 0.5, 0.7
LEAST_US, LINK_BYTES_PER_US, LINK_US = 3.0, 60e3, 12.0
OPERATOR_US, LAUNCH_US = 5.0, 3.0
STEPS = (("prefill", 4, 4096), ("decode", 128, 128), ("decode", 128, 128))
"""Phase, requests and tokens of each step."""

START_US = 1_750_000_000_000_000
COMPUTE_STREAMS, COMMUNICATION_STREAM = (2, 5), 4
GROUP = "10463871350152463872"
GROUP_SHORT = "872"


@dataclass
class Kernel:
    """One kernel or collective call before it has a time."""

    op: str
    stage: str
    layer: int | None
    us: float
    shapes: tuple[str, str] = ("", "")
    core: str = "AI_VECTOR_CORE"
    flops: float = 0.0
    moved: float = 0.0
    """Bytes of a collective call."""
    waits: bool = True
    """Whether what comes next on the compute stream waits for it (collectives)."""
    name: str = ""
    host_op: str = ""

    @property
    def is_call(self) -> bool:
        return self.core == "HCCL"


@dataclass
class Placed:
    """One kernel or call on one rank, in us from the start."""

    kernel: Kernel
    rank: int
    step: int
    chain: int
    stream: int
    host: float
    queued: float
    start: float
    end: float
    arrived: float = 0.0
    task: int = 0
    connection: int = 0
    waited_from: float | None = None
    """Where the stream stood waiting for an event before it: when that began."""
    waited_to: float = 0.0
    waited_stream: int | None = None


@dataclass
class Run:
    """All that happened."""

    variant: str
    placed: list[Placed] = field(default_factory=list)
    steps: list[tuple[int, int, str, float, float]] = field(default_factory=list)
    """Rank, step, label, host start and end (us)."""
    synchronised: list[tuple[int, int, float, float]] = field(default_factory=list)
    """Rank, step, start and end of the wait for the device (us)."""


def time_of(flops: float, size: float) -> float:
    """Duration of a kernel (us) by the rule in the module's text."""
    return max(
        LEAST_US,
        1e6 * flops / (PEAK_FLOPS * COMPUTE_SHARE),
        1e6 * size / (PEAK_BYTES * MEMORY_SHARE),
    )


def matmul(
    op: str, stage: str, layer: int | None, m: int, k: int, n: int, *, batch: int = 1, host: str
) -> Kernel:
    """Matrix product in bf16: 2 m k n FLOPs, both inputs and the output read or written once."""
    flops, size = 2.0 * batch * m * k * n, 2.0 * batch * (m * k + k * n + m * n)
    lead = f"{batch}," if batch > 1 else ""
    shapes = (f"{lead}{m},{k};{lead}{k},{n}", f"{lead}{m},{n}")
    return Kernel(op, stage, layer, time_of(flops, size), shapes, "AI_CORE", flops, host_op=host)


def vector(
    op: str, stage: str, layer: int | None, elements: int, shape: str, *, host: str, passes: int = 3
) -> Kernel:
    """Elementwise or row-wise work on bf16: so many passes over the memory."""
    return Kernel(
        op, stage, layer, time_of(0, 2.0 * passes * elements), (shape, shape), host_op=host
    )


def call(op: str, stage: str, layer: int | None, elements: int, *, waits: bool = True) -> Kernel:
    """Collective call of two ranks on bf16: each sends half (reduce_scatter, all_gather) or all of the elements."""
    moved = 2.0 * elements * (1.0 if op == "allReduce" else 0.5)
    us = LINK_US + moved / LINK_BYTES_PER_US
    count = elements if op == "allReduce" else elements // RANKS
    kernel = Kernel(
        f"hcom_{op}_", stage, layer, us, (str(count), ""), "HCCL", moved=moved, waits=waits
    )
    kernel.host_op = {
        "allReduce": "c10d::allreduce_",
        "reduceScatter": "c10d::_reduce_scatter_base_",
    }.get(op, "c10d::_allgather_base_")
    return kernel


def attention_part(layer: int, tokens: int, context: int, split: bool) -> list[Kernel]:
    """Multi-head latent attention with absorbed projections."""
    own = tokens // RANKS if split and layer > DENSE_LAYERS else tokens
    latent = Q_LATENT + KV_LATENT + ROPE
    norm = "RmsNorm" if layer == 0 else "AddRmsNorm"
    out = [
        vector(norm, "norm", layer, own * HIDDEN, f"{own},{HIDDEN}", host="npu::npu_rms_norm"),
        matmul("MatMulV2", "qkv_proj", layer, own, HIDDEN, latent, host="aten::linear"),
    ]
    if own != tokens:
        out.append(call("allGather", "all_gather", layer, tokens * latent, waits=False))
    heads, head = HEADS, NOPE + ROPE
    size = 2.0 * context * (KV_LATENT + ROPE) + 4.0 * tokens * heads * KV_LATENT
    flops = 4.0 * tokens * heads * (KV_LATENT + ROPE) * min(context, 1024)
    attention = Kernel(
        "FusedInferAttentionScore", "attention", layer, time_of(flops, size),
        (f"{tokens},{heads},{KV_LATENT + ROPE};{context},1,{KV_LATENT + ROPE}", f"{tokens},{heads},{KV_LATENT}"),
        "MIX_AIC", flops, host_op="npu::npu_fused_infer_attention_score",
    )  # fmt: skip
    return [
        *out,
        vector("RmsNorm", "norm", layer, tokens * Q_LATENT, f"{tokens},{Q_LATENT}", host="npu::npu_rms_norm"),
        matmul("MatMulV2", "qkv_proj", layer, tokens, Q_LATENT, heads * head, host="aten::linear"),
        matmul("BatchMatMulV2", "qkv_proj", layer, tokens, NOPE, KV_LATENT, batch=heads, host="aten::bmm"),
        vector("RotaryMul", "rope", layer, tokens * heads * ROPE, f"{tokens},{heads},{ROPE}", host="npu::npu_rotary_mul"),
        vector(
            "KvRmsNormRopeCache", "kv_cache_write", layer, tokens * (KV_LATENT + ROPE), f"{tokens},{KV_LATENT + ROPE}",
            host="npu::npu_kv_rmsnorm_rope_cache",
        ),
        attention,
        matmul("BatchMatMulV2", "o_proj", layer, tokens, KV_LATENT, V_HEAD, batch=heads, host="aten::bmm"),
        matmul("MatMulV2", "o_proj", layer, tokens, heads * V_HEAD, HIDDEN, host="aten::linear"),
        call("allReduce", "all_reduce", layer, tokens * HIDDEN),
        vector("AddRmsNorm", "norm", layer, tokens * HIDDEN, f"{tokens},{HIDDEN}", host="npu::npu_add_rms_norm"),
    ]  # fmt: skip


def experts_part(layer: int, tokens: int, split: bool) -> list[Kernel]:
    """Router, shared expert, routed experts; or the dense feed-forward part of the first layers."""

    def mlp(width: int, *stages: str) -> list[Kernel]:
        first, between, last = stages or ("gate_up_proj", "activation", "down_proj")
        return [
            matmul("MatMulV2", first, layer, tokens, HIDDEN, 2 * width, host="aten::linear"),
            vector(
                "SwiGlu",
                between,
                layer,
                tokens * 2 * width,
                f"{tokens},{2 * width}",
                host="npu::npu_swiglu",
            ),
            matmul("MatMulV2", last, layer, tokens, width, HIDDEN, host="aten::linear"),
        ]

    if layer < DENSE_LAYERS:
        return [*mlp(DENSE), call("allReduce", "all_reduce", layer, tokens * HIDDEN)]
    rows = tokens * TOP // 16  # of the 256 experts a rank holds 8 of each 128

    def grouped(k: int, n: int) -> Kernel:
        flops, size = 2.0 * rows * k * n, 2.0 * (rows * k + EXPERTS * k * n + rows * n)
        shapes = (f"{rows},{k};{EXPERTS},{k},{n};{EXPERTS}", f"{rows},{n}")
        return Kernel(
            "GroupedMatmul", "experts", layer, time_of(flops, size), shapes, "AI_CORE", flops,
            host_op="npu::npu_grouped_matmul",
        )  # fmt: skip

    last = layer == LAYERS - 1
    end = (
        call("reduceScatter", "combine", layer, tokens * HIDDEN)
        if split and not last
        else call("allReduce", "all_reduce", layer, tokens * HIDDEN)
    )
    return [
        matmul("MatMulV3", "router", layer, tokens, HIDDEN, 256, host="aten::linear"),
        vector("MoeGatingTopK", "router", layer, tokens * 256, f"{tokens},256", host="npu::npu_moe_gating_top_k"),
        *mlp(EXPERT // RANKS, *["shared_experts"] * 3),
        vector(
            "MoeInitRoutingV2", "expert_dispatch", layer, rows * HIDDEN, f"{tokens},{HIDDEN};{tokens},{TOP}",
            host="npu::npu_moe_init_routing_v2",
        ),
        grouped(HIDDEN, 2 * EXPERT),
        vector("SwiGlu", "activation", layer, rows * 2 * EXPERT, f"{rows},{2 * EXPERT}", host="npu::npu_swiglu"),
        grouped(EXPERT, HIDDEN),
        vector(
            "MoeFinalizeRouting", "combine", layer, rows * HIDDEN, f"{rows},{HIDDEN}",
            host="npu::npu_moe_finalize_routing",
        ),
        end,
    ]  # fmt: skip


def chain_of(tokens: int, context: int, *, split: bool) -> list[Kernel]:
    """Everything that one batch runs, in order."""
    out = [
        vector(
            "GatherV2",
            "embedding",
            None,
            tokens * HIDDEN,
            f"{VOCABULARY},{HIDDEN};{tokens}",
            host="aten::embedding",
        )
    ]
    for layer in range(LAYERS):
        out += attention_part(layer, tokens, context, split)
        out += experts_part(layer, tokens, split)
    heads = [
        vector("AddRmsNorm", "final_norm", None, tokens * HIDDEN, f"{tokens},{HIDDEN}", host="npu::npu_add_rms_norm"),
        matmul("MatMulV2", "lm_head", None, min(tokens, 64), HIDDEN, VOCABULARY, host="aten::linear"),
        call("allGather", "all_gather", None, min(tokens, 64) * VOCABULARY * RANKS),
        vector("ArgMaxV2", "sampling", None, min(tokens, 64) * VOCABULARY, f"{min(tokens, 64)},{VOCABULARY}",
               host="aten::argmax"),
    ]  # fmt: skip
    return out + heads


def named(kernels: list[Kernel], counter: dict[str, int]) -> None:
    """Give names as CANN does: aclnn call, kernel and type; a number for collective calls."""
    for kernel in kernels:
        if kernel.is_call:
            counter["calls"] = counter.get("calls", -1) + 1
            kernel.name = f"{kernel.op}_{GROUP_SHORT}_{counter['calls']}_1"
        else:
            aclnn = {
                "MatMulV2": "Matmul",
                "MatMulV3": "Matmul",
                "BatchMatMulV2": "BatchMatMul",
            }.get(kernel.op, kernel.op)
            common = "MatMulCommon" if "MatMul" in kernel.op else kernel.op
            kernel.name = f"aclnn{aclnn}_{common}_{kernel.op}"


def simulate(variant: str) -> Run:
    """Place everything in time: streams run in order, the compute cores do one kernel at a time, calls end together."""
    split, micro = variant in ("split", "both"), variant in ("micro_batch", "both")
    run, counter = Run(variant), {}
    noise = random.Random(910)  # noqa: S311 (no secret: the same files every time)
    host = [100.0, 112.0]
    cores, wire = [0.0] * RANKS, [0.0] * RANKS
    tasks, connections = [100] * RANKS, [1000] * RANKS
    for step, (phase, requests, tokens) in enumerate(STEPS):
        context = tokens if phase == "prefill" else requests * 512
        parts = [(tokens // 2, context // 2)] * 2 if micro else [(tokens, context)]
        chains = [chain_of(t, c, split=split) for t, c in parts]
        context_part = f"{requests}({tokens})" if phase == "prefill" else "0(0)"
        generation = "0(0)" if phase == "prefill" else f"{requests}({tokens})"
        label = f"execute_context_{context_part}_generation_{generation}"
        begin = list(host)
        order = interleaved(chains)
        named([chains[c][i] for c, i in order], counter)
        done = [[0.0] * RANKS for _ in chains]  # end of what the next kernel of a chain needs
        computed = [[0.0] * RANKS for _ in chains]  # end of the last kernel of its stream
        pending: list[list[tuple[float, int] | None]] = [[None] * RANKS for _ in chains]
        for c, i in order:
            kernel = chains[c][i]
            starts, placed = [], []
            for rank in range(RANKS):
                host[rank] += OPERATOR_US
                queued = host[rank] + LAUNCH_US
                ready = max(queued + 1.5, done[c][rank])
                busy = wire if kernel.is_call else cores
                late = pending[c][rank]
                waited_from, waited_stream, waited_to = None, None, 0.0
                if late is not None and not kernel.is_call and consumes(kernel):
                    waited_from, waited_to, waited_stream = (
                        max(queued + 1.5, computed[c][rank]),
                        late[0],
                        COMMUNICATION_STREAM,
                    )
                    ready, pending[c][rank] = max(ready, late[0]), None
                start = max(ready, busy[rank])
                if kernel.is_call:
                    waited_from, waited_to = max(queued + 1.5, busy[rank]), computed[c][rank]
                    waited_stream = COMPUTE_STREAMS[c]
                if waited_from is not None and waited_to <= waited_from:
                    waited_from = None
                tasks[rank] += 1
                connections[rank] += 1
                stream = COMMUNICATION_STREAM if kernel.is_call else COMPUTE_STREAMS[c]
                placed.append(
                    Placed(
                        kernel,
                        rank,
                        step,
                        c,
                        stream,
                        host[rank] - OPERATOR_US,
                        queued,
                        start,
                        start,
                    )
                )
                placed[-1].task, placed[-1].connection = tasks[rank], connections[rank]
                placed[-1].waited_from, placed[-1].waited_stream = waited_from, waited_stream
                placed[-1].waited_to = waited_to
                starts.append(start)
            for rank, one in enumerate(placed):
                us = kernel.us * (1 + 0.02 * (2 * noise.random() - 1))
                end = max(starts) + kernel.us if kernel.is_call else one.start + us
                one.start, one.end, one.arrived = (
                    round(x, 2) for x in (one.start, end, max(starts))
                )
                if kernel.is_call:
                    wire[rank] = one.end
                    pending[c][rank] = (one.end, COMMUNICATION_STREAM)
                    if kernel.waits:
                        done[c][rank] = one.end
                else:
                    cores[rank] = done[c][rank] = computed[c][rank] = one.end
            run.placed += placed
        for rank in range(RANKS):
            last = max(p.end for p in run.placed if p.rank == rank and p.step == step)
            wait = host[rank] + OPERATOR_US
            end = max(wait, last) + 8.0
            run.synchronised.append((rank, step, round(wait, 2), round(end, 2)))
            run.steps.append((rank, step, label, round(begin[rank], 2), round(end + 5.0, 2)))
            host[rank] = end + 60.0 + 20.0 * rank
    return run


def consumes(kernel: Kernel) -> bool:
    """Whether a kernel needs what a pending AllGather of the latents brings: all but the norm of the query's latent."""
    return not (kernel.op == "RmsNorm" and kernel.shapes[0].endswith(f",{Q_LATENT}"))


def interleaved(chains: list[list[Kernel]]) -> list[tuple[int, int]]:
    """Order in which the host issues: one chain as it is; of two, one goes on while the other one communicates."""
    if len(chains) == 1:
        return [(0, i) for i in range(len(chains[0]))]
    order, place, turn = [], [0, 0], 0
    while any(place[c] < len(chains[c]) for c in (0, 1)):
        if place[turn] >= len(chains[turn]):
            turn = 1 - turn
            continue
        order.append((turn, place[turn]))
        ended = chains[turn][place[turn]].is_call
        place[turn] += 1
        if ended:
            turn = 1 - turn
    return order


def union(spans: list[tuple[float, float]]) -> float:
    """Length of a union of intervals."""
    total, end = 0.0, float("-inf")
    for a, b in sorted(spans):
        total += max(0.0, b - max(a, end))
        end = max(end, b)
    return total


def overlap(events: list[Placed]) -> dict[str, float]:
    """Computing, communication, what of it is hidden and exposed, free time and span (us)."""
    compute = [(p.start, p.end) for p in events if not p.kernel.is_call]
    calls = [(p.start, p.end) for p in events if p.kernel.is_call]
    computing, communication, busy = union(compute), union(calls), union(compute + calls)
    span = max(p.end for p in events) - min(p.start for p in events)
    return {
        "computing": computing,
        "communication": communication,
        "communication_not_overlapped": busy - computing,
        "overlapped": computing + communication - busy,
        "free": span - busy,
        "stage": span,
    }


def truth(run: Run) -> dict[str, object]:
    """What is known because it was made so."""
    steps = []
    for rank in range(RANKS):
        for step in range(len(STEPS)):
            mine = [p for p in run.placed if p.rank == rank and p.step == step]
            found = {f"{key}_ns": round(us * 1000) for key, us in overlap(mine).items()}
            steps.append({"rank": rank, "step": step, "phase": STEPS[step][0], **found})
    kernels = [
        {
            "rank": p.rank, "step": p.step, "stream": p.stream, "start_ns": ns(p.start), "dur_ns": ns(p.end) - ns(p.start),
            "name": p.kernel.name, "layer": p.kernel.layer, "stage": p.kernel.stage, "micro_batch": p.chain,
        }
        for p in run.placed
    ]  # fmt: skip
    return {
        "synthetic": True,
        "about": __doc__,
        "variant": run.variant,
        "steps": steps,
        "kernels": kernels,
    }


def ns(us: float) -> int:
    """Absolute time in ns."""
    return START_US * 1000 + round(us * 1000)


def main(arguments: list[str] | None = None) -> Path:
    """Write a variant; the folder that holds the ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folder", type=Path, help="where to write: a folder of its own for each variant"
    )
    parser.add_argument("--variant", choices=VARIANTS, default="baseline")
    parser.add_argument("--form", choices=("text", "db", "both"), default="both")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.dont_write_bytecode = True
    import ascend_synthetic_files as files

    run = simulate(options.variant)
    for rank in range(RANKS):
        files.write_rank(
            run, rank, options.folder / f"synthetic_rank{rank}_ascend_pt", options.form
        )
    (options.folder / "truth.json").write_text(
        json.dumps(truth(run), indent=1) + "\n", encoding="utf-8"
    )
    return options.folder


if __name__ == "__main__":
    main()
