"""Calibrations: what is fitted comes back, predictions carry their error, bad input is refused."""

import json

import pytest

from llmprof.errors import LlmprofError
from llmprof.theory import (
    Calibration,
    Observation,
    Plan,
    calibrate,
    calibrated,
    hardware,
    measured_steps,
    observations,
    read_calibration,
    read_steps,
    shape,
)
from llmprof.theory.calibration import PRIORS, covered
from llmprof.theory.plan import decode, prefill
from llmprof.theory.profiler import machine_for
from llmprof.theory.work import OperatorWork, step_operators

START = Calibration("H200", {name: value for name, (value, _) in PRIORS.items()})
H200 = hardware.device("H200")
FACTS = (
    "layers",
    "weights",
    "KV cache",
    "layout",
    "parameters",
    "requests",
    "new tokens",
    "tokens of a request",
)


def observed(name, batch, calibration, kind):
    """What a machine with the constants of a calibration would measure."""
    read = shape(name)
    seconds = calibration.step_s(read, batch, machine_for(read, H200, Plan()))
    return Observation(read, Plan(), batch, kind, seconds)


def test_time_of_a_projection_is_its_fixed_cost_and_the_soft_larger_of_its_parts():
    machine = machine_for(shape("Qwen2.5-7B"), H200, Plan())
    flat = Calibration("H200", START.values | {"linear_memory": 0.5, "linear_fixed_us": 3.0})
    # 2.4 GB at half of 4.8 TB/s
    one = OperatorWork("o_proj", "o_proj", weight_bytes=2.4e9)
    assert flat.operator_s(machine, one, prefill=False) == pytest.approx(3e-6 + 1e-3)
    both = OperatorWork(
        "o_proj", "o_proj", weight_bytes=2.4e9, flops=1e-3 * 989.5e12 * flat.values["linear_flops"]
    )
    assert flat.operator_s(machine, both, prefill=False) == pytest.approx(
        3e-6 + 1e-3 * 2 ** (1 / 4)
    )


def test_what_an_engine_launches_more_than_once_or_not_as_attention():
    machine = machine_for(shape("Qwen2.5-7B"), H200, Plan())
    flat = Calibration("H200", START.values | {"linear_fixed_us": 3.0, "elementwise_fixed_us": 2.0})
    # two products have two fixed costs: gated delta nets multiply with q, k, v, z, and then with b
    # and a
    assert flat.operator_s(
        machine, OperatorWork("in_proj", "in_proj", kernels=2), prefill=False
    ) == pytest.approx(6e-6)
    # the gate on the result of an attention is of its stage, but costs an elementwise kernel
    assert flat.operator_s(
        machine, OperatorWork("attention_gate", "attention"), prefill=False
    ) == pytest.approx(2e-6)
    step = step_operators(shape("Qwen3-Next-80B-A3B"), decode(1, 100), Plan())
    assert {one.kernels for one in step if one.stage == "in_proj"} == {2}
    assert sorted(
        one.kernels
        for one in step_operators(shape("Kimi-Linear-48B-A3B"), decode(1, 100), Plan())
        if one.stage == "in_proj" and one.layers > 1
    ) == [2, 6]


def test_a_fit_finds_the_machine_that_made_the_times():
    truth = Calibration(
        "H200", START.values | {"linear_memory": 0.7, "host_step_us": 2200.0, "linear_flops": 0.6}
    )
    points = [(1, 128), (8, 1024), (64, 1024), (256, 128)]
    made = [
        observed(name, decode(b, c), truth, "decode")
        for name in ("Qwen2.5-7B", "Qwen2.5-0.5B")
        for b, c in points
    ]
    made += [observed("Qwen2.5-7B", prefill(1, n), truth, "prefill") for n in (128, 1024, 4096)]
    found = calibrate(made, "H200", source="a made-up machine")
    assert found.values["linear_memory"] == pytest.approx(0.7, rel=0.06)
    assert found.values["host_step_us"] == pytest.approx(2200, rel=0.06)
    assert found.predict(made)["error"].abs().max() < 0.03
    # a model that was not in the fit
    other = [observed("Qwen3-8B", decode(b, c), truth, "decode") for b, c in points]
    assert found.predict(other)["error"].abs().max() < 0.05
    assert found.errors[0]["model"] == "Qwen2.5-7B"


def test_the_packages_calibration_predicts_above_the_bound():
    found = calibrated("NVIDIA H200")
    made = [
        observed(name, decode(8, 1024), found, "decode")
        for name in ("Qwen3-8B", "Llama-3.1-8B", "Mixtral-8x7B-v0.1")
    ]
    table = found.predict(made)
    assert (table["predicted_s"] > table["bound_s"]).all()
    assert found.source


def test_what_a_fit_has_not_seen_is_named():
    fitted = calibrated("H200")
    assert fitted.covers == covered(observations(measured_steps("H200")))
    assert fitted.outside(shape("Qwen3-8B"), Plan(), decode(64, 1024), prefill(8, 1024)) == ()
    plan = Plan(tp=8, expert_parallel=True, weights="fp8", kv_cache="fp8")
    reasons = fitted.outside(shape("DeepSeek-V3"), plan, decode(512, 9000), prefill(4, 9000))
    named = [next(word for word in FACTS if reason.startswith(word)) for reason in reasons]
    assert named == list(FACTS)
    assert "671,026,404,352 (fitted to 494,032,768 to 30,532,122,624)" in reasons[4]
    assert fitted.outside(shape("gemma-2-9b"), Plan(), decode(1, 128))[0].startswith(
        "layers sliding_attention"
    )
    assert fitted.outside(shape("Qwen3-8B"), Plan(pp=2), decode(1, 128)) == (
        "layout tp 1, pp 2 (fitted to tp 1)",
    )
    # a file that does not say what it was fitted to
    assert (
        len(Calibration("H200", fitted.values).outside(shape("Qwen3-8B"), Plan(), decode(1, 128)))
        == 1
    )


def test_calibrations_are_written_and_read(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(calibrated("H200").to_json())
    assert read_calibration(file) == calibrated("H200")
    file.write_text(
        json.dumps(json.loads(calibrated("H200").to_json()) | {"covers": {"layers": ["x"]}})
    )
    with pytest.raises(LlmprofError, match=r"mine\.json"):
        read_calibration(file)
    file.write_text(json.dumps({"values": {"linear_memory": 1}}))
    with pytest.raises(LlmprofError, match=r"mine\.json"):
        read_calibration(file)
    with pytest.raises(LlmprofError, match="cannot be read"):
        read_calibration(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: calibrate([], "H200"), "nothing to calibrate"),
        (
            lambda: calibrate(
                [Observation(shape("gpt2"), Plan(), decode(1, 10), "decode", 0.0)], "H200"
            ),
            "measured time is 0.0",
        ),
        (lambda: calibrated("T4"), "no calibration of T4"),
        (
            lambda: calibrate(
                [Observation(shape("gpt2"), Plan(), decode(1, 10), "stage", 1.0, "experts")], "H200"
            ),
            "no stage 'experts'",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(make, said):
    with pytest.raises(LlmprofError, match=said):
        make()


def test_measured_steps_are_read_with_their_spread(tmp_path):
    row = {
        "model": "Qwen2.5-7B",
        "tp": 1,
        "dtype": "bfloat16",
        "batch": 8,
        "prompt": 128,
        "out": 49,
    }
    rows = [
        row | {"decode_step_s": s, "prefill_last_s": 0.02, "rep": n}
        for n, s in enumerate((0.004, 0.005, 0.006))
    ]
    rows.append(
        row | {"batch": 256, "prompt": 1024, "decode_step_s": 0.01, "prefill_last_s": 1.0, "rep": 0}
    )
    file = tmp_path / "steps.json"
    file.write_text(json.dumps({"gpu": "NVIDIA H200", "rows": rows}))
    found = read_steps(file)
    # the prefill of 262,144 tokens takes many steps
    assert found.select("phase", "batch").rows() == [("decode", 8), ("decode", 256), ("prefill", 8)]
    assert found.row(0, named=True)["measured_s"] == 0.005
    assert found.row(0, named=True)["spread"] == pytest.approx(0.4)
    # a batch whose prompts were read in two steps (33.7 ms the longer one) measures no prefill
    two = row | {
        "decode_step_s": 0.004,
        "prefill_first_s": 0.0303,
        "prefill_last_s": 0.0337,
        "rep": 0,
    }
    together = two | {"prefill_first_s": 0.0335, "prefill_span_s": 0.0337}
    for repeats, measured in (
        ([two], []),
        ([together], [0.0337]),
        ([together | {"prefill_span_s": 0.05}], []),
    ):
        steps = tmp_path / "prefill.json"
        steps.write_text(json.dumps({"rows": repeats}))
        assert read_steps(steps).filter(phase="prefill")["measured_s"].to_list() == measured
    one = observations(found)[0]
    assert (one.requests, one.batch[0].context, one.seconds) == (8, 128 + 24.5, 0.005)
    assert one.weight == pytest.approx(1 / 17)
    file.write_text(json.dumps({"rows": [rows[0] | {"quant": "fp8"}]}))
    assert observations(read_steps(file))[0].plan.weights == "fp8"
    for text in ("{", "[]", '{"rows": [{"model": "x"}]}'):
        file.write_text(text)
        with pytest.raises(LlmprofError):
            read_steps(file)
