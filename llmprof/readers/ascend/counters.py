"""Counters and memory of an Ascend device in base units: frequency, HBM, LLC, QoS, links,
allocations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from llmprof.readers.ascend import files
from llmprof.readers.ascend.files import Database
from llmprof.readers.ascend.timeline import AscendTimeline

_UNITS: Final = {
    "MHz": (1e6, "Hz"),
    "KB": (1024.0, "B"),
    "MB": (1024.0**2, "B"),
    "MB/s": (1024.0**2, "B/s"),
    "GB/s": (1024.0**3, "B/s"),
    "%": (1.0, "%"),
    "us": (1000.0, "ns"),
}
"""Factor and base unit for each unit in the names of series; msprof's prefixes are powers of
1024.
"""


def of_timeline(timeline: AscendTimeline) -> pl.DataFrame | None:
    """The counters of timeline files as the table ``counters``; None if there are none."""
    # msprof writes hit rates as fractions although it names the unit per cent; here they become per
    # cent.
    samples = timeline.counters
    if not samples.height:
        return None
    unit = pl.col("series").str.extract(r"\(([^()]+)\)\s*$").fill_null(pl.col("series"))
    factor = unit.replace_strict(
        {u: f for u, (f, _) in _UNITS.items()}, default=1.0, return_dtype=pl.Float64
    )
    base = unit.replace_strict(
        {u: b for u, (_, b) in _UNITS.items()}, default=None, return_dtype=pl.String
    )
    plain = pl.col("series").is_in(["value", *_UNITS]) | pl.col("name").str.contains(
        pl.col("series"), literal=True
    )
    stem = pl.col("series").str.replace(r"\([^()]*\)\s*$", "")
    plain = plain | pl.col("name").str.ends_with(stem)
    named = pl.when(plain).then("name").otherwise(pl.format("{} {}", "name", "series"))
    samples = samples.with_columns(_factor=factor, unit=base, name=named)
    most = pl.max("value").over("name")
    as_share = (pl.col("unit") == "%") & (most <= 1)
    return samples.select(
        "time_ns",
        "name",
        value=pl.when(as_share)
        .then(pl.col("value") * 100)
        .otherwise(pl.col("value") * pl.col("_factor")),
        unit="unit",
    )


def of_database(db: Database) -> pl.DataFrame | None:
    """Counters of a database under the names of the text output, in base units; None if there
    are no counters.
    """
    parts: list[pl.DataFrame] = []

    def add(frame: pl.DataFrame | None, name: pl.Expr, value: pl.Expr, unit: str | None) -> None:
        if frame is not None and frame.height:
            parts.append(
                frame.select(
                    device=pl.col("deviceId").cast(pl.Int32),
                    time_ns="timestampNs",
                    name=name,
                    value=value.cast(pl.Float64),
                    unit=pl.lit(unit, dtype=pl.String),
                ).drop_nulls(["time_ns", "value", "name"])
            )

    keys = ("deviceId", "timestampNs")
    add(db.read("AICORE_FREQ", keys, ("freq",)), pl.lit("AI Core Freq"), pl.col("freq") * 1e6, "Hz")
    for column, word in (("ddr", "DDR"), ("hbm", "HBM")):
        who = db.named("type").replace({"app": "APP", "device": "Device"})
        add(
            db.read("NPU_MEM", (*keys, "type"), (column,)),
            pl.format(f"{{}}/{word}", who),
            pl.col(column),
            "B",
        )
    way = db.named("type").str.to_titlecase()
    hbm = db.read("HBM", (*keys, "hbmId", "type"), ("bandwidth",))
    add(hbm, pl.format("HBM {}/{}", "hbmId", way), pl.col("bandwidth"), "B/s")
    way = db.named("mode").str.to_titlecase()
    llc = db.read("LLC", (*keys, "llcId", "mode"), ("hitRate", "throughput"))
    add(llc, pl.format("LLC {} {}/Throughput", "llcId", way), pl.col("throughput"), "B/s")
    add(llc, pl.format("LLC {} {}/Hit Rate", "llcId", way), pl.col("hitRate"), "%")
    module = pl.col("moduleId").replace_strict(
        db.enum("ENUM_MODULE"), default="unknown", return_dtype=pl.String
    )
    held = db.read("NPU_MODULE_MEM", (*keys, "moduleId"), ("totalReserved",))
    add(held, pl.format("module memory {}", module), pl.col("totalReserved"), "B")
    for column, word in (
        ("l2BufferBwLevel", "L2 Buffer Bw Level"),
        ("mataBwLevel", "Mata Bw Level"),
    ):
        add(db.read("SOC_BANDWIDTH_LEVEL", keys, (column,)), pl.lit(word), pl.col(column), None)
    for column, word in (
        ("readBwLevel", "read_bandwidth"),
        ("writeBwLevel", "write_band_width"),
        ("readOstLevel", "read_ost"),
        ("writeOstLevel", "write_ost"),
    ):
        levels = db.read("ACC_PMU", (*keys, "accId"), (column,))
        add(levels, pl.format(f"{word} acc {{}}", "accId"), pl.col(column), None)
    qos = db.read("QOS", (*keys, "eventName"), ("bandwidth",))
    add(qos, pl.format("QoS {}", db.named("eventName")), pl.col("bandwidth"), None)
    add(db.read("DDR", keys, ("read",)), pl.lit("DDR/Read"), pl.col("read"), "B/s")
    add(db.read("DDR", keys, ("write",)), pl.lit("DDR/Write"), pl.col("write"), "B/s")
    for column, word in (("txThroughput", "Tx"), ("rxThroughput", "Rx")):
        add(db.read("HCCS", keys, (column,)), pl.lit(f"HCCS/{word}"), pl.col(column), "B/s")
    return pl.concat(parts).sort("time_ns", maintain_order=True) if parts else None


def operator_memory(path: Path) -> pl.DataFrame:
    """The allocations and releases in ``operator_memory.csv`` as the table ``memory`` (bytes,
    absolute times in ns).
    """
    raw = files.read_csv(path)
    size = files.size_bytes(raw, "size")
    sides = [
        raw.select(
            device=_device(raw),
            time_ns=files.time_ns(raw, f"{what}_time"),
            bytes=size * sign,
            allocated_bytes=files.size_bytes(raw, f"{what}_total_allocated"),
            reserved_bytes=files.size_bytes(raw, f"{what}_total_reserved"),
            on_device=pl.lit(True),
            ascend_active_bytes=files.size_bytes(raw, f"{what}_total_active"),
            ascend_operator=files.text_column(raw, "name"),
            ascend_component=pl.lit("operators"),
        )
        for what, sign in (("allocation", 1), ("release", -1))
    ]
    return pl.concat(sides).drop_nulls("time_ns").sort("time_ns", maintain_order=True)


def memory_record(path: Path) -> pl.DataFrame:
    """The samples of allocators in ``memory_record.csv`` as the table ``memory``, by component
    (PTA, GE, APP, …).
    """
    raw = files.read_csv(path)
    return raw.select(
        device=_device(raw),
        time_ns=files.time_ns(raw, "timestamp"),
        bytes=pl.lit(None, pl.Int64),
        allocated_bytes=files.size_bytes(raw, "total_allocated"),
        reserved_bytes=files.size_bytes(raw, "total_reserved"),
        on_device=pl.lit(True),
        ascend_active_bytes=files.size_bytes(raw, "total_active"),
        ascend_component=files.text_column(raw, "component"),
    ).drop_nulls("time_ns")


def module_memory(path: Path) -> pl.DataFrame:
    """Memory of CANN's modules from ``npu_module_mem.csv``, as counters."""
    raw = files.read_csv(path)
    return raw.select(
        device=_device(raw),
        time_ns=files.time_ns(raw, "timestamp"),
        name=pl.format(
            "module memory {}", files.text_column(raw, "component").fill_null("unknown")
        ),
        value=files.size_bytes(raw, "total_reserved").cast(pl.Float64),
        unit=pl.lit("B"),
    ).filter(pl.col("time_ns").is_not_null() & pl.col("value").is_not_null())


def _device(raw: pl.DataFrame) -> pl.Expr:
    return (
        files.text_column(raw, "device_type", "device", "device_id")
        .str.extract(r"(\d+)\s*$")
        .cast(pl.Int32, strict=False)
    )


def memory_of_database(db: Database) -> pl.DataFrame | None:
    """Allocations and releases of operators, and samples of the allocators; None if none were
    recorded.
    """
    parts = []
    ops = db.read(
        "OP_MEMORY",
        (
            "name",
            "size",
            "allocationTime",
            "releaseTime",
            "allocationTotalAllocated",
            "allocationTotalReserved",
            "allocationTotalActive",
            "releaseTotalAllocated",
            "releaseTotalReserved",
            "releaseTotalActive",
            "deviceId",
        ),
    )
    if ops is not None:
        for side, sign in (("allocation", 1), ("release", -1)):
            parts.append(
                ops.select(
                    device=pl.col("deviceId").cast(pl.Int32),
                    time_ns=f"{side}Time",
                    bytes=pl.col("size") * sign,
                    allocated_bytes=f"{side}TotalAllocated",
                    reserved_bytes=f"{side}TotalReserved",
                    on_device=pl.lit(True),
                    ascend_active_bytes=f"{side}TotalActive",
                    ascend_operator=db.named("name"),
                    ascend_component=pl.lit("operators"),
                ).drop_nulls("time_ns")
            )
    records = db.read(
        "MEMORY_RECORD",
        ("component", "timestamp", "totalAllocated", "totalReserved", "totalActive", "deviceId"),
    )
    if records is not None:
        parts.append(
            records.select(
                device=pl.col("deviceId").cast(pl.Int32),
                time_ns="timestamp",
                allocated_bytes="totalAllocated",
                reserved_bytes="totalReserved",
                on_device=pl.lit(True),
                ascend_active_bytes="totalActive",
                ascend_component=db.named("component"),
            ).drop_nulls("time_ns")
        )
    return (
        pl.concat(parts, how="diagonal_relaxed").sort("time_ns", maintain_order=True)
        if parts
        else None
    )
