"""Content of a file, block by block, plain or gzip; what can be had of a damaged one."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib

from llmprof.errors import ReadError

BLOCK_BYTES = 4 << 20
"""What is decoded at a time: few enough bytes that the objects made of them stay in the processor's caches."""

GZIP_MAGIC = b"\x1f\x8b"

_COMPRESSED_BYTES = 1 << 17
_RESCUE_BYTES = 4 << 10


class Blocks:
    """Blocks of the decompressed content of a file.

    Parameters
    ----------
    path : pathlib.Path
        File, gzip (of any number of members) or not.
    block_bytes : int
        Most bytes of a block.

    Attributes
    ----------
    read_bytes : int
        Bytes of the file consumed so far.
    damage : str
        Why the content ends early, or empty.
    """

    def __init__(self, path: Path, block_bytes: int = BLOCK_BYTES) -> None:
        self.path = path
        self.block_bytes = block_bytes
        self.read_bytes = 0
        self.damage = ""

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                magic = file.read(len(GZIP_MAGIC))
                file.seek(0)
                if magic == GZIP_MAGIC:
                    yield from self._gunzip(file)
                    return
                while block := self._read(file, self.block_bytes):
                    yield block
        except FileNotFoundError as error:
            raise ReadError(f"{self.path} does not exist", hint="check the path") from error
        except OSError as error:
            raise ReadError(f"cannot read {self.path}: {error.strerror or error}") from error

    def _read(self, file: BinaryIO, size: int) -> bytes:
        data = file.read(size)
        self.read_bytes += len(data)
        return data

    def _gunzip(self, file: BinaryIO) -> Iterator[bytes]:
        data = b""
        begin, given = 0, 0  # of the member at hand: its place in the file and the bytes that came out of it
        engine = isal_zlib.decompressobj(wbits=31)
        while True:
            data = data or self._read(file, _COMPRESSED_BYTES)
            try:
                out = engine.decompress(data, self.block_bytes)
            except isal_zlib.error as error:  # type: ignore[misc]
                yield from self._rescue(file, begin, given)
                self.damage = f"the gzip stream is damaged ({error})"
                return
            given += len(out)
            if out:
                yield out
            if engine.eof:
                data = self._next_member(engine.unused_data, file)
                if not data:
                    return
                begin, given = file.tell() - len(data), 0
                engine = isal_zlib.decompressobj(wbits=31)
            elif not data and not out:
                yield from self._rescue(file, begin, given)
                self.damage = "the gzip stream ends early"
                return
            else:
                data = engine.unconsumed_tail

    def _next_member(self, rest: bytes, file: BinaryIO) -> bytes:
        """Beginning of the next gzip member, empty if there is none; zeros between members are padding."""
        rest = rest.lstrip(b"\0")
        while len(rest) < len(GZIP_MAGIC) and (more := self._read(file, _COMPRESSED_BYTES)):
            rest = (rest + more).lstrip(b"\0")
        if rest and not rest.startswith(GZIP_MAGIC):
            self.damage = "the gzip stream is followed by something else"
            return b""
        return rest

    def _rescue(self, file: BinaryIO, begin: int, given: int) -> Iterator[bytes]:
        """What still comes out of a damaged or cut member after the bytes given so far.

        A decoder keeps back what it had made in the call that found damage, and a fast one looks ahead. The standard
        library's can be copied, so it goes to the damage in small steps, and the last of them byte by byte.
        """
        file.seek(begin)
        engine = zlib.decompressobj(wbits=31)
        done = 0
        while piece := file.read(_RESCUE_BYTES):
            before = engine.copy()
            try:
                out, damaged = engine.decompress(piece), False
            except zlib.error:
                out, damaged = _byte_by_byte(before, piece), True
            done += len(out)
            if (new := done - max(given, done - len(out))) > 0:
                yield out[-new:]
            if damaged:
                break
        self.read_bytes = file.tell()


def _byte_by_byte(engine: zlib._Decompress, piece: bytes) -> bytes:
    out = b""
    try:
        for i in range(len(piece)):
            out += engine.decompress(piece[i : i + 1])
    except zlib.error:
        pass
    return out
