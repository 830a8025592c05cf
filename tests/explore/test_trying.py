"""The button that tries a finding's remedy: it asks first, shows progress, can be stopped, and
says the verdict.
"""

import threading
from types import SimpleNamespace

import polars as pl
import pytest

from llmprof import explore
from llmprof.errors import LaunchError
from llmprof.explore.tabs import Given, Open
from llmprof.explore.trying import Trying
from llmprof.run import launch
from llmprof.run.launch import ExperimentConfig, RunFolder
from tests.samples import sample

STAGES = [("import", 10), ("init", 20), ("warmup", 1), ("plain", 4), ("profiled", 5)]


class Run(launch.Run):
    """A run whose trials are made by the test."""

    def __init__(self, folder, made):
        config = ExperimentConfig(model="random:tiny", eager=True, results_dir=str(folder))
        super().__init__(RunFolder.create(config), config)
        self.__dict__["worker"] = {"stages": [{"name": n, "dur_ns": s * 10**9} for n, s in STAGES]}
        self.made = made

    def try_(self, change=None, **options):
        return self.made(change, **options)


def verdict(tmp_path):
    return SimpleNamespace(
        says="graphs is better.", report=lambda: SimpleNamespace(html=tmp_path / "index.html")
    )


def button(run):
    return Trying(
        run, {"remedy": "graphs", "words": "graphs", "fields": "eager=False"}, lambda call: call()
    )


def test_it_asks_with_cost_and_command_before_it_starts(tmp_path):
    tried = []
    run = Run(tmp_path, lambda change, **options: tried.append(change) or verdict(tmp_path))
    made = button(run)
    made.ask.click()
    assert not tried
    assert f"llmprof try {run.folder.path} graphs" in made.words.value
    # 2 starts of 30 s, 6 to 12 pairs of 5 s each, and two recorded runs of 40 s
    assert "200 s to 260 s" in made.words.value
    made.leave.click()
    assert made.children == (made.ask,)
    made.ask.click()
    made.start.click()
    made.join(10)
    assert tried == ["graphs"]
    assert "graphs is better." in made.words.value
    assert made.verdict.says == "graphs is better."


def test_it_shows_progress_and_stops_after_the_measurement(tmp_path):
    told, go_on = threading.Event(), threading.Event()

    def slow(change, progress):
        progress("pair 1: as it is", 0, 12)
        told.set()
        go_on.wait(10)
        progress("pair 1: with the change", 0, 12)
        pytest.fail("it was stopped")

    made = button(Run(tmp_path, slow))
    made.start.click()
    assert told.wait(10)
    assert "pair 1" in made.words.value
    assert made.bar.max == 12
    made.stop.click()
    go_on.set()
    made.join(10)
    assert made.verdict is None
    assert made.children == (made.words, made.ask)


def test_an_error_is_said_in_place(tmp_path):
    def fails(change, progress):
        raise LaunchError("the device is busy")

    made = button(Run(tmp_path, fails))
    made.start.click()
    made.join(10)
    assert "the device is busy" in made.words.value
    assert made.ask in made.children


def test_findings_of_a_run_have_the_button_where_a_setting_answers_them(tmp_path):
    trace = sample("torch_tp1_eager")
    run = Run(tmp_path, None)
    run.__dict__["trace"] = trace
    opened = Open(Given(trace, tried=run))
    opened._preparing["findings"].join(60)
    found = opened._front.tryings
    rows = pl.DataFrame(opened._front.rows)
    assert {rows.filter(order=order)["rule"][0] for order in found} >= {"host_bound"}
    assert found[rows.filter(rule="host_bound")["order"][0]].remedy["remedy"] == "graphs"
    without = explore.open(trace)
    without._preparing["findings"].join(60)
    assert without._front.tryings == {}
