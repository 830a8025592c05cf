"""Findings of hardware metrics: each with a hand-computed figure, and what is not recorded left
out.
"""

import polars as pl
import pytest

from llmprof import Metrics, analyze
from llmprof.errors import NotCapturedError
from llmprof.findings.hardware import launches_in_a_row
from llmprof.readers.reading import hardware_metrics_only
from tests.analyze.test_speed_of_light import DRAM, DURATION, L2, SM, measured


def two():
    """Launches of 600 ns (compute at 80 %) and 400 ns (memory at 70 %), each a kernel of its
    own.
    """
    return measured(
        {DURATION: 600, SM: 80, DRAM: 20, L2: 10},
        {DURATION: 400, SM: 10, DRAM: 70, L2: 30},
        device="NVIDIA H200",
    )


def named(metrics, *names):
    table = pl.DataFrame(
        {"kernel_id": range(len(names)), "called": names}, schema_overrides={"kernel_id": pl.Int32}
    )
    frame = (
        metrics.metrics.join(table, on="kernel_id")
        .with_columns(kernel_name="called")
        .drop("called")
    )
    return Metrics(frame, metrics.rules)


def test_kernels_by_their_share_with_their_limit():
    found = analyze.ncu.findings(named(two(), "gemm", "copy's"))
    assert found.select("order", "figure", "share", "severity").rows() == [
        (1, 600.0, 0.6, "high"),
        (2, 400.0, 0.4, "high"),
    ]
    assert found["gain_ns"].to_list() == pytest.approx([600 * 0.2, 400 * 0.3])
    assert found["denominator"].unique().to_list() == ["the 1.00 us of the 2 profiled launches"]
    for title, told in zip(
        found["title"],
        [("gemm", "compute", "80 %"), ("copy's", "device memory", "70 %")],
        strict=True,
    ):
        assert all(word in title for word in told)
    speed = analyze.ncu.speed_of_light(named(two(), "gemm", "copy's"))
    assert [
        speed.filter(pl.sql_expr(where))["kernel_id"].to_list() for where in found["where"]
    ] == [[0], [1]]


def test_estimates_are_added_over_the_launches_and_local_ones_are_left_out():
    rule = {
        "section": "S",
        "kind": "OPT",
        "text": "Too few blocks. Use more of them.",
        "speedup_scope": "global",
    }
    rules = pl.DataFrame(
        [
            rule | {"kernel_id": 0, "rule": "LaunchConfiguration", "estimated_speedup_pct": 50.0},
            rule | {"kernel_id": 1, "rule": "LaunchConfiguration", "estimated_speedup_pct": 25.0},
            rule
            | {
                "kernel_id": 0,
                "rule": "Other",
                "estimated_speedup_pct": 90.0,
                "speedup_scope": "local",
            },
        ],
        schema_overrides={"kernel_id": pl.Int32},
    )
    found = analyze.ncu.findings(Metrics(two().metrics, rules)).filter(rule="profiler_estimate")
    assert found["figure"].to_list() == [600 * 0.5 + 400 * 0.25]
    assert found["title"][0].endswith("Too few blocks.")
    assert found["suggestion"][0] == "Use more of them."
    assert "LaunchConfiguration" not in found["title"][0] + found["detail"][0]


def test_the_hottest_line_of_the_kernel_with_most_time():
    stalled = "smsp__pcsamp_warps_issue_stalled_"
    source = pl.DataFrame(
        {
            "kernel_id": [0, 0],
            "kernel_name": ["k", "k"],
            "file": ["/home/me/a.cu", "/home/me/a.cu"],
            "line": [7, 8],
            "metric": [f"{stalled}wait", f"{stalled}barrier"],
            "value": [1.0, 3.0],
        },
        schema_overrides={"kernel_id": pl.Int32},
    )
    found = analyze.ncu.findings(two(), source=source).filter(rule="hot_line")
    assert "Line 8 of a.cu has 75.0 %" in found["title"][0]
    assert found["figure"][0] == pytest.approx(0.75 * 600)


def test_without_durations_there_is_no_finding():
    metrics = measured({SM: 10})
    assert analyze.ncu.findings(metrics).height == 0
    with pytest.raises(NotCapturedError, match="SpeedOfLight"):
        launches_in_a_row(metrics)
    trace = launches_in_a_row(two())
    assert trace.kernels.select("start_ns", "dur_ns").rows() == [(0, 600), (600, 400)]
    assert "none" in trace.meta["clock"]


def test_what_holds_hardware_metrics_only(tmp_path):
    page = '"ID","Process ID","Process Name","Kernel Name"\n'
    (tmp_path / "raw.csv").write_text(page)
    assert hardware_metrics_only(tmp_path / "raw.csv")
    assert hardware_metrics_only(tmp_path)
    assert not hardware_metrics_only(tmp_path / "absent")
    (tmp_path / "rank0.pt.trace.json").write_text('{"traceEvents": []}')
    assert not hardware_metrics_only(tmp_path)
    assert not hardware_metrics_only(tmp_path / "rank0.pt.trace.json")
