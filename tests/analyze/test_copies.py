"""Copies by kinds of memory, by hand."""

import polars as pl

from llmprof import analyze
from llmprof.trace import Trace
from tests.building import table_of

COPIES = table_of(
    "kind src_kind dst_kind start_ns dur_ns bytes correlation",
    [
        ("HtoD", "pageable", "device", 0, 20, 100, 1),
        ("HtoD", "pinned", "device", 20, 10, 400, 2),
        ("HtoD", "pinned", "device", 30, 30, 600, 3),
        ("memset", None, "device", 90, 10, None, 4),
    ],
).with_columns(rank=pl.lit(0), name=pl.lit("copy"))
CALLS = pl.DataFrame(
    [("cudaMemcpy", 1), ("cudaMemcpyAsync", 2), ("cudaMemcpyAsync", 3)],
    schema=["name", "correlation"],
    orient="row",
).with_columns(rank=pl.lit(0), start_ns=pl.lit(0), dur_ns=pl.lit(5), api=pl.lit("runtime"))
TRACE = Trace({"copies": COPIES, "runtime": CALLS})


def test_by_kind_and_call():
    found = analyze.copies(TRACE)
    assert found.select("src_kind", "call", "waits", "count", "bytes", "total_ns").rows() == [
        ("pinned", "cudaMemcpyAsync", False, 2, 1000, 40),
        ("pageable", "cudaMemcpy", True, 1, 100, 20),
        (None, None, None, 1, None, 10),
    ]
    assert found.select("gbps", "median_gbps", "max_gbps").rows() == [
        (25, 30, 40),
        (5, 5, 5),
        (None, None, None),
    ]
    assert analyze.copies(Trace({"copies": COPIES}))["call"].null_count() == 3


def test_over_time():
    """Three bins of 20 ns: the second pinned copy lies in two of them."""
    found = analyze.copies(TRACE, by="time", bins=3)
    pinned = found.filter(src_kind="pinned")
    assert pinned.select("start_ns", "dur_ns", "bytes", "gbps").rows() == [
        (0, 20, 0.0, 0.0),
        (20, 20, 400 + 200.0, 30),
        (40, 20, 400.0, 20),
    ]
    assert found.filter(src_kind="pageable")["bytes"].to_list() == [100.0, 0.0, 0.0]
    assert "memset" not in found["kind"]
