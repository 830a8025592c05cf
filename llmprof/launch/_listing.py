"""Run folders in a folder: listed, and cleaned."""

from __future__ import annotations

import shutil
from pathlib import Path

from llmprof.launch.folder import FAILED, INTERRUPTED, STATE_FILE, RunFolder


def runs(root: str | Path) -> list[RunFolder]:
    """Run folders in a folder, in the order of their names."""
    where = Path(root).expanduser()
    return [RunFolder(path.parent.absolute()) for path in sorted(where.glob(f"*/{STATE_FILE}"))]


def clean(root: str | Path, *, states: tuple[str, ...] = (FAILED, INTERRUPTED)) -> list[Path]:
    """Remove the folders of runs in some states; one that a process works in is never touched.

    Parameters
    ----------
    root : path
        Folder of run folders.
    states : tuple of str
        Which of them.

    Returns
    -------
    list of pathlib.Path
        Folders that were removed.
    """
    removed = []
    for folder in runs(root):
        if folder.state["state"] in states and not folder.locked:
            shutil.rmtree(folder.path)
            removed.append(folder.path)
    return removed
