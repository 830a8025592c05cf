"""Labels of recordings of others, with the truth counted by hand (README of
``shared/strangers``).
"""

from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.findings.causes import EXPOSED_COMMUNICATION
from llmprof.findings.scope import scope_of
from llmprof.readers import ascend

STRANGERS = Path(__file__).parents[2] / ".." / "shared" / "strangers"
pytestmark = [
    pytest.mark.skipif(not STRANGERS.is_dir(), reason="the recordings of others are not here"),
    pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning"),
]


def read(pattern):
    (path,) = STRANGERS.glob(pattern)
    return llmprof.read(path)


def sums(events, name=""):
    """Count and time (ns) by category of the events whose name contains a text."""
    events = events.filter(pl.col("name").str.contains(name, literal=True)) if name else events
    rows = events.group_by("category").agg(pl.len(), pl.col("dur_ns").sum()).rows()
    return {category: (count, time) for category, count, time in rows}


def test_an_operator_of_several_purposes_does_not_override_names():
    events = read("chrome/deepseek__train.json").events
    assert sums(events)["attention"] == (16, 21_965_000)
    assert sums(events)["rope"] == (24, 1_512_000)
    assert sums(events, "GemmKernel") == {
        "gemm": (124, 51_594_000),
        "moe_experts": (16, 22_926_000),
    }


def test_what_an_operator_of_several_purposes_launches():
    trace = read("chrome/deepseek__train.json")
    of = trace.ops.filter(pl.col("name").str.contains("^RopeLoraFlashAttnVarlenFunc"))
    calls = of.select(
        launch_thread="thread", at="start_ns", until=pl.col("start_ns") + pl.col("dur_ns")
    ).sort("at")
    events = trace.events.drop_nulls("launch_start_ns").sort("launch_start_ns")
    inside = events.join_asof(
        calls, left_on="launch_start_ns", right_on="at", by="launch_thread", check_sortedness=False
    ).filter(pl.col("launch_start_ns") < pl.col("until"))
    found = {category: time for category, (_, time) in sums(inside).items()}
    told = {category: found[category] for category in ("attention", "gemm", "rope")}
    assert told == {"attention": 21_965_000, "gemm": 7_142_000, "rope": 1_512_000}
    assert "rope" not in analyze.findings(trace)["where"][0]


@pytest.mark.parametrize(
    ("pattern", "name", "category", "count", "time_ns"),
    [
        ("chrome/hist__mi300__ddp_resnet18*", "batched_transpose", "copy", 885, 58_791_267),
        ("chrome/inference__xdit_flux*", "sage_fwd", "attention", 228, 9_995_866),
        ("chrome/tl_moe_05*", "vectorized_gather_kernel", "elementwise", 12, 6_490_076),
    ],
)
def test_what_a_kernel_surely_is(pattern, name, category, count, time_ns):
    assert sums(read(pattern).events, name) == {category: (count, time_ns)}


def test_a_kernel_for_any_collective_has_the_kind_of_its_operator():
    trace = read("chrome/tracemap_mi300x*")
    calls = analyze.collectives(trace).filter(
        pl.col("name").str.starts_with("ncclDevKernel_Generic")
    )
    found = calls.group_by("kind").agg(pl.len(), pl.col("dur_ns").sum()).sort("kind").rows()
    assert found == [("all_gather", 10, 266_187), ("all_reduce", 161, 42_393_971)]
    events = trace.events
    assert events["layer"].n_unique() == 80 + 1
    assert events.filter(stage="gate_up_proj")["dur_ns"].sum() == 84_797_071


def test_copies_and_scaling_before_attention_are_no_rope():
    events = read("chrome/mi300__google_owlv2*").events
    assert "rope" not in events["stage"].to_list()


def test_gradients_of_operators_on_a_cpu():
    events = read("chrome/monisha_trace.json").events
    gradients = events.filter(pl.col("name").str.ends_with("AddmmBackward0"))
    assert gradients["category"].unique().to_list() == ["gemm"]
    assert gradients["dur_ns"].sum() == pytest.approx(2_718e6, rel=1e-3)


def test_a_rank_with_only_its_calls_has_no_idle_time():
    trace = read("ascend/msinsight_st_level2")
    assert trace.ranks == [0, 1, 2]
    assert trace.kernels["rank"].unique().to_list() == [0]
    assert analyze.collectives(trace)["rank"].value_counts().sort("rank")["count"].to_list() == [
        15,
        15,
        23,
    ]
    whole = analyze.overlap(trace, by="rank", waits=True)
    assert whole.select("rank", "compute_ns", "idle_ns").rows() == [(0, 231_290_100, 158_558_000)]
    assert analyze.findings(trace)["rank"].drop_nulls().unique().to_list() == [0]


def test_kernels_in_a_table_without_streams_and_in_a_timeline_count_once():
    trace = read("ascend/msinsight_level0/text")
    of_rank = (
        trace.kernels.group_by("rank").agg(pl.len(), pl.col("dur_ns").sum()).sort("rank").rows()
    )
    assert [count for _, count, _ in of_rank] == [191, 191]
    assert of_rank[0][2] == pytest.approx(94_344_340, abs=10)
    assert [file["matched"] for file in trace.coverage["files"]] == [191, 191]
    alone = trace.kernels.filter(pl.col("stream").is_null())
    assert alone["ascend_core"].unique().to_list() == ["HCCL"]


@pytest.mark.parametrize("form", ["text", "db"])
def test_waiting_is_unknown_where_the_number_of_ranks_is_not_recorded(form):
    trace = read(f"ascend/msinsight_level0/{form}")
    calls = analyze.collectives(trace)
    assert calls.height == 8
    assert calls["transfer_ns"].null_count() == calls["wait_ns"].null_count() == 8
    exposed = analyze.overlap(trace, by="rank", waits=True)
    assert exposed["exposed_transfer_ns"].sum() == exposed["exposed_wait_ns"].sum() == 0
    assert exposed["exposed_unknown_ns"].equals(
        exposed["exposed_communication_ns"].rename("exposed_unknown_ns")
    )


def test_calls_of_the_operating_system_are_calls():
    trace = read("chrome/gold_nsys_example.json")
    assert trace.runtime["api"].value_counts().sort("api").rows() == [("os", 423), ("runtime", 881)]
    assert "osrt" not in trace.markers["domain"].to_list()


def test_gloo_lasts_as_long_as_its_range():
    calls = analyze.collectives(read("chrome/cpu_only__rank-34*"))
    assert calls["name"].unique().to_list() == ["gloo:all_reduce"]
    assert calls.filter(bytes=4 * 321_271)["dur_ns"].to_list() == [
        173_209_713,
        180_293_695,
        380_183_168,
        162_768_957,
        178_343_122,
    ]
    assert calls.filter(bytes=4 * 2_082_411)["dur_ns"].sum() == 1_060_657_263


def test_a_rank_that_waits_in_gloo_is_told_so_first():
    trace = read("chrome/cpu_only__rank-34*")
    assert analyze.findings(trace)["rule"][0] == "exposed_communication"
    measured, of_step = (
        EXPOSED_COMMUNICATION.measure(scope_of(trace)),
        analyze.overlap(trace, by="step").sum(),
    )
    assert measured is not None
    hidden = of_step["hidden_communication_ns"][0] / of_step["communication_ns"][0]
    assert measured.figures.hidden_share == pytest.approx(hidden)
    assert measured.ns == of_step["exposed_communication_ns"][0]


def test_the_late_rank_is_last_in_every_all_reduce():
    trace = read("chrome/amd_hpctraining*")
    calls = analyze.collectives(trace).filter(kind="all_reduce")
    assert calls.filter(pl.col("wait_ns") > 0)["last_rank"].unique().to_list() == [3]


def test_the_hosts_lateness_until_the_launching_calls_return():
    """24.7 ms a step on rank 3 and 13.6 to 14.0 on others; findings add the time from each call
    to its kernel.
    """
    trace = read("chrome/amd_hpctraining*")
    gaps = analyze.idle(trace).filter(pl.col("step").is_not_null()).unique(["rank", "gap"])
    events = trace.events.select(
        next_event="event", next_ns="start_ns", launched_ns="launch_end_ns"
    )
    gaps = gaps.join(events, on="next_event")
    late = (pl.col("launched_ns") - pl.col("next_ns") + pl.col("gap_ns")).clip(0, pl.col("gap_ns"))
    by_rank = gaps.group_by("rank").agg(late.sum() / 3e6).sort("rank").to_series(1)
    assert by_rank[3] == pytest.approx(24.7, rel=0.01)
    assert by_rank[:3].is_between(13.5, 14.1).all()


def test_loading_of_data_is_most_of_what_the_host_is_late():
    found = analyze.findings(read("chrome/resnet50_num_workers_0*"))
    late = dict(
        found.filter(pl.col("rule").is_in(["data_loading", "host_bound"]))
        .select("rule", "figure")
        .iter_rows()
    )
    assert late["data_loading"] / sum(late.values()) == pytest.approx(0.62, abs=0.02)


def test_products_within_the_gradients_of_a_cpu():
    trace = read("chrome/monisha_trace.json")
    ops = trace.ops
    outer = ops.filter(pl.col("name").str.ends_with("AddmmBackward0")).select(
        "thread", outer="start_ns", outer_end=pl.col("start_ns") + pl.col("dur_ns")
    )
    products = (
        ops.filter(name="aten::mm")
        .sort("start_ns")
        .join_asof(
            outer.sort("outer").unique("outer", maintain_order=True),
            left_on="start_ns",
            right_on="outer",
            by="thread",
            check_sortedness=False,
        )
    )
    assert products.filter(pl.col("start_ns") < pl.col("outer_end"))[
        "dur_ns"
    ].sum() == pytest.approx(2_556e6, rel=1e-3)
    assert analyze.findings(trace)["rule"][0] != "unnamed_time"


def test_first_launches_take_most_of_the_time_of_launches():
    calls = read("chrome/perf_model__normalization*").runtime.filter(name="hipLaunchKernel")[
        "dur_ns"
    ]
    assert calls.top_k(6).sum() == pytest.approx(1_036e6, rel=1e-3)
    assert calls.sum() == pytest.approx(1_086e6, rel=1e-3)


def test_images_are_resized_on_the_cpu():
    trace = read("chrome/mi300__google_owlv2*")
    assert (
        trace.ops.filter(pl.col("name").str.contains("zoom_shift"))["dur_ns"].sum() == 563_643_944
    )
    first = analyze.findings(trace).row(0, named=True)
    assert first["rule"] == "input_preparation"


def test_sage_attention_is_a_twentieth_of_the_device_time():
    events = read("chrome/inference__xdit_flux*").events
    attention = events.filter(pl.col("name").str.contains("sage_fwd"))["dur_ns"].sum()
    assert attention / events["dur_ns"].sum() == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize(
    ("rank", "computing", "free"),
    [(0, 231_290_100, 158_558_000), (1, 230_903_720, 136_819_560), (2, 400_448_260, 131_705_280)],
)
def test_what_the_tool_says_of_ranks_without_kernels(rank, computing, free):
    (path,) = STRANGERS.glob(f"ascend/msinsight_st_level2/rank_{rank}_ascend_pt")
    said = ascend.summaries(path)["step_trace_time"]
    assert said["computing_ns"].to_list() == [pytest.approx(computing, abs=10)]
    assert said["free_ns"].to_list() == [pytest.approx(free, abs=10)]


def test_both_forms_of_a_run_have_as_many_kernels():
    for form in ("text", "db"):
        kernels = read(f"ascend/msinsight_level0/{form}").kernels
        assert kernels.group_by("rank").len().sort("rank").rows() == [(0, 191), (1, 191)]


TIMELINES = {
    "h100_falconsai": "real/chrome/tracelens/h100__Falconsai*",
    "h100_qwen1.5": "real/chrome/tracelens/h100__Qwen*",
    "mi300_qwen1.5": "real/chrome/tracelens/mi300__Qwen*",
    "mi300_bert": "real/chrome/tracelens/mi300__gaunernst*",
    "sglang_prefilldecode": "real/chrome/tracelens/inference__sglang_prefilldecode__*",
    "vllm_piecewise": "real/chrome/tracelens/inference__vllm_prefilldecode_piecewise__graph_execution*",
    "mi300_owlv2": "strangers/chrome/mi300__google_owlv2*",
    "vllm_decode_full": "strangers/chrome/inference__vllm_decode_full*",
}
"""Recordings with a timeline by TraceLens, whose window is the step."""


@pytest.mark.parametrize("name", TIMELINES)
def test_a_step_is_as_busy_as_another_tool_says(name, shared):
    said = pl.read_csv(STRANGERS / "tracelens_reference" / f"{name}.gpu_timeline.csv")
    busy = dict(said.select("type", "time ms").iter_rows())["busy_time"]
    (path,) = shared.glob(TIMELINES[name])
    found = analyze.overlap(llmprof.read(path), by=("rank", "step")).filter(
        pl.col("step").is_not_null()
    )
    assert (found["total_ns"] - found["idle_ns"]).sum() / 1e6 == pytest.approx(busy, rel=0.01)


def test_the_device_is_busy_where_another_tools_window_ends(shared):
    (path,) = shared.glob(TIMELINES["h100_qwen1.5"])
    found = analyze.overlap(llmprof.read(path), by="rank")
    assert (found["total_ns"] - found["idle_ns"]).item() == pytest.approx(45.647e6, rel=1e-4)
