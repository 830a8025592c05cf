"""Writer of reports: page, charts as PNG, frames as CSV, and a summary for programs."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from llmprof import text
from llmprof.errors import OutputError
from llmprof.progress import Progress
from llmprof.report import vega
from llmprof.report.contents import contents
from llmprof.report.figures import bound_section
from llmprof.report.page import Contents, Figure, Section, page
from llmprof.storage import files
from llmprof.theory import Shape
from llmprof.trace import Trace
from llmprof.version import __version__

SUMMARY = "summary.json"
PAGE = "index.html"


@contextmanager
def replacing(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """A temporary folder, whose files replace those of an earlier report in ``folder`` when all are written."""
    work: Path | None = None
    earlier = listed(folder)

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
        raise OutputError(
            f"cannot write the report to {folder}: {error.strerror or error}",
            hint="choose a folder that can be written",
            path=folder,
        ) from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def listed(folder: Path) -> set[str]:
    """Files of an earlier report in a folder, as its summary lists them; empty if there is none."""
    try:
        summary = json.loads((folder / SUMMARY).read_text("utf-8"))
    except (OSError, ValueError):
        return set()
    if not isinstance(summary, Mapping) or not {"llmprof", "files"} <= summary.keys():
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
    folder : pathlib.Path
        Their folder.
    index : pathlib.Path
        The page; it needs none of the other files.
    summary : pathlib.Path
        Findings, coverage and metadata as JSON.
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


def html(trace: Trace, *, title: str | None = None, progress: Progress | None = None, path: str = "PATH") -> str:
    """The report of a trace as one HTML document.

    Parameters
    ----------
    trace : Trace
        Any trace.
    title : str, optional
        Heading; by default it names ranks and device.
    progress : callable, optional
        Called with the current task, the number of finished parts, and the number of all parts.
    path : str
        The recording as you name it: stands in the commands that the page shows.

    Returns
    -------
    str
        A document that loads nothing and includes Vega (1 to 4 MB). In place of data that the capture lacks it gives
        the reason.

    Examples
    --------
    >>> page = llmprof.report.html(trace)
    >>> "Where the time goes" in page
    True
    """
    return page(contents(trace, title=title, progress=progress, path=path))


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
    overwrite: bool = False,
) -> Report:
    """Write the report of a trace.

    Parameters
    ----------
    trace : Trace
        Any trace.
    folder : path
        Folder to write to; made if missing. Files of an earlier report are replaced, others
        stay.
    title : str, optional
        Heading; by default it names ranks and device.
    progress : callable, optional
        Called with the current task, the number of finished parts, and the number of all parts.
    first : sequence of Section
        Sections before those of the trace.
    facts : sequence of (str, str)
        Names and values to show before the facts from the trace.
    model : str or path, optional
        The model: a name of :func:`llmprof.theory.names`, or a ``config.json``. The report then compares the steps with
        their least possible time.
    path : str
        The recording as you name it: stands in the commands that the page shows.
    requests : polars.DataFrame, optional
        Rows of ``analyze.requests(run)``, for where their time went and the finding about their first tokens.
    overwrite : bool
        Whether files of the same names that no earlier report wrote are replaced; inputs never are.

    Returns
    -------
    Report
        ``index.html``, a PNG for each chart, a CSV for each frame (at most 500,000 rows) and ``summary.json``.

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
    target = Path(folder)
    if model is not None:
        first = [*first, bound_section(trace, model)]
    with replacing(target, overwrite=overwrite) as work:
        with ThreadPoolExecutor(max_workers=1) as painter:  # V8 draws charts while Polars and Altair make the next ones
            jobs: list[tuple[str, Future[bytes]]] = []

            def paint(figure: Figure) -> None:
                if figure.spec:
                    jobs.append((f"{figure.name}.png", painter.submit(vega.png, figure.spec)))

            page_contents = contents(
                trace,
                title=title,
                progress=progress,
                drawn=paint,
                first=first,
                more=facts,
                path=path,
                requests=requests,
            )
            csvs = _write_frames(page_contents, work)
            pngs = _write_charts(jobs, work, progress)
        (work / PAGE).write_text(page(page_contents), encoding="utf-8")
        head = summary(trace, page_contents) | {"files": sorted([*pngs, *csvs, PAGE, SUMMARY])}
        (work / SUMMARY).write_text(json.dumps(head, indent=1, allow_nan=False, default=str), encoding="utf-8")
    return _report(target, page_contents, pngs, csvs)


def write_contents(
    content: Contents, folder: str | os.PathLike[str], *, progress: Progress | None = None, overwrite: bool = False
) -> Report:
    """Write a report from its contents."""
    target = Path(folder)
    with replacing(target, overwrite=overwrite) as work:
        pngs = []
        for done, figure in enumerate(content.figures):
            if progress:
                progress(f"painting: {figure.name}", done, len(content.figures))
            if figure.spec:
                pngs.append(f"{figure.name}.png")
                (work / pngs[-1]).write_bytes(vega.png(figure.spec))
        csvs = _write_frames(content, work)
        (work / PAGE).write_text(page(content), encoding="utf-8")
        head = {"llmprof": __version__, "title": content.title, "findings": rows_of(content.findings)}
        head |= {"absent": _absent(content), "files": sorted([*pngs, *csvs, PAGE, SUMMARY])}
        (work / SUMMARY).write_text(json.dumps(head, indent=1, allow_nan=False, default=str), encoding="utf-8")
    return _report(target, content, pngs, csvs)


def _report(target: Path, content: Contents, pngs: Sequence[str], csvs: Sequence[str]) -> Report:
    return Report(
        folder=target,
        index=target / PAGE,
        summary=target / SUMMARY,
        pngs=tuple(target / name for name in pngs),
        csvs=tuple(target / name for name in csvs),
        findings=content.findings,
    )


def summary(trace: Trace, content: Contents) -> dict[str, Any]:
    """Summary of a report for programs: findings, coverage, metadata, and absent parts."""
    kept = {
        name: {"rows": frame.height, "written": min(frame.height, MOST_ROWS)} for name, frame in content.frames.items()
    }
    return {
        "llmprof": __version__,
        "title": content.title,
        "meta": trace.meta,
        "ranks": trace.ranks,
        "span_ns": trace.span_ns[1] - trace.span_ns[0],
        "tables": trace.rows,
        "reading": trace.coverage,
        "coverage": rows_of(content.frames.get("coverage", pl.DataFrame())),
        "findings": rows_of(content.findings),
        "absent": _absent(content),
        "notes": {figure.name: figure.note for figure in content.figures if figure.note},
        "frames": kept,
    }


def _absent(content: Contents) -> list[dict[str, Any]]:
    return [{"part": a.part, "captured": a.captured, "found": a.found, "hint": a.hint} for a in content.absent]


def rows_of(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Convert rows for JSON: infinities and NaN become null."""
    return [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in frame.iter_rows(named=True)
    ]


def _write_charts(jobs: list[tuple[str, Future[bytes]]], work: Path, progress: Progress | None) -> list[str]:
    for done, (name, job) in enumerate(jobs):
        if progress:
            progress(f"painting: {name}", done, len(jobs))
        (work / name).write_bytes(job.result())
    return [name for name, _ in jobs]


def _write_frames(content: Contents, work: Path) -> list[str]:
    for name, frame in content.frames.items():
        (work / f"{name}.csv").write_text(text.csv(frame.head(MOST_ROWS)), encoding="utf-8")
    return [f"{name}.csv" for name in content.frames]
