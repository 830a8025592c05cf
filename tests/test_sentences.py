"""All sentences about the samples, in one file that is read when it changes:

``LLMPROF_UPDATE=1 pytest`` writes it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze, charts
from llmprof.analyze.compare.story import diff_words
from llmprof.errors import LlmprofError
from llmprof.findings import sentences
from llmprof.findings.facts import facts_in_words, run_facts
from llmprof.findings.findings import RULES
from llmprof.readers import bundled
from llmprof.run import launch
from llmprof.trace import Trace
from tests.samples import sample

KEPT = Path(__file__).with_name("sentences.txt")
PAIRS = (
    ("torch_tp1_eager", "torch_tp1_cudagraph"),
    ("torch_tp4_eager_custom_allreduce", "torch_tp4_eager_nccl"),
    ("torch_cpu_tp2_layer_annotations", "nsys_transformers_generate"),
)
DRAWN = ("torch_tp4_eager_nccl", "torch_cpu_tp2_layer_annotations")


def findings(found: pl.DataFrame) -> Iterator[str]:
    for row in found.iter_rows(named=True):
        yield f"{row['order']}. {row['title']} {row['detail']} {row['suggestion']}"
        yield f"   {row['prediction']}" if row["prediction"] else ""
    yield f"of {found['denominator'][0]}" if found.height else "nothing"


def titles(trace: Trace) -> Iterator[str]:
    """Titles of the charts of a trace, or why there is none."""
    drawn = {
        "breakdown": lambda: charts.breakdown(trace.events, rows="phase", color="stage"),
        "overlap": lambda: charts.overlap(analyze.overlap(trace, by=("rank",))),
        "idle": lambda: charts.idle(analyze.idle(trace)),
        "launch_delay": lambda: charts.launch_delay(analyze.launch_delay(trace)),
        "layers": lambda: charts.layers(analyze.layers(trace)),
        "collectives": lambda: charts.collectives(analyze.collectives(trace)),
        "kernels": lambda: charts.kernels(analyze.kernels(trace)),
        "critical_path": lambda: charts.critical_path(analyze.critical_path(trace)),
    }
    for name, draw in drawn.items():
        try:
            title = draw().to_dict()["title"]
        except LlmprofError as error:
            yield f"{name}: {error}"
        else:
            yield f"{name}: {title['text']} | {title.get('subtitle', '')}"


def said() -> Iterator[str]:
    names = [name for name in llmprof.samples()["name"] if name != "ncu_tp1_eager"]
    for name in names:
        trace = sample(name)
        yield f"\n# {name}\n"
        yield from findings(analyze.findings(trace))
        yield from (f"{what}: {value}" for what, value in facts_in_words(run_facts(trace)))
        if name in DRAWN:
            yield from titles(trace)
    for a, b in PAIRS:
        yield f"\n# {a} and {b}\n"
        yield from diff_words(analyze.diff(sample(a), sample(b)))
        yield from analyze.diff(sample(a), sample(b), part="context")["words"].drop_nulls()
    yield "\n# ncu_tp1_eager\n"
    yield from findings(analyze.ncu.findings(llmprof.sample_metrics("ncu_tp1_eager")))
    yield "\n# a server with a queue\n"
    run = launch.open_run(bundled.notebook_data("h200") / "served_queue")
    yield from findings(analyze.findings(run.trace, requests=analyze.requests(run)))


@pytest.mark.slow
def test_all_sentences_of_all_samples():
    text = "\n".join(line.rstrip() for line in said() if line).lstrip("\n") + "\n"
    if os.environ.get("LLMPROF_UPDATE"):
        KEPT.write_text(text, "utf-8")
    assert text == KEPT.read_text("utf-8"), (
        "read what changed, then write the file with LLMPROF_UPDATE=1"
    )


def test_every_rule_has_its_sentences():
    others = {
        "slow_first_tokens",
        "limited_kernel",
        "profiler_estimate",
        "hot_line",
    }  # requests, and metrics
    assert {rule.name for rule in RULES} | others == set(sentences.FINDINGS)
