"""Files and blocks that several processes share give the same trace, whoever read what and
whatever happens.
"""

import contextlib
import gzip
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import llmprof
from llmprof.errors import ReadError
from llmprof.readers import reading
from llmprof.readers.chrome import reader as chrome
from llmprof.readers.common import helpers
from tests.readers.test_chrome_blocks import DOCUMENTS
from tests.readers.traces import (
    event,
    kernel,
    launch,
    op,
    rank_file,
    read_one,
    same,
    text_of,
    write,
)

IN_FOLDER = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


class _Helper:
    """A helper in this process, which did its share before the others began."""

    pid = os.getpid()
    ended = 0

    def poll(self):
        return None

    def kill(self):
        _Helper.ended += 1


class _Share(helpers.JobShare):
    def __init__(self, folder, wants):
        super().__init__(folder)
        self.wants = wants

    def take(self, unit):
        return self.wants(unit) and super().take(unit)


@pytest.fixture
def helped(monkeypatch):
    """Sets which units the helper of the next readings takes; all files are worth its help."""

    def set_(wants, *, fails=False):
        def asked(line, count):
            told = json.loads(line)
            share = _Share(Path(told["folder"]), wants)
            module, name = told["task"].split(":")
            work = {chrome.__name__: chrome.read_units, reading.__name__: reading.read_next_files}[
                module
            ]
            assert work.__name__ == name
            with contextlib.suppress(Exception):  # as a helper does
                work(told["of"], share)
            if not fails:
                share.close()
            elif share.out is not None:
                share.out.close()
            helper = _Helper()
            helper.poll = (lambda: 1) if fails else helper.poll
            return [helper]

        monkeypatch.setattr(helpers, "asked_helpers", asked)

    monkeypatch.setattr(helpers, "WORTH_BYTES", 0)
    monkeypatch.setattr(helpers, "end_helper", lambda helper: helper.kill())
    return set_


def many(count=40, **more):
    """Events of all kinds, with texts that come late and counters."""
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "GPU 0"}}]
    for i in range(count):
        events += [
            op(f"aten::{i % 7}", 10 * i, 5, **{"External id": i, "Input Dims": [[i % 3, 2]]}),
            launch(ts=10 * i + 1, correlation=i),
            kernel(
                f"kernel_{i % 11}",
                10 * i + 2,
                3,
                correlation=i,
                **({"graph id": 3} if i % 5 else {}),
            ),
            {
                "ph": "C",
                "name": "memory",
                "pid": 0,
                "ts": 10 * i,
                "args": {"used (B)": i, "free": 2},
            },
            event("odd", f"odd {i}", 10 * i, pid=0),
        ]
    return [*events, {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "late"}}], more


def alike(path, helped, *shares, block_bytes=500, **options):
    """The parts of a file as one process reads it, which are those of each share of the work."""
    alone = chrome.read(path, block_bytes=block_bytes)
    for wants in shares:
        helped(wants, **options)
        together = chrome.read(path, block_bytes=block_bytes, workers=2)
        assert len(alone) == len(together)
        for a, b in zip(alone, together, strict=True):
            assert same(a.tables, b.tables)
            assert [f.schema for f in a.tables.values()] == [f.schema for f in b.tables.values()]
            assert list(a.tables) == list(b.tables)
            assert (a.head, a.coverage) == (b.head, b.coverage)
    return alone


SHARES = {
    "all": lambda unit: True,
    "none": lambda unit: False,
    "every second": lambda unit: unit % 2 == 0,
    "the first": lambda unit: unit == 0,
    "the others": lambda unit: unit > 0,
    "thirds": lambda unit: unit % 3 == 1,
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_blocks_of_a_file_give_the_same_part_whoever_reads_them(tmp_path, helped, packed):
    events, _ = many()
    text = text_of(events, baseTimeNanoseconds=10**18)
    path = write(
        tmp_path / ("t.json.gz" if packed else "t.json"), gzip.compress(text) if packed else text
    )
    (part,) = alike(path, helped, *SHARES.values())
    assert part.tables["kernels"].height == 80  # the odd ones are of a process that is a device


def test_a_cut_file_and_long_keys_after_the_events(tmp_path, helped):
    text = text_of(many()[0])
    alike(write(tmp_path / "cut.json", text[:-2000]), helped, *SHARES.values())
    frames = {str(i): {"name": "}, {" * 5, "list": [{"a": i}, {"b": ["]}"]}]} for i in range(50)}
    document = {
        "before": frames,
        "traceEvents": many()[0],
        "after": frames,
        "baseTimeNanoseconds": 10**18,
    }
    (part,) = alike(
        write(tmp_path / "keys.json", json.dumps(document).encode()), helped, *SHARES.values()
    )
    assert part.tables["kernels"]["start_ns"].min() >= 10**18


@given(text=DOCUMENTS, block_bytes=st.integers(1, 300), odd=st.integers(1, 3))
@IN_FOLDER
def test_any_document(tmp_path, helped, text, block_bytes, odd):
    path = write(tmp_path / "t.json", text)
    alike(path, helped, lambda unit: unit % odd == 0, block_bytes=block_bytes)


def test_a_helper_that_dies_leaves_its_blocks_to_the_others(tmp_path, helped):
    alike(write(tmp_path / "t.json", text_of(many()[0])), helped, SHARES["thirds"], fails=True)


def ranks(folder, count=4):
    folder.mkdir()
    for rank in range(count):
        rank_file(folder, rank, [*many(5)[0], kernel(f"own_{rank}", 3)], world=count)
    return folder


def equal(a, b):
    assert same(a.capture.recorded, b.capture.recorded)
    assert (a.meta, a.coverage) == (b.meta, b.coverage)


@pytest.mark.parametrize("wants", SHARES.values(), ids=SHARES)
def test_ranks_give_the_same_trace_whoever_reads_them(tmp_path, helped, wants):
    folder = ranks(tmp_path / "run")
    helped(wants)
    seen = []
    together = llmprof.read(
        folder, cache=False, workers=2, progress=lambda *told: seen.append(told)
    )
    equal(together, llmprof.read(folder, cache=False, workers=1))
    assert together.ranks == [0, 1, 2, 3]
    assert {name for name, *_ in seen} == {f"rank{rank}.json" for rank in range(4)}
    assert all(done == size for _, done, size in seen)


def test_only_what_was_asked_for_comes_back(tmp_path, helped):
    folder = ranks(tmp_path / "run")
    helped(SHARES["every second"])
    wanted = {"kernels": ("stream",), "ops": None}
    together = llmprof.read(folder, tables=wanted, cache=False, workers=2)
    equal(together, llmprof.read(folder, tables=wanted, cache=False, workers=1))


def test_the_error_is_that_of_the_first_file_that_has_one(tmp_path, helped):
    folder = ranks(tmp_path / "run")
    for rank in (1, 2):
        (folder / f"rank{rank}.json").write_text('{"traceEvents": [ {"ph": "X", "cat')
    with pytest.raises(ReadError, match=r"rank1\.json holds no whole event") as alone:
        llmprof.read(folder, cache=False, workers=1)
    for wants in SHARES.values():
        helped(wants)
        with pytest.raises(ReadError) as together:
            llmprof.read(folder, cache=False, workers=2)
        assert str(together.value) == str(alone.value)


def test_an_interrupt_ends_helpers_and_leaves_no_folder(tmp_path, helped, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    folder = ranks(tmp_path / "run")
    helped(SHARES["none"], fails=True)

    def interrupt(*told):
        raise KeyboardInterrupt

    before = _Helper.ended
    with pytest.raises(KeyboardInterrupt):
        llmprof.read(folder, cache=False, workers=2, progress=interrupt)
    assert _Helper.ended == before + 1
    assert not list((tmp_path / "temporary").iterdir())
    assert llmprof.read(folder, cache=False, workers=2).ranks == [0, 1, 2, 3]


def test_without_a_place_for_temporary_files_one_process_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(helpers, "WORTH_BYTES", 0)
    monkeypatch.setattr(
        "tempfile.mkdtemp",
        lambda **_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    assert llmprof.read(ranks(tmp_path / "run"), cache=False, workers=2).ranks == [0, 1, 2, 3]


@pytest.fixture
def real(monkeypatch):
    """Real helpers, of which the first unit is left to one, so that it takes part however late
    it starts.
    """
    monkeypatch.setattr(helpers, "WORTH_BYTES", 0)
    take = helpers.Job.take

    def patient(job, unit):
        if job.is_shared and unit == 0:
            (helper,) = job.helpers
            while not (job.share.folder / "0.taken").exists() and helper.poll() is None:
                time.sleep(0.01)
        return take(job, unit)

    monkeypatch.setattr(helpers.Job, "take", patient)
    yield
    helpers.end_helpers()


@pytest.mark.slow
def test_a_real_helper_reads_files_and_blocks_and_is_used_again(tmp_path, real):
    folder = ranks(tmp_path / "run")
    alone = llmprof.read(folder, cache=False, workers=1)
    equal(llmprof.read(folder, cache=False, workers=2), alone)
    (first,) = helpers.POOL
    path = write(tmp_path / "t.json", text_of(many(400)[0]))
    one, other = read_one(path, block_bytes=5000), read_one(path, block_bytes=5000, workers=2)
    assert same(one.tables, other.tables)
    assert [first] == helpers.POOL
    assert first.poll() is None
