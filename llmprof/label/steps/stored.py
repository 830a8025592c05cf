"""Tokens of forward passes that no label describes, from the launches that store their keys and
values.

vLLM's kernels of the cache run a block for each token that is stored (``dim3 grid(num_tokens)``,
with the tokens of ``slot_mapping`` before padding: vllm/csrc/cache_kernels.cu). In the ten samples
whose labels say the tokens of a step, all 11,612 such launches have exactly these.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.label.activity import EVENT_KEY, add_recorded, coded_names, launched_events
from llmprof.names.matching import contains
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace

_STORES: Final = r"\b(?:reshape_and_cache(?:_flash)?|concat_and_cache_mla)_kernel\b"

UNLABELLED: Final = ("inferred", "execute_model", "unknown_label")
"""Sources of steps that do not state a batch."""

HEAVIER: Final = 2
"""A pass that stores more than this many times the fewest tokens of any reads a prompt."""


@per_trace
def stored_tokens(trace: Trace) -> pl.DataFrame:
    """``event`` and ``tokens`` of the kernels that store keys and whose grid was recorded."""
    nothing = pl.DataFrame(schema={"event": pl.UInt32, "tokens": pl.Int64})
    if not trace.has("kernels") or "grid_x" not in trace.kernels.columns:
        return nothing
    events = (
        launched_events(trace)
        .filter(contains(coded_names(trace), _STORES))
        .select("event", *EVENT_KEY)
    )
    if events.is_empty():
        return nothing
    grids = trace.kernels.filter(pl.col("start_ns").is_in(events["start_ns"].implode()))
    found = add_recorded(events, grids.select(*EVENT_KEY, tokens=pl.col("grid_x").cast(pl.Int64)))
    return found[["event", "tokens"]].drop_nulls()


def tokens_of(passes: pl.DataFrame, key: list[str], trace: Trace) -> pl.DataFrame:
    """``*key, tokens, stores`` of passes whose launches agree; ``passes`` has ``event`` and the
    key.
    """
    rows = passes.select("event", *key).join(stored_tokens(trace), on="event").drop_nulls()
    rows = rows.group_by(key).agg(pl.first("tokens"), stores=pl.len(), n=pl.n_unique("tokens"))
    return rows.filter((pl.col("n") == 1) & (pl.col("tokens") > 0)).drop("n")


def add_batches(steps: pl.DataFrame, tokens: pl.DataFrame) -> pl.DataFrame:
    """Steps, sorted, with the batches of those that state none, where their tokens tell prompts
    from generation.

    Among the passes of a rank, those that store few tokens generate, one of each request. The one
    before them that stores many reads the prompts of these requests. Where no passes differ so, or
    several read, nothing says which.
    """
    rows = steps.join(
        tokens[["rank", "step", "tokens"]],
        on=["rank", "step"],
        how="left",
        maintain_order="left",
    )
    counts = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
    silent = pl.col("source").is_in(UNLABELLED) & pl.all_horizontal(
        pl.col(name).is_null() for name in counts
    )
    some = pl.col("tokens").is_not_null() & silent
    heavy = some & (pl.col("tokens") > HEAVIER * pl.col("tokens").filter(some).min().over("rank"))
    light = some & ~heavy
    rows = rows.with_columns(
        _reads=(heavy & (light.cum_sum().over("rank") == 0)).fill_null(False),
        _light=light.fill_null(False),
    )
    first = pl.col("tokens").filter("_light").first().over("rank")
    reads = pl.col("_reads") & (pl.sum("_reads").over("rank") == 1) & first.is_not_null()
    generates = pl.col("_light") & heavy.any().over("rank")
    known, zero = reads | generates, pl.lit(0, dtype=pl.Int64)
    made = {
        "prefill_requests": pl.when(reads).then(first).otherwise(zero),
        "prefill_tokens": pl.when(reads).then("tokens").otherwise(zero),
        "decode_requests": pl.when(generates).then("tokens").otherwise(zero),
        "decode_tokens": pl.when(generates).then("tokens").otherwise(zero),
        "phase": pl.when(reads).then(pl.lit("prefill")).otherwise(pl.lit("decode")),
    }
    return rows.with_columns(
        pl.when(known).then(new).otherwise(name).alias(name) for name, new in made.items()
    ).drop("tokens", "_reads", "_light")
