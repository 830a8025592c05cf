"""The requests of a run as a frame, and what each repeat of them came to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from llmprof.errors import ReadError
from llmprof.units import NS_PER_S

PHASES = ("warmup", "plain", "profiled")
LATENCIES = ("ttft_ns", "tpot_ns", "itl_ns", "queue_ns", "prefill_ns", "decode_ns", "e2e_ns")
RATES = ("output_tokens_per_s", "tokens_per_s", "requests_per_s")
METRICS = ("wall_ns", *LATENCIES, *RATES)
_SCHEMA = {
    "phase": pl.String,
    "repeat": pl.Int64,
    "request": pl.Int64,
    "start_epoch_ns": pl.Int64,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    **{name: pl.List(pl.Int64) if name == "itl_ns" else pl.Int64 for name in LATENCIES},
    "wall_ns": pl.Int64,
    "finish_reason": pl.String,
}


def request_metrics(worker: Mapping[str, Any]) -> pl.DataFrame:
    """Every request of a run with its latencies.

    Parameters
    ----------
    worker : mapping
        What the engine's script wrote (``worker.json``).

    Returns
    -------
    polars.DataFrame
        ``phase`` (``warmup``, ``plain``: without profiler, ``profiled``), ``repeat, request, start_epoch_ns,
        prompt_tokens, output_tokens``; times in ns: ``ttft_ns`` (to the first token), ``tpot_ns`` (a token after the
        first: ``decode / (output_tokens - 1)``), ``itl_ns`` (list: from token to token), ``queue_ns, prefill_ns,
        decode_ns, e2e_ns``, and ``wall_ns`` (of the whole repeat that the request belongs to); ``finish_reason``.
        What the engine does not tell is null.

    Raises
    ------
    ReadError
        The mapping has no list of requests, or a value of one is of another kind.
    """
    requests = worker.get("requests")
    if not isinstance(requests, list) or not all(isinstance(request, Mapping) for request in requests):
        raise ReadError("the worker's file has no list of requests", expected="worker.json of a llmprof run")
    walls = {
        (stage.get("name"), stage.get("repeat")): stage.get("dur_ns")
        for stage in worker.get("stages") or []
        if isinstance(stage, Mapping)
    }
    try:
        frame = pl.DataFrame([_row(request, walls) for request in requests], schema=_SCHEMA, orient="row")
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise ReadError(
            f"a request of the worker's file has a value of another kind: {error}",
            expected="seconds and counts of tokens as numbers",
        ) from error
    each = pl.when(pl.col("output_tokens") > 1).then(pl.col("decode_ns") / (pl.col("output_tokens") - 1))
    return frame.with_columns(pl.col("tpot_ns").fill_null(each.round().cast(pl.Int64)))


def _row(request: Mapping[str, Any], walls: Mapping[tuple[Any, Any], Any]) -> dict[str, Any]:
    kept = ("phase", "repeat", "request", "prompt_tokens", "output_tokens", "finish_reason")
    times = {name: _ns(request.get(name.removesuffix("_ns") + "_s")) for name in LATENCIES}
    wall = walls.get((request.get("phase"), request.get("repeat")))
    return (
        {name: request.get(name) for name in kept}
        | times
        | {"start_epoch_ns": request.get("start_ns"), "wall_ns": wall}
    )


def _ns(seconds: Any) -> Any:
    if seconds is None:
        return None
    return [_ns(gap) for gap in seconds] if isinstance(seconds, list) else round(seconds * NS_PER_S)


def repeats(frame: pl.DataFrame) -> pl.DataFrame:
    """Each repeat of each phase: its requests, tokens, rates and mean latencies.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of :func:`request_metrics`.

    Returns
    -------
    polars.DataFrame
        ``phase, repeat, requests, prompt_tokens, output_tokens, wall_ns``; ``output_tokens_per_s, tokens_per_s,
        requests_per_s`` (over ``wall_ns``); the means of the latencies over the requests (of ``itl_ns`` over the
        tokens).
    """
    sums = frame.group_by("phase", "repeat").agg(
        pl.len().cast(pl.Int64).alias("requests"),
        pl.col("prompt_tokens", "output_tokens").sum(),
        pl.col("wall_ns").first(),
        *(pl.col(name).explode().mean() if name == "itl_ns" else pl.col(name).mean() for name in LATENCIES),
    )
    wall_s = pl.when(pl.col("wall_ns") > 0).then(pl.col("wall_ns") / NS_PER_S)
    places = {name: i for i, name in enumerate(PHASES)}
    order = pl.col("phase").replace_strict(places, default=len(PHASES), return_dtype=pl.Int64)
    return sums.sort(order, "repeat").select(
        "phase",
        "repeat",
        "requests",
        "prompt_tokens",
        "output_tokens",
        "wall_ns",
        *LATENCIES,
        output_tokens_per_s=pl.col("output_tokens") / wall_s,
        tokens_per_s=(pl.col("output_tokens") + pl.col("prompt_tokens")) / wall_s,
        requests_per_s=pl.col("requests") / wall_s,
    )
