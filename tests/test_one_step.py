"""All that show a trace say one length of its step, and one word for what it waits for."""

import json

import polars as pl
import pytest

from llmprof import analyze
from llmprof.cli import main
from llmprof.explore.tabs import Front
from llmprof.findings.facts import STEP_PARTS
from llmprof.units import format_ns
from tests.samples import sample

STEADY = "torch_tp1_eager torch_tp4_eager_nccl torch_tp4_eager_custom_allreduce"
OF_A_PHASE = "torch_pp2_eager torch_tp1_moe_eager nsys_tp2_cudagraph"


@pytest.mark.parametrize("name", [*STEADY.split(), *OF_A_PHASE.split()])
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
    if name in STEADY:
        mean = format_ns(analyze.steps(trace, steady=True)["dur_ns"].mean())
        assert main.main(["findings", f"sample:{name}", "--json"]) == 0
        first = json.loads(capsys.readouterr().out)["findings"][0]
        assert mean in first["denominator"]
        assert mean in pages["terminal"]
