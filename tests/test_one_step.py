"""All that show a trace say one length of its step, and one word for what it waits for."""

import json

import polars as pl
import pytest

from llmprof import analyze, charts
from llmprof.analyze.compare.story import part_words
from llmprof.cli import main
from llmprof.explore.tabs import Front
from llmprof.explore.timeline.rows import Keys
from llmprof.findings.facts import STEP_PARTS
from llmprof.text import PART_WORDS
from llmprof.units import format_ns
from tests.charts import specs
from tests.samples import sample

STEADY = "torch_tp1_eager torch_tp4_eager_nccl torch_tp4_eager_custom_allreduce"
OF_A_PHASE = "torch_pp2_eager torch_tp1_moe_eager nsys_tp2_cudagraph"
QUICK = "torch_tp4_eager_nccl torch_pp2_eager"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
        for name in [*STEADY.split(), *OF_A_PHASE.split()]
    ],
)
def test_the_length_of_a_step_and_its_parts_are_the_same_everywhere(name, capsys):
    trace = sample(name)
    found = trace.findings()
    lengths = found.parts.group_by("rank", maintain_order=True).agg(pl.col("ns").sum())
    used = found.parts["part"].unique()
    assert main.main(["findings", f"sample:{name}"]) == 0
    pages = {
        "terminal": capsys.readouterr().out,
        "card": trace._repr_html_(),
        "findings": found._repr_html_(),
        "explorers": "".join(
            line.value for line in Front(trace, lambda row: None).children if hasattr(line, "value")
        ),
    }
    for page, text in pages.items():
        for length in lengths["ns"]:
            assert format_ns(length) in text, page
        for part in used:
            assert STEP_PARTS[part] in text, page
    words, chart = set(PART_WORDS.values()), charts.idle(trace).to_dict()
    legend = next(u["encoding"]["color"] for u in specs.marks(chart) if "color" in u["encoding"])
    bars = analyze.diff(trace, trace, part="times").filter(level="part", kind="idle")["part"]
    drawn = {
        "chart": legend["scale"]["domain"],
        "comparison": [part_words("idle", part)[1][6:-1] for part in bars],
        "timeline": [key for kind, key in Keys().table if kind in ("cause", "collective")],
        "frame": [PART_WORDS[cause] for cause in analyze.idle(trace)["cause"].unique()],
    }
    for page, told in drawn.items():
        assert set(told) <= words, page
    late = found.frame.filter(rule="host_bound")["title"]
    assert all(PART_WORDS["host_bound"] in title for title in late)
    if name in STEADY:
        steady = analyze.steps(trace, steady=True)
        key = ["rank", "step"]
        others = {
            "what-if": analyze.what_if(trace).filter(phase="decode")["recorded_ns"],
            "comparison": analyze.diff(trace, trace, part="times").filter(
                level="step", phase="decode"
            )["b_ns"],
            "heat map": analyze.ranks(trace, by="step").join(steady, on=key, how="semi")["dur_ns"],
            "overlap": analyze.overlap(trace).join(steady, on=key, how="semi")["total_ns"],
        }
        for page, ns in others.items():
            assert format_ns(ns.mean()) == format_ns(steady["dur_ns"].mean()), page
        mean = format_ns(analyze.steps(trace, steady=True)["dur_ns"].mean())
        assert main.main(["findings", f"sample:{name}", "--json"]) == 0
        first = json.loads(capsys.readouterr().out)["findings"][0]
        assert mean in first["denominator"]
        assert mean in pages["terminal"]
