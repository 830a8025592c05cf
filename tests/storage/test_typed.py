"""State that is read back: whatever became of a file, an error of llmprof says so, or it is set
aside.
"""

import io
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from llmprof.errors import ConfigError, ReadError, TraceWarning
from llmprof.run.live import history
from llmprof.run.live.counters import SAMPLE
from llmprof.run.live.past import WatchHistory
from llmprof.trace.storage import typed
from llmprof.trace.storage.parquet import read_frame, sealed
from tests.fuzz import states
from tests.fuzz.seeds import SAMPLES

WRONG = (
    None,
    True,
    -1,
    2**70,
    10**5000,
    1e300,
    "x",
    "a\0b",
    "../..",
    [],
    [[]],
    {},
    {"a": {"b": 1}},
)
"""A value of each kind, with numbers that fit no column and names that are no files."""
FORMS = (
    b"",
    b"null",
    b"[]",
    b"7",
    b"\xff\x00\xfe",
    b"[" * 10**5,
    b'{"a":' * 10**5,
    b"9" * 10**5,
    b"{",
    b"\x00" * 99,
)
STATES = sorted(set(states.DOORS) - {"state history"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Whole state files of every kind."""
    folder = tmp_path_factory.mktemp("states")
    run = folder / "source"
    shutil.copytree(
        SAMPLES / "run_torch_tp1", run, ignore=shutil.ignore_patterns("traces", "sample.json")
    )
    states.make(folder, run)
    return folder


def places(value, path=()):
    """Paths of all values in a document; of a list its first items."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:2])
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(document, path, value):
    made = json.loads(json.dumps(document))
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


def written(value):
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value)
    finally:
        sys.set_int_max_str_digits(limit)


def opened(name, folder):
    """Every door opens or is shut with words; nothing else is raised."""
    with warnings.catch_warnings(action="ignore", category=TraceWarning):
        for door, error in states.opened(name, folder, deep=False):
            assert error is None or str(error), door


@pytest.mark.parametrize("name", STATES)
def test_whole_states_open(whole, name):
    shut = {
        door: str(error)
        for door, error in states.opened(name, next((whole / name).iterdir()), deep=False)
        if error
    }
    assert shut.keys() <= {"metrics", "energy"}, shut


@pytest.mark.parametrize("name", STATES)
def test_a_field_of_a_wrong_type(whole, name, tmp_path):
    rng, source = random.Random(name), next((whole / name).iterdir())
    for file in sorted(source.rglob("*.json")):
        if file.name in {"manifest.json", "metrics.json"} or "model" in file.parts:
            continue
        document = json.loads(file.read_text())
        found = sorted(places(document), key=str)
        for path in rng.sample(found, min(len(found), 12)):
            folder = Path(shutil.copytree(source, tmp_path / "copy", dirs_exist_ok=True))
            (folder / file.relative_to(source)).write_text(
                written(changed(document, path, rng.choice(WRONG)))
            )
            opened(name, folder)


@pytest.mark.parametrize("name", STATES)
def test_a_file_of_another_form(whole, name, tmp_path):
    rng, source = random.Random(name), next((whole / name).iterdir())
    files = [
        path for path in sorted(source.rglob("*")) if path.is_file() and "model" not in path.parts
    ]
    for file in files:
        data = file.read_bytes()
        for content in (*rng.sample(FORMS, 3), data[: len(data) // 2]):
            folder = Path(shutil.copytree(source, tmp_path / "copy", dirs_exist_ok=True))
            (folder / file.relative_to(source)).write_bytes(content)
            opened(name, folder)


@pytest.mark.parametrize(
    ("kind", "value", "place"),
    [
        (
            typed.SweepJson,
            {"version": 2, "config": {"model": "m"}, "parameters": {}, "points": []},
            "version",
        ),
        (
            typed.WorkerJson,
            {"requests": [{"phase": "plain", "ttft_s": "soon"}]},
            "requests[0].ttft_s",
        ),
        (
            typed.WorkerJson,
            {"requests": [{"phase": "plain", "ttft_s": 1e300}]},
            "requests[0].ttft_s",
        ),
        (typed.WorkerJson, {"requests": [], "peak_memory_bytes": {"0": None}}, "peak_memory_bytes"),
        (typed.RunJson, {"state": "unheard of"}, "state"),
        (typed.StartJson, {"home": "a\0b"}, "home"),
        (
            typed.WatchJson,
            {"events": [{"time": "t", "what": "captured", "folder": "../.."}]},
            "events[0].folder",
        ),
        (typed.WatchJson, {"captures": 2**64}, "captures"),
    ],
)
def test_the_error_names_file_and_field(tmp_path, kind, value, place):
    path = tmp_path / "state.json"
    path.write_text(json.dumps(value))
    with pytest.raises(ReadError) as caught:
        typed.read(path, kind)
    assert str(path) in caught.value.found
    assert place in caught.value.found
    assert caught.value.hint


def test_what_is_missing_damaged_or_kept(tmp_path):
    path = tmp_path / "watch.json"
    assert (
        typed.found(path, typed.WatchJson)
        is typed.read_if_whole(path, typed.WatchJson)
        is typed.read_or_set_aside(path, typed.WatchJson)
        is None
    )
    path.write_text('{"captures": 3, "later": [1]}')
    assert typed.read(path, typed.WatchJson) == {"captures": 3, "later": [1]}, (
        "what a later version wrote stays"
    )
    path.write_text("{")
    assert typed.read_if_whole(path, typed.WatchJson) is None
    with pytest.warns(TraceWarning, match="damaged-1"):
        assert typed.read_or_set_aside(path, typed.WatchJson) is None
    assert (tmp_path / "watch.json.damaged-1").read_text() == "{"
    path.write_text("[")
    with pytest.warns(TraceWarning, match="damaged-2"):
        typed.read_or_set_aside(path, typed.WatchJson)


YAML = {
    "digits": "a: " + "9" * 10**5,
    "deep": "[" * 10**5,
    "in itself": "a: &a [*a]",
    "no number": "a: !!int ''",
    "no time": "a: !!timestamp soon",
    "no truth": "a: !!bool perhaps",
    "no day": "a: 2026-13-45",
    "twice": "a: {a: 1, a: 2}",
    "a key that is none": "? {a: 1}\n: 2",
    "a tag": "a: !!python/name:os.system",
    "aliases": "a0: &a0 [x, x, x, x, x]\n"
    + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 5}]\n" for n in range(1, 12)),
}


@pytest.mark.parametrize("text", YAML.values(), ids=YAML)
def test_yaml_that_is_no_plain_data(text):
    with pytest.raises(ConfigError):
        typed.from_yaml(text, "a.yaml", error=ConfigError)


def test_yaml_may_repeat_a_part():
    values = typed.from_yaml("a: &a {b: [1, 2]}\nc: *a\nd: [*a, *a]", "a.yaml")
    assert values["d"] == [values["a"], values["c"]]


def flipped(data, rng):
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 3))):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def test_flipped_bits_of_a_sealed_frame_are_found(tmp_path):
    frame, path = (
        pl.DataFrame({"a": list(range(500)), "b": [n / 7 for n in range(500)]}),
        tmp_path / "a.parquet",
    )
    data = sealed(frame, {"about": "x"})
    assert pl.read_parquet(io.BytesIO(data)).equals(frame), "other readers read it, too"
    assert pl.read_parquet_metadata(io.BytesIO(data))["about"] == "x"
    rng, refused = random.Random(3), 0
    for _ in range(200):
        path.write_bytes(flipped(data, rng))
        try:
            assert read_frame(path).equals(frame)
        except ReadError:
            refused += 1
    assert refused > 150


def kept(folder):
    made = WatchHistory.open(folder)
    for number in range(20):
        made.add(
            dict.fromkeys(SAMPLE)
            | {"time_ns": 10**9 * number, "seconds": 1.0, "waiting": float(number)}
        )
    made.store()
    return made


def test_a_damaged_history_is_set_aside_and_a_new_one_begins(tmp_path):
    made, rng, begun = kept(tmp_path / "history"), random.Random(5), 0
    data, frame = made.file.read_bytes(), made.recent()
    for number in range(100):
        made.file.write_bytes(
            flipped(data, rng) if number % 2 else data[: rng.randrange(len(data))]
        )
        with warnings.catch_warnings(record=True, action="always") as caught:
            again = WatchHistory.open(tmp_path / "history")
        if not caught:
            assert again.recent().equals(frame), "what is read is as it was written"
            continue
        assert again.recent().is_empty()
        again.store()
        begun += 1
        assert history(tmp_path).is_empty()
        assert len(list(made.file.parent.glob("*.damaged-*"))) == begun
    assert begun > 60


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE levels",
        "DELETE FROM levels WHERE name = 'hours'",
        "UPDATE levels SET content = 7",
    ],
)
def test_a_history_that_lacks_something(tmp_path, sql):
    made = kept(tmp_path / "history")
    with closing(sqlite3.connect(made.file)) as database, database:
        database.execute(sql)
    with pytest.raises(ReadError):
        history(tmp_path)
    with pytest.warns(TraceWarning, match="damaged-1"):
        assert WatchHistory.open(tmp_path / "history").hours().is_empty()


def test_a_history_survives_the_kill_of_its_process(tmp_path):
    code = (
        "import sys, os, itertools\nfrom llmprof.run.live.past import WatchHistory\nfrom llmprof.run.live.counters import SAMPLE\n"
        "made = WatchHistory.open(sys.argv[1])\n"
        "for n in itertools.count():\n"
        "    made.add(dict.fromkeys(SAMPLE) | {'time_ns': n, 'seconds': 1.0})\n    made.store()\n"
        "    print(n, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "history"], stdout=subprocess.PIPE
    ) as process:
        for _ in range(20):
            process.stdout.readline()
        process.kill()
    assert history(tmp_path).filter(level="recent").height >= 20


def test_half_a_surrogate_pair_is_damage_and_no_fault():
    with pytest.raises(ReadError):
        typed.decoded('{"\\ud800": 1}', typed.MachineJson, "gpu_info.json")
    with pytest.raises(ReadError):
        typed.decoded('{"cores": 8, "name": "\\ud800"}', dict[str, object], "gpu_info.json")
    pair = typed.decoded('{"name": "\\ud83d\\ude00"}', dict[str, str], "gpu_info.json")
    assert pair == {"name": "\U0001f600"}
