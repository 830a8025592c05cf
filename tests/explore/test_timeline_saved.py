"""Saved views, marks with notes and the list of hits, on a trace made by hand."""

from __future__ import annotations

import json

import polars as pl
import pytest

from llmprof import explore
from llmprof.errors import AnalysisError, ArgumentError, LlmprofError
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, NCCL_ALL_REDUCE, NORM, kernels, launches


def run_of(*, ranks=2, more=()):
    """Of each rank three GEMMs of 30 ns and two norms of 10 ns, in turn and 5 ns apart, then ``more``."""
    names = [(GEMM, 30), (NORM, 10), (GEMM, 30), (NORM, 10), (GEMM, 30), *more]
    run = pl.concat([kernels(names, start=100 + rank, pause=5, rank=rank, first=1) for rank in range(ranks)])
    return Trace({"kernels": run, "runtime": launches(run)})


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run" / "notes.json"


@pytest.fixture
def shown(file):
    return explore.timeline(run_of(), notes=file)


def test_a_view_is_shown_again_also_through_json(shown, file):
    shown.show((120, 180), rank=1, search="gemm")
    shown.colour_by = "category"
    view = json.loads(json.dumps(shown.view))
    assert view["window"] == [117, 183]
    assert view["span"] == [120, 180]
    again = explore.timeline(run_of(), notes=file, view=view)
    assert again.view == shown.view
    assert again.arrangement["open"] == [1]
    assert again.selected["rank"].unique().to_list() == [1]
    assert explore.timeline(run_of(), notes=file, view=json.dumps(view), search="norm").search == "norm"


@pytest.mark.parametrize("other", [{"ranks": 1}, {"more": [(NORM, 10)]}, {"more": [(GEMM, 0)]}])
def test_a_view_of_another_trace_is_refused_with_words(shown, file, other):
    with pytest.raises(ArgumentError, match="view is of another trace"):
        explore.timeline(run_of(**other), notes=file, view=shown.view)


@pytest.mark.parametrize("view", ["", "[1]", "{}", {"trace": 3}, {"trace": "x", "windows": []}, {"window": [0, 1]}])
def test_what_is_no_view_is_refused_with_words(file, view):
    with pytest.raises(ArgumentError, match="no saved view"):
        explore.timeline(run_of(), notes=file, view=view)


def test_a_rank_that_is_not_there_and_an_arrangement_that_is_none(shown):
    with pytest.raises(AnalysisError, match="there is no rank 7"):
        shown.show((0, 1), rank=7)
    with pytest.raises(ArgumentError, match="order"):
        explore.timeline(run_of(), arrangement={"order": "size"})


def test_marks_are_kept_in_a_file_and_come_back(shown, file):
    assert not file.exists()
    shown.mark(150, "second")
    shown.mark(120)
    assert shown.marks == [{"time": 120.0, "text": ""}, {"time": 150.0, "text": "second"}]
    assert shown.notes == str(file)
    again = explore.timeline(run_of(), notes=file)
    assert again.marks == shown.marks
    again.marks = again.marks[1:]  # as the browser's side does
    assert [mark["text"] for mark in json.loads(file.read_text())["marks"]] == ["second"]
    assert again.notes_problem == ""


OTHER_TRACE = b'{"version":1,"trace":"f","marks":[]}'


@pytest.mark.parametrize("content", [b'{"version": 1, "tra', b"", b"\xff\xfe", b"[]", OTHER_TRACE])
def test_a_damaged_file_of_notes_is_named_and_kept(file, content):
    file.parent.mkdir()
    file.write_bytes(content)
    shown = explore.timeline(run_of(), notes=file)
    assert str(file) in shown.notes_problem
    assert "kept" in shown.notes_problem
    shown.marks = [{"time": 1}]
    with pytest.raises(LlmprofError, match=r"notes\.json"):
        shown.mark(2)
    assert file.read_bytes() == content


def test_notes_that_cannot_be_written_are_said(tmp_path):
    (tmp_path / "taken").write_text("a file where a folder should be")
    shown = explore.timeline(run_of(), notes=tmp_path / "taken" / "notes.json")
    assert "cannot be read" in shown.notes_problem
    for marks in ([{"text": "no time"}], [{"time": float("nan")}], [{"time": 1, "text": "x" * 2_001}]):
        with pytest.raises(ArgumentError):
            explore.timeline(run_of(), notes=tmp_path / "n.json", marks=marks)


def test_notes_are_by_default_in_a_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMPROF_NOTES", str(tmp_path / "notes"))
    shown = explore.timeline(run_of())
    shown.mark(120)
    assert [path.stem for path in (tmp_path / "notes").iterdir()] == [shown.view["trace"]]
    assert explore.timeline(run_of(ranks=1)).marks == []


def listed(widget, **filters):
    answer, _ = widget._on_list(**{"text": "nvjet", **filters})
    return answer, [(one["rank"], one["hit"]["start"]) for one in answer["rows"]]


def test_all_hits_are_listed_with_totals(shown):
    # of rank 0 the GEMMs begin at 100, 150 and 200, of rank 1 one ns later
    answer, rows = listed(shown)
    assert rows == [(0, 100), (1, 101), (0, 150), (1, 151), (0, 200), (1, 201)]
    assert {name: answer[name] for name in ("total", "names", "sum_ns", "ranks")} == {
        "total": 6, "names": 1, "sum_ns": 180.0, "ranks": [0, 1],
    }  # fmt: skip
    assert listed(shown, sort="-start", first=1, count=2)[1] == [(0, 200), (1, 151)]
    assert listed(shown, rank=1, window=(130, 151.5))[1] == [(1, 101), (1, 151)]
    assert listed(shown, where="host")[0]["total"] == 0
    assert listed(shown, text="")[0]["total"] == listed(shown, text="no such name")[0]["total"] == 0
    by_name = shown._on_list(text="a", sort="-name")[0]["rows"]
    names = [one["hit"]["name"].casefold() for one in by_name]
    assert names == sorted(names, reverse=True)
    longest = shown._on_list(text="a", where="device", sort="-dur")[0]["rows"]
    lengths = [one["hit"]["end"] - one["hit"]["start"] for one in longest]
    assert lengths == sorted(lengths, reverse=True)


def test_the_rank_that_the_others_wait_for_is_said(sample_trace, tmp_path):
    shown = explore.timeline(sample_trace("torch_tp4_eager_custom_allreduce"), notes=tmp_path / "n.json")
    assert [group["late"] for group in shown._on_rows()[0]["groups"]] == [False] * 4
    shown._on_find()
    assert [group["rank"] for group in shown._on_rows()[0]["groups"] if group["late"]] == [3]
    even = explore.timeline(run_of(), notes=tmp_path / "m.json")
    even._on_find()
    assert not any(group["late"] for group in even._on_rows()[0]["groups"])


def late_of(ranks: int, late: int) -> Trace:
    """Six all-reduces of so many ranks, 1 ms apart, in which one starts 800 us after the others; all end together."""
    rows = [
        kernels([(NCCL_ALL_REDUCE, 4_000 if rank == late else 804_000)], rank=rank, first=1_000 * rank + call,
                start=call * 1_000_000 + (800_000 if rank == late else 0))
        for call in range(6)
        for rank in range(ranks)
    ]  # fmt: skip
    return Trace({"kernels": pl.concat(rows).sort("rank", "start_ns")})
