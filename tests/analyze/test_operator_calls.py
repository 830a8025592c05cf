"""Which operators of a recording can be run alone, on recordings written by hand."""

import pytest

from llmprof import analyze
from llmprof.analyze.operator_arguments import BETWEEN, IN_GRAPH, NO_OPERATOR, NOT_LISTED
from llmprof.errors import NotCapturedError
from tests.operator_timing.recordings import MM, NORM, recorded


def test_times_of_calls(tmp_path):
    trace = recorded(
        tmp_path,
        [
            ("aten::mm", MM, [("gemm", 4.0), ("split_k", 1.0)]),
            ("aten::mm", MM, [("gemm", 6.0), ("split_k", 1.0)]),
            ("aten::mm", {**MM, "Input Dims": [[2, 8], [8, 2]]}, [("gemm", 3.0)]),
            ("_C::rms_norm", NORM, [("norm", 2.0)]),
            ("mine::secret", MM, [("mine", 5.0)]),
            ("", {}, [("triton_kernel", 7.0)]),
        ],
    )
    found = analyze.operator_calls(trace)
    assert found["total_ns"].to_list() == [12_000, 7_000, 5_000, 3_000, 2_000]
    assert found["share"].sum() == pytest.approx(1)
    first = found.row(0, named=True)
    # 5 and 7 us; the host took 50 us for each
    assert (
        first["operator"],
        first["count"],
        first["median_ns"],
        first["low_ns"],
        first["high_ns"],
    ) == (
        "aten::mm",
        2,
        6_000,
        5_000,
        7_000,
    )
    assert (first["kernels"], first["host_median_ns"], first["reason"]) == (
        "gemm\nsplit_k",
        50_000,
        None,
    )
    assert found["key"].drop_nulls().n_unique() == 3
    others = found.filter(found["key"].is_null())
    assert others["operator"].to_list() == [None, "mine::secret"]
    assert others["reason"].to_list() == [NO_OPERATOR, NOT_LISTED]


def test_strides_and_values_are_read(tmp_path):
    row = analyze.operator_calls(recorded(tmp_path, [("_C::rms_norm", NORM, [("norm", 2.0)])])).row(
        0, named=True
    )
    assert row["strides"] == "[[8, 1], [16, 1], [1], []]"
    assert row["arguments"] == '["", "", "", "1.0e-05"]'
    assert row["assumed"] is None


def test_copies_between_host_and_device(tmp_path):
    copy = {
        "Input Dims": [[4], [4], []],
        "Input type": ["int", "int", "Scalar"],
        "Concrete Inputs": ["", "", "True"],
    }
    row = analyze.operator_calls(
        recorded(tmp_path, [("aten::copy_", copy, [("Memcpy HtoD (Pinned -> Device)", 1.0)])])
    )
    assert row["reason"].to_list() == [BETWEEN]


def test_what_a_recording_does_not_hold(tmp_path, sample_trace):
    found = analyze.operator_calls(recorded(tmp_path, [("aten::mm", {}, [("gemm", 2.0)])]))
    assert found["key"].to_list() == [None]
    assert "record_shapes=True" in found["reason"][0]
    found = analyze.operator_calls(sample_trace("torch_tp1_cudagraph"))
    assert found.filter(found["reason"] == IN_GRAPH)["share"].sum() > 0.5
    with pytest.raises(NotCapturedError):
        analyze.operator_calls(sample_trace("nsys_tp2_cudagraph"))
