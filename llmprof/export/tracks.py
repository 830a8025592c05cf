"""What llmprof knows of a trace as tracks beside its rows: steps, layers, stages, waits, idle causes and findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from llmprof import analyze
from llmprof.arguments import Window, checked
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.trace import Trace

SCHEMA: Final = pl.Schema(
    {
        "rank": pl.Int32(),
        "track": pl.String(),
        "start_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "name": pl.String(),
        "detail": pl.String(),
    }
)
TRACKS: Final = ("findings", "steps", "layers", "stages", "waits", "idle")
"""Tracks of a rank in the order in which they are shown; stages have one for each stream."""


@checked
def tracks(trace: Trace, *, window: Window | None = None) -> pl.DataFrame:
    r"""Slices of all tracks.

    Parameters
    ----------
    trace : Trace
        Any trace; what it does not hold has no track.
    window : (start_ns, end_ns), optional
        Cut to this time, which changes no label: steps, layers and waits are those of the whole trace.

    Returns
    -------
    polars.DataFrame
        ``rank, track, start_ns, dur_ns, name, detail``, by rank, track and time; slices of one track do not overlap
        except for findings, which may.

    Examples
    --------
    >>> sorted(set(tracks(trace)["track"].str.extract(r"^(\w+)")))
    ['findings', 'idle', 'layers', 'stages', 'steps']
    """
    parts = []
    for make in (_findings, _steps, _layers, _stages, _waits, _idle):
        try:
            parts.append(make(trace).cast(SCHEMA).select(list(SCHEMA)))
        except (NotCapturedError, AnalysisError):
            continue
    slices = pl.concat(parts) if parts else pl.DataFrame(schema=SCHEMA)
    slices = slices.filter(pl.col("start_ns").is_not_null() & (pl.col("dur_ns") > 0))
    if window is not None:
        end = pl.min_horizontal(pl.col("start_ns") + pl.col("dur_ns"), pl.lit(window[1]))
        slices = slices.with_columns(start_ns=pl.max_horizontal("start_ns", pl.lit(window[0])), _end=end)
        slices = slices.with_columns(dur_ns=pl.col("_end") - pl.col("start_ns")).drop("_end")
        slices = slices.filter(pl.col("dur_ns") > 0)
    return slices.sort("rank", "track", "start_ns", maintain_order=True)


def _findings(trace: Trace) -> pl.DataFrame:
    rows = analyze.findings(trace).filter(pl.col("rank").is_not_null() & pl.col("start_ns").is_not_null())
    return pl.DataFrame(rows).select(
        "rank", "start_ns", track=pl.lit("findings"), dur_ns=pl.col("end_ns") - pl.col("start_ns"), name="title",
        detail=pl.format("{} {}", "detail", "suggestion"),
    )  # fmt: skip


def _steps(trace: Trace) -> pl.DataFrame:
    return analyze.steps(trace).select(
        "rank", "start_ns", "dur_ns", track=pl.lit("steps"), name=pl.format("step {} {}", "step", "phase"),
        detail=pl.col("name"),
    )  # fmt: skip


def _labelled(trace: Trace) -> pl.DataFrame:
    events = analyze.attribute(trace).filter(pl.col("source") != "op")
    return events.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"), stream=pl.col("stream").fill_null(-1))


def _layers(trace: Trace) -> pl.DataFrame:
    events = _labelled(trace).filter(pl.col("layer").is_not_null())
    sums = events.group_by("rank", "step", "layer", maintain_order=True).agg(
        start_ns=pl.col("start_ns").min(), end_ns=pl.col("end_ns").max(), events=pl.len()
    )
    sums = sums.sort("rank", "start_ns")
    # layers of two batches may overlap: each lasts until the next begins
    until = pl.min_horizontal("end_ns", pl.col("start_ns").shift(-1).over("rank").fill_null(pl.col("end_ns")))
    return sums.select(
        "rank", "start_ns", track=pl.lit("layers"), dur_ns=until - pl.col("start_ns"),
        name=pl.format("layer {}", "layer"), detail=pl.format("step {}, {} events", "step", "events"),
    )  # fmt: skip


def _stages(trace: Trace) -> pl.DataFrame:
    events = _labelled(trace).sort("rank", "device", "stream", "start_ns")
    label = pl.coalesce(pl.when(pl.col("stage") != "other").then("stage"), "category")
    events = events.with_columns(name=label)
    run = pl.struct("rank", "device", "stream", "step", "layer", "name").rle_id()
    sums = events.group_by(run.alias("_run"), maintain_order=True).agg(
        pl.col("rank", "stream", "name", "step", "layer").first(),
        start_ns=pl.col("start_ns").min(), end_ns=pl.col("end_ns").max(), events=pl.len(),
    )  # fmt: skip
    until = pl.min_horizontal("end_ns", pl.col("start_ns").shift(-1).over("rank", "stream").fill_null(pl.col("end_ns")))
    return sums.select(
        "rank", "start_ns", "name", track=pl.format("stages, stream {}", "stream"),
        dur_ns=until - pl.col("start_ns"), detail=pl.format("{} events", "events"),
    )  # fmt: skip


def _waits(trace: Trace) -> pl.DataFrame:
    calls = analyze.collectives(trace).filter(pl.col("wait_ns") > 0)
    if not calls.height:
        return pl.DataFrame(schema=SCHEMA)
    rows = calls.select(
        "rank", "start_ns", track=pl.lit("waits"), dur_ns=pl.col("wait_ns").round().cast(pl.Int64),
        name=pl.format("waiting for rank {}", "last_rank"), detail=pl.format("in {}", "name"),
    ).sort("rank", "start_ns")  # fmt: skip
    end = pl.col("start_ns") + pl.col("dur_ns")
    until = pl.min_horizontal(end, pl.col("start_ns").shift(-1).over("rank").fill_null(end))
    return rows.with_columns(dur_ns=until - pl.col("start_ns"))


def _idle(trace: Trace) -> pl.DataFrame:
    gaps = analyze.idle(trace)
    filled: Callable[[str], pl.Expr] = lambda column: pl.col(column).fill_null("")  # noqa: E731
    return gaps.select(
        "rank", "start_ns", "dur_ns", track=pl.lit("idle"), name="cause",
        detail=pl.concat_str(
            pl.when(filled("doing") != "").then(pl.format("host in {}", "doing")),
            pl.when(filled("held_by") != "").then(pl.format("held by {}", "held_by")),
            pl.when(filled("next_name") != "").then(pl.format("until {}", "next_name")),
            separator="; ", ignore_nulls=True,
        ),
    )  # fmt: skip
