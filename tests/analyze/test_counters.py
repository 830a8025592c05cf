"""Counters joined to the work, by hand."""

import sqlite3
from bisect import bisect_right
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace
from tests.analyze.builders import DENSE, GEMM, NORM, kernels, labels, launches

SCHEMA = ["rank", "device", "time_ns", "name", "value", "unit"]


def samples(*rows):
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def every(period, values, name="SMs Active", *, first=0, rank=0):
    return samples(
        *((rank, 0, first + period * i, name, value, "%") for i, value in enumerate(values))
    )


# GEMM 20..60, NORM 60..70, then idle until 120, GEMM 120..140
WORK = pl.concat(
    [kernels([(GEMM, 40), (NORM, 10)], start=20), kernels([(GEMM, 20)], start=120, first=3)]
)


def rows(trace, by):
    found = analyze.counters(trace, by=by)
    key = found.columns[2]
    return {row[key]: row for row in found.iter_rows(named=True)}


def test_by_kernel():
    """Samples of 20 ns each: the products fill three of them, the norm half of one."""
    found = rows(
        Trace({"kernels": WORK, "counters": every(20, [10, 50, 30, 90, 70, 0, 20])}), "kernel"
    )
    gemm, norm = found[GEMM], found[NORM]
    assert gemm["mean_value"] == pytest.approx((50 + 30 + 20) / 3)
    extremes = (gemm["min_value"], gemm["max_value"], gemm["count"], gemm["own_count"])
    assert extremes == (20, 50, 3, 3)
    assert (gemm["dur_ns"], gemm["known_ns"], gemm["own_share"]) == (60, 60, 1)
    assert (norm["mean_value"], norm["min_value"], norm["max_value"]) == (None, None, None)
    assert (norm["count"], norm["own_count"], norm["own_share"]) == (1, 0, 0.5)
    assert (gemm["counter"], gemm["unit"]) == ("SMs Active", "%")


def test_samples_in_most_of_whose_time_a_work_ran_are_its_own():
    trace = Trace({"kernels": WORK, "counters": every(15, [7] * 10)})
    kernel, category = rows(trace, "kernel"), rows(trace, "category")
    assert (kernel[NORM]["own_count"], kernel[GEMM]["own_count"]) == (0, 3)
    assert (category["norm"]["own_count"], category["gemm"]["own_count"]) == (1, 4)


@pytest.mark.parametrize("by", ["kernel", "event", "gap", "stage"])
def test_work_shorter_than_the_distance_of_two_samples_is_not_sampled(by, run, tmp_path):
    trace = Trace({"kernels": WORK, "counters": every(200, [49, 49])})
    means = analyze.counters(trace, by=by)
    assert means["mean_value"].null_count() == means.height > 0
    trace.save(tmp_path / "trace")
    assert "49" not in run(f"analyze {tmp_path / 'trace'} counters --by {by} --limit 1")[1]


def test_by_event_and_gap():
    trace = Trace({"kernels": WORK, "counters": every(10, range(15))})
    events = analyze.counters(trace, by="event")
    assert events.sort("start_ns").select("start_ns", "mean_value").rows() == [
        (20, (2 + 3 + 4 + 5) / 4),
        (60, 6.0),
        (120, 12.5),
    ]
    assert analyze.counters(trace, by="gap").select("start_ns", "mean_value", "dur_ns").rows() == [
        (70, (7 + 8 + 9 + 10 + 11) / 5, 50)
    ]
    assert analyze.counters(trace, by="idle").select("cause", "mean_value").rows() == [
        ("unknown", 9.0)
    ]


def test_by_stage_layer_phase_and_step():
    """Two layers of ten kernels of 10 ns: samples every 10 ns, whose value is the number of the
    kernel in its layer.
    """
    run = kernels(["_prepare_inputs_kernel", *DENSE, *DENSE], start=100)
    marks = labels([("execute_context_0(0)_generation_4(4)", 0, 90)])
    trace = Trace(
        {
            "kernels": run,
            "runtime": launches(run, lead=95),
            "markers": marks,
            "counters": every(10, [99, *range(10), *range(10)], first=100),
        }
    )
    stages = rows(trace, "stage")
    found = analyze.counters(trace, by="stage")
    means = dict(found.select("stage", "mean_value").iter_rows())
    assert stages
    assert (means["qkv_proj"], means["attention"], means["gate_up_proj"], means["down_proj"]) == (
        1,
        4,
        7,
        9,
    )
    assert means["norm"] == (0 + 6) / 2
    assert set(found["own_share"]) == {1.0}
    layers = analyze.counters(trace, by="layer").drop_nulls("layer")
    assert layers.select("layer", "mean_value", "count").rows() == [(0, 4.5, 10), (1, 4.5, 10)]
    assert analyze.counters(trace, by="phase").select("phase", "mean_value").rows() == [
        ("decode", (99 + 90) / 21)
    ]
    assert analyze.counters(trace, by="step").select("step", "count").rows() == [(0, 21)]


def test_work_outside_the_samples_is_not_known():
    trace = Trace({"kernels": WORK, "counters": every(10, [80, 40], first=50)})  # until 70
    found = rows(trace, "kernel")
    assert (found[GEMM]["mean_value"], found[GEMM]["known_ns"], found[GEMM]["dur_ns"]) == (
        80,
        10,
        60,
    )
    assert found[NORM]["mean_value"] == 40
    assert analyze.counters(trace, by="event").height == 2


def test_samples_of_a_machine_belong_to_the_only_rank_of_a_device():
    of_machine = samples((-1, 0, 0, "gpu.power", 500.0, "W"), (-1, 0, 100, "gpu.power", 700.0, "W"))
    of_host = samples(
        (-1, None, 0, "cpu.utilization", 7.0, "%"), (-1, None, 90, "cpu.utilization", 7.0, "%")
    )
    both = pl.concat([of_machine, of_host])
    assert analyze.counters(Trace({"kernels": WORK, "counters": both}))[
        "counter"
    ].unique().sort().to_list() == [
        "cpu.utilization",
        "gpu.power",
    ]
    second = pl.concat([WORK, WORK.with_columns(rank=pl.lit(1, dtype=pl.Int32))])
    assert set(analyze.counters(Trace({"kernels": second, "counters": both}))["counter"]) == {
        "cpu.utilization"
    }


def test_rates_of_monitors_are_of_the_time_before_the_sample():
    """GEMM 0..40 and NORM 40..80: the sample at 80 is of 40..80."""
    work = kernels([(GEMM, 40), (NORM, 40)])
    of_machine = pl.concat(
        [every(40, [10, 50, 30, 90, 70], name, rank=-1) for name in ("gpu.pcie_sent", "gpu.power")]
    )
    found = analyze.counters(Trace({"kernels": work, "counters": of_machine}))
    means = {
        (row["name"], row["counter"]): row["mean_value"] for row in found.iter_rows(named=True)
    }
    assert means[NORM, "gpu.power"] == 50
    assert means[NORM, "gpu.pcie_sent"] == 30
    assert means[GEMM, "gpu.pcie_sent"] == 50


def test_nothing_sampled():
    with pytest.raises(NotCapturedError):
        analyze.counters(Trace({"kernels": WORK}))
    assert analyze.counters(Trace({"kernels": WORK, "counters": every(10, [])})).is_empty()
    assert analyze.counters(
        Trace({"kernels": WORK, "counters": every(10, [1, 2], first=10_000)})
    ).is_empty()


RECORDED = Path(__file__).parent / "sampled" / "gpu_metrics.sqlite"


def by_hand(spans, samples):
    """Mean of the samples over some spans, one sample after the other."""
    total = weight = 0.0
    for begin, end in spans:
        at = bisect_right(samples, (begin, float("inf"))) - 1
        while at + 1 < len(samples) and samples[at][0] < end:
            shared = min(end, samples[at + 1][0]) - max(begin, samples[at][0])
            total, weight, at = total + shared * samples[at][1], weight + shared, at + 1
    return total / weight


def test_a_recording_of_nsys_beside_its_own_rows():
    """Each kernel and the idle time of an H100, averaged from the SQLite file without any of our
    code.
    """
    with closing(sqlite3.connect(f"file:{RECORDED}?mode=ro", uri=True)) as db:
        names = dict(db.execute("SELECT metricId, metricName FROM TARGET_INFO_GPU_METRICS"))
        rows = db.execute(
            "SELECT metricId, timestamp, value FROM GPU_METRICS ORDER BY timestamp"
        ).fetchall()
        work = db.execute(
            "SELECT start, end, value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
        ).fetchall()
        copies = [
            row
            for table in ("MEMCPY", "MEMSET")
            for row in db.execute(f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{table}")
        ]
    samples = {}
    for metric, time, value in rows:
        samples.setdefault(names[metric].partition(" [")[0], []).append((time, value))
    busy = sorted([(start, end) for start, end, _ in work] + copies)
    pauses, until = [], busy[0][1]
    for start, end in busy:
        if start > until:
            pauses.append((until, start))
        until = max(until, end)
    trace = llmprof.read(RECORDED)
    kernels_, gaps = analyze.counters(trace), analyze.counters(trace, by="gap")
    assert len(samples) == 4
    for counter, values in samples.items():
        known = kernels_.filter(counter=counter).drop_nulls("mean_value")
        known = known.filter(pl.col("name").is_in({name for *_, name in work}))
        ours = dict(known.select("name", "mean_value").iter_rows())
        assert len(ours) == 2
        for name, mean in ours.items():
            spans = [(start, end) for start, end, of in work if of == name]
            assert mean == pytest.approx(by_hand(spans, values)), (name, counter)
        idle = gaps.filter(counter=counter).drop_nulls("mean_value")
        known = [(begin, end) for begin, end in pauses if end - begin in set(idle["dur_ns"])]
        mean = (idle["mean_value"] * idle["known_ns"]).sum() / idle["known_ns"].sum()
        assert mean == pytest.approx(by_hand(known, values)), counter


def test_what_an_h100_was_busy_with():
    """Products keep the tensor cores busy and the clock low; sums keep the memory busy, and no
    tensor core.
    """
    means = analyze.counters(llmprof.read(RECORDED)).filter(pl.col("own_share") > 0.9)
    found = {
        (name.partition("<")[0], counter): mean
        for name, counter, mean in means.select("name", "counter", "mean_value").iter_rows()
    }
    product = "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_NNT"
    total = "void at::native::vectorized_elementwise_kernel"
    assert found[product, "Tensor Active"] == pytest.approx(93.4, abs=0.1)
    assert found[total, "Tensor Active"] == 0
    assert found[total, "DRAM Read Bandwidth"] == pytest.approx(60.7, abs=0.1)
    assert found[product, "GPC Clock Frequency"] == pytest.approx(1.582e9, rel=1e-3)
    assert found[total, "GPC Clock Frequency"] == pytest.approx(1.981e9, rel=1e-3)
