"""What a reader is: a record with the name of its format, how to recognise it, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from llmprof.progress import Progress
from llmprof.readers.common.blocks import Blocks
from llmprof.readers.common.part import Part, Wanted
from llmprof.trace import Trace

START_BYTES: Final = 64 << 10
"""How much of a file a reader is shown first."""

_MOST_BYTES: Final = 16 << 20


class Probe:
    """A file or folder that each reader in turn is asked about; what was read of it is kept.

    Parameters
    ----------
    path : pathlib.Path
        An existing file or folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._blocks: Iterator[bytes] | None = None
        self._read = b""

    @cached_property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.path.is_dir()

    @cached_property
    def start(self) -> bytes:
        """First 64 KiB of a file, decompressed if it is gzip; nothing of a folder."""
        return b"" if self.is_folder else self._first(START_BYTES)[:START_BYTES]

    def growing(self) -> Iterator[bytes]:
        """The beginning of a file, each time 64 KiB more of it, up to its end or 16 MiB."""
        size = START_BYTES
        while not self.is_folder:
            yield self._first(size)[:size]
            if size >= _MOST_BYTES or len(self._read) < size:
                return
            size += START_BYTES

    def _first(self, size: int) -> bytes:
        if self._blocks is None:
            self._blocks = iter(Blocks(self.path, START_BYTES))
        while len(self._read) < size and (block := next(self._blocks, b"")):
            self._read += block
        return self._read


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller of :func:`llmprof.read` asked for."""

    wanted: Wanted = Wanted()  # noqa: RUF009 (frozen)
    """Tables and columns to keep; a reader may read the others, too."""
    python_functions: bool = False
    """Whether to keep the Python functions of ``with_stack=True``."""
    progress: Progress | None = None
    """To be called while reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reader of one format.

    Its place is ``READER`` in the module that reads the format, and one line in
    :mod:`llmprof.readers.registry`; another package names it in the group ``llmprof.readers`` of its entry points.
    """

    name: str
    """Name of the format: ``meta["format"]`` of its traces, and ``format=`` of :func:`llmprof.read`."""
    version: int
    """Raised whenever the same file would give other frames: part of the cache's key."""
    what: str
    """What the format is, in words that follow "a file of": ``Chrome trace JSON (PyTorch profiler)``."""
    sniff: Callable[[Probe], bool]
    """Whether a file or folder is of this format, by its content. Asked about every file: it must be quick."""
    read: Callable[[Path, Request], list[Part] | Trace] | None = None
    """Reads one file or folder: parts with absolute times, which are put together with those of the other files; or
    a whole trace where :attr:`alone`. None where such a file is no trace; then :attr:`instead` says what reads it."""
    instead: str = ""
    """What to call for a format that is no trace."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of the files to look at in a folder; a folder in it is looked at whatever its name."""
    alone: bool = False
    """Whether one file is a whole trace: it is not put together with others, and not looked for in folders."""
    choose: Callable[[list[Path]], list[Path]] | None = None
    """Which of the files of a folder to read, where some hold the same recording."""
    database: Callable[[Path, Request], Path | None] | None = None
    """SQLite file behind a file, for :meth:`llmprof.Trace.sql`."""
    package: str = ""
    """Name and version of the package that a plug-in is in; set by the registry."""

    def options(self, request: Request) -> dict[str, Any]:
        """What the content of a cached trace depends on beside the file."""
        return {
            "reader": self.name,
            "version": self.version,
            "package": self.package,
            "python_functions": request.python_functions,
        }
