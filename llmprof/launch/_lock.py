"""A file that one process at a time holds."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO


def hold(file: IO[bytes]) -> bool:
    """Hold an open file until it is closed; False where another one holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def held(path: Path) -> bool:
    """Whether a process holds a file now; a file that cannot be opened for it is held by none."""
    try:
        with path.open("ab") as file:
            return not hold(file)
    except OSError:
        return False
