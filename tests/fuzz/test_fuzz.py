"""A short form of ``make fuzz``: the same files in every run; and the files that once broke
something.
"""

from pathlib import Path

import pytest

from tests.fuzz import states
from tests.fuzz import targets as targets_module
from tests.fuzz.targets import Target, mutated, targets, try_file

CRASHERS = Path(__file__).parent / "crashers"
FILES = 25
SLOW = 10
"""Files of readers that open many tables or files."""

NAMES = [
    "chrome",
    "chrome gzip",
    "nsys",
    "nsys parquet",
    "ncu",
    "saved",
    "run",
    "ascend text",
    "ascend database",
    "ascend files",
    "ascend mindspore",
    "monitor",
    "perf",
    "snapshot",
    "rocpd",
    "nvprof",
    "vtune",
    "tensorrt",
    "proton",
    "rocprofv3",
    "ops",
    "nvvp",
    "dataset",
    "names",
    "ncu report",
    *states.DOORS,
]


@pytest.fixture(scope="module")
def all_targets(tmp_path_factory):
    return targets(tmp_path_factory.mktemp("seeds"))


def bad(outcome):
    return outcome.raw or outcome.silent


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_mutated_files_end_in_errors_of_llmprof_or_in_traces(all_targets, name, tmp_path):
    found = {}
    chosen = [
        t for t in all_targets if t.name == name or (name == "monitor" and t.name.startswith(name))
    ]
    if name == "ncu report":
        pytest.importorskip("ncu_report", reason="the optional package ncu-report is not here")
    assert chosen
    for target in chosen:
        for number in range(SLOW if "ascend" in name or "nsys" in name else FILES):
            path = mutated(target, number, tmp_path)
            if said := bad(try_file(target, path, tmp_path, deep=number % 5 == 0)):
                found[target.name, number] = said
    assert not found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_whole_files_hold_what_is_counted(all_targets, tmp_path):
    for target in (one for one in all_targets if one.name not in states.DOORS):
        counted = 0
        for seed in target.seeds:
            outcome = try_file(target, seed, tmp_path, deep=False)
            assert (outcome.said, outcome.raw, outcome.silent, outcome.checked) == (
                "read",
                "",
                "",
                True,
            ), seed
            counted += sum(target.count(seed).values()) + sum(
                f.height for f in target.whole.get(seed.name, {}).values()
            )
        assert counted, target.name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "path", sorted(CRASHERS.iterdir()) if CRASHERS.is_dir() else [], ids=lambda p: p.name
)
def test_files_that_once_broke_something(path, tmp_path):
    name, of = next(
        (k, v) for k, v in targets_module._KINDS.items() if k.split()[0] == path.name.split("-")[0]
    )
    target = Target(name, [], *of)
    assert not bad(try_file(target, path, tmp_path, deep=True))
