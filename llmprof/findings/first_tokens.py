"""The slowest first tokens of a served run: what their time is spent on."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
from msgspec import Struct

from llmprof.analyze.requests.requests import slowest
from llmprof.analyze.step_times import recorded_windows, step_windows
from llmprof.findings.cause import Context, Figures, longest_in
from llmprof.findings.causes.host_work import advice_for, host_work_words
from llmprof.findings.host import MOSTLY, HostActivity, host_activity
from llmprof.findings.scope import Scope, heaviest, sum_of
from llmprof.label.intervals import clip_intervals, length_within
from llmprof.text import counted, shorten
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

FIRST_TOKENS: Final = "slow_first_tokens"
"""Rule of :func:`first_token_finding`."""

BATCH_SHARE: Final = 0.05
"""Requests that arrive within this share of the slowest first token were submitted as one batch."""

IDLE: Final = "an idle device"


_ADVICE: Final = {
    "prefill of others": (
        "Smaller chunks of prefill (max_num_batched_tokens), or prefill on devices of its own, keep"
        " long prompts of others out of the way."
    ),
    "decode of others": (
        "All seats are taken: raise max_num_seqs if the cache of keys and values has room, add a"
        " replica, or send fewer requests."
    ),
    "its own prefill": (
        "The first token costs the prompt itself: a larger chunk (max_num_batched_tokens), tensor"
        " parallelism, or a cached prefix."
    ),
    "no step running": (
        "Look at the front end (its tokenizer, if it has one), the scheduler, and idle time of the"
        " device then."
    ),
    IDLE: (
        "Smaller chunks of prefill do not shorten this: see which findings say why the device"
        " waits, and warm up with the same shapes if it happens only once."
    ),
    "the rest": "Look at the steps of the slowest request: analyze.requests(run, by='span').",
}
"""What to try, by the part of the time to the first token that is largest."""


class Why(Struct, frozen=True):
    """What the host did while the device was idle before the slowest first token."""

    host: HostActivity
    who: str | None = None
    by_who_share: float = 0.0
    reason: str | None = None

    def __str__(self) -> str:
        if self.reason is None or self.who is None:
            return f"the launching thread was longest in {self.host}"
        who = longest_in(shorten(self.who, 100), self.by_who_share)
        return f"the host mostly {host_work_words(self.reason)}, {who}"


class FirstTokens(Figures, frozen=True):
    """Mean times of the slowest requests."""

    slow: int
    requests: int
    part: str
    """The largest part of the time to the first token."""
    part_ns: float
    ttft_ns: float
    others: list[tuple[str, float]]
    slowest: int
    slowest_ns: float
    at_once: bool = False
    """Whether all requests came as one batch."""
    why: Why | None = None

    def title(self, of: Context) -> str:
        what = f"The slowest of {counted(self.requests, 'request')} waits"
        if self.slow > 1:
            what = f"The {self.slow} slowest of {self.requests} requests wait"
        return (
            f"{what} {format_ns(self.ttft_ns)} for the first token, {format_ns(self.part_ns)} of it"
            f" {self.part}."
        )

    def detail(self, of: Context) -> str:
        others = ", ".join(f"{other} {format_ns(ns)}" for other, ns in self.others)
        text = f"{format_share(of.share)} of it; besides {others or 'nothing'}."
        if self.why is not None:
            text += f" While the device idled before the slowest one, {self.why}."
        return f"{text} The slowest is request {self.slowest}, {format_ns(self.slowest_ns)}."

    def advice(self, of: Context) -> str:
        if self.at_once and self.part in ("prefill of others", "decode of others"):
            return (
                "All requests came at once, so the later ones wait for the earlier: no setting of"
                " the scheduler makes all of them first. Send them as they arrive in use, or read"
                " the throughput of the batch."
            )
        if self.why is not None and self.why.reason is not None:
            return advice_for(self.why.reason, of)
        return _ADVICE[self.part]


def first_token_finding(
    trace: Trace, frame: pl.DataFrame, *, quantile: float = 0.99
) -> dict[str, Any] | None:
    """Parts of slow first tokens, as a row of :func:`llmprof.analyze.findings`; None without
    requests.
    """
    # Its weight is the time of all steps by the share that the part has of the time of all
    # requests.
    if frame.is_empty():
        return None
    windows = recorded_windows(trace)
    scope = Scope(trace, "whole recording", None, windows, int(windows["dur_ns"].sum()))
    idle = None if trace.capture.on_host or not windows.height else _pauses(scope)
    frame = frame if idle is None else _add_idle(frame, idle)
    slow = slowest(frame, quantile=quantile)
    numbers = slow["requests"]
    parts = _parts(slow, frame.filter(pl.col("request").is_in(numbers)))
    ttft = sum(parts.values())
    name, largest = max(parts.items(), key=lambda item: item[1])
    share = largest / ttft if ttft else 0.0
    own = name == "its own prefill"
    worst = frame.sort("ttft_ns", descending=True).row(0, named=True)
    arrived = frame["start_ns"].max() - frame["start_ns"].min()  # type: ignore[operator]
    figures = FirstTokens(
        len(numbers),
        slow["of"],
        name,
        largest,
        ttft,
        [(other, ns) for other, ns in parts.items() if other != name and ns > 0],
        worst["request"],
        worst["ttft_ns"],
        at_once=frame.height > 1 and arrived < BATCH_SHARE * worst["ttft_ns"],
        why=_why(scope, idle, worst) if idle is not None and name == IDLE else None,
    )
    of = Context(
        largest, share, "per request", trace.capture.platform.words, of_torch=scope.of_torch
    )
    mean = float(frame["e2e_ns"].mean() or 0)  # type: ignore[arg-type]
    of_all = _parts(slowest(frame, quantile=0.0), frame)[name] / max(1.0, mean)
    return {
        "rule": FIRST_TOKENS,
        "severity": "info" if own else "high" if share >= 0.2 else "medium",
        "title": figures.title(of),
        "figure": largest,
        "unit": "ns a request",
        "share": share,
        "gain_ns": 0.0 if own else largest,
        "scope": f"the {len(numbers)} slowest of {slow['of']} requests",
        "denominator": f"their time to the first token, {format_ns(ttft)} on average",
        "evidence": "requests",
        "where": f"request IN ({', '.join(map(str, numbers))})",
        "rank": None,
        "start_ns": worst["start_ns"],
        "end_ns": worst["first_token_ns"],
        "detail": figures.detail(of),
        "suggestion": figures.advice(of),
        "about": figures.why.who if figures.why else None,
        "weight": of_all * (int(step_windows(trace)["dur_ns"].sum()) or scope.recorded_ns),
    }


def _pauses(scope: Scope) -> pl.DataFrame:
    """Pauses of a device, cut to steps, with their ``phase``; those beside steps with a known
    reason.
    """
    one = pl.col("device") == pl.min("device").over("rank")
    pauses = scope.pauses.filter(one)
    windows = step_windows(scope.trace).filter(one)
    steps = windows.with_columns(dur_ns="span_ns").filter(pl.col("dur_ns") > 0)
    inside = clip_intervals(pauses, steps, ["rank"])
    inside = inside.with_columns(phase=steps["phase"].gather(inside["window"])).drop("window")
    # the rank that pauses most is waited for: collectives of the others look busy meanwhile
    rank, _ = heaviest(inside.filter(pl.col("phase") != "decode"), "rank")
    rank = min(rank for rank in scope.trace.ranks if rank >= 0) if rank is None else rank
    inside, pauses = (rows.filter(rank=rank) for rows in (inside, pauses))
    known = pauses.drop_nulls("reason")
    return pl.concat(
        [inside, known.with_columns(phase=pl.lit(None, pl.String)).select(inside.columns)]
    )


def _add_idle(frame: pl.DataFrame, pauses: pl.DataFrame) -> pl.DataFrame:
    """Requests with ``ttft_idle_ns``: an idle device before the first token, taken out of the
    other parts.
    """
    first_step = pl.col("first_step_ns").clip(pl.col("start_ns"), pl.col("first_token_ns"))
    waiting = frame.select("start_ns", dur_ns=first_step - pl.col("start_ns"))
    carried = frame.select(start_ns=first_step, dur_ns=pl.col("first_token_ns") - first_step)
    in_steps = pauses.drop_nulls("phase")
    decoding = in_steps["phase"] == "decode"

    def within(rows: pl.DataFrame, of: pl.DataFrame) -> pl.Series:
        return length_within(rows, of, name="ns")["ns"]

    known = pauses.drop_nulls("reason")
    known_in_steps = in_steps.drop_nulls("reason")
    outside = [within(rows, known) - within(rows, known_in_steps) for rows in (waiting, carried)]
    idle = frame.select(
        behind_prefill=pl.min_horizontal(
            "queue_prefill_ns", within(waiting, in_steps.filter(~decoding))
        ),
        behind_decode=pl.min_horizontal(
            "queue_decode_ns", within(waiting, in_steps.filter(decoding))
        ),
        between=pl.min_horizontal("queue_other_ns", outside[0]),
        own=within(carried, in_steps),
        after=outside[1],
    )
    of_own = pl.col("prefill_ns") / pl.max_horizontal(
        1, pl.col("prefill_ns") + pl.col("prefill_other_ns")
    )
    own = pl.min_horizontal(idle["own"], pl.col("prefill_ns") + pl.col("prefill_other_ns"))
    return frame.with_columns(
        queue_prefill_ns=pl.col("queue_prefill_ns") - idle["behind_prefill"],
        queue_decode_ns=pl.col("queue_decode_ns") - idle["behind_decode"],
        queue_other_ns=pl.col("queue_other_ns") - idle["between"],
        prefill_ns=pl.col("prefill_ns") - own * of_own,
        ttft_other_ns=pl.col("ttft_other_ns") - idle["behind_prefill"] - own * (1 - of_own),
        ttft_idle_ns=idle["behind_prefill"]
        + idle["behind_decode"]
        + idle["between"]
        + own
        + idle["after"],
    )


def _parts(slow: dict[str, Any], rows: pl.DataFrame) -> dict[str, float]:
    """Parts of the time to the first token, that of the idle device taken from the rest."""
    parts: dict[str, float] = dict(slow["parts"])
    if "ttft_idle_ns" in rows.columns:
        parts[IDLE] = min(parts["the rest"], float(rows["ttft_idle_ns"].mean() or 0))  # type: ignore[arg-type]
        parts["the rest"] -= parts[IDLE]
    return parts


def _why(scope: Scope, pauses: pl.DataFrame, worst: dict[str, Any]) -> Why:
    """What the host did while the device was idle before the slowest first token."""
    window = pl.DataFrame(
        {"start_ns": [worst["start_ns"]], "dur_ns": [worst["first_token_ns"] - worst["start_ns"]]}
    )
    gaps = clip_intervals(pauses, window)
    known = gaps.drop_nulls("reason")
    reason, _ = heaviest(known, "reason")
    of_reason = known.filter(pl.col("reason").eq_missing(reason))
    if reason is None or sum_of(of_reason, "dur_ns") < MOSTLY * sum_of(gaps, "dur_ns"):
        return Why(host_activity(scope, gaps))
    who, share = heaviest(of_reason, "who")
    return Why(HostActivity(), who, share, reason)
