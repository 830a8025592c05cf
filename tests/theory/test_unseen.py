"""Predictions for models that neither the calibration nor its form had seen, beside what was
measured afterwards.

Measured on one H200: vLLM 0.26.0, bf16, CUDA graphs, random weights; twelve points a model, two
repeats.
"""

from pathlib import Path

import polars as pl
import pytest

from llmprof import theory
from llmprof.theory import Observation, Plan, model_config, observations, read_steps, shape
from llmprof.theory.calibration import covered
from llmprof.theory.plan import decode

FILES = sorted(Path(__file__).with_name("unseen").glob("*.json"))


@pytest.fixture(scope="module")
def predictions():
    steps = pl.concat([read_steps(file) for file in FILES])
    assert set(steps["model"]).isdisjoint(theory.measured_steps("H200")["model"])
    return (
        theory.calibrated("H200").predict(observations(steps)).with_columns(pl.col("error").abs())
    )


def test_steps_of_unseen_models(predictions):
    errors = predictions.filter(kind="decode")["error"]
    assert len(errors) == 36
    assert errors.median() < 0.04
    assert errors.max() < 0.25
    errors = predictions.filter(kind="prefill")["error"]
    assert len(errors) == 13  # prompts that the engine read in several steps measure no prefill
    assert errors.median() < 0.04
    assert (errors < 0.25).sum() == 12


@pytest.fixture(scope="module")
def hybrids():
    """Decode steps of hybrids on H100s, beside the efficiencies of an H200 with the H100's peaks.

    Random weights send all tokens of Nemotron 3 Nano to the same six of its 32 experts.
    """
    steps = pl.read_csv(Path(__file__).with_name("unseen") / "hybrids_h100.csv")
    next_ = model_config("Qwen3-Next-80B-A3B") | {"num_experts": 128}
    granite = model_config("granite-4.0-h-small") | {"num_local_experts": 24}
    nemotron = model_config("NVIDIA-Nemotron-3-Nano-30B-A3B") | {"n_routed_experts": 6}
    shapes = {"Falcon-H1-7B-Base": shape("Falcon-H1-7B-Base"), "Qwen3-Next-128e": shape(next_)}
    shapes |= {"granite-4.0-h-24e": shape(granite), "nemotron-3-nano-32e": shape(nemotron)}
    found = [
        Observation(
            shapes[row["model"]],
            Plan(),
            decode(row["batch"], row["prompt"] + row["out"] / 2),
            "decode",
            row["decode_step_s"],
        )
        for row in steps.iter_rows(named=True)
    ]
    return theory.calibrated("H200").predict(found, "H100 SXM").with_columns(model=steps["model"])


def test_decode_steps_of_unseen_hybrids(hybrids):
    assert (hybrids["measured_s"] > hybrids["bound_s"]).all()
    errors = hybrids["error"].abs()
    assert (errors.len(), errors.median() < 0.06) == (32, True)
    expected = {
        "Qwen3-Next-128e": (0.02, 0.06),
        "Falcon-H1-7B-Base": (0.02, 0.03),
        "granite-4.0-h-24e": (0.06, 0.06),
        "nemotron-3-nano-32e": (0.09, 0.12),
    }
    for model, (median, worst) in expected.items():
        of_model = hybrids.filter(model=model)["error"].abs()
        assert of_model.median() < median
        assert of_model.max() < worst


def test_the_calibration_of_an_h100_covers_two_dense_models_and_predicts_one_from_the_other():
    steps = observations(theory.measured_steps("H100 SXM"))
    packaged = theory.calibrated("H100 SXM")
    assert packaged.covers == covered(steps)
    assert packaged.predict(steps).filter(kind="decode")["error"].abs().max() < 0.05
    seen = [one for one in steps if one.shape.name == "Qwen2.5-7B"]
    others = [one for one in steps if one.shape.name != "Qwen2.5-7B" and one.kind == "decode"]
    fit = theory.calibrate(seen, "H100 SXM", start=theory.calibrated("H200"))
    assert (len(seen), len(others)) == (19, 8)
    assert fit.predict(others)["error"].abs().max() < 0.09


def test_no_measured_step_is_faster_than_its_bound(predictions):
    assert predictions.filter(pl.col("measured_s") < pl.col("bound_s")).is_empty()
