"""Writing of files that appear whole or not at all, with the permissions that the user's umask
gives.

The rule of everything that llmprof writes for the user: never onto an input; a file that exists is
replaced only if the user says so (``--force``, ``overwrite=True``); what llmprof wrote into a
folder of its own, it may write again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import stat
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from isal import isal_zlib

from llmprof.errors import OutputError, ReadError

PathLike = str | os.PathLike[str]

_INPUTS: Final[dict[Path, float]] = {}
"""Files and folders that were named as inputs in this process, without links, and when (s since
the epoch).
"""

_BLOCK_BYTES: Final = 1 << 20


def words_of(name: str) -> frozenset[str]:
    """Words of a text file beside this module."""
    return frozenset(Path(__file__).with_name(name).read_text("utf-8").split())


def as_the_user_would(path: Path) -> None:
    """Give a file or folder that :mod:`tempfile` made the permissions that the user's umask
    gives.
    """
    path.chmod((0o777 if path.is_dir() else 0o666) & ~_umask())


def _umask() -> int:
    try:  # reading the umask by setting it would change it for other threads for a moment
        match = re.search(
            r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.MULTILINE
        )
    except OSError:
        match = None
    if match:
        return int(match[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def note_input(path: str | os.PathLike[str]) -> None:
    """Keep in mind that a file or folder is an input, onto which nothing is written."""
    with contextlib.suppress(
        OSError, ValueError
    ):  # it cannot be read either, and its reader says so
        _INPUTS.setdefault(Path(path).resolve(), time.time())


def check_output(
    path: str | os.PathLike[str], *, overwrite: bool = False, own: bool = False
) -> Path:
    """Raise OutputError for an input, and for a file that may not be replaced; pipes may be
    written.
    """
    target = Path(path)
    try:
        place = target.resolve()
        if not (place.is_file() or place.is_dir()):
            return target
        same = place in _INPUTS or any(
            source.exists() and place.samefile(source) for source in _INPUTS
        )
    except (OSError, ValueError) as error:
        raise OutputError(
            f"cannot write {target}: {error}", hint="choose another name", path=str(target)
        ) from error
    inside = [
        source
        for source, when in _INPUTS.items()
        if source in place.parents and place.stat().st_mtime < when
    ]
    if same or (place.is_file() and inside and not own):
        what = "is an input" if same else f"is part of the input {inside[0].name}"
        raise OutputError(
            f"{target} {what}, which is never replaced",
            hint="choose another name",
            path=str(target),
        )
    if not (overwrite or own) and place.is_file():
        hint = "choose another name, or replace it with --force (in Python: overwrite=True)"
        raise OutputError(f"{target} already exists", hint=hint, path=str(target))
    return target


def write_output(
    path: str | os.PathLike[str], content: str | bytes, *, overwrite: bool = False
) -> Path:
    """Write a file for the user, by the rule of this module; missing folders are made."""
    target = check_output(path, overwrite=overwrite)
    made(target.parent)
    return write(target, content)


def write(path: Path, content: str | bytes) -> Path:
    """Write a new file beside the old one, then rename it.

    A pipe or a device is written directly.
    """
    data = content.encode() if isinstance(content, str) else content
    work = ""
    try:
        place = path.resolve()
        if place.exists() and not place.is_file():
            place.write_bytes(data)
            return path
        number, work = tempfile.mkstemp(prefix=f".{path.name[:100]}-", dir=place.parent)
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        as_the_user_would(Path(work))
        Path(work).replace(place)
    except OSError as error:
        if work:
            with contextlib.suppress(OSError):
                Path(work).unlink()
        raise refused(path, error) from error
    return path


_SPECIAL: Final = {
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def special(path: Path) -> str:
    """``pipe``, ``socket`` or ``device`` for what is neither a file nor a folder: it may never
    end, or never begin.
    """
    try:
        return _SPECIAL.get(stat.S_IFMT(path.stat().st_mode), "")
    except OSError:  # missing, or not ours to see: opening it says so
        return ""


def regular(path: Path) -> Path:
    """The path, if it can be read to its end: no pipe, socket or device."""
    if kind := special(path):
        hint = "save what it gives in a file, and read that"
        raise ReadError(
            f"{path} is a {kind}", expected="a file or folder", hint=hint, path=str(path)
        )
    return path


def write_json(path: Path, value: Any) -> Path:
    """Write JSON; numbers that are not finite become null."""
    return write(
        path,
        json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False, default=str)
        + "\n",
    )


def write_small(path: Path, value: Any) -> Path:
    """Write JSON that is needed even if the disk is full: then the bytes of the existing file
    are overwritten.
    """
    try:
        return write_json(path, value)
    except OutputError as error:
        if not error.facts.get("full") or not path.is_file():
            raise
        text = json.dumps(finite(value), default=str).encode()
        try:
            with path.open("r+b") as file:
                file.write(text)
                file.truncate()
        except OSError:
            raise error from None
        return path


def checksum(path: Path) -> int:
    """CRC-32 of a file: it finds accidental damage at several GB/s, and is no protection against
    forgery.
    """
    value = 0
    with regular(path).open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            value = isal_zlib.crc32(block, value)
    return value


def finite(value: Any) -> Any:
    """The value with null in place of numbers that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def made(folder: Path) -> Path:
    """Make a folder and those above it, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(folder, error) from error
    return folder


def check_place(path: str | os.PathLike[str]) -> None:
    """Raise OutputError where no file can be made: it is tried in the nearest folder that there
    is.
    """
    target = Path(path).expanduser().absolute()
    if target.exists() and not target.is_dir():
        return  # a file to replace, or a pipe
    folder = next(place for place in (target, *target.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise refused(target, error) from error


def cache_folder(room: str) -> Path:
    """Folder of what can be made again: in ``LLMPROF_CACHE``, or in the user's cache folder of
    this system.
    """
    import platformdirs

    return Path(os.environ.get("LLMPROF_CACHE") or platformdirs.user_cache_dir("llmprof")) / room


def refused(path: Path, error: OSError) -> OutputError:
    """Error for a file that cannot be written; it names a full disk as such."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return OutputError(
            f"cannot write {path.name}: the disk is full ({error.strerror})",
            hint=f"free space on the disk of {path.parent}, or choose another folder",
            path=str(path),
            full=True,
        )
    return OutputError(
        f"cannot write {path}: {error.strerror or error}",
        hint="choose a folder that can be written",
        path=str(path),
    )
