"""Cache of parsed traces in the user's cache folder, so that a large trace is parsed only once."""

import contextlib
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from llmprof import __version__
from llmprof.errors import OutputError, ReadError, TraceWarning
from llmprof.trace import META_FILE, Trace, schema
from llmprof.trace.trace import open_saved

LIMIT_BYTES = 8 << 30
"""Largest size of the cache; beyond it, the entries that were not used for longest are removed."""

LEFT_OVER_S = 3600.0
"""Time after which an unchanged folder that is still being written counts as left over from a
process that died.
"""
_EXPORT: Final = ".export"


def _folder() -> Path:
    """Folder of the cache:

    ``LLMPROF_CACHE`` if set, else the user's cache folder of this system.
    """
    import platformdirs

    chosen = os.environ.get("LLMPROF_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("llmprof")) / "traces"


def entry(paths: Sequence[Path], options: Mapping[str, Any]) -> Path:
    """Folder of the entry of a trace."""
    versions = {"llmprof": __version__, "schema": schema.VERSION}
    return _folder() / _digest(paths, {**options, **versions})


def export_folder(report: Path) -> Path:
    """Folder inside the cache for the export of a profiler's report; it counts towards the size
    of the cache.
    """
    where = _folder() / f"{_digest([report], {})}{_EXPORT}"
    _used(where)
    return where


def _digest(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for path in paths:
        place = path.resolve()
        for file in [place, *sorted(p for p in place.rglob("*") if p.is_file())]:
            stat = file.stat()
            digest.update(
                f"\n{file}\t{stat.st_size}\t{stat.st_mtime_ns}".encode("utf-8", "surrogateescape")
            )
    return digest.hexdigest()[:32]


def _used(where: Path) -> None:
    """Mark an entry as used now; the entries that were not used for longest are removed first."""
    with contextlib.suppress(OSError):  # there is no such entry, or the cache is read-only
        os.utime(where)


def load_entry(where: Path) -> Trace | None:
    """Trace of an entry; None if there is none, it is damaged or another process removes it
    meanwhile.
    """
    if not (where / META_FILE).exists():
        return None
    try:
        trace = open_saved(where)
    except ReadError:
        return None
    _used(where)
    return trace


def store_entry(trace: Trace, where: Path, database: Path | None = None) -> None:
    """Store a trace; a cache that cannot be written gives a warning, not an error."""
    try:
        where.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if where.exists() and load_entry(where) is None:  # the entry is damaged
            shutil.rmtree(where, ignore_errors=True)
        trace.save(where)
        with contextlib.suppress(FileNotFoundError):  # another process is writing the same entry
            where.chmod(0o700)
        _prune({where} if database is None else {where, database.parent})
    except (OutputError, OSError) as error:
        if (
            load_entry(where) is not None
        ):  # another process read the same files and stored them first
            return
        warnings.warn(
            f"the parsed trace could not be cached in {where.parent} ({error}); "
            "set LLMPROF_CACHE to a folder that can be written, or pass cache=False",
            TraceWarning,
            stacklevel=5,
        )


def _prune(keep: set[Path]) -> None:
    for path in _folder().iterdir():  # what a process was writing when it was killed
        if (
            path.name.startswith(".")
            and path.is_dir()
            and time.time() - _used_at(path) > LEFT_OVER_S
        ):
            shutil.rmtree(path, ignore_errors=True)
    ours = (p for p in _folder().iterdir() if (p / META_FILE).exists() or p.suffix == _EXPORT)
    entries = sorted(ours, key=_used_at)
    sizes = {p: _size(p) for p in entries}
    total = sum(sizes.values())
    for path in entries:
        if total <= LIMIT_BYTES:
            return
        if path not in keep:
            shutil.rmtree(path, ignore_errors=True)
            total -= sizes[path]


def _used_at(path: Path) -> float:
    """Time when an entry was last used (s since the epoch); the current time if another process
    removed it.
    """
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _size(path: Path) -> int:
    """Size of an entry in bytes, without files that another process is removing."""
    total = 0
    with contextlib.suppress(OSError):
        for file in path.iterdir():
            total += file.stat().st_size
    return total
