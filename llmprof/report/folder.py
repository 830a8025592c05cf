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
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import plugins, text
from llmprof.analyze.catalog import Analysis, analyses
from llmprof.analyze.roofline import named
from llmprof.charts.base.save import png
from llmprof.errors import DefectError, LlmprofError, OutputError, guarded
from llmprof.findings.facts import facts_in_words, run_facts, where_the_time_went
from llmprof.findings.findings import NOTHING
from llmprof.names.readable import distinct_labels
from llmprof.progress import Progress
from llmprof.report import cards
from llmprof.report.figures import (
    GAINS_OF_OPERATORS,
    Drawing,
    bound_section,
    drawings,
    figure,
    without_bounds,
)
from llmprof.report.page import (
    Absent,
    Column,
    Contents,
    Figure,
    Kind,
    Section,
    Table,
    attempt,
    by_share,
    columns,
    page,
    run,
)
from llmprof.theory import Shape
from llmprof.trace import Trace
from llmprof.trace.platforms import ON_DEVICE
from llmprof.trace.storage import files, typed
from llmprof.units import format_ns, format_share
from llmprof.version import __version__

MOST_KERNELS = 25


def sections(
    figures: Mapping[str, Figure],
    frames: Mapping[str, pl.DataFrame | Absent],
    words: Mapping[str, str] = ON_DEVICE,
) -> list[Section]:
    """Sections of the page: those of the catalogue's analyses, each with the results of the
    analyses that join it.
    """
    members: dict[str, list[Analysis]] = {}
    for analysis in analyses():
        if analysis.anchor and (not analysis.only_with or analysis.name in frames):
            members.setdefault(analysis.anchor, []).append(analysis)
    out = []
    for anchor, joined in members.items():
        opened = next(
            (member.section for member in joined if not isinstance(member.section, str)), None
        )
        blocks = [
            block for member in joined for block in _tables(member, frames.get(member.name), words)
        ]
        drawn = [figures[drawing.name] for member in joined for drawing in drawings(member)]
        evidence = tuple(member.name for member in joined if member.reported)
        head = (
            (opened.question or joined[0].question, opened.words)
            if opened is not None
            else (joined[0].question, "")
        )
        if opened is not None and opened.without is not None:
            frame = frames.get(opened.without.analysis)
            if not isinstance(frame, pl.DataFrame) or frame.is_empty():
                head = (opened.without.question, opened.without.words)
        question, text = (part.format_map(words) for part in head)
        out.append(Section(anchor, question, text, [*blocks, *drawn], evidence))
    return out


def _tables(
    analysis: Analysis, frame: pl.DataFrame | Absent | None, words: Mapping[str, str]
) -> list[Table | Absent]:
    """Make the table of an analysis, or give the reason why there is none, unless a figure of it
    does.
    """
    plain = not isinstance(analysis.section, str) and not (analysis.table or analysis.figures)
    if frame is None or not (analysis.table or analysis.package or plain):
        return []
    if isinstance(frame, Absent):
        return (
            []
            if analysis.figures and not analysis.package
            else [replace(frame, part=analysis.help)]
        )
    if plain:
        return [_plain_table(analysis, frame)]
    if not analysis.table or (not frame.height and analysis.figures):
        return []
    if not analysis.package:
        return [attempt(analysis.help, lambda: plugins.at(analysis.table)(frame, words))]
    try:
        with plugins.foreign():
            return [plugins.at(analysis.table)(frame, words)]
    except (plugins.FailedError, LlmprofError) as error:
        failed = f"the table of {analysis.name!r} of {analysis.package} failed: {error}"
        return [
            Absent(analysis.help, captured=True, found=failed, hint="report this to its authors")
        ]


def _plain_table(analysis: Analysis, frame: pl.DataFrame) -> Table:
    """The first rows of an analysis that has a section of its own, and neither a table nor a
    figure.
    """
    shown: list[Column] = []
    kind: Kind
    for name in analysis.columns.split() or frame.columns:
        kind = "number" if frame[name].dtype.is_numeric() else "name"
        kind = "time" if name.endswith("_ns") else "share" if name.endswith("share") else kind
        shown.append(Column(name, name.removesuffix("_ns").replace("_", " "), kind))
    return Table(
        analysis.name, analysis.help, tuple(shown), frame.head(MOST_KERNELS), sortable=True
    )


def steps_table(steps: pl.DataFrame, words: Mapping[str, str] = ON_DEVICE) -> Table:
    """Steps by phase: their number, size and length."""
    phases = {name: i for i, name in enumerate(("prefill", "mixed", "decode", "empty", "other"))}
    rows = (
        steps.group_by("phase")
        .agg(
            *cards.LENGTHS,
            steps=pl.col("step").n_unique(),
            context_tokens=pl.col("context_tokens").median(),
            generation_requests=pl.col("generation_requests").median(),
            host=pl.col("host_dur_ns").mean(),
        )
        .sort(
            pl.col("phase").replace_strict(phases, default=len(phases), return_dtype=pl.Int32),
            "phase",
        )
    )
    lengths = {"mean": "length", "median": "its median", "least": "least", "most": "most"}
    if "median" not in cards.averages(rows):
        del lengths["median"]
    rows = rows.with_columns(_phases(rows))
    shown = (
        Column("phase", "phase"),
        *columns(
            "number",
            steps="steps",
            context_tokens="prompt tokens",
            generation_requests="decode requests",
        ),
        *columns("time", **lengths, host="host time"),
    )
    sources = steps["source"].unique().sort()
    note = (
        "Steps are known from "
        + ", ".join(_SOURCES.get(source, source) for source in sources)
        + "."
    )
    caption = (
        "Steps by phase: means over steps and ranks, medians of tokens and requests; length is from"
        " the first {event} to the end of the last"
    )
    caption = caption.format_map(words)
    return Table("steps", caption, shown, rows, note=note)


def _phases(rows: pl.DataFrame) -> pl.Series:
    return pl.Series(
        "phase", [cards.phase_in_words(phase) for phase in rows["phase"]], dtype=pl.String
    )


_SOURCES = {
    "vllm": "vLLM's labels",
    "sglang": "SGLang's labels",
    "capture": "labels of graph captures",
    "profiler_step": "the profiler's ProfilerStep labels",
    "onnxruntime": "the model_run ranges of ONNX Runtime",
    "execute_model": "ranges around vLLM's execute_model",
    "optimizer": "the Optimizer.step ranges, each of which ends a step",
    "inferred": "the repetition of kernels, because the capture has no labels",
}


def kernels_table(kernels: pl.DataFrame, words: Mapping[str, str] = ON_DEVICE) -> Table:
    """The kernels with the largest sums."""
    top = kernels.head(MOST_KERNELS)
    top = top.with_columns(
        label=pl.Series(distinct_labels(top["name"], top["readable"]), dtype=pl.String)
    )
    shown = (
        Column("label", words["event"], "name", full="name"),
        Column("category", "category", "chip"),
        Column("count", "runs", "number"),
        Column("total_ns", "total", "time"),
        Column("share", "share", "share"),
        *columns("time", median_ns="median", min_ns="least", max_ns="most"),
    )
    rest = kernels.height - top.height
    covered, whole = (
        format_ns(frame.select(pl.col("total_ns").sum()).item()) for frame in (top, kernels)
    )
    caption = f"All {kernels.height} names of {words['events']}, {whole} in all"
    if rest:
        caption = (
            f"{top.height} of {kernels.height:,} names of {words['events']}, {covered} of {whole}"
            " in all"
        )
    notes = ["A collective's time holds its waiting."] if "collective" in top["category"] else []
    notes += [f"{rest:,} more are in kernels.csv."] if rest else []
    return Table("kernels", caption, shown, top, sortable=True, note=" ".join(notes))


def opportunities_table(
    found: pl.DataFrame, _words: Mapping[str, str] = ON_DEVICE
) -> Table | Absent:
    """All of a step of the phase with most time: what would gain most, and what would not."""
    if not found.height:
        return Absent(GAINS_OF_OPERATORS, captured=True, found="nothing lasted", hint="")
    if why := without_bounds(found):
        return Absent(GAINS_OF_OPERATORS, captured=True, found=why, hint="")
    own = found.filter(pl.col("phase").eq_missing(pl.lit(found["phase"][0], dtype=pl.String)))
    least = pl.col("gap_ns").rank("ordinal", descending=True).over("part") <= _MOST_OPPORTUNITIES
    some = own.filter((pl.col("part") != "opportunity") | least)
    opportunity = pl.col("part") == "opportunity"
    name = pl.when(opportunity).then(
        pl.concat_str("stage", "operator", separator=": ", ignore_nulls=True)
    )
    some = some.with_columns(
        name=name.otherwise(
            pl.concat_str(
                pl.col("part").cast(pl.String).replace(_DOUBLE),
                "why",
                separator=": ",
                ignore_nulls=True,
            )
        )
    )
    shown = (
        Column("name", "part of a step"),
        Column("total_ns", "time", "time"),
        *columns("share", share="share of the step", bound_share="of its bound"),
        Column("bound_by", "bound by"),
        *columns("gain", gap_ns="beyond 80 %", gain_ns="a step gains"),
    )
    phase = f" of {own['phase'][0]}" if own["phase"][0] not in (None, "other") else ""
    count = own["steps"][0]
    mean = f", mean of {text.counted(count, 'step')}" if count > 1 else ""
    caption = f"A step{phase} on rank {own['rank'][0]}{mean}"
    note = "More are in opportunities.csv." if some.height < own.height else ""
    return Table("opportunities", caption, shown, some, note=note)


_MOST_OPPORTUNITIES: Final = 12
_DOUBLE: Final = {"beside other work": "ran beside other work: counted twice above"}
_MOST_CHAINS: Final = 12


def _repeated(chain: str) -> str:
    """A chain with the number of equal members in place of each: ``5 elementwise + copy``."""
    groups = [(name, len(list(equal))) for name, equal in groupby(chain.split(" + "))]
    return " + ".join(f"{count} {name}" if count > 1 else name for name, count in groups)


def fusion_table(
    chains_found: pl.DataFrame, _words: Mapping[str, str] = ON_DEVICE
) -> Table | Absent:
    """The chains of short kernels that would save most, or the sentence that there are none."""
    if not chains_found.height:
        words = "no short kernels always follow each other on a stream"
        return Absent("chains of kernels that would be one", captured=True, found=words, hint="")
    gain_share = pl.col("gain_ns") / pl.col("recorded_ns")
    some = chains_found.filter(pl.coalesce(gain_share, "share") >= NOTHING)
    if chains_found["gain_ns"].null_count() == chains_found.height:
        some = chains_found
    if not some.height:
        words = (
            f"no chain of short kernels is known to gain {format_share(NOTHING)} of a step as one"
            " kernel"
        )
        return Absent("chains of kernels that would be one", captured=True, found=words, hint="")
    best = some.sort("gain_ns", "total_ns", descending=True, nulls_last=True).head(_MOST_CHAINS)
    named = pl.col("fusion").is_not_null() & (pl.col("fusion") != pl.col("categories"))
    named &= pl.col("fusion") != "elementwise and reductions"  # the chain says it itself
    rows = best.with_columns(_phases(best)).select(
        *("phase", "length", "per_step", "share", "bytes_saved", "gain_ns", "kernels"),
        chain=pl.when(named)
        .then(pl.format("{}: {}", "fusion", "categories"))
        .otherwise("categories")
        .map_elements(_repeated, return_dtype=pl.String),
        launches=pl.col("per_step") * (pl.col("length") - 1),
        gain_share=gain_share,
    )
    shown = (
        Column("chain", "chain", "name", width=64, full="kernels"),
        Column("phase", "phase"),
        *columns("number", per_step="chains a step", launches="launches saved a step"),
        Column("share", "time of all kernels", "share"),
        Column("gain_ns", "gain a step", "gain"),
        Column("gain_share", "of the step", "share"),
    )
    count, more = chains_found.height, chains_found.height - rows.height
    number = f"{rows.height} of {count:,}" if more else f"All {count}"
    chains = f"{number} chains" if count > 1 else "The only chain"
    caption = f"{chains} of short kernels, by what one kernel in its place would gain"
    notes = ["A dash: not replayed, or not known."] if rows["gain_ns"].null_count() else []
    least = format_share(NOTHING)
    if few := count - some.height:
        notes.append(
            f"Left out: {text.counted(few, 'chain')} with a gain of less than {least} of a step, or"
            f" without a replay and with less than {least} of the time of all kernels."
        )
    notes += [f"All {count:,} are in fusion.csv."] if more else []
    return Table("fusion", caption, shown, rows, sortable=True, note=" ".join(notes))


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
    drawn: Callable[[Figure], object] | None = None,
    first: Sequence[Section] = (),
    more: Sequence[tuple[str, str]] = (),
    path: str = "PATH",
    requests: pl.DataFrame | None = None,
) -> Contents:
    """Run the analyses and draw the figures."""
    tell = progress or (lambda *_: None)
    results: dict[str, pl.DataFrame | Absent] = {}
    possible = [analysis for analysis in analyses() if _holds(trace, analysis.only_with)]
    reported = [analysis for analysis in possible if analysis.reported]
    for done, analysis in enumerate(reported):
        tell(f"analysing: {analysis.name}", done, len(reported))
        of_requests = {"requests": requests} if analysis.name == "findings" else {}
        results[analysis.name] = run(analysis, trace, **of_requests)
    frames = {name: result for name, result in results.items() if isinstance(result, pl.DataFrame)}
    absent = [result for result in results.values() if isinstance(result, Absent)]
    figures = {}
    if drawn is not None:
        for given in [one for section in first for one in section.figures]:
            drawn(given)
    to_draw: dict[str, Drawing] = {}
    for drawing in (drawing for analysis in possible for drawing in drawings(analysis)):
        to_draw.setdefault(drawing.name, drawing)
    for done, drawing in enumerate(to_draw.values()):
        tell(f"drawing: {drawing.shows}", done, len(to_draw))
        figures[drawing.name] = figure(trace, drawing)
        if drawn is not None:
            drawn(figures[drawing.name])
    absent += [part.absent for part in figures.values() if part.absent is not None]
    stated = {"Device", *(name for name, _ in more)}
    found, of_trace = (
        frames.get("findings", pl.DataFrame()),
        sections(figures, results, trace.capture.words),
    )
    overview = [section for section in of_trace if section.anchor == OVERVIEW]
    others = by_share([section for section in of_trace if section.anchor != OVERVIEW], found)
    return Contents(
        title=title or cards.headline(trace),
        facts=[
            *more,
            *(
                pair
                for pair in facts_in_words(run_facts(trace, recorded=False))
                if pair[0] not in stated
            ),
            *cards.facts(trace),
        ],
        files=cards.files(trace),
        warnings=cards.warnings(trace),
        shares=cards.shares(frames.get("coverage")),
        reading=cards.reading(trace),
        time_went=where_the_time_went(trace, requests),
        findings=found,
        parts=getattr(found, "parts", None),
        sections=[*first, *overview, *others],
        frames=frames,
        absent=absent,
        path=path,
    )


OVERVIEW: Final = "steps"
"""Anchor of the overview of a step, which comes before the other sections of a trace."""


SUMMARY = "summary.json"
PAGE = "index.html"


@contextmanager
def replacing(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """A temporary folder, whose files replace those of an earlier report in ``folder`` when all
    are written.
    """
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
        found = f"cannot write the report to {folder}: {error.strerror or error}"
        raise OutputError(found, hint="choose a folder that can be written", path=folder) from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def listed(folder: Path) -> set[str]:
    """Files of an earlier report in a folder, as its summary lists them; empty if there is none."""
    summary = typed.whole(folder / SUMMARY, typed.ReportJson)
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
    changes: Mapping[str, str] | None = None,
    pictures: bool = True,
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
    overwrite : bool
        Whether files of the same names that no earlier report wrote are replaced; inputs never are.

    Returns
    -------
    Report
        ``index.html``, with ``pictures`` a PNG for each chart, a CSV for each frame (at most
        500,000 rows) and ``summary.json``.

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

        def paint(figure: Figure) -> None:
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
        )
        made = replace(made, changes=changes or {})
        return _written(made, summary(trace, made), jobs, progress, work=work, target=Path(folder))


def write_contents(
    content: Contents,
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Report:
    """Write a report from its contents."""
    head = {"llmprof": __version__, "title": content.title, "findings": rows_of(content.findings)}
    head["absent"] = _absent(content)
    with (
        replacing(Path(folder), overwrite=overwrite) as work,
        ThreadPoolExecutor(max_workers=1) as painter,
    ):
        jobs = {
            f"{figure.name}.png": painter.submit(png, figure.spec)
            for figure in content.figures
            if figure.spec
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


def summary(trace: Trace, content: Contents) -> dict[str, Any]:
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
        "coverage": rows_of(content.frames.get("coverage", pl.DataFrame())),
        "findings": rows_of(content.findings),
        "absent": _absent(content),
        "notes": {figure.name: figure.note for figure in content.figures if figure.note},
        "frames": kept,
    }


def _absent(content: Contents) -> list[dict[str, Any]]:
    return [
        {"part": a.part, "captured": a.captured, "found": a.found, "hint": a.hint}
        for a in content.absent
    ]


def rows_of(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Convert rows for JSON: infinities and NaN become null."""
    return [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in frame.iter_rows(named=True)
    ]
