"""From samples to the rows of the chart of counters: order, lines, units, and fewer points."""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from llmprof.charts._data import number
from llmprof.charts._theme import percent, spread
from llmprof.units import NS_PER_S

_FIRST: Final = (
    "gpu.utilization", "gpu.memory_used", "gpu.power", "gpu.sm_clock", "gpu.temperature", "gpu.memory_utilization",
    "gpu.nvlink_received", "gpu.nvlink_sent", "gpu.pcie_received", "gpu.pcie_sent", "run.cpu", "run.memory",
    "cpu.utilization", "memory.used", "disk.read", "disk.written", "network.received", "network.sent",
)  # fmt: skip
_QUIET: Final = ("gpu.throttle.gpu_idle", "gpu.throttle_reasons")
"""Counters that say nothing in a picture: an idle GPU, and a mask."""

_SWITCH: Final = "gpu.throttle."
_PREFIXES: Final = {
    "B": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")),
    "Hz": ((1e6, "MHz"), (1, "Hz")),
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")),
}


class Scale(NamedTuple):
    """How the values of a counter are written: divided by ``size``, under a title with the unit."""

    size: float
    title: str
    percent: bool
    switch: bool


def panels_of(frame: pl.DataFrame) -> list[str]:
    """Counters with something to see, those that tell most first."""
    finite = frame.filter(pl.col("value").is_finite() & (pl.col("value") != 0) & ~pl.col("name").is_in(_QUIET))
    order = {name: i for i, name in enumerate(_FIRST)}
    return sorted(finite["name"].unique().to_list(), key=lambda name: (order.get(name, len(order)), name))


def lines_of(frame: pl.DataFrame) -> pl.DataFrame:
    """Samples with the name of their ``line``: the GPU, or the host; GPUs first."""
    known = frame.filter(pl.col("value").is_finite())
    if "device" not in known.columns:
        known = known.with_columns(device=pl.lit(None, pl.Int32))
    line = pl.when(pl.col("device").is_null()).then(pl.lit("host")).otherwise(pl.format("GPU {}", "device"))
    return known.with_columns(line=line).sort("device", "time_ns", nulls_last=True, maintain_order=True)


def scale_of(rows: pl.DataFrame) -> Scale:
    """Unit in which the greatest value of a counter has at least one digit."""
    name, unit = str(rows["name"][0]), rows["unit"][0] or ""
    greatest = number(rows["value"].abs().max())
    prefixes = _PREFIXES.get(unit, ((1, "" if unit == "1" else unit),))
    size, symbol = next((p for p in prefixes if greatest >= p[0]), prefixes[-1])
    return Scale(size, f"{name} ({symbol})" if symbol else name, unit == "%", name.startswith(_SWITCH))


def condense(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """At most ``most`` points a line: ``line, time`` (s), and the least, mean and greatest value of each.

    Samples are put together by time, so that a short peak stays in sight.
    """
    width = max(1, -(-int(number(rows["time_ns"].max()) - number(rows["time_ns"].min()) + 1) // most))
    bins = (pl.col("time_ns") // width).alias("bin")
    if rows.group_by("line").len()["len"].max() <= most:  # type: ignore[operator]
        bins = pl.col("time_ns").alias("bin")
    return (
        rows.group_by("line", bins, maintain_order=True)
        .agg(
            time=pl.col("time_ns").mean() / NS_PER_S,
            low=pl.col("value").min(),
            mean=pl.col("value").mean(),
            high=pl.col("value").max(),
        )
        .drop("bin")
    )


def throttled(frame: pl.DataFrame) -> str:
    """Reasons for lower clocks with the share of their samples, in words; empty where there is none."""
    reasons = frame.filter(pl.col("name").str.starts_with(_SWITCH) & ~pl.col("name").is_in(_QUIET))
    shares = reasons.group_by("name").agg(share=pl.col("value").mean()).filter(pl.col("share") > 0)
    words = [
        f"{name.removeprefix(_SWITCH)} ({percent(100 * share)} of the samples)"
        for name, share in shares.sort("share", "name", descending=[True, False]).iter_rows()
    ]
    return ", ".join(words)


def headline(frame: pl.DataFrame) -> str:
    """How busy GPUs or processors were."""
    for name, who in (("gpu.utilization", "GPU"), ("cpu.utilization", "processors")):
        rows = lines_of(frame.filter(name=name))
        if rows.height:
            means = rows.group_by("line").agg(pl.col("value").mean())["value"]
            figures = spread(percent(number(means.min())), percent(number(means.max())))
            seconds = (number(frame["time_ns"].max()) - number(frame["time_ns"].min())) / NS_PER_S
            several = rows["line"].n_unique() > 1 or who == "processors"
            subject = f"{who}s are" if who == "GPU" and several else f"{who} {'are' if several else 'is'}"
            return f"The {subject} busy {figures} of the {seconds:,.1f} s sampled"
    count = frame["name"].n_unique()
    return f"{count} counter{'s' * (count > 1)} over the run"
