"""Content of files, plain and gzip, whole and damaged, in blocks of any size."""

import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmprof.errors import ReadError
from llmprof.readers.common.event_stream import Blocks
from tests.readers.traces import write

IN_FOLDER = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(path, block_bytes=1000):
    blocks = Blocks(path, block_bytes)
    found = list(blocks)
    assert all(len(block) > 0 for block in found)
    return b"".join(found), blocks


MEMBERS = st.tuples(
    st.binary(max_size=900) | st.integers(0, 4).map(lambda n: b"repeat" * 10**n), st.integers(0, 9)
)


@given(
    members=st.lists(MEMBERS, min_size=1, max_size=4),
    padding=st.sampled_from([b"", b"\0", b"\0" * 700]),
    block_bytes=st.integers(1, 5000),
)
@IN_FOLDER
def test_gzip_of_any_number_of_members(tmp_path, members, padding, block_bytes):
    packed = b"".join(gzip.compress(content, level) + padding for content, level in members)
    found, blocks = read(write(tmp_path / "file", packed), block_bytes)
    assert found == b"".join(content for content, _ in members)
    assert blocks.damage == ""
    assert blocks.read_bytes == len(packed)


def test_a_member_that_begins_at_the_end_of_a_read(tmp_path, monkeypatch):
    members = [gzip.compress(b"%d," % i) for i in range(50)]
    for size in (1, 2, 3, 24, 25):
        monkeypatch.setattr("llmprof.readers.common.event_stream._COMPRESSED_BYTES", size)
        found, blocks = read(write(tmp_path / "file", b"".join(members)))
        assert found == b"".join(b"%d," % i for i in range(50))
        assert blocks.damage == ""


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ReadError, match="does not exist"):
        list(Blocks(tmp_path / "nothing"))
    with pytest.raises(ReadError, match="cannot read"):
        list(Blocks(tmp_path))
