"""Rights of files that are written beside their place first: those that the user's umask gives, no more."""

from __future__ import annotations

import os
import re
from pathlib import Path


def as_the_user_would(path: Path) -> None:
    """Give a file or folder that :mod:`tempfile` made the rights of one that was made in the common way.

    Raises
    ------
    OSError
        Its rights cannot be changed.
    """
    path.chmod((0o777 if path.is_dir() else 0o666) & ~_umask())


def _umask() -> int:
    try:  # asking for it by setting it would show other threads another one for a moment
        found = re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return int(found[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
