"""Findings of all scopes in one order: what would gain most stands first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from llmprof.analyze.step_times import SLOW
from llmprof.findings.card import SLOW_STEPS, USUAL_STEPS
from llmprof.findings.causes import CAUSES
from llmprof.findings.first_tokens import FIRST_TOKENS
from llmprof.findings.frame import SCHEMA
from llmprof.findings.incomplete import INCOMPLETE
from llmprof.findings.scope import STEADY

MIN_OF_OTHERS: Final = 0.02
"""Least share of the recorded time for a finding about a phase that is not the one with most
time.
"""


MIN_OF_LARGEST: Final = 0.1
"""Least part of the largest loss for other time to be worth saying beside it."""


def rank_findings(frames: Sequence[pl.DataFrame], *others: dict[str, Any] | None) -> pl.DataFrame:
    """Findings of all scopes and others (of requests, of a transfer) in order, the first scope
    being that of the phase with most time; before them what the recording lacks.
    """
    # what most of a slow step goes to is told even if it is no loss, where usual steps have less
    is_info = pl.col("severity") == "info"
    is_usual = pl.col("scope").is_in([STEADY, USUAL_STEPS])
    usual = pl.col("figure").filter(is_info & pl.col("ranked") & is_usual).max()
    usual_ns = pl.concat(frames).select(usual.fill_null(0.0)).item()
    of_slow = pl.col("ranked") & (pl.col("scope") == SLOW_STEPS)
    told = ~is_info | (of_slow & (pl.col("figure") > SLOW * usual_ns))
    # a cause stands with what follows from it
    of_chain = pl.max("recorded_share").over(pl.coalesce("follows_from", "rule"))
    much = (of_chain >= MIN_OF_OTHERS) & told
    frame = pl.concat([rows if n == 0 else rows.filter(much) for n, rows in enumerate(frames)])
    frame = frame.remove(_is_small())
    for known in filter(None, others):
        row = dict.fromkeys(frame.columns) | known
        frame = pl.concat([pl.DataFrame([row], schema=frame.schema), frame])
    last = pl.col("rule").is_in([cause.name for cause in CAUSES if cause.last])
    own = pl.col("rule") == FIRST_TOKENS
    fact = (pl.col("severity") == "info") & ~pl.col("ranked").fill_null(False)
    # what follows from a finding stands after it, wherever that is: by what its remedy gains, or
    # by all of their time if that is not known
    chain = [pl.col("scope"), pl.coalesce("follows_from", "rule")]
    gained = pl.when(pl.col("predicted_ns").is_not_null()).then("weight")
    return (
        frame.with_columns(
            chain=pl.coalesce(gained.max().over(chain), pl.sum("weight").over(chain))
        )
        .sort(
            pl.col("rule") != INCOMPLETE,
            (own & fact) | last,
            fact,
            "chain",
            pl.col("follows_from").is_not_null(),
            "weight",
            descending=[False, False, False, True, False, True],
            maintain_order=True,
        )
        .with_columns(order=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
        .select(list(SCHEMA))
    )


def _is_small() -> pl.Expr:
    """Whether a finding is of far less time than the largest loss."""
    share = pl.col("recorded_share")
    of_chain = share.max().over(pl.coalesce("follows_from", "rule"))
    return of_chain < MIN_OF_LARGEST * share.filter(pl.col("severity") != "info").max()
