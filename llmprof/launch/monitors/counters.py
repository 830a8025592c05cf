"""Samples of monitors on the clock of a trace."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from llmprof.errors import AnalysisError
from llmprof.launch.monitors.nvml import REASONS
from llmprof.trace import Trace

_MASK: Final = "gpu.throttle_reasons"


def counters(
    samples: pl.DataFrame | Trace, trace: Trace, *, zone: str | None = None, date: dt.date | None = None
) -> Trace:
    """Put samples of monitors on the clock of a trace.

    Parameters
    ----------
    samples : polars.DataFrame or Trace
        What :class:`Sampler` wrote (``time_ns`` since the epoch), or what :func:`llmprof.read` made of a monitor's
        file.
    trace : Trace
        Its clock must be the epoch (``meta["start_epoch_ns"]``).
    zone : str, optional
        Zone of the local times of a monitor's file (``Europe/Berlin``, ``UTC``), which most files do not say.
    date : datetime.date, optional
        Date of the first sample, where the file has times of day only.

    Returns
    -------
    Trace
        The trace with the samples among its ``counters``, times from the trace's start (negative before it). A GPU's
        rank is the one whose kernels ran on it, the host's is -1. The mask ``gpu.throttle_reasons`` becomes a
        counter of 0 and 1 for each reason that occurs (``gpu.throttle.sw_power_cap``).

    Raises
    ------
    AnalysisError
        One of the two clocks cannot be tied to the epoch; the message says what is missing.
    """
    start = trace.meta.get("start_epoch_ns")
    if not isinstance(start, int):
        raise AnalysisError(
            "the trace does not say when it began",
            expected="a trace whose clock is the epoch",
            hint="record with a profiler that writes the time of day (torch from 2.1 on, nsys)",
        )
    if isinstance(samples, Trace):
        frame = samples.counters.with_columns(pl.col("time_ns") + _epoch_ns(samples, zone, date)).drop("rank")
    else:
        frame = samples
    on_clock = _spread(frame).with_columns(pl.col("time_ns") - start, rank=_rank(trace))
    tables = trace.tables
    before = [tables["counters"]] if "counters" in tables else []
    columns = ["rank", "device", "time_ns", "name", "value", "unit"]
    tables["counters"] = pl.concat([*before, on_clock.select(columns)], how="diagonal_relaxed")
    return Trace(tables, trace.meta, trace.coverage, database=trace._database)


def _spread(frame: pl.DataFrame) -> pl.DataFrame:
    """The samples with a row for each reason of a mask."""
    masks = frame.filter(name=_MASK).with_columns(pl.col("value").cast(pl.Int64))
    reasons = [
        masks.with_columns(name=pl.lit(f"gpu.throttle.{reason}"), value=active.cast(pl.Float64))
        for bit, reason in REASONS.items()
        if masks.select((active := (pl.col("value") & bit) != 0).any()).item()
    ]
    return pl.concat([frame.filter(pl.col("name") != _MASK), *reasons], how="vertical_relaxed")


def _rank(trace: Trace) -> pl.Expr:
    """Rank of a device: of the only rank with work on it, else -1."""
    tables = trace.tables
    work = [tables[name].select("rank", "device") for name in ("kernels", "copies") if name in tables]
    if not work:
        return pl.lit(-1, pl.Int32)
    owners = pl.concat(work).drop_nulls().unique().group_by("device").agg(pl.col("rank"))
    known = dict(
        owners.filter(pl.col("rank").list.len() == 1).select("device", pl.col("rank").list.first()).iter_rows()
    )
    return pl.col("device").replace_strict(known, default=-1, return_dtype=pl.Int32).fill_null(-1)


def _epoch_ns(samples: Trace, zone: str | None, date: dt.date | None) -> int:
    """Time since the epoch at which the samples of a monitor's file begin."""
    meta: dict[str, Any] = samples.meta
    if isinstance(meta.get("start_epoch_ns"), int):
        return int(meta["start_epoch_ns"])
    local = meta.get("start_local")
    if local is None:
        raise AnalysisError(
            "the monitor's file holds no times", hint="record with times (dmon -o DT, --query-gpu=timestamp, dstat -T)"
        )
    if "T" not in local:
        if date is None:
            raise AnalysisError("the monitor's file holds no date", hint="pass date=, the day of its first sample")
        local = f"{date.isoformat()}T{local}"
    if zone is None:
        raise AnalysisError(
            "the monitor's file holds local times without their zone",
            hint='pass zone=, such as "Europe/Berlin" or "UTC"',
            start_local=local,
        )
    try:
        when = dt.datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise AnalysisError(f"there is no zone {zone!r}", expected='a name such as "Europe/Berlin" or "UTC"') from error
    return round(when.timestamp() * 1e3) * 1_000_000
