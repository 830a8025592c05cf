"""Redacted copies of Chrome traces: only the keys of events that tables need; numbers stay,
texts become pseudonyms.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from llmprof.readers.ascend import timeline
from llmprof.readers.chrome import events as kinds
from llmprof.readers.common.event_stream import EventStream
from llmprof.readers.common.repair import BAD_JSON
from llmprof.readers.redaction.kept import kept_names
from llmprof.trace.storage.pseudonyms import Ledger, writing

_TEXT_KEYS: Final = frozenset({"name", "cat", "pid", "tid"})
_NUMBER_KEYS: Final = frozenset({"ts", "dur", "id"})
_SHORT_KEYS: Final = frozenset({"ph", "bp", "s"})
_SHORT: Final = re.compile(rb'"[A-Za-z(),=]{1,2}"')
_NUMBER: Final = re.compile(
    rb'-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|"-?\d{1,20}(?:\.\d{1,20})?"|null|true|false'
)
_PLAIN: Final = re.compile(
    rb'-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|"-?\d{1,12}(?:\.\d{1,9})?"|null|true|false'
)
"""Like a number, where a text may stand: long digits in quotes may be those of a card."""
_NUMBERS: Final = re.compile(rb"[\[\]\d\s,.eE+-]*|null|true|false")

_ARGUMENTS: Final = frozenset(
    field.encode_name
    for kind in (
        *(kind for name, kind in vars(kinds).items() if name.endswith("Args")),
        timeline.AscendArgs,
    )
    for field in msgspec.structs.fields(kind)
    if field.encode_name != "Call stack"
) | kept_names("chrome_arguments")
_OTHER_ARGUMENTS: Final = "arguments that no table needs"

_PROCESS: Final = re.compile(
    r"(?i)(?:python[\d.]*|pt_main_thread|ascend hardware|cann|hccl|communication(?: \w+)?|overlap"
    r" analysis|gpu ?\d*|"
    r"npu ?\d*|ai ?core(?: freq)?|cpu|mtia ?\d*|spans?|traces?|group \d*|plane \d+|device"
    r" \d+|stream \d+ ?|thread \d+|"
    r"(?:vllm::)?(?:worker|enginecore)\w{0,24}|hardware|host|kernel)"
)
"""Names of processes and threads that state their purpose, not who started them."""

_HEAD: Final[dict[str, Any]] = {
    "schemaVersion": None,
    "displayTimeUnit": None,
    "baseTimeNanoseconds": None,
    "profile_memory": None,
    "record_shapes": None,
    "with_stack": None,
    "with_flops": None,
    "with_modules": None,
    "distributedInfo": {
        "backend": None,
        "rank": None,
        "world_size": None,
        "pg_count": None,
        "nccl_version": None,
        "pg_config": [
            {
                "pg_name": None,
                "pg_desc": None,
                "backend_config": None,
                "pg_size": None,
                "ranks": None,
            }
        ],
    },
    "deviceProperties": [
        dict.fromkeys(
            (
                "id",
                "name",
                "totalGlobalMem",
                "computeMajor",
                "computeMinor",
                "maxThreadsPerBlock",
                "maxThreadsPerMultiprocessor",
                "regsPerBlock",
                "warpSize",
                "sharedMemPerBlock",
                "numSms",
                "regsPerMultiprocessor",
                "sharedMemPerBlockOptin",
                "sharedMemPerMultiprocessor",
                "maxSharedMemoryPerMultiProcessor",
            )
        )
    ],
}
"""Keys of the document that are kept, with the pattern of their texts; None for a number, or a
text without secrets.
"""

_VERSION_KEY: Final = re.compile(r"[a-z0-9_]{1,30}_version")
_VERSION: Final = re.compile(r"[\w.+-]{1,40}")
_IDENTITY_KEY: Final = re.compile(
    r"(?i)user|host|login|account|owner|author|team|project|job|cluster|task|node|mail|token|key|secret|passw|"
    r"credential|auth|home"
)

_EVENTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_ANY_EVENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_DEEPEST: Final = 8


def copy_chrome(source: Path, target: Path, ledger: Ledger) -> None:
    """Write a redacted copy of a Chrome trace, compressed with gzip if the source is."""
    dropped = list(_dropped(source))
    ledger.names.know((text for key, text in dropped if _IDENTITY_KEY.search(key)), identity=True)
    ledger.names.know(text for key, text in dropped if not _IDENTITY_KEY.search(key))
    cleaner = _EventCleaner(ledger)
    stream = EventStream(source)
    with source.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    with writing(target), target.open("wb") as raw, _compressed(raw, zipped=zipped) as new:
        new.write(b'{"traceEvents": [')
        separator = b"\n"
        for events in stream.batches(_decoded):
            if lines := cleaner.lines(events):
                new.write(separator + b",\n".join(lines))
                separator = b",\n"
        new.write(b"\n]")
        for key, value in _head(stream.head, ledger).items():
            new.write(b",\n" + msgspec.json.encode(key) + b": " + msgspec.json.encode(value))
        new.write(b"}\n")
    ledger.leave_out("events", "bytes that are no valid JSON", stream.lost_bytes)


def _compressed(raw: IO[bytes], *, zipped: bool) -> IO[bytes]:
    # the header of the gzip stream holds neither the name of the file nor the time
    return gzip.GzipFile("", "wb", 6, raw, mtime=0) if zipped else raw  # type: ignore[return-value]


def _decoded(text: bytes) -> list[dict[str, msgspec.Raw]]:
    try:
        return _EVENTS.decode(text)
    except msgspec.ValidationError:  # some items are not objects
        return [event for raw in _ANY_EVENTS.decode(text) if (event := _object(raw)) is not None]


def _object(raw: msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    try:
        return _OBJECT.decode(raw)
    except BAD_JSON:
        return None


class _EventCleaner:
    """Cleans events; equal pieces of JSON are cleaned once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._made: dict[tuple[str, bytes], bytes | None] = {}

    def lines(self, events: list[dict[str, msgspec.Raw]]) -> list[bytes]:
        """Redacted events, one line of JSON each."""
        return [line for event in events if (line := self._line(event))]

    def _line(self, event: dict[str, msgspec.Raw]) -> bytes:
        names_process = b"M" in bytes(event.get("ph", b""))
        parts = []
        for key, raw in event.items():
            value = self._value(key, bytes(raw), names_process=names_process)
            if value is not None:
                parts.append(b'"%s": %s' % (key.encode(), value))
        return b"{" + b", ".join(parts) + b"}" if parts else b""

    def _value(self, key: str, raw: bytes, *, names_process: bool) -> bytes | None:
        if key in _NUMBER_KEYS:
            if key != "id" or not _NUMBER.fullmatch(raw):
                return raw if _NUMBER.fullmatch(raw) else None
            return self._once("events", raw, self._text)
        if key == "args":
            return self._arguments(raw, names_process=names_process)
        if key in _TEXT_KEYS:
            return self._once("events", raw, self._text)
        if key in _SHORT_KEYS:
            return raw if _SHORT.fullmatch(raw) else None
        self._ledger.leave_out("events", "keys that no table needs", example=key)
        return None

    def _arguments(self, raw: bytes, *, names_process: bool) -> bytes | None:
        members = _object(msgspec.Raw(raw))
        if members is None:
            return None
        parts = []
        for key, value in members.items():
            text = bytes(value)
            name = self._key(key, text)
            if name is None:
                continue
            if names_process and key in {"name", "labels"}:
                cleaned = self._once("names of processes", text, self._process)
            else:
                cleaned = (
                    text if _NUMBERS.fullmatch(text) else self._once("arguments", text, self._text)
                )
            if cleaned is not None:
                parts.append(name + b": " + cleaned)
        return b"{" + b", ".join(parts) + b"}"

    def _key(self, key: str, value: bytes) -> bytes | None:
        if key in _ARGUMENTS:
            return b'"%s"' % key.encode()
        if _NUMBER.fullmatch(value) and not value.startswith(
            b'"'
        ):  # the series of a counter can have any name
            return msgspec.json.encode(self._ledger.text(key, "arguments"))
        self._ledger.leave_out(
            "arguments", _OTHER_ARGUMENTS, example=f"{key}: {value.decode('utf-8', 'replace')}"
        )
        return None

    def _once(self, place: str, raw: bytes, make: Callable[[Any, str], Any]) -> bytes | None:
        if _PLAIN.fullmatch(raw):
            return raw
        replacement = self._made.get((place, raw), b"")
        if replacement == b"":
            try:
                value = msgspec.json.decode(raw)
            except BAD_JSON:
                replacement = None
            else:
                replacement = msgspec.json.encode(make(value, place))
            if len(self._made) < 1 << 18:
                self._made[place, raw] = replacement
        return replacement

    def _text(self, value: Any, place: str) -> Any:
        return _cleaned(value, self._ledger, place)

    def _process(self, value: Any, place: str) -> Any:
        if isinstance(value, str):
            return process_name(value, self._ledger, place)
        return value if isinstance(value, int) else None


def process_name(text: str, ledger: Ledger, place: str) -> str:
    """Purpose of a process or thread from its name, without the command line and the user that
    started it.
    """
    if _PROCESS.fullmatch(text.strip()):
        return text
    if match := re.fullmatch(r"thread (\d+) \((.*)\)", text, re.DOTALL):
        return f"thread {match[1]} ({process_name(match[2], ledger, place)})"
    allowed = re.search(
        r"(?i)(?:VLLM::)?(?:Worker|EngineCore)[A-Za-z0-9_]{0,24}|MPI Rank"
        r" \d+|\bpython[\d.]*(?=\s|$)",
        text,
    )
    ledger.leave_out(place, "names of processes", example=text)
    return allowed[0] if allowed else ledger.names.name("process", text)


def _cleaned(value: Any, ledger: Ledger, place: str, depth: int = 0, *, free: bool = False) -> Any:
    """Replace the texts of a JSON value; parts that are nested too deeply are left out."""
    if isinstance(value, str):
        return ledger.text(value, place, free=free)
    if depth >= _DEEPEST:
        return None
    if isinstance(value, list):
        return [_cleaned(item, ledger, place, depth + 1, free=free) for item in value]
    if isinstance(value, dict):
        return {
            ledger.text(key, place): _cleaned(item, ledger, place, depth + 1, free=free)
            for key, item in value.items()
        }
    return value


def _head(head: Mapping[str, msgspec.Raw], ledger: Ledger) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    for key, raw in head.items():
        value = _plain(raw)
        if key in _HEAD:
            cleaned[key] = _permitted(value, _HEAD[key], ledger, key)
        elif _VERSION_KEY.fullmatch(key) and (
            isinstance(value, int) or (isinstance(value, str) and _VERSION.fullmatch(value))
        ):
            cleaned[key] = ledger.text(value, key, free=True) if isinstance(value, str) else value
        else:
            ledger.leave_out("document", "keys that no table needs", example=key)
    return cleaned


def _permitted(value: Any, pattern: Any, ledger: Ledger, place: str) -> Any:
    if isinstance(pattern, list):
        return (
            [_permitted(item, pattern[0], ledger, place) for item in value]
            if isinstance(value, list)
            else None
        )
    if isinstance(pattern, dict):
        if not isinstance(value, dict):
            return None
        for key in value.keys() - pattern.keys():
            ledger.leave_out(place, "keys that no table needs", example=key)
        return {
            key: _permitted(value[key], inner, ledger, place)
            for key, inner in pattern.items()
            if key in value
        }
    return _cleaned(value, ledger, place, _DEEPEST - 3, free=True)


def _plain(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except BAD_JSON:
        return None


def _dropped(source: Path) -> Iterator[tuple[str, str]]:
    """Keys and texts in the parts of the document that are left out."""
    stream = EventStream(source)
    for _ in stream.batches(_skipped):
        pass
    for key, raw in stream.head.items():
        if key not in _HEAD:
            yield from _texts(key, _plain(raw))


def _skipped(text: bytes) -> list[Any]:
    _ANY_EVENTS.decode(text)
    return []


def _texts(key: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict) and depth < _DEEPEST:
        for name, item in value.items():
            yield from _texts(str(name), item, depth + 1)
    elif isinstance(value, list) and depth < _DEEPEST:
        for item in value:
            yield from _texts(key, item, depth + 1)
