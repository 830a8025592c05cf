"""Reader of requests from OpenTelemetry: the spans that vLLM sends for each request, as OTLP in JSON."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.storage.files import note_input, regular
from llmprof.units import NS_PER_S

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "id": ("gen_ai.request.id",),
    "prompt_tokens": ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens"),
    "output_tokens": ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens"),
    "queue_ns": ("gen_ai.latency.time_in_queue",),
    "ttft_ns": ("gen_ai.latency.time_to_first_token",),
    "prefill_ns": ("gen_ai.latency.time_in_model_prefill",),
    "decode_ns": ("gen_ai.latency.time_in_model_decode",),
    "e2e_ns": ("gen_ai.latency.e2e",),
}
"""Attributes of the span ``llm_request`` by column: vLLM's names (0.32: ``vllm/tracing/utils.py``, 0.11:
``vllm/tracing.py``) and newer names of OpenTelemetry's conventions. Times are in seconds."""

_TIMES: Final = ("queue_ns", "ttft_ns", "prefill_ns", "decode_ns", "e2e_ns")
_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "phase": pl.String,
    "repeat": pl.Int64,
    "request": pl.Int64,
    "id": pl.String,
    "start_epoch_ns": pl.Int64,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    **dict.fromkeys(_TIMES, pl.Int64),
    "itl_ns": pl.List(pl.Int64),
}


def read_requests(path: str | os.PathLike[str], *, skip_broken: bool = False) -> pl.DataFrame:
    """Read the requests of a server that llmprof did not start, from the OpenTelemetry spans that vLLM sent.

    Parameters
    ----------
    path : path
        OTLP in JSON, as the file exporter of OpenTelemetry's collector writes it: one document
        (``{"resourceSpans": [{"scopeSpans": [{"spans": [...]}]}]}``), or one document per line.
    skip_broken : bool
        Whether to leave out lines that are not JSON, such as the last line of a file that is still being written.

    Returns
    -------
    polars.DataFrame
        One row for each request, with columns of ``run.requests``: ``phase`` (``profiled``), ``repeat`` (0),
        ``request`` (numbered by arrival), ``id, start_epoch_ns, prompt_tokens, output_tokens, queue_ns, ttft_ns,
        prefill_ns, decode_ns, e2e_ns, itl_ns``. Values that a span does not have are null; ``itl_ns`` is always null,
        because spans do not have the times of single tokens. Spans without a latency are left out, and a span that was
        sent twice counts once. :func:`llmprof.analyze.requests` takes them together with a trace.

    Raises
    ------
    ReadError
        The file cannot be read, a line is not JSON, or no span describes a request.

    Examples
    --------
    >>> llmprof.read_requests("spans.jsonl")["ttft_ns"].median()  # doctest: +SKIP
    """
    file = Path(path)
    note_input(file)
    try:
        content = regular(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReadError(f"{file.name} cannot be read: {error}", expected="OTLP in JSON") from error
    rows: dict[Any, dict[str, Any]] = {}
    for document in _documents(content, file.name, skip_broken=skip_broken):
        scopes = [scope for resource in _list(document, "resourceSpans") for scope in _list(resource, "scopeSpans")]
        for span in (span for scope in scopes for span in _list(scope, "spans")):
            if isinstance(span, Mapping) and (row := _row(span)):
                rows.setdefault((span.get("traceId"), span.get("spanId") or len(rows)), row)
    if not rows:
        raise ReadError(
            f"{file.name} has no span of a request",
            expected="spans with gen_ai.latency.e2e or gen_ai.latency.time_to_first_token, as vLLM sends them",
            hint="start vLLM with --otlp-traces-endpoint, and let the file exporter of the collector write JSON",
        )
    try:
        frame = pl.DataFrame(list(rows.values()), schema_overrides={"id": pl.String}, infer_schema_length=None)
        frame = frame.sort("start_epoch_ns", nulls_last=True).with_row_index("request")
        constants = {"phase": pl.lit("profiled"), "repeat": pl.lit(0)}
        missing = [constants.get(name, pl.lit(None)).alias(name) for name in _SCHEMA if name not in frame.columns]
        return frame.with_columns(missing).select(pl.col(name).cast(kind) for name, kind in _SCHEMA.items())
    except pl.exceptions.PolarsError as error:
        raise ReadError(f"{file.name} has a span with a value of the wrong type: {error}") from error


def _documents(content: str, name: str, *, skip_broken: bool) -> Iterator[Any]:
    try:
        yield json.loads(content)
    except ValueError:
        pass
    else:
        return
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                if not skip_broken:
                    raise ReadError(
                        f"line {number} of {name} is not JSON: {error}",
                        hint="skip_broken=True leaves such lines out",
                        line=number,
                    ) from error


def _list(value: Any, key: str) -> list[Any]:
    members = value.get(key) if isinstance(value, Mapping) else None
    return members if isinstance(members, list) else []


def _row(span: Mapping[str, Any]) -> dict[str, Any] | None:
    attributes = {
        one.get("key"): _value(one.get("value")) for one in _list(span, "attributes") if isinstance(one, Mapping)
    }
    row: dict[str, Any] = {}
    for column, names in _NAMES.items():
        value = next((attributes[name] for name in names if attributes.get(name) is not None), None)
        if value is not None and column != "id":
            value = _number(value)
            value = None if value is None else round(value * NS_PER_S) if column.endswith("_ns") else round(value)
        row[column] = value if column != "id" or value is None else str(value)
    if row["e2e_ns"] is None and row["ttft_ns"] is None:
        return None
    start = _number(span.get("startTimeUnixNano"))
    return {**row, "start_epoch_ns": None if not start else int(span["startTimeUnixNano"])}


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 9e18 else None


def _value(value: Any) -> Any:
    """Value of an attribute: OTLP writes ``{"intValue": "12"}``, ``{"doubleValue": 0.5}``, ``{"stringValue": "x"}``."""
    return next(iter(value.values()), None) if isinstance(value, Mapping) else None
