import contextlib
import os
import sqlite3
import stat
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import analyze
from llmprof.errors import (
    LlmprofError,
    NotCapturedError,
    ReadError,
    TraceWarning,
    UnknownFormatError,
)
from llmprof.readers.nsys import export as nsys_export
from llmprof.readers.nsys.export import KERNEL, MEMCPY, RUNTIME
from tests.readers.databases import as_view, in_other_case

HOST, WORKER = 1 << 48, 1 << 24
PID_A, PID_B, PID_FRONT = HOST + 100 * WORKER, HOST + 101 * WORKER, HOST + 99 * WORKER
EPOCH = 1_790_000_000_000_000_000

TABLES = {
    "StringIds": (
        "id INTEGER, value TEXT",
        [
            (1, "gemm_kernel"),
            (2, "void gemm_kernel<int>(int*)"),
            (3, "cudaLaunchKernel_v7000"),
            (4, "cuLaunchKernel"),
            (5, "step two"),
        ],
    ),
    "META_DATA_EXPORT": (
        "name TEXT, value TEXT",
        [("EXPORT_SCHEMA_VERSION", "3.11.1"), ("EXPORT_PRODUCT_VERSION", "2024.2")],
    ),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs INTEGER", [(EPOCH,)]),
    "TARGET_INFO_GPU": ("id INTEGER, name TEXT", [(0, "NVIDIA H200"), (1, "NVIDIA H200")]),
    "PROCESSES": (
        "globalPid INTEGER, pid INTEGER, name TEXT",
        [(PID_A, 100, "python3"), (PID_B, 101, "python3")],
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
        "demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, "
        "blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER, staticSharedMemory INTEGER, "
        "dynamicSharedMemory INTEGER, graphNodeId INTEGER",
        [
            (1000, 1500, 1, 7, 11, PID_B, 2, 1, 4, 1, 1, 128, 1, 1, 32, 10, 20, None),
            (1100, 1700, 0, 7, 11, PID_A, 2, 1, 4, 2, 1, 128, 1, 1, 32, 0, 0, 5),
            (2000, 2600, 0, 7, 12, PID_A, None, 1, 4, 2, 1, 128, 1, 1, 32, 0, 0, None),
        ],
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
        "bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER",
        [
            (3000, 3100, 0, 7, 13, PID_A, 4096, 1, 1, 2),
            (3200, 3300, 1, 8, 14, PID_B, 64, 99, None, 2),
        ],
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
        "bytes INTEGER, memKind INTEGER",
        [(3400, 3450, 0, 7, 15, PID_A, 256, 2)],
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER",
        [
            (900, 950, PID_A + 100, 11, 3),
            (905, 955, PID_B + 101, 11, 4),
            (1900, 1950, PID_A + 100, 12, 3),
        ],
    ),
    "NVTX_EVENTS": (
        "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER, domainId INTEGER",
        [
            (10, None, 75, "NCCL", None, PID_A + 100, 1),
            (800, 1800, 59, "execute_context_1(8)_generation_0(0)", None, PID_A + 100, 0),
            (1850, None, 59, None, 5, PID_A + 100, 0),
            (880, 990, 60, "ncclAllReduce", None, PID_A + 100, 1),
            (890, None, 34, "mark", None, PID_B + 101, 0),
            (700, 4000, 59, "driver loop", None, PID_FRONT + 99, 0),
            (750, 760, 59, None, None, PID_FRONT + 99, 3),
        ],
    ),
}


def write(path, tables=TABLES, **changes):
    """A small export; ``changes`` replace the rows of a table or, with None, leave it out."""
    with sqlite3.connect(path) as connection:
        for name, (columns, rows) in tables.items():
            rows = changes.get(name, rows)
            if rows is None:
                continue
            connection.execute(f'CREATE TABLE "{name}" ({columns})')
            connection.executemany(
                f'INSERT INTO "{name}" VALUES ({",".join("?" * (columns.count(",") + 1))})', rows
            )
    connection.close()
    return path


@pytest.fixture
def export(tmp_path):
    return write(tmp_path / "report.sqlite")


def test_tables_of_an_export_by_hand(export):
    trace = llmprof.read(export)
    assert trace.ranks == [-1, 0, 1]
    assert trace.meta["format"] == "nsys"
    assert trace.meta["world_size"] == 2
    assert trace.meta["device"] == "NVIDIA H200"
    assert trace.meta["versions"] == {"nsys": "2024.2", "nsys_schema": "3.11.1"}
    # the front end's range at 700 ns is the earliest event of all
    assert trace.meta["start_epoch_ns"] == EPOCH + 700
    assert trace.kernels.select(
        "rank", "device", "start_ns", "dur_ns", "correlation", "graph_node"
    ).rows() == [
        (0, 0, 400, 600, 11, 5),
        (0, 0, 1300, 600, 12, None),
        (1, 1, 300, 500, 11, None),
    ]
    # demangled where there is a demangled name, else the short one
    whole = "void gemm_kernel<int>(int*)"
    assert trace.kernels["name"].to_list() == [whole, "gemm_kernel", whole]
    assert trace.kernels["shared_bytes"].to_list() == [0, 0, 30]
    assert trace.copies.select("rank", "kind", "bytes", "src_kind", "dst_kind").rows() == [
        (0, "HtoD", 4096, "pinned", "device"),
        (0, "memset", 256, None, "device"),
        (1, "unknown", 64, None, "device"),
    ]
    launches = trace.events.filter(source="kernel").sort("rank", "start_ns")
    assert launches["launch_start_ns"].to_list() == [200, 1200, 205]
    assert trace.runtime.select("rank", "api", "process", "thread").rows() == [
        (0, "runtime", 100, 100),
        (0, "runtime", 100, 100),
        (1, "driver", 101, 101),
    ]
    markers = trace.markers.filter(pl.col("rank") >= 0)
    assert markers.select("rank", "start_ns", "dur_ns", "name", "domain").rows() == [
        (0, 100, 1000, "execute_context_1(8)_generation_0(0)", "nvtx"),
        (0, 180, 110, "ncclAllReduce", "NCCL"),
        (
            0,
            1150,
            2150,
            "step two",
            "nvtx",
        ),  # still open when the capture ended: until the last end known
        (1, 190, 0, "mark", "nvtx"),
    ]
    steps = analyze.steps(trace)
    assert steps.select("rank", "phase", "source", "prefill_tokens").row(0) == (
        0,
        "prefill",
        "vllm",
        8,
    )


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        ({PID_A: "VLLM::Worker_TP1", PID_B: "VLLM::Worker_TP0"}, {0: 1, 1: 0}),
        ({PID_A: "VLLM::Worker_PP1_TP0", PID_B: "VLLM::Worker_PP0_TP1"}, {0: 2, 1: 1}),
        ({PID_A: "python3", PID_B: "VLLM::Worker_TP0"}, {0: 0, 1: 1}),
    ],
)
@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_ranks_by_the_name_of_the_worker(tmp_path, names, ranks):
    path = write(tmp_path / "r.sqlite", PROCESSES=[(pid, 1, name) for pid, name in names.items()])
    kernels = llmprof.read(path).kernels
    assert dict(kernels.select("device", "rank").unique().iter_rows()) == ranks


def test_a_rank_that_mpi_names(tmp_path):
    marks = [
        (5, None, 39, "MPI Rank 1", None, PID_A + 100, 0),
        (5, None, 39, "MPI Rank 0", None, PID_B + 101, 0),
    ]
    rows = [*TABLES["NVTX_EVENTS"][1], *marks]
    kernels = llmprof.read(write(tmp_path / "r.sqlite", NVTX_EVENTS=rows)).kernels
    assert dict(kernels.select("device", "rank").unique().iter_rows()) == {0: 1, 1: 0}


def test_graphs_recorded_as_wholes_are_one_kernel_each_and_said(tmp_path):
    tables = {
        **TABLES,
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
            "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, "
            "globalPid INTEGER, graphId INTEGER",
            [(1000, 9000, 0, 7, 11, PID_A, 42)],
        ),
    }
    path = write(tmp_path / "g.sqlite", tables, CUPTI_ACTIVITY_KIND_KERNEL=None)
    with pytest.warns(TraceWarning, match="cuda-graph-trace=node"):
        trace = llmprof.read(path)
    assert trace.kernels.select("name", "dur_ns").rows() == [("[CUDA graph 42]", 8000)]


@pytest.mark.parametrize("missing", sorted(TABLES))
def test_any_table_may_be_missing(tmp_path, missing):
    path = write(tmp_path / "r.sqlite", **{missing: None})
    with (
        pytest.warns(TraceWarning, match="unnamed")
        if missing == "StringIds"
        else contextlib.nullcontext()
    ):
        trace = llmprof.read(path)
    if missing == "CUPTI_ACTIVITY_KIND_RUNTIME":
        with pytest.raises(NotCapturedError, match="nsys: -t cuda"):
            _ = trace.runtime
    else:
        assert trace.runtime.height == 3
    if missing == "StringIds":
        assert set(trace.kernels["name"]) == {"unnamed kernel"}


def test_what_is_no_export_of_nsys_is_refused(tmp_path):
    empty = tmp_path / "empty.sqlite"
    sqlite3.connect(empty).execute("CREATE TABLE t (a)").connection.close()
    with pytest.raises(
        UnknownFormatError, match="SQLite database, but no export of Nsight Systems"
    ):
        llmprof.read(empty)
    with pytest.raises(ReadError, match="not an export of Nsight Systems"):
        llmprof.read(empty, format="nsys")
    nothing = write(tmp_path / "nothing.sqlite", {"StringIds": TABLES["StringIds"]})
    with pytest.raises(ReadError, match=r"no kernel, copy.*-t cuda,nvtx"):
        llmprof.read(nothing)
    rows = {
        "StringTable": ("_id_ INTEGER, value TEXT", []),
        "CUPTI_ACTIVITY_KIND_DRIVER": ("start INTEGER", []),
    }
    path = write(
        tmp_path / "old.nvvp", rows | {"CUPTI_ACTIVITY_KIND_KERNEL": ("start INTEGER", [])}
    )
    with pytest.raises(ReadError, match=r"old\.nvvp is a session of nvprof.*without format="):
        llmprof.read(path, format="nsys")
    with pytest.raises(ReadError, match=r"old\.nvvp has no kernel, copy or call"):
        llmprof.read(path)


def test_reports_of_old_versions_are_known_by_their_ending(tmp_path, monkeypatch):
    report = tmp_path / "run.qdrep"
    report.write_bytes(b"binary")
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(
        NotCapturedError, match=r"no nsys on PATH.*nsys export --type sqlite run\.qdrep"
    ):
        llmprof.read(report)


def test_a_trimmed_export_without_processes_is_read(shared):
    path = shared / "real" / "nsys_odd" / "nsysai_healthy_1pct.sqlite"
    with pytest.warns(TraceWarning, match="the process is missing in"):
        trace = llmprof.read(path)
    assert (trace.ranks, trace.kernels.height, trace.tables["runtime"].height) == ([0], 400, 400)


def test_hostile_names_are_only_names(tmp_path):
    names = [
        (1, "<script>alert(1)</script>"),
        (2, "'; DROP TABLE StringIds; --"),
        (3, 'cuda"Launch'),
        (4, "x" * 5000),
    ]
    tables = {**TABLES, 'evil"; DROP TABLE StringIds; --': ("a INTEGER", [(1,)])}
    path = write(
        tmp_path / "r.sqlite", {k: v for k, v in tables.items() if '"' not in k}, StringIds=names
    )
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE "evil""; DROP TABLE StringIds; --" (a)')
    connection.close()
    assert set(llmprof.read(path).kernels["name"]) == {
        "'; DROP TABLE StringIds; --",
        "<script>alert(1)</script>",
    }
    path = write(tmp_path / "new.sqlite", META_DATA_EXPORT=[("EXPORT_SCHEMA_VERSION", "9.1.0")])
    with pytest.warns(TraceWarning, match=r"schema 9\.1 is newer than 3\.25"):
        assert llmprof.read(path).kernels.height == 3


def test_a_read_only_export_in_a_read_only_folder(export):
    export.chmod(stat.S_IRUSR)
    export.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert llmprof.read(export, cache=False).kernels.height == 3
    finally:
        export.parent.chmod(stat.S_IRWXU)


def as_frames(path):
    with sqlite3.connect(path) as connection:
        for name, (columns, _) in TABLES.items():
            schema = {
                c.split()[0]: pl.String if "TEXT" in c else pl.Int64 for c in columns.split(", ")
            }
            rows = connection.execute(f'SELECT * FROM "{name}"').fetchall()
            yield name, pl.DataFrame(rows, schema=schema, orient="row")
    connection.close()


def alike(ours, theirs):
    assert set(ours.tables) == set(theirs.tables)
    for name, frame in theirs.tables.items():
        assert_frame_equal(frame, ours.tables[name])


@pytest.mark.parametrize(
    ("ending", "write_table", "damaged"),
    [
        ("_pqtdir/{}.parquet", pl.DataFrame.write_parquet, b"PAR1 not really"),
        (
            "_arwdir/{}.arrow",
            pl.DataFrame.write_ipc_stream,
            b"\xff\xff\xff\xff\x40\0\0\0 not really",
        ),
    ],
    ids=["parquet", "arrow"],
)
def test_a_folder_of_files_gives_the_same_frames(export, tmp_path, ending, write_table, damaged):
    place = tmp_path / f"report{ending}"
    place.parent.mkdir()
    for name, frame in as_frames(export):
        write_table(frame, str(place).format(name))
    theirs = llmprof.read(export)
    alike(llmprof.read(place.parent), theirs)
    assert (
        llmprof.read(tmp_path).meta["ranks"] == theirs.meta["ranks"]
    )  # the folder is an export of the same report
    Path(str(place).format("StringIds")).write_bytes(damaged)
    with pytest.raises(ReadError, match="damaged"):
        llmprof.read(place.parent)


def test_names_in_another_case_are_the_same_names(export, tmp_path):
    other = llmprof.read(in_other_case(write(tmp_path / "other.sqlite")), cache=False)
    theirs = llmprof.read(export)
    alike(other, theirs)
    assert other.meta["device"] == theirs.meta["device"]


def test_a_file_of_arrow_streams_gives_the_same_frames(export, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="only pyarrow writes the metadata of a schema")
    path = tmp_path / "report.arrows"
    with path.open("wb") as file:
        for name, frame in as_frames(export):
            table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
            table = table.replace_schema_metadata({"table_desc": "what it is", "table_name": name})
            with pyarrow.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table)
    alike(llmprof.read(path), llmprof.read(export))
    data = path.read_bytes()
    for cut in range(0, len(data), 997):  # whatever is left is read, or refused by name
        path.write_bytes(data[:cut])
        with contextlib.suppress(LlmprofError):
            llmprof.read(path, cache=False)


def test_nsys_where_the_installer_put_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nsys_export, "PLACES", (f"{str(tmp_path)[1:]}/nsight-systems/*/bin/nsys",))
    assert nsys_export.find_nsys() is None
    for version in ("2024.6.1", "2025.10.2", "2025.9.1"):
        program = tmp_path / "nsight-systems" / version / "bin" / "nsys"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    assert nsys_export.find_nsys() == str(
        tmp_path / "nsight-systems" / "2025.10.2" / "bin" / "nsys"
    )


def test_a_report_is_exported_with_the_nsys_on_path_once(export, tmp_path, monkeypatch):
    report = tmp_path / "in" / "run.nsys-rep"
    report.parent.mkdir()
    report.write_bytes(b"binary")
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(
        NotCapturedError, match=r"no nsys on PATH.*nsys export --type sqlite run\.nsys-rep"
    ):
        llmprof.read(report)
    tool = (
        tmp_path / "bin" / "nsys"
    )  # a stand-in that copies a ready export and notes how it was called
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n/bin/cp {export} "$7"\n')
    tool.chmod(0o755)
    seen = []
    first = llmprof.read(report, progress=lambda *step: seen.append(step))
    assert first.kernels.height == 3
    assert seen == [("run.nsys-rep (nsys export)", 0, 6), ("run.nsys-rep (nsys export)", 6, 6)]
    assert llmprof.read(report).kernels.height == 3
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.split()[:6] == [
        "export",
        "--type",
        "sqlite",
        "--force-overwrite",
        "true",
        "--output",
    ]
    assert call.split()[-1] == str(report)
    tool.write_text("#!/bin/sh\necho 'version too old' >&2\nexit 3\n")
    os.utime(report, (1, 1))
    with pytest.raises(ReadError, match=r"status 3\): version too old"):
        llmprof.read(report)


def test_times_stay_exact_and_processes_apart_in_real_exports(shared):
    for name, ranks in (("nsys_tp2_cudagraph", 2), ("nsys_tp4_eager_nccl", 4)):
        path = shared / "captures" / name / "report.sqlite"
        trace = llmprof.read(path, cache=False)
        assert trace.ranks == list(range(ranks))
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            wanted = connection.execute(
                "SELECT deviceId, count(*), sum(end - start), max(start) - min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL "
                "GROUP BY deviceId ORDER BY deviceId"
            ).fetchall()
        connection.close()
        found = (
            trace.kernels.group_by("rank")
            .agg(
                pl.len(),
                pl.col("dur_ns").sum(),
                span=pl.col("start_ns").max() - pl.col("start_ns").min(),
            )
            .sort("rank")
        )
        assert found.rows() == wanted


def test_ones_own_sql_goes_to_the_file(export, tmp_path):
    trace = llmprof.read(export)
    assert trace.sql("SELECT count(*) AS n FROM CUPTI_ACTIVITY_KIND_KERNEL", on="file")[
        "n"
    ].to_list() == [3]
    assert trace.select(rank=0).sql("SELECT 1 AS one", on="file")["one"].to_list() == [1]
    with pytest.raises(ReadError):
        trace.sql("DELETE FROM StringIds", on="file")
    assert trace.sql("select count(*) as n from kernels").item() == 3
    saved = llmprof.read(trace.save(tmp_path / "saved"))
    with pytest.raises(NotCapturedError, match="not read from one SQLite file"):
        saved.sql("SELECT 1", on="file")


def test_a_table_of_graph_launches_without_rows_is_no_kernels(tmp_path):
    graphs = {
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
            "start INTEGER, end INTEGER, globalPid INTEGER, graphId INTEGER",
            [],
        )
    }
    path = write(tmp_path / "report.sqlite", TABLES | graphs, CUPTI_ACTIVITY_KIND_KERNEL=None)
    with pytest.warns(TraceWarning, match="was recorded as a whole"):
        trace = llmprof.read(path)
    assert trace.kernels.height == 0
    assert trace.copies.height == 3


def test_what_a_call_waits_for_is_beside_the_call(tmp_path):
    thread = PID_A + 100
    names = [
        "cudaEventRecord_v3020",
        "cudaStreamWaitEvent_v3020",
        "cudaStreamSynchronize_v3020",
        "cudaMemcpy_v3020",
    ]
    calls = [
        (100, 21, 0),
        (200, 22, 1),
        (300, 23, 2),
        (400, 24, 0),
        (500, 25, 1),
        (600, 26, 1),
        (700, 27, 3),
    ]
    tables = {
        "StringIds": ("id INTEGER, value TEXT", list(enumerate(names))),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (
            "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER",
            [(start, start + 10, thread, correlation, name) for start, correlation, name in calls],
        ),
        # the kinds of synchronisation (syncType) are numbered differently by version: the call's
        # name is what counts
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
            "start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
            "contextId INTEGER, syncType INTEGER, eventId INTEGER",
            [
                (201, 202, 20, 22, PID_A, 1, 3, 4),
                (301, 302, 7, 23, PID_A, 1, 3, 2**32 - 1),
                (501, 502, 20, 25, PID_A, 1, 3, 4),
                (601, 602, 20, 26, PID_A, 1, 3, 9),
                (701, 702, 7, 27, PID_A, 1, 2, 4),
            ],
        ),
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
            "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, contextId INTEGER, eventId INTEGER",
            [(7, 21, PID_A, 1, 4), (8, 24, PID_A, 1, 4)],
        ),
    }
    columns = ["correlation", "nsys_waiting_stream", "nsys_awaited_stream", "nsys_awaited_call"]
    runtime = llmprof.read(write(tmp_path / "waits.sqlite", tables)).runtime
    # event 4 is recorded twice: the first wait is for its record of stream 7, the second for that
    # of stream 8
    assert runtime.select(columns).rows() == [
        (21, None, None, None),
        (22, 20, 7, 21),
        (23, None, 7, None),
        (24, None, None, None),
        (25, 20, 8, 24),
        (26, 20, None, None),
        (27, None, None, None),
    ]
    tables.pop("CUPTI_ACTIVITY_KIND_CUDA_EVENT")
    runtime = llmprof.read(write(tmp_path / "records.sqlite", tables)).runtime
    assert (
        runtime.filter(pl.col("nsys_waiting_stream").is_not_null())["nsys_awaited_stream"].to_list()
        == [None] * 3
    )


@pytest.mark.parametrize(
    ("table", "lost"),
    [(KERNEL, "kernels"), (MEMCPY, "copies"), (RUNTIME, "runtime"), ("NVTX_EVENTS", "markers")],
)
def test_a_view_that_is_not_read_is_named(export, table, lost):
    as_view(in_other_case(export), table.swapcase())
    with pytest.warns(TraceWarning, match=f"{table.swapcase()} is a view"):
        trace = llmprof.read(export, cache=False)
    assert table.swapcase() in str(trace.coverage)
    whole = llmprof.read(write(export.with_name("whole.sqlite")), cache=False)
    assert not trace.has(lost) or trace.table(lost).height < whole.table(lost).height


def test_an_export_of_views_alone_is_refused_with_their_names(export):
    for table in TABLES:
        as_view(export, table)
    with pytest.raises(ReadError, match=f"{KERNEL} is a view"):
        llmprof.read(export, cache=False)


def test_gpu_metrics_are_counters_of_the_device_that_cuda_numbers(tmp_path):
    """GPU 3 is device 0 of the first process, GPU 5 is device 1 of the second; metrics of GPU 4
    are nobody's.
    """
    metrics = {
        "GPU_METRICS": (
            "timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER",
            [
                (1000, 0x103, 1, 40),
                (2000, 0x103, 1, 60),
                (1000, 0x103, 2, 1980),
                (2000, 0x103, 2, 1_935_546_875),
                (1000, 0x105, 1, 7),
                (1000, 0x104, 1, 9),
            ],
        ),
        "TARGET_INFO_GPU_METRICS": (
            "typeId INTEGER, metricId INTEGER, metricName TEXT",
            [
                (gpu, metric, name)
                for gpu in (0x103, 0x104, 0x105)
                for metric, name in (
                    (1, "SMs Active [Throughput %]"),
                    (2, "GPC Clock Frequency [MHz]"),
                )
            ],
        ),
    }
    numbers = {
        "TARGET_INFO_CUDA_DEVICE": (
            "gpuId INTEGER, cudaId INTEGER, pid INTEGER",
            [(3, 0, 100), (5, 1, 101)],
        )
    }
    trace = llmprof.read(write(tmp_path / "report.sqlite", TABLES | metrics | numbers))
    start = trace.kernels.filter(name="void gemm_kernel<int>(int*)", rank=1)[
        "start_ns"
    ].item()  # at 1000, too
    assert trace.counters.select(
        "rank", "device", pl.col("time_ns") - start, "name", "value", "unit"
    ).rows() == [
        (0, 0, 0, "SMs Active", 40.0, "%"),
        (0, 0, 0, "GPC Clock Frequency", 1980e6, "Hz"),
        (0, 0, 1000, "SMs Active", 60.0, "%"),
        (0, 0, 1000, "GPC Clock Frequency", 1_935_546_875.0, "Hz"),  # nsys 2024.2
        (1, 1, 0, "SMs Active", 7.0, "%"),
    ]
    same = llmprof.read(
        write(tmp_path / "other.sqlite", TABLES | metrics)
    )  # nsys's numbers are taken for CUDA's
    assert same.counters.is_empty()


def test_page_faults_of_managed_memory_are_marks_of_the_host_and_ranges_of_the_device(tmp_path):
    faults = {
        "CUDA_UM_CPU_PAGE_FAULT_EVENTS": (
            "start INTEGER, globalPid INTEGER, CpuInstruction INTEGER",
            [(1200, PID_A, 4)],
        ),
        "CUDA_UM_GPU_PAGE_FAULT_EVENTS": (
            "start INTEGER, end INTEGER, globalPid INTEGER, deviceId INTEGER",
            [(1300, 1350, PID_A, 0)],
        ),
    }
    trace = llmprof.read(write(tmp_path / "report.sqlite", TABLES | faults))
    found = trace.markers.filter(domain="unified memory")
    assert found.select("rank", "device", "dur_ns", "name", "on_device").rows() == [
        (0, None, 0, "CPU page fault in cuLaunchKernel", False),
        (0, 0, 50, "GPU page fault", True),
    ]
    assert analyze.host_pauses(trace).select("kind", "count").rows() == [("page_fault", 1)]
    assert "page fault" not in " ".join(analyze.nsys.nvtx_sum(trace)["name"])
