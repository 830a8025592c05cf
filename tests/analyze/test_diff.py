import polars as pl
import pytest

from llmprof.analyze.compare.times import diff_of
from tests.analyze.builders import types_of

SCHEMA = types_of("rank", "step", "phase", "stage", "category", "start_ns", "dur_ns")


def frame_of(rows):
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def decode(durations, *, rank=0, stage="o_proj"):
    """A decode step of one linear kernel for each duration."""
    return [(rank, n, "decode", stage, "gemm", 1000 * n, dur) for n, dur in enumerate(durations)]


def one(a, b, **options):
    return diff_of(frame_of(a), frame_of(b), **options).row(0, named=True)


def test_median_over_steps_then_mean_over_ranks():
    # rank 0: 10, 20, 90 -> 20; rank 1: 40 -> 40; mean 30. The other trace: 60.
    got = one([*decode([10, 20, 90]), *decode([40], rank=1)], decode([60]))
    labels = {"phase": "decode", "stage": "o_proj", "category": "gemm", "status": "slower"}
    times = {"a_ns": 30.0, "b_ns": 60.0, "delta_ns": 30.0, "ratio": 2.0}
    assert got == labels | times | {"a_count": 1.0, "b_count": 1.0, "a_steps": 4, "b_steps": 1}
    twice = [(0, 0, "decode", "experts", "moe_experts", start, 10) for start in (0, 4)]
    got = one(twice, twice)
    assert (got["a_ns"], got["a_count"], got["status"]) == (14.0, 2.0, "same")


def test_a_step_without_the_stage_counts_as_zero():
    steps = decode([10, 10, 10], stage="norm")
    got = diff_of(frame_of([*steps, *decode([50])]), frame_of([*steps, *decode([50, 70])]))
    o_proj = got.filter(pl.col("stage") == "o_proj").row(0, named=True)
    # medians of (50, 0, 0) and (50, 70, 0)
    assert (o_proj["a_ns"], o_proj["b_ns"], o_proj["ratio"], o_proj["status"]) == (
        0.0,
        50.0,
        None,
        "slower",
    )


@pytest.mark.parametrize(
    ("b_dur", "tolerance", "status"),
    [
        (104, 0.05, "same"),
        (106, 0.05, "slower"),
        (94, 0.05, "faster"),
        (94, 0.1, "same"),
        (101, 0.0, "slower"),
    ],
)
def test_status_and_tolerance(b_dur, tolerance, status):
    assert one(decode([100]), decode([b_dur]), tolerance=tolerance)["status"] == status


def test_only_in_one_is_zero_if_the_phase_ran_and_unknown_if_not():
    prefill = [(0, 5, "prefill", "o_proj", "gemm", 9000, 500)]
    a, b = decode([10]), [*decode([10], stage="qkv_proj"), *prefill]
    got = diff_of(frame_of(a), frame_of(b)).select(
        "phase", "stage", "a_ns", "b_ns", "delta_ns", "a_steps", "status"
    )
    assert got.rows() == [
        ("decode", "o_proj", 10.0, 0.0, -10.0, 1, "only_a"),
        ("decode", "qkv_proj", 0.0, 10.0, 10.0, 1, "only_b"),
        ("prefill", "o_proj", None, 500.0, None, 0, "only_b"),
    ]


def test_aligned_by_other_columns():
    names = pl.DataFrame(
        {"name": ["f", "f", "g"], "layer": [0, 1, 1]}, schema_overrides={"layer": pl.Int32}
    )
    a = frame_of([(0, 0, "decode", "o_proj", "gemm", start, 10) for start in (0, 20, 40)]).hstack(
        names
    )
    b = a.filter(pl.col("name") == "f").with_columns(dur_ns=pl.col("dur_ns") * 2)
    got = diff_of(a, b, by=("phase", "layer", "name"))
    assert got.columns[:5] == ["phase", "layer", "name", "a_ns", "b_ns"]
    assert got.select("layer", "name", "a_ns", "b_ns", "status").rows() == [
        (0, "f", 10.0, 20.0, "slower"),
        (1, "f", 10.0, 20.0, "slower"),
        (1, "g", 10.0, 0.0, "only_a"),
    ]
