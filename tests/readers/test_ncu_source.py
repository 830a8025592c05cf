"""Instructions in reports of Nsight Compute, and where warps stall."""

import sys
from types import SimpleNamespace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import analyze
from llmprof.cli.main import main
from llmprof.errors import NotCapturedError, ReadError, UnknownFormatError
from tests.readers import ncu_reports
from tests.readers.ncu_reports import Library

STALL = "smsp__pcsamp_warps_issue_stalled_"


class Metric:
    """A metric with a value at each of two instructions."""

    def __init__(self, *values, ids=(4096, 4112)):
        self.values, self.ids = values, ids[: len(values)]

    def num_instances(self):
        return len(self.values)

    def has_correlation_ids(self):
        return bool(self.ids)

    def correlation_ids(self):
        return SimpleNamespace(as_uint64=self.ids.__getitem__)

    def as_double(self, i):
        return float(self.values[i])


class Action:
    def __init__(self, **metrics):
        self.metrics = metrics

    def name(self, _):
        return "gemm"

    def metric_names(self):
        return list(self.metrics)

    def metric_by_name(self, name):
        return self.metrics[name]

    def sass_by_pc(self, pc):
        return {4096: "LDG R1", 4112: "???"}[pc]

    def ptx_by_pc(self, pc):
        return ""

    def source_info(self, pc):
        return SimpleNamespace(file_name=lambda: "a.cu", line=lambda: 7) if pc == 4096 else None


@pytest.fixture
def report(tmp_path, monkeypatch):
    """A report of one kernel: 12 samples at a line that is known, 4 at one that is not."""
    action = Action(
        inst_executed=Metric(100, 50),
        dram__bytes=Metric(),
        **{
            f"{STALL}long_scoreboard": Metric(9, 1),
            f"{STALL}long_scoreboard_not_issued": Metric(9, 1),
            f"{STALL}wait": Metric(1, 2),
            f"{STALL}selected": Metric(2, 1),
        },
    )
    monkeypatch.setitem(sys.modules, "ncu_report", Library(Action(), action))
    path = tmp_path / "r.ncu-rep"
    path.write_bytes(ncu_reports.report())
    return path


def test_instructions_of_a_report(report):
    found = llmprof.read_source(report)
    assert found.filter(pl.col("metric") == "inst_executed").rows() == [
        (1, "gemm", 0, "LDG R1", None, "a.cu", 7, "inst_executed", 100.0),
        (1, "gemm", 16, None, None, None, None, "inst_executed", 50.0),
    ]


def test_lines_by_samples(report):
    rows = analyze.ncu.hot_lines(llmprof.read_source(report)).rows()
    assert rows == [
        (1, "gemm", "a.cu", 7, 12, 0.75, "long_scoreboard", 100),
        (1, "gemm", None, None, 4, 0.25, "wait", 50),
    ]
    each = analyze.ncu.hot_lines(llmprof.read_source(report), by="instruction")
    assert each.select("address", "sass", "count", "reason").rows() == [
        (0, "LDG R1", 12, "long_scoreboard"),
        (16, None, 4, "wait"),
    ]


def test_the_view_of_the_command_line(report, capsys):
    assert main(["analyze", str(report), "--what", "hot-lines"]) == 0
    assert "long_scoreboard" in capsys.readouterr().out
    assert main(["analyze", str(report), "--what", "hot-lines", "--by", "rank"]) == 2
    assert "takes no --by" in capsys.readouterr().err


def test_a_report_without_instructions(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", Library(Action()))
    with pytest.raises(NotCapturedError, match="SourceCounters"):
        llmprof.read_source(report)
    monkeypatch.setitem(sys.modules, "ncu_report", Library(Action(inst_executed=Metric(1, 2))))
    with pytest.raises(NotCapturedError, match="no samples"):
        analyze.ncu.hot_lines(llmprof.read_source(report))


def test_without_the_package_and_other_files(report, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(ReadError, match="needs the package ncu-report, which is not installed"):
        llmprof.read_source(report)
    other = tmp_path / "a.csv"
    other.write_text('"ID","Process ID","Kernel Name"\n')
    with pytest.raises(UnknownFormatError, match="pages in CSV have no instructions"):
        llmprof.read_source(other)


def test_a_real_report(shared):
    pytest.importorskip("ncu_report", reason="the optional package ncu-report is not here")
    path = shared / "real/ncu/ncar_MW_Baseline.ncu-rep"
    source = llmprof.read_source(path)
    counted = source.filter(pl.col("metric") == "smsp__pcsamp_sample_count").group_by("kernel_id")
    lines = analyze.ncu.hot_lines(source)
    sums = lines.group_by("kernel_id").agg(samples=pl.col("count").sum())
    theirs = counted.agg(samples=pl.col("value").sum().cast(pl.Int64))
    assert_frame_equal(sums.sort("kernel_id"), theirs.sort("kernel_id"))
    executed = llmprof.read_metrics(path).values("inst_executed")
    ours = lines.group_by("kernel_id").agg(value=pl.col("instructions").sum().cast(pl.Float64))
    assert_frame_equal(
        ours.sort("kernel_id"),
        executed.filter(pl.col("kernel_id").is_in(ours["kernel_id"].implode())),
    )
