"""Findings of hardware metrics: kernels that take the profiled time, their limits, and advice."""

from __future__ import annotations

import re
from typing import Any, Final

import polars as pl

from llmprof.analyze.ncu.hardware import hot_lines, no_durations, speed_of_light
from llmprof.errors import LlmprofError, NotCapturedError, checked
from llmprof.findings.cause import Context, Figures
from llmprof.findings.frame import SCHEMA
from llmprof.findings.rows import severity_of
from llmprof.names import kernels
from llmprof.text import counted, shorten
from llmprof.trace import Trace
from llmprof.trace.metrics.data import Metrics
from llmprof.trace.schema import TABLES, conform
from llmprof.units import format_ns, format_share

_MIN_SHARE: Final = 0.03
_MIN_ESTIMATE: Final = 0.02
_MIN_LINE: Final = 0.2
_MAX_ESTIMATES: Final = 3
_MAX_NAME: Final = 60
_SENTENCE: Final = re.compile(r"(?<=[a-z\d%)])\.\s")


_MEMORIES: Final = {
    "dram": "the device memory",
    "l2": "the L2 cache",
    "l1": "the L1 cache and shared memory",
}


class LimitedKernel(Figures, frozen=True):
    """Shares of peaks are medians over the launches of a kernel with its most frequent limit."""

    name: str
    launches: int
    limits: int
    """Different limits of its launches."""
    limit_ns: float
    """Time of the launches that have this one."""
    limit: str | None = None
    memory_level: str | None = None
    compute_share: float | None = None
    memory_share: float | None = None
    bound_share: float | None = None
    stall: str | None = None
    stall_share: float | None = None
    action: str | None = None
    """What helps against the stall."""

    def title(self, of: Context) -> str:
        compute, memory = map(_percent, (self.compute_share, self.memory_share))
        level = _MEMORIES.get(self.memory_level or "", "memory")
        limit = {
            "compute": f"limited by compute: its multiprocessors are at {compute} of their peak",
            "memory": f"limited by memory: {level} is at {memory} of its peak",
            "latency": (
                f"limited by latency: compute is at {compute} of its peak, memory at {memory}"
            ),
        }
        why = limit.get(self.limit or "", "and these metrics do not tell its limit")
        return f"{self.name} takes {of.amount}, {why}."

    def detail(self, of: Context) -> str:
        text = counted(self.launches, "launch")
        text += f", {format_ns(of.time_ns / self.launches)} on average."
        if self.limits > 1:
            text += f" Launches that take {format_ns(self.limit_ns)} of this have that limit."
        if self.bound_share is not None:
            text += (
                f" It reaches {format_share(self.bound_share)} of what the device allows at its"
                " ratio of arithmetic to bytes."
            )
        if self.stall:
            share = format_share(self.stall_share)
            text += f" Its warps wait longest in {self.stall} ({share} of the time)."
        return text

    def advice(self, of: Context) -> str:
        if self.limit == "compute":
            return (
                "Its instructions set the pace, not the memory: fewer or cheaper ones help (a"
                " smaller number type, tensor cores, multiplications for divisions, fewer padded"
                " tiles)."
            )
        if self.limit == "memory":
            return (
                "Move fewer bytes: fuse it with the kernels before and after it, use a smaller"
                " type, keep what is read again in cache."
            )
        if not self.limit:
            return "Profile it with ncu --set full, so that its limit is known."
        unknown = (
            "Record its warp states with ncu --section WarpStateStats to see what its warps wait"
            " for."
        )
        return self.action or unknown


class ProfilerEstimate(Figures, frozen=True):
    """Advice of the profiler, in its own words."""

    first: str
    """Its first sentence, and the rest."""
    rest: str
    launches: int
    name: str
    """The kernel of whose launch the words are."""

    def title(self, of: Context) -> str:
        return f"Nsight Compute estimates a gain of up to {of.amount}: {self.first}"

    def detail(self, of: Context) -> str:
        launches = "one launch" if self.launches == 1 else f"{self.launches} launches"
        return f"The same advice is given for {launches}; these words are of {self.name}."

    def advice(self, of: Context) -> str:
        return self.rest or "See the section of the report that the advice is of."


class HotLine(Figures, frozen=True):
    """The line with most samples of the kernel that takes the most time."""

    line: int
    file: str
    name: str
    samples: int
    of_samples_share: float
    stall: str | None = None
    action: str | None = None

    def title(self, of: Context) -> str:
        stall = f"; its warps wait there longest in {self.stall}" if self.stall else ""
        share = format_share(self.of_samples_share)
        return f"Line {self.line} of {self.file} has {share} of the samples of {self.name}{stall}."

    def detail(self, of: Context) -> str:
        return f"{self.samples:,.0f} samples of its warps."

    def advice(self, of: Context) -> str:
        return self.action or "Look at the instructions of that line."


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{100 * share:.0f} %"


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
    total = float(speed["dur_ns"].sum()) if speed.height else 0.0
    rows: list[dict[str, Any]] = []
    if total > 0:
        denominator = f"the {format_ns(total)} of the {speed.height} profiled launches"
        denominator = denominator.replace("the 1 profiled launches", "the one profiled launch")
        rows = [*_limit_rows(speed, total), *_estimate_rows(metrics, speed, total)]
        if source is not None:
            rows += _hot_line_rows(source, speed, total)
        same = {"unit": "ns a profile", "scope": "profiled launches", "denominator": denominator}
        rows = [same | dict.fromkeys(("rank", "start_ns", "end_ns")) | row for row in rows]
    frame = pl.DataFrame(
        rows, schema={name: dtype for name, dtype in SCHEMA.items() if name != "order"}
    )
    last = pl.col("rule") != "limited_kernel"
    ranked = frame.sort(last, "share", descending=[False, True], maintain_order=True)
    order = pl.int_range(1, pl.len() + 1, dtype=pl.Int32)
    return ranked.with_columns(order=order).select(list(SCHEMA))


def typical_limit(speed: pl.DataFrame) -> pl.DataFrame:
    """The limit that most of the time of a kernel's launches has."""
    by_time = speed.sort("dur_ns", descending=True, nulls_last=True)
    return (
        by_time.group_by("kernel_name", "bound_by", maintain_order=True)
        .agg(
            pl.sum("dur_ns").alias("bound_ns"),
            *(pl.col(name).first() for name in ("memory_level", "stall")),
            *(
                pl.col(name).median()
                for name in ("compute_share", "memory_share", "bound_share", "stall_share")
            ),
        )
        .sort("bound_ns", descending=True, maintain_order=True)
        .unique("kernel_name", keep="first", maintain_order=True)
    )


def _limit_rows(speed: pl.DataFrame, total: float) -> list[dict[str, Any]]:
    """A row for each kernel that takes enough of the time."""
    whole = speed.group_by("kernel_name", maintain_order=True).agg(
        ns=pl.sum("dur_ns"), launches=pl.len(), bounds=pl.n_unique("bound_by")
    )
    typical = typical_limit(speed)
    large = whole.filter(pl.col("ns") >= _MIN_SHARE * total)
    joined = large.join(typical, on="kernel_name", nulls_equal=True).sort(
        "ns", descending=True, maintain_order=True
    )
    rows = []
    for row in joined.iter_rows(named=True):
        share, compute, memory, roof = (
            row["ns"] / total,
            row["compute_share"],
            row["memory_share"],
            row["bound_share"],
        )
        from llmprof.trace.metrics import explain

        state = explain(row["stall"]) if row["stall"] is not None else None
        figures = LimitedKernel(
            short_name(row["kernel_name"]),
            row["launches"],
            row["bounds"],
            row["bound_ns"],
            row["bound_by"],
            row["memory_level"],
            compute,
            memory,
            roof,
            row["stall"],
            row["stall_share"],
            None if state is None else state.action,
        )
        if roof is None and compute is not None and memory is not None:
            roof = max(compute, memory)
        gain, name = row["ns"] * (1 - min(1.0, roof or 0.0)), row["kernel_name"]
        where = "kernel_name IS NULL" if name is None else f"kernel_name = {_quote(name)}"
        told = _row(
            "limited_kernel", figures, row["ns"], share, evidence="speed_of_light", where=where
        )
        rows.append(told | {"gain_ns": gain})
    return rows


def _row(
    rule: str, figures: Figures, ns: float, share: float, *, evidence: str, where: str
) -> dict[str, Any]:
    of = Context(ns, share, "of the profile", {})
    return {
        "rule": rule,
        "severity": "info" if rule == "hot_line" else severity_of(share),
        "title": figures.title(of),
        "detail": figures.detail(of),
        "suggestion": figures.advice(of),
        "figure": ns,
        "share": min(1.0, share),
        "gain_ns": ns,
        "evidence": evidence,
        "where": where,
    }


def _estimate_rows(metrics: Metrics, speed: pl.DataFrame, total: float) -> list[dict[str, Any]]:
    """Estimates of the profiler's own rules for the whole kernel, each rule summed over all
    launches.
    """
    advice = metrics.rules.filter(
        pl.col("speedup_scope") == "global", pl.col("estimated_speedup_pct") > 0
    )
    joined = advice.join(
        speed[["kernel_id", "kernel_name", "dur_ns"]], on="kernel_id"
    ).with_columns(gain=pl.col("dur_ns") * pl.col("estimated_speedup_pct").clip(0, 100) / 100)
    once = joined.group_by("rule", "kernel_id").agg(
        pl.all().sort_by("gain", descending=True).first()
    )
    summed = (
        once.sort("gain", descending=True)
        .group_by("rule", maintain_order=True)
        .agg(
            pl.sum("gain").alias("sum"),
            pl.len().alias("launches"),
            pl.first("text", "kernel_name"),
        )
        .filter(pl.col("sum") >= _MIN_ESTIMATE * total)
        .sort("sum", "rule", descending=[True, False])
        .head(_MAX_ESTIMATES)
    )
    rows = []
    for rule, gain, launches, text, name in summed.iter_rows():
        share = min(1.0, gain / total)
        first, _, rest = _SENTENCE.sub(".\n", " ".join(str(text).split()), count=1).partition("\n")
        figures = ProfilerEstimate(first, rest, launches, short_name(name))
        rows.append(
            _row(
                "profiler_estimate",
                figures,
                gain,
                share,
                evidence="rules",
                where=f"rule = {_quote(rule)}",
            )
        )
    return rows


def _hot_line_rows(source: pl.DataFrame, speed: pl.DataFrame, total: float) -> list[dict[str, Any]]:
    """The hottest line of the kernel that takes the most time, if one stands out."""
    try:
        lines = hot_lines(source).drop_nulls("line")
    except LlmprofError:
        return []
    length = speed[["kernel_id", "dur_ns"]]
    hottest = (
        lines.join(length, on="kernel_id")
        .filter(pl.col("share") >= _MIN_LINE)
        .with_columns(ns=pl.col("share") * pl.col("dur_ns"))
        .sort("ns", descending=True, nulls_last=True)
    )
    if not hottest.height:
        return []
    row = hottest.row(0, named=True)
    share = row["ns"] / total
    from llmprof.trace.metrics import explain

    state = explain(row["reason"]) if row["reason"] else None
    figures = HotLine(
        row["line"],
        file_name(row["file"]),
        short_name(row["kernel_name"]),
        row["count"],
        row["share"],
        row["reason"],
        None if state is None else state.action,
    )
    where = f"kernel_id = {row['kernel_id']} AND line = {row['line']}"
    return [_row("hot_line", figures, row["ns"], share, evidence="hot_lines", where=where)]


def file_name(path: str | None) -> str:
    """Last part of the path of a source file."""
    return re.split(r"[/\\]", path)[-1] if path else "an unknown file"


def short_name(name: str | None) -> str:
    """Short function name of a kernel, cut in the middle if it is very long."""
    return shorten(kernels.displayed(pl.Series([name], dtype=pl.String))[0], _MAX_NAME)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def launches_in_a_row(metrics: Metrics) -> Trace:
    """The profiled launches as a trace without gaps between them, since Nsight Compute records
    no starts.
    """
    timed = metrics.kernels.drop_nulls("dur_ns").sort("kernel_id")
    if timed.is_empty():
        raise no_durations()
    of_rank = pl.struct("run", "process", "device").rank("dense") - 1
    rows = timed.with_columns(
        rank=of_rank.cast(pl.Int32),
        dur_ns=pl.col("dur_ns").round().cast(pl.Int64),
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
