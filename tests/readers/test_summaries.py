"""Profilers that write sums: nvprof, TensorRT, Triton Proton; by hand, and on real files."""

import json
import sqlite3
from contextlib import closing

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import analyze
from llmprof.errors import NotCapturedError, ReadError, TraceWarning, UnknownFormatError
from tests.readers.databases import as_view, in_other_case


@pytest.fixture
def real(shared):
    return shared / "real"


def write(tmp_path, text, name="file.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


SUMMARY = """==12== NVPROF is profiling process 12, command: ./app --token=secret
==12== Profiling result:
"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,%,ms,,us,us,ms,
"GPU activities",75.0,3.5,2,1750,1500,2,"void gemm<float, int>(float*)"
"GPU activities",25.0,1.0,1,1000,1000,1,"[CUDA memcpy HtoD]"
"API calls",100.0,9.0,4,2250,1,8,"cudaLaunchKernel"
"""
GPU_TRACE = """==12== Profiling result:
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Registers Per Thread","Static SMem",\
"Dynamic SMem","Size","Throughput","SrcMemType","DstMemType","Device","Context","Stream","Name","Correlation_ID"
ms,us,,,,,,,,KB,B,MB,GB/s,,,,,,,
1.5,2.25,,,,,,,,,,2.0,1.1,"Pinned","Device","Tesla V100 (1)","1","7","[CUDA memcpy HtoD]",3
2.0,4.5,80,2,1,128,1,1,32,1.0,512,,,,,"Tesla V100 (1)","1","14","void gemm<float, int>(float*) [12]",4
2.1,bad,80,2,1,128,1,1,32,1.0,512,,,,,"Tesla V100 (1)","1","14","lost",5
"""


def test_a_summary_by_hand(tmp_path):
    trace = llmprof.read(write(tmp_path, SUMMARY))
    assert trace.meta["format"] == "nvprof"
    assert trace.totals.select("kind", "name", "count", "total_ns", "min_ns", "max_ns").rows() == [
        ("kernel", "void gemm<float, int>(float*)", 2, 3_500_000, 1_500_000, 2_000_000),
        ("copy", "[CUDA memcpy HtoD]", 1, 1_000_000, 1_000_000, 1_000_000),
        ("call", "cudaLaunchKernel", 4, 9_000_000, 1_000, 8_000_000),
    ]
    found = analyze.totals(trace)
    assert found.filter(kind="kernel").select("category", "mean_ns", "share").row(0) == (
        "gemm",
        1_750_000,
        1.0,
    )
    with pytest.raises(NotCapturedError):
        _ = trace.kernels


def test_a_gpu_trace_by_hand(tmp_path):
    with pytest.warns(TraceWarning, match=r"1 row that could not be read"):
        trace = llmprof.read(write(tmp_path, GPU_TRACE))
    kernel = trace.kernels.row(0, named=True)
    assert (kernel["start_ns"], kernel["dur_ns"], kernel["device"], kernel["stream"]) == (
        500_000,
        4_500,
        1,
        14,
    )
    assert (kernel["grid_x"], kernel["block_x"], kernel["registers"], kernel["shared_bytes"]) == (
        80,
        128,
        32,
        1536,
    )
    assert kernel["name"] == "void gemm<float, int>(float*)"
    assert trace.copies.select("kind", "bytes", "src_kind", "dst_kind", "start_ns").rows() == [
        ("HtoD", 2 << 20, "pinned", "device", 0)
    ]
    assert trace.meta["device"] == "Tesla V100"
    assert analyze.kernels(trace)["total_ns"].sum() == 6_750


def test_the_real_summary_adds_up(real):
    found = analyze.totals(llmprof.read(real / "nvprof" / "jazz_nvprof.csv"))
    assert found["count"].sum() == 45 + 150 + 150 + 10
    assert found["total_ns"].sum() == 542_360_000 + 237_430_000 + 237_260_000 + 117_720_000
    assert found.filter(pl.col("name").str.starts_with("red_sor(float*, float*")).height == 1


def test_a_real_session(real):
    path = real / "nsys_odd" / "ncar_matrix_add.nvvp"
    with pytest.warns(TraceWarning, match=r"only numbers for 30 calls"):
        trace = llmprof.read(path)
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as file:
        start, end, correlation = file.execute(
            "SELECT start, end, correlationId FROM CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"
        ).fetchone()
        first = file.execute("SELECT min(start) FROM CUPTI_ACTIVITY_KIND_DRIVER").fetchone()[0]
        calls = file.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_DRIVER").fetchone()[0]
    kernel = trace.kernels.row(0, named=True)
    assert (kernel["start_ns"], kernel["dur_ns"]) == (start - first, end - start)
    assert trace.runtime.height == calls == 31
    assert trace.runtime.filter(correlation=correlation)["name"].to_list() == ["cuLaunchKernel"]
    assert trace.meta["device"] == "Tesla V100-SXM2-32GB"
    assert trace.meta["start_epoch_ns"] == first
    assert trace.sql("SELECT count(*) AS n FROM StringTable", on="file")["n"][0] == 6


@pytest.mark.filterwarnings("ignore:.*only numbers for 30 calls")
def test_a_session_in_another_case_or_with_a_view(real, tmp_path):
    path, kernels = (
        real / "nsys_odd" / "ncar_matrix_add.nvvp",
        "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
    )
    copy = tmp_path / "other.nvvp"
    copy.write_bytes(path.read_bytes())
    assert_frame_equal(llmprof.read(in_other_case(copy)).kernels, llmprof.read(path).kernels)
    as_view(copy, kernels.swapcase())
    with pytest.warns(TraceWarning, match=f"{kernels.swapcase()} is a view"):
        assert not llmprof.read(copy).has("kernels")


PROFILE = [
    {"count": 4},
    {"name": "conv", "timeMs": 2.5, "averageMs": 0.6, "medianMs": 0.5},
    {"name": "fc"},
]


def test_a_profile_of_layers_by_hand(tmp_path):
    (tmp_path / "net.graph.json").write_text(
        json.dumps({"Layers": [{"Name": "conv", "LayerType": "CaskConvolution"}]})
    )
    path = write(tmp_path, json.dumps(PROFILE), "net.profile.json")
    with pytest.warns(TraceWarning, match=r"1 entry without a name or a time"):
        trace = llmprof.read(path)
    assert trace.totals.select(
        "kind", "name", "scope", "count", "total_ns", "median_ns"
    ).rows() == [("layer", "conv", "CaskConvolution", 4, 2_500_000, 500_000)]


def test_the_real_profile_adds_up(real):
    path = real / "tensorrt" / "mobilenet.qat.onnx.engine.profile.json"
    entries = json.loads(path.read_text())
    trace = llmprof.read(path)
    assert trace.totals.height == len(entries) - 1 == 85
    assert trace.totals["count"].unique().to_list() == [4216]
    assert trace.totals["total_ns"].sum() == pytest.approx(
        1e6 * sum(e["timeMs"] for e in entries[1:]), rel=1e-9
    )
    share = analyze.totals(trace).filter(name="QuantizeLinear_2")["share"][0]
    assert 100 * share == pytest.approx(1.88608, rel=1e-4)  # as trtexec says
    assert trace.totals["scope"].null_count() < 85  # types from the file beside it


def test_a_description_of_layers_is_no_recording(real):
    with pytest.raises(
        UnknownFormatError, match=r"description of the layers.*NAME\.profile\.json beside"
    ):
        llmprof.read(real / "tensorrt" / "mobilenet.qat.onnx.engine.graph.json")


def node(name, metrics=None, children=()):
    return {
        "frame": {"name": name, "type": "function"},
        "metrics": metrics or {},
        "children": list(children),
    }


KERNEL = {
    "count": 10,
    "device_id": "1",
    "device_type": "CUDA",
    "time (ns)": 204800,
    "flops8": 1e11,
    "bytes": 1e8,
}
TREE = [
    node(
        "ROOT",
        {"count": 0, "time (ns)": 0},
        [
            node("step", {}, [node("gemm", KERNEL), node("odd", {"count": 1})]),
            node(
                "__proton_launch_metadata",
                {},
                [node("helper", {"time (ns)": 5, "count": 1, "device_id": "0"})],
            ),
        ],
    ),
    {"CUDA": {"1": {"arch": "90", "num_sms": 132}}},
]


def test_a_tree_of_proton_by_hand(tmp_path):
    with pytest.warns(TraceWarning, match=r"1 leaf node without a time"):
        trace = llmprof.read(write(tmp_path, json.dumps(TREE), "run.hatchet"))
    assert trace.totals.select(
        "device", "kind", "name", "scope", "count", "total_ns", "flops", "bytes"
    ).rows() == [
        (1, "kernel", "gemm", "step", 10, 204_800, 1e11, 1e8),
        (0, "range", "helper", "__proton_launch_metadata", 1, 5, None, None),
    ]
    found = analyze.totals(trace).filter(name="gemm").row(0, named=True)
    assert found["flop_per_s"] == pytest.approx(1e11 / 204.8e-6)
    assert found["bytes_per_s"] == pytest.approx(1e8 / 204.8e-6)
    assert trace.meta["device"] == "CUDA 90"


def test_the_real_profile_of_onnx_runtime_adds_up(real):
    (path,) = (real / "onnxruntime").glob("*.json")
    events = json.loads(path.read_text())
    trace = llmprof.read(path)
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    ran = trace.ops.filter(pl.col("name").str.ends_with("_kernel_time"))
    assert ran.height == len(nodes) > 100
    assert ran["dur_ns"].sum() == 1000 * sum(e["dur"] for e in nodes)
    with pytest.raises(NotCapturedError):
        _ = trace.kernels


HOSTILE = [
    ('[{"count": 4}, {"name": "conv", "timeMs": 1e400}]', "profile"),
    ('[{"count": 4}, {"name": 5, "timeMs": "x"}, 7, null]', "profile"),
    ('[{"startEnqMs": 1}, {"startEnqMs": null, "endComputeMs": 1e300}]', "times"),
    (json.dumps(TREE).replace("204800", "1e30"), "proton"),
    (json.dumps(TREE).replace('"ROOT"', "3"), "proton"),
    (SUMMARY.replace("3.5", "inf"), "summary"),
    (SUMMARY.replace('"Name"', '"Nam"'), "summary"),
    (GPU_TRACE.replace('"4"', "9" * 40), "trace"),
]


@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_hostile_values_cause_errors_of_ours_or_are_left_out(tmp_path):
    refused = []
    for number, (text, name) in enumerate(HOSTILE):
        (folder := tmp_path / str(number)).mkdir()
        try:
            trace = llmprof.read(write(folder, text, name))
        except ReadError:
            refused.append(number)
        else:
            kept = trace.tables.get(
                "totals", pl.DataFrame({"total_ns": []}, schema={"total_ns": pl.Int64})
            )
            assert kept["total_ns"].is_between(0, 2**62).all(), text
    assert refused == [6]
