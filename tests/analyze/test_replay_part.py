"""Parts of large recordings: groups of ranks that wait for no other rank, and how many ranks each stands for."""

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof.analyze import findings, what_if
from llmprof.analyze.changes import balance
from llmprof.analyze.replay import part
from llmprof.analyze.replay.part import groups_of, replayed_part
from llmprof.analyze.steps.steps import host_labels
from llmprof.trace import Trace
from tests.analyze.builders import NORM
from tests.analyze.test_replay import CALL, US, device, host, step_labels, two_ranks

EVENTS_OF_A_RANK = 6  # three kernels and their launches


def three_pairs(*, late: int = 2, linked: bool = False) -> Trace:
    """Ranks 0 and 1, 2 and 3, 4 and 5: the even rank of each pair waits for the odd one, that of one pair for longer.

    In the pair ``late`` everything of the odd rank, and what follows the all-reduce, comes 100 us later.
    """
    tables: dict[str, list[pl.DataFrame]] = {}
    for pair in range(3):
        more = 100 * US if pair == late else 0
        for name, frame in two_ranks().recorded.items():
            odd = pl.col("rank") == 1
            waits = odd | (pl.col("start_ns") >= 96 * US)
            is_call = pl.lit("kind" in frame.columns or name == "kernels") & (pl.col("dur_ns") == 64 * US)
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
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 20 events are too many, for findings more than 12, those of one pair."""
    monkeypatch.setattr(part, "MOST_EVENTS", 20)
    monkeypatch.setattr(part, "MOST_FOR_FINDINGS", 2 * EVENTS_OF_A_RANK)


def test_ranks_that_wait_for_each_other_are_one_group() -> None:
    assert groups_of(three_pairs()) == [[0, 1], [2, 3], [4, 5]]
    alone = Trace({"kernels": two_ranks().kernels.filter(pl.col("rank") == 0)})
    assert groups_of(alone) == [[0]]


@pytest.mark.usefixtures("small")
def test_groups_from_the_middle_stand_for_the_others() -> None:
    chosen = replayed_part(three_pairs())
    assert chosen.trace.ranks == [2, 3]
    assert chosen.weights is not None
    assert chosen.weights.rows() == [(2, 3.0), (3, 3.0)]
    words = "only 2 of 6 ranks were replayed, which wait for no other rank, since there are more than 20 events"
    assert chosen.words == words
    assert what_if(three_pairs(), balance())["unknown"][0].endswith(words)


@pytest.mark.usefixtures("small")
def test_the_group_of_a_named_rank_stands_for_itself() -> None:
    chosen = replayed_part(three_pairs(), (5,))
    assert chosen.trace.ranks == [2, 3, 4, 5]
    assert chosen.weights is not None
    assert chosen.weights.rows() == [(2, 2.0), (3, 2.0), (4, 1.0), (5, 1.0)]


def test_gains_of_some_groups_are_those_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs are alike and findings name a rank of the third one: the weighted mean is that of all ranks."""
    columns = ["rule", "rank", "change", "predicted_ns", "predicted_low_ns", "predicted_high_ns"]
    whole = findings(three_pairs()).select(columns)
    assert whole.filter(pl.col("predicted_ns").is_not_null()).height
    monkeypatch.setattr(part, "MOST_FOR_FINDINGS", 2 * EVENTS_OF_A_RANK)
    some = findings(three_pairs())
    assert some.select(columns).equals(whole)
    assert some["prediction"].str.contains("ly 4 of 6 ranks were replayed").any()


def test_a_step_whose_predecessor_was_cut_out_has_no_time_since_then() -> None:
    """Steps of 40 us from end to end, with a kernel of 10 us each."""
    work = [(0, 7, 40 * n + 5, 10, NORM, n + 1) for n in range(10)]
    calls = [(0, 40 * n, 2, CALL, n + 1) for n in range(10)]
    marks = step_labels([40 * n for n in range(10)], 39)
    whole = Trace({"kernels": device(work), "runtime": host(calls), "markers": marks})
    some = whole.select(steps=[1, 2, 5, 6, 9])
    assert what_if(some).select("steps", "recorded_ns").row(0) == (2, 40 * US)
    assert what_if(some.select(steps=[0, 1, 3])).select("steps", "recorded_ns").row(0) == (1, 40 * US)
    # without a predecessor of any step they count from their own beginning on the device
    assert what_if(whole.select(steps=[1, 5, 9])).select("steps", "recorded_ns").row(0) == (3, 10 * US)


@pytest.mark.parametrize("name", ["torch_tp1_cudagraph", "torch_pp2_eager", "nsys_tp2_cudagraph"])
def test_steps_by_labels_of_the_host_are_those_by_the_work_on_the_device(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels alone choose the same steps, with the same rows of all tables, as a look at all work."""
    monkeypatch.setattr(part, "MOST_FOR_FINDINGS", 100)
    monkeypatch.setattr(part, "ENOUGH", 3000)
    by_labels = replayed_part(llmprof.sample(name), ())
    monkeypatch.setattr(part, "host_labels", lambda _: None)
    by_work = replayed_part(llmprof.sample(name), ())
    assert by_labels.words
    assert by_labels.words == by_work.words
    assert by_labels.trace.meta == by_work.trace.meta
    assert all(by_labels.trace.recorded[of].equals(frame) for of, frame in by_work.trace.recorded.items())
    for mine, other in ((by_labels.numbers, by_work.numbers), (by_labels.steps, by_work.steps)):
        assert mine is not None
        assert other is not None
        assert_frame_equal(mine, other, check_row_order=False)


def test_an_empty_step_counts_among_the_steps_if_it_worked_on_the_device() -> None:
    """Two steps without requests: one launches a kernel, the other only asks for memory."""
    calls = [(0, 10, 2, CALL, 1), (0, 40, 2, CALL, 2), (0, 80, 2, "cudaMalloc", 3)]
    marks = step_labels([0, 30, 70], 29).with_columns(
        name=pl.Series(["execute_context_0(0)_generation_1(1)", *["execute_context_0(0)_generation_0(0)"] * 2])
    )
    work = [(0, 7, 15, 10, NORM, 1), (0, 7, 45, 10, NORM, 2)]
    labels = host_labels(Trace({"kernels": device(work), "runtime": host(calls), "markers": marks}))
    assert labels is not None
    assert labels["worked"].to_list() == [True, True, False]
