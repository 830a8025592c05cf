"""The page of a watch as a widget."""

import subprocess
import sys

import pytest

from llmprof.errors import ConfigError, ReadError
from llmprof.run.live import dashboard
from llmprof.run.live.counters import SAMPLE
from llmprof.run.live.past import FOLDER, WatchHistory
from llmprof.run.live.watching import CAPTURES, FINDINGS, STATE
from llmprof.trace.storage import files


def row(at_s, **values):
    return dict.fromkeys(SAMPLE) | {"time_ns": at_s * 10**9, "seconds": 5.0} | values


def test_it_shows_what_lies_in_the_folder_and_reads_it_again(tmp_path):
    with pytest.raises(ReadError, match="no history"):
        dashboard(tmp_path)
    kept = WatchHistory.open(tmp_path / FOLDER)
    for k in range(3):
        kept.add(row(5 * k, waiting=float(k)))
    kept.store()
    shown = dashboard(tmp_path)
    assert "requests that wait: 2" in shown.page
    assert shown._repr_html_() == shown.page
    assert "refresh" not in shown.page, "the widget asks for a page itself"
    event = {
        "time": "2026-01-01T00:00:00",
        "what": "captured",
        "folder": "one",
        "changed": "More <load>.",
    }
    files.write_json(tmp_path / STATE, {"scrapes": 4, "says": "More <load>.", "events": [event]})
    (tmp_path / CAPTURES / "one").mkdir(parents=True)
    found = {"rule": "r", "severity": "high", "recorded_share": 0.25, "title": "a finding"}
    files.write_json(tmp_path / CAPTURES / "one" / FINDINGS, [found])
    kept.add(row(15, waiting=7.0))
    kept.store()
    shown._handle_custom_msg({"again": True}, [])
    assert "requests that wait: 7" in shown.page
    assert "25.0 %" in shown.page
    assert "More &lt;load&gt;." in shown.page
    with pytest.raises(ConfigError):
        dashboard(tmp_path, every_s=0)


def test_a_server_is_recorded_where_no_notebook_is():
    code = """
import sys
sys.modules["anywidget"] = None
from llmprof.cli.main import main
main(["record", "--help"])
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
