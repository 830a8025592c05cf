"""Device memory by hand: peaks, holders, operators and steps, from each profiler's kind of rows."""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.trace import Trace, schema
from tests.analyze.builders import kernels, labels, launches, ops

KIB = 1024


def row(time_ns, size, allocated=None, reserved=None, address=None, **more):
    return {
        "rank": 0,
        "device": 0,
        "thread": 1,
        "time_ns": time_ns,
        "bytes": size,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "address": address,
        "on_device": True,
        **more,
    }


@pytest.fixture
def torch():
    """100 KiB are there before; aten::mm takes 8 and 4, the 8 is released, aten::add takes 2 and
    keeps it.
    """
    rows = [
        row(10, 8 * KIB, 108 * KIB, 200 * KIB, 0xA),
        row(20, 4 * KIB, 112 * KIB, 200 * KIB, 0xB),
        row(30, -8 * KIB, 104 * KIB, 200 * KIB, 0xA),
        row(60, 2 * KIB, 106 * KIB, 256 * KIB, 0xC),
        row(70, -4 * KIB, 102 * KIB, 256 * KIB, 0xB),
    ]
    run = kernels(["mm", "add"])
    return Trace(
        {
            "memory": pl.DataFrame(rows),
            "ops": ops([("aten::mm", 5, 20, 1), ("aten::add", 55, 10, 2)]),
            "kernels": run,
            "runtime": launches(run),
            "markers": labels(
                [("execute_new_1_cached_0", 0, 50), ("execute_new_0_cached_1", 50, 50)]
            ),
        }
    )


def test_peaks_and_flows_of_a_device(torch):
    found = analyze.memory(torch).row(0, named=True)
    assert found["peak_allocated_bytes"] == 112 * KIB
    assert found["peak_time_ns"] == 20
    assert found["first_bytes"] == 100 * KIB
    assert found["last_bytes"] == 102 * KIB
    assert found["peak_reserved_bytes"] == 256 * KIB
    assert found["fragmentation"] == pytest.approx((200 - 112) / 200)
    assert (found["count"], found["allocated_bytes"], found["max_bytes"]) == (
        3,
        14 * KIB,
        8 * KIB,
    )
    assert found["released_bytes"] == 12 * KIB
    assert found["known_share"] == pytest.approx(12 / 112)


def test_holders_at_the_peak(torch):
    found = analyze.memory(torch, by="holder")
    assert found.select(
        "part", "evidence", "holder", "bytes", "blocks", "first_time_ns"
    ).rows() == [
        ("before the recording", None, None, 100 * KIB, None, None),
        ("temporary", "lifetime", "aten::mm", 12 * KIB, 2, 10),
    ]
    assert found["share"].sum() == pytest.approx(1)


def test_operators(torch):
    found = analyze.memory(torch, by="operator").select(
        "operator", "count", "allocated_bytes", "released_bytes"
    )
    assert found.rows() == [
        ("aten::mm", 2, 12 * KIB, 0),
        ("aten::add", 1, 2 * KIB, 0),
        (None, 0, 0, 12 * KIB),  # released outside any operator
    ]


def test_steps(torch):
    found = analyze.memory(torch, by="step")
    assert found.select(
        "step", "peak_allocated_bytes", "allocated_bytes", "released_bytes"
    ).rows() == [
        (0, 112 * KIB, 12 * KIB, 8 * KIB),
        (1, 106 * KIB, 2 * KIB, 4 * KIB),
    ]


@pytest.mark.parametrize(
    ("stack", "released", "part"),
    [
        (
            "core.py(1): _initialize_kv_caches\nattn_utils.py(186): _allocate_kv_cache",
            False,
            "KV cache",
        ),
        (
            "core.py(1): _initialize_kv_caches\nmodel.py(5): forward\nfunctional.py(1): linear",
            True,
            "activations",
        ),
        (
            "core.py(1): _initialize_kv_caches\nmodel.py(5): forward\nfunctional.py(1): linear",
            False,
            None,
        ),
        ("x/transformers/cache_utils.py(90): update", True, "KV cache"),
        ("runner.py(1): load_model\nlinear.py(201): create_weights", False, "weights"),
        ("runner.py(1): load_model\npenalties.py(40): __init__", False, None),
        ("main.py(1): <module>", False, None),
    ],
)
def test_what_memory_is_for_follows_from_the_stack(stack, released, part):
    rows = [
        row(1, 8, 8, address=1, torch_stack=stack),
        row(2, 1, 9, address=2, torch_stack="x.py(1): y"),
    ]
    rows += [row(3, -8, 1, address=1, torch_stack=None)] if released else []
    held = analyze.memory(
        Trace({"memory": pl.DataFrame(rows, infer_schema_length=None)}), by="holder"
    )
    assert held.filter(bytes=8)["part"].to_list() == [part]
    assert held.filter(bytes=8)["holder"].to_list() == [stack.split("\n")[-1].rsplit("/", 1)[-1]]


def test_an_address_that_is_used_again_is_another_block():
    rows = [
        row(1, 8, 8, address=1),
        row(2, -8, 0, address=1),
        row(3, 5, 5, address=1),
        row(4, 9, 14, address=2),
    ]
    trace = Trace({"memory": pl.DataFrame(rows, infer_schema_length=None)})
    assert analyze.memory(trace, by="holder").select("bytes", "blocks").rows() == [(14, 2)]
    rows = [row(1, None, 5, 9), row(2, None, 8, 9)]
    trace = Trace(
        {"memory": pl.DataFrame(rows, infer_schema_length=None).cast({"bytes": pl.Int64})}
    )
    assert analyze.memory(trace)["peak_allocated_bytes"].to_list() == [8]
    with pytest.raises(NotCapturedError, match="no allocations"):
        analyze.memory(trace, by="operator")


def test_blocks_without_an_address_are_not_from_before_the_recording():
    """Of the 10 bytes at the peak, 4 were there before; of the rest nothing but the size is
    known.
    """
    rows = [row(1, 8, 12), row(2, -8, 4), row(3, 6, 10)]
    found = analyze.memory(
        Trace({"memory": pl.DataFrame(rows, schema_overrides={"address": pl.Int64})}),
        by="holder",
        at_ns=3,
    )
    assert found.select("part", "bytes", "blocks").rows() == [
        (None, 6, None),
        ("before the recording", 4, None),
    ]


def test_not_recorded():
    with pytest.raises(NotCapturedError, match="profile_memory=True"):
        analyze.memory(Trace({}))
    with pytest.raises(AnalysisError, match="by='colour'"):
        analyze.memory(Trace({"memory": schema.empty("memory")}), by="colour")
    with pytest.raises(AnalysisError, match="at_ns= belongs to by='holder'"):
        analyze.memory(Trace({"memory": schema.empty("memory")}), at_ns=1)


def test_allocators_of_an_npu_are_not_mixed():
    """The graph engine has a small pool of its own: its rows are no moments of PyTorch's
    allocator.
    """
    rows = [
        row(10, 8 * KIB, 908 * KIB, ascend_component="operators", ascend_operator="aten::mm"),
        row(20, KIB, KIB, ascend_component="operators", ascend_operator="cann::Conv2D1"),
        row(30, -8 * KIB, 900 * KIB, ascend_component="operators", ascend_operator="aten::mm"),
    ]
    found = analyze.memory(Trace({"memory": pl.DataFrame(rows)}), by="time")
    assert found.select("time_ns", "allocated_bytes").rows() == [(10, 908 * KIB), (30, 900 * KIB)]
