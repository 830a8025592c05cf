"""Synthetic runs: what was drawn is what an analysis finds."""

import pytest

import llmprof
from benchmarks.large import large_run, read_truth
from llmprof import analyze
from llmprof.errors import OutputError, ReadError
from tests.samples import sample


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic") / "run"
    return folder, large_run(folder, 8, ranks_per_node=2, late_share=1.0, seed=3)


@pytest.fixture(scope="module")
def trace(run):
    return llmprof.read(run[0], cache=False)


def test_the_truth_lies_beside_the_ranks_and_is_drawn_by_the_seed(run, tmp_path):
    folder, truth = run
    assert read_truth(folder) == truth
    assert truth.synthetic
    assert truth.late_rank(0) in range(4)
    assert truth.late_rank(1) in range(4, 8)
    assert truth.clock_ahead_ns[0] == truth.clock_ahead_ns[1] != truth.clock_ahead_ns[2]
    again = large_run(tmp_path / "again", 2, tensor_parallel=2, seed=3)
    other = large_run(tmp_path / "other", 2, tensor_parallel=2, seed=4)
    assert again.clock_ahead_ns == truth.clock_ahead_ns[:2] != other.clock_ahead_ns
    with pytest.raises(OutputError, match=r"exists and is not an empty folder"):
        large_run(folder, 2)
    with pytest.raises(ReadError, match=r"is not a synthetic run"):
        read_truth(tmp_path)


def test_clocks_late_ranks_and_waits_are_those_of_the_truth(run, trace):
    _, truth = run
    calls = analyze.collectives(trace)
    assert calls.height == 8 * truth.calls
    for rank in range(8):
        group = rank // 4
        own = calls.filter(rank=rank)
        late = truth.late_ns[truth.late_rank(group)]
        ahead = truth.clock_ahead_ns[rank] - truth.clock_ahead_ns[4 * group]
        assert own["clock_offset_ns"].unique().to_list() == [ahead]
        assert own["wait_ns"].unique().to_list() == [late - truth.late_ns[rank]]
        assert own["last_rank"].unique().to_list() == [truth.late_rank(group)]
        assert own["group"].unique().to_list() == [f"tp{group}"]
        assert own["evidence"].unique().to_list() == ["group"]
    base = analyze.collectives(sample("torch_tp4_eager_nccl")).filter(rank=3).sort("start_ns")
    first = calls.filter(rank=0).sort("start_ns")
    expected = (base["dur_ns"] * truth.slower[0]).round()
    assert (first["transfer_ns"] - expected).abs().max() <= 1
    assert first["bytes"].to_list() == base["bytes"].to_list()
