"""The parts of a timing script that need no PyTorch."""

from types import SimpleNamespace

import pytest

from llmprof.run.workers.operators import (
    MadeTensor,
    call_times,
    fits_parameter,
    sequence_ends,
    timing_interval,
)


def test_ends_of_sequences():
    assert sequence_ends(193, 4, 64) == [0, 64, 128, 192, 193]
    assert sequence_ends(4, 4, 1) == [0, 1, 2, 3, 4]
    assert sequence_ends(10, 3, 0) == [0, 4, 7, 10]
    assert sequence_ends(5, 3, 64) == [0, 3, 4, 5]
    # the 95 % interval of 16 values lies between the 5th and the 13th: 8 -+ 0.98 * 4, rounded
    # outwards
    assert timing_interval([float(n) for n in range(16)]) == {
        "calls": 16,
        "median_ns": 7.5,
        "low_ns": 4.0,
        "high_ns": 12.0,
    }
    assert timing_interval([3.0]) == {"calls": 1, "median_ns": 3.0, "low_ns": 3.0, "high_ns": 3.0}
    assert timing_interval([]) == {"calls": 0}


def _event(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def test_kernels_belong_to_the_call_that_launched_them():
    events = [
        _event(
            "cuda_runtime", "cudaMemsetAsync", 1.0, 1.0, correlation=1
        ),  # a flush, before any call
        _event("gpu_memset", "Memset (Device)", 5.0, 60.0, tid=7, correlation=1),
        _event("user_annotation", "replay:cold:0", 10.0, 10.0),
        _event("cpu_op", "aten::mm", 11.0, 8.0),
        _event("cuda_runtime", "cudaLaunchKernel", 12.0, 1.0, correlation=2),
        _event("cuda_runtime", "cudaLaunchKernel", 14.0, 1.0, correlation=3),
        _event("kernel", "gemm", 70.0, 4.0, tid=7, correlation=2),
        _event("kernel", "split_k", 75.0, 1.5, tid=7, correlation=3),
        _event("cuda_runtime", "cudaMemsetAsync", 25.0, 1.0, correlation=4),
        _event("gpu_memset", "Memset (Device)", 80.0, 60.0, tid=7, correlation=4),
        _event("user_annotation", "replay:warm:0", 30.0, 10.0),
        _event("cuda_driver", "cuLaunchKernel", 32.0, 1.0, correlation=5),
        _event(
            "cuda_driver", "cuLaunchKernel", 33.0, 1.0, tid=2, correlation=6
        ),  # of another thread
        _event("kernel", "gemm", 150.0, 3.0, tid=7, correlation=5),
        _event("kernel", "other", 160.0, 9.0, tid=7, correlation=6),
        {"ph": "M", "name": "process_name"},
    ]
    found = call_times(events, "aten::mm", {"warm": None, "cold": None}, cuda=True)
    assert found["cold"]["times"] == [5_500.0]
    assert found["cold"]["kernels"] == {"gemm", "split_k"}
    assert found["cold"]["host"] == [8_000.0]
    assert found["warm"]["times"] == [3_000.0]


@pytest.mark.parametrize(
    ("given", "kind", "fits"),
    [
        (MadeTensor((1,), (1,), "float32"), "Tensor", True),
        (MadeTensor((1,), (1,), "float32"), "List[Tensor]", False),
        ([MadeTensor((1,), (1,), "float32")], "List[Tensor]", True),
        ([1, 2], "List[int]", True),
        (None, "Optional[Tensor]", True),
        (None, "Tensor", False),
        (True, "bool", True),
        (1, "bool", False),
        (1, "number", True),
        (0.5, "int", False),
        (0.5, "number", True),
        (1, "Tensor", False),
        ("auto", "str", True),
        ("auto", "int", False),
    ],
)
def test_forms_of_an_operator(given, kind, fits):
    assert (
        fits_parameter(given, SimpleNamespace(type=kind, has_default_value=lambda: False)) is fits
    )
