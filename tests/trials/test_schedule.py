"""Other limits of a step: the scheduler played through, and the time of its steps by a
calibrated device.
"""

from types import SimpleNamespace

import polars as pl
import pytest

from llmprof import theory
from llmprof.run.launch import ExperimentConfig
from llmprof.run.trials import schedule
from llmprof.theory import Plan, Requests
from llmprof.theory.profiler import machine_for

FEWER = {"engine_args.max_num_seqs": 4}


def test_steps_are_those_of_the_scheduler():
    # two at once, eight tokens a step: 6 + 2 of 4, then one decodes beside the rest, then the
    # second alone
    first, second, third = schedule.scheduled_steps([(6, 2), (4, 2)], 2, 8)
    assert [(one.phase, one.count, one.query) for one in first] == [("prefill", 2, 4.0)]
    assert [(one.phase, one.count, one.query) for one in second] == [
        ("decode", 1, 1),
        ("prefill", 1, 2.0),
    ]
    assert [(one.phase, one.count) for one in third] == [("decode", 1)]


@pytest.mark.parametrize(("at_once", "chunk"), [(1, 7), (3, 16), (64, 8192)])
def test_all_tokens_are_read_and_generated_within_the_limits(at_once, chunk):
    lengths = [(5, 3), (40, 1), (17, 9), (1, 2)]
    read = generated = 0
    for step in schedule.scheduled_steps(lengths, at_once, chunk):
        tokens = {one.phase: one.count * one.query for one in step}
        assert sum(tokens.values()) <= chunk
        assert sum(one.count for one in step) <= at_once
        read += tokens.get("prefill", 0)
        generated += tokens.get("decode", 0)
    assert read == sum(prompt for prompt, _ in lengths)
    assert generated == sum(
        answer - 1 for _, answer in lengths
    )  # the first comes with the end of the prompt


def run(slower=(1.0, 0.0), **changes):
    """A run of eight requests on an H100, whose steps took what the calibration says, or times
    and plus something.
    """
    options = {"model": "random:Qwen2.5-7B", "eager": False, "batch_size": 8, "max_tokens": 33}
    options |= {"engine_args": {"max_num_seqs": 8, "max_num_batched_tokens": 2048}}
    config = ExperimentConfig.from_dict(options | changes)
    times, plus = slower
    wall = sum(
        times * step_s(batch) + plus for batch in schedule.scheduled_steps([(256, 33)] * 8, 8, 2048)
    )
    one = {
        "phase": "plain",
        "repeat": 0,
        "prompt_tokens": 256,
        "output_tokens": 33,
        "wall_ns": round(wall * 1e9),
    }
    worker = {"device_names": ["NVIDIA H100 80GB HBM3"]}
    return SimpleNamespace(config=config, worker=worker, requests=pl.DataFrame([one] * 8))


def step_s(batch):
    shape, device = theory.shape("Qwen2.5-7B"), theory.find_device("H100 SXM")
    return theory.calibrated(device).step_s(shape, batch, machine_for(shape, device, Plan()))


def test_fewer_at_once_take_more_steps_of_nearly_the_same_time():
    found = schedule.predict_gain(run(), FEWER)
    before, after = (
        sum(map(step_s, schedule.scheduled_steps([(256, 33)] * 8, at_once, 2048)))
        for at_once in (8, 4)
    )  # twice as many steps
    assert found["gain"] == pytest.approx(1 - after / before, rel=1e-6)
    assert found["low"] < found["gain"] < found["high"] < 0
    assert found["of"] == "33 steps that become 66"


def test_what_the_run_took_beside_its_steps_is_in_the_interval():
    exact = schedule.predict_gain(run(), FEWER)
    twice = schedule.predict_gain(run(slower=(2.0, 0.0)), FEWER)
    more = schedule.predict_gain(run(slower=(1.0, 0.05)), FEWER)  # 50 ms a step on the host
    assert twice["low"] < exact["gain"] < twice["high"]
    assert (
        more["low"] < -0.95 < exact["low"]
    )  # a fixed time of a step: twice the steps, nearly twice the time


def test_the_host_sets_the_pace_of_an_eager_run():
    found = schedule.predict_gain(run(slower=(1.0, 0.05), eager=True), FEWER)
    assert found["gain"] == pytest.approx(
        -1, abs=0.03
    )  # no step is shorter: twice the steps, twice the time
    assert found["high"] - found["low"] < 0.1


def test_contexts_are_rounded_so_that_neighbours_share_a_calculation():
    sizes = {
        one
        for step in schedule.scheduled_steps([(256, 33)] * 8, 8, 2048)
        for one in step
        if one.phase == "decode"
    }
    assert sizes == {Requests(8, 1, 288, "decode")}


@pytest.mark.parametrize(
    ("changes", "fields", "why"),
    [
        ({}, {"engine_args.kv_cache_dtype": "fp8"}, "more than the limits"),
        ({"tensor_parallel_size": 2}, FEWER, "one rank"),
        ({"engine_args": {"max_num_seqs": 8}}, FEWER, "max_num_batched_tokens"),
        ({"served": True, "server": {"request_rate": 3.0}}, FEWER, "own times"),
        ({"model": "random:tiny"}, FEWER, "does not cover"),
        ({"engine": "transformers"}, FEWER, "vLLM"),
        (
            {
                "engine_args": {
                    "max_num_seqs": 8,
                    "max_num_batched_tokens": 64,
                    "async_scheduling": True,
                }
            },
            FEWER,
            "async",
        ),
    ],
)
def test_what_is_not_calibrated_is_not_predicted(changes, fields, why):
    with pytest.raises(schedule.NoPredictionError, match=why):
        schedule.predict_gain(run(**changes), fields)
