"""``llmprof experiment``: bandwidth of the hardware, length of the prompt, parallelism, and
changes over time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import polars as pl

from llmprof import text
from llmprof.cli.options import add_options
from llmprof.cli.output import Failing, Terminal, to_json, wrap_words
from llmprof.cli.run import add_config_options, changes, config_from
from llmprof.errors import ConfigError
from llmprof.run.experiments.bandwidth import Bandwidth, checked_spec, run_bandwidth, torchrun
from llmprof.run.experiments.history import TEST, track_measure
from llmprof.run.experiments.scaling import (
    CALIBRATION,
    LENGTHS,
    OUTPUTS,
    cases_of,
    fitting_lengths,
    grades_of,
    run_calibration,
    run_points,
)
from llmprof.run.launch import ExperimentConfig
from llmprof.run.launch.engines import interpreter
from llmprof.run.workers.bandwidth import SPEC
from llmprof.trace.storage import typed

NAMES = ("bandwidth", "sequence_length", "parallelism", "calibrate", "watch", "report")
WATCHED = ("bandwidth", "sequence_length", "parallelism")


def add_experiment_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the experiments to a parser."""
    added = add_options(parser, "experiment", spec=_spec)
    added["name"].choices, added["name"].help = NAMES, f"one of {', '.join(NAMES)}"
    added["spec"].help = f"bandwidth: other values of {', '.join(SPEC)}"
    added["of"].choices = WATCHED
    add_config_options(parser)


def _spec(words: str) -> dict[str, Any]:
    """Options of the measurement from JSON."""
    try:
        return checked_spec(json.loads(words))
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{words!r} is not JSON: {error}") from error
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def do_experiment(args: Namespace, terminal: Terminal) -> str:
    """Run an experiment, or draw its saved results again."""
    folder = Path(args.results_dir or "results/experiments")
    options: dict[str, Any] = {}
    if args.name == "bandwidth":
        if args.nodes:
            return torchrun(
                folder / _stamped("bandwidth_test"), nodes=args.nodes, ranks=8, spec=args.spec
            )
        options["bandwidth"] = _bandwidth(args, folder, terminal).memory.to_dicts()
    elif args.name in {"sequence_length", "parallelism"}:
        layouts = _layouts(args.layouts)
        if args.name == "parallelism" and len(layouts) < 2:
            raise ConfigError(
                "parallelism compares layouts of devices", expected="--layouts 1x1,2x1 or more"
            )
        options["points"] = _points(args, folder, layouts, terminal).to_dicts()
    elif args.name == "watch":
        return _watch(args, folder, terminal)
    elif args.name == "calibrate":
        return _calibrate(args, folder, terminal)
    from llmprof.run.experiments.layouts import judged
    from llmprof.run.experiments.report import saved, write_performance_report

    written = write_performance_report(folder, device=args.gpu, grades=grades_of(args.grade))
    points = saved(folder).points
    says = [] if points is None else judged(points)
    if args.json:
        return to_json(options | {"says": says, "files": written})
    where = [("Report", str(written[-1])), ("Files", f"{len(written)} in {folder}")]
    return "\n".join(
        [
            *(f"{wrap_words(one, terminal.width, '', '')}\n" for one in says),
            text.pairs(where, indent=""),
        ]
    )


def _stamped(name: str) -> str:
    return f"{name}_{time.strftime('%Y%m%d-%H%M%S')}.json"


def _bandwidth(args: Namespace, folder: Path, terminal: Terminal) -> Bandwidth:
    python = args.python or interpreter(["torch"])
    place = folder / _stamped("bandwidth_test")
    return run_bandwidth(place, spec=args.spec, progress=terminal.progress, python=python)


def _points(
    args: Namespace, folder: Path, layouts: list[tuple[int, int]], terminal: Terminal
) -> pl.DataFrame:
    base, tables = _with_model(args), []
    cases = cases_of(args.cases) if args.cases else {}
    for tp, pp in layouts:
        config = base.replace(tensor_parallel_size=tp, pipeline_parallel_size=pp)
        place = folder / f"tp{tp}_pp{pp}"
        tables.append(
            run_points(
                config,
                place,
                trace=args.trace,
                progress=terminal.progress,
                check=args.check,
                **cases,
            )
        )
        shutil.copy(place / "points.json", folder / f"latency_analysis_tp{tp}_pp{pp}.json")
        # those that do not fit were named by the first layout
        cases["lengths"], _ = fitting_lengths(
            config, cases.get("lengths", LENGTHS), cases.get("outputs", OUTPUTS)
        )
    return pl.concat(tables)


def _calibrate(args: Namespace, folder: Path, terminal: Terminal) -> str:
    cases = cases_of(args.cases) if args.cases else {}
    config = _with_model(args)
    found = run_calibration(
        config, folder, device=args.gpu, progress=terminal.progress, check=args.check, **cases
    )
    place = folder / CALIBRATION
    if args.json:
        return to_json(json.loads(found.to_json()) | {"file": str(place)})
    error = (pl.col("predicted_s") / pl.col("measured_s") - 1).abs()
    errors = pl.DataFrame(list(found.errors)).with_columns(error=error)
    median_error = pl.median("error")
    rows = errors.group_by("kind").agg(
        points=pl.len(), median_error=median_error, largest_error=pl.max("error")
    )
    covers = [
        (name.replace("_", " "), ", ".join(map(str, values)))
        for name, values in found.covers.items()
    ]
    head = [("Calibration", str(place)), ("Device", found.device), *covers]
    return "\n".join(
        [
            text.pairs(head, indent=""),
            "",
            text.format_table(rows.sort("kind"), width=terminal.width),
        ]
    )


def _with_model(args: Namespace) -> ExperimentConfig:
    if changes(args).get("model") is None and args.config is None:
        raise ConfigError("an experiment with an engine needs a model", expected="--model NAME")
    return config_from(args)


def _layouts(words: str) -> list[tuple[int, int]]:
    layouts = []
    for word in words.split(","):
        tp, times, pp = word.strip().partition("x")
        if not times or not tp.isdigit() or not pp.isdigit() or not int(tp) or not int(pp):
            raise ConfigError(f"--layouts has {word!r}", expected="TPxPP, such as 2x1")
        layouts.append((int(tp), int(pp)))
    return layouts


def _watch(args: Namespace, folder: Path, terminal: Terminal) -> str:
    measures = {
        "bandwidth": _bandwidth_values,
        "sequence_length": _point_values,
        "parallelism": _point_values,
    }

    def measure() -> dict[str, list[float]]:
        return measures[args.of](args, folder, terminal)

    # each experiment has a separate history, since the measured values differ
    path = folder / ("history.parquet" if args.of == "bandwidth" else f"history_{args.of}.parquet")
    verdicts = track_measure(
        measure,
        path,
        runs=args.runs,
        every_s=args.every,
        least_change=args.least_change,
        label=args.of,
    )
    worse = verdicts.filter(verdict="worse")
    out = (
        to_json(verdicts.to_dicts())
        if args.json
        else f"{text.format_table(verdicts, width=terminal.width)}\nTest: {TEST}."
    )
    return Failing(out) if worse.height else out


def _bandwidth_values(args: Namespace, folder: Path, terminal: Terminal) -> dict[str, list[float]]:
    """Times (s) of the repeats of each measurement of the hardware."""
    document = _bandwidth(args, folder, terminal).document
    values: dict[str, list[float]] = {}
    for row in [*document["memory"], *document["matmul"], *document["all_reduce"]]:
        kind, size = (
            row.get("kind") or row.get("dtype") or row.get("algorithm"),
            row.get("n") or row.get("bytes"),
        )
        times = row.get("times") or [row["seconds_min"], row["seconds"], row["seconds_max"]]
        values.setdefault(f"{kind}_{size}_s", []).extend(times)
    return values


def _point_values(args: Namespace, folder: Path, terminal: Terminal) -> dict[str, list[float]]:
    """Times (s) of prefill and of a decode step in each repeat of each point, measured again in
    a new folder.
    """
    place = folder / "watch" / f"{time.strftime('%Y%m%d-%H%M%S')}_{time.monotonic_ns() % 10**6:06d}"
    place.mkdir(parents=True)
    _points(args, place, _layouts(args.layouts), terminal)
    values: dict[str, list[float]] = {}
    for path in sorted(place.glob("latency_analysis_*.json")):
        for row in typed.read(path, typed.PointsJson)["rows"]:
            point = f"tp{row['tp']}_pp{row['pp']}_{row['prompt']}x{row['batch']}x{row['out']}_s"
            for phase in ("prefill", "decode_step"):
                if row.get(f"{phase}_s") is not None:
                    values.setdefault(f"{phase}_{point}", []).append(row[f"{phase}_s"])
    return values
