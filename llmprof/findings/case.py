"""The card of a trace: what ran, what costs most, what to do next; one for all that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from llmprof.findings.card import chain_findings, so
from llmprof.findings.facts import run_facts
from llmprof.findings.frame import Findings
from llmprof.trace import Trace


class CaseCard(Struct, frozen=True):
    """A trace in a few lines, as its repr, the report, the explorers and the terminal show it."""

    about: str
    """Model, engine, devices, batch and the heaviest stage in a line."""
    lead: Mapping[str, Any]
    """The first finding; empty if there is none."""
    sentences: Sequence[str]
    """That finding and what follows from it; else where the time went."""
    actions: Sequence[tuple[str, str]]
    """What to do next, as a word and a call."""


def case_card(trace: Trace, found: Findings | None) -> CaseCard:
    """What a trace says of itself first."""
    causes, effects, known = chain_findings(found.frame) if found else ([], {}, [])
    lead = next(iter([*causes, *known]), {})
    known_of_run = run_facts(trace, recorded=False).head(5)["value"].drop_nulls()
    sentences = (
        [
            str(lead["title"]),
            *(so(row) for row in effects.get(lead["order"], ())),
        ]
        if lead
        else []
    )
    if any(trace.has(name) for name in ("kernels", "copies", "ops")):
        evidence = str(lead.get("evidence") or "steps").partition("(")[0]
        actions = [
            ("A typical step", 'charts.timeline(trace, step="typical")'),
            ("What if", f'trace.what_if("{lead.get("change") or "scale:gemm:0.5"}")'),
            ("The figures", f"trace.analyze.{evidence}()"),
        ]
    else:
        actions = [("Tables", "trace.tables")]
    about = " · ".join(known_of_run.str.strip_prefix("name unknown, "))
    nothing = "nothing known of the run" if trace.ranks else "no rank"
    return CaseCard(about or nothing, lead, sentences[:2], actions)
