"""Charts of a trace are those of the frame that its analysis makes."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from llmprof import Trace, analyze, charts
from llmprof.errors import AnalysisError, ArgumentError, NotCapturedError
from llmprof.trace import schema
from tests.charts import specs

FRAMES: dict[str, Callable[[Trace], pl.DataFrame]] = {
    "breakdown": lambda trace: trace.events,
    "collectives": analyze.collectives,
    "critical_path": analyze.critical_path,
    "idle": analyze.idle,
    "kernels": analyze.kernels,
    "launch_delay": analyze.launch_delay,
    "overlap": lambda trace: analyze.overlap(trace, waits=True),
    "timeline": lambda trace: trace.events,
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_trace_is_drawn_as_the_frame_of_its_analysis(
    name: str, sample_trace: Callable[[str], Trace]
) -> None:
    trace = sample_trace("torch_tp4_eager_nccl").select(step=[2, 3])
    chart: Callable[..., Any] = getattr(charts, name)
    assert chart(trace).to_dict(validate=False) == chart(FRAMES[name](trace)).to_dict(
        validate=False
    )


def test_two_traces_are_drawn_as_their_difference(sample_trace: Callable[[str], Trace]) -> None:
    a, b = (sample_trace(f"torch_tp4_eager_{name}") for name in ("nccl", "custom_allreduce"))
    frame = analyze.diff(a, b)
    for chart in (charts.diff, charts.diff_waterfall):
        assert chart(a, b).to_dict(validate=False) == chart(frame).to_dict(validate=False)
    with pytest.raises(ArgumentError):
        charts.diff(a)


def test_a_timeline_has_the_events_of_its_labels(sample_trace: Callable[[str], Trace]) -> None:
    trace = sample_trace("torch_tp4_eager_nccl")
    drawn = specs.rows(charts.timeline(trace, rank=0, step=4, layer=[5, 6]), "rect", "dur_ns")
    rows = trace.events.filter(pl.col("layer").is_in([5, 6]), rank=0, step=4)
    assert sorted(row["dur_ns"] for row in drawn) == rows["dur_ns"].sort().to_list()
    for wrong in ({"step": 99}, {"layer": [5, 99]}, {"phase": "warm-up"}):
        with pytest.raises(AnalysisError, match=next(iter(wrong))):
            charts.timeline(trace, **wrong)


def test_what_was_not_recorded_is_not_drawn() -> None:
    with pytest.raises(AnalysisError, match="no rows"):
        charts.kernels(Trace({"kernels": schema.empty("kernels")}))
    with pytest.raises(NotCapturedError):
        charts.memory(Trace({"kernels": schema.empty("kernels")}))
