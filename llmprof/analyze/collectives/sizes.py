"""Message sizes from the shapes of the operator that called, where the profiler wrote no metadata."""

from __future__ import annotations

import polars as pl

from llmprof.names import element_bytes
from llmprof.trace import Trace

_TENSOR = r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]"


def with_sizes(frame: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Fill ``bytes, bytes_source, dtype`` from the operator's inputs where they are null.

    The message is the largest input tensor; for an all-gather it is that times the ranks of the group, since the
    size of a collective is that of the larger of its input and output.

    Parameters
    ----------
    frame : polars.DataFrame
        Collectives with ``op_id`` and ``world`` (null where the size of the group is not known).
    trace : Trace
        The trace, for its operators.

    Returns
    -------
    polars.DataFrame
        The frame with the three columns filled where the shapes allow it.
    """
    if not trace.has("ops") or not frame["bytes"].is_null().any():
        return frame
    wanted = frame.filter(pl.col("bytes").is_null() & pl.col("op_id").is_not_null()).select("rank", "op_id").unique()
    calls = (
        trace.ops.filter(
            pl.col("shapes").str.contains(_SHAPES)
            & ~pl.col("shapes").str.contains(r"\d{19}")
            & pl.col("dtypes").str.contains(_TYPES)
        )
        .join(wanted, on=["rank", "op_id"], how="semi")
        .unique(["rank", "op_id"], keep="first", maintain_order=True)
    )
    shapes = calls.select("shapes", "dtypes").unique()
    # the n-th list of the shapes belongs to the n-th type; scalars have an empty list
    largest = (
        shapes.with_columns(
            shape=pl.col("shapes").str.json_decode(pl.List(pl.List(pl.Int64)))
            if _all_flat(shapes["shapes"])
            else pl.col("shapes").str.extract_all(_TENSOR).list.eval(pl.element().str.json_decode(pl.List(pl.Int64))),
            type=pl.col("dtypes").str.json_decode(pl.List(pl.String)),
        )
        .with_row_index("_call")
        .select("_call", "shapes", "dtypes", "shape", "type")
    )
    tensors = (
        largest.select("_call", "shape")
        .explode("shape")
        .with_columns(n=pl.int_range(pl.len()).over("_call"))
        .filter(pl.col("shape").list.len() > 0)
        .with_columns(elements=pl.col("shape").list.eval(pl.element().product()).list.first())
    )
    types = largest.select("_call", "type").explode("type").with_columns(n=pl.int_range(pl.len()).over("_call"))
    best = (
        tensors.join(types, on=["_call", "n"], how="left")
        .with_columns(size=pl.col("elements") * element_bytes(pl.col("type")))
        .filter(pl.col("size").is_not_null())
        .sort("_call", "size", descending=[False, True], maintain_order=True)
        .unique("_call", keep="first", maintain_order=True)
    )
    sizes = largest.select("_call", "shapes", "dtypes").join(
        best.select("_call", op_bytes="size", op_dtype="type"), on="_call"
    )
    by_op = calls.join(sizes.drop("_call"), on=["shapes", "dtypes"], nulls_equal=True).select(
        "rank", "op_id", "op_bytes", "op_dtype"
    )
    frame = frame.join(by_op, on=["rank", "op_id"], how="left", maintain_order="left")
    size = pl.col("op_bytes") * pl.when(pl.col("kind") == "all_gather").then("world").otherwise(1)
    return frame.with_columns(
        bytes=pl.coalesce("bytes", size),
        bytes_source=pl.when(pl.col("bytes").is_not_null())
        .then("bytes_source")
        .when(size.is_not_null())
        .then(pl.lit("shapes")),
        dtype=pl.coalesce("dtype", pl.col("op_dtype").str.replace("c10::", "")),
    ).drop("op_bytes", "op_dtype")


_SHAPES = r"^[\[\]\d,\s]+$"
"""Lists of sizes; a shape that holds anything else tells no size."""
_TYPES = r'^\[(?:\s*"[^"\\\\]*"\s*,?)*\]$'


def _all_flat(shapes: pl.Series) -> bool:
    """Whether no operator takes a list of tensors (whose shapes are one level deeper)."""
    return not shapes.str.contains(r"\[\s*\[\s*\[").any()
