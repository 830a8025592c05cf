"""``llmprof report``, ``export``, ``notebook``, ``demo``, ``explore``, ``redact``, ``samples``
and ``mcp``.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shlex
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from llmprof import analyze, text, theory
from llmprof import report as reports
from llmprof.cli.analyze import (
    findings_text,
    first_findings_text,
    nothing_found,
    open_profile,
)
from llmprof.cli.output import (
    SAMPLE,
    Terminal,
    input_paths,
    is_profile,
    key_value,
    on_workers,
    open_trace,
    to_json,
    wrap_words,
)
from llmprof.errors import LaunchError, LlmprofError, guarded
from llmprof.findings.card import finding_row
from llmprof.findings.hardware import launches_in_a_row
from llmprof.readers import bundled
from llmprof.readers.ncu.reader import read_metrics
from llmprof.text import Progress
from llmprof.trace.storage import files
from llmprof.units import format_bytes

if TYPE_CHECKING:
    from llmprof.report import Report

# not imported: widgets need Altair
_EXPLORE: Final = Path(__file__).parents[1] / "explore"

DEMO_SAMPLE = "torch_tp4_eager_custom_allreduce"
MOST_FINDINGS = 5
OF_REPORTS: Final[dict[str, dict[str, Any]]] = {
    "findings": {},
    "steps": {},
    "layers": {},
    "overlap": {"by": ("rank", "step", "phase"), "waits": True},
    "launch_delay": {},
    "coverage": {},
}
"""Analyses of reports that can be computed for each rank of a dataset separately, with their
options.
"""
LEAST_KEY_BYTES = 8


def do_report(args: Namespace, terminal: Terminal) -> str:
    """Write the report of a trace, or of hardware metrics."""
    if is_profile(args.paths):
        return _report_of_profile(args, terminal)
    model = args.model or None
    if model:
        theory.shape(model)  # an unknown one is refused before all else
    trace = open_trace(args.paths, args, terminal)
    on_workers(OF_REPORTS, trace, args, terminal)
    named = shlex.join(args.paths)
    if _is_page(args.output):
        if model is not None:
            raise LlmprofError(
                "a report with a model needs several files", hint="name a folder: -o report"
            )
        page = reports.html(trace, title=args.title, progress=terminal.progress, path=named)
        return _one_page(page, args)
    options: dict[str, Any] = {
        "title": args.title,
        "progress": terminal.progress,
        "model": model,
        "path": named,
    }
    options |= {"overwrite": args.force, "pictures": args.png, "tables": args.tables}
    written = reports.write(trace, args.output, **options)
    if args.json:
        return to_json(_files_of(written))
    try:
        with guarded("the findings"):
            top = first_findings_text(analyze.findings(trace), terminal.width, args.paths)
    except LlmprofError as error:
        top = wrap_words(f"No findings: {text.plain(error)}", terminal.width, "", "")
    return f"{top}\n\n{_paths_of(written)}"


def _report_of_profile(args: Namespace, terminal: Terminal) -> str:
    """Write the report of hardware metrics."""
    from llmprof.report.folder import write_contents
    from llmprof.report.hardware import profile_contents
    from llmprof.report.page import page

    measured = open_profile(args.paths)
    if args.model:
        raise LlmprofError(
            "--model needs a timeline, and these are hardware metrics", hint="leave it out"
        )
    content = profile_contents(measured, title=args.title)
    if _is_page(args.output):
        return _one_page(page(content), args)
    written = write_contents(content, args.output, progress=terminal.progress, overwrite=args.force)
    if args.json:
        return to_json(_files_of(written))
    found = written.findings.head(MOST_FINDINGS)
    top = (
        findings_text(found, terminal.width, args.paths)
        if found.height
        else nothing_found(measured, terminal)
    )
    return f"{top}\n\n{_paths_of(written)}"


def _is_page(output: str) -> bool:
    """Return whether the output is one HTML file (``-o x.html``) instead of a folder."""
    target = Path(output)
    return target.suffix.lower() in {".html", ".htm"} and not target.is_dir()


def _one_page(page: str, args: Namespace) -> str:
    file = files.write_output(args.output, page, overwrite=args.force)
    return to_json({"index": file}) if args.json else text.pairs([("Report", str(file))], indent="")


def _files_of(written: Report) -> dict[str, Any]:
    return {
        "index": written.index,
        "summary": written.summary,
        "pngs": written.pngs,
        "csvs": written.csvs,
    }


def _paths_of(written: Report, *more: tuple[str, str]) -> str:
    """List the files of a report."""
    pngs, csvs = written.folder / "*.png", written.folder / "*.csv"
    named = [
        ("Report", str(written.index)),
        *([("Charts", f"{pngs} ({len(written.pngs)})")] if written.pngs else []),
    ]
    named += [("Tables", f"{csvs} ({len(written.csvs)})")] if written.csvs else []
    return text.pairs([*named, *more], indent="")


def do_export(args: Namespace, terminal: Terminal) -> str:
    """Write a trace for Perfetto, speedscope, a spreadsheet or data frames."""
    from llmprof.report.export import export

    trace = open_trace(args.paths, args, terminal)
    written = export(
        trace,
        args.output,
        form=args.form,
        window=args.window,
        redact=args.redact,
        overwrite=args.force,
    )
    size = sum(
        file.stat().st_size for file in (written.rglob("*") if written.is_dir() else [written])
    )
    return (
        to_json({"file": written, "bytes": size})
        if args.json
        else f"{written}: {format_bytes(size)}"
    )


def do_mcp(args: Namespace, terminal: Terminal) -> str:
    """Answer an agent over stdin and stdout until it disconnects."""
    from llmprof.cli.agents import server

    server(args.folders).run()
    return ""


def do_notebook(args: Namespace, terminal: Terminal) -> str:
    """Execute a notebook."""
    from llmprof.run.notebook import tutorials

    if args.over:
        return _notebooks(args, terminal)
    given = dict(key_value(item, "-p") for item in args.parameter or [])
    progress = _cells(terminal)
    path = tutorials.run_notebook(
        args.name, args.output, parameters=given, progress=progress, overwrite=args.force
    )
    return to_json({"notebook": path}) if args.json else f"Notebook  {path}"


def _notebooks(args: Namespace, terminal: Terminal) -> str:
    """Execute a notebook for each of several runs."""
    from llmprof.run import batch

    if args.output.endswith(".ipynb") and not Path(args.output).is_dir():
        raise LlmprofError(
            "--over writes several notebooks, and -o names one file", expected="-o FOLDER"
        )
    given = dict(key_value(item, "-p") for item in args.parameter or [])
    done = batch.notebooks_over(
        args.over,
        args.name,
        args.output,
        parameters=given,
        progress=terminal.progress,
        overwrite=args.force,
    )
    if args.json:
        return to_json({"index": done.index, "notebooks": done.notebooks, "errors": done.errors})
    rows = [(run, str(path)) for run, path in done.notebooks.items()]
    rows += [(run, f"failed: {error}") for run, error in done.errors.items()]
    return text.pairs([*rows, ("Index", str(done.index))], indent="")


def _cells(terminal: Terminal) -> Progress | None:
    tell = terminal.progress
    return None if tell is None else lambda name, done, cells: tell(f"running {name}", done, cells)


_OPENING: Final = ("info", "findings", "report", "explore")
"""Commands that open any sample."""
NCU: Final = "Nsight Compute"
"""Profiler of the samples with hardware metrics."""


def do_completion(args: Namespace, terminal: Terminal) -> str:
    """Script that completes commands, options and their values in a shell."""
    from argcomplete.shell_integration import shellcode

    script = shellcode(["llmprof"], shell=args.shell)
    return to_json({"script": script}) if args.json else script


def do_samples(args: Namespace, terminal: Terminal) -> str:
    """The sample traces."""
    frame = bundled.samples()
    if args.json:
        return to_json(frame.to_dicts())
    here, elsewhere = frame.filter("here"), frame.filter(~pl.col("here"))
    columns, spare = (
        ["name", "ranks", "execution", "bytes", "model", "title"],
        [["bytes"], ["execution"], ["ranks"]],
    )
    table = text.format_table(
        here, width=terminal.width, columns=columns, spare=spare, whole=["name"]
    )
    of_ncu = here["profiler"] == NCU
    lines = [table, "Open one by its name:"]
    traces, profiles = (here.filter(rows)["name"].head(1) for rows in (~of_ncu, of_ncu))
    lines += [f"  llmprof {opening} sample:{name}" for name in traces for opening in _OPENING]
    lines += [f"  llmprof findings sample:{name}   (hardware metrics)" for name in profiles]
    if elsewhere.height:
        lines.append(
            f"In the repository of llmprof, not installed here: {', '.join(elsewhere['name'])}"
        )
    return "\n".join(lines)


def do_demo(args: Namespace, terminal: Terminal) -> str:
    """Notebook, report, charts and tables of a bundled capture."""
    from llmprof.report import folder
    from llmprof.run.notebook import tutorials

    tutorials.check_installed()
    tutorials.find_notebook(args.notebook)
    trace = open_trace([SAMPLE + DEMO_SAMPLE], args, terminal)
    title = bundled.describe_sample(DEMO_SAMPLE).title
    again = args.force or bool(folder.earlier_files(Path(args.output)))
    options: dict[str, Any] = {
        "title": title,
        "progress": terminal.progress,
        "path": SAMPLE + DEMO_SAMPLE,
    }
    written = reports.write(trace, args.output, overwrite=args.force, **options)
    path = tutorials.run_notebook(
        args.notebook, args.output, progress=_cells(terminal), overwrite=again
    )
    top = written.findings.head(MOST_FINDINGS)
    if args.json:
        return to_json({"findings": top.to_dicts(), "notebook": path} | _files_of(written))
    width = terminal.width or 100
    rows = [(f"{row['order']}. ", row["title"]) for row in top.iter_rows(named=True)]
    numbered = [wrap_words(title, width, number, " " * len(number)) for number, title in rows]
    head = wrap_words(f"Where the time goes in {DEMO_SAMPLE} ({title}):", width, "", "")
    return "\n".join([head, *numbered, "", _paths_of(written, ("Notebook", str(path)))])


def do_redact(args: Namespace, terminal: Terminal) -> str:
    """Write a redacted copy and list what was removed; with ``--check`` only list it."""
    from llmprof.readers import redaction

    if args.check:
        to_remove = redaction.list_redactions(args.file)
        if args.json:
            return to_json({"file": args.file, "would_remove": to_remove.to_dicts()})
        return (
            text.format_table(to_remove, width=terminal.width)
            if to_remove.height
            else "nothing in it would be removed"
        )
    if args.output is None:
        raise LlmprofError(
            "no name for the copy was given",
            expected="-o COPY, or --check for a list of removed texts",
        )
    copy = Path(args.output)
    removed = redaction.redact(args.file, copy, key=_key(args.key_file))
    if args.json:
        return to_json({"copy": copy, "removed": removed.to_dicts()})
    table = (
        text.format_table(removed, width=terminal.width)
        if removed.height
        else "nothing had to be removed"
    )
    return f"{table}\nCopy  {text.plain(copy)}"


def _key(path: str | None) -> bytes | None:
    """Read the key of the pseudonyms from a file; None if no file is named."""
    if path is None:
        return None
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise LlmprofError(f"cannot read the key file {path}: {error.strerror or error}") from error
    if len(key) < LEAST_KEY_BYTES:
        raise LlmprofError(
            f"the key in {path} has {len(key)} bytes", expected=f"at least {LEAST_KEY_BYTES}"
        )
    return key


HOST: Final = "127.0.0.1"
NEEDED: Final = ("voila", "ipywidgets", "anywidget", "ipykernel", "psutil")
_START_S: Final = 60.0
_SAID: Final = 2_000
"""Largest number of characters of the server's log in an error message."""


def do_convert(args: Namespace, terminal: Terminal) -> str:
    """Make a dataset from the files of many ranks."""
    from llmprof.report.dataset import convert as to_dataset
    from llmprof.report.dataset.cluster import local

    inputs: list[str | Path] = []
    for path in args.paths:
        inputs += (
            bundled.sample_files(path.removeprefix(SAMPLE)) if path.startswith(SAMPLE) else [path]
        )
    if args.workers is not None and args.workers < 1:
        raise LlmprofError(f"--workers is {args.workers}", expected="1 or more")
    with ExitStack() as stack:
        several = args.cluster is None and (args.workers or 1) > 1
        client = stack.enter_context(local(args.workers)) if several else args.cluster
        clocks = "unrelated" if args.unrelated_clocks else "shared"
        options: dict[str, Any] = {
            "format": args.format,
            "clocks": clocks,
            "progress": terminal.progress,
        }
        options["client"] = False if args.workers == 1 and client is None else client
        trace = to_dataset(inputs, args.output, **options)
    failed = trace.coverage.get("failed", [])
    if args.json:
        return to_json(
            {"dataset": args.output, "ranks": trace.ranks, "rows": trace.rows, "failed": failed}
        )
    ranks = [rank for rank in trace.ranks if rank >= 0]
    rows = sum(rows for name, rows in trace.rows.items() if name != "collectives")
    pairs = [("Dataset", args.output), ("Ranks", f"{len(ranks):,}"), ("Rows", f"{rows:,}")]
    pairs += [("Left out", f"{file['file']}: {text.plain(file['why'])}") for file in failed]
    return text.pairs([*pairs, ("Next", f"llmprof findings {args.output}")], indent="")


def do_explore(args: Namespace, terminal: Terminal) -> str:
    """Serve the explorers until the server is ended with Ctrl-C."""
    _check_installed()
    from llmprof.explore.served import ServedFiles
    from llmprof.run.launch.run import process
    from llmprof.run.workers.machine import Refused
    from llmprof.run.workers.server import free_port

    alone = is_profile(args.paths)
    if alone and args.compare:
        raise LlmprofError(
            "hardware metrics have no timeline to compare", hint="use llmprof diff A B for them"
        )
    # errors appear here and not in the browser; the cache keeps what was read
    traces, others = [] if alone else args.paths, [args.compare] if args.compare else []
    opened: Any = None
    for paths in filter(None, (others, traces)):
        opened = open_trace(paths, args, terminal)
    if alone:
        opened = open_profile(args.paths).metrics
        launches_in_a_row(opened)
    if args.finding is not None:
        find: Any = analyze.ncu.findings if alone else analyze.findings
        finding_row(find(opened), args.finding)
    metrics = [
        str(path.resolve())
        for path in input_paths([*(args.paths if alone else []), *(args.metrics or [])])
    ]
    if metrics:
        read_metrics(metrics)
    named, cache = (
        [_name(args.paths[0]), _name(args.compare or "b")],
        False if args.no_cache else None,
    )
    page = ServedFiles(
        _files(traces), _files(others), metrics, named, args.format, cache, args.finding
    )
    try:
        port = free_port(args.port)
    except (Refused, OverflowError) as error:
        found = (
            f"port {args.port} cannot be used: {error}"
            if isinstance(error, OverflowError)
            else str(error)
        )
        raise LlmprofError(
            found, hint="choose another port with --port, or leave the option out"
        ) from error
    token = secrets.token_urlsafe(24)
    address = f"http://{HOST}:{port}/?token={token}"
    environment = (
        os.environ | page.environment() | {"JUPYTER_TOKEN": token, "JUPYTER_PATH": _templates()}
    )
    with tempfile.TemporaryDirectory(prefix="llmprof-explore-") as folder:
        log = Path(folder) / "voila.log"
        greeter = threading.Thread(target=_greet, args=(address, port, args, terminal), daemon=True)
        try:
            process.run(
                _command(port), log=log, env=environment, started=lambda _pid: greeter.start()
            )
        except KeyboardInterrupt:
            return "" if args.json else "The server has ended."
        printed = log.read_text("utf-8", "replace")[-_SAID:]
    raise LaunchError(
        "voila ended by itself",
        expected="a server that runs until Ctrl-C",
        hint=f"it said: {printed}",
    )


def _command(port: int) -> list[str]:
    """Command line of the server, which listens only on this machine and requires the token in
    ``JUPYTER_TOKEN``.
    """
    notebook = _EXPLORE / "explore.ipynb"
    return [
        *(sys.executable, "-m", "voila", str(notebook), "--no-browser"),
        *(
            f"--Voila.ip={HOST}",
            f"--port={port}",
            "--Voila.port_retries=0",
            "--Voila.auto_token=True",
        ),
        *("--template=llmprof", "--VoilaConfiguration.show_tracebacks=True"),
    ]


def _templates() -> str:
    """``JUPYTER_PATH`` with the folder of our page template, which needs no network."""
    ours = _EXPLORE / "jupyter"
    return os.pathsep.join([str(ours), *filter(None, [os.environ.get("JUPYTER_PATH")])])


def _check_installed() -> None:
    """Check that the packages that serve the page are installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        found = (
            f"explorers cannot be served: {', '.join(missing)}"
            f" {'is' if len(missing) == 1 else 'are'} not installed"
        )
        raise LlmprofError(found, hint="pip install 'llmprof[notebook]'", missing=missing)


def _files(paths: Sequence[str]) -> list[str]:
    inputs: list[Path] = []
    for path in paths:
        inputs += (
            bundled.sample_files(path.removeprefix(SAMPLE))
            if path.startswith(SAMPLE)
            else [Path(path)]
        )
    return [str(file.resolve()) for file in inputs]


def _name(path: str) -> str:
    return (
        path.removeprefix(SAMPLE)
        if path.startswith(SAMPLE)
        else Path(path).name.split(".")[0] or path
    )


def _greet(address: str, port: int, args: Namespace, terminal: Terminal) -> None:
    """Print the address as soon as the server answers, and open it in a browser."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            break
    terminal.tell(
        to_json({"address": address})
        if args.json
        else f"Explorers at {address}\nCtrl-C ends the server."
    )
    if args.browser:
        webbrowser.open(address)
