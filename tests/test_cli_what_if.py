import json

import polars as pl
import pytest

import llmprof
from llmprof.cli import main
from llmprof.replay.what_if import change_of

SAMPLE = "sample:torch_tp1_cudagraph"


def test_what_is_not_replayed_is_said(run, tmp_path):
    names = {
        "rank": [0, 1],
        "device": [0, 0],
        "stream": [7, 7],
        "name": ["ncclDevKernel_AllReduce_Sum"] * 2,
    }
    kernels = pl.DataFrame(names | {"start_ns": [0, 10_000_000], "dur_ns": [4_000, 4_000]})
    llmprof.Trace({"kernels": kernels}, {"world_size": 2}).save(tmp_path / "two")
    code, out, _ = run(f"what-if {tmp_path}/two")
    assert code == 0
    assert "Not known: what ranks wait for of each other, so each is replayed alone: " in out
    code, out, err = run(f"what-if {SAMPLE} faster")
    assert (code, out) == (2, "")
    assert "there is no change 'faster'" in err
    assert "no-host-delay" in err


def test_json_has_the_frame(run, capsys):
    code, out, _ = run(f"what-if {SAMPLE} --json")
    rows = json.loads(out)
    assert code == 0
    assert {row["phase"] for row in rows} == {"decode", "mixed", "prefill"}
    assert all(row["recorded_ns"] == row["predicted_ns"] for row in rows)
    assert main.main(["analyze", SAMPLE, "--what", "slack", "--by", "stage", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    shares = {row["stage"]: row["path_share"] for row in rows}
    # the GEMMs of the layers wait for the launch of their graph in about half of the steps;
    # sampling hardly ever
    assert 0.4 < shares["gate_up_proj"] < 0.6
    assert shares["sampling"] < 0.1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no-host-delay", "layers that do not wait for the host (as under graphs)"),
        ("remove:norm", "without norm"),
        ("fuse:norm|rope", "norm|rope fused"),
        ("balance", "no rank late"),
        ("transfer:bandwidth=300:latency=8", "collectives 300 GB/s and 8 us"),
        ("at-bound:Qwen2.5-1.5B:stage=attention", "attention at the bound of the device"),
        ("overlap-with:collective:gemm", "collective beside gemm"),
        ("tensor-parallel:4:all_reduce_us=12", "tensor parallel 4"),
    ],
)
def test_changes_are_written_with_colons(text, words):
    assert change_of(text).words == words
