"""``llmprof time-operators``: writes a script, and reads what it measured on another machine."""

import json

import pytest

from llmprof.cli.main import main
from tests.operator_timing.recordings import MM, recorded


@pytest.fixture
def path(tmp_path):
    recorded(tmp_path, [("aten::mm", MM, [("gemm", 4.0)]), ("aten::item", {}, [("copy", 1.0)])])
    return str(tmp_path / "recorded.pt.trace.json")


def test_script_and_results(path, tmp_path, capsys):
    script = tmp_path / "replay.py"
    assert main(["time-operators", path, "--operator", "mm", "-o", str(script)]) == 0
    told = capsys.readouterr().out
    assert "aten::mm [[4, 8], [8, 2]], 1 call\n" in told
    assert "--results results.json" in told
    key = next(line.split("'")[1] for line in script.read_text().splitlines() if "key='" in line)
    times = {"calls": 9, "median_ns": 3_900.0, "low_ns": 3_800.0, "high_ns": 4_000.0}
    row = {
        "key": key,
        "operator": "aten::mm",
        "modes": {"warm": {"profiler": times}},
        "kernels": ["gemm"],
    }
    document = {
        "format": "llmprof operator replay",
        "version": 1,
        "device": "G",
        "cuda": True,
        "operators": [row],
    }
    results = tmp_path / "results.json"
    results.write_text(json.dumps(document))
    assert main(["time-operators", path, "--results", str(results)]) == 0
    told = capsys.readouterr().out
    assert "Run alone on G" in told
    assert "the kernel; alone it takes as long, with warm caches" in told
    assert main(["time-operators", path, "--results", str(results), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["warm_ns"] == 3_900


def test_what_cannot_be_run(path, capsys):
    assert main(["time-operators", path, "--kernel", "copy"]) == 2
    assert "aten::item cannot be run alone: it waits for the device" in capsys.readouterr().err
