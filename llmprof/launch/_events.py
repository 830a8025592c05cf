"""The events that an engine script appends to a file, as progress."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmprof.text import plain

Progress = Callable[[str, int, int], None]


class Events:
    """The events of a file, read as it grows.

    Parameters
    ----------
    path : pathlib.Path or None
        The file, a JSON object a line; it need not exist yet.
    progress : callable or None
        Called with each event in words, how much is done, and of how much.
    """

    def __init__(self, path: Path | None, progress: Progress | None) -> None:
        self._path, self._progress = path, progress
        self._at, self._rest = 0, b""
        self.last: dict[str, Any] = {}

    @property
    def words(self) -> str:
        """The last event in words."""
        message = self.last.get("message") or ""
        return f"{self.last.get('event', 'start')}{f': {message}' if message else ''}"

    def read(self) -> None:
        """Take in what was appended; a line that is not whole waits for its rest."""
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._at = 0 if size < self._at else self._at
                file.seek(self._at)
                new = file.read()
        except OSError:
            return
        self._at += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        self.last = event
        if self._progress is not None:
            done, total = (event.get(key) for key in ("done", "total"))
            self._progress(
                plain(self.words), done if isinstance(done, int) else 0, total if isinstance(total, int) else 0
            )


class Lines:
    """Lines of a log that begin with some words, counted as the log grows.

    Parameters
    ----------
    path : pathlib.Path
        The log; what is in it already does not count.
    begin : bytes
        How the lines begin.
    what : str
        What is said of them.
    total : int
        How many there will be.
    progress : callable
        Called with what is said, how many there were, and how many there will be.
    """

    def __init__(self, path: Path, begin: bytes, what: str, total: int, progress: Progress) -> None:
        self._path, self._begin, self._what, self._total, self._progress = path, begin, what, total, progress
        self._at = path.stat().st_size if path.exists() else 0
        self._rest, self._done = b"", 0

    def read(self) -> None:
        """Take in what was appended."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                new = file.read()
        except OSError:
            return
        self._at += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        found = sum(line.startswith(self._begin) for line in whole)
        if found:
            self._done += found
            self._progress(self._what, min(self._done, self._total), self._total)
