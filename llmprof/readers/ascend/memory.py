"""Memory of the device: allocations of operators and samples of allocators, out of CSV files or a database."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from llmprof.readers.ascend import csvfile
from llmprof.readers.ascend.database import Database


def operator_memory(path: Path) -> pl.DataFrame:
    """Allocations and releases of ``operator_memory.csv`` in the form of the table of memory."""
    raw = csvfile.read(path)
    device = _device(raw)
    size = csvfile.size_bytes(raw, "size")
    sides = []
    for what, sign, time in (("allocation", 1, "allocation_time"), ("release", -1, "release_time")):
        sides.append(
            raw.select(
                device=device,
                time_ns=csvfile.time_ns(raw, time),
                bytes=size * sign,
                allocated_bytes=csvfile.size_bytes(raw, f"{what}_total_allocated"),
                reserved_bytes=csvfile.size_bytes(raw, f"{what}_total_reserved"),
                on_device=pl.lit(value=True),
                ascend_active_bytes=csvfile.size_bytes(raw, f"{what}_total_active"),
                ascend_operator=csvfile.text(raw, "name"),
                ascend_component=pl.lit("operators"),
            ).filter(pl.col("time_ns").is_not_null())
        )
    return pl.concat(sides).sort("time_ns", maintain_order=True)


def memory_record(path: Path) -> pl.DataFrame:
    """Samples of allocators of ``memory_record.csv``, by component (PTA, GE, APP, WORKSPACE)."""
    raw = csvfile.read(path)
    return raw.select(
        device=_device(raw),
        time_ns=csvfile.time_ns(raw, "timestamp"),
        bytes=pl.lit(None, dtype=pl.Int64),
        allocated_bytes=csvfile.size_bytes(raw, "total_allocated"),
        reserved_bytes=csvfile.size_bytes(raw, "total_reserved"),
        on_device=pl.lit(value=True),
        ascend_active_bytes=csvfile.size_bytes(raw, "total_active"),
        ascend_component=csvfile.text(raw, "component"),
    ).filter(pl.col("time_ns").is_not_null())


def module_memory(path: Path) -> pl.DataFrame:
    """Memory of the parts of CANN of ``npu_module_mem.csv``, as counters."""
    raw = csvfile.read(path)
    return raw.select(
        device=_device(raw),
        time_ns=csvfile.time_ns(raw, "timestamp"),
        name=pl.format("module memory {}", csvfile.text(raw, "component").fill_null("unknown")),
        value=csvfile.size_bytes(raw, "total_reserved").cast(pl.Float64),
        unit=pl.lit("B"),
    ).filter(pl.col("time_ns").is_not_null() & pl.col("value").is_not_null())


def _device(raw: pl.DataFrame) -> pl.Expr:
    return (
        csvfile.text(raw, "device_type", "device", "device_id").str.extract(r"(\d+)\s*$").cast(pl.Int32, strict=False)
    )


def of_database(db: Database) -> pl.DataFrame | None:
    """Allocations and releases of operators, and samples of the allocators; None where none were recorded."""
    parts = []
    ops = db.read(
        "OP_MEMORY",
        (
            "name", "size", "allocationTime", "releaseTime", "allocationTotalAllocated", "allocationTotalReserved",
            "allocationTotalActive", "releaseTotalAllocated", "releaseTotalReserved", "releaseTotalActive", "deviceId",
        ),
    )  # fmt: skip
    if ops is not None:
        for side, sign in (("allocation", 1), ("release", -1)):
            parts.append(
                ops.select(
                    device=pl.col("deviceId").cast(pl.Int32), time_ns=f"{side}Time", bytes=pl.col("size") * sign,
                    allocated_bytes=f"{side}TotalAllocated", reserved_bytes=f"{side}TotalReserved",
                    on_device=pl.lit(value=True), ascend_active_bytes=f"{side}TotalActive",
                    ascend_operator=db.named("name"), ascend_component=pl.lit("operators"),
                ).drop_nulls("time_ns")
            )  # fmt: skip
    records = db.read(
        "MEMORY_RECORD", ("component", "timestamp", "totalAllocated", "totalReserved", "totalActive", "deviceId")
    )
    if records is not None:
        parts.append(
            records.select(
                device=pl.col("deviceId").cast(pl.Int32), time_ns="timestamp", allocated_bytes="totalAllocated",
                reserved_bytes="totalReserved", on_device=pl.lit(value=True), ascend_active_bytes="totalActive",
                ascend_component=db.named("component"),
            ).drop_nulls("time_ns")
        )  # fmt: skip
    return pl.concat(parts, how="diagonal_relaxed").sort("time_ns", maintain_order=True) if parts else None
