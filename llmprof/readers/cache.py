"""Parsed traces in a folder of the user's cache: a big trace is parsed once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from llmprof import schema
from llmprof.errors import OutputError, ReadError, TraceWarning
from llmprof.trace import META_FILE, Trace

LIMIT_BYTES = 8 << 30
"""The oldest entries are removed when the cache grows beyond this."""


def folder() -> Path:
    """Folder of the cache: ``LLMPROF_CACHE`` if set, else the user's cache folder of this system."""
    chosen = os.environ.get("LLMPROF_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("llmprof")) / "traces"


def entry(paths: Sequence[Path], options: str) -> Path:
    """Folder of one entry: it depends on the files' place, size and time, the options and the reader's version."""
    digest = hashlib.sha256(f"schema {schema.VERSION} {options}".encode())
    for path in paths:
        stat = path.stat()
        digest.update(f"\n{path.resolve()}\t{stat.st_size}\t{stat.st_mtime_ns}".encode())
    return folder() / digest.hexdigest()[:32]


def load(where: Path) -> Trace | None:
    """Trace of an entry; None if there is none or it is damaged."""
    if not (where / META_FILE).exists():
        return None
    try:
        trace = Trace.open(where)
    except ReadError:
        return None
    with contextlib.suppress(OSError):  # a cache that may be read but not written
        os.utime(where)
    return trace


def store(trace: Trace, where: Path) -> None:
    """Keep a trace; a cache that cannot be written is a warning, not an error."""
    try:
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if where.exists():  # damaged, or it would have been taken
            shutil.rmtree(where)
        trace.save(where)
        where.chmod(0o700)
        _prune(where)
    except (OutputError, OSError) as error:
        warnings.warn(
            f"the parsed trace could not be cached in {where.parent} ({error}); "
            "set LLMPROF_CACHE to a folder that can be written, or pass cache=False",
            TraceWarning,
            stacklevel=3,
        )


def _prune(keep: Path) -> None:
    entries = sorted((p for p in keep.parent.iterdir() if (p / META_FILE).exists()), key=lambda p: p.stat().st_mtime)
    sizes = {p: sum(f.stat().st_size for f in p.iterdir()) for p in entries}
    total = sum(sizes.values())
    for path in entries:
        if total <= LIMIT_BYTES:
            return
        if path != keep:
            shutil.rmtree(path, ignore_errors=True)
            total -= sizes[path]
