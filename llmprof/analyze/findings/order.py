"""Findings as pages show them: causes, each with what follows from it, then facts."""

from __future__ import annotations

from typing import Any

import polars as pl


def chained(
    findings: pl.DataFrame,
) -> tuple[list[dict[str, Any]], dict[int, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Causes in order; what follows from each, by its ``order``; and facts."""
    causes: dict[tuple[Any, Any], dict[str, Any]] = {}
    effects: dict[int, list[dict[str, Any]]] = {}
    facts = []
    rows = findings.to_dicts()
    for row in rows:
        if row["severity"] == "info":
            facts.append(row)
        elif not row.get("follows_from"):
            causes[row.get("scope"), row["rule"]] = row
    for row in rows:
        if row["severity"] != "info" and (of := row.get("follows_from")):
            cause = causes.get((row.get("scope"), of))
            if cause is None:  # it was filtered out
                causes[row.get("scope"), row["rule"]] = row
            else:
                effects.setdefault(cause["order"], []).append(row)
    return sorted(causes.values(), key=lambda row: row["order"]), effects, facts


def denominators(findings: pl.DataFrame) -> dict[str, str]:
    """What most shares of each scope are of."""
    if not {"scope", "denominator"} <= set(findings.columns):
        return {}
    counts = findings.group_by("scope", "denominator", maintain_order=True).len()
    most = counts.sort("len", descending=True, maintain_order=True).unique("scope", keep="first", maintain_order=True)
    return dict(most.select("scope", "denominator").iter_rows())
