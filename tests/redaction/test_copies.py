import gzip
import json
import sqlite3

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof.errors import OutputError, ReadError
from llmprof.readers.redaction import list_redactions, redact

SECRET = "sk-planted-0123456789"
HOME = "/home/someone/project"


def test_a_copy_never_replaces_a_file_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    with pytest.raises(OutputError, match="exists"):
        redact(path, path)
    with pytest.raises(ReadError, match="does not exist"):
        redact(tmp_path / "none", tmp_path / "copy")
    with pytest.raises(OutputError, match="cannot write"):
        redact(path, tmp_path / "no" / "copy")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.json"]


def test_of_a_damaged_trace_what_can_be_read_is_copied(tmp_path):
    event = (
        '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1},'
    )
    damaged = tmp_path / "d.json.gz"
    damaged.write_bytes(gzip.compress(('{"traceEvents": [' + event * 50).encode())[:-9])
    redact(damaged, tmp_path / "copy")
    assert 0 < llmprof.read(tmp_path / "copy").ops.height <= 50
    assert gzip.decompress((tmp_path / "copy").read_bytes())


@pytest.mark.parametrize("name", ["a.nsys-rep", "a.ncu-rep", "a.qdrep"])
def test_reports_are_refused_with_the_way_to_go(tmp_path, name):
    (tmp_path / name).write_bytes(b"NVR\0" + b"x" * 99)
    with pytest.raises(ReadError, match=r"nsys export|ncu --import"):
        redact(tmp_path / name, tmp_path / "copy")
    (tmp_path / "renamed.bin").write_bytes(b"NVR\0" + b"x" * 99)
    with pytest.raises(ReadError, match="--import"):
        redact(tmp_path / "renamed.bin", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_check_lists_with_examples_and_writes_nothing(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"host_name": "gpu-box-17", "traceEvents": []}))
    found = list_redactions(path)
    assert found.rows() == [("document", "keys that no table needs", 1, "host_name")]
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": f"load {HOME}/w",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 2,
    }
    path.write_text(json.dumps({"traceEvents": [event]}))
    for name, key in (("a", b"one key"), ("b", b"one key"), ("c", None), ("d", None)):
        redact(path, tmp_path / name, key=key)
    a, b, c, d = ((tmp_path / name).read_text() for name in "abcd")
    assert a == b
    assert len({a, c, d}) == 3


def test_a_trace_is_redacted_in_memory(sample_trace):
    trace = sample_trace("torch_transformers_generate")
    clean = trace.redact()
    assert clean.meta["device"] == trace.meta["device"]
    assert_frame_equal(clean.kernels, trace.kernels)
    assert "rank0" not in json.dumps([clean.meta, clean.coverage])


@pytest.mark.parametrize("form", ["sqlite", "parquet"])
def test_of_what_a_capture_says_of_itself_only_what_was_recorded_and_the_rank_stay(tmp_path, form):
    said = [
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("PROCESS_0:COLLECT_CUDA_TRACE", "true"),
        ("COLLECT_GPU_MEMORY_USAGE", "true"),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", "RANK=3"),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", "OMPI_COMM_WORLD_SIZE=8"),
    ]
    hidden = [
        ("PROCESS_0:ENVIRONMENT_VARIABLE", "RANK=planted"),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", f"API_KEY={SECRET}"),
        ("COLLECT_PLANTED", "planted"),
        ("PROCESS_0:USER_NAME", "planted"),
        ("CAPTURE_EVENT_TYPE", "planted/x"),
        ("PROCESS_0:ENVIRONMENT_VARIABLE", "SALARY=5000000"),
        ("DEVICE_DISPLAY_NAME", "planted-box"),
    ]
    about = pl.DataFrame([*said, *hidden], schema=["name", "value"], orient="row")
    frames = {
        "META_DATA_CAPTURE": about.with_columns(text=pl.lit("planted")),
        "StringIds": pl.DataFrame({"id": [1], "value": ["k"]}),
        "NVTX_EVENTS": pl.DataFrame(
            {"start": [1], "end": [2], "text": ["r"], "eventType": [59], "globalTid": [1]}
        ),
    }
    path = tmp_path / ("a.sqlite" if form == "sqlite" else "a")
    if form == "sqlite":
        with sqlite3.connect(path) as c:
            for name, frame in frames.items():
                c.execute(f"CREATE TABLE {name} ({', '.join(frame.columns)})")
                c.executemany(
                    f"INSERT INTO {name} VALUES ({', '.join('?' * frame.width)})", frame.rows()
                )
        c.close()
    else:
        path.mkdir()
        for name, frame in frames.items():
            frame.write_parquet(path / f"{name}.parquet")
    redact(path, tmp_path / "copy")
    if form == "sqlite":
        assert b"planted" not in (tmp_path / "copy").read_bytes()
        with sqlite3.connect(tmp_path / "copy") as c:
            rows = c.execute("SELECT * FROM META_DATA_CAPTURE").fetchall()
        c.close()
    else:
        rows = pl.read_parquet(tmp_path / "copy/META_DATA_CAPTURE.parquet").rows()
    assert rows == said


def declared(path):
    with sqlite3.connect(path) as c:
        tables = [
            name for (name,) in c.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        rows = {
            name: c.execute("SELECT * FROM pragma_table_info(?)", (name,)).fetchall()
            for name in tables
        }
    c.close()
    return {name: {column: rest for _, column, *rest in rows[name]} for name in tables}


def made_like_nsys(path, *, hostile=False):
    """An export with the declarations that nsys writes, and with what else may stand in them."""
    kernel = "void gemm<float>(int)"
    with sqlite3.connect(path) as c:
        c.executescript(f"""
            CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL -- planted comment
            );
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER
                NOT NULL, streamId INTEGER NOT NULL, correlationId INT, globalPid INTEGER, shortName INTEGER NOT NULL,
                demangledName INTEGER NOT NULL, planted TEXT NOT NULL);
            CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, "end" INTEGER, eventType INTEGER NOT NULL, text TEXT
                NOT NULL, textId INTEGER, doubleValue REAL, globalTid INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_OVERHEAD (id INTEGER NOT NULL, start INTEGER NOT NULL, "end" INTEGER,
                PRIMARY KEY (id, start));
            INSERT INTO StringIds VALUES (7, '{kernel}'), (9, 'planted and unused');
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 25, 0, 7, 1, 1, 7, 7, 'planted'),
                (30, 40, 0, 7, 2, 1, 7, 7, 'planted');
            INSERT INTO NVTX_EVENTS VALUES (1, 50, 59, 'forward', NULL, 0.5, 1),
                (2, 3, 59, x'706c616e746564', 7, NULL, 1);
            INSERT INTO CUPTI_ACTIVITY_KIND_OVERHEAD VALUES (1, 5, 6), (1, 7, 8);
        """)
        if hostile:
            c.execute(
                "CREATE TABLE OSRT_API (start PLANTED, nameId INTEGER DEFAULT 'planted' CHECK (nameId <> 'planted'))"
            )
            c.execute("CREATE TABLE SCHED_EVENTS (start 'planted words' NOT NULL, cpu \"pw(5)\")")
    c.close()
    return kernel


def test_a_copy_of_an_export_of_nsys_keeps_its_schema(tmp_path):
    made_like_nsys(tmp_path / "a.sqlite", hostile=True)
    redact(tmp_path / "a.sqlite", tmp_path / "b.sqlite")
    was, copied = declared(tmp_path / "a.sqlite"), declared(tmp_path / "b.sqlite")
    assert was["CUPTI_ACTIVITY_KIND_KERNEL"].pop("planted")
    names = [
        "StringIds",
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "NVTX_EVENTS",
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
    ]
    assert [copied[name] for name in names] == [was[name] for name in names]
    assert {
        kind for table in ("OSRT_API", "SCHED_EVENTS") for kind, *_ in copied[table].values()
    } == {"", "INTEGER"}
    assert b"planted" not in (tmp_path / "b.sqlite").read_bytes().lower()


def test_duckdb_finds_the_kernels_of_a_copy(tmp_path):
    """DuckDB takes a column without a type for bytes, in which no name can be looked for."""
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("duckdb_extensions").import_extension("sqlite")
    kernel = made_like_nsys(tmp_path / "a.sqlite")
    redact(tmp_path / "a.sqlite", tmp_path / "b.sqlite")
    with duckdb.connect() as c:
        c.execute(
            f"LOAD sqlite; ATTACH '{tmp_path / 'b.sqlite'}' AS copied (TYPE sqlite, READ_ONLY)"
        )
        found = c.execute(
            'SELECT s.value, count(*), sum(k."end" - k.start) FROM copied.CUPTI_ACTIVITY_KIND_KERNEL k '
            "JOIN copied.StringIds s ON k.demangledName = s.id WHERE s.value LIKE '%gemm%' GROUP BY s.value"
        ).fetchall()
    assert found == [(kernel, 2, 25)]


def test_requests_of_a_run_stay_joined_to_the_steps_without_their_names(tmp_path):
    """A client may name its requests; the scheduler adds to the name (``0_`` before, ``-0-a1``
    after).
    """
    run = tmp_path / "run"
    run.mkdir()
    (run / "state.json").write_text('{"state": "finished"}')
    (run / "config.yaml").write_text("model: random:tiny\n")
    request = {
        "phase": "profiled",
        "repeat": 0,
        "start_ns": 5,
        "prompt_tokens": 3,
        "output_tokens": 2,
    }
    names = ["bob@corp.example/chat", "bob@corp.example/chat-2"]
    requests = [{**request, "request": k, "id": name} for k, name in enumerate(names)]
    engine = {names[0]: f"{names[0]}-0-a1", names[1]: f"{names[1]}-0-b2"}
    steps = [
        {
            "phase": "profiled",
            "start_ns": 6,
            "end_ns": 7,
            "preempted": [engine[names[1]]],
            "tokens": {engine[names[0]]: 3, "a stranger": 1},
            "computed": {engine[names[0]]: 0},
        },
        {
            "phase": "profiled",
            "start_ns": 8,
            "end_ns": 9,
            "preempted": [],
            "tokens": {engine[names[1]]: 3},
            "computed": {engine[names[1]]: 0},
        },
    ]
    told = {"engine": "vllm", "stages": [], "requests": requests, "engine_steps": steps}
    for name in ("worker.json", "metrics.json"):
        (run / name).write_text(json.dumps(told))
    redact(run, tmp_path / "copy")
    for name in ("worker.json", "metrics.json"):
        copied = json.loads((tmp_path / "copy" / name).read_text())
        assert "bob" not in json.dumps(copied)
        assert "stranger" not in json.dumps(copied)
        assert [row["id"] for row in copied["requests"]] == ["r0", "r1"]
        first, second = copied["engine_steps"]
        assert [key.split("-")[0] for key in first["tokens"]] == ["r0", "other1"]
        assert list(first["computed"]) == list(first["tokens"])[:1]
        assert first["preempted"] == list(second["tokens"]) == list(second["computed"])
        assert second["preempted"][:0] == []
        assert next(iter(second["tokens"])).startswith("r1-")


def test_names_of_gpu_metrics_stay(root, tmp_path):
    source = root / "tests" / "analyze" / "sampled" / "gpu_metrics.sqlite"
    redact(source, tmp_path / "copy.sqlite")
    names = {
        path: llmprof.read(path).counters["name"].unique().sort().to_list()
        for path in (source, tmp_path / "copy.sqlite")
    }
    assert names[source] == names[tmp_path / "copy.sqlite"]
    with sqlite3.connect(tmp_path / "copy.sqlite") as copy:
        every = " ".join(
            name for (name,) in copy.execute("SELECT metricName FROM TARGET_INFO_GPU_METRICS")
        )
    assert "<" not in every
