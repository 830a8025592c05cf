"""The choice of a reader for a file or folder, which depends on the
content, not the name.

To add a format, add a module or folder here and a line to ``built_in.py``.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

from llmprof import plugins
from llmprof.errors import PluginWarning, ReadError, UnknownFormatError, listed
from llmprof.readers.built_in import MODULES
from llmprof.readers.common.event_stream import GZIP_MAGIC, Blocks
from llmprof.readers.common.reader import START_BYTES, Probe, Reader, border
from llmprof.text import plain


def readers() -> Iterator[Reader]:
    """All readers: those of llmprof, each imported when its turn comes, then those of plug-ins."""
    yield from _own()
    yield from added()


def _own() -> Iterator[Reader]:
    for name in MODULES:
        module = vars(import_module(f"llmprof.readers.{name}"))
        yield from module["READERS"] if "READERS" in module else (module["READER"],)


@cache
def added() -> tuple[Reader, ...]:
    """The readers of plug-ins."""
    others = plugins.new_records(plugins.READERS, Reader, _own(), lambda one: one.name, "format")
    return tuple(replace(reader, package=plugin.package) for plugin, reader in others)


def formats() -> list[str]:
    """Names of the formats that :func:`llmprof.read` takes.

    >>> formats()[:3]
    ['ascend', 'chrome', 'xplane']
    """
    return [reader.name for reader in readers() if reader.read is not None]


def reader_named(name: str) -> Reader:
    """The reader of a format."""
    for candidate in readers():
        if candidate.name == name:
            return candidate
    raise UnknownFormatError(f"there is no format {name!r}", expected=f"one of {listed(formats())}")


_KNOWN_ELSEWHERE: Final = {
    b"SQLite format 3\x00": "an SQLite database, but no export of Nsight Systems",
    b"PAR1": "a Parquet file",
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
_KEY: Final = re.compile(rb'[{,]\s*"([^"\\]{1,40})"\s*:')


def detect(path: Path) -> str | None:
    """Format of a file or folder."""
    return None if (reader := knows(path)) is None else reader.name


def knows(path: Path) -> Reader | None:
    """First reader that knows a file or folder; None if no reader does."""
    with border(path.name or str(path)):
        probe = Probe(path)
        first = next((reader for reader in readers() if claims(reader, probe)), None)
        for reader in added():
            if first in (None, reader) or not claims(reader, probe):
                continue
            warnings.warn(
                f"{path.name} is read as {first.name!r}, and the plug-in {reader.package} claims"
                f" it, too; format={reader.name!r} reads it with the plug-in",
                PluginWarning,
                stacklevel=3,
            )
    return first


def claims(reader: Reader, probe: Probe) -> bool:
    """Whether a reader knows a file or folder; if a plug-in fails, a warning names it, and the
    answer is no.
    """
    if not reader.package:
        return reader.sniff(probe)
    try:
        with plugins.foreign():
            return bool(reader.sniff(probe))
    except plugins.FailedError as error:
        warnings.warn(
            f"the reader {reader.name!r} of {reader.package} failed when it looked at"
            f" {probe.path.name}: {error}",
            PluginWarning,
            stacklevel=3,
        )
        return False


def say_what_it_is(path: Path) -> str:
    """Description of the content of a file of unknown format."""
    start = Probe(path).start
    for magic, name in _KNOWN_ELSEWHERE.items():
        if start.startswith(magic):
            return name
    text = start.lstrip(_BEFORE)
    keys = ", ".join(
        dict.fromkeys(key.decode("utf-8", "replace") for key in _KEY.findall(text[:4096])[:5])
    )
    if text[:1] == b"{" and keys:
        return f'JSON without "traceEvents"; its first keys are {keys}'
    if text[:1] == b"[":
        return f"a JSON list, but not of events{f'; its first keys are {keys}' if keys else ''}"
    if b"\x00" in start[:1024]:
        return f"a binary file that begins with the bytes {start[:16].hex(' ')}"
    begin = plain(start[:40].decode("utf-8", "replace").partition("\n")[0])
    return f"a text that begins with “{begin}”"


def refuse_empty(path: Path) -> None:
    """Raise if a file is empty."""
    if not path.stat().st_size:
        hint = "the profiler may have been killed before it wrote the trace: record it again"
        raise ReadError(f"{path.name} is empty", expected="a trace", hint=hint)
    blocks = Blocks(path, START_BYTES)
    if not any(block.strip() for block in blocks):
        why = f" ({blocks.damage})" if blocks.damage else ""
        raise ReadError(
            f"{path.name} has no content{why}",
            expected="a trace",
            hint="record it or copy it again",
        )
