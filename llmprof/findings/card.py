"""Findings as pages show them: causes, each with what follows from it, then facts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from llmprof.errors import LlmprofError
from llmprof.findings.incomplete import INCOMPLETE
from llmprof.text import joined
from llmprof.units import format_ns

SLOW_STEPS: Final = "slow decode steps"
USUAL_STEPS: Final = "usual decode steps"
REQUEST_PAUSES: Final = "request pauses"
PHASE_SCOPES: Final = (
    *("decode steps", "mixed steps", "prefill steps"),
    *(SLOW_STEPS, USUAL_STEPS, REQUEST_PAUSES),
)
"""Scopes whose steps are called by their phase, or as slow or usual ones, and pauses in which no
request runs.
"""

AMONG_LOSSES: Final = (INCOMPLETE, "heaviest_stage", "unnamed_time")
"""Rules of facts that are told among the losses."""


def chain_findings(
    findings: pl.DataFrame,
) -> tuple[list[dict[str, Any]], dict[int, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Causes in order, first of all what the recording lacks; what follows from each, by its
    ``order``; and facts.
    """
    rows = findings.to_dicts()
    facts = [row for row in rows if row["severity"] == "info" and row["rule"] not in AMONG_LOSSES]
    losses = [row for row in rows if row["severity"] != "info" or row["rule"] in AMONG_LOSSES]
    causes = [row for row in losses if not row.get("follows_from")]
    effects: dict[int, list[dict[str, Any]]] = {}
    for row in losses:
        if of := row.get("follows_from"):
            same = (
                cause
                for cause in causes
                if (cause.get("scope"), cause["rule"]) == (row.get("scope"), of)
            )
            if (cause := next(same, None)) is None:  # it was filtered out
                causes.append(row)
            else:
                effects.setdefault(cause["order"], []).append(row)
    return sorted(causes, key=lambda row: row["order"]), effects, facts


def finding_row(findings: pl.DataFrame, order: int) -> dict[str, Any]:
    """The finding of a number."""
    for row in findings.iter_rows(named=True):
        if row["order"] == order:
            return row
    known = [f"{n}: {title}" for n, title in findings[["order", "title"]].iter_rows()]
    raise LlmprofError(
        f"there is no finding {order}", expected="; ".join(known) or "none: there are no findings"
    )


def headline_number(row: Mapping[str, Any]) -> tuple[str, str]:
    """The one number of a finding, and what it is: its predicted gain, or else its time."""
    if row["unit"] == "events":
        return f"{row['figure']:,.0f}", "events are missing"
    unit = _UNITS.get(str(row["unit"]), str(row["unit"]).removeprefix("ns "))
    if row["scope"] in PHASE_SCOPES and unit == "a step":
        unit = f"a {row['scope'].removesuffix('s')}"
    if not (row.get("predicted_ns") or 0) > 0:
        return format_ns(row["figure"]), unit
    low, high = (format_ns(row[f"predicted_{end}_ns"]) for end in ("low", "high"))
    interval = f", {low} to {high}" if low != high else ""
    plain = " without the profiler" if row.get("predicted_plain") else ""
    return format_ns(row["predicted_ns"]), f"saved {unit}{plain}, predicted{interval}"


_UNITS: Final = {
    "ns a step": "a step",
    "ns a profile": "of the profile",
    "ns a rank": "of the recorded time",
}


def first_sentence(text: str | None) -> tuple[str, str]:
    """The first sentence of a text, and the rest."""
    first, *rest = _END.split(text or "", maxsplit=1)
    return first, "".join(rest)


_END: Final = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")


def so(effect: Mapping[str, Any]) -> str:
    """What follows from a cause, or is a part of it, as the sentence after it."""
    title = str(effect["title"])
    return f"{'Of this,' if effect['rule'] in _PARTS else 'So'} {title[:1].lower()}{title[1:]}"


_PARTS: Final = {"nccl_for_small_messages"}
"""Rules about a part of the time of the finding that they follow from."""


def not_predicted(findings: pl.DataFrame) -> list[str]:
    """For which losses no gain was predicted, by reason."""
    if "prediction" not in findings.columns:
        return []
    rows = findings.filter(
        pl.col("predicted_ns").is_null(),
        pl.col("follows_from").is_null(),
        pl.col("severity") != "info",
    )
    reasons = rows.drop_nulls("prediction").group_by("prediction", maintain_order=True).agg("order")
    return [
        f"No gain is predicted for finding{'s' * (len(orders) > 1)} {joined(orders)}: "
        f"{why.removeprefix('No prediction: ')}"
        for why, orders in reasons.iter_rows()
    ]


def denominators(findings: pl.DataFrame) -> dict[str, str]:
    """What most shares of each scope are of."""
    if not {"scope", "denominator"} <= set(findings.columns):
        return {}
    counts = findings.group_by("scope", "denominator", maintain_order=True).len()
    most = counts.sort("len", descending=True, maintain_order=True).unique(
        "scope", keep="first", maintain_order=True
    )
    return dict(most[["scope", "denominator"]].iter_rows())


def times_in_words(findings: pl.DataFrame, went: Sequence[str]) -> list[str]:
    """What the shares of the first finding's scope are of, if it is a sentence of its own, then
    ``went``.
    """
    own = denominators(findings).get(findings["scope"][0]) if findings.height else None
    whole = [own] if own and ": " in own else []
    return [*(omit_share(each, went) for each in whole), *went]


def omit_share(whole: str, went: Sequence[str]) -> str:
    """A denominator without its share of the recorded time where ``went`` gives the shares of
    all phases.
    """
    return _SHARE.sub("", whole) if any(line.startswith(RECORDED) for line in went) else whole


RECORDED: Final = "Recorded time"
"""Start of the line that says where the recorded time went."""
_SHARE: Final = re.compile(r", [^,]* of the recorded time$")
