"""The guides of the documentation: their commands run, and what they say of checks, views and
options is so.
"""

import re
import shlex
import sys

import pytest

from llmprof.cli.main import main

GUIDES = ("symptoms", "measuring", "toolchain", "hpc_and_llm", "troubleshooting", "faq")

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
