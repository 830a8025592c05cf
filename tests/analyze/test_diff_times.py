import polars as pl
import pytest

import llmprof
from llmprof import Metrics
from llmprof.analyze import diff
from llmprof.analyze.compare.diff import gate
from llmprof.analyze.compare.times import diff_times
from llmprof.errors import AnalysisError
from llmprof.trace import Trace
from tests.analyze.builders import EMBEDDING, GEMM, kernels, launches
from tests.analyze.test_findings import decode, together
from tests.building import table_of


def run(gemm, pause=0, steps=8, jitter=0):
    """Decode steps of four kernels with a pause that the host is to blame for; every other step
    is longer.
    """
    parts = [
        decode(
            [(EMBEDDING, 20_000), (GEMM, gemm + jitter * (n % 3)), GEMM, GEMM],
            pause=pause,
            lead=10_000,
            steps=1,
        )
        for n in range(steps)
    ]
    moved, at = [], 0
    for n, part in enumerate(parts):
        shift = at - 1_000_000 if n else 0
        tables = {
            name: frame.with_columns(pl.col("start_ns") + shift) for name, frame in part.items()
        }
        for name in ("kernels", "runtime"):
            tables[name] = tables[name].with_columns(pl.col("correlation") + 100 * n)
        at = int((tables["kernels"]["start_ns"] + tables["kernels"]["dur_ns"]).max())
        moved.append(tables)
    return together(*moved)


def test_the_step_and_its_parts_by_hand():
    # a: 20 + 50 + 50 + 50 us of kernels and three pauses of 40, of which the launch takes 10; b:
    # one GEMM is 30 shorter and there are no pauses
    found = diff_times([run(50_000, 40_000)], [run(20_000)])
    step = found.filter(level="step").row(0, named=True)
    assert (step["a_ns"], step["b_ns"], step["delta_ns"], step["status"]) == (
        290_000,
        140_000,
        -150_000,
        "faster",
    )
    assert (step["phase"], step["a_steps"], step["b_steps"]) == ("decode", 7, 7)
    parts = found.filter(level="part").select("kind", "part", "a_ns", "b_ns", "delta_ns", "status")
    assert parts.rows() == [
        ("idle", "host_bound", 90_000, 0, -90_000, "only_a"),
        ("compute", "gemm", 150_000, 120_000, -30_000, "faster"),
        ("idle", "launch", 30_000, 0, -30_000, "only_a"),
        ("compute", "embedding", 20_000, 20_000, 0, "same"),
    ]
    assert parts["delta_ns"].sum() == step["delta_ns"]


def test_steps_without_the_profiler_come_first_and_show_what_its_noise_hides():
    """Recorded steps differ by up to 40 us and their means by 2 of 310; without the profiler three
    repeats take 250 us on one side, and 8 % more on the other.
    """

    def measured(gemm, plain, profiled):
        trace = run(gemm, 40_000, jitter=20_000)
        known = {"plain_ns": plain[1], "profiled_ns": profiled, "repeats_ns": plain}
        return Trace(trace.capture.recorded, trace.meta | {"without_profiler": known})

    a = measured(50_000, [249_000, 250_000, 251_000], 310_000)
    b = measured(52_000, [269_000, 270_000, 271_000], 312_000)
    found = diff_times([a], [b], tolerance=0.03)
    first, step = found.head(2).to_dicts()
    assert (first["level"], first["phase"], first["status"]) == ("plain", "decode", "slower")
    assert (first["a_ns"], first["b_ns"], first["a_steps"]) == (250_000, 270_000, 3)
    assert (step["level"], step["status"]) == ("step", "same")
    judged = gate(diff(a, b)).select("phase", "verdict").rows()
    assert [verdict for _, verdict in judged] == ["slower", "as fast"]
    several = measured(50_000, [100_000, 100_000, 100_000], 125_000)  # tokens take no step
    assert "plain" not in diff_times([a], [several])["level"]
    assert "plain" not in diff_times([a], [run(50_000)])["level"]


def test_what_is_not_beyond_the_noise_is_the_same():
    # steps differ by up to 40 us, their mean by 2: without a tolerance the interval alone decides
    near = diff_times([run(50_000, jitter=20_000)], [run(52_000, jitter=20_000)], tolerance=0.0)
    step = near.filter(level="step").row(0, named=True)
    assert step["low_ns"] <= step["delta_ns"] <= step["high_ns"]
    far = (
        diff_times([run(50_000)], [run(52_000)], tolerance=0.0)
        .filter(level="step")
        .row(0, named=True)
    )
    assert (far["low_ns"], far["high_ns"], far["beyond_noise"], far["status"]) == (
        2_000,
        2_000,
        True,
        "slower",
    )
    noisy = [run(50_000 + n) for n in (0, 4_000, 9_000)]
    other = [run(50_000 + n) for n in (1_000, 5_000, 8_000)]
    repeats = diff_times(noisy, other, tolerance=0.0).filter(level="step").row(0, named=True)
    assert repeats["delta_ns"] == pytest.approx(14_000 / 3 - 13_000 / 3)
    assert repeats["low_ns"] < 0 < repeats["high_ns"]
    assert (repeats["beyond_noise"], repeats["status"]) == (False, "same")
    assert repeats["a_steps"] == 21
    clear = (
        diff_times(noisy, [run(80_000), run(82_000)], tolerance=0.0)
        .filter(level="step")
        .row(0, named=True)
    )
    assert (clear["beyond_noise"], clear["status"]) == (True, "slower")


def test_recordings_without_steps():
    def recording(dur):
        own = kernels([("acme", dur), (GEMM, 50)], start=100)
        return Trace({"kernels": own, "runtime": launches(own, lead=100, dur=5)})

    found = diff(recording(100), recording(300), by="name")
    first = found.row(0, named=True)
    assert (first["level"], first["phase"], first["a_ns"], first["b_ns"]) == (
        "recording",
        None,
        250,
        450,
    )
    parts = found.filter(level="part")
    assert parts["a_ns"].sum() == 250
    assert parts["b_ns"].sum() == 450
    below = found.filter(level="kernels").select(
        "phase", "name", "a_ns", "b_ns", "a_count", "status"
    )
    assert below.rows() == [
        (None, "acme", 100, 300, 1, "more_time"),
        (None, GEMM, 50, 50, 1, "same"),
    ]
    # one with steps and one without are compared as recordings too
    assert diff(run(50_000), recording(100)).row(0, named=True)["level"] == "recording"


def test_what_cannot_be_compared():
    with pytest.raises(AnalysisError, match="tolerance"):
        diff(run(1000), run(1000), tolerance=-1)
    with pytest.raises(AnalysisError, match="no trace"):
        diff_times([], [run(1000)])
    metrics = launched(("gemm", "(8, 1, 1)", 100))
    with pytest.raises(AnalysisError, match="profile of single kernels"):
        diff(run(1000), metrics)


@pytest.mark.slow
def test_two_reports_of_ncu(shared):
    pytest.importorskip("ncu_report", reason="the optional package ncu-report is not here")
    before, after = (
        llmprof.read_metrics(shared / f"real/ncu/ncar_MW_{name}.ncu-rep")
        for name in ("Baseline", "DivToMult")
    )
    found = diff(before, after)
    first = found.row(0, named=True)
    assert first["kernel_name"] == "compute_tendencies_x_279_gpu"
    assert (first["a_ns"], first["b_ns"]) == (6_190_944, 3_482_240)
    assert (first["a_bound_by"], first["b_bound_by"], first["status"]) == (
        "compute",
        "memory",
        "faster",
    )
    assert first["b_flops"] < first["a_flops"] / 2  # a division is several multiplications
    assert found.height == 5
    assert set(found["evidence"]) == {"name, grid and block"}


def launched(*rows):
    """A profile of launches: name, grid and duration."""
    frame = table_of(
        "kernel_id kernel_name grid block metric value",
        [
            (n, name, grid, "(128, 1, 1)", "gpu__time_duration.sum", float(ns))
            for n, (name, grid, ns) in enumerate(rows)
        ],
    )
    return Metrics(frame.with_columns(unit=pl.lit("ns")))


def test_launches_are_matched_by_name_shape_and_order():
    before = launched(
        ("gemm", "(8, 1, 1)", 100),
        ("gemm", "(8, 1, 1)", 200),
        ("norm", "(1, 1, 1)", 10),
        ("old", "(1, 1, 1)", 5),
    )
    after = launched(
        ("norm", "(2, 1, 1)", 30),
        ("gemm", "(8, 1, 1)", 90),
        ("gemm", "(8, 1, 1)", 150),
        ("new", "(1, 1, 1)", 7),
    )
    found = diff(before, after)
    columns = (
        "kernel_name",
        "occurrence",
        "a_kernel_id",
        "b_kernel_id",
        "a_ns",
        "b_ns",
        "evidence",
        "status",
    )
    assert found.select(columns).rows() == [
        ("gemm", 1, 1, 2, 200, 150, "name, grid and block", "faster"),
        (
            "norm",
            0,
            2,
            0,
            10,
            30,
            "name",
            "slower",
        ),  # another grid, and no other launch of the name
        ("gemm", 0, 0, 1, 100, 90, "name, grid and block", "faster"),
        ("new", 0, None, 3, None, 7, None, "only_b"),
        ("old", 0, 3, None, 5, None, None, "only_a"),
    ]
    assert diff(before, before)["status"].unique().to_list() == ["same"]
