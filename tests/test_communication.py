import json
import os
import subprocess
import sys

import polars as pl
import pytest

import llmprof
from llmprof import names
from llmprof.trace import Trace, schema
from llmprof.trace.trace import open_saved
from tests.readers.traces import kernel, op, text_of, write

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def frame(table, *rows):
    given = [{"rank": 0, "start_ns": 0, "dur_ns": 1, **row} for row in rows]
    return schema.conform(pl.DataFrame(given, infer_schema_length=None), table)


@pytest.fixture
def own_patterns():
    before = list(names.KERNEL_PATTERNS)
    yield
    names.KERNEL_PATTERNS[:] = before


def test_what_the_profiler_describes_and_what_names_say(tmp_path):
    described = {
        "Collective name": "_allgather_base",
        "In msg nelems": 10,
        "Out msg nelems": 40,
        "dtype": "Float",
    }
    events = [
        kernel("Generic", 1, 2, **described),
        kernel(NCCL, 5, 2),
        kernel("gemm", 9, 1),
        op("c10d::allreduce_", 1),
    ]
    trace = llmprof.read(write(tmp_path / "trace.json", text_of(events)), cache=False)
    assert trace.collectives.select(
        "name", "recorded_as", "evidence", "kind", "algorithm", "bytes"
    ).rows() == [
        ("Generic", "_allgather_base", "metadata", "all_gather", None, 160),
        (NCCL, None, "name", "all_reduce", "ring_ll", None),
    ]
    # the reader kept what was recorded
    assert trace.capture.recorded["collectives"].select(
        "name", "kind", "algorithm", "bytes"
    ).rows() == [("Generic", None, None, None)]


def test_a_recorded_track_of_calls_is_all_of_its_rank():
    calls = frame("collectives", {"name": "hcom_broadcast__1", "on_device": True})
    kernels = frame(
        "kernels",
        {"name": "hcom_broadcast__1", "stream": 3},
        {"name": NCCL, "rank": 1, "stream": 3},
    )
    trace = Trace({"collectives": calls, "kernels": kernels})
    assert trace.collectives.select("rank", "name", "kind", "evidence").rows() == [
        (0, "hcom_broadcast__1", "broadcast", None),
        (1, NCCL, "all_reduce", "name"),
    ]


def test_operators_count_on_ranks_without_kernels():
    ops = frame(
        "ops",
        {"name": "_C::shm_allreduce", "kind": "op"},
        {"name": "c10d::allreduce_", "kind": "op", "rank": 1},
    )
    kernels = frame("kernels", {"name": "gemm", "rank": 1})
    tables = {"ops": ops, "kernels": kernels}
    assert Trace(tables).collectives.select("rank", "on_device", "kind").rows() == [
        (0, False, "all_reduce")
    ]
    # rank 1 recorded kernels, though none is in this part of the trace
    meta = {"ranks": [{"rank": 0, "kernels": 0}, {"rank": 1, "kernels": 1}]}
    part = Trace({"ops": ops, "kernels": kernels.clear()}, meta)
    assert part.collectives["rank"].to_list() == [0]


def test_a_window_without_kernels_has_no_collectives_of_the_host(tmp_path):
    events = [kernel(NCCL, 1000, 2), op("c10d::allreduce_", 1, 2)]
    trace = llmprof.read(write(tmp_path / "trace.json", text_of(events)), cache=False)
    start, _ = trace.span_ns
    part = trace.select(window=(start, start + 10_000))
    assert part.ops.height == 1
    assert part.collectives.is_empty()
    again = open_saved(part.save(tmp_path / "part"))
    assert again.collectives.is_empty()


@pytest.mark.usefixtures("own_patterns")
def test_a_pattern_changes_the_collectives_of_a_trace_at_once():
    trace = Trace(
        {"kernels": frame("kernels", {"name": "acme_exchange"}, {"name": NCCL, "start_ns": 5})}
    )
    assert trace.collectives["name"].to_list() == [NCCL]
    before = trace.tables
    names.register("collective", "acme_exchange")
    assert trace.collectives["name"].to_list() == ["acme_exchange", NCCL]
    # made of tables that were taken before, it has what names say now
    assert Trace(before).collectives["name"].to_list() == ["acme_exchange", NCCL]
    names.register("copy", "ncclDevKernel")
    assert trace.collectives["name"].to_list() == ["acme_exchange"]


SESSION = """
import json, sys
import llmprof
from llmprof import analyze, names
for pattern in sys.argv[2:]:
    names.register("collective", pattern)
whole, part = llmprof.read(sys.argv[1], cache=True), llmprof.read(sys.argv[1], cache=True, tables=["collectives"])
print(json.dumps({
    "table": whole.collectives["name"].to_list(),
    "part": part.collectives["name"].to_list(),
    "kinds": whole.collectives["evidence"].to_list(),
    "analysis": whole.events["category"].to_list(),
}))
"""


def test_two_processes_with_other_names_and_a_warm_cache_get_their_own_answers(tmp_path):
    path = write(
        tmp_path / "trace.json",
        text_of([kernel("acme_sum", 1, 2), kernel("acme_mix", 5, 2), kernel(NCCL, 9)]),
    )
    environment = {**os.environ, "LLMPROF_CACHE": str(tmp_path / "cache")}

    def session(*patterns):
        command = [sys.executable, "-c", SESSION, str(path), *patterns]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return json.loads(done.stdout)

    expected = {(): [NCCL], ("acme_sum",): ["acme_sum", NCCL], ("acme_mix",): ["acme_mix", NCCL]}
    for patterns in [("acme_sum",), (), ("acme_mix",), ("acme_sum",), ()]:
        found = session(*patterns)
        assert found["table"] == found["part"] == expected[patterns]
        assert "collective" in found["analysis"]
    assert len(list((tmp_path / "cache").iterdir())) == 1  # what was recorded, the same for all
