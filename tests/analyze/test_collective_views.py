"""Collectives by size and by who is late, by hand."""

from __future__ import annotations

import pytest

from llmprof.analyze import collective_arrivals, collective_sizes
from llmprof.analyze.collectives.collectives import collectives, lateness
from llmprof.trace import Trace
from tests.analyze.test_collectives import calls

ROWS = [(0, 0, 104_000), (1, 10_000, 104_100), (0, 200_000, 254_000), (1, 250_000, 254_100)]
COLUMNS = {"bytes": 8_000, "bytes_source": "metadata", "dtype": "BFloat16", "world": 2}


def two_ranks(device: str | None = "NVIDIA H200") -> Trace:
    """Two calls: rank 1 comes 10 us and 50 us after rank 0; both leave together."""
    return calls(ROWS, meta={"device": device, "world_size": 2}, **COLUMNS)


def test_who_is_late() -> None:
    found = collective_arrivals(two_ranks())
    assert found.rows(named=True) == [
        {
            "kind": "all_reduce", "rank": 0, "count": 2, "last": 0, "share_last": 0.0, "late_median_ns": 0.0,
            "late_p90_ns": 0.0, "late_max_ns": 0, "wait_ns": 60_000, "transfer_ns": 98_000,
        },
        {
            "kind": "all_reduce", "rank": 1, "count": 2, "last": 2, "share_last": 1.0, "late_median_ns": 30_000.0,
            "late_p90_ns": 46_000.0, "late_max_ns": 50_000, "wait_ns": 0, "transfer_ns": 98_200,
        },
    ]  # fmt: skip


def test_one_rank_alone_is_neither_late_nor_early() -> None:
    alone = calls(ROWS[::2], **COLUMNS)
    assert lateness(collectives(alone))["late_ns"].to_list() == [None, None]
    assert collective_arrivals(alone).is_empty()


def test_sizes_against_the_peak_of_the_link() -> None:
    found = collective_sizes(two_ranks())
    row = found.row(0, named=True)
    assert (row["kind"], row["bytes"], row["count"]) == ("all_reduce", 8_000, 4)
    # transfers of 94.0, 94.1, 4.0 and 4.1 us; on two ranks the bus bandwidth is the algorithm's
    assert row["transfer_median_ns"] == pytest.approx((94_000 + 4_100) / 2)
    assert row["bus_gbps"] == pytest.approx((8_000 / 94_000 + 8_000 / 4_100) / 2)
    assert row["peak_gbps"] == 450.0  # 900 GB/s of NVLink are both directions
    assert row["share_of_peak"] == pytest.approx(row["bus_gbps"] / 450)
