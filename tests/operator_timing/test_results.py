"""Comparison of operators alone with their recording, with answers by hand."""

import json
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import ReadError
from llmprof.run.operator_timing import compare_times, read_results


def _operators(recorded, *, low=None, high=None, kind="gemm", kernels=("gemm",)):
    return pl.DataFrame(
        {
            "key": ["k"],
            "operator": ["aten::mm"],
            "kind": [kind],
            "shapes": ["[[4, 8], [8, 2]]"],
            "count": [10],
            "median_ns": [float(recorded)],
            "low_ns": [low or int(recorded)],
            "high_ns": [high or int(recorded)],
            "host_median_ns": [20_000.0],
            "kernels": ["\n".join(kernels)],
        }
    )


def _results(kernels=("gemm",), device="NVIDIA H200", spread=0.0, **times):
    modes = {
        mode: {
            "profiler": {
                "calls": 9,
                "median_ns": t,
                "low_ns": t * (1 - spread),
                "high_ns": t * (1 + spread),
            }
        }
        for mode, t in times.items()
    }
    row = {"key": "k", "operator": "aten::mm", "modes": modes, "kernels": list(kernels)}
    return {"device": device, "cuda": True, "operators": [row]}


@pytest.mark.parametrize(
    ("recorded", "verdict", "words"),
    [
        (10_500, "the kernel", "alone it takes as long, with warm caches"),
        (15_000, "the kernel", "between the times alone"),
        (19_500, "the kernel", "alone it takes as long, with its weights in memory"),
        (21_900, "the kernel", "alone it takes as long, with cold caches"),
        (24_000, "its surroundings", "4.00 us more than alone in any way"),
        (7_000, "unknown", "3.00 us less than alone"),
    ],
)
def test_verdicts(recorded, verdict, words):
    times = {"warm": 10_000.0, "weights_cold": 19_000.0, "cold": 20_000.0}
    row = compare_times(_operators(recorded), _results(**times)).row(0, named=True)
    assert row["verdict"] == verdict
    assert words in row["words"]
    assert row["ratio"] == pytest.approx(recorded / 10_000)
    assert (row["weights_cold_ns"], row["same_kernels"], row["clock"]) == (19_000, True, "profiler")


def test_what_makes_it_unknown():
    def why(operators, results, device=None):
        row = compare_times(operators, results, device=device).row(0, named=True)
        assert row["verdict"] == "unknown"
        return row["words"]

    assert "other kernels ran" in why(
        _operators(10_000), _results(kernels=("other",), warm=10_000.0)
    )
    assert "in the recording varies" in why(
        _operators(10_000, low=5_000, high=15_000), _results(warm=10_000.0)
    )
    assert "alone varies" in why(_operators(10_000), _results(warm=10_000.0, spread=0.2))
    assert "recorded on A, run alone on B" in why(
        _operators(10_000), _results(device="B", warm=10_000.0), "A"
    )
    failed = {"device": "", "operators": [{"key": "k", "error": "RuntimeError: no"}]}
    assert "it did not run: RuntimeError: no" in why(_operators(10_000), failed)


def test_waiting_of_an_all_reduce():
    row = compare_times(_operators(90_000, kind="all_reduce"), _results(warm=10_000.0)).row(
        0, named=True
    )
    assert row["verdict"] == "its surroundings"
    assert "waits for the last one" in row["words"]
    results = _results(warm=10_000.0)
    results["operators"][0]["modes"]["warm"] = {
        "profiler": {"calls": 0},
        "clock": {"calls": 9, "median_ns": 11_000.0},
    }
    row = compare_times(_operators(11_000, kernels=()), results).row(0, named=True)
    assert (row["warm_ns"], row["clock"], row["verdict"]) == (11_000, "events", "the kernel")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "holds no results"),
        ('{"format": "llmprof operator replay", "version": 2}', "holds no results"),
        (
            '{"format": "llmprof operator replay", "version": 1, "operators": [1]}',
            "holds no operators",
        ),
    ],
)
def test_files_that_are_no_results(tmp_path, content, words):
    file = tmp_path / "results.json"
    file.write_text(content)
    with pytest.raises(ReadError, match=words):
        read_results(file)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ReadError, match="cannot be read"):
        read_results(tmp_path / "none.json")
    with pytest.raises(ReadError, match="no operator of this recording"):
        compare_times(_operators(1).with_columns(key=pl.lit("other")), _results(warm=1.0))


@pytest.mark.parametrize(
    "modes", [None, 3, {"warm": 3}, {"warm": {"profiler": {"median_ns": "1"}}}]
)
def test_values_that_are_no_times(tmp_path, modes):
    file = tmp_path / "results.json"
    found = {
        "format": "llmprof operator replay",
        "version": 1,
        "operators": [{"key": "k", "modes": modes}, {"key": 3}],
    }
    file.write_text(json.dumps(found))
    assert compare_times(_operators(10_000), read_results(file))["verdict"].to_list() == ["unknown"]
    file.write_text(
        json.dumps(found | {"operators": [{"key": 1e999}]}).replace("Infinity", "1e999")
    )
    with pytest.raises(ReadError):
        read_results(file)


def test_a_recording_run_alone_on_another_gpu_of_its_kind(shared):
    """Operators of one capture, run alone on an H200 (a real measurement)."""
    capture = shared / "captures" / "torch_tp1_eager"
    if not capture.exists():
        pytest.skip("no captures here")
    rows = analyze.operator_calls(llmprof.read(capture))
    found = compare_times(
        rows, read_results(Path(__file__).with_name("results_h200.json")), device="NVIDIA H200"
    )
    assert found.height == 28
    assert found.filter((found["ratio"] - 1).abs() <= 0.1).height == 8
    assert found.filter(found["verdict"] == "the kernel").height == 24
    longer = found.filter(found["verdict"] == "its surroundings")
    assert set(longer["operator"]) == {"_vllm_fa3_C::fwd", "aten::argmax"}
