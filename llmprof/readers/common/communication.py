"""The COLLECTIVES table: communication among the kernels, or among the operators where the run was on CPU."""

from __future__ import annotations

import polars as pl

from llmprof import names, schema

METADATA = ["collective", "in_elements", "out_elements", "world", "dtype", "group", "group_ranks", "peer"]
"""Columns of a kernel frame that describe a collective and belong into the table of collectives only."""

_HOST_OPS = r"^_C::shm_(?:allreduce|all_gather|gather|send_tensor_list|recv_tensor_list)|^c10d::|^gloo:"


def find(kernels: pl.DataFrame | None, ops: pl.DataFrame | None) -> pl.DataFrame | None:
    """Collectives of one file.

    Parameters
    ----------
    kernels : polars.DataFrame or None
        Kernels, with the columns of :data:`METADATA` where the profiler wrote them.
    ops : polars.DataFrame or None
        Host operators; looked at only where there are no kernels.

    Returns
    -------
    polars.DataFrame or None
        Rows of the table of collectives without ``rank``; None where neither was recorded.
    """
    if kernels is not None and kernels.height:
        every = kernels["name"].unique()
        collective = every.filter(names.by_unique_name(every, _patterns(), "") == "collective")
        found = kernels.filter(pl.col("name").is_in(collective.implode())).with_columns(on_device=pl.lit(True))
    elif ops is not None:
        found = ops.filter(pl.col("name").str.contains(_HOST_OPS)).with_columns(
            device=pl.lit(None, dtype=pl.Int64),
            stream=pl.lit(None, dtype=pl.Int64),
            correlation=pl.lit(None, dtype=pl.Int64),
            on_device=pl.lit(False),
        )
    else:
        return None
    dtypes = schema.COLLECTIVES.schema
    missing = [c for c in METADATA if c not in found.columns]
    found = found.with_columns(pl.lit(None, dtype=dtypes.get(c, pl.String)).alias(c) for c in missing)
    elements = pl.max_horizontal("in_elements", "out_elements")
    size = (elements * names.element_bytes(pl.col("dtype").cast(pl.String))).cast(pl.Int64)
    found = found.drop("kind", strict=False)  # of the operator
    found = found.join(
        _described(found), on=["collective", "name"], how="left", nulls_equal=True, maintain_order="left"
    )
    return found.select(
        "device",
        "stream",
        "start_ns",
        "dur_ns",
        "name",
        *(pl.col(c) for c in METADATA if c != "collective"),
        "correlation",
        "op_id",
        "on_device",
        "kind",
        "algorithm",
        bytes=size,
        bytes_source=pl.when(size.is_not_null()).then(pl.lit("metadata")),
    )


def _patterns() -> list[tuple[str, str]]:
    """Patterns of kernels as far as they decide which are collectives."""
    last = max(i for i, (category, _) in enumerate(names.KERNEL_PATTERNS) if category == "collective")
    return names.KERNEL_PATTERNS[: last + 1]


def _described(found: pl.DataFrame) -> pl.DataFrame:
    """Kind by the collective's own name where the profiler wrote one, else by the kernel's, and the algorithm."""
    distinct = found.select(pl.col("collective").cast(pl.String), "name").unique()
    own = distinct.select(pl.coalesce("collective", "name").alias("own"))["own"]
    return distinct.with_columns(
        kind=names.collective_kinds(own), algorithm=names.collective_algorithms(distinct["name"])
    )
