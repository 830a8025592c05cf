import polars as pl
import pytest

from llmprof.errors import NotCapturedError
from llmprof.trace import Trace, platforms


def runtime(*names):
    return {
        "runtime": pl.DataFrame(
            {
                "rank": [0] * len(names),
                "thread": 1,
                "start_ns": 0,
                "dur_ns": 1,
                "name": names,
                "api": "runtime",
            }
        )
    }


@pytest.mark.parametrize(
    ("meta", "tables", "name"),
    [
        ({"device": "NVIDIA H200"}, {}, "nvidia"),
        ({"device": "AMD Instinct MI300X VF"}, {}, "amd"),
        ({"device": "Ascend910C (synthetic)"}, {}, "ascend"),
        ({"ranks": [{"rank": 0, "devices": ["Ascend910B"]}]}, {}, "ascend"),
        ({"versions": {"hip_runtime_version": 60443483}}, {}, "amd"),
        ({"versions": {"cuda_runtime_version": 13000, "cupti_version": 1}}, {}, "nvidia"),
        ({"ranks": [{"rank": 0, "backend": "hccl"}]}, {}, "ascend"),
        ({"format": "ascend"}, {}, "ascend"),
        ({"format": "xplane"}, {}, "xla"),
        ({"format": "xplane", "device": "NVIDIA A100"}, {}, "nvidia"),
        ({"device": "TPU v5 lite"}, {}, "xla"),
        ({"format": "chrome"}, runtime("hipMalloc", "hipLaunchKernel"), "amd"),
        ({"format": "chrome"}, runtime("cuLaunchKernelEx"), "nvidia"),
        ({"format": "chrome"}, runtime("aclrtMemcpy"), "ascend"),
        ({"format": "chrome"}, runtime("custom"), "unknown"),
        ({"format": "chrome"}, {}, "unknown"),
        ({"device": "some accelerator", "ranks": [{"devices": None}, "odd"]}, {}, "unknown"),
    ],
)
def test_platform_follows_from_what_a_trace_says(meta, tables, name):
    assert platforms.platform_of(meta, tables).name == name
    assert Trace(tables, meta).capture.platform is platforms.PLATFORMS[name]


def test_what_was_not_captured_is_asked_for_in_the_words_of_the_platform():
    for device, said in (
        ("Ascend910B3", "torch_npu"),
        ("AMD Instinct MI300X", "rocprofv3"),
        ("NVIDIA L4", "nsys"),
    ):
        trace = Trace({}, {"device": device})
        with pytest.raises(NotCapturedError) as caught:
            _ = trace.kernels
        assert said in str(caught.value)


def ops(*names, **columns):
    of_host = {"rank": 0, "process": 1, "thread": 1, "start_ns": 0, "dur_ns": 1, "kind": "op"}
    return pl.DataFrame({"name": list(names), **columns}).with_columns(
        **{k: pl.lit(v) for k, v in of_host.items()}
    )


@pytest.mark.parametrize(
    ("meta", "tables", "tool", "said", "not_said"),
    [
        ({"format": "nsys"}, {}, "nsys", ["nsys: -t cuda"], ["torch"]),
        (
            {"format": "chrome", "options": {"record_shapes": True}},
            {},
            "torch",
            ["ProfilerActivity.CUDA"],
            ["nsys"],
        ),
        (
            {"format": "chrome"},
            {"ops": ops("aten::mm")},
            "torch",
            ["ProfilerActivity.CUDA"],
            ["nsys"],
        ),
        (
            {"format": "chrome", "device": "AMD Instinct", "versions": {"hip_runtime_version": 1}},
            {},
            "torch",
            ["torch on ROCm"],
            ["rocprofv3"],
        ),
        (
            {"format": "chrome"},
            {"ops": ops("fc1_kernel_time", ort_op=["MatMul"])},
            platforms.ONNX_RUNTIME,
            ["ONNX Runtime"],
            ["torch", "nsys"],
        ),
        ({"format": "chrome"}, {"ops": ops("work", ort_op=[None])}, None, ["torch", "nsys"], []),
        ({"format": "folded"}, {}, None, ["torch", "nsys"], []),
    ],
)
def test_the_tool_that_wrote_a_recording_is_the_one_that_advice_is_for(
    meta, tables, tool, said, not_said
):
    trace = Trace(tables, meta)
    assert trace.capture.tool == tool
    advice = trace.capture.how_to_record("kernels")
    assert all(words in advice for words in said)
    assert not any(words in advice for words in not_said)


def test_advice_that_names_no_way_of_the_tool_is_given_whole():
    assert (
        platforms.of_tool("samples (nsys: -x; a monitor)", "torch")
        == "samples (nsys: -x; a monitor)"
    )
    assert (
        platforms.of_tool("events (torch: a; b=True; nsys: c), if any", "torch")
        == "events (torch: a; b=True), if any"
    )
    assert platforms.of_tool("activity", "nsys") == "activity"


def test_a_device_of_xla_is_recorded_by_jax():
    capture = Trace({}, {"format": "xplane"}).capture
    assert "jax.profiler" in capture.how_to_record("kernels")
    assert "torch" not in capture.how_to_record("ops") + capture.how_to_record("markers")
