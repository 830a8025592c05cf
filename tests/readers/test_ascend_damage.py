"""Folders of an NPU that are incomplete, cut, never exported, or in the forms of other versions
and tools.
"""

import csv
import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof.errors import LlmprofError, MixedRunsError, ReadError
from llmprof.readers import ascend
from tests.readers.traces import read_quietly as read

OUTPUT = "ASCEND_PROFILER_OUTPUT"


@pytest.fixture
def rank(synthetic_npu, tmp_path):
    """Folder of rank 0, to be damaged."""
    return Path(
        shutil.copytree(
            synthetic_npu("baseline") / "synthetic_rank0_ascend_pt", tmp_path / "r0_ascend_pt"
        )
    )


@pytest.fixture
def whole(synthetic_npu):
    return read(synthetic_npu("baseline") / "synthetic_rank0_ascend_pt")


def drop(rank, *patterns):
    for pattern in patterns:
        found = list((rank / OUTPUT).glob(pattern))
        assert found, pattern
        for file in found:
            file.unlink()
    return rank


def tables(rank, *names):
    """Take tables out of the database."""
    (file,) = (rank / OUTPUT).glob("ascend_pytorch_profiler*.db")
    with closing(sqlite3.connect(file)) as connection:
        for name in names:
            connection.execute(f'DROP TABLE "{name}"')
        connection.commit()
    return rank


def test_only_the_table_of_kernels(rank, whole):
    trace = read(drop(rank, "*.db", "*.json", "memory_record.csv", "operator_memory.csv"))
    assert trace.kernels["dur_ns"].sum() == whole.kernels["dur_ns"].sum()
    assert trace.collectives.height == whole.collectives.height
    assert not trace.has("runtime")
    assert not trace.has("memory")


def test_only_the_sums_are_no_trace(rank):
    drop(
        rank,
        "*.db",
        "trace_view.json",
        "kernel_details.csv",
        "memory_record.csv",
        "operator_memory.csv",
    )
    drop(rank, "communication.json")
    with pytest.raises(ReadError, match="summaries without times"):
        read(rank)
    assert set(ascend.summaries(rank)) == {
        "step_trace_time",
        "op_statistic",
        "communication_matrix",
    }


def test_text_gives_what_the_database_lacks(rank, whole):
    trace = read(tables(rank, "PYTORCH_API", "MEMORY_RECORD", "OP_MEMORY"))
    assert trace.ops.height == whole.ops.height
    assert trace.memory.height == whole.memory.height
    assert trace.kernels.height == whole.kernels.height
    assert any("has no PYTORCH_API" in warning for warning in trace.coverage["warnings"])


@pytest.mark.parametrize(
    ("gone", "left_out"),
    [
        ("TASK_PMU_INFO", "ascend_aic_mac_ratio"),
        ("COMPUTE_TASK_INFO", "ascend_input_shapes"),
        ("COMMUNICATION_TASK_INFO", None),
        ("CONNECTION_IDS", None),
        ("CANN_API", None),
        ("RANK_DEVICE_MAP", None),
        ("NPU_INFO", None),
        ("ENUM_HCCL_LINK_TYPE", None),
    ],
)
def test_tables_absent_by_level(rank, whole, gone, left_out):
    trace = read(tables(drop(rank, "*.csv", "*.json"), gone))
    assert trace.kernels.height == whole.kernels.height
    assert trace.kernels["dur_ns"].sum() == whole.kernels["dur_ns"].sum()
    if left_out is not None:
        assert left_out not in trace.kernels.columns


def test_a_database_that_is_cut_gives_way_to_the_text(rank, whole):
    (file,) = (rank / OUTPUT).glob("ascend_pytorch_profiler*.db")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    trace = read(rank)
    assert trace.kernels.height == whole.kernels.height
    assert trace.ops.height == whole.ops.height


def test_a_timeline_cut_short_keeps_its_beginning(rank, whole):
    file = drop(rank, "*.db") / OUTPUT / "trace_view.json"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    trace = read(rank)
    assert 0 < trace.runtime.height < whole.runtime.height
    # the table of kernels is whole, and those that the timeline lost are taken from it
    assert trace.kernels.height == whole.kernels.height
    assert any("the list of events" in warning for warning in trace.coverage["warnings"])


def test_csv_with_other_columns_line_ends_and_cells(rank, whole):
    """Reordered and renamed columns, one more, some fewer, TABs, N/A, CRLF and a call stack over
    several lines.
    """
    file = (
        drop(rank, "*.db", "*.json", "memory_record.csv", "operator_memory.csv")
        / OUTPUT
        / "kernel_details.csv"
    )
    rows = list(csv.DictReader(file.read_text().splitlines()))
    kept = ["Duration(us)", "Accelerator Core", "Type", "Start Time(us)", "Name", "Stream ID"]
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(
            out, [*kept, "Call Stack", "Device_id"], lineterminator="\r\n", extrasaction="ignore"
        )
        writer.writeheader()
        for row in rows:
            stack = '/a/model.py(1): "forward";\r\n/a/run.py(2): main'
            writer.writerow(
                {
                    **row,
                    "Start Time(us)": row["Start Time(us)"] + "\t",
                    "Call Stack": stack,
                    "Device_id": "N/A\t",
                }
            )
    trace = read(rank)
    assert trace.kernels.height == whole.kernels.height
    assert trace.kernels["dur_ns"].sum() == whole.kernels["dur_ns"].sum()
    assert trace.kernels["stream"].null_count() == trace.collectives.height
    assert "ascend_aic_mac_ratio" not in trace.kernels.columns


def test_a_csv_cut_in_a_quoted_cell_keeps_the_lines_before(rank, whole):
    file = (
        drop(rank, "*.db", "*.json", "memory_record.csv", "operator_memory.csv")
        / OUTPUT
        / "kernel_details.csv"
    )
    text = file.read_text()
    place = text.index('"', len(text) // 2)
    file.write_text(text[: place + 4])
    trace = read(rank)
    assert 0.3 * whole.kernels.height < trace.kernels.height < 0.7 * whole.kernels.height


@pytest.mark.parametrize(
    "content", ["", "Name,Start Time(us)\n", "Name,Duration(us),Accelerator Core\na,1,AI_CORE\n"]
)
def test_a_table_of_kernels_without_kernels(rank, content):
    file = (
        drop(rank, "*.db", "*.json", "memory_record.csv", "operator_memory.csv")
        / OUTPUT
        / "kernel_details.csv"
    )
    file.write_text(content)
    with pytest.raises(LlmprofError):
        read(rank)


def test_one_broken_file_of_many_is_named(rank, whole):
    folder = drop(rank, "*.db") / OUTPUT
    (folder / "communication.json").write_text(
        '{"step0": {"collective": {"Communication Time Info"'
    )
    trace = read(rank)
    assert any(
        "communication.json is not valid JSON" in warning for warning in trace.coverage["warnings"]
    )
    assert trace.collectives.height == whole.collectives.height


@pytest.mark.parametrize("layout", ["torch_npu", "msprof"])
def test_raw_data_say_how_to_export_them(tmp_path, layout):
    folder = (
        tmp_path / "host_1_20250101_ascend_pt"
        if layout == "torch_npu"
        else tmp_path / "PROF_000001_20250101_ABC"
    )
    raw = folder / "PROF_000001_20250101_ABC" if layout == "torch_npu" else folder
    (raw / "device_0" / "data").mkdir(parents=True)
    (raw / "device_0" / "data" / "aicore.data.0.slice_0").write_bytes(b"\x00\x01")
    (raw / "host").mkdir()
    with pytest.raises(ReadError, match=r"only raw data .*(analyse|msprof --export=on)"):
        llmprof.read(folder)


def test_a_rank_that_was_never_exported_is_left_out_with_a_note(rank, synthetic_npu, tmp_path):
    other = tmp_path / "r1_ascend_pt" / "PROF_000001_20250101_ABC" / "device_1" / "data"
    other.mkdir(parents=True)
    trace = read(tmp_path)
    assert trace.ranks == [0]
    assert any(
        "r1_ascend_pt was never exported" in warning for warning in trace.coverage["warnings"]
    )


def test_single_files_read_by_their_content(rank, whole, tmp_path):
    for name in ("trace_view.json", "kernel_details.csv", "ascend_pytorch_profiler_0.db"):
        copy = tmp_path / f"x{Path(name).suffix}"
        shutil.copy(rank / OUTPUT / name, copy)
        assert read(copy).kernels.height == whole.kernels.height
        copy.unlink()
    memory = read(Path(shutil.copy(rank / OUTPUT / "memory_record.csv", tmp_path / "m.csv")))
    assert set(memory.tables) == {"memory"}
    calls = read(Path(shutil.copy(rank / OUTPUT / "communication.json", tmp_path / "c.json")))
    assert calls.collectives.height == whole.collectives.height
    assert not calls.has("kernels")  # what the rank computed beside them is unknown


def test_sizes_that_are_no_sizes_are_unknown(rank, whole):
    file = (
        drop(rank, "*.db", "*.json", "kernel_details.csv", "operator_memory.csv")
        / OUTPUT
        / "memory_record.csv"
    )
    lines = file.read_text().splitlines()
    cells = lines[1].split(",")
    lines[1] = ",".join(["PTA", cells[1], "1e300", "-inf", *cells[4:]])
    file.write_text("\n".join(lines))
    first = read(rank).memory.row(0, named=True)
    assert (first["allocated_bytes"], first["reserved_bytes"]) == (None, None)


# --- forms that other versions and tools give


@pytest.fixture
def ranks(synthetic_npu, tmp_path):
    """Folder of both ranks."""
    folder = tmp_path / "ranks"
    for rank in sorted(synthetic_npu("baseline").glob("*_ascend_pt")):
        shutil.copytree(rank, folder / rank.name)
    return folder


@pytest.fixture
def output(ranks):
    """Output folder of rank 0."""
    return ranks / "synthetic_rank0_ascend_pt" / OUTPUT


def database(output):
    (file,) = output.glob("ascend_pytorch_profiler*.db")
    return sqlite3.connect(file)


def test_sums_of_msprof_analyze_beside_the_ranks_are_no_rank(ranks):
    sums = ranks / "cluster_analysis_output"
    sums.mkdir()
    with closing(sqlite3.connect(sums / "cluster_analysis.db")) as connection:
        connection.execute("CREATE TABLE StepTraceTime (step TEXT)")
        connection.commit()
    (sums / "cluster_step_trace_time.csv").write_text(
        "Step,Type,Index,Computing,Overlapped,Free\n,rank,0,1,1,1\n"
    )
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
    with pytest.raises(MixedRunsError):  # the same events are not of two ranks
        read(tmp_path / "run")
    view = json.loads((found / "msprof_20250101010203.json").read_text())
    for event in view:
        if "ts" in event:
            event["ts"] = str(float(event["ts"]) + 7)
    (found / "msprof_20250101010203.json").write_text(json.dumps(view))
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
        ("aclnnMm_MatMulCommon_MatMulV2", 2, 10_500),
        ("aclnnAdd_AddAiCore_Add", 2, 2_000),
    ]
    assert trace.kernels["start_ns"].diff().to_list() == [None, 23_880]
    assert trace.events["category"].to_list() == ["gemm", "elementwise"]


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
        connection.execute(
            "INSERT INTO COMMUNICATION_SCHEDULE_TASK_INFO VALUES (?, ?, NULL)", (name, task)
        )
        connection.execute("DELETE FROM COMPUTE_TASK_INFO WHERE globalTaskId = ?", (task,))
        connection.commit()
    after = read(output)
    assert after.kernels.filter(pl.col("ascend_core") != "HCCL").height == core.height - 1
    (row,) = after.tasks.filter(pl.col("ascend_task_type") == "COMMUNICATION_SCHEDULE").iter_rows(
        named=True
    )
    assert row["kind"] == "control"
    assert row["name"] in core["name"].to_list()


def test_garbage_collections_are_marks_in_both_forms(output):
    start = 1_750_000_000_000_000_000
    with closing(database(output)) as connection:
        connection.execute(
            "CREATE TABLE GC_RECORD (startNs INTEGER, endNs INTEGER, globalTid INTEGER)"
        )
        connection.execute(
            "INSERT INTO GC_RECORD VALUES (?, ?, ?)", (start, start + 5_000_000, (7 << 32) + 8)
        )
        connection.commit()
    marks = read(output).markers.filter(pl.col("domain") == "gc")
    assert marks.select("name", "dur_ns", "process", "thread").rows() == [("GC", 5_000_000, 7, 8)]
    for file in output.glob("*.db"):
        file.unlink()
    timeline = output / "trace_view.json"
    events = json.loads(timeline.read_text())
    host = next(e for e in events if e.get("cat") == "cpu_op")
    gc = {
        "ph": "X",
        "name": "GC",
        "pid": host["pid"],
        "tid": host["tid"],
        "ts": host["ts"],
        "dur": "5000",
        "args": {},
    }
    timeline.write_text(json.dumps([*events, gc]))
    marks = read(output).markers.filter(pl.col("domain") == "gc")
    assert marks.select("name", "dur_ns").rows() == [("GC", 5_000_000)]
