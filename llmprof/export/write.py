"""One function that writes a trace for other tools: for Perfetto, speedscope, spreadsheets and data frames."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, Literal

from llmprof import analyze, charts
from llmprof.arguments import Window, checked
from llmprof.errors import AnalysisError, OutputError
from llmprof.export import chrome, perfetto, tables
from llmprof.export.tracks import tracks
from llmprof.trace import Trace

Form = Literal["chrome", "perfetto", "speedscope", "csv", "parquet", "excel"]

FORMS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "speedscope": ("call stacks for speedscope", (".speedscope.json",)),
    "chrome": ("Chrome JSON for Perfetto, which llmprof reads back", (".json", ".json.gz")),
    "perfetto": ("Perfetto's own format", (".pftrace", ".perfetto-trace")),
    "excel": ("answers of all analyses, a sheet each", (".xlsx",)),
    "parquet": ("answers of all analyses, a file each in a folder", ()),
    "csv": ("answers of all analyses, a file each in a folder", ()),
}
"""Forms by name: what they hold, and the ends of files by which they are known."""


def form_of(file: Path) -> Form:
    """Form by the end of a file's name.

    Raises
    ------
    OutputError
        No form is known by it.

    Examples
    --------
    >>> form_of(Path("run.pftrace")), form_of(Path("run.speedscope.json")), form_of(Path("run.json.gz"))
    ('perfetto', 'speedscope', 'chrome')
    """
    for form, (_, ends) in FORMS.items():
        if file.name.lower().endswith(ends) and ends:
            return form  # type: ignore[return-value]
    known = ", ".join(end for _, ends in FORMS.values() for end in ends)
    raise OutputError(f"{file.name} does not say its form", expected=f"a name that ends in one of {known}",
                      hint="or say the form: csv and parquet write a folder")  # fmt: skip


@checked
def export(
    trace: Trace,
    file: str | os.PathLike[str],
    *,
    form: Form | None = None,
    window: Window | None = None,
    redact: bool = False,
) -> Path:
    """Write a trace, or a window of it, for another tool.

    Chrome JSON and Perfetto's format hold the rows of the profiler, all ranks on one clock, and beside them tracks of
    what llmprof found: steps, layers, stages, waits, idle causes and findings. The reader of llmprof reads the Chrome
    JSON back to the same frames. What only an analysis can use (the tasks of an NPU's queues) is there to look at.

    Parameters
    ----------
    trace : Trace
        Any trace.
    file : path
        Where to write; it must not exist. Its end says the form (:data:`FORMS`).
    form : str, optional
        Form, where the end of the file does not say it.
    window : (start_ns, end_ns), optional
        Only what starts in it; steps and layers keep the labels of the whole trace.
    redact : bool
        Write pseudonyms for what texts say of people, machines and secrets, as ``Trace.redact`` does.

    Returns
    -------
    pathlib.Path
        The file or folder.

    Raises
    ------
    OutputError
        It exists, cannot be written, or its form is not known.
    NotCapturedError
        ``speedscope`` of a trace without stacks.
    AnalysisError
        The window holds nothing.

    Examples
    --------
    >>> import tempfile
    >>> export(trace, Path(tempfile.mkdtemp()) / "run.json.gz").name
    'run.json.gz'
    """
    target = Path(file)
    chosen = form_of(target) if form is None else form
    if target.exists():
        raise OutputError(f"{target} exists already", hint="choose another name, or remove it")
    kept = trace.redact() if redact else trace
    part = kept if window is None else kept.select(window=window)
    if window is not None and not any(frame.height for frame in part.tables.values()):
        raise AnalysisError("nothing starts in the window", expected=f"within {trace.span_ns} (ns)")
    made = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if chosen == "chrome":
            packed = made.with_name(f".{target.name}.part.gz") if target.name.endswith(".gz") else made
            made = packed
            chrome.write(part, tracks(kept, window=window), made)
        elif chosen == "perfetto":
            perfetto.write(part, tracks(kept, window=window), made)
        elif chosen == "speedscope":
            charts.speedscope(analyze.stacks(part), made, name=target.name)
        elif chosen == "excel":
            tables.write_excel(tables.answers(part, events=False), made)
        elif chosen == "parquet":
            tables.write_parquet(tables.answers(part), made)
        else:
            tables.write_csv(tables.answers(part), made)
        made.rename(target)
    except OSError as error:
        raise OutputError(
            f"cannot write {target}: {error.strerror or error}", hint="choose a place that can be written"
        ) from error
    finally:
        if made.is_dir():
            shutil.rmtree(made)
        else:
            made.unlink(missing_ok=True)
    return target
