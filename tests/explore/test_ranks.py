"""The explorer of many ranks without a browser, on the sixteen ranks by hand of
``tests/analyze/test_ranks``.
"""

import numpy as np
import polars as pl
import pytest

from llmprof import analyze, explore
from llmprof.errors import LlmprofError
from llmprof.explore.ranks.explorer import rank_cells
from tests.analyze.test_ranks import RANKS, STEPS, on_hosts, run_of
from tests.explore.asking import ask


@pytest.fixture(scope="module")
def sixteen():
    return run_of(**on_hosts())


def test_a_cell_is_a_step_of_a_rank(sixteen):
    head, buffer = ask(
        explore.ranks(sixteen), "cells", measure="wait", phase=None, steps=None, rank_range=None
    )
    values = np.frombuffer(buffer[0], dtype="<f4").reshape(STEPS, RANKS)
    rows = analyze.ranks(sixteen, by="step")
    for step, rank, wait in rows.select("step", "rank", "wait_ns").iter_rows():
        assert values[step, rank] == wait
    assert head["rows"] == [(rank, rank) for rank in range(RANKS)]
    assert (head["banded"], head["condensed"], head["missing"]) == (1, 1, 0)
    (scale,) = head["scales"]
    assert (scale["low"], scale["most"]) == (0, 4_500 - 1_000)


def test_a_row_of_many_ranks_shows_the_largest_and_a_column_of_many_steps_their_median():
    rank = np.repeat(np.arange(1024), 2000)
    rows = pl.DataFrame(
        {"rank": rank, "step": np.tile(np.arange(2000), 1024), "phase": "decode"}
    ).with_columns(
        dur_ns=pl.when((pl.col("rank") == 100) & (pl.col("step") >= 1000))
        .then(900)
        .otherwise(100 + pl.col("step") % 2)
    )
    head, buffer = rank_cells(rows, measure="step")
    assert (head["banded"], head["condensed"], len(head["rows"]), len(head["columns"])) == (
        8,
        2,
        128,
        1000,
    )
    assert head["rows"][12] == (96, 103)
    assert head["columns"][500] == (1000, 1001, 0)
    values = np.frombuffer(buffer, dtype="<f4").reshape(1000, 128)
    assert set(values[:500, 12]) == {100.5}
    assert set(values[500:, 12]) == {900}
    assert set(values[:, 13]) == {100.5}
    near, _ = rank_cells(rows, measure="step", rank_range=(96, 103), steps=(1000, 1009))
    assert (near["banded"], len(near["rows"]), len(near["columns"])) == (1, 8, 10)


def test_what_was_picked_is_a_frame_and_opens_in_a_timeline(sixteen):
    widget = explore.ranks(sixteen)
    assert widget.selected.height == 0
    with pytest.raises(LlmprofError, match="no rank is picked"):
        widget.timeline()
    ask(widget, "pick", measure="wait", step=2, rank_range=(8, 11))
    # rank 10 is last in step 2; of the others rank 8 comes first by number
    assert (widget.picked, widget.rank, widget.step, widget.window) == (
        [8, 9, 10, 11],
        8,
        2,
        [20_000.0, 30_000.0],
    )
    assert widget.selected.select("rank", "step").rows() == [(rank, 2) for rank in (8, 9, 10, 11)]
    line = widget.timeline()
    assert line.trace.ranks == [8, 9, 10, 11]
    assert line.window == [15_000.0, 35_000.0]
    answer, _ = ask(widget, "picked")
    assert answer["words"] == "Ranks 8 to 11 in step 2: the longest takes 10.0 us."
    widget.step = None
    assert widget.selected.height == 4 * STEPS


def test_late_groups_and_what_is_not_known(sixteen):
    answer, _ = ask(explore.ranks(sixteen), "choices")
    assert answer["latest"].startswith(
        "Ranks 8 to 11 (one node, node2) arrive last in 90.0 % of 10 collectives"
    )
    assert [row["group"] for row in answer["groups"]] == ["node2", "node0", "node3", "node1"]
    nothing, _ = ask(explore.ranks(run_of()), "choices")
    assert (nothing["groups"], nothing["latest"]) == ([], "")
    given, _ = ask(explore.ranks(run_of(), ranks_per_node=4), "choices")
    assert given["latest"].startswith("Ranks 8 to 11 (one node) arrive last")


def test_the_tab_is_there_only_where_there_are_several_ranks(sixteen, sample_trace):
    assert "Ranks" in explore.open(sixteen).titles
    assert "Ranks" not in explore.open(sample_trace("torch_tp1_eager")).titles
