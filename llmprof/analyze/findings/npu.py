"""Rules about NPUs: operators that fall back to the AI CPUs, changes of format, and what the AI cores are busy with."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.findings.scope import Measure, Scope, most, total, worst
from llmprof.units import format_share

_FACTS = ("ascend_core", "ascend_op_type", "ascend_aic_mac_ratio", "ascend_aic_mac_time_ns", "ascend_aiv_vec_ratio",
          "ascend_aiv_vec_time_ns")  # fmt: skip
_UNITS = {"cube": ("ascend_aic_mac_time_ns", "ascend_aic_mac_ratio"),
          "vector": ("ascend_aiv_vec_time_ns", "ascend_aiv_vec_ratio")}  # fmt: skip

AI_CPU = r"(?i)^ai_?cpu"
"""Core types of kernels that a general processor of the device runs."""

FORMAT_CHANGES = r"(?i)(?:^|_)TransData"
"""Kernels that change the format of a tensor, such as ND to NZ."""


def ai_cpu(scope: Scope) -> Measure | None:
    """Time of operators that run on the AI CPUs of the device and not on its AI cores."""
    rows = _kernels(scope)
    if rows is None or "ascend_core" not in rows.columns:
        return None
    rows = rows.filter(pl.col("ascend_core").str.contains(AI_CPU))
    return _spoken(scope, rows, f"name IN ({_quoted(rows)})") if rows.height else None


def format_changes(scope: Scope) -> Measure | None:
    """Time of kernels that only change the format of a tensor."""
    rows = _kernels(scope)
    if rows is None:
        return None
    rows = rows.filter(pl.col("name").str.contains(FORMAT_CHANGES))
    return _spoken(scope, rows, "name LIKE '%TransData%'") if rows.height else None


def core_units(scope: Scope) -> Measure | None:
    """Time of kernels whose cube and vector units were measured, and how busy those were."""
    rows = _kernels(scope)
    if rows is None:
        return None
    busy = {
        unit: pl.coalesce(
            *(pl.col(time) for time in (time,) if time in rows.columns),
            *(pl.col(ratio) * pl.col("whole_ns") for ratio in (ratio,) if ratio in rows.columns),
        )
        for unit, (time, ratio) in _UNITS.items()
        if time in rows.columns or ratio in rows.columns
    }
    if not busy:
        return None
    # a kernel that is cut at the edge of a step counts with the part that is in it
    rows = rows.with_columns(**{u: value * pl.col("dur_ns") / pl.col("whole_ns") for u, value in busy.items()})
    rows = rows.filter(pl.any_horizontal(pl.col(list(busy)).is_not_null()))
    length = total(rows, "dur_ns")
    if not length:
        return None
    rank, window = worst(rows)
    shares = [f"the {unit} units {format_share(min(1.0, total(rows, unit) / length))}" for unit in busy]
    words = {"units": " and ".join(shares), "count": f"{rows.height / scope.parts:,.0f}"}
    return Measure(min(length, scope.span_ns), words, gain_ns=0.0, rank=rank, window_ns=window)


def _kernels(scope: Scope) -> pl.DataFrame | None:
    """Kernels of the scope, cut to it, with what the profiler says of their cores; ``whole_ns``: their whole length."""
    if not scope.trace.has("kernels"):
        return None
    kernels = scope.trace.kernels
    facts = [column for column in _FACTS if column in kernels.columns]
    if not facts:
        return None
    kept = kernels.select("rank", "device", "start_ns", "dur_ns", "name", *facts, whole_ns="dur_ns")
    return scope.cut(kept.filter(pl.col("whole_ns") > 0))


def _spoken(scope: Scope, rows: pl.DataFrame, where: str) -> Measure:
    name, share = most(rows, "name")
    rank, window = worst(rows)
    number = rows.height / scope.parts
    words = {
        "count": f"{number:,.0f}" if number.is_integer() else f"{number:,.1f}",
        "name": f"{name[:100]}{'…' if len(name) > 100 else ''} ({format_share(share)} of it)",
    }
    return Measure(total(rows, "dur_ns"), words, where=where, rank=rank, window_ns=window)


def _quoted(rows: pl.DataFrame) -> str:
    names = rows["name"].unique().sort().head(20)
    return ", ".join("'" + name.replace("'", "''") + "'" for name in names)
