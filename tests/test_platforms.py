import polars as pl
import pytest

from llmprof import platforms
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace


def runtime(*names: str) -> dict[str, pl.DataFrame]:
    return {
        "runtime": pl.DataFrame(
            {"rank": [0] * len(names), "thread": 1, "start_ns": 0, "dur_ns": 1, "name": names, "api": "runtime"}
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
    assert Trace(tables, meta).platform is platforms.PLATFORMS[name]


def test_what_was_not_captured_is_asked_for_in_the_words_of_the_platform():
    for device, said in (("Ascend910B3", "torch_npu"), ("AMD Instinct MI300X", "rocprofv3"), ("NVIDIA L4", "nsys")):
        trace = Trace({}, {"device": device})
        with pytest.raises(NotCapturedError) as caught:
            _ = trace.kernels
        assert said in str(caught.value)
