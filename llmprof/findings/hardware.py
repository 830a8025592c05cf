"""Findings of hardware metrics: kernels that take the profiled time, their limits, and advice."""

from __future__ import annotations

import re
from typing import Any, Final

import polars as pl

from llmprof.analyze.ncu.hardware import hot_lines, no_durations, speed_of_light
from llmprof.errors import LlmprofError, NotCapturedError, checked
from llmprof.findings import sentences
from llmprof.findings.findings import SCHEMA, Findings
from llmprof.names import kernels
from llmprof.text import shorten
from llmprof.trace import Trace
from llmprof.trace.metrics import explain
from llmprof.trace.metrics.data import Metrics
from llmprof.trace.schema import TABLES, conform
from llmprof.units import format_ns

_LEAST_SHARE: Final = 0.03
_LEAST_ESTIMATE: Final = 0.02
_LEAST_LINE: Final = 0.2
_MOST_ESTIMATES: Final = 3
_MOST_NAME: Final = 60
_SEVERITIES: Final = {"high": 0.2, "medium": 0.05, "low": 0.0}
_SENTENCE: Final = re.compile(r"(?<=[a-z\d%)])\.\s")


@checked
def findings(metrics: Metrics, *, source: pl.DataFrame | None = None) -> pl.DataFrame:
    """Findings about profiled launches: which take the time, and what limits them, the largest
    first.

    Shares are of the time of all profiled launches. Each launch was replayed alone, so findings
    cannot be about the time between launches, their order or other ranks: these need a timeline
    (:func:`llmprof.analyze.findings`).

    Parameters
    ----------
    metrics : Metrics
        Metrics of Nsight Compute, see :func:`llmprof.read_metrics`.
    source : polars.DataFrame, optional
        Samples of the instructions of the same report (:func:`llmprof.read_source`): names the
        hottest lines.

    Returns
    -------
    polars.DataFrame
        The columns of :func:`llmprof.analyze.findings`; ``figure`` and ``gain_ns`` are ns of the
        profile. The rules:

        - ``limited_kernel``: a kernel with at least 3 % of the time, its bound and the share of the
          peak that it reaches (:func:`.ncu.speed_of_light`); ``gain_ns`` is the gain if it
          reached its roof;
        - ``profiler_estimate``: advice of the profiler's own rules with an estimate for the whole
          kernel, as a sum over the launches; at most three;
        - ``hot_line``: a line with at least 20 % of the samples of the kernel that takes the most
          time.

        ``rank, start_ns, end_ns`` are null. No rows if the metrics hold no durations.

    Examples
    --------
    >>> found = analyze.ncu.findings(metrics)
    >>> found["rule"][0], found["denominator"][0]
    ('limited_kernel', 'the 842 us of the 24 profiled launches')
    """
    try:
        speed = speed_of_light(metrics)
    except NotCapturedError:
        speed = pl.DataFrame()
    total = float(speed["duration_ns"].sum()) if speed.height else 0.0
    rows: list[dict[str, Any]] = []
    if total > 0:
        denominator = f"the {format_ns(total)} of the {speed.height} profiled launches"
        denominator = denominator.replace("the 1 profiled launches", "the one profiled launch")
        rows = [*_limited(speed, total), *_estimated(metrics, speed, total)]
        if source is not None:
            rows += _hot_lines(source, speed, total)
        same = {"unit": "ns a profile", "scope": "profiled launches", "denominator": denominator}
        rows = [same | dict.fromkeys(("rank", "start_ns", "end_ns")) | row for row in rows]
    frame = pl.DataFrame(
        rows, schema={name: dtype for name, dtype in SCHEMA.items() if name != "order"}
    )
    last = pl.col("rule") != "limited_kernel"
    ranked = frame.sort(last, "share_of_time", descending=[False, True], maintain_order=True)
    order = pl.int_range(1, pl.len() + 1, dtype=pl.Int32)
    return Findings(ranked.with_columns(order=order).select(list(SCHEMA)))


def typical_limit(speed: pl.DataFrame) -> pl.DataFrame:
    """The limit that most of the time of a kernel's launches has."""
    by_time = speed.sort("duration_ns", descending=True, nulls_last=True)
    return (
        by_time.group_by("kernel_name", "bound", maintain_order=True)
        .agg(
            pl.col("duration_ns").sum().alias("bound_ns"),
            *(pl.col(name).first() for name in ("memory_level", "stall")),
            *(
                pl.col(name).median()
                for name in ("compute_share", "memory_share", "roof_share", "stall_share")
            ),
        )
        .sort("bound_ns", descending=True, maintain_order=True)
        .unique("kernel_name", keep="first", maintain_order=True)
    )


def _limited(speed: pl.DataFrame, total: float) -> list[dict[str, Any]]:
    """A row for each kernel that takes enough of the time."""
    whole = speed.group_by("kernel_name", maintain_order=True).agg(
        ns=pl.col("duration_ns").sum(), launches=pl.len(), bounds=pl.col("bound").n_unique()
    )
    typical = typical_limit(speed)
    large = whole.filter(pl.col("ns") >= _LEAST_SHARE * total)
    joined = large.join(typical, on="kernel_name", nulls_equal=True).sort(
        "ns", descending=True, maintain_order=True
    )
    rows = []
    for row in joined.iter_rows(named=True):
        share, compute, memory, roof = (
            row["ns"] / total,
            row["compute_share"],
            row["memory_share"],
            row["roof_share"],
        )
        state = explain(row["stall"]) if row["stall"] is not None else None
        figures = row | {
            "name": short_name(row["kernel_name"]),
            "share": share,
            "action": state and state.action,
        }
        if roof is None and compute is not None and memory is not None:
            roof = max(compute, memory)
        gain, name = row["ns"] * (1 - min(1.0, roof or 0.0)), row["kernel_name"]
        where = "kernel_name IS NULL" if name is None else f"kernel_name = {_quoted(name)}"
        rows.append(
            _row(
                "limited_kernel",
                figures,
                row["ns"],
                share,
                gain_ns=gain,
                evidence="speed_of_light",
                where=where,
            )
        )
    return rows


def _row(
    rule: str,
    figures: dict[str, Any],
    ns: float,
    share: float,
    *,
    gain_ns: float,
    evidence: str,
    where: str,
) -> dict[str, Any]:
    words = dict(
        zip(("title", "detail", "suggestion"), sentences.finding(rule, figures), strict=True)
    )
    severity = (
        next(name for name, least in _SEVERITIES.items() if share >= least)
        if rule != "hot_line"
        else "info"
    )
    facts = {"rule": rule, "severity": severity, "evidence": evidence, "where": where}
    return {**facts, **words, "figure": ns, "share_of_time": min(1.0, share), "gain_ns": gain_ns}


def _estimated(metrics: Metrics, speed: pl.DataFrame, total: float) -> list[dict[str, Any]]:
    """Estimates of the profiler's own rules for the whole kernel, each rule summed over all
    launches.
    """
    advice = metrics.rules.filter(
        pl.col("speedup_scope") == "global", pl.col("estimated_speedup_pct") > 0
    )
    joined = advice.join(
        speed.select("kernel_id", "kernel_name", "duration_ns"), on="kernel_id"
    ).with_columns(gain=pl.col("duration_ns") * pl.col("estimated_speedup_pct").clip(0, 100) / 100)
    once = joined.group_by("rule", "kernel_id").agg(
        pl.all().sort_by("gain", descending=True).first()
    )
    summed = (
        once.sort("gain", descending=True)
        .group_by("rule", maintain_order=True)
        .agg(
            pl.col("gain").sum().alias("sum"),
            pl.len().alias("launches"),
            pl.col("text", "kernel_name").first(),
        )
        .filter(pl.col("sum") >= _LEAST_ESTIMATE * total)
        .sort("sum", "rule", descending=[True, False])
        .head(_MOST_ESTIMATES)
    )
    rows = []
    for rule, gain, launches, text, name in summed.iter_rows():
        share = min(1.0, gain / total)
        first, _, rest = _SENTENCE.sub(".\n", " ".join(str(text).split()), count=1).partition("\n")
        figures = {"ns": gain, "share": share, "first": first, "rest": rest, "launches": launches}
        figures["name"] = short_name(name)
        where = f"rule = {_quoted(rule)}"
        rows.append(
            _row(
                "profiler_estimate",
                figures,
                gain,
                share,
                gain_ns=gain,
                evidence="rules",
                where=where,
            )
        )
    return rows


def _hot_lines(source: pl.DataFrame, speed: pl.DataFrame, total: float) -> list[dict[str, Any]]:
    """The hottest line of the kernel that takes the most time, if one stands out."""
    try:
        lines = hot_lines(source).drop_nulls("line")
    except LlmprofError:
        return []
    length = speed.select("kernel_id", "duration_ns")
    hottest = (
        lines.join(length, on="kernel_id")
        .filter(pl.col("share") >= _LEAST_LINE)
        .with_columns(ns=pl.col("share") * pl.col("duration_ns"))
        .sort("ns", descending=True, nulls_last=True)
    )
    if not hottest.height:
        return []
    row = hottest.row(0, named=True)
    share = row["ns"] / total
    state = explain(row["reason"]) if row["reason"] else None
    row["stall"] = row.pop("reason")  # of warps; findings of a trace have reasons of the host
    figures = row | {
        "name": short_name(row["kernel_name"]),
        "file": file_name(row["file"]),
        "share": share,
    }
    figures |= {"of_samples_share": row["share"], "action": state and state.action}
    where = f"kernel_id = {row['kernel_id']} AND line = {row['line']}"
    return [
        _row(
            "hot_line",
            figures,
            row["ns"],
            share,
            gain_ns=row["ns"],
            evidence="hot_lines",
            where=where,
        )
    ]


def file_name(path: str | None) -> str:
    """Last part of the path of a source file."""
    return re.split(r"[/\\]", path)[-1] if path else "an unknown file"


def short_name(name: str | None) -> str:
    """Short function name of a kernel, cut in the middle if it is very long."""
    return shorten(kernels.displayed(pl.Series([name], dtype=pl.String))[0], _MOST_NAME)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def launches_in_a_row(metrics: Metrics) -> Trace:
    """The profiled launches as a trace without gaps between them, since Nsight Compute records
    no starts.
    """
    timed = metrics.kernels.drop_nulls("duration_ns").sort("kernel_id")
    if timed.is_empty():
        raise no_durations()
    of_rank = pl.struct("run", "process", "device").rank("dense") - 1
    rows = timed.with_columns(
        rank=of_rank.cast(pl.Int32),
        dur_ns=pl.col("duration_ns").round().cast(pl.Int64),
        name=pl.col("kernel_name").fill_null("unnamed"),
        device=pl.col("device").cast(pl.Int32, strict=False),
        stream=pl.col("stream").cast(pl.Int64, strict=False).fill_null(0),
    )
    rows = rows.with_columns(start_ns=pl.col("dur_ns").cum_sum().over("rank") - pl.col("dur_ns"))
    kept = [column for column in TABLES["kernels"].schema if column in rows.columns]
    devices = set(metrics.kernels["device_name"].drop_nulls().to_list())
    meta = {"clock": "none: launches in their order, one after the other", "format": "ncu"}
    if len(devices) == 1:
        meta["device"] = devices.pop()
    return Trace({"kernels": conform(rows.select(kept), "kernels")}, meta)
