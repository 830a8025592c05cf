"""Figures that llmprof and msprof-analyze, the tool of the vendor, both give: they agree, where it is installed."""

import os
import shutil
import subprocess
import warnings
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import TraceWarning
from llmprof.storage import sqlite

PEER = os.environ.get("LLMPROF_MSPROF_ANALYZE") or shutil.which("msprof-analyze")
MODES = ("all", "compute_op_sum", "hccl_sum")


@pytest.fixture(scope="module", params=["synthetic", "real"])
def both(request, synthetic_npu, tmp_path_factory) -> tuple[llmprof.Trace, Path]:
    """A recording as llmprof reads it, and the database that the vendor's tool makes of a copy of it."""
    if PEER is None:
        pytest.skip("msprof-analyze is not installed")
    if request.param == "real":
        source = request.getfixturevalue("shared") / "real" / "ascend" / "msinsight_level1" / "db"
    else:
        source = synthetic_npu("micro_batch")
    folder = tmp_path_factory.mktemp("peer") / "run"
    shutil.copytree(source, folder, copy_function=shutil.copy)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for mode in MODES:
        subprocess.run([PEER, "cluster", "-m", mode, "-d", str(folder)], check=True, capture_output=True, timeout=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)  # of eight ranks two are there
        trace = llmprof.read(source, cache=False)
    return trace, folder / "cluster_analysis_output" / "cluster_analysis.db"


def test_sums_of_operators_are_the_same(both):
    trace, database = both
    theirs = sqlite.query(
        database, "SELECT OpType, TaskType, Count, SumNs, MinNs, MaxNs FROM ComputeOpAllRankStats ORDER BY 1, 2"
    )
    ours = analyze.operator_shapes(trace, shapes=False).filter(pl.col("core") != "HCCL")
    ours = ours.sort("op_type", "core").select("op_type", "core", "count", "total_ns", "min_ns", "max_ns")
    assert ours.height > 10
    assert [tuple(row) for row in ours.rows()] == [(a, b, c, *map(int, rest)) for a, b, c, *rest in theirs.rows()]


def test_overlap_of_steps_is_the_same(both):
    trace, database = both
    theirs = sqlite.query(
        database,
        'SELECT CAST("index" AS INTEGER) AS rank, CAST(step AS INTEGER) AS step, computing, communication, '
        "communication_not_overlapped, overlapped FROM ClusterStepTraceTime WHERE type = 'rank' ORDER BY 1, 2",
    )
    ours = analyze.overlap(trace).filter(pl.col("step").is_not_null()).sort("rank", "step")
    columns = ["compute_ns", "communication_ns", "exposed_communication_ns", "hidden_communication_ns"]
    assert theirs.height == ours.height > 0
    for theirs_row, our_row in zip(theirs.rows(), ours.select(columns).rows(), strict=True):
        assert [us * 1000 for us in theirs_row[2:]] == pytest.approx(list(our_row), abs=1000)
