"""Writer of reports: page, charts as PNG, frames as CSV, and a summary for programs."""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import __version__, text
from llmprof.analyze import catalog
from llmprof.analyze.roofline import named
from llmprof.charts.base.save import png
from llmprof.errors import DefectError, OutputError, guarded
from llmprof.findings.facts import facts_in_words, run_facts, where_the_time_went
from llmprof.findings.findings import scope_parts
from llmprof.report import cards
from llmprof.report.figures import Drawing, bound_section, make_figure
from llmprof.report.page import (
    Absent,
    Contents,
    ReportFigure,
    Section,
    by_share,
    page,
    run_analysis,
)
from llmprof.report.sections import page_sections, report_sections
from llmprof.text import Progress
from llmprof.theory import Shape
from llmprof.trace import Trace
from llmprof.trace.storage import files, typed


def _holds(trace: Trace, table: str) -> bool:
    """Whether a trace has a table, or a model that says the work of kernels without operators."""
    return (
        not table
        or trace.has(table)
        or (table == "ops" and "model" in trace.meta and trace.has("kernels"))
    )


def contents(
    trace: Trace,
    *,
    title: str | None = None,
    progress: Progress | None = None,
    drawn: Callable[[ReportFigure], object] | None = None,
    first: Sequence[Section] = (),
    more: Sequence[tuple[str, str]] = (),
    path: str = "PATH",
    requests: pl.DataFrame | None = None,
    tables: bool = True,
) -> Contents:
    """Run the analyses and draw the figures; without tables, what is only drawn is left to the
    figures.
    """
    tell = progress or (lambda *_: None)
    results: dict[str, pl.DataFrame | Absent] = {}
    planned = [section for section in report_sections() if _holds(trace, section.only_with)]
    shown = [one for section in planned for one in section.analyses]
    instead = {one.without.analysis for one in planned if one.without is not None}
    reported = dict.fromkeys(
        [
            "findings",
            *(
                one.analysis
                for one in shown
                if one.reported and (tables or one.in_words or one.analysis in instead)
            ),
        ]
    )
    for done, name in enumerate(reported):
        tell(f"analysing: {name}", done, len(reported))
        of_requests = {"requests": requests} if name == "findings" else {}
        results[name] = run_analysis(catalog.analysis(name), trace, **of_requests)
    frames = {name: result for name, result in results.items() if isinstance(result, pl.DataFrame)}
    absent = [result for result in results.values() if isinstance(result, Absent)]
    figures = {}
    if drawn is not None:
        for given in [one for section in first for one in section.figures]:
            drawn(given)
    to_draw: dict[str, Drawing] = {}
    for drawing in (drawing for one in shown for drawing in one.figures):
        to_draw.setdefault(drawing.name, drawing)
    for done, drawing in enumerate(to_draw.values()):
        tell(f"drawing: {drawing.shows}", done, len(to_draw))
        figures[drawing.name] = make_figure(trace, drawing)
        if drawn is not None:
            drawn(figures[drawing.name])
    absent += [part.absent for part in figures.values() if part.absent is not None]
    stated = {"Device", *(name for name, _ in more)}
    found, of_trace = (
        frames.get("findings", pl.DataFrame()),
        page_sections(planned, figures, results, trace.capture.words),
    )
    ways = [one for name in (TYPICAL, OVERVIEW) for one in of_trace if one.anchor == name]
    standing = next((one for one in ways if one.shows), None)
    folded = [one for one in ways if one is not standing]
    folded += by_share([one for one in of_trace if one not in ways], found)
    typical = [] if standing is None else [standing]
    return Contents(
        title=title or cards.headline(trace),
        facts=[
            *more,
            *(
                pair
                for pair in facts_in_words(run_facts(trace, recorded=False))
                if pair[0] not in stated
            ),
            *cards.trace_facts(trace),
        ],
        files=cards.files_read(trace),
        warnings=cards.warnings(trace),
        shares=cards.shares(frames.get("coverage")),
        reading=cards.trace_reading(trace),
        time_went=where_the_time_went(trace, requests),
        findings=found,
        parts=scope_parts(trace, found["scope"][0]) if found.height else None,
        sections=[*first, *typical, *(replace(one, stands=False) for one in folded)],
        frames=frames,
        absent=absent,
        path=path,
    )


TYPICAL: Final = "timeline"
"""Anchor of the section that is not folded: a typical step; without steps it is the next one."""
OVERVIEW: Final = "steps"
"""Anchor of the first of those that are folded."""


SUMMARY = "summary.json"
PAGE = "index.html"


@contextmanager
def replacing(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """A temporary folder, whose files replace those of an earlier report in ``folder`` when all
    are written.
    """
    work: Path | None = None
    earlier = earlier_files(folder)

    def check(names: Iterable[str]) -> None:
        for name in names:
            files.check_output(folder / name, overwrite=overwrite, own=name in earlier)

    check((PAGE, SUMMARY))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".llmprof-", dir=folder))
        yield work
        written = sorted(path.name for path in work.iterdir())
        check(written)
        for stale in earlier - set(written):
            (folder / stale).unlink(missing_ok=True)
        for name in sorted(written, key=lambda name: name in (PAGE, SUMMARY)):
            (work / name).replace(folder / name)
    except OSError as error:
        found = f"cannot write the report to {folder}: {error.strerror or error}"
        raise OutputError(found, hint="choose a folder that can be written", path=folder) from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def earlier_files(folder: Path) -> set[str]:
    """Files of an earlier report in a folder, as its summary lists them; empty if there is none."""
    summary = typed.read_if_whole(folder / SUMMARY, typed.ReportJson)
    if summary is None:
        return set()
    names = summary["files"] if isinstance(summary["files"], list) else []
    plain = {name for name in names if isinstance(name, str) and Path(name).name == name}
    return {PAGE, SUMMARY} | {name for name in plain if name.endswith((".png", ".csv"))}


MOST_ROWS = 500_000
"""Most rows of a CSV; the summary says if the frame has more."""


@dataclass(frozen=True, slots=True)
class Report:
    """Files of a report.

    Attributes
    ----------
    folder, index, summary : pathlib.Path
        Their folder; the page, which needs none of the other files; findings, coverage and metadata
        as JSON.
    pngs, csvs : tuple of pathlib.Path
        A PNG for each chart, and a CSV for each frame.
    findings : polars.DataFrame
        Findings, most important first.
    """

    folder: Path
    index: Path
    summary: Path
    pngs: tuple[Path, ...]
    csvs: tuple[Path, ...]
    findings: pl.DataFrame


def html(
    trace: Trace, *, title: str | None = None, progress: Progress | None = None, path: str = "PATH"
) -> str:
    """The report of a trace as one HTML document, which loads nothing and includes Vega (1 to 4
    MB).

    In place of data that the capture lacks it gives the reason. ``title``, ``progress`` and
    ``path`` are those of :func:`write`.

    Examples
    --------
    >>> page = llmprof.report.html(trace)
    >>> "Where the time goes" in page
    True
    """
    return page(contents(trace, title=title, progress=progress, path=path, tables=False))


def write(
    trace: Trace,
    folder: str | os.PathLike[str],
    *,
    title: str | None = None,
    progress: Progress | None = None,
    first: Sequence[Section] = (),
    facts: Sequence[tuple[str, str]] = (),
    model: str | Path | Shape | None = None,
    path: str = "PATH",
    requests: pl.DataFrame | None = None,
    changes: Mapping[str, str] | None = None,
    pictures: bool = True,
    tables: bool = True,
    overwrite: bool = False,
) -> Report:
    """Write the report of a trace.

    Parameters
    ----------
    folder : path
        Folder to write to; made if missing. Files of an earlier report are replaced, others stay.
    title : str, optional
        Heading; by default it names ranks and device.
    progress : callable, optional
        Called with the current task, the number of finished parts, and the number of all parts.
    first : sequence of Section
        Sections before those of the trace.
    facts : sequence of (str, str)
        Names and values to show before the facts from the trace.
    model : str or path, optional
        The model: a name of :func:`llmprof.theory.names`, or a ``config.json``. The report then
        compares the steps with their least possible time, and operators without shapes have their
        work from it.
    path : str
        The recording as you name it: stands in the commands that the page shows.
    requests : polars.DataFrame, optional
        Rows of ``analyze.requests(run)``, for where their time went and the finding about their
        first tokens.
    changes : mapping of str to str, optional
        Command that tries a change which answers a finding, by the finding's rule: stands on its
        card.
    pictures : bool
        Whether each chart is written as a PNG, too, which takes as long as the rest.
    tables : bool
        Whether each frame is written as a CSV, too: many megabytes for a long recording.
    overwrite : bool
        Whether files of the same names that no earlier report wrote are replaced; inputs never are.

    Returns
    -------
    Report
        ``index.html`` and ``summary.json``, with ``pictures`` a PNG for each chart, with ``tables``
        a CSV for each frame (at most 500,000 rows).

    Raises
    ------
    OutputError
        The folder cannot be written, or has other files of the same names; what was in it stays.

    Examples
    --------
    >>> report = llmprof.report.write(trace, "report")
    >>> report.index.name
    'index.html'
    """
    if model is not None:
        first = [*first, bound_section(trace, model)]
        trace = named(trace, model)
    # V8 draws charts while Polars and Altair make the next ones
    with (
        replacing(Path(folder), overwrite=overwrite) as work,
        ThreadPoolExecutor(max_workers=1) as painter,
    ):
        jobs: dict[str, Future[bytes]] = {}

        def paint(figure: ReportFigure) -> None:
            if figure.spec and pictures:
                jobs[f"{figure.name}.png"] = painter.submit(png, figure.spec)

        made = contents(
            trace,
            title=title,
            progress=progress,
            drawn=paint,
            first=first,
            more=facts,
            path=path,
            requests=requests,
            tables=tables,
        )
        coverage = made.frames.get("coverage", pl.DataFrame())
        made = replace(made, changes=changes or {}, frames=made.frames if tables else {})
        head = _summary(trace, made, coverage)
        return _written(made, head, jobs, progress, work=work, target=Path(folder))


def write_contents(
    content: Contents,
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    overwrite: bool = False,
    pictures: bool = True,
) -> Report:
    """Write a report from its contents."""
    head = {"llmprof": __version__, "title": content.title, "findings": json_rows(content.findings)}
    head["absent"] = _absent(content)
    with (
        replacing(Path(folder), overwrite=overwrite) as work,
        ThreadPoolExecutor(max_workers=1) as painter,
    ):
        jobs = {
            f"{figure.name}.png": painter.submit(png, figure.spec)
            for figure in content.figures
            if figure.spec and pictures
        }
        return _written(content, head, jobs, progress, work=work, target=Path(folder))


def _written(
    content: Contents,
    head: Mapping[str, Any],
    jobs: Mapping[str, Future[bytes]],
    progress: Progress | None,
    *,
    work: Path,
    target: Path,
) -> Report:
    """Write the files of a report into a temporary folder, whose files then come into the
    target.
    """
    csvs = [f"{name}.csv" for name in content.frames]
    for name, frame in content.frames.items():
        (work / f"{name}.csv").write_text(text.csv(frame.head(MOST_ROWS)), encoding="utf-8")
    painted: dict[str, bytes] = {}
    for done, (name, job) in enumerate(jobs.items()):
        if progress:
            progress(f"painting: {name}", done, len(jobs))
        with suppress(DefectError), guarded(f"painting {name}"):
            painted[name] = job.result()
        if name in painted:
            (work / name).write_bytes(painted[name])
    (work / PAGE).write_text(page(content), encoding="utf-8")
    head = {**head, "files": sorted([*painted, *csvs, PAGE, SUMMARY])}
    (work / SUMMARY).write_text(
        json.dumps(head, indent=1, allow_nan=False, default=str), encoding="utf-8"
    )
    pngs, tables = (tuple(target / name for name in names) for names in (painted, csvs))
    return Report(target, target / PAGE, target / SUMMARY, pngs, tables, content.findings)


def write_sections(
    folder: str | os.PathLike[str],
    title: str,
    sections: Sequence[Section],
    frames: Mapping[str, pl.DataFrame],
    *,
    facts: Sequence[tuple[str, str]],
    warnings: Sequence[str],
    reading: tuple[str, str],
    progress: Progress | None = None,
) -> Report:
    """Write a report that is not of one trace; what its figures lack is absent."""
    absent = [figure.absent for section in sections for figure in section.figures if figure.absent]
    content = Contents(
        title,
        list(facts),
        list(sections),
        dict(frames),
        warnings=list(warnings),
        reading=[reading],
        absent=absent,
        of_trace=False,
    )
    return write_contents(content, folder, progress=progress)


def _summary(trace: Trace, content: Contents, coverage: pl.DataFrame) -> dict[str, Any]:
    """Summary of a report for programs: findings, coverage, metadata, and absent parts."""
    kept = {
        name: {"rows": frame.height, "written": min(frame.height, MOST_ROWS)}
        for name, frame in content.frames.items()
    }
    return {
        "llmprof": __version__,
        "title": content.title,
        "meta": trace.meta,
        "ranks": trace.ranks,
        "span_ns": trace.span_ns[1] - trace.span_ns[0],
        "tables": trace.rows,
        "reading": trace.coverage,
        "coverage": json_rows(coverage),
        "findings": json_rows(content.findings),
        "absent": _absent(content),
        "notes": {figure.name: figure.note for figure in content.figures if figure.note},
        "frames": kept,
    }


def _absent(content: Contents) -> list[dict[str, Any]]:
    return [
        {"part": a.part, "captured": a.captured, "found": a.found, "hint": a.hint}
        for a in content.absent
    ]


def json_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Convert rows for JSON: infinities and NaN become null."""
    return [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in frame.iter_rows(named=True)
    ]
