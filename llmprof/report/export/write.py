"""Export of a trace: results of all analyses as tables, and labels and findings as tracks of a
timeline.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import polars as pl

from llmprof import analyze, charts, text
from llmprof.analyze.catalog import analyses
from llmprof.errors import (
    AnalysisError,
    LlmprofError,
    NotCapturedError,
    OutputError,
    Window,
    checked,
    needs,
)
from llmprof.report.export import chrome, perfetto
from llmprof.trace import Trace
from llmprof.trace.schema import END
from llmprof.trace.storage import files

MOST_ROWS: Final = 1_048_575
"""Most rows of an Excel sheet below its heading."""

_LONG: Final = ("events", "launch-path")
"""Views with one row per event, which go into data files but not into a workbook."""


def _answers(trace: Trace, *, events: bool = True) -> dict[str, pl.DataFrame]:
    """Frame of each analysis that the trace can answer, by the name of its view."""
    frames: dict[str, pl.DataFrame] = {}
    for analysis in analyses():
        if analysis.needs or (not events and analysis.view in _LONG):
            continue
        try:
            frame = pl.DataFrame(analysis.function(trace))
        except LlmprofError:
            continue
        if frame.height:
            frames[analysis.view] = frame
    return frames


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Convert lists and structs to text."""
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    as_text = [pl.col(c).map_elements(str, return_dtype=pl.String) for c in nested]
    return frame.with_columns(as_text) if nested else frame


def write_csv(frames: dict[str, pl.DataFrame], folder: Path) -> int:
    """Write each frame as ``NAME.csv``; texts are escaped so that no spreadsheet takes them as
    formulas.
    """
    folder.mkdir(parents=True)
    for name, frame in frames.items():
        (folder / f"{name}.csv").write_text(text.csv(_flat(frame)), encoding="utf-8")
    return sum(frame.height for frame in frames.values())


def write_parquet(frames: dict[str, pl.DataFrame], folder: Path) -> int:
    """Write each frame as ``NAME.parquet``."""
    folder.mkdir(parents=True)
    for name, frame in frames.items():
        frame.write_parquet(folder / f"{name}.parquet")
    return sum(frame.height for frame in frames.values())


def write_excel(frames: dict[str, pl.DataFrame], file: Path) -> int:
    """Write each frame as a sheet of one workbook."""
    with needs("xlsxwriter", "Excel needs", "export"):
        import xlsxwriter
    # names of kernels stay text, whatever they begin with
    options = {"strings_to_formulas": False, "strings_to_urls": False, "nan_inf_to_errors": True}
    written = 0
    with xlsxwriter.Workbook(str(file), options) as book:
        for name, frame in frames.items():
            part = _flat(frame).head(MOST_ROWS)
            part.write_excel(
                book, worksheet=name[:31], autofit=part.height < 5000, freeze_panes=(1, 0)
            )
            written += part.height
    return written


SCHEMA: Final = pl.Schema(
    {
        "rank": pl.Int32(),
        "track": pl.String(),
        "start_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "name": pl.String(),
        "detail": pl.String(),
    }
)


@checked
def tracks(trace: Trace, *, window: Window | None = None) -> pl.DataFrame:
    r"""Slices of all tracks."""
    parts = []
    for make in (_findings, _steps, _layers, _stages, _waits, _idle):
        try:
            parts.append(make(trace).cast(SCHEMA).select(list(SCHEMA)))
        except (NotCapturedError, AnalysisError):
            continue
    slices = pl.concat(parts) if parts else pl.DataFrame(schema=SCHEMA)
    slices = slices.filter(pl.col("start_ns").is_not_null() & (pl.col("dur_ns") > 0))
    if window is not None:
        end = pl.min_horizontal(END, pl.lit(window[1]))
        slices = slices.with_columns(
            start_ns=pl.max_horizontal("start_ns", pl.lit(window[0])), _end=end
        )
        slices = slices.with_columns(dur_ns=pl.col("_end") - pl.col("start_ns")).drop("_end")
        slices = slices.filter(pl.col("dur_ns") > 0)
    return slices.sort("rank", "track", "start_ns", maintain_order=True)


def _findings(trace: Trace) -> pl.DataFrame:
    rows = analyze.findings(trace).filter(
        pl.col("rank").is_not_null() & pl.col("start_ns").is_not_null()
    )
    return pl.DataFrame(rows).select(
        "rank",
        "start_ns",
        track=pl.lit("findings"),
        dur_ns=pl.col("end_ns") - pl.col("start_ns"),
        name="title",
        detail=pl.format("{} {}", "detail", "suggestion"),
    )


def _steps(trace: Trace) -> pl.DataFrame:
    return analyze.steps(trace).select(
        "rank",
        "start_ns",
        "dur_ns",
        track=pl.lit("steps"),
        name=pl.format("step {} {}", "step", "phase"),
        detail="name",
    )


def _labelled(trace: Trace) -> pl.DataFrame:
    events = trace.events.filter(pl.col("source") != "op")
    return events.with_columns(end_ns=END, stream=pl.col("stream").fill_null(-1))


def _layers(trace: Trace) -> pl.DataFrame:
    events = _labelled(trace).drop_nulls("layer")
    sums = events.group_by("rank", "step", "layer", maintain_order=True).agg(
        start_ns=pl.min("start_ns"), end_ns=pl.max("end_ns"), events=pl.len()
    )
    sums = sums.sort("rank", "start_ns")
    # layers of two batches may overlap: each one is cut off at the start of the next
    until = pl.min_horizontal(
        "end_ns", pl.col("start_ns").shift(-1).over("rank").fill_null(pl.col("end_ns"))
    )
    return sums.select(
        "rank",
        "start_ns",
        track=pl.lit("layers"),
        dur_ns=until - pl.col("start_ns"),
        name=pl.format("layer {}", "layer"),
        detail=pl.format("step {}, {} events", "step", "events"),
    )


def _stages(trace: Trace) -> pl.DataFrame:
    events = _labelled(trace).sort("rank", "device", "stream", "start_ns")
    label = pl.coalesce(pl.when(pl.col("stage") != "other").then("stage"), "category")
    events = events.with_columns(name=label)
    run = pl.struct("rank", "device", "stream", "step", "layer", "name").rle_id()
    sums = events.group_by(_run=run, maintain_order=True).agg(
        pl.first("rank", "stream", "name", "step", "layer"),
        start_ns=pl.min("start_ns"),
        end_ns=pl.max("end_ns"),
        events=pl.len(),
    )
    until = pl.min_horizontal(
        "end_ns", pl.col("start_ns").shift(-1).over("rank", "stream").fill_null(pl.col("end_ns"))
    )
    return sums.select(
        "rank",
        "start_ns",
        "name",
        track=pl.format("stages, stream {}", "stream"),
        dur_ns=until - pl.col("start_ns"),
        detail=pl.format("{} events", "events"),
    )


def _waits(trace: Trace) -> pl.DataFrame:
    calls = analyze.collectives(trace).filter(pl.col("wait_ns") > 0)
    if not calls.height:
        return pl.DataFrame(schema=SCHEMA)
    rows = calls.select(
        "rank",
        "start_ns",
        track=pl.lit("waits"),
        dur_ns=pl.col("wait_ns").round().cast(pl.Int64),
        name=pl.format("waiting for rank {}", "last_rank"),
        detail=pl.format("in {}", "name"),
    ).sort("rank", "start_ns")
    until = pl.min_horizontal(END, pl.col("start_ns").shift(-1).over("rank").fill_null(END))
    return rows.with_columns(dur_ns=until - pl.col("start_ns"))


def _idle(trace: Trace) -> pl.DataFrame:
    gaps = analyze.idle(trace)
    filled: Callable[[str], pl.Expr] = lambda column: pl.col(column).fill_null("")  # noqa: E731
    return gaps.select(
        "rank",
        "start_ns",
        "dur_ns",
        track=pl.lit("idle"),
        name=pl.col("cause").replace(text.PART_WORDS),
        detail=pl.concat_str(
            pl.when(filled("host_name") != "").then(pl.format("host in {}", "host_name")),
            pl.when(filled("waited_name") != "").then(pl.format("held by {}", "waited_name")),
            pl.when(filled("next_name") != "").then(pl.format("until {}", "next_name")),
            separator="; ",
            ignore_nulls=True,
        ),
    )


Form = Literal["chrome", "perfetto", "speedscope", "csv", "parquet", "excel"]

FORMS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "speedscope": ("call stacks for speedscope", (".speedscope.json",)),
    "chrome": ("Chrome JSON for Perfetto, which llmprof reads back", (".json", ".json.gz")),
    "perfetto": ("Perfetto's own format", (".pftrace", ".perfetto-trace")),
    "excel": ("results of all analyses, one sheet per analysis", (".xlsx",)),
    "parquet": ("results of all analyses, one file per analysis in a folder", ()),
    "csv": ("results of all analyses, one file per analysis in a folder", ()),
}
"""Forms by name: their content, and the suffixes of files by which they are recognised."""


def form_of(file: Path) -> Form:
    """Form of a file by the end of its name."""
    for form, (_, ends) in FORMS.items():
        if file.name.lower().endswith(ends) and ends:
            return form  # type: ignore[return-value]
    suffixes = ", ".join(end for _, ends in FORMS.values() for end in ends)
    raise OutputError(
        f"{file.name} has no known suffix",
        expected=f"a name that ends in one of {suffixes}",
        hint="or give form=: csv and parquet write a folder",
    )


@checked
def export(
    trace: Trace,
    file: str | os.PathLike[str],
    *,
    form: Form | None = None,
    window: Window | None = None,
    redact: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write a trace, or a window of it, for another tool.

    Chrome JSON and Perfetto's format hold the rows of the profiler with all ranks on one clock, and
    tracks of llmprof's results: steps, layers, stages, waits, idle causes and findings. llmprof
    reads the Chrome JSON back to the same frames. Rows that only an analysis can use (tasks of an
    NPU's queues) are written for display.

    Parameters
    ----------
    trace : Trace
        Any trace.
    file : path
        File to write. Its suffix gives the form (:data:`FORMS`).
    form : str, optional
        Form, if the suffix of the file does not give it.
    window : (start_ns, end_ns), optional
        Write only events that start in it; steps and layers keep the labels of the whole trace.
    redact : bool
        Replace texts about people, machines and secrets by pseudonyms, as ``Trace.redact`` does.
    overwrite : bool
        Whether a file that exists is replaced; one that was read as an input never is, nor is a
        folder.

    Returns
    -------
    pathlib.Path
        The file or folder.

    Raises
    ------
    OutputError
        The file exists or cannot be written, or its form is not known.
    NotCapturedError
        The form is ``speedscope``, and the trace has no stacks.
    AnalysisError
        No event starts in the window.

    Examples
    --------
    >>> import tempfile
    >>> export(trace, Path(tempfile.mkdtemp()) / "run.json.gz").name
    'run.json.gz'
    """
    target = Path(file)
    chosen = form_of(target) if form is None else form
    if target.is_dir():
        raise OutputError(
            f"{target} is a folder that exists", hint="choose another name, or remove it"
        )
    files.check_output(target, overwrite=overwrite)
    copy = trace.redact() if redact else trace
    part = copy if window is None else copy.select(window=window)
    if window is not None and not any(frame.height for frame in part.tables.values()):
        raise AnalysisError(
            "nothing starts in the window", expected=f"a window within {trace.span_ns} ns"
        )
    temporary = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if chosen == "chrome":
            if target.name.endswith(".gz"):
                temporary = target.with_name(f".{target.name}.part.gz")
            chrome.write(part, tracks(copy, window=window), temporary)
        elif chosen == "perfetto":
            perfetto.write(part, tracks(copy, window=window), temporary)
        elif chosen == "speedscope":
            sampled = part.has("samples") and not part.has("ops")
            stacks = analyze.stacks(part, of="samples" if sampled else "host")
            charts.speedscope(stacks, temporary, name=target.name, overwrite=True)
        elif chosen == "excel":
            write_excel(_answers(part, events=False), temporary)
        elif chosen == "parquet":
            write_parquet(_answers(part), temporary)
        else:
            write_csv(_answers(part), temporary)
        if temporary.is_dir():
            temporary.rename(target)
        else:
            temporary.replace(target)
    except OSError as error:
        raise files.refused(target, error) from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)
    return target
