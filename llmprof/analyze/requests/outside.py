"""Requests of a server that llmprof did not start, joined to the steps of its trace by their times."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import polars as pl

from llmprof.analyze.requests.requests import MOST_APART_NS, epoch_of
from llmprof.analyze.steps.steps import steps as steps_of
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.trace import Trace
from llmprof.units import format_ns

_NOTES: Final = {
    "phase": pl.String,
    **dict.fromkeys(("step", "start_epoch_ns", "end_epoch_ns"), pl.Int64),
    "engine_id": pl.String,
    **dict.fromkeys(("tokens", "computed"), pl.Int64),
    "preempted": pl.Boolean,
    "trace_step": pl.Int64,
}
_NEEDED: Final = ("id", "start_epoch_ns", "queue_ns", "ttft_ns", "e2e_ns", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class TracedRequests:
    """A trace and the requests that were served during it, with the steps of each inferred from times."""

    trace: Trace
    requests: pl.DataFrame
    engine_steps: pl.DataFrame
    left_out: int
    apart_ns: int


def with_requests(trace: Trace, requests: pl.DataFrame) -> TracedRequests:
    """Join requests of a server that llmprof did not start with its trace, by times."""
    # The prefill of a request is in the steps with prefill that begin after it left the queue and end before its first
    # token; its other tokens are in the following steps with decode, as in vLLM. The prompt tokens of a step are
    # divided among its requests in the order of arrival, which is a model.
    if missing := [name for name in _NEEDED if name not in requests.columns]:
        raise AnalysisError(f"the requests have no column {missing[0]!r}", expected=f"{', '.join(_NEEDED)}")
    epoch = epoch_of(trace)
    steps = _steps(trace)
    complete = requests.drop_nulls(["start_epoch_ns", "queue_ns", "ttft_ns", "e2e_ns"])
    timed = complete.with_columns(
        queued=pl.col("start_epoch_ns") + pl.col("queue_ns") - epoch,
        first=pl.col("start_epoch_ns") + pl.col("ttft_ns") - epoch,
        last=pl.col("start_epoch_ns") + pl.col("e2e_ns") - epoch,
    ).sort("start_epoch_ns")
    late = _apart(timed, steps)
    if late is None:
        raise NotCapturedError(
            "none of the requests was served while the trace was recorded",
            hint="pass the spans and the trace of one run on one machine",
        )
    if abs(late) > MOST_APART_NS:
        raise AnalysisError(
            f"the clocks of requests and trace disagree by at least {format_ns(abs(late))}",
            expected=f"at most {format_ns(MOST_APART_NS)}",
            hint="they are of different machines or runs: nothing was joined",
            apart_ns=abs(late),
        )
    notes = pl.DataFrame(_noted(timed, steps, epoch), schema=_NOTES, orient="row").sort("step", maintain_order=True)
    joined = timed.filter(pl.col("id").is_in(notes["engine_id"].unique().implode())).drop("queued", "first", "last")
    return TracedRequests(trace, joined, notes, requests.height - joined.height, abs(late))


def _steps(trace: Trace) -> pl.DataFrame:
    """Steps of the first rank: start on the host, end on the device, and tokens."""
    ranks = [rank for rank in trace.ranks if rank >= 0]
    frame = steps_of(trace).filter(pl.col("rank") == min(ranks)) if ranks else pl.DataFrame()
    if frame.is_empty() or frame["context_tokens"].null_count() == frame.height:
        raise NotCapturedError(
            "the trace has no steps with known tokens", hint="vLLM's torch profiler and NVTX ranges name them"
        )
    begin = pl.coalesce("host_start_ns", "start_ns")
    end = pl.coalesce(pl.col("start_ns") + pl.col("dur_ns"), pl.col("host_start_ns") + pl.col("host_dur_ns"))
    return (
        frame.filter(pl.col("phase") != "empty")
        .select("step", "context_tokens", "generation_tokens", begin=begin, end=end)
        .drop_nulls()
        .sort("begin")
    )


def _apart(timed: pl.DataFrame, steps: pl.DataFrame) -> int | None:
    """Delay of the requests' clock that fits the most requests, the nearest to 0; None if none was served."""
    prefills = steps.filter(pl.col("context_tokens") > 0)
    pairs = timed.select("queued", "first").gather_every(max(1, timed.height // _MOST_ASKED)).rows()
    edges: list[tuple[int, int]] = []
    for queued, first in pairs:
        spans = prefills.select(low=queued - pl.col("begin"), high=first - pl.col("end"))
        spans = spans.filter(
            (pl.col("low") <= pl.col("high")) & (pl.col("high") > -_FAR_NS) & (pl.col("low") < _FAR_NS)
        )
        for low, high in _merged(sorted(spans.rows())):
            edges += [(low, 1), (high + 1, -1)]
    if not edges:
        return None
    edges.sort()
    fitting, counted = 0, []
    for (shift, change), (after, _) in pairwise(edges):
        fitting += change
        if after > shift:
            counted.append((fitting, shift, after - 1))
    enough = _AGREE * max(count for count, *_ in counted)
    return min((min(max(0, low), high) for count, low, high in counted if count >= enough), key=abs)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for low, high in spans:
        if out and low <= out[-1][1] + 1:
            out[-1] = out[-1][0], max(out[-1][1], high)
        else:
            out.append((low, high))
    return out


def _noted(timed: pl.DataFrame, steps: pl.DataFrame, epoch: int) -> list[tuple[Any, ...]]:
    """Scheduler notes that are reconstructed from the times of the requests."""
    rows = steps.rows(named=True)
    room = [row["context_tokens"] for row in rows]
    notes: list[tuple[Any, ...]] = []
    for request in timed.sort("first").iter_rows(named=True):
        begin, until, last = request["queued"] - MOST_APART_NS, request["first"] + MOST_APART_NS, request["last"]
        own = [
            k for k, row in enumerate(rows) if row["begin"] >= begin and row["end"] <= until and row["context_tokens"]
        ]
        if not own:
            continue
        left, taken = request["prompt_tokens"] or 1, {}
        for k in reversed(own):
            if (part := min(left, room[k])) > 0:
                taken[k] = part
                room[k] -= part
                left -= part
        after = [k for k in range(own[-1] + 1, len(rows)) if rows[k]["end"] <= last + MOST_APART_NS]
        more = [k for k in after if rows[k]["generation_tokens"]][: max(0, (request["output_tokens"] or 1) - 1)]
        done, carried = 0, []
        for k in sorted(taken or {own[-1]: 1}):
            part = taken.get(k, 1)
            carried.append((k, part, done))
            done += part
        prompt = request["prompt_tokens"] or 1
        carried += [(k, 1, prompt + n) for n, k in enumerate(more)]
        for k, tokens, done in carried:
            span = rows[k]["begin"] + epoch, rows[k]["end"] + epoch
            notes.append(("profiled", k, *span, request["id"], tokens, done, False, rows[k]["step"]))
    return notes


_FAR_NS: Final = 10_000_000_000
"""If clocks differ by more than this (ns), the files are treated as different runs."""

_MOST_ASKED: Final = 200
"""Number of requests that are used to compare the clocks."""

_AGREE: Final = 0.95
"""Least share of the requests that a difference of the clocks must fit."""
