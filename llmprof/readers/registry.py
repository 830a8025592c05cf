"""The list of readers: a new format is its own room in this folder, and one line here."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

from llmprof import plugins
from llmprof.errors import UnknownFormatError
from llmprof.readers.common.reader import Reader

BUILT_IN: Final = (
    "llmprof.readers.ascend.reader:READER",
    "llmprof.readers.chrome.reader:READER",
    "llmprof.readers.nsys.reader:READER",
    "llmprof.readers.saved:READER",
    "llmprof.readers.monitors.reader:READERS",
    "llmprof.readers.ncu.reader:READER",
)
"""Readers of llmprof in the order in which they are asked, written as an entry point is: ``module:attribute``,
a reader or several. A file belongs to the first reader that knows it.
"""


@cache
def readers() -> tuple[Reader, ...]:
    """All readers: those of llmprof, then those of plug-ins.

    Returns
    -------
    tuple of Reader
        In the order in which they are asked about a file.

    Warns
    -----
    PluginWarning
        A plug-in cannot be loaded, is no reader, or has the name of another format.
    """
    own = plugins.listed(BUILT_IN, Reader)
    others = plugins.added(plugins.READERS, Reader, own, lambda reader: reader.name, "format")
    return (*own, *(replace(reader, package=plugin.package) for plugin, reader in others))


def formats() -> list[str]:
    """Names of the formats that :func:`llmprof.read` takes.

    >>> formats()[:3]
    ['ascend', 'chrome', 'nsys']
    """
    return [reader.name for reader in readers() if reader.read is not None]


def reader(name: str) -> Reader:
    """The reader of a format.

    Raises
    ------
    UnknownFormatError
        There is no such format.
    """
    for one in readers():
        if one.name == name:
            return one
    raise UnknownFormatError(f"there is no format {name!r}", expected=f"one of {formats()}")
