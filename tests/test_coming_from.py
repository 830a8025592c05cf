"""The table of what answers the questions of other tools: complete, and each counterpart exists
and runs.
"""

import re
from functools import cache
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze, charts
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace
from tests.samples import sample

FOLDER = Path(__file__).parents[1] / "sample_traces" / "torch_tp1_eager"
_CALL = re.compile(r"(?:analyze|charts|trace)\.\w|llmprof\.\w")


@cache
def rows(root, page="docs/reference.md"):
    """Rows of the table of each tool."""
    found = {}
    text = (root / page).read_text("utf-8").partition("\n## Coming from another tool\n")[2]
    for section in text.partition("\n## ")[0].split("\n### ")[1:]:
        tool, _, body = section.partition("\n")
        lines = [
            line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| ")
        ][1:]
        assert all(len(line) == 2 for line in lines), tool
        found[tool] = [(there, here) for there, here in lines]
    return found


@cache
def built():
    """What no sample has: calls of libraries, Python functions, samples of counters, events of
    memory.
    """
    call = {"rank": 0, "start_ns": 0, "dur_ns": 7, "name": "call"}
    memory = {"rank": 0, "device": 0, "time_ns": [0], "on_device": True}
    memory |= dict.fromkeys(("bytes", "allocated_bytes", "reserved_bytes"), 8)
    counter = {
        "rank": 0,
        "device": 0,
        "time_ns": [0, 5],
        "name": "SMs Active",
        "value": [20.0, 40.0],
        "unit": "%",
    }
    kernel = {"rank": 0, "device": 0, "stream": 7, "start_ns": 0, "dur_ns": [9], "name": "gemm"}
    calls = [call | {"api": api} for api in ("os", "openacc", "openmp", "mpi")]
    ops = [call | {"kind": "python", "thread": 1, "op_id": 1}]
    tables = {
        "kernels": kernel,
        "runtime": calls,
        "ops": ops,
        "memory": memory,
        "counters": counter,
    }
    return Trace({name: pl.DataFrame(rows) for name, rows in tables.items()})


@pytest.fixture(scope="module")
def traces(synthetic_npu):
    names = ("torch_tp1_eager", "nsys_tp1_layer_nvtx", "torch_tp4_eager_nccl")
    npu = llmprof.read(synthetic_npu("baseline"))
    return [*(sample(name) for name in names), built(), npu]


def answers(call, traces):
    """Whether a call answers on one of the samples."""
    for trace in traces:
        known = {
            "analyze": analyze,
            "charts": charts,
            "llmprof": llmprof,
            "pl": pl,
            "trace": trace,
            "before": traces[2],
            "after": sample("torch_tp4_eager_custom_allreduce"),
            "folder": FOLDER,
            "model": "Qwen2.5-7B",
        }
        if "metrics" in call:
            known["metrics"] = llmprof.sample_metrics("ncu_tp1_eager")
        try:
            return eval(call, known) is not None
        except NotCapturedError:
            continue
    return False


def spans(text):
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize(
    "tool",
    [
        "Perfetto",
        "nsys-ui",
        "nsys stats",
        "Rules and recipes of nsys",
        "TraceLens",
        "HTA (Holistic Trace Analysis)",
        "nsys-ai",
        "msprof-analyze",
    ],
)
def test_each_counterpart_runs(root, traces, tool):
    every = rows(root) | rows(root, "benchmarks/coming_from.md")
    calls = {span for _, here in every[tool] for span in spans(here) if _CALL.match(span)}
    assert calls
    silent = [call for call in sorted(calls) if not answers(call, traces)]
    assert not silent
