"""The page of a watch as a widget: it shows what lies in the folder, and asks again after some
seconds.
"""

import pytest

from llmprof.run.live import dashboard
from llmprof.run.live.counters import SAMPLE
from llmprof.run.live.past import FOLDER, WatchHistory
from llmprof.run.live.watching import CAPTURES, FINDINGS, STATE
from llmprof.trace.storage import files


def add(folder, waiting):
    kept = WatchHistory.open(folder / FOLDER)
    for at_s, number in waiting.items():
        kept.add(
            dict.fromkeys(SAMPLE) | {"time_ns": at_s * 10**9, "seconds": 5.0, "waiting": number}
        )
    kept.store()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_watch_is_shown_and_read_again(host, tmp_path, theme):
    add(tmp_path, {5 * k: float(k % 7) for k in range(60)})
    event = {
        "time": "2026-01-01T00:00:00",
        "what": "captured",
        "folder": "one",
        "changed": "More <load>.",
    }
    files.write_json(tmp_path / STATE, {"scrapes": 60, "says": "More <load>.", "events": [event]})
    (tmp_path / CAPTURES / "one").mkdir(parents=True)
    found = {
        "rule": "r",
        "severity": "high",
        "recorded_share": 0.25,
        "title": "The device waits for the host",
    }
    files.write_json(tmp_path / CAPTURES / "one" / FINDINGS, [found])
    shown = host(dashboard(tmp_path, every_s=1.0), width=1000, height=680, theme=theme)
    page = shown.page.frame_locator("iframe")
    page.get_by_text("The device waits for the host").wait_for()
    page.get_by_text("requests that wait: 3").wait_for()
    shown.shot(f"watch_{theme}")
    add(tmp_path, {305: 41.0})
    page.get_by_text("requests that wait: 41").wait_for()
    shown.quiet()
