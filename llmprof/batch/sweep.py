"""A sweep that has run, or as far as it has: its comparison, and where the time of each point went."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from llmprof import report
from llmprof.analyze.steps.summary import PARTS as TIMES
from llmprof.analyze.steps.summary import SCHEMA as TIME_SCHEMA
from llmprof.batch import state as batch_state
from llmprof.batch.parameters import label
from llmprof.progress import Progress

PARTS = {f"share_{name.replace(' ', '_')}": name for name in TIMES}


@dataclass(frozen=True, slots=True)
class Sweep:
    """Results of a sweep.

    Attributes
    ----------
    folder : pathlib.Path
        Its folder; the run folders are in it.
    state : mapping
        Content of ``sweep.json``.
    """

    folder: Path
    state: Mapping[str, Any]

    @property
    def parameters(self) -> dict[str, list[Any]]:
        """Values by parameter."""
        return dict(self.state["parameters"])

    @property
    def runs(self) -> list[Path]:
        """Folders of the finished runs, in the order of the points."""
        points = self.state["points"]
        return [self.folder / point["run"] for point in points if point["state"] == "finished" and point["run"]]

    @property
    def failed(self) -> dict[str, str]:
        """What went wrong, by the label of the point."""
        points = self.state["points"]
        return {label(point["values"]): point["error"] or "" for point in points if point["state"] == "failed"}

    @property
    def comparison(self) -> pl.DataFrame:
        """One row a point.

        Returns
        -------
        polars.DataFrame
            ``point, label``; a column for each parameter; ``state`` (``pending``, ``running``, ``finished``,
            ``failed``, ``interrupted``), ``run`` (name of its folder), ``error``; ``measured`` (``plain``: the
            repeats without profiler, else ``profiled``), ``repeats``, ``agree``; means over the repeats of the
            latencies (ns), of ``wall_ns`` and of the rates (per s) with the interval of ``output_tokens_per_s``;
            ``ttft_p99_ns, itl_p99_ns, e2e_p99_ns``; ``overhead`` (of the profiler, share of the wall time without);
            ``peak_memory_bytes`` (of the fullest device), ``kv_cache_tokens``, ``ranks``; ``share_compute,
            share_hidden_communication, share_exposed_communication, share_exposed_copy, share_idle`` of the time of
            the steps in the trace. What is not known is null.
        """
        rows = [self._row(point) for point in self.state["points"]]
        parameters = {f"{name}": _dtype(values) for name, values in self.parameters.items()}
        texts = dict.fromkeys(("state", "run", "error"), pl.String)
        shares = dict.fromkeys(PARTS, pl.Float64)
        schema = {"point": pl.Int64, "label": pl.String, **parameters, **texts, **batch_state.SCHEMA, **shares}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def _row(self, point: Mapping[str, Any]) -> dict[str, Any]:
        result = point.get("result") or {}
        values = {name: _cell(value) for name, value in point["values"].items()}
        row = {"point": point["point"], "label": label(point["values"]), **values}
        row |= {name: point.get(name) for name in ("state", "run", "error")}
        row |= {name: (result.get("measures") or {}).get(name) for name in batch_state.SCHEMA}
        times = result.get("where") or []
        total = sum(time["ns"] for time in times)
        sums = {name: sum(time["ns"] for time in times if time["part"] == part) for name, part in PARTS.items()}
        return row | {name: ns / total if total else None for name, ns in sums.items()}

    @property
    def where(self) -> pl.DataFrame:
        """Where the time of each point went, from its trace.

        Returns
        -------
        polars.DataFrame
            ``point, label, phase, part, ns, share, steps, ranks``: times are sums over the ranks and steps of a
            phase, shares are of the phase's time. A point without a trace has no rows.
        """
        rows = [
            {"point": point["point"], "label": label(point["values"]), **time}
            for point in self.state["points"]
            for time in (point.get("result") or {}).get("where") or []
        ]
        return pl.DataFrame(rows, schema={"point": pl.Int64, "label": pl.String, **TIME_SCHEMA}, orient="row")


def open_sweep(folder: str | os.PathLike[str]) -> Sweep:
    """The sweep in a folder, finished or not.

    Raises
    ------
    ReadError
        The folder holds no sweep, or its file is damaged.
    """
    path = Path(folder)
    return Sweep(path, batch_state.load(path))


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | tuple | dict) else value


def _dtype(values: list[Any]) -> type[pl.DataType]:
    """Type of a parameter's column: that of its values where they share one, else text."""
    if all(isinstance(value, bool) for value in values):
        return pl.Boolean
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return pl.Int64
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return pl.Float64 if numbers else pl.String


_SHARED = ("model", "engine", "profile_mode", "batch_size", "max_tokens", "input_tokens", "tensor_parallel_size")


def write_report(sweep: Sweep, *, progress: Progress | None = None) -> report.Report:
    """Write ``index.html``, the charts and the tables of a sweep into its folder.

    Raises
    ------
    OutputError
        The folder cannot be written.
    """
    config = sweep.state["config"]
    facts = [(name.replace("_", " "), f"{config[name]}") for name in _SHARED if name not in sweep.parameters]
    facts = [("sweep", "; ".join(f"{name}: {_listed(values)}" for name, values in sweep.parameters.items())), *facts]
    return report.write_sweep(
        sweep.comparison,
        sweep.where,
        sweep.folder,
        parameters=list(sweep.parameters),
        title=f"Sweep of {config['model']}: {' × '.join(name.replace('_', ' ') for name in sweep.parameters)}",
        facts=[(name[:1].upper() + name[1:], value) for name, value in facts],
        failed=sweep.failed,
        progress=progress,
    )


def _listed(values: list[object]) -> str:
    return ", ".join(str(value) for value in values)
