"""Findings as one JSON document with its schema, for programs, agents and continuous
integration.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from llmprof.findings.facts import where_the_time_went
from llmprof.findings.findings import findings
from llmprof.findings.frame import SCHEMA
from llmprof.trace import Trace
from llmprof.trace.metrics.data import Metrics
from llmprof.trace.platforms import PLATFORMS

VERSION: Final = 3
"""Version of the document.

It rises when a key is removed or changes its meaning; new keys do not change it.
"""

_MEANING: Final = {
    "order": (
        "place, from 1: losses by predicted_ns (else half the figure) in proportion to that of"
        " their phase, then facts"
    ),
    "rule": "which rule speaks",
    "severity": (
        "high from 20 % of the time, medium from 5 %, low below or if the recording cannot tell;"
        " info for what is no fault"
    ),
    "title": "one sentence with the figure",
    "figure": "time that it is about, ns a step and device, or a device: see unit",
    "unit": "ns a step, ns a rank, ns a request, or ns a profile (hardware metrics)",
    "share": "figure as a share of the denominator, 0 to 1",
    "recorded_share": (
        "share of all recorded time that the steps of this phase lose in the same way, 0 to 1"
    ),
    "follows_from": "rule of the finding (of the same scope) that is its cause",
    "gain_ns": "the most that removing it could gain, in the same unit, all else as it is",
    "predicted_ns": (
        "what a replay of the recording predicts that the remedy gains, in the same unit; below 0:"
        " slower"
    ),
    "predicted_low_ns": "the least of what the prediction cannot know",
    "predicted_high_ns": "the most of it",
    "predicted_tokens_per_s": (
        "the predicted gain as more tokens a second on a replica of the model"
    ),
    "predicted_plain": (
        "whether the prediction is time without the profiler, which the run measured, too"
    ),
    "change": "the remedy as llmprof what-if takes it",
    "prediction": "the prediction in words, or why there is none",
    "scope": "which part of the run it is about",
    "denominator": "what every share is of, in words",
    "evidence": "analysis whose frame shows it",
    "where": "SQL condition for the rows of that frame",
    "rank": "rank with most of it",
    "start_ns": "when it is worst there, ns from the start of the trace",
    "end_ns": "end of that moment, ns",
    "detail": "figures behind it",
    "suggestion": "what to try",
    "about": "full name of the kernel, call or function that the sentences name",
}
_TYPES: Final = {
    pl.Int32: "integer",
    pl.Int64: "integer",
    pl.Float64: "number",
    pl.String: "string",
    pl.Boolean: "boolean",
}
_MAY_BE_NULL: Final = {
    "rank",
    "start_ns",
    "end_ns",
    "predicted_ns",
    "predicted_low_ns",
    "predicted_high_ns",
    "predicted_tokens_per_s",
    "predicted_plain",
    "change",
    "prediction",
    "recorded_share",
    "follows_from",
    "about",
}


def findings_document(trace: Trace, requests: pl.DataFrame | None = None) -> dict[str, Any]:
    """Findings of a trace and the requests that it served, with facts about the trace."""
    meta = trace.meta
    low, high = trace.span_ns
    return _document(
        findings(trace, requests=requests),
        device=meta.get("device"),
        platform=trace.capture.platform.name,
        profiler=meta.get("format"),
        ranks=[rank for rank in trace.ranks if rank >= 0],
        world_size=meta.get("world_size"),
        span_ns=high - low,
        time_went=where_the_time_went(trace, requests),
        warnings=[str(words) for words in trace.coverage.get("warnings", [])],
    )


def hardware_findings_document(metrics: Metrics, rows: pl.DataFrame) -> dict[str, Any]:
    """Findings of hardware metrics as the same document."""
    launches = metrics.kernels
    devices = launches["device_name"].drop_nulls().unique().to_list()
    return _document(
        rows,
        device=devices[0] if len(devices) == 1 else None,
        platform="nvidia",
        profiler="ncu",
        ranks=[],
        world_size=None,
        span_ns=int(launches["dur_ns"].sum() or 0),
        time_went=[],
        warnings=[str(words) for words in metrics.coverage.get("warnings", [])],
    )


def _document(rows: pl.DataFrame, **trace: Any) -> dict[str, Any]:
    listed = rows.select(list(SCHEMA)).to_dicts()
    return {"format": "llmprof.findings", "version": VERSION, "trace": trace, "findings": listed}


def findings_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of :func:`findings_document`."""
    columns: dict[str, Any] = {}
    for name, dtype in SCHEMA.items():
        kind = _TYPES[dtype]
        columns[name] = {
            "type": [kind, "null"] if name in _MAY_BE_NULL else kind,
            "description": _MEANING[name],
        }
    columns["severity"]["enum"] = ["high", "medium", "low", "info"]
    columns["unit"]["enum"] = ["ns a step", "ns a rank", "ns a request", "ns a profile"]
    columns["share"] |= {"minimum": 0, "maximum": 1}
    columns["order"]["minimum"] = 1
    summary = {"type": ["string", "null"]}
    about = {
        "device": {**summary, "description": "name of the device, as the profiler writes it"},
        "platform": {"type": "string", "enum": list(PLATFORMS)},
        "profiler": {**summary, "description": "format that was read: chrome, nsys, ascend …"},
        "ranks": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "world_size": {"type": ["integer", "null"]},
        "span_ns": {
            "type": "integer",
            "description": "from the first to the last thing recorded, ns",
        },
        "time_went": {
            "type": "array",
            "items": {"type": "string"},
            "description": "where the recorded time went by phase, and that of requests",
        },
        "warnings": {
            "type": "array",
            "items": {"type": "string"},
            "description": "what was lost or is missing",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Findings of llmprof",
        "type": "object",
        "required": ["format", "version", "trace", "findings"],
        "properties": {
            "format": {"const": "llmprof.findings"},
            "version": {"const": VERSION},
            "trace": {"type": "object", "required": list(about), "properties": about},
            "findings": {
                "type": "array",
                "items": {"type": "object", "required": list(columns), "properties": columns},
            },
        },
    }
