"""What was launched beside what was recorded."""

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import IncompleteError, LlmprofError
from tests.building import table_of

SAMPLES = ("torch_tp1_eager", "torch_pp2_eager", "nsys_tp2_cudagraph")
LOUD = ("high", "medium")


def without(trace, gone):
    """The trace without some events of the device."""
    tables = {name: trace[name] for name in trace.table_names if name != "collectives"}
    for name in ("kernels", "copies"):
        if name in tables:
            tables[name] = tables[name].filter(~gone)
    return llmprof.Trace({n: t for n, t in tables.items() if t.height}, meta=trace.meta)


def recorded(trace):
    """Launched and missing events by the row of coverage."""
    rows = analyze.coverage(trace).filter(kind="recorded")
    return {"launched": rows["count"].sum(), "missing": rows["missing_count"].sum()}


def loud_rules(trace):
    found = analyze.findings(trace)
    return set(found.filter(pl.col("severity").is_in(LOUD))["rule"])


@pytest.fixture(scope="module", params=SAMPLES)
def trace(request):
    return llmprof.sample(request.param)


def test_whole_recordings_lack_nothing(trace):
    assert recorded(trace)["missing"] == 0
    assert recorded(trace)["launched"] >= trace.kernels.height
    assert "incomplete" not in analyze.findings(trace)["rule"].to_list()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_any_share_that_is_gone_is_counted_and_gets_no_cause(trace, share):
    gone = pl.int_range(pl.len()).hash(seed=3) % 1000 < 1000 * share
    part = without(trace, gone)
    removed = sum(trace[n].height - part[n].height for n in ("kernels", "copies") if part.has(n))
    found = recorded(part)["missing"]
    # nodes of graphs are known from other replays, of which none may be left whole
    assert 0.5 * removed < found <= 1.02 * removed
    assert loud_rules(part) <= loud_rules(trace)
    assert analyze.findings(part)["rule"][0] == "incomplete"


@pytest.mark.parametrize(("start", "end"), [(0.0, 0.3), (0.4, 0.6)])
def test_a_stretch_of_time_that_is_gone_gets_no_cause(trace, start, end):
    kernels = trace.kernels
    first, last = kernels["start_ns"].min(), kernels["start_ns"].max()
    of = [first + share * (last - first) for share in (start, end)]
    part = without(trace, pl.col("start_ns").is_between(*of))
    assert loud_rules(part) <= loud_rules(trace)
    assert analyze.findings(part)["rule"][0] == "incomplete"


def test_a_rank_that_is_gone_gets_no_cause():
    trace = llmprof.sample("torch_pp2_eager")
    part = without(trace, pl.col("rank") == 1)
    assert recorded(part)["missing"] == trace.kernels.filter(rank=1).height
    assert loud_rules(part) <= loud_rules(trace)


def test_half_a_recording_is_not_compared():
    trace = llmprof.sample("torch_tp1_eager")
    half = without(trace, pl.int_range(pl.len()) % 2 == 0)
    for a, b in ((trace, half), (half, trace)):
        with pytest.raises(IncompleteError):
            analyze.diff(a, b)


def test_no_kernel_at_all_is_said():
    trace = llmprof.sample("torch_tp1_eager")
    with pytest.raises(LlmprofError):
        analyze.findings(without(trace, pl.lit(value=True)))


US = 1_000


def handmade(calls, kernels):
    """A trace of calls (name, start us, length us, correlation) and kernels (correlation, node)."""
    runtime = table_of(
        "rank process thread start_ns dur_ns name api correlation",
        [(0, 1, 1, start * US, dur * US, name, "runtime", key) for name, start, dur, key in calls],
    )
    keys = ["correlation", "graph_node"]
    device = pl.DataFrame(
        [(0, 0, 7, 500 * US + n * US, US, "k", key, node) for n, (key, node) in enumerate(kernels)],
        schema=["rank", "device", "stream", "start_ns", "dur_ns", "name", *keys],
        orient="row",
    )
    return llmprof.Trace({"runtime": runtime, "kernels": device})


def test_launches_are_counted_by_hand():
    # a call of the driver inside of the runtime's is no launch of its own
    calls = [("cudaLaunchKernel", 10 * n, 5, n) for n in range(1, 5)]
    calls += [("cuLaunchKernel", 21, 2, 99), ("cudaMemcpyAsync", 60, 5, 98)]
    trace = handmade(calls, [(1, None), (99, None)])
    assert recorded(trace) == {"launched": 4, "missing": 2}


def test_replays_are_measured_by_the_nodes_of_their_graph():
    calls = [("cudaGraphLaunch", 10 * n, 5, n) for n in (1, 2, 3)]
    nodes = [(1, 11), (1, 12), (1, 13), (2, 11), (2, 13), (3, 12)]
    assert recorded(handmade(calls, nodes)) == {"launched": 9, "missing": 3}


def test_what_a_graph_captures_is_not_launched():
    calls = [("cudaStreamBeginCapture", 5, 1, 50), ("cudaStreamEndCapture", 45, 1, 51)]
    calls += [("cudaLaunchKernel", 10 * n, 5, n) for n in (1, 2, 3, 5)]
    assert recorded(handmade(calls, [(5, None)])) == {"launched": 1, "missing": 0}


@pytest.mark.parametrize("labelled", [True, False])
def test_the_only_replay_of_a_step_is_as_long_as_that_of_others(labelled):
    """Of four replays of nine kernels the third has three left: as a step's only launch it lacks
    six, else it may be of another graph.
    """
    calls = [("cudaGraphLaunch", 100 * n, 5, n) for n in range(1, 5)]
    counts = {1: 9, 2: 9, 3: 3, 4: 9}
    runtime = table_of(
        "rank process thread start_ns dur_ns name api correlation",
        [(0, 1, 1, start * US, dur * US, name, "runtime", key) for name, start, dur, key in calls],
    )
    device = table_of(
        "rank device stream start_ns dur_ns name correlation",
        [
            (0, 0, 7, (100 * key + 10 + 5 * n) * US, US, f"k{n}", key)
            for key, count in counts.items()
            for n in range(count)
        ],
    )
    label = "execute_context_0(0)_generation_1(1)"
    marks = table_of(
        "rank process thread start_ns dur_ns name domain on_device",
        [
            (0, 1, 1, (100 * key - 5) * US, 95 * US, label, "user_annotation", False)
            for key in counts
        ],
    )
    tables = {"runtime": runtime, "kernels": device} | ({"markers": marks} if labelled else {})
    assert recorded(llmprof.Trace(tables))["missing"] == (6 if labelled else 0)
