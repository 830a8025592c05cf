"""Hand-built traces for the report and the command line, and names that try to break out of
them.
"""

import polars as pl

from llmprof.trace import Trace, schema

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>document.body.id='broken'</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "<!--<script>",
    "{{7*7}} ${alert(1)} &lt;b&gt; \x00\x1b[31m\u2028",
    "javascript:alert(1)//</style><svg onload=alert(1)>",
)


LAYER = ("norm", "qkv", "attention", "o", "reduce", "norm", "up", "act", "down", "reduce")
KERNELS = 2 * len(LAYER) + 1
"""Kernels of one step on one rank."""


def build(names=None, *, ranks=2, steps=3, device="Test GPU"):
    """Decode steps of two layers and one more kernel, with launches, operators and labels.

    A kernel starts every 10 us and takes 8 us; rank r starts 0.2 r us later and its all-reduces are
    as much shorter, so all ranks leave them together. ``names`` replaces what a part is called by
    something else.
    """
    called = {
        "norm": "rms_norm_kernel",
        "qkv": "nvjet_gemm_qkv",
        "attention": "flash_fwd_kernel",
        "o": "nvjet_gemm_o",
        "reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "up": "nvjet_gemm_up",
        "act": "silu_and_mul_kernel",
        "down": "nvjet_gemm_down",
        "other": "some_kernel",
        "op": "aten::op",
        "label": "",
        "file": "rank.json",
    } | (names or {})
    kernels, runtime, ops, markers, collectives = [], [], [], [], []
    label = f"execute_context_0(0)_generation_1(1){called['label']}"
    for rank in range(ranks):
        late = 200 * rank
        for step in range(steps):
            begin = step * 250_000
            host = {"rank": rank, "thread": 1}
            mark = {
                "start_ns": begin,
                "dur_ns": 50_000,
                "name": label,
                "domain": "user",
                "on_device": False,
            }
            markers.append(host | mark)
            for i, part in enumerate((*LAYER, *LAYER, "other")):
                ids = {"correlation": step * 100 + i, "op_id": step * 100 + i}
                shorter = late if part == "reduce" else 0
                where = {"rank": rank, "device": rank, "stream": 7, "name": called[part]}
                when = {"start_ns": begin + 10_000 * (i + 1) + late, "dur_ns": 8_000 - shorter}
                kernels.append(where | when | ids)
                call = {
                    "start_ns": begin + 1_000 * (i + 1),
                    "dur_ns": 500,
                    "name": "cudaLaunchKernel",
                }
                runtime.append(host | call | ids | {"api": "runtime"})
                op = {
                    "start_ns": begin + 1_000 * (i + 1) - 100,
                    "dur_ns": 800,
                    "name": called["op"],
                    "kind": "op",
                }
                ops.append(host | op | {"op_id": ids["op_id"]})
                if part == "reduce":
                    about = {"kind": "all_reduce", "world": ranks, "bytes": 1024, "on_device": True}
                    collectives.append(where | when | about)
    tables = {
        "kernels": kernels,
        "runtime": runtime,
        "ops": ops,
        "markers": markers,
        "collectives": collectives,
    }
    frames = {name: pl.DataFrame(rows) for name, rows in tables.items()} | {
        "copies": schema.empty("copies")
    }
    meta = {
        "device": device,
        "world_size": ranks,
        "clock": "epoch",
        "versions": {"cuda_driver_version": 12040},
    }
    file = {"file": called["file"], "events": 9, "kept": 8, "bytes": 100}
    files = [file | {"rank": rank} for rank in range(ranks)]
    return Trace(
        frames, meta, {"files": files, "events": 18, "kept": 16, "lost_bytes": 0, "lost_pieces": 0}
    )
