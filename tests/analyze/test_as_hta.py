"""Figures that HTA defines as we do, beside those of HTA (traceinsight 0.6.1, without its
rounding to us).
"""

from typing import NamedTuple

import polars as pl
import pytest

import llmprof
from llmprof import analyze

pytestmark = pytest.mark.filterwarnings("ignore:.*ranks? (is|are) missing")


class Hta(NamedTuple):
    """Figures of HTA in us: temporal breakdown, share of communication that is hidden (%),
    kernels, queue, launches.
    """

    total: float
    compute: float
    idle: float
    hidden_pct: float | None
    names: int
    time: float
    longest_queue: int
    launches: tuple[int, float, float] | None


SAMPLES = {
    "torch_tp1_eager/rank0": Hta(592570.117, 32133.736, 560341.852, None, 44, 32237.89, 2, None),
    "torch_transformers_generate/rank0": Hta(
        89318.053, 5008.964, 84280.381, None, 66, 5037.672, 2, None
    ),
    "torch_pp2_eager/rank1": Hta(185916.064, 25386.472, 152958.204, 0.2, 40, 32994.884, 3, None),
}
"""HTA has no launches by ``cuLaunchKernelEx``, which most of these are."""

REAL = {
    "timeline_analysis__sampled_rank-0": Hta(
        1222847.0, 210320.0, 675191.0, 14.95, 199, 607844.0, 80, (1204, 11050.0, 20539698.0)
    ),
    "trace_filter__sampled_rank-1": Hta(
        1231186.0, 271973.0, 651136.0, 19.93, 188, 667530.0, 91, (1154, 9602.0, 20270258.0)
    ),
    "df_index_resolver__df_index_resolver": Hta(
        1732965.0, 620516.0, 732352.0, 0.0, 51, 1000613.0, 77, (22290, 193875.0, 14665254.0)
    ),
    "nccl_parser_config__nccl_data": Hta(
        660551.006, 115655.847, 503050.991, 15.61, 72, 165185.838, 10, (3774, 35864.776, 103192.246)
    ),
    "ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace": Hta(
        480029.227,
        468153.602,
        7574.786,
        None,
        79,
        472454.441,
        1022,
        (6095, 266051.433, 418637213.335),
    ),
}

NEAR = 0.05
"""HTA adds times as floating-point numbers: the last of these files has timestamps of 19 digits."""


def check(trace, hta):
    row = analyze.overlap(trace, by=("rank",)).row(0, named=True)
    for ours, theirs in (
        ("total_ns", hta.total),
        ("compute_ns", hta.compute),
        ("idle_ns", hta.idle),
    ):
        assert row[ours] / 1e3 == pytest.approx(theirs, abs=NEAR), ours
    hidden = (
        row["hidden_communication_ns"] / row["communication_ns"]
        if row["communication_ns"]
        else None
    )
    assert hidden == (
        None if hta.hidden_pct is None else pytest.approx(hta.hidden_pct / 100, abs=5.1e-5)
    )
    events = trace.events
    assert events["name"].n_unique() == hta.names
    assert events["dur_ns"].sum() / 1e3 == pytest.approx(hta.time, abs=NEAR)
    assert analyze.queue_length(trace)["max_length"].max() == hta.longest_queue
    if hta.launches is not None:
        count, calls, delays = hta.launches
        launched = events.filter(pl.col("launch_start_ns").is_not_null())
        call, delay = (
            pl.col("launch_end_ns") - begin
            for begin in (pl.col("launch_start_ns"), pl.col("start_ns"))
        )
        assert launched.height == count
        assert launched.select(call.sum()).item() / 1e3 == pytest.approx(calls, abs=NEAR)
        assert launched.select((-delay).clip(0).sum()).item() / 1e3 == pytest.approx(
            delays, rel=1e-6
        )


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(root, name):
    check(llmprof.read(root / "sample_traces" / f"{name}.pt.trace.json.gz"), SAMPLES[name])


@pytest.mark.parametrize("name", REAL)
def test_files_of_its_own_tests(shared, name):
    check(llmprof.read(shared / "real" / "chrome" / "hta" / f"{name}.json.gz"), REAL[name])


def test_rates_of_copies(shared):
    """Median and greatest rate of single copies, which HTA takes from the file (GB/s)."""
    trace = llmprof.read(
        shared / "real" / "chrome" / "hta" / "nccl_parser_config__nccl_data.json.gz"
    )
    rows = {row["kind"]: row for row in analyze.copies(trace).iter_rows(named=True)}
    assert rows["DtoD"]["count"] == 960
    assert rows["DtoD"]["max_gbps"] == pytest.approx(605.2009456265)
    assert rows["DtoD"]["median_gbps"] == pytest.approx(0.7111111111)
    assert rows["memset"]["max_gbps"] == pytest.approx(1925.2182254197)
