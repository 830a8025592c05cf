"""Which format a file has, by its content and never by its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from llmprof.errors import ReadError
from llmprof.readers.common.blocks import GZIP_MAGIC, Blocks
from llmprof.readers.monitors import kinds
from llmprof.readers.nsys.export import REPORT_SUFFIX, is_nsys_sqlite, is_parquetdir
from llmprof.trace import META_FILE

_SNIFF_BYTES: Final = 64 << 10
_MOST_SNIFF_BYTES: Final = 16 << 20
"""How far to look for the list of events behind the other keys of a document."""

_KNOWN_ELSEWHERE: Final = {
    b"SQLite format 3\x00": "an SQLite database, but no export of Nsight Systems",
    b"PAR1": "a Parquet file",
    b"NVR\x00": "an Nsight Compute report",
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ": "an xz archive",
    b"BZh": "a bzip2 archive",
    b"(\xb5/\xfd": "a zstd archive",
    b"\xff\xfe": "UTF-16 text, where a trace is UTF-8",
    b"\xfe\xff": "UTF-16 text, where a trace is UTF-8",
    GZIP_MAGIC: "gzip inside gzip",
    b"\x80": "a Python pickle",
    b"\x7fELF": "a program",
}

_BEFORE: Final = b"\xef\xbb\xbf \t\r\n"
_FIRST_EVENT: Final = re.compile(rb'\[\s*(?:\{\s*\}\s*,\s*)*\{.*?"ph"\s*:\s*"', re.DOTALL)
_MAY_GO_ON: Final = re.compile(rb"$|\{|\[\s*\{")
_EMPTY_LIST: Final = re.compile(rb"\[\s*(?:\]|$)")
_KEY: Final = re.compile(rb'[{,]\s*"([^"\\]{1,40})"\s*:')


def detect(path: Path) -> str | None:
    """Format of a file or folder.

    Parameters
    ----------
    path : pathlib.Path
        File or folder.

    Returns
    -------
    str or None
        ``llmprof`` (a saved trace), ``chrome``, ``nsys`` (an SQLite or Parquet export of Nsight Systems, or its
        report), one of :data:`llmprof.readers.monitors.kinds.KINDS` (what a monitor printed), or None where no reader
        knows the content.

    Raises
    ------
    ReadError
        The path does not exist or cannot be read.
    """
    if path.is_dir():
        return "llmprof" if is_saved(path) else "nsys" if is_parquetdir(path) else None
    if path.suffix == REPORT_SUFFIX or is_nsys_sqlite(path):
        return "nsys"
    start = b""
    for block in Blocks(path, _SNIFF_BYTES):
        start += block
        text = start.lstrip(_BEFORE)
        if text[:1] == b"{" and b'"traceEvents"' in text:
            return "chrome"
        if text[:1] == b"[" and (_FIRST_EVENT.match(text) or _EMPTY_LIST.match(text)):
            return "chrome"
        if not _MAY_GO_ON.match(text) or len(start) > _MOST_SNIFF_BYTES:
            break
    return kinds.kind(start[:_SNIFF_BYTES])


def is_saved(path: Path) -> bool:
    """Whether it is a folder that ``Trace.save`` wrote."""
    return (path / META_FILE).exists()


def head(path: Path, size: int = _SNIFF_BYTES) -> bytes:
    """First bytes of a file, decompressed if it is gzip; what can be had of a damaged one."""
    return next(iter(Blocks(path, size)), b"")


def say_what_it_is(path: Path) -> str:
    """What a file of no known format seems to be, in words."""
    start = head(path)
    for magic, name in _KNOWN_ELSEWHERE.items():
        if start.startswith(magic):
            return name
    text = start.lstrip(_BEFORE)
    keys = ", ".join(dict.fromkeys(key.decode("utf-8", "replace") for key in _KEY.findall(text[:4096])[:5]))
    if text[:1] == b"{" and keys:
        return f'JSON without "traceEvents"; its first keys are {keys}'
    if text[:1] == b"[":
        return f"a JSON list, but not of events{f'; its first keys are {keys}' if keys else ''}"
    if b"\x00" in start[:1024]:
        return f"a binary file that begins with {start[:16]!r}"
    return f"something that begins with {start[:40]!r}"


def refuse_empty(path: Path) -> None:
    """Raise if there is nothing in a file.

    Raises
    ------
    ReadError
        The file is empty, or nothing can be had of its gzip stream.
    """
    if not path.stat().st_size:
        raise ReadError(f"{path.name} is empty", expected="a trace", hint="was the profiler killed before it wrote?")
    blocks = Blocks(path, _SNIFF_BYTES)
    if not any(block.strip() for block in blocks):
        why = f" ({blocks.damage})" if blocks.damage else ""
        raise ReadError(f"{path.name} has no content{why}", expected="a trace", hint="record it or copy it again")
