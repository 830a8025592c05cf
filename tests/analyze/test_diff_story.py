"""What a comparison says: waterfalls that add up, sentences, and what cannot be laid side by
side.
"""

import polars as pl
import pytest

import llmprof
from llmprof.analyze import diff
from llmprof.analyze.compare.story import diff_context, diff_words, waterfall_rows
from llmprof.errors import AnalysisError

COLUMNS = [
    *("level", "phase", "kind", "part", "a_ns", "b_ns", "delta_ns", "beyond_noise"),
    *("a_steps", "b_steps", "low_ns", "high_ns", "status"),
]

PAIRS = {
    "eager and graphs": ("captures/torch_tp1_eager", "captures/torch_tp1_cudagraph"),
    "custom and NCCL": (
        "captures/torch_tp4_eager_custom_allreduce",
        "captures/torch_tp4_eager_nccl",
    ),
    "before and after": (
        "real/nsys/nsysai_mfu_2gpu_before.sqlite",
        "real/nsys/nsysai_mfu_2gpu_after.sqlite",
    ),
    "ranks and phases": ("captures/torch_tp1_moe_eager", "captures/nsys_tp2_cudagraph"),
}


def frame_of(*rows):
    """Rows of a comparison: level, phase, kind, part, a, b, and whether the change is beyond the
    noise.
    """
    made = [
        (
            level,
            phase,
            kind,
            part,
            a,
            b,
            None if a is None or b is None else b - a,
            noise,
            *(0 if side is None else 9 for side in (a, b)),
            None,
            None,
            None,
        )
        for level, phase, kind, part, a, b, noise in rows
    ]
    types = dict.fromkeys(("a_ns", "b_ns", "delta_ns", "low_ns", "high_ns"), pl.Float64) | {
        "beyond_noise": pl.Boolean
    }
    return pl.DataFrame(made, schema={c: types.get(c) for c in COLUMNS}, orient="row")


HAND = frame_of(
    ("step", "decode", None, None, 100.0, 70.0, True),
    ("part", "decode", "compute", "norm", 30.0, 10.0, True),
    ("part", "decode", "compute", "rope", 9.0, 9.5, True),
    ("part", "decode", "communication", "wait", 20.0, 5.0, True),
    ("part", "decode", "communication", "transfer", 5.0, 15.0, True),
    ("part", "decode", "copy", "memcpy DtoH", 1.0, 0.5, True),
    ("part", "decode", "copy", "memset", 1.0, 2.0, True),
    ("part", "decode", "idle", "host_bound", 30.0, 26.0, False),
    ("part", "decode", "idle", "unknown", 3.0, 1.0, True),
    ("step", "prefill", None, None, None, 900.0, None),
)


def test_bars_add_up_and_small_changes_are_gathered():
    stages = [("part", "decode", "compute", f"s{n}", 100.0, 100.0 + n, True) for n in range(1, 7)]
    found = waterfall_rows(frame_of(("step", "decode", None, None, 1e6, 1e6 + 21.0, True), *stages))
    compute = found.filter(group="compute")
    assert compute["label"].to_list() == ["s6", "s5", "s4", "compute, 3 smaller changes"]
    assert compute["delta_ns"].to_list() == [6.0, 5.0, 4.0, 6.0]
    found = waterfall_rows(HAND)
    # the parts are 99 of 100 ns in a and 69 of 70 in b: what is left is the same, and no bar
    assert found.select("group", "label", "delta_ns").rows() == [
        ("total", "a", 100.0),
        ("compute", "norm", -20.0),
        ("compute", "rope", 0.5),
        ("waiting", "waiting for ranks", -15.0),
        ("transfer", "transfer", 10.0),
        ("copies", "copies", 0.5),
        ("idle", "idle (host-bound)", -4.0),
        ("unexplained", "idle (no recorded cause)", -2.0),
        ("total", "b", 70.0),
    ]
    inner = found.slice(1, found.height - 2)
    assert inner["from_ns"].to_list() == [100.0, *inner["to_ns"][:-1]]
    assert (inner["to_ns"][-1], found["to_ns"][-1]) == (70.0, 70.0)
    longer = HAND.with_columns(
        b_ns=pl.when(level="step", phase="decode").then(72.0).otherwise("b_ns")
    )
    rest = waterfall_rows(longer).filter(label="not explained by any part")
    assert rest.select("a_ns", "b_ns", "delta_ns").row(0) == (1.0, 3.0, 2.0)
    same = waterfall_rows(HAND.with_columns(b_ns="a_ns", delta_ns=0.0), phase="decode")
    assert same["group"].to_list() == ["total", "total"]


def test_what_is_no_comparison_or_has_no_such_phase_is_refused():
    with pytest.raises(AnalysisError, match="has no columns"):
        waterfall_rows(HAND.drop("kind"))
    for phase in ("mixed", "prefill"):
        with pytest.raises(AnalysisError, match=f"share no steps of {phase}"):
            waterfall_rows(HAND, phase=phase)
    with pytest.raises(AnalysisError, match="share no phase"):
        waterfall_rows(HAND.filter(phase="prefill"))
    assert diff_words(HAND.clear()) == [
        "Neither run holds work on a device: there is nothing to compare."
    ]


@pytest.mark.slow
def test_what_cannot_be_laid_side_by_side_is_named(shared):
    a, b = (llmprof.read(shared / path) for path in PAIRS["ranks and phases"])
    rows = {
        row["what"]: row for row in diff_context(a, b, names=("moe", "dense")).iter_rows(named=True)
    }
    assert (rows["ranks"]["a"], rows["ranks"]["b"], rows["layers"]["a"], rows["layers"]["b"]) == (
        "1",
        "2",
        "48",
        "28",
    )
    assert rows["phases"]["words"].startswith(
        "phases: decode, mixed, prefill in moe, decode, prefill in dense;"
    )
    assert rows["device"]["same"] is True
    assert rows["device"]["words"] is None


def test_one_rank_of_a_comparison(sample_trace):
    a, b = sample_trace("torch_tp4_eager_nccl"), sample_trace("torch_tp4_eager_custom_allreduce")
    whole, one = diff(a, b), diff(a, b, ranks=[2])
    assert (
        one.filter(level="step", phase="decode")["a_steps"][0] * 4
        == (whole.filter(level="step", phase="decode")["a_steps"][0])
    )
    with pytest.raises(
        AnalysisError, match=r"ranks 9 are not in the traces; expected some of 0, 1, 2, 3"
    ):
        diff(a, b, ranks=[9])
    # waiting is still seen, though only one rank counts
    assert one.filter(level="part", phase="decode", part="wait")["a_ns"][0] > 0
    bars = waterfall_rows(one)
    assert bars.filter(pl.col("group") != "total")["delta_ns"].sum() == pytest.approx(
        bars["b_ns"][-1] - bars["a_ns"][0]
    )
