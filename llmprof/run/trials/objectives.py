"""Figures of a run by name (``tpot_p95``), and the limits that an SLO sets to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from llmprof.errors import ConfigError, nearest
from llmprof.run.launch.run.requests import LATENCIES, RATES, repeats
from llmprof.units import SECONDS, format_metric, format_ns

_SHORT: Final = tuple(name.removesuffix("_ns") for name in LATENCIES)
_LATENCY: Final = re.compile(rf"^({'|'.join(_SHORT)})(?:_ns)?(?:_(.+?))?(?:_ns)?$")
_LIMIT: Final = re.compile(
    r"^\s*([A-Za-z_0-9.]+)\s*(<=|>=|<|>|=)\s*([0-9.eE+-]+)\s*([A-Za-z/%]*)\s*$"
)
_UNITS: Final = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
GOODPUT: Final = "goodput"
NAMES: Final = (*RATES, "wall_ns", *LATENCIES, *(f"{name}_p99" for name in _SHORT))
"""Some of the names, for messages."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run: a rate, or the mean or a quantile of a latency over its requests.

    Attributes
    ----------
    name : str
        As it was given.
    column : str
        Column of the requests or repeats (``tpot_ns``).
    quantile : float or None
        Share of the requests below the figure (0.95 for ``p95``); None for the mean.
    """

    name: str
    column: str
    quantile: float | None = None

    @property
    def more_is_better(self) -> bool:
        """Whether it is a rate."""
        return self.column in (*RATES, GOODPUT)

    @property
    def is_time(self) -> bool:
        """Whether it is in ns."""
        return self.column.endswith("_ns")

    def of(self, requests: pl.DataFrame) -> float | None:
        """The figure of the repeats without a profiler, or of the profiled ones if there are no
        others.
        """
        phase = "plain" if requests["phase"].eq("plain").any() else "profiled"
        rows = requests.filter(phase=phase)
        if self.quantile is None:
            values = repeats(rows)[self.column].drop_nulls()
            return None if values.is_empty() else float(values.mean())  # type: ignore[arg-type]
        column = rows[self.column]
        each = (column.explode() if self.column == "itl_ns" else column).drop_nulls()
        found = each.quantile(self.quantile, interpolation="linear")
        return None if found is None else float(found)

    def text(self, value: float | None) -> str:
        """The value with its unit."""
        if value is None:
            return "unknown"
        return format_ns(value) if self.is_time else f"{format_metric(self.name, value)}/s"


def parse_figure(name: str) -> Figure:
    """The figure of a name:

    ``output_tokens_per_s``, ``wall_ns``, ``ttft_ns`` (a mean), ``tpot_p95``.
    """
    plain = name.strip()
    if plain in (*RATES, "wall_ns", GOODPUT):
        return Figure(plain, plain)
    match = _LATENCY.match(plain)
    if match:
        column, which = f"{match[1]}_ns", match[2]
        if which in {None, "mean"}:
            return Figure(plain, column)
        quantile = re.match(r"^p(\d{1,2}(?:\.\d+)?|100)$", which)
        if quantile or which in {"max", "median"}:
            share = (
                {"max": 1.0, "median": 0.5}.get(which) if not quantile else float(quantile[1]) / 100
            )
            return Figure(plain, column, share)
    known = [
        *NAMES,
        GOODPUT,
        *(f"{one.removesuffix('_ns')}_{end}" for one in LATENCIES for end in ("p50", "p90", "p95")),
    ]
    hint = nearest(plain, known)
    expected = "" if hint else f"one of {', '.join(NAMES)}"
    raise ConfigError(f"there is no metric {name!r}", expected=expected, hint=hint)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of an SLO: a figure and the most (or least) that it may be."""

    figure: Figure
    value: float
    text: str

    def excess(self, value: float | None) -> float | None:
        """How far a value is beyond the limit, as a share of the limit; at most 0 where it
        holds, None if unknown.
        """
        if value is None:
            return None
        beyond = value / self.value - 1
        return -beyond if self.figure.more_is_better else beyond


def limits(slo: str) -> list[Limit]:
    """Limits from text:

    ``"ttft_p99<=500ms, tpot_p95<=30ms"``; a time needs its unit (us, ms or s).
    """
    found: list[Limit] = []
    for part in filter(None, (piece.strip() for piece in re.split(r"[,;]", slo))):
        match = _LIMIT.match(part)
        expected = (
            "a metric, <= or >=, and a number with its unit: ttft_p99<=500ms,"
            " output_tokens_per_s>=1000"
        )
        if match is None:
            raise ConfigError(f"the SLO {part!r} is no limit", expected=expected)
        one, sign, unit = parse_figure(match[1]), match[2], match[4]
        try:
            number = float(match[3])
        except ValueError as error:
            raise ConfigError(f"the SLO {part!r} has no number", expected=expected) from error
        if number <= 0:
            raise ConfigError(f"the limit in {part!r} is not above 0", expected=expected)
        if one.is_time and unit not in _UNITS:
            raise ConfigError(
                f"the SLO {part!r} has no unit", expected="ns, us, ms or s, as in ttft_p99<=500ms"
            )
        if not one.is_time and unit not in {"", "/s"}:
            raise ConfigError(
                f"the SLO {part!r} has the unit {unit}", expected="a number for each second"
            )
        if one.column == GOODPUT:
            raise ConfigError(
                "goodput is itself the rate at which an SLO holds", expected="a limit of a latency"
            )
        if (sign[0] == ">") != one.more_is_better or sign == "=":
            problem = f"the SLO {part!r} asks for the wrong side"
            raise ConfigError(
                problem, expected=f"{match[1]}{'>=' if one.more_is_better else '<='}…"
            )
        found.append(Limit(one, number * _UNITS.get(unit, 1.0), part.replace(" ", "")))
    return found


def worst(values: Mapping[str, float | None], slo: Sequence[Limit]) -> tuple[Limit, float] | None:
    """The limit that is missed most (or met least well) and by which share; None without a known
    figure.
    """
    each = [
        (one, beyond)
        for one in slo
        if (beyond := one.excess(values.get(one.figure.name))) is not None
    ]
    return max(each, key=lambda pair: pair[1], default=None)


def holds(values: Mapping[str, float | None], slo: Sequence[Limit]) -> bool:
    """Whether all limits hold; one whose figure is unknown does not."""
    return all(
        (beyond := one.excess(values.get(one.figure.name))) is not None and beyond <= 0
        for one in slo
    )


def parse_duration(text: str | float) -> float:
    """A duration as ``30m``, ``90s``, ``1.5h`` or a number of seconds.

    Raises
    ------
    ConfigError
        It is none, or not above 0.
    """
    match = re.fullmatch(r"([0-9.]+)\s*(s|m|min|h)?", str(text).strip())
    try:
        value = float(match[1]) * SECONDS[match[2] or "s"] if match else 0.0
    except ValueError:
        value = 0.0
    if value <= 0:
        raise ConfigError(f"the budget is {text!r}", expected="a time such as 30m, 90s or 1.5h")
    return value
