"""Results of mode ``ops`` as files: a table of all calls, summaries, charts, and a README."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import text
from llmprof.analyze.operator_times import communication_times, layer_times, operator_times, timing_overhead
from llmprof.charts.base.save import save
from llmprof.charts.operators import CHARTS
from llmprof.errors import AnalysisError, ReadError
from llmprof.launch import Run
from llmprof.progress import Progress
from llmprof.readers.ops import Timings, read_timings
from llmprof.report.figures import Drawing, Drawn, figure, reason
from llmprof.report.page import Absent, Column, Section, Table
from llmprof.storage import files
from llmprof.units import format_ns, format_share

_NO_COMMUNICATION: Final = "one device: there is no communication"


def write_operators(
    path: str | Path,
    folder: str | Path | None = None,
    *,
    charts: Mapping[str, Callable[[Timings], Any]] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write the results of a run in mode ``ops``."""
    timings = read_timings(path)
    where = Path(folder) if folder is not None else (Path(path) if Path(path).is_dir() else Path(path).parent) / "ops"
    try:
        (where / "plots").parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.refused(where, error) from error
    layers, comm = layer_report(timings), communication_report(timings)
    whole = {
        "run": _about(timings),
        "steps": timings.steps.group_by("rank", "phase", "method", "held")
        .agg(count=pl.len(), mean_ns=pl.col("dur_ns").mean(), median_ns=pl.col("dur_ns").median())
        .sort("rank", "phase")
        .to_dicts(),
        "overhead": timing_overhead(timings).to_dicts(),
        "layers": layers,
        "operators": operator_times(timings).to_dicts(),
        "communication": comm,
    }
    written = [
        files.write(where / "detailed_timings.csv", text.csv(timings.calls)),
        files.write_json(where / "analysis_report.json", layers),
        files.write_json(where / "comm_analysis.json", comm),
        files.write_json(where / "comprehensive_report.json", whole),
    ]
    missing: dict[str, str] = {}
    functions = {**CHARTS, **(charts or {})}
    for done, (name, draw) in enumerate(functions.items()):
        if progress is not None:
            progress(f"drawing {name}", done, len(functions))
        try:
            written.append(save(draw(timings), where / f"{name}.png", overwrite=True))
        except AnalysisError as error:
            missing[name] = reason(error)
    return [*written, files.write(where / "README.md", _readme(timings, written, missing))]


def layer_report(timings: Timings) -> dict[str, Any]:
    """``layer_breakdown``: ``total_ns, average_ns, count`` and ``operations`` of each layer, over ranks and phases."""
    layers = layer_times(timings)
    calls = timings.calls.filter(pl.col("layer").is_not_null() & (pl.col("kind") != "layer"))
    breakdown: dict[str, Any] = {}
    for (number,), rows in layers.group_by("layer", maintain_order=True):
        inside = calls.filter(pl.col("layer") == number).group_by("operator", maintain_order=True)
        operations = inside.agg(
            total_ns=pl.col("dur_ns").sum(), average_ns=pl.col("dur_ns").mean(), count=pl.len(),
            shapes=pl.col("shapes").first(),
        )  # fmt: skip
        breakdown[str(number)] = {
            "total_ns": int(rows["total_ns"].sum()),
            "average_ns": int(rows["total_ns"].sum()) / int(rows["count"].sum()),
            "count": int(rows["count"].sum()),
            "by_phase": rows.drop("layer").to_dicts(),
            "operations": {row.pop("operator"): row for row in operations.to_dicts()},
        }
    return {"layer_breakdown": breakdown, "layers": len(breakdown), "clock": timings.ranks[0]["clock"]}


def communication_report(timings: Timings) -> dict[str, Any]:
    """Communication in all and by kind: count, time, bandwidth and share of the timed steps."""
    rows = communication_times(timings)
    if rows.is_empty():
        return {"total_ns": 0, "share": 0.0, "by_type": {}, "note": _NO_COMMUNICATION}
    kinds = rows.group_by("kind").agg(
        count=pl.col("count").sum(), total_ns=pl.col("total_ns").sum(),
        algorithm_gbps=pl.col("algorithm_gbps").median(), bus_gbps=pl.col("bus_gbps").median(),
    ).sort("kind")  # fmt: skip
    shares_known = pl.col("share").is_not_null().all()
    shares = rows.group_by("rank", "phase").agg(pl.when(shares_known).then(pl.col("share").sum()))
    return {
        "total_ns": int(rows["total_ns"].sum()),
        "share": shares["share"].mean(),
        "share_is": "of the median step, mean over the ranks and phases where it is known; from the timed calls and a "
        "count of all: it is too large where the timed ones wait for another rank longer than the rest, and null where "
        "it would be above 1",
        "share_by_phase": shares.sort("rank", "phase").to_dicts(),
        "seen": {str(facts["rank"]): facts.get("collectives_seen", {}) for facts in timings.ranks},
        "by_type": {row.pop("kind"): row for row in kinds.to_dicts()},
        "by_size": rows.to_dicts(),
    }


def _about(timings: Timings) -> dict[str, Any]:
    first = timings.ranks[0]
    keys = ("model", "platform", "device", "clock", "torch", "options", "world_size", "tensor_parallel_size")
    shared = {key: first.get(key) for key in (*keys, "pipeline_parallel_size", "clock_uncertainty_ns")}
    return shared | {"ranks": len(timings.ranks), "notes": [note for facts in timings.ranks for note in facts["notes"]]}


def _readme(timings: Timings, written: list[Path], missing: Mapping[str, str]) -> str:
    about = _about(timings)
    clock = "CUDA events on the model's stream" if timings.on_device else "the clock of the host: this was a CPU"
    lines = [
        f"# Timings of operators: {about['model']}",
        "",
        f"{text.counted(timings.steps.height, 'step')} on {text.counted(about['ranks'], 'rank')}, timed by {clock}; "
        f"{text.counted(timings.calls.height, 'call')} and {text.counted(timings.collectives.height, 'collective')}.",
        "Times on a GPU are those of the device from one event to the next: waiting for the host is part of them, "
        "unless the steps were held (`hold`).",
        "",
        "| phase | rank | steps | median step |",
        "|---|---|---|---|",
    ]
    steps = timings.steps.group_by("phase", "rank").agg(n=pl.len(), m=pl.col("dur_ns").median()).sort("phase", "rank")
    lines += [f"| {phase} | {rank} | {n} | {format_ns(m)} |" for phase, rank, n, m in steps.iter_rows()]
    cost = timing_overhead(timings).filter(pl.col("overhead").is_not_null() & (pl.col("method") != "none"))
    lines += [f"\n{_cost(row)}" for row in cost.iter_rows(named=True)]
    top = operator_times(timings).filter(~pl.col("nested")).head(5)
    lines += ["", "| operator | phase | a step | share |", "|---|---|---|---|"]
    lines += [
        f"| `{row['operator']}` | {row['phase']} | {format_ns(row['step_ns'])} | {format_share(row['share'])} |"
        for row in top.iter_rows(named=True)
    ]
    if timings.collectives.is_empty():
        lines += ["", f"{_NO_COMMUNICATION.capitalize()}."]
    lines += ["", "## Files", ""]
    lines += [f"- `{path.name}`" for path in written]
    lines += [f"- no `{name}.png`: {why}" for name, why in missing.items()]
    return "\n".join(lines) + "\n"


def _cost(row: Mapping[str, Any]) -> str:
    """Sentence on the cost of timing for a decode step; an interval that includes zero shows no cost."""
    low, high, steps = row["overhead_low"], row["overhead_high"], text.counted(row["steps"], "step")
    method, more = row["method"], format_share(row["overhead"])
    what = f"A decode step that is timed by {method} takes {more} more than one that is not"
    if low is None:
        return f"{what} (rank {row['rank']}, {steps} against their neighbours: too few for an interval)."
    if low <= 0 <= high:
        what = f"Decode steps that are timed by {method} and those that are not differ by no more than chance does"
    return (
        f"{what} (rank {row['rank']}, {steps} against their neighbours, 95 % interval "
        f"{format_share(low)} to {format_share(high)})."
    )


def _of_timings(name: str) -> Callable[[Run], Drawn]:
    return lambda run: (CHARTS[name](read_timings(run.folder.path)), "")


OPS_LAYERS = Drawing("ops_layers", "times of the layers", _of_timings("layer_performance_heatmap"))
OPS_OPERATORS = Drawing("ops_operators", "operators by their time", _of_timings("performance_bottlenecks"))
OPS_COMMUNICATION = Drawing("ops_communication", "communication of a step", _of_timings("compute_vs_communication"))
OPS_MEMORY = Drawing("ops_memory", "memory of the steps", _of_timings("memory_usage_analysis"))

_TOP_OPERATORS: Final = 25


def operators_section(run: Run) -> Section:
    """Section on the times of layers and operators, if the run timed them."""
    question = "Where does the time of a step go, layer by layer?"
    try:
        timings = read_timings(run.folder.path)
    except ReadError as error:
        absent = Absent("timings of operators", captured=False, found=error.found, hint=error.hint)
        return Section("operators", question, "", [absent])
    words = (
        "Timed inside the engine, in the sampled steps and layers, by CUDA events on the model's stream: waiting for "
        "the host is part of a time. llmprof.report.write_operators(folder) writes all calls."
        if timings.on_device
        else "Timed inside the engine, in the sampled steps and layers, by the clock of the host: this was a CPU."
    )
    columns = (
        Column("operator", "operator"),
        Column("phase", "phase"),
        Column("rank", "rank", "number"),
        Column("count", "calls timed", "number"),
        Column("median_ns", "median", "time"),
        Column("step_ns", "a step, all layers", "time"),
        Column("share", "share of a step", "share"),
    )
    rows = operator_times(timings).filter(~pl.col("nested")).sort("step_ns", descending=True).head(_TOP_OPERATORS)
    table = Table(
        "operators", f"The {rows.height} operators that take the most time of a step", columns,
        rows.select(column.key for column in columns), sortable=True,
    )  # fmt: skip
    drawn = (figure(run, drawing) for drawing in (OPS_LAYERS, OPS_OPERATORS, OPS_COMMUNICATION, OPS_MEMORY))
    return Section("operators", question, words, [*(one for one in drawn if one.spec), table])
