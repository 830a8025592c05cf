"""Rows of the timeline that are requests: what each waited for, its prefill and its decode."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.explore.timeline.rows import Keys, Names, Row, spans

GROUP: Final = -2
"""Number of the group of requests, which stands where ranks have theirs (the host's is -1)."""

KIND: Final = "requests"


def request_rows(frame: pl.DataFrame, keys: Keys, names: Names) -> list[Row]:
    """A row for each request, by arrival.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of :func:`llmprof.analyze.request_spans`; ids of the spans count them.
    keys, names
        Colours and names of the timeline.
    """
    step = pl.when(pl.col("step").is_not_null()).then(pl.format(", step {}", "step")).otherwise(pl.lit(""))
    tokens = pl.when(pl.col("tokens") > 1).then(pl.format(" of {} tokens", "tokens")).otherwise(pl.lit(""))
    made = frame.with_row_index("id_").select(
        *("request", "start_ns", "dur_ns"),
        id=pl.col("id_"),
        name=names.numbers(frame.select(pl.format("{}{}{}", "part", tokens, step)).to_series()),
        code=keys.codes("request", frame["part"]),
    )
    order = made.group_by("request").agg(pl.col("start_ns").min()).sort("start_ns", "request")["request"]
    parts = made.sort("start_ns", maintain_order=True).partition_by("request", as_dict=True)
    return [Row(KIND, GROUP, f"request {one}", spans(parts[one,], slack=1 << 62)) for one in order]
