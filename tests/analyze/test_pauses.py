"""Garbage collection, loading of code and page faults, by hand."""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.trace import Trace
from tests.analyze.builders import kernels, labels, ops
from tests.building import table_of


def calls(*rows):
    frame = table_of("name start_ns dur_ns", rows)
    return frame.with_columns(rank=pl.lit(0), thread=pl.lit(1), api=pl.lit("runtime"))


WORK = kernels([("k", 100), ("k", 100)], pause=300)  # idle from 100 to 400


def test_kinds_and_idle_time():
    trace = Trace(
        {
            "kernels": WORK,
            "runtime": calls(
                ("cuLibraryLoadData", 80, 60),
                ("cuModuleGetFunction", 90, 10),
                ("cudaLaunchKernel", 80, 70),
            ),
            "ops": ops([("Python GC", 150, 200, 1), ("aten::mm", 100, 200, 2)]),
            "markers": labels([("CPU page fault", 450, 5)]),
        }
    )
    found = analyze.host_pauses(trace).select(
        "kind", "count", "host_ns", "max_ns", "idle_ns", "idle_share"
    )
    assert found.rows() == [
        ("garbage_collection", 1, 200, 200, 200, 1.0),
        ("module_loading", 2, 60, 60, 40, 40 / 60),  # one call inside the other
        ("page_fault", 1, 5, 5, 0, 0.0),
    ]
    events = analyze.host_pauses(trace, by="event")
    assert events.select("name", "idle_ns").rows()[:2] == [
        ("Python GC", 200),
        ("cuLibraryLoadData", 40),
    ]


@pytest.mark.parametrize(
    "name",
    ["aten::gcd", "graph_gc_pool", "cudaLaunchKernel", "cuModuleGetLoadingMode", "nn.Module: A"],
)
def test_other_names(name):
    assert analyze.host_pauses(Trace({"kernels": WORK, "ops": ops([(name, 0, 10, 1)])})).is_empty()


@pytest.mark.parametrize(
    "name",
    [
        "Python GC",
        "gc: collect",
        "gc.collect",
        "garbage collection gen 2",
        "<built-in: gc_collect>",
    ],
)
def test_names_of_garbage_collection(name):
    found = analyze.host_pauses(Trace({"kernels": WORK, "ops": ops([(name, 0, 10, 1)])}))
    assert found["kind"].to_list() == ["garbage_collection"]
