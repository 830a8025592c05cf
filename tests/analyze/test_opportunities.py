"""What a step would gain from its operators, on a trace whose answers were computed by hand, and
on recordings.
"""

import polars as pl  # noqa: I001
import pytest
from llmprof.replay import part

import llmprof
from benchmarks import opportunities as by_hand
from llmprof import analyze
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError
from llmprof.theory.hardware import Device
from llmprof.trace import Trace
from llmprof.units import format_ns
from tests.building import table_of
from tests.analyze.builders import MM_BOUND_NS, kernels, labels, launches, ops, products_of_h200

DEVICE = Device("mine", r"(?!)", {"bf16": 1e12}, 1e9, None, None, None, cache_bytes=200.0)
"""1,000 FLOPs and a byte in a nanosecond."""

BF16, FLOAT = '["c10::BFloat16", "c10::BFloat16"]', '["float"]'


def trace(mm_ns=16000):
    """One stream with a product, whose 11,200 bytes take 11,200 ns at the peak, and two abs of 64
    bytes and 70 ns.

    Beside it runs a kernel that no operator launched, until 19,000 ns.
    """
    ops = table_of(
        "start_ns dur_ns name op_id shapes dtypes",
        [
            (0, 10, "aten::mm", 1, "[[40, 80], [80, 20]]", BF16),
            (20, 10, "aten::abs", 2, "[[8]]", FLOAT),
            (40, 10, "aten::abs", 3, "[[8]]", FLOAT),
        ],
    ).with_columns(rank=0, thread=1, kind=pl.lit("op"))
    kernels = table_of(
        "start_ns dur_ns name op_id stream",
        [
            (1000, mm_ns, "gemm", 1, 7),
            (1000 + mm_ns, 70, "abs", 2, 7),
            (5070 + mm_ns, 70, "abs", 3, 7),
            (1000, mm_ns + 3000, "nobody", None, 8),
        ],
    ).with_columns(rank=0, device=0)
    return Trace({"kernels": kernels, "ops": ops}, {"device": "acme 3000"})


def parts(frame, *columns):
    assert frame["part"].is_unique().all()
    return {row[0]: row[1:] for row in frame.select("part", *columns).iter_rows()}


def test_all_of_the_recording_by_hand():
    found = analyze.opportunities(trace(), device=DEVICE)
    times = {name: time for name, (time,) in parts(found, "total_ns").items()}
    # 16,000 + 70 + 70 + 19,000 ns of kernels lie in 19,000 + 70 ns of 20,140
    assert times == {
        "step": 20140,
        "opportunity": 16000,
        "at target": 140,
        "no bound": 19000,
        "idle": 1070,
        "beside other work": 19070 - 35140,
    }
    assert sum(times.values()) == 2 * times["step"]
    product = found.row(by_predicate=pl.col("part") == "opportunity", named=True)
    assert (product["operator"], product["count"], product["bound_by"]) == ("aten::mm", 1, "memory")
    assert (product["bound_share"], product["target_share"]) == (
        pytest.approx(0.7),
        pytest.approx(0.8),
    )
    # 11,200 / 0.8 = 14,000 ns: the last abs ends 2,000 ns earlier, at 18,140, but the kernel beside
    # it at 19,000
    assert (product["gap_ns"], product["gain_ns"]) == (pytest.approx(2000), 1140)
    assert product["gain_share"] == 1140 / 20140
    assert parts(found, "gap_ns", "gain_ns")["step"] == (pytest.approx(2000), 1140)
    assert found.select("rank", "steps", "phase").unique().rows() == [(0, 1, None)]
    assert found.filter(part="no bound")["reason"].null_count() == 0


def test_the_best_of_its_kind_here_or_in_a_baseline():
    here = analyze.opportunities(trace(), to="best", device=DEVICE)
    assert parts(here, "total_ns")["at target"] == (16140,)
    assert "opportunity" not in here["part"]
    # 11,200 of 12,000 ns there: this one would take 12,000 as well, and the other stream ends at
    # 19,000
    there = analyze.opportunities(trace(), to="best", baseline=trace(12000), device=DEVICE)
    assert parts(there, "target_share", "gap_ns", "gain_ns")["opportunity"] == (
        pytest.approx(11200 / 12000),
        pytest.approx(4000),
        1140,
    )
    # a share above 1 is no target: the product of the baseline is faster than its bound, and counts
    # for nothing
    beyond = analyze.opportunities(trace(), to="best", baseline=trace(11000), device=DEVICE)
    assert "opportunity" not in beyond["part"]


def test_without_peaks_nothing_has_a_bound():
    found = analyze.opportunities(trace())
    assert found["part"].to_list() == ["step", "no bound", "no bound", "idle", "beside other work"]
    step = found.filter(part="step").select("gap_ns", "gain_ns", "reason").row(0)
    longest = found.filter(part="no bound").sort("total_ns", descending=True)["reason"][0]
    assert step == (None, None, longest)
    assert longest


@pytest.mark.parametrize("given", [{"to": 0.0}, {"to": 1.5}, {"rank": 7}, {"device": "acme 3000"}])
def test_refusals(given):
    with pytest.raises(LlmprofError):
        analyze.opportunities(trace(), **given)


@pytest.mark.parametrize(
    "name", ["torch_tp1_eager", "torch_tp4_eager_custom_allreduce", "torch_transformers_generate"]
)
def test_parts_add_up_and_no_gain_exceeds_its_gap(name):
    read = llmprof.sample(name)
    found = analyze.opportunities(read)
    whole = found.filter(part="step")
    rest = (
        found.filter(pl.col("part") != "step")
        .group_by("phase")
        .agg(pl.col("total_ns", "gap_ns").sum())
    )
    both = whole.join(rest, on="phase", nulls_equal=True, suffix="_rest")
    assert both.height == whole.height
    assert (both["total_ns"] - both["total_ns_rest"]).abs().max() < 1e-3
    assert (both["gap_ns"] - both["gap_ns_rest"]).abs().max() < 1e-3
    gained = found.filter(pl.col("gain_ns").is_not_null())
    assert gained.filter(
        (pl.col("gain_ns") > pl.col("gap_ns")) | (pl.col("gain_ns") < 0)
    ).is_empty()
    assert gained.filter(pl.col("gap_ns") > pl.col("total_ns")).is_empty()
    other = next((rank for rank in reversed(read.ranks) if rank != found["rank"][0]), None)
    if other is not None:
        assert analyze.opportunities(read, rank=other)["rank"].unique().to_list() == [other]


def test_the_step_is_that_of_what_if():
    read = llmprof.sample("torch_tp1_eager")
    whole = analyze.opportunities(read).filter(part="step").sort("phase")
    replayed = analyze.what_if(read).sort("phase")
    assert whole["steps"].to_list() == replayed["steps"].to_list()
    assert whole["total_ns"].to_list() == pytest.approx(replayed["recorded_ns"].to_list())


def test_a_compute_bound_step_gains_what_its_operators_lose():
    """Kernels on one stream, one after another: the gain is the gap."""
    alone = trace()
    only = Trace(
        {"kernels": alone.kernels.filter(pl.col("stream") == 7), "ops": alone.ops}, alone.meta
    )
    found = analyze.opportunities(only, device=DEVICE)
    assert parts(found, "gain_ns")["step"] == (pytest.approx(2000, abs=1),)
    assert "beside other work" not in found["part"]


def sixty_steps():
    """A product and a kernel of 70 ns in each step, one after another; the host is far ahead.

    The product takes 16,000 ns in 59 steps of decode and 20,000 ns in a prefill; its bound is
    11,200 ns.
    """
    marks = [
        (f"execute_new_{int(n == 15)}_cached_{int(n != 15)}", 1000 * n, 900) for n in range(60)
    ]
    made = ops(
        ("aten::mm", 1000 * n + 10, 500, n + 1, "[[40, 80], [80, 20]]", BF16) for n in range(60)
    )
    pairs = [
        ("gemm", 20000 if n == 15 else 16000) if of == 0 else ("short", 70)
        for n in range(60)
        for of in (0, 1)
    ]
    row = pl.int_range(120)
    run = kernels(pairs, start=100_000).with_columns(op_id=pl.when(row % 2 == 0).then(row // 2 + 1))
    calls = launches(run).with_columns(start_ns=row // 2 * 1000 + 20 + 600 * (row % 2))
    tables = {"kernels": run, "ops": made, "runtime": calls, "markers": labels(marks)}
    return Trace(tables, {"device": "acme 3000"})


def test_of_many_steps_some_of_each_phase_are_replayed(monkeypatch):
    whole = analyze.opportunities(sixty_steps(), device=DEVICE)
    monkeypatch.setattr(part, "MAX_FOR_FINDINGS", 200)
    monkeypatch.setattr(part, "ENOUGH", 120)
    some = analyze.opportunities(sixty_steps(), device=DEVICE)
    assert whole.drop("steps").equals(some.drop("steps"))
    found = (
        some.filter(part="step")
        .select("phase", "steps", "recorded_steps", "total_ns", "gain_ns")
        .sort("phase")
        .rows()
    )
    # three blocks of eight steps, and the prefill after a step, each without its last step
    assert found == [
        ("decode", 14, 59, 16070, pytest.approx(2000)),
        ("prefill", 1, 1, 20070, pytest.approx(6000)),
    ]


def test_a_recording_without_operators_has_the_work_of_its_model():
    read = llmprof.sample("nsys_tp2_cudagraph")
    with pytest.raises(NotCapturedError) as refused:
        analyze.opportunities(read)
    assert "--model" in refused.value.hint
    found = analyze.opportunities(read, model="Qwen2.5-7B").filter(phase="decode")
    gate_up = found.row(by_predicate=pl.col("stage") == "gate_up_proj", named=True)
    # 28 layers; four tokens of 3,584 and their results, half of 2 x 18,944 on each of two ranks, at
    # 4.8 TB/s
    moved = 2 * (3584 * 18944 + 4 * 3584 + 4 * 18944)
    assert (gate_up["count"], gate_up["bound_ns"]) == (
        28,
        pytest.approx(28 * moved / 4.8e3, rel=1e-3),
    )
    assert gate_up["gap_ns"] == pytest.approx(
        gate_up["total_ns"] - gate_up["bound_ns"] / 0.8, rel=1e-3
    )
    assert found.filter(pl.col("part") != "step")["total_ns"].sum() == pytest.approx(
        found["total_ns"][0]
    )


def test_a_change_brings_operators_to_a_share_of_their_bound():
    made = products_of_h200(400_000, 100_000)  # the mean of a call is 250 us
    for change in ("to-bound", "to-bound:0.8:mm", "to-bound:0.8:gemm"):
        assert analyze.what_if(made, change)["gain_ns"][0] == pytest.approx(
            500_000 - 2 * MM_BOUND_NS / 0.8, abs=3
        )
    assert analyze.what_if(made, "to-bound:1")["gain_ns"][0] == pytest.approx(
        500_000 - 2 * MM_BOUND_NS, abs=3
    )
    for refused in ("to-bound:0.8:attention", "to-bound:0", "to-bound:0.5"):
        with pytest.raises(AnalysisError):
            analyze.what_if(made, refused)


@pytest.mark.slow
@pytest.mark.parametrize("recording", by_hand.RECORDINGS, ids=lambda one: one.name)
def test_the_table_of_the_docs_is_that_of_the_recordings_and_was_computed_by_hand(
    recording,
):
    if not by_hand.DATA.exists():
        pytest.skip("the recordings are not there")
    path = by_hand.DATA / recording.file
    ranks = recording.name.startswith("Megatron")
    found = analyze.opportunities(
        llmprof.read(path.parent if ranks else path), rank=6 if ranks else None
    )
    found = found.filter(pl.col("phase").eq_missing(pl.lit(found["phase"][0], dtype=pl.String)))
    first, *table = by_hand.stated()[recording.name]
    step = found.row(by_predicate=pl.col("part") == "step", named=True)
    said = (first[2], first[5], first[6])
    assert said == tuple(format_ns(step[name]) for name in ("total_ns", "gap_ns", "gain_ns"))
    step_us, rows = by_hand.recomputed(recording)
    # by hand of all steps of the phase, here of the steady ones
    assert step_us * 1e3 == pytest.approx(step["total_ns"], rel=2e-3)
    for row, cells in zip(rows, table, strict=True):
        operator, stage = cells[0].strip("`").split("`, ")
        mine = found.row(
            by_predicate=(pl.col("operator") == operator) & (pl.col("stage") == stage), named=True
        )
        assert (cells[2], cells[5], cells[6]) == tuple(
            format_ns(mine[n]) for n in ("total_ns", "gap_ns", "gain_ns")
        )
        assert mine["total_ns"] == pytest.approx(row.time * 1e3, rel=0.015)
        assert mine["bound_share"] == pytest.approx(row.reached, rel=0.01)
        assert mine["gap_ns"] == pytest.approx(row.gap * 1e3, rel=0.015)
        assert abs(mine["gain_ns"] - row.gain * 1e3) < 0.0005 * step["total_ns"]
