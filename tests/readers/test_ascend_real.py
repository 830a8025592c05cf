"""Other people's recordings of Ascend NPUs: every file reads, both forms agree, and our sums equal the tool's own."""

import warnings
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof.analyze import overlap
from llmprof.errors import TraceWarning
from llmprof.readers import ascend
from llmprof.readers.ascend import folder
from llmprof.trace import Trace

US = 1000


@pytest.fixture(scope="module")
def real(shared: Path) -> Path:
    return shared / "real" / "ascend"


def trace_of(path: Path) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)  # six of the eight ranks are not there
        return llmprof.read(path, cache=False)


@pytest.fixture(scope="module")
def text(real: Path) -> Trace:
    return trace_of(real / "msinsight_level1" / "text")


@pytest.fixture(scope="module")
def database(real: Path) -> Trace:
    return trace_of(real / "msinsight_level1" / "db")


@pytest.mark.slow
def test_every_file_is_known_and_reads(real: Path) -> None:
    read = 0
    for file in sorted(real.rglob("*")):
        if not file.is_file() or file.suffix not in (".json", ".csv", ".db"):
            continue
        kind = folder.kind_of(file)
        if kind is None:
            assert file.name.startswith("profiler_")  # read with the folder
            continue
        if kind in (*ascend.reader._NO_TRACE, folder.ANALYSIS) or "cluster_" in file.name:
            assert all(frame.height for frame in ascend.summaries(file).values())
        else:
            (part,) = ascend.read(file)
            assert any(frame.height for frame in part.tables.values()), file
        read += 1
    assert read == 73


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "db"])
def test_overlap_equals_the_tools_own_step_trace_time(real: Path, form: str) -> None:
    """One step was recorded on each rank; free time of the tool counts copies as free, ours does not."""
    path = real / "msinsight_level1" / form
    said = ascend.summaries(path)["step_trace_time"].sort("rank")
    ours = overlap(trace_of(path), by=("rank",)).sort("rank")
    for tool, row in zip(said.iter_rows(named=True), ours.iter_rows(named=True), strict=True):
        assert row["compute_ns"] == pytest.approx(tool["computing_ns"], abs=US)
        assert row["communication_ns"] == pytest.approx(tool["communication_ns"], abs=US)
        assert row["exposed_communication_ns"] == pytest.approx(tool["communication_not_overlapped_ns"], abs=US)
        assert row["hidden_communication_ns"] == pytest.approx(tool["overlapped_ns"], abs=US)
        # the tool's free time ends and begins with kernels and calls; copies before and after are not part of it
        events = trace_of(path).select(ranks=tool["rank"]).kernels
        span = (events["start_ns"] + events["dur_ns"]).max() - events["start_ns"].min()
        free = span - row["compute_ns"] - row["exposed_communication_ns"]
        assert free == pytest.approx(tool["free_ns"], abs=US)
        assert span == pytest.approx(tool["stage_ns"], abs=US)


def test_text_and_database_hold_the_same_program(text: Trace, database: Trace) -> None:
    """Two recordings of one program, one a form: kernels, their order, shapes, operators and calls are the same."""
    for rank in (0, 1):
        one, other = (trace.select(ranks=rank) for trace in (text, database))
        for stream in (2, 3):
            a, b = (t.kernels.filter(pl.col("stream") == stream) for t in (one, other))
            for column in ("name", "ascend_core", "ascend_op_type", "ascend_input_shapes", "ascend_output_formats"):
                assert a[column].to_list() == b[column].to_list()
        assert one.kernels.height == other.kernels.height == 191
        assert one.copies.height == other.copies.height == 24
        kinds = [t.tasks.filter(pl.col("kind") != "control").group_by("kind").len().sort("kind") for t in (one, other)]
        assert kinds[0].equals(kinds[1])
        for column in ("dtype", "in_elements", "world", "algorithm", "stream"):
            assert one.collectives[column].to_list() == other.collectives[column].to_list()
        a, b = (t.ops.filter(kind="op") for t in (one, other))  # names of Python functions hold addresses
        for column in ("name", "shapes", "dtypes"):
            assert a[column].to_list() == b[column].to_list()
        # the same kernels at another time: each within a quarter of its duration or 20 us, their sum within 1 %
        sums = [t.kernels.filter(pl.col("ascend_core") != "HCCL")["dur_ns"].sum() for t in (one, other)]
        assert sums[0] == pytest.approx(sums[1], rel=0.01)


def test_every_kernel_has_its_launch_and_its_operator(text: Trace, database: Trace) -> None:
    for trace in (text, database):
        assert not trace.kernels["correlation"].null_count()
        assert not trace.kernels["op_id"].null_count()
        launches = trace.runtime.filter(pl.col("name").is_in(["Node@launch", "Hccl@Launch_Ffts"]))
        known = launches.select("rank", "correlation").unique()
        assert trace.kernels.join(known, on=["rank", "correlation"], how="anti").height == 0
        # each kernel starts after its operator did
        ops = trace.ops.select("rank", "op_id", began="start_ns")
        joined = trace.kernels.join(ops, on=["rank", "op_id"])
        assert joined.height == trace.kernels.height
        assert (joined["start_ns"] >= joined["began"]).all()


def test_transfers_add_up_to_the_communication_matrix(text: Trace, real: Path) -> None:
    """Bytes and time of each link of the call that the matrix names."""
    matrix = ascend.summaries(real / "msinsight_level1" / "text")["communication_matrix"]
    moved = text.tasks.filter((pl.col("kind") == "transfer") & (pl.col("bytes") > 0))
    peers = moved.with_columns(src=pl.col("src_rank"), dst=pl.coalesce("dst_rank", "src_rank"))
    checked = 0
    for row in matrix.filter(pl.col("link") == "HCCS").drop_nulls("op_name").iter_rows(named=True):
        found = peers.filter(
            (pl.col("rank") == row["rank"])
            & (pl.col("collective") == row["op_name"])
            & (pl.col("src") == row["src_rank"])
            & (pl.col("dst") == row["dst_rank"])
            & (pl.col("link") == "HCCS")
        )
        if found.height:
            assert found["bytes"].sum() == pytest.approx(row["bytes"], rel=0.01)
            assert found["dur_ns"].sum() == pytest.approx(row["transit_ns"], rel=0.02)
            checked += 1
    assert checked >= 20


def test_the_parts_name_ranks_device_and_what_is_missing(text: Trace, database: Trace) -> None:
    assert [r["rank"] for r in database.meta["ranks"]] == [0, 1]
    assert database.meta["device"] == "Ascend910B"
    assert database.meta["world_size"] == text.meta["world_size"] == 8
    assert any("6 of 8 ranks are missing" in warning for warning in text.coverage["warnings"])
    assert text.meta["options"]["profiler_level"] == "Level1"
