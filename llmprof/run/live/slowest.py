"""The slowest request of a window: what its time was, and which steps ran meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from llmprof.analyze.requests.requests import epoch_of
from llmprof.errors import LlmprofError
from llmprof.findings.cause import Context, Figures
from llmprof.label.steps.steps import steps_of
from llmprof.text import counted, shorten, tenths
from llmprof.trace import Trace
from llmprof.trace.schema import END
from llmprof.units import format_ns, format_share

RULE: Final = "slowest_request"
_MUCH: Final = 2.0
"""Times the median of the others from which the slowest request is a fault."""


_PARTS: Final = {
    "queue": "in the queue",
    "the rest": "after the queue",
    "first token": "before its first token",
}
_ADVICE: Final = {
    "queue": (
        "Requests wait while all places are taken or the KV cache is full: see kv_usage and waiting"
        " among the counters. Raise max_num_seqs if there is room, or add a replica."
    ),
    "prefill": (
        "Its prompt was computed in steps with others: see their share above, and"
        " max_num_batched_tokens."
    ),
    "decode": (
        "Compare its steps with the others: a large batch or prefills of others make each token"
        " longer, and a long answer has many."
    ),
}


class SlowestRequest(Figures, frozen=True):
    """The slowest request of the window of a capture."""

    request: str
    e2e_ns: int
    requests: int
    stretches: Mapping[str, Mapping[str, Any]]
    """Its time in parts, and the steps that ran during each."""
    left_out: int = 0
    """Steps that ran without it."""
    typical_ns: float | None = None
    """The median of the others."""
    part: str | None = None
    """The largest part."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    def title(self, of: Context) -> str:
        text = (
            f"The slowest of {counted(self.requests, 'request')}, {shorten(self.request, 60)}, took"
            f" {format_ns(self.e2e_ns)}"
        )
        if self.typical_ns:
            text += f" (median of the others {format_ns(self.typical_ns)})"
        return (
            f"{text}, most of it {_PARTS.get(self.part, self.part)}." if self.part else f"{text}."
        )

    def detail(self, of: Context) -> str:
        texts = [_stretch(name, part) for name, part in self.stretches.items()]
        texts = texts or ["The server did not tell what of it was queue, prefill and decode."]
        if self.prompt_tokens is not None:
            text = f"Its prompt had {self.prompt_tokens:,} tokens"
            if self.output_tokens is not None:
                text += f", its answer {self.output_tokens:,}"
            texts.append(f"{text}.")
        if self.left_out:
            texts.append(
                f"{counted(self.left_out, 'step')} ran without it: it was preempted, or had no"
                " room."
            )
        return " ".join(texts)

    def advice(self, of: Context) -> str:
        return _ADVICE.get(self.part or "", "Look at its spans: analyze.requests(run, by='span').")


def _stretch(name: str, part: Mapping[str, Any]) -> str:
    text = f"{name.capitalize()} {format_ns(part['ns'])}"
    if not part["steps"]:
        return f"{text}."
    return (
        f"{text}: {counted(part['steps'], 'step')} recorded meanwhile"
        f" ({format_share(part['recorded'])} of that time). On average they had"
        f" {tenths(part['requests'])} decoding requests, and for {format_share(part['prefill'])} of"
        " their time a prefill."
    )


def slowest_request(trace: Trace, requests: pl.DataFrame) -> dict[str, Any] | None:
    """The slowest request as a row of :func:`llmprof.analyze.findings`; None without requests.

    Its times are those that the server told: queue, prefill until the first token, decode. The
    steps of the first rank that ran during each say with how many requests it shared the device, as
    far as the window holds them.
    """
    timed = requests.drop_nulls(["start_epoch_ns", "e2e_ns"])
    if timed.is_empty():
        return None
    worst = timed.sort("e2e_ns", descending=True).row(0, named=True)
    others = timed.filter(pl.col("request") != worst["request"])["e2e_ns"].median()
    parts = _parts(worst)
    largest = max(parts, key=lambda name: parts[name], default=None)
    try:
        begin = worst["start_epoch_ns"] - epoch_of(trace)
        steps = _steps(trace)
    except LlmprofError:
        begin, steps = 0, pl.DataFrame()
    stretches, at = {}, begin
    for name, dur_ns in parts.items():
        stretches[name] = {"ns": dur_ns} | _during(steps, at, at + dur_ns)
        at += dur_ns
    share = parts[largest] / worst["e2e_ns"] if largest and worst["e2e_ns"] else None
    figures = SlowestRequest(
        str(worst["id"] or worst["request"]),
        worst["e2e_ns"],
        timed.height,
        stretches,
        _left_out(stretches.get("decode"), worst["output_tokens"]),
        others,  # type: ignore[arg-type]
        largest,
        worst["prompt_tokens"],
        worst["output_tokens"],
    )
    of = Context(worst["e2e_ns"], share or 0.0, "per request", {})
    slow = others is not None and worst["e2e_ns"] >= _MUCH * others  # type: ignore[operator]
    return {
        "rule": RULE,
        "severity": "medium" if slow else "info",
        "title": figures.title(of),
        "figure": float(worst["e2e_ns"]),
        "unit": "ns a request",
        "share": share,
        "scope": f"the slowest of {timed.height} requests",
        "denominator": "its time",
        "evidence": "requests",
        "where": f"request = {worst['request']}",
        "start_ns": begin,
        "end_ns": begin + worst["e2e_ns"],
        "detail": figures.detail(of),
        "suggestion": figures.advice(of),
        "about": None if worst["id"] is None else str(worst["id"]),
    }


def with_row(found: pl.DataFrame, row: Mapping[str, Any] | None) -> pl.DataFrame:
    """Findings with one more at the end."""
    if row is None:
        return found
    last = pl.DataFrame(
        [dict(row) | {"order": found.height + 1}], schema_overrides=dict(found.schema)
    )
    return pl.concat([found, last], how="diagonal_relaxed").select(found.columns)


def _parts(request: Mapping[str, Any]) -> dict[str, int]:
    """Times that follow each other, as far as the server told them."""
    queue, ttft = request["queue_ns"], request["ttft_ns"]
    if ttft is None:
        return (
            {} if queue is None else {"queue": queue, "the rest": max(0, request["e2e_ns"] - queue)}
        )
    before = (
        {"first token": ttft}
        if queue is None
        else {"queue": queue, "prefill": max(0, ttft - queue)}
    )
    return before | {"decode": max(0, request["e2e_ns"] - ttft)}


def _steps(trace: Trace) -> pl.DataFrame:
    """Steps of the first rank: begin and end, requests and tokens."""
    frame = steps_of(trace).filter((pl.col("rank") >= 0) & (pl.col("phase") != "empty"))
    begin = pl.coalesce("host_start_ns", "start_ns")
    end = pl.coalesce(END, pl.col("host_start_ns") + pl.col("host_dur_ns"))
    own = frame.filter(pl.col("rank") == pl.min("rank"))
    return (
        own.select("prefill_tokens", "decode_requests", begin=begin, end=end)
        .drop_nulls()
        .sort("begin")
    )


def _during(steps: pl.DataFrame, begin: int, end: int) -> dict[str, Any]:
    """Steps that ran between two times: how many, with how many requests, how much of their time
    with a prefill.

    ``recorded`` is the share of that time that the trace holds.
    """
    empty = {"steps": 0, "requests": None, "prefill": None, "recorded": 0.0}
    if steps.is_empty() or end <= begin:
        return empty
    low, high = max(begin, int(steps["begin"].min())), min(end, int(steps["end"].max()))  # type: ignore[arg-type]
    within = pl.min_horizontal("end", high) - pl.max_horizontal("begin", low)
    inside = steps.with_columns(ns=within).filter(pl.col("ns") > 0)
    if inside.is_empty():
        return empty
    weight = float(inside["ns"].sum())
    return {
        "steps": inside.height,
        "requests": float((inside["decode_requests"] * inside["ns"]).sum()) / weight,
        "prefill": float(inside.filter(pl.col("prefill_tokens") > 0)["ns"].sum()) / weight,
        "recorded": (high - low) / (end - begin),
    }


def _left_out(decode: Mapping[str, Any] | None, output_tokens: int | None) -> int:
    """Steps that ran during its decode without it; 0 unless all of that time was recorded."""
    if decode is None or output_tokens is None or decode["recorded"] < 1.0:
        return 0
    missed = int(decode["steps"]) - output_tokens
    return (
        missed if missed > 1 else 0
    )  # the steps at both ends overlap with its first and last token
