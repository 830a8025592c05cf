"""Predictions for two devices, which no measurement of the calibration was made on, beside what was
measured.

Measured on two H200 with NVLink: vLLM 0.26.0, bf16, CUDA graphs, random weights, tensor parallel
size 2; nine points of batch and context a model, two repeats. Qwen3-30B-A3B ran with expert
parallelism.
"""

from pathlib import Path

import polars as pl
import pytest

from llmprof import theory
from llmprof.theory import observations, read_steps

FOLDER = Path(__file__).with_name("several")


def predictions(name):
    steps = read_steps(FOLDER / f"{name}.json")
    assert set(steps["tp"]) == {2}
    assert set(theory.measured_steps("H200")["tp"]) == {1}
    return theory.calibrated("H200").predict(observations(steps))


@pytest.mark.parametrize(
    ("name", "decode", "prefill"),
    [
        ("Qwen3-8B_tp2", (0.01, 0.09), (3, 0.14, 0.20)),
        ("Qwen3-30B-A3B_tp2_ep", (0.07, 0.11), (2, 0.38, 0.43)),
    ],
)
def test_steps_on_two_devices(name, decode, prefill):
    errors = predictions(name).with_columns(pl.col("error").abs())
    for kind, (points, median, worst) in {"decode": (9, *decode), "prefill": prefill}.items():
        of_kind = errors.filter(kind=kind)["error"]
        assert of_kind.len() == points
        assert of_kind.median() < median
        assert of_kind.max() < worst


@pytest.mark.parametrize("name", ["Qwen3-8B_tp2", "Qwen3-30B-A3B_tp2_ep"])
def test_no_step_on_two_devices_is_faster_than_its_bound(name):
    assert predictions(name).filter(pl.col("measured_s") < pl.col("bound_s")).is_empty()
