"""Repair of damaged and unusual JSON: broken lists of events, and objects whose fields have an
unexpected type.
"""

import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

_FIRST_KEY: Final = re.compile(rb'\s*(?:\{\s*\}\s*,\s*)*\{\s*("(?:[^"\\]++|\\.)*+")\s*:', re.DOTALL)
_SEPARATOR: Final = rb"\}\s*,\s*(?=\{\s*%s)"
ANY_SEPARATOR: Final = re.compile(rb'\}[^{}"]*,[^{}"]*(?=\{)')
"""Pattern of a separator of any two objects, which may be events or parts of an event."""

_BRACKET: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\]]', re.DOTALL)
_COMMA_OR_BRACKET: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[{}\[\],]', re.DOTALL)
_TAIL_BYTES: Final = 64 << 10


class Cut(NamedTuple):
    """Place of a separator of two events: the end of the first and the beginning of the second."""

    end: int
    next: int


class Scan(NamedTuple):
    """Result of an exact scan of a list's text; ``None`` if the text has no such place."""

    last_end: int | None
    """End of the last complete event."""
    list_end: int | None
    """Place of the bracket that closes the list."""


def separator(text: bytes) -> re.Pattern[bytes]:
    """Pattern of the separators in a list; most events begin with the same key as the first
    event.
    """
    match = _FIRST_KEY.match(text)
    return re.compile(_SEPARATOR % re.escape(match[1])) if match else ANY_SEPARATOR


def last_cut(text: bytes, pattern: re.Pattern[bytes]) -> Cut | None:
    """Last place of the text that looks like a separator."""
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
    """Find the ends of events by counting all brackets outside strings, which is exact but slow."""
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
    """A cut object, closed after its last complete member."""
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


def _pieces(text: bytes, pattern: re.Pattern[bytes]) -> list[tuple[int, int]]:
    """Begin and end of each piece of text between separators."""
    cuts = [(m.start() + 1, m.end()) for m in pattern.finditer(text)]
    return list(zip([0, *(c[1] for c in cuts)], [*(c[0] for c in cuts), len(text)], strict=True))


Decode = Callable[[bytes], list[Any]]
"""Function that decodes the bytes of a JSON list to events; it raises one of :data:`BAD_JSON`."""

BAD_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_NAN: Final = rb"-?(?:NaN|nan|Infinity|inf)(?=\s*[,}\]])"
_NAN_MEMBER: Final = re.compile(rb'(?<!\\)("\s*:\s*)' + _NAN)
_NAN_ELEMENT: Final = re.compile(rb"([\[,]\s*)" + _NAN)
_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair of surrogates
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb'|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
    rb"|(?P<bare>\\)"
)
_CONTROL_TO_SPACE: Final = bytes(max(c, 32) for c in range(256))
_SPACE: Final = re.compile(r"\s*")
WHITE_SPACE: Final = bytes(0x20 if c in b"\t\r\n" else c for c in range(256))
"""Table for ``bytes.translate`` that turns line ends and tabs into spaces, as :func:`clean_json`
does.
"""
_LIST_END: Final = re.compile(rb'\}\s*,?\s*\](?=\s*(?:,\s*"|\}?\s*$))')
_ERROR_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_MOST_JOINED: Final = 8


@dataclass(slots=True)
class Salvage:
    """Events and remains of a damaged list."""

    events: list[Any] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    """Sizes of the pieces, of about one event, that cannot be decoded."""
    rest: bytes | None = None
    """Text after the end of the list; None if the list does not end in the text."""
    tail: bytes = b""
    """The last piece, if its event seems to continue after the text."""


def clean_json(text: bytes) -> bytes:
    """Turn JSON as real profilers write it into valid JSON.

    The result is UTF-8 without control characters. NaN and infinities become null, backslashes that
    escape nothing (in Windows paths) are doubled, and a replacement character replaces half a
    surrogate pair.
    """
    text = text.decode("utf-8", errors="replace").encode().translate(_CONTROL_TO_SPACE)
    text = _NAN_MEMBER.sub(rb"\1null", text)
    if b"\\" not in text:
        return text
    return _ESCAPE.sub(
        lambda found: rb"\ufffd" if found["half"] else rb"\\" if found["bare"] else found[0], text
    )


def clean_elements(text: bytes) -> bytes:
    """Replace NaN and infinities in lists by null, too; this also changes a text like ``"[NaN,
    1]"``.
    """
    for _ in range(2):  # matches share their comma
        text = _NAN_ELEMENT.sub(rb"\1null", text)
    return text


def salvage(text: bytes, pattern: re.Pattern[bytes], decode: Decode) -> Salvage:
    """Decode every event of a damaged list that is intact."""
    places = _pieces(text, pattern)
    out = Salvage()
    i = 0
    for first, stop, events in _halve(text, places, 0, len(places), decode):
        if first < i:
            continue  # joined to a piece before it
        i = stop
        if events is not None:
            out.events += events
            continue
        begin, end = places[first]
        for j in range(first + 1, min(first + _MOST_JOINED, len(places))):
            joined = _try(decode, text[begin : places[j][1]])
            if joined is not None:
                out.events += joined
                i = j + 1
                break
        else:
            _look_closer(text[begin:end], pattern, decode, out)
            if out.rest is not None:
                out.rest += text[end:]
                return out
            if stop < len(places) and out.tail:
                out.lost.append(len(out.tail))
                out.tail = b""
    return out


def _look_closer(piece: bytes, pattern: re.Pattern[bytes], decode: Decode, out: Salvage) -> None:
    """Look for events that begin with another key, or for the end of the list, in one piece."""
    if pattern is not ANY_SEPARATOR and ANY_SEPARATOR.search(piece):
        inside = salvage(piece, ANY_SEPARATOR, decode)
        out.events += inside.events
        out.lost += inside.lost
        out.rest, out.tail = inside.rest, inside.tail
        return
    for match in _LIST_END.finditer(piece):
        last = _try(decode, piece[: match.start() + 1])
        if last is not None:
            out.events += last
            out.rest = piece[match.end() :]
            return
    if _goes_on(piece, decode):
        out.tail = piece
    else:
        out.lost.append(len(piece.strip(b" \t\r\n,")))


def list_end(error: BaseException) -> int | None:
    """Place of the text after the list, if the decoder's error is about that text; else None."""
    message = str(error)
    match = _ERROR_BYTE.search(message) if "trailing characters" in message else None
    return int(match[1]) - 1 if match else None


def is_wrong_cut(error: BaseException, size: int) -> bool:
    """Whether the error is at the very end of the text, as for an event that was cut."""
    message = str(error)
    if "truncated" in message:
        return True
    match = _ERROR_BYTE.search(message)
    return match is not None and int(match[1]) >= size - 1


def documents(text: bytes) -> list[bytes]:
    """The JSON documents that stand one after another in a text; what is no JSON stays one."""
    found: list[bytes] = []
    whole, decoder, begin = text.decode("utf-8", "replace"), json.JSONDecoder(), 0
    while begin < len(whole):
        try:
            end = decoder.raw_decode(whole, begin)[1]
        except (ValueError, RecursionError):
            return [*found, whole[begin:].encode()] if found else [text]
        found.append(whole[begin:end].encode())
        begin = _SPACE.match(whole, end).end()  # type: ignore[union-attr] # matches anywhere
    return found or [text]


def closing(text: bytes, is_rest: Callable[[bytes], bool], begin: int = 0) -> int | None:
    """Place of the bracket that closes a list: the first one after which the text can be the
    rest of the document.
    """
    # The place is exact if the rest is undamaged: after a bracket inside an event, more brackets
    # close than open.
    for match in _LIST_END.finditer(text, begin):
        if is_rest(text[match.end() :]):
            return match.end() - 1
    return None


def _try(decode: Decode, text: bytes) -> list[Any] | None:
    try:
        return decode(b"[" + text + b"]")
    except BAD_JSON:
        return None


def _goes_on(text: bytes, decode: Decode) -> bool:
    try:
        decode(b"[" + text + b"]")
    except BAD_JSON as error:
        return is_wrong_cut(error, len(text) + 2)
    return False


def _halve(
    text: bytes, places: list[tuple[int, int]], first: int, stop: int, decode: Decode
) -> list[tuple[int, int, list[Any] | None]]:
    """Decode pieces together; if that fails, decode each half separately, down to single pieces."""
    events = _try(decode, text[places[first][0] : places[stop - 1][1]])
    if events is not None or stop - first == 1:
        return [(first, stop, events)]
    half = (first + stop) // 2
    return _halve(text, places, first, half, decode) + _halve(text, places, half, stop, decode)


AnyStruct = TypeVar("AnyStruct", bound=msgspec.Struct)

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, Any]])


class ListDecoder(Generic[AnyStruct]):
    """Decoder of lists of objects of one class."""

    def __init__(self, kind: type[AnyStruct]) -> None:
        self.kind = kind
        self.wrong_types = 0
        self._decoder: msgspec.json.Decoder[list[AnyStruct]] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]

    def __call__(self, texts: Sequence[msgspec.Raw]) -> list[AnyStruct]:
        """One object for each text; fields that do not fit get their default values."""
        try:
            return self._decoder.decode(b"[" + b",".join(texts) + b"]")
        except BAD_JSON:
            pass
        decoded = []
        for text in texts:
            fitted, wrong = fit_struct(self.kind, text)
            decoded.append(fitted)
            self.wrong_types += wrong
        return decoded


def objects(texts: Sequence[msgspec.Raw]) -> list[dict[str, Any]]:
    """Decode each text as an object; a text that is not an object gives an empty one."""
    try:
        return _OBJECTS.decode(b"[" + b",".join(texts) + b"]")
    except BAD_JSON:
        return [_object(text) for text in texts]


def _object(text: msgspec.Raw) -> dict[str, Any]:
    try:
        return _OBJECT.decode(text)
    except BAD_JSON:
        return {}


def fit_struct(kind: type[AnyStruct], text: msgspec.Raw | bytes) -> tuple[AnyStruct, int]:
    """Decode an object of a class, also numbers written as text; and the number of fields of a
    wrong type.
    """
    out = kind()
    try:
        members = _MEMBERS.decode(text)
    except BAD_JSON:
        return out, int(bytes(text) != b"null")
    wrong = 0
    fields = _fields(kind)
    for key, value in members.items():
        if key not in fields:
            continue
        name, decoder = fields[key]
        try:
            setattr(out, name, decoder.decode(value))
        except BAD_JSON:
            wrong += 1
    return out, wrong


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[str, msgspec.json.Decoder[Any]]]:
    return {
        member.encode_name: (member.name, msgspec.json.Decoder(member.type, strict=False))
        for member in msgspec.structs.fields(kind)
    }
