"""Every command on a folder of two NPUs, as a user would run it."""

import json
import re

import pytest

from llmprof.cli import main

FOREIGN = re.compile(r"\bNCCL|RCCL|CUDA|cuda[A-Z]|\bSMs?\b|\bGPUs?\b|cuBLAS|\bHIP\b")
"""Words of other vendors, which no page about an NPU has."""


@pytest.fixture
def folder(synthetic_npu):
    return synthetic_npu("baseline")


def said(capsys, *argv):
    assert main.main([str(word) for word in argv]) == 0
    text = capsys.readouterr().out
    assert not FOREIGN.search(text), FOREIGN.search(text)
    return text


def test_info_names_the_device_the_ranks_and_that_it_is_synthetic(folder, capsys):
    text = said(capsys, "info", folder)
    assert "Ascend910C (synthetic)" in text
    assert "0-1" in text
    assert "hccl" in text


def test_analyze_answers_the_questions_of_an_npu(folder, capsys):
    assert "HCCL" in json.dumps(
        json.loads(said(capsys, "analyze", folder, "--json", "--what", "operator-shapes"))
    )
    found = json.loads(said(capsys, "analyze", folder, "--json"))
    assert found
    for what in ("event-waits", "links", "core-time", "idle", "launch-path", "memory"):
        assert said(capsys, "analyze", folder, "--what", what)


@pytest.mark.slow
def test_report_and_diff(folder, synthetic_npu, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # a narrow table leaves columns out
    assert main.main(["report", str(folder), "-o", str(tmp_path / "out")]) == 0
    (written,) = (p for p in [tmp_path / "out", *(tmp_path / "out").glob("*.html")] if p.is_file())
    body = re.sub(
        r"<script.*?</script>|<style.*?</style>", "", written.read_text("utf-8"), flags=re.DOTALL
    )
    assert "Ascend910C (synthetic)" in body
    assert not FOREIGN.search(body), FOREIGN.search(body)
    capsys.readouterr()
    assert "faster" in said(capsys, "diff", folder, synthetic_npu("both"))


def test_redact_writes_a_folder_that_reads_alike(folder, tmp_path, capsys):
    said(capsys, "redact", folder, "-o", tmp_path / "r")
    assert "0-1" in said(capsys, "info", tmp_path / "r")
