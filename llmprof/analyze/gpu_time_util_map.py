"""How busy each device is over time."""

from __future__ import annotations

import polars as pl

from llmprof.analyze._memo import per_trace
from llmprof.analyze.activity import activity
from llmprof.analyze.intervals import length_within
from llmprof.errors import AnalysisError
from llmprof.trace import Trace

MAX_BINS = 1_000_000
"""More bins than that, over all devices, are a mistake in the arguments."""


@per_trace
def gpu_time_util_map(
    trace: Trace, *, bins: int = 30, bin_ns: int | None = None, kernels_only: bool = True
) -> pl.DataFrame:
    """Share of the time in which a device runs something, per rank, device and bin of time.

    Kernels that run at the same time count once. The bins are the same for all devices and reach from the first start
    to the last end of any of them; the last one is cut at that end.

    Parameters
    ----------
    trace : Trace
        A trace with device activity; operators of the host stand in on a trace of a run on CPU.
    bins : int
        Number of bins.
    bin_ns : int, optional
        Width of a bin (ns), in place of ``bins``.
    kernels_only : bool
        Whether copies are left out, as nsys's recipe of this name does.

    Returns
    -------
    polars.DataFrame
        ``rank, device, bin, start_ns, dur_ns, busy_ns, share`` (of the bin), in that order; times in ns.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity and no operators.
    AnalysisError
        There is no bin, or there are more than a million.
    """
    events = activity(trace).filter(pl.col("source") != ("copy" if kernels_only else ""))
    devices = events.select("rank", "device").unique().sort("rank", "device", nulls_last=True)
    if events.is_empty():
        return _grid(devices, 0, 1, 1).clear().with_columns(busy_ns=pl.lit(0, dtype=pl.Int64), share=pl.lit(0.0))
    first = events["start_ns"].min()
    last = (events["start_ns"] + events["dur_ns"]).max()
    assert isinstance(first, int)  # noqa: S101
    assert isinstance(last, int)  # noqa: S101
    span = max(last - first, 1)
    if bins < 1 or (bin_ns is not None and bin_ns < 1):
        raise AnalysisError(f"bins={bins}, bin_ns={bin_ns} make no bin", expected="at least one bin of at least 1 ns")
    width = -(-span // bins) if bin_ns is None else bin_ns
    if -(-span // width) * devices.height > MAX_BINS:
        raise AnalysisError(
            f"{-(-span // width):,} bins on {devices.height} devices are too many",
            expected=f"at most {MAX_BINS:,} over all devices",
            hint="make the bins wider, or select a window of the trace",
        )
    grid = _grid(devices, first, first + span, width)
    busy = length_within(grid, events, ["rank", "device"])
    return busy.with_columns(share=pl.col("busy_ns") / pl.col("dur_ns"))


def _grid(devices: pl.DataFrame, first: int, last: int, width: int) -> pl.DataFrame:
    starts = pl.int_range(first, last, width, dtype=pl.Int64, eager=True).alias("start_ns")
    row = starts.to_frame().with_row_index("bin").with_columns(dur_ns=(last - pl.col("start_ns")).clip(0, width))
    return devices.join(row, how="cross").select("rank", "device", "bin", "start_ns", "dur_ns")
