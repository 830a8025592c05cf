"""Call stacks: self time by hand, kernels under the operator that launched them, samples of the
CPU.
"""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.trace import Trace


def trace(ops, kernels=None):
    shared = {"rank": 0, "process": 1, "thread": 1}
    tables = {"ops": pl.DataFrame([{**shared, **op} for op in ops], infer_schema_length=None)}
    if kernels is not None:
        tables["kernels"] = pl.DataFrame(
            [{"rank": 0, "device": 0, "stream": 7, **k} for k in kernels]
        )
    return Trace(tables)


@pytest.fixture
def nested():
    """main 0-100 calls forward 10-60, which runs aten::mm 20-40 and aten::mm 45-50; each mm
    launches a kernel.
    """
    return trace(
        [
            {"start_ns": 0, "dur_ns": 100, "name": "main", "kind": "python"},
            {"start_ns": 10, "dur_ns": 50, "name": "forward", "kind": "python"},
            {"start_ns": 20, "dur_ns": 20, "name": "aten::mm", "kind": "op", "op_id": 1},
            {"start_ns": 45, "dur_ns": 5, "name": "aten::mm", "kind": "op", "op_id": 2},
        ],
        [
            {"start_ns": 200, "dur_ns": 30, "name": "gemm", "op_id": 1},
            {"start_ns": 240, "dur_ns": 10, "name": "gemm", "op_id": 2},
            {"start_ns": 260, "dur_ns": 10, "name": "lonely", "op_id": None},
        ],
    )


def test_host_time_is_each_frames_own(nested):
    found = analyze.stacks(nested)
    assert found.select(pl.col("stack").list.join(";"), "value", "unit", "count").rows() == [
        ("main", 50, "ns", 1),
        ("main;forward", 25, "ns", 1),
        ("main;forward;aten::mm", 25, "ns", 2),
    ]
    assert found["value"].sum() == 100
    found = analyze.stacks(nested, of="device")
    assert found.select(pl.col("stack").list.join(";"), "value", "count").rows() == [
        ("main;forward;aten::mm;gemm", 40, 2)
    ]


def test_two_spans_that_are_the_same_interval_keep_the_order_of_the_file():
    found = analyze.stacks(
        trace(
            [
                {"start_ns": 0, "dur_ns": 10, "name": "outer", "kind": "python"},
                {"start_ns": 0, "dur_ns": 10, "name": "inner", "kind": "python"},
            ]
        )
    )
    assert found["stack"].to_list() == [["outer", "inner"]]


def test_stacks_recorded_with_operators_are_continued_by_the_operators_inside():
    found = analyze.stacks(
        trace(
            [
                {
                    "start_ns": 0,
                    "dur_ns": 10,
                    "name": "aten::linear",
                    "kind": "op",
                    "ascend_stack": "m.py(3): f\nmain",
                },
                {"start_ns": 2, "dur_ns": 4, "name": "aclnnMm", "kind": "op", "ascend_stack": None},
                {
                    "start_ns": 20,
                    "dur_ns": 4,
                    "name": "aten::empty",
                    "kind": "op",
                    "ascend_stack": None,
                },
            ]
        )
    )
    assert found.select(pl.col("stack").list.join(";"), "value").rows() == [
        ("main;m.py(3): f;aten::linear", 6),
        ("main;m.py(3): f;aten::linear;aclnnMm", 4),
    ]


def test_what_was_not_recorded_is_said(sample_trace):
    with pytest.raises(NotCapturedError, match="with_stack=True"):
        analyze.stacks(sample_trace("torch_tp1_eager"))
    with pytest.raises(NotCapturedError, match="--sample"):
        analyze.stacks(sample_trace("nsys_tp1_layer_nvtx"), of="samples")
    with pytest.raises(AnalysisError, match="of='gpu'"):
        analyze.stacks(sample_trace("torch_tp1_eager"), of="gpu")
