"""The cache of parsed traces: taken when nothing changed, never in the way."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import polars as pl
import pytest

import llmprof
from llmprof.errors import TraceWarning
from llmprof.readers import cache, registry
from llmprof.readers.chrome import reader
from tests.readers.traces import event, kernel, op, same, text_of, write


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "trace.json", text_of([kernel("a", 5, 2), op(ts=3)]))


@pytest.fixture
def parsed(monkeypatch):
    """Files that were parsed, in order."""
    found = []
    original = reader.read

    def read(path, **options):
        found.append(path.name)
        return original(path, **options)

    monkeypatch.setattr(reader, "read", read)
    return found


def entries(folder):
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_second_reading_comes_from_the_cache(path, parsed, folder):
    first = llmprof.read(path, cache=True)
    second = llmprof.read(path, cache=True)
    assert parsed == ["trace.json"]
    assert same(first.tables, second.tables)
    assert first.meta == second.meta
    assert json.dumps(first.coverage) == json.dumps(second.coverage)
    assert len(entries(folder)) == 1
    assert folder.stat().st_mode & 0o077 == 0


def test_never_when_told_so(path, parsed, folder):
    llmprof.read(path, cache=True)
    llmprof.read(path, cache=False)
    assert parsed == ["trace.json"] * 2
    llmprof.read(write(path.with_name("other.json"), path.read_bytes()), cache=False)
    assert len(entries(folder)) == 1


def other_content(path, monkeypatch):
    write(path, text_of([kernel("b", 5, 2)]))


def other_time(path, monkeypatch):
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))


def other_version(path, monkeypatch):
    other = tuple(replace(one, version=10**6) for one in registry.readers())
    monkeypatch.setattr(registry, "readers", lambda: other)


@pytest.mark.parametrize("change", [other_content, other_time, other_version])
def test_what_changed_is_read_again(path, parsed, monkeypatch, change):
    llmprof.read(path, cache=True)
    change(path, monkeypatch)
    assert llmprof.read(path, cache=True).kernels["name"].to_list() == [
        "b" if change is other_content else "a"
    ]
    assert len(parsed) == 2


def test_options_are_kept_apart(tmp_path, parsed):
    path = write(tmp_path / "trace.json", text_of([op(), event("python_function", "f")]))
    assert llmprof.read(path, cache=True).ops.height == 2
    assert llmprof.read(path, cache=True, python_functions=False).ops.height == 1
    assert llmprof.read(path, cache=True).ops.height == 2
    assert len(parsed) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "llmprof.json").write_text("{"),
        lambda entry: (entry / "llmprof.json").unlink(),
        lambda entry: (entry / "kernels.parquet").unlink(),
        lambda entry: os.truncate(entry / "kernels.parquet", 1000),
        lambda entry: (
            pl.read_parquet(entry / "kernels.parquet")
            .clear()
            .write_parquet(entry / "kernels.parquet")
        ),
    ],
    ids=["head", "no head", "no table", "cut table", "other rows"],
)
def test_a_damaged_entry_is_replaced(path, parsed, folder, damage):
    first = llmprof.read(path, cache=True)
    (name,) = entries(folder)
    damage(folder / name)
    assert same(llmprof.read(path, cache=True).tables, first.tables)
    assert same(llmprof.read(path, cache=True).tables, first.tables)
    assert len(parsed) == 2
    assert entries(folder) == [name]


def test_no_flipped_bit_of_an_entry_gives_other_data(path, parsed, folder):
    first = llmprof.read(path, cache=True)
    (name,) = entries(folder)
    flips = [
        (file, place, bit)
        for file in sorted((folder / name).iterdir())
        for bit, place in enumerate(range(0, file.stat().st_size, file.stat().st_size // 5))
    ]
    for file, place, bit in flips:
        content = bytearray(file.read_bytes())
        content[place] ^= 1 << bit % 8
        file.write_bytes(content)
        again = llmprof.read(path, cache=True)
        assert same(again.tables, first.tables)
        assert (again.meta, again.coverage) == (first.meta, first.coverage)
    tables = [file for file, _, _ in flips if file.suffix == ".parquet"]
    assert (
        1 + len(tables) < len(parsed) <= 1 + len(flips)
    )  # of the head, a flip in the white space changes nothing


@pytest.mark.parametrize("place", ["file/cache", "file"])
def test_a_cache_that_cannot_be_written_is_a_warning(path, tmp_path, monkeypatch, place):
    write(tmp_path / "file", b"in the way")
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / place))
    with pytest.warns(
        TraceWarning, match=r"could not be cached in .*set LLMPROF_CACHE .* or pass cache=False"
    ) as caught:
        trace = llmprof.read(path, cache=True)
    assert trace.kernels.height == 1
    assert caught[0].filename == __file__
    assert llmprof.read(path, cache=False).kernels.height == 1


def test_losses_are_said_each_time(tmp_path, parsed):
    path = write(tmp_path / "trace.json", text_of([kernel("a"), kernel("b")])[:-30])
    for _ in range(2):
        with pytest.warns(TraceWarning, match="the file ends inside the list of events"):
            llmprof.read(path, cache=True)
    assert parsed == ["trace.json"]


def test_the_oldest_entries_go_when_there_are_too_many(tmp_path, folder, monkeypatch):
    files = [write(tmp_path / f"{i}.json", text_of([kernel(f"k{i}")])) for i in range(4)]
    for age, file in enumerate(files):
        llmprof.read(file, cache=True)
        newest = max(folder.iterdir(), key=lambda p: p.stat().st_ctime_ns)
        os.utime(newest, (1000 + age, 1000 + age))
    size = sum(f.stat().st_size for f in next(folder.iterdir()).iterdir())
    llmprof.read(files[0], cache=True)  # used just now
    monkeypatch.setattr(cache, "LIMIT_BYTES", int(3.5 * size))
    llmprof.read(write(tmp_path / "new.json", text_of([kernel("new")])), cache=True)
    kept = [pl.read_parquet(p / "kernels.parquet")["name"].item() for p in folder.iterdir()]
    assert sorted(kept) == ["k0", "k3", "new"]


def test_exports_of_reports_count_and_one_in_use_stays(path, folder, monkeypatch, tmp_path):
    exports = []
    for age, name in enumerate("ab"):
        report = write(tmp_path / f"{name}.nsys-rep", name.encode())
        exports.append(cache.export_folder(report))
        exports[-1].mkdir(parents=True)
        (exports[-1] / f"{name}.sqlite").write_bytes(bytes(10_000))
        os.utime(exports[-1], (1000 + age, 1000 + age))
    monkeypatch.setattr(cache, "LIMIT_BYTES", 5_000)
    trace = llmprof.read(path, cache=False)
    cache.store_entry(trace, folder / "entry", exports[0] / "a.sqlite")
    assert [export.exists() for export in exports] == [True, False]
    assert (folder / "entry").exists()


def test_what_a_killed_process_left_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "t.json").write_text('{"traceEvents": []}')
    old, new = tmp_path / "cache" / ".entry-old", tmp_path / "cache" / ".entry-new"
    for place in (old, new):
        place.mkdir(parents=True)
        (place / "kernels.parquet").write_bytes(b"half")
    os.utime(old, (0, 0))
    with pytest.warns(TraceWarning, match="has no event"):
        llmprof.read(tmp_path / "t.json", cache=True)
    assert not old.exists()
    assert new.exists()


def test_readers_that_race_for_an_entry_do_not_warn(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "cache"))
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [event] * 50}))
    with ThreadPoolExecutor(4) as threads:
        traces = list(
            threads.map(lambda _: llmprof.read(tmp_path / "t.json", cache=True), range(8))
        )
    assert {trace.kernels.height for trace in traces} == {50}
    assert len(list((tmp_path / "cache").iterdir())) == 1
