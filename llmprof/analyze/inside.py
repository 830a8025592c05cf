"""Calls inside of a call, whose arguments its work needs where its own do not say enough."""

from __future__ import annotations

import json
from typing import Final

import polars as pl

from llmprof.theory.calls import Call, Kind, kind_of, recorded
from llmprof.theory.calls.call import ALLOCATION

Texts = tuple[str, str | None, str | None, str | None, str | None]

_TEXTS: Final = ("name", "shapes", "dtypes", "torch_strides", "torch_inputs")


def with_texts(ops: pl.DataFrame) -> pl.DataFrame:
    """Operators with a column for each text of a call, null where it was not recorded."""
    return ops.with_columns(pl.lit(None, dtype=pl.String).alias(name) for name in _TEXTS if name not in ops.columns)


def calls_inside(owner: int, kind: Kind, ops: pl.DataFrame) -> tuple[Call, ...]:
    """Calls inside of the call in a row of the operators that its kind's work needs, if their shapes were recorded."""
    return tuple(recorded(*texts) for texts in _rows(owner, kind, ops))


def texts_inside(owners: pl.Series, ops: pl.DataFrame) -> pl.Series:
    """For each row of the operators the calls inside of it as a text (JSON), null where its work needs none."""
    rows = pl.DataFrame({"row": owners.drop_nulls().unique()})
    named = rows.with_columns(name=ops["name"][rows["row"]])
    kinds = {name: kind for name in named["name"].unique() if (kind := kind_of(name)) is not None and kind.inside}
    needed = named.filter(pl.col("name").is_in([*kinds]))
    made = [json.dumps(_rows(row, kinds[name], ops)) for row, name in needed.iter_rows()]
    table = needed.select("row", inside=pl.Series(made, dtype=pl.String))
    return owners.to_frame("row").join(table, on="row", how="left", maintain_order="left")["inside"]


def calls_of_text(text: str | None) -> tuple[Call, ...]:
    """Calls from a text of :func:`texts_inside`."""
    return tuple(recorded(*texts) for texts in json.loads(text)) if text else ()


def _rows(owner: int, kind: Kind, ops: pl.DataFrame) -> list[Texts]:
    around = ops.row(owner, named=True)
    end = around["start_ns"] + around["dur_ns"]
    last = ops["rank"].search_sorted(around["rank"], side="right") if ops["rank"].is_sorted() else 0
    starts = ops["start_ns"].slice(owner, max(0, last - owner))
    near = ops.slice(owner, starts.search_sorted(end)) if len(starts) and starts.is_sorted() else ops
    start = pl.col("start_ns")
    inner = near.filter(
        pl.col("name").is_in([*kind.inside.split()]), pl.col("rank") == around["rank"],
        pl.col("thread").eq_missing(around["thread"]), start >= around["start_ns"], start < end,
        pl.col("shapes").is_not_null() | (pl.col("name") == ALLOCATION),
    )  # fmt: skip
    return list(inner.select(_TEXTS).iter_rows())
