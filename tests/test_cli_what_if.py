"""The command that says what a change would gain."""

from __future__ import annotations

import json

import polars as pl
import pytest

import llmprof
from llmprof.analyze.replay.what_if import change_of
from llmprof.cli import main
from llmprof.errors import AnalysisError

SAMPLE = "sample:torch_tp1_cudagraph"


@pytest.fixture
def run(capsys):
    def run(*argv: str) -> tuple[int, str, str]:
        code = main.main(["what-if", *argv])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_it_says_what_was_recorded_and_what_would_be(run) -> None:
    code, out, _ = run(SAMPLE, "scale:host:0.5")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "With host x 0.5:"
    between = "3.15 ms, 2.57 ms to 3.38 ms"
    assert lines[1].startswith(f"  decode: 4.43 ms a step -> {between} (1.41 times as fast; median of 15 steps)")
    assert lines[2].endswith("one step)")
    assert lines[-1] == "Not known: whether it can be made so."


def test_a_recording_without_steps_is_not_called_one(run, tmp_path) -> None:
    rows = {"rank": [0], "device": [0], "stream": [7], "start_ns": [0], "dur_ns": [4_000], "name": ["some_kernel"]}
    llmprof.Trace({"kernels": pl.DataFrame(rows)}).save(tmp_path / "one")
    code, out, _ = run(str(tmp_path / "one"), "scale:some_kernel:0.5")
    assert code == 0
    assert "  the recording, which has no steps: 4.00 us -> 2.00 us (2.00 times as fast; 1 rank)" in out.splitlines()


def test_what_is_not_replayed_is_said(run, tmp_path) -> None:
    names = {"rank": [0, 1], "device": [0, 0], "stream": [7, 7], "name": ["ncclDevKernel_AllReduce_Sum"] * 2}
    kernels = pl.DataFrame(names | {"start_ns": [0, 10_000_000], "dur_ns": [4_000, 4_000]})
    llmprof.Trace({"kernels": kernels}, {"world_size": 2}).save(tmp_path / "two")
    code, out, _ = run(str(tmp_path / "two"))
    assert code == 0
    assert "Not known: what ranks wait for of each other, so each is replayed alone: " in out


def test_json_has_the_frame(run) -> None:
    code, out, _ = run(SAMPLE, "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["phase"] for row in rows} == {"decode", "mixed"}
    assert all(row["recorded_ns"] == row["predicted_ns"] for row in rows)


def test_a_change_that_there_is_not(run) -> None:
    code, out, err = run(SAMPLE, "faster")
    assert (code, out) == (2, "")
    assert "there is no change 'faster'" in err
    assert "no-host-delay" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no-host-delay", "layers without waiting for the host (as under graphs)"),
        ("remove:norm", "without norm"),
        ("fuse:norm|rope", "norm|rope fused"),
        ("balance", "no rank late"),
        ("transfer:bandwidth=300:latency=8", "collectives 300 GB/s and 8 us"),
        ("at-bound:Qwen2.5-1.5B:stage=attention", "attention at the bound of the device"),
        ("overlap-with:collective:linear", "collective beside linear"),
        ("tensor-parallel:4:all_reduce_us=12", "tensor parallel 4"),
    ],
)
def test_changes_are_written_with_colons(text: str, words: str) -> None:
    assert change_of(text).words == words


@pytest.mark.parametrize("text", ["scale:norm", "scale:norm:fast", "balance:1", "tensor-parallel:half", "transfer:9"])
def test_how_a_change_is_written_is_said(text: str) -> None:
    with pytest.raises(AnalysisError, match="is not how the change"):
        change_of(text)


def test_shares_of_the_path_are_a_view(capsys) -> None:
    assert main.main(["analyze", SAMPLE, "--what", "path-share", "--by", "stage", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    shares = {row["stage"]: row["path_share"] for row in rows}
    # the GEMMs of the layers wait for the launch of their graph in about half of the steps; sampling hardly ever
    assert 0.4 < shares["gate_up_proj"] < 0.6
    assert shares["sampling"] < 0.1
