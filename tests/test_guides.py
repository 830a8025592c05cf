"""The guides of the documentation: their commands run, and what they say of checks, views and options is so."""

from __future__ import annotations

import re
import shlex

import pytest

from llmprof.analyze.catalog import views
from llmprof.cli.main import main

GUIDES = ("symptoms", "measuring", "toolchain", "hpc_and_llm", "troubleshooting", "faq")
OF_OTHERS = {
    "--cuda-graph-trace", "--graph-profiling", "--gpu-metrics-devices", "--sample", "--trace-fork-before-exec",
    "--capture-range", "--shm-size", "--cap-add", "--exportProfile",
}  # fmt: skip
"""Options of profilers and containers that the guides name."""

_BLOCK = re.compile(r"```(sh|python|text)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def texts(root):
    return {name: (root / "docs" / f"{name}.md").read_text("utf-8") for name in GUIDES}


def blocks(texts, kind):
    return [(name, body) for name, text in texts.items() for found, body in _BLOCK.findall(text) if found == kind]


@pytest.mark.slow
def test_the_commands_run(texts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [line for _, body in blocks(texts, "sh") for line in body.splitlines() if line.strip()]
    assert len(lines) >= 10
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "llmprof", line
        code = main(words[1:])
        out, err = capsys.readouterr()
        assert code == 0 or words[1] == "doctor", f"{line}: {err}"  # the doctor says 1 where something is missing
        assert out.strip(), line


def test_every_command_that_is_named_exists(texts):
    """Options of ``llmprof`` in the text: the command knows them."""
    from llmprof.cli.main import parser

    known: dict[str, set[str]] = {}
    for action in parser()._subparsers._group_actions:
        for name, one in action.choices.items():
            known[name] = {option for act in one._actions for option in act.option_strings}
    everywhere = set().union(*known.values())
    for name, text in texts.items():
        for span in re.findall(r"`([^`\n]+)`", _BLOCK.sub("", text)):
            words = span.split()
            if words[0] == "llmprof" and len(words) > 1:
                assert words[1] in known, f"{name}: {span}"
                options = {word for word in words[2:] if word.startswith("--")}
                assert options <= known[words[1]], f"{name}: {span}"
            elif words[0].startswith("--") and words[0].partition("=")[0] in everywhere:
                continue
            elif words[0].startswith("--"):
                assert words[0].partition("=")[0] in OF_OTHERS, f"{name}: {span}"


def test_views_that_are_named_exist(texts):
    for name, text in texts.items():
        for view in re.findall(r"--what ([\w-]+)", text):
            assert view in views(), f"{name}: --what {view}"


@pytest.mark.parametrize("name", GUIDES)
def test_guides_say_nothing_of_this_machine(texts, name):
    assert not re.search(r"/(?:home|work|root|tmp)/", texts[name])
