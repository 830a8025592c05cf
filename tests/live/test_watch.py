"""A watched server: captures within their limits, faults of the server, the disk and the clock,
and a day of it.
"""

import json
import resource
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

import llmprof
from llmprof.errors import ConfigError, LaunchError, OutputError, TraceWarning
from llmprof.run.launch import ExperimentConfig, RunFolder, open_run
from llmprof.run.live import history, watching
from llmprof.run.live.counters import Histogram, Scrape
from llmprof.run.live.page import served
from llmprof.run.live.watching import CHANGED, FINDINGS, Watch
from llmprof.trace.storage import files, typed
from tests.live.stand_in import trace


def scrape(at_s, *, waiting=0.0, tokens=None, running=4.0, wall_s=None):
    ns = int((at_s if wall_s is None else wall_s) * 1e9)
    totals = {"output_tokens": at_s * 100 if tokens is None else tokens}
    ttft = Histogram(at_s * 0.5, at_s * 10, {0.06: at_s * 10, float("inf"): at_s * 10})
    return Scrape(ns, at_s, {"running": running, "waiting": waiting}, totals, {"ttft": ttft})


class Made:
    """Captures that are made at once: a run folder with a small trace."""

    def __init__(self):
        self.count = 0
        self.error = None
        self.padding = 0

    def __call__(self, place):
        self.count += 1
        if self.error is not None:
            raise self.error
        config = ExperimentConfig(
            model="tiny", results_dir=str(place), served=True, python="python"
        )
        folder = RunFolder.create(config)
        folder.traces.mkdir()
        (folder.traces / "rank0.pt.trace.json").write_bytes(trace(0, 1))
        (folder.traces / "more.bin").write_bytes(b"x" * self.padding)
        files.write_json(folder.worker, {"requests": []})
        files.write_json(folder.recording, {"counters": {}})
        folder.set_state("finished", stage="done")
        return open_run(folder.path)


@pytest.fixture
def made():
    return Made()


def watched(tmp_path, made, when="waiting > 2", **limits):
    return Watch(tmp_path / "watch", made, when=when, **({"cooldown_s": 60.0} | limits))


def drive(watch, scrapes):
    """Take readings one after the other; a capture takes no time."""
    for one in scrapes:
        if watch.take(one):
            watch.capture(lambda at=one.at_s: at, why="test")


class TestLimits:
    def test_a_condition_that_is_always_true_is_bounded_by_the_cooldown(self, tmp_path, made):
        watch = watched(tmp_path, made)
        drive(watch, [scrape(5 * k, waiting=9) for k in range(1, 62)])  # 5 minutes
        assert made.count == 5  # at 10, 70, 130, 190, 250 s
        assert watch.captures == 5

    def test_the_newest_captures_are_kept(self, tmp_path, made):
        watch = watched(tmp_path, made, keep=2, cooldown_s=0)
        drive(watch, [scrape(5 * k, waiting=9) for k in range(1, 6)])
        kept = sorted(path.name for path in watch.place.iterdir())
        captured = [event["folder"] for event in watch.events if event["what"] == "captured"]
        assert kept == sorted(captured[-2:])
        assert len(captured) == 4

    def test_the_oldest_goes_when_the_limit_of_the_disk_is_reached(self, tmp_path, made):
        made.padding = 400_000
        watch = watched(tmp_path, made, disk_bytes=1_000_000, cooldown_s=0)
        drive(watch, [scrape(5 * k, waiting=9) for k in range(1, 6)])
        assert len(list(watch.place.iterdir())) == 2
        made.padding = 2_000_000
        drive(watch, [scrape(30, waiting=9)])
        (only,) = watch.place.iterdir()
        assert not (only / "traces").exists(), (
            "one that is larger than the limit keeps its findings"
        )
        assert (only / FINDINGS).is_file()
        assert watching.folder_bytes(watch.folder) < 1_000_000

    def test_each_capture_has_findings_and_what_changed(self, tmp_path, made):
        first = made(tmp_path / "before")
        files.write_json(
            first.folder.recording,
            {"counters": {"before": {"prompt_length_mean": 10.0, "running": 4.0}}},
        )
        told = []
        watch = watched(
            tmp_path, made, baseline=first.folder.path, severity="info", tell=told.append
        )
        drive(watch, [scrape(5, waiting=9), scrape(10, waiting=9)])
        (capture,) = watch.place.iterdir()
        assert typed.found(capture / FINDINGS, Any)
        assert (
            typed.found(capture / CHANGED, Any)["cause"] == "unknown"
            or typed.found(capture / CHANGED, Any)["evidence"]
        )
        assert told[0]["capture"] == capture.name
        assert "llmprof_watch_captures 1.0" in watch.exposition()
        assert "llmprof_watch_finding_share" in watch.exposition()

    @pytest.mark.parametrize(
        "limits", [{"keep": 0}, {"disk_bytes": 0}, {"cooldown_s": -1}, {"severity": "bad"}]
    )
    def test_limits_that_make_no_sense(self, tmp_path, made, limits):
        with pytest.raises(ConfigError):
            watched(tmp_path, made, **limits)


class TestFaults:
    def test_a_server_that_does_not_answer_or_begins_anew(self, tmp_path, made):
        watch = watched(tmp_path, made, when="output_tokens_per_s < 1")
        drive(
            watch,
            [
                scrape(5),
                scrape(10),
                None,
                scrape(20),
                scrape(25),
                scrape(30, tokens=3.0),
                scrape(35, tokens=503),
            ],
        )
        assert made.count == 0, "a counter that fell is no rate of zero"
        assert watch.lost == 1
        assert watch.history.recent()["output_tokens_per_s"].to_list() == [100.0, 100.0, 100.0]

    def test_counters_that_vanish(self, tmp_path, made):
        watch = watched(tmp_path, made, when="waiting < 1")
        empty = [Scrape(int(at * 1e9), at) for at in (15.0, 20.0)]
        drive(watch, [scrape(5, waiting=3), scrape(10, waiting=3), *empty])
        assert made.count == 0
        assert watch.history.recent()["waiting"].to_list() == [3.0, None]

    def test_what_has_to_last_begins_anew_after_a_time_that_nobody_saw(self, tmp_path, made):
        watch = watched(tmp_path, made, when="waiting > 2 for 60s")
        drive(watch, [scrape(at, waiting=9) for at in (5.0, 10.0)])
        watch.take(None)
        drive(watch, [scrape(at, waiting=9) for at in (70.0, 75.0, 130.0)])
        assert made.count == 0
        drive(watch, [scrape(135.0, waiting=9)])
        assert made.count == 1

    def test_a_clock_that_jumps(self, tmp_path, made):
        watch = watched(tmp_path, made, when="waiting > 2 for 10s")
        times = [(5, 1000), (10, 1005), (15, 90_000), (20, 10), (25, 15)]
        drive(watch, [scrape(at, waiting=9, wall_s=wall) for at, wall in times])
        assert made.count == 1
        assert watch.history.recent()["seconds"].to_list() == [5.0] * 4
        watch.store()
        assert history(watch.folder).filter(level="hours")["seconds"].sum() == 20.0

    def test_the_cooldown_of_a_watch_that_ended(self, tmp_path, made):
        watch = watched(tmp_path, made)
        watch.quiet(5.0, time.time_ns() - 20 * 10**9)  # of 60 s 20 have passed
        drive(watch, [scrape(5 * k, waiting=9) for k in range(1, 9)])
        assert made.count == 0
        drive(watch, [scrape(50, waiting=9)])
        assert made.count == 1
        watch.quiet(50.0, time.time_ns() + 10**15)  # a clock that was set back says nothing
        assert watch.quiet_until_s == 110.0

    def test_a_capture_that_fails_is_told_and_leaves_nothing(self, tmp_path, made):
        made.error = LaunchError("the server is recorded by another process", hint="wait")
        watch = watched(tmp_path, made)
        drive(watch, [scrape(5 * k, waiting=9) for k in range(1, 5)])
        assert made.count == 1, "the cooldown holds for failures, too"
        assert [event["found"] for event in watch.events] == [
            "the server is recorded by another process"
        ]
        assert not list(watch.place.iterdir())

    def test_a_full_disk_takes_the_oldest_capture_and_leaves_the_history(
        self, tmp_path, made, monkeypatch
    ):
        watch = watched(tmp_path, made, cooldown_s=0)
        drive(watch, [scrape(5 * k, waiting=9) for k in range(1, 4)])
        oldest = watching.by_age(watch.place)[0]
        made.error = OutputError("cannot write rank0: the disk is full", full=True)
        drive(watch, [scrape(20, waiting=9)])
        assert not oldest.exists()
        write, full = files.write, [True]

        def once(path, content):
            if full.pop() if full else False:
                raise OutputError("the disk is full", full=True)
            return write(path, content)

        monkeypatch.setattr("llmprof.run.live.past.files.write", once)
        watch.store()
        assert not list(watch.place.iterdir())
        assert history(watch.folder).filter(level="recent").height == 3

    def test_a_disk_that_is_nearly_full_before_a_capture(self, tmp_path, made, monkeypatch):
        watch = watched(tmp_path, made, cooldown_s=0)
        drive(watch, [scrape(5, waiting=9), scrape(10, waiting=9)])
        monkeypatch.setattr(
            watching.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 1)
        )
        drive(watch, [scrape(15, waiting=9)])
        assert made.count == 1
        assert not list(watch.place.iterdir())
        assert "nearly full" in watch.events[-1]["found"]

    def test_a_half_written_state_of_an_earlier_watch(self, tmp_path, made):
        (tmp_path / "watch").mkdir()
        (tmp_path / "watch" / watching.STATE).write_text('{"events": [')
        with pytest.warns(TraceWarning, match="damaged-1"):
            assert watched(tmp_path, made).events == []


def test_the_page_asks_for_its_token(tmp_path, made):
    watch = watched(tmp_path, made)
    drive(watch, [scrape(5 * k, waiting=float(k)) for k in range(1, 5)])
    watch.findings = [{"rule": "r", "severity": "high", "share": 0.25, "title": "<b>kernel</b>"}]
    watch.store()
    with served(watch) as address:
        text = httpx.get(address).text
        assert "&lt;b&gt;kernel" in text, "names are no markup"
        assert "25.0 %" in text
        assert "requests that wait: 4" in text
        # three rows, of 2, 3 and 4 waiting requests: from the bottom to the top
        assert 'points="0.0,78.0 320.0,40.0 640.0,2.0"' in text
        assert "llmprof_watch_captures 1.0" in httpx.get(address.replace("/?", "/metrics?")).text
        for wrong in (address[:-1], address.partition("?")[0]):
            answer = httpx.get(wrong)
            assert (answer.status_code, answer.text) == (403, "")
        with (
            pytest.raises(LaunchError, match="cannot be used"),
            served(watch, httpx.URL(address).port),
        ):
            pass


class Hook(BaseHTTPRequestHandler):
    """What a webhook got."""

    got: list = []  # noqa: RUF012

    def do_POST(self):
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        """Say nothing."""


def test_the_command_end_to_end(server, run, tmp_path):
    hook = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=hook.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{hook.server_port}/secret-path"
    url = server.start(dev=True)
    try:
        code, _, err = run(
            "watch",
            url,
            "--when",
            "waiting > 0.5 for 200ms",
            "--every",
            "200ms",
            "--for",
            "5s",
            "--seconds",
            "0.3",
            "--webhook",
            address,
            "--severity",
            "info",
            "-o",
            "w",
        )
    finally:
        hook.shutdown()
        thread.join()
        hook.server_close()
    assert code == 0, err
    (capture,) = (tmp_path / "w" / "captures").iterdir()
    assert open_run(capture).state == "finished"
    assert typed.found(capture / FINDINGS, Any)
    state = typed.found(tmp_path / "w" / watching.STATE, Any)
    assert state["captures"] == 1
    assert state["scrapes"] >= 2
    assert (
        history(tmp_path / "w").filter(level="recent")["output_tokens_per_s"].drop_nulls().len()
        >= 1
    )
    assert Hook.got[0]["capture"] == capture.name
    for path in (tmp_path / "w").rglob("*"):
        assert not path.is_file() or b"secret-path" not in path.read_bytes()
    assert not server.on
    with watching.alone(tmp_path / "w"):
        code, _, err = run(f"watch {url} --for 1s -o w")
    assert code == 2
    assert "another watch" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--disk", "much"), "is not a size"),
        (("--cooldown", "10"), "is not a time"),
        (("--when", "ttft > 1"), "ttft_p"),
    ],
)
def test_options_that_cannot_be_read(server, run, words, said, capsys):
    try:
        code, _, err = run("watch", "http://127.0.0.1:9", *words)
    except SystemExit as ended:
        code, err = ended.code, capsys.readouterr().err
    assert code == 2
    assert said in err


def test_a_server_without_metrics(server):
    url = server.start(dev=True, metrics=False)
    with pytest.raises(LaunchError, match="no Prometheus metrics"):
        llmprof.watch(url, for_s=1)


@pytest.mark.slow
def test_a_day_is_bounded_in_memory_and_on_disk(tmp_path, made):
    """20,000 readings, 50 captures: neither grows."""
    watch = watched(tmp_path, made, when="waiting > 2", keep=5, disk_bytes=20_000_000, cooldown_s=0)
    half = None
    for k in range(1, 20_001):
        drive(watch, [scrape(4.32 * k, waiting=9.0 if k % 400 == 0 else 0.0)])
        if k % 12 == 0:
            watch.store()
        if k == 10_000:
            half = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch.store()
    assert made.count == 50
    assert len(list(watch.place.iterdir())) == 5
    assert len(watch.events) <= 200
    assert watching.folder_bytes(watch.folder) < 20_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < half + 100_000, (
        "kB: no growth in the second half"
    )
    assert history(watch.folder).filter(level="minutes")["seconds"].sum() == pytest.approx(
        4.32 * 19_999, abs=5
    )
    assert (watch.folder / "history" / "history.sqlite").stat().st_size < 10_000_000
