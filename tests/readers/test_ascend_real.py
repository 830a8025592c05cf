"""Other people's recordings of Ascend NPUs: every file reads, both forms agree, and our sums
equal the tool's own.
"""

import warnings

import polars as pl
import pytest

import llmprof
from llmprof.analyze import overlap
from llmprof.errors import TraceWarning
from llmprof.readers import ascend
from llmprof.readers.ascend import folder

US = 1000


@pytest.fixture(scope="module")
def real(shared):
    return shared / "real" / "ascend"


def trace_of(path):
    with warnings.catch_warnings(
        action="ignore", category=TraceWarning
    ):  # six of the eight ranks are not there
        return llmprof.read(path, cache=False)


@pytest.fixture(scope="module")
def text(real):
    return trace_of(real / "msinsight_level1" / "text")


@pytest.fixture(scope="module")
def database(real):
    return trace_of(real / "msinsight_level1" / "db")


@pytest.mark.slow
def test_every_file_is_known_and_reads(real):
    read = 0
    for file in sorted(real.rglob("*")):
        if not file.is_file() or file.suffix not in (".json", ".csv", ".db"):
            continue
        kind = folder.content_kind(file)
        if kind is None:
            assert file.name.startswith("profiler_")  # read with the folder
            continue
        if kind in (*ascend.reader.NO_TRACE, folder.ANALYSIS) or "cluster_" in file.name:
            assert all(frame.height for frame in ascend.summaries(file).values())
        else:
            (part,) = ascend.read(file)
            assert any(frame.height for frame in part.tables.values()), file
        read += 1
    assert read == 73


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "db"])
def test_overlap_equals_the_tools_own_step_trace_time(real, form):
    """One step was recorded on each rank; free time of the tool counts copies as free, ours does
    not.
    """
    path = real / "msinsight_level1" / form
    said = ascend.summaries(path)["step_trace_time"].sort("rank")
    ours = overlap(trace_of(path), by=("rank",)).sort("rank")
    for tool, row in zip(said.iter_rows(named=True), ours.iter_rows(named=True), strict=True):
        assert row["compute_ns"] == pytest.approx(tool["computing_ns"], abs=US)
        assert row["communication_ns"] == pytest.approx(tool["communication_ns"], abs=US)
        assert row["exposed_communication_ns"] == pytest.approx(
            tool["communication_not_overlapped_ns"], abs=US
        )
        assert row["hidden_communication_ns"] == pytest.approx(tool["overlapped_ns"], abs=US)
        # the tool's free time ends and begins with kernels and calls; copies before and after are
        # not part of it
        events = trace_of(path).select(rank=tool["rank"]).kernels
        span = (events["start_ns"] + events["dur_ns"]).max() - events["start_ns"].min()
        free = span - row["compute_ns"] - row["exposed_communication_ns"]
        assert free == pytest.approx(tool["free_ns"], abs=US)
        assert span == pytest.approx(tool["stage_ns"], abs=US)


def test_every_kernel_has_its_launch_and_its_operator(text, database):
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


def test_transfers_add_up_to_the_communication_matrix(text, real):
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
