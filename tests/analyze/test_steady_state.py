"""Which steps represent a run: warm-up, outliers, other batches and other phases are left out."""

import polars as pl

from llmprof.analyze import steps
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, kernels, labels, launches

PREFILL = "execute_context_4(256)_generation_0(0)"
EMPTY = "execute_context_0(0)_generation_0(0)"


def decode(requests):
    return f"execute_context_0(0)_generation_{requests}({requests})"


def run_of(parts, *, rank=0):
    """A step every 10,000 ns, each with one kernel of the given duration; 0 for none."""
    frames = [
        kernels([(GEMM, dur)], start=10_000 * n + 100, rank=rank, first=1 + n + 1000 * rank)
        for n, (_, dur) in enumerate(parts)
        if dur
    ]
    run = pl.concat(frames) if frames else kernels([])
    marks = labels([(name, 10_000 * n, 50) for n, (name, _) in enumerate(parts)], rank=rank)
    return {"kernels": run, "runtime": launches(run), "markers": marks}


def steady(parts):
    return steps(Trace(run_of(parts)), steady=True)["step"].to_list()


def test_outliers_are_left_out():
    times = [100, 101, 99, 100, 400, 102, 98, 100, 20, 101]
    assert steady([(decode(4), 100), *((decode(4), t) for t in times)]) == [1, 2, 3, 4, 6, 7, 8, 10]
    times = [100, 150, 200, 250, 300, 350]
    assert steady([(decode(4), 200), *((decode(4), t) for t in times)]) == [1, 2, 3, 4, 5, 6]


def test_the_usual_batch_and_the_longest_stretch_count():
    parts = [
        (PREFILL, 500),
        *[(decode(2), 80)] * 3,  # 1 to 3: another batch
        (PREFILL, 500),
        *[(decode(4), 100)] * 4,  # 5 to 8: a short stretch
        (PREFILL, 500),
        *[(decode(4), 100)] * 6,  # 10 to 15: the longest
        *[(decode(3), 90)] * 2,  # 16 and 17: requests have ended
    ]
    assert steady(parts) == [11, 12, 13, 14, 15]


def test_which_steps_are_never_steady():
    assert steady([(PREFILL, 500)] * 5) == []
    assert steady([("capture_8_FULL", 500)] * 5) == []
    assert steady([("ProfilerStep#1", 500)] * 5) == []
    assert steady([(EMPTY, 0)] * 5) == []
    assert steady([(PREFILL, 500), *[(decode(4), 100)] * 6]) == [2, 3, 4, 5, 6]
    assert steady([(decode(4), 100)] * 6) == [1, 2, 3, 4, 5]  # as is the first of a recording
    # unless fewer than three others would stay
    assert steady([(PREFILL, 500), *[(decode(4), 100)] * 3]) == [1, 2, 3]


def test_each_rank_by_itself():
    zero = run_of([(PREFILL, 500), *[(decode(4), 100)] * 5])
    one = run_of(
        [(PREFILL, 500), *[(decode(4), 100)] * 3, (decode(4), 900), (decode(4), 100)], rank=1
    )
    found = steps(Trace({name: pl.concat([zero[name], one[name]]) for name in zero}), steady=True)
    assert found.filter(pl.col("rank") == 0)["step"].to_list() == [2, 3, 4, 5]
    assert found.filter(pl.col("rank") == 1)["step"].to_list() == [2, 3, 5]
