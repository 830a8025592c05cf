from pathlib import Path

import polars as pl
import pytest

from llmprof import Metrics, read_metrics
from llmprof.analyze.ncu import speed_of_light, stalls
from llmprof.errors import LlmprofError, NotCapturedError
from llmprof.theory.hardware import TYPES, Device

SHARED = Path(__file__).parents[2] / ".." / "shared"
CAPTURE = SHARED / "captures" / "ncu_tp1_eager"
needs_captures = pytest.mark.skipif(not CAPTURE.is_dir(), reason="the captures are not here")

# 100 TFLOP/s and 1 TB/s: the ridge is at 100 FLOP/B
TOY = Device("toy", "toy", dict.fromkeys(TYPES, 100e12), 1e12, 1e9, 0, 10)

DURATION = "gpu__time_duration.sum"
TENSOR = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
READ, WRITE, WRITTEN = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "l1tex__m_l1tex2xbar_write_bytes.sum",
)
SM, DRAM, L2 = (
    f"{unit}__throughput.avg.pct_of_peak_sustained_elapsed" for unit in ("sm", "dram", "lts")
)


def measured(*launches, device=None):
    rows = [
        (number, "k", name, "%" if ".pct_" in name else "1", float(value), None)
        for number, values in enumerate(launches)
        for name, value in values.items()
    ]
    if device:
        rows += [
            (n, "k", "device__attribute_display_name", "1", None, device)
            for n in range(len(launches))
        ]
    columns = {
        "kernel_id": pl.Int32,
        "kernel_name": pl.String,
        "metric": pl.String,
        "unit": pl.String,
    }
    return Metrics(
        pl.DataFrame(rows, schema={**columns, "value": pl.Float64, "text": pl.String}, orient="row")
    )


def first(*launches, device=TOY):
    return speed_of_light(measured(*launches), device=device).row(0, named=True)


def test_rates_intensity_and_place_under_the_flat_roof():
    # 1 GFLOP and 2 MB in 20 us: 50 TFLOP/s, 0.1 TB/s, 500 FLOP/B is right of the ridge
    row = first(
        {
            DURATION: 20_000,
            TENSOR: 1e9,
            READ: 1.5e6,
            WRITE: 0.5e6,
            WRITTEN: 1e6,
            SM: 55,
            DRAM: 10,
            L2: 20,
        }
    )
    assert row["flop_per_s"] == pytest.approx(50e12)
    assert row["memory_bytes"] == 2e6
    assert row["bytes_per_s"] == pytest.approx(1e11)
    assert row["traffic_bytes"] == 2.5e6
    assert row["intensity"] == pytest.approx(500)
    assert row["bound_flop_per_s"] == 100e12
    assert row["bound_share"] == pytest.approx(0.5)
    assert (row["dtype"], row["bound_by"], row["memory_level"], row["memory_share"]) == (
        "bf16",
        "latency",
        "l2",
        pytest.approx(0.2),
    )
    # 10 FLOP/B: the roof is 10 TFLOP/s, and 8 are reached
    row = first({DURATION: 10_000, TENSOR: 8e7, READ: 8e6, WRITE: 0})
    assert row["bound_flop_per_s"] == pytest.approx(10e12)
    assert row["bound_share"] == pytest.approx(0.8)
    assert row["compute_share"] == pytest.approx(0.08)
    assert row["memory_share"] == pytest.approx(0.8)
    assert (row["bound_by"], row["memory_level"]) == ("memory", "dram")


@pytest.mark.parametrize(
    ("compute", "dram", "l2", "bound", "level"),
    [
        (90, 20, 30, "compute", "l2"),
        (30, 70, 40, "memory", "dram"),
        (30, 20, 61, "memory", "l2"),
        (59, 59, 10, "latency", "dram"),
        (75, 75, 75, "compute", "dram"),
    ],
)
def test_the_busier_side_at_sixty_percent_is_the_bound(compute, dram, l2, bound, level):
    row = first({DURATION: 1000, SM: compute, DRAM: dram, L2: l2})
    assert (row["bound_by"], row["memory_level"]) == (bound, level)
    assert row["flops"] is None


def test_operations_are_counted_once_whatever_names_count_them():
    names = {
        DURATION: 1000,
        "sm__ops_path_tensor_src_fp16.sum": 100,
        "sm__ops_path_tensor_src_fp16_dst_fp32.sum": 60,
        "sm__ops_path_tensor_op_hmma_src_fp16_dst_fp32_sparsity_off.sum": 60,
        "sm__ops_path_tensor_src_fp16.sum.per_second": 1,
        "sm__ops_path_tensor_src_fp8_sparsity_off.sum": 30,
        "sm__ops_path_tensor_src_fp8_sparsity_on.sum": 7,
        "sm__ops_path_tensor_op_imma_src_int8_sparsity_off.sum": 2,
        "sm__ops_path_tensor_op_igmma_src_int8_sparsity_off.sum": 3,
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum.per_second": 4e6,  # 4 in a microsecond
        "sm__ops_path_tensor_src_bf16_dst_fp32.avg": 1e9,
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum.peak_sustained": 1e9,
    }
    row = first(names)
    assert row["flops"] == pytest.approx(100 + 30 + 7 + 5 + 4)
    assert row["dtype"] == "fp16"
    assert row["source"] == "tensor operations"


def test_instructions_outside_the_tensor_cores_count_by_what_they_do():
    per_cycle = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
    counts = {"fadd": 1, "fmul": 2, "ffma": 3, "hfma": 5, "dadd": 7}
    row = first(
        {
            DURATION: 1000,
            "smsp__cycles_elapsed.avg.per_second": 2e9,  # 2000 cycles
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 0,
            "smsp__sass_thread_inst_executed_op_hadd_pred_on.sum": 100,
            **{per_cycle.format(op): n for op, n in counts.items()},
        }
    )
    assert row["flops"] == pytest.approx(2000 * (1 + 2 + 2 * 3 + 4 * 5 + 7) + 2 * 100)
    assert row["dtype"] == "fp16"
    assert row["source"] == "FP instructions"


@pytest.mark.parametrize(
    "tensor", [{}, {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 12}]
)
def test_without_a_count_of_the_tensor_cores_operations_are_unknown_and_not_too_few(tensor):
    row = first(
        {DURATION: 1000, "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 10, **tensor}
    )
    assert row["flops"] is None
    assert row["flop_per_s"] is None
    assert row["source"] is None


@pytest.mark.parametrize(
    ("names", "total"),
    [
        ({READ: 10, WRITE: 20, "dram__bytes.sum": 99}, 30),
        ({READ: 10, "dram__bytes.sum": 99}, 99),
        ({"dram__bytes.sum.per_second": 5e9}, 5000),
        ({}, None),
    ],
)
def test_memory_traffic_comes_from_what_was_collected(names, total):
    assert first({DURATION: 1000, **names})["memory_bytes"] == (
        None if total is None else pytest.approx(total)
    )


def test_stalls_are_shares_of_all_states_and_readiness_is_none():
    ratio = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
    states = {"selected": 1, "not_selected": 2, "long_scoreboard": 4, "gmma": 3, "wait": 0}
    found = stalls(measured({ratio.format(name): value for name, value in states.items()}))
    assert found.rows() == [
        (0, "long_scoreboard", 0.4),
        (0, "warpgroup_arrive", pytest.approx(0.3)),
    ]
    sampled = {
        "smsp__pcsamp_warps_issue_stalled_barrier": 30,
        "smsp__pcsamp_warps_issue_stalled_selected": 10,
    }
    sampled["smsp__pcsamp_warps_issue_stalled_barrier_not_issued"] = 25
    assert stalls(measured(sampled)).rows() == [(0, "barrier", 0.75)]
    assert stalls(measured(dict.fromkeys(sampled, 0))).height == 0
    row = first({DURATION: 1, **sampled})
    assert (row["stall"], row["stall_share"]) == ("barrier", 0.75)


def test_the_device_is_the_one_that_the_metrics_name():
    found = speed_of_light(
        measured({DURATION: 1000, TENSOR: 989.5e6, READ: 1, WRITE: 0}, device="NVIDIA H200")
    )
    assert found["bound_share"].to_list() == [pytest.approx(1.0)]
    unnamed = speed_of_light(
        measured({DURATION: 1000, TENSOR: 1e6, READ: 10, WRITE: 0, SM: 70, DRAM: 20})
    )
    assert unnamed.select("bound_by", "flop_per_s", "bound_share").row(0) == (
        "compute",
        pytest.approx(1e12),
        None,
    )
    with pytest.raises(LlmprofError, match="not known"):
        speed_of_light(measured({DURATION: 1}), device="NVIDIA H9000")
    with pytest.raises(NotCapturedError, match="SpeedOfLight"):
        speed_of_light(measured({TENSOR: 1}), device=TOY)


TOKENS, HIDDEN, QKV, GATE_UP, DOWN = 2048, 1536, 2048, 17920, 8960
GEMMS = {  # launch: (K, N)
    0: (DOWN, HIDDEN),
    2: (HIDDEN, QKV),
    7: (HIDDEN, HIDDEN),
    9: (HIDDEN, GATE_UP),
    11: (DOWN, HIDDEN),
    13: (HIDDEN, QKV),
    18: (HIDDEN, HIDDEN),
    20: (HIDDEN, GATE_UP),
    22: (DOWN, HIDDEN),
}


@needs_captures
@pytest.mark.parametrize("page", ["raw.csv", ""])
def test_gemms_of_the_capture_agree_with_their_shapes_and_times(page):
    found = speed_of_light(read_metrics(CAPTURE / page))
    for launch, (k, n) in GEMMS.items():
        row = found.row(launch, named=True)
        seconds = row["dur_ns"] / 1e9
        assert row["flop_per_s"] == pytest.approx(2 * TOKENS * k * n / seconds, rel=1e-3)
        assert (row["dtype"], row["bound_by"]) == ("bf16", "compute")
        both = 2 * (TOKENS * k + k * n)
        result = 2 * TOKENS * n
        if n == GATE_UP:
            # seven waves of tiles; inputs (61 MB) and result (73 MB) are more than L2 (60 MB):
            # inputs are read again
            assert 1.2 < row["traffic_bytes"] / (both + result) < 1.35
        else:
            assert row["read_bytes"] / seconds == pytest.approx(both / seconds, rel=0.01)
            assert row["traffic_bytes"] / seconds == pytest.approx(
                (both + result) / seconds, rel=0.01
            )


def test_the_share_of_memory_includes_l1_as_the_profiler_has_it():
    units = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
    l1 = "l1tex__throughput.avg.pct_of_peak_sustained_active"
    row = first({DURATION: 1000, SM: 30, DRAM: 20, L2: 40, units: 70, l1: 75})
    assert (row["memory_share"], row["memory_level"], row["bound_by"]) == (0.7, "l1", "memory")
    row = first({DURATION: 1000, SM: 65, DRAM: 20, L2: 40, units: 70, l1: 75})
    assert (row["memory_share"], row["memory_level"], row["bound_by"]) == (0.7, "l1", "compute"), (
        "operands of a GEMM"
    )
    row = first({DURATION: 1000, SM: 30, DRAM: 20, L2: 40, units: 40, l1: 75})
    assert (row["memory_share"], row["memory_level"], row["bound_by"]) == (0.4, "l2", "latency")
