"""Bytes of files of Nsight Compute: what they are by their content, decompressed, as text."""

from __future__ import annotations

import lzma
import zlib
from pathlib import Path
from typing import Final

from llmprof.errors import ReadError

HEAD: Final = 1 << 16
UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
EXPECTED: Final = "CSV of ncu --csv --page raw or --page details, or an .ncu-rep report"
_REPORT: Final = b"NVR\x00"
_GZIP: Final = b"\x1f\x8b"
_XZ: Final = b"\xfd7zXZ\x00"


def kind(start: bytes) -> str | None:
    """``report``, ``csv``, or None for anything else, by the first bytes (decompressed)."""
    if start.startswith(_REPORT):
        return "report"
    text = start if not start.startswith(UTF16) else start.replace(b"\0", b"")
    return "csv" if b'"ID","Process ID"' in text or b"ID,Process ID," in text else None


def head(path: Path) -> bytes:
    """First bytes of a file, decompressed; none where they cannot be had."""
    try:
        with path.open("rb") as file:
            return _decompress(file.read(HEAD))[0][:HEAD]
    except (OSError, ReadError):
        return b""


def content(path: Path) -> tuple[bytes, bool]:
    """All of a file, decompressed, and whether the compressed data were whole.

    Raises
    ------
    ReadError
        It does not exist, cannot be read, or is no valid gzip or xz from its beginning.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReadError(
            f"{path} cannot be read: {error.strerror or error}", expected="a file of Nsight Compute", path=str(path)
        ) from error
    if not data.strip():
        raise ReadError(f"{path} is empty", expected=EXPECTED, path=str(path))
    out, whole = _decompress(data)
    if not out:
        raise ReadError(f"{path} is damaged: nothing of it can be decompressed", expected=EXPECTED, path=str(path))
    return out, whole


def _decompress(data: bytes) -> tuple[bytes, bool]:
    """What can be had of gzip or xz, members one after another; other data as they are."""
    out = bytearray()
    while data.startswith((_GZIP, _XZ)):
        stream = zlib.decompressobj(31) if data.startswith(_GZIP) else lzma.LZMADecompressor()
        for at in range(0, len(data), HEAD):  # in pieces, so that what precedes the damage is kept
            try:
                out += stream.decompress(data[at : at + HEAD])
            except (zlib.error, lzma.LZMAError):
                return bytes(out), False
            if stream.eof:
                data = stream.unused_data + data[at + HEAD :]
                break
        else:
            return bytes(out), False
        if not data.startswith((_GZIP, _XZ)):
            return bytes(out), True
    return data, True


def is_text_page(said: str) -> bool:
    """Whether it is what ncu prints for people, without ``--csv``."""
    return "Section: " in said and "Metric Name" in said


def text(data: bytes) -> str:
    """Text of a file: UTF-8, or UTF-16 where it begins with its mark (redirected in PowerShell)."""
    return data.decode("utf-16" if data.startswith(UTF16) else "utf-8", errors="replace")
