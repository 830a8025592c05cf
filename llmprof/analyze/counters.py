"""Counters over time joined to the work: averages over each kernel, stage, layer, phase, step
and idle gap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.idle.gaps import idle
from llmprof.label.intervals import merge
from llmprof.trace import Trace

_KEYS = {
    "kernel": ["name"],
    "event": ["event", "start_ns", "name"],
    "category": ["category"],
    "stage": ["phase", "stage"],
    "layer": ["phase", "layer"],
    "phase": ["phase"],
    "step": ["step", "phase"],
    "idle": ["cause"],
    "gap": ["gap", "start_ns"],
}
_SINGLE = ("kernel", "event", "gap")
MOSTLY, _ALONE = 0.5, 0.9
"""Share of a sample that work fills for which the sample says something: groups of work, which
follow upon each other, and single pieces of it.
"""
_DEVICE = ["rank", "device"]
_SINCE_LAST = r"gpu\.(?:utilization|memory_utilization|pcie_|nvlink_)|cpu\.utilization|disk\.|network\.|run\.cpu"  # noqa: E501
"""Counters of llmprof's monitors, and of tools read under their names, that measure the time
before a sample.
"""


@Analysis(
    question=(
        "How busy were the units of the device in each kernel, stage, layer, phase and idle gap?"
    ),
    help="sampled counters (SMs, tensor cores, memory, links) over the work",
    view="counters",
    recorded="device activity and samples of counters",
)
def counters(
    trace: Trace,
    *,
    by: Literal[
        "kernel", "event", "category", "stage", "layer", "phase", "step", "idle", "gap"
    ] = "kernel",
) -> pl.DataFrame:
    """Mean of each sampled counter while each kind of work runs.

    A sample holds from its time until the next one of its counter and device, the last one for the
    usual distance of two; rates and busy shares of llmprof's monitors are of the time before a
    sample, and hold from the one before. A mean weights each sample with the time for which it
    holds in the work.

    Parameters
    ----------
    trace : Trace
        A trace with device activity and samples of counters: ``nsys profile
        --gpu-metrics-devices=all``, counters of rocprof or of an NPU, or the monitors of a run.
    by : {"kernel", "event", "category", "stage", "layer", "phase", "step", "idle", "gap"}
        What the means are over: kernels by name, single events, categories, stages and layers by
        phase, phases, steps, idle time by cause, or single gaps in which the device is idle.

    Returns
    -------
    polars.DataFrame
        ``rank, device``, the columns of ``by``, ``counter, unit, mean_value, min_value, max_value``
        (of the samples that hold in the work), ``dur_ns`` (time of the work; what runs side by side
        counts once), ``known_ns`` (of it, with a sample), ``count`` (samples that hold in the
        work), ``own_count`` (of these, in half of whose time this work ran, or in nine tenths by
        kernel, event and gap: with none it was not sampled, and the values are null) and
        ``own_share``: the part of the time of the samples in which this work ran; at 1 the mean is
        this work's alone. Work without a sample is left out. By device, the longest work first.

        Samples of a whole machine (rank -1) count for the rank that uses their device, if there is
        only one, and where they name no device for each rank.

    Raises
    ------
    NotCapturedError
        The trace holds no samples of counters, or no device activity and no operators.

    Examples
    --------
    >>> samples = {"rank": 0, "device": 0, "time_ns": [0, 50], "name": "SMs Active", "value": [20.0, 80.0], "unit": "%"}
    >>> kernels = pl.DataFrame({"rank": 0, "device": 0, "stream": 7, "start_ns": 0, "dur_ns": 100, "name": ["gemm"]})
    >>> busy = llmprof.Trace({"kernels": kernels, "counters": pl.DataFrame(samples)})
    >>> analyze.counters(busy)["mean_value"].item()
    50.0
    """  # noqa: E501
    samples = trace.counters.filter(pl.col("value").is_finite())
    keys = _KEYS[by]
    if by in ("idle", "gap"):
        work = idle(trace)
        if by == "gap":
            work = work.with_columns(pl.min("start_ns").over("gap"), dur_ns="gap_ns").unique("gap")
    else:
        work = trace.events
    inside = [key for key in keys if key != "start_ns"]
    found = counter_means(work, samples, inside, alone=_ALONE if by in _SINGLE else MOSTLY)
    if "start_ns" in keys:
        found = found.join(
            work.select(*_DEVICE, *inside, "start_ns"),
            on=[*_DEVICE, *inside],
            how="left",
            nulls_equal=True,
        )
    order = [*_DEVICE, "dur_ns", *keys, "counter"]
    found = found.sort(order, descending=[name == "dur_ns" for name in order], nulls_last=True)
    return found.select(*_DEVICE, *keys, pl.exclude(*_DEVICE, *keys))


def counter_means(
    work: pl.DataFrame, samples: pl.DataFrame, keys: list[str], *, alone: float = MOSTLY
) -> pl.DataFrame:
    """Means of counters over the intervals of each device and value of the keys; null unless they
    fill this share of a sample.
    """
    whole = [*_DEVICE, *keys]
    spans = merge(work.filter(pl.col("dur_ns") > 0), whole)
    parts = [
        _of_device(
            spans.filter(pl.col("rank") == rank, pl.col("device").eq_missing(device)),
            mine,
            whole,
            alone,
        )
        for rank, device, mine in _lines(samples, work)
    ]
    found = pl.concat(parts) if parts else _of_device(spans.clear(), samples.clear(), whole, alone)
    values = pl.col("mean_value", "min_value", "max_value")
    return found.with_columns(pl.when(pl.col("own_count") > 0).then(values))


def _lines(
    samples: pl.DataFrame, work: pl.DataFrame
) -> Iterator[tuple[int, int | None, pl.DataFrame]]:
    """Devices of the work, each with the samples that are its own."""
    devices = work.select(_DEVICE).unique().sort(_DEVICE, nulls_last=True)
    users = dict(devices.group_by("device").agg(pl.n_unique("rank")).iter_rows())
    for rank, device in devices.iter_rows():
        own = (pl.col("rank") == rank) & (
            pl.col("device").is_null() | pl.col("device").eq_missing(device)
        )
        machine = (pl.col("rank") == -1) & (
            pl.col("device").is_null()
            | (pl.col("device").eq_missing(device) & (users[device] == 1))
        )
        yield rank, device, samples.filter(own | machine)


def _of_device(
    spans: pl.DataFrame, samples: pl.DataFrame, whole: list[str], alone: float
) -> pl.DataFrame:
    """Means over the groups of disjoint intervals of one device."""
    groups = (
        spans.group_by(whole, maintain_order=True)
        .agg(dur_ns=pl.sum("dur_ns"))
        .with_row_index("_group")
    )
    spans = spans.join(
        groups.select("_group", *whole),
        on=whole,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    begin, group = spans["start_ns"].to_numpy(), spans["_group"].to_numpy()
    end = begin + spans["dur_ns"].to_numpy()
    parts = [_NOTHING]
    lines = samples.sort("time_ns", maintain_order=True).group_by(
        "rank", "device", "name", "unit", maintain_order=True
    )
    alike: dict[bytes, _SamplesInWork] = {}
    for (_, _, name, unit), line in lines:
        line = line.unique("time_ns", keep="last", maintain_order=True)
        time, value = line["time_ns"].to_numpy(), line["value"].to_numpy()
        if re.match(_SINCE_LAST, str(name)):
            time = np.append(time[:1] - _usual(time), time[:-1])
        key = time.tobytes()
        if key not in alike:  # counters of one sampler have the same times
            alike[key] = _held(begin, end, group, time)
        held = alike[key]
        if len(held.first):
            values = value[held.sample]
            known = np.add.reduceat(held.own, held.first)
            parts.append(
                pl.DataFrame(
                    {
                        "counter": pl.repeat(name, len(held.first), dtype=pl.String, eager=True),
                        "unit": pl.repeat(unit, len(held.first), dtype=pl.String, eager=True),
                        "_group": held.group.astype(np.uint32),
                        "mean_value": np.add.reduceat(values * held.own, held.first) / known,
                        "min_value": np.minimum.reduceat(values, held.first),
                        "max_value": np.maximum.reduceat(values, held.first),
                        "known_ns": known,
                        "count": np.diff(held.first, append=len(values)).astype(np.uint32),
                        "own_count": np.add.reduceat(
                            held.own >= alone * held.length, held.first, dtype=np.uint32
                        ),
                        "own_share": known / np.add.reduceat(held.length, held.first),
                    }
                )
            )
    rows = groups.join(pl.concat(parts), on="_group", maintain_order="left")
    return rows.select(
        *whole,
        "counter",
        "unit",
        "mean_value",
        "min_value",
        "max_value",
        "dur_ns",
        "known_ns",
        "count",
        "own_count",
        "own_share",
    )


_NOTHING = pl.DataFrame(
    schema={
        "counter": pl.String,
        "unit": pl.String,
        "_group": pl.UInt32,
        "mean_value": pl.Float64,
        "min_value": pl.Float64,
        "max_value": pl.Float64,
        "known_ns": pl.Int64,
        "count": pl.UInt32,
        "own_count": pl.UInt32,
        "own_share": pl.Float64,
    }
)


def _usual(time: np.ndarray) -> int:
    """Usual distance of two samples (ns)."""
    return int(np.median(np.diff(time))) if len(time) > 1 else 0


class _SamplesInWork(NamedTuple):
    """Pairs of a group and a sample, by group: how long the sample holds in the group's work,
    and at all.
    """

    sample: np.ndarray
    own: np.ndarray
    length: np.ndarray
    group: np.ndarray
    """Groups with pairs …"""
    first: np.ndarray
    """… and the first pair of each."""


def _held(
    begin: np.ndarray, end: np.ndarray, group: np.ndarray, time: np.ndarray
) -> _SamplesInWork:
    """Which samples hold in the disjoint intervals of each group."""
    until = np.append(time[1:], time[-1:] + _usual(time))
    first = np.maximum(np.searchsorted(time, begin, side="right") - 1, 0)
    count = np.maximum(np.searchsorted(time, end, side="left") - first, 0)
    row = np.repeat(np.arange(len(begin)), count)
    sample = np.arange(len(row)) - np.repeat(count.cumsum() - count, count) + first[row]
    own = np.minimum(end[row], until[sample]) - np.maximum(begin[row], time[sample])
    order = np.flatnonzero(own > 0)
    order = order[np.lexsort((sample[order], group[row[order]]))]
    pair, sample, own = group[row[order]], sample[order], own[order]
    new = np.flatnonzero(np.append(True, (pair[1:] != pair[:-1]) | (sample[1:] != sample[:-1])))[
        : len(pair)
    ]
    pair, sample = pair[new], sample[new]
    own = np.add.reduceat(own, new) if len(new) else own
    starts = np.flatnonzero(np.append(True, pair[1:] != pair[:-1]))[: len(pair)]
    return _SamplesInWork(sample, own, (until - time)[sample], pair[starts], starts)
