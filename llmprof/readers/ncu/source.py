"""Reader of the instructions in a report of Nsight Compute: their source lines, execution counts
and samples.
"""

import importlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import NotCapturedError, ReadError, UnknownFormatError, checked
from llmprof.readers.common.reader import border
from llmprof.readers.ncu import container
from llmprof.readers.ncu.reader import HEAD, actions, content, file_kind, warn_unread
from llmprof.trace.storage.files import note_input

_WANTED: Final = re.compile(
    r"inst_executed|thread_inst_executed|smsp__pcsamp_sample_count|smsp__pcsamp_warps_issue_stalled_\w+"
)
_NO_TEXT: Final = ("", "???")
"""Values in the report for an instruction without a text."""

_SCHEMA: Final = {
    "kernel_id": pl.Int32(),
    "kernel_name": pl.String(),
    "address": pl.Int64(),
    "sass": pl.String(),
    "ptx": pl.String(),
    "file": pl.String(),
    "line": pl.Int32(),
    "metric": pl.String(),
    "value": pl.Float64(),
}


@checked
def read_source(path: str | os.PathLike[str]) -> pl.DataFrame:
    """Read the executions and the samples by stall reason of each instruction in a report of Nsight
    Compute.

    Parameters
    ----------
    path : path
        An ``.ncu-rep`` report with the section ``SourceCounters`` (``ncu --set full``, or
        ``--section SourceCounters``), as it is or compressed with gzip or xz; lines of source need
        a program that was compiled with ``-lineinfo``.

    Returns
    -------
    polars.DataFrame
        One row for each instruction and metric: ``kernel_id`` (as in :func:`llmprof.read_metrics`),
        ``kernel_name, address`` (from the first instruction of the kernel, B), ``sass, ptx`` (text
        of the instruction, null if the report has none), ``file, line`` (of the source, null if
        unknown), ``metric, value`` (executions or samples).

    Raises
    ------
    ReadError
        The file cannot be read, or the package ``ncu-report`` is not installed.
    UnknownFormatError
        The file is not a report.
    NotCapturedError
        The report has no data of single instructions.

    Warns
    -----
    TraceWarning
        The report is damaged: kernels that it states could not be read.

    Examples
    --------
    >>> source = llmprof.read_source("report.ncu-rep")  # doctest: +SKIP
    >>> analyze.ncu.hot_lines(source)  # doctest: +SKIP
    """
    file = Path(path)
    note_input(file)
    data, _ = content(file)
    if file_kind(data[:HEAD]) != "report":
        found = f"{file.name} is not a report of Nsight Compute"
        raise UnknownFormatError(
            found, expected="an .ncu-rep file: pages in CSV have no instructions", path=str(file)
        )
    try:
        library = importlib.import_module("ncu_report")
    except ImportError as error:
        found = (
            f"{file.name} is an Nsight Compute report; it needs the package ncu-report, which is"
            " not installed"
        )
        raise ReadError(found, hint="pip install 'llmprof[ncu]'", path=str(file)) from error
    stated = container.stated(data)
    with tempfile.TemporaryDirectory(prefix="llmprof-") as folder, border(file.name):
        copy = Path(folder) / "report.ncu-rep"
        stated.write(data, copy)
        frames = [
            _instructions(action, kernel_id, action.name(library.IAction.NameBase_DEMANGLED))
            for kernel_id, action in enumerate(actions(library, copy, file))
        ]
        warn_unread(file, stated, len(frames), None, {})
    instructions = pl.concat(frames) if frames else pl.DataFrame(schema=_SCHEMA)
    if instructions.is_empty():
        found = f"{file.name} has no data of single instructions"
        raise NotCapturedError(
            found, hint="record with ncu --set full, or --section SourceCounters"
        )
    return instructions


def _instructions(action: Any, kernel_id: int, name: str) -> pl.DataFrame:
    rows: list[tuple[int, str, float]] = []
    for metric_name in action.metric_names():
        if not _WANTED.fullmatch(metric_name):
            continue
        metric = action.metric_by_name(metric_name)
        if metric is None or not metric.num_instances() or not metric.has_correlation_ids():
            continue
        ids = metric.correlation_ids()
        rows += [
            (ids.as_uint64(i), metric_name, metric.as_double(i))
            for i in range(metric.num_instances())
        ]
    frame = pl.DataFrame(
        rows, schema={"pc": pl.UInt64, "metric": pl.String, "value": pl.Float64}, orient="row"
    )
    places = [(pc, *_place(action, pc)) for pc in frame["pc"].unique().sort().to_list()]
    types = {
        "pc": pl.UInt64,
        "sass": pl.String,
        "ptx": pl.String,
        "file": pl.String,
        "line": pl.Int32,
    }
    instructions = pl.DataFrame(places, schema=types, orient="row")
    return (
        frame.join(instructions, on="pc", how="left", maintain_order="left")
        .with_columns(
            kernel_id=pl.lit(kernel_id, pl.Int32),
            kernel_name=pl.lit(name),
            address=(pl.col("pc") - pl.min("pc")).cast(pl.Int64),
        )
        .sort("address", "metric", maintain_order=True)
        .select(pl.col(column).cast(dtype) for column, dtype in _SCHEMA.items())
    )


def _place(action: Any, pc: int) -> tuple[str | None, str | None, str | None, int | None]:
    """Texts and line of an instruction."""
    sass, ptx, info = action.sass_by_pc(pc), action.ptx_by_pc(pc), action.source_info(pc)
    file, line = ("", 0) if info is None else (info.file_name(), info.line())
    texts = [None if text is None or text in _NO_TEXT else str(text) for text in (sass, ptx, file)]
    return texts[0], texts[1], texts[2], line or None
