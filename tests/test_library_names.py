"""Names of kernels as libraries have them, with their sources: what each is for, and that names
yield to witnesses.
"""

import csv
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import names
from llmprof.trace import Trace

with Path(__file__).with_name("library_names.tsv").open(encoding="utf-8", newline="") as file:
    TABLE = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
"""``category, name, source`` (repository and folder, or the traces that hold it); ``other``: the
name does not say.
"""

FAMILIES = (
    "attention",
    "norm",
    "activation",
    "rope",
    "kv_cache_write",
    "gemm",
    "moe_experts",
    "copy",
)


def test_patterns_in_small_letters_find_what_those_without_regard_to_case_do():
    each = pl.Series("name", [row["name"] for row in TABLE]).unique()
    each = each.filter(each.str.len_bytes() == each.str.len_chars())
    table = [
        *names.KERNEL_PATTERNS,
        ("group", r"(?P<Kind>GEMM)"),
        ("code", r"\x4B\B"),
        ("range", r"[A-_]\S"),
        ("no small", r"[^A-Z_]{40}"),
    ]
    plain = each.to_frame().select(names.match(pl.col("name"), table, "none")).to_series()
    assert names.by_unique_name(each, table, "none").to_list() == plain.to_list()
    for value, pattern in table:
        alone = [(value, pattern)]
        plain = each.to_frame().select(names.match(pl.col("name"), alone, "none")).to_series()
        assert names.by_unique_name(each, alone, "none").to_list() == plain.to_list(), pattern


def test_names_of_many_libraries():
    found = names.categories(pl.Series([row["name"] for row in TABLE]))
    wrong = [
        (row["name"], got, row["category"])
        for row, got in zip(TABLE, found, strict=True)
        if got != row["category"]
    ]
    assert not wrong
    assert len({row["source"] for row in TABLE}) > 50
    assert min(Counter(row["category"] for row in TABLE)[family] for family in FAMILIES) >= 3


def test_what_a_name_does_not_say_is_unknown():
    vague = [
        "main_kernel",
        "_fwd_kernel",
        "kernel",
        "void cutlass::device_kernel<x>",
        "triton_",
        "fused_kernel_3",
        "k0",
    ]
    assert set(names.named_categories(pl.Series(vague)).to_list()) <= {None, "elementwise"}
    assert (
        names.named_categories(pl.Series(["main_kernel", "_fwd_kernel", "k0"])).to_list()
        == [None] * 3
    )


def renamed(trace, family):
    """The trace with all kernels of a family whose operator or module is known under the names
    of other libraries.
    """
    events = trace.events.filter(pl.col("source") == "kernel").with_row_index("row")
    known = (pl.col("category") == family) & pl.col("category_by").is_in(["operator", "module"])
    main = ~pl.col("name").str.contains(f"(?i){names.GEMM_HELPERS}|{names.ATTENTION_HELPERS}")
    rows = events.filter(known & main)["row"]
    others = [row["name"] for row in TABLE if row["category"] == family]
    others = [
        name
        for name, helps in zip(others, _helps(others), strict=True)
        if not helps and "indexer" not in name
    ]
    new = pl.Series([others[n % len(others)] for n in range(rows.len())], dtype=pl.String)
    kernels = trace.kernels.sort("rank", "start_ns", "stream", maintain_order=True).with_row_index(
        "row"
    )
    kernels = kernels.join(
        pl.DataFrame({"row": rows, "new": new}), on="row", how="left", maintain_order="left"
    )
    kernels = kernels.with_columns(name=pl.coalesce("new", "name")).drop("row", "new")
    return Trace({**trace.tables, "kernels": kernels}, trace.meta, trace.coverage), rows.len()


def _helps(given):
    pattern = (
        f"(?i){names.GEMM_HELPERS}|{names.ATTENTION_HELPERS}|{names.GRADIENT}|{names.KV_TRANSFER}"
    )
    return pl.Series(given).str.contains(pattern).to_list()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sample", ["torch_tp1_eager", "torch_tp1_moe_eager"])
def test_other_names_change_no_label_where_operators_are_known(family, sample, sample_trace):
    trace = sample_trace(sample)
    other, count = renamed(trace, family)
    if not count:
        pytest.skip(f"no kernel of {sample} is {family} by its operator")
    labels = ["rank", "step", "layer", "stage", "category", "confidence"]
    before, after = trace.events.select(labels), other.events.select(labels)
    assert after.equals(before)


SMALL = (
    "onnxruntime/ort_tiny_transformer_cpu_2026-11-21_00-54-55_424.json",
    "chrome/tracelens/b200__eager_trace.json.gz",
    "chrome/tracelens/inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz",
    "chrome/tracelens/inference__vllm_prefilldecode_piecewise__graph_execution.json.gz",
    "chrome/tracelens/mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "chrome/tracelens/mi300__gaunernst_bert-small-uncased__1016001.json.gz",
    "nsys/nsysai_mfu_2gpu_after.sqlite",
)
"""Recordings of language models by others; ``benchmarks/unknown.py`` shows all."""


def test_nodes_of_onnx_are_what_their_type_says(shared):
    trace = llmprof.read(shared / "real" / SMALL[0])
    events = trace.events
    assert trace.ops.filter(pl.col("name") == "layer0/fc1_kernel_time")[
        "ort_op"
    ].unique().to_list() == ["MatMul"]
    assert dict(events.group_by("category").len().iter_rows()) == {
        "gemm": 168,
        "elementwise": 72,
        "activation": 24,
    }
