"""Expert and data parallelism: the cost of sending tokens to the experts, and the balance of
work over the ranks.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.collectives.collectives import collectives
from llmprof.label.intervals import union_lengths
from llmprof.label.steps.steps import steps_of
from llmprof.trace import Trace

_WAYS: Final = {"expert_dispatch": "dispatch", "combine": "combine"}


@Analysis(
    question=(
        "What does sending tokens to the experts cost, and are the experts' ranks evenly loaded?"
    ),
    help="experts on several ranks: dispatch, combine, waiting, rows and load",
    view="experts",
    recorded="device activity or operators",
)
def expert_exchange(trace: Trace) -> pl.DataFrame:
    """Exchange of tokens with the ranks of their experts, layer by layer.

    One collective brings the experts' ranks their tokens (dispatch), one returns the results
    (combine): an all-to-all, or an all-gather and a reduce-scatter. The other ranks wait in the
    combine for the one with the most tokens.

    Parameters
    ----------
    trace : Trace
        A trace with layers and collectives; several ranks to compare them.

    Returns
    -------
    polars.DataFrame
        One row for each rank and layer of a pass in which tokens are exchanged, by rank and time:

        - ``rank, step, phase, layer`` (step and phase are null in a pass of padding, of a rank
          without requests; its layer is that of the ranks with requests), ``call`` (the same
          number on all ranks of one exchange, null where the other ranks' calls are not known),
          ``ranks`` (ranks of the trace that take part);
        - ``kind`` (of the collectives, such as ``all_to_all``);
        - ``sent_rows, received_rows`` (rows of the largest tensor that this rank gives to its
          dispatch and gets from it: tokens, once for each expert where the exchange sends them so;
          null where not recorded);
        - ``dispatch_ns, dispatch_wait_ns, dispatch_bytes`` and ``combine_ns, combine_wait_ns,
          combine_bytes`` (sums over the calls; waiting and bytes are null where one of them is not
          known);
        - ``experts_ns`` (time of the experts' kernels), ``imbalance`` (the largest of the ranks
          over their mean; 1 is even), ``last_rank`` (whose experts take longest);
        - ``arrival_skew_ns`` (largest difference of arrival among the calls).

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.

    Examples
    --------
    >>> frame = analyze.expert_exchange(trace)
    """
    events = trace.events
    ways = pl.col("stage").replace_strict(_WAYS, default=None, return_dtype=pl.String)
    every = events.filter(category="collective").with_columns(way=ways)
    in_layers = every.filter(
        pl.col("way").is_not_null() & pl.col("step").is_not_null() & pl.col("layer").is_not_null()
    )
    if not in_layers.height:
        return pl.DataFrame(schema=_EXCHANGE)
    sends = _exchanges(trace, every, in_layers)
    rows = sends.group_by("rank", "turn", maintain_order=True).agg(
        pl.first("step", "phase", "layer"),
        pl.min("call").alias("call"),
        pl.max("ranks"),
        pl.col("kind").drop_nulls().unique(maintain_order=True).str.join(" and ").alias("kind"),
        *(_of_way(way) for way in ("dispatch", "combine")),
        pl.max("arrival_skew_ns"),
        start_ns=pl.min("start_ns"),
        _until=pl.max("start_ns"),
    )
    rows = rows.unnest("dispatch", "combine")
    of_experts = (pl.col("stage") == "experts") | (pl.col("category") == "moe_experts")
    inside = events.filter(of_experts & (pl.col("category") != "collective"))[
        ["rank", "start_ns", "dur_ns"]
    ]
    experts = (
        inside.sort("start_ns")
        .join_asof(
            rows[["rank", "turn", "start_ns", "_until"]].sort("start_ns"),
            on="start_ns",
            by="rank",
            check_sortedness=False,
        )
        .filter(pl.col("start_ns") <= pl.col("_until"))
        .group_by("rank", "turn")
        .agg(experts_ns=pl.sum("dur_ns"))
    )
    rows = rows.join(experts, on=["rank", "turn"], how="left", maintain_order="left")
    together = pl.col("call").is_not_null() & (pl.len().over("call") > 1)
    longest = pl.max("experts_ns").over("call")
    return (
        rows.with_columns(
            imbalance=pl.when(together).then(longest / pl.mean("experts_ns").over("call")),
            last_rank=pl.when(together).then(
                pl.col("rank").filter(experts_ns=longest).min().over("call")
            ),
        )
        .sort("rank", "start_ns")
        .select(list(_EXCHANGE))
        .cast(_EXCHANGE)
    )


def _exchanges(trace: Trace, every: pl.DataFrame, in_layers: pl.DataFrame) -> pl.DataFrame:
    """Calls that exchange tokens, passes of padding included, with sizes and the number of the
    exchange.
    """
    key = ["rank", "start_ns", "name"]
    calls = collectives(trace).select(
        *key,
        "call",
        "kind",
        "world",
        "bytes",
        "wait_ns",
        "transfer_ns",
        "arrival_skew_ns",
        "ranks",
    )
    labels = every.select(*key, "dur_ns", "op_id").unique(key, keep="first")
    calls = calls.join(labels, on=key, how="left", maintain_order="left")
    own = in_layers.select(*key, "step", "phase", own_layer="layer", own_way="way").unique(
        key, keep="first"
    )
    calls = calls.join(own, on=key, how="left", maintain_order="left")
    of_call = (
        calls.drop_nulls(["call", "own_way"])
        .group_by("call")
        .agg(layer=pl.min("own_layer"), way=pl.min("own_way"))
    )
    calls = calls.join(of_call, on="call", how="left", maintain_order="left").with_columns(
        layer=pl.coalesce("own_layer", "layer"), way=pl.coalesce("own_way", "way")
    )
    rows = _rows_of(trace, calls)
    calls = calls.join(rows, on=["rank", "op_id"], how="left", maintain_order="left")
    # an all-gather brings the rows of all ranks to each
    brought = (
        calls.drop_nulls("call")
        .group_by("call")
        .agg(
            gathered=pl.when(
                (pl.len() == pl.max("world")) & (pl.col("sent_rows").null_count() == 0)
            ).then(pl.sum("sent_rows"))
        )
    )
    sizes = trace.collectives.select(*key, "in_elements", "out_elements").unique(key, keep="first")
    sends = calls.drop_nulls("way").join(sizes, on=key, how="left", maintain_order="left")
    sends = sends.join(brought, on="call", how="left", maintain_order="left").with_columns(
        pl.coalesce("sent_rows", pl.col("in_elements") // pl.col("columns")),
        received_rows=pl.when(pl.col("kind") == "all_gather")
        .then("gathered")
        .otherwise(pl.coalesce("received_rows", pl.col("out_elements") // pl.col("columns"))),
    )
    dispatches = pl.col("way") == "dispatch"
    begins = dispatches & (pl.col("way").shift(1).over("rank") != "dispatch").fill_null(True)
    return sends.sort("rank", "start_ns").with_columns(
        turn=begins.cast(pl.Int64).cum_sum().over("rank")
    )


_EXCHANGE: Final = pl.Schema(
    {
        "rank": pl.Int32(),
        "step": pl.Int32(),
        "phase": pl.String(),
        "layer": pl.Int32(),
        "call": pl.Int64(),
        "ranks": pl.Int32(),
        "kind": pl.String(),
        "sent_rows": pl.Int64(),
        "received_rows": pl.Int64(),
        "dispatch_ns": pl.Int64(),
        "dispatch_wait_ns": pl.Int64(),
        "dispatch_bytes": pl.Int64(),
        "experts_ns": pl.Int64(),
        "imbalance": pl.Float64(),
        "last_rank": pl.Int32(),
        "combine_ns": pl.Int64(),
        "combine_wait_ns": pl.Int64(),
        "combine_bytes": pl.Int64(),
        "arrival_skew_ns": pl.Int64(),
    }
)


def _of_way(way: str) -> pl.Expr:
    """Sums over the dispatch calls or the combine calls, as a struct; null if a value is
    unknown.
    """
    here = pl.col("way") == way

    def known(column: str) -> pl.Expr:
        values = pl.col(column).filter(here)
        return pl.when((values.len() > 0) & (values.null_count() == 0)).then(values.sum())

    parts = [
        pl.col("dur_ns").filter(here).sum().alias(f"{way}_ns"),
        known("wait_ns").alias(f"{way}_wait_ns"),
        known("bytes").alias(f"{way}_bytes"),
    ]
    if way == "dispatch":
        parts += [pl.col(column).filter(here).max() for column in ("sent_rows", "received_rows")]
    return pl.struct(parts).alias(way)


def _rows_of(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """``rank, op_id, sent_rows, received_rows, columns`` of operators that send; torch takes the
    output first.
    """
    numbers = dict.fromkeys(["op_id", "sent_rows", "received_rows", "columns"], pl.Int64)
    empty = pl.DataFrame(schema={"rank": pl.Int32, **numbers})
    if not trace.has("ops"):
        return empty
    operators = calls[["rank", "op_id"]].drop_nulls().unique()
    ops = trace.ops.join(operators, on=["rank", "op_id"], how="semi").filter(
        pl.col("shapes").str.contains(_TWO)
    )
    if not ops.height:
        return empty
    shapes = (
        ops[["shapes", "name"]]
        .unique()
        .with_columns(
            both=pl.col("shapes")
            .str.extract_all(_TWO)
            .list.eval(pl.element().str.extract(r"(\d+)").cast(pl.Int64)),
            swaps=pl.col("name").str.contains("(?i)all_?to_?all"),
        )
    )
    first, second = pl.col("both").list.get(0), pl.col("both").list.get(1, null_on_oob=True)
    shapes = shapes.with_columns(
        sent_rows=pl.when("swaps").then(second).otherwise(first),
        received_rows=pl.when("swaps").then(first),
        columns=pl.col("shapes").str.extract(_TWO).str.extract(r"(\d+)\s*\]").cast(pl.Int64),
    )
    return (
        ops.join(shapes.drop("both", "swaps"), on=["shapes", "name"])
        .group_by("rank", "op_id")
        .agg(pl.first("sent_rows", "received_rows", "columns"))
    )


_TWO: Final = r"(\[\s*\d+\s*,\s*\d+\s*\])"
"""The shape of a matrix in a list of shapes."""


def rank_balance(trace: Trace) -> pl.DataFrame:
    """Work, waiting and idle time of each rank: ``analyze.ranks(trace)``."""
    events = trace.events[["rank", "step", "category", "start_ns", "dur_ns"]]
    calls = collectives(trace)
    collective = (pl.col("category") == "collective").fill_null(False)
    lengths = union_lengths(
        events,
        ["rank"],
        compute_ns=~collective,
        communication_ns=collective,
        _busy=pl.lit(True),
    )
    window = pl.max("last_ns") - pl.min("first_ns")
    waits = calls.group_by("rank").agg(
        wait_ns=pl.when(pl.col("wait_ns").is_not_null().any()).then(pl.sum("wait_ns"))
    )
    rows = (
        lengths.with_columns(
            idle_ns=window - pl.col("_busy"), busy_share=pl.col("compute_ns") / window
        )
        .join(waits, on="rank", how="left", maintain_order="left")
        .with_columns(
            wait_ns=pl.when(pl.col("rank").is_in(calls["rank"].unique().implode()))
            .then("wait_ns")
            .otherwise(0)
        )
        .join(
            _groups(calls, lengths["rank"].to_list()), on="rank", how="left", maintain_order="left"
        )
        .join(_tokens(trace), on="rank", how="left", maintain_order="left")
    )
    return (
        rows.with_columns(
            pl.col("steps").fill_null(0),
            imbalance=pl.col("compute_ns") / pl.mean("compute_ns"),
        )
        .select(list(_BALANCE))
        .cast(_BALANCE)
        .sort("rank")
    )


_BALANCE: Final = pl.Schema(
    {
        "rank": pl.Int32(),
        "group": pl.Int32(),
        "steps": pl.Int64(),
        "prefill_tokens": pl.Int64(),
        "decode_tokens": pl.Int64(),
        "compute_ns": pl.Int64(),
        "communication_ns": pl.Int64(),
        "wait_ns": pl.Int64(),
        "idle_ns": pl.Int64(),
        "busy_share": pl.Float64(),
        "imbalance": pl.Float64(),
    }
)


def _tokens(trace: Trace) -> pl.DataFrame:
    """``rank, steps, prefill_tokens, decode_tokens``."""
    known = {
        "prefill_tokens": pl.col("prefill_tokens"),
        "decode_tokens": pl.col("decode_tokens"),
    }
    totals = {
        name: pl.when(of_step.is_not_null().all()).then(of_step.sum())
        for name, of_step in known.items()
    }
    return steps_of(trace).group_by("rank").agg(steps=pl.len(), **totals)


def _groups(calls: pl.DataFrame, ranks: list[int]) -> pl.DataFrame:
    """``rank, group``: ranks that call collectives together, directly or through others, have
    the same number.
    """
    pairs = calls.drop_nulls("call").group_by("call").agg(ranks=pl.col("rank").unique().sort())
    matched = set(pairs.filter(pl.col("ranks").list.len() > 1)["ranks"].explode())
    unknown = set(calls.drop_nulls("reason")["rank"]) - matched
    lead = {rank: rank for rank in ranks}
    for together in pairs["ranks"].unique().to_list():
        groups = {
            lead[rank] for rank in together if rank in lead
        }  # one may have nothing on a device
        lead = {rank: min(groups) if head in groups else head for rank, head in lead.items()}
    lead = {rank: head for rank, head in lead.items() if rank not in unknown}
    numbers = {head: i for i, head in enumerate(sorted(set(lead.values())))}
    return pl.DataFrame(
        {"rank": ranks, "group": [numbers[lead[rank]] if rank in lead else None for rank in ranks]},
        schema={"rank": pl.Int32, "group": pl.Int32},
    )
