"""Parts of large recordings: groups of ranks that wait for no other rank, and how many ranks
each stands for.
"""

import polars as pl  # noqa: I001
import pytest
from llmprof.replay import part
from polars.testing import assert_frame_equal

import llmprof
from llmprof import analyze
from llmprof.analyze import critical_path, slack, what_if
from llmprof.replay.changes import balance
from llmprof.label.steps.steps import host_labels
from llmprof.replay.part import waiting_groups, replayed_part
from llmprof.replay.plan import recorded_periods
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, NORM, labels
from tests.analyze.test_replay import CALL, US, device, host, step_labels, two_ranks

EVENTS_OF_A_RANK = 6  # three kernels and their launches


def three_pairs(*, late=2, linked=False):
    """Ranks 0 and 1, 2 and 3, 4 and 5: the even rank of each pair waits for the odd one, that of
    one pair for longer.

    In the pair ``late`` everything of the odd rank, and what follows the all-reduce, comes 100 us
    later.
    """
    tables = {}
    for pair in range(3):
        more = 100 * US if pair == late else 0
        for name, frame in two_ranks().capture.recorded.items():
            odd = pl.col("rank") == 1
            waits = odd | (pl.col("start_ns") >= 96 * US)
            is_call = pl.lit("kind" in frame.columns or name == "kernels") & (
                pl.col("dur_ns") == 64 * US
            )
            moved = frame.with_columns(
                start_ns=pl.col("start_ns") + pl.when(waits).then(more).otherwise(0),
                dur_ns=pl.col("dur_ns") + pl.when(is_call & ~odd).then(more).otherwise(0),
                rank=(pl.col("rank") + 2 * pair).cast(pl.Int32),
            )
            if name == "collectives":
                ranks = f"{2 * pair},{2 * pair + 1}"
                moved = moved.with_columns(
                    group=pl.lit("all" if linked else f"tp{pair}"),
                    group_ranks=pl.lit(None if linked else ranks, dtype=pl.String),
                )
            tables.setdefault(name, []).append(moved)
    return Trace({name: pl.concat(frames) for name, frames in tables.items()}, {"world_size": 6})


@pytest.fixture
def small(monkeypatch):
    """More than 20 events are too many, for findings more than 12, those of one pair."""
    monkeypatch.setattr(part, "MAX_EVENTS", 20)
    monkeypatch.setattr(part, "MAX_FOR_FINDINGS", 2 * EVENTS_OF_A_RANK)


def test_ranks_that_wait_for_each_other_are_one_group():
    assert waiting_groups(three_pairs()) == [[0, 1], [2, 3], [4, 5]]
    alone = Trace({"kernels": two_ranks().kernels.filter(pl.col("rank") == 0)})
    assert waiting_groups(alone) == [[0]]


@pytest.mark.usefixtures("small")
def test_groups_from_the_middle_stand_for_the_others():
    chosen = replayed_part(three_pairs())
    assert chosen.trace.ranks == [2, 3]
    assert chosen.weights is not None
    assert chosen.weights.rows() == [(2, 3.0), (3, 3.0)]
    words = "only 2 of 6 ranks were replayed, which wait for no other rank, since there are more than 20 events"
    assert chosen.words == words
    assert what_if(three_pairs(), balance())["assumed"][0].endswith(words)


@pytest.mark.usefixtures("small")
def test_the_group_of_a_named_rank_stands_for_itself():
    chosen = replayed_part(three_pairs(), (5,))
    assert chosen.trace.ranks == [2, 3, 4, 5]
    assert chosen.weights is not None
    assert chosen.weights.rows() == [(2, 2.0), (3, 2.0), (4, 1.0), (5, 1.0)]


def ten_steps():
    """Steps of 40 us from end to end, with a kernel of 10 us each."""
    work = [(0, 7, 40 * n + 5, 10, NORM, n + 1) for n in range(10)]
    calls = [(0, 40 * n, 2, CALL, n + 1) for n in range(10)]
    marks = step_labels([40 * n for n in range(10)], 39)
    return Trace({"kernels": device(work), "runtime": host(calls), "markers": marks})


def test_a_step_whose_predecessor_was_cut_out_has_no_time_since_then():
    whole = ten_steps()
    some = whole.select(step=[1, 2, 5, 6, 9])
    assert what_if(some).select("steps", "recorded_ns").row(0) == (2, 40 * US)
    assert what_if(some.select(step=[0, 1, 3])).select("steps", "recorded_ns").row(0) == (
        1,
        40 * US,
    )
    # without a predecessor of any step they count from their own beginning on the device
    assert what_if(whole.select(step=[1, 5, 9])).select("steps", "recorded_ns").row(0) == (
        3,
        10 * US,
    )


def times_on_path(trace, rank=None):
    """Time of each step on the critical path, in us."""
    path = critical_path(trace, rank=rank)
    return (
        path.group_by("step").agg(pl.col("dur_ns").sum()).sort("step")["dur_ns"] // US
    ).to_list()


def check_path_has_the_time_of_replays(trace):
    """The pieces of the path up to the end of each step that counts in a replay, from the end of
    the step before, add up to that time.
    """
    counted = recorded_periods(trace).select("rank", "step", "block")
    ends = analyze.steps(trace).select("rank", "step", start="start_ns")
    work = trace.events.group_by("rank", "step").agg(
        end=(pl.col("start_ns") + pl.col("dur_ns")).max()
    )
    ends = counted.join(ends, on=["rank", "step"]).join(work, on=["rank", "step"])
    ends = ends.sort("rank", "step").with_columns(
        between=pl.col("end") - pl.col("end").shift(1).over("rank", "block")
    )
    for rank in trace.ranks:
        path = critical_path(trace, rank=rank).group_by("step").agg(pl.col("dur_ns").sum())
        both = ends.filter(pl.col("rank") == rank).join(path, on="step", how="left")
        both = both.drop_nulls("between")
        assert both["between"].to_list() == both["dur_ns"].to_list()


def test_the_path_and_the_slack_leave_out_the_time_of_steps_that_were_cut_out():
    """Steps of 40 us as above, whose kernel runs from 5 to 15 us: on the path the host, but in
    the last of a block.
    """
    some = ten_steps().select(step=[1, 2, 5, 6, 9])
    assert times_on_path(some) == [10, 40, 10, 40, 10]
    parts = (
        critical_path(some)
        .group_by("step", "part")
        .agg(pl.col("dur_ns").sum() // US)
        .sort("step", "dur_ns")
    )
    following = [("launch", 5), ("compute", 10), ("host", 25)]
    of_steps = [[("host", 10)], following, [("host", 10)], following, [("compute", 10)]]
    assert [(row[1], row[2]) for row in parts.rows()] == [
        part for step in of_steps for part in step
    ]
    assert slack(some, by="name").select("total_ns", "path_ns").row(0) == (50 * US, 30 * US)
    # a kernel ends at 15 us and the next one of its block begins at 45, after a gap of 1
    assert slack(some).select("slack_ns", "pace_slack_ns").rows() == [
        (0, n * US) for n in (29, 0, 29, 0, 0)
    ]
    # what precedes the cut begins with the recording, and what was cut at the beginning with its
    # own work
    assert times_on_path(ten_steps().select(step=[0, 1, 3])) == [15, 40, 10]
    assert times_on_path(ten_steps().select(step=[3, 4])) == [10, 40]
    assert times_on_path(ten_steps().select(step=[1, 2, 3, 6, 9]).select(step=[1, 2, 4])) == [
        10,
        40,
        10,
    ]
    for steps in ([1, 2, 5, 6, 9], [0, 1, 3], [3, 4], [1, 5, 9]):
        check_path_has_the_time_of_replays(ten_steps().select(step=steps))


def test_a_step_that_was_launched_before_the_end_of_what_was_cut_out_begins_with_its_own_work():
    """Steps of 40 us, launched every 10 us; beside each, work of 5 us on another stream that may
    end 34 us later.
    """
    work, calls = [], []
    for n in range(6):
        work += [(0, 7, 40 * n + 5, 40, GEMM, 2 * n + 1), (0, 8, 40 * n + 6, 5, NORM, 2 * n + 2)]
        calls += [(0, 10 * n, 2, CALL, 2 * n + 1), (0, 10 * n + 4, 2, CALL, 2 * n + 2)]
    marks = step_labels([10 * n for n in range(6)], 9)
    whole = Trace({"kernels": device(work), "runtime": host(calls), "markers": marks})
    some = whole.select(step=[1, 3])
    assert times_on_path(some) == [40, 40]
    check_path_has_the_time_of_replays(some)
    for each in (some, whole.select(step=[0, 2])):
        assert slack(each)["pace_slack_ns"].to_list() == [0, 34 * US, 0, 34 * US]


def test_the_path_of_several_ranks_leaves_out_what_was_cut_out():
    """Steps of 100 us: rank 1 launches 62 us after the begin of each, and rank 0 waits for it in
    an all-reduce.
    """
    tables = {"markers": [step_labels([100 * n for n in range(6)], 99, r) for r in (0, 1)]}
    for n in range(6):
        for name, frame in two_ranks().capture.recorded.items():
            later = [
                pl.col("start_ns") + 100 * n * US,
                *([pl.col("correlation") + 10 * n] if name != "collectives" else []),
            ]
            tables.setdefault(name, []).append(
                frame.with_columns(later).filter(pl.col("start_ns") % (100 * US) < 96 * US)
            )
    whole = Trace({name: pl.concat(frames) for name, frames in tables.items()}, {"world_size": 2})
    some = whole.select(step=[1, 2, 5])
    # from the first GEMM of any rank, at 10 us of the step, or of one, at 70, to 95
    assert times_on_path(some) == times_on_path(some, 0) == [85, 100, 85]
    assert times_on_path(some, 1) == [25, 100, 25]
    check_path_has_the_time_of_replays(some)
    # why rank 1 was late after a cut is not known; in the step between its host was, after its last
    # call at 166 us
    parts = (
        critical_path(some)
        .group_by("step", "part")
        .agg(pl.col("dur_ns").sum() // US)
        .sort("step", "dur_ns")
    )
    launched = {"device gap": 1, "transfer": 5, "launch": 8, "compute": 19}
    assert dict(parts.filter(step=1).drop("step").rows()) == launched | {"host": 67}
    assert dict(parts.filter(step=2).drop("step").rows()) == launched | {"unexplained": 52}


@pytest.mark.parametrize("name", ["torch_tp1_cudagraph", "torch_pp2_eager", "torch_tp4_eager_nccl"])
def test_the_path_of_a_part_of_a_sample_has_the_time_of_its_replays(name):
    check_path_has_the_time_of_replays(llmprof.sample(name).select(step=[3, 4, 5, 9, 10]))
    check_path_has_the_time_of_replays(llmprof.sample(name).select(step=[2, 6, 10]))


def test_cuts_are_those_of_each_rank():
    """Rank 1 does the same as rank 0, on a clock that is 1 ms ahead: the path stays on it."""
    one = ten_steps().capture.recorded
    moved = {"start_ns": pl.col("start_ns") + 1000 * US, "rank": pl.lit(1, dtype=pl.Int32)}
    both = Trace(
        {name: pl.concat([frame, frame.with_columns(**moved)]) for name, frame in one.items()}
    )
    assert times_on_path(both) == [15, *[40] * 9]
    some = both.select(step=[1, 2, 5])
    assert recorded_periods(some).select("rank", "step", "period_ns").rows() == [
        (0, 0, 40 * US),
        (1, 0, 40 * US),
    ]
    assert times_on_path(some) == times_on_path(some, 0) == times_on_path(some, 1) == [10, 40, 10]


def test_a_step_of_training_after_a_cut_does_not_begin_before_it():
    """The optimizer's step from 20 to 25 us ends each iteration of 40; one seems longer if
    others were cut out.
    """
    ends = labels([("Optimizer.step#Adam.step", (40 * n + 20) * US, 5 * US) for n in range(10)])
    some = Trace(ten_steps().capture.recorded | {"markers": ends}).select(step=[3, 4, 7, 8])
    assert recorded_periods(some).select("step", "period_ns").rows() == [(0, 40 * US), (2, 40 * US)]
    assert times_on_path(some) == [10, 40, 10, 40]


@pytest.mark.parametrize("name", ["torch_tp1_cudagraph", "torch_pp2_eager", "nsys_tp2_cudagraph"])
def test_steps_by_labels_of_the_host_are_those_by_the_work_on_the_device(name, monkeypatch):
    """Labels alone choose the same steps, with the same rows of all tables, as a look at all
    work.
    """
    monkeypatch.setattr(part, "MAX_FOR_FINDINGS", 100)
    monkeypatch.setattr(part, "ENOUGH", 3000)
    by_labels = replayed_part(llmprof.sample(name), ())
    monkeypatch.setattr(part, "host_labels", lambda _: None)
    by_work = replayed_part(llmprof.sample(name), ())
    assert by_labels.words
    assert by_labels.words == by_work.words
    assert by_labels.trace.meta == by_work.trace.meta
    assert all(
        by_labels.trace.capture.recorded[of].equals(frame)
        for of, frame in by_work.trace.capture.recorded.items()
    )
    for mine, other in ((by_labels.numbers, by_work.numbers), (by_labels.steps, by_work.steps)):
        assert mine is not None
        assert other is not None
        assert_frame_equal(mine, other, check_row_order=False)


def test_an_empty_step_counts_among_the_steps_if_it_worked_on_the_device():
    """Two steps without requests: one launches a kernel, the other only asks for memory."""
    calls = [(0, 10, 2, CALL, 1), (0, 40, 2, CALL, 2), (0, 80, 2, "cudaMalloc", 3)]
    marks = step_labels([0, 30, 70], 29).with_columns(
        name=pl.Series(
            ["execute_context_0(0)_generation_1(1)", *["execute_context_0(0)_generation_0(0)"] * 2]
        )
    )
    work = [(0, 7, 15, 10, NORM, 1), (0, 7, 45, 10, NORM, 2)]
    labels = host_labels(Trace({"kernels": device(work), "runtime": host(calls), "markers": marks}))
    assert labels is not None
    assert labels["worked"].to_list() == [True, True, False]
