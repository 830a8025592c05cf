"""The files of a report: written beside the folder first, then put into it one by one, the page last."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from llmprof.errors import OutputError

SUMMARY = "summary.json"
PAGE = "index.html"


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A working folder whose files replace those of the same name in ``folder`` when all of them are written.

    Files that an earlier report listed in its summary and that are not written again are removed; nothing else in
    the folder is touched. If writing fails, the folder stays as it was.

    Parameters
    ----------
    folder : pathlib.Path
        Where the files go; made if missing.

    Yields
    ------
    pathlib.Path
        The working folder, on the same file system.

    Raises
    ------
    OutputError
        The folder cannot be written.
    """
    work: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".llmprof-", dir=folder))
        yield work
        written = sorted(path.name for path in work.iterdir())
        for stale in _listed(folder) - set(written):
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


def _listed(folder: Path) -> set[str]:
    """Names of files that the summary of an earlier report lists; plain names of its own kinds only."""
    try:
        summary = json.loads((folder / SUMMARY).read_text("utf-8"))
    except (OSError, ValueError):
        return set()
    names = summary.get("files") if isinstance(summary, Mapping) and "llmprof" in summary else None
    if not isinstance(names, list):
        return set()
    plain = {name for name in names if isinstance(name, str) and Path(name).name == name}
    return {name for name in plain if name.endswith((".png", ".csv"))}
