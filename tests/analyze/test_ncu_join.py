from pathlib import Path

import polars as pl
import pytest

from llmprof import Metrics, read_metrics
from llmprof.analyze import ncu
from llmprof.trace import Trace

SHARED = Path(__file__).parents[2] / ".." / "shared" / "captures"
needs_captures = pytest.mark.skipif(not SHARED.is_dir(), reason="the captures are not here")

NORM, GEMM, ACT, COMM = (
    "void ns::norm<(int)8, (bool)1>(T1 *)",
    "gemm_128x64",
    "void act<float>(T1 *)",
    "ncclAllReduce",
)
TORCH = {NORM: "void ns::norm<8, true>(float*)", ACT: "void act<float>(float*)"}
LAYER = [NORM, GEMM, ACT, GEMM, COMM]
SIZES = [f"{side}_{axis}" for side in ("grid", "block") for axis in "xyz"]


def timeline(names, *, grid=4, rank=0, device=0):
    rows = {
        "start_ns": range(0, 100 * len(names), 100),
        "name": [TORCH.get(name, name) for name in names],
    }
    sizes = {size: grid if size.endswith("x") else grid and 1 for size in SIZES}
    same = {"rank": rank, "device": device, "stream": 7, "dur_ns": 50, **sizes}
    return pl.DataFrame(rows | same, schema_overrides=dict.fromkeys(SIZES, pl.Int32))


def profiled(names, *, grid="(4, 1, 1)", process=1, first=0):
    rows = {"kernel_id": range(first, first + len(names)), "kernel_name": names}
    same = {
        "grid": grid,
        "block": grid,
        "metric": "gpu__time_duration.sum",
        "unit": "ns",
        "value": 75.0,
    }
    return pl.DataFrame(rows | same, schema_overrides={"grid": pl.String, "block": pl.String})


def joined(there, ours, **options):
    grid = options.pop("grid_there", 4)
    return ncu.join(
        Trace({"kernels": timeline(there, grid=grid)}), Metrics(profiled(ours, **options))
    )


def test_launches_are_matched_by_name_grid_block_and_order():
    found = joined([*LAYER, "other", *LAYER[:2]], [GEMM, ACT, GEMM])
    assert found["event"].to_list() == [1, 2, 3]
    assert found["kind"].to_list() == ["sequence"] * 3
    assert found["evidence"].to_list() == ["name, grid and block"] * 3
    assert found["confidence"].to_list() == [1.0] * 3
    assert found["count"].to_list() == [1] * 3
    assert found["ratio"].to_list() == [1.5] * 3
    assert found["name"].to_list() == [GEMM, TORCH[ACT], GEMM]


def test_a_filtered_profile_is_matched_among_the_kernels_it_has():
    found = joined(LAYER * 2, [GEMM] * 4)
    assert found["event"].to_list() == [1, 3, 6, 8]
    assert found["confidence"].to_list() == [1.0] * 4
    found = joined(LAYER * 2, [NORM, GEMM, ACT, "tuning_kernel", GEMM, NORM, GEMM, ACT])
    assert found["event"].to_list() == [0, 1, 2, None, 3, 5, 6, 7]
    assert found.row(3, named=True)["confidence"] == 0
    assert found.row(3, named=True)["count"] == 0
    assert found.row(3, named=True)["evidence"] is None


@pytest.mark.parametrize(
    ("names", "options", "agrees", "confidence"),
    [
        (["void act<int>(T1 *)"], {}, "function, grid and block", 0.9),
        ([ACT], {"grid": "(9, 1, 1)"}, "name", 0.4),
        ([ACT], {"grid": None}, "name", 0.7),
        ([ACT], {"grid_there": None}, "name", 0.7),
        (["void act<int>(T1 *)"], {"grid": "(9, 1, 1)"}, "function", 0.2),
    ],
)
def test_less_that_agrees_is_less_sure(names, options, agrees, confidence):
    found = joined(LAYER, names, **options)
    assert found["event"].to_list() == [2]
    assert found["evidence"].to_list() == [agrees]
    assert found["confidence"].to_list() == pytest.approx([confidence])


def test_the_rank_that_fits_best_is_taken_and_runs_are_matched_by_themselves():
    kernels = pl.concat([timeline(["a", "b", "c"]), timeline(["d", "e", "f"], rank=1, device=1)])
    metrics = pl.concat([profiled(["d", "e", "f"]), profiled(["a", "b", "c"], first=3)])
    launches = pl.DataFrame(
        {
            "kernel_id": range(6),
            "kernel_name": list("defabc"),
            "grid": ["(4, 1, 1)"] * 6,
            "block": ["(4, 1, 1)"] * 6,
            "run": [0] * 3 + [1] * 3,
            **dict.fromkeys(
                (
                    "stream",
                    "device",
                    "id",
                    "process",
                    "process_name",
                    "context",
                    "compute_capability",
                )
            ),
        }
    )
    found = ncu.join(Trace({"kernels": kernels}), Metrics(metrics, launches=launches))
    assert found["rank"].to_list() == [1, 1, 1, 0, 0, 0]
    assert found["event"].to_list() == [3, 4, 5, 0, 1, 2]


@needs_captures
def test_the_capture_joins_a_timeline_of_its_own_kernels():
    metrics = read_metrics(SHARED / "ncu_tp1_eager")
    own = metrics.kernels
    rows = pl.concat([own, own, own[:5]])
    kernels = rows.select(
        rank=pl.lit(0),
        start_ns=pl.int_range(pl.len()) * 1000,
        dur_ns=pl.col("dur_ns").cast(pl.Int64),
        name="kernel_name",
        **{size: size for size in SIZES},
    )
    found = ncu.join(Trace({"kernels": kernels}), metrics)
    assert found["event"].to_list() == list(range(24))
    assert found["count"].unique().to_list() == [2]
    assert found["ratio"].to_list() == pytest.approx([1.0] * 24, rel=1e-3)


STAGES = [
    "norm",
    "qkv_proj",
    "rope",
    "kv_cache_write",
    "attention",
    "attention",
    "o_proj",
    "norm",
    "gate_up_proj",
    "activation",
    "down_proj",
]


@needs_captures
@pytest.mark.parametrize("page", ["raw.csv", "details.csv", ""])
def test_the_capture_is_two_decoder_layers_named_with_their_stages(page):
    found = ncu.layers(read_metrics(SHARED / "ncu_tp1_eager" / page))
    assert found["stage"].to_list() == ["down_proj", *STAGES, *STAGES, "norm"]
    assert found["layer"].to_list() == [None, *[0] * 11, *[1] * 11, None]
    assert found["confidence"].to_list() == [0.5, *[1.0] * 22, 0.5]
