"""Time of the steps by phase and part, with answers computed by hand."""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.analyze.step_times import step_windows
from llmprof.cli.info import _phases
from llmprof.errors import NotCapturedError
from llmprof.findings.facts import run_facts
from llmprof.label.steps.steps import steps_of
from llmprof.report import cards
from llmprof.trace import Trace
from llmprof.units import format_ns
from tests.analyze.builders import ALL_REDUCE, ATTENTION, GEMM, kernels, labels
from tests.samples import sample


def step(start, *, first, rank=0):
    """20 ns of compute, a pause of 5, and 10 ns of communication, twice; 20 ns of compute: 85 ns
    without an end.
    """
    names = [(GEMM, 20), (ALL_REDUCE, 10), (ATTENTION, 20), (ALL_REDUCE, 10), (GEMM, 20)]
    return kernels(names, start=start, pause=5, first=first, rank=rank)


@pytest.fixture
def trace():
    """A prefill and two decode steps on two ranks, and an empty step."""
    rows, marks = [], []
    for rank in range(2):
        for i, name in enumerate(
            ("execute_context_1(8)_generation_0(0)", *["execute_context_0(0)_generation_1(1)"] * 2)
        ):
            rows.append(step(1_000 * i + 10, first=100 * i + 1, rank=rank))
            marks.append(labels([(name, 1_000 * i, 200)], rank=rank, on_device=True))
        marks.append(
            labels([("execute_context_0(0)_generation_0(0)", 5_000, 10)], rank=rank, on_device=True)
        )
    return Trace({"kernels": pl.concat(rows), "markers": pl.concat(marks)}, {"world_size": 2})


def test_parts_add_up_to_the_steps(trace):
    frame = analyze.step_time(trace)
    assert frame.columns == ["phase", "part", "ns", "share", "steps", "ranks"]
    assert frame["phase"].unique(maintain_order=True).to_list() == ["decode", "prefill"]
    decode = dict(frame.filter(phase="decode").select("part", "ns").rows())
    # on both ranks a step of 1,000 ns until the next, and the last one until its last event
    assert sum(decode.values()) == 2 * (1_000 + 100)
    # 60 ns of compute and 20 of communication a step, 2 steps on 2 ranks
    assert decode["compute"] == 240
    assert decode["exposed communication"] == 80
    assert decode["hidden communication"] == decode["exposed copy"] == 0
    prefill = frame.filter(phase="prefill")
    assert prefill["share"].sum() == pytest.approx(1)
    assert prefill["steps"].unique().to_list() == [1]
    assert frame.filter(phase="decode")["steps"].unique().to_list() == [2]
    assert frame["ranks"].unique().to_list() == [2]
    with pytest.raises(NotCapturedError):
        analyze.step_time(
            Trace({"markers": labels([("execute_context_0(0)_generation_1(1)", 0, 9)])})
        )


def test_every_time_of_a_decode_step_comes_from_the_same_steps_by_its_own_definition():
    run = sample("torch_tp4_eager_nccl")
    ends = steps_of(run).drop_nulls("start_ns").sort("rank", "start_ns")
    windows = step_windows(run).filter(phase="decode")
    steady, whole = (analyze.steps(run, steady=steady) for steady in (True, False))
    decode = whole.filter(phase="decode")["dur_ns"]
    assert steady.join(whole, on=["rank", "step", "dur_ns"], how="semi").height == steady.height
    assert analyze.step_time(run).filter(phase="decode")["ns"].sum() == pytest.approx(
        decode.sum(), rel=1e-4
    )
    assert format_ns(steady["dur_ns"].mean()) == format_ns(
        windows.join(steady, on=["rank", "step"], how="semi")["dur_ns"].mean()
    )
    mean = format_ns(windows.join(steady, on=["rank", "step"], how="semi")["dur_ns"].mean())
    assert run_facts(run).row(by_predicate=pl.col("what") == "step time")[1] == mean
    # the same in a comparison, a prediction and the heat map of the ranks
    compared = analyze.diff(run, run, part="times").filter(level="step", phase="decode")["a_ns"]
    predicted = analyze.what_if(run).filter(phase="decode")["recorded_ns"]
    of_ranks = analyze.ranks(run, by="step").join(steady, on=["rank", "step"], how="semi")
    for one in (compared, predicted, of_ranks["dur_ns"]):
        assert one.mean() == pytest.approx(steady["dur_ns"].mean())
    # on the path from the last rank's end to the last rank's
    path = (
        analyze.critical_path(run)
        .filter(phase="decode")
        .group_by("step")
        .agg(pl.col("dur_ns").sum())
    )
    last = ends.group_by("step").agg(end=(pl.col("start_ns") + pl.col("dur_ns")).max()).sort("step")
    apart = last.with_columns(dur_ns=pl.col("end").diff()).join(
        path, on=["step", "dur_ns"], how="semi"
    )
    assert apart["step"].to_list() == sorted(path["step"])
    # from step to step: tables of the card and of `llmprof info`
    [row] = [row for table in (cards._steps(run),) for row in table.rows if row[0] == "decode"]
    assert row[1:] == ("10", *map(format_ns, (decode.mean(), decode.min(), decode.max())))
    told = _phases(run).filter(phase="decode").row(0)
    assert told[1:] == (10, decode.mean(), decode.min(), decode.max())
    # mean from step to step of all decode steps: theory; streams side by side count twice there
    joined = analyze.roofline(run, "Qwen2.5-7B").filter(phase="decode")
    assert joined["total_ns"].sum() / 40 == pytest.approx(windows["dur_ns"].mean(), rel=1e-3)


def test_a_share_of_a_finding_is_of_the_time_that_its_card_names():
    run = sample("torch_tp4_eager_nccl")
    every = step_windows(run)
    steady = every.join(analyze.steps(run, steady=True), on=["rank", "step"], how="semi")
    losses = analyze.findings(run).filter(pl.col("severity") != "info")
    assert losses["scope"][0] == "steady decode steps"
    for row in losses.iter_rows(named=True):
        steps = (
            steady
            if "steady" in row["scope"]
            else every.filter(phase=row["scope"].removesuffix(" steps"))
        )
        own = steps.filter(rank=3) if "of rank 3" in row["denominator"] else steps
        own = steps.filter(pl.col("rank") < 3) if "ranks 0, 1 and 2" in row["denominator"] else own
        assert row["share"] == pytest.approx(row["figure"] / own["dur_ns"].mean()), row[
            "denominator"
        ]
        assert format_ns(own["dur_ns"].mean()) in row["denominator"]


@pytest.mark.parametrize("decodes", [True, False])
def test_no_request_runs_after_a_step_of_an_instance_that_only_prefills(decodes):
    """Of rank 1 with 100 us of work every 1000 us, if rank 0 decodes what it prefilled."""
    prefill, decode = "execute_context_1(8)_generation_0(0)", "execute_context_0(0)_generation_1(1)"
    rows, marks = [], []
    for rank, name in enumerate((decode if decodes else prefill, prefill)):
        for n in range(5):
            start = 1_000_000 * n
            rows.append(kernels([(GEMM, 100_000)], start=start + 10, first=n + 1, rank=rank))
            marks.append(labels([(name, start, 200_000)], rank=rank, on_device=True))
    trace = Trace({"kernels": pl.concat(rows), "markers": pl.concat(marks)})
    found = step_windows(trace).filter(rank=1)["dur_ns"].head(4).to_list()
    assert found == [100_000 if decodes else 1_000_000] * 4
