"""Chains of short kernels, on recordings written by hand and on real ones."""

import pytest

from llmprof import analyze
from llmprof.replay.fusion import _member_names, passed_bytes
from tests.operator_timing.recordings import MM, NORM, recorded

QUANTISE = {
    "Input Dims": [[4, 8], [4, 8], [1]],
    "Input type": ["c10::Float8_e4m3fn", "c10::BFloat16", "float"],
}
_NORM = ("_C::rms_norm", NORM, [("rms_norm_kernel", 2.0)])
_QUANTISE = ("_C::static_scaled_fp8_quant", QUANTISE, [("quant_kernel", 1.0)])
_GEMM = ("aten::mm", MM, [("gemm", 30.0)])


def test_norm_and_quantize(tmp_path):
    found = analyze.fusion(recorded(tmp_path, [_NORM, _QUANTISE, _GEMM] * 5))
    assert found.height == 1
    row = found.row(0, named=True)
    assert (row["name"], row["category"]) == ("norm + quantize", "norm + quantize")
    assert row["kernels"] == "rms_norm_kernel\nquant_kernel"
    assert (row["length"], row["count"], row["saved_launches"]) == (2, 5, 5)
    # 2 + 1 us each; from 62 us of one call to 60 us of the next, 100 us later
    assert (row["total_ns"], row["gap_ns"]) == (15_000, 490_000)
    assert row["share"] == pytest.approx(3 / 33)
    # 4 x 8 numbers of two bytes, written once and read once
    assert row["saved_bytes"] == 5 * 2 * 64
    assert 0 <= row["gain_low_ns"] <= row["gain_ns"] <= row["gain_high_ns"] <= row["recorded_ns"]
    assert row["gain_ns"] > 0


def test_what_is_no_chain(tmp_path):
    calls = [_NORM, _QUANTISE, _GEMM] * 5 + [_NORM, _GEMM]  # five of six
    assert analyze.fusion(recorded(tmp_path, calls)).is_empty()
    long = ("_C::static_scaled_fp8_quant", QUANTISE, [("quant_kernel", 39.0)])
    trace = recorded(tmp_path, [_NORM, long, _GEMM] * 5)
    assert analyze.fusion(trace).is_empty()
    assert analyze.fusion(trace, max_ns=40_000, predict=0).height == 1
    mine = ("mine::op", {}, [("mine_kernel", 1.0)])
    assert analyze.fusion(recorded(tmp_path, [_NORM, mine, _QUANTISE, _GEMM] * 5)).is_empty()


def test_only_a_whole_chain_has_a_name():
    assert [_member_names(letters) for letters in ("nq", "Rn", "rk", "nnr", "aq", "ecf")] == [
        "norm + quantize",
        "all-reduce + norm",
        "RoPE + KV write",
        "QK norm + RoPE",
        "activation + quantize",
        "elementwise and reductions",
    ]
    assert [_member_names(letters) for letters in ("cnq", "nqk", "mm", "nd", "n")] == [None] * 5


def test_bytes_between():
    assert passed_bytes(None, None, "[[4, 8]]", '["float"]') is None
    assert passed_bytes("[[4, 8]]", '["float"]', "[[8, 4]]", '["float"]') is None
    assert passed_bytes("[[4, 8]]", '["long int"]', "[[4, 8]]", '["long int"]') is None
    two = "[[4, 8], [2, 8]]"
    assert passed_bytes(two, '["float", "float"]', two, '["float", "float"]') is None
    assert passed_bytes("{", "[", "[[4, 8]]", '["float"]') is None
    assert passed_bytes("[[-4, 8]]", '["float"]', "[[-4, 8]]", '["float"]') is None


def test_all_reduces_and_norms_of_a_capture(sample_trace):
    found = analyze.fusion(sample_trace("torch_tp4_eager_custom_allreduce"), predict=1)
    first = found.row(0, named=True)
    assert (first["phase"], first["name"], first["per_step"]) == (
        "decode",
        "all-reduce + norm",
        55,
    )
    assert "RoPE + KV write" in found["name"].to_list()
    assert found["gain_ns"].null_count() == found.height - 1
