"""Profiling from a notebook: the easy door, its progress, and the cell magic."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import polars as pl
import pytest
from IPython.core.interactiveshell import InteractiveShell

import llmprof
from llmprof.errors import ConfigError, LaunchError, TraceWarning
from llmprof.run import launch
from llmprof.run.launch import ConfigManager, ExperimentConfig
from llmprof.run.notebook import cell, display
from llmprof.run.notebook import cell as notebook_progress


@pytest.fixture
def asked(monkeypatch):
    """Run nothing, and note what would be run."""
    found = SimpleNamespace(config=None, progress=None, do=lambda tell: "a run")

    class Runner:
        def __init__(self, config, *, progress):
            found.config, found.progress = config, progress

        def run(self):
            return found.do(found.progress)

    monkeypatch.setattr(launch, "ExperimentRunner", Runner)
    return found


@pytest.fixture
def shown(monkeypatch):
    """What a notebook would show, as (first, HTML)."""
    outputs = []

    class Handle:
        def display(self, html):
            outputs.append((True, html.data))

        def update(self, html):
            outputs.append((False, html.data))

    monkeypatch.setattr("IPython.display.DisplayHandle", Handle)
    monkeypatch.setattr(notebook_progress, "in_notebook", lambda: True)
    return outputs


class TestProfile:
    def test_options_are_those_of_the_configuration(self, asked):
        assert (
            llmprof.profile(model="random:tiny", mode="nsys", batch_size=4, tensor_parallel_size=2)
            == "a run"
        )
        expected = {"profile_mode": "nsys", "batch_size": 4, "tensor_parallel_size": 2}
        assert asked.config == ExperimentConfig(model="random:tiny", **expected)

    def test_they_go_over_a_file_or_a_configuration(self, asked, tmp_path):
        base = ExperimentConfig(model="random:tiny", max_tokens=7)
        file = ConfigManager.save_config(base, tmp_path / "run.yaml")
        llmprof.profile(config=file, batch_size=3)
        assert (asked.config.max_tokens, asked.config.batch_size) == (7, 3)
        llmprof.profile("m", config=base)
        assert (asked.config.model, asked.config.max_tokens) == ("m", 7)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"model": "m", "batchsize": 3}, "did you mean batch_size"),
            ({"mode": "torch"}, "names no model"),
            ({"model": "m", "mode": "torch", "profile_mode": "nsys"}, "given together"),
            ({"model": "m", "mode": "fast"}, "expected one of inference_only"),
        ],
        ids=["unknown", "no-model", "both", "mode"],
    )
    def test_what_cannot_be(self, asked, options, words):
        with pytest.raises(ConfigError, match=words):
            llmprof.profile(**options)
        assert asked.config is None

    def test_outside_a_notebook_nothing_is_written(self, asked, capsys):
        llmprof.profile("random:tiny")
        assert asked.progress is None
        assert capsys.readouterr() == ("", "")


class TestProgress:
    def test_one_output_that_changes(self, asked, shown):
        def work(tell):
            tell("plain", 1, 3)
            tell("a <b>", 0, 0)

        asked.do = work
        llmprof.profile("random:tiny")
        assert [first for first, _ in shown] == [True, False, False, False]
        texts = [re.sub(r"<[^>]*>", "", html).strip().partition(" (")[0] for _, html in shown]
        assert '<progress max="3" value="1" aria-hidden="true">' in shown[1][1]
        assert texts == [
            "tiny_torch: starting",
            "tiny_torch: plain, 1 of 3",
            "tiny_torch: a &lt;b&gt;",
            "tiny_torch: finished",
        ]
        assert all(html.startswith('<span role="status">') for _, html in shown)

    @pytest.mark.parametrize(
        ("error", "word"),
        [(KeyboardInterrupt(), "interrupted"), (LaunchError("no"), "failed")],
        ids=["interrupt", "error"],
    )
    def test_how_it_ended(self, asked, shown, error, word):
        def work(tell):
            raise error

        asked.do = work
        with pytest.raises(type(error)):
            llmprof.profile("random:tiny")
        assert f": {word} (" in shown[-1][1]

    def test_only_a_kernel_is_a_notebook(self, monkeypatch):
        assert not notebook_progress.in_notebook()
        monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(kernel=1))
        assert notebook_progress.in_notebook()


class TestMagic:
    @pytest.fixture
    def shell(self):
        shell = InteractiveShell()
        shell.run_line_magic("load_ext", "llmprof")
        return shell

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("", ("trace", set())),
            ("mine", ("mine", set())),
            ("--stack mine --memory", ("mine", {"--stack", "--memory"})),
        ],
        ids=["nothing", "name", "options"],
    )
    def test_its_line(self, line, expected):
        assert cell._options(line) == expected

    @pytest.mark.parametrize("line", ["a b", "1x", "--stak", "a.b", "a;b"])
    def test_lines_that_are_not_understood(self, line):
        with pytest.raises(ConfigError, match="%%profile"):
            cell._options(line)

    def test_without_torch(self, shell, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        shell.user_ns["ran"] = []
        with pytest.raises(LaunchError, match=r"llmprof\[torch\]"):
            cell.magic(shell, "", "ran.append(1)")
        assert shell.user_ns["ran"] == []

    @pytest.mark.slow
    def test_in_a_shell_with_torch(self, root, engine_python):
        places = [str(root), *(path for path in sys.path if path.endswith("site-packages"))]
        done = subprocess.run(
            [engine_python, str(root / "tests" / "cells_with_torch.py"), *places],
            capture_output=True,
            text=True,
            check=True,
        )
        said = json.loads(done.stdout.strip().splitlines()[-1])
        assert said["value"] == 512.0
        assert said["products"] == {"mine": 3, "trace": 1, "stacks": 1}
        assert said["shapes"] == {"mine": True, "trace": False, "stacks": True}
        assert said["python"] == {"mine": False, "trace": False, "stacks": True}
        assert said["failed"] == "ZeroDivisionError"


def test_frames_have_units_and_an_empty_one_says_so():
    times = pl.DataFrame({"prefill_s": [0.0305], "gap_ns": [1_240], "tokens_per_s": [48.0]})
    html = display.frame_html(times)
    assert {"<td>30.5\N{NO-BREAK SPACE}ms</td>", "<td>1.24\N{NO-BREAK SPACE}us</td>"} <= set(
        re.findall("<td>.*?</td>", html)
    )
    assert "48.00" in html
    assert "recorded" in display.frame_html(times.clear())
    assert "recorded" not in html


def test_a_warning_about_a_recording_is_a_note_and_others_stay(capsys):
    kept = []
    display._said(lambda *what: kept.append(what[0]), "rank 3 is missing", TraceWarning, "f.py", 1)
    display._said(lambda *what: kept.append(what[0]), "old", DeprecationWarning, "f.py", 1)
    assert kept == ["old"]
