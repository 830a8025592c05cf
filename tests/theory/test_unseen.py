"""Predictions for models that neither the calibration nor its form had seen, beside what was measured afterwards.

Measured on one H200: vLLM 0.26.0, bf16, CUDA graphs, random weights; twelve points a model, two repeats.
"""

from pathlib import Path

import polars as pl
import pytest

from llmprof import theory
from llmprof.theory.ranges import observations, read_steps

FILES = sorted(Path(__file__).with_name("unseen").glob("*.json"))


@pytest.fixture(scope="module")
def predictions() -> pl.DataFrame:
    steps = pl.concat([read_steps(file) for file in FILES])
    assert set(steps["model"]).isdisjoint(theory.measured_steps("H200")["model"])
    return theory.calibrated("H200").predict(observations(steps)).with_columns(pl.col("error").abs())


def test_decode_steps_of_unseen_models(predictions):
    errors = predictions.filter(kind="decode")["error"]
    assert len(errors) == 36
    assert errors.median() < 0.04
    assert errors.max() < 0.25


def test_prefills_of_unseen_models(predictions):
    errors = predictions.filter(kind="prefill")["error"]
    assert len(errors) == 13  # prompts that the engine read in several steps measure no prefill
    assert errors.median() < 0.04
    assert (errors < 0.25).sum() == 12


def test_no_measured_step_is_faster_than_its_bound(predictions):
    assert predictions.filter(pl.col("measured_s") < pl.col("bound_s")).is_empty()
