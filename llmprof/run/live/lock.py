"""Lock of a server, so that only one process of this machine records it, and the next one knows
who.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from llmprof.errors import LaunchError
from llmprof.run.launch.run.folder import hold_file
from llmprof.run.live.server import Address
from llmprof.trace.storage import files, typed

RECORDING: Final = "recording"


def lock_folder() -> Path:
    """Folder of the locks and of what captures of a server cost before: it survives the process,
    and is the user's.
    """
    return files.cache_folder("live")


class Lock:
    """Lock of one server, whose file says who records it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        name = hashlib.sha256(address.url.encode()).hexdigest()[:16]
        self._path = lock_folder() / f"{name}.lock"
        self.costs = lock_folder() / f"{name}.json"
        """File with what earlier captures of the server cost."""
        self.left_on = False
        """Whether an earlier recording was never ended: its process and its guard were killed."""

    @contextlib.contextmanager
    def taken(self) -> Iterator[int]:
        """Take the lock; yields its file descriptor, which the guard inherits, so that it
        outlives this process.
        """
        files.made(self._path.parent)
        with hold_file(self._path, self._busy) as file:
            self.left_on = self._who.get("state") == RECORDING
            yield file.fileno()

    @property
    def _who(self) -> Any:
        """What the last process that took the lock wrote of itself."""
        return typed.read_if_whole(self._path, typed.RecorderJson) or {}

    def _busy(self) -> LaunchError:
        who = self._who
        return LaunchError(
            f"process {who.get('pid', 'unknown')} records {self._address.url} since"
            f" {who.get('started', 'an unknown time')}, into"
            f" {who.get('folder') or 'an unknown folder'}",
            hint="wait for its end: a server has one profiler",
            busy=True,
            pid=who.get("pid"),
        )

    def write(self, doing: str, folder: Path | None = None) -> None:
        """Write who records the server; in place, since the lock belongs to this very file."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        who = {"pid": os.getpid(), "started": now, "url": self._address.url, "state": doing}
        with contextlib.suppress(OSError):
            self._path.write_text(
                json.dumps(who | {"folder": None if folder is None else str(folder)})
            )
