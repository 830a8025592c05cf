"""Stream of the events of a Chrome trace document, batch by batch, and the keys around them.

A trace is one JSON document that may have many gigabytes; only one block of it is in memory at a
time.
"""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from isal import isal_zlib

from llmprof.errors import ReadError, UnknownFormatError
from llmprof.readers.common import repair
from llmprof.text import plain
from llmprof.trace.storage import files

BLOCK_BYTES = 4 << 20
"""Number of bytes that are decoded at a time, so few that the decoded objects stay in the caches
of the CPU.
"""

GZIP_MAGIC = b"\x1f\x8b"

_COMPRESSED_BYTES = 1 << 17
_RESCUE_BYTES = 4 << 10


class Blocks:
    """Blocks of the decompressed content of a file."""

    def __init__(self, path: Path, block_bytes: int = BLOCK_BYTES) -> None:
        self.path = path
        self.block_bytes = block_bytes
        self.read_bytes = 0
        self.damage = ""

    def __iter__(self) -> Iterator[bytes]:
        try:
            with files.regular(self.path).open("rb") as file:
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
        begin, given = (
            0,
            0,
        )  # place of the current member in the file, and the number of bytes decompressed from it
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
        """Beginning of the next gzip member; empty if there is no further one.

        Zeros between members are padding.
        """
        rest = rest.lstrip(b"\0")
        while len(rest) < len(GZIP_MAGIC) and (more := self._read(file, _COMPRESSED_BYTES)):
            rest = (rest + more).lstrip(b"\0")
        if rest and not rest.startswith(GZIP_MAGIC):
            self.damage = "other data follow the gzip stream"
            return b""
        return rest

    def _rescue(self, file: BinaryIO, begin: int, given: int) -> Iterator[bytes]:
        """The bytes that can still be decompressed from a damaged or cut member."""
        # A decoder loses the output of the call that reaches the damage, and a fast decoder reads
        # ahead. The decoder of the standard library can be copied, so it can go up to the damage in
        # small steps, at last byte by byte.
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


def _byte_by_byte(engine: Any, piece: bytes) -> bytes:
    out = b""
    try:
        for i in range(len(piece)):
            out += engine.decompress(piece[i : i + 1])
    except zlib.error:
        pass
    return out


EVENTS: Final = "traceEvents"

_EVENTS_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_LEADING: Final = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*")
MOST_EVENT_BYTES: Final = 32 << 20
"""Largest size of an event; reading stops at a larger one, so that memory stays bounded for any
file.
"""
_READ_BYTES: Final = 512 << 10
_MOST_HEADER_BYTES: Final = 64 << 20
_SECOND_LOOK_BYTES: Final = 4 << 20
_LONGEST_KEY_BYTES: Final = 256
_TRAILER_BYTES: Final = 64 << 10

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class EventStream:
    """The events of a Chrome trace document, and the keys around them."""

    def __init__(self, path: Path, block_bytes: int = BLOCK_BYTES) -> None:
        self.path = path
        self.blocks = Blocks(path, min(block_bytes, _READ_BYTES))
        self.head: dict[str, msgspec.Raw] = {}
        self.document: dict[str, msgspec.Raw] = self.head
        """Head of the document whose events were given last: others may follow the first."""
        self.total_bytes = 0
        self.truncated = ""
        self.lost_bytes = 0
        self.lost_pieces = 0
        self.repaired = False
        self.ending = False
        self._block_bytes = block_bytes
        self._is_object = False
        self._rest: list[bytes] | None = (
            None  # the text after the list of events, once the list has ended
        )

    def batches(self, decode: repair.Decode) -> Iterator[list[Any]]:
        """Give the events as lists, in the order of the file."""
        blocks = self._counted()
        text = self._open(blocks)
        self._separator = repair.separator(text)
        waiting, size, needed = [text], len(text), self._block_bytes
        for block in blocks:
            if self._rest is not None:
                self._rest.append(block)
                continue
            waiting.append(block)
            size += len(block)
            if size < needed:
                continue
            events, text = self._take_quickly(waiting, decode) or self.take_events(
                b"".join(waiting), decode
            )
            waiting, size = [text], len(text)
            if size > MOST_EVENT_BYTES:
                if events:
                    yield events
                self.truncated = (
                    f"one event is larger than {MOST_EVENT_BYTES >> 20} MiB, and reading stopped"
                    " at it"
                )
                self._lose(size)
                return
            needed = max(
                self._block_bytes, min(2 * size, MOST_EVENT_BYTES + 1)
            )  # the next event may be large
            if events:
                yield events
        self.truncated = self.blocks.damage
        self.ending = True
        if self._rest is None:
            events = self._finish(b"".join(waiting), decode)
            if events:
                yield events
        for more in self._read_trailer():
            if events := self._decode(more, decode):
                yield events

    def _counted(self) -> Iterator[bytes]:
        for block in self.blocks:
            self.total_bytes += len(block)
            yield block

    def _open(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event; returns the text of the list of events that was read so
        far.
        """
        text, searched, most = b"", 0, _MOST_HEADER_BYTES
        for block in blocks:
            text += block
            begin = _LEADING.match(text).end()  # type: ignore[union-attr]
            first = text[begin : begin + 1]
            if first == b"[":
                return text[begin + 1 :]
            if first not in (b"", b"{") or len(text) > most:
                break
            for match in _EVENTS_KEY.finditer(text, searched):
                if self._merge(text[begin : match.start()].rstrip().rstrip(b",") + b"}"):
                    self._is_object = True
                    return text[match.end() :]
                most = min(
                    most, len(text) + _SECOND_LOOK_BYTES
                )  # the key of another object, or the header is damaged
            searched = max(0, len(text) - _LONGEST_KEY_BYTES)
        return self._open_damaged(text)

    def _open_damaged(self, text: bytes) -> bytes:
        """Like :meth:`_open`, for a document that has damaged keys before the events, or that is
        not a trace.
        """
        match = _EVENTS_KEY.search(text)
        begin = _LEADING.match(text).end()  # type: ignore[union-attr]
        if match and text[begin : begin + 1] == b"{":
            self._is_object = True
            self._lose(match.start() - begin)
            return text[match.end() :]
        if text[begin:]:
            first = plain(text[begin : begin + 40].decode("utf-8", "replace").partition("\n")[0])
            found = f"{self.path.name} is not a Chrome trace: it begins with “{first}”"
            hint = "pass the profiler's own file, or name the format with format="
            raise UnknownFormatError(
                found, expected=f'an object with "{EVENTS}" or a list of events', hint=hint
            )
        why = f": {self.blocks.damage}" if self.blocks.damage else ""
        raise ReadError(
            f"{self.path.name} is empty{why}",
            expected="a Chrome trace JSON",
            hint="record it again",
        )

    def _merge(self, text: bytes) -> bool:
        """Add the members of an object to the head; returns whether it could be decoded."""
        for mend in (bytes, repair.clean_json):
            try:
                self.head.update(_MEMBERS.decode(mend(text)))
            except repair.BAD_JSON:
                continue
            return True
        return False

    def _take_quickly(
        self, blocks: list[bytes], decode: repair.Decode
    ) -> tuple[list[Any], bytes] | None:
        """Events up to the last separator of the last block, and the rest of the text; None if
        that fails.
        """
        *before, last = blocks
        cut = repair.last_cut(last, self._separator)
        if cut is None:
            return None
        try:
            return (
                decode(b"".join((b"[", *before, memoryview(last)[: cut.end], b"]"))),
                last[cut.next :],
            )
        except repair.BAD_JSON:
            return None

    def take_events(self, text: bytes, decode: repair.Decode) -> tuple[list[Any], bytes]:
        """All complete events of the text, and the rest of the text."""
        text = _after_comma(text)
        cut = repair.last_cut(text, self._separator)
        if cut is not None:
            whole = b"[" + text[: cut.end] + b"]"
            try:
                return decode(whole), text[cut.next :]
            except repair.BAD_JSON as error:
                end = repair.list_end(error)
                damaged = end is None and not repair.is_wrong_cut(error, len(whole))
            if end is not None:
                return self._close(text, whole.rindex(b"]", 0, end) - 1, decode), b""
            if damaged:
                return self._salvage(text, cut.end, decode)
        place = repair.scan(text)
        if place.list_end is not None:
            return self._close(text, place.list_end, decode), b""
        if place.last_end is None:
            return [], text  # a single event that continues in the next block
        return self._decode(text[: place.last_end], decode), text[place.last_end :]

    def _finish(self, text: bytes, decode: repair.Decode) -> list[Any]:
        """Events at the end of the file, where the list closes or the file was cut."""
        text = _after_comma(text)
        end = repair.closing(text, self._is_rest, max(0, len(text) - _TRAILER_BYTES))
        if end is not None:  # nearly every file ends like this
            try:
                events = decode(b"[" + text[:end] + b"]")
            except repair.BAD_JSON:
                pass
            else:
                self._rest = [text[end + 1 :]]
                return events
        whole = b"[" + text
        try:
            events = decode(whole)
        except repair.BAD_JSON as error:
            end = repair.list_end(error)
            damaged = not repair.is_wrong_cut(error, len(whole))
        else:
            self._rest = []
            return events
        if end is not None:
            return self._close(text, whole.rindex(b"]", 0, end) - 1, decode)
        if damaged and (end := repair.closing(text, self._is_rest)) is not None:
            return self._close(text, end, decode)
        end = repair.scan(text).last_end or 0
        tail = text[end:].strip(b" \t\r\n,")
        try:
            events = decode(b"[" + text[:end] + b"]")
        except repair.BAD_JSON:
            events, tail = self._salvage(text, len(text), decode)
        if self._rest is None:
            where = (
                "the file ends inside the list of events"
                if tail
                else "the list of events is not closed"
            )
            self.truncated = self.truncated or where
            if tail:
                self._lose(len(tail))
        return events

    def _is_rest(self, text: bytes) -> bool:
        if not self._is_object:
            return not text.strip()
        try:
            _MEMBERS.decode(b"{" + text.lstrip().removeprefix(b","))
        except repair.BAD_JSON:
            return False
        return True

    def _close(self, text: bytes, end: int, decode: repair.Decode) -> list[Any]:
        """Events up to the place of the bracket that closes the list."""
        self._rest = [text[end + 1 :]]
        return self._decode(text[:end], decode)

    def _read_trailer(self) -> Iterator[bytes]:
        """Read the keys after the list; returns the content of further lists of events."""
        if self._rest is None:
            return
        text = b"".join(self._rest).strip()
        if not self._is_object:
            if text:
                self._lose(len(text))
            return
        text = b"{" + text.removeprefix(b",")
        whole = self._merge(text)
        first, *others = (text,) if whole else repair.documents(text)
        if not (whole or (others and self._merge(first))):
            where = "are damaged" if text.endswith(b"}") else "are cut off"
            self.truncated = self.truncated or f"the keys that follow the events {where}"
            closed = text + b"}" if text.endswith((b'"', b"]", b"}")) else b""
            if not (closed and self._merge(closed)):
                kept = repair.whole_members(text)
                self._merge(kept)
                if len(text) >= len(kept):
                    self._lose(len(text) - len(kept) + 1)
        if (more := self.head.pop(EVENTS, None)) is not None:
            yield bytes(more).strip().removeprefix(b"[").removesuffix(b"]")
        for other in others:  # profilers append to a file that exists
            try:
                members = _MEMBERS.decode(other)
                events = bytes(members.pop(EVENTS)).strip()[1:-1]
            except (KeyError, *repair.BAD_JSON):
                self._lose(len(other))
                continue
            self.document = members
            yield events

    def _decode(self, text: bytes, decode: repair.Decode) -> list[Any]:
        """Decode the content of a list, repaired if needed; if that fails, keep the events that
        can be decoded.
        """
        try:
            return decode(b"[" + text + b"]")
        except repair.BAD_JSON:
            events, tail = self._salvage(text, len(text), decode)
        if tail:
            self._lose(len(tail))
        return events

    def _salvage(self, text: bytes, end: int, decode: repair.Decode) -> tuple[list[Any], bytes]:
        """Events that can be decoded in a damaged text up to ``end``, and the text to try again
        with the next block.
        """
        damaged, rest = text[:end].rstrip().removesuffix(b","), text[end:]
        cleaned = repair.clean_json(damaged)
        for attempt in (cleaned, repair.clean_elements(cleaned)):
            try:
                events = decode(b"[" + attempt + b"]")
            except repair.BAD_JSON:
                continue
            self.repaired = True
            return events, rest
        self.repaired = self.repaired or attempt != damaged.translate(repair.WHITE_SPACE)
        saved = repair.salvage(attempt, self._separator, decode)
        for size in saved.lost:
            self._lose(size)
        if saved.rest is not None:
            self._rest = [saved.rest, text[end:]]
            return saved.events, b""
        return saved.events, saved.tail + text[end:] if saved.tail else rest

    def _lose(self, size: int) -> None:
        self.lost_bytes += size
        self.lost_pieces += 1


def _after_comma(text: bytes) -> bytes:
    """The text without the comma of an event whose comma came in the next block."""
    return text.lstrip().removeprefix(b",")
