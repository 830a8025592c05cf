"""What is taken from the folder that a server names: new traces, and nothing that only looks
like one.
"""

import gzip
import json
import os

import pytest

from llmprof.errors import CaptureError, OutputError
from llmprof.run.live import traces
from llmprof.run.live.traces import TracePlace, collect
from tests.live.stand_in import trace

SECRET = {"password": "wonderland", "list": ["a"], "object": {"b": 1}}
PREFIX = "llmprof-0123456789ab"


@pytest.fixture
def place(tmp_path):
    """A folder with files of another one, looked at before a capture."""
    folder, outside = tmp_path / "profiles", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "good.json").write_bytes(trace(0, 1))
    (outside / "secret.json").write_text(json.dumps(SECRET))
    (folder / "old.json").write_bytes(trace(0, 1))
    made = TracePlace(folder, PREFIX)
    made.remember()
    return made


def secret(path):
    path.write_text(json.dumps(SECRET))


def packed_secret(path):
    path.with_suffix(".json.gz").write_bytes(gzip.compress(json.dumps(SECRET).encode()))


def hard_link(path):
    path.hardlink_to(path.parents[1] / "outside" / "secret.json")


def link(path):
    path.symlink_to(path.parents[1] / "outside" / "good.json")


def link_inside(path):
    path.symlink_to(path.parent / "old.json")


def link_of_the_folder(path):
    (path.parent / PREFIX).symlink_to(path.parents[1] / "outside")


def loop(path):
    path.symlink_to(path)


def dangling(path):
    path.symlink_to(path.parent / "nowhere.json")


def changed(path):
    (path.parent / "old.json").write_bytes(trace(0, 1, steps=7))


def empty(path):
    path.touch()


def a_list(path):
    path.write_text(json.dumps([SECRET]))


def an_archive(path):
    path.write_bytes(b"PK\x03\x04" + bytes(100))


KINDS = [
    *(
        secret,
        packed_secret,
        hard_link,
        link,
        link_inside,
        link_of_the_folder,
        loop,
        dangling,
        changed,
        empty,
        a_list,
    ),
    *(an_archive, os.mkfifo, os.mkdir),
]


@pytest.mark.parametrize("before", ["", PREFIX], ids=["any name", "our name"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_no_new_trace_of_the_folder_is_not_taken(place, kind, before, tmp_path):
    kind(place.folder / f"{before}rank0.json")
    assert place.found() == {}
    with pytest.raises(CaptureError):
        collect(place, tmp_path / "taken", ranks=1, timeout_s=0.0)
    assert not (tmp_path / "taken").exists()
    good = place.folder / f"{PREFIX}-rank1.pt.trace.json.gz"
    good.write_bytes(gzip.compress(trace(1, 2)))
    taken = collect(place, tmp_path / "taken", ranks=1, timeout_s=60.0)
    assert [path.name for path in taken] == [good.name], "a trace beside it is"
    assert list((tmp_path / "taken").iterdir()) == taken


@pytest.mark.parametrize(
    "kind", [link, hard_link, loop, os.mkfifo, secret], ids=lambda kind: kind.__name__
)
def test_a_trace_that_is_exchanged_before_it_is_copied(place, kind, tmp_path, monkeypatch):
    path = place.folder / f"{PREFIX}.json"
    path.write_bytes(trace(0, 1))

    def looked_at(file):
        path.unlink()
        kind(path)
        return True

    monkeypatch.setattr(traces, "is_whole", looked_at)
    with pytest.raises((CaptureError, OutputError)):
        collect(place, tmp_path / "taken", ranks=1, timeout_s=60.0)
    assert not list((tmp_path / "taken").iterdir())


def test_a_folder_that_is_a_link_is_the_folder(place, tmp_path):
    seen = tmp_path / "seen"
    seen.symlink_to(place.folder)
    through = TracePlace(seen, PREFIX)
    through.remember()
    (place.folder / "rank0.json").write_bytes(trace(0, 1))
    assert [path.name for path in through.found()] == ["rank0.json"]
