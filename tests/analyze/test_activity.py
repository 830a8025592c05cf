"""Device activity: launches of events, categories of copies, and operators in place of a device."""

import polars as pl
import pytest

from llmprof.errors import NotCapturedError
from llmprof.label.nesting import outermost_ops
from llmprof.trace import Trace
from tests.analyze.builders import ATTENTION, DENSE, GEMM, SILU, kernels, launches, ops


def test_kernels_and_copies_in_order_with_their_launches():
    run = pl.concat([kernels([GEMM, SILU], start=100), kernels([GEMM], start=50, rank=1, first=1)])
    copy = kernels(["Memcpy HtoD", "Memset (Device)"], start=90, pause=11, stream=9, first=20)
    copy = copy.with_columns(kind=pl.Series(["HtoD", "memset"]))
    calls = launches(
        pl.concat([run.filter(pl.col("name") == GEMM), copy.drop("kind")]), lead=30, dur=4
    )
    found = Trace({"kernels": run, "copies": copy, "runtime": calls}).events
    columns = [
        "event",
        "rank",
        "stream",
        "start_ns",
        "source",
        "category",
        "launch_start_ns",
        "launch_end_ns",
    ]
    assert found.select(columns).rows() == [
        (0, 0, 9, 90, "copy", "copy", 60, 64),
        (1, 0, 7, 100, "kernel", "gemm", 70, 74),
        (2, 0, 7, 110, "kernel", "activation", None, None),
        (3, 0, 9, 111, "copy", "fill", 81, 85),
        (
            4,
            1,
            7,
            50,
            "kernel",
            "gemm",
            20,
            24,
        ),  # the same correlation on another rank is another call
    ]
    assert found["launch_thread"].to_list() == [1, 1, None, 1, 1]


def test_one_graph_launch_has_many_kernels():
    run = kernels([GEMM] * 3, start=100).with_columns(correlation=pl.lit(7, dtype=pl.Int64))
    calls = launches(run.head(1), name="cudaGraphLaunch")
    found = Trace({"kernels": run, "runtime": calls}).events
    assert found["launch_start_ns"].to_list() == [95] * 3


def test_on_cpu_the_outermost_operators_stand_in():
    calls = pl.concat(
        [
            ops(
                [
                    ("aten::linear", 0, 100, 1),
                    ("aten::addmm", 10, 80, 2),
                    ("aten::silu", 100, 20, 3),
                ]
            ),
            ops([("aten::linear", 50, 10, 4)], thread=2),
            ops([("python", 0, 500, 5)]).with_columns(kind=pl.lit("python")),
        ]
    )
    found = Trace({"ops": calls}).events
    columns = [
        "stream",
        "start_ns",
        "dur_ns",
        "name",
        "source",
        "category",
        "launch_start_ns",
        "launch_end_ns",
    ]
    assert found.select(columns).rows() == [
        (1, 0, 100, "aten::linear", "op", "gemm", 0, 100),
        (2, 50, 10, "aten::linear", "op", "gemm", 50, 60),
        (1, 100, 20, "aten::silu", "op", "activation", 100, 120),
    ]


def test_operators_stand_in_only_where_nothing_of_a_device_was_recorded():
    calls, run = ops([("aten::mm", 0, 100, 1)]), kernels([GEMM])
    assert Trace({"ops": calls}).capture.on_host
    assert not Trace({"ops": calls.with_columns(kind=pl.lit("python"))}).capture.on_host
    assert not Trace({"kernels": run, "ops": calls}).capture.on_host
    assert not Trace({"kernels": run.clear(), "ops": calls}).capture.on_host
    host = Trace(
        {"runtime": launches(run), "ops": calls}
    )  # the device was not recorded: its time is unknown
    assert not host.capture.on_host
    with pytest.raises(NotCapturedError, match="holds host calls but no device activity"):
        _ = host.events


def test_operators_of_an_unknown_thread_have_a_timeline_of_their_own():
    unknown = ops(
        [("aten::outer", 50, 100, 1), ("aten::inner", 60, 10, 2), ("aten::next", 150, 10, 3)]
    )
    unknown = unknown.with_columns(thread=pl.lit(None, dtype=pl.Int64))
    known = ops([("aten::known", 0, 70, 4), ("aten::within", 10, 10, 5)])
    found = outermost_ops(pl.concat([known, unknown]))
    assert sorted(found["name"]) == ["aten::known", "aten::next", "aten::outer"]


def test_a_wrapper_without_its_arguments_is_attention_after_the_store_of_keys():
    layer = ["device_kernel" if name == ATTENTION else name for name in DENSE]
    bare = [
        *layer[:5],
        "device_kernel",
        *layer[5:-1],
        "device_kernel",
    ]  # a second one combines; a product is one, too
    found = Trace({"kernels": kernels(bare * 3)}).events
    rows = found.filter(pl.col("name") == "device_kernel")
    assert rows["category"].to_list() == ["attention", "attention", "other"] * 3
    assert rows["category_by"].to_list() == ["position", "position", None] * 3
