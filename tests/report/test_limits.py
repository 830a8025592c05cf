"""A report where the charts cannot be drawn: everything else is in it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

resource = pytest.importorskip("resource")

PROGRAM = """
import resource, sys
from tests.report.builders import build
from llmprof import report
trace = build()
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, resource.RLIM_INFINITY))
report.write(trace, sys.argv[1])
"""


def test_a_limit_of_the_address_space_costs_the_pictures_not_the_report(tmp_path):
    folder = tmp_path / "report"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert summary["findings"]
    assert any("address space" in absent["found"] for absent in summary["absent"])
    assert list(folder.glob("*.csv"))
    assert not list(folder.glob("*.png"))
    assert "Where the time goes" in (folder / "index.html").read_text("utf-8")
