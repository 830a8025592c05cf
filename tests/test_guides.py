"""The guides of the documentation: their commands run, and what they say of checks, views and
options is so.
"""

import re
import shlex
import sys

import pytest

from llmprof.analyze.catalog import views
from llmprof.cli.main import main

GUIDES = ("symptoms", "measuring", "toolchain", "hpc_and_llm", "troubleshooting", "faq")
OF_OTHERS = {
    "--cuda-graph-trace",
    "--graph-profiling",
    "--gpu-metrics-devices",
    "--sample",
    "--trace-fork-before-exec",
    "--capture-range",
    "--shm-size",
    "--cap-add",
    "--exportProfile",
}
"""Options of profilers and containers that the guides name."""

_BLOCK = re.compile(r"```(sh|python|text)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def texts(root):
    return {name: (root / "docs" / f"{name}.md").read_text("utf-8") for name in GUIDES}


def blocks(texts, kind):
    return [
        (name, body)
        for name, text in texts.items()
        for found, body in _BLOCK.findall(text)
        if found == kind
    ]


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
        assert code == 0 or words[1] == "doctor", (
            f"{line}: {err}"
        )  # the doctor says 1 where something is missing
        assert out.strip(), line


def test_every_command_that_is_named_exists(texts):
    """Options of ``llmprof`` in the text: the command knows them."""
    from llmprof.cli.main import parser

    known = {}
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
    for name, text in texts.items():
        for view in re.findall(r"--what ([\w-]+)", text):
            assert view in views(), f"{name}: --what {view}"


def test_the_toolchain_names_each_monitor_and_how_its_output_comes_in(texts):
    from llmprof.readers.monitors.reader import READERS

    rows = re.findall(
        r"^\| (`.*?) \| .*? \| (.*) \|$",
        texts["toolchain"].partition("## Monitors")[2],
        re.MULTILINE,
    )
    comes_in = {
        name.removeprefix("nvidia-smi ").lstrip("-"): how
        for names, how in rows
        for name in re.findall(r"`([^`]+)`", names)
    }
    read = {reader.name for reader in READERS}
    assert read <= set(comes_in)
    assert set(comes_in) - read == {"nvtop", "htop", "atop", "dool"}
    for name, how in comes_in.items():
        assert ("llmprof.read(" in how) == (name in read | {"dool"}), name


@pytest.mark.parametrize("name", GUIDES)
def test_guides_say_nothing_of_this_machine(texts, name):
    assert not re.search(r"/(?:home|work|root|tmp)/", texts[name])


def test_the_walk_from_a_file_to_a_picture_is_what_runs(root, monkeypatch):
    text = (root / "docs" / "walk.md").read_text("utf-8")
    steps = re.findall(
        r"^\d+\. `([\w/]+\.py)`: (.*?)(?=^\d+\. |\Z)", text, re.MULTILINE | re.DOTALL
    )
    named = [
        (file, name) for file, words in steps for name in re.findall(r"`(\w+(?:\.\w+)?)`", words)
    ]
    assert len({file for file, _ in steps}) == len(steps) <= 12
    called = {}

    def note(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{root}/"):
            called.setdefault(
                (path.removeprefix(f"{root}/"), frame.f_code.co_qualname), len(called)
            )

    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(root)
    monkeypatch.setenv("LLMPROF_WORKERS", "1")
    values = {}
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        exec(code, values)
    finally:
        sys.setprofile(before)
    assert not [one for one in named if one not in called]
    first = [min(called[one] for one in named if one[0] == file) for file, _ in steps]
    assert [file for _, (file, _) in sorted(zip(first, steps, strict=True))] == [
        file for file, _ in steps
    ]
    assert values["found"]["rule"][0] == "host_bound"
