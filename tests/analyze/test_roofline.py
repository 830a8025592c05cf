import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.analyze.roofline import COLUMNS, coverage_of
from llmprof.errors import AnalysisError, LlmprofError
from llmprof.label.steps.labels import batches
from llmprof.theory import model_config
from llmprof.trace import Trace
from tests.analyze.builders import DENSE, forward, kernels, labels, launches
from tests.samples import sample

H200_CAPTURES = {
    "torch_tp1_cudagraph": "Qwen2.5-1.5B",
    "torch_tp1_eager": "Qwen2.5-1.5B",
    "torch_tp1_moe_eager": "Qwen3-30B-A3B",
    "torch_tp4_cudagraph": "Qwen2.5-7B",
    "torch_tp4_eager_custom_allreduce": "Qwen2.5-7B",
    "torch_tp4_eager_nccl": "Qwen2.5-7B",
    "torch_pp2_eager": "Qwen2.5-7B",
    "nsys_tp2_cudagraph": "Qwen2.5-7B",
    "nsys_tp1_layer_nvtx": "Qwen3-8B",
    # transformers has no labels: the tokens are inferred from the shapes of operators
    "torch_transformers_generate": model_config("Qwen2.5-1.5B") | {"num_hidden_layers": 8},
}
TINY = model_config("tiny") | {"num_hidden_layers": 2}


def two_steps():
    """A prefill of 2 requests with 10 tokens, then a decode step; kernels of 10 us with 1 us
    between them.
    """
    names = forward(2, DENSE)
    first = kernels(names, start=1000, dur=10_000, pause=1000)
    second = kernels(names, start=1_000_000, dur=10_000, pause=1000, first=100)
    both = pl.concat([first, second])
    steps = [
        ("execute_context_2(10)_generation_0(0)", 900, 50_000),
        ("execute_context_0(0)_generation_2(2)", 999_900, 50_000),
    ]
    return Trace(
        {"kernels": both, "runtime": launches(both), "markers": labels(steps)},
        {"device": "NVIDIA H200"},
        {},
    )


@pytest.mark.parametrize("name", H200_CAPTURES)
def test_no_stage_of_a_capture_is_faster_than_its_bound_and_nearly_all_time_is_explained(name):
    found = analyze.roofline(sample(name), H200_CAPTURES[name], by="layer")
    coverage = coverage_of(found)
    assert coverage["below_bound"] == 0
    assert found.filter(pl.col("bound_share") > 1).height == 0
    assert coverage["explained_share"] > 0.95
    assert coverage["contexts_known_share"] == 1


def test_the_bound_of_a_stage_is_its_weights_over_the_bandwidth():
    found = analyze.roofline(sample("torch_tp1_cudagraph"), "Qwen2.5-1.5B")
    decode = found.filter((pl.col("phase") == "decode") & (pl.col("stage") == "gate_up_proj"))
    # 28 layers, 1536 x 2 x 8960 weights of 2 bytes at 4.8 TB/s
    assert decode["bound_ns"][0] == pytest.approx(28 * 1536 * 2 * 8960 * 2 / 4.8e3)
    assert decode["bound_by"].unique().to_list() == ["memory"]
    assert decode["mbu"].to_list() == pytest.approx(decode["bound_share"].to_list())
    assert decode.filter(pl.col("tokens") == 4)["flops"][0] == 28 * 2 * 4 * 1536 * 2 * 8960


def test_measured_time_is_all_device_time_and_idle_fills_the_steps():
    trace = two_steps()
    found = analyze.roofline(trace, TINY)
    work = found.filter(pl.col("stage") != "idle")
    assert list(found.columns) == list(COLUMNS)
    assert work["total_ns"].sum() == trace.kernels["dur_ns"].sum()
    idle = found.filter(pl.col("stage") == "idle").sort("step")
    count = len(forward(2, DENSE))
    # up to the next step; within the last one, the pauses between kernels
    assert idle["total_ns"].to_list() == [999_000 - count * 10_000, (count - 1) * 1000]
    assert idle["reason"].unique().to_list() == ["idle"]
    assert found.filter(pl.col("stage") == "attention")["tokens"].to_list() == [10, 2]


def test_ranks_of_a_pipeline_have_the_layers_of_their_stage():
    found = analyze.roofline(sample("torch_pp2_eager"), "Qwen2.5-7B", by="layer")
    per_rank = (
        found.filter(pl.col("stage") == "gate_up_proj")
        .group_by("rank")
        .agg(pl.col("layer").n_unique())
    )
    assert per_rank.sort("rank").rows() == [(0, 14), (1, 14)]
    assert found.filter(pl.col("stage") == "lm_head")["rank"].unique().to_list() == [1]


def test_contexts_are_followed_from_prompts_to_tokens():
    steps = llmprof.analyze.steps(sample("torch_tp1_cudagraph"))
    known = batches(steps)
    (decode,), how = known[0, 3]
    # 4 prompts of 64; two of the requests already made one token in the mixed step
    assert (decode.count, decode.query, how) == (4, 1, "followed")
    assert decode.context == (4 * 64 + 2 + 4) / 4
    (first, second), _ = known[0, 2]
    assert (first.phase, first.tokens, second.phase, second.tokens) == ("prefill", 128, "decode", 2)


def frame(*names):
    from llmprof.label.steps.labels import parse_labels

    rows = pl.DataFrame({"name": list(names)})
    return parse_labels(rows).with_columns(rank=pl.lit(0), step=pl.int_range(pl.len()))


def test_contexts_of_requests_from_before_the_trace_are_unknown_or_given():
    known = batches(frame("execute_context_0(0)_generation_3(3)"))
    (made,), how = known[0, 0]
    assert (made.context, how) == (1, "unknown")
    known = batches(
        frame("execute_context_0(0)_generation_3(3)", "execute_context_0(0)_generation_3(3)"),
        context=100,
    )
    assert [known[0, n][0][0].context for n in (0, 1)] == [101, 102]
    known = batches(
        frame(
            "execute_context_2(100)_generation_0(0)",
            "execute_context_3(900)_generation_2(2)",
            "execute_context_0(0)_generation_5(5)",
            "execute_context_0(0)_generation_4(4)",
        )
    )
    assert known[0, 2][0][0].context == (2 * 51 + 3 * 300) / 5 + 1
    (made,), how = known[0, 3]
    assert (made.context, how) == ((1 * 52 + 3 * 301) / 4 + 1, "estimated")


def test_one_rank_is_no_pipeline_of_two():
    trace = two_steps()
    longer = TINY | {"num_hidden_layers": 3}
    assert analyze.roofline(trace, longer).height  # how many ranks ran is not recorded
    alone = Trace(dict(trace.tables), {**trace.meta, "world_size": 1}, {})
    with pytest.raises(AnalysisError, match=r"2 layers in a step, .* has 3"):
        analyze.roofline(alone, longer)


def test_what_cannot_be_joined_is_refused():
    trace, shape = (
        sample("nsys_transformers_generate"),
        H200_CAPTURES["torch_transformers_generate"],
    )
    with pytest.raises(AnalysisError, match="how many tokens"):
        analyze.roofline(trace, shape)
    trace = sample("torch_tp1_cudagraph")
    with pytest.raises(AnalysisError, match=r"28 layers in a step, Qwen3-8B has 36"):
        analyze.roofline(trace, "Qwen3-8B")
    with pytest.raises(AnalysisError, match="by='kernel'"):
        analyze.roofline(trace, "Qwen2.5-1.5B", by="kernel")
    with pytest.raises(LlmprofError, match="H300"):
        analyze.roofline(trace, "Qwen2.5-1.5B", "H300")
    unnamed = Trace(
        {"kernels": trace.kernels, "runtime": trace.runtime, "markers": trace.markers}, {}, {}
    )
    with pytest.raises(AnalysisError, match="names no device"):
        analyze.roofline(unnamed, "Qwen2.5-1.5B")
