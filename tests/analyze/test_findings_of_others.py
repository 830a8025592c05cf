"""Steps and findings of recordings of others, against counts made by hand (../shared/strangers/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

import llmprof
from llmprof.analyze import steps

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")]

CHROME = "strangers/chrome/"

STEPS = {
    "tracemap_mi300x.pt.trace.json.gz": ("inferred", ["prefill", *["decode"] * 9]),
    "gold_nsys_example.json": ("execute_model", ["other"] * 10),
    "hist__mi300__ddp_resnet18_no_pool.json.gz": ("optimizer", ["other"] * 5),
    "resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz": ("profiler_step", ["other"] * 6),
}


@pytest.mark.parametrize("file", STEPS)
def test_steps(file: str, shared: Path) -> None:
    source, phases = STEPS[file]
    found = steps(llmprof.read(shared / CHROME / file))
    assert found["phase"].to_list() == phases
    assert found["source"].unique().to_list() == [source]


def test_the_prefill_of_a_trace_without_labels_is_the_long_step(shared: Path) -> None:
    found = steps(llmprof.read(shared / CHROME / "tracemap_mi300x.pt.trace.json.gz"))
    assert found["dur_ns"][0] == pytest.approx(133e6, rel=0.01)
    assert found["dur_ns"][1:].is_between(17e6, 26e6).all()
