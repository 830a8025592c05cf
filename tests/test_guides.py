"""The pages of the documentation: there are twelve, their commands and Python run, and the way from
a file to a picture is the one that is described.
"""

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

from llmprof.cli.main import main, parser

ROOT = Path(__file__).parents[1]
PAGES = tuple(
    name
    for name in re.findall(
        r"^([a-z_]+)$", (ROOT / "docs" / "index.md").read_text("utf-8"), re.MULTILINE
    )
)
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


@cache
def blocks(page, kind):
    """Blocks of a kind: ``sh`` and ``python`` run here, ``bash`` and ``py`` need a machine or a file."""
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    return [body for found, body in _BLOCK.findall(text) if found == kind]


def commands(page, kind):
    """The words of each command of llmprof in the blocks of a kind."""
    lines = "\n".join(blocks(page, kind)).replace("\\\n", " ").splitlines()
    split = (shlex.split(line, comments=True) for line in lines)
    found = [list(takewhile(lambda word: word != ">", words)) for words in split]
    return [words[1:] for words in found if words and words[0] == "llmprof"]


ALL = ("index", *PAGES)


def test_the_pages_are_few_and_short():
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} == set(ALL)
    assert len(ALL) == 13
    assert (
        sum(len((ROOT / "docs" / f"{page}.md").read_text("utf-8").split()) for page in ALL)
        <= 25_000
    )
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 90


def test_each_picture_is_shown():
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    shown = {
        name for page in pages for name in re.findall(r"(\w+\.png)\)", page.read_text("utf-8"))
    }
    assert {path.name for path in (ROOT / "docs").glob("*.png")} == shown


def test_links_between_files_lead_somewhere():
    def anchors(text):
        return {
            re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        }

    files = [path for folder in ("", "docs", "benchmarks") for path in (ROOT / folder).glob("*.md")]
    lost = []
    for file in files:
        for link in re.findall(r"\]\(([^)\s]+)\)", file.read_text("utf-8")):
            path, _, anchor = link.partition("#")
            there = file.parent / path if path else file
            # written when the pages are built
            if "://" in link or path.startswith(("api/", "notebooks/index")):
                continue
            if not there.exists() or (anchor and anchor not in anchors(there.read_text("utf-8"))):
                lost.append((file.name, link))
    assert not lost


@pytest.mark.parametrize("page", ALL)
def test_commands_and_their_options_exist(page):
    named = parser()
    (choices,) = [action.choices for action in named._actions if isinstance(action.choices, dict)]
    for words in commands(page, "bash"):
        named.parse_args(words if words[0] in choices else ["look", *words])
    for code in blocks(page, "py"):
        compile(code, page, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in ALL if blocks(page, "sh")])
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("sample_traces", "notebooks"):
        (tmp_path / name).symlink_to(ROOT / name)
    for words in commands(page, "sh"):
        code = main(words)
        out, err = capsys.readouterr()
        assert code == 0 or words[0] == "doctor", f"{words}: {err}"  # 1 where something is missing
        assert out.strip(), words


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in ALL if blocks(page, "python")])
def test_the_python_of_a_page_runs(page, tmp_path):
    code = "\n".join(blocks(page, "python"))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_walk_from_a_file_to_a_picture_is_what_runs(root, monkeypatch):
    text = (root / "CONTRIBUTING.md").read_text("utf-8")
    text = text.partition("## From a file to a finding to a picture")[2].partition("\n## ")[0]
    steps = re.findall(
        r"^\d+\. `([\w/]+\.py)`: (.*?)(?=^\d+\. |\Z)", text, re.MULTILINE | re.DOTALL
    )
    named = [
        (file, name) for file, words in steps for name in re.findall(r"`(\w+(?:\.\w+)?)`", words)
    ]
    assert len({file for file, _ in steps}) == len(steps) <= 9
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
