"""Passes outside of steps: padding of data-parallel ranks."""

import polars as pl

from llmprof.analyze.passes import passes, with_passes
from llmprof.trace import Trace


def test_a_pass_of_padding_has_a_step_of_its_own_and_its_tokens(
    sample_trace,
):
    trace = sample_trace("torch_ep2_dp2_eager")
    found = passes(trace)
    assert found.select("rank", "step", "tokens").rows() == [(1, -1, 1)]
    events = with_passes(trace)
    inside = events.filter(step=-1)
    assert set(inside["layer"]) == set(range(48))
    assert found["start_ns"].item() == inside["start_ns"].min()
    # everything else is as it was
    plain = trace.events
    assert events.filter(pl.col("step").ne_missing(-1)).equals(
        plain[events["step"].ne_missing(-1).arg_true()]
    )


def test_part_of_a_pass_is_none(sample_trace):
    trace = sample_trace("torch_ep2_dp2_eager")
    begin = passes(trace)["start_ns"].item()
    late = pl.col("start_ns") > begin + 50_000_000
    cut = trace.kernels.filter((pl.col("rank") == 0) | (pl.col("start_ns") < begin) | late)
    assert passes(Trace(trace.tables | {"kernels": cut}, trace.meta)).is_empty()


def test_recordings_whose_kernels_are_all_in_steps_have_none(
    sample_trace,
):
    trace = sample_trace("torch_tp1_eager")
    assert passes(trace).is_empty()
    assert with_passes(trace).equals(trace.events)
