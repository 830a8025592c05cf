"""What an NPU's own records say: operators on the AI CPUs, changes of format, busy AI cores."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.findings.cause import AI_CPU_NAME, Cause, Context, Figures, Measurement, readable_name
from llmprof.findings.scope import Scope, heaviest_name, sum_of
from llmprof.text import tenths
from llmprof.units import format_share

CORE_FACTS: Final = (
    "ascend_core",
    "ascend_op_type",
    "ascend_aic_mac_ratio",
    "ascend_aic_mac_time_ns",
    "ascend_aiv_vec_ratio",
    "ascend_aiv_vec_time_ns",
)
_UNITS: Final = {
    "cube": ("ascend_aic_mac_time_ns", "ascend_aic_mac_ratio"),
    "vector": ("ascend_aiv_vec_time_ns", "ascend_aiv_vec_ratio"),
}

AI_CPU: Final = r"(?i)^ai_?cpu"
"""Core types of kernels that run on a general-purpose processor of the device."""

FORMAT_CHANGES: Final = r"(?i)(?:^|_)TransData"
"""Kernels that change the format of a tensor, such as ND to NZ."""


class _Kernels(Figures, frozen=True):
    """Kernels of one kind, counted in one step or rank, and those of them with most time."""

    kernels: float
    name: str | None
    by_name_share: float

    def detail(self, of: Context) -> str:
        return (
            f"{tenths(self.kernels)} {of.per}, the most time in {readable_name(self.name)}"
            f" ({format_share(self.by_name_share)} of it)."
        )


class AiCpuOperators(_Kernels, frozen=True):
    """Operators that run on the AI CPUs of the device and not on its AI cores."""

    def title(self, of: Context) -> str:
        return f"Operators on the AI CPUs, not the AI cores, take {of.amount}{of.where}."

    def detail(self, of: Context) -> str:
        why = (
            "An operator falls back to the AI CPUs where CANN has no kernel for its types or"
            " shapes."
        )
        return f"{super().detail(of)} {why}"

    def advice(self, of: Context) -> str:
        return (
            "Give it types that the AI cores compute (int32 for int64, float32 or bfloat16 for"
            " float64), or take another operator. The types that each"
            " supports are listed by msprof-analyze."
        )


class FormatChanges(_Kernels, frozen=True):
    """Kernels that only change the format of a tensor."""

    def title(self, of: Context) -> str:
        return f"Changes of format (TransData) take {of.amount}{of.where}."

    def detail(self, of: Context) -> str:
        return (
            f"{super().detail(of)} CANN puts them between operators that want their tensors in"
            " different formats, such as ND and NZ."
        )

    def advice(self, of: Context) -> str:
        return (
            "Keep one format: torch.npu.config.allow_internal_format = False keeps ND throughout;"
            " weights that stay can be turned to NZ once, with npu_format_cast after loading."
        )


class AiCoreUnits(Figures, frozen=True):
    """Busy shares of the units of the AI cores, in kernels where they were measured."""

    units: dict[str, float]
    kernels: float

    def title(self, of: Context) -> str:
        unit, share = max(self.units.items(), key=lambda item: item[1])
        return (
            f"Kernels with measured AI cores take {of.amount}{of.where}; {unit} units work"
            f" {format_share(share)} of it."
        )

    def detail(self, of: Context) -> str:
        busy = " and ".join(
            f"the {unit} units {format_share(share)}" for unit, share in self.units.items()
        )
        return (
            f"{self.kernels:,.0f} kernels {of.per}: {busy} of their time. For the rest the cores"
            " move data or wait."
        )

    def advice(self, of: Context) -> str:
        return (
            "See them by category: the cube units compute MatMul and attention, the vector units"
            " the rest."
        )


def _kernels(scope: Scope) -> pl.DataFrame | None:
    """Kernels of the scope, cut to it, with the profiler's core metrics; ``whole_ns``: their
    whole length.
    """
    if not scope.trace.has("kernels"):
        return None
    recorded = scope.trace.kernels
    facts = [column for column in CORE_FACTS if column in recorded.columns]
    if not facts and scope.trace.capture.platform.name != "ascend":
        return None
    kept = recorded.select(
        "rank", "device", "start_ns", "dur_ns", "name", *facts, whole_ns="dur_ns"
    )
    return scope.cut(kept.filter(pl.col("whole_ns") > 0))


def _measure_names(
    scope: Scope, rows: pl.DataFrame, figures: type[_Kernels], where: str
) -> Measurement | None:
    if not rows.height:
        return None
    name, share = heaviest_name(rows)
    return Measurement.of(
        rows,
        figures(rows.height / scope.parts, name, share),
        where=where,
        about=name,
    )


def _measure_ai_cpu(scope: Scope) -> Measurement | None:
    rows = _kernels(scope)
    if rows is None:
        return None
    if "ascend_core" in rows.columns:
        rows = rows.filter(pl.col("ascend_core").str.contains(AI_CPU))
    else:
        rows = rows.filter(pl.col("name").str.contains(AI_CPU_NAME))
    shown = rows["name"].unique().sort().head(20)
    quoted = ", ".join("'" + name.replace("'", "''") + "'" for name in shown)
    return _measure_names(scope, rows, AiCpuOperators, f"name IN ({quoted})")


def _measure_format_changes(scope: Scope) -> Measurement | None:
    rows = _kernels(scope)
    if rows is None:
        return None
    rows = rows.filter(pl.col("name").str.contains(FORMAT_CHANGES))
    return _measure_names(scope, rows, FormatChanges, "name LIKE '%TransData%'")


def _measure_core_units(scope: Scope) -> Measurement | None:
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
    # a kernel that is cut at the edge of a step counts with the part inside the step
    rows = rows.with_columns(
        **{unit: value * pl.col("dur_ns") / pl.col("whole_ns") for unit, value in busy.items()}
    )
    rows = rows.filter(pl.any_horizontal(pl.col(list(busy)).is_not_null()))
    length = sum_of(rows, "dur_ns")
    if not length:
        return None
    shares = {unit: min(1.0, sum_of(rows, unit) / length) for unit in busy}
    figures = AiCoreUnits(shares, rows.height / scope.parts)
    return Measurement.of(rows, figures, ns=min(length, scope.span_ns), gain_ns=0.0)


AI_CPU_OPERATORS: Final = Cause("ai_cpu_operators", _measure_ai_cpu, "events", min_share=0.005)
FORMAT_CHANGE: Final = Cause("format_changes", _measure_format_changes, "events", min_share=0.005)
AI_CORE_UNITS: Final = Cause("ai_core_units", _measure_core_units, "core_time", info=True)
