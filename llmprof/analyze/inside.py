"""Calls inside of a call, whose arguments its work needs where its own do not say enough."""

from __future__ import annotations

import json
from typing import Final

import polars as pl

from llmprof.theory.calls import OperatorCall, costed_operator, parse_call
from llmprof.theory.calls.call import ALLOCATION
from llmprof.trace.schema import END

_CallTexts = tuple[str, str | None, str | None, str | None, str | None]

_TEXTS: Final = ("name", "shapes", "dtypes", "torch_strides", "torch_inputs")


def with_texts(ops: pl.DataFrame) -> pl.DataFrame:
    """Operators with a column for each text of a call, null where it was not recorded."""
    return ops.with_columns(
        pl.lit(None, pl.String).alias(name) for name in _TEXTS if name not in ops.columns
    )


def texts_inside(owners: pl.Series, ops: pl.DataFrame) -> pl.Series:
    """For each row of the operators the calls inside of it as a text (JSON), null where its work
    needs none.
    """
    found = _rows(owners, ops)
    table = pl.DataFrame(
        {"row": list(found), "inside": [json.dumps(inner) for inner in found.values()]},
        schema={"row": owners.dtype, "inside": pl.String},
    )
    return owners.to_frame("row").join(table, on="row", how="left", maintain_order="left")["inside"]


def calls_of_text(text: str | None) -> tuple[OperatorCall, ...]:
    """Calls from a text of :func:`texts_inside`."""
    return tuple(parse_call(*texts) for texts in json.loads(text)) if text else ()


def _rows(owners: pl.Series, ops: pl.DataFrame) -> dict[int, list[_CallTexts]]:
    """Texts of the calls inside of each owner whose work needs some."""
    around = ops.select("name", "rank", "thread", "start_ns", end=END)
    around = around.with_row_index("owner")[owners.drop_nulls().unique()]
    needed = {
        name: {*known.inside.split()}
        for name in around["name"].unique()
        if (known := costed_operator(name)) is not None and known.inside
    }
    around = around.filter(pl.col("name").is_in([*needed]))
    inner = ops.filter(
        pl.col("name").is_in([*set().union(*needed.values())]),
        pl.col("shapes").is_not_null() | (pl.col("name") == ALLOCATION),
    ).sort("start_ns", maintain_order=True)
    first, stop = (
        inner["start_ns"].search_sorted(around[at], side="left") for at in ("start_ns", "end")
    )
    return {
        owner: [
            texts
            for *place, texts in zip(
                *(part[of] for of in ("rank", "thread")), part[list(_TEXTS)].rows(), strict=True
            )
            if place == [rank, thread] and texts[0] in needed[name]
        ]
        for owner, name, rank, thread, low, high in zip(
            *(around[of] for of in ("owner", "name", "rank", "thread")), first, stop, strict=True
        )
        for part in [inner[low:high]]
    }
