"""Energy of the repeats of a run, with hand-computed answers."""

from __future__ import annotations

import polars as pl
import pytest

from llmprof.errors import NotCapturedError
from llmprof.launch.run.results import energy, energy_summary

S = 10**9
T0 = 1_700_000_000 * S


def samples(watts=(100.0, 300.0), step_s=0.5, until_s=20.0):
    rows = [
        (T0 + round(k * step_s * S), device, "gpu.energy", power * k * step_s)
        for k in range(int(until_s / step_s))
        for device, power in enumerate(watts)
    ]
    return pl.DataFrame(rows, schema=["time_ns", "device", "name", "value"], orient="row")


def worker(*stages):
    return {
        "stages": [
            {"name": n, "repeat": r, "start_ns": T0 + int(a * S), "dur_ns": int(d * S)} for n, r, a, d in stages
        ],
        "requests": [{"phase": n, "repeat": r, "output_tokens": 40} for n, r, *_ in stages for _ in range(2)],
    }


def test_joules_are_those_of_all_gpus_between_the_ends_of_a_repeat():
    found = energy(samples(), worker(("warmup", 0, 0.0, 1.0), ("plain", 0, 1.25, 4.0), ("plain", 1, 6.0, 2.0)))
    # 400 W for 4 s and for 2 s, 80 tokens each
    assert found["joules"].to_list() == pytest.approx([1600.0, 800.0])
    assert found["watts"].to_list() == pytest.approx([400.0, 400.0])
    assert found["joules_per_output_token"].to_list() == pytest.approx([20.0, 10.0])
    assert found["devices"].to_list() == [2, 2]
    assert found["samples"].to_list() == [8, 5]
    (of_phase,) = energy_summary(found)
    assert of_phase["joules_per_output_token"] == pytest.approx(15.0)
    # deviation 7.071, t(1) = 12.706: 12.706 * 7.071 / sqrt(2) = 63.53
    assert of_phase["ci95_high"] - of_phase["ci95_low"] == pytest.approx(2 * 63.53, rel=1e-3)


def test_a_repeat_that_is_too_short_for_the_counter_is_left_out():
    assert energy(samples(), worker(("plain", 0, 1.1, 0.6))).is_empty()


def test_without_a_counter_there_is_no_energy():
    with pytest.raises(NotCapturedError, match="no counter of energy"):
        energy(samples().with_columns(name=pl.lit("gpu.power")), worker())
