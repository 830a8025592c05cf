"""The explorer that compares two traces without a browser."""

import polars as pl
import pytest
import traitlets

from llmprof import explore
from llmprof.analyze import diff
from llmprof.analyze.compare.story import diff_words
from llmprof.analyze.compare.times import diff_events
from llmprof.errors import ArgumentError, NotCapturedError
from llmprof.explore.compare import explorer
from llmprof.explore.compare.explorer import Aligned, align
from llmprof.trace import Trace, schema
from tests.analyze.builders import ATTENTION, NORM, forward, kernels, labels, launches
from tests.explore.asking import ask
from tests.samples import sample

VIEW = {
    "pair": [0, 1],
    "rank": None,
    "by": ["stage", "category"],
    "tolerance": 0.05,
    "phase": None,
    "status": None,
    "search": "",
    "sort": "-delta_ns",
}


def run(*, attention=10, norm=NORM, steps=2):
    """Decode steps of two layers, whose attention takes so long."""
    names = [(name, attention if name == ATTENTION else 10) for name in forward(2)]
    names = [(norm if name == NORM else name, dur) for name, dur in names]
    parts, marks, at = [], [], 10
    for n in range(steps):
        parts.append(kernels(names, start=at, first=1 + 100 * n))
        length = sum(dur for _, dur in names)
        marks.append(("execute_new_0_cached_4", at - 8, length))
        at += length + 50
    every = pl.concat(parts)
    return Trace(
        {"kernels": every, "runtime": launches(every), "markers": labels(marks)}, {"world_size": 1}
    )


@pytest.fixture(scope="module")
def a():
    return run()


@pytest.fixture(scope="module")
def b():
    return run(attention=30)


def test_changes_are_those_of_diff(a, b):
    widget = explore.compare(a, b, by=["stage", "category"])
    assert widget.changes.equals(diff_events(a, b))
    first = widget.table.row(0, named=True)
    # two layers, 20 ns longer each
    assert (first["stage"], first["delta_ns"], first["status"]) == ("attention", 40.0, "slower")
    widget.by = ["layer", "stage"]
    rows = (
        widget.table.filter(pl.col("stage") == "attention")
        .select("layer", "a_ns", "b_ns", "ratio")
        .rows()
    )
    assert rows == [(0, 10.0, 30.0, 3.0), (1, 10.0, 30.0, 3.0)]


def test_rows_are_narrowed_and_sorted(a, b):
    widget = explore.compare(a, b, status="slower")
    assert widget.table["stage"].to_list() == ["attention"]
    widget.status, widget.search = None, "PROJ"
    assert set(widget.table["stage"]) == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    widget.search, widget.sort = "", "stage"
    assert widget.table["stage"].is_sorted()
    widget.phase = "prefill"
    assert widget.table.is_empty()
    for name, value in (
        ("sort", "colour"),
        ("status", "colour"),
        ("by", ["colour"]),
        ("tolerance", -1.0),
    ):
        with pytest.raises(traitlets.TraitError):
            setattr(widget, name, value)


def test_the_first_rows_read_as_those_that_are_scrolled_to(a, b):
    shown = explore.compare(a, b)
    first, _ = ask(shown, "table", VIEW | {"by": ["name"]})
    more, _ = ask(shown, "rows", VIEW | {"by": ["name"]}, 0, 60)
    assert first["rows"] == more["rows"]
    assert first["rows"]


def test_picking_gives_the_events_of_both(a, b):
    widget = explore.compare(a, b, names=("before", "after"))
    assert widget.selected.is_empty()
    ask(widget, "pick", VIEW, 0)
    assert widget.picked == {"phase": "decode", "stage": "attention", "category": "attention"}
    found = widget.selected
    assert found.columns == ["trace", *a.events.columns]
    assert found.group_by("trace").agg(pl.len(), pl.col("dur_ns").sum()).sort("trace").rows() == [
        ("after", 4, 120),
        ("before", 4, 40),
    ]


def test_what_appeared_and_what_vanished(a):
    widget = explore.compare(a, run(norm="void my_rms_norm_kernel<4>"), by=["name"])
    found = dict(widget.table.select("name", "status").iter_rows())
    assert found[NORM] == "only_a"
    assert found["void my_rms_norm_kernel<4>"] == "only_b"
    message, buffers = ask(
        widget, "details", {"phase": "decode", "stage": "norm", "category": "norm"}, 0.05
    )
    assert {row["name"]: row["status"] for row in message["kernels"]["rows"]} == {
        NORM: "only_a",
        "void my_rms_norm_kernel<4>": "only_b",
    }
    assert len(buffers) == sum(len(columns) for columns in message["steps"])


def test_empty_missing_and_without_steps(a):
    empty = Trace({"kernels": schema.empty("kernels")})
    message, _ = ask(explore.compare(empty, empty), "table", VIEW)
    assert (message["total"], message["largest"]) == (0, None)
    outside = Trace({"kernels": kernels([NORM])})
    message, _ = ask(explore.compare(a, outside), "table", VIEW)
    assert set(message["counts"]) == set(explorer.STATUSES)
    missing = explore.compare(a, Trace({}))
    for answer in (lambda: ask(missing, "table", VIEW), lambda: ask(missing, "story", (0, 1))):
        with pytest.raises(NotCapturedError):
            answer()
    message, _ = ask(missing, "tracks", (0, 1), phase="decode")
    assert message["sides"][1]["note"] == "run 2 has no such step of decode"
    assert "image/png" not in missing._repr_mimebundle_()[0]


def test_the_story_is_that_of_the_analyses(a, b):
    widget = explore.compare(a, b, names=("before", "after"))
    message, _ = ask(widget, "story", (0, 1))
    widget.handlers["story"].message.check(message)
    assert (widget.phase, message["phases"], message["ranks"]) == ("decode", ["decode"], [0])
    assert message["words"] == diff_words(diff(a, b, names=("before", "after")))
    first, second = message["runs"]
    # attention is 20 ns longer in each of two layers
    assert second["step_ns"] - first["step_ns"] == 40.0
    for run_of in (first, second):
        assert sum(part["ns"] for part in run_of["parts"]) == pytest.approx(run_of["step_ns"])
    (way,) = message["ways"]
    assert [bar["label"] for bar in way["bars"]] == widget.waterfall["label"].to_list()
    assert widget.waterfall.filter(label="attention")["delta_ns"].to_list() == [40.0]
    assert message["context"] == []


def test_more_than_two_runs_each_against_the_first(a, b):
    widget = explore.compare(a, b, run(attention=20), names=("x", "y", "z"), pair=[2, 1])
    message, _ = ask(widget, "story", (2, 1))
    assert [one["name"] for one in message["runs"]] == ["x", "y", "z"]
    assert [(way["a"], way["b"]) for way in message["ways"]] == [(2, 1), (2, 0)]
    attention = [
        bar["delta_ns"]
        for way in message["ways"]
        for bar in way["bars"]
        if bar["part"] == "attention"
    ]
    assert attention == [20.0, -20.0]
    assert widget.table.filter(stage="attention")["delta_ns"].to_list() == [20.0]
    for pair in ([0, 3], [1, 1]):
        with pytest.raises(traitlets.TraitError):
            widget.pair = pair
    with pytest.raises(ArgumentError, match="got 2 names for 3 runs"):
        explore.compare(a, b, a, names=("x", "y"))


def test_timelines_are_aligned_at_a_step_or_a_layer(a, b):
    widget = explore.compare(a, b)
    message, buffers = ask(widget, "tracks", (0, 1), phase="decode", place=1, layer=1)
    widget.handlers["tracks"].message.check(message)
    assert (message["place"], message["places"], message["layers"]) == (1, 2, [0, 1])
    for trace, side in zip((a, b), message["sides"], strict=True):
        events = trace.events.filter(pl.col("step") == 1, pl.col("layer") == 1)
        assert (side["step"], side["origin_ns"], side["note"]) == (1, events["start_ns"].min(), "")
    found = align(
        [Aligned("a", a), Aligned("b", b)], phase="decode", place=1, layer=1, window=(-1e9, 1e9)
    )
    for rows, length in zip(found.rows, (10, 30), strict=True):
        second = rows.filter(pl.col("lane") == 1, pl.col("label") == "attention").sort("start_ns")
        assert second["dur_ns"].to_list() == [length, length]
        layers = rows.filter(lane=0)
        assert layers.filter(name="layer 1")["start_ns"].to_list() == [0.0]
    assert len(buffers) == sum(len(side["columns"]) for side in message["sides"])


def test_timelines_say_what_they_cannot_align(a, b):
    found = align([Aligned("a", a), Aligned("b", b)], phase="decode", layer=7)
    assert [side["note"] for side in found.sides] == [
        "a has no layer 7 in this step",
        "b has no layer 7 in this step",
    ]
    found = align([Aligned("a", a), Aligned("b", b)], phase="prefill")
    assert [side["note"] for side in found.sides] == [
        "a has no such step of prefill",
        "b has no such step of prefill",
    ]
    whole = align([Aligned("a", a), Aligned("none", Trace({}))])
    assert (whole.place, whole.sides[0]["note"], whole.sides[1]["note"]) == (
        None,
        "",
        "none has no events",
    )


def test_many_events_are_sent_as_pieces_whose_time_adds_up(monkeypatch, a):
    every = align([Aligned("a", a)]).rows[0]
    monkeypatch.setattr(explorer, "MOST_EVENTS", 5)
    monkeypatch.setattr(explorer, "_PIECES", 4)
    fewer = align([Aligned("a", a)]).rows[0]
    assert fewer.height < every.height
    assert fewer["events"].sum() == every.height
    assert fewer.filter(lane=1)["dur_ns"].sum() == every.filter(lane=1)["dur_ns"].sum()


@pytest.mark.parametrize("rank", [None, 0, 3, 9])
def test_one_rank_of_both(rank):
    first, second = sample("torch_tp4_eager_custom_allreduce"), sample("torch_tp4_eager_nccl")
    widget = explore.compare(first, second, only={} if rank is None else {"rank": rank})
    message, _ = ask(widget, "story", (0, 1), rank=rank)
    steps = message["runs"][0]["steps"]
    assert steps == (7 if rank in (0, 3) else 28)
    sides = ask(widget, "tracks", (0, 1), phase="decode", rank=rank)[0]["sides"]
    assert {side["rank"] for side in sides} == {rank if rank in (0, 3) else 0}
    ranks = [rank] if rank in (0, 3) else None
    assert widget.changes.equals(diff_events(first, second, by=["stage", "name"], ranks=ranks))
