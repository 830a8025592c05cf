"""Requests joined to the steps of the engine, with the parts of each latency."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Protocol

import polars as pl

from llmprof.analyze.step_times import LONG
from llmprof.errors import AnalysisError, ArgumentKind, NotCapturedError, TraceWarning
from llmprof.label.steps.steps import steps_of
from llmprof.text import are, counted
from llmprof.trace import Trace
from llmprof.trace.schema import END
from llmprof.units import format_ns

MOST_APART_NS: Final = 1_000_000
"""Clocks of requests and trace that disagree by more than this are not joined."""

WAITING: Final = ("queue_prefill_ns", "queue_decode_ns", "queue_other_ns")
WORK: Final = (
    *(
        "prefill_ns",
        "prefill_other_ns",
        "decode_ns",
        "decode_prefill_ns",
        "left_out_ns",
        "between_ns",
    ),
    "delivery_ns",
)
PARTS: Final = (*WAITING, *WORK)
"""Parts of the latency of a request, which add up to it."""

WORDS: Final = {
    "queue_prefill_ns": "waiting behind the prefill of others",
    "queue_decode_ns": "waiting behind the decode of others",
    "queue_other_ns": "waiting while no step ran (front end, scheduler)",
    "prefill_ns": "its own prefill",
    "prefill_other_ns": "the prefill of others in the steps of its own",
    "decode_ns": "its own decode",
    "decode_prefill_ns": "the prefill of others in its decode steps",
    "left_out_ns": "steps that left it out (preempted, or no room)",
    "between_ns": "time between steps",
    "delivery_ns": "delivery of its last token",
}
"""Description of each part."""

_STEPS: Final = (
    *("step", "start_ns", "end_ns", "prefill_tokens", "decode_tokens", "trace_step", "rank"),
)


class RequestsRun(Protocol):
    """A run, as :func:`llmprof.run.launch.open_run` gives it."""

    @property
    def trace(self) -> Trace:
        """The timeline."""

    @property
    def requests(self) -> pl.DataFrame:
        """Requests with their latencies."""

    @property
    def engine_steps(self) -> pl.DataFrame:
        """Steps that the scheduler made, with the tokens of each request."""


def _a_run(given: object) -> Any:
    if isinstance(given, tuple):
        is_run = [type(part) for part in given] == [Trace, pl.DataFrame]
    else:
        is_run = set(dir(given)) >= {"trace", "requests", "engine_steps"}
    if not is_run:
        raise TypeError
    return given


AnyRun = Annotated[
    RequestsRun | tuple[Trace, pl.DataFrame],
    ArgumentKind(
        "a run of llmprof.launch, or a trace and the requests of llmprof.read_requests", _a_run
    ),
]
"""A run, or a trace with the requests of a server that llmprof did not start."""


def run_of(run: AnyRun) -> RequestsRun:
    """The run, or what stands for it: the trace with its requests joined."""
    if isinstance(run, tuple):
        return with_requests(*run)
    # a server that ran already notes no steps: they follow from the times of its requests
    return (
        with_requests(run.trace, run.requests)
        if getattr(run, "recorded", False) and run.requests.height
        else run
    )


def requests(
    run: AnyRun, *, by: Literal["request", "step", "span"] = "request", phase: str = "profiled"
) -> pl.DataFrame:
    """Parts of the latency of each request, or the steps and spans of each.

    The steps that had tokens of a request, on the clock of the trace, divide the time from its
    arrival to its last token:

    - before its first step: ``queue_prefill_ns`` (steps with a prefill of others ran),
      ``queue_decode_ns`` (others only decoded), ``queue_other_ns`` (no step ran: front end,
      scheduler, or the device waited for the host);
    - steps with its prompt: ``prefill_ns``, by its share of their tokens, and
      ``prefill_other_ns``, the rest;
    - steps with an output token: ``decode_ns``, and ``decode_prefill_ns``: by how much a step that
      also had a prefill of others was longer than the median step that only decoded (0 where there
      is none);
    - ``left_out_ns``: steps between its first and last without this request; ``between_ns``: no
      step ran; ``delivery_ns``: from the end of its last step until the client had the last token.

    With ``rest_ns`` they add up to ``e2e_ns``. Shares by tokens are a model: with attention,
    each token of a long prompt takes more time.

    Parameters
    ----------
    run : Run or (Trace, polars.DataFrame)
        A run with a trace, requests and the steps of its scheduler; or the trace of a server that
        llmprof did not start, whose steps have known tokens, and the rows of
        :func:`llmprof.read_requests` (or any with the columns ``id, start_epoch_ns, queue_ns,
        ttft_ns, e2e_ns, prompt_tokens, output_tokens``). These are joined by times: prefill is in
        the steps between the queue and the first token, decode in the steps after it.
    by : {"request", "step", "span"}
        Kind of row.
    phase : str
        Phase of the run; only the profiled one has a trace.

    Returns
    -------
    polars.DataFrame
        By request, in the order of arrival: ``request, id, start_ns`` (on the clock of the trace),
        ``first_step_ns, first_token_ns, end_ns``, ``ttft_ns, e2e_ns``, ``max_gap_ns`` (the
        longest from token to token; null where the client did not see them), ``prompt_tokens,
        output_tokens``; the parts above; ``ttft_queue_ns`` and ``ttft_other_ns`` (of the time to
        the first token: before its first step, and the prefill of others), ``steps, prefill_steps,
        preemptions``, ``behind`` (requests whose prefill ran while it waited), ``slowest_step``
        (number of its step in the trace that was longest against the median of its kind) and
        ``ratio`` (how many times as long), ``reason`` (the largest part, in words),
        ``rest_ns``, ``rank`` (the first rank of the engine that served it).

        By step: ``request, step`` (number in the notes of the engine), ``trace_step`` (of
        :func:`llmprof.analyze.steps`; null where the profiler had stopped), ``part`` (prefill or
        decode), ``tokens`` (of this request), ``start_ns, end_ns`` (on the device where the trace
        has the step, else as the worker noted it; never before the end of the step before),
        ``prefill_tokens, decode_tokens`` (of the whole step), ``preempted`` (it was taken out
        for this step), ``rank`` (as above).

        By span: ``request, id``; ``part``: ``waiting`` (no step carried it yet), ``prefill``,
        ``prefill with others`` (more than a tenth of the tokens of its step), ``decode``, ``decode
        beside prefill`` (of another request), ``left out`` (steps ran without it: preempted, or no
        room); ``start_ns, dur_ns`` (on the clock of the trace); ``step`` (the ``trace_step``
        above), ``tokens, prefill_tokens, decode_tokens`` and ``preempted``.

    Warns
    -----
    TraceWarning
        Some requests are left out: those in no noted step, and those that go on long after the
        recording, or while its profiler stops, if there are others.

    Raises
    ------
    NotCapturedError
        The run has no trace, no requests of the phase, or its engine noted no steps; or the trace
        of requests from outside does not say when it was recorded, has no steps with known tokens,
        or served none of them.
    AnalysisError
        The clocks of requests and trace disagree by more than 1 ms, or a column is missing.

    Examples
    --------
    >>> found = analyze.requests(run)  # doctest: +SKIP
    >>> analyze.requests((trace, llmprof.read_requests("spans.jsonl")), by="span")  # doctest: +SKIP
    """
    whole = run_of(run)
    if by == "step":
        return request_steps(whole, phase=phase)
    return request_spans(whole, phase=phase) if by == "span" else request_parts(whole, phase)


def request_parts(run: RequestsRun, phase: str) -> pl.DataFrame:
    """Parts of the latency of each request, of all engines in the order of arrival."""
    found = [_parts(engine, phase) for engine in _engines(run, phase)]
    return pl.concat(found).sort("start_ns", "request")


def _engines(run: RequestsRun, phase: str) -> list[RequestsRun]:
    """A run for each engine that noted steps: its steps and requests, beside the whole trace."""
    noted = run.engine_steps.filter(phase=phase)
    if "engine" not in noted.columns or noted["engine"].n_unique() < 2:
        return [run]
    identifiers = run.requests.filter(phase=phase)[["request", "id", "prompt_tokens"]]
    of_engine = _named(noted, identifiers)[["request", "engine"]].unique()
    engines = of_engine["engine"].unique().sort().to_list()
    runs: list[RequestsRun] = []
    for engine in engines:
        others = of_engine.filter(pl.col("engine") != engine)
        if engine == engines[0]:  # with what no engine noted
            served = run.requests.join(others, on="request", how="anti")
        else:
            served = run.requests.join(of_engine.filter(engine=engine), on="request", how="semi")
        steps = noted.filter(engine=engine)
        runs.append(TracedRequests(run.trace, served, steps, left_out=0, apart_ns=0))
    return runs


def _parts(run: RequestsRun, phase: str) -> pl.DataFrame:
    """Parts of the latency of each request of an engine."""
    rows_of_phase = run.requests.filter(phase=phase).drop_nulls(
        ["start_epoch_ns", "e2e_ns", "ttft_ns"]
    )
    if rows_of_phase.is_empty():
        raise NotCapturedError(
            f"the run has no {phase} requests with times", hint="run it in mode torch or nsys"
        )
    members, steps = _joined(run, phase)
    epoch = epoch_of(run.trace)
    timed = rows_of_phase.select(
        *("request", "id", "ttft_ns", "e2e_ns", "prompt_tokens", "output_tokens"),
        max_gap_ns=pl.col("itl_ns").list.max(),
        start_ns=pl.col("start_epoch_ns") - epoch,
    ).with_columns(
        end_ns=pl.col("start_ns") + pl.col("e2e_ns"),
        first_token_ns=pl.col("start_ns") + pl.col("ttft_ns"),
    )
    own = _own(members, steps)
    rows = timed.join(own, on="request", how="inner").sort("start_ns", "request")
    if lost := timed.height - rows.height:
        warnings.warn(
            f"{lost} of {counted(timed.height, 'request')} {are(lost)} left out: the engine that"
            " noted steps had none of their tokens",
            TraceWarning,
            stacklevel=2,
        )
    rows = _whole(rows, steps)
    rows = _waits(rows, steps)
    parts = [pl.col(name).fill_null(0).cast(pl.Int64) for name in PARTS]
    reason = pl.concat_list(parts).list.arg_max()
    return (
        rows.with_columns(parts)
        .with_columns(
            reason=reason.replace_strict(
                dict(enumerate(WORDS[name] for name in PARTS)), return_dtype=pl.String
            ),
            rest_ns=pl.col("e2e_ns") - pl.sum_horizontal(PARTS),
            ttft_queue_ns=pl.sum_horizontal(WAITING),
            ttft_other_ns=pl.col("queue_prefill_ns") + pl.col("prefill_other_ns"),
            behind=_behind(rows, members),
        )
        .select(
            *(
                "request",
                "id",
                "start_ns",
                "first_step_ns",
                "first_token_ns",
                "end_ns",
                "ttft_ns",
                "e2e_ns",
            ),
            *(
                "max_gap_ns",
                "prompt_tokens",
                "output_tokens",
                *PARTS,
                "ttft_queue_ns",
                "ttft_other_ns",
            ),
            *(
                "steps",
                "prefill_steps",
                "preemptions",
                "behind",
                "slowest_step",
                "ratio",
                "reason",
            ),
            *("rest_ns", "rank"),
        )
    )


def _whole(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Requests without those that were under way while the profiler stopped, or long after it."""
    last = steps.drop_nulls("trace_step")["end_ns"].max()
    following = steps.filter(pl.col("trace_step").is_null() & (pl.col("start_ns") >= last))
    usual = steps.select((pl.col("end_ns") - pl.col("start_ns")).median()).item()
    end = pl.min_horizontal("end_ns", following["start_ns"].min())
    late = (end - pl.max_horizontal("start_ns", last)) > LONG * usual
    kept = rows.filter(~late.fill_null(False))
    if (lost := rows.height - kept.height) and kept.height:
        warnings.warn(
            f"{lost} of {counted(rows.height, 'request')} {are(lost)} left out: the recording ended"
            " meanwhile, and their time holds what it does not, such as the profiler's own stop",
            TraceWarning,
            stacklevel=2,
        )
    return kept if kept.height else rows


def request_steps(run: RequestsRun, *, phase: str = "profiled") -> pl.DataFrame:
    """Each step of each request, on the clock of the trace."""
    found = [_joined(engine, phase)[0] for engine in _engines(run, phase)]
    return pl.concat(found).sort("request", "step")


def _joined(run: RequestsRun, phase: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Each step of each request, and all steps, in order."""
    noted = run.engine_steps.filter(phase=phase)
    if noted.is_empty():
        found = "the engine noted no steps of its scheduler"
        raise NotCapturedError(
            found, hint="run it again with this version of llmprof: engine vllm, mode torch or nsys"
        )
    identifiers = run.requests.filter(phase=phase)[["request", "id", "prompt_tokens"]]
    members = _named(noted, identifiers)
    whole = (
        noted.join(members[["step", "engine_id", "part"]], on=["step", "engine_id"], how="left")
        .group_by("step")
        .agg(
            start_epoch_ns=pl.first("start_epoch_ns"),
            end_epoch_ns=pl.first("end_epoch_ns"),
            prefill_tokens=pl.col("tokens").filter(part="prefill").sum(),
            decode_tokens=pl.col("tokens").filter(part="decode").sum(),
        )
        .sort("step")
    )
    placed = _as_traced(run.trace) if "trace_step" in noted.columns else _placed(whole, run.trace)
    columns = (
        "request",
        "step",
        "trace_step",
        "part",
        "tokens",
        "start_ns",
        "end_ns",
        "prefill_tokens",
        "rank",
    )
    on = "trace_step" if "trace_step" in noted.columns else "step"
    rows = members.join(placed.drop("step") if on != "step" else placed, on=on)
    return rows.select(*columns, "decode_tokens", "preempted").sort("request", "step"), placed.sort(
        "start_ns"
    )


def _as_traced(trace: Trace) -> pl.DataFrame:
    """The steps of the trace themselves, for notes that name them."""
    rank = min(rank for rank in trace.ranks if rank >= 0)
    seen = steps_of(trace).filter((pl.col("rank") == rank) & (pl.col("phase") != "empty"))
    start = pl.coalesce("start_ns", "host_start_ns")
    end = start + pl.when(pl.col("start_ns").is_not_null()).then("dur_ns").otherwise("host_dur_ns")
    placed = (
        seen.with_columns(start_ns=start, end_ns=end)
        .drop_nulls(["start_ns", "end_ns"])
        .sort("start_ns")
    )
    after = placed.with_columns(pl.col("end_ns").cum_max())
    begun = pl.max_horizontal("start_ns", pl.col("end_ns").shift(1))
    after = after.with_columns(
        start_ns=pl.min_horizontal(begun, "end_ns"),
        trace_step=pl.col("step").cast(pl.Int64),
        rank=pl.lit(rank, pl.Int64),
    )
    tokens = pl.col("prefill_tokens", "decode_tokens").fill_null(0).cast(pl.Int64)
    return after.with_columns(tokens, step="trace_step").select(*_STEPS)


def _named(noted: pl.DataFrame, requests_of_phase: pl.DataFrame) -> pl.DataFrame:
    """Notes with the request of each; vLLM's worker adds to the identifier that the client sees."""
    number_of: dict[str, int] = {
        str(name): int(request)
        for request, name, _ in requests_of_phase.iter_rows()
        if name is not None
    }
    longest = sorted(number_of, key=len, reverse=True)

    def find(name: str) -> int | None:
        bare = re.sub(r"^\d+_(?=cmpl-|chatcmpl-)", "", name)
        if bare in number_of:
            return number_of[bare]
        return next((number_of[one] for one in longest if bare.startswith(f"{one}-")), None)

    names = noted["engine_id"].unique().to_list()
    request_of = {name: request for name in names if (request := find(name)) is not None}
    if not request_of:
        hint = (
            "the identifiers do not match: report this to the authors of llmprof, with worker.json"
        )
        raise AnalysisError(
            "no request of the client is among those of the engine's scheduler", hint=hint
        )
    prompts = dict(requests_of_phase[["request", "prompt_tokens"]].iter_rows())
    rows = noted.filter(pl.col("engine_id").is_in(list(request_of))).with_columns(
        request=pl.col("engine_id").replace_strict(request_of, return_dtype=pl.Int64)
    )
    prompt = pl.col("request").replace_strict(prompts, return_dtype=pl.Int64)
    prefill = pl.col("computed") < prompt
    return rows.with_columns(
        part=pl.when(prefill).then(pl.lit("prefill")).otherwise(pl.lit("decode"))
    )


def epoch_of(trace: Trace) -> int:
    """Moment at which the clock of a trace began (ns since 1970)."""
    epoch = trace.meta.get("start_epoch_ns")
    if epoch is None:
        found = "the trace does not say when it was recorded"
        raise NotCapturedError(found, hint="record it again, or read the original")
    return int(epoch)


def _placed(whole: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Steps of the scheduler with the times of the same steps of the trace."""
    epoch = epoch_of(trace)
    every = steps_of(trace).filter(pl.col("phase") != "empty").sort("step").drop_nulls("start_ns")
    fits = {rank: _aligned(whole, every.filter(rank=rank), epoch) for rank in _first_ranks(trace)}
    rank = min(fits, key=lambda rank: fits[rank][0])
    seen, (_, shift, offsets) = every.filter(rank=rank), fits[rank]
    if offsets.len() and abs(apart := int(offsets.median() or 0)) > MOST_APART_NS:  # type: ignore[arg-type]
        found = f"the clocks of requests and trace disagree by {format_ns(abs(apart))}"
        hint = "they are of different machines or runs: nothing was joined"
        raise AnalysisError(
            found, expected=f"at most {format_ns(MOST_APART_NS)}", hint=hint, apart_ns=apart
        )
    on_trace = seen.with_row_index("place").select(
        step_place=pl.col("place").cast(pl.Int64) + shift,
        trace_step=pl.col("step").cast(pl.Int64),
        device_start_ns="start_ns",
        device_end_ns=END,
    )
    both = whole.with_row_index("step_place").with_columns(pl.col("step_place").cast(pl.Int64))
    both = both.join(on_trace, on="step_place", how="left").sort("step_place")
    start = pl.coalesce("device_start_ns", pl.col("start_epoch_ns") - epoch)
    end = pl.coalesce("device_end_ns", pl.col("end_epoch_ns") - epoch)
    both = both.with_columns(end_ns=end.cum_max(), start_ns=start)
    before = pl.col("end_ns").shift(1)
    late = pl.max_horizontal("start_ns", before)
    placed = both.with_columns(
        start_ns=pl.min_horizontal(late, "end_ns"), rank=pl.lit(rank, pl.Int64)
    )
    return placed.select(*_STEPS)


def _first_ranks(trace: Trace) -> list[int]:
    """The first rank of each engine of a trace."""
    first: dict[Any, int] = {}
    engine_of = {
        entry.get("rank"): entry.get("engine")
        for entry in trace.meta.get("ranks") or ()
        if isinstance(entry, dict)
    }
    for rank in sorted(rank for rank in trace.ranks if rank >= 0):
        first.setdefault(engine_of.get(rank), rank)
    return list(first.values())


def _aligned(
    whole: pl.DataFrame, seen: pl.DataFrame, epoch: int
) -> tuple[tuple[float, float], int, pl.Series]:
    """How badly the trace fits the notes, number of steps by which it begins after them, and
    difference of the clocks at each common step.
    """
    # The trace holds a stretch of the noted steps. The offset with most labels of equal tokens is
    # taken; of several such offsets, the one with the smallest difference of the clocks. A label
    # must lie within the worker's call; the clocks differ by the part of the label outside of it.
    noted = whole[["prefill_tokens", "decode_tokens"]].rows()
    labels = seen[["prefill_tokens", "decode_tokens"]].rows()
    begun = whole["start_epoch_ns"].to_list()
    host = (seen["host_start_ns"].fill_null(seen["start_ns"]) + epoch).to_list()
    ended = whole["end_epoch_ns"].to_list()
    host_ends = (
        seen["host_start_ns"].fill_null(seen["start_ns"]) + seen["host_dur_ns"].fill_null(0) + epoch
    ).to_list()
    best: tuple[tuple[float, float], int] | None = None
    for shift in range(-2, max(1, len(noted) - len(labels) + 3)):
        pairs = [(k + shift, k) for k in range(len(labels)) if 0 <= k + shift < len(noted)]
        if not pairs:
            continue
        same = sum(labels[k] == noted[place] for place, k in pairs)
        near = sorted(abs(host[k] - begun[place]) for place, k in pairs)[len(pairs) // 2]
        score = (-same, near)
        if best is None or score < best[0]:
            best = score, shift
    if best is None:
        return (0, math.inf), 0, pl.Series([], dtype=pl.Int64)
    shift = best[1]
    apart = [
        max(0, host_ends[k] - ended[k + shift]) or min(0, host[k] - begun[k + shift])
        for k in range(len(labels))
        if 0 <= k + shift < len(begun)
    ]
    return *best, pl.Series(apart, dtype=pl.Int64)


def _own(members: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Times of the steps of each request, by request."""
    dur = pl.col("end_ns") - pl.col("start_ns")
    decoding = steps.filter(prefill_tokens=0).select(dur=dur)["dur"].median()
    usual = int(decoding) if isinstance(decoding, int | float) else None
    rows = members.with_columns(dur=dur, before=pl.lit(0)).with_columns(
        own=pl.when(pl.col("part") == "prefill").then(
            (
                pl.col("dur")
                * pl.col("tokens")
                / (pl.col("prefill_tokens") + pl.col("decode_tokens"))
            )
            .round()
            .cast(pl.Int64)
        ),
        excess=pl.when((pl.col("part") == "decode") & (pl.col("prefill_tokens") > 0)).then(
            pl.max_horizontal(pl.col("dur") - usual, 0) if usual is not None else 0
        ),
        kind=pl.when(pl.col("prefill_tokens") > 0)
        .then(pl.lit("prefill"))
        .otherwise(pl.lit("decode")),
    )
    middle = rows.unique("step").group_by("kind").agg(middle=pl.median("dur"))
    rows = rows.join(middle, on="kind").with_columns(times=pl.col("dur") / pl.col("middle"))
    prefill, decode = pl.col("part") == "prefill", pl.col("part") == "decode"
    slow = pl.col("times").arg_max()
    sums = (
        rows.sort("request", "step")
        .group_by("request", maintain_order=True)
        .agg(
            first_step=pl.first("step"),
            last_step=pl.last("step"),
            first_step_ns=pl.first("start_ns"),
            last_step_ns=pl.last("end_ns"),
            steps=pl.len().cast(pl.Int64),
            prefill_steps=prefill.sum().cast(pl.Int64),
            preemptions=pl.sum("preempted").cast(pl.Int64),
            prefill_ns=pl.col("own").filter(prefill).sum(),
            prefill_other_ns=(pl.col("dur") - pl.col("own")).filter(prefill).sum(),
            decode_prefill_ns=pl.col("excess").filter(decode).sum(),
            all_decode_ns=pl.col("dur").filter(decode).sum(),
            carried_ns=pl.sum("dur"),
            slowest_step=pl.col("trace_step").get(slow),
            ratio=pl.col("times").get(slow),
            rank=pl.first("rank"),
        )
    )
    whole = steps.with_columns(busy=dur.cum_sum()).select("step", "busy", step_dur=dur)
    first = whole.select(first_step="step", busy_before=pl.col("busy") - pl.col("step_dur"))
    last = whole.select(last_step="step", busy_after="busy")
    sums = sums.join(first, on="first_step", how="left").join(last, on="last_step", how="left")
    ran = pl.col("busy_after") - pl.col("busy_before")
    return sums.with_columns(
        decode_ns=pl.col("all_decode_ns") - pl.col("decode_prefill_ns"),
        left_out_ns=ran - pl.col("carried_ns"),
        between_ns=pl.col("last_step_ns") - pl.col("first_step_ns") - ran,
    )


def _waits(joined: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The parts before the first and after the last step of each request."""
    begun = pl.min_horizontal("start_ns", "first_step_ns")
    waited = joined.with_columns(begun=begun)
    for name, kind in (
        ("queue_prefill_ns", pl.col("prefill_tokens") > 0),
        ("queue_decode_ns", pl.col("prefill_tokens") == 0),
    ):
        until, since = (_busy(waited[column], steps, kind) for column in ("first_step_ns", "begun"))
        waited = waited.with_columns((until - since).alias(name))
    queue = pl.col("first_step_ns") - pl.col("begun")
    return waited.with_columns(
        queue_other_ns=queue - pl.col("queue_prefill_ns") - pl.col("queue_decode_ns"),
        delivery_ns=pl.max_horizontal(pl.col("end_ns") - pl.col("last_step_ns"), 0),
    )


def _busy(times: pl.Series, steps: pl.DataFrame, kind: pl.Expr) -> pl.Series:
    """Time of the steps of a kind until each of some times."""
    dur = pl.when(kind).then(pl.col("end_ns") - pl.col("start_ns")).otherwise(0)
    sums = steps.select(
        when="start_ns",
        end_ns="end_ns",
        of_kind=kind,
        before=dur.cum_sum() - dur,
        dur=dur,
    ).sort("when")
    moments = pl.DataFrame({"when": times.cast(pl.Int64)}).with_row_index("place").sort("when")
    met = moments.join_asof(sums, on="when", strategy="backward").sort("place")
    inside = pl.min_horizontal("when", "end_ns") - (pl.col("end_ns") - pl.col("dur"))
    value = pl.col("before") + pl.when(pl.col("of_kind")).then(inside).otherwise(0)
    return met.select(value.fill_null(0).cast(pl.Int64).alias(times.name))[times.name]


def _behind(joined: pl.DataFrame, members: pl.DataFrame) -> pl.Series:
    """Requests whose prefill ran while each waited for its first step, in order."""
    prefills = members.filter(part="prefill")[["request", "start_ns", "end_ns"]].sort("start_ns")
    rows: list[tuple[Any, ...]] = prefills.rows()
    lists = []
    for request, start, first in joined[["request", "start_ns", "first_step_ns"]].iter_rows():
        others = [
            other
            for other, begin, end in rows
            if other != request and begin < first and end > start
        ]
        lists.append(list(dict.fromkeys(others)))
    return pl.Series("behind", lists, dtype=pl.List(pl.Int64))


OTHERS_SHARE: Final = 0.1
"""A prefill counts as one with others if at least this share of the step's tokens is of other
requests.
"""


def request_spans(run: RequestsRun, *, phase: str = "profiled") -> pl.DataFrame:
    """Consecutive spans of each request, from its arrival to its last step."""
    joined = request_parts(run, phase)
    steps = (
        request_steps(run, phase=phase)
        .join(joined[["request", "id"]], on="request")
        .sort("request", "step")
    )
    shared = pl.col("tokens") < (1 - OTHERS_SHARE) * (
        pl.col("prefill_tokens") + pl.col("decode_tokens")
    )
    prefill = pl.when(shared).then(pl.lit("prefill with others")).otherwise(pl.lit("prefill"))
    beside = (
        pl.when(pl.col("prefill_tokens") > 0)
        .then(pl.lit("decode beside prefill"))
        .otherwise(pl.lit("decode"))
    )
    before = pl.col("end_ns").shift(1).over("request")
    missed = pl.col("step") > pl.col("step").shift(1).over("request") + 1
    columns = (
        "request",
        "id",
        "part",
        "start_ns",
        "dur_ns",
        "step",
        "tokens",
        "prefill_tokens",
        "decode_tokens",
    )
    carried = steps.with_columns(
        part=pl.when(pl.col("part") == "prefill").then(prefill).otherwise(beside),
        dur_ns=pl.col("end_ns") - pl.col("start_ns"),
        step="trace_step",
    ).select(*columns, "preempted")
    left_out = (
        steps.with_columns(before=before, missed=missed)
        .filter(pl.col("missed") & (pl.col("start_ns") > pl.col("before")))
        .select(
            "request",
            "id",
            part=pl.lit("left out"),
            start_ns="before",
            dur_ns=pl.col("start_ns") - pl.col("before"),
        )
    )
    begun = pl.min_horizontal("start_ns", "first_step_ns")
    waiting = joined.select(
        "request",
        "id",
        part=pl.lit("waiting"),
        start_ns=begun,
        dur_ns=pl.col("first_step_ns") - begun,
    ).filter(pl.col("dur_ns") > 0)
    every = pl.concat([waiting, carried, left_out], how="diagonal").sort(
        "request", "start_ns", maintain_order=True
    )
    return every.select(*columns, "preempted")


def slowest(frame: pl.DataFrame, *, quantile: float = 0.99) -> dict[str, Any]:
    """Parts of slow first tokens: the main finding of :func:`requests`.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of :func:`requests`.
    quantile : float
        Which requests: those whose time to the first token is at least this quantile of all.

    Returns
    -------
    dict
        ``title`` (a sentence), ``ttft_ns`` (the quantile), ``parts`` (mean of each part of the time
        to the first token over these requests, ns), ``requests`` (their numbers), ``of`` (all
        requests).

    Raises
    ------
    AnalysisError
        There are no requests.
    """
    if frame.is_empty():
        raise AnalysisError("there are no requests", expected="rows of analyze.requests(run)")
    border = float(frame["ttft_ns"].quantile(quantile, interpolation="higher") or 0)
    slow = frame.filter(pl.col("ttft_ns") >= border)
    others = _mean(slow, "ttft_other_ns")
    parts = {
        "prefill of others": others,
        "decode of others": _mean(slow, "queue_decode_ns"),
        "its own prefill": _mean(slow, "prefill_ns"),
        "no step running": _mean(slow, "queue_other_ns"),
    }
    ttft = _mean(slow, "ttft_ns")
    parts["the rest"] = max(0.0, ttft - sum(parts.values()))
    name, largest = max(parts.items(), key=lambda item: item[1])
    # a percentile of few requests is the time of one of them
    whose = f"p{100 * quantile:g} of the" if frame.height * (1 - quantile) >= 1 else "longest"
    title = (
        f"The {whose} time to the first token is {name}: {format_ns(largest)} of {format_ns(ttft)}."
    )
    return {
        "title": title,
        "ttft_ns": border,
        "parts": parts,
        "requests": slow["request"].to_list(),
        "of": frame.height,
    }


def _mean(frame: pl.DataFrame, name: str) -> float:
    value = frame[name].mean()
    return float(value) if isinstance(value, int | float) else 0.0


# Requests of a server that llmprof did not start, joined to the steps of its trace by their times.

_NOTES: Final = {
    "phase": pl.String,
    **dict.fromkeys(("step", "start_epoch_ns", "end_epoch_ns"), pl.Int64),
    "engine_id": pl.String,
    **dict.fromkeys(("tokens", "computed"), pl.Int64),
    "preempted": pl.Boolean,
    "trace_step": pl.Int64,
}
_NEEDED: Final = (
    "id",
    "start_epoch_ns",
    "queue_ns",
    "ttft_ns",
    "e2e_ns",
    "prompt_tokens",
    "output_tokens",
)


@dataclass(frozen=True, slots=True)
class TracedRequests:
    """A trace and the requests that were served during it, with the steps of each inferred from
    times.
    """

    trace: Trace
    requests: pl.DataFrame
    engine_steps: pl.DataFrame
    left_out: int
    apart_ns: int


def with_requests(trace: Trace, served: pl.DataFrame) -> TracedRequests:
    """Join requests of a server that llmprof did not start with its trace, by times."""
    # The prefill of a request is in the steps with prefill that begin after it left the queue and
    # end before its first token; its other tokens are in the following steps with decode, as in
    # vLLM. The prompt tokens of a step are divided among its requests in the order of arrival,
    # which is a model.
    if missing := [name for name in _NEEDED if name not in served.columns]:
        raise AnalysisError(
            f"the requests have no column {missing[0]!r}", expected=f"{', '.join(_NEEDED)}"
        )
    epoch = epoch_of(trace)
    steps = _steps(trace)
    complete = served.drop_nulls(["start_epoch_ns", "queue_ns", "ttft_ns", "e2e_ns"])
    timed = complete.with_columns(
        queued=pl.col("start_epoch_ns") + pl.col("queue_ns") - epoch,
        first=pl.col("start_epoch_ns") + pl.col("ttft_ns") - epoch,
        last=pl.col("start_epoch_ns") + pl.col("e2e_ns") - epoch,
    ).sort("start_epoch_ns")
    late = _apart(timed, steps)
    if late is None:
        found = "none of the requests was served while the trace was recorded"
        raise NotCapturedError(found, hint="pass the spans and the trace of one run on one machine")
    if abs(late) > MOST_APART_NS:
        found = f"the clocks of requests and trace disagree by at least {format_ns(abs(late))}"
        hint = "they are of different machines or runs: nothing was joined"
        raise AnalysisError(
            found, expected=f"at most {format_ns(MOST_APART_NS)}", hint=hint, apart_ns=abs(late)
        )
    notes = pl.DataFrame(_noted(timed, steps, epoch), schema=_NOTES, orient="row").sort(
        "step", maintain_order=True
    )
    joined = timed.filter(pl.col("id").is_in(notes["engine_id"].unique().implode())).drop(
        "queued", "first", "last"
    )
    return TracedRequests(trace, joined, notes, served.height - joined.height, abs(late))


def _steps(trace: Trace) -> pl.DataFrame:
    """Steps of the first rank: start on the host, end on the device, and tokens."""
    ranks = [rank for rank in trace.ranks if rank >= 0]
    frame = steps_of(trace).filter(pl.col("rank") == min(ranks)) if ranks else pl.DataFrame()
    if frame.is_empty() or frame["prefill_tokens"].null_count() == frame.height:
        found = "the trace has no steps with known tokens"
        raise NotCapturedError(found, hint="vLLM's torch profiler and NVTX ranges name them")
    begin = pl.coalesce("host_start_ns", "start_ns")
    end = pl.coalesce(END, pl.col("host_start_ns") + pl.col("host_dur_ns"))
    return (
        frame.filter(pl.col("phase") != "empty")
        .select("step", "prefill_tokens", "decode_tokens", begin=begin, end=end)
        .drop_nulls()
        .sort("begin")
    )


def _apart(timed: pl.DataFrame, steps: pl.DataFrame) -> int | None:
    """Delay of the requests' clock that fits the most requests, the nearest to 0; None if none
    was served.
    """
    prefills = steps.filter(pl.col("prefill_tokens") > 0)
    pairs = timed[["queued", "first"]].gather_every(max(1, timed.height // _MOST_ASKED)).rows()
    edges: list[tuple[int, int]] = []
    for queued, first in pairs:
        spans = prefills.select(low=queued - pl.col("begin"), high=first - pl.col("end"))
        spans = spans.filter(
            (pl.col("low") <= pl.col("high"))
            & (pl.col("high") > -_FAR_NS)
            & (pl.col("low") < _FAR_NS)
        )
        for low, high in _merged(sorted(spans.rows())):
            edges += [(low, 1), (high + 1, -1)]
    if not edges:
        return None
    edges.sort()
    fitting, shared = 0, []
    for (shift, change), (after, _) in pairwise(edges):
        fitting += change
        if after > shift:
            shared.append((fitting, shift, after - 1))
    enough = _AGREE * max(count for count, *_ in shared)
    return min((min(max(0, low), high) for count, low, high in shared if count >= enough), key=abs)


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
    room = [row["prefill_tokens"] for row in rows]
    notes: list[tuple[Any, ...]] = []
    for request in timed.sort("first").iter_rows(named=True):
        begin, until, last = (
            request["queued"] - MOST_APART_NS,
            request["first"] + MOST_APART_NS,
            request["last"],
        )
        own = [
            k
            for k, row in enumerate(rows)
            if row["begin"] >= begin and row["end"] <= until and row["prefill_tokens"]
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
        more = [k for k in after if rows[k]["decode_tokens"]][
            : max(0, (request["output_tokens"] or 1) - 1)
        ]
        done, carried = 0, []
        for k in sorted(taken or {own[-1]: 1}):
            part = taken.get(k, 1)
            carried.append((k, part, done))
            done += part
        prompt = request["prompt_tokens"] or 1
        carried += [(k, 1, prompt + n) for n, k in enumerate(more)]
        for k, tokens, done in carried:
            span = rows[k]["begin"] + epoch, rows[k]["end"] + epoch
            notes.append(
                ("profiled", k, *span, request["id"], tokens, done, False, rows[k]["step"])
            )
    return notes


_FAR_NS: Final = 10_000_000_000
"""If clocks differ by more than this (ns), the files are treated as different runs."""

_MOST_ASKED: Final = 200
"""Number of requests that are used to compare the clocks."""

_AGREE: Final = 0.95
"""Least share of the requests that a difference of the clocks must fit."""
