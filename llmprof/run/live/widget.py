"""The page of a watch as a widget in a notebook."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from llmprof.errors import ConfigError
from llmprof.run.live.page import watch_page
from llmprof.run.live.past import history
from llmprof.run.live.watching import CAPTURES, FINDINGS, STATE, finding_rows
from llmprof.trace.storage import typed


class Dashboard(anywidget.AnyWidget):
    """Widget that shows the page of a watch, and asks for it again."""

    _esm = Path(__file__).with_name("dashboard.mjs")
    page = traitlets.Unicode().tag(sync=True)
    every_s = traitlets.Float(10.0).tag(sync=True)

    def __init__(self, folder: Path, every_s: float) -> None:
        self._folder = folder
        super().__init__(page=page_of(folder), every_s=every_s)
        self.on_msg(self._again)

    def _again(self, widget: Any, content: Any, buffers: Any) -> None:
        """Read the folder again, which another process may just write."""
        self.page = page_of(self._folder)

    def _repr_html_(self) -> str:
        return self.page


def page_of(folder: Path) -> str:
    """The page of a watch, by what lies in its folder."""
    said = {
        "scrapes": 0,
        "lost": 0,
        "when": None,
        "holds": False,
        "says": "",
        "events": None,
        "kept": [],
    } | (typed.found(folder / STATE, typed.WatchJson) or {})
    newest = next(
        (one.get("folder") for one in reversed(said["events"] or ()) if one["what"] == "captured"),
        None,
    )
    found = (
        typed.found(folder / CAPTURES / newest / FINDINGS, list[typed.FindingJson])
        if newest
        else None
    )
    recent = history(folder).filter(level="recent")
    return watch_page(recent, said, finding_rows(found or []), every_s=0)


def dashboard(folder: str | os.PathLike[str], *, every_s: float = 10.0) -> Dashboard:
    """Show a watch in a notebook: its history, captures, what changed and the findings of the last
    capture.

    Parameters
    ----------
    folder : path
        Folder of the watch; the watch itself may run in another process, and goes on.
    every_s : float
        Seconds after which the folder is read again.

    Returns
    -------
    anywidget.AnyWidget
        The page that ``llmprof watch --serve`` shows, without a server.

    Raises
    ------
    ConfigError
        ``every_s`` is no time.
    ReadError
        The folder has no history of a server.

    Examples
    --------
    >>> llmprof.run.live.dashboard("results/watch_127.0.0.1-8000")  # doctest: +SKIP
    """
    if not 1 <= every_s <= 3600:
        raise ConfigError(f"every_s is {every_s:g}", expected="from 1 to 3600 seconds")
    return Dashboard(Path(folder), every_s)
