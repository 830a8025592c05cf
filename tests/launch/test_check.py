from __future__ import annotations

import polars as pl
import pytest

from llmprof.errors import CaptureError
from llmprof.launch import ExperimentConfig
from llmprof.launch.run.failures import check
from llmprof.trace import Trace
from tests.analyze.builders import forward, kernels, labels, launches

STEP = "execute_context_0(0)_generation_4(4)"
CUDA = {"platform": "cuda"}


def config(**values) -> ExperimentConfig:
    return ExperimentConfig.from_dict({"model": "random:tiny"} | values)


def whole(ranks: int = 1, *, labelled: bool = True) -> Trace:
    """Two labelled steps of a small model on each rank."""
    parts, calls, marks = [], [], []
    for rank in range(ranks):
        for step in range(2):
            at = 100 + 1000 * step
            part = kernels(forward(2), start=at, rank=rank, first=1 + 100 * step)
            parts.append(part)
            calls.append(launches(part))
            marks.append(labels([(STEP, at - 20, 400)], rank=rank))
    tables = {"kernels": pl.concat(parts), "runtime": pl.concat(calls), "markers": pl.concat(marks)}
    return Trace(tables if labelled else {k: v for k, v in tables.items() if k != "markers"})


def test_a_whole_capture_is_described():
    found = check(whole(2), config(tensor_parallel_size=2), CUDA | {"stages": [{"name": "profiled", "dur_ns": 2000}]})
    kernels_of_a_rank = 2 * len(forward(2))
    assert found["ranks"] == {0: kernels_of_a_rank, 1: kernels_of_a_rank}
    assert found["events_are"] == "kernels"
    assert found["steps"] == {0: 2, 1: 2}
    assert found["steps_from"] == ["vllm"]
    assert found["step_share"] == {0: 1.0, 1: 1.0}
    # from the first label (80) to the end of the second (1080 + 400)
    assert found["window_share"] == pytest.approx(1400 / 2000)
    assert found["warnings"] == []


@pytest.mark.parametrize("mode", ["torch", "nsys"])
def test_a_missing_rank_is_an_error_with_its_cause(mode):
    with pytest.raises(
        CaptureError, match=r"kernels of ranks 0 and 1, but none of ranks 2 and 3; expected kernels of all 4 ranks"
    ) as caught:
        check(whole(2), config(tensor_parallel_size=4, profile_mode=mode), CUDA)
    assert caught.value.facts["missing"] == [2, 3]
    assert ("spawned" in caught.value.hint) is (mode == "nsys")


EMPTY = kernels([])


@pytest.mark.parametrize(
    ("tables", "mode", "found", "why"),
    [
        ({}, "nsys", "the capture is empty", "followed no process"),
        ({"kernels": EMPTY}, "nsys", "no kernels", "followed no process"),
        ({"kernels": EMPTY, "runtime": launches(kernels(["a"]))}, "nsys", "no kernels", "older than the driver"),
        ({"runtime": launches(kernels(["a"]))}, "torch", "empty: .*no device activity", "CUPTI"),
        ({"kernels": EMPTY}, "torch", "no kernels", "no step ran in the profiled window"),
    ],
)
def test_an_empty_capture_is_an_error_with_its_cause(tables, mode, found, why):
    with pytest.raises(CaptureError, match=found) as caught:
        check(Trace(tables), config(profile_mode=mode), CUDA)
    assert why in caught.value.hint


def test_a_run_on_a_gpu_with_operators_only_is_empty(sample_trace):
    with pytest.raises(CaptureError, match=r"no kernels.*CUPTI"):
        check(sample_trace("torch_cpu_tp2_layer_annotations"), config(tensor_parallel_size=2), CUDA)


def test_what_is_odd_is_a_warning():
    stages = [{"name": "profiled", "dur_ns": 20_000}]
    outside = kernels([("other", 5000)], start=0, first=900)
    trace = whole()
    trace = Trace({**trace.tables, "kernels": pl.concat([trace.kernels.select(outside.columns), outside])})
    found = check(trace, config(max_iterations=2), CUDA | {"stages": stages})
    assert len(found["warnings"]) == 2
    assert "of the time of rank 0 lies in steps" in found["warnings"][0]
    assert "% of the profiled time (max_iterations is 2)" in found["warnings"][1]


@pytest.mark.parametrize(
    ("name", "ranks", "mode"),
    [
        ("torch_tp1_cudagraph", 1, "torch"),
        ("torch_tp4_eager_nccl", 4, "torch"),
        ("torch_pp2_eager", 2, "torch"),
        ("nsys_tp2_cudagraph", 2, "nsys"),
        ("nsys_tp1_layer_nvtx", 1, "nsys"),
    ],
)
def test_real_captures_are_whole(sample_trace, name, ranks, mode):
    found = check(sample_trace(name), config(tensor_parallel_size=ranks, profile_mode=mode), CUDA)
    assert sorted(found["ranks"]) == list(range(ranks))
    assert found["steps_from"] == ["vllm"]
    assert min(found["step_share"].values()) > 0.9
    assert found["warnings"] == []
