import polars as pl
import pytest

from llmprof.analyze import layer_gaps
from llmprof.errors import AnalysisError
from llmprof.trace import Trace
from tests.analyze.builders import ALL_REDUCE, DENSE, forward, kernels, labels, launches


def trace_of(run):
    return Trace(
        {
            "kernels": run,
            "runtime": launches(run),
            "markers": labels([("execute_new_0_cached_4", -50, 10)]),
        }
    )


def slow(names, at, dur):
    return [(name, dur) if n == at else name for n, name in enumerate(names)]


def test_the_gap_is_to_the_median_layer_of_the_step():
    # five layers of ten kernels of 10 ns; the attention of layer 3 (place 2 + 3 * 10 + 4) takes 40
    # ns instead
    found = layer_gaps(trace_of(kernels(slow(forward(5), 36, 40))))
    assert found["dur_ns"].to_list() == [100, 100, 100, 130, 100]
    assert found["typical_ns"].to_list() == [100.0] * 5
    assert found["gap_ns"].to_list() == [0, 0, 0, 30, 0]
    assert found["outlier"].to_list() == [False, False, False, True, False]
    assert found.select("rank", "step", "phase", "layer", "start_ns", "end_ns").row(3) == (
        0,
        0,
        "decode",
        3,
        320,
        450,
    )
    with pytest.raises(
        AnalysisError, match="measure='speed' is not known; expected 'dur_ns' or 'busy_ns'"
    ):
        layer_gaps(trace_of(kernels(forward(2))), measure="speed")


def test_one_stage_adds_up_its_occurrences():
    found = layer_gaps(trace_of(kernels(forward(3), pause=2)), stage="norm")
    assert found["dur_ns"].to_list() == [20, 20, 20]
    # from the first norm of the layer to the end of the second, 6 kernels of 12 ns later
    assert (found["end_ns"] - found["start_ns"]).to_list() == [82, 82, 82]
    assert layer_gaps(trace_of(kernels(forward(3))), stage="experts").is_empty()


def test_communication_beside_compute_of_another_layer_is_hidden():
    # layer 0 ends with an all-reduce of 30 ns, of which the last 10 lie beside the first kernel of
    # layer 1
    run = kernels(forward(2, [*DENSE[:-1], DENSE[-1], (ALL_REDUCE, 30)]))
    later = pl.col("start_ns") >= 150
    run = run.with_columns(
        start_ns=pl.when(later).then(pl.col("start_ns") - 10).otherwise("start_ns")
    )
    found = layer_gaps(trace_of(run))
    assert found["communication_ns"].to_list() == [30, 30]
    assert found["exposed_communication_ns"].to_list() == [20, 30]
    exposed = layer_gaps(trace_of(run), measure="exposed_communication_ns")
    assert exposed["typical_ns"].to_list() == [25.0, 25.0]
    assert exposed["gap_ns"].to_list() == [-5.0, 5.0]
