"""Where the events of a list begin and end in its text.

A list of events may be many gigabytes, so it is taken apart at ``},{`` and each piece decoded as a list of its own.
Such a place may also lie inside an event (in a string, in a list of objects), but a piece that was cut there never
passes for a whole one: its brackets do not balance, and the decoder refuses it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_FIRST_KEY: Final = re.compile(rb'\s*(?:\{\s*\}\s*,\s*)*\{\s*("(?:[^"\\]++|\\.)*+")\s*:', re.DOTALL)
_SEPARATOR: Final = rb"\}\s*,\s*(?=\{\s*%s)"
ANY_SEPARATOR: Final = re.compile(rb'\}[^{}"]*,[^{}"]*(?=\{)')
"""Whatever separates two objects, be they events or inside one, with other things between them or not."""

_BRACKET: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]', re.DOTALL)
_COMMA_OR_BRACKET: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\],]', re.DOTALL)
_TAIL_BYTES: Final = 64 << 10


class Cut(NamedTuple):
    """A separator of two events: the end of the one and the beginning of the next."""

    end: int
    next: int


class Scan(NamedTuple):
    """What an exact scan of a list's text found; ``None`` where it is not there."""

    last_end: int | None
    """End of the last whole event."""
    list_end: int | None
    """Place of the bracket that closes the list."""


def separator(text: bytes) -> re.Pattern[bytes]:
    """Pattern of the separators of a list: its events mostly begin with the same key as the first."""
    match = _FIRST_KEY.match(text)
    return re.compile(_SEPARATOR % re.escape(match[1])) if match else ANY_SEPARATOR


def last_cut(text: bytes, pattern: re.Pattern[bytes]) -> Cut | None:
    """Last place that looks like a separator."""
    for begin in (max(0, len(text) - _TAIL_BYTES), 0):
        match = None
        for match in pattern.finditer(text, begin):  # noqa: B007
            pass
        if match:
            return Cut(match.start() + 1, match.end())
        if not begin:
            return None
    return None


def scan(text: bytes) -> Scan:
    """Follow every bracket outside strings from the beginning of a list's content: exact, and slow."""
    depth, last_end = 0, None
    for match in _BRACKET.finditer(text):
        byte = match[0]
        if byte in (b"{", b"["):
            depth += 1
        elif byte in (b"}", b"]"):
            depth -= 1
            if depth < 0:
                return Scan(last_end, match.start())
            if depth == 0:
                last_end = match.end()
    return Scan(last_end, None)


def whole_members(text: bytes) -> bytes:
    """An object that was cut, up to its last whole member, closed."""
    depth, end = 0, 1
    for match in _COMMA_OR_BRACKET.finditer(text):
        byte = match[0]
        if byte in (b"{", b"["):
            depth += 1
        elif byte in (b"}", b"]"):
            depth -= 1
        elif byte == b"," and depth == 1:
            end = match.start()
    return text[:end] + b"}"


def pieces(text: bytes, pattern: re.Pattern[bytes]) -> list[tuple[int, int]]:
    """Begin and end of all that lies between separators."""
    cuts = [(m.start() + 1, m.end()) for m in pattern.finditer(text)]
    return list(zip([0, *(c[1] for c in cuts)], [*(c[0] for c in cuts), len(text)], strict=True))
