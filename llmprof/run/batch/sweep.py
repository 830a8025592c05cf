"""Folder of a sweep: its state (``sweep.json``), the comparison of its points, and its report."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from llmprof import analyze, report
from llmprof.analyze.step_times import PARTS as TIMES
from llmprof.analyze.step_times import SCHEMA as TIME_SCHEMA
from llmprof.errors import LlmprofError, NotCapturedError, ReadError, guarded, listed
from llmprof.run.batch.parameters import label
from llmprof.run.launch import ExperimentConfig, Run, open_run
from llmprof.run.launch.run.folder import hold_file
from llmprof.run.launch.run.requests import METRICS, disagreements, overhead, summarize
from llmprof.text import Progress
from llmprof.trace.storage import files, typed

FILE = "sweep.json"
LOCK = ".lock"
VERSION = 1


def new(
    config: Mapping[str, Any], parameters: Mapping[str, Any], points: list[dict[str, Any]]
) -> dict[str, Any]:
    """State of a new sweep."""
    blank = {"state": "pending", "run": None, "error": None, "started": None, "seconds": None}
    states = [{"point": i, "values": values, **blank} for i, values in enumerate(points)]
    return {
        "version": VERSION,
        "config": dict(config),
        "parameters": dict(parameters),
        "points": states,
    }


def load(folder: Path) -> dict[str, Any]:
    """State of the sweep in a folder."""
    path = folder / FILE
    if not path.exists():
        raise ReadError(f"there is no sweep in {folder}", expected=f"a folder with {FILE}")
    state: dict[str, Any] = typed.read(path, typed.SweepJson)
    names = state["parameters"].keys()
    for place, point in enumerate(state["points"]):
        typed.validated(
            (point.get("result") or {}).get("measures"),
            typed.row(SCHEMA) | None,
            f"{path}: point {place}",
        )
        if point["point"] != place or point["values"].keys() != names:
            found = (
                f"{path} is damaged: point {place} has the number {point['point']} or values of"
                " other parameters"
            )
            raise ReadError(found, expected=f"values of {listed(names)}", hint=typed.AGAIN)
    return state


def save_state(state: Mapping[str, Any], folder: Path) -> None:
    """Write the state of a sweep; a concurrent reader sees either the old or the new state."""
    files.made(folder)
    files.write_json(folder / FILE, state)


def as_stored(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as it is read again: tuples are lists, and paths are text."""
    read: dict[str, Any] = json.loads(json.dumps(files.finite(state), default=str))
    return read


def new_folder(config: ExperimentConfig, name: str) -> Path:
    """Folder ``NAME_TIME`` of the results that does not exist yet."""
    stem = f"{name}_{dt.datetime.now(tz=dt.UTC).astimezone():%Y%m%d-%H%M%S}"
    places = (
        Path(config.results_dir, f"{stem}-{n}" if n > 1 else stem) for n in itertools.count(1)
    )
    return next(place for place in places if not place.exists())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the folder for this process."""
    busy = LlmprofError(
        f"another process runs the sweep in {folder}",
        hint="wait until it has ended, or choose another folder",
    )
    with hold_file(files.made(folder) / LOCK, lambda: busy):
        yield


INTERVALS = ("output_tokens_per_s", "requests_per_s", "ttft_ns", "tpot_ns", "e2e_ns", "wall_ns")
"""Measures whose 95 % interval of the mean over the repeats is kept."""

TAILS = ("ttft_ns", "itl_ns", "e2e_ns")
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "measured": pl.String,
    "repeats": pl.Int64,
    "agree": pl.Boolean,
    **dict.fromkeys(METRICS, pl.Float64),
    **{f"{name}_ci95_{end}": pl.Float64 for name in INTERVALS for end in ("low", "high")},
    **{f"{name.removesuffix('_ns')}_p99_ns": pl.Float64 for name in TAILS},
    "overhead": pl.Float64,
    "overhead_clear": pl.Boolean,
    "joules_per_output_token": pl.Float64,
    **dict.fromkeys(("peak_memory_bytes", "kv_cache_tokens", "ranks"), pl.Int64),
}


def measures(run: Run) -> dict[str, Any]:
    """Latencies, rates and shares of a finished run."""
    measured: dict[str, Any] = dict.fromkeys(SCHEMA)
    summary = summarize(run.requests)
    phases = summary["phase"].unique().to_list()
    if phases:
        measured["measured"] = phase = "plain" if "plain" in phases else phases[0]
        rows = {row["metric"]: row for row in summary.filter(phase=phase).iter_rows(named=True)}
        measured |= {name: rows[name]["mean"] for name in METRICS if name in rows}
        measured |= {
            f"{name.removesuffix('_ns')}_p99_ns": rows[name]["p99"]
            for name in TAILS
            if name in rows
        }
        measured["repeats"] = max(row["repeats"] for row in rows.values())
        measured["agree"] = (
            not disagreements(summary.filter(phase=phase)) if measured["repeats"] > 1 else None
        )
        ends = ("ci95_low", "ci95_high")
        measured |= {
            f"{name}_{end}": rows[name][end] for name in INTERVALS if name in rows for end in ends
        }
    measured["overhead"], measured["overhead_clear"] = _overhead(run.requests)
    used = {
        energy["phase"]: energy for energy in (run.summary.get("energy") or {}).get("phases") or ()
    }
    measured["joules_per_output_token"] = (used.get(measured["measured"]) or {}).get(
        "joules_per_output_token"
    )
    peaks = run.worker.get("peak_memory_bytes") or {}
    measured["peak_memory_bytes"] = max(peaks.values(), default=None)
    measured["kv_cache_tokens"] = (run.worker.get("kv_cache") or {}).get("tokens")
    where, note = [], ""
    try:
        with guarded("the times of the steps"):
            where = analyze.step_time(run.trace).to_dicts()
    except LlmprofError as error:
        note = str(error)
    measured["ranks"] = max((row["ranks"] for row in where), default=None)
    return {"measures": measured, "where": where, "note": note}


def _overhead(requests: pl.DataFrame) -> tuple[float | None, bool | None]:
    """Overhead of the profiler, and whether it exceeds the noise of the repeats (null for one
    repeat).
    """
    try:
        rows = overhead(requests).filter(metric="wall_ns")
    except NotCapturedError:
        return None, None
    return (rows["overhead"][0], rows["clear"][0]) if rows.height else (None, None)


PARTS = {f"share_{name.replace(' ', '_')}": name for name in TIMES}


@dataclass(frozen=True, slots=True)
class Sweep:
    """Results of a sweep: its folder with those of the runs, and its state, the content of
    ``sweep.json``.
    """

    folder: Path
    state: Mapping[str, Any]

    def __len__(self) -> int:
        """Number of finished runs."""
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        """The finished runs, in the order of the points."""
        return map(open_run, self.runs)

    @property
    def parameters(self) -> dict[str, list[Any]]:
        """Values of each parameter."""
        return dict(self.state["parameters"])

    @property
    def runs(self) -> list[Path]:
        """Folders of the finished runs, in the order of the points."""
        points = self.state["points"]
        return [
            self.folder / point["run"]
            for point in points
            if point["state"] == "finished" and point["run"]
        ]

    @property
    def failed(self) -> dict[str, str]:
        """Error messages of failed points, by their labels."""
        points = self.state["points"]
        return {
            label(point["values"]): point["error"] or ""
            for point in points
            if point["state"] == "failed"
        }

    @property
    def comparison(self) -> pl.DataFrame:
        """Comparison of all points.

        Returns
        -------
        polars.DataFrame
            One row for each point; unknown values are null. ``point, label``; a column for each
            parameter; ``state`` (``pending``, ``running``, ``finished``, ``failed`` or
            ``interrupted``); ``run``, the name of its folder; ``error``; ``measured`` (``plain``
            for repeats without profiler, otherwise ``profiled``), ``repeats, agree``. Means over
            the repeats: latencies (ns), ``wall_ns`` and rates (per s), some with the 95 % interval
            of the mean (``ttft_ns_ci95_low, ttft_ns_ci95_high`` …); ``ttft_p99_ns, itl_p99_ns,
            e2e_p99_ns``. ``overhead`` of the profiler, as a share of the wall time without it, and
            ``overhead_clear``, whether it exceeds the noise of the repeats.
            ``joules_per_output_token``; ``peak_memory_bytes`` of the fullest device;
            ``kv_cache_tokens, ranks``. Shares of the steps' time in the trace: ``share_compute,
            share_hidden_communication, share_exposed_communication, share_exposed_copy,
            share_idle``.
        """
        rows = [self._row(point) for point in self.state["points"]]
        parameters = columns_of(self.state)
        texts = dict.fromkeys(("state", "run", "error"), pl.String)
        more = {**texts, **SCHEMA, **dict.fromkeys(PARTS, pl.Float64)}
        schema = {"point": pl.Int64, "label": pl.String, **parameters, **more}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def _row(self, point: Mapping[str, Any]) -> dict[str, Any]:
        result = point.get("result") or {}
        values = {name: cell(value) for name, value in point["values"].items()}
        row = {"point": point["point"], "label": label(point["values"]), **values}
        row |= {name: point.get(name) for name in ("state", "run", "error")}
        row |= {name: (result.get("measures") or {}).get(name) for name in SCHEMA}
        times = result.get("where") or []
        total = sum(time["ns"] for time in times)
        sums = {
            name: sum(time["ns"] for time in times if time["part"] == part)
            for name, part in PARTS.items()
        }
        return row | {name: ns / total if total else None for name, ns in sums.items()}

    @property
    def where(self) -> pl.DataFrame:
        """Parts of the time of each point, from its trace.

        Returns
        -------
        polars.DataFrame
            ``point, label, phase, part``; ``ns``, the sum over the ranks and steps of a phase;
            ``share`` of the phase's time; ``steps, ranks``. A point without a trace has no rows.
        """
        rows = [
            {"point": point["point"], "label": label(point["values"]), **time}
            for point in self.state["points"]
            for time in (point.get("result") or {}).get("where") or []
        ]
        return pl.DataFrame(
            rows, schema={"point": pl.Int64, "label": pl.String, **TIME_SCHEMA}, orient="row"
        )


def open_sweep(folder: str | os.PathLike[str]) -> Sweep:
    """Open the sweep in a folder, finished or not.

    Raises
    ------
    ReadError
        The folder holds no sweep, or its file is damaged.
    """
    path = Path(folder)
    return Sweep(path, load(path))


def cell(value: Any) -> Any:
    """A value as a cell of a column: what is no scalar becomes JSON."""
    return json.dumps(value) if isinstance(value, list | tuple | dict) else value


def dtype(values: list[Any]) -> type[pl.DataType]:
    """Type of a parameter's column: the common type of its values, or text; a null fits each."""
    values = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in values):
        return pl.Boolean
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return pl.Int64
    numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    return pl.Float64 if numbers else pl.String


def columns_of(state: Mapping[str, Any]) -> dict[str, type[pl.DataType]]:
    """Type of each parameter's column."""
    points = [point["values"] for point in state["points"]]
    return {
        name: dtype([*some, *(one[name] for one in points)])
        for name, some in state["parameters"].items()
    }


_SHARED = (
    "model",
    "engine",
    "profile_mode",
    "batch_size",
    "max_tokens",
    "input_tokens",
    "tensor_parallel_size",
)


def write_report(sweep: Sweep, *, progress: Progress | None = None) -> report.Report:
    """Write ``index.html``, the charts and the tables of a sweep into its folder.

    Raises
    ------
    OutputError
        The folder cannot be written.
    """
    config = sweep.state["config"]
    facts = [
        (name.replace("_", " "), str(config[name]))
        for name in _SHARED
        if name not in sweep.parameters and config.get(name) is not None
    ]
    facts = [
        (
            "sweep",
            "; ".join(f"{name}: {listed(values)}" for name, values in sweep.parameters.items()),
        ),
        *facts,
    ]
    shared = [start for start in sweep.state.get("starts") or () if len(start["points"]) > 1]
    starts = []
    for start in shared:
        times = "once" if start["starts"] == 1 else f"{start['starts']} times, since it died,"
        starts.append(f"{times} for the points {listed(place + 1 for place in start['points'])}")
    facts += [("starts of the engine", "; ".join(starts))] if starts else []
    return report.write_sweep(
        sweep.comparison,
        sweep.where,
        sweep.folder,
        parameters=list(sweep.parameters),
        title=(
            f"Sweep of {config['model']}:"
            f" {' × '.join(name.replace('_', ' ') for name in sweep.parameters)}"
        ),
        facts=[(name[:1].upper() + name[1:], value) for name, value in facts],
        failed=sweep.failed,
        progress=progress,
    )
