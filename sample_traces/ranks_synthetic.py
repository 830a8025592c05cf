#!/usr/bin/env python3
"""Make a synthetic run of 32 ranks on four hosts, one of which becomes slow: nothing in it was measured.

One file a rank, as PyTorch's profiler writes it. Each rank runs 20 decode steps of about 2 ms. In every step the eight
ranks of a host run all-reduces (tensor parallelism), then all 32 ranks exchange tokens (expert parallelism). From step 8
on, the matrix products of ``host2`` take 40 % longer: ranks 16 to 23 are late, and all others wait for them.

Use: ``python ranks_synthetic.py FOLDER``; only the standard library.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

HOSTS, PER_HOST, STEPS, SLOW_HOST, SLOW_FROM = 4, 8, 20, 2, 8
RANKS = HOSTS * PER_HOST
GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EXCHANGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def product_us(rank: int, step: int) -> float:
    """Time of the matrix products of a rank in a step: 800 us and a little of its own, more on the slow host."""
    own = 800 + 3 * ((7 * rank + 5 * step) % 11)
    return own * 1.4 if rank // PER_HOST == SLOW_HOST and step >= SLOW_FROM else own


def events_of(rank: int, own: list[int]) -> list[dict]:
    """Trace events of a rank: a label and three launches in each step, and the kernels that they launch."""
    device, events = rank % PER_HOST, []
    groups = {REDUCE: ("1", "allreduce", own), EXCHANGE: ("2", "all_to_allv", list(range(RANKS)))}

    def event(
        cat: str, name: str, ts: float, dur: float, pid: int, tid: int, **args: object
    ) -> None:
        row = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "ts": ts + 1000,
            "dur": dur,
            "pid": pid,
            "tid": tid,
            "args": args,
        }
        events.append(row)

    begin, number = 0.0, 0
    for step in range(STEPS):
        products = [product_us(member, step) for member in range(RANKS)]
        reduced = begin + max(products[member] for member in own) + 12
        joined = begin + max(products) + 12 + 40  # all leave the exchange together
        event("user_annotation", "execute_context_0(0)_generation_8(8)", begin - 720, 60, 100, 100)
        ends = {GEMM: begin + products[rank], REDUCE: reduced, EXCHANGE: joined}
        at = begin
        for name, end in ends.items():
            number += 1
            args: dict[str, object] = {"device": device, "stream": 7, "correlation": number}
            if name in groups:
                group, what, ranks = groups[name]
                args |= {
                    "Collective name": what,
                    "In msg nelems": 28672,
                    "Out msg nelems": 28672,
                    "dtype": "BFloat16",
                    "Group size": len(ranks),
                    "Process Group Name": group,
                    "Process Group Ranks": json.dumps(ranks),
                }
            launch = begin - 700 + 5 * (number % 3)
            event("cuda_runtime", "cudaLaunchKernel", launch, 3, 100, 100, correlation=number)
            event("kernel", name, at, end - at, device, 7, **args)
            at = end
        begin = joined + 20
    return events


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    for rank in range(RANKS):
        host = rank // PER_HOST
        own = list(range(host * PER_HOST, (host + 1) * PER_HOST))
        groups = [
            ("1", "TENSOR_MODEL_PARALLEL_GROUP", own),
            ("2", "EXPERT_MODEL_PARALLEL_GROUP", list(range(RANKS))),
        ]
        described = [
            {"pg_name": name, "pg_desc": text, "pg_size": len(of), "ranks": of}
            for name, text, of in groups
        ]
        document = {
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank,
                "world_size": RANKS,
                "pg_config": described,
            },
            "deviceProperties": [{"id": 0, "name": "synthetic device"}],
            "baseTimeNanoseconds": 1_790_857_026_000_000_000,
            "traceEvents": events_of(rank, own),
        }
        name = f"host{host}_{4000 + rank}.1790857026000000000.pt.trace.json.gz"
        (folder / name).write_bytes(gzip.compress(json.dumps(document).encode()))


if __name__ == "__main__":
    main()
