"""``llmprof run``, ``runs`` and ``doctor``: one profiled run, what runs there are, and whether the machine can."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from llmprof import text
from llmprof.commands._analyze import findings_text
from llmprof.commands._launch_options import changes, config_of
from llmprof.commands._output import Terminal, rows_of, to_json, wrapped
from llmprof.errors import ConfigError, LlmprofError, NotCapturedError
from llmprof.units import format_bytes, format_ns

if TYPE_CHECKING:
    from llmprof.launch import ExperimentConfig, Run

MOST_FINDINGS = 3
_SMALL = 0.1
_SHOWN = ("ttft_ns", "tpot_ns", "itl_ns", "e2e_ns", "wall_ns", "output_tokens_per_s")
_NAMES = {
    "ttft_ns": "time to first token",
    "tpot_ns": "time per output token",
    "itl_ns": "inter-token latency",
    "e2e_ns": "end to end",
    "wall_ns": "whole batch",
    "output_tokens_per_s": "output tokens/s",
}


def run(args: Namespace, terminal: Terminal) -> str:
    """Run one experiment and say what came out."""
    from llmprof import launch

    if args.resume is not None:
        if changes(args) or args.config is not None:
            raise ConfigError("--resume was given with options of a run", expected="the folder alone")
        done = launch.resume(args.resume, progress=terminal.progress, check=args.check)
    else:
        config = config_of(args)
        if args.dry_run:
            return commands_of(config, json=args.json)
        done = launch.ExperimentRunner(config, progress=terminal.progress, check=args.check).run()
    files = _files(done, terminal) if args.report else []
    if args.json:
        return to_json(
            {"folder": done.folder.path, "state": done.state, "summary": done.summary, "files": [p for _, p in files]}
        )
    return "\n\n".join(filter(None, (_metrics(done), _capture(done, terminal), _places(done, files))))


def commands_of(config: ExperimentConfig, *, json: bool) -> str:
    """Command lines of a run, as a shell would take them; nothing is started or written."""
    from llmprof import launch
    from llmprof.launch.command import environment

    plan, variables = launch.plan(config), environment(config)
    if json:
        said = {"commands": [{"pass": name, "argv": argv} for name, argv in plan], "environment": variables}
        return to_json(said | {"config": config.to_dict()})
    lines = [f"# {name}\n{shlex.join(argv)}" for name, argv in plan]
    exported = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return "\n".join([f"# environment\n{exported}", *lines])


def _files(done: Run, terminal: Terminal) -> list[tuple[str, Path]]:
    """Report and charts of the run."""
    from llmprof.report import Visualizer

    visualizer = Visualizer(done.folder.path, progress=terminal.progress)
    pictures = visualizer.create_all_visualizations()
    named = [("Report", visualizer.generate_report_html())]
    return named + [("Dashboard", path) for path in pictures if path.name.endswith("_dashboard.png")]


def _metrics(done: Run) -> str:
    from llmprof.launch.metrics import summarize

    rows = []
    for row in summarize(done.metrics).iter_rows(named=True):
        if row["metric"] in _SHOWN:
            say = format_ns if row["unit"] == "ns" else _rate
            spread = "" if row["std"] is None else f"± {say(row['std'])}"
            tail = say(row["p99"]) if row["n"] > 1 else ""
            rows.append((row["phase"], _NAMES[row["metric"]], say(row["mean"]), spread, say(row["p50"]), tail))
    if not rows:
        return ""
    columns = ("phase", "metric", "mean", "std", "median", "p99")
    return text.table(pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row"))


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"


def _capture(done: Run, terminal: Terminal) -> str:
    """What the trace says, if there is one."""
    try:
        trace = done.trace
    except NotCapturedError as error:
        return "" if done.config.profile_mode in {"inference_only", "ncu"} else f"No timeline: {text.plain(error)}"
    from llmprof import analyze

    try:
        top = analyze.findings(trace).head(MOST_FINDINGS)
    except LlmprofError as error:
        return wrapped(f"No findings: {error}", terminal.width, "", "")
    return findings_text(top, terminal.width) if top.height else ""


def _cost(row: dict[str, Any]) -> str:
    """What the profiler costs, in words."""
    share, clear = row["overhead"], row.get("clear")
    more = f"{100 * share:+.1f} %"
    if clear is False and abs(share) <= _SMALL:
        return f"no measurable overhead ({more} for a batch, within the noise of the repeats)"
    if clear is False:
        return f"{more} time for a batch, which is not beyond the noise of the repeats"
    known = "" if clear else ", of one repeat without it, so the noise is not known"
    return f"{more} time for a batch{known}"


def _places(done: Run, files: list[tuple[str, Path]]) -> str:
    summary = done.summary
    rows = [("Run", f"{done.folder.path} ({done.state})")]
    from llmprof.launch.folder import UNIMPORTED

    cost = [row for row in summary.get("overhead") or () if row.get("metric") == "wall_ns"]
    if cost and cost[0].get("overhead") is not None:
        rows.append(("Profiler", _cost(cost[0])))
    if peaks := summary.get("peak_memory_bytes"):
        most = max(peaks.values())
        rows.append(("Memory", f"{format_bytes(most)} at most on a device"))
    rows += [(name, str(path)) for name, path in files]
    rows += [("Note", note) for note in summary.get("notes") or ()]
    if done.state == UNIMPORTED:
        rows.append(("Next", f"llmprof run --resume {shlex.quote(str(done.folder.path))}"))
    elif done.config.profile_mode in {"torch", "nsys", "nsys_ncu"}:
        rows.append(("Next", f"llmprof analyze {shlex.quote(str(done.folder.path))}"))
    return text.pairs(rows, indent="")


def runs(args: Namespace, terminal: Terminal) -> str:
    """The runs in a folder with their states; those that failed are removed if that is asked for."""
    from llmprof import launch

    if args.clean:
        removed = launch.clean(args.folder)
        if args.json:
            return to_json({"removed": removed})
        return "\n".join([f"removed {text.plain(path)}" for path in removed] or ["there was nothing to remove"])
    rows = [_listed(folder.path, folder.state) for folder in launch.runs(args.folder)]
    if args.json:
        return to_json(rows)
    if not rows:
        raise LlmprofError(f"there are no runs in {args.folder}", expected="a folder of run folders")
    return text.table(pl.DataFrame(rows, infer_schema_length=None), width=terminal.width)


def _listed(path: Path, state: dict[str, Any]) -> dict[str, str]:
    error = state.get("error") or {}
    said = {"run": path.name, "state": state["state"], "stage": state.get("stage"), "started": state.get("started")}
    return {key: str(value or "") for key, value in (said | {"error": error.get("message")}).items()}


def doctor(args: Namespace, terminal: Terminal) -> str:
    """Whether the machine can run an experiment."""
    from llmprof.launch.doctor import doctor as ask

    given = changes(args)
    config = config_of(args) if given.get("model") or args.config is not None else None
    if config is None and given:
        config = config_of(Namespace(**{**vars(args), "model": "random:tiny"}))
    checks = ask(config)
    if args.json:
        return to_json(rows_of(checks))
    table = text.table(checks.select("status", "check", "found", "expected"), width=terminal.width)
    advice = [
        wrapped(f"{row['check']}: {row['advice']}", terminal.width, f"{row['status']}: ", "  ")
        for row in checks.filter(pl.col("status").is_in(["fail", "warn"])).iter_rows(named=True)
        if row["advice"]
    ]
    return "\n".join([table, *(["", *advice] if advice else [])])
