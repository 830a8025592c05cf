"""Commands that write files: ``llmprof report``, ``notebook`` and ``demo``; and the list of samples."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from llmprof import bundled, text
from llmprof.cli.analyze import findings_text
from llmprof.cli.output import SAMPLE, Terminal, open_trace, rows_of, to_json, wrapped
from llmprof.errors import LlmprofError
from llmprof.progress import Progress

if TYPE_CHECKING:
    from llmprof.report import Report

DEMO_SAMPLE = "torch_tp4_eager_custom_allreduce"
MOST_FINDINGS = 5
LEAST_KEY_BYTES = 8


def report(args: Namespace, terminal: Terminal) -> str:
    """Write the report of a trace."""
    from llmprof import report as reports
    from llmprof import theory

    model = theory.shape(args.model) if args.model else None
    trace = open_trace(args.paths, args, terminal)
    written = reports.write(trace, args.output, title=args.title, progress=terminal.progress, model=model)
    if args.json:
        files = {"index": written.index, "summary": written.summary, "pngs": written.pngs, "csvs": written.csvs}
        return to_json(files)
    top = findings_text(written.findings.head(MOST_FINDINGS), terminal.width)
    return f"{top}\n\n{_paths(written)}"


def _paths(written: Report, *more: tuple[str, str]) -> str:
    """Where the files of a report are."""
    pngs, csvs = written.folder / "*.png", written.folder / "*.csv"
    named = [("Report", str(written.index)), ("Charts", f"{pngs} ({len(written.pngs)})")]
    return text.pairs([*named, ("Tables", f"{csvs} ({len(written.csvs)})"), *more], indent="")


def notebook(args: Namespace, terminal: Terminal) -> str:
    """Execute a notebook."""
    from llmprof.notebook import tutorials

    if args.over:
        return _notebooks(args, terminal)
    given = dict(parameter(item) for item in args.parameter or [])
    path = tutorials.run_notebook(args.name, args.output, parameters=given, progress=_cells(terminal))
    return to_json({"notebook": path}) if args.json else f"Notebook  {path}"


def _notebooks(args: Namespace, terminal: Terminal) -> str:
    """Execute a notebook for each of several runs."""
    from llmprof import batch

    given = dict(parameter(item) for item in args.parameter or [])
    done = batch.notebooks_over(args.over, args.name, args.output, parameters=given, progress=terminal.progress)
    if args.json:
        return to_json({"index": done.index, "notebooks": done.notebooks, "errors": done.errors})
    rows = [(run, str(path)) for run, path in done.notebooks.items()]
    rows += [(run, f"failed: {error}") for run, error in done.errors.items()]
    return text.pairs([*rows, ("Index", str(done.index))], indent="")


def _cells(terminal: Terminal) -> Progress | None:
    tell = terminal.progress
    if tell is None:
        return None
    return lambda name, done, cells: tell(f"running {name}", done, cells)


def parameter(item: str) -> tuple[str, Any]:
    """``key=value`` as a name and a value: JSON and Python's constants where the value is one, else text."""
    key, equals, said = item.partition("=")
    if not key or not equals:
        raise LlmprofError(f"the parameter {item!r} has no value", expected="-p name=value")
    constants = {"True": True, "False": False, "None": None}
    if said in constants:
        return key, constants[said]
    try:
        return key, json.loads(said)
    except ValueError:
        return key, said


def samples(args: Namespace, terminal: Terminal) -> str:
    """The sample traces."""
    frame = bundled.samples()
    if args.json:
        return to_json(rows_of(frame))
    here, elsewhere = frame.filter("here"), frame.filter(~pl.col("here"))
    table = text.table(here, width=terminal.width, columns=["name", "ranks", "execution", "bytes", "model", "title"])
    traces = here.filter(pl.col("profiler") != "Nsight Compute")["name"]
    lines = [table, f"Open one with its name: llmprof report sample:{traces[0] if len(traces) else 'NAME'}"]
    if elsewhere.height:
        lines.append(f"In the repository of llmprof, not installed here: {', '.join(elsewhere['name'])}")
    return "\n".join(lines)


def demo(args: Namespace, terminal: Terminal) -> str:
    """Notebook, report, charts and tables of a bundled capture."""
    from llmprof import report as reports
    from llmprof.notebook import tutorials

    tutorials.check_installed()
    tutorials.find(args.notebook)
    trace = open_trace([SAMPLE + DEMO_SAMPLE], args, terminal)
    title = bundled.describe(DEMO_SAMPLE).title
    written = reports.write(trace, args.output, title=title, progress=terminal.progress)
    path = tutorials.run_notebook(args.notebook, args.output, progress=_cells(terminal))
    top = written.findings.head(MOST_FINDINGS)
    if args.json:
        said = {"findings": rows_of(top), "index": written.index, "summary": written.summary, "notebook": path}
        return to_json(said | {"pngs": written.pngs, "csvs": written.csvs})
    width = terminal.width or 100
    rows = [(f"{row['order']}. ", row["title"]) for row in top.iter_rows(named=True)]
    numbered = [wrapped(title, width, number, " " * len(number)) for number, title in rows]
    head = wrapped(f"Where the time goes in {DEMO_SAMPLE} ({title}):", width, "", "")
    return "\n".join([head, *numbered, "", _paths(written, ("Notebook", str(path)))])


def redact(args: Namespace, terminal: Terminal) -> str:
    """Write a copy that can be handed on and say what was left out, or only list what would be."""
    from llmprof import redaction

    if args.check:
        found = redaction.check(args.file)
        if args.json:
            return to_json({"file": args.file, "would_remove": rows_of(found)})
        return text.table(found, width=terminal.width) if found.height else "nothing in it would be removed"
    if args.output is None:
        raise LlmprofError("no name for the copy was given", expected="-o COPY, or --check to list what is removed")
    copy = Path(args.output)
    removed = redaction.redact(args.file, copy, key=_key(args.key_file))
    if args.json:
        return to_json({"copy": copy, "removed": rows_of(removed)})
    table = text.table(removed, width=terminal.width) if removed.height else "nothing was found that had to be removed"
    return f"{table}\nCopy  {text.plain(copy)}"


def _key(path: str | None) -> bytes | None:
    """Key of the pseudonyms out of a file; None if none is named."""
    if path is None:
        return None
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise LlmprofError(f"cannot read the key file {path}: {error.strerror or error}") from error
    if len(key) < LEAST_KEY_BYTES:
        raise LlmprofError(f"the key in {path} has {len(key)} bytes", expected=f"at least {LEAST_KEY_BYTES}")
    return key
