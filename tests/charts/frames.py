"""Frames as the analyses make them: an invented TP=4 run of a 28-layer model, one prefill and
decode steps.
"""

import random
from functools import cache

import polars as pl

from llmprof import analyze, theory
from llmprof.run import trials
from llmprof.theory.plan import decode
from tests.building import table_of
from tests.samples import sample

RANKS, LAYERS, STEPS = 4, 28, 8

_LAYER = [
    ("norm", "norm", 3_000, "triton_red_fused_add_rms_norm_0"),
    ("qkv_proj", "gemm", 8_100, "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT"),
    (
        "rope",
        "rope",
        2_500,
        "void vllm::rotary_embedding_kernel<c10::BFloat16, c10::BFloat16, true>",
    ),
    (
        "kv_cache_write",
        "kv_cache_write",
        2_200,
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>",
    ),
    (
        "attention",
        "attention",
        11_000,
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90>>",
    ),
    ("o_proj", "gemm", 6_900, "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT"),
    ("all_reduce", "collective", 4_200, "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>"),
    ("norm", "norm", 3_000, "triton_red_fused_add_rms_norm_0"),
    ("gate_up_proj", "gemm", 19_000, "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"),
    (
        "activation",
        "activation",
        2_400,
        "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>",
    ),
    ("down_proj", "gemm", 11_500, "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNN"),
    ("all_reduce", "collective", 4_200, "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>"),
]


@cache
def attributed(ranks=RANKS, steps=STEPS, layers=LAYERS):
    """Rows as ``trace.events`` returns them."""
    rng = random.Random(1)
    rows = []
    for rank in range(ranks):
        now = 500_000
        for step in range(steps):
            phase, slow = ("prefill", 6) if step == 0 else ("decode", 1)

            def put(  # noqa: PLR0917
                stage,
                category,
                dur,
                name,
                layer,
                at,
            ):
                nonlocal now
                if category == "collective":
                    dur += 0 if at[0] == ranks - 1 else rng.randrange(20_000, 90_000)
                elif at[0] == ranks - 1:
                    now += rng.randrange(2_000, 9_000)
                stream = 7 if category != "copy" else 16
                row = (
                    at[0],
                    at[0],
                    stream,
                    now,
                    dur,
                    name,
                    category,
                    at[1],
                    at[2],
                    layer,
                    stage,
                    "kernel",
                    0.95,
                )
                rows.append(row)
                now += dur + rng.randrange(600, 3_000)

            at = (rank, step, phase)
            put("prepare_inputs", "copy", 3_000, "Memcpy HtoD (Pageable -> Device)", None, at)
            put(
                "embedding",
                "embedding",
                4_000 * slow,
                "void at::native::indexSelectSmallIndex",
                None,
                at,
            )
            for layer in range(layers):
                for stage, category, dur, name in _LAYER:
                    put(stage, category, int(dur * slow * rng.uniform(0.96, 1.1)), name, layer, at)
            put("final_norm", "norm", 3_000, "triton_red_fused_add_rms_norm_0", None, at)
            put("lm_head", "gemm", 61_000, "nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNN", None, at)
            put(
                "sampling",
                "sampling",
                14_000,
                "void at::native::reduce_kernel<512, 1, ArgMaxOps>",
                None,
                at,
            )
            now = 500_000 + (step + 1) * 6_900_000 + 11_500_000 + rank * 7_000
    schema = [
        "rank",
        "device",
        "stream",
        "start_ns",
        "dur_ns",
        "name",
        "category",
        "step",
        "phase",
        "layer",
        "stage",
        "source",
        "confidence",
    ]
    types = {"rank": pl.Int32, "step": pl.Int32, "layer": pl.Int32}
    return pl.DataFrame(rows, schema=schema, orient="row").cast(types).sort("rank", "start_ns")


@cache
def layered():
    """Rows as ``layers(trace)`` returns them."""
    return (
        attributed()
        .filter(pl.col("layer").is_not_null())
        .group_by("rank", "step", "phase", "layer", maintain_order=True)
        .agg(
            pl.col("start_ns").min(),
            dur_ns=(pl.col("start_ns") + pl.col("dur_ns")).max() - pl.col("start_ns").min(),
            busy_ns=pl.col("dur_ns").sum(),
            kernels=pl.len(),
        )
    )


@cache
def overlapped():
    """Rows as ``overlap(trace)`` returns them; compute, exposed and idle parts add up to the
    total.
    """
    rows = []
    for rank in range(RANKS):
        for step in range(STEPS):
            compute, hidden = 2_400_000 + 10_000 * step, 30_000 * (rank + 1)
            exposed, copy = 1_500_000 - 450_000 * rank + 1_000 * step, 9_000
            idle = 700_000 + 300_000 * rank
            total = compute + exposed + copy + idle
            rows.append(
                (rank, step, total, compute, exposed + hidden, copy, exposed, hidden, copy, idle)
            )
    names = "rank step total_ns compute_ns communication_ns copy_ns exposed_communication_ns hidden_communication_ns"
    return pl.DataFrame(rows, schema=[*names.split(), "exposed_copy_ns", "idle_ns"], orient="row")


@cache
def called():
    """Rows as ``collectives(trace)`` returns them."""
    rng = random.Random(2)
    rows = []
    for call in range(57 * STEPS):
        large = call < 57
        transfer = int((11_000 if large else 4_200) * rng.lognormvariate(0, 0.12))
        skew = int(rng.lognormvariate(12.6, 0.9))
        for rank in range(RANKS):
            wait = 0 if rank == RANKS - 1 else max(0, skew - rng.randrange(0, 30_000))
            size = 1_835_008 if large else 28_672
            name = f"void vllm::cross_device_reduce_{2 if large else 1}stage<__nv_bfloat16, 4>"
            rows.append(
                (
                    rank,
                    call // 57,
                    call,
                    "all_reduce",
                    size,
                    wait + transfer,
                    wait,
                    transfer,
                    skew,
                    3,
                    name,
                )
            )
    names = "rank step call kind bytes dur_ns wait_ns transfer_ns arrival_skew_ns last_rank name"
    return table_of(names, rows)


@cache
def idled():
    """Rows as ``idle(trace)`` returns them."""
    rng = random.Random(3)
    rows = []
    for rank in range(RANKS):
        for _ in range(900):
            cause = rng.choices(
                ["host_bound", "sync", "launch", "queued", "unknown"], [20, 1, 15, 60, 4]
            )[0]
            centre = {
                "host_bound": 9.6,
                "sync": 12.5,
                "launch": 8.2,
                "queued": 7.3,
                "unknown": 8.0,
            }[cause]
            rows.append((rank, rank, 1, int(rng.lognormvariate(centre, 0.6)) + 200, cause))
    return table_of("rank device step dur_ns cause", rows)


@cache
def path():
    """Rows as ``critical_path(trace)`` returns them: two decode steps, one of them longer, and a
    prefill.
    """
    rows = [
        (0, "prefill", "host", 4_000_000),
        (0, "prefill", "compute", 6_000_000),
        (1, "decode", "host", 1_000_000),
        (1, "decode", "compute", 2_000_000),
        (1, "decode", "unexplained", 100_000),
        (2, "decode", "host", 3_000_000),
        (2, "decode", "compute", 2_000_000),
    ]
    return table_of("step phase part dur_ns", rows)


@cache
def compared():
    """Rows as ``diff(a, b)`` returns them."""
    rng = random.Random(4)
    rows = []
    for phase, slow in (("prefill", 6), ("decode", 1)):
        for stage, category, dur, _ in {row[0]: row for row in _LAYER}.values():
            a = int(dur * slow * LAYERS * (1.9 if stage in ("norm", "all_reduce") else 1))
            b = int(
                a * (rng.uniform(0.3, 0.7) if stage == "all_reduce" else rng.uniform(0.93, 1.09))
            )
            status = "same" if abs(b - a) < 0.02 * a else "faster" if b < a else "slower"
            rows.append((phase, stage, category, a, b, b - a, b / a, 28, 28, status))
        rows.append(
            (
                phase,
                "all_gather",
                "collective",
                0,
                31_000 * slow,
                31_000 * slow,
                None,
                0,
                1,
                "only_b",
            )
        )
        rows.append(
            (phase, "residual", "other", 44_000 * slow, 0, -44_000 * slow, 0.0, 28, 0, "only_a")
        )
    rows.append(("mixed", "attention", "attention", None, 90_000, None, None, None, 28, "only_b"))
    names = "phase stage category a_ns b_ns delta_ns ratio a_count b_count status"
    return pl.DataFrame(rows, schema=names.split(), orient="row", infer_schema_length=None)


@cache
def delayed():
    """Rows as ``launch_delay(trace)`` returns them."""
    rng = random.Random(5)
    rows = []
    for rank in range(RANKS):
        for step in range(STEPS):
            median = int(
                (900_000 if step == 0 else 160_000)
                * rng.uniform(0.8, 1.2)
                / (3 if rank == 3 else 1)
            )
            rows.append((rank, step, 420, 1.0, 2_100_000, median, median * 2, median * 3, 4_000))
    names = "rank step launched launched_share host_dur_ns median_ns p95_ns max_ns min_ns"
    return table_of(names, rows)


PEAK, BANDWIDTH = {"bf16": 989.5e12, "fp32": 67e12}, 4.8e12
_LAUNCHES = [
    (
        "norm",
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(T1 *)",
        8_900.0,
        "fp32",
        1.7,
        0.29,
        "memory",
    ),
    (
        "qkv_proj",
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT",
        22_300.0,
        "bf16",
        1_021.0,
        0.58,
        "compute",
    ),
    (
        "rope",
        "void vllm::rotary_embedding_kernel<c10::BFloat16>(const long *)",
        13_500.0,
        "fp32",
        1.5,
        0.12,
        "latency",
    ),
    (
        "kv_cache_write",
        "void vllm::reshape_and_cache_flash_kernel<T1>(T1 *)",
        8_600.0,
        None,
        0.0,
        0.05,
        "latency",
    ),
    (
        "attention",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90>(T1)",
        27_600.0,
        "bf16",
        478.0,
        0.15,
        "latency",
    ),
    (
        "gate_up_proj",
        "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_TNT",
        158_000.0,
        "bf16",
        704.0,
        0.72,
        "compute",
    ),
    (
        "down_proj",
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_TNT",
        75_500.0,
        "bf16",
        844.0,
        0.75,
        "compute",
    ),
]


@cache
def profiled():
    """Rows as ``speed_of_light(metrics)`` returns them, with the stages of
    ``ncu.layers(metrics)``: two layers.
    """
    rows = []
    for kernel_id, (stage, name, ns, dtype, intensity, share, bound) in enumerate(_LAUNCHES * 2):
        roof = min(PEAK[dtype], intensity * BANDWIDTH) if dtype else None
        ns += kernel_id
        rows.append(
            (
                kernel_id,
                name,
                ns,
                dtype,
                intensity,
                roof * share if roof else 0.0,
                roof,
                share,
                bound,
                stage,
            )
        )
    names = "kernel_id kernel_name dur_ns dtype intensity flop_per_s bound_flop_per_s bound_share bound_by"
    return pl.DataFrame(rows, schema=[*names.split(), "stage"], orient="row")


@cache
def operated():
    """Rows of ``operators(trace, by=("stage",))`` of a bundled trace."""
    return analyze.operators(sample("torch_transformers_generate"), by=("stage",))


@cache
def gained():
    """Rows of ``opportunities(trace)`` of the same trace."""
    return analyze.opportunities(sample("torch_transformers_generate"))


@cache
def stalled():
    """Rows as ``stalls(metrics)`` returns them, joined with the names, durations and stages of
    the launches.
    """
    rng = random.Random(6)
    rows = []
    for kernel_id in range(2 * len(_LAUNCHES)):
        reasons = [
            "long_scoreboard",
            "barrier",
            "wait",
            "mio_throttle",
            "imc_miss",
            "drain",
            "misc",
        ]
        left = 0.9
        for reason in reasons[kernel_id % 2 :]:
            share = left * rng.uniform(0.3, 0.6)
            left -= share
            rows.append((kernel_id, reason, share))
    frame = table_of("kernel_id reason share", rows)
    return frame.join(
        profiled().select("kernel_id", "kernel_name", "dur_ns", "stage"), on="kernel_id"
    )


@cache
def sampled():
    """Counters of a trace as the monitors of two GPUs and the host give them, four a second."""
    rng = random.Random(7)
    rows = []
    for turn in range(-40, 120):
        time_ns, busy = turn * 250_000_000, 0 < turn < 90
        for device in range(2):
            values = {
                "gpu.utilization": ("%", (90 - 20 * device) * busy + 5 * rng.random()),
                "gpu.memory_used": ("B", (100 if turn > -20 else 2) * 2.0**30),
                "gpu.power": ("W", 120 + 500 * busy + 40 * rng.random()),
                "gpu.throttle.gpu_idle": ("1", float(not busy)),
                "gpu.throttle.sw_power_cap": ("1", float(busy and turn % 10 == 0 and device == 0)),
            }
            rows += [
                (device, device, time_ns, name, value, unit)
                for name, (unit, value) in values.items()
            ]
        rows.append((-1, None, time_ns, "cpu.utilization", 20 + 10 * rng.random(), "%"))
        rows.append((-1, None, time_ns, "disk.read", 0.0, "B/s"))
    return table_of("rank device time_ns name value unit", rows)


@cache
def requested():
    """Rows of ``run.requests``: 3 repeats of 8 requests without profiler, one under it, and a
    warm-up.
    """
    rng = random.Random(8)
    rows = []
    for phase, repeat, slow in (
        ("warmup", 0, 9),
        ("plain", 0, 1),
        ("plain", 1, 1),
        ("plain", 2, 1),
        ("profiled", 0, 1.2),
    ):
        for request in range(8):
            ttft, tpot = int(slow * rng.uniform(12e6, 24e6)), int(slow * rng.uniform(4.5e6, 4.9e6))
            rows.append((phase, repeat, request, ttft, tpot, [tpot] * 3, ttft + 15 * tpot))
    names = ["phase", "repeat", "request", "ttft_ns", "tpot_ns", "itl_ns", "e2e_ns"]
    return pl.DataFrame(rows, schema=names, orient="row")


@cache
def joined_requests():
    """Rows as ``analyze.requests(run)`` returns them: 24 requests every 6 ms, whose prefills of
    11 ms queue.
    """
    rng, free, rows = random.Random(4), 0.0, []
    for k in range(24):
        at = 6.0 * k
        begin, own = max(at + 0.5, free), rng.uniform(6, 16)
        free = begin + own
        behind, other = max(0.0, 0.8 * (begin - at - 0.5)), 0.5
        decode = rng.uniform(20, 90)
        times = [
            at,
            begin,
            free,
            free + decode,
            free - at,
            behind,
            begin - at - behind - other,
            other,
            own,
            0.0,
        ]
        last = free - at + decode
        rows.append([k, *(round(1e6 * t) for t in (*times, last)), round(1e6 * behind), "waiting"])
    names = [
        "request",
        "start_ns",
        "first_step_ns",
        "first_token_ns",
        "end_ns",
        "ttft_ns",
        "queue_prefill_ns",
    ]
    names += [
        "queue_decode_ns",
        "queue_other_ns",
        "prefill_ns",
        "prefill_other_ns",
        "e2e_ns",
        "ttft_other_ns",
    ]
    return pl.DataFrame(rows, schema=[*names, "reason"], orient="row")


@cache
def called_api():
    """Rows as ``cuda_api_sum(trace)`` returns them."""
    rows = [
        ("cudaEventSynchronize", 352_000_000, 12, 29_600_000.0),
        ("cudaGraphLaunch_v10000", 111_000_000, 73, 1_500_000.0),
        ("cudaLaunchKernel", 97_000_000, 8_592, 10_700.0),
        ("cudaMemcpyAsync", 3_900_000, 232, 14_300.0),
        ("cudaMalloc", 900_000, 9, 100_000.0),
        ("cuTensorMapEncodeTiled", 43_000, 280, 131.0),
    ]
    return table_of("name total_ns count median_ns", rows)


@cache
def summarised():
    """Rows as ``launch.run.requests.summarize(run.requests)`` returns them."""
    medians = {"ttft_ns": 15e6, "tpot_ns": 4.6e6, "queue_ns": 9e3, "e2e_ns": 84e6, "wall_ns": 9e7}
    rows = [
        (phase, metric, slow * p50, slow * p50, 1.4 * slow * p50, 12, "ns")
        for phase, slow in (("plain", 1.0), ("profiled", 1.3))
        for metric, p50 in medians.items()
    ]
    return table_of("phase metric mean p50 p99 n unit", rows)


@cache
def swept():
    """``sweep.comparison`` of four batch sizes and two lengths; the last point failed."""
    rows = []
    for point, (batch, tokens) in enumerate((b, t) for b in (1, 2, 4, 8) for t in (16, 64)):
        rate, latency = (
            80.0 * batch**0.8 * (1 + tokens / 500),
            10e6 + tokens * 4e6 * (1 + batch / 20),
        )
        row = {
            "point": point,
            "label": f"batch_size={batch}, max_tokens={tokens}",
            "batch_size": batch,
        }
        row |= {
            "max_tokens": tokens,
            "state": "finished",
            "measured": "plain",
            "output_tokens_per_s": rate,
        }
        row |= {"requests_per_s": rate / tokens}
        row |= {
            "output_tokens_per_s_ci95_low": 0.9 * rate,
            "output_tokens_per_s_ci95_high": 1.1 * rate,
        }
        row |= {"ttft_ns": 9e6 + 1e6 * batch, "ttft_p99_ns": 2e7, "tpot_ns": 4e6, "e2e_ns": latency}
        rows.append(row | {"e2e_p99_ns": 1.2 * latency})
    first = ["point", "label", "batch_size", "max_tokens", "state"]
    rows[-1] |= dict.fromkeys(sorted(set(rows[-1]) - set(first)))
    return pl.DataFrame(rows, infer_schema_length=None).select(*first, pl.exclude(first))


@cache
def went():
    """``sweep.where`` of the points of :func:`swept`."""
    rows = []
    for point, label in swept().select("point", "label").head(7).rows():
        for phase, steps in (("prefill", 1), ("decode", 15)):
            parts = {
                "compute": 2e6,
                "exposed communication": 5e5,
                "exposed copy": 1e5,
                "idle": 4e6 / (point + 1),
            }
            rows += [
                (point, label, phase, part, int(2 * steps * ns), steps, 2)
                for part, ns in parts.items()
            ]
    return table_of("point label phase part ns steps ranks", rows)


@cache
def tried():
    """``verdict.effects`` of a trial: one metric better, one worse, one without an effect."""
    gains = {"output_tokens_per_s": 0.9, "ttft_ns": 1.04, "e2e_ns": 1.0}
    rows = [
        (
            pair,
            metric,
            1e9,
            1e9 * (after if metric.endswith("_ns") else 1 / after) * (1 + 0.002 * (pair - 2)),
        )
        for metric, after in gains.items()
        for pair in range(5)
    ]
    return trials.effects(table_of("pair metric before after", rows))


@cache
def studied():
    """``study.pareto``: three points on the front, one behind it."""
    rows = [
        ("as it is", 20e6, 900.0, "start", True),
        ("max_num_seqs=64", 28e6, 1400.0, "best", True),
        ("max_num_seqs=256", 45e6, 1600.0, "misses the SLO", True),
        ("max_num_seqs=8", 30e6, 700.0, "holds the SLO", False),
    ]
    columns = ["label", "latency", "rate", "kind", "front"]
    return pl.DataFrame(rows, schema=columns, orient="row").with_row_index("point")


@cache
def sliced():
    """``study.slices`` of two settings."""
    rows = [
        ("max_num_seqs", "16", 900.0, True),
        ("max_num_seqs", "64", 1400.0, True),
        ("max_num_seqs", "256", 1600.0, False),
        ("eager", "True", 900.0, True),
        ("eager", "False", 1100.0, True),
    ]
    return table_of("setting value objective holds", rows)


@cache
def summed():
    """Rows as ``analyze.kernels(trace)`` returns them."""
    return (
        attributed()
        .group_by("name", "category")
        .agg(total_ns=pl.col("dur_ns").sum(), count=pl.len())
    )


def by_theory():
    """Components of a model on a device."""
    return theory.profile("Qwen3-30B-A3B", "H200", batch_size=16, tp_size=2).components


def weighed():
    """Parameters of the parts of a model."""
    return theory.profile("Qwen3-30B-A3B", "H200").parameter_table


def ranged():
    """Theory over batches, with predicted times."""
    return theory.sweep("Qwen3-8B", "H200", calibration=theory.calibrated("H200"))


@cache
def joined():
    """Measured time beside its bound."""
    return analyze.roofline(sample("torch_tp1_cudagraph"), "Qwen2.5-1.5B")


def predictions():
    """Predicted beside measured times."""
    read = theory.shape("Qwen3-8B")
    made = [
        theory.Observation(read, theory.Plan(), decode(batch, 200), "decode", 0.005 + batch * 1e-5)
        for batch in (1, 8, 64)
    ]
    return theory.calibrated("H200").predict(made)


def stacked():
    """Call stacks of two threads, one with a name that is markup."""
    return pl.DataFrame(
        {
            "rank": [0, 0, 0, 0],
            "thread": [1, 1, 1, 2],
            "stack": [
                ["main", "forward", "aten::mm"],
                ["main", "forward"],
                ["main", "<b>x</b>"],
                ["main", "loop"],
            ],
            "value": [4_000_000, 1_000_000, 3_000_000, 2_000_000],
            "unit": ["ns"] * 4,
            "count": [1, 2, 3, 4],
        }
    )


@cache
def ranked():
    """Rows as ``rank_steps(trace)`` returns them."""
    first = pl.col("start_ns").min()
    return (
        layered()
        .group_by("rank", "step", "phase", maintain_order=True)
        .agg(
            first,
            end_ns=(pl.col("start_ns") + pl.col("dur_ns")).max(),
            wait_ns=pl.col("dur_ns").max(),
        )
        .with_columns(
            dur_ns=pl.col("end_ns") - pl.col("start_ns"),
            idle_ns=0,
            exposed_communication_ns=pl.lit(1_000),
        )
    )


@cache
def late():
    """Rows as ``late_groups(trace)`` returns them."""
    return pl.DataFrame(
        {
            "kind": ["node", "node", "tp", "tp"],
            "group": ["a", "b", "0", "1"],
            "ranks": [[2, 3], [0, 1], [0, 2], [1, 3]],
            "count": 40,
            "last_count": [36, 4, 20, 20],
            "last_share": [0.9, 0.1, 0.5, 0.5],
            "expected_share": 0.5,
            "late_median_ns": [3_000.0, 10.0, 1_500.0, 1_500.0],
        }
    )


@cache
def used():
    """Rows as ``gpu_time_util_map(trace)`` returns them."""
    return analyze.nsys.gpu_time_util_map(sample("torch_tp4_eager_nccl"), bins=60)
