"""Modules and Python functions in the timeline: rows of their own, what is said of them, and stacks of a selection."""

from __future__ import annotations

import polars as pl
import pytest

from llmprof import analyze, charts, explore
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, NORM, kernels, launches, ops

FORWARD, NORMED = "model/layers.py(12): forward", "model/norm.py(3): <lambda>"


def nested(depth: int) -> list[tuple[object, ...]]:
    """Functions that call each other, each 1 ns within the one around it."""
    return [(f"deep.py({level}): f", 300 + level, 200 - 2 * level) for level in range(depth)]


def run_of(*, depth: int = 0, python: bool = True) -> Trace:
    """A GEMM at 100 and a norm at 150, launched 5 ns before by thread 1, inside functions."""
    run = kernels([(GEMM, 30), (NORM, 10)], start=100, pause=20)
    calls = [(FORWARD, 80, 100), ("nn.Module: Layer_0", 85, 90), ("nn.Module: Norm_0", 140, 20), (NORMED, 142, 16)]
    functions = ops([*calls, *nested(depth)]).with_columns(kind=pl.lit("python"))
    host = ops([("aten::mm", 90, 10, 1, "[[4, 8]]")])
    return Trace({"kernels": run, "runtime": launches(run), "ops": pl.concat([functions, host]) if python else host})


@pytest.fixture
def shown(tmp_path):
    made = explore.timeline(run_of(), notes=tmp_path / "notes.json")
    made._on_find()
    return made


def row_of(widget, kind):
    return next(n for n, row in enumerate(widget._data.rows) if row.kind == kind)


def test_modules_and_functions_have_rows_of_their_own(shown):
    kinds = [row.kind for row in shown._data.rows if row.rank == 0 and row.thread is not None]
    assert kinds == ["modules", "python", "ops", "runtime"]
    counts = {kind: shown._data.rows[row_of(shown, kind)].count for kind in kinds}
    assert counts == {"modules": 2, "python": 2, "ops": 1, "runtime": 2}
    shown.selection = {"row": row_of(shown, "python"), "id": 4}
    assert shown.selected["name"].to_list() == [NORMED]


def test_file_and_line_of_a_function_and_the_functions_of_a_kernel_are_said(shown):
    described, _ = shown._on_describe(row_of(shown, "python"), 0)
    facts = dict(described["facts"])
    assert (facts["file"], facts["line"], facts["function"]) == ("model/layers.py", "12", "forward")
    assert len(described["flows"]) == 2
    described, _ = shown._on_describe(row_of(shown, "stream"), 1)
    facts = dict(described["facts"])
    assert (facts["module"], facts["Python"]) == ("Norm_0", NORMED)
    ((launch, kernel),) = described["flows"]
    assert launch == {"row": row_of(shown, "runtime"), "level": 0, "time": 145}
    assert kernel == {"row": row_of(shown, "stream"), "level": 0, "time": 150}


def test_stacks_of_a_selection_by_module_function_and_stage(shown):
    by_module = shown.stacks("module")
    assert by_module["stack"].to_list() == [
        ["nn.Module: Layer_0", GEMM],
        ["nn.Module: Layer_0", "nn.Module: Norm_0", NORM],
    ]
    assert by_module["value"].to_list() == [30, 10]
    shown.span = (145, 160)
    assert shown.stacks("python")["stack"].to_list() == [[FORWARD, NORMED, NORM]]
    frame = shown.stacks()
    assert frame["stack"].list.last().to_list() == [NORM]
    assert frame.columns == ["rank", "thread", "stack", "value", "unit", "count"]
    shown.span = None
    assert shown.stacks("python")["value"].sum() == analyze.attribute(shown.trace)["dur_ns"].sum() == 40
    assert charts.flame(shown.stacks("python")).to_dict()


def test_stacks_that_were_not_recorded_are_said(tmp_path):
    widget = explore.timeline(run_of(python=False), notes=tmp_path / "n.json")
    assert "python" not in [row.kind for row in widget._data.rows]
    with pytest.raises(NotCapturedError, match="with_stack=True"):
        widget.stacks("python")
    widget.selection = {"row": row_of(widget, "ops"), "id": 0}
    with pytest.raises(NotCapturedError, match="not of kernels"):
        widget.stacks()


def test_the_flame_graph_in_the_widget_by_hand(shown):
    message, _ = shown._on_flame("module")
    assert message["kinds"] == ["stage", "module", "python"]
    assert (message["of"], message["problem"]) == ("the whole trace", "")
    assert (message["total"], message["events"], message["left_out"]) == (40, 2, 0)
    assert message["trunk"] == ["nn.Module: Layer_0"]
    named = [message["names"][place] for place in message["name"]]
    frames = zip(named, message["level"], message["start"], message["value"], strict=True)
    assert set(frames) == {(GEMM, 0, 10, 30), ("nn.Module: Norm_0", 0, 0, 10), (NORM, 1, 0, 10)}
    shown.selection = {"row": row_of(shown, "python"), "id": 4}
    message, _ = shown._on_flame("stage")
    assert "not of kernels" in message["problem"]
    assert message["total"] == 0
