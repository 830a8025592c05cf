"""The explorer of a study: what its table shows, what a choice hands back, and a study that goes
on.
"""

import pytest

from llmprof import charts, explore
from llmprof.errors import LlmprofError, ReadError
from llmprof.explore.study import Studied
from llmprof.run import trials
from llmprof.run.batch import sweep as batch_state
from llmprof.run.launch import ExperimentConfig
from tests.charts.specs import rows

RATES = {(8, True): 100.0, (16, True): 150.0, (8, False): 300.0, (16, False): None}


def stored(folder, count):
    """A study of two settings with its first points, the last of which failed."""
    start = {"engine_args.max_num_seqs": 8, "eager": True}
    names = {"engine_args.max_num_seqs": [8, 16], "eager": [True, False]}
    config = ExperimentConfig(
        model="random:tiny", eager=True, engine_args={"max_num_seqs": 8}
    ).to_dict()
    state = batch_state.new(
        config, names, [dict(zip(start, key, strict=True)) for key in list(RATES)[:count]]
    )
    for point, rate in zip(state["points"], RATES.values(), strict=False):
        point |= (
            {"state": "failed", "error": "no memory"}
            if rate is None
            else {"state": "finished", "run": "r"}
        )
        if rate is not None:
            point |= {
                "metrics": {"output_tokens_per_s": rate, "tpot_p95": 1e9 / rate},
                "seconds": 2.0,
            }
    state["tune"] = {
        "spent_s": 0.0,
        "objective": "output_tokens_per_s",
        "slo": "tpot_p95<=8ms",
        "start": start,
        "excluded": [],
        "notes": [],
        "importance": {"eager": 0.75, "engine_args.max_num_seqs": 0.25},
    }
    batch_state.save_state(state, folder)
    return folder


@pytest.fixture
def widget(tmp_path, monkeypatch):
    """A study of four points, whose charts are not drawn."""
    monkeypatch.setattr(Studied, "picture", lambda self, tab: f"{tab} {self.picked}".encode())
    return explore.study(stored(tmp_path, 4))


def test_the_table_has_a_row_for_each_point(widget):
    rows = [row for row, _ in widget.table.options]
    assert [number for _, number in widget.table.options] == [0, 1, 2, 3]
    assert ["\N{NO-BREAK SPACE}300/s\N{NO-BREAK SPACE}" in row for row in rows] == [
        False,
        False,
        True,
        False,
    ]
    assert ["failed" in row for row in rows] == [False, False, False, True]
    assert "max_num_seqs" in widget.head.value


def test_a_choice_is_handed_back_and_drawn(widget):
    assert widget.selected.height == 4
    widget.table.value = (2, 3)
    assert widget.picked == [2, 3]
    assert widget.selected["eager"].to_list() == [False, False]
    assert widget.selected["output_tokens_per_s"].to_list() == [300.0, None]
    assert "no memory" in widget.details.value
    assert widget.tabs.children[0].children[0].value.tobytes().endswith(b"[2, 3]")
    with pytest.raises(LlmprofError, match="no point 9"):
        widget.picked = [9]


def test_tabs_are_drawn_when_they_open(widget):
    assert widget.tabs.children[2].children == ()
    widget.tabs.selected_index = 2
    assert "75%" in widget.tabs.children[2].children[0].value


def test_a_study_that_goes_on_is_read_again_and_the_choice_stays(widget, tmp_path):
    begun = explore.study(stored(tmp_path / "begun", 2))
    begun.picked = [1]
    stored(tmp_path / "begun", 4)
    begun.again.click()
    assert len(begun.table.options) == 4
    assert begun.picked == [1]


def test_chosen_points_stand_out_in_the_chart(tmp_path):
    study = trials.open_study(stored(tmp_path, 4))
    chart = charts.study_pareto(study.pareto, picked=[0, 1])
    assert sorted(row["kind"] for row in rows(chart, "circle", "kind")) == [
        "best",
        "chosen",
        "start",
    ]


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(ReadError, match="no sweep"):
        explore.study(tmp_path)
