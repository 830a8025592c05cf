"""Recordings of nsys against what else is known of the program: its torch trace, its NVTX module
ranges, its model.
"""

import re

import polars as pl
import pytest

import llmprof
from llmprof.analyze.nsys import nvtx_kernels
from llmprof.trace import Trace

LAUNCH = [
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "registers",
    "shared_bytes",
]


@pytest.fixture(scope="module")
def pair(shared):
    """The same program under torch's profiler and under nsys."""
    torch = llmprof.read(shared / "captures/torch_transformers_generate/rank0.pt.trace.json.gz")
    return torch, llmprof.read(shared / "captures/nsys_transformers_generate/report.sqlite")


def same_name(name):
    """A kernel's name without the differences between the two demanglers, all of spelling:

    - ``(anonymous namespace)`` or ``<unnamed>``; ``{lambda(int)#1}`` or ``[lambda(int) (instance
      1)]``;
    - ``2``, ``2ul`` or ``(unsigned long)2``; ``true`` or ``(bool)1``; ``T const&`` or ``const T
      &``; spaces;
    - only nsys says the return type of a function that is a template argument;
    - parameters: torch writes their types out, nsys writes ``T1``.
    """
    name = re.sub(r"\(anonymous namespace\)|<unnamed>", "anonymous", name)
    name = re.sub(r"\((?:unsigned )?(?:int|long|bool)\)(?=-?\d)", "", name)
    name = re.sub(r"(?<=\d)(?:ul|u)\b", "", name)
    name = re.sub(r"\[lambda(\(.*?\)) \(instance (\d+)\)\]", r"{lambda\1#\2}", name)
    name = (
        name.replace("true", "1")
        .replace("false", "0")
        .replace("operator ()", "call")
        .replace("operator()", "call")
    )
    while (shorter := re.sub(r"\([^()]*\)", "", name)) != name:
        name = shorter
    return re.sub(r"\bvoid\b|\bconst\b|\s", "", name)


def test_kernels_of_both_profilers_are_the_same_in_the_same_order(
    pair,
):
    torch, nsys = (trace.kernels.sort("start_ns") for trace in pair)
    assert torch.height == nsys.height == 1491
    names = [[same_name(name) for name in frame["name"]] for frame in (torch, nsys)]
    assert names[0] == names[1]
    # the form for comparing does not make different kernels one
    assert len(set(names[0])) == torch["name"].n_unique() == nsys["name"].n_unique() == 62
    assert torch.select(LAUNCH).equals(nsys.select(LAUNCH))


def test_labels_of_both_profilers_are_the_same(pair):
    columns = ["name_is", "source", "category", "step", "layer", "stage", "confidence"]
    torch, nsys = (
        trace.events.with_columns(name_is=pl.Series([same_name(n) for n in trace.events["name"]]))
        for trace in pair
    )
    # the operator that launched it, which nsys does not record, knows one kernel that its name does
    # not tell
    by_operator = (
        (nsys["category"] == "other")
        & (torch["category"] == "elementwise")
        & (torch["category_by"] == "operator")
    )
    assert by_operator.sum() == 1
    nsys = nsys.with_columns(
        category=pl.when(by_operator).then(torch["category"]).otherwise("category")
    )
    assert (
        torch.filter(pl.col("source") == "kernel")
        .select(columns)
        .equals(nsys.filter(pl.col("source") == "kernel").select(columns))
    )
    assert torch.select(columns[1:]).equals(nsys.select(columns[1:]))
    # phases need the shapes of operators, or labels: this recording of nsys has neither
    assert set(torch["phase"]) == {"prefill", "decode"}
    assert set(nsys["phase"]) == {"other"}


STAGES = {
    "input_layernorm": {"norm"},
    "self_attn.qkv_proj": {"qkv_proj"},
    "self_attn.q_norm": {"norm"},
    "self_attn.k_norm": {"norm"},
    "self_attn.rotary_emb": {"rope"},
    "self_attn.attn": {"kv_cache_write", "attention"},
    "self_attn.o_proj": {"o_proj"},
    "post_attention_layernorm": {"norm"},
    "mlp.gate_up_proj": {"gate_up_proj"},
    "mlp.act_fn": {"activation"},
    "mlp.down_proj": {"down_proj"},
}
"""Stages of the kernels that each module of a layer launches."""


@pytest.fixture(scope="module")
def modules(shared):
    """Events labelled without the module ranges, beside the module and the layer whose range
    launched them.
    """
    trace = llmprof.read(shared / "captures/nsys_tp1_layer_nvtx/report.sqlite")
    is_module = pl.col("name").str.contains("'Module'", literal=True)
    # vLLM shares one rotary module between the layers, and all its ranges say layer 0: only whole
    # layers tell the layer
    is_layer = pl.col("name").str.contains(r"model\.layers\.\d+'")

    def only(markers):
        return Trace({**trace.tables, "markers": markers}, trace.meta)

    text = pl.col("range_name")
    layer = nvtx_kernels(only(trace.markers.filter(is_layer)), by="event").select(
        "event", in_layer=text.str.extract(r"layers\.(\d+)").cast(pl.Int32)
    )
    module = nvtx_kernels(only(trace.markers.filter(is_module)), by="event").select(
        "event",
        module=text.str.extract(r"'Module': 'Qwen3ForCausalLM\.(?:model\.layers\.\d+\.)?([\w.]*)'"),
    )
    labelled = only(trace.markers.filter(~is_module)).events
    return labelled.join(layer, on="event").join(module, on="event")


def test_stages_without_nvtx_are_those_of_the_module_ranges(modules):
    known = modules.filter(pl.col("in_layer").is_not_null())
    found = known.group_by("module").agg(pl.col("stage").unique())
    assert {module: set(stages) for module, stages in found.rows()} == STAGES
    outside = modules.filter(pl.col("in_layer").is_null() & pl.col("module").is_not_null())
    found = (
        outside.filter(pl.col("source") == "kernel")
        .group_by("module", "stage")
        .len()
        .sort("module", "stage")
    )
    assert found.filter(pl.col("module") != "model.embed_tokens").rows() == [
        ("logits_processor", "lm_head", 6),
        ("model.norm", "final_norm", 6),
    ]
    assert ("model.embed_tokens", "embedding", 6) in found.rows()
