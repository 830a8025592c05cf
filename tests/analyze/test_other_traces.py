"""Other people's traces: every analysis runs or abstains on each, and finds no layers or steps
where there are none.
"""

import functools
import warnings

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import LlmprofError, TraceWarning
from llmprof.trace import Trace
from tests.analyze.builders import kernels

TRACES = {
    "ads, 2022, V100": "hta/df_index_resolver__df_index_resolver.json.gz",
    "NCCL metadata, A100": "hta/nccl_parser_config__nccl_data.json.gz",
    "2024, ns timestamps": "hta/ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "sampled, rank 0": "hta/timeline_analysis__sampled_rank-0.json.gz",
    "sampled, rank 1": "hta/trace_filter__sampled_rank-1.json.gz",
    "control": "hta/trace_diff__control__control.json.gz",
    "test": "hta/trace_diff__test__test.json.gz",
    "resnet50, 2021": "kineto/resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz",
    "DLRM, 8 ranks": "param/dlrm",
    "Qwen1.5-0.5B, H100": "tracelens/h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "Qwen1.5-0.5B, MI300X": "tracelens/mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "SGLang Qwen3-8B, MI300X": "tracelens/inference__sglang_prefilldecode__sglang_Qwen3-8B_prefilldecode.json.gz",
    "vLLM graph capture, MI300X": "tracelens/inference__vllm_prefilldecode_piecewise__capture_traces__"
    "graph_capture_rank_0.1773709679453551615.pt.trace.json.gz",
    "vLLM gpt-oss, MI300X": "tracelens/inference__vllm_prefilldecode_piecewise__graph_execution.json.gz",
}
NO_LLM = [name for name in TRACES if "hta/" in TRACES[name] or name.startswith(("resnet", "DLRM"))]

ANALYSES = (
    "collectives",
    "coverage",
    "findings",
    "idle",
    "events",
    "kernels",
    "launch_delay",
    "layers",
    "overlap",
    "steps",
    "stream_gaps",
)
"""Those that need nothing but a trace."""


@functools.cache
def opened(path):
    with warnings.catch_warnings(action="ignore", category=TraceWarning):
        return llmprof.read(path)


@pytest.fixture
def trace(request, shared):
    return opened(shared / "real" / "chrome" / TRACES[request.param])


def everywhere(*names):
    return pytest.mark.parametrize("trace", names or list(TRACES), indirect=True)


@pytest.mark.slow
@everywhere()
def test_every_analysis_runs_or_says_what_was_not_captured(trace):
    model = Trace(
        {"kernels": kernels(["acme"]), "runtime": pl.DataFrame(_RUNTIME), "ops": pl.DataFrame(_OPS)}
    )
    for name in ANALYSES:
        analysis = getattr(analyze, name)
        try:
            found = analysis(trace)
        except LlmprofError:
            continue
        assert found.schema == analysis(model).schema, name


_RUNTIME = {
    "rank": [0],
    "start_ns": [0],
    "dur_ns": [1],
    "name": ["x"],
    "api": ["runtime"],
    "correlation": [1],
}
_OPS = {"rank": [0], "start_ns": [0], "dur_ns": [1], "name": ["x"], "kind": ["op"]}


@pytest.mark.slow
@everywhere()
def test_sums_hold(trace):
    events = trace.events
    assert events["event"].to_list() == list(range(events.height))
    assert events.filter(pl.col("layer").is_not_null() & pl.col("confidence").is_null()).is_empty()
    assert events.filter(pl.col("step").is_null() & pl.col("layer").is_not_null()).is_empty()
    assert events.filter(pl.col("step").is_not_null() & pl.col("stage").is_null()).is_empty()
    by_layer = analyze.layers(trace)
    assert by_layer["kernels"].sum() == events["layer"].is_not_null().sum()
    assert (by_layer["busy_ns"] <= by_layer["dur_ns"]).all()
    shares = analyze.coverage(trace)
    assert shares["share"].is_between(0, 1).all()
    calls = analyze.collectives(trace)
    assert calls.height == (events["category"] == "collective").sum()
    known = calls.filter(pl.col("wait_ns").is_not_null())
    assert (known["wait_ns"] + known["transfer_ns"] == known["dur_ns"]).all()
    found = analyze.findings(trace)
    assert found["share"].is_between(0, 1).all()


@pytest.mark.slow
@everywhere(*NO_LLM)
def test_what_is_no_language_model_has_no_layers(trace):
    assert analyze.layers(trace).is_empty()
    assert trace.events["layer"].null_count() == trace.events.height
    assert analyze.steps(trace, steady=True).is_empty()
    found = analyze.steps(trace)
    assert set(found["source"]) <= {"profiler_step"}  # the profiler's own labels, none inferred
    assert set(found["phase"]) <= {"other"}
    # compute is told by category, not by stages of a layer that there is not
    where = analyze.findings(trace).filter(pl.col("rule") == "heaviest_stage")["where"]
    assert not where.str.starts_with("stage").any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "count", "weights"),
    [
        ("Qwen1.5-0.5B, H100", 24, None),
        (
            "Qwen1.5-0.5B, MI300X",
            24,
            {
                "aten::addmm [1024, 1024]": "qkv_proj",
                "aten::mm [1024, 1024]": "o_proj",
                "aten::mm [1024, 2816]": "gate_up_proj",
                "aten::mm [2816, 1024]": "down_proj",
            },
        ),
        (
            "SGLang Qwen3-8B, MI300X",
            36,
            {
                "aten::mm [4096, 6144]": "qkv_proj",
                "aten::mm [4096, 4096]": "o_proj",
                "aten::mm [4096, 24576]": "gate_up_proj",
                "aten::mm [12288, 4096]": "down_proj",
                "aten::mm [4096, 151936]": "lm_head",
            },
        ),
        ("vLLM gpt-oss, MI300X", 24, None),
    ],
    indirect=["trace"],
)
def test_layers_of_language_models(trace, count, weights):
    found = analyze.layers(trace)
    assert found.group_by("rank", "step").len()["len"].to_list() == [count]
    assert found["confidence"].unique().to_list() == [1.0]
    if weights is None:
        return
    operators = trace.ops.unique(["rank", "op_id"], keep="first").select(
        "rank",
        "op_id",
        weight=pl.col("name")
        + " "
        + pl.col("shapes").str.extract_all(r"\[\d+, ?\d+\]").list.last(),
    )
    events = trace.events.filter(pl.col("category") == "gemm").join(operators, on=["rank", "op_id"])
    said = events.filter(pl.col("weight").is_in(list(weights)))
    assert set(said["weight"]) == set(weights)
    assert said["stage"].to_list() == [weights[w] for w in said["weight"]]


@everywhere("vLLM graph capture, MI300X")
def test_a_graph_capture_is_no_run(trace):
    assert analyze.steps(trace)["source"].to_list() == ["capture"]
    assert analyze.steps(trace, steady=True).is_empty()
    assert analyze.findings(trace).is_empty()
