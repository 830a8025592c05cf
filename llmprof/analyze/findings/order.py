"""Findings as pages show them: causes, each with what follows from it, then facts."""

from __future__ import annotations

from typing import Any

import polars as pl


def chained(
    findings: pl.DataFrame,
) -> tuple[list[dict[str, Any]], dict[int, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Causes in order; what follows from each, by its ``order``; and facts."""
    rows = findings.to_dicts()
    facts = [row for row in rows if row["severity"] == "info"]
    losses = [row for row in rows if row["severity"] != "info"]
    causes = [row for row in losses if not row.get("follows_from")]
    effects: dict[int, list[dict[str, Any]]] = {}
    for row in losses:
        if of := row.get("follows_from"):
            same = (cause for cause in causes if (cause.get("scope"), cause["rule"]) == (row.get("scope"), of))
            if (cause := next(same, None)) is None:  # it was filtered out
                causes.append(row)
            else:
                effects.setdefault(cause["order"], []).append(row)
    return sorted(causes, key=lambda row: row["order"]), effects, facts


def denominators(findings: pl.DataFrame) -> dict[str, str]:
    """What most shares of each scope are of."""
    if not {"scope", "denominator"} <= set(findings.columns):
        return {}
    counts = findings.group_by("scope", "denominator", maintain_order=True).len()
    most = counts.sort("len", descending=True, maintain_order=True).unique("scope", keep="first", maintain_order=True)
    return dict(most.select("scope", "denominator").iter_rows())
