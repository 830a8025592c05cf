"""Charts of a trace are those of the frame that its analysis makes."""

import polars as pl
import pytest

from llmprof import Trace, analyze, charts
from llmprof.errors import AnalysisError, ArgumentError, NotCapturedError
from llmprof.trace import schema
from tests.charts import specs

FRAMES = {
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
def test_a_trace_is_drawn_as_the_frame_of_its_analysis(name, sample_trace):
    trace = sample_trace("torch_tp4_eager_nccl").select(step=[2, 3])
    chart = getattr(charts, name)
    assert chart(trace).to_dict(validate=False) == chart(FRAMES[name](trace)).to_dict(
        validate=False
    )


def test_two_traces_are_drawn_as_their_difference(sample_trace):
    a, b = (sample_trace(f"torch_tp4_eager_{name}") for name in ("nccl", "custom_allreduce"))
    frame = analyze.diff(a, b)
    for chart in (charts.diff, charts.diff_waterfall):
        assert chart(a, b).to_dict(validate=False) == chart(frame).to_dict(validate=False)
    with pytest.raises(ArgumentError):
        charts.diff(a)


def test_a_timeline_has_the_events_of_its_labels(sample_trace):
    trace = sample_trace("torch_tp4_eager_nccl")
    drawn = specs.rows(charts.timeline(trace, rank=0, step=4, layer=[5, 6]), "rect", "dur_ns")
    rows = trace.events.filter(pl.col("layer").is_in([5, 6]), rank=0, step=4)
    assert sorted(row["dur_ns"] for row in drawn) == rows["dur_ns"].sort().to_list()
    for wrong in ({"step": 99}, {"layer": [5, 99]}, {"phase": "warm-up"}):
        with pytest.raises(AnalysisError, match=next(iter(wrong))):
            charts.timeline(trace, **wrong)


def test_what_was_not_recorded_is_not_drawn():
    with pytest.raises(AnalysisError, match="none in this recording"):
        charts.kernels(Trace({"kernels": schema.empty("kernels")}))
    with pytest.raises(NotCapturedError):
        charts.memory(Trace({"kernels": schema.empty("kernels")}))


def test_the_frame_says_which_picture_of_a_question_is_drawn():
    names = {column: charts.memory(frame) for column, frame in held().items()}
    assert specs.rows(names["holder"], "bar", "blocks")
    assert specs.rows(names["time"], "area", "allocated")
    with pytest.raises(AnalysisError, match="blocks"):
        charts.memory(held()["holder"].drop("blocks"))


def held():
    """Rows as ``analyze.memory`` returns them, over time and of the holders."""
    place = {"rank": [0, 0], "device": [0, 0]}
    size = {"allocated_bytes": [1 << 20, 3 << 20], "reserved_bytes": [4 << 20, 4 << 20]}
    return {
        "time": pl.DataFrame({**place, "time_ns": [0, 5_000], **size}),
        "holder": pl.DataFrame(
            {
                "part": ["weights", "unknown"],
                "holder": ["a", "b"],
                "bytes": [9, 1],
                "blocks": [3, 1],
            }
        ),
    }
