"""Batches of steps without labels, from the grids of the kernels that store keys: a block for
each token.
"""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.label.steps.stored import stored_tokens
from llmprof.trace import Trace
from tests.analyze.builders import CACHE, forward, kernels

COUNTS = ("phase", "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")


def passes(*tokens, second=0):
    """Passes of two layers, a microsecond each; ``second`` is added to the grid of the second
    layer.
    """
    frames = []
    for n, each in enumerate(tokens):
        run = kernels(forward(2), start=1000 * n, first=100 * n)
        stores = pl.col("name") == CACHE
        grid = pl.when(stores).then(pl.lit(each) + second * (stores.cum_sum() - 1))
        frames.append(run.with_columns(grid_x=grid.cast(pl.Int32)))
    return Trace({"kernels": pl.concat(frames)})


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        # 300 tokens are the prompts of the three requests that generate next
        ((300, 3, 3, 2), [("prefill", 3, 300, 0, 0), *[("decode", 0, 0, n, n) for n in (3, 3, 2)]]),
        # which of two that read has which prompts is not known; what generates is
        ((300, 200, 3, 3), [("other", *[None] * 4)] * 2 + [("decode", 0, 0, 3, 3)] * 2),
        # a pass that reads later may generate, too
        (
            (1, 1, 90, 2),
            [("decode", 0, 0, 1, 1)] * 2 + [("other", *[None] * 4), ("decode", 0, 0, 2, 2)],
        ),
        # parts of a long prompt, or a large batch that generates: nothing tells
        ((512, 512, 512), [("other", *[None] * 4)] * 3),
        ((None, 3, 3), [("other", *[None] * 4)] * 3),
        (
            (300, None, 3),
            [("prefill", 3, 300, 0, 0), ("other", *[None] * 4), ("decode", 0, 0, 3, 3)],
        ),
    ],
)
def test_few_tokens_generate_and_many_before_them_are_prompts(tokens, expected):
    assert analyze.steps(passes(*tokens)).select(COUNTS).rows() == expected


def test_layers_that_disagree_and_grids_that_were_not_recorded_say_nothing():
    assert analyze.steps(passes(300, 3, 3, second=1))["prefill_tokens"].null_count() == 3
    trace = passes(300, 3, 3)
    assert stored_tokens(trace)["tokens"].to_list() == [300, 300, 3, 3, 3, 3]
    bare = Trace({"kernels": trace.kernels.drop("grid_x")})
    assert stored_tokens(bare).is_empty()
    assert analyze.steps(bare)["prefill_tokens"].null_count() == 3


@pytest.mark.parametrize("name", ["nsys_tp1_layer_nvtx", "run_torch_tp1"])
def test_without_its_labels_a_recording_has_the_same_batches(sample_trace, name):
    labelled = sample_trace(name)
    bare = Trace({name: labelled.table(name) for name in ("kernels", "runtime")}, labelled.meta)
    found, said = analyze.steps(bare), analyze.steps(labelled)
    assert set(found["source"]) == {"inferred"}
    assert found.select(COUNTS).equals(said.filter(pl.col("phase") != "empty").select(COUNTS))


def test_the_launches_of_labelled_steps_have_the_tokens_of_their_labels(
    sample_trace,
):
    for name in ("torch_tp1_eager", "torch_pp2_eager", "nsys_tp2_cudagraph", "torch_ep2_dp2_eager"):
        trace = sample_trace(name)
        tokens = pl.col("prefill_tokens") + pl.col("decode_tokens")
        said = analyze.steps(trace).select("rank", "step", said=tokens)
        place = trace.events.select("event", "rank", "step")
        both = stored_tokens(trace).join(place, on="event").join(said, on=["rank", "step"])
        assert both.height > 100
        assert (both["tokens"] == both["said"]).all()
