"""Reads ``.ncu-rep`` reports with NVIDIA's package ``ncu-report``, or with the ``ncu`` on PATH."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError, TraceWarning
from llmprof.readers.ncu import container
from llmprof.readers.ncu.pages import LAUNCH, Part, in_base_units, launch_frame, no_rules
from llmprof.text import counted

_TIMEOUT_S: Final = 600
_KINDS: Final = {0: "INF", 1: "INF", 2: "OPT", 3: "WRN", 4: "ERR"}
_SCOPES: Final = {1: "local", 2: "global"}
_SECTION_LINK: Final = re.compile(r"@section:[^:@]*:([^@]*)@")
_URL_LINK: Final = re.compile(r"@url:([^:@]*):([^@]*)@")


def read(path: Path, data: bytes, pages: Callable[[str, str], list[Part]], coverage: dict[str, Any]) -> Iterator[Part]:
    """Read the parts of a report, and compare them with what it states."""
    ncu = shutil.which("ncu")
    try:
        library = importlib.import_module("ncu_report")
    except ImportError as error:
        if ncu is None:
            raise ReadError(
                f"{path} is an Nsight Compute report; it needs the package ncu-report or the program ncu, and "
                "neither is installed",
                hint="pip install 'llmprof[ncu]', or export it on the machine that recorded it: "
                "ncu --import FILE --csv --page raw --print-units base > raw.csv",
                path=str(path),
            ) from error
        library = None
    stated = container.stated(data)
    with tempfile.TemporaryDirectory(prefix="llmprof-") as folder:
        report = Path(folder) / "report.ncu-rep"
        stated.write(data, report)
        if library is None:
            assert ncu is not None  # noqa: S101 - refused above
            parts = [
                part
                for page in ("raw", "details")
                for part in pages(_exported(ncu, report, page, path), f"{path.name} ({page} page)")
            ]
        else:
            parts = [_ranges(library, report, path)]
    first = parts[0]
    names = first.metrics.filter(~pl.col("metric").str.contains(":", literal=True))
    compare(path, stated, first.launches.height, names.n_unique(["launch", "metric"]), coverage)
    zeros = pl.any_horizontal(pl.col(pl.String).str.contains("\0", literal=True)).sum()
    if texts := sum(frame.select(zeros).item() for frame in (first.launches, first.metrics, first.rules)):
        _warn(f"{path.name} is damaged: {counted(texts, 'row')} of it hold zeros instead of text")
    yield from parts


def _warn(message: str) -> None:
    warnings.warn(message, TraceWarning, stacklevel=5)


def compare(path: Path, stated: container.Stated, kernels: int, metrics: int | None, coverage: dict[str, Any]) -> None:
    """Warn of what a report states and what was not read of it, and count it."""
    lost = {"kernel": max(len(stated.kernels) - kernels, 0)}
    if metrics is not None:
        lost["metric"] = max(sum(map(len, stated.kernels)) - metrics, 0)
    for noun, count in lost.items():
        coverage[f"lost_{noun}s"] = coverage.get(f"lost_{noun}s", 0) + count
    if stated.damage or any(lost.values()):
        _warn(
            f"{path.name} is damaged: {stated.damage or 'parts of it cannot be opened'}; at least "
            f"{' and '.join(counted(count, noun) for noun, count in lost.items())} of what it states could not be read"
        )


def _exported(ncu: str, report: Path, page: str, path: Path) -> str:
    command = [ncu, "--import", str(report), "--csv", "--page", page, "--print-units", "base"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReadError(f"{path}: ncu could not be run: {error}", path=str(path)) from error
    if done.returncode:
        message = (done.stderr or done.stdout).decode("utf-8", errors="replace").strip().splitlines()
        raise ReadError(
            f"{path}: ncu could not open the report: {message[-1] if message else f'exit status {done.returncode}'}",
            hint="use an ncu that is at least as new as the one that recorded it",
            path=str(path),
        )
    return done.stdout.decode("utf-8", errors="replace")


def actions(library: Any, report: Path, path: Path) -> Iterator[Any]:
    """Kernels of a report; of one that is damaged the package knows neither the name nor a metric."""
    try:
        context = library.load_report(str(report))
    except (RuntimeError, OSError, ValueError) as error:
        raise ReadError(
            f"{path}: the package ncu-report could not open it: {error}",
            hint="use a version that is at least as new as the ncu that recorded it",
            path=str(path),
        ) from error
    for number in range(context.num_ranges()):
        of_range = context.range_by_idx(number)
        for index in range(of_range.num_actions()):
            action = of_range.action_by_idx(index)
            if action.name(library.IAction.NameBase_DEMANGLED) or action.metric_names():
                yield action


def _ranges(library: Any, report: Path, path: Path) -> Part:
    launches: list[dict[str, object]] = []
    metrics: list[tuple[int, str, str, str]] = []
    rules: list[dict[str, object]] = []
    for launch, action in enumerate(actions(library, report, path)):
        values = {name: action.metric_by_name(name) for name in action.metric_names() if ":" not in name}
        launches.append(_launch(library, action, values, launch))
        metrics += [(launch, name, m.unit(), _of(m)) for name, m in values.items() if m is not None]
        rules += [rule for result in action.rule_results_as_dicts() if (rule := _rule(result, launch))]
    if not launches:
        raise ReadError(f"{path} has no results, or is damaged", hint="record it again", path=str(path))
    raw = pl.DataFrame(metrics, schema=["launch", "metric", "unit", "raw"], orient="row")
    valued = in_base_units(raw.filter(pl.col("raw") != ""))
    without = raw.filter(pl.col("raw") == "").select(
        "launch", "metric", unit=pl.when(pl.col("unit") == "%").then("unit").otherwise(pl.lit("1"))
    )
    rows = pl.concat([valued, without], how="diagonal_relaxed").with_columns(
        pl.col("launch").cast(pl.Int32), section=pl.lit(None, pl.String)
    )
    of_rules = pl.DataFrame(rules, schema=no_rules().schema, strict=False) if rules else no_rules()
    return Part(
        str(path),
        launch_frame(launches),
        rows.select("launch", "section", "metric", "unit", "value", "text"),
        of_rules,
    )


def _launch(library: Any, action: Any, values: dict[str, Any], launch: int) -> dict[str, object]:
    def written(name: str) -> str | None:
        metric = values.get(name)
        return None if metric is None else _of(metric) or None

    def size(side: str) -> str | None:
        sides = [written(f"launch__{side}_dim_{axis}") for axis in "xyz"]
        return f"({', '.join(str(int(float(s))) for s in sides if s)})" if all(sides) else None

    major, minor = (written(f"device__attribute_compute_capability_{part}") for part in ("major", "minor"))
    facts: dict[str, object] = {
        "id": str(launch),
        "kernel_name": action.name(library.IAction.NameBase_DEMANGLED),
        "context": written("launch__context_id"),
        "stream": written("launch__stream_id"),
        "device": written("launch__device_id"),
        "grid": size("grid"),
        "block": size("block"),
        "compute_capability": f"{major}.{minor}" if major and minor else None,
    }
    return {"launch": str(launch), **dict.fromkeys(LAUNCH.values()), **facts}


def _of(metric: Any) -> str:
    """Value of a metric as text; empty if the report has no value, where ``value()`` would return 0."""
    has_value = getattr(metric, "has_value", None)
    value: object = None if has_value is not None and not has_value() else metric.value()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return str(int(value))
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _rule(result: dict[str, Any], launch: int) -> dict[str, object] | None:
    message = result.get("rule_message")
    if not message:
        return None
    text = _SECTION_LINK.sub(r"\1", message.get("message", ""))
    estimate = result.get("speedup_estimation") or {}
    return {
        "launch": launch,
        "section": result.get("section_identifier"),
        "rule": result.get("rule_identifier", ""),
        "kind": _KINDS.get(message.get("type", 0), "INF"),
        "text": _URL_LINK.sub(r"\1 (\2)", text),
        "estimated_speedup_pct": estimate.get("speedup"),
        "speedup_scope": _SCOPES.get(estimate.get("type", 0)),
    }
