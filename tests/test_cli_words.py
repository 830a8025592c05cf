"""Words of commands: names of runs, names of analyses behind the paths, and the file that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmprof.cli import main

EAGER, GRAPHS = "sample:torch_tp1_eager", "sample:torch_tp1_cudagraph"


def said(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main.main(list(args)) == 0
    return capsys.readouterr().out


def test_an_analysis_may_be_named_behind_the_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "analyze", EAGER, "steady") == said(capsys, "analyze", EAGER, "--what", "steady")
    assert said(capsys, "analyze", EAGER, "findings") == said(capsys, "analyze", EAGER)


def test_a_report_is_written_into_the_file_that_was_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.html"
    assert str(file) in said(capsys, "report", EAGER, "-o", str(file))
    assert file.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [file]
