"""From the paths of a command line to a trace."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from llmprof import bundled
from llmprof.commands._output import Progress, Terminal
from llmprof.launch.captures import capture
from llmprof.readers import read
from llmprof.trace import Trace

SAMPLE = "sample:"


def open_trace(paths: Sequence[str], args: Namespace, terminal: Terminal) -> Trace:
    """Read paths, run folders and samples (``sample:NAME``) as one trace."""
    files: list[Path] = []
    for path in paths:
        files += bundled.files(path.removeprefix(SAMPLE)) if path.startswith(SAMPLE) else [capture(Path(path))]
    cache = False if getattr(args, "no_cache", False) else None
    return read(files, format=getattr(args, "format", None), cache=cache, progress=reading(terminal))


def reading(terminal: Terminal) -> Progress | None:
    tell = terminal.progress
    if tell is None:
        return None
    return lambda name, done, size: tell(f"reading {Path(name).name}", done, size)
