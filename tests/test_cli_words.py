"""Words of commands: names of runs, names of analyses behind the paths, and the file that was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmprof.cli import main

EAGER, GRAPHS = "sample:torch_tp1_eager", "sample:torch_tp1_cudagraph"


def said(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main.main(list(args)) == 0
    return capsys.readouterr().out


def test_a_comparison_calls_the_runs_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "diff", EAGER, GRAPHS, "--limit", "0")
    first = "A step of decode takes 3.85 ms in torch_tp1_cudagraph against 33.0 ms in torch_tp1_eager: 29.2 ms less"
    assert first in text
    assert "only in torch_tp1_eager" in text
    assert not any(word in text for word in ("only_a", "only_b", "a_count", "b_count"))
    assert not any(line.startswith(("a:", "b:")) for line in text.splitlines())


def test_rows_and_the_gate_of_a_comparison_name_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(said(capsys, "diff", EAGER, GRAPHS, "--json"))
    assert {(row["a_run"], row["b_run"]) for row in rows} == {("torch_tp1_eager", "torch_tp1_cudagraph")}
    assert "decode: faster in torch_tp1_cudagraph" in said(capsys, "diff", EAGER, GRAPHS, "--fail-over", "3%")
    assert main.main(["diff", GRAPHS, EAGER, "--fail-over", "3%"]) == 1
    assert "decode: slower in torch_tp1_eager" in capsys.readouterr().out


def test_an_analysis_may_be_named_behind_the_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "analyze", EAGER, "steady") == said(capsys, "analyze", EAGER, "--what", "steady")
    assert said(capsys, "analyze", EAGER, "findings") == said(capsys, "analyze", EAGER)


def test_a_report_is_written_into_the_file_that_was_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.html"
    assert str(file) in said(capsys, "report", EAGER, "-o", str(file))
    assert file.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [file]
