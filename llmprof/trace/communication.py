"""Builds the table of collectives of a trace from the profiler's descriptions and from the names of
kernels.

Readers keep only the descriptions. Names depend on the patterns in :mod:`llmprof.names`, which a
process can extend, so they are applied when the collectives of a trace are used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import polars as pl

from llmprof import names
from llmprof.names.matching import by_distinct
from llmprof.trace import schema

METADATA: Final = "metadata"
"""Evidence of a row: the profiler describes the kernel as a collective (torch's NCCL metadata)."""

NAME: Final = "name"
"""Evidence of a row: the name of the kernel or operator."""

SOURCES: Final[dict[str, frozenset[str]]] = {
    "kernels": frozenset({"device", "stream", "correlation", "op_id"}),
    "ops": frozenset({"op_id"}),
}
"""Tables in which collectives are found, and the nullable columns that are needed for it."""

_KEY: Final = ["rank", "stream", "start_ns", "name"]
_SHARED: Final = ["rank", "device", "stream", "start_ns", "dur_ns", "name", "correlation", "op_id"]
_HOST_OPS: Final = (
    r"^_C::shm_(?:allreduce|all_gather|gather|send_tensor_list|recv_tensor_list)|^c10d::|^gloo:"
)


def make_collectives(
    tables: Mapping[str, pl.DataFrame], device_ranks: Collection[int] = ()
) -> pl.DataFrame | None:
    """The table of collectives.

    If the profiler of a rank wrote a track of collective calls (Ascend), these are its collectives.
    On other ranks they are the kernels that the profiler describes as collectives, and kernels with
    the name of a collective. On a rank without kernels they are operators of CPU backends.
    """
    if not tables.keys() & {"collectives", "kernels", "ops"}:
        return None
    kernels, ops = tables.get("kernels"), tables.get("ops")
    recorded = schema.conform(tables.get("collectives", schema.empty("collectives")), "collectives")
    found_again = pl.when("on_device").then(kernels is not None).otherwise(ops is not None)
    recorded = recorded.filter(~(pl.col("evidence").eq_missing(NAME) & found_again))
    complete = set(recorded.filter(pl.col("evidence").is_null())["rank"])
    parts = []
    if kernels is not None and kernels.height:
        parts.append(_of_kernels(_not_of(kernels, complete), recorded))
        device_ranks = {*device_ranks, *kernels["rank"].unique()}
    if ops is not None and ops.height:
        parts.append(_of_operators(_not_of(ops, complete | set(device_ranks))))
    rows = pl.concat([recorded, *(part for part in parts if part.height)], how="diagonal_relaxed")
    return schema.conform(_described(rows), "collectives")


def _not_of(frame: pl.DataFrame, ranks: Collection[int]) -> pl.DataFrame:
    return frame.filter(~pl.col("rank").is_in(list(ranks))) if ranks else frame


def _of_kernels(kernels: pl.DataFrame, recorded: pl.DataFrame) -> pl.DataFrame:
    """Kernels with the name of a collective that are not among the recorded collectives."""
    kept = kernels.select(c for c in _SHARED if c in kernels.columns)
    matching = kept.filter(by_distinct(kernels["name"], _are_collective))
    if recorded.height:
        matching = matching.join(
            recorded.select(_KEY), on=_KEY, how="anti", nulls_equal=True, maintain_order="left"
        )
    return matching.with_columns(on_device=pl.lit(True), evidence=pl.lit(NAME))


def _are_collective(distinct: tuple[str, ...]) -> pl.Series:
    """Whether each distinct name of a kernel is that of a collective."""
    patterns = names.patterns()
    last = max(i for i, (category, _) in enumerate(patterns) if category == "collective")
    return (
        names.by_unique_name(pl.Series(distinct, dtype=pl.String), patterns[: last + 1], "")
        == "collective"
    )


def _of_operators(ops: pl.DataFrame) -> pl.DataFrame:
    """Operators of a backend that communicates on the host; where its thread was recorded, not
    what enqueued them.
    """
    matching = ops.filter(pl.col("name").str.contains(_HOST_OPS))
    ran = pl.col("name").str.starts_with("gloo:")
    matching = matching.filter(ran | ~ran.any().over("rank"))
    return matching.select(
        "rank", "start_ns", "dur_ns", "name", *(c for c in ("op_id",) if c in matching.columns)
    ).with_columns(on_device=pl.lit(False), evidence=pl.lit(NAME))


def _described(rows: pl.DataFrame) -> pl.DataFrame:
    """Fill in kind, algorithm and size of each row if they are null."""
    # The kind follows from the name of the collective if the profiler wrote one, else from the name
    # of the kernel.
    distinct = rows[["recorded_as", "name"]].unique()
    own = distinct.select(own=pl.coalesce("recorded_as", "name"))["own"]
    meaning = distinct.with_columns(
        _kind=names.collective_kinds(own), _algorithm=names.collective_algorithms(distinct["name"])
    )
    rows = rows.join(
        meaning, on=["recorded_as", "name"], how="left", nulls_equal=True, maintain_order="left"
    )
    elements = pl.max_horizontal("in_elements", "out_elements")
    size = (elements * names.element_bytes(pl.col("dtype"))).cast(pl.Int64)
    return rows.with_columns(
        kind=pl.coalesce("kind", "_kind"),
        algorithm=pl.coalesce("algorithm", "_algorithm"),
        bytes=pl.coalesce("bytes", size),
        bytes_source=pl.when(pl.col("bytes").is_null() & size.is_not_null())
        .then(pl.lit(METADATA))
        .otherwise("bytes_source"),
    ).drop("_kind", "_algorithm")
