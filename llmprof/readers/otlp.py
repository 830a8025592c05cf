"""Reader of requests: the spans that vLLM sends for each as OTLP in JSON, or the records that
SGLang writes.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.trace.storage.files import note_input, regular
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
"""Attributes of the span ``llm_request`` by column: vLLM's names (0.32:

``vllm/tracing/utils.py``, 0.11: ``vllm/tracing.py``) and newer names of OpenTelemetry's
conventions. Times are in seconds.
"""

_MOST: Final = 4e9
_LONGEST_ID: Final = 256
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
    """Read the requests of a server that llmprof did not start:

    OpenTelemetry spans of vLLM, or SGLang's own records.

    Parameters
    ----------
    path : path
        OTLP in JSON, as the file exporter of OpenTelemetry's collector writes it: one document
        (``{"resourceSpans": [{"scopeSpans": [{"spans": [...]}]}]}``), or one document per line; or
        the file that SGLang writes with ``--export-metrics-to-file``, or its log with
        ``--log-requests --log-requests-format json`` (with ``skip_broken``). SGLang ran with none
        of this here: names are those of its source.
    skip_broken : bool
        Whether to leave out lines that are not JSON, such as the last line of a file that is still
        being written.

    Returns
    -------
    polars.DataFrame
        One row for each request, with columns of ``run.requests``: ``phase`` (``profiled``),
        ``repeat`` (0), ``request`` (numbered by arrival), ``id, start_epoch_ns, prompt_tokens,
        output_tokens, queue_ns, ttft_ns, prefill_ns, decode_ns, e2e_ns, itl_ns``. Values that a
        span does not have are null; ``itl_ns`` is always null, because spans do not have the times
        of single tokens. Spans without a latency are left out, and a span that was sent twice
        counts once. :func:`llmprof.analyze.requests` takes them together with a trace.

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
    documents = _documents(content, file.name, skip_broken=skip_broken)
    rows = dict(pair for document in documents for pair in parse_requests(document))
    if not rows:
        raise ReadError(
            f"{file.name} has no request",
            expected=(
                "spans with gen_ai.latency.e2e or gen_ai.latency.time_to_first_token, as vLLM sends"
                " them, or the records that SGLang writes"
            ),
            hint=(
                "start vLLM with --otlp-traces-endpoint, and let the file exporter of the collector"
                " write JSON; or SGLang with --export-metrics-to-file"
            ),
        )
    try:
        return request_frame(rows.values())
    except pl.exceptions.PolarsError as error:
        raise ReadError(
            f"{file.name} has a request with a value of the wrong type: {error}"
        ) from error


def parse_requests(document: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Requests of a document of OTLP, or the one that a record of SGLang describes, each with
    what it is known by.
    """
    record = document.get("out") if isinstance(document, Mapping) else None
    record = record.get("meta_info") if isinstance(record, Mapping) else document
    if isinstance(record, Mapping) and (row := _of_sglang(record)):
        yield row["id"] or object(), row
    scopes = [
        scope
        for resource in _list(document, "resourceSpans")
        for scope in _list(resource, "scopeSpans")
    ]
    for span in (span for scope in scopes for span in _list(scope, "spans")):
        if isinstance(span, Mapping) and (row := _row(span)):
            yield (_id(span.get("traceId")), _id(span.get("spanId") or object())), row


def request_frame(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Requests as a frame, numbered by arrival."""
    frame = pl.DataFrame(list(rows), schema_overrides={"id": pl.String}, infer_schema_length=None)
    if frame.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    frame = frame.sort("start_epoch_ns", nulls_last=True).with_row_index("request")
    constants = {"phase": pl.lit("profiled"), "repeat": pl.lit(0)}
    missing = [
        constants.get(name, pl.lit(None)).alias(name)
        for name in _SCHEMA
        if name not in frame.columns
    ]
    return frame.with_columns(missing).select(
        pl.col(name).cast(kind) for name, kind in _SCHEMA.items()
    )


def _documents(content: str, name: str, *, skip_broken: bool) -> Iterator[Any]:
    try:
        yield json.loads(content)
    except (ValueError, RecursionError):
        pass
    else:
        return
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                if not skip_broken:
                    found = f"line {number} of {name} is not JSON: {error}"
                    raise ReadError(
                        found, hint="skip_broken=True leaves such lines out", line=number
                    ) from error


def _list(value: Any, key: str) -> list[Any]:
    members = value.get(key) if isinstance(value, Mapping) else None
    return members if isinstance(members, list) else []


def _row(span: Mapping[str, Any]) -> dict[str, Any] | None:
    attributes = {
        str(one.get("key")): _value(one.get("value"))
        for one in _list(span, "attributes")
        if isinstance(one, Mapping)
    }
    row: dict[str, Any] = {}
    for column, names in _NAMES.items():
        value = next((attributes[name] for name in names if attributes.get(name) is not None), None)
        if value is not None and column != "id":
            value = _number(value)
            value = (
                None
                if value is None
                else round(value * NS_PER_S)
                if column.endswith("_ns")
                else round(value)
            )
        row[column] = value if column != "id" or value is None else _id(value)
    if row["e2e_ns"] is None and row["ttft_ns"] is None:
        return None
    try:
        start = int(span["startTimeUnixNano"])
    except (KeyError, TypeError, ValueError, OverflowError):
        start = 0
    return {**row, "start_epoch_ns": start if 0 < start < 1 << 63 else None}


def _of_sglang(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Row of a record that SGLang writes when a request has ended; its times are in seconds,
    some since the epoch.
    """
    began = _number(record.get("request_received_ts"))
    e2e = _number(record.get("e2e_latency"))
    if began is None or e2e is None:
        return None

    def since(start: float | None, *names: str) -> int | None:
        end = next((at for name in names if (at := _number(record.get(name))) is not None), None)
        return (
            None if start is None or end is None or end < start else round((end - start) * NS_PER_S)
        )

    first = ("prefill_finished_time", "prefill_finished_ts")
    filled = next((at for name in first if (at := _number(record.get(name))) is not None), None)
    queue = _number(record.get("queue_time"))
    counts = {column: _number(record.get(name)) for column, name in _COUNTS.items()}
    return {
        "id": None if record.get("id") is None else _id(record["id"]),
        "start_epoch_ns": round(began * NS_PER_S),
        **{column: None if value is None else round(value) for column, value in counts.items()},
        "queue_ns": None if queue is None else round(queue * NS_PER_S),
        "ttft_ns": since(began, *first),
        "prefill_ns": since(_number(record.get("forward_entry_time")), *first),
        "decode_ns": since(filled, "request_finished_ts"),
        "e2e_ns": round(e2e * NS_PER_S),
    }


_COUNTS: Final = {"prompt_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}


def _id(value: Any) -> str:
    """What identifies a request, as a text that is not long."""
    return str(value)[:_LONGEST_ID]


def _number(value: Any) -> float | None:
    """A number, unless it is so large that nanoseconds of it, or of a difference of two, are no
    integer of 64 bits.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < _MOST else None


def _value(value: Any) -> Any:
    """Value of an attribute:

    OTLP writes ``{"intValue": "12"}``, ``{"doubleValue": 0.5}``, ``{"stringValue": "x"}``.
    """
    return next(iter(value.values()), None) if isinstance(value, Mapping) else None
