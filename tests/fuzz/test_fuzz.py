"""A short form of ``make fuzz``: the same files in every run; and the files that once broke something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import Outcome, Target, mutated, targets, try_file

CRASHERS = Path(__file__).parent / "crashers"
FILES = 25
NAMES = ["chrome", "chrome gzip", "nsys", "ncu", "saved", "monitor"]


@pytest.fixture(scope="module")
def all_targets(tmp_path_factory) -> list[Target]:
    return targets(tmp_path_factory.mktemp("seeds"))


def bad(outcome: Outcome) -> str:
    return outcome.raw or outcome.silent


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_mutated_files_end_in_errors_of_llmprof_or_in_traces(all_targets, name, tmp_path):
    found = {}
    for target in (t for t in all_targets if t.name.split()[0] == name.split()[0] and (name in (t.name, "monitor"))):
        for number in range(FILES):
            path = mutated(target, number, tmp_path)
            if said := bad(try_file(target, path, tmp_path, deep=number % 5 == 0)):
                found[target.name, number] = said
    assert not found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", sorted(CRASHERS.iterdir()) if CRASHERS.is_dir() else [], ids=lambda p: p.name)
def test_files_that_once_broke_something(all_targets, path, tmp_path):
    target = next(t for t in all_targets if t.name.split()[0] == path.name.split("-")[0])
    assert not bad(try_file(target, path, tmp_path, deep=True))
