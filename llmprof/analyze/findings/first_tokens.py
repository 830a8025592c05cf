"""The finding about slow first tokens of requests."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from llmprof.analyze.findings.host import MOSTLY, doing
from llmprof.analyze.findings.scope import Scope, most, total
from llmprof.analyze.intervals import clip, length_within
from llmprof.analyze.requests.requests import slowest
from llmprof.analyze.steps.summary import recorded_windows, step_windows
from llmprof.sentences import finding
from llmprof.trace import Trace
from llmprof.units import format_ns

FIRST_TOKENS: Final = "slow_first_tokens"
"""Rule of :func:`first_token_finding`."""

AT_ONCE: Final = 0.05
"""Requests that arrive within this share of the slowest first token were submitted as one batch."""

IDLE: Final = "an idle device"


def first_token_finding(trace: Trace, frame: pl.DataFrame, *, quantile: float = 0.99) -> dict[str, Any] | None:
    """Parts of slow first tokens, as a row of :func:`llmprof.analyze.findings`; None without requests."""
    # Its weight is the time of all steps by the share that the part has of the time of all requests.
    if frame.is_empty():
        return None
    windows = recorded_windows(trace)
    scope = Scope(trace, "whole recording", None, windows, int(windows["dur_ns"].sum()))
    idle = None if trace.on_host or not windows.height else _pauses(scope)
    frame = frame if idle is None else _with_idle(frame, idle)
    slow = slowest(frame, quantile=quantile)
    numbers = slow["requests"]
    parts = _parts(slow, frame.filter(pl.col("request").is_in(numbers)))
    ttft = sum(parts.values())
    name, largest = max(parts.items(), key=lambda item: item[1])
    share = largest / ttft if ttft else 0.0
    own = name == "its own prefill"
    worst = frame.sort("ttft_ns", descending=True).row(0, named=True)
    arrived = frame["start_ns"].max() - frame["start_ns"].min()  # type: ignore[operator]
    figures = {
        "percentile": f"p{100 * quantile:g}",
        "part": name,
        "part_ns": largest,
        "ttft_ns": ttft,
        "part_share": share,
        "others": [(other, ns) for other, ns in parts.items() if other != name and ns > 0],
        "at_once": frame.height > 1 and arrived < AT_ONCE * worst["ttft_ns"],
        "slowest": worst["request"],
        "slowest_ns": worst["ttft_ns"],
        **(_why(scope, idle, worst) if idle is not None and name == IDLE else {}),
    }
    words = {**trace.platform.words, "of_torch": scope.of_torch, **figures}
    title, detail, suggestion = finding(FIRST_TOKENS, words)
    of_all = _parts(slowest(frame, quantile=0.0), frame)[name] / max(1.0, float(frame["e2e_ns"].mean() or 0))  # type: ignore[arg-type]
    return {
        "rule": FIRST_TOKENS,
        "severity": "info" if own else "high" if share >= 0.2 else "medium",
        "title": title,
        "figure": largest,
        "unit": "ns a request",
        "share_of_time": share,
        "gain_ns": 0.0 if own else largest,
        "scope": f"the {len(numbers)} slowest of {slow['of']} requests",
        "denominator": f"their time to the first token, {format_ns(ttft)} on average",
        "evidence": "requests",
        "where": f"request IN ({', '.join(map(str, numbers))})",
        "rank": None,
        "start_ns": worst["start_ns"],
        "end_ns": worst["first_token_ns"],
        "detail": detail,
        "suggestion": suggestion,
        "about": figures.get("who"),
        "weight": of_all * (int(step_windows(trace)["dur_ns"].sum()) or scope.recorded_ns),
    }


def _pauses(scope: Scope) -> pl.DataFrame:
    """Pauses of the first rank's device, cut to steps, with their ``phase``; those beside steps with a known reason."""
    rank = min(rank for rank in scope.trace.ranks if rank >= 0)
    pauses = scope.pauses.filter(pl.col("rank") == rank)
    pauses = pauses.filter(pl.col("device") == pl.col("device").min())
    steps = step_windows(scope.trace).filter(pl.col("rank") == rank).unique("start_ns").sort("start_ns")
    steps = steps.with_columns(dur_ns="span_ns").filter(pl.col("dur_ns") > 0)
    inside = clip(pauses, steps, ["rank"])
    inside = inside.with_columns(phase=steps["phase"].gather(inside["window"])).drop("window")
    known = pauses.filter(pl.col("reason").is_not_null())
    return pl.concat([inside, known.with_columns(phase=pl.lit(None, dtype=pl.String)).select(inside.columns)])


def _with_idle(frame: pl.DataFrame, pauses: pl.DataFrame) -> pl.DataFrame:
    """Requests with ``ttft_idle_ns``: an idle device before the first token, taken out of the other parts."""
    first_step = pl.col("first_step_ns").clip(pl.col("start_ns"), pl.col("first_token_ns"))
    waiting = frame.select("start_ns", dur_ns=first_step - pl.col("start_ns"))
    carried = frame.select(start_ns=first_step, dur_ns=pl.col("first_token_ns") - first_step)
    in_steps = pauses.filter(pl.col("phase").is_not_null())
    decoding = in_steps["phase"] == "decode"

    def within(rows: pl.DataFrame, of: pl.DataFrame) -> pl.Series:
        return length_within(rows, of, name="ns")["ns"]

    known = pauses.filter(pl.col("reason").is_not_null())
    known_in_steps = in_steps.filter(pl.col("reason").is_not_null())
    beside = [within(rows, known) - within(rows, known_in_steps) for rows in (waiting, carried)]
    idle = frame.select(
        behind_prefill=pl.min_horizontal("queue_prefill_ns", within(waiting, in_steps.filter(~decoding))),
        behind_decode=pl.min_horizontal("queue_decode_ns", within(waiting, in_steps.filter(decoding))),
        between=pl.min_horizontal("queue_other_ns", beside[0]),
        own=within(carried, in_steps),
        after=beside[1],
    )
    of_own = pl.col("prefill_ns") / pl.max_horizontal(1, pl.col("prefill_ns") + pl.col("prefill_others_ns"))
    own = pl.min_horizontal(idle["own"], pl.col("prefill_ns") + pl.col("prefill_others_ns"))
    return frame.with_columns(
        queue_prefill_ns=pl.col("queue_prefill_ns") - idle["behind_prefill"],
        queue_decode_ns=pl.col("queue_decode_ns") - idle["behind_decode"],
        queue_other_ns=pl.col("queue_other_ns") - idle["between"],
        prefill_ns=pl.col("prefill_ns") - own * of_own,
        ttft_others_ns=pl.col("ttft_others_ns") - idle["behind_prefill"] - own * (1 - of_own),
        ttft_idle_ns=idle["behind_prefill"] + idle["behind_decode"] + idle["between"] + own + idle["after"],
    )


def _parts(slow: dict[str, Any], rows: pl.DataFrame) -> dict[str, float]:
    """Parts of the time to the first token, that of the idle device taken from the rest."""
    parts: dict[str, float] = dict(slow["parts"])
    if "ttft_idle_ns" in rows.columns:
        parts[IDLE] = min(parts["the rest"], float(rows["ttft_idle_ns"].mean() or 0))  # type: ignore[arg-type]
        parts["the rest"] -= parts[IDLE]
    return parts


def _why(scope: Scope, pauses: pl.DataFrame, worst: dict[str, Any]) -> dict[str, Any]:
    """What the host did while the device was idle before the slowest first token."""
    window = pl.DataFrame({"start_ns": [worst["start_ns"]], "dur_ns": [worst["first_token_ns"] - worst["start_ns"]]})
    gaps = clip(pauses, window)
    known = gaps.filter(pl.col("reason").is_not_null())
    reason, _ = most(known, "reason")
    of_reason = known.filter(pl.col("reason") == reason)
    if reason is None or total(of_reason, "dur_ns") < MOSTLY * total(gaps, "dur_ns"):
        return {"who": None, "reason": None, "host": doing(scope, gaps)}
    who, share = most(of_reason, "who")
    return {"who": who, "by_who_share": share, "reason": reason, "first_launches": False}
