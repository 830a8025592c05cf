"""Why an operator takes longer than its bound: hand-built launches with hand-computed answers."""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.analyze.shortfall import resident
from llmprof.names.tiles import Tile, tile
from llmprof.theory.hardware import Device
from llmprof.trace import Trace
from tests.building import table_of

DEVICE = Device("mine", r"(?!)", {"bf16": 1e12}, 1e12, None, None, 4)
"""1,000 FLOPs and 1,000 bytes in a nanosecond, on four multiprocessors."""
SLOW_MEMORY = Device("mine", r"(?!)", {"bf16": 1e15}, 4e11, None, None, 4)

NVJET = "nvjet_sm90_tst_16x32_64x4_1x1_v_bz_TNT"  # tiles of 32 rows and 16 columns


def one(
    mnk,
    kernels,
    device=DEVICE,
    call="launch",
):
    """The row of a matrix product whose kernels (name, blocks, ns) are launched beside a kernel
    of 10 ns.
    """
    m, n, k = mnk
    rows = [
        (100 + 10000 * at, ns, name, 1, blocks, at) for at, (name, blocks, ns) in enumerate(kernels)
    ]
    frame = table_of(
        "start_ns dur_ns name op_id grid_x correlation",
        [*rows, (90000, 10, "nothing", None, 1, 99)],
    ).with_columns(rank=0, device=0, stream=7, grid_y=1, grid_z=1, block_x=64, block_y=1, block_z=1)
    ops = pl.DataFrame(
        {
            "start_ns": [0],
            "dur_ns": [50],
            "name": ["aten::mm"],
            "op_id": [1],
            "rank": [0],
            "thread": [1],
            "kind": ["op"],
            "shapes": [f"[[{m}, {k}], [{k}, {n}]]"],
            "dtypes": ['["c10::BFloat16", "c10::BFloat16"]'],
        }
    )
    runtime = frame.select(
        "rank",
        "correlation",
        "start_ns",
        thread=1,
        process=1,
        dur_ns=1,
        name=pl.lit(call),
        api=pl.lit("runtime"),
    )
    trace = Trace({"kernels": frame, "ops": ops, "runtime": runtime})
    return analyze.operators(trace, device=device).filter(operator="aten::mm").row(0, named=True)


def shares(row):
    """The shares above nothing."""
    return {
        name.removesuffix("_share"): pytest.approx(value, abs=1e-6)
        for name, value in row.items()
        if name.endswith("_share") and name != "bound_share" and value
    }


def test_turns_tiles_and_blocks_by_hand():
    row = one((64, 80, 64), [(NVJET, 4, 1020)])
    # 2 x 5 tiles on 4 multiprocessors: 3 turns for the work of 2.5; 655,360 FLOPs take 655.36 ns
    assert (row["tile"], row["blocks"], row["turns"], row["cause"]) == ("32x16", 4, 3, "waves")
    assert row["bound_ns"] == pytest.approx(655.36)
    gap = 1020 - 655.36
    assert shares(row) == {
        "start": 20 / gap,
        "waves": 1000 / 6 / gap,
        "rest": 1 - (20 + 1000 / 6) / gap,
    }
    row = one((33, 64, 64), [(NVJET, 4, 1020)])
    # rows of 2 x 32 for 33: 8 tiles, 2 full turns, 33/64 of what they compute is the result
    assert (row["turns"], row["cause"]) == (2, "padding")
    bound = 2 * 33 * 64 * 64 / 1000
    padded = min(2 * bound * 64 / 33, 1000)  # at most twice what full rate takes
    gap = 1020 - bound
    assert shares(row)["padding"] == padded * (1 - 33 / 64) / gap
    row = one((32, 16, 4096), [(NVJET, 1, 20020)])
    # one tile on four multiprocessors: 4,194,304 FLOPs at a quarter of the rate take 16,777 of
    # 20,000 ns
    assert (row["turns"], row["cause"]) == (1, "few_blocks")
    gap = 20020 - 4194.304
    assert shares(row) == {"start": 20 / gap, "few_blocks": 15000 / gap, "rest": 1 - 15020 / gap}
    row = one((32, 16, 4096), [(NVJET, 1, 8020)], SLOW_MEMORY)
    moved = (32 * 4096 + 4096 * 16 + 32 * 16) * 2
    alone, whole = moved / 113, moved / 400  # ns: a multiprocessor reads at most 113 bytes in one
    assert (row["bound_by"], row["cause"]) == ("memory", "few_blocks")
    assert row["bound_ns"] == pytest.approx(whole)
    # of 8,000 ns twice the reading is explained by its rate; in the rest one block waits where four
    # could
    gain = 2 * alone * (1 - whole / alone) + (8000 - 2 * alone) * 3 / 4
    assert shares(row)["few_blocks"] == gain / (8020 - whole)


def test_blocks_beside_each_other_hide_what_each_waits_for():
    # 128 threads with 32 registers each: 16 of them fill the threads of a multiprocessor
    assert resident(128, 32, 0) == 16
    assert resident(384, 168, 231424) == 1
    assert resident(256, 255, 0) == 1
    assert resident(32, 16, 0) == 32
    assert resident(256, None, None) == resident(None, 32, 0) == 1


def test_other_kernels_of_the_call():
    row = one(
        (64, 64, 64),
        [(NVJET.replace("bz", "bz_splitK"), 8, 610), ("cublasLt::splitKreduce_kernel", 8, 400)],
    )
    bound = 2 * 64 * 64 * 64 / 1000
    assert (row["kernels"], row["cause"]) == (2, "other_kernels")
    # eight blocks for eight tiles: two full turns
    gap = 1010 - bound
    assert shares(row) == {"other_kernels": 400 / gap, "start": 20 / gap, "rest": 1 - 420 / gap}
    slow = Device("mine", r"(?!)", {"bf16": 1e15}, 1e10, None, None, 4)
    row = one((33, 80, 64), [(NVJET, 4, 3010)], slow)
    assert (row["bound_by"], row["turns"]) == ("memory", 3)
    assert {"waves", "padding", "few_blocks"}.isdisjoint(shares(row))
    assert row["cause"] == "rest"
    row = one((64, 80, 64), [(NVJET, 4, 700)])
    assert (row["cause"], row["reason"], row["rest_share"], row["turns"]) == (None, None, None, 3)


def test_a_launch_of_hip_states_threads():
    name = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x32x64_MI16x16x1_SN"
    row = one((64, 80, 64), [(name, 640, 1020)], call="hipExtModuleLaunchKernel")
    assert (row["blocks"], row["tile"], row["turns"]) == (10, "32x16", 3)
    assert one((64, 80, 64), [(name, 640, 1020)], call="hipModuleLaunchKernel")["blocks"] == 640
    row = one((64, 80, 64), [("mine", 9, 1010)])
    assert (row["turns"], row["padding_share"]) == (3, None)
    unknown = Device("mine", r"(?!)", {"bf16": 1e12}, 1e12, None, None, None)
    row = one((64, 80, 64), [(NVJET, 4, 1020)], unknown)
    assert (row["turns"], row["waves_share"], row["cause"]) == (None, None, "rest")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_sm90_tst_192x8_64x8_4x1_v_bz_splitK_TNT", Tile(8, 192, None)),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT320x224x64_MI16x16x1_SN_LDSB0",
            Tile(224, 320),
        ),
        (
            "Cijk_Alik_Bljk_BBS_BH_UserArgs_MT64x16x128_MI16x16x1_SN_GSUAMBSK_GLS0",
            Tile(16, 64, None),
        ),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_warpgroupsize1x1x1_x",
            Tile(64, 128),
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>(x)",
            Tile(64, 128),
        ),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", Tile(64, 128)),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x4_swiglu", Tile(16, 128, 4)),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x256x32_wt32x32x8_ws1x2", Tile(128, 256)),
        (
            "_ZN2ck16tensor_operation6device12_GLOBAL__N_1E7ELi256ELi128ELi64ELi32ELi8E",
            Tile(128, 64),
        ),
        (
            "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, "
            "CollectiveMma<Main<4, cute::tuple<cute::C<2>, cute::C<1>, cute::C<1>>>, cute::tuple<cute::C<(int)64>, "
            "cute::C<(int)128>, cute::C<(int)128>>>>>",
            Tile(64, 128),
        ),
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 32, 4>>",
            Tile(128, None),
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1",
            Tile(128, None),
        ),
        ("void at::native::vectorized_elementwise_kernel<4, x>", None),
    ],
)
def test_tiles_in_names(name, expected):
    assert tile(name) == expected


def test_tiles_of_attention_are_queries_of_a_head():
    shape = "[[1, 5, 200, 64], [1, 5, 256, 64], [1, 5, 256, 64], [], []]"
    kinds = '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar", ""]'
    ops = pl.DataFrame(
        {
            "start_ns": [0],
            "dur_ns": [50],
            "name": ["aten::_scaled_dot_product_flash_attention"],
            "op_id": [1],
            "rank": [0],
            "thread": [1],
            "kind": ["op"],
            "shapes": [shape],
            "dtypes": [kinds],
            "torch_inputs": ['["", "", "", "0.", "False"]'],
        }
    )
    name = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>"
    kernels = pl.DataFrame(
        {
            "rank": [0, 0],
            "device": 0,
            "stream": 7,
            "start_ns": [100, 900000],
            "dur_ns": [200000, 10],
            "name": name,
            "op_id": [1, None],
            "grid_x": 2,
            "grid_y": 1,
            "grid_z": 5,
        }
    )
    row = analyze.operators(Trace({"kernels": kernels, "ops": ops}), device=DEVICE).row(
        0, named=True
    )
    # two tiles of 128 queries for each of five heads, on four multiprocessors
    assert (row["tile"], row["blocks"], row["turns"]) == ("128x64", 10, 3)
    assert row["padding_share"] is not None
    causal = ops.with_columns(torch_inputs=pl.lit('["", "", "", "0.", "True"]'))
    row = analyze.operators(Trace({"kernels": kernels, "ops": causal}), device=DEVICE).row(
        0, named=True
    )
    assert (row["tile"], row["turns"]) == (None, 3)


def test_operands_that_lie_in_different_orders():
    def cause(strides):
        ops = pl.DataFrame(
            {
                "start_ns": [0],
                "dur_ns": [50],
                "name": ["aten::add"],
                "op_id": [1],
                "rank": [0],
                "thread": [1],
                "kind": ["op"],
                "shapes": ["[[64, 64], [64, 64]]"],
                "dtypes": ['["float", "float"]'],
                "torch_strides": [strides],
            }
        )
        kernels = pl.DataFrame(
            {
                "rank": [0, 0],
                "device": 0,
                "stream": 7,
                "start_ns": [100, 900000],
                "dur_ns": [200000, 10],
                "name": "add",
                "op_id": [1, None],
                "grid_x": 64,
                "grid_y": 1,
                "grid_z": 1,
            }
        )
        return str(
            analyze.operators(Trace({"kernels": kernels, "ops": ops}), device=DEVICE)["cause"][0]
        )

    assert cause("[[64, 1], [1, 64]]") == "strides"
    assert (
        cause("[[1, 64], [1, 64]]")
        == cause("[[64, 1], [64, 1]]")
        == cause("[[64, 1], [0, 1]]")
        == "rest"
    )


def test_beside_another_recording_of_the_same_operators():
    def trace(kernel, ns):
        kernels = pl.DataFrame(
            {
                "rank": [0, 0],
                "device": 0,
                "stream": 7,
                "start_ns": [0, 50000],
                "dur_ns": [ns, ns],
                "name": kernel,
                "op_id": [1, 2],
            }
        )
        ops = pl.DataFrame(
            {
                "rank": [0, 0],
                "thread": 1,
                "start_ns": [0, 10],
                "dur_ns": [5, 5],
                "kind": "op",
                "name": "aten::mm",
                "op_id": [1, 2],
                "shapes": ["[[8, 8], [8, 8]]", "[[9, 8], [8, 8]]"],
                "dtypes": '["float", "float"]',
            }
        )
        return Trace({"kernels": kernels, "ops": ops})

    here, there = trace("mine", 700), trace("theirs", 500)
    there = Trace({**there.tables, "ops": there.ops.head(1), "kernels": there.kernels.head(1)})
    found = analyze.operators(here, other=there).sort("shapes")
    assert found.select("kernel", "other_kernel", "other_mean_ns", "delta_ns").rows() == [
        ("mine", "theirs", 500.0, 200.0),
        ("mine", None, None, None),
    ]
    assert "delta_ns" not in analyze.operators(here).columns
