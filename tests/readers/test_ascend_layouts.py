"""Folders and files of an NPU in the forms that other versions and tools give them."""

import gzip
import json
import shutil
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import ReadError, TraceWarning
from llmprof.trace import Trace

OUTPUT = "ASCEND_PROFILER_OUTPUT"


@pytest.fixture
def ranks(synthetic_npu, tmp_path) -> Path:
    """Folder of both ranks."""
    folder = tmp_path / "ranks"
    for rank in sorted(synthetic_npu("baseline").glob("*_ascend_pt")):
        shutil.copytree(rank, folder / rank.name)
    return folder


@pytest.fixture
def output(ranks) -> Path:
    """Output folder of rank 0."""
    return ranks / "synthetic_rank0_ascend_pt" / OUTPUT


def read(path: Path) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        return llmprof.read(path, cache=False)


def database(output: Path) -> sqlite3.Connection:
    (file,) = output.glob("ascend_pytorch_profiler*.db")
    return sqlite3.connect(file)


def test_sums_of_msprof_analyze_beside_the_ranks_are_no_rank(ranks):
    sums = ranks / "cluster_analysis_output"
    sums.mkdir()
    with closing(sqlite3.connect(sums / "cluster_analysis.db")) as connection:
        connection.execute("CREATE TABLE StepTraceTime (step TEXT)")
        connection.commit()
    (sums / "cluster_step_trace_time.csv").write_text("Step,Type,Index,Computing,Overlapped,Free\n,rank,0,1,1,1\n")
    trace = llmprof.read(ranks, cache=False)  # a warning would be an error
    assert trace.ranks == [0, 1]
    with pytest.raises(ReadError, match="summaries without times"):
        read(sums / "cluster_analysis.db")


def test_folders_of_mindspore(ranks):
    for number, folder in enumerate(sorted(ranks.iterdir())):
        folder.rename(ranks / f"rank-{number}_20250101010101_ascend_ms")
    for file in list(ranks.rglob("ascend_pytorch_profiler*.db")):
        file.rename(file.with_name(file.name.replace("pytorch", "mindspore")))
    assert llmprof.read(ranks, cache=False).ranks == [0, 1]


def test_an_output_folder_alone_and_packed_timelines(output, tmp_path):
    whole = read(output)
    (tmp_path / "x").mkdir()
    packed = tmp_path / "x" / "trace_view.json.gz"
    packed.write_bytes(gzip.compress((output / "trace_view.json").read_bytes()))
    for path in (packed, packed.parent):
        trace = read(path)
        assert trace.meta["format"] == "ascend"
        assert trace.kernels.height == whole.kernels.height
        assert trace.collectives.height == whole.collectives.height


def test_an_exported_prof_folder_of_msprof_and_two_of_them(output, tmp_path):
    for name in ("PROF_000001_20250101010101_ABC", "PROF_000002_20250101010102_DEF"):
        found = tmp_path / "run" / name / "mindstudio_profiler_output"
        found.mkdir(parents=True)
        (found.parent / "device_0" / "data").mkdir(parents=True)
        shutil.copy(output / "trace_view.json", found / "msprof_20250101010203.json")
        shutil.copy(output / "kernel_details.csv", found / "op_summary_20250101010203.csv")
    one = read(tmp_path / "run" / "PROF_000001_20250101010101_ABC")
    assert (one.ranks, one.kernels.height) == ([0], read(output).kernels.height)
    assert read(tmp_path / "run").ranks == [0, 1]


def test_a_folder_that_was_exported_without_a_known_file_says_so(tmp_path):
    found = tmp_path / "x_ascend_pt" / OUTPUT
    found.mkdir(parents=True)
    (found / "notes.txt").write_text("nothing")
    with pytest.raises(ReadError, match="x_ascend_pt was exported, but has no known file"):
        llmprof.read(found.parent)


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_start_times_whose_heading_has_no_unit(output, tmp_path, unit):
    whole = pl.read_csv(output / "kernel_details.csv", infer_schema=False)
    parts = whole["Start Time(us)"].str.strip_chars().str.split_exact(".", 1).struct.unnest()
    us = parts["field_0"] + "." + parts["field_1"].fill_null("").str.slice(0, 3).str.pad_end(3, "0")
    told = us if unit == "us" else us.str.replace(".", "", literal=True)
    (tmp_path / "old").mkdir()
    table = whole.drop("Start Time(us)").with_columns(told.alias("Start Time"))
    table.write_csv(tmp_path / "old" / "kernel_details.csv")
    expected = read(Path(shutil.copy(output / "kernel_details.csv", tmp_path / "new.csv")))
    found = read(tmp_path / "old" / "kernel_details.csv")
    assert found.kernels["start_ns"].to_list() == expected.kernels["start_ns"].to_list()


def test_tasks_of_level_0_by_name_and_type(tmp_path):
    file = tmp_path / "task_time_20250101010101.csv"
    file.write_text(
        "Device_id,kernel_name,kernel_type,stream_id,task_id,task_time(us),task_start(us),task_stop(us)\n"
        "0,aclnnMm_MatMulCommon_MatMulV2,AI_CORE,2,1,10.5,1750000000000000.120\t,1750000000000010.620\t\n"
        "0,N/A,EVENT_WAIT,2,2,3,1750000000000020.500\t,1750000000000023.500\t\n"
        "0,aclnnAdd_AddAiCore_Add,AI_VECTOR_CORE,2,3,2,1750000000000024.000\t,1750000000000026.000\t\n"
    )
    trace = read(file)
    assert trace.kernels.select("name", "stream", "dur_ns").rows() == [
        ("aclnnMm_MatMulCommon_MatMulV2", 2, 10_500), ("aclnnAdd_AddAiCore_Add", 2, 2_000),
    ]  # fmt: skip
    assert trace.kernels["start_ns"].diff().to_list() == [None, 23_880]
    assert analyze.kernel_categories(trace)["category"].to_list() == ["linear", "elementwise"]


def test_ai_cpus_that_schedule_communication_compute_nothing(output):
    before = read(output)
    core = before.kernels.filter(pl.col("ascend_core") != "HCCL")
    with closing(database(output)) as connection:
        (task, name), *_ = connection.execute(
            "SELECT globalTaskId, name FROM COMPUTE_TASK_INFO ORDER BY globalTaskId LIMIT 1"
        ).fetchall()
        connection.execute(
            "CREATE TABLE COMMUNICATION_SCHEDULE_TASK_INFO (name INTEGER, globalTaskId INTEGER, taskType INTEGER)"
        )
        connection.execute("INSERT INTO COMMUNICATION_SCHEDULE_TASK_INFO VALUES (?, ?, NULL)", (name, task))
        connection.execute("DELETE FROM COMPUTE_TASK_INFO WHERE globalTaskId = ?", (task,))
        connection.commit()
    after = read(output)
    assert after.kernels.filter(pl.col("ascend_core") != "HCCL").height == core.height - 1
    (row,) = after.tasks.filter(pl.col("ascend_task_type") == "COMMUNICATION_SCHEDULE").iter_rows(named=True)
    assert row["kind"] == "control"
    assert row["name"] in core["name"].to_list()


def test_garbage_collections_are_marks_in_both_forms(output):
    start = 1_750_000_000_000_000_000
    with closing(database(output)) as connection:
        connection.execute("CREATE TABLE GC_RECORD (startNs INTEGER, endNs INTEGER, globalTid INTEGER)")
        connection.execute("INSERT INTO GC_RECORD VALUES (?, ?, ?)", (start, start + 5_000_000, (7 << 32) + 8))
        connection.commit()
    marks = read(output).markers.filter(pl.col("domain") == "gc")
    assert marks.select("name", "dur_ns", "process", "thread").rows() == [("GC", 5_000_000, 7, 8)]
    for file in output.glob("*.db"):
        file.unlink()
    timeline = output / "trace_view.json"
    events = json.loads(timeline.read_text())
    host = next(e for e in events if e.get("cat") == "cpu_op")
    gc = {"ph": "X", "name": "GC", "pid": host["pid"], "tid": host["tid"], "ts": host["ts"], "dur": "5000", "args": {}}
    timeline.write_text(json.dumps([*events, gc]))
    marks = read(output).markers.filter(pl.col("domain") == "gc")
    assert marks.select("name", "dur_ns").rows() == [("GC", 5_000_000)]
