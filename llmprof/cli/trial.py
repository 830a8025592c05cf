"""``llmprof try`` and ``tune``: measure a change, and search the best of many."""

from __future__ import annotations

import argparse
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

import polars as pl

from llmprof import text
from llmprof.cli.options import add_options
from llmprof.cli.output import Failing, Terminal, options_of, share, to_json, try_making, wrap_words
from llmprof.cli.run import add_config_options, changes, config_from
from llmprof.errors import ConfigError
from llmprof.run import batch, launch, trials
from llmprof.run.trials import Study, Verdict
from llmprof.run.trials.verdict import gain_words
from llmprof.units import format_metric


def add_trial_options(sub: argparse.ArgumentParser) -> None:
    """Give a parser the options of a trial."""
    add_options(sub, "try", share=share)


def do_try(args: Namespace, terminal: Terminal) -> str:
    """Try a change of a run, or list what can be tried or was predicted."""
    if args.calibration:
        return _calibration(trials.calibration(args.run), args, terminal)
    run = launch.open_run(args.run)
    if args.list:
        rows = trials.remedies(run)
        if args.json:
            return to_json(rows.to_dicts())
        return text.format_table(rows.drop("order", "title"), width=terminal.width)
    reference = run.config.replace(python=args.python_a) if args.python_a else run
    options = options_of(args, trials.trial)
    verdict = trials.trial(reference, _change(args), **options, progress=terminal.progress)
    page = try_making(
        "the page",
        lambda: verdict.report().index,
        f'llmprof.run.trials.open_trial("{verdict.folder}").report()',
    )
    facts = {
        "folder": verdict.folder,
        "verdict": verdict.verdict,
        "says": verdict.says,
        "page": page,
    }
    out = to_json(facts) if args.json else _verdict_text(verdict, terminal, page)
    return (
        Failing(out) if args.fail_over is not None and verdict.fails_over(args.fail_over) else out
    )


def _change(args: Namespace) -> str | dict[str, Any] | None:
    if args.python_b and args.change:
        raise ConfigError(
            "--python-b was given with a change", expected="one of them: a trial has one difference"
        )
    if args.python_a and not (args.python_b or args.change):
        raise ConfigError("--python-a was given alone", expected="--python-b, or a change")
    return {"python": args.python_b} if args.python_b else args.change


def add_tune_options(sub: argparse.ArgumentParser) -> None:
    """Give a parser the options of a search, and those of a run."""
    add_options(sub, "tune")
    add_config_options(sub)


def do_tune(args: Namespace, terminal: Terminal) -> str:
    """Search the settings of an engine, and show the best."""
    given = changes(args)
    if args.run is not None and (given or args.config is not None):
        raise ConfigError(
            "a run was given with options of a run",
            expected="the folder alone, or --config and options",
        )
    origin = launch.open_run(args.run) if args.run is not None else config_from(args)
    config = origin.config if isinstance(origin, launch.Run) else origin
    folder = args.folder or batch.sweep.new_folder(config, f"tune_{config.name}")
    try:
        options = options_of(args, trials.tune) | {"folder": folder, "progress": terminal.progress}
        study = trials.tune(origin, **options)
    except KeyboardInterrupt:
        if folder.is_dir():
            words = (
                f"what was measured is kept; the same command with -o {shlex.quote(str(folder))}"
                " continues it"
            )
            terminal.tell(words)
        raise
    page = try_making(
        "the page",
        lambda: study.report().index,
        f'llmprof.run.trials.open_study("{study.folder}").report()',
    )
    if args.json:
        return to_json(
            {"folder": study.folder, "says": study.says, "command": study.command, "page": page}
        )
    return _found(study, terminal, page)


def _found(study: Study, terminal: Terminal, page: Path | None) -> str:
    """The result, a row for each point, and the files."""
    from llmprof.report.sweep import points_in_words  # Altair is imported for this table only

    rows = points_in_words(study.points)
    columns = [
        "label",
        "state",
        *rows.columns[rows.columns.index("error") + 1 : rows.columns.index("excess")],
        "error",
    ]
    lines = [wrap_words(study.says, terminal.width, "", "")]
    lines += [
        wrap_words(note, terminal.width, "note: ", "      ")
        for note in study.state["tune"]["notes"]
    ]
    lines += ["", text.format_table(rows.select(columns), width=terminal.width), ""]
    ends = [
        ("Ended", str(study.state["tune"].get("stopped"))),
        ("Study", str(study.folder)),
        ("Page", str(page or "none")),
    ]
    return "\n".join([*lines, text.pairs([*ends, ("To deploy", study.command)], indent="")])


def _verdict_text(verdict: Verdict, terminal: Terminal, page: Path | None) -> str:
    """The verdict, a row for each metric, and the files."""
    lines = [wrap_words(verdict.says, terminal.width, "", "")]
    lines += [
        wrap_words(note, terminal.width, "note: ", "      ") for note in verdict.state["notes"]
    ]
    rows = []
    for row in verdict.effects.rows(named=True):
        sides = (format_metric(row["metric"], row[side]) for side in ("before", "after"))
        rows.append((row["metric"], *sides, gain_words(row), row["verdict"]))
    heads = ("metric", "as it is", "changed", "time saved", "verdict")
    table = pl.DataFrame(rows, schema=dict.fromkeys(heads, pl.String), orient="row")
    lines += ["", text.format_table(table, width=terminal.width)]
    return "\n".join(
        [
            *lines,
            "",
            text.pairs([("Trial", str(verdict.folder)), ("Page", str(page or "none"))], indent=""),
        ]
    )


def _calibration(rows: pl.DataFrame, args: Namespace, terminal: Terminal) -> str:
    if args.change is not None:
        raise ConfigError(
            "--calibration was given with a change", expected="the folder of the trials alone"
        )
    if args.json:
        return to_json(rows.to_dicts())
    if rows.is_empty():
        return f"No trial in {args.run} predicted something and measured it."
    held = (
        f"Of {text.counted(rows.height, 'prediction')} {rows['held'].sum()} lay in their interval."
    )
    return f"{held}\n\n{text.format_table(rows, width=terminal.width)}"
