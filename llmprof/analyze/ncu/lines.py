"""Where in a kernel its warps stall: lines of the source, or instructions, by samples."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from llmprof.arguments import checked
from llmprof.errors import NotCapturedError

_STALL: Final = r"^smsp__pcsamp_warps_issue_stalled_(\w+?)$"
_WITHOUT_ISSUE: Final = "_not_issued"
_RUNS: Final = ("selected", "not_selected")


@checked
def hot_lines(source: pl.DataFrame, *, per: Literal["line", "instruction"] = "line") -> pl.DataFrame:
    """Lines or instructions of each kernel by samples of its warps, with the reason of most of the stalls there.

    Parameters
    ----------
    source : polars.DataFrame
        What :func:`llmprof.read_source` gives.
    per : {"line", "instruction"}
        What a row is. Instructions whose line is not known make one row with ``line`` null.

    Returns
    -------
    polars.DataFrame
        ``kernel_id, kernel_name, file, line`` and, per instruction, ``address, sass, ptx``; ``samples, share`` (of all
        samples of the kernel), ``reason`` (of most of its samples in which the warp could not run; null where there is
        none), ``reason_samples`` and ``instructions`` (executions by warps; null where not counted). In the order of
        kernels, most samples first.

    Raises
    ------
    NotCapturedError
        The report holds no samples.

    Examples
    --------
    >>> rows = {"kernel_id": [0, 0], "kernel_name": ["k", "k"], "file": ["a.cu", "a.cu"], "line": [7, 8]}
    >>> stalled = "smsp__pcsamp_warps_issue_stalled_"
    >>> source = pl.DataFrame({**rows, "metric": [f"{stalled}wait", f"{stalled}barrier"], "value": [1.0, 3.0]})
    >>> analyze.hot_lines(source).select("line", "share", "reason").rows()
    [(8, 0.75, 'barrier'), (7, 0.25, 'wait')]
    """
    place = ["file", "line"] if per == "line" else ["file", "line", "address", "sass", "ptx"]
    keys = ["kernel_id", "kernel_name", *place]
    stalls = source.filter(
        pl.col("metric").str.contains(_STALL) & ~pl.col("metric").str.ends_with(_WITHOUT_ISSUE)
    ).with_columns(reason=pl.col("metric").str.extract(_STALL, 1))
    if stalls.is_empty():
        raise NotCapturedError(
            "there are no samples of warps in this report", hint="record with ncu --section SourceCounters"
        )
    sampled = stalls.group_by(keys).agg(samples=pl.col("value").sum().cast(pl.Int64))
    samples = source.select(keys).unique(maintain_order=True).join(sampled, on=keys, how="left", nulls_equal=True)
    samples = samples.with_columns(pl.col("samples").fill_null(0))
    waiting = stalls.filter(~pl.col("reason").is_in(_RUNS)).group_by(*keys, "reason").agg(pl.col("value").sum())
    most = (
        waiting.filter(pl.col("value") > 0)
        .sort("value", "reason", descending=[True, False])
        .unique(keys, keep="first", maintain_order=True)
        .select(*keys, "reason", reason_samples=pl.col("value").cast(pl.Int64))
    )
    counted = source.filter(pl.col("metric") == "inst_executed").group_by(keys)
    executed = counted.agg(instructions=pl.col("value").sum().cast(pl.Int64))
    whole = pl.col("samples").sum().over("kernel_id")
    return (
        samples.join(most, on=keys, how="left", nulls_equal=True)
        .join(executed, on=keys, how="left", nulls_equal=True)
        .with_columns(share=pl.when(whole > 0).then(pl.col("samples") / whole))
        .sort("kernel_id", "samples", *place, descending=[False, True, *[False] * len(place)], nulls_last=True)
        .select(*keys, "samples", "share", "reason", "reason_samples", "instructions")
    )
