"""Speculative decoding: drafting and verifying in each step, and the tokens that a step gives."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.errors import AnalysisError
from llmprof.label.intervals import union_lengths
from llmprof.label.steps.steps import steps_of
from llmprof.trace import Trace

_NOTED: Final = ("phase", "step", "engine_id", "tokens", "computed")
SCHEMA: Final = {
    "rank": pl.Int32,
    "step": pl.Int32,
    "phase": pl.String,
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "requests": pl.Int64,
    "draft_tokens": pl.Int64,
    "draft_ns": pl.Int64,
    "tokens_per_request": pl.Float64,
    "acceptance": pl.Float64,
    "token_ns": pl.Float64,
}


@Analysis(
    question="What does speculative decoding cost, and what does it give?",
    help="decode steps with drafts: drafting, verifying, accepted tokens, time of a token",
    view="speculation",
    recorded="steps",
)
def speculation(trace: Trace, *, engine_steps: pl.DataFrame | None = None) -> pl.DataFrame:
    """Drafting and verifying in each step that decodes, and the tokens that it gives.

    A step verifies drafts if the engine's label states more tokens than requests that generate. The
    device drafts in the passes of a draft model or of prediction heads (stage ``draft``); n-grams
    are drafted by the host.

    Parameters
    ----------
    trace : Trace
        Any trace with steps.
    engine_steps : polars.DataFrame, optional
        What the scheduler noted of each step (``run.engine_steps``): without it the accepted tokens
        are unknown, since a timeline does not hold them.

    Returns
    -------
    polars.DataFrame
        A row for each rank and step that decodes; none if nothing is drafted. ``rank, step, phase,
        start_ns, dur_ns``; ``requests`` that generate; ``draft_tokens`` that the step verifies
        (null if the steps have no labels); ``draft_ns`` (time in which the device
        drafts); of steps without prefill, if they are those that were
        noted: ``tokens_per_request`` (mean of the requests that go on), ``acceptance`` (share of
        their drafts that was right; null without drafts), ``token_ns`` (from token to token of a
        request: from the start of the step to that of the next, by ``tokens_per_request``).

    Raises
    ------
    NotCapturedError
        The trace has neither kernels nor copies nor operators.
    AnalysisError
        ``engine_steps`` lacks a column.

    Examples
    --------
    >>> analyze.speculation(trace).height  # of a recording without drafts
    0
    """
    missing = [
        name for name in _NOTED if engine_steps is not None and name not in engine_steps.columns
    ]
    if missing:
        raise AnalysisError(
            f"engine_steps has no {missing[0]}", expected="the frame run.engine_steps"
        )
    found = steps_of(trace).filter(pl.col("phase") != "empty").sort("rank", "start_ns")
    found = found.with_columns(
        requests="decode_requests",
        draft_tokens=pl.col("decode_tokens") - pl.col("decode_requests"),
        period_ns=pl.col("start_ns").shift(-1).over("rank") - pl.col("start_ns"),
    )
    key = ["rank", "step"]
    events = trace.events.drop_nulls("step")
    drafts = pl.col("stage") == "draft"
    busy = union_lengths(events, key, draft_ns=drafts).select(*key, "draft_ns")
    rows = found.join(busy, on=key, how="left", maintain_order="left")
    if (
        not (rows["draft_tokens"].fill_null(0) > 0).any()
        and not (rows["draft_ns"].fill_null(0) > 0).any()
    ):
        return pl.DataFrame(schema=SCHEMA)
    given = _given(found, engine_steps)
    rows = rows.join(given, on="step", how="left", maintain_order="left").filter(
        pl.col("phase").is_in(["decode", "mixed"])
    )
    token_ns = pl.when(pl.col("tokens_per_request") > 0).then(
        pl.col("period_ns") / pl.col("tokens_per_request")
    )
    return rows.with_columns(token_ns=token_ns).select(
        pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()
    )


def _given(found: pl.DataFrame, engine_steps: pl.DataFrame | None) -> pl.DataFrame:
    """``step, tokens_per_request, acceptance`` of steps without prefill, if the noted steps are
    those of the trace.
    """
    # An engine that schedules ahead counts the drafts of a step as computed, and takes off those
    # that were wrong one step later: then the first drafts of every request seem to be right, and
    # its rejections belong to the step before.
    none = pl.DataFrame(
        schema={"step": pl.Int32, "tokens_per_request": pl.Float64, "acceptance": pl.Float64}
    )
    if engine_steps is None:
        return none
    noted = engine_steps.filter(phase="profiled").sort("step")
    of_rank = found.filter(pl.col("rank") == pl.min("rank"))
    number = noted.group_by("step", maintain_order=True).agg(pl.sum("tokens"))
    if (
        number["tokens"].to_list()
        != (of_rank["prefill_tokens"] + of_rank["decode_tokens"]).to_list()
    ):
        return none
    number = number.select(
        "step", trace_step=of_rank["step"], decodes=of_rank["prefill_requests"] == 0
    )
    same = ("engine_id",)
    ahead = pl.col("computed").shift(-1).over(same) - pl.col("computed")
    noted = noted.join(number, on="step", maintain_order="left").with_columns(
        rejected=pl.when(ahead > 0).then(pl.col("tokens") - ahead)
    )
    most = pl.col("tokens").filter("decodes").max()  # more tokens than that are a piece of a prompt
    drafted = noted.filter((pl.col("computed") > 0) & pl.col("tokens").is_between(2, most))
    first = drafted.group_by(same).agg(pl.first("rejected"))["rejected"].drop_nulls()
    if (first == 0).all() and (drafted["rejected"] > 0).any():
        noted = noted.with_columns(pl.col("rejected").shift(-1).over(same))
    known = noted.filter(pl.col("decodes") & pl.col("rejected").is_between(0, pl.col("tokens") - 1))
    tokens, drafts = pl.col("tokens") - pl.col("rejected"), pl.col("tokens") - 1
    return known.group_by(step="trace_step", maintain_order=True).agg(
        tokens_per_request=tokens.mean(),
        acceptance=pl.when(drafts.sum() > 0).then(1 - pl.sum("rejected") / drafts.sum()),
    )
