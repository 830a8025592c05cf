"""The page of features: each command, function and test that it names exists, and its commands
on samples run.
"""

import re
import shlex
from pathlib import Path

import pytest

from llmprof.cli.main import main, parser

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in (ROOT / "benchmarks" / "features.md").read_text("utf-8").splitlines()
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


@pytest.mark.slow
def test_commands_on_samples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in [words for words, needs in COMMANDS if needs == "sample"]:
        code = main(words)
        out, err = capsys.readouterr()
        assert code == 0 or words[0] == "doctor", f"{words}: {err}"
        assert out.strip(), words
