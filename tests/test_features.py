"""The page of features: each command, function and test that it names exists, and its commands
on samples run.
"""

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

from llmprof.cli.main import main, parser

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in (ROOT / "docs" / "features.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| feature")
]
COMMANDS = [
    (words[1:], needs)
    for _, here, _, needs in ROWS
    for span in re.findall(r"`([^`]+)`", here)
    if (words := shlex.split(span))[0] == "llmprof"
]


@pytest.mark.parametrize(
    ("words", "needs"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS]
)
def test_commands_and_their_options_exist(words, needs):
    parser().parse_args(words)


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_functions_and_tests_exist(row):
    _, here, test, _ = row
    for span in re.findall(r"`([\w.]+)`", here):
        path = span.removeprefix("llmprof.").split(".")
        found = importlib.import_module("llmprof")
        for depth, name in enumerate(path, 1):
            if not hasattr(found, name):
                found = importlib.import_module(".".join(["llmprof", *path[:depth]]))
            else:
                found = getattr(found, name)
    for file in re.findall(r"`([\w/]+\.py)`", here):
        assert (ROOT / file).is_file()
    for page, place in re.findall(r"\[\]\(([\w.]+)#?([\w-]*)\)", here):
        headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
        assert not place or place in {
            re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings
        }
    (name,) = re.findall(r"^`(tests/[\w/]+\.py::\w+(?:::\w+)?)`$", test)
    file, *within = name.split("::")
    body = ast.parse((ROOT / file).read_text("utf-8")).body
    for each in within:
        (node,) = [
            one
            for one in body
            if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == each
        ]
        body = node.body


@pytest.mark.slow
def test_commands_on_samples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in [words for words, needs in COMMANDS if needs == "sample"]:
        code = main(words)
        out, err = capsys.readouterr()
        assert code == 0 or words[0] == "doctor", f"{words}: {err}"
        assert out.strip(), words
