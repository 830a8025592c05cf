"""Small inputs of engines and files with the truth that their README states."""

import polars as pl
import pytest

import llmprof
from llmprof import analyze

pytestmark = pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")


@pytest.fixture
def read(shared):
    def read(path):
        return llmprof.read(shared / "strangers" / "small" / path, cache=False)

    return read


@pytest.mark.parametrize(
    ("path", "held", "phases"),
    [
        ("engines/03_jax", ([0], 80, 2_141_500), {"decode": 5}),
        ("engines/11_trtllm_labels", ([0], 378, None), {"decode": 5, "mixed": 1}),
        ("engines/12_atom_labels", ([0], 205, None), {"empty": 1, "prefill": 1, "decode": 3}),
        ("engines/21_nsys_trtllm", ([0, 1], 1_068, 12_012_000), {"decode": 10, "mixed": 2}),
        ("engines/31_xplane", ([0], 50, 75_000), {}),
        ("engines/36_pd_disaggregation", ([0, 1], 549, None), {"prefill": 4, "decode": 5}),
        ("engines/46_llamacpp_moe", ([0], 915, None), {"other": 5}),
        ("engines/47_mlc", ([0], 415, 6_140_000), {"other": 5}),
        ("files/05_sglang_by_stage", ([0, 1], 492, None), {"prefill": 4, "decode": 8}),
        ("files/25_gzip/trailing_zeros.json.gz", ([0], 164, None), None),
        ("files/25_gzip/two_documents.json.gz", ([0, 1], 328, None), None),
        ("files/25_gzip/two_members.json.gz", ([0], 164, None), None),
        ("files/32_pftrace/cat_two_ranks.pftrace", ([0, 1], 100, None), {}),
        ("files/32_pftrace/kineto_rank0.pftrace", ([0], 50, None), {}),
        ("files/32_pftrace/render_stage.pftrace", ([0], 50, None), {}),
    ],
)
def test_ranks_kernels_and_steps(read, path, held, phases):
    trace, (ranks, kernels, dur_ns) = read(path), held
    assert (trace.ranks, trace.kernels.height) == (ranks, kernels)
    assert dur_ns in (None, trace.kernels["dur_ns"].sum())
    found = dict(analyze.steps(trace)["phase"].value_counts().iter_rows())
    assert phases in (None, found)


def test_products_experts_and_routers_of_other_engines(read):
    mlc = read("engines/47_mlc").events
    sums = dict(mlc.group_by("category").agg(pl.col("dur_ns").sum()).iter_rows())
    assert (sums["gemm"], sums["attention"]) == (4_920_000, 480_000)
    trace = read("engines/46_llamacpp_moe")
    found = analyze.layers(trace).group_by("step", "kind").len().rows()
    assert sorted(found) == [(step, "attention + MoE", 12) for step in range(5)]
    routers = trace.events.filter(pl.col("name").str.contains("topk_moe"))
    assert routers["stage"].unique().to_list() == ["router"]


def test_ranks_that_wrote_over_each_other(read):
    found = analyze.findings(read("files/10_trtllm_interleaved"))
    assert found["rule"].to_list() == ["incomplete"]


def test_tables_without_a_timeline_and_calls_without_a_device(read, shared):
    assert read("files/27_nsys_stats_csv").totals["total_ns"].sum() == 13_069_134
    assert read("files/23_nsys_cpu_only").runtime.height == 60
    for file in (shared / "strangers/small/files/26_ncu_locale").glob("*.csv"):
        times = llmprof.read_metrics(file).metrics.filter(metric="gpu__time_duration.sum")
        assert times["value"].to_list() == [1_234_560, 12_500]


def test_short_work_has_no_sample_of_its_own(read):
    found = analyze.counters(read("files/33_nsys_gpu_metrics"))
    norm = pl.col("name").str.contains("norm")
    assert found.filter(norm)["own_count"].unique().to_list() == [0]
