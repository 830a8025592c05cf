"""Notebooks and reports on recordings of every kind: no sentence contradicts the data that it is about."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import report
from llmprof.trace import Trace
from tests.notebook.truth import DEVICES, MODELS, Recording, cells, contradictions, sentences, words_of_page
from tests.samples import sample

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
OF_A_TRACE = (
    "01_gpu_timeline", "02_kernel_drilldown", "04_explorers", "05_npu_timeline", "06_roofline", "09_many_ranks",
    "10_what_would_i_gain",
)  # fmt: skip
"""Notebooks that read a trace; a new one that does is named here, and checked on every recording below."""

SAMPLES, REAL = ROOT / "sample_traces", ROOT.parent / "shared" / "real"
RECORDINGS = {
    "one GPU": SAMPLES / "torch_tp1_cudagraph",
    "mixture of experts": SAMPLES / "torch_tp1_moe_eager",
    "CPU": SAMPLES / "torch_cpu_tp2_layer_annotations",
    "nsys": SAMPLES / "nsys_transformers_generate",
    "training": REAL / "chrome/hta/critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz",
    "training of 8 ranks": REAL / "chrome/param/dlrm",
    "AMD": REAL / "chrome/tracelens/mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "NPU": REAL / "ascend/msinsight_level1/text",
}


# The tests of one recording run in one process, which reads it and finds its steps and layers once.
KINDS = [pytest.param(kind, marks=pytest.mark.xdist_group(f"sentences of {kind}")) for kind in RECORDINGS]


@functools.cache
def recording(kind: str) -> Recording:
    path = RECORDINGS[kind]
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return Recording(llmprof.read(path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_no_sentence_of_a_notebook_contradicts_its_recording(kind):
    one = recording(kind)
    wrong = []
    for name in OF_A_TRACE:
        said = list(cells(NOTEBOOKS / f"{name}.ipynb", {"trace": str(RECORDINGS[kind])}, {"read": lambda _: one.trace}))
        one.extra = [value for what, value in said if what == "frame"]
        one.__dict__.pop("figures", None)
        assert any(what == "said" for what, _ in said)
        for what, text in said:
            if what in ("said", "title"):
                wrong += [f"{name}: {fault}" for fault in contradictions(one, text, figures=what == "said")]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_no_sentence_of_a_report_contradicts_its_recording(kind):
    one = recording(kind)
    page = words_of_page(report.html(one.trace))
    assert "What takes the time" in page
    assert contradictions(one, page, figures=False) == []


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("0[1-8]*.ipynb")), ids=lambda p: p.stem)
def test_static_text_states_no_fact_of_a_recording(path):
    """No device, model, number of ranks or measured figure: those are computed."""
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        text = re.sub(r"```.*?```|`[^`]*`", "", "".join(cell["source"]), flags=re.DOTALL)
        for pattern in (DEVICES, MODELS, r"\b[TP]P ?= ?\d", r"\d+(?:\.\d+)? (?:ns|us|ms|GB/s|TB/s)\b"):
            found = re.search(pattern, text)
            assert found is None, f"{path.stem} says {found and found[0]!r} of any recording: {text[:200]}"


@pytest.mark.slow
@pytest.mark.parametrize(("run", "holds", "lacks"), [
    ("tp2", ["on 2 ranks, NVIDIA H200", "comes first and waits for rank", "Of the bundled recordings"], ["on 1 rank"]),
    ("pp2", ["on 2 ranks", "There is no all-reduce"], ["comes first and waits"]),
])  # fmt: skip
def test_timings_of_a_run_of_ones_own(run, holds, lacks):
    said = _said("07_operator_timing", run=str(NOTEBOOKS / "data" / "h200" / run))
    assert [text for text in holds if text not in said] == []
    assert [text for text in lacks if text in said] == []


@pytest.mark.slow
def test_results_of_ones_own_hardware_are_not_told_as_the_bundled_ones(tmp_path):
    text = (NOTEBOOKS / "data/h200/bandwidth_test_h200x2.json").read_text("utf-8")
    (tmp_path / "bandwidth_test_1.json").write_text(text.replace("NVIDIA H200", "NVIDIA A100-SXM4-80GB"), "utf-8")
    said = _said("08_hardware_and_scaling", results=str(tmp_path))
    assert "**NVIDIA A100-SXM4-80GB**, 2 devices" in said
    for word in ("H200", "undled", "Qwen", "Decode runs from a CUDA graph", "stacks of Python"):
        assert word not in said


def _said(name: str, **parameters: str) -> str:
    return "\n".join(text for what, text in cells(NOTEBOOKS / f"{name}.ipynb", parameters) if what == "said")


@pytest.fixture(scope="module")
def one() -> Recording:
    return Recording(sample("torch_tp1_cudagraph"))


class TestTheCheckItself:
    """A sentence that is wrong is found, and one that is right is not."""

    @pytest.mark.parametrize(
        "wrong",
        [
            "The trace is one of Qwen2.5-7B.",
            "It ran on four H100.",
            "The trace has 4 ranks.",
            "Rank 3 arrives last.",
            "So 57 all-reduces a step.",
            "Step 6 of rank 0 has attention in 36 layers.",
            "HCCL takes the time.",
            "RCCL takes the time.",
            "Its engine is SGLang.",
            "A decode step takes 7.77 s.",
            "0 decode steps of rank 0 represent the run; their median takes unknown on the device.",
            "There are 900 steps.",
            "Compute is 140.0 % of the time.",
            "1.0 such pauses in a step.",
        ],
    )
    def test_a_wrong_sentence_is_found(self, one, wrong):
        assert contradictions(one, wrong)

    @pytest.mark.parametrize(
        "right",
        [
            "The trace has 1 rank on one NVIDIA H200.",
            "Rank 0 has 28 layers in each of 13 steady decode steps, with CUDA graphs.",
            "vLLM labels its steps.",
            "Nothing here is 0.5 % or 100.0 %.",
        ],
    )
    def test_a_right_sentence_is_not(self, one, right):
        assert contradictions(one, right) == []

    @pytest.mark.slow
    def test_figures_are_those_of_frames(self, one):
        steady = llmprof.analyze.steady_state(one.trace)
        said = f"A decode step takes {llmprof.units.format_ns(steady['dur_ns'].median())}."
        assert contradictions(one, said) == []

    def test_figures_of_a_table_that_is_shown_count(self):
        one = Recording(Trace({"kernels": llmprof.schema.empty("kernels")}))
        one.extra = [pl.DataFrame({"x_us": [12.5]})]
        assert contradictions(one, "It takes 12.5 us.") == []
        assert contradictions(one, "It takes 12.6 us.") == ["no frame holds 12.6 us: It takes 12.6 us."]

    def test_sentences(self):
        assert sentences("One is. Two are: **Three** 4.5 us.\n- Four") == [
            "One is.",
            "Two are:",
            "**Three** 4.5 us.",
            "- Four",
        ]
