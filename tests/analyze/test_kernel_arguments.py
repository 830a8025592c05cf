"""Operators of recordings whose kernels have shapes of their own."""

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.analyze.kernel_arguments import of_kernels
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace

NAMES = ["aclnnMatmul_MatMulV3", "aclnnAdd_Add", "aclnnAdds_Add", "Custom", "hcom"]
SHAPES = {
    "ascend_op_type": ["MatMulV3", "Add", "Add", "Mine", None],
    "ascend_input_shapes": ["4,8;8,2", "4,2;", ";", "4,2", "N/A"],
    "ascend_input_dtypes": ["DT_BF16;DT_BF16", "FLOAT;DT_UNDEFINED", "FLOAT;FLOAT", "FLOAT", "N/A"],
    "ascend_output_shapes": ["4,2", "4,2", "", "4,2", "N/A"],
    "ascend_output_dtypes": ["DT_BF16", "FLOAT", "FLOAT", "FLOAT", "N/A"],
}


def kernels():
    frame = pl.DataFrame(
        {"name": NAMES, "start_ns": [0, 10, 20, 30, 40], "dur_ns": [5, 4, 3, 2, 1], **SHAPES}
    )
    return frame.with_columns(
        rank=0, device=0, stream=1, correlation=pl.col("start_ns"), op_id="start_ns"
    )


def ops(shapes):
    return pl.DataFrame(
        {
            "rank": 0,
            "thread": 1,
            "start_ns": [100 * n for n in range(3)],
            "dur_ns": 50,
            "name": ["aten::mm", "aten::add", "mine"],
            "kind": "op",
            "op_id": [0, 10, 20],
            "shapes": [shapes, None, None],
            "dtypes": [shapes and '["float", "float"]', None, None],
        },
        schema_overrides={"shapes": pl.String, "dtypes": pl.String},
    )


def test_a_kernel_is_a_call_by_its_own_shapes():
    trace = Trace({"kernels": kernels()})
    assert of_kernels(trace)["operator"].to_list() == [
        "cann::MatMulV3",
        "cann::Add",
        "cann::Add",
        None,
        None,
    ]
    found = analyze.operators(trace, device="Ascend 910B2").sort("total_ns", descending=True)
    assert found.select("operator", "kind", "flops", "read_bytes", "written_bytes").rows()[:2] == [
        ("cann::MatMulV3", "gemm", 128.0, 96.0, 16.0),
        ("cann::Add", "elementwise", None, 32.0, 32.0),
    ]
    assert found["source"][0] == "shapes of the kernel"
    assert found["bound_ns"].is_null().to_list() == [False, False, True, True, True]
    bare = Trace({"kernels": kernels().select(pl.exclude("^ascend_.*$"))})
    with pytest.raises(NotCapturedError):
        analyze.operators(bare)


def test_shapes_of_an_operator_come_first():
    for shapes, called in (("[[4, 8], [8, 2]]", "aten::mm"), (None, "cann::MatMulV3")):
        found = analyze.operators(
            Trace({"kernels": kernels(), "ops": ops(shapes)}), device="Ascend 910B2"
        )
        product = found.filter(kernel="aclnnMatmul_MatMulV3")
        assert product.select("operator", "flops").row(0) == (called, 128.0)
        # what the kernel does not say either stays with its operator
        assert found.filter(kernel="aclnnAdds_Add")["operator"].item() in ("mine", "cann::Add")


@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_training_of_another_team_on_ascend(shared):
    folder = shared / "strangers/ascend/msinsight_st_level2"
    if not folder.exists():
        pytest.skip("other people's files")
    found = analyze.operators(llmprof.read(folder), device="Ascend 910B2")
    work = found.filter(pl.col("category").ne_missing("collective"))
    assert (
        work.filter(pl.col("bound_ns").is_not_null())["total_ns"].sum()
        > 0.98 * work["total_ns"].sum()
    )
    assert work.filter(kind="gemm")["bound_share"].is_between(0.2, 1).all()
    assert work.filter(pl.col("bound_share") > 1.05)["reason"].null_count() == 0
