"""Files that were made to break a reader: each ends in an error of llmprof or in a warning, in
bounded memory.
"""

import gzip
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import read_metrics
from llmprof.errors import (
    LlmprofError,
    MixedRunsError,
    ReadError,
    SchemaError,
    TraceWarning,
    UnknownFormatError,
)
from llmprof.readers.common.event_stream import MOST_EVENT_BYTES
from llmprof.readers.common.reader import MOST_RANKS, border
from llmprof.readers.redaction import redact
from llmprof.trace import META_FILE
from tests.readers.traces import kernel

EVENT = kernel("k", 1, 2)


def written(path, head=None, events=None):
    path.write_text(
        json.dumps({**(head or {}), "traceEvents": [EVENT] if events is None else events})
    )
    return path


def read(path):
    """The trace, and all warnings as one text."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        trace = llmprof.read(path, cache=False)
    assert all(issubclass(w.category, TraceWarning) for w in caught)
    return trace, "\n".join(str(w.message) for w in caught)


@pytest.mark.parametrize(
    "said", [{"world_size": 2**31 - 1, "rank": 0}, {"rank": 2**31 - 1, "world_size": 8}]
)
def test_a_number_of_ranks_that_no_run_has_is_not_believed(tmp_path, said):
    trace, warned = read(written(tmp_path / "t.json", {"distributedInfo": said}))
    assert "is ignored" in warned
    assert len(trace.meta["missing_ranks"]) < 10
    assert trace.meta["world_size"] <= MOST_RANKS


@pytest.mark.parametrize(
    "name",
    [
        "rank_20261122103000.json",
        "worker.1718000000000.pt.trace.json",
        "ray-worker_43217.1.pt.trace.json",
    ],
)
def test_times_and_processes_in_the_name_of_a_file_are_no_ranks(tmp_path, name):
    trace, warned = read(written(tmp_path / name))
    assert (trace.ranks, warned) == ([0], "")
    assert trace.meta["missing_ranks"] == []


@pytest.fixture
def change(small_export, tmp_path):
    """A copy of the small export after some statements."""

    def changed(*statements):
        path = tmp_path / "changed.sqlite"
        shutil.copyfile(small_export, path)
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
        return path

    return changed


@pytest.fixture(scope="module")
def whole(small_export):
    trace = llmprof.read(small_export, cache=False)
    assert all(trace.has(name) for name in ("kernels", "copies", "runtime", "markers"))
    return trace


@pytest.mark.parametrize(
    "value", ["'text'", "1e300", "x'00ff'", str(2**63 - 1), str(-(2**63)), "'12 apples'"]
)
def test_a_time_that_is_none_leaves_out_its_row_and_says_so(change, whole, value):
    path = change(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = {value} WHERE rowid IN (1, 2)")
    trace, warned = read(path)
    lost = whole.kernels.height - trace.kernels.height
    assert lost == 2  # 12 ns is long before the launch of the kernel
    assert bool(warned) == bool(lost)
    assert trace.coverage["impossible"] == lost


def test_identifiers_that_come_twice_do_not_double_the_events(change, whole):
    path = change(
        "CREATE TABLE other AS SELECT * FROM StringIds UNION ALL SELECT id, 'again' FROM StringIds",
        "DROP TABLE StringIds",
        "ALTER TABLE other RENAME TO StringIds",
    )
    trace, warned = read(path)
    assert trace.kernels["name"].to_list() == whole.kernels["name"].to_list()
    assert "duplicate identifiers" in warned


@pytest.mark.parametrize(
    "shapes",
    [
        [[], [2, 256], []],
        [[[2, 3]], []],
        ["x"],
        [{"a": 1}],
        [[1e300]],
        [[-1]],
        [None],
        5,
        "[",
        [[[[1]]]],
    ],
)
def test_shapes_of_any_form(tmp_path, shapes):
    op = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "c10d::allreduce_",
        "pid": 1,
        "tid": 1,
        "ts": 0,
        "dur": 9,
        "args": {
            "External id": 1,
            "Input Dims": shapes,
            "Input type": ["float", "c10::BFloat16", ""],
        },
    }
    reduced = kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 1, 2, **{"External id": 1})
    trace, _ = read(written(tmp_path / "t.json", events=[op, reduced]))
    assert llmprof.analyze.collectives(trace).height == 1


def test_names_of_files_that_are_no_utf_8(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/tr\xff\xe9.json"))
    trace, _ = read(written(path))
    assert trace.kernels.height == 1
    trace.save(tmp_path / "saved")
    assert llmprof.read(tmp_path / "saved").kernels.height == 1
    path.write_text("{}")
    with pytest.raises(LlmprofError) as caught:
        llmprof.read(path)
    assert str(caught.value).encode("utf-8", "surrogateescape")


def test_a_file_that_goes_while_it_is_read(tmp_path):
    path = written(tmp_path / "t.json", events=[EVENT] * 100)

    def gone(name, done, total):
        path.unlink(missing_ok=True)

    with pytest.raises(ReadError, match=r"t\.json"):
        llmprof.read(path, cache=False, progress=gone)


LIMITED = """
import resource, sys, warnings
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
import llmprof, polars
from llmprof.errors import LlmprofError
warnings.simplefilter("ignore")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    llmprof.read({path!r}, cache=False)
except LlmprofError as error:
    print("refused:", str(error)[:200])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def limited(path, *, limit=3 << 30):
    """Read a file in a process whose address space is limited: what it says, and the bytes it
    took.
    """
    code = LIMITED.format(path=str(path), limit=limit)
    environment = {**os.environ, "POLARS_MAX_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    *said, used = done.stdout.splitlines()
    return "\n".join(said), int(used)


@pytest.mark.slow
def test_a_gzip_of_one_endless_string_takes_bounded_memory(tmp_path):
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b'{"traceEvents": [{"ph": "X", "name": "')
        for _ in range(512):
            file.write(b"a" * (1 << 20))
    said, used = limited(path)
    assert "refused" in said
    assert used < 10 * MOST_EVENT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        b"[" * (4 << 20),
        b'{"a":' * (1 << 20),
        b'{"traceEvents": [' + b"[" * (4 << 20),
        b"{" * (4 << 20),
    ],
    ids=["arrays", "values", "events", "objects"],  # pytest would name a test by all of its text
)
def test_brackets_without_end_are_refused_in_bounded_time_and_memory(tmp_path, text):
    path = tmp_path / "deep.json"
    path.write_bytes(text)
    said, used = limited(path)
    assert "refused" in said
    assert used < 3 * len(text) + (200 << 20)


@pytest.mark.slow
def test_a_gzip_of_endless_text_of_a_monitor_is_refused(tmp_path):
    path = tmp_path / "dmon.txt.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b"# gpu   pwr gtemp mtemp    sm   mem\n# Idx     W     C     C     %     %\n")
        for _ in range(600):
            file.write(b"    0    27    40     -     0     0\n" * 30_000)
    said, _ = limited(path)
    assert "MiB" in said


def test_a_csv_of_ncu_with_a_cell_without_end(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        '"ID","Process ID","Process Name","Kernel Name"\n"0","1","x","' + "a" * 300_000 + '"\n'
    )
    with warnings.catch_warnings(action="ignore", category=TraceWarning):
        assert read_metrics(path).metrics.height == 0


def test_a_saved_trace_whose_parquet_is_something_else(tmp_path):
    trace, _ = read(written(tmp_path / "t.json"))
    trace.save(tmp_path / "s")
    pl.DataFrame({"start_ns": ["x"]}).write_parquet(tmp_path / "s" / "kernels.parquet")
    with pytest.raises(ReadError, match="damaged"):
        llmprof.read(tmp_path / "s")
    (tmp_path / "s" / "kernels.parquet").write_bytes(b"PAR1" + b"\xff" * 100 + b"PAR1")
    with pytest.raises(ReadError, match="damaged"):
        llmprof.read(tmp_path / "s")


def pipe(path):
    os.mkfifo(path)
    return path


def socket_of(path):
    with closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(str(path))
    return path


@pytest.mark.parametrize("suffix", ["json", "sqlite", "csv", "ncu-rep", "nsys-rep"])
@pytest.mark.parametrize("call", [llmprof.read, read_metrics, llmprof.read_requests, redact])
def test_a_pipe_is_refused_at_once(tmp_path, call, suffix):
    path = pipe(tmp_path / f"a.{suffix}")
    with pytest.raises(ReadError, match=r"is a (pipe|report)"):
        call(path, *([tmp_path / "copy"] if call is redact else []))


def test_sockets_and_devices_are_refused_at_once(tmp_path):
    with pytest.raises(ReadError, match="is a socket"):
        llmprof.read(socket_of(tmp_path / "a.json"))
    with pytest.raises(ReadError, match="is a device"):
        llmprof.read("/dev/zero")


def test_the_other_files_of_a_folder_with_a_pipe_are_read(tmp_path):
    written(tmp_path / "rank0.json")
    pipe(tmp_path / "rank1.json")
    socket_of(tmp_path / "meta.json")
    trace, warned = read(tmp_path)
    assert trace.kernels.height == 1
    assert "2 entries" in warned
    assert "rank1.json is a pipe" in warned


@pytest.mark.parametrize("place", [META_FILE, "kernels.parquet"])
def test_a_pipe_in_a_saved_trace_is_refused_at_once(tmp_path, place):
    saved = llmprof.read(written(tmp_path / "a.json")).save(tmp_path / "saved")
    (saved / place).unlink()
    pipe(saved / place)
    with pytest.raises(ReadError, match="is a pipe"):
        llmprof.read(saved)


def test_a_folder_of_the_system_is_refused():
    with pytest.raises(ReadError, match="proc"):
        llmprof.read("/proc")


@pytest.mark.parametrize("begin", [b"[", b'{"traceEvents":['])
def test_a_long_list_of_empty_objects_is_refused_before_its_end(tmp_path, begin):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(begin + b"{}," * 2_000_000 + b"{}]"))
    with pytest.raises(ReadError, match=r"none of its first 1,\d+,\d+ entries|not of events"):
        llmprof.read(path, cache=False)


@pytest.mark.parametrize("change", ["rows", "types"])
def test_a_damaged_table_of_a_folder_is_refused_with_the_name_of_the_folder_and_a_remedy(
    tmp_path, change
):
    folder = tmp_path / "report_pqtdir"
    folder.mkdir()
    pl.DataFrame({"id": [1], "value": ["a"]}).write_parquet(folder / "StringIds.parquet")
    table = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    pl.DataFrame(
        {"start": [[1]] if change == "types" else [1], "end": [2], "globalPid": [3]}
    ).write_parquet(table)
    if change == "rows":
        table.write_bytes(table.read_bytes()[:-9])
    with pytest.raises(ReadError, match=folder.name) as caught:
        llmprof.read(folder, cache=False)
    assert caught.value.hint


def test_every_error_of_reading_has_a_remedy_and_its_file():
    for kind in (ReadError, UnknownFormatError, MixedRunsError, SchemaError):
        with pytest.raises(kind, match=r"^a\.json: it broke; .") as caught, border("a.json"):
            raise kind("it broke")
        assert caught.value.hint == kind.remedy != ""
        assert caught.value.facts["path"] == "a.json"


def test_an_error_names_its_file_once():
    with pytest.raises(ReadError) as caught, border("folder"), border("a.json"):
        raise ReadError("a.json is empty")
    assert caught.value.found == "a.json is empty"


def test_a_heading_of_ncu_without_values_is_read_without_them(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        '"ID","Process ID","Process Name","Host Name","Kernel Name","Metric Name","Metric Unit","'
        + "9" * 400
        + '"\n'
        '"0","1","app","host","gemm","Duration","ns","5"\n'
    )
    with warnings.catch_warnings(record=True, action="always") as caught:
        assert read_metrics(path).metrics.is_empty()
    assert "1 row" in str(caught[0].message)
