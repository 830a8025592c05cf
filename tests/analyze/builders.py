"""Hand-built traces: kernels one after another on a stream, launched from one thread, with
labels around.
"""

import polars as pl

from llmprof.trace import Trace
from tests.building import table_of

GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, float>"
NORM = "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8, true>"
ROPE = "void vllm::rotary_embedding_kernel<c10::BFloat16, true>"
CACHE = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>"
ATTENTION = (
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2> > >"
)
COMBINE = "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8> > > >"
ALL_REDUCE = "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*)"
NCCL_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SILU = "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>"
EMBEDDING = "void at::native::indexSelectSmallIndex<c10::BFloat16, long>"
GATHER = "void at::native::vectorized_gather_kernel<16, long>"
SAMPLE = "_gumbel_sample_kernel"
ARGMAX = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float> > >"
UNKNOWN = "triton_poi_fused_3"

DENSE = [NORM, GEMM, ROPE, CACHE, ATTENTION, GEMM, NORM, GEMM, SILU, GEMM]
"""Kernels of a dense layer on one GPU: norm, qkv, rope, cache, attention, o_proj, norm, gate_up,
activation, down.
"""

DENSE_STAGES = [
    "norm",
    "qkv_proj",
    "rope",
    "kv_cache_write",
    "attention",
    "o_proj",
    "norm",
    "gate_up_proj",
    "activation",
    "down_proj",
]


_TYPES = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "device": pl.Int32(),
    "event": pl.UInt32(),
    "on_device": pl.Boolean(),
}
_TEXTS = (
    "name",
    "kind",
    "domain",
    "category",
    "source",
    "shapes",
    "dtypes",
    "api",
    "phase",
    "stage",
)


def types_of(*columns):
    """Types of columns by their names: a number of 64 bits unless the name is another's."""
    return {
        name: pl.String() if name in _TEXTS else _TYPES.get(name, pl.Int64()) for name in columns
    }


def forward(layers, layer=DENSE):
    """Kernels of a whole forward pass: an input, the embedding, the layers, final norm, lm_head
    and sampling.
    """
    return [
        "_prepare_inputs_kernel",
        EMBEDDING,
        *list(layer) * layers,
        NORM,
        GATHER,
        GEMM,
        SAMPLE,
        ARGMAX,
    ]


def kernels(
    names,
    *,
    start=0,
    dur=10,
    pause=0,
    rank=0,
    stream=7,
    first=1,
):
    """Kernels one after another, each ``dur`` long or as its pair says; correlations count from
    ``first``.
    """
    rows, at = [], start
    for n, item in enumerate(names):
        name, length = item if isinstance(item, tuple) else (item, dur)
        rows.append((rank, 0, stream, at, length, name, first + n))
        at += length + pause
    return pl.DataFrame(
        rows,
        schema=types_of("rank", "device", "stream", "start_ns", "dur_ns", "name", "correlation"),
        orient="row",
    )


def end(frame):
    """Where the last event of a frame ends."""
    return int((frame["start_ns"] + frame["dur_ns"]).max())


def launches(frame, *, lead=5, dur=2, name="cudaLaunchKernel", thread=1, correlation="correlation"):
    """A call for each kernel, ``lead`` before it starts; without a correlation it launches nothing."""
    return frame.select(
        "rank",
        start_ns=pl.col("start_ns") - lead,
        dur_ns=pl.lit(dur, dtype=pl.Int64),
        name=pl.lit(name),
        api=pl.lit("runtime"),
        correlation=pl.lit(None, pl.Int64) if correlation is None else correlation,
        thread=pl.lit(thread, dtype=pl.Int64),
    )


def labels(rows, *, rank=0, on_device=False):
    """Markers from ``(name, start, duration)``."""
    return pl.DataFrame(
        [(rank, start, dur, name, "user_annotation", on_device) for name, start, dur in rows],
        schema=types_of("rank", "start_ns", "dur_ns", "name", "domain", "on_device"),
        orient="row",
    )


def step_of(run, **tables):
    """The recording of one labelled decode step."""
    marks = labels([("execute_new_0_cached_4", -50, 10)])
    return Trace({"kernels": run, "runtime": launches(run), "markers": marks} | tables)


def ops(rows, *, rank=0, thread=1):
    """Operators from ``(name, start, duration, op_id[, shapes[, dtypes]])``."""
    filled = [(rank, thread, *row, *[None] * (6 - len(row)), "op") for row in rows]
    return pl.DataFrame(
        filled,
        schema=types_of(
            "rank", "thread", "name", "start_ns", "dur_ns", "op_id", "shapes", "dtypes", "kind"
        ),
        orient="row",
    )


MM_BOUND_NS = 2 * 4096**3 / 989.5e12 * 1e9
"""Least time of a product of :func:`products_of_h200`: 138.9 us."""


def products_of_h200(*lengths):
    """Products of [4096, 4096] by [4096, 4096] in bf16 on an H200, one after another, and a
    kernel of 1 us.
    """
    shapes, types = "[[4096, 4096], [4096, 4096]]", '["c10::BFloat16", "c10::BFloat16"]'
    made = ops(("aten::mm", 10 * n, 5, n + 1, shapes, types) for n in range(len(lengths)))
    kernels = []
    for n, length in enumerate(lengths):
        kernels.append((sum(lengths[:n]), length, "gemm", n + 1))
    kernels.append((sum(lengths), 1000, "nobody", None))
    table = table_of("start_ns dur_ns name op_id", kernels)
    return Trace(
        {"kernels": table.with_columns(rank=0, device=0, stream=7), "ops": made},
        {"device": "NVIDIA H200"},
    )
