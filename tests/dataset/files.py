"""Files of a few ranks, made by hand: small, and with the same calls on each."""

import json

from polars.testing import assert_frame_equal

_NONE = (0, 0, 0)


def rank_file(
    folder,
    rank,
    *,
    world=3,
    late_us=0,
    base_us=1e9,
    jitter_us=_NONE,
):
    """Three steps of a rank: a label, two launches, a matrix product and an all-reduce that ends on
    all ranks at once.

    The step is 1,000 us long; the product ends and the all-reduce begins ``late_us`` later than on
    a rank in time.
    """
    events = []
    for step in range(3):
        at = base_us + 1000 * step + jitter_us[step]
        batch = "execute_context_0(0)_generation_4(4)"
        events += [
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": batch,
                "pid": 100 + rank,
                "tid": 1,
                "ts": at,
                "dur": 900,
            },
            _launch(rank, at + 10, 10 * step + 1),
            _launch(rank, at + 20, 10 * step + 2),
            _kernel(rank, "gemm_bf16_128x128", at + 100, 400 + late_us, 10 * step + 1),
            _kernel(
                rank,
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                at + 500 + late_us,
                300 - late_us,
                10 * step + 2,
            ),
        ]
    document = {
        "distributedInfo": {"rank": rank, "world_size": world, "backend": "nccl"},
        "deviceProperties": [{"id": rank, "name": "NVIDIA H200"}],
        "traceEvents": events,
    }
    path = folder / f"rank{rank}.pt.trace.json"
    path.write_text(json.dumps(document))
    return path


def _launch(rank, at, correlation):
    about = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "args": {"correlation": correlation},
    }
    return {**about, "pid": 100 + rank, "tid": 1, "ts": at, "dur": 5}


def _kernel(rank, name, at, dur, correlation):
    args = {"device": rank, "stream": 7, "correlation": correlation}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": rank,
        "tid": 7,
        "ts": at,
        "dur": dur,
        "args": args,
    }


def run_folder(folder, ranks=3, **late_us):
    """Files of all ranks; ``rank1=200`` makes that one late."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        rank_file(folder, rank, world=ranks, late_us=late_us.get(f"rank{rank}", 0))
    return folder


def same(one, other):
    """Two traces have the same tables."""
    assert one.table_names == other.table_names
    for name in one.table_names:
        assert_frame_equal(one.table(name), other.table(name))
