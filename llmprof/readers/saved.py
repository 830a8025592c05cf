"""Reader of saved traces: folders that :meth:`llmprof.Trace.save` wrote."""

from __future__ import annotations

from pathlib import Path

from llmprof.readers.common.reader import Probe, Reader, Request
from llmprof.storage.parquet import META_FILE
from llmprof.trace import Trace


def sniff(probe: Probe) -> bool:
    """Whether it is a folder that ``Trace.save`` wrote."""
    return probe.is_folder and (probe.path / META_FILE).exists()


def read(path: Path, request: Request) -> Trace:
    """The trace that was saved; what is not wanted of it is left out afterwards."""
    return Trace.open(path)


READER = Reader(name="llmprof", version=1, what="a folder that Trace.save wrote", sniff=sniff, read=read, alone=True)
