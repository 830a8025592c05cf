"""Execution of a notebook for each of many runs, and a page that lists the results."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmprof.errors import LlmprofError, OutputError
from llmprof.readers.saved import STATE_FILE, capture, is_run
from llmprof.run.launch.run.folder import FAILED, INTERRUPTED, RUNNING, RunFolder
from llmprof.run.notebook.tutorials import (
    check_installed,
    check_parameters,
    find_notebook,
    run_notebook,
)
from llmprof.text import Progress
from llmprof.trace.storage import files


@dataclass(frozen=True, slots=True)
class Walkthroughs:
    """Notebooks that were executed over runs: a page that lists them, and notebooks and errors
    by the run's name.
    """

    index: Path
    notebooks: dict[str, Path]
    errors: dict[str, str]
    """Messages; a notebook is kept up to the cell that failed."""


def notebooks_over(
    runs: Iterable[str | os.PathLike[str]],
    name: str,
    folder: str | os.PathLike[str],
    *,
    parameter: str = "trace",
    parameters: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Walkthroughs:
    """Execute a notebook once for each run, and write ``index.html``.

    Parameters
    ----------
    runs : iterable of path
        Run folders, trace files or folders of traces. A folder of runs, such as that of a sweep,
        stands for its runs. A run that failed, was interrupted or is still running is listed with
        its error and has no notebook.
    name : str
        Name of a notebook of the repository, or a path.
    folder : path
        Folder for the page and the executed notebooks; each notebook is in a subfolder with the
        name of its run.
    parameter : str
        Parameter of the notebook that takes the path of a run; ``trace`` takes the path of the
        run's timeline.
    parameters : mapping, optional
        Further parameters, the same for all runs.
    progress : callable, optional
        Called with a text (the run and its cell), the number of finished runs, and the number of
        runs.
    overwrite : bool
        Whether a page or notebook that exists is replaced.

    Returns
    -------
    Walkthroughs
        The page and the notebooks; a run whose notebook failed does not stop the others.

    Raises
    ------
    LlmprofError
        Papermill is not installed, the notebook is not known or has no such parameter, or there are
        no runs.
    OutputError
        The folder cannot be written, or has files of the same names.
    """
    check_installed()
    source = find_notebook(name)
    check_parameters(source, [parameter])
    chosen = _names([run for path in runs for run in runs_in(Path(path))])
    if not chosen:
        raise LlmprofError(
            "there is no run to execute the notebook for", expected="run folders or traces"
        )
    target = Path(folder)
    files.check_output(target / "index.html", overwrite=overwrite)
    notebooks: dict[str, Path] = {}
    errors: dict[str, str] = {}
    for done, (run, path) in enumerate(chosen.items()):

        def tell(_: str, cell: int, cells: int, run: str = run, done: int = done) -> None:
            if progress:
                progress(f"{source.stem} for {run}, cell {cell} of {cells}", done, len(chosen))

        if (reason := _unfinished(path)) is not None:
            errors[run] = reason
            continue
        try:
            values = {
                **(parameters or {}),
                parameter: str((capture(path) if parameter == "trace" else path).resolve()),
            }
            notebooks[run] = run_notebook(
                str(source), target / run, parameters=values, progress=tell, overwrite=overwrite
            )
        except OutputError:
            raise
        except LlmprofError as error:
            errors[run] = str(error)
    rows = [
        (run, f"{run}/{notebooks[run].name}" if run in notebooks else None, errors.get(run))
        for run in chosen
    ]
    said = (
        f"{len(notebooks)} of {len(chosen)} runs"
        f" executed{f', {len(errors)} failed' if errors else ''}."
    )
    from llmprof.report.page import render  # Altair is imported for a page only

    page = render(
        "walkthroughs.html", title=f"{source.stem}: {len(chosen)} runs", summary=said, rows=rows
    )
    index = files.write_output(target / "index.html", page, overwrite=overwrite)
    return Walkthroughs(index, notebooks, errors)


def _unfinished(path: Path) -> str | None:
    """Reason why a run has no results: it failed, was interrupted or is still running; None if
    it has results.
    """
    if not (path.is_dir() and (path / STATE_FILE).is_file()):
        return None
    state = RunFolder.open(path).state
    if state["state"] not in {FAILED, INTERRUPTED, RUNNING}:
        return None
    error = (state.get("error") or {}).get("message")
    return (
        f"the run is {state['state']}{f': {error}' if error else ''}; llmprof run --resume"
        " continues it"
    )


def runs_in(path: Path) -> list[Path]:
    """Run folders in a folder of runs; for any other path, the path itself."""
    if path.is_dir() and not is_run(path):
        return sorted(folder.parent for folder in path.glob("*/state.json")) or [path]
    return [path]


def _names(paths: list[Path]) -> dict[str, Path]:
    """Unique names for paths."""
    by_name: dict[str, Path] = {}
    for path in dict.fromkeys(paths):
        stem = (
            path.name if path.is_dir() else path.name.split(".")[0] or "run"
        )  # rank0.123.pt.trace.json.gz
        names = (f"{stem}-{n}" if n > 1 else stem for n in itertools.count(1))
        by_name[next(name for name in names if name not in by_name)] = path
    return by_name
