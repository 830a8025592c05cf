"""Putting the pages of Nsight Compute together: pages of the same launches, and runs that are not the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from llmprof import kernel_names, schema
from llmprof.metrics_data import Metrics
from llmprof.readers._ncu_pages import LAUNCH, Part

_TOLERANCE: Final = 1e-3
"""Pages round: details.csv has two digits after the point."""

_DIFFERENT: Final = 0.05
"""Share of common metrics that may differ between two pages of the same launches (rounding of very small values)."""

_SAME: Final = ("id", "grid", "block", "_base")


def combine(parts: Sequence[Part], coverage: Mapping[str, Any]) -> Metrics:
    """Metrics of all parts, the launches numbered over all of them.

    Two parts are of the same launches where process, number, name, grid and block agree and no more than a few of
    their common metrics differ; otherwise they are of different runs.
    """
    runs: list[Part] = []
    for part in parts:
        for i, run in enumerate(runs):
            matched = _match(run, part)
            if matched is not None:
                runs[i] = _joined(run, part, matched)
                break
        else:
            runs.append(part)
    launches, metrics, rules = [], [], []
    offset = 0
    for number, run in enumerate(runs):
        ids = run.launches.select("launch").with_columns(
            kernel_id=pl.int_range(offset, offset + run.launches.height, dtype=pl.Int32)
        )
        offset += run.launches.height
        launches.append(
            run.launches.join(ids, on="launch", maintain_order="left").with_columns(run=pl.lit(number, pl.Int32))
        )
        about = launches[-1].select("launch", "kernel_id", "kernel_name", "grid", "block", "stream", "device")
        metrics.append(run.metrics.join(about, on="launch", maintain_order="left"))
        rules.append(run.rules.join(ids, on="launch", maintain_order="left"))
    if not runs:
        return Metrics(schema.METRICS.empty(), coverage=coverage)
    return Metrics(
        pl.concat(metrics).sort("kernel_id", maintain_order=True),
        pl.concat(rules).sort("kernel_id", maintain_order=True),
        pl.concat(launches).drop("launch"),
        coverage,
    )


def _named(part: Part) -> pl.DataFrame:
    return part.launches.with_columns(kernel_names.function(part.launches["kernel_name"]).alias("_base"))


def _match(run: Part, part: Part) -> pl.DataFrame | None:
    """Which launch of a part is which of a run: ``launch, launch_run``; None where they are of different runs."""
    if not run.launches.height or not part.launches.height:
        return None
    processes = [set(p.launches["process"].drop_nulls().to_list()) for p in (run, part)]
    if all(processes) and not processes[0] & processes[1]:
        return None
    ours, theirs = _named(run).select("launch", *_SAME), _named(part).select("launch", *_SAME)
    matched = theirs.join(ours, on=_SAME, how="inner", suffix="_run", nulls_equal=True, maintain_order="left")
    if matched.height != min(ours.height, theirs.height):
        return None
    both = (
        part.metrics.join(matched.select("launch", "launch_run"), on="launch")
        .join(
            run.metrics,
            left_on=["launch_run", "section", "metric"],
            right_on=["launch", "section", "metric"],
            nulls_equal=True,
        )
        .filter(pl.col("value").is_not_null() & pl.col("value_right").is_not_null())
    )
    scale = pl.max_horizontal(pl.col("value").abs(), pl.col("value_right").abs())
    differs = (pl.col("value") - pl.col("value_right")).abs() > _TOLERANCE * scale
    share = both.select(differs.mean()).item() if both.height else 0.0
    return matched.select("launch", "launch_run") if share <= _DIFFERENT else None


def _joined(run: Part, part: Part, matched: pl.DataFrame) -> Part:
    """A run with what a further page of its launches adds."""
    more = part.launches.join(matched, on="launch", how="left", maintain_order="left")
    first_free = (run.launches["launch"].max() or 0) + 1  # type: ignore[operator]
    fresh = pl.col("launch_run").is_null()
    more = more.with_columns(launch_run=pl.coalesce("launch_run", fresh.cum_sum() - 1 + first_free).cast(pl.Int32))
    number = more.select("launch", "launch_run")
    new = more.filter(~pl.col("launch_run").is_in(run.launches["launch"].implode())).drop("launch")

    def renumbered(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.join(number, on="launch", maintain_order="left").drop("launch").rename({"launch_run": "launch"})

    launches = pl.concat([run.launches, new.rename({"launch_run": "launch"}).select(run.launches.columns)])
    metrics, rules = renumbered(part.metrics), renumbered(part.rules)
    fresh_metrics = metrics.join(
        run.metrics, on=["launch", "section", "metric"], how="anti", nulls_equal=True, maintain_order="left"
    )
    fresh_rules = rules.join(run.rules, on=["launch", "rule", "text"], how="anti", maintain_order="left")
    filled = _filled(launches, part.launches, matched)
    return Part(
        run.source,
        filled,
        pl.concat([run.metrics, fresh_metrics.select(run.metrics.columns)]),
        pl.concat([run.rules, fresh_rules.select(run.rules.columns)]),
    )


def _filled(launches: pl.DataFrame, other: pl.DataFrame, matched: pl.DataFrame) -> pl.DataFrame:
    """Launches with what only the other page knows of them (a report knows no process)."""
    known = other.join(matched, on="launch").drop("launch").rename({"launch_run": "launch"})
    out = launches.join(known, on="launch", how="left", suffix="_other", maintain_order="left")
    return out.select("launch", *(pl.coalesce(c, f"{c}_other").alias(c) for c in LAUNCH.values()))
